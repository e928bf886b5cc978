#include "kernels/nodes/wire.h"

#include <assert.h>
#include <errno.h>

#include "common/err.h"

#define TURN_MAGIC 0x4e525554u
#define SPINS      20 /* some 20 us: other ranks are at the same place, or somebody needs the core */
#define ROWS_MOST  256 /* of a matrix, in one list of pieces */

/* Before the data of each call: that both sides are at the same one. */
struct turn {
    uint32_t magic, node;
    uint64_t turn, bytes;
};

void ek_wire_cut(struct ek_wire *w)
{
    atomic_store(&w->cut, true);
    for (uint32_t i = 0; i < w->nodes; i++)
        if (w->link[i])
            ek_link_cut(w->link[i]);
}

static int fail(struct ek_wire *w, uint32_t node, int code)
{
    if (!atomic_load(&w->cut) && w->failed)
        w->failed(w->ctx, node, code);
    ek_wire_cut(w);
    return EK_ECOMM;
}

/* Where in the call and with whom: the heads of its messages. */
static struct turn next_out(struct ek_wire *w, uint32_t node, size_t bytes)
{
    return (struct turn){TURN_MAGIC, w->node, ++w->sent[node], bytes};
}

static bool expected(struct ek_wire *w, uint32_t node, const struct turn *t, size_t bytes)
{
    return t->magic == TURN_MAGIC && t->node == node && t->turn == ++w->taken[node] &&
           t->bytes == bytes;
}

/* ---- all nodes of a circle ---- */

/* Messages to and from the others of a circle, a head and some pieces each. */
struct message {
    struct turn mine, theirs;
    struct iovec *out, *in; /* the first one is the head */
    size_t out_bytes, in_bytes;
    uint32_t outs, ins;
};

/* No more ranks than EK_MOST_RANKS are in a circle, and no more nodes. */
#define PIECES_MOST (EK_NODES_MOST + EK_MOST_RANKS)

static void add_out(struct message *m, float *at, size_t floats)
{
    m->out[m->outs++] = (struct iovec){at, floats * sizeof(float)};
    m->out_bytes += floats * sizeof(float);
}

static void add_in(struct message *m, float *at, size_t floats)
{
    m->in[m->ins++] = (struct iovec){at, floats * sizeof(float)};
    m->in_bytes += floats * sizeof(float);
}

/* `m` has the messages of each node of the circle, counted from its first. */
static int move_all(struct ek_wire *w, struct message *m)
{
    struct ek_link *link[EK_NODES_MOST];
    struct ek_transfer t[EK_NODES_MOST];
    uint32_t k_of[EK_NODES_MOST] = {0}, n = 0, which = 0;

    for (uint32_t k = 0; k < w->count; k++) {
        if (w->first + k == w->node)
            continue;
        m[k].mine = next_out(w, w->first + k, m[k].out_bytes);
        link[n] = w->link[w->first + k];
        t[n] = (struct ek_transfer){
            .out = m[k].out, .outs = m[k].outs, .in = m[k].in, .ins = m[k].ins, .spins = SPINS};
        k_of[n++] = k;
    }
    int r = n > 0 ? ek_links_move(link, t, n, w->stall_us, &which) : 0;
    for (uint32_t i = 0; r == 0 && i < n; i++) {
        const struct message *one = &m[k_of[i]];
        if (!expected(w, w->first + k_of[i], &one->theirs, one->in_bytes)) {
            which = i;
            r = -EPROTO;
        }
    }
    return r < 0 ? fail(w, w->first + k_of[which], r) : 0;
}

/* The pieces for a node of the circle and from it. */
typedef void (*fill_fn)(const struct ek_wire *w, struct message *m, uint32_t k, float *block,
                        uint32_t parts, size_t each);

static int exchange(struct ek_wire *w, float *block, uint32_t parts, size_t each, fill_fn fill)
{
    struct message m[EK_NODES_MOST];
    struct iovec out[PIECES_MOST], in[PIECES_MOST];

    if (atomic_load(&w->cut))
        return EK_ECOMM;
    if (w->count == 0)
        w->count = w->nodes;
    assert(w->count * (1 + parts) <= PIECES_MOST);
    for (uint32_t k = 0; k < w->count; k++) {
        m[k] = (struct message){.out = out + k * (1 + parts), .in = in + k * (1 + parts)};
        m[k].out[m[k].outs++] = (struct iovec){&m[k].mine, sizeof(m[k].mine)};
        m[k].in[m[k].ins++] = (struct iovec){&m[k].theirs, sizeof(m[k].theirs)};
        if (w->first + k != w->node)
            fill(w, &m[k], k, block, parts, each);
    }
    return move_all(w, m);
}

static void fill_share(const struct ek_wire *w, struct message *m, uint32_t k, float *block,
                       uint32_t parts, size_t each)
{
    (void)parts;
    add_out(m, block + (w->node - w->first) * each, each);
    add_in(m, block + k * each, each);
}

int ek_wire_share(struct ek_wire *w, float *block, size_t each)
{
    return exchange(w, block, 1, each, fill_share);
}

static void fill_scatter(const struct ek_wire *w, struct message *m, uint32_t k, float *block,
                         uint32_t parts, size_t each)
{
    const uint32_t me = w->node - w->first;
    const size_t theirs = ek_wire_slice(w, each, k), mine = ek_wire_slice(w, each, me);

    for (uint32_t p = 0; p < parts; p++) {
        add_out(m, block + (me * parts + p) * each + theirs,
                ek_wire_slice(w, each, k + 1) - theirs);
        add_in(m, block + (k * parts + p) * each + mine, ek_wire_slice(w, each, me + 1) - mine);
    }
}

int ek_wire_scatter(struct ek_wire *w, float *block, uint32_t parts, size_t each)
{
    return exchange(w, block, parts, each, fill_scatter);
}

static void fill_collect(const struct ek_wire *w, struct message *m, uint32_t k, float *sums,
                         uint32_t parts, size_t each)
{
    const uint32_t me = w->node - w->first;
    const size_t theirs = ek_wire_slice(w, each, k), mine = ek_wire_slice(w, each, me);

    (void)parts;
    add_out(m, sums + mine, ek_wire_slice(w, each, me + 1) - mine);
    add_in(m, sums + theirs, ek_wire_slice(w, each, k + 1) - theirs);
}

int ek_wire_collect(struct ek_wire *w, float *sums, size_t each)
{
    return exchange(w, sums, 1, each, fill_collect);
}

/* ---- from one node to another ---- */

/* Rows [from, ..) as pieces behind `used` ones; how many rows. */
static uint32_t list_rows(const struct ek_wire_rows *x, uint32_t from, struct iovec *list,
                          uint32_t used, uint32_t *ret_count)
{
    uint32_t rows = 0;

    *ret_count = used;
    if (x->width == x->stride) {
        rows = x->rows - from;
        list[(*ret_count)++] = (struct iovec){x->data + from * x->stride, rows * x->width};
        return rows;
    }
    for (; from + rows < x->rows && rows < ROWS_MOST; rows++)
        list[(*ret_count)++] = (struct iovec){x->data + (from + rows) * x->stride, x->width};
    return rows;
}

/* The head and all rows, in as many lists as it takes. */
static int move_rows(struct ek_wire *w, uint32_t node, struct turn *head,
                     const struct ek_wire_rows *x, bool out, uint64_t stall_us)
{
    struct iovec list[1 + ROWS_MOST] = {{head, sizeof(*head)}};
    uint32_t done = 0, count = 1;
    int r = 0;

    do {
        const uint32_t used = done == 0 ? 1 : 0;
        if (x->rows > 0)
            done += list_rows(x, done, list, used, &count);
        struct ek_transfer t = {.spins = SPINS};
        if (out) {
            t.out = list;
            t.outs = count;
        } else {
            t.in = list;
            t.ins = count;
        }
        r = ek_link_move(w->link[node], &t, stall_us);
    } while (r == 0 && done < x->rows);
    return r;
}

int ek_wire_send(struct ek_wire *w, uint32_t node, const struct ek_wire_rows *x)
{
    struct turn head = next_out(w, node, x->rows * x->width);

    if (atomic_load(&w->cut))
        return EK_ECOMM;
    int r = move_rows(w, node, &head, x, true, w->stall_us);
    return r < 0 ? fail(w, node, r) : 0;
}

int ek_wire_recv(struct ek_wire *w, uint32_t node, const struct ek_wire_rows *x, uint64_t late_us)
{
    struct turn head = {0};

    if (atomic_load(&w->cut))
        return EK_ECOMM;
    int r = move_rows(w, node, &head, x, false, w->stall_us > 0 ? w->stall_us + late_us : 0);
    if (r == 0 && !expected(w, node, &head, x->rows * x->width))
        r = -EPROTO;
    return r < 0 ? fail(w, node, r) : 0;
}

bool ek_wire_waiting(const struct ek_wire *w, uint32_t node)
{
    return ek_link_waiting(w->link[node]);
}
