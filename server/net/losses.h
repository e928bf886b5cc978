/*
 * The way to evenkeeld, which judges lost engines (engine/verdict.h): one end of a Unix socket that
 * keeps messages apart, which comes over the control socket ("put losses"). A loss is one message
 * of JSON, and so is the answer:
 *
 *     {"loss":2,"at_us":91234567,"wait_us":1000000,"running":5,"ended":true,"signal":9,
 *      "status":0,"exit_code":76,"oom_kills":0,"why":"its process ended with signal 9",
 *      "steps":812,"served_s":61.204,"max_num_batched_tokens":2048,
 *      "max_num_running_seqs":16,"swap_bytes":0}
 *     {"loss":2,"class":"HOST_OOM","why":"...","max_num_batched_tokens":1024}
 *
 * A new end takes the place of the one before. The engine thread alone uses the one in use, so that
 * it is not closed while in use; the control thread leaves a new one under the lock. Nobody at
 * the other end, one that does not read, or one that says something else: there is no answer.
 */
#pragma once

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

#include "server/engine/verdict.h"

struct ek_buf;

struct losses {
    pthread_mutex_t lock;
    int fresh; /* under the lock: came since the engine thread looked, -1 = none */
    int fd;    /* the engine thread's, -1 = none */
};

int losses_init(struct losses *l); /* 0 or a negative errno */
void losses_done(struct losses *l);
/* Takes the descriptor over. NULL, or why it is of no use: an answer of the control socket. */
const char *losses_put(struct losses *l, int fd);
/* As engine_lost_fn and engine_verdict_fn. Late answers to earlier losses are passed over. */
bool losses_tell(struct losses *l, const struct engine_loss *loss);
int losses_wait(struct losses *l, uint64_t number, uint64_t wait_us,
                struct engine_verdict *ret_verdict);

/* The two messages; for their test. */
void losses_write(const struct engine_loss *loss, struct ek_buf *out);
/* 0; -EAGAIN: it is about another loss; -EBADMSG. */
int losses_read(const char *text, size_t len, uint64_t number, struct engine_verdict *ret_verdict);
