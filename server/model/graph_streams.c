/*
 * Operations on several streams that lie side by side in one value (Gemma 3n's AltUp), and what
 * makes a feed-forward sparse. Called by family_gemma3n.c; pure but for the graph that is written.
 */
#include "server/model/graph_weights.h"

void graph_scale_columns(struct graph_builder *b, uint16_t value, const char *tensor)
{
    const struct graph_part part = {tensor, 1};

    graph_scale(b, value, 1.0f, NULL);
    const uint32_t w = graph_weight(b, &part, 1, graph_width(b, value), "");
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].weight = w;
}

static struct ek_op mix_of(uint16_t dst, uint16_t src, struct graph_mix mix)
{
    return (struct ek_op){.kind = EK_OP_MIX,
                          .dst = dst,
                          .src = src,
                          .weight = EK_NO_WEIGHT,
                          .bias = EK_NO_WEIGHT,
                          .u.mix = {.fixed = true,
                                    .inputs = mix.inputs,
                                    .outputs = mix.outputs,
                                    .group = mix.group,
                                    .to = mix.to,
                                    .plus = mix.plus}};
}

void graph_mix(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t by,
               struct graph_mix mix)
{
    struct ek_op op = mix_of(dst, src, mix);

    op.u.mix.fixed = false;
    op.u.mix.by = by;
    graph_op_push(b, op);
}

void graph_mix_fixed(struct graph_builder *b, uint16_t dst, uint16_t src, struct graph_mix mix)
{
    graph_op_push(b, mix_of(dst, src, mix));
}

void graph_match(struct graph_builder *b, uint16_t value, uint16_t like, float least)
{
    graph_op_push(b, (struct ek_op){.kind = EK_OP_MATCH,
                                    .dst = value,
                                    .src = like,
                                    .weight = EK_NO_WEIGHT,
                                    .bias = EK_NO_WEIGHT,
                                    .u.match.least = least});
}

void graph_cut(struct graph_builder *b, uint16_t value, uint32_t group, float times)
{
    graph_op_push(b, (struct ek_op){.kind = EK_OP_CUT,
                                    .dst = value,
                                    .src = value,
                                    .weight = EK_NO_WEIGHT,
                                    .bias = EK_NO_WEIGHT,
                                    .u.cut = {.group = group, .times = times}});
}
