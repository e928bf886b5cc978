/*
 * Norms, biases and other vectors of a shape, and what else the first families have that those
 * after them lack: a table of positions, heads of keys by a switch. Called by shape.c; pure.
 */
#include <string.h>

#include "supervisor/planner/reader.h"
#include "supervisor/planner/shape.h"

bool plan_granite_swa(const struct plan_shape *s)
{
    return strcmp(s->family, "granite_swa") == 0 || strcmp(s->family, "granitemoe_swa") == 0;
}

static bool one_of(const char *family, const char *const *types)
{
    bool is = false;
    for (; *types; types++)
        is |= strncmp(family, *types, strlen(*types)) == 0;
    return is;
}
#define ONE_OF(s, ...) one_of((s)->family, (const char *const[]){__VA_ARGS__, NULL})

/* Families whose norms are LayerNorms with biases, which were the first that many could download.
 */
static void read_first(struct plan_reader *r, struct plan_shape *s)
{
    const bool gpt2 = ONE_OF(s, "gpt2", "gpt_bigcode"), opt = strcmp(s->family, "opt") == 0;
    const bool neo = strcmp(s->family, "gpt_neo") == 0, gptj = ONE_OF(s, "gptj", "codegen");
    const bool falcon = strcmp(s->family, "falcon") == 0, persimmon = ONE_OF(s, "persimmon");
    const bool newer = reader_truth(r->j, "new_decoder_architecture", false);
    const uint32_t width = NUMBER(r, "word_embed_proj_dim");

    if (ONE_OF(s, "nanochat") || strcmp(s->family, "olmo") == 0) {
        s->bare_norms = true;
        s->wide_norms = false; /* which OLMo 2 has */
    }
    if (!gpt2 && !opt && !neo && !gptj && !falcon && !persimmon)
        return;
    s->norm_bias = true;
    s->learned = gpt2 || opt || neo;
    s->qkv_bias = gpt2 || persimmon || (opt && reader_truth(r->j, "enable_bias", true)) ||
                  (falcon && reader_truth(r->j, "bias", false));
    s->out_bias = s->qkv_bias || neo;
    s->forward_bias = s->out_bias || gptj;
    s->output_bias = gptj;
    s->head_norms = persimmon && reader_truth(r->j, "qk_layernorm", true);
    if (gptj || (falcon && (newer ? reader_number_or(r, "num_ln_in_parallel_attn", 2) == 1
                                  : reader_truth(r->j, "parallel_attn", true))))
        s->norms = 1;
    if (falcon && !newer)
        s->kv_heads = reader_truth(r->j, "multi_query", true) ? 1 : s->heads;
    if (!opt)
        return;
    s->bare_norms = !reader_truth(r->j, "layer_norm_elementwise_affine", true);
    s->no_last_norm = !reader_truth(r->j, "do_layer_norm_before", true) ||
                      reader_truth(r->j, "_remove_final_layer_norm", false);
    s->embed_width = width != s->hidden ? width : 0;
}

/* How a type begins names it and those that come from it (qwen3_moe). */
void plan_read_vectors(struct plan_reader *r, struct plan_shape *s)
{
    const bool usual = ONE_OF(s, "qwen2", "mimo", "seed_oss") || strcmp(s->family, "glm") == 0;
    const bool phi = strcmp(s->family, "phi") == 0, neox = strcmp(s->family, "gpt_neox") == 0;
    const bool bias =
        reader_truth(r->j, "attention_bias", ONE_OF(s, "gpt_oss", "jais2") || phi || neox) ||
        reader_truth(r->j, "use_bias", ONE_OF(s, "starcoder2"));
    const bool other = ONE_OF(s, "internlm3") && reader_truth(r->j, "bias", false);
    const bool four = ONE_OF(s, "gemma2", "gemma3", "gemma4", "afmoe") ||
                      strcmp(s->family, "glm4") == 0 || strcmp(s->family, "glm4v_text") == 0 ||
                      strcmp(s->family, "glm_ocr_text") == 0 ||
                      (ONE_OF(s, "hyperclovax") && reader_truth(r->j, "use_post_norm", true));
    s->norms = four ? 4 : ONE_OF(s, "cohere") || phi ? 1 : 2;
    s->norm_bias = ONE_OF(s, "starcoder2", "stablelm", "jais2") ||
                   strcmp(s->family, "nemotron") == 0 || phi || neox;
    if (ONE_OF(s, "stablelm") && reader_truth(r->j, "use_parallel_residual", false))
        s->norms = 1;
    s->each_norms = ONE_OF(s, "stablelm") && reader_truth(r->j, "qk_layernorm", false);
    s->head_norms = ONE_OF(s, "qwen3", "gemma3", "gemma4", "exaone", "hunyuan_v1", "hunyuan_vl",
                           "lfm2", "dots1", "apertus", "afmoe") ||
                    ONE_OF(s, "mellum") || (phi && reader_truth(r->j, "qk_layernorm", false)) ||
                    (ONE_OF(s, "hy_v3") && reader_truth(r->j, "qk_norm", true)) ||
                    (ONE_OF(s, "glm4_moe") && reader_truth(r->j, "use_qk_norm", false));
    s->wide_norms = ONE_OF(s, "olmo", "flex_olmo") ||
                    (ONE_OF(s, "minimax_m2") && reader_truth(r->j, "use_qk_norm", true)) ||
                    (ONE_OF(s, "cohere") && reader_truth(r->j, "use_qk_norm", false));
    s->gate_proj = ONE_OF(s, "afmoe");
    s->qkv_bias = bias || reader_truth(r->j, "qkv_bias", false) ||
                  reader_truth(r->j, "use_qkv_bias", false) ||
                  (usual && !json_object_get(r->j, "attention_bias"));
    s->out_bias =
        ONE_OF(s, "seed_oss")
            ? reader_truth(r->j, "attention_out_bias", false)
            : (bias && !ONE_OF(s, "glm", "qwen2", "mimo", "solar_open", "helium")) || other;
    s->forward_bias = reader_truth(r->j, "mlp_bias", ONE_OF(s, "jais2")) ||
                      (ONE_OF(s, "ernie4_5") && reader_truth(r->j, "use_bias", false)) ||
                      (ONE_OF(s, "starcoder2") && bias) || phi || neox || other;
    s->output_bias = phi;
    s->expert_bias = ONE_OF(s, "gpt_oss");
    s->sinks = s->expert_bias || plan_granite_swa(s);
    s->mixture_norm = ONE_OF(s, "axk1");
    s->correction = ONE_OF(s, "deepseek_v3", "kimi", "glm4", "glm_moe_dsa", "ernie4_5_moe",
                           "ernie4_5_vl_moe", "nemotron_h", "dots1", "axk1", "exaone_moe",
                           "minimax_m2", "solar_open", "afmoe", "hy_v3") ||
                    (ONE_OF(s, "lfm2_moe") && reader_truth(r->j, "use_expert_bias", true));
    s->shared_gate = ONE_OF(s, "qwen2_moe", "qwen3_next", "qwen3_5_moe");
    read_first(r, s);
}
