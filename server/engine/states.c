/* The pool of snapshots of recurrent state (states.h). Called by the scheduler's files. */
#include "server/engine/states.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void push_free(struct states *s, uint32_t at)
{
    s->at[at] = (struct snapshot){.prev = STATES_NONE, .next = s->free};
    s->free = at;
}

static void push_kept(struct states *s, uint32_t at)
{
    struct snapshot *x = &s->at[at];

    x->prev = s->tail;
    x->next = STATES_NONE;
    *(s->tail == STATES_NONE ? &s->head : &s->at[s->tail].next) = at;
    s->tail = at;
    s->kept++;
}

static void remove_kept(struct states *s, uint32_t at)
{
    const struct snapshot *x = &s->at[at];

    *(x->prev == STATES_NONE ? &s->head : &s->at[x->prev].next) = x->next;
    *(x->next == STATES_NONE ? &s->tail : &s->at[x->next].prev) = x->prev;
    s->kept--;
}

int states_init(struct states *s, uint32_t seqs, uint32_t states, uint32_t blocks)
{
    *s = (struct states){.on = states > 0,
                         .first = seqs,
                         .every = STATES_EVERY,
                         .blocks = blocks,
                         .free = STATES_NONE,
                         .head = STATES_NONE,
                         .tail = STATES_NONE};
    if (!s->on)
        return 0;
    assert(states >= seqs);
    s->count = states - seqs;
    s->copies = calloc(states_copies(seqs, states), sizeof(*s->copies));
    s->at = calloc((size_t)s->count + 1, sizeof(*s->at));
    s->of_block = calloc(blocks, sizeof(*s->of_block));
    if (!s->copies || !s->at || !s->of_block) {
        states_done(s);
        return -ENOMEM;
    }
    for (uint32_t i = s->count; i > 0; i--)
        push_free(s, i - 1);
    return 0;
}

void states_done(struct states *s)
{
    free(s->copies);
    free(s->at);
    free(s->of_block);
    *s = (struct states){0};
}

uint32_t states_find(const struct states *s, uint32_t block)
{
    return s->count > 0 && s->of_block[block] != 0 ? s->of_block[block] - 1 : STATES_NONE;
}

static void detach(struct states *s, uint32_t at)
{
    remove_kept(s, at);
    s->of_block[s->at[at].block] = 0;
}

static uint32_t states_begin(struct states *s, uint32_t at, uint64_t step)
{
    s->at[at] = (struct snapshot){.pending = true, .step = step};
    s->pending++;
    return at;
}

uint32_t states_place(struct states *s)
{
    uint32_t at = s->free;

    if (at == STATES_NONE)
        return at;
    s->free = s->at[at].next;
    return states_begin(s, at, 0);
}

uint32_t states_take(struct states *s, uint64_t step)
{
    uint32_t at = s->free;

    if (at != STATES_NONE) {
        s->free = s->at[at].next;
    } else {
        at = s->head;
        if (at == STATES_NONE)
            return at;
        detach(s, at);
        s->evicted++;
    }
    s->taken++;
    return states_begin(s, at, step);
}

void states_retake(struct states *s, uint32_t at, uint64_t step)
{
    detach(s, at);
    s->taken++;
    (void)states_begin(s, at, step);
}

void states_give(struct states *s, uint32_t at)
{
    assert(s->at[at].pending);
    s->pending--;
    push_free(s, at);
}

void states_keep(struct states *s, uint32_t at, uint32_t block)
{
    if (block == 0 || s->of_block[block] != 0) {
        if (block != 0 && s->at[at].owner == 0)
            s->at[s->of_block[block] - 1].owner = 0; /* it stays in place of this one */
        states_give(s, at);
        return;
    }
    assert(s->at[at].pending);
    s->pending--;
    s->at[at].pending = false;
    s->at[at].block = block;
    s->of_block[block] = at + 1;
    push_kept(s, at);
}

void states_touch(struct states *s, uint32_t at)
{
    s->at[at].owner = 0; /* others want it too */
    s->used++;
    remove_kept(s, at);
    push_kept(s, at);
}

void states_forget(struct states *s, uint32_t block)
{
    uint32_t at = states_find(s, block);

    if (at == STATES_NONE)
        return;
    detach(s, at);
    push_free(s, at);
}

void states_move(struct states *s, uint32_t from, uint32_t to)
{
    uint32_t at = states_find(s, from);

    if (at == STATES_NONE)
        return;
    s->of_block[from] = 0;
    s->of_block[to] = at + 1;
    s->at[at].block = to;
}

void states_cancel(struct states *s, uint64_t step)
{
    for (uint32_t i = 0; i < s->count; i++)
        if (s->at[i].block != 0 && s->at[i].step == step)
            states_forget(s, s->at[i].block);
}

void states_copy(struct states *s, uint32_t from, uint32_t to)
{
    assert(s->copy_count < states_copies(s->first, s->first + s->count));
    s->copies[s->copy_count++] = (struct ek_block_copy){
        .from = from, .to = to, .from_tier = EK_TIER_STATE, .to_tier = EK_TIER_STATE};
}

void states_write(struct states *s, struct ek_step *step)
{
    if (s->copy_count == 0)
        return;
    memcpy(ek_step_copies(step) + step->copies, s->copies, s->copy_count * sizeof(*s->copies));
    step->copies += s->copy_count;
    s->copy_count = 0;
}

const char *states_check(const struct states *s, uint32_t pending)
{
    uint32_t kept = 0, unused = 0, of_blocks = 0;

    if (s->copy_count != 0)
        return "copies of states have been left over";
    for (uint32_t i = s->head, before = STATES_NONE; i != STATES_NONE; i = s->at[i].next) {
        if (s->at[i].pending || s->at[i].block == 0 || s->of_block[s->at[i].block] != i + 1)
            return "a snapshot is not that of its block";
        if (s->at[i].prev != before || kept++ > s->count)
            return "the list of snapshots is broken";
        before = i;
    }
    for (uint32_t i = s->free; i != STATES_NONE && unused <= s->count; i = s->at[i].next)
        unused++;
    for (uint32_t i = 0; s->count > 0 && i < s->blocks; i++)
        of_blocks += s->of_block[i] != 0;
    if (kept != s->kept || of_blocks != kept || pending != s->pending)
        return "snapshots that are kept or pending do not add up";
    return kept + unused + s->pending == s->count ? NULL : "the snapshots do not add up";
}
