/*
 * The whole answer of a generation, written out by the thread that has the exchange: its worker, or
 * an encoder where the answer is long (encoder.h).
 */
#pragma once

struct answer;
struct exchange;

/* All of it is rendered: what it took is free, but for the body that it borrows from. */
void render_drop(struct exchange *x);
/* Into *a, with a generation that is over; or what there is no room for. Then render_end(). */
void render_whole(struct exchange *x, struct answer *a);
/* The generation's part goes, the answer counts. By the worker, which allocated it: an encoder that
 * does not run would hold the lock of the worker's memory. */
void render_end(struct exchange *x, const struct answer *a);
