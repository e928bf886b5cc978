/*
 * CohereForCausalLM (Command R, Aya Expanse) and Cohere2ForCausalLM (Command R7B, Command A):
 * attention and feed-forward read the same normed input, and what both give is added. Norms take
 * the mean off and have no bias; logits are scaled; rotary pairs are neighbours. The first may have
 * norms of q and k with weights for each head; in the second layers without a window have no
 * rotary positions. Cohere2MoeForCausalLM is that with mixtures behind some plain layers, and may
 * have norms that leave the mean.
 */
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"

static int cohere_configure(const struct model_json *j, struct model_config *c)
{
    int r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);

    c->o_bias = c->qkv_bias;
    c->norm_centred = true;
    c->neighbours = true;
    c->logits_scale = 0.0625f;
    if (r == 0) /* in Command A Vision too, as in vLLM; transformers leaves it out there */
        r = config_read_float(j, "logit_scale", (struct model_range){1e-6, 1e6}, &c->logits_scale);
    return r < 0 ? r : config_read_bool(j, "use_qk_norm", false, &c->qk_norm);
}

static int cohere2_configure(const struct model_json *j, struct model_config *c)
{
    uint32_t pattern = 4;
    int r = cohere_configure(j, c);

    if (r == 0)
        r = config_read_u32(j, "sliding_window_pattern", 1u << 20, 4, &pattern);
    if (r == 0)
        r = config_read_window(
            j, (struct config_window){.use = true, .full_every = pattern, .if_missing = 4096}, c);
    for (uint32_t i = 0; i < c->layers; i++)
        c->unrotated[i] = c->window == 0 || !c->windowed[i];
    return r;
}

/* How layers attend where the file does not list it: the first, plain ones by a pattern of their
 * own. */
static int moe_windows(const struct model_json *j, uint32_t prefix, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    int64_t first = 0;
    uint32_t pattern = 4;
    bool given = false;
    int r = model_json_int(j, "first_k_dense_replace", (struct model_range){0, c->layers}, &first,
                           &given);

    if (r == 0)
        r = config_read_u32(j, "sliding_window_pattern", 1u << 20, 4, &pattern);
    if (r == 0)
        r = config_read_window(j, (struct config_window){.use = true, .if_missing = 4096}, c);
    for (uint32_t i = 0; r == 0 && i < c->layers; i++) {
        const uint32_t k = i < first ? i : i - (uint32_t)first;
        c->plain[i] = i < first;
        if (!types || json_is_null(types))
            c->windowed[i] = (k + 1) % (i < first ? prefix : pattern) != 0;
    }
    return r < 0 ? r : config_read_mlp_types(j, c);
}

static int moe_routing(const struct model_json *j, struct model_config *c)
{
    const char *score = "softmax", *strategy = "average";
    int64_t shared = 0;
    bool given = false;
    int r = config_read_experts(j, "intermediate_size", c);

    if (r == 0)
        r = model_json_string(j, "expert_selection_fn", &score, &given);
    if (r == 0)
        r = config_read_bool(j, "norm_topk_prob", true, &c->routing.normalise);
    if (r == 0)
        r = model_json_int(j, "num_shared_experts", (struct model_range){0, 64}, &shared, &given);
    if (r == 0)
        r = model_json_string(j, "shared_expert_combination_strategy", &strategy, &given);
    if (r < 0)
        return r;
    c->shared_intermediate = (uint32_t)shared * c->expert_intermediate;
    c->shared_mean = strcmp(strategy, "average") == 0;
    if (strcmp(score, "sigmoid") == 0)
        c->routing.score = EK_SCORE_SIGMOID;
    else if (strcmp(score, "softmax") == 0)
        c->routing.normalise = true; /* of the chosen ones */
    else
        return ek_fault_set(j->fault, "expert_selection_fn",
                            "%s: expert_selection_fn '%.32s' is not supported; supported are "
                            "softmax and sigmoid",
                            j->file, score);
    if (!c->shared_mean && strcmp(strategy, "sum") != 0)
        return ek_fault_set(j->fault, "shared_expert_combination_strategy",
                            "%s: shared_expert_combination_strategy '%.32s' is not supported; "
                            "supported are average and sum",
                            j->file, strategy);
    return 0;
}

static int cohere2_moe_configure(const struct model_json *j, struct model_config *c)
{
    double eps = 0;
    bool given = false;
    uint32_t prefix = 1;
    int r = cohere_configure(j, c);

    if (r == 0)
        r = model_json_float(j, "rms_norm_eps", (struct model_range){0, 1}, &eps, &given);
    c->norm_centred = !given;
    if (given)
        c->rms_eps = eps;
    if (r == 0)
        r = moe_routing(j, c);
    if (r == 0)
        r = config_read_u32(j, "prefix_dense_intermediate_size", 1u << 20, c->intermediate,
                            &c->intermediate);
    if (r == 0)
        r = config_read_u32(j, "prefix_dense_sliding_window_pattern", 1u << 20, 1, &prefix);
    if (r == 0)
        r = moe_windows(j, prefix, c);
    for (uint32_t i = 0; i < c->layers; i++) {
        const bool turns = (c->window > 0 && c->windowed[i]) || (c->plain[i] && prefix == 1);
        c->unrotated[i] = !turns;
    }
    return r;
}

static void cohere2_moe_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.shared = "mlp.shared_experts",
                       .experts = {.router = "mlp.gate", GRAPH_MLP_EXPERTS}};

    layers_begin(b, &l);
    const uint16_t normed = graph_value(b, c->hidden);
    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, &l, i);
        graph_norm(b, normed, l.stream, "input_layernorm");
        layers_attention_of(b, &l, normed, i);
        graph_add(b, l.stream, l.side);
        if (c->plain[i]) {
            layers_feed_forward_of(b, &l, normed);
            graph_add(b, l.stream, l.side);
            continue;
        }
        graph_experts(b, l.mixed, normed, l.router, &l.experts);
        if (c->shared_intermediate > 0) {
            layers_shared_of(b, &l, normed);
            graph_add(b, l.mixed, l.side);
            if (c->shared_mean)
                graph_scale(b, l.mixed, 0.5f, NULL);
        }
        graph_add(b, l.stream, l.mixed);
    }
    layers_end(b, &l);
}

static void cohere_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.qk_norm = c->qk_norm ? NORM_OWN : NORM_NONE};

    layers_begin(b, &l);
    layers_parallel(b, &l, c);
    layers_end(b, &l);
}

const struct model_family family_cohere = {.architecture = "CohereForCausalLM",
                                           .rope_theta = 5e5,
                                           .rms_eps = 1e-5,
                                           .eps_key = "layer_norm_eps",
                                           .tied = true,
                                           .configure = cohere_configure,
                                           .build = cohere_build};
const struct model_family family_cohere2 = {.architecture = "Cohere2ForCausalLM",
                                            .rms_eps = 1e-5,
                                            .eps_key = "layer_norm_eps",
                                            .tied = true,
                                            .configure = cohere2_configure,
                                            .build = cohere_build};
const struct model_family family_cohere2_moe = {.architecture = "Cohere2MoeForCausalLM",
                                                .head_dim = 128,
                                                .rms_eps = 1e-5,
                                                .eps_key = "layer_norm_eps",
                                                .tied = true,
                                                .configure = cohere2_moe_configure,
                                                .build = cohere2_moe_build};
