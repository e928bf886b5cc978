/*
 * DeepseekV2ForCausalLM (DeepSeek-V2, V2-Lite, Coder-V2) and DeepseekV3ForCausalLM (V3, V3.1, R1,
 * Kimi-K2, Moonlight): latent attention (latent.c), first layers that are plain, then mixtures with
 * experts that all tokens share. V2 chooses by shares of the softmax, a group being worth its best
 * expert; V3 by sigmoids with a correction, a group being worth its two best. Layers for drafts
 * behind the others are passed over. Glm4MoeLiteForCausalLM (GLM-4.7-Flash) is as V3.
 * YoutuForCausalLM (Youtu-LLM) is V3 without experts. DeepseekV32ForCausalLM (V3.2) and
 * GlmMoeDsaForCausalLM (GLM-5) are V3 with an indexer, which chooses for each token the index_topk
 * tokens that it attends to: up to that length it chooses all, which is what is served.
 * Mistral4ForCausalLM (Mistral Small 4) has softmax shares that may be normalised, groups worth
 * their two best, and queries that grow with the position. MiniCPM3ForCausalLM has no experts, a
 * scale of the embedding, one of what each half of a layer adds, and one of the logits.
 * AXK1ForCausalLM (A.X K1) is V3 with a norm of what a mixture gives.
 */
#include <math.h>
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/family.h"
#include "server/model/layers.h"
#include "server/model/rope.h"

#define DEEPSEEK_DIM_MOST 512u /* of a head, what turns or does not; of a value */

/* Null: 0; not there: as it is. */
static int read_rank(const struct model_json *j, const char *key, uint32_t *rank)
{
    int64_t n = json_object_get(j->object, key) ? 0 : *rank;
    bool given = false;
    int r = model_json_int(j, key, (struct model_range){0, 1u << 16}, &n, &given);
    *rank = (uint32_t)n;
    return r;
}

/* t has what counts where the file does not say. */
static int read_latent(const struct model_json *j, struct config_latent *t)
{
    int r = config_read_u32(j, "kv_lora_rank", CONFIG_HEAD_DIM_MOST, t->rank, &t->rank);
    if (r == 0)
        r = read_rank(j, "q_lora_rank", &t->q_rank);
    if (r == 0)
        r = config_read_u32(j, "qk_nope_head_dim", DEEPSEEK_DIM_MOST, t->nope_dim, &t->nope_dim);
    if (r == 0)
        r = config_read_u32(j, "qk_rope_head_dim", DEEPSEEK_DIM_MOST, t->rope_dim, &t->rope_dim);
    if (r == 0)
        r = config_read_u32(j, "v_head_dim", DEEPSEEK_DIM_MOST, t->value_dim, &t->value_dim);
    if (r == 0 && (t->value_dim == 0 || t->value_dim > DEEPSEEK_DIM_MOST))
        r = ek_fault_set(j->fault, "v_head_dim", "%s: v_head_dim is %u; it must be from 1 to %u",
                         j->file, t->value_dim, DEEPSEEK_DIM_MOST);
    if (r == 0 && (t->rope_dim % 2 != 0 || t->rank + t->rope_dim > CONFIG_HEAD_DIM_MOST))
        r = ek_fault_set(j->fault, "qk_rope_head_dim",
                         "%s: qk_rope_head_dim %u must be even, and with kv_lora_rank %u at most "
                         "%u; correct them",
                         j->file, t->rope_dim, t->rank, CONFIG_HEAD_DIM_MOST);
    return r;
}

static int read_attention_as(const struct model_json *j, struct config_latent usual,
                             struct model_config *c)
{
    struct config_latent *t = &c->latent;
    *t = usual;
    int r = read_latent(j, t);
    if (r == 0)
        r = config_read_bool(j, "attention_bias", false, &c->qkv_bias);
    if (r == 0)
        r = config_read_bool(j, "rope_interleave", true, &c->neighbours);
    if (r == 0 && c->rope.type == ROPE_LONGROPE && c->rope.dims != t->rope_dim)
        r = ek_fault_set(j->fault, "head_dim",
                         "%s: head_dim must be qk_rope_head_dim %u beside rope type 'longrope', "
                         "here it is %u; correct it",
                         j->file, t->rope_dim, c->rope.dims);
    if (r < 0)
        return r;
    c->o_bias = c->qkv_bias;
    c->kv_heads = 1;
    c->head_dim = t->rank + t->rope_dim;
    c->rope.dims = t->rope_dim;
    double scale = 1 / sqrt(t->nope_dim + (double)t->rope_dim);
    if (c->rope.type != ROPE_DEFAULT && c->rope.mscale_all_dim > 0) {
        const double m = config_yarn_mscale(c->rope.factor, c->rope.mscale_all_dim);
        scale *= m * m;
    }
    c->attention_scale = (float)scale;
    return 0;
}

static int read_attention(const struct model_json *j, struct model_config *c)
{
    return read_attention_as(
        j, (struct config_latent){.rank = 512, .nope_dim = 128, .rope_dim = 64, .value_dim = 128},
        c);
}

/* A key that has one value in all that is published; the code of others is not here. */
static int must_be(const struct model_json *j, const char *key, const char *value)
{
    const char *is = value;
    bool given = false;
    int r = model_json_string(j, key, &is, &given);
    if (r == 0 && strcmp(is, value) != 0)
        r = ek_fault_set(j->fault, key, "%s: %s '%.32s' is not supported; it must be %s", j->file,
                         key, is, value);
    return r;
}

/* Where experts are, of layers behind the first plain ones: every so many. */
static int read_mixtures(const struct model_json *j, struct model_config *c)
{
    uint32_t every = 1;
    int r = config_read_experts(j, "moe_intermediate_size", c);
    if (r == 0)
        r = config_read_routing(j, c);
    if (r == 0)
        r = config_read_u32(j, "moe_layer_freq", CONFIG_LAYERS_MOST, 1, &every);
    for (uint32_t i = 0; r == 0 && i < c->layers; i++)
        c->plain[i] = c->plain[i] || i % every != 0;
    return r;
}

static int deepseek_v2_configure(const struct model_json *j, struct model_config *c)
{
    const char *method = "greedy";
    bool given = false, normalise = false;
    int r = read_attention(j, c);
    if (r == 0)
        r = read_mixtures(j, c);
    if (r == 0)
        r = must_be(j, "scoring_func", "softmax");
    if (r == 0)
        r = model_json_string(j, "topk_method", &method, &given);
    if (r == 0)
        r = config_read_bool(j, "norm_topk_prob", false, &normalise);
    if (r == 0)
        r = config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
    if (r < 0)
        return r;
    c->routing.normalise = false;
    c->routing.group_best = 1;
    if (strcmp(method, "greedy") == 0)
        c->routing.groups = 0;
    else if (strcmp(method, "group_limited_greedy") != 0)
        return ek_fault_set(j->fault, "topk_method",
                            "%s: topk_method '%.32s' is not supported; supported are greedy and "
                            "group_limited_greedy",
                            j->file, method);
    if (normalise)
        return ek_fault_set(j->fault, "norm_topk_prob",
                            "%s: norm_topk_prob is not supported for %s; it must be false", j->file,
                            c->family->architecture);
    return 0;
}

static int deepseek_v3_configure(const struct model_json *j, struct model_config *c)
{
    int r = read_attention(j, c);
    if (r == 0)
        r = read_mixtures(j, c);
    if (r == 0)
        r = must_be(j, "scoring_func", "sigmoid");
    if (r == 0)
        r = must_be(j, "topk_method", "noaux_tc");
    c->routing.score = EK_SCORE_SIGMOID;
    return r;
}

/* Where the file says nothing of plain layers, the first one is. A.X K1's, too. */
static int glm4_moe_lite_configure(const struct model_json *j, struct model_config *c)
{
    int r = deepseek_v3_configure(j, c);

    c->plain[0] = c->plain[0] || !json_object_get(j->object, "first_k_dense_replace");
    return r < 0 ? r : config_read_mlp_types(j, c);
}

/* Where the file says nothing of plain layers, the first three are. */
static int indexed_configure(const struct model_json *j, struct model_config *c)
{
    int r = deepseek_v3_configure(j, c);

    for (uint32_t i = 0; i < 3 && i < c->layers; i++)
        c->plain[i] = c->plain[i] || !json_object_get(j->object, "first_k_dense_replace");
    if (r == 0)
        r = config_read_mlp_types(j, c);
    c->indexed = true;
    return r < 0 ? r : config_read_u32(j, "index_topk", 1u << 26, 2048, &c->index_tokens);
}

static int youtu_configure(const struct model_json *j, struct model_config *c)
{
    return read_attention(j, c);
}

/* A scale that is null changes nothing. */
static int minicpm3_configure(const struct model_json *j, struct model_config *c)
{
    const struct model_range scales = {1e-6, 1e6};
    const float root = sqrtf((float)c->layers), width = (float)c->hidden;
    float depth = json_is_null(json_object_get(j->object, "scale_depth")) ? root : 1.4f;
    float base = json_is_null(json_object_get(j->object, "dim_model_base")) ? width : 256.0f;
    const struct config_latent usual = {.rank = 256,
                                        .q_rank = 768,
                                        .nope_dim = 64,
                                        .rope_dim = 32,
                                        .value_dim = c->hidden / c->q_heads};
    int r = read_attention_as(j, usual, c);
    c->neighbours = false;
    c->embed_scale = 12.0f;
    if (r == 0)
        r = config_read_float(j, "scale_emb", scales, &c->embed_scale);
    if (r == 0)
        r = config_read_float(j, "scale_depth", scales, &depth);
    if (r == 0)
        r = config_read_float(j, "dim_model_base", scales, &base);
    c->residual_scale = depth / root;
    c->logits_scale = base / width;
    return r < 0 ? r : config_read_bool(j, "mlp_bias", false, &c->mlp_bias);
}

static int mistral4_configure(const struct model_json *j, struct model_config *c)
{
    int r = read_attention(j, c);
    if (r == 0)
        r = config_read_warm(j, c);
    return r < 0 ? r : read_mixtures(j, c);
}

static void deepseek_v2_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.shared = "mlp.shared_experts",
                       .experts = {.router = "mlp.gate", GRAPH_MLP_EXPERTS}};

    layers_write(b, &l, c);
}

static void deepseek_v3_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.shared = "mlp.shared_experts",
                       .experts = {.router = "mlp.gate",
                                   .correction = "mlp.gate.e_score_correction_bias",
                                   GRAPH_MLP_EXPERTS}};

    layers_write(b, &l, c);
}

static void axk1_build(struct graph_builder *b, const struct model_config *c)
{
    struct layers l = {.shared = "mlp.shared_experts",
                       .experts = {.router = "mlp.gate",
                                   .correction = "mlp.gate.e_score_correction_bias",
                                   GRAPH_MLP_EXPERTS}};

    layers_begin(b, &l);
    for (uint32_t i = 0; i < c->layers; i++) {
        layers_prefix(b, &l, i);
        graph_norm(b, l.side, l.stream, "input_layernorm");
        layers_attention(b, &l, i);
        graph_add(b, l.stream, l.side);
        graph_norm(b, l.side, l.stream, "post_attention_layernorm");
        if (c->plain[i]) {
            layers_feed_forward(b, &l);
        } else {
            graph_experts(b, l.mixed, l.side, l.router, &l.experts);
            if (c->shared_intermediate > 0) {
                layers_shared_of(b, &l, l.side);
                graph_add(b, l.mixed, l.side);
            }
            graph_norm(b, l.side, l.mixed, "post_mlp_layernorm");
        }
        graph_add(b, l.stream, l.side);
    }
    layers_end(b, &l);
}

/* head_dim: of what turns, which most files do not name so. */
const struct model_family family_deepseek_v2 = {.architecture = "DeepseekV2ForCausalLM",
                                                .head_dim = 64,
                                                .configure = deepseek_v2_configure,
                                                .build = deepseek_v2_build};
const struct model_family family_deepseek_v3 = {.architecture = "DeepseekV3ForCausalLM",
                                                .head_dim = 64,
                                                .configure = deepseek_v3_configure,
                                                .build = deepseek_v3_build};
const struct model_family family_glm4_moe_lite = {.architecture = "Glm4MoeLiteForCausalLM",
                                                  .head_dim = 64,
                                                  .rms_eps = 1e-5,
                                                  .configure = glm4_moe_lite_configure,
                                                  .build = deepseek_v3_build};
const struct model_family family_axk1 = {.architecture = "AXK1ForCausalLM",
                                         .head_dim = 64,
                                         .configure = glm4_moe_lite_configure,
                                         .build = axk1_build};
const struct model_family family_deepseek_v32 = {.architecture = "DeepseekV32ForCausalLM",
                                                 .head_dim = 64,
                                                 .configure = indexed_configure,
                                                 .build = deepseek_v3_build};
const struct model_family family_glm_moe_dsa = {.architecture = "GlmMoeDsaForCausalLM",
                                                .head_dim = 64,
                                                .rms_eps = 1e-5,
                                                .configure = indexed_configure,
                                                .build = deepseek_v3_build};
const struct model_family family_youtu = {.architecture = "YoutuForCausalLM",
                                          .head_dim = 64,
                                          .tied = true,
                                          .configure = youtu_configure,
                                          .build = deepseek_v2_build};
const struct model_family family_minicpm3 = {.architecture = "MiniCPM3ForCausalLM",
                                             .head_dim = 32,
                                             .head_key = "qk_rope_head_dim",
                                             .rms_eps = 1e-5,
                                             .tied = true,
                                             .configure = minicpm3_configure,
                                             .build = deepseek_v2_build};
const struct model_family family_mistral4 = {.architecture = "Mistral4ForCausalLM",
                                             .head_dim = 64,
                                             .partial_rotary = true,
                                             .configure = mistral4_configure,
                                             .build = deepseek_v2_build};
