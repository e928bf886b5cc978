/*
 * Writing a struct ek_graph: values, weights looked up by name with their shape checked, and one
 * function per operation that infers widths from its values. The first error sticks; later calls
 * then do nothing, so that a family reads as a list and the caller looks once.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "server/model/parameters.h"
#include "server/model/quant.h"
#include "server/model/safetensors.h"

struct graph_builder {
    struct ek_graph *graph; /* owned by the caller, freed by ek_graph_free() */
    struct st_set *tensors; /* those that serve are marked `used` */
    const struct model_config *config;
    struct ek_fault *fault;
    enum quant_load load;          /* matrices of products are quantized so while they are loaded */
    bool wide_groups;              /* see struct model_choice */
    bool turned;                   /* matrices that are looked up lie as [cols, rows] */
    struct model_weights *weights; /* counted here, may be NULL */
    char prefix[64];               /* before the names of weights: "model.layers.3." */
    uint64_t parameters;           /* elements of all weights */
    uint32_t op_room, weight_room, value_room, quant_room;
    int error;
};

/* A matrix, or one part of a fused one: name without ".weight", rows. */
struct graph_part {
    const char *name;
    uint32_t rows;
};

/* graph->dtype is set by the caller. Fills the fields that come straight from the configuration. */
void graph_begin(struct graph_builder *b);

uint16_t graph_value(struct graph_builder *b, uint32_t width);
/* printf-like: the prefix for names that follow. */
void graph_prefix(struct graph_builder *b, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* The index of a weight [sum of rows, cols], or EK_NO_WEIGHT after an error. Suffix ".weight" or
 * ".bias"; a norm has one part of one row. A name that was fetched before gives the same index. */
uint32_t graph_weight(struct graph_builder *b, const struct graph_part *parts, uint32_t count,
                      uint32_t cols, const char *suffix);
/* A table of frequencies. Those of longrope lie twice in it: those in use, which are for the whole
 * context, then those for sequences up to the original positions (model_serve() takes them). */
uint32_t graph_rope(struct graph_builder *b, const struct config_rope_params *p);

void graph_embed(struct graph_builder *b, uint16_t dst, const char *name, float scale);
/* From a table of so many rows, at most the vocabulary; tokens beyond them take row 0. */
void graph_embed_rows(struct graph_builder *b, uint16_t dst, const char *name, uint32_t rows,
                      float scale);
/* The same by position: NAME.weight has a row for each that there is, behind `skip` others. */
void graph_embed_positions(struct graph_builder *b, uint16_t dst, const char *name, uint32_t skip);
void graph_norm(struct graph_builder *b, uint16_t dst, uint16_t src, const char *name);
/* The same by a tensor of that name, without ".weight". */
void graph_norm_by(struct graph_builder *b, uint16_t dst, uint16_t src, const char *tensor);
/* A norm of `heads` groups in place, from column `first`; name NULL: without weights. */
struct graph_heads {
    uint32_t first, group, heads;
};
void graph_head_norm(struct graph_builder *b, uint16_t value, const char *name,
                     struct graph_heads h);
/* Without a bias, though the model's other norms have one. */
void graph_head_norm_unbiased(struct graph_builder *b, uint16_t value, const char *name,
                              struct graph_heads h);
/* The same with weights for each group, which the files have as [heads, group]. */
void graph_head_norm_own(struct graph_builder *b, uint16_t value, const char *name,
                         struct graph_heads h);
/* Of one group, from column 0, with an eps of its own. */
void graph_norm_first(struct graph_builder *b, uint16_t value, const char *name, uint32_t group,
                      double eps);
void graph_linear(struct graph_builder *b, uint16_t dst, uint16_t src,
                  const struct graph_part *parts, uint32_t count, bool bias);
/* A small product that decides much: it is not quantized while it is loaded. */
void graph_linear_exact(struct graph_builder *b, uint16_t dst, uint16_t src,
                        const struct graph_part *parts, uint32_t count);
void graph_rotate(struct graph_builder *b, uint16_t value, uint32_t table, uint32_t first,
                  uint32_t heads);
/* Of heads that are `group` wide: what turns in each begins `first` columns behind its begin. */
void graph_rotate_heads(struct graph_builder *b, uint16_t value, uint32_t table,
                        struct graph_heads h);
/* A product of each head by itself, see EK_OP_HEADS. Of a head's `step` rows of the weight [step *
 * heads, cols] those from `first` on: `rows` of them, or, if it is `turned`, as many columns. */
struct graph_head_part {
    const char *name;
    uint32_t heads, step, first, rows, cols;
    bool turned;
};
void graph_by_head(struct graph_builder *b, uint16_t dst, uint16_t src,
                   const struct graph_head_part *part, uint32_t rest);
/* What the configuration says of warm; after or instead of a rotation of the same heads. */
void graph_warm(struct graph_builder *b, uint16_t value, uint32_t first, uint32_t heads);
void graph_attention(struct graph_builder *b, uint16_t dst, uint16_t qkv, uint32_t layer);
/* K and V of a layer: its heads, its layer of the cache, and whether it only reads there. */
struct graph_kv {
    uint32_t heads, head_dim, layer;
    bool reads;
};
struct graph_kv graph_kv_of(const struct model_config *c, uint32_t layer);
void graph_latent_attention(struct graph_builder *b, uint16_t dst, uint16_t q, uint16_t keys,
                            uint32_t layer);
/* dst = the experts that the router's logits choose, of src; with a `router` of NULL the caller has
 * made the logits. Weights are one matrix per expert and
 * kind, by printf format ("mlp.experts.%u.gate_proj"), or all in one tensor of three dimensions,
 * gate and up joined: then `gate` is NULL. They are as wide as dst and src. */
struct graph_expert_names {
    const char *router, *gate, *up, *down;
    const char *correction; /* a tensor [experts]: see struct ek_routing; NULL: none */
    const char *each;       /* likewise */
    /* [experts, 2 * inner, n] and [experts, n, inner], named so or with ".weight"; with `gate`,
     * too: where the files have these instead. */
    const char *all_in, *all_out;
    /* Where the files call them as most families do, though this one does not: NAME.3.gate_proj, as
     * llm-compressor writes experts of all families. */
    const char *apart;
    bool alone;  /* no gate: `gate` is NULL, and all_in is [experts, inner, n], of `up` alone */
    bool turned; /* they may lie transposed: [experts, n, 2 * inner] and [experts, inner, n] */
    /* Of all_in and all_out: they lie transposed, or as blocks of MXFP4, with gate and up in turn,
     * and have biases, as the router. */
    bool woven;
    /* The layer has a second set of experts, for pictures (ERNIE 4.5 VL): the router of the first
     * lies transposed, [n, experts], and `correction` is the first row of [2, experts]. */
    bool paired;
};
/* What most families call them. */
#define GRAPH_MLP_EXPERTS                                                                          \
    .gate = "mlp.experts.%u.gate_proj", .up = "mlp.experts.%u.up_proj",                            \
    .down = "mlp.experts.%u.down_proj", .all_in = "mlp.experts.gate_up_proj",                      \
    .all_out = "mlp.experts.down_proj"
void graph_experts(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t router,
                   const struct graph_expert_names *names);
void graph_glu(struct graph_builder *b, uint16_t dst, uint16_t src);
/* dst[to + h * group + i] = src[first + h * step + i], h < heads; see EK_OP_TAKE. */
struct graph_run {
    uint32_t first, step, group, heads, to;
};
void graph_take(struct graph_builder *b, uint16_t dst, uint16_t src, struct graph_run run);
/* dst *= act(src), see EK_OP_GATE; of the run its first three. */
void graph_gate(struct graph_builder *b, uint16_t dst, uint16_t src, enum ek_gate act,
                struct graph_run run);
/* value *= the share that xIELU leaves of it: the activation in place. Its numbers are read here,
 * of the tensors NAME.alpha_p, NAME.alpha_n and, where they are, NAME.beta and NAME.eps. */
void graph_xielu(struct graph_builder *b, uint16_t value, const char *name);
/* value = what clipping it to what the configuration says leaves. */
void graph_clip(struct graph_builder *b, uint16_t value);
/* A norm of all groups of a value in place, times the weight as it is. */
void graph_norm_groups(struct graph_builder *b, uint16_t value, const char *name, uint32_t group);
/* The width of dst in columns of src from `first`, weights NAME.weight [channels, 1, kernel] and,
 * if `bias`, NAME.bias. */
struct graph_conv {
    const char *name;
    uint32_t first, kernel;
    bool bias, silu;
};
void graph_convolve(struct graph_builder *b, uint16_t dst, uint16_t src,
                    const struct graph_conv *conv);
/* dst = the delta rule of the configuration over src and gates; see struct ek_delta. */
void graph_delta(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t gates,
                 const char *decay, const char *bias);
/* dst = the scan of the configuration over src, with steps from a column of a value; weights are
 * NAME.A_log, NAME.dt_bias and NAME.D. See struct ek_scan. */
void graph_scan(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t steps, uint32_t first,
                const char *name);
/* A norm of all groups of a value in place, each with its own part of the weight. */
void graph_norm_own(struct graph_builder *b, uint16_t value, const char *name, uint32_t group);
void graph_add(struct graph_builder *b, uint16_t dst, uint16_t src); /* times residual_scale */
/* value *= scale, and by the one number of the tensor; NULL: there is none. */
void graph_scale(struct graph_builder *b, uint16_t value, float scale, const char *tensor);
/* value *= the tensor's number of each column. */
void graph_scale_columns(struct graph_builder *b, uint16_t value, const char *tensor);
/* dst's `outputs` runs of `group` columns from `to` += those of src, see EK_OP_MIX. */
struct graph_mix {
    uint32_t inputs, outputs, group, to;
    float plus;
};
void graph_mix(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t by,
               struct graph_mix mix);
/* The same with `plus` as the only coefficient. */
void graph_mix_fixed(struct graph_builder *b, uint16_t dst, uint16_t src, struct graph_mix mix);
void graph_match(struct graph_builder *b, uint16_t value, uint16_t like, float least);
void graph_cut(struct graph_builder *b, uint16_t value, uint32_t group, float times);
/* cap * tanh(value / cap) */
void graph_softcap(struct graph_builder *b, uint16_t value, float cap);
/* Picks rows, norms them and computes logits with lm_head or the tied embedding, scaled and capped
 * as the configuration says. */
void graph_head(struct graph_builder *b, uint16_t src, const char *norm, const char *embedding);
/* The same with other names, which are whole: there is no prefix from here on; with or without
 * OUTPUT.bias; `project` is the product before it where the embedding has a width of its own. */
struct graph_head_names {
    const char *norm, *embedding, *output;
    bool bias;
    const char *project;
};
void graph_head_of(struct graph_builder *b, uint16_t src, const struct graph_head_names *names);

/* Tensors that no operation uses are a fault, but for those known to be harmless. */
int graph_check_unused(struct graph_builder *b);
