/*
 * When the scheduler takes snapshots of recurrent state (states.h), and what goes on from them.
 *
 * A sequence's state is at one position only, that of its last row, so unlike keys and values it is
 * of no use to a prompt that shares the beginning: that one needs the state where they part, and
 * the state there is gone once the next row is computed. So pieces of a prompt end where a snapshot
 * is worth having, and the step that goes on from there begins with a copy of it:
 *
 *   where the prompt's last full block ends: the same prompt again, or the next turn of a dialogue
 *   where the chain of cached blocks ended that has no snapshot at its end: two prompts that share
 *     so much have been seen, so the third one finds it
 *   every 16 * STATES_EVERY tokens of a long prompt, and about every STATES_EVERY of an answer: a
 *     sequence has one such at a time, the newest, from which it goes on after a preemption
 *
 * A snapshot costs one write and one read of the state, as much as a token of decoding, and where
 * it is not at the end of a step's budget one step more for the prompt. So it is taken only where
 * it saves at least STATES_EVERY tokens against the one before it.
 */
#include "server/engine/sched.h"

#define LONG_TIMES 16u

bool sched_caches(const struct sched *s)
{
    return s->value[LIMIT_PREFIX_CACHING] != 0 && (!s->states.on || s->states.count > 0);
}

static bool takes(const struct sched *s, const struct slot *t)
{
    return s->states.count > 0 && s->value[LIMIT_PREFIX_CACHING] != 0 && !t->quiet;
}

void snapshot_begin(struct sched *s, struct entry *e, uint32_t tokens, uint32_t chain)
{
    struct slot *t = &s->slots.at[e->slot];
    uint32_t last = (e->known - 1) / s->fixed.block_size * s->fixed.block_size;
    uint32_t part = chain * s->fixed.block_size, every = s->states.every;

    t->saved = tokens;
    t->pending = t->rolled = 0;
    e->cut[0] = part >= tokens + every ? part : 0;
    tokens = e->cut[0] > 0 ? e->cut[0] : tokens;
    e->cut[1] = last >= tokens + every ? last : 0;
    if (t->saved == 0)
        return;
    uint32_t at = states_find(&s->states,
                              slots_table(&s->slots, e->slot)[t->saved / s->fixed.block_size - 1]);
    states_copy(&s->states, s->states.first + at, e->slot);
    states_touch(&s->states, at);
}

uint32_t snapshot_cut(const struct sched *s, const struct entry *e, uint32_t rows)
{
    const uint32_t piece = s->states.every * LONG_TIMES / s->fixed.block_size * s->fixed.block_size;

    if (e->state != ENTRY_RUNNING || !takes(s, &s->slots.at[e->slot]))
        return rows;
    for (uint32_t i = 0; i < 2; i++)
        if (e->cut[i] > e->computed && e->cut[i] - e->computed < rows)
            rows = e->cut[i] - e->computed;
    if (piece > 0 && rows > piece - e->computed % piece)
        rows = piece - e->computed % piece;
    return rows;
}

void snapshot_named(struct sched *s, struct slot *t)
{
    if (t->pending == 0 || t->named * s->fixed.block_size != t->saved)
        return; /* or the step before it has not landed */
    states_keep(&s->states, t->pending - 1, prefix_holder(&s->prefix, t->tail));
    t->pending = 0;
}

void snapshot_take(struct sched *s, const struct entry *e)
{
    struct slot *t = &s->slots.at[e->slot];
    const uint32_t at = e->computed;
    const bool stays = at == e->cut[0] || at == e->cut[1];

    if (!takes(s, t) || at <= t->saved || at % s->fixed.block_size != 0 ||
        (!stays && at - t->saved < s->states.every))
        return;
    slot_drop_snapshot(t, &s->states);
    uint32_t to = t->rolled - 1;
    bool again = !stays && t->rolled != 0 && s->states.at[to].owner == t->lease;
    if (again)
        states_retake(&s->states, to, s->flights.next_step - 1);
    else
        to = states_take(&s->states, s->flights.next_step - 1);
    if (to == STATES_NONE)
        return;
    if (!stays) {
        s->states.at[to].owner = t->lease;
        t->rolled = to + 1;
    }
    states_copy(&s->states, e->slot, s->states.first + to);
    t->saved = at;
    t->pending = to + 1;
    snapshot_named(s, t);
}

void snapshot_cancel(struct sched *s, uint64_t step)
{
    for (uint32_t i = 0; s->states.on && i < s->fixed.max_seqs; i++) {
        struct slot *t = &s->slots.at[i];
        if (t->pending != 0 && s->states.at[t->pending - 1].step == step)
            slot_drop_snapshot(t, &s->states);
    }
    states_cancel(&s->states, step);
}

const char *snapshot_check(const struct sched *s)
{
    uint32_t pending = 0;

    if (!s->states.on)
        return NULL;
    for (uint32_t i = 0; i < s->fixed.max_seqs; i++) {
        const struct slot *t = &s->slots.at[i];
        pending += t->pending != 0;
        if (t->pending != 0 && t->entry == SCHED_NONE && t->inflight == 0)
            return "a snapshot is pending for no slot";
    }
    for (uint32_t i = 0; s->states.count > 0 && i < s->blocks.total; i++)
        if (s->states.of_block[i] != 0 && !s->blocks.at[i].named)
            return "a snapshot is of a block without a name";
    return states_check(&s->states, pending);
}
