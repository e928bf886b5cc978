/*
 * The files of a model come from outside: they are parsed in a child first, which has nothing to
 * lose: it can open only them, has no sockets, and little time and memory. If it dies there, the
 * start ends with a sentence about the file. Else it hands what it has read back, in two bundles
 * (common/bundle.h): one of what the weights need, which engines of their own read once more, and
 * one of texts. The server parses those, and says what is wrong; of the directory it opens only the
 * weights, which must be the files that the child has seen.
 *
 * Without the child (--no-sandbox, a kernel without memfd) the server reads the files themselves.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct ek_bundle;
struct ek_fault;
struct options;

struct check {
    pid_t pid; /* 0 = there is none */
    int fd;    /* its end of a pipe: the child writes what it reads now */
    uint32_t wall_s;
    char dir[4096];        /* the model's, which the options name; "" where there is no child */
    int model_fd, text_fd; /* memfds that it writes to, -1 = none */
    struct ek_bundle *model, *text; /* what is in them, after check_take() */
};

struct check_limits {
    uint64_t data_bytes; /* of its heap, and as much again of what it maps privately */
    uint32_t cpu_s, wall_s;
};

#define CHECK_CUT_SHORT 4 /* exit code of a child that read beyond the end of a mapped file */

/* Says what is parsed from now on: a constant of at most 100 bytes. */
void check_stage(int fd, const char *what);
/* Starts the child, which calls parse(ctx, fd) and ends. While the process has one thread. 0 or a
 * negative errno: then there is no child, and check_wait() has nothing to say. */
int check_begin(struct check *c, void (*parse)(const void *ctx, int fd), const void *ctx,
                const struct check_limits *limits);
/* The model that the options name, confined as confine.h says; no child with --no-sandbox. */
void check_model(struct check *c, const struct options *o);
/* Waits as below and takes what it has handed back; does nothing where there is no child. Once; by
 * any thread. -EBADMSG with a fault, -ENOMEM. */
int check_take(struct check *c, struct ek_fault *fault);
void check_done_texts(struct check *c); /* they are not read any more */
void check_done(struct check *c);       /* neither those nor the rest */
/* Waits for its end; by any thread, once. -EBADMSG with a fault when it died or was ended. */
int check_wait(struct check *c, const char *model, struct ek_fault *fault);
