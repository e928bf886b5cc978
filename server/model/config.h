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

enum config_rope { ROPE_DEFAULT, ROPE_LINEAR, ROPE_LLAMA3, ROPE_YARN };

struct config_rope_params {
    enum config_rope type;
    double theta, factor;
    double original_positions;     /* llama3 and yarn */
    double low_freq, high_freq;    /* llama3 */
    double beta_fast, beta_slow;   /* yarn */
    double attention_factor;       /* yarn, 0 = by formula */
    double mscale, mscale_all_dim; /* yarn, 0 = not given */
    bool keep_fraction;            /* yarn: "truncate": false */
};

struct model_config {
    const struct model_family *family;
    char model_type[32];
    uint32_t hidden, intermediate, layers, q_heads, kv_heads, head_dim, vocab;
    uint32_t max_model_len;
    double rms_eps;
    enum ek_activation act;
    bool tied;
    bool qkv_bias, o_bias, mlp_bias;
    uint32_t window;                   /* tokens, 0 = no layer has one */
    bool windowed[CONFIG_LAYERS_MOST]; /* which layers have it */
    struct config_rope_params rope;
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
/* Writes inv_freq[head_dim / 2], returns the factor on sin and cos. */
float config_rope_table(const struct config_rope_params *p, uint32_t head_dim, float *inv_freq);

/* For families: keys of their own. */
int config_read_bool(const struct model_json *j, const char *key, bool if_missing, bool *ret_value);
/* sliding_window and layer_types; a window counts only if `use` says so and from `first_layer`. */
int config_read_window(const struct model_json *j, bool use, uint32_t first_layer,
                       struct model_config *c);
