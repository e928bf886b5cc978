/*
 * A node's connections and what ends them. A failure has one way: cluster_fail() keeps its
 * sentence, tells whoever started us, the other nodes, and then everybody here who waits. A
 * connection that only closes says less than the frame that may come before it on another, so a
 * closed one waits a moment for a better reason.
 */
#include "kernels/nodes/cluster.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/nodes/cluster_state.h"

#define PULSE_US  EK_US_PER_S
#define LAST_US   EK_US_PER_S /* for the word with which a node ends */
#define REASON_US 500000u     /* a reason comes after a connection closed, or does not */
#define MORE      1.05        /* others wait longer than node 0, which knows who is missing */

void cluster_name(const struct ek_node_card *card, char *ret_text, size_t size)
{
    (void)snprintf(ret_text, size, "node %u (%s)", card->node, card->host);
}

struct timespec cluster_in(uint64_t us)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + us % EK_US_PER_S * 1000;
    t.tv_sec += (time_t)(us / EK_US_PER_S + ns / 1000000000u);
    t.tv_nsec = (long)(ns % 1000000000u);
    return t;
}

/* ---- failing ---- */

bool cluster_failed(struct ek_cluster *c)
{
    pthread_mutex_lock(&c->lock);
    bool failed = c->failed;
    pthread_mutex_unlock(&c->lock);
    return failed;
}

void ek_cluster_why(struct ek_cluster *c, char *ret_text, size_t size)
{
    pthread_mutex_lock(&c->lock);
    (void)snprintf(ret_text, size, "%s", c->why);
    pthread_mutex_unlock(&c->lock);
}

static void tell_others(struct ek_cluster *c, int code, const char *why)
{
    struct ek_node_fault n = {.code = code};

    (void)snprintf(n.msg, sizeof(n.msg), "%.470s", why);
    for (uint32_t i = 0; i < c->peers; i++)
        if (c->peer[i].control.fd >= 0) /* who does not take it learns it by the end */
            (void)ek_link_send(&c->peer[i].control, EK_FRAME_FAIL, &n, sizeof(n), LAST_US);
}

void cluster_fail(struct ek_cluster *c, int code, const char *why)
{
    pthread_mutex_lock(&c->lock);
    const bool first = !c->failed && !c->over && !c->telling;
    c->telling = c->telling || first;
    pthread_mutex_unlock(&c->lock);
    if (!first)
        return;
    if (c->p.lost) /* before anybody fails for it and has less to say */
        c->p.lost(c->p.ctx, why);
    pthread_mutex_lock(&c->lock);
    c->failed = true;
    (void)snprintf(c->why, sizeof(c->why), "%.470s", why);
    pthread_cond_broadcast(&c->met);
    pthread_mutex_unlock(&c->lock);
    tell_others(c, code, why);
    pthread_mutex_lock(&c->lock);
    c->telling = false;
    pthread_cond_broadcast(&c->met);
    pthread_mutex_unlock(&c->lock);
    ek_wire_cut(&c->wire);
    cluster_abort(c);
}

/* Until the others have been told, which takes at most LAST_US for each. */
static void await_told(struct ek_cluster *c)
{
    pthread_mutex_lock(&c->lock);
    while (c->telling)
        pthread_cond_wait(&c->met, &c->lock);
    pthread_mutex_unlock(&c->lock);
}

void cluster_abort(struct ek_cluster *c)
{
    pthread_mutex_lock(&c->lock); /* so that the device stays */
    if (c->abort)
        c->abort(c->abort_ctx);
    pthread_mutex_unlock(&c->lock);
}

void ek_cluster_fail(struct ek_cluster *c, int code, const char *why)
{
    if (!c)
        return;
    cluster_fail(c, code, why);
    await_told(c); /* by another thread, if it had failed before */
}

void cluster_on_fail(struct ek_cluster *c, void (*abort)(void *ctx), void *ctx)
{
    pthread_mutex_lock(&c->lock);
    c->abort = abort;
    c->abort_ctx = ctx;
    if (c->failed && abort)
        abort(ctx);
    pthread_mutex_unlock(&c->lock);
}

/* A reason that is on its way is better than what we can say. */
static void await_reason(struct ek_cluster *c)
{
    const struct timespec late = cluster_in(REASON_US);

    pthread_mutex_lock(&c->lock);
    while (!c->failed && !c->over && pthread_cond_timedwait(&c->met, &c->lock, &late) == 0)
        continue;
    pthread_mutex_unlock(&c->lock);
}

void cluster_lost(struct ek_cluster *c, const char *name, int code, bool data)
{
    char why[256];

    if (code == -ETIMEDOUT)
        (void)snprintf(why, sizeof(why),
                       "%s did not answer for %.1f s%s: it hangs, or the network to it does", name,
                       (double)c->stall_us / 1e6, data ? " in a step" : "");
    else if (code == -ECONNRESET)
        (void)snprintf(why, sizeof(why), "%s ended without a word: its log or journal says why",
                       name);
    else
        (void)snprintf(why, sizeof(why), "The connection to %s broke: %s", name, ek_strerror(code));
    if (code != -ETIMEDOUT)
        await_reason(c);
    cluster_fail(c, EK_ECOMM, why);
}

static struct ek_link *data_of(struct ek_cluster *c, uint32_t node)
{
    if (c->p.node == 0)
        return &c->peer[node - 1].data;
    return node == 0 ? &c->peer[0].data : &c->mesh[node];
}

static void on_wire(void *ctx, uint32_t node, int code)
{
    struct ek_cluster *c = ctx;
    cluster_lost(c, data_of(c, node)->peer, code, true);
}

/* ---- threads ---- */

/* A node ends for a reason of its own: that is the word for us, too. */
static void on_fail_frame(struct peer *p, const struct ek_node_fault *n)
{
    char why[600];

    (void)snprintf(why, sizeof(why), "%s: %s", p->control.peer,
                   n->msg[0] ? n->msg : ek_strerror(n->code));
    cluster_fail(p->cluster, EK_ECOMM, why);
}

static bool is_over(struct ek_cluster *c)
{
    pthread_mutex_lock(&c->lock);
    bool over = c->over || c->failed;
    pthread_mutex_unlock(&c->lock);
    return over;
}

static void *read_peer(void *arg)
{
    struct peer *p = arg;
    struct ek_cluster *c = p->cluster;
    struct ek_inbox in = {0};
    struct ek_fault fault = {.msg = ""};
    struct ek_frame f;
    int r = 0;

    while (!is_over(c)) {
        r = ek_link_recv(&p->control, &in, &f, c->stall_us, &fault);
        if (r < 0)
            break;
        if (f.kind == EK_FRAME_FAIL)
            on_fail_frame(p, in.data);
        else if (f.kind == EK_FRAME_PING) /* who does not take it is found by its own silence */
            (void)ek_link_send(&p->control, EK_FRAME_PONG, NULL, 0, c->stall_us);
        else if (f.kind != EK_FRAME_PONG)
            c->on_frame(p, &f, &in);
    }
    if (r == -EBADMSG && fault.msg[0])
        cluster_fail(c, EK_ECOMM, fault.msg);
    else if (r < 0 && !is_over(c))
        cluster_lost(c, p->control.peer, r, false);
    ek_inbox_done(&in);
    return NULL;
}

static void *beat(void *arg)
{
    struct ek_cluster *c = arg;

    pthread_mutex_lock(&c->lock);
    while (!c->stop) {
        const struct timespec next = cluster_in(PULSE_US);
        if (pthread_cond_timedwait(&c->met, &c->lock, &next) != ETIMEDOUT)
            continue;
        pthread_mutex_unlock(&c->lock);
        for (uint32_t i = 0; i < c->peers; i++) /* who does not take it does not answer either */
            (void)ek_link_send(&c->peer[i].control, EK_FRAME_PING, NULL, 0, c->stall_us);
        pthread_mutex_lock(&c->lock);
    }
    pthread_mutex_unlock(&c->lock);
    return NULL;
}

int cluster_start(struct ek_cluster *c)
{
    int r = 0;

    for (uint32_t i = 0; r == 0 && i < c->peers; i++) {
        struct peer *p = &c->peer[i];
        r = -pthread_create(&p->reader, NULL, read_peer, p);
        p->reads = r == 0;
    }
    if (r == 0 && c->p.node == 0) {
        r = -pthread_create(&c->pulse, NULL, beat, c);
        c->pulses = r == 0;
    }
    return r;
}

void cluster_stop(struct ek_cluster *c)
{
    await_told(c);
    pthread_mutex_lock(&c->lock);
    c->over = c->stop = true;
    pthread_cond_broadcast(&c->met);
    pthread_mutex_unlock(&c->lock);
    for (uint32_t i = 0; i < c->peers; i++)
        ek_link_cut(&c->peer[i].control);
    ek_wire_cut(&c->wire);
    if (c->pulses)
        (void)pthread_join(c->pulse, NULL);
    c->pulses = false;
    for (uint32_t i = 0; i < c->peers; i++) {
        if (c->peer[i].reads)
            (void)pthread_join(c->peer[i].reader, NULL);
        c->peer[i].reads = false;
    }
}

/* ---- making and ending ---- */

static void set_wire(struct ek_cluster *c)
{
    c->wire = (struct ek_wire){.node = c->p.node,
                               .nodes = c->p.nodes,
                               .stall_us = c->stall_us, /* of all: who is missing is seen */
                               .failed = on_wire,
                               .ctx = c};
    for (uint32_t i = 0; i < c->p.nodes; i++)
        c->wire.link[i] = i == c->p.node ? NULL : data_of(c, i);
}

int ek_cluster_new(const struct ek_cluster_params *p, struct ek_cluster **ret_cluster,
                   struct ek_fault *fault)
{
    const uint32_t peers = p->node == 0 ? p->nodes - 1 : 1;
    pthread_condattr_t clock;

    if (p->nodes < 2 || p->nodes > EK_NODES_MOST || p->node >= p->nodes)
        return -EINVAL;
    struct ek_cluster *c = calloc(1, sizeof(*c));
    struct peer *peer = calloc(peers, sizeof(*peer));
    if (!c || !peer) {
        free(c);
        free(peer);
        return -ENOMEM;
    }
    c->p = *p;
    c->p.card.node = p->node;
    c->p.card.nodes = p->nodes;
    c->stall_us = p->stall_us;
    c->peers = peers;
    c->peer = peer;
    for (uint32_t i = 0; i < peers; i++) {
        peer[i].cluster = c;
        peer[i].node = p->node == 0 ? i + 1 : 0;
        peer[i].control.fd = peer[i].data.fd = -1;
    }
    for (uint32_t i = 0; i < EK_NODES_MOST; i++)
        c->mesh[i].fd = -1;
    pthread_condattr_init(&clock);
    pthread_condattr_setclock(&clock, CLOCK_MONOTONIC);
    pthread_cond_init(&c->met, &clock);
    pthread_condattr_destroy(&clock);
    pthread_mutex_init(&c->lock, NULL);
    int r = muster(c, fault);
    c->p.key = NULL;
    if (r < 0) {
        ek_cluster_free(c);
        return r;
    }
    set_wire(c);
    if (p->node > 0)
        c->stall_us = (uint64_t)((double)c->stall_us * MORE);
    *ret_cluster = c;
    return 0;
}

void ek_cluster_free(struct ek_cluster *c)
{
    if (!c)
        return;
    cluster_stop(c);
    for (uint32_t i = 0; i < c->peers; i++) {
        ek_link_done(&c->peer[i].control);
        ek_link_done(&c->peer[i].data);
        ek_inbox_done(&c->peer[i].answer[0]);
        ek_inbox_done(&c->peer[i].answer[1]);
    }
    for (uint32_t i = 0; i < EK_NODES_MOST; i++)
        ek_link_done(&c->mesh[i]);
    pthread_cond_destroy(&c->met);
    pthread_mutex_destroy(&c->lock);
    free(c->peer);
    free(c);
}

void ek_cluster_open(struct ek_cluster *c, struct ek_open_params *p)
{
    p->local = c->p.card.ranks / c->p.nodes;
    p->first = c->p.node * p->local;
    p->cluster = c;
    p->wire = &c->wire;
    p->meeting = c->meeting;
    p->stall_us = c->stall_us; /* that of node 0 */
}

void ek_cluster_info(const struct ek_cluster *c, struct ek_device_info *info)
{
    const struct ek_node_card *least = NULL;

    for (uint32_t i = 0; i < c->peers; i++) {
        const struct ek_node_card *card = &c->peer[i].card;
        if (card->memory_bytes < info->memory_bytes &&
            (!least || card->memory_bytes < least->memory_bytes))
            least = card;
        info->free_bytes =
            card->free_bytes < info->free_bytes ? card->free_bytes : info->free_bytes;
    }
    if (!least)
        return;
    const size_t at = strlen(info->note);
    (void)snprintf(info->note + at, sizeof(info->note) - at,
                   "%sThe nodes differ: node %u (%s) has %.1f GiB, node 0 %.1f GiB. Each rank gets "
                   "what the smallest can hold.",
                   at > 0 ? " " : "", least->node, least->host,
                   (double)least->memory_bytes / 0x1p30, (double)info->memory_bytes / 0x1p30);
    info->memory_bytes = least->memory_bytes;
}
