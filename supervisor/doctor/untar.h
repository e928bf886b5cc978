/*
 * The files inside a tar archive as they stream by: nothing is written anywhere, so names and links
 * do no harm, and a member may be of any size. Plain files only; what else an archive holds
 * (folders, links, long names of GNU and POSIX) is passed over. Pure, 512 bytes of memory.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define UNTAR_BLOCK 512

struct untar {
    char head[UNTAR_BLOCK];
    size_t have;    /* of the header */
    uint64_t left;  /* of the member */
    uint32_t pad;   /* behind it */
    bool plain;     /* the member is a file */
    bool ended;     /* two empty blocks, or something that is no header: the rest is passed over */
    bool damaged;   /* ... that it was no header */
    uint32_t files; /* so far */
};

typedef void (*untar_fn)(void *ctx, const char *bytes, size_t len);

/* Whether this is the beginning of an archive. */
bool untar_is(const char *bytes, size_t len);
/* Takes the next bytes; hands over those of files, and at each file's end a newline and
 * then an empty piece. */
void untar_feed(struct untar *t, const char *bytes, size_t len, untar_fn fn, void *ctx);
/* Whether it broke off within a member. */
bool untar_cut(const struct untar *t);
