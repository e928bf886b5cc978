/* Preloaded: every disk says that it has room for all, so that writing finds out. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sys/statvfs.h>

int statvfs(const char *path, struct statvfs *v)
{
    int (*real)(const char *, struct statvfs *) =
        (int (*)(const char *, struct statvfs *))dlsym(RTLD_NEXT, "statvfs");
    int r = real(path, v);

    if (r == 0)
        v->f_bavail = v->f_bfree = 1ull << 30;
    return r;
}
