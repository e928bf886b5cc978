/*
 * What a token gives each layer of Gemma 3n and of Gemma 4's small sizes, beside the stream: a row
 * of a second embedding, which is as wide as all layers' parts together, and a normed projection of
 * the first one. A layer takes its part, gated by the stream. Called by the build functions of both
 * families; pure but for the graph that is written.
 */
#include <math.h>

#include "server/model/layers.h"

void inputs_begin(struct graph_builder *b, struct token_inputs *t, uint16_t embedding,
                  uint32_t rows)
{
    const struct model_config *c = b->config;
    const uint32_t n = c->kinds.input, all = n * c->layers;
    const struct graph_part projection = {"model.per_layer_model_projection", all};

    t->all = graph_value(b, all);
    t->projected = graph_value(b, all);
    t->gate = graph_value(b, n);
    t->pair = graph_value(b, 2 * n);
    t->in = graph_value(b, n);
    graph_embed_rows(b, t->all, "model.embed_tokens_per_layer", rows,
                     layers_root(b->graph->dtype, n));
    graph_linear(b, t->projected, embedding, &projection, 1, false);
    graph_scale(b, t->projected, 1.0f / sqrtf((float)c->hidden), NULL);
    graph_norm_groups(b, t->projected, "model.per_layer_projection_norm", n);
    graph_add(b, t->all, t->projected);
    graph_scale(b, t->all, sqrtf(0.5f), NULL);
}

void inputs_of_layer(struct graph_builder *b, const struct token_inputs *t, uint16_t src,
                     uint16_t dst, uint32_t layer)
{
    const uint32_t n = b->config->kinds.input;
    const struct graph_part gate = {"per_layer_input_gate", n};
    const struct graph_part out = {"per_layer_projection", b->config->hidden};

    graph_linear(b, t->gate, src, &gate, 1, false);
    graph_take(b, t->pair, t->gate, (struct graph_run){.group = n, .heads = 1});
    graph_take(b, t->pair, t->all,
               (struct graph_run){.first = layer * n, .group = n, .heads = 1, .to = n});
    graph_glu(b, t->in, t->pair);
    graph_linear(b, dst, t->in, &out, 1, false);
    graph_norm(b, dst, dst, "post_per_layer_input_norm");
}
