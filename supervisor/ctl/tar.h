/*
 * A tar archive (POSIX ustar), gzipped, written file by file: what a support bundle is made of.
 * Every member is a plain file of mode 0600; names are at most 99 bytes.
 */
#pragma once

#include <stddef.h>
#include <time.h>

struct tar;

/* Creates the file, which must not exist, with mode 0600. 0, -EEXIST or what open() says. */
int tar_open(const char *path, time_t now, struct tar **ret);
/* -ENAMETOOLONG, -EFBIG beyond 1 GiB, -EIO. After an error the archive is of no use. */
int tar_add(struct tar *t, const char *name, const void *data, size_t len);
/* Ends and closes it; frees t also on failure. */
int tar_close(struct tar *t);
