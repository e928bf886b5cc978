/*
 * What the layers of most decoders have in common: attention and a gated feed-forward, each from
 * `side` (the normed input) to `side` (what is added to the stream). A family writes the norms and
 * additions around them, so that its order is seen there.
 */
#pragma once

#include "server/model/graph.h"

struct latent_values { /* of latent attention, see latent.c; 0: it is not there */
    uint16_t q_down, q, keys, wide, latents;
};

#define DELTA_PARTS 3u

struct delta_values { /* of linear attention, see delta.c */
    uint16_t wide, gates, woven, woven_gates, qkv, out;
    uint16_t part[DELTA_PARTS]; /* of qkv, by convolutions that lie apart */
    uint32_t parts;             /* 0: there is one */
};

struct layers {
    const char *embedding;         /* NULL = "model.embed_tokens" */
    const char *project;           /* from its width to the model's, if it has one of its own */
    const char *positions;         /* a table of those, which is added; NULL = none */
    uint32_t positions_skip;       /* its first rows, which are of none */
    const char *layer;             /* before a layer's number; NULL = "model.layers" */
    const char *norm, *mlp_norm;   /* NULL = "input_layernorm", "post_attention_layernorm" */
    const char *attention;         /* NULL = "self_attn" */
    bool fused_qkv, fused_gate_up; /* weights qkv_proj and gate_up_proj */
    const char *qkv_proj;          /* NULL = "self_attn.qkv_proj" */
    /* A matrix of [q | k | v] for each of so many groups of heads, 0 = for each head of keys; NULL
     * = none. Or of [q | v | k]. */
    const char *qkv_by_group;
    uint32_t qkv_groups;
    bool values_first;
    float gate_times;       /* of the gate before its activation; 0 = 1 */
    bool ungated;           /* a feed-forward is up, an activation and down: */
    enum ek_gate of_itself; /* what comes up times this of itself */
    float embed_scale;      /* 0 = the configuration's */
    /* Of q and k, before they turn: of each head, or of all together. NORM_TURNED: of each head
     * afterwards; NORM_BARE: so without weights, in layers that turn; NORM_OWN: of each head, with
     * weights for each, in one tensor; NORM_EACH: in a tensor each. */
    enum { NORM_NONE, NORM_HEADS, NORM_WHOLE, NORM_TURNED, NORM_BARE, NORM_OWN, NORM_EACH } qk_norm;
    const char *q_norm, *k_norm;                       /* NULL = "self_attn.q_norm" */
    const char *o_proj;                                /* NULL = "self_attn.o_proj" */
    const char *mlp;                                   /* NULL = "mlp", "" = none */
    const char *gate, *up, *down;                      /* in it; NULL = "gate_proj" and so on */
    uint16_t stream, side, qkv, heads, gate_up, inner; /* set by layers_begin() */
    uint16_t router, mixed; /* with experts; the names of their weights: */
    struct graph_expert_names experts;
    const char
        *shared; /* and of the feed-forward beside them, if there is one: "mlp.shared_experts" */
    uint16_t shared_gate_up, shared_inner, shared_gate;
    uint32_t rope, rope_local;
    struct latent_values latent; /* set by latent_begin() */
    bool delta_by_heads;         /* linear attention's products lie by heads of k, */
    bool delta_apart;            /* or q, k and v in one each, as their convolutions */
    struct delta_values delta;   /* set by delta_begin() */
    uint16_t gated;              /* attention with a gate: [q, gate of each head | k | v], */
    const char *gate_proj;       /* or with a product of its own for it; NULL = none */
    uint16_t gates;
    uint16_t by_group; /* what comes out of qkv_by_group */
};

/* Values, frequencies and the embedding. `l` tells the fields up to `mlp`, and the names of
 * experts. */
void layers_begin(struct graph_builder *b, struct layers *l);
/* sqrt(n), by which some models multiply embeddings, in the type that they compute with. */
float layers_root(enum ek_dtype dtype, uint32_t n);
/* The prefix is that of the layer: "model.layers.3.". */
void layers_attention(struct graph_builder *b, const struct layers *l, uint32_t layer);
void layers_feed_forward(struct graph_builder *b, const struct layers *l);
/* latent.c: values of latent attention, and such an attention, from src to `side`. */
void latent_begin(struct graph_builder *b, struct layers *l);
void latent_attention(struct graph_builder *b, const struct layers *l, uint16_t src,
                      uint32_t layer);
/* delta.c: values of linear attention, and such an attention, from src to `side`. */
void delta_begin(struct graph_builder *b, struct layers *l);
/* OLMo Hybrid's names; behind delta_begin(). */
void delta_begin_apart(struct graph_builder *b, struct layers *l, uint32_t layer);
void delta_attention(struct graph_builder *b, const struct layers *l, uint16_t src);
/* inputs.c: what a token gives each layer beside the stream; of all layers, and of one. `rows` of
 * the vocabulary have a row of it, others the first one's. */
struct token_inputs {
    uint16_t all, projected; /* of all layers, side by side */
    uint16_t gate, pair, in; /* of one */
};
void inputs_begin(struct graph_builder *b, struct token_inputs *t, uint16_t embedding,
                  uint32_t rows);
void inputs_of_layer(struct graph_builder *b, const struct token_inputs *t, uint16_t src,
                     uint16_t dst, uint32_t layer);
/* From another value than `side`, to `side`. */
void layers_attention_of(struct graph_builder *b, const struct layers *l, uint16_t src,
                         uint32_t layer);
void layers_feed_forward_of(struct graph_builder *b, const struct layers *l, uint16_t src);
/* The rest of an attention whose queries and keys are normed and turned, and whose values are
 * normed without weights: from q | k | v, or q alone where the layer reads, by way of `heads` to
 * `side`. */
void layers_attend_normed(struct graph_builder *b, const struct layers *l, uint16_t qkv,
                          uint16_t heads, uint32_t layer);
/* A gated feed-forward whose matrices are named NAME.gate_proj and so on, from src to `side`. */
struct layers_gated {
    const char *name;
    uint16_t src, gate_up, inner;
    uint32_t width;
};
void layers_gated(struct graph_builder *b, const struct layers *l, const struct layers_gated *f);
/* Of a feed-forward without a gate: what comes up times this of itself is the activation. */
enum ek_gate layers_gate_of(const struct model_config *c);
/* The feed-forward that is shared beside experts, from src to `side`. */
void layers_shared_of(struct graph_builder *b, const struct layers *l, uint16_t src);
/* What comes after a norm, from `side` to the stream: the feed-forward or, unless the layer is a
 * plain one, experts and the one that is shared beside them; and the addition. */
void layers_mixed(struct graph_builder *b, const struct layers *l, uint32_t layer);
/* The prefix of a layer's tensors. */
void layers_prefix(struct graph_builder *b, const struct layers *l, uint32_t layer);
/* The layer that most have: norm, attention, add, norm, feed-forward or experts, add. */
void layers_pre_norm(struct graph_builder *b, const struct layers *l, uint32_t layer);
/* The whole decoder, where all layers are so; and between layers_begin() and the end. */
void layers_pre_norms(struct graph_builder *b, const struct layers *l,
                      const struct model_config *c);
void layers_write(struct graph_builder *b, struct layers *l, const struct model_config *c);
/* All layers, where attention and feed-forward read the same normed input. */
void layers_parallel(struct graph_builder *b, const struct layers *l, const struct model_config *c);
/* Attention and feed-forward from the stream, their outputs normed before they are added. */
void layers_post_norm(struct graph_builder *b, const struct layers *l, uint32_t layer);
/* Normed before and after: input_layernorm, and the three that have other names in each family.
 * The two after may be NULL: there is none. */
struct layer_norms {
    const char *after_attention, *before_mlp, *after_mlp;
};
void layers_both_norms(struct graph_builder *b, const struct layers *l,
                       const struct layer_norms *names, uint32_t layer);
/* After the last layer: model.norm and the logits. */
void layers_end(struct graph_builder *b, const struct layers *l);
