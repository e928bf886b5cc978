/*
 * What config.json and generation_config.json say of a model, as plain numbers: filled by config.c
 * and the readers that it calls (rope.c, quant.c, the families), read by graph.c; and what
 * became of its matrices. No functions.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/backend.h"

#define MODEL_EOS_MOST 8u

/* What generation_config.json sets, as vLLM applies it; neutral where it says nothing. */
struct model_defaults {
    struct ek_sampling sampling;
    int64_t max_new_tokens; /* -1 = unset */
};

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
    ROPE_PROPORTIONAL,
};

struct config_rope_params {
    enum config_rope type;
    uint32_t dims; /* of a head that turn, even */
    double theta, factor;
    double part;                   /* proportional: of all frequencies, the others are 0 */
    double original_positions;     /* llama3, yarn and longrope */
    double low_freq, high_freq;    /* llama3 */
    double beta_fast, beta_slow;   /* yarn */
    double attention_factor;       /* yarn and longrope, 0 = by formula */
    double mscale, mscale_all_dim; /* yarn, 0 = not given */
    bool keep_fraction;            /* yarn: "truncate": false */
    bool backwards;                /* heads turn the other way round */
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
    QUANT_MODELOPT,
    QUANT_QUARK,
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

/* Latent attention: keys and values of all heads come out of one vector of a token, `rank` wide,
 * and one head of `rope_dim` that turns. */
struct config_latent {
    uint32_t rank;   /* 0 = attention is not latent */
    uint32_t q_rank; /* queries come out of a vector, too; 0 = of the hidden state */
    uint32_t nope_dim, rope_dim, value_dim; /* of a head: what does not turn, what turns, V */
};

/* Layers without a KV cache: linear attention by the gated delta rule, behind a short convolution
 * (struct ek_delta). */
struct config_delta {
    uint32_t k_heads, v_heads, k_dim, v_dim;
    uint32_t kernel; /* of the convolution; LFM2's layers have that alone */
    bool conv_bias;
    bool twice; /* see struct ek_delta */
};

/* Gemma 4: layers without a window differ from the others in their heads, the last ones have no
 * keys and values of their own, and each is given something of the token. */
struct config_kinds {
    uint32_t head_dim, kv_heads; /* of layers without a window; 0 = as the others */
    bool keys_as_values;         /* and there values are the keys before norm and rotation */
    uint32_t shared;             /* last layers that read what the last one of their kind wrote */
    bool wide;                   /* these have a feed-forward of twice the width */
    uint32_t input;              /* elements of a token's second embedding for a layer, 0 = none */
};

/* Gemma 3n: so many streams side by side, of which a layer computes with one and predicts and
 * corrects the others. */
struct config_streams {
    uint32_t count, active;        /* count 0 = there is one */
    bool scaled;                   /* what is corrected is scaled before a token's input */
    uint32_t laurel;               /* rank of the product beside attention */
    uint32_t input_rows;           /* of the vocabulary, which have a second embedding */
    float cut[CONFIG_LAYERS_MOST]; /* standard deviations above the mean below which a gate is
                                      0, in layers that are sparse: */
    bool sparse[CONFIG_LAYERS_MOST];
};

#define CONFIG_SCAN_PARTS 5u /* of what goes in: gate, x, B, C, steps */

/* Layers of Mamba 2 (struct ek_scan); their convolution is told as that of linear attention. */
struct config_scan {
    uint32_t heads, groups, head_dim, state_dim;
    float least, most;              /* of a step */
    bool bias, out_bias;            /* of the products before and after */
    bool unnormed;                  /* what comes out is gated and not normed, */
    bool norm_first;                /* or normed before it is gated */
    float times[CONFIG_SCAN_PARTS]; /* what the parts are multiplied with; 0 = none is */
};

/* Falcon-H1: what keys, the inputs and results of attention and of Mamba 2, and the gate and the
 * result of the feed-forward are multiplied with. */
struct config_falcon {
    float keys, attention_in, attention_out, scan_in, scan_out, mlp[2];
};

/* What a checkpoint was made to give: text; numbers for classes (...ForSequenceClassification); its
 * states alone (...Model, which has no output layer). */
enum config_output { CONFIG_TEXT, CONFIG_CLASSES, CONFIG_STATES };

struct model_config {
    const struct model_family *family;
    enum config_output output;
    struct config_quant_params quant;
    char model_type[32];
    bool text_part; /* of a model that sees or hears, too (textpart.h) */
    uint32_t hidden, intermediate, layers, q_heads, kv_heads, head_dim, vocab;
    uint32_t embed_width; /* of embedding and output layer, between two products; 0 = hidden */
    uint32_t max_model_len;
    bool indexed;          /* an indexer chooses the tokens that attention sees, which are all */
    uint32_t index_tokens; /* up to so many; longer texts are not served. 0 = it is no bound */
    double rms_eps;
    enum ek_activation act;
    bool tied;
    struct config_latent latent; /* then kv_heads is 1, and head_dim that of the cache */
    struct config_delta delta;
    struct config_kinds kinds;
    struct config_streams streams;
    struct config_scan scan;
    struct config_falcon falcon;
    bool
        recurrent[CONFIG_LAYERS_MOST]; /* layers that have a recurrent state instead of attention */
    bool forward_only[CONFIG_LAYERS_MOST]; /* layers that are a feed-forward and nothing else */
    bool output_gate; /* attention: q_proj is [q | gate] for each head; what it gives is gated */
    bool qkv_bias, o_bias, mlp_bias;
    bool qk_norm;                               /* where a family has norms of q and k or not */
    bool sinks;                                 /* attention has them, a score for each head */
    uint32_t window;                            /* tokens, 0 = no layer has one */
    bool windowed[CONFIG_LAYERS_MOST];          /* which layers have it */
    struct config_rope_params rope, rope_local; /* rope_local: of layers with a window, where the */
    bool local_rope;                            /* family has two */
    bool unrotated[CONFIG_LAYERS_MOST];         /* layers without rotary positions */
    bool neighbours;                            /* rotary pairs are (2i, 2i + 1) */
    /* Heads of queries times 1 + warm * ln(1 + floor((position + from) / every)); every 0 = not. */
    float warm;
    uint32_t warm_from, warm_every;
    bool warm_unrotated; /* in layers without rotary positions only */
    bool chunks;         /* the window is the running chunk of so many, see struct ek_op */
    /* Mixture of experts, 0 = none; layers that have a plain feed-forward all the same. */
    uint32_t experts, experts_per_token, expert_intermediate;
    uint32_t expert_latent; /* width that experts take and give, between two products; 0 = hidden */
    bool corrected;         /* where a family has a correction of experts or not */
    bool turned; /* all experts of a layer in one tensor may lie transposed: [experts, in, out] */
    struct ek_routing routing; /* but for `correction`, which the file's tensors tell */
    bool plain[CONFIG_LAYERS_MOST];
    uint32_t
        shared_intermediate; /* of a feed-forward that all tokens take beside experts, 0 = none */
    bool shared_gate;        /* which is gated by one number for each token */
    bool shared_mean;        /* the mean of both counts, not their sum */
    /* What most families lack: 1, 1, 1, 1 / sqrt(head_dim), none, none, 0. */
    float embed_scale, residual_scale, logits_scale, attention_scale;
    float attention_softcap, logit_softcap, norm_offset;
    bool parallel;   /* where attention and feed-forward may read the same normed input, */
    bool two_norms;  /* or each of them a norm of its own of the same stream */
    bool post_norms; /* where a family has norms of what each half of a layer adds or not */
    bool norm_centred, norm_bias; /* norms are of the input less its mean; each has a bias */
    bool norm_bare;               /* none has weights */
    bool post_norms_alone;        /* halves of layers are normed after they were added */
    bool no_last_norm;            /* nothing is normed behind the last layer */
    float clip;                   /* q, k and v are clipped to so much; 0 = not */
    float layer_scale;     /* in layer i attention_scale is divided by this * (i + 1); 0 = not */
    uint32_t extra_layers; /* behind the others in the files, for drafts; they are not read */
    bool dtype_given;
    enum ek_dtype dtype;
    int32_t eos[MODEL_EOS_MOST];
    uint32_t eos_count;
    int32_t bos; /* -1 if none */
};

/* What the products' matrices became, for messages. */
struct model_weights {
    const char *method; /* "int8", "gptq"; "" = plain */
    bool on_load;
    uint32_t matrices, kept, unpacked; /* all of them; with 8 or 4 bits; quantized but unpacked */
    uint32_t rounding; /* kept ones that the checkpoint says round their inputs to 8 bits, */
    bool rounds_f8;    /* to E4M3 */
};
