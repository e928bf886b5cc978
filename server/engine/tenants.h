/*
 * Who has had how much: fairness among tenants, by virtual token counters (Sheng et al., "Fairness
 * in Serving Large Language Models", OSDI 2024). A tenant is an API key; requests without one are
 * all of the tenant at place 0. With one tenant nothing here decides anything.
 *
 * Each counter grows by the tokens that its tenant is served, over its weight: a token of a prompt
 * counts once, one of an answer twice, for it is computed in a step of its own; what comes from a
 * cache, or is computed again after a preemption, counts nothing. The masks of its forms count by
 * the work that they took, since steps wait for them: what a form that is not hostile takes is a
 * small part of a token. The tenant with the least has the
 * next turn: its request is the next to be admitted (there what was admitted and is still to be
 * read counts as served, or all places would be its own within one step), and its prompts are read
 * before those of others (share.c). So while two of them have work, prompts put neither ahead by
 * more than about its longest one. Answers count as they come, and what runs goes on: a tenant may
 * get ahead by about all that its running requests have still to answer, and its next ones wait
 * until the other has had as much.
 *
 * An idle tenant saves nothing up: when it has work again its counter is lifted to the least
 * of those that have, or, when none has, to that of the last one that had, as it is by then. Has
 * work: one of its requests waits or is being read; those that decode get their rows in each step
 * anyway. A new key at the place of one that is gone begins like one that was idle.
 *
 * Slots are shared by weight, too: a tenant that has waited a moment for one gets that of a
 * tenant that has more of them (yield.c). What was begun for that goes on when it is its tenant's
 * turn again.
 *
 * What is short when a block is lacking is memory, not tokens: what gives way is of the tenant
 * whose running requests hold most blocks for its weight (sched_plan_rows()): blocks of their own,
 * for one that others use too is not given back by a preemption. Neither counts for more than
 * priority does.
 *
 * Pure, part of the scheduler; a fixed table, nothing is allocated.
 */
#pragma once

#include <stdint.h>

#define TENANTS_MOST  129u  /* the place without a key, and one for each key there may be */
#define TENANT_PRICE  1000u /* units that a token costs at weight 1 */
#define TENANT_OUTPUT 2u    /* tokens of a prompt that one of an answer counts for */
/* Units of work on masks (common/work.h) that count for one: 0.1 to 0.2 ms. A count and no time, so
 * that the same requests have the same turns. */
#define TENANT_MASK (1u << 15)

/* What a request says of its tenant. All 0: it has none. */
struct tenant_ref {
    uint32_t place; /* below TENANTS_MOST */
    uint32_t stamp; /* another one at a place: another tenant, which begins anew */
    uint32_t price; /* TENANT_PRICE over the weight, 0 = weight 1 */
};

struct queue {
    uint32_t head, tail; /* entries */
};

struct tenant {
    uint64_t served;           /* the counter, in units */
    uint64_t due;              /* tokens of prompts that are admitted and still to be read */
    uint64_t prompts, outputs; /* tokens, as they were counted */
    uint64_t masks;            /* units of work */
    double cost;               /* of its requests of late, as refuse.c foresees it; 0 = none yet */
    uint64_t preemptions;
    uint64_t poisons; /* requests that ended since the device does with them */
    uint32_t price, stamp;
    uint32_t active;    /* entries that wait or are being read */
    uint32_t held;      /* blocks of its own, or slots: of use within a choice of what gives way */
    struct queue queue; /* those that wait, by priority and age */
};

struct tenants {
    struct tenant at[TENANTS_MOST];
    uint32_t count; /* places below it have been used */
    uint32_t last;  /* the place of the last one that had work, when none has */
};

void tenants_init(struct tenants *t, uint32_t no_entry);
/* The place of a request's tenant, with the weight that it has now. */
uint32_t tenants_meet(struct tenants *t, const struct tenant_ref *ref);

/* One more of its entries waits or is read, or one less. */
void tenants_begin(struct tenants *t, uint32_t place);
void tenants_end(struct tenants *t, uint32_t place);

/* Admitted with so many tokens to read. */
void tenants_owe(struct tenants *t, uint32_t place, uint64_t tokens);
/* So many of them are not to be read any more, of which `served` are in a step. */
void tenants_read(struct tenants *t, uint32_t place, uint64_t tokens, uint64_t served);
void tenants_answer(struct tenants *t, uint32_t place); /* one token */
/* So many units of work went into its masks. */
void tenants_mask(struct tenants *t, uint32_t place, uint64_t units);

/* What decides whose turn it is to be admitted. */
static inline uint64_t tenants_standing(const struct tenants *t, uint32_t place)
{
    return t->at[place].served + t->at[place].due * t->at[place].price;
}

/* The least counter of those with work, UINT64_MAX when none has work. */
uint64_t tenants_least(const struct tenants *t);
/* How far it is ahead of that, in tokens at its weight; 0 = none waits more. */
uint64_t tenants_ahead(const struct tenants *t, uint32_t place, uint64_t least);
