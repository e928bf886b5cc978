/*
 * Files of API keys. A line is a key, or a name, a key and limits:
 *
 *     # comment
 *     sk-3cf1...
 *     team-a  sk-9b02...  max-concurrency=8 queue-share=0.25 weight=2
 *     team-b  sha256:5e88...  cache-group=shared
 *     batch   sk-77aa...  priority=10..100
 *
 * A key is 1 to 512 visible ASCII characters, or sha256: and the 64 hex digits of its SHA-256, so
 * that a file need not hold a key itself. Only the digest is kept. Keys of one cache group
 * share their prefix cache; others do not. Pure.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_fault;

#define KEY_LINES_MOST 64u
#define KEY_NAME       33u
#define KEY_DIGEST     32u
#define KEY_BYTES      512u

struct key_line {
    char name[KEY_NAME];
    char group[KEY_NAME]; /* "" = its own */
    uint8_t digest[KEY_DIGEST];
    uint32_t concurrency; /* most requests at once, 0 = no limit */
    double queue_share;   /* most of the queue, 0 .. 1 */
    double weight;        /* of its turns among the keys, 0 = 1 */
    int32_t first, last;  /* priorities that its clients may ask for; smaller ones come first */
};

/* The digest of a key as a client sends it. 0 or -EIO (the library refuses). */
int key_digest(const char *key, size_t len, uint8_t ret_digest[KEY_DIGEST]);

/* Appends the keys of a text to lines[0 .. *count), at most KEY_LINES_MOST in all; `defaults` has
 * the limits of lines that name none. `what` and `path` begin a fault, whose `at` is the line; a
 * text without any key is a fault, so is a key or a name that is there already. */
int keyfile_parse(const char *what, const char *path, const char *text, size_t len,
                  const struct key_line *defaults, struct key_line *lines, uint32_t *count,
                  struct ek_fault *fault);
/* One key without a file: its name is key-N. */
int keyfile_add(const char *what, const char *key, const struct key_line *defaults,
                struct key_line *lines, uint32_t *count, struct ek_fault *fault);
