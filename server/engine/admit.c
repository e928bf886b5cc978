/*
 * Admission: what of an entry's content lies where, whether the rest fits, and its slot. Content
 * that is there is a run from the beginning: first blocks on the device, found by name, then blocks
 * in the host tier, found by name or saved by the entry's own preemption.
 */
#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#include "server/engine/sched.h"

int admission_init(struct admission *a, uint32_t table_most)
{
    a->bring = calloc(table_most, sizeof(*a->bring));
    return a->bring ? 0 : -ENOMEM;
}

void admission_done(struct admission *a)
{
    free(a->bring);
}

/* What need not be computed. */
struct found {
    uint32_t hits;   /* blocks on the device */
    uint32_t bring;  /* blocks after them that come from the host tier: s->admission.bring[] */
    uint32_t tokens; /* of both */
    uint32_t chain;  /* blocks on the device, with recurrent state: hits have a snapshot */
    struct prefix_name tail; /* of the last hit */
};

/* The block at this place of the entry's table by its name: on the device while all before it
 * were, in *ret_host if it is in the host tier only. False when it is in neither. */
static bool find_named(struct sched *s, const struct entry *e, uint32_t index, bool device,
                       struct prefix_name *name, uint32_t *ret_id, uint32_t *ret_host)
{
    struct prefix_name parent = *name;

    for (uint32_t i = 0; i < s->fixed.block_size; i++)
        s->scratch.tokens[i] = sched_token(e, index * s->fixed.block_size + i);
    *name = prefix_hash(&s->prefix, parent, sched_salt(s, e), s->scratch.tokens);
    if (device)
        *ret_id = prefix_find(&s->prefix, *name, parent, s->scratch.tokens);
    if (*ret_id == 0)
        *ret_host = offload_find(&s->host, *name, parent, s->scratch.tokens);
    return *ret_id != 0 || *ret_host != 0;
}

/* Fills the table with the hits. The last known token is always left to compute: its logits are
 * wanted. */
static struct found find_content(struct sched *s, const struct entry *e, uint32_t *table)
{
    struct found f = {0};
    struct prefix_name name = {0, 0};
    uint32_t most = (e->known - 1) / s->fixed.block_size;
    bool named = sched_caches(s);

    if (sched_wants_scores(e)) /* their rows have to be computed */
        most = most < e->scoring / s->fixed.block_size ? most : e->scoring / s->fixed.block_size;

    for (uint32_t n = 0; n < s->slots.table_most; n++) {
        uint32_t id = 0, host = 0;
        if (named && n < most && find_named(s, e, n, f.bring == 0, &name, &id, &host) && id != 0) {
            table[n] = id;
            f.chain = n + 1;
            if (s->states.on && states_find(&s->states, id) == STATES_NONE)
                continue;
            f.hits = n + 1;
            f.tail = name;
            continue;
        }
        uint32_t own = swap_find(s, e, n);
        if (host == 0 && own == 0)
            break;
        s->admission.bring[f.bring++] = host != 0 ? host : own;
        if (host == 0 && (n + 1) * s->fixed.block_size > e->swapped.tokens) {
            f.tokens = e->swapped.tokens; /* its last block is not full */
            return f;
        }
    }
    f.tokens = (f.hits + f.bring) * s->fixed.block_size;
    return f;
}

/* Cuts off what has no room among the copies, and what it is faster to compute; an entry's own
 * blocks were saved because it is not. False when a block is on its way to the device for another
 * entry: then it is waited for, so that it moves once. */
static bool choose_bring(struct sched *s, const struct entry *e, struct found *f)
{
    uint32_t room = s->host.most - s->host.copy_count;

    for (uint32_t i = 0; i < f->bring; i++)
        if (offload_moving(s, s->admission.bring[i]))
            return false;
    if (f->bring > room) {
        f->bring = room;
        f->tokens = (f->hits + room) * s->fixed.block_size;
    }
    if (f->bring > 0 && e->swapped.table == HOST_NONE &&
        !host_worth(s, f->bring, f->bring * s->fixed.block_size, &s->stats.offloads_declined)) {
        f->bring = 0;
        f->tokens = f->hits * s->fixed.block_size;
    }
    return true;
}

/* Takes device blocks for what comes from the host tier and plans the copies. */
static void bring_blocks(struct sched *s, uint32_t slot, const struct found *f, uint64_t now_us)
{
    struct host *h = &s->host;
    uint32_t *table = slots_table(&s->slots, slot);

    for (uint32_t i = 0; i < f->bring; i++)
        blocks_ref(&h->blocks, s->admission.bring[i]); /* taking a block may bring another here */
    h->held = f->bring;
    for (uint32_t i = 0; i < f->bring; i++) {
        int r = blocks_take(&s->blocks, now_us, &table[f->hits + i]);
        assert(r == 0);
        slots_grown(&s->slots, &s->blocks, slot);
        h->held--;
        host_copy(h, (struct ek_block_copy){.from = s->admission.bring[i],
                                            .to = table[f->hits + i],
                                            .from_tier = EK_TIER_HOST,
                                            .to_tier = EK_TIER_DEVICE});
        h->moves[s->admission.bring[i]].in_step = s->flights.next_step;
    }
    for (uint32_t i = f->bring; i > 0; i--) /* the deepest first: it is evicted first */
        host_give(h, s->admission.bring[i - 1], now_us);
}

/* Blocks to be left over when this entry is admitted beside others: the watermark; for one that was
 * preempted, whose reader waits in the middle of an answer, only a block for each running one, so
 * that it is not preempted again at once. */
static uint32_t blocks_to_spare(const struct sched *s, const struct entry *e)
{
    if (s->entries.running_count == 0)
        return 0;
    uint64_t mark = (uint64_t)(s->blocks.usable - 1) * s->value[LIMIT_WATERMARK] / 1000000u;
    return e->admitted ? s->entries.running_count : (uint32_t)mark;
}

/* Whether there is room for so many blocks, and for a new one also while all running ones grow. */
static bool has_room(struct sched *s, struct entry *e, uint64_t blocks, uint32_t available)
{
    s->stats.held_needed = (uint32_t)blocks;
    s->stats.held_available = available;
    s->admission.blocked_held = HELD_BLOCKS;
    if (blocks + blocks_to_spare(s, e) > available)
        return false;
    if (e->admitted || s->entries.running_count == 0 || sched_foresee(s, e, blocks))
        return true;
    s->stats.admissions_put_off += !e->put_off;
    e->put_off = true;
    s->admission.blocked_held = HELD_GROWTH;
    sched_foresee_note(s, e);
    return false;
}

static void note_query(struct sched *s, uint32_t queries, uint32_t hits)
{
    struct engine_stats *st = &s->stats;
    struct admission *a = &s->admission;
    uint32_t at = a->window_at++ % SCHED_WINDOW;

    st->prefix_queries += queries;
    st->prefix_hits += hits;
    st->window_queries += queries - (uint64_t)a->window[at].queries;
    st->window_hits += hits - (uint64_t)a->window[at].hits;
    a->window[at].queries = queries;
    a->window[at].hits = hits;
}

static void note_admission(struct sched *s, struct entry *e, uint32_t cached_tokens,
                           uint64_t now_us)
{
    struct request *r = e->req;

    if (e->admitted) {
        e->reread = e->lost > cached_tokens ? e->lost - cached_tokens : 0;
        *(e->replayed  ? &s->stats.replayed_tokens
          : e->yielded ? &s->stats.yielded_tokens
                       : &s->stats.recomputed_tokens) += e->reread;
        return;
    }
    entries_admit(&s->entries, e);
    r->first_scheduled_us = now_us;
    r->cached_tokens = cached_tokens;
    e->paid = cached_tokens;
    tenants_owe(&s->tenants, e->tenant, r->ask.prompt_tokens - cached_tokens);
    if (sched_caches(s))
        note_query(s, r->ask.prompt_tokens, cached_tokens);
}

/* Takes blocks for the whole of the entry. False when they do not fit now, or must be waited for.
 */
static bool take_blocks(struct sched *s, struct entry *e, uint32_t slot, uint64_t now_us,
                        struct found *ret_found)
{
    struct slot *t = &s->slots.at[slot];
    uint32_t *table = slots_table(&s->slots, slot);
    uint32_t available = blocks_available(&s->blocks), idle = 0;

    if (s->entries.running_count > 0 && s->admission.blocked_number == e->number &&
        available <= s->admission.blocked_available) {
        s->admission.held = s->admission.blocked_held;
        return false;
    }
    struct found f = find_content(s, e, table);
    s->admission.held = HELD_COPIES;
    if (!choose_bring(s, e, &f))
        return false;
    for (uint32_t i = 0; i < f.hits; i++)
        idle += s->blocks.at[table[i]].refs == 0;
    uint64_t fresh = slots_blocks_for(&s->slots, e->known) - f.hits;
    if (!has_room(s, e, fresh + idle, available)) {
        s->admission.blocked_number = e->number;
        s->admission.blocked_available = available;
        s->admission.blocked_needed = (uint32_t)(fresh + idle);
        s->admission.held = s->admission.blocked_held;
        return false;
    }
    for (uint32_t i = 0; i < f.hits; i++) {
        blocks_ref(&s->blocks, table[i]);
        slots_grown(&s->slots, &s->blocks, slot);
    }
    bring_blocks(s, slot, &f, now_us);
    t->tail = f.tail;
    t->named = f.hits;
    t->sure = f.hits * s->fixed.block_size;
    t->settled = f.tokens;
    int r = slots_grow(&s->slots, &s->blocks, slot, e->known, now_us);
    assert(r == 0);
    *ret_found = f;
    return true;
}

/* Counts what came back from the host tier; the entry's own blocks there are not needed any more.
 */
static void note_bring(struct sched *s, struct entry *e, const struct found *f, uint64_t now_us)
{
    if (e->swapped.table != HOST_NONE) {
        s->stats.swapped_in_blocks += f->bring;
        swap_drop(s, e, now_us);
    } else {
        s->host.back += f->bring;
        s->stats.offload_in_blocks += f->bring;
        s->stats.offload_hits += (uint64_t)f->bring * s->fixed.block_size;
    }
}

/* Between the marks it stays as it was; with nothing running there is nothing to wait for. */
static bool admission_paused(struct sched *s)
{
    uint64_t high = s->value[LIMIT_ADMISSION_HIGH], low = s->value[LIMIT_ADMISSION_LOW];
    uint64_t used = s->blocks.referenced * (uint64_t)1000000u;
    uint64_t pool = s->blocks.usable - 1;
    bool before = s->admission.paused;

    if (high == 0 || s->entries.running_count == 0 || used < low * pool)
        s->admission.paused = false;
    else if (used >= high * pool)
        s->admission.paused = true;
    s->stats.admission_pauses += s->admission.paused && !before;
    return s->admission.paused;
}

bool admission_is_full(const struct sched *s)
{
    return s->entries.admitted_count >= SCHED_ADMITTED_MOST * s->fixed.max_seqs;
}

uint64_t admission_lacks(struct sched *s, const struct entry *e, uint64_t need)
{
    uint64_t available = blocks_available(&s->blocks);

    if (!e->admitted && admission_paused(s))
        return UINT64_MAX;
    need += blocks_to_spare(s, e);
    return need > available ? need - available : 0;
}

/* What keeps an entry out before its blocks are looked at. */
static enum engine_held held_before(struct sched *s, const struct plan *p, uint32_t entry)
{
    struct entry *e = &s->entries.at[entry];

    if (s->slots.free_count == 0 || s->entries.running_count >= s->value[LIMIT_RUNNING_SEQS])
        return HELD_LIMIT;
    if (!sched_share_has_turn(s, p, entry))
        return HELD_TOKENS;
    if (!e->admitted && admission_is_full(s))
        return HELD_PREEMPTED; /* priorities pile up preempted ones: first they go on */
    if (!e->admitted && admission_paused(s))
        return HELD_PAUSED;
    e->scoring = e->scored;
    if (sched_words_of_set(e) > p->words || (sched_wants_scores(e) && p->scores == 0))
        return HELD_TOKENS; /* the next step has room */
    return HELD_NONE;
}

/* Whether `a` of one tenant is to be admitted before `b` of another. */
static bool has_turn(const struct sched *s, uint32_t a, uint32_t b)
{
    const struct entry *x = &s->entries.at[a], *y = &s->entries.at[b];
    uint64_t left = tenants_standing(&s->tenants, x->tenant);
    uint64_t right = tenants_standing(&s->tenants, y->tenant);

    if (entries_ranked(&s->entries, x, y))
        return x->req->ask.priority < y->req->ask.priority;
    return left != right ? left < right : x->number < y->number;
}

uint32_t sched_head(const struct sched *s)
{
    if (s->suspects > 0)
        return sched_suspect(&s->entries);
    uint32_t best = s->tenants.at[0].queue.head;

    for (uint32_t i = 1; i < s->tenants.count; i++) {
        uint32_t head = s->tenants.at[i].queue.head;
        if (head != SCHED_NONE && (best == SCHED_NONE || has_turn(s, head, best)))
            best = head;
    }
    return best;
}

/* Of those that were admitted before, the one that came first. */
static uint32_t first_preempted(const struct entries *e)
{
    uint32_t i = e->age.head;

    while (!e->at[i].admitted)
        i = e->at[i].in[QUEUE_AGE].next;
    return i;
}

/* Admits the one whose turn it is. False when it cannot be. */
static bool admit_one(struct sched *s, struct plan *p)
{
    uint32_t entry = sched_head(s);

    s->admission.held = HELD_NONE;
    if (entry == SCHED_NONE)
        return false;
    s->admission.held = held_before(s, p, entry);
    if (s->admission.held == HELD_PREEMPTED &&
        s->entries.running_count == 0) { /* one has to go on */
        entry = first_preempted(&s->entries);
        s->admission.held = held_before(s, p, entry);
    }
    struct entry *e = &s->entries.at[entry];
    if (s->admission.held != HELD_NONE)
        return false;
    uint32_t slot = slots_next(&s->slots);
    struct found f;
    if (!take_blocks(s, e, slot, p->now_us, &f))
        return false;

    if (s->admission.blocked_number == e->number)
        admission_again(&s->admission); /* what it lacked says nothing of its return */
    slots_take(&s->slots, entry);
    sched_take_slot(s, entry, slot);
    note_bring(s, e, &f, p->now_us);
    note_admission(s, e, s->slots.at[slot].settled, p->now_us);
    e->computed = s->slots.at[slot].settled;
    if (s->states.on)
        snapshot_begin(s, e, f.tokens, f.chain);
    sched_share_admitted(s, p, e);
    entries_run(&s->entries, entry);
    return true;
}

void sched_admit(struct sched *s, struct plan *p)
{
    s->admission.held = p->yielded != HELD_NONE ? p->yielded : HELD_PREEMPTED;
    while (!p->preempted && !p->lacking && admit_one(s, p))
        continue;
}

const char *admission_check(const struct sched *s)
{
    const struct admission *a = &s->admission;
    uint64_t queries = 0, hits = 0;

    for (uint32_t i = 0; i < SCHED_WINDOW; i++) {
        queries += a->window[i].queries;
        hits += a->window[i].hits;
    }
    if (queries != s->stats.window_queries || hits != s->stats.window_hits || hits > queries)
        return "the window of prefix hits is wrong";
    return NULL;
}
