/*
 * Preempted entries in the host tier; see sched_host.h. What of an entry's blocks is there already
 * under its name, because another entry or an eviction brought it, is referenced and not copied.
 */
#include <assert.h>

#include "server/engine/sched.h"

/* Blocks that have no twin in the host tier, and how many more would be referenced there. */
static uint32_t count_fresh(const struct sched *s, const uint32_t *table, uint32_t blocks,
                            uint32_t *ret_more)
{
    uint32_t fresh = 0, more = 0;

    for (uint32_t i = 0; i < blocks; i++) {
        uint32_t twin = host_twin(s, table[i]);
        fresh += twin == 0;
        more += twin == 0 || s->host.blocks.at[twin].refs == 0;
    }
    *ret_more = more;
    return fresh;
}

bool swap_out(struct sched *s, struct entry *e, uint64_t now_us)
{
    struct host *h = &s->host;
    const uint32_t *from = slots_table(&s->slots, e->slot);
    uint32_t n = slots_blocks_for(&s->slots, e->computed), more;

    assert(e->swapped.table == HOST_NONE);
    if (!h->on || n == 0 || h->free_count == 0)
        return false;
    uint32_t fresh = count_fresh(s, from, n, &more);
    if (more > h->swap_most - h->blocks.referenced || fresh > h->most - h->copy_count ||
        !host_worth(s, fresh + n, e->computed, &s->stats.swaps_declined))
        return false;

    uint32_t table = h->free_tables[--h->free_count];
    uint32_t *to = h->tables + (size_t)table * s->slots.table_most;
    /* Those that are here already first, so that no other block takes their place. */
    for (uint32_t i = 0; i < n; i++) {
        to[i] = host_twin(s, from[i]);
        if (to[i] != 0)
            blocks_ref(&h->blocks, to[i]);
    }
    for (uint32_t i = 0; i < n; i++)
        if (to[i] == 0)
            to[i] = host_take(s, from[i], now_us);
    e->swapped = (struct swapped){table, n, e->computed};
    s->stats.swapped_out_blocks += fresh;
    s->stats.swap_shared_blocks += n - fresh;
    return true;
}

void swap_drop(struct sched *s, struct entry *e, uint64_t now_us)
{
    struct host *h = &s->host;

    if (e->swapped.table == HOST_NONE)
        return;
    const uint32_t *table = h->tables + (size_t)e->swapped.table * s->slots.table_most;
    for (uint32_t i = e->swapped.blocks; i > 0; i--)
        host_give(h, table[i - 1], now_us);
    h->free_tables[h->free_count++] = e->swapped.table;
    e->swapped = (struct swapped){.table = HOST_NONE};
}

uint32_t swap_find(const struct sched *s, const struct entry *e, uint32_t index)
{
    if (e->swapped.table == HOST_NONE || index >= slots_blocks_for(&s->slots, e->swapped.tokens))
        return 0;
    return s->host.tables[(size_t)e->swapped.table * s->slots.table_most + index];
}
