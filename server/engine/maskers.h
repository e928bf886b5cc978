/*
 * Threads that work out masks which take long, so that the engine's thread makes steps meanwhile
 * (constrain.h says which, and whose turn it is).
 *
 *   job: FREE -> GIVEN (engine, maskers_give) -> RUNS -> DONE (a thread) -> FREE (maskers_take)
 *
 * The thread that is to move a job on owns what stands in it; the move hands it over. Only
 * which thread takes a job that was given is settled under a lock, which the engine never takes.
 *
 * From GIVEN to FREE the request's matcher and the places and masks of its form are the threads';
 * the form says so (grammar_lend), and a form is with one thread at a time. The request stays as it
 * is meanwhile: without a mask no token is chosen. A reference to it is held.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ek_work;
struct maskers;
struct request;

#define MASKERS_THREADS 2u
#define MASKERS_JOBS    8u

/* Fills the bits of what may come next, [words]; false when the units were not enough. */
typedef bool (*maskers_fn)(struct request *r, struct ek_work *work, uint32_t words, uint32_t *bits);

struct mask_done {
    struct request *request; /* the caller has its reference now; mask_bits are set when made */
    uint64_t owner, used;    /* units */
    bool made;
};

int maskers_new(uint32_t words, uint64_t fuel, maskers_fn fn, struct maskers **ret_maskers);
/* Waits for what runs, which the fuel bounds; gives back what it holds. NULL is fine. */
void maskers_free(struct maskers *m);
/* The rest is the engine's thread's, which waits for nobody and takes no lock: a thread that gives
 * way may hold one while it does not run. */
/* Whether a job is free for this owner, which has at most half of them. */
bool maskers_room(const struct maskers *m, uint64_t owner);
/* There is room for it. */
void maskers_give(struct maskers *m, struct request *r, uint64_t owner);
/* One that is done, false = none is. */
bool maskers_take(struct maskers *m, struct mask_done *ret_done);
/* Whether something has been given and was not taken back yet. */
bool maskers_busy(const struct maskers *m);
