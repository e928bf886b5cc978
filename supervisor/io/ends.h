/*
 * The ends of servers that are kept, so that they can be read later: one file for each,
 * state_dir/ends/SERVER.MILLISECONDS.KIND.CLASS.json, mode 0600. Of a server are kept the newest
 * three that ended a process which served, the newest of a start, so that starts that fail push
 * nothing out, and the newest that was asked for. All of this reads and writes the disk:
 * it belongs into a thread (aside.h).
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_buf;

#define ENDS_MOST  5u         /* that are kept of a server */
#define ENDS_BYTES (1u << 20) /* of a file */

enum ends_kind { ENDS_SERVING, ENDS_STARTING, ENDS_ASKED, ENDS_KINDS };

struct ends_entry {
    char file[160]; /* within the directory */
    uint64_t at_ms;
    enum ends_kind kind;
    char cls[32];
};

/* Adds one, and removes those that are too many, never itself, and what was not finished long ago.
 * 0 or a negative errno. */
int ends_write(const char *state_dir, const char *server, uint64_t at_ms, enum ends_kind kind,
               const char *cls, const char *json, size_t len);
/* The newest first. The number of them, at most `most`; or a negative errno. */
int ends_list(const char *state_dir, const char *server, struct ends_entry *ret, uint32_t most);
/* Appends the file. 0, -ENOENT, -EFBIG, or another negative errno. */
int ends_read(const char *state_dir, const struct ends_entry *e, struct ek_buf *out);
