/* The store of the host tier and its copies (sched_host.h). Called by the scheduler's files. */
#include "server/engine/sched_host.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/engine/sched.h"

#define COPIES_MOST 4096u
#define PROBE_EVERY 16u

uint32_t host_copies(uint32_t table_most)
{
    return table_most < COPIES_MOST / 4 ? 4 * table_most : COPIES_MOST;
}

int host_init(struct sched *s, const struct engine_params *p)
{
    struct host *h = &s->host;

    h->most = host_copies(s->slots.table_most);
    h->copies = calloc(h->most, sizeof(*h->copies));
    if (!h->copies)
        return -ENOMEM;
    if (p->host_blocks < 2)
        return 0;
    h->on = true;
    h->cached_most = p->offload_blocks;
    h->swap_most = p->host_blocks - 1 - p->offload_blocks;
    h->table_count = s->fixed.max_seqs;
    h->tables = calloc((size_t)h->table_count * s->slots.table_most, sizeof(*h->tables));
    h->free_tables = calloc(h->table_count, sizeof(*h->free_tables));
    h->moves = calloc(p->host_blocks, sizeof(*h->moves));
    if (!h->tables || !h->free_tables || !h->moves)
        return -ENOMEM;
    for (uint32_t i = 0; i < h->table_count; i++)
        h->free_tables[h->free_count++] = i;
    int r = prefix_init(&h->names, p->host_blocks, p->block_size, p->hash_secret);
    return r != 0 ? r : blocks_init(&h->blocks, p->host_blocks, prefix_forget, &h->names);
}

void host_done(struct host *h)
{
    blocks_done(&h->blocks);
    prefix_done(&h->names);
    free(h->moves);
    free(h->tables);
    free(h->free_tables);
    free(h->copies);
    *h = (struct host){0};
}

void host_cap(struct host *h, uint64_t salt_share, uint64_t now_us)
{
    bool all = salt_share == 0 || salt_share >= 1000000u;

    if (h->on)
        blocks_cap(&h->blocks, h->cached_most,
                   all ? 0 : (uint32_t)(h->cached_most * salt_share / 1000000u + 1), now_us);
}

uint32_t host_drop_swapped(struct sched *s, uint64_t now_us)
{
    uint32_t had = 0;

    for (uint32_t i = s->entries.age.head; i != SCHED_NONE;
         i = s->entries.at[i].in[QUEUE_AGE].next) {
        struct entry *e = &s->entries.at[i];
        if (e->swapped.table == HOST_NONE)
            continue;
        swap_drop(s, e, now_us);
        e->replayed = true;
        e->req->replays++;
        request_note(e->req, REQ_MET_REPLAY, now_us);
        had++;
    }
    return had;
}

void host_empty(struct sched *s, uint64_t now_us)
{
    (void)host_drop_swapped(s, now_us);
    if (s->host.on)
        blocks_forget_all(&s->host.blocks);
}

void host_kept(struct sched *s, uint64_t now_us)
{
    struct host *h = &s->host;

    host_cancel(s, s->flights.next_step, now_us); /* its copies were in no step yet */
    for (uint32_t id = 0; h->on && id < h->blocks.total; id++)
        h->moves[id].in_step = 0;
}

bool host_shrink(struct sched *s, uint64_t swap_blocks, uint64_t now_us)
{
    struct host *h = &s->host;

    if (!h->on || swap_blocks >= h->swap_most)
        return false;
    host_empty(s, now_us);
    h->swap_most = (uint32_t)swap_blocks;
    uint32_t usable = 1 + h->swap_most + h->cached_most;
    blocks_resize(&h->blocks, usable > 2 ? usable : 2, now_us);
    return true;
}

void host_copy(struct host *h, struct ek_block_copy copy)
{
    assert(h->copy_count < h->most);
    h->copies[h->copy_count++] = copy;
}

void host_give(struct host *h, uint32_t id, uint64_t now_us)
{
    blocks_give(&h->blocks, id, now_us);
    if (h->blocks.cached.count > h->cached_most)
        blocks_evict_oldest(&h->blocks, now_us);
}

uint32_t host_twin(const struct sched *s, uint32_t device_block)
{
    const struct prefix *p = &s->prefix;

    if (!s->blocks.at[device_block].named)
        return 0;
    return prefix_find(&s->host.names, p->names[device_block], p->parents[device_block],
                       p->tokens + (size_t)device_block * p->block_size);
}

uint32_t host_take(struct sched *s, uint32_t device_block, uint64_t now_us)
{
    struct host *h = &s->host;
    const struct prefix *p = &s->prefix;
    const struct block *b = &s->blocks.at[device_block];
    uint32_t id = 0;

    int r = blocks_take(&h->blocks, now_us, &id);
    assert(r == 0); /* the shares of both guests add up to the store */
    if (b->named && prefix_add(&h->names, id, p->names[device_block], p->parents[device_block],
                               p->tokens + (size_t)device_block * p->block_size))
        blocks_name(&h->blocks, id, b->salt);
    h->moves[id] = (struct host_move){.out_step = s->flights.next_step};
    host_copy(h, (struct ek_block_copy){.from = device_block,
                                        .to = id,
                                        .from_tier = EK_TIER_DEVICE,
                                        .to_tier = EK_TIER_HOST});
    return id;
}

bool host_worth(struct sched *s, uint32_t copies, uint32_t tokens, uint64_t *declined)
{
    struct host *h = &s->host;

    if (rates_copies_pay(&s->rates, copies, tokens) || h->declined >= PROBE_EVERY) {
        h->declined = 0;
        return true;
    }
    h->declined++;
    ++*declined;
    return false;
}

static bool filled_by(const struct sched *s, const struct entry *e, uint64_t step)
{
    const struct host *h = &s->host;

    for (uint32_t i = 0; e->swapped.table != HOST_NONE && i < e->swapped.blocks; i++)
        if (h->moves[h->tables[(size_t)e->swapped.table * s->slots.table_most + i]].out_step ==
            step)
            return true;
    return false;
}

void host_cancel(struct sched *s, uint64_t step, uint64_t now_us)
{
    struct host *h = &s->host;

    if (!h->on)
        return;
    for (uint32_t i = s->entries.age.head; i != SCHED_NONE; i = s->entries.at[i].in[QUEUE_AGE].next)
        if (filled_by(s, &s->entries.at[i], step))
            swap_drop(s, &s->entries.at[i], now_us);
    for (uint32_t id = 1; id < h->blocks.total; id++)
        if (h->blocks.at[id].named && h->moves[id].out_step == step)
            blocks_forget(&h->blocks, id);
}

void host_write(struct host *h, struct ek_step *step)
{
    memcpy(ek_step_copies(step), h->copies, h->copy_count * sizeof(*h->copies));
    step->copies = h->copy_count;
    h->copy_count = 0;
}

const char *host_check(struct sched *s)
{
    const struct host *h = &s->host;
    uint32_t tables = 0;

    if (h->copy_count > h->most || h->held != 0)
        return "the copies of the next step do not add up";
    if (!h->on)
        return NULL;
    memset(s->scratch.recount, 0, h->blocks.total * sizeof(*s->scratch.recount));
    for (uint32_t i = 0; i < s->entries.count; i++) {
        const struct entry *e = &s->entries.at[i];
        if (e->state == ENTRY_FREE || e->swapped.table == HOST_NONE)
            continue;
        if (e->state != ENTRY_WAITING || e->swapped.tokens > e->known)
            return "an entry holds host blocks that it cannot use";
        tables++;
        for (uint32_t k = 0; k < e->swapped.blocks; k++)
            s->scratch.recount[h->tables[(size_t)e->swapped.table * s->slots.table_most + k]]++;
    }
    if (tables + h->free_count != h->table_count)
        return "the host tables do not add up";
    if (h->blocks.referenced > h->swap_most || h->blocks.cached.count > h->cached_most)
        return "a guest of the host tier holds more than its share";
    const char *wrong = blocks_check(&h->blocks, s->scratch.recount);
    return wrong ? wrong : prefix_check(&h->names, &h->blocks);
}
