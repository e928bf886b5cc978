/*
 * Nodes that compute one model: how they meet, what node 0 asks of the others and what these do,
 * and how all of them fail. mpirun has started them and ends them: a node that dies ends all others
 * within a second or two, whatever they do. What is found here is what it cannot see: a node that
 * is there and silent in a step, and nodes that do not fit. A failure is stored once, by
 * cluster_fail(); no thread waits after it.
 *
 * Node 0: its device of ranks (ranks.c) has each of the others as one rank more (struct ek_others),
 * whose calls are orders. An order goes to all nodes at once and is waited for together; a step
 * goes packed, and is sampled by the order behind its own. Of each node comes an answer: a reply to
 * LOAD and KV, a result (struct ek_result) of each step that was sampled, which is that of the
 * node's own device of ranks: no token leaves on which the nodes do not agree. The node with the
 * first rank of the last stage tells its results whole, unless that is node 0; the others tell a
 * sum of what they sampled, or that they did their part. A step's own ranks have landed long before
 * other nodes are waited for; who asks again after a timeout goes on with the same wait.
 *
 * The others: one thread takes orders, which only put steps in the ranks' queues and do not wait,
 * and between them waits a moment for the oldest step and says what was sampled. Steps are taken,
 * sampled and landed in the order of their ids, so that three counts tell where each is:
 * landed <= sampled <= taken <= landed + 2. What is said is not waited for, since node 0 may be
 * waiting for an order of its own to be taken.
 */
#include "kernels/mpi/cluster.h"

#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/mpi/wire.h"
#include "kernels/plugin.h"
#include "kernels/ranks.h"
#include "kernels/ranks_inside.h"

#define MODULE    "libevenkeel-mpi.so"
#define MOMENT_US 50u /* of a wait for a step, between two looks for orders */

enum cluster_order {
    ORDER_LOAD = EK_MPI_ORDER, /* struct cluster_load: opens the device, too */
    ORDER_KV,                  /* struct ek_kv_params: the first opens the pool, others resize it */
    ORDER_STEP,                /* struct ek_step, packed */
    ORDER_SAMPLE,              /* struct ek_masks, or nothing: of the oldest step */
    ORDER_BYE,                 /* int32_t exit code of node 0 */
};

struct cluster_load {
    uint8_t meeting[EK_MEETING_BYTES];
    struct ek_plan_request plan; /* but its graph, which each node has */
};

struct cluster_reply {
    int32_t code;
    uint64_t room_bytes; /* of ORDER_LOAD: ek_device_stats.room_bytes */
    struct ek_fault fault;
};

struct ek_cluster {
    struct ek_cluster_params p;
    struct ek_node_card card[EK_NODES_MOST]; /* of all */
    struct ek_wire orders, sums; /* the first is cut when the group fails, the other also when ranks
                                    do */
    bool met;                    /* all have the cards of all; */
    int code;                    /* else why not */
    bool over;                   /* all has been said and taken: it ends as it should */
    uint8_t meeting[EK_MEETING_BYTES];
    struct ek_wire_buffer in;        /* what came last */
    struct cluster_flight {          /* steps under way, in turn */
        struct ek_wire_buffer step;  /* packed */
        struct ek_wire_buffer masks; /* the others */
        uint64_t until_us;           /* node 0: so long its results are waited for, 0 = not yet */
    } flight[2];
    /* Of the others: */
    struct ek_follow_params f;
    struct ek_device *device;
    struct ek_plan_request plan;
    struct ek_kv_params kv;          /* 0 blocks: not open yet */
    struct ek_wire_buffer result;    /* of a step, before it is said */
    uint32_t taken, sampled, landed; /* steps */
    /* Of all nodes: */
    pthread_mutex_t lock;          /* of what follows */
    char why[480];                 /* the first failure; before the wires are cut for it */
    const struct ek_backend *each; /* of the ranks here, NULL = none: */
    struct ek_group *group;        /* whose waits a failure ends */
};

/* The node with the first rank of the last stage, which tells results whole. */
static uint32_t teller_of(const struct ek_cluster *c)
{
    const struct ek_node_card *all = &c->p.card;
    return (all->ranks - all->ranks / all->stages) / (all->ranks / c->p.nodes);
}

/* ---- failing ---- */

/* The first failure counts: no thread waits any more. */
static void cluster_fail(struct ek_cluster *c, const char *form, ...)
    __attribute__((format(printf, 2, 3)));
static void cluster_fail(struct ek_cluster *c, const char *form, ...)
{
    va_list args;

    pthread_mutex_lock(&c->lock);
    if (c->why[0] == '\0') {
        va_start(args, form);
        (void)vsnprintf(c->why, sizeof(c->why), form, args);
        va_end(args);
        if (c->p.lost && c->met) /* before anybody fails for it and has less to say */
            c->p.lost(c->p.ctx, c->why);
        ek_wire_cut(&c->orders);
        ek_wire_cut(&c->sums);
        if (c->group)
            c->each->group_abort(c->group);
    }
    pthread_mutex_unlock(&c->lock);
}

/* Why the group fails by a node that is silent or gone, by a code of the table. */
static void cluster_lost(void *cluster, uint32_t node, int code)
{
    struct ek_cluster *c = cluster;
    const char *host = c->met ? c->card[node].host : "host unknown";

    if (!c->met)
        c->code = code == -EPROTO ? -EBADMSG : EK_ECOMM;
    if (code == -ETIMEDOUT && c->met)
        cluster_fail(c,
                     "node %u (%s) did not answer for %.1f s: it hangs, or the network to it does",
                     node, host, (double)c->p.stall_us / 1e6);
    else if (code == -ETIMEDOUT)
        cluster_fail(c,
                     "Node %u of %u did not say within %.0f s what it is: look at its log, and "
                     "whether MPI uses a network that all machines are in (--mca "
                     "btl_tcp_if_include)",
                     node, c->p.nodes, (double)c->p.wait_us / 1e6);
    else if (code == -EPROTO && !c->met)
        cluster_fail(c, "Node %u is another version of this program: install the same on all nodes",
                     node);
    else
        cluster_fail(c, "MPI cannot reach node %u (%s) any more: %s", node, host,
                     ek_strerror(code));
}

void ek_cluster_abort(struct ek_cluster *c, int code)
{
    if (c && !c->over)
        c->p.mpi->abort(c->p.self, code);
}

static void cluster_group(struct ek_cluster *c, const struct ek_backend *each,
                          struct ek_group *group)
{
    pthread_mutex_lock(&c->lock);
    c->each = each;
    c->group = group;
    if (group && c->why[0])
        each->group_abort(group);
    pthread_mutex_unlock(&c->lock);
}

/* ---- meeting ---- */

int ek_card_check(const struct ek_node_card *mine, const struct ek_node_card *first,
                  struct ek_fault *fault)
{
    for (uint32_t i = 0; i < mine->lines; i++)
        if (strcmp(mine->line[i].says, first->line[i].says) != 0)
            return ek_fault_set(fault, "nnodes", "Node %u (%s) %s, node %u (%s) %s: %s", mine->node,
                                mine->host, mine->line[i].says, first->node, first->host,
                                first->line[i].says, mine->line[i].remedy);
    return 0;
}

/* All have the cards of all, and each holds its own against that of node 0. */
static int exchange_cards(struct ek_cluster *c, struct ek_fault *fault)
{
    c->orders = (struct ek_wire){.node = c->p.node,
                                 .nodes = c->p.nodes,
                                 .mpi = c->p.mpi,
                                 .self = c->p.self,
                                 .stall_us = c->p.wait_us,
                                 .failed = cluster_lost,
                                 .ctx = c};
    c->card[c->p.node] = c->p.card;
    if (ek_wire_share(&c->orders, c->card, sizeof(c->card[0]) / EK_WIRE_WORD) < 0) {
        ek_fault_write(fault, "nnodes", "%s", c->why);
        return c->code;
    }
    c->orders.stall_us = c->p.stall_us;
    c->sums = c->orders;
    c->met = true;
    return ek_card_check(&c->p.card, &c->card[0], fault);
}

/* libevenkeel-mpi.so beside the program or in its library folder. */
static int load_mpi(const struct ek_mpi **ret_mpi, struct ek_fault *fault)
{
    char why[256] = "";
    void *handle = ek_plugin_open(MODULE, why, sizeof(why));
    const struct ek_mpi *mpi = handle ? dlsym(handle, "evenkeel_mpi") : NULL;

    if (mpi && mpi->abi == EK_MPI_ABI) {
        *ret_mpi = mpi;
        return 0;
    }
    ek_fault_write(fault, "nnodes",
                   "Several machines need " MODULE ", which %s%s: install the package "
                   "evenkeel-backend-mpi on all of them, with Open MPI",
                   mpi ? "is of another version than this program" : "cannot be loaded: ", why);
    return -ENOTSUP;
}

static int cluster_meet(struct ek_cluster *c, struct ek_fault *fault)
{
    uint32_t node, nodes;
    char why[128] = "MPI could not start";
    int r = c->p.mpi ? 0 : load_mpi(&c->p.mpi, fault);

    if (r < 0)
        return r;
    if (c->p.mpi->start(c->p.self, &node, &nodes, why, sizeof(why)) < 0) {
        ek_fault_write(fault, "nnodes", "%s", why);
        return EK_ECOMM;
    }
    if (node != c->p.node || nodes != c->p.nodes)
        return ek_fault_set(fault, "nnodes",
                            "This was started as node %u of %u, and MPI says node %u of %u: start "
                            "all nodes with one mpirun, or srun --mpi=pmix",
                            c->p.node, c->p.nodes, node, nodes);
    c->p.card.node = node;
    return exchange_cards(c, fault);
}

int ek_cluster_new(const struct ek_cluster_params *p, struct ek_cluster **ret_cluster,
                   struct ek_fault *fault)
{
    if (p->nodes < 2 || p->nodes > EK_NODES_MOST || p->node >= p->nodes)
        return -EINVAL;
    struct ek_cluster *c = calloc(1, sizeof(*c));
    if (!c)
        return -ENOMEM;
    c->p = *p;
    pthread_mutex_init(&c->lock, NULL);
    int r = cluster_meet(c, fault);
    if (r < 0) /* a node that fails ends by itself, and the others with it */
        ek_cluster_free(c);
    else
        *ret_cluster = c;
    return r;
}

void ek_cluster_free(struct ek_cluster *c)
{
    if (!c)
        return;
    if (c->over)
        c->p.mpi->finish(c->p.self);
    ek_wire_done(&c->orders);
    ek_wire_done(&c->sums);
    pthread_mutex_destroy(&c->lock);
    for (int i = 0; i < 2; i++) {
        free(c->flight[i].step.data);
        free(c->flight[i].masks.data);
    }
    free(c->result.data);
    free(c->in.data);
    free(c);
}

/* ---- node 0: orders ---- */

/* The body to the nodes from `from` on, nothing to those before it. */
static int lead_order(struct ek_cluster *c, uint32_t order, const void *body, size_t bytes,
                      uint32_t from)
{
    struct ek_mpi_message m[EK_NODES_MOST];

    for (uint32_t k = 1; k < c->p.nodes; k++)
        m[k - 1] = ek_mpi_flat(k, order, true, body, k < from ? 0 : bytes);
    return ek_wire_move(&c->orders, m, c->p.nodes - 1, 0);
}

static int lead_load(struct ek_cluster *c, const struct ek_plan_request *q)
{
    struct cluster_load o = {.plan = *q};

    o.plan.graph = NULL;
    memcpy(o.meeting, c->meeting, sizeof(o.meeting));
    return lead_order(c, ORDER_LOAD, &o, sizeof(o), 0);
}

static int lead_kv(struct ek_cluster *c, const struct ek_kv_params *p)
{
    return lead_order(c, ORDER_KV, p, sizeof(*p), 0);
}

/* That may be a long time: mpirun ends this node where another one dies. */
static int lead_settle(struct ek_cluster *c, uint64_t *ret_room_bytes, struct ek_fault *fault)
{
    int first = 0;

    for (uint32_t k = 1; k < c->p.nodes; k++) {
        int r = ek_wire_take(&c->orders, k, EK_MPI_REPLY, &c->in, EK_WIRE_EVER);
        if (r < 0)
            return r;
        const struct cluster_reply *reply = c->in.data;
        if (reply->room_bytes > 0 && reply->room_bytes < *ret_room_bytes)
            *ret_room_bytes = reply->room_bytes;
        if (reply->code == 0 || first < 0)
            continue;
        first = reply->code;
        ek_fault_write(fault, reply->fault.field, "node %u (%s): %.380s", k, c->card[k].host,
                       reply->fault.msg[0] ? reply->fault.msg : ek_strerror(reply->code));
    }
    return first;
}

/* ---- node 0: steps ---- */

static int lead_forward(struct ek_cluster *c, const struct ek_step *step)
{
    struct cluster_flight *flight = &c->flight[step->id & 1];
    int r = ek_wire_room(&flight->step, step->bytes);

    if (r < 0)
        return r;
    struct ek_step *packed = flight->step.data;
    ek_step_pack(step, packed);
    flight->until_us = 0;
    return lead_order(c, ORDER_STEP, packed, packed->bytes, 0);
}

/* Of the oldest step that was not. */
static int lead_sample(struct ek_cluster *c, const struct ek_masks *masks)
{
    return lead_order(c, ORDER_SAMPLE, masks, masks ? ek_masks_bytes(masks) : 0, teller_of(c));
}

static void lead_blame(struct ek_cluster *c, uint32_t node, int code, uint64_t step)
{
    const char *host = c->card[node].host;

    if (code == -ETIMEDOUT && node > 0)
        cluster_lost(c, node, code);
    else if (code == -EBADMSG)
        cluster_fail(c,
                     "node %u (%s) sampled other tokens than node %u in step %llu: its memory, "
                     "processor or network is faulty",
                     node, host, teller_of(c), (unsigned long long)step);
    else
        cluster_fail(c, "A rank of node %u (%s) failed: %s", node, host, ek_strerror(code));
}

/* Whether it has what the step asks for; others than the one that tells it send a sum alone. */
static bool lead_is_whole(const struct ek_cluster *c, uint32_t node, const struct ek_result *from)
{
    const struct ek_step *asked = c->flight[from->step & 1].step.data;
    uint32_t scores = 0, hiddens = 0;

    for (uint32_t i = 0; i < asked->seqs; i++) {
        scores += ek_step_seqs(asked)[i].scores;
        hiddens += ek_step_seqs(asked)[i].hidden > 0;
    }
    return from->error < 0 || node != teller_of(c) ||
           (from->seqs == asked->seqs && from->scores == scores && from->hiddens == hiddens);
}

static int lead_wait(struct ek_cluster *c, uint32_t node, uint64_t step,
                     struct ek_result *ret_result, size_t bytes, uint64_t timeout_us)
{
    uint64_t *until_us = &c->flight[step & 1].until_us;

    /* Behind what the ranks of the stages wait for one another (span.c), and time to end for it. */
    if (timeout_us > 0 && *until_us == 0 && c->p.stall_us > 0)
        *until_us = ek_now_us() + c->p.stall_us + c->p.stall_us / 4;
    int r = ek_wire_take(&c->orders, node, EK_MPI_DONE, &c->in, timeout_us);
    if (r == -ETIMEDOUT && *until_us > 0 && ek_now_us() >= *until_us) {
        cluster_lost(c, node, r);
        r = EK_ECOMM;
    }
    if (r < 0)
        return r;
    const struct ek_result *from = c->in.data;
    if (c->in.bytes > bytes || ek_result_check(from, c->in.bytes) < 0 || from->step != step ||
        !lead_is_whole(c, node, from)) {
        lead_blame(c, node, -EPROTO, step);
        return EK_ECOMM;
    }
    memcpy(ret_result, from, c->in.bytes);
    if (ret_result->error < 0) /* it ends, and with it all */
        lead_blame(c, node, ret_result->error, step);
    return 0;
}

/* ---- node 0: ending ---- */

uint32_t ek_cluster_leaver(struct ek_cluster *c)
{
    struct ek_wire_buffer in = {.data = NULL}; /* nothing lies in it */

    return ek_wire_take(&c->orders, EK_MPI_ANY, EK_MPI_LEAVE, &in, 0) == 0 ? in.node : 0;
}

void ek_cluster_bye(struct ek_cluster *c, int code)
{
    const int32_t body = code;

    if (c)
        c->over = lead_order(c, ORDER_BYE, &body, sizeof(body), 0) == 0;
}

static const struct ek_others cluster_others = {.group = cluster_group,
                                                .load = lead_load,
                                                .kv = lead_kv,
                                                .settle = lead_settle,
                                                .forward = lead_forward,
                                                .sample = lead_sample,
                                                .wait = lead_wait,
                                                .blame = lead_blame};

void ek_cluster_open(struct ek_cluster *c, struct ek_open_params *p)
{
    p->local = c->p.card.ranks / c->p.nodes;
    p->first = c->p.node * p->local;
    p->cluster = c;
    p->others = &cluster_others;
    p->wire = &c->sums;
    p->meeting = c->meeting;
}

const struct ek_node_card *ek_cluster_cards(const struct ek_cluster *c)
{
    return c->card;
}

/* ---- the others: steps ---- */

/* Keeps what came for as long as its step is under way. */
static const struct ek_wire_buffer *keep(struct ek_cluster *c, struct ek_wire_buffer *as)
{
    const struct ek_wire_buffer before = *as;

    *as = c->in;
    c->in = before;
    return as;
}

static int take_step(struct ek_cluster *c)
{
    if (c->taken - c->landed == 2)
        return -EBADMSG;
    const struct ek_wire_buffer *in = keep(c, &c->flight[c->taken++ % 2].step);
    int r = ek_step_check(in->data, in->bytes, &c->plan.ceiling, c->f.graph->vocab, c->kv.blocks,
                          c->plan.block_size, c->kv.states);
    return r < 0 ? r : c->f.backend->forward(c->device, in->data);
}

static int take_sample(struct ek_cluster *c)
{
    if (c->sampled == c->taken)
        return -EBADMSG;
    struct cluster_flight *flight = &c->flight[c->sampled++ % 2];
    const struct ek_wire_buffer *in = keep(c, &flight->masks);
    if (in->bytes > 0 &&
        (in->bytes < sizeof(struct ek_masks) || in->bytes != ek_masks_bytes(in->data)))
        return -EBADMSG;
    return c->f.backend->sample(c->device, flight->step.data, in->bytes > 0 ? in->data : NULL);
}

/* Waits a moment for the oldest step; what is here after a failure does not fit to the others. */
static int land(struct ek_cluster *c)
{
    const struct ek_step *step = c->flight[c->landed % 2].step.data;
    struct ek_result *result = c->result.data;

    int r = c->f.backend->wait(c->device, step->id, result, c->result.room, MOMENT_US);
    if (r == -ETIMEDOUT)
        return 0;
    const int error = r < 0 ? r : result->error;
    if (error < 0)
        *result = (struct ek_result){.step = step->id, .error = error};
    else if (teller_of(c) != c->p.node)
        *result = (struct ek_result){.step = step->id, .sum = ek_result_sum(result)};
    c->landed++;
    r = ek_wire_tell(&c->orders, 0, EK_MPI_DONE, result, ek_result_own_bytes(result));
    return r < 0 ? r : error;
}

/* ---- the others: orders ---- */

static int obey_load(struct ek_cluster *c, struct ek_fault *fault)
{
    const struct cluster_load *o = c->in.data;

    c->plan = o->plan;
    c->plan.graph = c->f.graph;
    memcpy(c->meeting, o->meeting, sizeof(c->meeting));
    int r = ek_wire_room(&c->result, ranks_result_bytes(&c->plan));
    if (r == 0)
        r = c->f.backend->open(&c->f.open, &c->device, fault);
    if (r < 0)
        return r;
    c->f.loading(c->f.ctx, c->plan.max_model_len);
    return c->f.backend->load(c->device, &c->plan, c->f.files, NULL, NULL, fault);
}

static int obey_kv(struct ek_cluster *c)
{
    const struct ek_kv_params *kv = c->in.data;
    const bool opens = c->kv.blocks == 0;
    int r = opens ? c->f.backend->kv_open(c->device, kv)
                  : c->f.backend->kv_resize(c->device, kv->blocks);

    if (r < 0)
        return r;
    c->kv = *kv;
    if (opens)
        c->f.ready(c->f.ctx, kv->blocks);
    return 0;
}

/* A pool that cannot grow is node 0's to deal with; what else fails ends this node. */
static int follow_reply(struct ek_cluster *c, struct ek_fault *fault)
{
    const bool loads = c->in.tag == ORDER_LOAD, resizes = c->kv.blocks > 0;
    struct cluster_reply n = {.code = loads ? obey_load(c, fault) : obey_kv(c)};

    n.fault = *fault;
    if (loads && n.code == 0) {
        struct ek_device_stats now;
        c->f.backend->stats(c->device, &now);
        n.room_bytes = now.room_bytes;
    }
    int r = ek_wire_tell(&c->orders, 0, EK_MPI_REPLY, &n, sizeof(n));
    return r < 0 || resizes ? r : n.code;
}

/* 1: node 0 says that all end. */
static int obey(struct ek_cluster *c, struct ek_fault *fault)
{
    switch (c->in.tag) {
    case ORDER_LOAD:
    case ORDER_KV: return follow_reply(c, fault);
    case ORDER_STEP: return take_step(c);
    case ORDER_SAMPLE: return take_sample(c);
    case ORDER_BYE: return 1;
    default: return -EBADMSG; /* no order of this version */
    }
}

int ek_cluster_follow(struct ek_cluster *c, const struct ek_follow_params *p, int *ret_code,
                      struct ek_fault *fault)
{
    int r = 0;

    c->f = *p;
    ek_cluster_open(c, &c->f.open);
    while (r == 0) {
        const bool idle = c->landed == c->sampled;
        r = ek_wire_take(&c->orders, 0, EK_MPI_ORDER, &c->in, idle ? EK_WIRE_EVER : 0);
        r = r == -ETIMEDOUT ? land(c) : r < 0 ? r : obey(c, fault);
    }
    if (r < 0 && atomic_load(&c->orders.cut))
        (void)snprintf(fault->msg, sizeof(fault->msg), "%s", c->why);
    p->backend->close(c->device);
    c->over = r > 0;
    if (r < 0)
        return r;
    *ret_code = *(const int32_t *)c->in.data;
    return 0;
}

void ek_cluster_leave(struct ek_cluster *c)
{
    struct ek_mpi_message m = ek_mpi_flat(0, EK_MPI_LEAVE, true, NULL, 0);

    (void)ek_wire_move(&c->orders, &m, 1, 0);
}
