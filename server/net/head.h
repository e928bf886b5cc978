/*
 * The head of a request, checked before anything is believed of it: what two programs might read
 * differently is refused (twice the same length, a name with a space), what is too large too.
 * libmicrohttpd has split it into fields; what it does not report (bare LF, folded lines) it has
 * made harmless: see docs/security.md. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct api_error;

#define HEAD_ONCE      9u   /* fields that may come once */
#define HEAD_AUTHORITY 262u /* bytes of the longest host and port, with the end */

struct head {
    const char *method, *version; /* set by the caller */
    /* found: */
    const char *host, *length, *coding, *expect;
    uint64_t body_bytes; /* as Content-Length says */
    uint32_t fields;
    size_t bytes;
    uint32_t seen; /* bit i: field i of those that may come once */
    bool target;   /* was checked */
    bool absolute; /* it is a whole URL, whose authority stands for Host: */
    bool gzipped;  /* the body is, by its Content-Encoding */
    char authority[HEAD_AUTHORITY];
    int status; /* 0, or of the first fault */
    const char *why;
};

/* The target as it came, with its query. */
void head_target(struct head *h, const char *target);
/* Where the path of a target begins: behind the scheme and the authority of a whole URL, whose path
 * may be missing. */
const char *head_path(const char *target);
/* One field; to be called for each, in order. Values are NUL-terminated. */
void head_field(struct head *h, const char *name, size_t name_len, const char *value,
                size_t value_len);
/* All fields are in: 0, or -EBADMSG with err. After it the connection must be closed. */
int head_check(struct head *h, struct api_error *err);
