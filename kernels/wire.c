#include "kernels/wire.h"

#include <errno.h>

#include "common/err.h"

#define TURN_MAGIC 0x4e525554u
#define SPINS      20 /* some 20 us: other ranks are at the same place, or somebody needs the core */

/* Before the floats of each call: that both sides are at the same one. */
struct turn {
    uint32_t magic, node;
    uint64_t turn, each;
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

static struct iovec floats(float *block, size_t each, uint32_t first, uint32_t end)
{
    return (struct iovec){block + first * each, (end - first) * each * sizeof(float)};
}

/* Own floats go and those of others come, each behind a head. */
static int move(struct ek_wire *w, uint32_t node, struct ek_transfer *t, size_t each)
{
    struct turn mine = {TURN_MAGIC, w->node, w->turn, each}, theirs = {0};

    if (t->outs > 0)
        t->out[0] = (struct iovec){&mine, sizeof(mine)};
    if (t->ins > 0)
        t->in[0] = (struct iovec){&theirs, sizeof(theirs)};
    const bool came = t->ins > 0;
    t->spins = SPINS;
    int r = ek_link_move(w->link[node], t, w->stall_us);
    if (r == 0 && came &&
        (theirs.magic != TURN_MAGIC || theirs.node != node || theirs.turn != w->turn ||
         theirs.each != each))
        r = -EPROTO;
    return r < 0 ? fail(w, node, r) : 0;
}

static int collect(struct ek_wire *w, float *block, size_t each)
{
    int r = 0;

    for (uint32_t i = 1; r == 0 && i < w->nodes; i++) {
        struct iovec in[2] = {[1] = floats(block, each, i, i + 1)};
        struct ek_transfer t = {.in = in, .ins = 2};
        r = move(w, i, &t, each);
    }
    for (uint32_t i = 1; r == 0 && i < w->nodes; i++) {
        struct iovec out[3] = {
            [1] = floats(block, each, 0, i), [2] = floats(block, each, i + 1, w->nodes)};
        struct ek_transfer t = {.out = out, .outs = 3};
        r = move(w, i, &t, each);
    }
    return r;
}

static int both(struct ek_wire *w, float *block, size_t each)
{
    const uint32_t other = w->node == 0 ? 1 : 0;
    struct iovec out[2] = {[1] = floats(block, each, w->node, w->node + 1)};
    struct iovec in[2] = {[1] = floats(block, each, other, other + 1)};
    struct ek_transfer t = {.out = out, .outs = 2, .in = in, .ins = 2};

    return move(w, other, &t, each);
}

static int give(struct ek_wire *w, float *block, size_t each)
{
    struct iovec out[2] = {[1] = floats(block, each, w->node, w->node + 1)};
    struct iovec in[3] = {
        [1] = floats(block, each, 0, w->node), [2] = floats(block, each, w->node + 1, w->nodes)};
    struct ek_transfer t = {.out = out, .outs = 2, .in = in, .ins = 3};

    return move(w, 0, &t, each);
}

int ek_wire_share(struct ek_wire *w, float *block, size_t each)
{
    if (atomic_load(&w->cut))
        return EK_ECOMM;
    w->turn++;
    if (w->nodes == 2)
        return both(w, block, each);
    return w->node == 0 ? collect(w, block, each) : give(w, block, each);
}
