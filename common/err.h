/*
 * Result codes shared by both programs.
 *
 * Functions return 0 or a negative code: an errno value for the ordinary failures, one of the codes
 * below for what errno has no word for. The facts are different and are never folded together:
 *
 *   -ENOMEM    host allocation failed; the caller gives up this operation, nothing has changed
 *   EK_EDEVMEM device allocation failed
 *   -EAGAIN    no KV block right now: preempt, swap or wait; not an error, not logged
 *   -EBUSY     over a live limit: the client gets 429 or 503 with Retry-After
 *   EK_EDEVICE, EK_ECOMM  device or collective broken: the process exits with its own code
 *   -EBADMSG   bad input, explained by a struct ek_fault
 */
#pragma once

#include <errno.h>
#include <stdbool.h>
#include <stdint.h>

enum {
    EK_EDEVMEM = -5001,
    EK_EDEVICE = -5002,
    EK_ECOMM = -5003,
    EK_ESTALE = -5004, /* a write carried an old generation number */
};

/* Exit codes of evenkeel-server; evenkeeld classifies by them (docs/exit-codes.md). */
enum ek_exit {
    EK_EXIT_OK = 0,    /* asked to stop, all done */
    EK_EXIT_USAGE = 2, /* unknown flag or bad value on the command line */
    EK_EXIT_CUT = 64,  /* asked to stop, the deadline cut requests */
    EK_EXIT_INTERNAL = 70,
    EK_EXIT_DEVMEM_START = 71,  /* device out of memory at start */
    EK_EXIT_DEVMEM_RUN = 72,    /* device out of memory while running */
    EK_EXIT_COMM = 73,          /* collective or peer */
    EK_EXIT_HANG = 74,          /* own step deadline */
    EK_EXIT_NO_FIT = 75,        /* the plan does not fit; numbers printed */
    EK_EXIT_DEVICE = 76,        /* device lost or fault */
    EK_EXIT_RESTART = 77,       /* drained for restart */
    EK_EXIT_CONFIG = 78,        /* configuration or model files */
    EK_EXIT_HOSTMEM_START = 79, /* host out of memory at start */
    EK_EXIT_LOOP = 80,          /* a thread that serves all does not come round */
};

/* Why an input was refused: one sentence with field, limit and remedy, and where in the input. */
struct ek_fault {
    char msg[480];
    char field[64]; /* the offending field or flag, "" if none */
    uint64_t at;    /* byte offset or line, 0 if it has no place */
};

/* Fills f, which may be NULL; leaves `at` alone. */
void ek_fault_write(struct ek_fault *f, const char *field, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
/* Fills f and is -EBADMSG, so that a caller can `return ek_fault_set(...)`. A macro, so that every
 * compiler and analyzer sees the value. */
#define ek_fault_set(f, field, ...)                                                                \
    __extension__({                                                                                \
        ek_fault_write((f), (field), __VA_ARGS__);                                                 \
        -EBADMSG;                                                                                  \
    })

/* Whether a call failed for want of descriptors, memory or buffers, which others may give back: it
 * is tried again in a moment, or the loop that waits for it would turn without a pause. */
bool ek_error_is_shortage(int code);
/* A constant text for a code, own or errno. */
const char *ek_strerror(int code);
