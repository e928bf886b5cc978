/*
 * The inside of a grammar at work, shared by automaton_states.c (states as they are met), masks.c
 * (what may come next there), jump_forward.c (what must) and grammar.c (matchers).
 */
#pragma once

#include <stdatomic.h>

#include "common/work.h"
#include "server/grammar/grammar.h"

#define PLACE_UNKNOWN 0u /* in `next` */
#define PLACE_DEAD    1u /* nothing fits */
#define PLACE_END     2u /* a token that ends the text was taken */

#define ONLY_NONE 256u /* no byte, or several */

#define PLACES_MOST  8192u
#define CELLS_MOST   16384u
#define CONFIGS_MOST (PLACES_MOST * 8)
#define CONFIGS_HERE 256u /* of one place; further ones are left out: fewer texts, none wrong */
#define FULL_MASKS   32u
#define NEAR_MASKS   4u
#define SEEN_SLOTS   (CONFIGS_HERE * 8) /* a power of two */

/* A stack is a list of cells with the innermost call first; cell 0 is the empty one. */
struct cell {
    uint32_t ret, parent; /* the state to return to, and what is below */
    uint32_t place;       /* where one is after returning, 0 = not worked out */
    uint32_t left;        /* tokens to write at the least after returning, see near.h */
};

struct grammar_config {
    uint32_t state, cell;
};

/* Of the closure with that turn. */
struct seen_slot {
    uint32_t turn, index;
};

struct place {
    uint32_t first, count; /* in `config` */
    bool complete;         /* the stack may be empty and the rule at its end */
    uint32_t left;         /* tokens to write at the least, without the end */
};

/* What may come next in a state of the automaton while its rule lasts. */
struct local {
    uint32_t first, count;      /* in `word`: a mask, or `count` tokens */
    uint32_t first_exit, exits; /* in `word`: lexicon nodes behind which the rule may have ended */
    uint32_t worst;             /* most that is left of the rule after one of them */
    bool dense;
};

struct full_mask {
    uint32_t place, count;
    uint32_t worst; /* most that is left after one of the tokens */
    bool more;
};

/* The tokens after which at most so many are left; the same for all limits from..to. */
struct near_mask {
    uint32_t place, count, from, to;
};

struct grammar {
    atomic_uint refs;
    struct grammar_room *room; /* that it counts in, or NULL; a reference */
    uint32_t owner;            /* there */
    struct automaton a;
    uint32_t *near; /* [states of the automaton] */
    uint32_t far;   /* the most of `near` */
    bool tags;      /* the root is free text */
    bool marks;     /* marks of calls may come as special tokens */
    bool loose;     /* elements that should differ may be alike */
    uint32_t *mark; /* bits of special tokens that may come as fixed strings, or NULL */
    atomic_bool given_up;
    uint32_t lent;  /* the engine thread's: masks that others make, */
    bool awaited;   /* and whether it wants to have it back before it lends more of them */
    uint16_t *only; /* [states of the automaton] the one byte that has an edge, or ONLY_NONE */
    const struct lexicon *lexicon;
    uint32_t start; /* place */
    uint32_t root;
    uint64_t era;
    uint64_t left_out; /* see grammar_stats */

    struct place *place; /* [PLACES_MOST] */
    uint32_t *next;      /* [PLACES_MOST][classes] */
    uint32_t places;
    struct grammar_config *config; /* [CONFIGS_MOST] */
    uint32_t configs;
    struct cell *cell; /* [CELLS_MOST] */
    uint32_t cells;
    uint32_t *place_slot, *cell_slot; /* hashes: number + 1 */

    struct local *local; /* [locals] */
    uint32_t *local_of;  /* [automaton states] number + 1 */
    uint32_t locals;
    uint32_t *word, words, word_room;
    uint32_t *scratch; /* a mask */
    uint32_t *exit;    /* [lexicon nodes] */
    uint32_t *full;    /* [FULL_MASKS] masks */
    struct full_mask full_of[FULL_MASKS];
    uint32_t *narrow; /* [NEAR_MASKS] masks */
    struct near_mask narrow_of[NEAR_MASKS];

    struct ek_work *work; /* the meter of what is done now; NULL = none */
    struct ek_work warming;
    struct grammar_config *heap; /* [CONFIGS_HERE * 4] of a closure that is being made */
    struct grammar_config *seen; /* [CONFIGS_HERE * 4] */
    struct seen_slot *seen_slot; /* [SEEN_SLOTS] hash of seen[] */
    uint32_t heaped, seen_count, turn;
    bool complete;
    uint32_t worst; /* of the tokens that a walk has met */
};

/* The place after one byte. Not kept when there is no room, or when the meter said stop: then it is
 * PLACE_DEAD, and after a stop what follows from it may not be kept. */
uint32_t place_step(struct grammar *g, uint32_t place, uint8_t byte);
/* The place after all bytes of a token that is no end; PLACE_DEAD also for a special one that must
 * not come here. */
uint32_t place_token(struct grammar *g, uint32_t place, int32_t token);
/* Where the top of a stack returns to. */
uint32_t place_return(struct grammar *g, uint32_t cell);
/* The state alone, on an empty stack, its calls not followed. */
uint32_t place_alone(struct grammar *g, uint32_t state);
/* Whether a rule is free text: every byte may come, and it may end. */
bool automaton_states_free(const struct automaton *a, uint32_t root);
/* Forgets all places, and what is kept for them. */
void automaton_states_forget(struct grammar *g);
bool automaton_states_tight(const struct grammar *g); /* it is time to forget */

/* masks.c: as matcher_mask(). Masks of states outlive places. */
void masks_forget(struct grammar *g);
bool masks_tight(const struct grammar *g);
uint32_t masks_of(struct grammar *g, uint32_t place, bool more, uint32_t room, uint32_t *bits);
/* Works out the mask of a state of the automaton. */
void masks_warm(struct grammar *g, uint32_t state);

/* jump_forward.c. Makes g->only: 0, or -1 without memory. */
int jump_forward_make(struct grammar *g);
/* As matcher_jump_forward(). */
uint32_t jump_forward_tokens(struct grammar *g, uint32_t place, uint32_t room, int32_t *token,
                             uint32_t most);
