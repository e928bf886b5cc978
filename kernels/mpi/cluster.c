/*
 * How the nodes meet and fail. mpirun has started them and ends them: a node that dies ends all
 * others within a second or two, whatever they do. What is found here is what it cannot see: a node
 * that is there and silent in a step, and nodes that do not fit.
 */
#include "kernels/mpi/cluster.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/mpi/cluster_inside.h"
#include "kernels/plugin.h"

#define MODULE "libevenkeel-mpi.so"

/* ---- failing ---- */

void cluster_fail(struct ek_cluster *c, const char *form, ...)
{
    va_list args;

    pthread_mutex_lock(&c->lock);
    if (c->why[0] == '\0') {
        va_start(args, form);
        (void)vsnprintf(c->why, sizeof(c->why), form, args);
        va_end(args);
        if (c->p.lost) /* before anybody fails for it and has less to say */
            c->p.lost(c->p.ctx, c->why);
        ek_wire_cut(&c->orders);
        ek_wire_cut(&c->sums);
        if (c->group)
            c->each->group_abort(c->group);
    }
    pthread_mutex_unlock(&c->lock);
}

void cluster_lost(void *cluster, uint32_t node, int code)
{
    struct ek_cluster *c = cluster;
    const char *host = c->card[node].host;

    if (code == -ETIMEDOUT)
        cluster_fail(c,
                     "node %u (%s) did not answer for %.1f s: it hangs, or the network to it does",
                     node, host, (double)c->p.stall_us / 1e6);
    else
        cluster_fail(c, "MPI cannot reach node %u (%s) any more: %s", node, host,
                     ek_strerror(code));
}

void ek_cluster_abort(struct ek_cluster *c, int code)
{
    if (c && !c->over)
        c->p.mpi->abort(c->p.self, code);
}

void cluster_group(struct ek_cluster *c, const struct ek_backend *each, struct ek_group *group)
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

struct meeting {
    const struct ek_cluster_params *p;
    struct ek_fault *fault;
    int code;
};

static void meeting_failed(void *ctx, uint32_t node, int code)
{
    struct meeting *m = ctx;

    m->code = EK_ECOMM;
    if (code == -EPROTO)
        m->code = ek_fault_set(m->fault, "nnodes",
                               "Node %u is another version of this program: install the same on "
                               "all nodes",
                               node);
    else if (code == -ETIMEDOUT)
        ek_fault_write(m->fault, "nnodes",
                       "Node %u of %u did not say within %.0f s what it is: look at its log, and "
                       "whether MPI uses a network that all machines are in (--mca "
                       "btl_tcp_if_include)",
                       node, m->p->nodes, (double)m->p->wait_us / 1e6);
    else
        ek_fault_write(m->fault, "nnodes", "MPI cannot reach node %u any more: %s", node,
                       ek_strerror(code));
}

/* All have the cards of all, and each holds its own against that of node 0. */
static int exchange_cards(struct ek_cluster *c, struct ek_fault *fault)
{
    struct meeting m = {.p = &c->p, .fault = fault};

    c->orders = (struct ek_wire){.node = c->p.node,
                                 .nodes = c->p.nodes,
                                 .mpi = c->p.mpi,
                                 .self = c->p.self,
                                 .stall_us = c->p.wait_us,
                                 .failed = meeting_failed,
                                 .ctx = &m};
    c->card[c->p.node] = c->p.card;
    if (ek_wire_share(&c->orders, c->card, sizeof(c->card[0]) / EK_WIRE_WORD) < 0)
        return m.code;
    c->orders.stall_us = c->p.stall_us;
    c->orders.failed = cluster_lost;
    c->orders.ctx = c;
    c->sums = c->orders;
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
    free(c->in.data);
    free(c->asked[0].data);
    free(c->asked[1].data);
    free(c);
}

/* ---- what the others have ---- */

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
