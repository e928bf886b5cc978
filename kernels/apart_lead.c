/*
 * The server's side of a device in a process of its own, see apart.h: a backend whose device is the
 * shared memory and the process that apart_process.c begins and ends. Engine thread, but for
 * stats().
 */
#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/memplan.h"
#include "kernels/apart_process.h"

#define REPLY_US (60u * EK_US_PER_S)
/* Of a step's deadline at most so long does not count, since the machine had no processor for the
 * engine; less than a watchdog waits (WatchdogSec=60). */
#define PARDON_US (30u * EK_US_PER_S)

static struct apart_lead *lead_of(struct ek_device *d)
{
    return (struct apart_lead *)(void *)d;
}

/* ---- orders ---- */

static void apart_lead_post(struct apart_lead *l, struct apart_order o)
{
    struct ek_apart_memory *m = l->m;

    m->order[atomic_load(&m->posted) % APART_ORDERS] = o;
    apart_raise(&m->posted);
}

/* The engine, if it sleeps, sleeps on: it sees the order by the next one, or when it looks. */
static void post_quietly(struct apart_lead *l, struct apart_order o)
{
    struct ek_apart_memory *m = l->m;

    m->order[atomic_load(&m->posted) % APART_ORDERS] = o;
    (void)atomic_fetch_add(&m->posted, 1);
}

/* An order of which the lead waits for the end; `p`, which is told meanwhile and may give up, or
 * NULL. */
static int ask_for(struct apart_lead *l, struct apart_order o, uint64_t most_us,
                   const struct apart_patience *p)
{
    struct ek_apart_memory *m = l->m;
    const uint64_t until = ek_now_us() + most_us;

    atomic_store(&m->replied, 0);
    apart_lead_post(l, o);
    while (atomic_load(&m->replied) == 0) {
        uint32_t seen = atomic_load(&m->answered);
        if (apart_has_ended(l) || apart_is_alone(l))
            return EK_EDEVICE;
        if (ek_now_us() > until)
            return EK_EDEVICE; /* it hangs: another one is needed */
        int r = p && p->meanwhile ? p->meanwhile(p->ctx) : 0;
        if (r != 0)
            return r;
        if (atomic_load(&m->replied) == 0)
            apart_sleep(&m->answered, seen, APART_PIECE_US);
    }
    if (m->reply == EK_EDEVICE || m->reply == EK_ECOMM)
        l->failed = m->reply;
    return m->reply;
}

static int apart_ask(struct apart_lead *l, struct apart_order o)
{
    return ask_for(l, o, REPLY_US, NULL);
}

/* A card's engine takes and pins all of the host tier, which takes its time. */
static int open_kv(struct apart_lead *l, const struct ek_kv_params *kv,
                   const struct apart_patience *p)
{
    int r = apart_layout_host(&l->open, kv, l->m);

    if (r < 0)
        return r;
    l->m->kv = *kv;
    return ask_for(l, (struct apart_order){.kind = APART_KV_OPEN}, APART_LOAD_US, p);
}

/* ---- the table ---- */

static int lead_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
                      struct ek_fault *fault)
{
    return ek_apart_inner(p)->probe(p, ret_info, fault);
}

static int lead_plan(const struct ek_open_params *p, const struct ek_plan_request *q,
                     struct ek_plan *ret_plan, struct ek_fault *fault)
{
    return ek_apart_inner(p)->plan(p, q, ret_plan, fault);
}

static int lead_choose(const struct ek_open_params *p, const struct ek_graph *graph,
                       struct ek_forms *forms, struct ek_fault *fault)
{
    const struct ek_backend *b = ek_apart_inner(p);
    return b->choose ? b->choose(p, graph, forms, fault) : 0;
}

static int lead_open(const struct ek_open_params *p, struct ek_device **ret_device,
                     struct ek_fault *fault)
{
    struct apart_lead *l = calloc(1, sizeof(*l));

    (void)fault;
    if (!l)
        return -ENOMEM;
    l->open = *p;
    *ret_device = (struct ek_device *)(void *)l;
    return 0;
}

static void lead_close(struct ek_device *d)
{
    struct apart_lead *l = lead_of(d);

    if (!l)
        return;
    if (l->m) {
        (void)apart_end(l); /* or the launcher does, when this process ends */
        (void)close(l->m->fd);
        ek_apart_unmap(l->m);
    }
    free(l);
}

static int lead_load(struct ek_device *d, const struct ek_plan_request *q,
                     const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                     struct ek_fault *fault)
{
    struct apart_lead *l = lead_of(d);

    (void)files; /* the engine maps them itself */
    if (l->m)
        return -EBUSY;
    int r = apart_layout(&l->open, q, &l->m, fault);
    if (r == 0)
        r = apart_start(l, &(struct apart_patience){.progress = progress, .ctx = ctx}, fault);
    if (r < 0)
        return r;
    const struct apart_stats *s = &l->m->stats;
    l->words = s->words;
    return 0;
}

/* A card copies to the very pages that it was told of: they stay while there is an engine. */
static void lead_host_drop(struct ek_device *d)
{
    const struct apart_lead *l = lead_of(d);
    const struct ek_apart_memory *m = l->m;

    if (m->host_bytes > 0 && (l->open.each->in_host_memory || apart_has_ended(l)) &&
        fallocate(m->fd, FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, (off_t)m->host_at,
                  (off_t)m->host_bytes) < 0)
        ek_log(EK_LOG_DEBUG, "The host tier's memory is not given back: %s", ek_strerror(-errno));
}

static int lead_kv_open(struct ek_device *d, const struct ek_kv_params *p)
{
    return open_kv(lead_of(d), p, NULL);
}

static int lead_kv_resize(struct ek_device *d, uint32_t blocks)
{
    struct apart_lead *l = lead_of(d);
    int r = apart_ask(l, (struct apart_order){.kind = APART_KV_RESIZE, .blocks = blocks});

    if (r == 0)
        l->m->kv.blocks = blocks; /* so many the next engine is to have */
    return r;
}

static size_t lead_kv_bytes(const struct ek_device *d, uint32_t tier)
{
    const struct apart_lead *l = (const struct apart_lead *)(const void *)d;

    return apart_tier_bytes(l->m, tier);
}

static int lead_kv_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to)
{
    struct apart_lead *l = lead_of(d);
    int r =
        apart_ask(l, (struct apart_order){.kind = APART_KV_READ, .blocks = block, .tier = tier});

    if (r == 0)
        memcpy(to, apart_at(l->m, l->m->block_at), lead_kv_bytes(d, tier));
    return r;
}

static int lead_kv_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from)
{
    struct apart_lead *l = lead_of(d);

    memcpy(apart_at(l->m, l->m->block_at), from, lead_kv_bytes(d, tier));
    return apart_ask(l,
                     (struct apart_order){.kind = APART_KV_WRITE, .blocks = block, .tier = tier});
}

static int lead_forward(struct ek_device *d, const struct ek_step *step)
{
    struct apart_lead *l = lead_of(d);
    uint32_t slot = step->id % APART_SLOTS;

    if (apart_has_ended(l))
        return EK_EDEVICE;
    atomic_store(&l->m->landed[slot].id, 0);
    ek_step_pack(step, apart_at(l->m, l->m->step_at[slot]));
    const struct apart_order o = {.kind = APART_FORWARD, .slot = slot};
    if (atomic_load(&l->m->landed[slot ^ 1].id) == 0)
        post_quietly(l, o); /* the other step is under way, and sample() soon follows */
    else
        apart_lead_post(l, o);
    return 0;
}

static int lead_sample(struct ek_device *d, const struct ek_step *step,
                       const struct ek_masks *masks)
{
    struct apart_lead *l = lead_of(d);
    uint32_t slot = step->id % APART_SLOTS;

    if (apart_has_ended(l))
        return EK_EDEVICE;
    if (masks)
        memcpy(apart_at(l->m, l->m->masks_at[slot]), masks, ek_masks_bytes(masks));
    apart_lead_post(
        l, (struct apart_order){.kind = APART_SAMPLE, .slot = slot, .masked = masks != NULL});
    return 0;
}

static int lead_wait(struct ek_device *d, uint64_t step_id, struct ek_result *ret_result,
                     size_t bytes, uint64_t timeout_us)
{
    struct apart_lead *l = lead_of(d);
    struct ek_apart_memory *m = l->m;
    const uint64_t from = ek_now_us(), late = atomic_load(&m->late_us);
    uint32_t slot = step_id % APART_SLOTS;
    uint64_t own = 0; /* for how long this thread got none */

    while (atomic_load(&m->landed[slot].id) != step_id) {
        uint32_t seen = atomic_load(&m->answered);
        const uint64_t now = ek_now_us(), lost = atomic_load(&m->late_us) - late + own;
        const uint64_t pardon = lost < PARDON_US ? lost : PARDON_US;
        const uint64_t spent = now - from - (pardon < now - from ? pardon : now - from);
        if (atomic_load(&m->landed[slot].id) == step_id)
            break;
        if (apart_has_ended(l) || (spent >= APART_PIECE_US && apart_is_alone(l)))
            return EK_EDEVICE;
        if (spent >= timeout_us)
            return -ETIMEDOUT;
        const uint64_t piece =
            timeout_us - spent < APART_PIECE_US ? timeout_us - spent : APART_PIECE_US;
        apart_sleep(&m->answered, seen, piece);
        const uint64_t took = ek_now_us() - now;
        own += took > piece + APART_PIECE_US ? took - piece : 0;
    }
    if (m->landed[slot].code < 0)
        return l->failed = m->landed[slot].code;
    const struct ek_result *result = apart_at(m, m->result_at[slot]);
    size_t size = ek_result_own_bytes(result);
    if (size == 0 || size > m->result_bytes || size > bytes)
        return l->failed = EK_EDEVICE;
    memcpy(ret_result, result, size);
    if (ek_result_check(ret_result, size) < 0)
        return l->failed = EK_EDEVICE;
    l->failed = ret_result->error < 0 ? ret_result->error : 0;
    return 0;
}

/* `from` is in the shared memory; what the engines before had counted is added. */
static void lead_read_stats(const struct apart_lead *l, const struct ek_device_stats *from,
                            struct ek_device_stats *ret_stats)
{
    struct apart_stats *s = &l->m->stats;
    unsigned before, after;

    do {
        before = atomic_load(&s->turn);
        atomic_thread_fence(memory_order_seq_cst);
        *ret_stats = *from;
        ret_stats->busy_us += s->busy_us;
        ret_stats->steps += s->steps;
        atomic_thread_fence(memory_order_seq_cst);
        after = atomic_load(&s->turn);
    } while ((before != after || before % 2 != 0) && !apart_has_ended(l));
}

static void lead_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    const struct apart_lead *l = lead_of(d);

    lead_read_stats(l, &l->m->stats.stats, ret_stats);
    ret_stats->attention = l->words.attention[0] ? l->words.attention : NULL;
    ret_stats->products = l->words.products[0] ? l->words.products : NULL;
    ret_stats->collectives = l->words.collectives[0] ? l->words.collectives : NULL;
    ret_stats->note = l->words.note[0] ? l->words.note : NULL;
}

static void lead_rank_stats(struct ek_device *d, uint32_t rank, struct ek_device_stats *ret_stats)
{
    struct apart_lead *l = lead_of(d);

    lead_read_stats(l, &l->m->stats.rank[rank], ret_stats);
    ret_stats->attention = ret_stats->products = NULL; /* the engine's pointers */
    ret_stats->collectives = ret_stats->note = NULL;
}

static bool lead_is_lost(struct ek_device *d)
{
    return apart_has_ended(lead_of(d)) || apart_is_alone(lead_of(d));
}

static void lead_how_lost(struct ek_device *d, struct ek_device_end *ret_end)
{
    apart_how_lost(lead_of(d), ret_end);
}

static int lead_revive(struct ek_device *d, ek_meanwhile_fn meanwhile, void *ctx,
                       struct ek_fault *fault)
{
    struct apart_lead *l = lead_of(d);
    const struct apart_patience p = {.meanwhile = meanwhile, .ctx = ctx};

    int r = apart_end(l);
    if (r == 0)
        r = apart_start(l, &p, fault);
    if (r == 0)
        r = open_kv(l, &l->m->kv, &p);
    if (r < 0)
        (void)apart_end(
            l); /* what was begun; if it hangs, is_lost() stays false and revive() ends it */
    return r;
}

static int lead_check(struct ek_device *d, struct ek_fault *fault)
{
    return apart_check(lead_of(d), fault);
}

static int lead_release(struct ek_device *d)
{
    struct apart_lead *l = lead_of(d);
    int r = apart_end(l);

    if (r < 0)
        return r;
    apart_keep_counts(l);
    return 0;
}

/* `drop`: the host tier is in the shared memory, for which the backend has a kv_host(). `kv_...`:
 * NULL where other nodes have a part of each block. */
#define TABLE(of, host, drop, bytes, read, write)                                                  \
    {                                                                                              \
        .abi = EK_BACKEND_ABI, .size = sizeof(struct ek_backend), .name = (of),                    \
        .in_host_memory = (host), .probe = lead_probe, .open = lead_open, .close = lead_close,     \
        .plan = lead_plan, .choose = lead_choose, .load = lead_load, .kv_open = lead_kv_open,      \
        .kv_resize = lead_kv_resize, .forward = lead_forward, .sample = lead_sample,               \
        .wait = lead_wait, .stats = lead_stats, .rank_stats = lead_rank_stats,                     \
        .revive = lead_revive, .how_lost = lead_how_lost, .check = lead_check,                     \
        .release = lead_release, .is_lost = lead_is_lost, .host_drop = (drop),                     \
        .kv_bytes = (bytes), .kv_read = (read), .kv_write = (write)                                \
    }
#define HERE(of, host, drop) TABLE(of, host, drop, lead_kv_bytes, lead_kv_read, lead_kv_write)
#define SPANS(of, host)      TABLE(of, host, NULL, NULL, NULL, NULL)

static const struct ek_backend of_cpu = HERE("cpu", true, lead_host_drop);
static const struct ek_backend of_cuda = HERE("cuda", false, lead_host_drop);
static const struct ek_backend of_other_cuda = HERE("cuda", false, NULL);
static const struct ek_backend of_cpu_nodes = SPANS("cpu", true);
static const struct ek_backend of_cuda_nodes = SPANS("cuda", false);

const struct ek_backend *ek_apart_backend(const struct ek_backend *each, bool spans)
{
    const bool cuda = strcmp(each->name, "cuda") == 0;

    if (each->in_host_memory)
        return !each->kv_host ? NULL : spans ? &of_cpu_nodes : &of_cpu;
    if (!cuda)
        return NULL;
    return spans ? &of_cuda_nodes : each->kv_host ? &of_cuda : &of_other_cuda;
}
