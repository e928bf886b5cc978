/*
 * The flight recorder: what an engine did in its last minute, in a file in memory that is there
 * when the process is not, whatever ended it. The engine writes, evenkeeld reads (recorder_read.h);
 * the format is all that they share.
 *
 * The file has a head and three rings of records of a fixed size. A record has a number of its own
 * ring, from 1 on; it lies at (number - 1) % count, so the newest overwrite the oldest. While one
 * is written its number is 0; its sum comes next to last, its number last: a reader after a crash
 * finds a whole record or none.
 *
 *   begun     steps that were handed to the device: one of them without a record in `steps` was in
 *             flight at the end
 *   steps     steps that landed, with what the scheduler had then
 *   requests  that arrived and that ended: sizes and kinds
 *
 * Nothing here comes from a text: no token, no name, no key. One thread writes. All numbers are in
 * the machine's own order: the file does not leave it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* After the path of the control socket: one directory may have the sockets of several servers. */
#define EK_RECORDER_FILE    ".ring"
#define EK_RECORDER_BEFORE  ".before.ring" /* that of the process before */
#define EK_RECORDER_MAGIC   "EKFLIGHT"
#define EK_RECORDER_VERSION 1u
#define EK_RECORDER_ORDER   0x01020304u

/* A minute of 500 steps a second, and the requests of such a minute. */
#define EK_RECORDER_BEGUN    8u
#define EK_RECORDER_STEPS    32768u
#define EK_RECORDER_REQUESTS 8192u

struct ek_recorder_step {
    uint64_t number, sum; /* the writer's */
    uint64_t at_us;       /* when it landed, or began; CLOCK_MONOTONIC */
    uint64_t id;          /* of the step */
    uint32_t step_us;     /* the rest is 0 in `begun` unless it says so */
    uint32_t plan_us, wait_us, mask_us;
    uint32_t rows, prefill_rows, seqs, copies; /* in `begun` too */
    uint32_t running, waiting, preempted;      /* waiting includes preempted; in `begun` too */
    uint32_t preemptions;                      /* a counter's low bits, as the next but one */
    uint32_t blocks_total, blocks_used, blocks_cached, blocks_free; /* in `begun` too */
    uint32_t limit_seqs, limit_tokens, limit_blocks;                /* in force; 0 = all */
    int32_t error;                                                  /* of the step, 0 = none */
    uint32_t resident_mib;      /* of the process, looked at once a second; 0 = not known */
    uint32_t host_blocks_used;  /* of the host tier */
    uint32_t generation_tokens; /* a counter's low bits */
    uint32_t held;              /* what keeps the first waiting request out: enum engine_held */
};

enum ek_recorder_kind { EK_RECORDER_ARRIVED = 1, EK_RECORDER_ENDED = 2 };

enum ek_recorder_flag {
    EK_RECORDER_GRAMMAR = 1,  /* the answer has to match one */
    EK_RECORDER_SCORES = 2,   /* of the prompt */
    EK_RECORDER_TOP = 4,      /* alternatives with each token */
    EK_RECORDER_SAMPLED = 8,  /* not the likeliest token */
    EK_RECORDER_PENALTY = 16, /* what was sampled before matters */
    EK_RECORDER_HIDDEN = 32,  /* an embedding */
};

struct ek_recorder_request {
    uint64_t number, sum; /* the writer's */
    uint64_t at_us;
    uint64_t id; /* by arrival, from 1 */
    uint8_t kind;
    uint8_t finish; /* enum req_finish */
    uint16_t flags;
    int32_t priority;
    uint32_t prompt_tokens, most_tokens;
    uint32_t output_tokens, cached_tokens, preemptions; /* of one that ended */
    uint32_t unused;
};

/* Where a ring lies in the file. */
struct ek_recorder_ring {
    uint32_t offset, record_bytes, count, unused;
};

/* What a server is, for readers. */
struct ek_recorder_about {
    uint32_t max_seqs, max_tokens, block_size, unused;
    uint64_t block_bytes;
};

struct ek_recorder_head {
    char magic[8];
    uint32_t version, order, head_bytes, unused;
    int64_t pid, parent; /* parent: mpirun's, where that is what evenkeeld started */
    uint64_t started_us, started_wall_us;
    struct ek_recorder_about about;
    struct ek_recorder_ring begun, steps, requests;
    uint64_t sum; /* of what is before it */
};

struct ek_recorder;

/* Makes SOCKET.ring with mode 0600, all of it there at once; one of a process before becomes
 * SOCKET.before.ring. 0, -ENOMEM or a negative errno. */
int ek_recorder_open(const char *socket, const struct ek_recorder_about *about,
                     struct ek_recorder **ret_recorder);
/* The file stays. NULL is fine, here and below. */
void ek_recorder_close(struct ek_recorder *r);
/* A step goes to the device. */
void ek_recorder_begin(struct ek_recorder *r, const struct ek_recorder_step *step);
/* A step landed. resident_mib is filled in. */
void ek_recorder_step(struct ek_recorder *r, const struct ek_recorder_step *step);
void ek_recorder_request(struct ek_recorder *r, const struct ek_recorder_request *request);

/* The sum of a record or head: of what is before `bytes`, whole words, but for the word at `skip`.
 * Tells a record that is whole from half of one. */
uint64_t ek_recorder_sum(const void *record, size_t bytes, size_t skip);
