/*
 * The cache of Hugging Face's tools: BASE/models--org--name/refs/main holds the name of a folder
 * below snapshots/. BASE is HF_HUB_CACHE, else HF_HOME/hub, else huggingface/hub in the user's
 * cache directory.
 */
#include "server/model/find.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/model/files.h"

#define ID_CHARS "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_."

/* "org/name" of letters, digits and -_. that begins with none of the latter two. */
static bool is_id(const char *name)
{
    size_t org = strspn(name, ID_CHARS);
    if (org == 0 || name[org] != '/' || name[0] == '.')
        return false;
    size_t rest = strspn(name + org + 1, ID_CHARS);
    return rest > 0 && name[org + 1] != '.' && name[org + 1 + rest] == '\0';
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

__attribute__((format(printf, 3, 4))) static bool path_of(char *to, size_t bytes, const char *fmt,
                                                          ...)
{
    va_list ap;
    va_start(ap, fmt);
    int n = vsnprintf(to, bytes, fmt, ap);
    va_end(ap);
    return n > 0 && (size_t)n < bytes;
}

static const char *env(const char *name)
{
    const char *value = getenv(name);
    return value && *value ? value : NULL;
}

static bool base_of(char *to, size_t bytes)
{
    if (env("HF_HUB_CACHE"))
        return path_of(to, bytes, "%s", env("HF_HUB_CACHE"));
    if (env("HF_HOME"))
        return path_of(to, bytes, "%s/hub", env("HF_HOME"));
    if (env("XDG_CACHE_HOME"))
        return path_of(to, bytes, "%s/huggingface/hub", env("XDG_CACHE_HOME"));
    return env("HOME") && path_of(to, bytes, "%s/.cache/huggingface/hub", env("HOME"));
}

/* The snapshot that refs/main names; 1 if it is there. */
static int snapshot(const char *base, const char *id, char *ret_dir, size_t bytes)
{
    char refs[4096], revision[64] = "";
    struct ek_buf text = {0};
    int org = (int)(strchr(id, '/') - id);
    if (!path_of(refs, sizeof(refs), "%s/models--%.*s--%s/refs", base, org, id, id + org + 1))
        return 0;
    int r = model_file_read(NULL, refs, "main", sizeof(revision) - 1, &text, NULL);
    if (r == 0)
        (void)snprintf(revision, sizeof(revision), "%.*s",
                       (int)strcspn(text.data ? text.data : "", " \r\n"),
                       text.data ? text.data : "");
    ek_buf_done(&text);
    if (r == -ENOMEM)
        return r;
    return r == 0 && model_name_ok(revision) &&
           path_of(ret_dir, bytes, "%s/models--%.*s--%s/snapshots/%s", base, org, id, id + org + 1,
                   revision) &&
           is_directory(ret_dir);
}

int model_find(const char *name, char *ret_dir, size_t bytes, struct ek_fault *fault)
{
    char base[4096] = "", dir[4096];
    if (is_id(name) && !is_directory(name)) {
        int r = base_of(base, sizeof(base)) ? snapshot(base, name, dir, sizeof(dir)) : 0;
        if (r < 0)
            return r;
        if (r == 0)
            return ek_fault_set(fault, "model",
                                "%s is neither a directory nor a model in the cache %s; download "
                                "it with: hf download %s",
                                name, base[0] ? base : "of Hugging Face", name);
        name = dir;
    }
    if (path_of(ret_dir, bytes, "%s", name))
        return 0;
    return ek_fault_set(fault, "model",
                        "the path of the model directory must have 1 to %zu bytes; name another "
                        "directory",
                        bytes - 1);
}
