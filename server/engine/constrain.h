/*
 * Constrained output: before a step is sampled, the tokens that each request's grammar allows next.
 * That depends on the token before, so while another step is in flight the sampling of a step with
 * constrained rows waits for that one's result; its forward runs meanwhile, and masks are found
 * while it does.
 *
 * What a mask costs is the client's choice, so it is paid for (common/work.h). Each row has
 * CONSTRAIN_QUICK units a step, which is enough wherever the form has been before. A row that needs
 * more is slow: it waits until the credit of all, which grows by CONSTRAIN_STEP with each step, is
 * worth a try, and what it samples meanwhile is put off. So a step is never longer than by
 * CONSTRAIN_MOST units, and in the long run by CONSTRAIN_STEP. Of several slow rows that of the
 * owner (the API key) whose rows have cost least goes first, and what they cost counts as if
 * tokens had been computed for its tenant (tenants.h), so that its prompts wait for others. What a
 * try has found is kept; a row that fails CONSTRAIN_TRIES times with all the credit there can be
 * has a form whose masks take too long, and its request ends.
 *
 * With threads for them (maskers.h), slow rows cost the engine's thread nothing: a row that needs
 * more than its quick units, or for which the step's (CONSTRAIN_STEP, and CONSTRAIN_ROW for each
 * row) are used up, or whose form is with a thread, is given to one of them as soon as a job is
 * free, with CONSTRAIN_MOST units a try, and is put off until its mask is there. CONSTRAIN_VAIN
 * steps compute it in vain, since its mask may be there when they are to be sampled; then, or as
 * long as no job is free, it is in no step at all: else every such row makes the steps of all
 * others longer. Credit is for an engine without such threads, and for:
 *
 * A row upon recurrent state cannot be computed again, so there a slow row is not put off: it gets
 * all the credit there can be at once, and those that come after it wait for theirs.
 */
#pragma once

#include <stdbool.h>

#include "kernels/backend.h"

#define CONSTRAIN_QUICK  (1u << 15) /* 0.1 to 0.2 ms */
#define CONSTRAIN_STEP   (1u << 18) /* 1 to 2 ms */
#define CONSTRAIN_MOST   (1u << 22) /* 15 to 30 ms: all of a large vocabulary several times */
#define CONSTRAIN_ROW    (1u << 10)
#define CONSTRAIN_TRIES  2u
#define CONSTRAIN_VAIN   2u
#define CONSTRAIN_OWNERS 64u

struct entries;
struct flight;
struct maskers;
struct request;
struct sched;

/* What masks may cost; the engine thread's own. */
struct constrain {
    uint64_t credit; /* units; begins with CONSTRAIN_MOST */
    struct {
        uint64_t owner, spent; /* units, those of long ago count less */
    } owner[CONSTRAIN_OWNERS];
    uint64_t put_off, refused; /* rows; requests */
    uint64_t left;             /* units of this step, with maskers */
    struct maskers *maskers;   /* NULL = none */
};

/* With maskers for a vocabulary of that size. 0 or a negative errno. */
int constrain_init(struct constrain *c, uint32_t vocab);
void constrain_done(struct constrain *c);

/* Bytes of masks for so many rows. */
size_t constrain_bytes(uint32_t rows, uint32_t vocab);
/* With `count` tokens out: has the form of its answer begun, and with which token? Engine thread.
 */
bool constrain_begun(struct request *r, uint32_t count, uint32_t *ret_first);
/* Whether a row of this step is sampled for a live request with a grammar. */
bool constrain_needed(const struct entries *all, const struct flight *f);
/* Before a step is planned: rows whose masks the threads have made may be in it again, and what
 * waits for a free job is given one. */
void constrain_look(struct constrain *c, struct sched *s);
/* Whether the threads work at a mask, so that there is something to look for soon. */
bool constrain_busy(const struct constrain *c);
/* Fills the masks of the newest step; all steps before it have landed. Rows without one are put
 * off. Returns how many rows have one. */
uint32_t constrain_fill(struct constrain *c, struct sched *s, struct flight *f,
                        const struct ek_step *step, uint32_t vocab, struct ek_masks *masks);
