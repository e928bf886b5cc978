/* Where the libraries are that the plug-in takes when it finds them; see library.h. At load. */
#include "kernels/cuda/library.h"

#include <dlfcn.h>
#include <glob.h>
#include <link.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Folders of Python packages of a machine, as patterns. */
static const char *const site_packages[] = {
    "/usr/local/lib/python3*/dist-packages", "/usr/local/lib/python3*/site-packages",
    "/usr/lib/python3*/dist-packages",       "/usr/lib/python3*/site-packages",
    "/usr/lib/python3/dist-packages",        "/opt/conda/lib/python3*/site-packages",
};

struct library_search {
    const struct cuda_library *wanted;
    bool (*take)(void *ctx, void *library);
    void *ctx;
    char *where;
    size_t size;
};

static void library_say(const struct library_search *s, const char *text, size_t len)
{
    size_t n = len < s->size - 1 ? len : s->size - 1;
    memcpy(s->where, text, n);
    s->where[n] = '\0';
}

/* Code that anybody could have put there is not loaded. */
static bool trusted(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISREG(st.st_mode) && (st.st_mode & 022) == 0 &&
           (st.st_uid == 0 || st.st_uid == geteuid());
}

static void *try_one(const struct library_search *s, const char *path)
{
    void *library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    const struct link_map *map = NULL;
    if (!library || !s->take(s->ctx, library))
        return NULL;
    const bool known =
        dlinfo(library, RTLD_DI_LINKMAP, (void *)&map) == 0 && map && map->l_name && map->l_name[0];
    const char *name = known ? map->l_name : path;
    library_say(s, name, strlen(name));
    return library;
}

/* The newest of a folder first: glob sorts, and names end in the version. */
static void *try_folder(const struct library_search *s, const char *folder, size_t len)
{
    void *library = NULL;
    for (const char *const *p = s->wanted->packages; *p && !library; p++) {
        char pattern[512];
        glob_t found = {0};
        int n = snprintf(pattern, sizeof(pattern), "%.*s/%s", (int)len, folder, *p);
        if (n < 0 || (size_t)n >= sizeof(pattern) || glob(pattern, 0, NULL, &found) != 0)
            continue;
        for (size_t i = found.gl_pathc; i > 0 && !library; i--)
            if (trusted(found.gl_pathv[i - 1]))
                library = try_one(s, found.gl_pathv[i - 1]);
        globfree(&found);
    }
    return library;
}

static void *try_packages(const struct library_search *s)
{
    const char *folders = getenv("EVENKEEL_PYTHON_PACKAGES");
    const char *venv = getenv("VIRTUAL_ENV");
    void *library = NULL;

    while (folders && *folders && !library) {
        size_t len = strcspn(folders, ":");
        if (len > 0)
            library = try_folder(s, folders, len);
        folders += len + (folders[len] == ':');
    }
    if (!library && venv && venv[0]) {
        char folder[400];
        int n = snprintf(folder, sizeof(folder), "%s/lib/python3*/site-packages", venv);
        if (n > 0 && (size_t)n < sizeof(folder))
            library = try_folder(s, folder, (size_t)n);
    }
    for (size_t i = 0; i < sizeof(site_packages) / sizeof(site_packages[0]) && !library; i++)
        library = try_folder(s, site_packages[i], strlen(site_packages[i]));
    return library;
}

void *cuda_library_find(const struct cuda_library *wanted, bool (*take)(void *ctx, void *library),
                        void *ctx, char *ret_where, size_t size)
{
    const struct library_search s = {wanted, take, ctx, ret_where, size};
    const char *named = getenv(wanted->env);
    void *library = NULL;

    if (named && strcmp(named, "off") == 0) {
        (void)snprintf(ret_where, size, "%s=off", wanted->env);
        return NULL;
    }
    if (named && named[0]) {
        library = try_one(&s, named);
        if (!library)
            (void)snprintf(ret_where, size, "%s=%s, which cannot be used", wanted->env, named);
        return library;
    }
    for (const char *const *n = wanted->names; *n && !library; n++)
        library = try_one(&s, *n);
    if (!library)
        library = try_packages(&s);
    if (!library)
        (void)snprintf(ret_where, size,
                       "the linker's folders, /usr/local/cuda, and %s of Python packages in "
                       "$VIRTUAL_ENV, /usr/local/lib, /usr/lib and /opt/conda",
                       wanted->packages[0]);
    return library;
}
