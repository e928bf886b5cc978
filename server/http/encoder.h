/*
 * A thread for large bodies and for forms that are to be compiled: reading and tokenising megabytes
 * takes seconds, during which an HTTP thread would answer nobody. An exchange that is given away is
 * suspended; meanwhile the encoder runs its handler. Then the exchange is the worker's again, which
 * is woken.
 *
 *   busy: NO -> RUNNING (worker, before encoder_give) -> DONE (encoder, release) -> NO (worker)
 *
 * While it is RUNNING the encoder owns `body`, `gen`, `early` and `early_rc` of the exchange.
 */
#pragma once

struct encoder;
struct exchange;

enum busy { BUSY_NO, BUSY_RUNNING, BUSY_DONE };

int encoder_new(struct encoder **ret_encoder);
/* 0, or -ESHUTDOWN: then the caller runs the handler itself. */
int encoder_give(struct encoder *e, struct exchange *x);
/* Answers what waits with 503, waits for what runs, takes nothing more. NULL is fine. */
void encoder_stop(struct encoder *e);
void encoder_free(struct encoder *e); /* stops; NULL is fine */
