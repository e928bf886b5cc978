/*
 * A grammar at work: which tokens may come next. Places in the text are states, sets of (state of
 * the automaton, stack of states to return to), made as they are met and kept; the same place is
 * found again by its number, and each step by a byte is worked out once. What a token may be
 * depends on the top of the stack only, but for tokens that go on behind the end of a rule: so the
 * mask of a state of the automaton is walked out once, and those few tokens are followed for the
 * stack at hand.
 *
 * A text whose root takes every byte and may end anywhere is free but for the calls in it: there
 * and as the marks of calls special tokens may come too, and no end is forced.
 *
 * All memory is taken when the grammar is made; when it is used up, states are forgotten and
 * matchers find their place again by what they have written.
 *
 * Threads: made by anybody; afterwards matchers of it belong to one thread, the engine's or the one
 * that it is lent to. The count of references is atomic.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "server/grammar/automaton.h"
#include "server/grammar/lexicon.h"

struct ek_work;
struct grammar;

/* Memory of all grammars that are alive, in the cache or in requests. Freed with its last
 * reference: the maker's or a grammar's. */
#define GRAMMAR_OWNERS 136u /* owners beyond it share places */
struct grammar_room {
    atomic_uint refs;
    atomic_ullong bytes, of[GRAMMAR_OWNERS]; /* all of them, and by owner */
};

struct grammar_stats {
    uint32_t states, cells, masks; /* now */
    uint64_t forgotten;            /* times that all of them were */
    uint64_t left_out;             /* ways to read a text that found no room: texts are lost */
};

/* Takes over the automaton (also on failure). The lexicon must outlive it. 0, -ENOMEM, or -EBADMSG
 * when the meter stopped it. */
int grammar_new(struct automaton *a, uint32_t root, const struct lexicon *l, struct ek_work *work,
                struct grammar **ret_grammar);
/* Before it is used: marks of calls may come as special tokens, as they may in free text. */
void grammar_take_marks(struct grammar *g);
/* The same of special tokens that stand in one of these strings, each of which ends in a 0. 0,
 * -ENOMEM, or -EBADMSG when the meter stopped it. */
int grammar_take_marks_of(struct grammar *g, const char *strings, size_t len, struct ek_work *work);
/* Likewise: it does not keep to `uniqueItems` wherever it was asked to. */
void grammar_loosen(struct grammar *g);
bool grammar_is_loose(const struct grammar *g);
/* Whether every text may begin a text of it: it is free, but for what stands in it. */
bool grammar_is_free(const struct grammar *g);
void grammar_ref(struct grammar *g);
void grammar_unref(struct grammar *g); /* NULL is fine */
/* Works out the masks that take longest, so that the engine need not. */
void grammar_warm(struct grammar *g, struct ek_work *work);
/* Engine thread: its masks take too long; all requests that have it end for that, not each after
 * tries.
 */
void grammar_give_up(struct grammar *g);
bool grammar_given_up(const struct grammar *g); /* any thread */
/* Engine thread: so many more (or less) of its masks are made by other threads. While there are
 * some, the engine's thread asks no matcher of it. */
void grammar_lend(struct grammar *g, int more);
bool grammar_is_lent(const struct grammar *g);
/* Engine thread: its other rows may be quick by now, so no more of it is to be lent until those
 * that make masks of it have given it back. */
void grammar_await(struct grammar *g);
bool grammar_is_awaited(const struct grammar *g);
uint64_t grammar_bytes(const struct grammar *g); /* of memory that it took; any thread */
/* Once, before others know it: counts it in the room, as one of this owner's, until its last
 * reference is gone. */
void grammar_count(struct grammar *g, struct grammar_room *room, uint32_t owner);
/* Or until then: of one that is idle, by its owner, which frees it next. */
void grammar_uncount(struct grammar *g);
uint32_t grammar_owner(const struct grammar *g);
void grammar_room_unref(struct grammar_room *room);
bool grammar_is_idle(const struct grammar *g); /* only the caller has a reference */
void grammar_stats(const struct grammar *g, struct grammar_stats *ret_stats);

/* Where one text is. Plain data; .grammar = NULL is free text. */
struct matcher {
    struct grammar *grammar;
    struct ek_work *work;  /* its meter, NULL = none: see below */
    uint32_t state, taken; /* tokens so far */
    uint64_t era;          /* of the grammar's memory */
};

/*
 * Following and masks are paid for by m->work, since both can be long for a form that was made to
 * be. When it says stop, what was returned is worth nothing, and asking again later goes on from
 * what has been found so far.
 */
void matcher_init(struct matcher *m, struct grammar *g); /* any thread */
/* To be called before the two below. Brings it to the end of `count` tokens, the first of which are
 * those it has taken already; token i lies `stride` bytes behind token i - 1. A token that ends the
 * text ends there. False when one of them does not fit the grammar. */
bool matcher_follow(struct matcher *m, const int32_t *token, size_t stride, uint32_t count);
/* Sets the bits of tokens that may come next, clears all others; returns how many there are, the
 * ends included. `more`: do not end here unless nothing else is left. With `room` tokens to come,
 * the end included, only those that leave room to complete the text; all of them when there is none
 * for the shortest text, or with MATCHER_MANY. */
#define MATCHER_MANY UINT32_MAX
uint32_t matcher_mask(struct matcher *m, bool more, uint32_t room, uint32_t *bits);
/* Tokens that come next whatever the model says, up to `most` of them and to `room` as above: bytes
 * without a choice, in the longest tokens that they begin with. The last of them is an end where
 * nothing else may follow. Returns how many. */
uint32_t matcher_jump_forward(struct matcher *m, uint32_t room, int32_t *token, uint32_t most);
/* Tokens that the text takes to end from here, the end included: never less than the shortest way.
 * MATCHER_MANY = not known. */
uint32_t matcher_left(const struct matcher *m);
/* Whether the text may end here. */
bool matcher_complete(struct matcher *m);
