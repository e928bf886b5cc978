/*
 * Servers from files of their own: each NAME.yaml in servers_dir is a server NAME, and the file is
 * what evenkeel-server reads with --config. Packages put theirs into a directory of their own that
 * comes later in the list, so an operator's file of the same name wins and an empty one hides it.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/file.h"
#include "supervisor/config/options_table.h"
#include "supervisor/config/server_file.h"

#define SUFFIX     ".yaml"
#define SUFFIX_LEN (sizeof(SUFFIX) - 1)
#define NULL_MAJOR 1 /* of /dev/null */
#define NULL_MINOR 3

static int is_server_file(const struct dirent *d)
{
    size_t len = strlen(d->d_name);
    return d->d_name[0] != '.' && len > SUFFIX_LEN &&
           strcmp(d->d_name + len - SUFFIX_LEN, SUFFIX) == 0;
}

/* Whether a directory before `end` of the list has a file of that name. */
static bool had_before(const char *dirs, const char *end, const char *file)
{
    char path[4096];
    struct stat st;
    while (dirs < end) {
        size_t len = strcspn(dirs, ":");
        int n = snprintf(path, sizeof(path), "%.*s/%s", (int)len, dirs, file);
        if (len > 0 && n > 0 && (size_t)n < sizeof(path) && stat(path, &st) == 0)
            return true;
        dirs += len + (dirs[len] == ':');
    }
    return false;
}

/* A file that somebody left there must not hold up a reload: one that is waited for, a FIFO, is an
 * error. A link to /dev/null hides a server as an empty file does. */
static int read_file(const char *path, struct ek_buf *out, struct ek_fault *fault)
{
    struct stat st;
    int r = ek_file_read_linked(path, SERVER_FILE_MOST, out);
    if (r == 0 || r == -ENOMEM)
        return r;
    if (r == -EINVAL && stat(path, &st) == 0 && S_ISCHR(st.st_mode) &&
        st.st_rdev == makedev(NULL_MAJOR, NULL_MINOR))
        return 0;
    if (r == -EINVAL)
        return ek_fault_set(fault, "servers_dir",
                            "servers_dir: %.300s is no regular file; put the server's file there, "
                            "or take it away",
                            path);
    if (r == -EFBIG)
        return ek_fault_set(fault, "servers_dir", "servers_dir: %.300s is larger than 1 MiB", path);
    return ek_fault_set(fault, "servers_dir", "servers_dir: cannot read %.300s: %s", path,
                        ek_strerror(r));
}

static int read_server(struct config *c, const char *name, const char *path, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    struct server_config *s = NULL;
    int r = read_file(path, &text, fault);
    if (r < 0 || text.len == 0) /* an empty file hides a server */
        goto out;
    for (size_t i = 0; i < c->count; i++) {
        if (strcmp(c->servers[i].name, name) == 0)
            s = &c->servers[i];
    }
    if (s && (s->model || s->command.count > 0)) {
        r = ek_fault_set(fault, name,
                         "server '%s' has a `%s` below `servers:` and a file %.200s; keep one",
                         name, s->model ? "model" : "command", path);
        goto out;
    }
    r = s ? 0 : config_add_server(c, name, &s, fault);
    if (r == 0)
        r = config_server_yaml(s, path, text.data, text.len, fault);
    if (r == 0) {
        s->file = strdup(path);
        r = s->file ? 0 : -ENOMEM;
    }
out:
    ek_buf_done(&text);
    return r;
}

static int read_dir(struct config *c, const char *dir, size_t len, struct ek_fault *fault)
{
    char path[4096], name[64];
    struct dirent **files = NULL;
    int n = snprintf(path, sizeof(path), "%.*s", (int)len, dir);
    if (n <= 0 || (size_t)n >= sizeof(path))
        return ek_fault_set(fault, "servers_dir", "servers_dir: a path is longer than 4095 bytes");
    int count = scandir(path, &files, is_server_file, alphasort), r = 0;
    if (count < 0)
        return errno == ENOENT   ? 0
               : errno == ENOMEM ? -ENOMEM
                                 : ek_fault_set(fault, "servers_dir", "cannot read %.200s: %s",
                                                path, ek_strerror(-errno));
    for (int i = 0; i < count; i++) {
        const char *file = files[i]->d_name;
        if (r == 0 && !had_before(c->servers_dir, dir, file)) {
            n = snprintf(path, sizeof(path), "%.*s/%s", (int)len, dir, file);
            (void)snprintf(name, sizeof(name), "%.*s", (int)(strlen(file) - SUFFIX_LEN), file);
            if ((size_t)n >= sizeof(path))
                r = ek_fault_set(fault, "servers_dir", "%.200s: the path is too long", file);
            else
                r = read_server(c, name, path, fault);
        }
        free(files[i]);
    }
    free(files);
    return r;
}

/* Settings below servers: for a server whose file is not there (yet, or no longer) wait for it. */
static void drop_unused(struct config *c)
{
    size_t kept = 0;
    for (size_t i = 0; i < c->count; i++) {
        struct server_config *s = &c->servers[i];
        if (s->file || s->model || s->command.count > 0 || s->unit) {
            c->servers[kept++] = *s;
            continue;
        }
        if (!c->unused[0])
            (void)snprintf(c->unused, sizeof(c->unused), "%s", s->name);
        server_config_done(s);
    }
    c->count = kept;
}

int server_files_read(struct config *c, struct ek_fault *fault)
{
    int r = 0;
    for (const char *dir = c->servers_dir; *dir && r == 0;) {
        size_t len = strcspn(dir, ":");
        if (len > 0)
            r = read_dir(c, dir, len, fault);
        dir += len + (dir[len] == ':');
    }
    if (r == 0)
        drop_unused(c);
    return r;
}
