/* The copy of a graph that shard.c writes a rank's list into, with room for what it adds. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/shard.h"
#include "kernels/shard_cut.h"

static void *copy_of(const void *from, size_t count, size_t size, size_t room)
{
    void *p = calloc(room + 1, size);
    if (p && count > 0)
        memcpy(p, from, count * size);
    return p;
}

int shard_copy(const struct ek_graph *g, struct ek_graph *c)
{
    const size_t quants = (size_t)g->quant_count + (size_t)EK_MOST_PARTS * g->weight_count;

    size_t convs = 0; /* each may become several with weights of their own */

    *c = *g;
    c->op_count = 0;
    for (uint32_t i = 0; i < g->op_count; i++)
        convs += g->ops[i].kind == EK_OP_CONV;
    c->ops = calloc(2 * (g->op_count + SHARD_MOST_PIECES * convs) + 1, sizeof(*c->ops));
    c->weights = copy_of(g->weights, g->weight_count, sizeof(*c->weights),
                         g->weight_count + 2 * SHARD_MOST_PIECES * convs);
    c->quants =
        g->quant_count > 0 ? copy_of(g->quants, g->quant_count, sizeof(*c->quants), quants) : NULL;
    c->value_width = copy_of(g->value_width, g->value_count, sizeof(uint32_t),
                             g->value_count + SHARD_MOST_PIECES);
    c->ropes = copy_of(g->ropes, g->rope_count, sizeof(*c->ropes), g->rope_count);
    for (uint32_t i = 0; c->ropes && i < g->rope_count; i++)
        c->ropes[i].inv_freq = NULL;
    if (!c->ops || !c->weights || !c->value_width || !c->ropes ||
        (g->quant_count > 0 && !c->quants))
        return -ENOMEM;
    for (uint32_t i = 0; i < g->rope_count; i++) {
        uint32_t count = g->ropes[i].count;
        c->ropes[i].inv_freq = copy_of(g->ropes[i].inv_freq, count, sizeof(float), count);
        if (!c->ropes[i].inv_freq)
            return -ENOMEM;
    }
    return 0;
}
