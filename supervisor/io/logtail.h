/*
 * What a server writes: one file, opened for appending by evenkeeld and inherited by the server, so
 * that nothing breaks when evenkeeld dies. It is bounded: when it grows over its limit it is copied
 * to NAME.1 and truncated in place (a rename would keep the server writing to the old file). Lines
 * written between the copy and the truncation are lost; they are the price of having no pipe.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_buf;

struct logtail {
    char path[256];
    uint64_t most_bytes; /* of the file; as much again in PATH.1 */
    uint64_t start;      /* size when the present process began */
};

/* A descriptor to append to, or a negative errno; makes parent-less files with mode 0640. Marks
 * the start of a new process's output. */
int logtail_open(struct logtail *t);
/* Marks the end as the start (an adopted process: what came before belongs to its past). */
void logtail_mark(struct logtail *t);
/* Rotates when over the limit. 1 if it did, 0, or a negative errno. */
int logtail_bound(struct logtail *t);
/* The last most bytes since the start, whole lines. 0 or a negative errno. */
int logtail_read(const struct logtail *t, size_t most, struct ek_buf *out);
/* Takes lines out that stood there before, letter by letter, and what is then before the last most
 * bytes. A server whose engine died may write the same trace for each open request, a vLLM 6 KiB,
 * and the cause stands above all of them. Short lines stay: they are blank ones and brackets. */
void logtail_squeeze(struct ek_buf *b, size_t most);
