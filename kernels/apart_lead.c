/*
 * The server's side of a device in a process of its own, see apart.h: a backend whose device is the
 * shared memory and the way to the launcher. Engine thread, but for stats().
 */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/memplan.h"
#include "kernels/apart_memory.h"

#define PIECE_US (100u * 1000u)       /* of a wait for an answer, between two looks at the clock */
#define LOAD_US  (600u * EK_US_PER_S) /* without progress an engine that loads hangs */
#define REPLY_US (60u * EK_US_PER_S)
/* Of a step's deadline at most so long does not count, since the machine had no processor for the
 * engine; less than a watchdog waits (WatchdogSec=60). */
#define PARDON_US (30u * EK_US_PER_S)
#define END_US    (10u * EK_US_PER_S) /* SIGKILL, until the process has ended */
#define HEAR_US                                                                                    \
    (15u * EK_US_PER_S) /* until the launcher answers, which may have to end one first             \
                         */

struct lead {
    struct ek_open_params open;
    struct ek_apart_memory *m;
    int failed; /* of the last step that failed in this engine, its code */
    /* What stats() points to: */
    struct apart_words words;
};

static struct lead *lead_of(struct ek_device *d)
{
    return (struct lead *)(void *)d;
}

/* ---- the process ---- */

static int tell(const struct lead *l, enum ek_apart_what what, int fd)
{
    struct ek_apart_message order = {.what = what, .number = ++l->open.apart->number};
    struct iovec part = {.iov_base = &order, .iov_len = sizeof(order)};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } extra = {0};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = extra.room;
        msg.msg_controllen = sizeof(extra.room);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        *c = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    return sendmsg(l->open.apart->socket, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int say_alone(struct ek_fault *fault)
{
    ek_fault_write(fault, "engine-process",
                   "The process that starts engines has ended; what it logged says why");
    return -EPIPE;
}

/* The launcher's answer to the last message; others are of messages whose answer is not awaited. */
static int hear(const struct lead *l, struct ek_fault *fault)
{
    const uint64_t until = ek_now_us() + HEAR_US;
    struct pollfd p = {.fd = l->open.apart->socket, .events = POLLIN};
    struct ek_apart_answer a;

    while (ek_now_us() < until) {
        if (poll(&p, 1, PIECE_US / 1000) <= 0)
            continue;
        ssize_t n = recv(p.fd, &a, sizeof(a), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return say_alone(fault);
        if (n != (ssize_t)sizeof(a) || a.number != l->open.apart->number)
            continue;
        if (a.code < 0 && fault)
            *fault = a.fault;
        return a.code;
    }
    ek_fault_write(fault, "engine-process", "The process that starts engines does not answer");
    return -ETIMEDOUT;
}

static bool has_ended(const struct lead *l)
{
    return atomic_load(&l->m->ended) != 0;
}

/* The launcher, and with it the engine, whose end is then not told. */
static bool is_alone(const struct lead *l)
{
    struct pollfd p = {.fd = l->open.apart->socket};

    return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0;
}

/* "its process ended with signal 11 (Segmentation fault)" */
static void say_end(int status, char *ret_text, size_t size)
{
    if (WIFSIGNALED(status))
        (void)snprintf(ret_text, size, "its process ended with signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    else
        (void)snprintf(ret_text, size, "its process ended with code %d", WEXITSTATUS(status));
}

/* Whether it was ended from outside: for lack of memory, by hand, in a test. */
static bool was_killed(int status)
{
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM);
}

/* Of an engine that ended while it was loaded. What it exits with it has said why itself: a weight
 * file that was cut short, or a node of several. */
static int code_of_end(int status)
{
    switch (WIFEXITED(status) ? WEXITSTATUS(status) : 0) {
    case EK_EXIT_USAGE:
    case EK_EXIT_CONFIG: return -EBADMSG;
    case EK_EXIT_COMM: return EK_ECOMM;
    case EK_EXIT_DEVMEM_START: return EK_EDEVMEM;
    case EK_EXIT_HOSTMEM_START: return -ENOMEM;
    }
    return was_killed(status) ? -ENOMEM : EK_EDEVICE;
}

/* Who is told while an engine loads; either may be NULL. */
struct patience {
    ek_progress_fn progress;
    ek_meanwhile_fn meanwhile;
    void *ctx;
};

/* What was counted goes on with the next engine; what was in memory is gone with this one. */
static void keep_counts(struct lead *l)
{
    struct apart_stats *s = &l->m->stats; /* no other thread writes them now */

    (void)atomic_fetch_add(&s->turn, atomic_load(&s->turn) % 2 + 1); /* it may have been ended in */
    atomic_thread_fence(memory_order_seq_cst);
    s->busy_us += s->stats.busy_us;
    s->steps += s->stats.steps;
    s->stats = (struct ek_device_stats){0};
    memset(s->rank, 0, sizeof(s->rank));
    atomic_thread_fence(memory_order_seq_cst);
    (void)atomic_fetch_add(&s->turn, 1);
}

/* Asks for an engine and waits until it is loaded. */
static int apart_start(struct lead *l, const struct patience *p, struct ek_fault *fault)
{
    struct ek_apart_memory *m = l->m;
    uint64_t moved_us = ek_now_us(), done = 0;

    l->failed = 0;
    atomic_store(&m->pid, 0);
    atomic_store(&m->ended, 0);
    atomic_store(&m->sent, 0);
    atomic_store(&m->state, APART_STARTING);
    atomic_store(&m->done_bytes, 0);
    atomic_store(&m->total_bytes, 0);
    atomic_store(&m->posted, 0);
    keep_counts(l);
    for (uint32_t i = 0; i < APART_SLOTS; i++)
        atomic_store(&m->landed[i].id, UINT64_MAX); /* none is under way */
    int r = tell(l, EK_APART_START, m->fd);
    r = r == -EPIPE ? say_alone(fault) : r == 0 ? hear(l, fault) : r;
    if (r < 0) { /* none was begun */
        m->status = 0;
        atomic_store(&m->ended, 1);
        return r;
    }
    while (r == 0 && atomic_load(&m->state) == APART_STARTING && !has_ended(l)) {
        uint32_t seen = atomic_load(&m->answered);
        uint64_t now_done = atomic_load(&m->done_bytes), total = atomic_load(&m->total_bytes);
        if (now_done != done && p->progress)
            p->progress(p->ctx, now_done, total);
        moved_us = now_done != done ? ek_now_us() : moved_us;
        done = now_done;
        r = ek_now_us() - moved_us > LOAD_US ? -ETIMEDOUT : is_alone(l) ? say_alone(fault) : 0;
        if (r == 0 && p->meanwhile)
            r = p->meanwhile(p->ctx);
        if (r == 0 && atomic_load(&m->state) == APART_STARTING && !has_ended(l))
            apart_sleep(&m->answered, seen, PIECE_US);
    }
    if (r == 0 && atomic_load(&m->state) == APART_LOADED && p->progress)
        p->progress(p->ctx, atomic_load(&m->total_bytes), atomic_load(&m->total_bytes));
    if (r < 0 || atomic_load(&m->state) == APART_LOADED)
        return r;
    if (atomic_load(&m->state) == APART_FAILED) {
        if (fault)
            *fault = m->fault;
        return m->code;
    }
    char why[160];
    say_end(m->status, why, sizeof(why));
    ek_fault_write(fault, "engine-process", "The engine could not be loaded: %s", why);
    return code_of_end(m->status);
}

static int end(struct lead *l)
{
    uint64_t until = ek_now_us() + END_US;
    int r = has_ended(l) ? 0 : tell(l, EK_APART_END, -1);

    while (r == 0 && !has_ended(l)) {
        uint32_t seen = atomic_load(&l->m->answered);
        if (!has_ended(l))
            apart_sleep(&l->m->answered, seen, PIECE_US);
        r = has_ended(l) ? 0 : is_alone(l) ? EK_EDEVICE : ek_now_us() > until ? -ETIMEDOUT : 0;
    }
    return r;
}

/* ---- orders ---- */

static void post(struct lead *l, struct apart_order o)
{
    struct ek_apart_memory *m = l->m;

    m->order[atomic_load(&m->posted) % APART_ORDERS] = o;
    apart_raise(&m->posted);
}

/* The engine, if it sleeps, sleeps on: it sees the order by the next one, or when it looks. */
static void post_quietly(struct lead *l, struct apart_order o)
{
    struct ek_apart_memory *m = l->m;

    m->order[atomic_load(&m->posted) % APART_ORDERS] = o;
    (void)atomic_fetch_add(&m->posted, 1);
}

/* An order of which the lead waits for the end; `p`, which is told meanwhile and may give up, or
 * NULL. */
static int ask_for(struct lead *l, struct apart_order o, uint64_t most_us, const struct patience *p)
{
    struct ek_apart_memory *m = l->m;
    const uint64_t until = ek_now_us() + most_us;

    atomic_store(&m->replied, 0);
    post(l, o);
    while (atomic_load(&m->replied) == 0) {
        uint32_t seen = atomic_load(&m->answered);
        if (has_ended(l) || is_alone(l))
            return EK_EDEVICE;
        if (ek_now_us() > until)
            return EK_EDEVICE; /* it hangs: another one is needed */
        int r = p && p->meanwhile ? p->meanwhile(p->ctx) : 0;
        if (r != 0)
            return r;
        if (atomic_load(&m->replied) == 0)
            apart_sleep(&m->answered, seen, PIECE_US);
    }
    if (m->reply == EK_EDEVICE || m->reply == EK_ECOMM)
        l->failed = m->reply;
    return m->reply;
}

static int apart_ask(struct lead *l, struct apart_order o)
{
    return ask_for(l, o, REPLY_US, NULL);
}

/* A card's engine takes and pins all of the host tier, which takes its time. */
static int open_kv(struct lead *l, const struct ek_kv_params *kv, const struct patience *p)
{
    int r = apart_layout_host(&l->open, kv, l->m);

    if (r < 0)
        return r;
    l->m->kv = *kv;
    return ask_for(l, (struct apart_order){.kind = APART_KV_OPEN}, LOAD_US, p);
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
    struct lead *l = calloc(1, sizeof(*l));

    (void)fault;
    if (!l)
        return -ENOMEM;
    l->open = *p;
    *ret_device = (struct ek_device *)(void *)l;
    return 0;
}

static void lead_close(struct ek_device *d)
{
    struct lead *l = lead_of(d);

    if (!l)
        return;
    if (l->m) {
        (void)end(l); /* or the launcher does, when this process ends */
        (void)close(l->m->fd);
        ek_apart_unmap(l->m);
    }
    free(l);
}

static int lead_load(struct ek_device *d, const struct ek_plan_request *q,
                     const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                     struct ek_fault *fault)
{
    struct lead *l = lead_of(d);

    (void)files; /* the engine maps them itself */
    if (l->m)
        return -EBUSY;
    int r = apart_layout(&l->open, q, &l->m, fault);
    if (r == 0)
        r = apart_start(l, &(struct patience){.progress = progress, .ctx = ctx}, fault);
    if (r < 0)
        return r;
    const struct apart_stats *s = &l->m->stats;
    l->words = s->words;
    return 0;
}

/* A card copies to the very pages that it was told of: they stay while there is an engine. */
static void lead_host_drop(struct ek_device *d)
{
    const struct lead *l = lead_of(d);
    const struct ek_apart_memory *m = l->m;

    if (m->host_bytes > 0 && (l->open.each->in_host_memory || has_ended(l)) &&
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
    struct lead *l = lead_of(d);
    int r = apart_ask(l, (struct apart_order){.kind = APART_KV_RESIZE, .blocks = blocks});

    if (r == 0)
        l->m->kv.blocks = blocks; /* so many the next engine is to have */
    return r;
}

static size_t lead_kv_bytes(const struct ek_device *d, uint32_t tier)
{
    const struct lead *l = (const struct lead *)(const void *)d;

    return apart_tier_bytes(l->m, tier);
}

static int lead_kv_read(struct ek_device *d, uint32_t tier, uint32_t block, void *to)
{
    struct lead *l = lead_of(d);
    int r =
        apart_ask(l, (struct apart_order){.kind = APART_KV_READ, .blocks = block, .tier = tier});

    if (r == 0)
        memcpy(to, apart_at(l->m, l->m->block_at), lead_kv_bytes(d, tier));
    return r;
}

static int lead_kv_write(struct ek_device *d, uint32_t tier, uint32_t block, const void *from)
{
    struct lead *l = lead_of(d);

    memcpy(apart_at(l->m, l->m->block_at), from, lead_kv_bytes(d, tier));
    return apart_ask(l,
                     (struct apart_order){.kind = APART_KV_WRITE, .blocks = block, .tier = tier});
}

static int lead_forward(struct ek_device *d, const struct ek_step *step)
{
    struct lead *l = lead_of(d);
    uint32_t slot = step->id % APART_SLOTS;

    if (has_ended(l))
        return EK_EDEVICE;
    atomic_store(&l->m->landed[slot].id, 0);
    ek_step_pack(step, apart_at(l->m, l->m->step_at[slot]));
    const struct apart_order o = {.kind = APART_FORWARD, .slot = slot};
    if (atomic_load(&l->m->landed[slot ^ 1].id) == 0)
        post_quietly(l, o); /* the other step is under way, and sample() soon follows */
    else
        post(l, o);
    return 0;
}

static int lead_sample(struct ek_device *d, const struct ek_step *step,
                       const struct ek_masks *masks)
{
    struct lead *l = lead_of(d);
    uint32_t slot = step->id % APART_SLOTS;

    if (has_ended(l))
        return EK_EDEVICE;
    if (masks)
        memcpy(apart_at(l->m, l->m->masks_at[slot]), masks, ek_masks_bytes(masks));
    post(l, (struct apart_order){.kind = APART_SAMPLE, .slot = slot, .masked = masks != NULL});
    return 0;
}

static int lead_wait(struct ek_device *d, uint64_t step_id, struct ek_result *ret_result,
                     size_t bytes, uint64_t timeout_us)
{
    struct lead *l = lead_of(d);
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
        if (has_ended(l) || (spent >= PIECE_US && is_alone(l)))
            return EK_EDEVICE;
        if (spent >= timeout_us)
            return -ETIMEDOUT;
        const uint64_t piece = timeout_us - spent < PIECE_US ? timeout_us - spent : PIECE_US;
        apart_sleep(&m->answered, seen, piece);
        const uint64_t took = ek_now_us() - now;
        own += took > piece + PIECE_US ? took - piece : 0;
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
static void lead_read_stats(const struct lead *l, const struct ek_device_stats *from,
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
    } while ((before != after || before % 2 != 0) && !has_ended(l));
}

static void lead_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    const struct lead *l = lead_of(d);

    lead_read_stats(l, &l->m->stats.stats, ret_stats);
    ret_stats->attention = l->words.attention[0] ? l->words.attention : NULL;
    ret_stats->products = l->words.products[0] ? l->words.products : NULL;
    ret_stats->collectives = l->words.collectives[0] ? l->words.collectives : NULL;
    ret_stats->note = l->words.note[0] ? l->words.note : NULL;
}

static void lead_rank_stats(struct ek_device *d, uint32_t rank, struct ek_device_stats *ret_stats)
{
    struct lead *l = lead_of(d);

    lead_read_stats(l, &l->m->stats.rank[rank], ret_stats);
    ret_stats->attention = ret_stats->products = NULL; /* the engine's pointers */
    ret_stats->collectives = ret_stats->note = NULL;
}

static bool lead_is_lost(struct ek_device *d)
{
    return has_ended(lead_of(d)) || is_alone(lead_of(d));
}

/* Of an engine over several nodes: a node that is lost, with its machine or its network, looks to
 * the others, and to what started them, as one that a request ended. A code that no engine ends
 * with is the command's own. */
static bool may_be_a_node(const struct lead *l, const struct ek_device_end *end)
{
    if (!ek_open_spans(&l->open) || end->signal != 0)
        return false;
    if (!end->ended)
        return l->failed == EK_ECOMM || l->failed == 0;
    return end->status == EK_EXIT_COMM || end->status < EK_EXIT_INTERNAL ||
           end->status > EK_EXIT_LOOP;
}

static void lead_how_lost(struct ek_device *d, struct ek_device_end *ret_end)
{
    struct lead *l = lead_of(d);

    *ret_end = (struct ek_device_end){.ended = has_ended(l)};
    const bool alone = is_alone(l);
    (void)end(l); /* or revive() does, and says what is in the way */
    if (ret_end->ended) {
        const int status = l->m->status;
        const bool sent = WIFSIGNALED(status) && atomic_load(&l->m->sent) != 0;
        say_end(status, ret_end->why, sizeof(ret_end->why));
        size_t said = strlen(ret_end->why);
        if (sent)
            (void)snprintf(ret_end->why + said, sizeof(ret_end->why) - said,
                           ", which process %d sent", atomic_load(&l->m->sent_by));
        ret_end->fault = !sent && !was_killed(status);
        ret_end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        ret_end->oom_kills = ret_end->signal == SIGKILL ? l->m->oom_kills : 0;
        ret_end->status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    } else { /* its device failed, or it made no progress */
        bool stopped = has_ended(l) && l->m->stopped;
        (void)snprintf(ret_end->why, sizeof(ret_end->why), "%s",
                       stopped                 ? "its process was stopped by a signal"
                       : alone                 ? "the process that starts engines has ended"
                       : l->failed == EK_ECOMM ? "its ranks lost one another in a step"
                       : l->failed == 0 ? "it made no progress in time (a step: --step-deadline; "
                                          "an order: 60 s)"
                                        : "a step failed in it");
        ret_end->fault = !stopped && !alone;
    }
    ret_end->unsure = ret_end->fault && may_be_a_node(l, ret_end);
}

static int lead_revive(struct ek_device *d, ek_meanwhile_fn meanwhile, void *ctx,
                       struct ek_fault *fault)
{
    struct lead *l = lead_of(d);
    const struct patience p = {.meanwhile = meanwhile, .ctx = ctx};

    int r = end(l);
    if (r == 0)
        r = apart_start(l, &p, fault);
    if (r == 0)
        r = open_kv(l, &l->m->kv, &p);
    if (r < 0)
        (void)end(l); /* what was begun; if it hangs, is_lost() stays false and revive() ends it */
    return r;
}

static int lead_check(struct ek_device *d, struct ek_fault *fault)
{
    const struct lead *l = lead_of(d);
    int r = tell(l, EK_APART_CHECK, -1);

    return r == 0 ? hear(l, fault) : r;
}

static int lead_release(struct ek_device *d)
{
    struct lead *l = lead_of(d);
    int r = end(l);

    if (r < 0)
        return r;
    keep_counts(l);
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
