/*
 * Slots and their tables (slots.h): admit.c takes them, plan.c lets them grow, entries.c leaves,
 * results.c says when a step that used one is over, pool.c renames blocks.
 */
#include "server/engine/slots.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "server/engine/blocks.h"
#include "server/engine/states.h"

int slots_init(struct slots *s, uint32_t count, uint32_t table_most, uint32_t block_size)
{
    s->count = count;
    s->table_most = table_most;
    s->block_size = block_size;
    s->next_lease = 1;
    s->at = calloc(count, sizeof(*s->at));
    s->tables = calloc((size_t)count * table_most, sizeof(*s->tables));
    s->free = calloc(count, sizeof(*s->free));
    s->leaving = calloc(count, sizeof(*s->leaving));
    if (!s->at || !s->tables || !s->free || !s->leaving)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++) {
        s->at[i].entry = SLOTS_NONE;
        s->free[s->free_count++] = count - 1 - i;
    }
    return 0;
}

void slots_done(struct slots *s)
{
    free(s->at);
    free(s->tables);
    free(s->free);
    free(s->leaving);
}

void slots_take(struct slots *s, uint32_t entry)
{
    struct slot *t = &s->at[slots_next(s)];

    s->free_count--;
    t->entry = entry;
    t->lease = s->next_lease++;
    t->set_due = true;
}

/* How many blocks a preemption would give back is known without a look at the tables: of a block
 * that is in one table alone `holders` is that table's slot, and 0 of one that is in none. */
static void note_held(struct slots *s, struct block *b, uint32_t slot)
{
    if (b->refs == 1)
        s->at[slot].own++;
    else if (b->refs == 2)
        s->at[b->holders].own--;
    b->holders ^= slot;
}

/* Before the reference is given back. */
static void note_given(struct slots *s, struct block *b, uint32_t slot)
{
    b->holders ^= slot;
    if (b->refs == 1)
        s->at[slot].own--;
    else if (b->refs == 2)
        s->at[b->holders].own++;
}

void slots_grown(struct slots *s, struct blocks *b, uint32_t slot)
{
    struct slot *t = &s->at[slot];
    const uint32_t *end = slots_table(s, slot) + t->blocks;
    bool adjacent = t->blocks > 0 && end[0] == end[-1] + 1;

    note_held(s, &b->at[end[0]], slot);
    t->blocks++;
    t->adjacent += adjacent;
    s->held_blocks++;
    s->held_adjacent += adjacent;
}

int slots_grow(struct slots *s, struct blocks *b, uint32_t slot, uint32_t tokens, uint64_t now_us)
{
    struct slot *t = &s->at[slot];
    uint32_t *table = slots_table(s, slot);
    uint32_t need = slots_blocks_for(s, tokens);

    assert(need <= s->table_most);
    while (t->blocks < need) {
        int r = blocks_take(b, now_us, &table[t->blocks]);
        if (r != 0)
            return r;
        slots_grown(s, b, slot);
    }
    return 0;
}

uint32_t slots_limbo(const struct slots *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->leaving_count; i++)
        n += s->at[s->leaving[i]].own;
    return n;
}

void slot_drop_snapshot(struct slot *t, struct states *states)
{
    if (t->pending == 0)
        return;
    states_give(states, t->pending - 1);
    t->pending = 0;
}

static void free_slot(struct slots *s, struct blocks *b, struct states *states, uint32_t slot,
                      uint64_t now_us)
{
    struct slot *t = &s->at[slot];
    const uint32_t *table = slots_table(s, slot);

    slot_drop_snapshot(t, states);
    s->held_blocks -= t->blocks;
    s->held_adjacent -= t->adjacent;
    for (uint32_t i = t->blocks; i > 0; i--) { /* the deepest first: it is evicted first */
        note_given(s, &b->at[table[i - 1]], slot);
        blocks_give(b, table[i - 1], now_us);
    }
    *t = (struct slot){.entry = SLOTS_NONE};
    s->free[s->free_count++] = slot;
}

void slots_leave(struct slots *s, struct blocks *b, struct states *states, uint32_t slot,
                 uint64_t now_us)
{
    s->at[slot].entry = SLOTS_NONE;
    if (s->at[slot].inflight == 0)
        free_slot(s, b, states, slot, now_us);
    else
        s->leaving[s->leaving_count++] = slot;
}

void slots_landed(struct slots *s, struct blocks *b, struct states *states, uint32_t slot,
                  uint64_t now_us)
{
    struct slot *t = &s->at[slot];

    assert(t->inflight > 0);
    if (--t->inflight > 0 || t->entry != SLOTS_NONE)
        return;
    for (uint32_t i = 0; i < s->leaving_count; i++) {
        if (s->leaving[i] != slot)
            continue;
        s->leaving[i] = s->leaving[--s->leaving_count];
        break;
    }
    free_slot(s, b, states, slot, now_us);
}

void slots_rename(struct slots *s, const uint32_t *to)
{
    for (uint32_t slot = 0; slot < s->count; slot++) {
        struct slot *t = &s->at[slot];
        uint32_t *table = slots_table(s, slot), adjacent = 0;
        for (uint32_t i = 0; i < t->blocks; i++) {
            if (to[table[i]] != 0)
                table[i] = to[table[i]];
            adjacent += i > 0 && table[i] == table[i - 1] + 1;
        }
        s->held_adjacent += adjacent;
        s->held_adjacent -= t->adjacent;
        t->adjacent = adjacent;
    }
}
