/*
 * The messages of ek_wire, called by the thread of a node that computes (kernels/cpu/span.c) and by
 * the group of CUDA ranks (kernels/cuda/group.c). All calls but ek_wire_tell() build a list of
 * messages and wait for all of them in ek_mpi_move(). The first failure is reported once, with the
 * node, and cuts the wire; from then on each call returns EK_ECOMM.
 */
#include "kernels/mpi/wire.h"

#include <errno.h>

#include "common/err.h"

void ek_wire_cut(struct ek_wire *w)
{
    atomic_store(&w->cut, true);
}

static int wire_fail(struct ek_wire *w, uint32_t node, int code)
{
    if (code != -ECANCELED && !atomic_load(&w->cut) && w->failed)
        w->failed(w->ctx, node, code);
    ek_wire_cut(w);
    return EK_ECOMM;
}

static int move(struct ek_wire *w, struct ek_mpi_message *m, uint32_t count, uint64_t late_us)
{
    struct ek_mpi_wait wait = {.limit_us = w->stall_us > 0 ? w->stall_us + late_us : 0,
                               .cut = &w->cut};
    uint32_t which = 0;

    if (atomic_load(&w->cut))
        return EK_ECOMM;
    int r = ek_mpi_move(w->mpi, w->self, m, count, &wait, &which);
    return r < 0 ? wire_fail(w, m[which].node, r) : 0;
}

/* ---- all nodes of a circle ---- */

/* What goes between this node and the k-th of the circle. */
struct pieces {
    struct ek_mpi_message m[2 * EK_NODES_MOST];
    uint32_t count;
};

static void mpi_wire_add(struct pieces *p, bool out, uint32_t node, float *at, uint32_t rows,
                         size_t width, size_t stride)
{
    p->m[p->count++] = (struct ek_mpi_message){.node = node,
                                               .tag = EK_MPI_FLOATS,
                                               .out = out,
                                               .data = at,
                                               .rows = rows,
                                               .width = width * sizeof(float),
                                               .stride = stride * sizeof(float)};
}

int ek_wire_scatter(struct ek_wire *w, float *block, uint32_t parts, size_t each)
{
    const uint32_t me = w->node - w->first;
    const size_t mine = ek_wire_slice(w, each, me), end = ek_wire_slice(w, each, me + 1);
    struct pieces p = {.count = 0};

    for (uint32_t k = 0; k < w->count; k++) {
        const size_t theirs = ek_wire_slice(w, each, k);
        if (k == me)
            continue;
        mpi_wire_add(&p, false, w->first + k, block + k * parts * each + mine, parts, end - mine,
                     each);
        mpi_wire_add(&p, true, w->first + k, block + me * parts * each + theirs, parts,
                     ek_wire_slice(w, each, k + 1) - theirs, each);
    }
    return move(w, p.m, p.count, 0);
}

int ek_wire_collect(struct ek_wire *w, float *sums, size_t each)
{
    const uint32_t me = w->node - w->first;
    const size_t mine = ek_wire_slice(w, each, me), end = ek_wire_slice(w, each, me + 1);
    struct pieces p = {.count = 0};

    for (uint32_t k = 0; k < w->count; k++) {
        const size_t theirs = ek_wire_slice(w, each, k);
        if (k == me)
            continue;
        mpi_wire_add(&p, false, w->first + k, sums + theirs, 1,
                     ek_wire_slice(w, each, k + 1) - theirs, each);
        mpi_wire_add(&p, true, w->first + k, sums + mine, 1, end - mine, each);
    }
    return move(w, p.m, p.count, 0);
}

int ek_wire_share(struct ek_wire *w, float *block, size_t each)
{
    if (w->count == 0)
        w->count = w->nodes;
    return ek_wire_collect(w, block, each * w->count); /* a node's part is its slice */
}

/* ---- from one node to another ---- */

static struct ek_mpi_message message_of(uint32_t node, const struct ek_wire_rows *x, bool out)
{
    return (struct ek_mpi_message){.node = node,
                                   .tag = EK_MPI_ROWS,
                                   .out = out,
                                   .data = x->data,
                                   .rows = x->rows,
                                   .width = x->width,
                                   .stride = x->stride};
}

int ek_wire_send(struct ek_wire *w, uint32_t node, const struct ek_wire_rows *x)
{
    struct ek_mpi_message m = message_of(node, x, true);
    return move(w, &m, 1, 0);
}

int ek_wire_recv(struct ek_wire *w, uint32_t node, const struct ek_wire_rows *x, uint64_t late_us)
{
    struct ek_mpi_message m = message_of(node, x, false);
    return move(w, &m, 1, late_us);
}

int ek_wire_tell(struct ek_wire *w, uint32_t node, const void *data, size_t bytes)
{
    const struct ek_mpi_message m = ek_mpi_send(node, EK_MPI_ROWS, data, bytes);
    struct ek_mpi_wait wait = {.limit_us = w->stall_us, .cut = &w->cut};

    if (atomic_load(&w->cut))
        return EK_ECOMM;
    int r = ek_mpi_tell(w->mpi, w->self, &w->told, &m, &wait);
    return r < 0 ? wire_fail(w, node, r) : 0;
}

void ek_wire_done(struct ek_wire *w)
{
    ek_mpi_forget(w->mpi, w->self, &w->told);
}

bool ek_wire_waiting(const struct ek_wire *w, uint32_t node)
{
    uint32_t tag = EK_MPI_ROWS;
    size_t bytes;

    return w->mpi->probe(w->self, &node, &tag, &bytes) == 1;
}
