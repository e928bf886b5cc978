#include "server/engine/swap.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/engine/sched.h"

#define COPIES_MOST 4096u
#define PROBE_EVERY 16u

uint32_t swap_copies(uint32_t table_most)
{
    return table_most < COPIES_MOST / 4 ? 4 * table_most : COPIES_MOST;
}

/* Host blocks are never named, so nothing is ever forgotten. */
static void forget(void *ctx, uint32_t id)
{
    (void)ctx;
    (void)id;
}

int swap_init(struct sched *s, uint32_t host_blocks)
{
    struct swap *w = &s->swap;

    if (host_blocks < 2)
        return 0;
    w->on = true;
    w->table_count = s->max_seqs;
    w->most = swap_copies(s->table_most);
    w->tables = calloc((size_t)w->table_count * s->table_most, sizeof(*w->tables));
    w->free_tables = calloc(w->table_count, sizeof(*w->free_tables));
    w->out = calloc(w->most, sizeof(*w->out));
    w->in = calloc(w->most, sizeof(*w->in));
    if (!w->tables || !w->free_tables || !w->out || !w->in)
        return -ENOMEM;
    for (uint32_t i = 0; i < w->table_count; i++)
        w->free_tables[w->free_count++] = i;
    return blocks_init(&w->host, host_blocks, forget, NULL);
}

void swap_done(struct swap *w)
{
    blocks_done(&w->host);
    free(w->tables);
    free(w->free_tables);
    free(w->out);
    free(w->in);
    *w = (struct swap){0};
}

/* Rates that are not known yet speak for copying, which also measures them; so does, now and then,
 * a copy against the odds. */
static bool worth_copying(struct sched *s, uint32_t blocks, uint32_t tokens)
{
    if (s->copy_rate <= 0 || s->prefill_rate <= 0 ||
        2 * blocks / s->copy_rate <= tokens / s->prefill_rate || s->declined >= PROBE_EVERY) {
        s->declined = 0;
        return true;
    }
    s->declined++;
    s->stats.swaps_declined++;
    return false;
}

bool swap_out(struct sched *s, struct entry *e, uint64_t now_us)
{
    struct swap *w = &s->swap;
    uint32_t n = sched_blocks_for(s, e->computed);

    assert(e->swapped.table == SWAP_NONE);
    if (!w->on || n == 0 || w->free_count == 0 || n > blocks_available(&w->host) ||
        n > w->most - w->out_count || !worth_copying(s, n, e->computed))
        return false;
    uint32_t table = w->free_tables[--w->free_count];
    uint32_t *to = w->tables + (size_t)table * s->table_most;
    const uint32_t *from = sched_table(s, e->seat);
    for (uint32_t i = 0; i < n; i++) {
        int r = blocks_take(&w->host, now_us, &to[i]);
        assert(r == 0);
        w->out[w->out_count++] = (struct ek_block_copy){
            .from = from[i], .to = to[i], .from_tier = EK_TIER_DEVICE, .to_tier = EK_TIER_HOST};
    }
    /* The next step that is written carries them. */
    e->swapped = (struct swapped){table, n, e->computed, s->next_step};
    s->stats.swapped_out_blocks += n;
    return true;
}

void swap_drop(struct sched *s, struct entry *e, uint64_t now_us)
{
    struct swap *w = &s->swap;

    if (e->swapped.table == SWAP_NONE)
        return;
    const uint32_t *table = w->tables + (size_t)e->swapped.table * s->table_most;
    for (uint32_t i = e->swapped.blocks; i > 0; i--)
        blocks_give(&w->host, table[i - 1], now_us);
    w->free_tables[w->free_count++] = e->swapped.table;
    e->swapped = (struct swapped){.table = SWAP_NONE};
}

uint32_t swap_in(struct sched *s, struct entry *e, uint32_t hits, uint64_t now_us)
{
    struct swap *w = &s->swap;
    uint32_t held = hits * s->block_size;

    if (e->swapped.table == SWAP_NONE)
        return held;
    const uint32_t *from = w->tables + (size_t)e->swapped.table * s->table_most;
    const uint32_t *to = sched_table(s, e->seat);
    uint32_t room = w->most - w->out_count - w->in_count, end = hits;
    for (; end < sched_blocks_for(s, e->swapped.tokens) && end - hits < room; end++)
        w->in[w->in_count++] = (struct ek_block_copy){
            .from = from[end], .to = to[end], .from_tier = EK_TIER_HOST, .to_tier = EK_TIER_DEVICE};
    s->stats.swapped_in_blocks += end - hits;
    uint32_t back = end * s->block_size;
    if (end > hits)
        held = back < e->swapped.tokens ? back : e->swapped.tokens;
    swap_drop(s, e, now_us);
    return held;
}

void swap_cancel(struct sched *s, uint64_t step, uint64_t now_us)
{
    uint32_t next;

    for (uint32_t i = s->queue[QUEUE_AGE].head; s->swap.on && i != SCHED_NONE; i = next) {
        next = s->entries[i].in[QUEUE_AGE].next;
        if (s->entries[i].swapped.table != SWAP_NONE && s->entries[i].swapped.step == step)
            swap_drop(s, &s->entries[i], now_us);
    }
}

void swap_write(struct sched *s, struct ek_step *step)
{
    struct swap *w = &s->swap;

    if (w->out_count + w->in_count == 0)
        return;
    memcpy(ek_step_copies(step), w->out, w->out_count * sizeof(*w->out));
    memcpy(ek_step_copies(step) + w->out_count, w->in, w->in_count * sizeof(*w->in));
    step->copies = w->out_count + w->in_count;
    w->out_count = 0;
    w->in_count = 0;
}

const char *swap_check(struct sched *s)
{
    const struct swap *w = &s->swap;
    uint32_t tables = 0, blocks = 0;

    if (!w->on)
        return NULL;
    for (uint32_t i = 0; i < s->entry_count; i++) {
        const struct entry *e = &s->entries[i];
        if (e->state == ENTRY_FREE || e->swapped.table == SWAP_NONE)
            continue;
        if (e->state != ENTRY_WAITING || e->swapped.tokens > e->known)
            return "an entry holds host blocks that it cannot use";
        tables++;
        blocks += e->swapped.blocks;
    }
    if (tables + w->free_count != w->table_count || blocks != w->host.referenced)
        return "the host blocks do not add up";
    return blocks_check(&w->host, NULL);
}
