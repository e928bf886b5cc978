/*
 * How the nodes meet and fail. mpirun has started them and ends them: a node that dies ends all
 * others within a second or two, whatever they do. What is found here is what it cannot see: a node
 * that is there and silent in a step, and nodes that do not fit.
 */
#include "kernels/mpi/cluster.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/mpi/cluster_inside.h"
#include "kernels/plugin.h"

#define MODULE "libevenkeel-mpi.so"

/* ---- failing ---- */

void cluster_fail(struct ek_cluster *c, const char *why)
{
    pthread_mutex_lock(&c->lock);
    if (c->why[0] == '\0') {
        (void)snprintf(c->why, sizeof(c->why), "%s", why);
        if (c->p.lost && c->met > 0) /* before anybody fails for it and has less to say */
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
    char name[96], why[320];

    (void)snprintf(name, sizeof(name), "node %u%s%s%s", node, host[0] ? " (" : "", host,
                   host[0] ? ")" : "");
    if (c->met <= 0)
        c->met = code == -EPROTO ? -EBADMSG : EK_ECOMM;
    if (c->met == -EBADMSG)
        (void)snprintf(why, sizeof(why),
                       "Node %u is another version of this program: install the same on all nodes",
                       node);
    else if (code == -ETIMEDOUT && c->met < 0)
        (void)snprintf(why, sizeof(why),
                       "Node %u of %u did not say within %.0f s what it is: look at its log, and "
                       "whether MPI uses a network that all machines are in (--mca "
                       "btl_tcp_if_include)",
                       node, c->p.nodes, (double)c->p.wait_us / 1e6);
    else if (code == -ETIMEDOUT)
        (void)snprintf(why, sizeof(why),
                       "%s did not answer for %.1f s: it hangs, or the network to it does", name,
                       (double)c->p.stall_us / 1e6);
    else
        (void)snprintf(why, sizeof(why), "MPI cannot reach %s any more: %s", name,
                       ek_strerror(code));
    cluster_fail(c, why);
}

void ek_cluster_why(struct ek_cluster *c, char *ret_text, size_t size)
{
    pthread_mutex_lock(&c->lock);
    (void)snprintf(ret_text, size, "%s", c->why);
    pthread_mutex_unlock(&c->lock);
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

/* What is said of a line of both nodes, and what helps. */
static const struct {
    const char *says, *remedy;
} g_lines[EK_CARD_LINES] = {
    [EK_CARD_PROGRAM] = {"is evenkeel-server", "install the same on all nodes"},
    [EK_CARD_BACKEND] = {"computes on", "give all nodes the same --device"},
    [EK_CARD_ISA] = {"computes with", "give all nodes the --cpu-isa that the oldest offers"},
    [EK_CARD_MODEL] = {"has a model", "give all nodes the same model"},
    [EK_CARD_FORM] = {"keeps it as",
                      "give all nodes the same --dtype, --quantization and --kv-cache-dtype"},
    [EK_CARD_STAGES] = {"has --pipeline-parallel-size", "give all nodes the same"},
    [EK_CARD_RANKS] = {"has ranks by --tensor-parallel-size", "give all nodes the same"},
    [EK_CARD_SHAPE] = {"has a model of shape",
                       "give all nodes the same model, with the same config.json"},
    [EK_CARD_WEIGHTS] = {"has weights",
                         "give all nodes the same model files (sha256sum -c SHA256SUMS)"},
};

int ek_card_check(const struct ek_node_card *mine, const struct ek_node_card *first,
                  struct ek_fault *fault)
{
    for (int i = 0; i < EK_CARD_LINES; i++)
        if (strcmp(mine->line[i], first->line[i]) != 0)
            return ek_fault_set(fault, "nnodes", "Node %u (%s) %s %.80s, node %u (%s) %s %.80s: %s",
                                mine->node, mine->host, g_lines[i].says, mine->line[i], first->node,
                                first->host, g_lines[i].says, first->line[i], g_lines[i].remedy);
    return 0;
}

/* Node 0 has the cards of all, the others that of node 0, to compare. */
static int exchange_cards(struct ek_cluster *c, struct ek_fault *fault)
{
    const uint32_t first = c->p.node == 0, end = first ? c->p.nodes : 1;
    struct ek_mpi_message m[2 * EK_NODES_MOST];
    uint32_t count = 0;

    for (uint32_t k = first; k < end; k++) {
        m[count++] = ek_mpi_flat(k, EK_MPI_CARD, false, &c->card[k], sizeof(c->card[k]));
        m[count++] = ek_mpi_flat(k, EK_MPI_CARD, true, &c->p.card, sizeof(c->p.card));
    }
    c->orders.stall_us = c->p.wait_us;
    if (ek_wire_move(&c->orders, m, count, 0) < 0) {
        ek_fault_write(fault, "nnodes", "%s", c->why);
        return c->met;
    }
    c->orders.stall_us = c->p.stall_us;
    c->met = 1;
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
    c->card[node] = c->p.card;
    c->orders = c->sums = (struct ek_wire){.node = node,
                                           .nodes = nodes,
                                           .mpi = c->p.mpi,
                                           .self = c->p.self,
                                           .stall_us = c->p.stall_us,
                                           .failed = cluster_lost,
                                           .ctx = c};
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
    free(c->packed.data);
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

bool ek_cluster_leaves_machine(const struct ek_cluster *c)
{
    for (uint32_t k = 0; k < c->p.nodes; k++)
        if (c->card[k].host[0] && strcmp(c->card[k].host, c->p.card.host) != 0)
            return true;
    return false;
}

void ek_cluster_info(const struct ek_cluster *c, struct ek_device_info *info)
{
    const struct ek_node_card *least = &c->card[0];

    for (uint32_t k = 1; k < c->p.nodes; k++) {
        const struct ek_node_card *card = &c->card[k];
        least = card->memory_bytes < least->memory_bytes ? card : least;
        if (card->free_bytes < info->free_bytes)
            info->free_bytes = card->free_bytes;
    }
    if (least->memory_bytes >= info->memory_bytes)
        return;
    const size_t at = strlen(info->note);
    (void)snprintf(info->note + at, sizeof(info->note) - at,
                   "%sThe nodes differ: node %u (%s) has %.1f GiB, node 0 %.1f GiB. Each rank gets "
                   "what the smallest can hold.",
                   at > 0 ? " " : "", least->node, least->host,
                   (double)least->memory_bytes / 0x1p30, (double)info->memory_bytes / 0x1p30);
    info->memory_bytes = least->memory_bytes;
}
