/*
 * Writes the archive of `evenkeelctl support-bundle` through zlib, member by member, so that
 * nothing has to lie on a disk twice. Each call says whether it wrote; that the end reached the
 * disk is known only when tar_close() has succeeded. doctor/untar.c reads such files.
 */
#include "supervisor/ctl/tar.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
#include <zlib.h>

#define BLOCK 512

struct tar {
    gzFile out;
    time_t now;
};

/* IEEE Std 1003.1-1988, ustar: numbers are octal text. */
struct header {
    char name[100], mode[8], uid[8], gid[8], size[12], mtime[12], checksum[8], type, link[100];
    char magic[6], version[2], user[32], group[32], major[8], minor[8], prefix[155], pad[12];
};
_Static_assert(sizeof(struct header) == BLOCK, "a header is one block");

int tar_open(const char *path, time_t now, struct tar **ret)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd < 0)
        return -errno;
    struct tar *t = malloc(sizeof(*t));
    gzFile out = t ? gzdopen(fd, "wb") : NULL;
    if (!out) {
        (void)close(fd);
        (void)unlink(path);
        free(t);
        return -ENOMEM;
    }
    *t = (struct tar){.out = out, .now = now};
    *ret = t;
    return 0;
}

static int tar_put(struct tar *t, const void *data, size_t len)
{
    return len == 0 || gzwrite(t->out, data, (unsigned)len) == (int)len ? 0 : -EIO;
}

int tar_add(struct tar *t, const char *name, const void *data, size_t len)
{
    static const char zeros[BLOCK];
    struct header h = {.mode = "0000600", .uid = "0000000", .gid = "0000000", .type = '0'};
    if (strlen(name) >= sizeof(h.name))
        return -ENAMETOOLONG;
    if (len > 1u << 30)
        return -EFBIG;
    memcpy(h.name, name, strlen(name));
    memcpy(h.magic, "ustar", 6);
    memcpy(h.version, "00", 2);
    (void)snprintf(h.size, sizeof(h.size), "%011zo", len);
    (void)snprintf(h.mtime, sizeof(h.mtime), "%011llo",
                   (unsigned long long)t->now & 077777777777ull);
    memset(h.checksum, ' ', sizeof(h.checksum));
    unsigned sum = 0;
    for (size_t i = 0; i < sizeof(h); i++)
        sum += ((const unsigned char *)&h)[i];
    (void)snprintf(h.checksum, sizeof(h.checksum), "%06o", sum);
    int r = tar_put(t, &h, sizeof(h));
    if (r == 0)
        r = tar_put(t, data, len);
    return r < 0 ? r : tar_put(t, zeros, (BLOCK - len % BLOCK) % BLOCK);
}

int tar_close(struct tar *t)
{
    static const char zeros[2 * BLOCK];
    int r = tar_put(t, zeros, sizeof(zeros));
    if (gzclose(t->out) != Z_OK && r == 0)
        r = -EIO;
    free(t);
    return r;
}
