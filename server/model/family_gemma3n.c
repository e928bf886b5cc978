/*
 * Gemma3nForCausalLM (the text part of Gemma 3n). Several streams lie side by side (AltUp): before
 * a layer each is predicted from all of them, by coefficients that one of them chooses; the layer
 * computes with that one, and what it adds corrects all. Attention has norms of q, k and v, scores
 * are not scaled, and the last layers read the keys and values that an earlier one wrote; beside it
 * is a product of low rank (LAuReL). In the first layers the feed-forward is sparse: of what the
 * gate gives only the part counts that lies far above the mean. Each layer is given something of
 * the token (inputs.c).
 */
#include <math.h>
#include <stdio.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/graph_weights.h"
#include "server/model/layers.h"

#define STREAMS_MOST 8u
#define LEAST_SQUARE 1e-5f /* of a stream whose size is matched */
#define SPARSE       0.95  /* share of a gate that is 0, in */
#define SPARSE_FIRST 10u   /* so many first layers, where the file says nothing */

/* ---- config.json ---- */

/* The number of standard deviations above the mean that a share of a normal distribution stays
 * below. */
static float deviations(double share)
{
    double low = -10, high = 10;
    for (uint32_t i = 0; i < 64; i++) {
        const double mid = (low + high) / 2;
        if (erfc(-mid / sqrt(2)) / 2 < share)
            low = mid;
        else
            high = mid;
    }
    return (float)((low + high) / 2);
}

/* A share for all layers, or one for each. */
static int read_sparse(const struct model_json *j, struct model_config *c)
{
    static const char KEY[] = "activation_sparsity_pattern";
    const json_t *v = json_object_get(j->object, KEY);
    const bool given = v && !json_is_null(v), each = json_is_array(v);

    if (each && json_array_size(v) < c->layers)
        return ek_fault_set(j->fault, KEY, "%s: %s has %zu numbers for %u layers; correct it",
                            j->file, KEY, json_array_size(v), c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const json_t *one = each ? json_array_get(v, i) : v;
        const bool usual = c->layers > SPARSE_FIRST && i < SPARSE_FIRST;
        const double share = given ? json_number_value(one) : usual ? SPARSE : 0;
        if ((given && !json_is_number(one)) || !(share >= 0 && share < 1))
            return ek_fault_set(j->fault, KEY,
                                "%s: %s must be a number from 0 to below 1, or one for each layer; "
                                "correct it",
                                j->file, KEY);
        c->streams.sparse[i] = share > 0;
        c->streams.cut[i] = share > 0 ? deviations(share) : 0.0f;
    }
    return 0;
}

static int read_streams(const struct model_json *j, struct model_config *c)
{
    struct config_streams *s = &c->streams;
    int64_t active = 0;
    bool given = false;
    int r = config_read_u32(j, "altup_num_inputs", STREAMS_MOST, 4, &s->count);
    if (r == 0)
        r = model_json_int(j, "altup_active_idx", (struct model_range){0, s->count - 1}, &active,
                           &given);
    s->active = (uint32_t)active;
    if (r == 0)
        r = config_read_bool(j, "altup_correct_scale", true, &s->scaled);
    if (r == 0)
        r = config_read_u32(j, "laurel_rank", 1u << 14, 64, &s->laurel);
    if (r == 0)
        r = config_read_u32(j, "hidden_size_per_layer_input", 1u << 14, 256, &c->kinds.input);
    if (r == 0)
        r = config_read_u32(j, "vocab_size_per_layer_input", 1u << 22, 262144, &s->input_rows);
    s->input_rows = s->input_rows < c->vocab ? s->input_rows : c->vocab;
    return r;
}

static int gemma3n_configure(const struct model_json *j, struct model_config *c)
{
    c->attention_scale = 1.0f;
    c->logit_softcap = 30.0f;
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    c->o_bias = c->qkv_bias;
    if (r == 0)
        r = config_read_float(j, "final_logit_softcapping", (struct model_range){1e-3, 1e6},
                              &c->logit_softcap);
    if (r == 0)
        r = config_read_window(
            j, (struct config_window){.use = true, .full_every = 5, .if_missing = 512}, c);
    if (r == 0)
        r = config_read_shared(j, 15, c);
    if (r == 0)
        r = read_streams(j, c);
    return r < 0 ? r : read_sparse(j, c);
}

/* ---- operations ---- */

struct gemma3n {
    struct layers l;
    struct token_inputs inputs;
    uint16_t streams, predicted;     /* side by side */
    uint16_t active, part;           /* one of them */
    uint16_t normed, routed, router; /* what chooses coefficients, */
    uint16_t coefficients, corrections;
    uint16_t low, beside; /* LAuReL */
    uint16_t q;           /* of layers that read */
};

static struct graph_run stream_of(const struct model_config *c, uint32_t stream)
{
    return (struct graph_run){.first = stream * c->hidden, .group = c->hidden, .heads = 1};
}

/* The first stream is the embedding, the others are products of it that are made as large. */
static void streams_begin(struct graph_builder *b, const struct gemma3n *g)
{
    const struct model_config *c = b->config;
    struct graph_run to = {.group = c->hidden, .heads = 1};

    graph_take(b, g->streams, g->l.stream, to);
    for (uint32_t i = 1; i < c->streams.count; i++) {
        char name[48];
        const struct graph_part part = {name, c->hidden};
        (void)snprintf(name, sizeof(name), "model.altup_projections.%u", i - 1);
        graph_linear(b, g->part, g->l.stream, &part, 1, false);
        graph_match(b, g->part, g->l.stream, LEAST_SQUARE);
        to.to = i * c->hidden;
        graph_take(b, g->streams, g->part, to);
    }
}

static void gemma3n_begin(struct graph_builder *b, struct gemma3n *g)
{
    const struct model_config *c = b->config;
    const uint32_t n = c->streams.count;

    g->l.embed_scale = layers_root(b->graph->dtype, c->hidden);
    layers_begin(b, &g->l);
    g->streams = graph_value(b, n * c->hidden);
    g->predicted = graph_value(b, n * c->hidden);
    g->active = graph_value(b, c->hidden);
    g->part = graph_value(b, c->hidden);
    g->normed = graph_value(b, c->hidden);
    g->routed = graph_value(b, c->hidden);
    g->router = graph_value(b, n);
    g->coefficients = graph_value(b, n * n);
    g->corrections = graph_value(b, n);
    g->low = graph_value(b, c->streams.laurel);
    g->beside = graph_value(b, c->hidden);
    g->q = c->kinds.shared > 0 ? graph_value(b, c->q_heads * c->head_dim) : 0;
    inputs_begin(b, &g->inputs, g->l.stream, c->streams.input_rows);
    streams_begin(b, g);
}

/* Coefficients that `src` chooses, a row of `to` of the tensor for each. */
static void gemma3n_choose(struct graph_builder *b, const struct gemma3n *g, uint16_t src,
                           uint16_t to, const char *name)
{
    const struct graph_part router = {"altup.modality_router", b->config->streams.count};
    const struct graph_part out = {name, graph_width(b, to)};

    graph_norm(b, g->routed, src, "altup.router_norm");
    graph_scale(b, g->routed, 1.0f / (float)b->config->hidden, NULL);
    graph_linear_exact(b, g->router, g->routed, &router, 1);
    graph_softcap(b, g->router, 1.0f);
    graph_linear_exact(b, to, g->router, &out, 1);
}

static void predict(struct graph_builder *b, const struct gemma3n *g)
{
    const struct model_config *c = b->config;
    const uint32_t n = c->streams.count;

    graph_take(b, g->active, g->streams, stream_of(c, c->streams.active));
    gemma3n_choose(b, g, g->active, g->coefficients, "altup.prediction_coefs");
    graph_take(b, g->predicted, g->streams, (struct graph_run){.group = n * c->hidden, .heads = 1});
    graph_mix(b, g->predicted, g->streams, g->coefficients,
              (struct graph_mix){.inputs = n, .outputs = n, .group = c->hidden});
    graph_take(b, g->active, g->predicted, stream_of(c, c->streams.active));
}

/* The streams are those predicted, each plus its share of what the layer changed in the active
 * one, which is in `active` now. */
static void correct(struct graph_builder *b, const struct gemma3n *g)
{
    const struct model_config *c = b->config;
    const uint32_t n = c->streams.count;

    gemma3n_choose(b, g, g->active, g->corrections, "altup.correction_coefs");
    graph_take(b, g->part, g->predicted, stream_of(c, c->streams.active));
    graph_mix_fixed(b, g->active, g->part,
                    (struct graph_mix){.inputs = 1, .outputs = 1, .group = c->hidden, .plus = -1});
    graph_take(b, g->streams, g->predicted, (struct graph_run){.group = n * c->hidden, .heads = 1});
    graph_mix(b, g->streams, g->active, g->corrections,
              (struct graph_mix){.inputs = 1, .outputs = n, .group = c->hidden, .plus = 1});
}

/* From `normed` to `side`. */
static void gemma3n_attention(struct graph_builder *b, const struct gemma3n *g, uint32_t layer)
{
    const struct model_config *c = b->config;
    const uint32_t q = c->q_heads * c->head_dim, own = c->kv_heads * c->head_dim;
    const struct graph_part parts[] = {
        {"self_attn.q_proj", q}, {"self_attn.k_proj", own}, {"self_attn.v_proj", own}};
    const bool reads = graph_kv_of(c, layer).reads;
    const uint16_t qkv = reads ? g->q : g->l.qkv;

    graph_linear(b, qkv, g->normed, parts, reads ? 1 : 3, c->qkv_bias);
    layers_attend_normed(b, &g->l, qkv, g->l.heads, layer);
}

/* From `normed`, to `beside`. */
static void laurel(struct graph_builder *b, const struct gemma3n *g)
{
    const struct graph_part left = {"laurel.linear_left", b->config->streams.laurel};
    const struct graph_part right = {"laurel.linear_right", b->config->hidden};

    graph_linear(b, g->low, g->normed, &left, 1, false);
    graph_linear(b, g->beside, g->low, &right, 1, false);
    graph_norm(b, g->beside, g->beside, "laurel.post_laurel_norm");
    graph_add(b, g->beside, g->normed);
}

/* In `side`. */
static void gemma3n_forward(struct graph_builder *b, const struct gemma3n *g, uint32_t layer)
{
    const struct model_config *c = b->config;
    const struct layers *l = &g->l;
    const struct graph_part parts[] = {{"mlp.gate_proj", c->intermediate},
                                       {"mlp.up_proj", c->intermediate}};
    const struct graph_part out = {"mlp.down_proj", c->hidden};

    graph_linear(b, l->gate_up, l->side, parts, 2, false);
    if (c->streams.sparse[layer])
        graph_cut(b, l->gate_up, c->intermediate, c->streams.cut[layer]);
    graph_glu(b, l->inner, l->gate_up);
    graph_linear(b, l->side, l->inner, &out, 1, false);
}

/* What the token gives the layer, gated by the active stream: added to all but the first. */
static void give_input(struct graph_builder *b, const struct gemma3n *g, uint32_t layer)
{
    const struct model_config *c = b->config;

    graph_take(b, g->active, g->streams, stream_of(c, c->streams.active));
    if (c->streams.scaled)
        graph_scale_columns(b, g->active, "altup.correct_output_scale");
    inputs_of_layer(b, &g->inputs, g->active, g->l.side, layer);
    for (uint32_t i = 1; i < c->streams.count; i++)
        graph_mix_fixed(
            b, g->streams, g->l.side,
            (struct graph_mix){
                .inputs = 1, .outputs = 1, .group = c->hidden, .to = i * c->hidden, .plus = 1});
}

static void gemma3n_layer(struct graph_builder *b, const struct gemma3n *g, uint32_t layer)
{
    const struct layers *l = &g->l;

    layers_prefix(b, l, layer);
    predict(b, g);
    graph_norm(b, g->normed, g->active, "input_layernorm");
    laurel(b, g);
    gemma3n_attention(b, g, layer);
    graph_norm(b, l->side, l->side, "post_attention_layernorm");
    graph_add(b, g->active, l->side);
    graph_add(b, g->active, g->beside);
    graph_scale(b, g->active, sqrtf(0.5f), NULL);
    graph_norm(b, l->side, g->active, "pre_feedforward_layernorm");
    gemma3n_forward(b, g, layer);
    graph_norm(b, l->side, l->side, "post_feedforward_layernorm");
    graph_add(b, g->active, l->side);
    correct(b, g);
    give_input(b, g, layer);
}

/* The mean of the first stream and of products of the others that are made as large as it. */
static void streams_end(struct graph_builder *b, const struct gemma3n *g)
{
    const struct model_config *c = b->config;
    const uint32_t n = c->streams.count;

    graph_prefix(b, "%s", "");
    graph_take(b, g->l.stream, g->streams, stream_of(c, 0));
    graph_take(b, g->active, g->streams, stream_of(c, 0));
    for (uint32_t i = 1; i < n; i++) {
        char name[48];
        const struct graph_part part = {name, c->hidden};
        (void)snprintf(name, sizeof(name), "model.altup_unembed_projections.%u", i - 1);
        graph_take(b, g->part, g->streams, stream_of(c, i));
        graph_linear(b, g->normed, g->part, &part, 1, false);
        graph_match(b, g->normed, g->active, LEAST_SQUARE);
        graph_add(b, g->l.stream, g->normed);
    }
    graph_scale(b, g->l.stream, 1.0f / (float)n, NULL);
}

static void gemma3n_build(struct graph_builder *b, const struct model_config *c)
{
    struct gemma3n g = {.l = {.qk_norm = NORM_HEADS}};

    gemma3n_begin(b, &g);
    for (uint32_t i = 0; i < c->layers; i++)
        gemma3n_layer(b, &g, i);
    streams_end(b, &g);
    layers_end(b, &g.l);
}

const struct model_family family_gemma3n = {.architecture = "Gemma3nForCausalLM",
                                            .head_dim = 256,
                                            .rope_theta = 1e6,
                                            .local_theta = 1e4,
                                            .local_rope = true,
                                            .act = "gelu_pytorch_tanh",
                                            .tied = true,
                                            .configure = gemma3n_configure,
                                            .build = gemma3n_build};
