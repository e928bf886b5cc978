/*
 * What the layers of most decoders have in common: attention and a gated feed-forward, each from
 * `side` (the normed input) to `side` (what is added to the stream). A family writes the norms and
 * additions around them, so that its order is seen there.
 */
#pragma once

#include "server/model/graph.h"

struct layers {
    bool fused;                                         /* weights qkv_proj and gate_up_proj */
    float embed_scale;                                  /* 0 = the configuration's */
    enum { NORM_NONE, NORM_HEADS, NORM_WHOLE } qk_norm; /* of q and k, before they turn */
    uint16_t stream, side, qkv, heads, gate_up, inner;  /* set by layers_begin() */
    uint16_t router, mixed; /* with experts; the names of their weights: */
    struct graph_expert_names experts;
    uint32_t rope, rope_local;
};

/* Values, frequencies and the embedding. `l` tells the first three fields, and the names of
 * experts. */
void layers_begin(struct graph_builder *b, struct layers *l);
/* The prefix is that of the layer: "model.layers.3.". */
void layers_attention(struct graph_builder *b, const struct layers *l, uint32_t layer);
void layers_feed_forward(struct graph_builder *b, const struct layers *l);
/* From another value than `side`, to `side`. */
void layers_attention_of(struct graph_builder *b, const struct layers *l, uint16_t src,
                         uint32_t layer);
void layers_feed_forward_of(struct graph_builder *b, const struct layers *l, uint16_t src);
/* The layer that most have: norm, attention, add, norm, feed-forward or experts, add. */
void layers_pre_norm(struct graph_builder *b, const struct layers *l, uint32_t layer);
/* After the last layer: model.norm and the logits. */
void layers_end(struct graph_builder *b, const struct layers *l);
