/*
 * Threads for large bodies and for forms that are to be compiled: reading and tokenising megabytes
 * takes seconds, during which an HTTP thread would answer no other request. An exchange that is
 * given away is suspended; meanwhile an encoder thread runs its handler, or writes its answer where
 * that is long. Then the exchange is the worker's again, which is woken.
 *
 *   busy: NO -> RUNNING (worker, before encoder_give) -> DONE (encoder, release) -> NO (worker)
 *
 * While it is RUNNING the encoder owns `body`, `gen`, `early`, `early_rc` and `work` of the
 * exchange; the worker says in `gone` that its client has left.
 *
 * Keys take turns: of the waiting ones the one whose exchanges have taken least time goes first,
 * and within a key the first that came. A key that comes anew begins with what the others have, so
 * that no key saves up turns. No key has all the threads at once. A body that is read has a
 * deadline (ENCODER_RUN_S) and stops when its client leaves or the server ends; one that waits for
 * longer than ENCODER_WAIT_S is refused with 503. A long answer that is written out here has
 * neither: it is paid for, and bounded by what was generated.
 *
 * Encoder threads have a lower priority than the others, so a thread that wants a lock which one of
 * them holds waits until that one gets a processor. So no lock is held while a thread is woken,
 * what an encoder has made is handed to the engine by the worker, and what an encoder has allocated
 * is freed by an encoder, but for an unpacked body and a long answer, one piece each: each of the
 * allocator's arenas has a lock. It may be much, too: two million values of JSON take 80 ms.
 */
#pragma once

#include <stdint.h>

struct ek_bill;
struct encoder;
struct exchange;
struct generation;
struct grammar_cache;

#define ENCODER_THREADS 3u
#define ENCODER_RUN_S   10u
#define ENCODER_WAIT_S  30u
#define ENCODER_CPU_S   20u /* of processor time: one that uses more does not see its deadline */
/* Writing an answer has no deadline: 2,048 choices of 64 tokens with 20 logprobs take some 50 s. */
#define RENDER_CPU_S    120u
#define ENCODER_STILL_S 20u /* without any: one that waits that long does not come back */

enum busy { BUSY_NO, BUSY_RUNNING, BUSY_DONE };

int encoder_new(struct encoder **ret_encoder);
/* 0, or -ESHUTDOWN: then the caller runs the handler itself. */
int encoder_give(struct encoder *e, struct exchange *x);
/* Frees a generation after generation_end(), on a thread of its own if it was made on one; until
 * then it counts as the bill says, which is empty afterwards. `e` may be NULL. */
void encoder_drop(struct encoder *e, struct generation *g, struct ek_bill *bill);
/* Answers what waits with 503, stops and waits for what runs, takes nothing more. NULL is fine. */
void encoder_stop(struct encoder *e);
void encoder_free(struct encoder *e); /* stops; NULL is fine */
/* Its threads and how many jobs each has done; returns how many threads. Any thread. */
struct http_thread;
uint32_t encoder_threads(struct encoder *e, struct http_thread *at, uint32_t most);
/* How long the body that has been read longest has been read, 0 = none is. A long answer that is
 * written is none: it is bounded by what was generated. Any thread. */
uint64_t encoder_busy_us(struct encoder *e, uint64_t now_us);
/* How long the form that has taken longest is being compiled, on whichever thread. `c` may be NULL.
 */
uint64_t encoder_compile_us(struct grammar_cache *c, uint64_t now_us);
/* The larger of the two. */
uint64_t encoder_reading_us(struct encoder *e, struct grammar_cache *c, uint64_t now_us);
