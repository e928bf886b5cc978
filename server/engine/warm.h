/*
 * What of the cache is worth keeping when the device goes (a planned restart of the server or of
 * its engine), and how it comes to lie in a cache again.
 *
 * With recurrent state a prefix is of use up to a block with a snapshot, so chains are listed up to
 * their last one, and snapshots come back with their blocks.
 *
 * A list is in the order of worth: what running requests hold, then unused prefixes, the latest
 * first, then those of the host tier; a block stands behind the one before it in its chain, so a
 * list that is cut anywhere is of use. Names are not part of it: their secret is drawn at each
 * start, so they are computed again from the tokens, which are compared on a hit as always. What
 * has a name that cannot be computed from its tokens and its owner alone (salts within a key,
 * prompts whose length changes the model's frequencies) is left out.
 *
 * Pure but for the memory of a list. Engine thread, while there is one; no step is in
 * flight.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/names.h"

#define WARM_NONE UINT32_MAX

struct sched;

struct warm_block {
    uint64_t owner;    /* the salt that it counts for, 0 = none */
    uint32_t parent;   /* place in the list, WARM_NONE: it begins a chain */
    uint32_t tier, id; /* where it lies now */
    uint32_t state;    /* slot that has the recurrent state behind it, WARM_NONE: there is none */
};

struct warm_list {
    struct warm_block *block; /* [count] */
    int32_t *tokens;          /* [count][block_size] */
    uint32_t count, block_size;
};

/* How much there is room for, and what each takes of it. */
struct warm_room {
    uint64_t bytes, block, state;
};

/* What there is room for; blocks with an owner only if `owned`. 0 or -ENOMEM. */
int warm_list(const struct sched *s, struct warm_room room, bool owned, struct warm_list *ret_list);
void warm_list_done(struct warm_list *l);

struct warm_place {
    uint32_t tier, id, state;
};

/* A list on its way into the cache: for each block in order warm_place() and, if that gave one its
 * content, warm_placed(); then warm_end(), which makes them unused blocks, the first of the list
 * the youngest. */
struct warm_into {
    struct sched *s;
    const struct warm_list *l;
    struct prefix_name *name; /* [count] */
    uint32_t *id;             /* [count] taken for it, 0 = none */
    uint32_t *state;          /* [count] snapshot + 1 taken for it, 0 = none */
    bool *there;              /* [count] its name can be found */
    uint32_t device, host;    /* how many more go there */
    uint32_t host_from;       /* from this place on they lie in the host tier */
};

/* 0 or -ENOMEM. */
int warm_begin(struct sched *s, const struct warm_list *l, struct warm_into *ret_into);
/* Takes a block for the i-th, and a snapshot if it has one and one is free: its slot, or WARM_NONE.
 * False when there is no block for it, or it would never be found. */
bool warm_place(struct warm_into *w, uint32_t i, uint64_t now_us, struct warm_place *ret_place);
/* Its content is there, or is not to be had. */
void warm_placed(struct warm_into *w, uint32_t i, bool there, uint64_t now_us);
/* Returns how many came. */
uint32_t warm_end(struct warm_into *w, uint64_t now_us);
