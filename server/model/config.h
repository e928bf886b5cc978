/*
 * config.json and generation_config.json as plain numbers, in the spellings of transformers 4 and
 * 5 (torch_dtype or dtype, rope_theta and rope_scaling or rope_parameters). Every number is
 * checked against bounds, so that no product of them overflows. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"
#include "server/model/json.h"
#include "server/model/model.h"

#define CONFIG_LAYERS_MOST 1024u

struct model_family;

#define CONFIG_HEAD_DIM_MOST 1024u

enum config_rope {
    ROPE_DEFAULT,
    ROPE_LINEAR,
    ROPE_DYNAMIC,
    ROPE_LLAMA3,
    ROPE_YARN,
    ROPE_LONGROPE,
};

struct config_rope_params {
    enum config_rope type;
    uint32_t dims; /* of a head that turn, even */
    double theta, factor;
    double original_positions;     /* llama3, yarn and longrope */
    double low_freq, high_freq;    /* llama3 */
    double beta_fast, beta_slow;   /* yarn */
    double attention_factor;       /* yarn and longrope, 0 = by formula */
    double mscale, mscale_all_dim; /* yarn, 0 = not given */
    bool keep_fraction;            /* yarn: "truncate": false */
    /* longrope, [dims / 2] each: up to original_positions, and for models served beyond */
    float short_factor[CONFIG_HEAD_DIM_MOST / 2], long_factor[CONFIG_HEAD_DIM_MOST / 2];
};

/* How the weights of quantized models are stored; which ones are is seen from the tensors' names.
 */
enum config_quant {
    QUANT_NONE,
    QUANT_FP8,
    QUANT_COMPRESSED,
    QUANT_GPTQ,
    QUANT_AWQ,
    QUANT_MXFP4,
};

/* To what the inputs of products with quantized weights are rounded: not at all; to int8 or E4M3
 * with a scale for each token, or with one that the file has for each matrix; to E4M3 with a scale
 * for each 128 columns of a token. */
enum config_inputs {
    INPUTS_AS_THEY_ARE,
    INPUTS_TOKEN,
    INPUTS_TENSOR,
    INPUTS_F8_TOKEN,
    INPUTS_F8_TENSOR,
    INPUTS_F8_GROUP
};

struct config_quant_params {
    enum config_quant method;
    enum config_inputs inputs;       /* compressed-tensors: where all groups of matrices say so */
    float input_most;                /* FP8: of magnitudes up to this, 0 = all */
    uint32_t group;                  /* GPTQ, AWQ: columns that share a scale, 0 = all */
    bool zeros_as_they_are;          /* GPTQ: of its second version, the first stores them less 1 */
    uint32_t block_rows, block_cols; /* FP8: of scales that are neither one nor one per row */
};

struct model_config {
    const struct model_family *family;
    struct config_quant_params quant;
    char model_type[32];
    bool text_part; /* of a model that sees or hears, too (textpart.h) */
    uint32_t hidden, intermediate, layers, q_heads, kv_heads, head_dim, vocab;
    uint32_t max_model_len;
    double rms_eps;
    enum ek_activation act;
    bool tied;
    bool qkv_bias, o_bias, mlp_bias;
    bool sinks;                                 /* attention has them, a score for each head */
    uint32_t window;                            /* tokens, 0 = no layer has one */
    bool windowed[CONFIG_LAYERS_MOST];          /* which layers have it */
    struct config_rope_params rope, rope_local; /* rope_local: of layers with a window, where the */
    bool local_rope;                            /* family has two */
    bool unrotated[CONFIG_LAYERS_MOST];         /* layers without rotary positions */
    /* Mixture of experts, 0 = none; layers that have a plain feed-forward all the same. */
    uint32_t experts, experts_per_token, expert_intermediate;
    bool normalise_experts; /* shares of the chosen ones add up to 1 */
    bool plain[CONFIG_LAYERS_MOST];
    /* What most families lack: 1, 1, 1, 1 / sqrt(head_dim), none, none, 0. */
    float embed_scale, residual_scale, logits_scale, attention_scale;
    float attention_softcap, logit_softcap, norm_offset;
    bool dtype_given;
    enum ek_dtype dtype;
    int32_t eos[MODEL_EOS_MOST];
    uint32_t eos_count;
    int32_t bos; /* -1 if none */
};

/* Reads the text of config.json; an architecture that is not supported is named, with the list of
 * those that are. -EBADMSG with a fault (field and remedy), -ENOMEM. */
int config_parse(const char *text, size_t len, struct model_config *ret_config,
                 struct ek_fault *fault);
/* Reads the text of generation_config.json: what it sets, and its end-of-text tokens before those
 * of `config`. Codes as above. */
int config_parse_generation(const char *text, size_t len, struct model_config *config,
                            struct model_defaults *ret_defaults, struct ek_fault *fault);
struct model_defaults config_no_defaults(void);
/* Writes inv_freq[dims / 2], returns the factor on sin and cos. `beyond`: longrope's factors for
 * sequences longer than the original positions. */
float config_rope_table(const struct config_rope_params *p, bool beyond, float *inv_freq);

/* For families: keys of their own. */
int config_read_bool(const struct model_json *j, const char *key, bool if_missing, bool *ret_value);
/* Written only if the key is there. */
int config_read_float(const struct model_json *j, const char *key, struct model_range range,
                      float *value);
/* A whole number from 1; if_missing 0: it must be there. */
int config_read_u32(const struct model_json *j, const char *key, uint32_t max, uint32_t if_missing,
                    uint32_t *ret_value);
/* The number of experts (it goes by either key), how many a token takes, and the size of one, which
 * `inner` names. */
int config_read_experts(const struct model_json *j, const char *inner, struct model_config *c);
/* sliding_window and layer_types. Without layer_types, a window counts if `use` says so, in layers
 * from `first_layer`, but for every `full_every`th (0 = none). */
struct config_window {
    bool use;
    uint32_t first_layer, full_every;
};
int config_read_window(const struct model_json *j, struct config_window w, struct model_config *c);
