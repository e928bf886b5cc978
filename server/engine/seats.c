/*
 * Seats and their tables (seats.h): admit.c takes them, plan.c lets them grow, entries.c leaves,
 * results.c says when a step that used one is over, pool.c renames blocks.
 */
#include "server/engine/seats.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "server/engine/blocks.h"
#include "server/engine/states.h"

int seats_init(struct seats *s, uint32_t count, uint32_t table_most, uint32_t block_size)
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
        s->at[i].entry = SEATS_NONE;
        s->free[s->free_count++] = count - 1 - i;
    }
    return 0;
}

void seats_done(struct seats *s)
{
    free(s->at);
    free(s->tables);
    free(s->free);
    free(s->leaving);
}

void seats_take(struct seats *s, uint32_t entry)
{
    struct seat *t = &s->at[seats_next(s)];

    s->free_count--;
    t->entry = entry;
    t->lease = s->next_lease++;
    t->set_due = true;
}

/* How many blocks a preemption would give back is known without a look at the tables: of a block
 * that is in one table alone `holders` is that table's seat, and 0 of one that is in none. */
static void note_held(struct seats *s, struct block *b, uint32_t seat)
{
    if (b->refs == 1)
        s->at[seat].own++;
    else if (b->refs == 2)
        s->at[b->holders].own--;
    b->holders ^= seat;
}

/* Before the reference is given back. */
static void note_given(struct seats *s, struct block *b, uint32_t seat)
{
    b->holders ^= seat;
    if (b->refs == 1)
        s->at[seat].own--;
    else if (b->refs == 2)
        s->at[b->holders].own++;
}

void seats_grown(struct seats *s, struct blocks *b, uint32_t seat)
{
    struct seat *t = &s->at[seat];
    const uint32_t *end = seats_table(s, seat) + t->blocks;
    bool adjacent = t->blocks > 0 && end[0] == end[-1] + 1;

    note_held(s, &b->at[end[0]], seat);
    t->blocks++;
    t->adjacent += adjacent;
    s->held_blocks++;
    s->held_adjacent += adjacent;
}

int seats_grow(struct seats *s, struct blocks *b, uint32_t seat, uint32_t tokens, uint64_t now_us)
{
    struct seat *t = &s->at[seat];
    uint32_t *table = seats_table(s, seat);
    uint32_t need = seats_blocks_for(s, tokens);

    assert(need <= s->table_most);
    while (t->blocks < need) {
        int r = blocks_take(b, now_us, &table[t->blocks]);
        if (r != 0)
            return r;
        seats_grown(s, b, seat);
    }
    return 0;
}

uint32_t seats_limbo(const struct seats *s)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < s->leaving_count; i++)
        n += s->at[s->leaving[i]].own;
    return n;
}

void seat_drop_snapshot(struct seat *t, struct states *states)
{
    if (t->pending == 0)
        return;
    states_give(states, t->pending - 1);
    t->pending = 0;
}

static void free_seat(struct seats *s, struct blocks *b, struct states *states, uint32_t seat,
                      uint64_t now_us)
{
    struct seat *t = &s->at[seat];
    const uint32_t *table = seats_table(s, seat);

    seat_drop_snapshot(t, states);
    s->held_blocks -= t->blocks;
    s->held_adjacent -= t->adjacent;
    for (uint32_t i = t->blocks; i > 0; i--) { /* the deepest first: it is evicted first */
        note_given(s, &b->at[table[i - 1]], seat);
        blocks_give(b, table[i - 1], now_us);
    }
    *t = (struct seat){.entry = SEATS_NONE};
    s->free[s->free_count++] = seat;
}

void seats_leave(struct seats *s, struct blocks *b, struct states *states, uint32_t seat,
                 uint64_t now_us)
{
    s->at[seat].entry = SEATS_NONE;
    if (s->at[seat].inflight == 0)
        free_seat(s, b, states, seat, now_us);
    else
        s->leaving[s->leaving_count++] = seat;
}

void seats_landed(struct seats *s, struct blocks *b, struct states *states, uint32_t seat,
                  uint64_t now_us)
{
    struct seat *t = &s->at[seat];

    assert(t->inflight > 0);
    if (--t->inflight > 0 || t->entry != SEATS_NONE)
        return;
    for (uint32_t i = 0; i < s->leaving_count; i++) {
        if (s->leaving[i] != seat)
            continue;
        s->leaving[i] = s->leaving[--s->leaving_count];
        break;
    }
    free_seat(s, b, states, seat, now_us);
}

void seats_rename(struct seats *s, const uint32_t *to)
{
    for (uint32_t seat = 0; seat < s->count; seat++) {
        struct seat *t = &s->at[seat];
        uint32_t *table = seats_table(s, seat), adjacent = 0;
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
