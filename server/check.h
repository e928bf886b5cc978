/*
 * The files of a model are somebody else's: they are parsed in a child first, which has nothing to
 * lose: it can open only them, has no sockets, and little time and memory. If it dies there, the
 * start ends with a sentence about the file, and the server itself never reads it. If it comes to
 * its end, also with a fault, the server parses them itself and says what is wrong.
 *
 * A file that is changed between the two is not defended: who can do that can do it later, too.
 */
#pragma once

#include <stdint.h>
#include <sys/types.h>

struct ek_fault;
struct options;

struct check {
    pid_t pid; /* 0 = there is none */
    int fd;    /* its end of a pipe: the child writes what it reads now */
    uint32_t wall_s;
};

struct check_limits {
    uint64_t data_bytes; /* of its heap, and as much again of what it maps privately */
    uint32_t cpu_s, wall_s;
};

/* Says what is parsed from now on: a constant of at most 100 bytes. */
void check_stage(int fd, const char *what);
/* Starts the child, which calls parse(ctx, fd) and ends. While the process has one thread. 0 or a
 * negative errno: then there is no child, and check_wait() has nothing to say. */
int check_begin(struct check *c, void (*parse)(const void *ctx, int fd), const void *ctx,
                const struct check_limits *limits);
/* The model that the options name, confined as confine.h says; no child with --no-sandbox. */
void check_model(struct check *c, const struct options *o);
/* Waits for its end; by any thread, once. -EBADMSG with a fault when it died or was ended. */
int check_wait(struct check *c, const char *model, struct ek_fault *fault);
