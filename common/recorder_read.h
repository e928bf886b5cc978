/*
 * Reads what a flight recorder left (recorder.h). The file is another process's: anything may be in
 * it. Every size is checked before it is used; a record that is not whole is left out.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/recorder.h"

struct ek_fault;

#define EK_RECORDED_MOST (16u << 20) /* bytes of a file */

struct ek_recorded {
    struct ek_recorder_head head;
    /* Each in order of its number, which is the order of time. */
    struct ek_recorder_step *begun, *steps;
    struct ek_recorder_request *requests;
    uint32_t begun_count, step_count, request_count;
    uint32_t torn; /* places that were written when it ended, or are damaged */
};

/* Opens a recorder's file that is of this process, or of one that it started: never through a
 * symlink, never waiting. A descriptor; -ESRCH when it is another's, -EBADMSG when it is none, or
 * another negative errno. */
int ek_recorded_open(const char *path, int64_t pid);
/* Reads all of it, at most EK_RECORDED_MOST. 0; -EBADMSG with a sentence; -ENOMEM; or an errno. */
int ek_recorded_read(int fd, struct ek_recorded *ret, struct ek_fault *fault);
/* The same of a file in memory. Pure. */
int ek_recorded_parse(const void *data, size_t len, struct ek_recorded *ret,
                      struct ek_fault *fault);
void ek_recorded_done(struct ek_recorded *r);
/* The wall clock at a time of a record. */
uint64_t ek_recorded_wall_us(const struct ek_recorded *r, uint64_t at_us);
