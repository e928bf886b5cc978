/*
 * Threads for large bodies and for forms that are to be compiled: reading and tokenising megabytes
 * takes seconds, during which an HTTP thread would answer nobody. An exchange that is given away is
 * suspended; meanwhile an encoder thread runs its handler. Then the exchange is the worker's again,
 * which is woken.
 *
 *   busy: NO -> RUNNING (worker, before encoder_give) -> DONE (encoder, release) -> NO (worker)
 *
 * While it is RUNNING the encoder owns `body`, `gen`, `early`, `early_rc` and `work` of the
 * exchange; the worker says in `gone` that its client has left.
 *
 * Keys take turns: of the waiting ones the one whose exchanges have taken least time goes first,
 * and within a key the first that came. A key that comes anew begins with what the others have, so
 * that no key saves up turns. No key has all the threads at once. What runs has a deadline
 * (ENCODER_RUN_S) and stops when its client leaves or the server ends; what waits for longer than
 * ENCODER_WAIT_S is refused with 503.
 *
 * They also free what a large body became: two million values take 80 ms, during which an HTTP
 * thread would answer nobody either. Until then it counts.
 */
#pragma once

#include <jansson.h>
#include <stdint.h>

struct ek_bill;
struct encoder;
struct exchange;
struct grammar_cache;

#define ENCODER_THREADS 3u
#define ENCODER_RUN_S   10u
#define ENCODER_WAIT_S  30u
#define ENCODER_CPU_S   20u /* of processor time: who uses more does not see its deadline */
#define ENCODER_STILL_S 20u /* without any: who waits that long does not come back */

#define ENCODER_DROP_BYTES (1u << 20) /* of JSON that an HTTP thread frees itself: about 1 ms */

enum busy { BUSY_NO, BUSY_RUNNING, BUSY_DONE };

int encoder_new(struct encoder **ret_encoder);
/* 0, or -ESHUTDOWN: then the caller runs the handler itself. */
int encoder_give(struct encoder *e, struct exchange *x);
/* Frees JSON (NULL is fine) that takes as much memory as the bill says, and settles the bill: here,
 * or by a thread of its own if that would take long. Then the bill is empty and the JSON counts
 * until it is free. Any thread; `e` may be NULL. */
void encoder_drop(struct encoder *e, json_t *json, struct ek_bill *bill);
/* Answers what waits with 503, stops and waits for what runs, takes nothing more. NULL is fine. */
void encoder_stop(struct encoder *e);
void encoder_free(struct encoder *e); /* stops; NULL is fine */
/* Its threads and how many jobs each has done; returns how many threads. Any thread. */
struct http_thread;
uint32_t encoder_threads(struct encoder *e, struct http_thread *at, uint32_t most);
/* How long the exchange that has run longest has been running, 0 = none runs. Any thread. */
uint64_t encoder_busy_us(struct encoder *e, uint64_t now_us);
/* How long the form that has taken longest is being compiled, on whichever thread. `c` may be NULL.
 */
uint64_t encoder_compile_us(struct grammar_cache *c, uint64_t now_us);
/* The larger of the two. */
uint64_t encoder_reading_us(struct encoder *e, struct grammar_cache *c, uint64_t now_us);
