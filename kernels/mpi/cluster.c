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
#include <unistd.h>

#include "common/err.h"
#include "kernels/mpi/cluster_inside.h"
#include "kernels/plugin.h"

#define MODULE "libevenkeel-mpi.so"

/* ---- failing ---- */

void cluster_fail(struct ek_cluster *c, const char *why)
{
    pthread_mutex_lock(&c->lock);
    const bool first = c->why[0] == '\0';
    if (first) {
        (void)snprintf(c->why, sizeof(c->why), "%s", why);
        if (c->p.lost) /* before anybody fails for it and has less to say */
            c->p.lost(c->p.ctx, c->why);
        atomic_store(&c->failed, true);
        ek_wire_cut(&c->wire);
        if (c->group)
            c->each->group_abort(c->group);
    }
    pthread_mutex_unlock(&c->lock);
}

int cluster_lost(struct ek_cluster *c, uint32_t node, int code)
{
    char name[96], why[256];

    if (code == -ECANCELED) /* it has failed */
        return EK_ECOMM;
    if (c->card[node].host[0])
        (void)snprintf(name, sizeof(name), "node %u (%s)", node, c->card[node].host);
    else
        (void)snprintf(name, sizeof(name), "node %u", node);
    if (code == -ETIMEDOUT)
        (void)snprintf(why, sizeof(why),
                       "%s did not answer for %.1f s: it hangs, or the network to it does", name,
                       (double)c->p.stall_us / 1e6);
    else
        (void)snprintf(why, sizeof(why), "MPI cannot reach %s any more: %s", name,
                       ek_strerror(code));
    cluster_fail(c, why);
    return EK_ECOMM;
}

static void on_wire(void *ctx, uint32_t node, int code)
{
    (void)cluster_lost(ctx, node, code);
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
    if (group && atomic_load(&c->failed))
        each->group_abort(group);
    pthread_mutex_unlock(&c->lock);
}

/* ---- messages ---- */

int cluster_send(struct ek_cluster *c, struct ek_mpi_message *m, uint32_t count)
{
    struct ek_mpi_wait wait = {.limit_us = c->p.stall_us, .cut = &c->failed};
    uint32_t which = 0;
    int r = ek_mpi_move(c->p.mpi, c->p.self, m, count, &wait, &which);

    return r < 0 ? cluster_lost(c, m[which].node, r) : 0;
}

int cluster_room(struct cluster_buffer *b, size_t bytes)
{
    void *more = bytes > b->room ? realloc(b->data, bytes) : b->data;

    if (bytes > b->room && !more)
        return -ENOMEM;
    b->data = more;
    b->room = bytes > b->room ? bytes : b->room;
    return 0;
}

int cluster_take(struct ek_cluster *c, uint32_t node, uint32_t tag, struct cluster_buffer *b,
                 uint64_t limit_us)
{
    struct ek_mpi_wait wait = {.limit_us = limit_us, .cut = &c->failed};
    uint32_t which;
    int r;

    while ((r = c->p.mpi->probe(c->p.self, &node, &tag, &b->bytes)) == 0)
        if ((r = ek_mpi_pause(&wait)) < 0)
            return r;
    if (r > 0)
        r = cluster_room(b, b->bytes);
    struct ek_mpi_message m = ek_mpi_recv(node, tag, b->data, b->bytes);
    wait = (struct ek_mpi_wait){.limit_us = c->p.stall_us, .cut = &c->failed};
    return r < 0 ? r : ek_mpi_move(c->p.mpi, c->p.self, &m, 1, &wait, &which);
}

const char *ek_cluster_leaver(struct ek_cluster *c, uint32_t *ret_node)
{
    uint32_t node = EK_MPI_ANY, tag = EK_MPI_LEAVE;
    struct cluster_buffer none = {.data = NULL};
    size_t bytes;

    if (c->p.mpi->probe(c->p.self, &node, &tag, &bytes) != 1 ||
        cluster_take(c, node, tag, &none, c->p.stall_us) < 0)
        return NULL;
    *ret_node = node;
    return c->card[node].host;
}

/* ---- meeting ---- */

/* Node 0 has the cards of all, the others that of node 0, to compare. */
static int exchange_cards(struct ek_cluster *c, struct ek_fault *fault)
{
    const size_t size = sizeof(struct ek_node_card);
    struct ek_mpi_message m[2 * EK_NODES_MOST];
    struct ek_mpi_wait wait = {.limit_us = c->p.wait_us};
    uint32_t count = 0, which = 0;

    for (uint32_t k = c->p.node == 0; k < (c->p.node == 0 ? c->p.nodes : 1); k++) {
        m[count++] = ek_mpi_recv(k, EK_MPI_CARD, &c->card[k], size);
        m[count++] = ek_mpi_send(k, EK_MPI_CARD, &c->p.card, size);
    }
    int r = ek_mpi_move(c->p.mpi, c->p.self, m, count, &wait, &which);
    const uint32_t node = m[which].node;
    if (r == -EPROTO)
        return ek_fault_set(fault, "nnodes",
                            "Node %u is another version of this program: install "
                            "the same on all nodes",
                            node);
    if (r == -ETIMEDOUT)
        ek_fault_write(fault, "nnodes",
                       "Node %u of %u did not say within %.0f s what it is: look at its log, and "
                       "whether MPI uses a network that all machines are in (--mca "
                       "btl_tcp_if_include)",
                       node, c->p.nodes, (double)c->p.wait_us / 1e6);
    else if (r < 0)
        ek_fault_write(fault, "nnodes", "MPI cannot reach node %u of %u: %s", node, c->p.nodes,
                       ek_strerror(r));
    if (r < 0)
        return EK_ECOMM;
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
    if (r < 0) { /* a node that fails ends by itself, and the others with it */
        ek_cluster_free(c);
        return r;
    }
    c->wire = (struct ek_wire){.node = p->node,
                               .nodes = p->nodes,
                               .mpi = c->p.mpi,
                               .self = p->self,
                               .stall_us = p->stall_us,
                               .failed = on_wire,
                               .ctx = c};
    *ret_cluster = c;
    return 0;
}

void cluster_end(struct ek_cluster *c)
{
    ek_wire_done(&c->wire);
    c->over = true;
    c->p.mpi->finish(c->p.self);
}

void ek_cluster_free(struct ek_cluster *c)
{
    if (!c)
        return;
    ek_wire_done(&c->wire);
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
    p->wire = &c->wire;
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
    const struct ek_node_card *least = NULL;

    for (uint32_t k = 1; k < c->p.nodes; k++) {
        const struct ek_node_card *card = &c->card[k];
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
