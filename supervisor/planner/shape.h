/*
 * A model as the planner sees it: the numbers of config.json that decide how much memory it takes
 * and how much it reads and computes. Any decoder of the Hugging Face form, also those that
 * evenkeel-server does not serve. Pure: JSON in, numbers out.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_fault;

struct plan_shape {
    char family[48];  /* model_type */
    char refused[64]; /* the class, where evenkeel-server does not load it; "" = it does */
    uint32_t hidden, layers, heads, kv_heads, head_dim, intermediate, vocab;
    uint32_t max_len;            /* positions */
    uint32_t weight_bits;        /* as stored: 32, 16, 8, 4 */
    bool experts_only;           /* are of so many bits; the rest has 16 */
    bool tied, gated;            /* embeddings serve as head; gate, up and down */
    uint32_t norms;              /* of a layer, as wide as the model */
    bool head_norms, wide_norms; /* of q and k: of each head, or as a whole */
    bool each_norms;             /* of each head, with weights of its own in a tensor each */
    bool norm_bias;
    bool qkv_bias, out_bias, forward_bias;
    bool output_bias;              /* of the output layer */
    bool bare_norms, no_last_norm; /* norms have no weights; there is none behind the last layer */
    bool learned;                  /* there is a vector for each position */
    uint32_t embed_width; /* of embedding and output layer, between two products; 0 = hidden */
    bool sinks, expert_bias, correction, shared_gate; /* of heads; of experts and their choice */
    bool mixture_norm;                                /* of what a mixture gives */
    /* Mixture of experts; 0 = none. */
    uint32_t experts, experts_used, expert_intermediate, shared_intermediate, dense_layers;
    uint32_t expert_latent; /* width that experts take and give, between two products; 0 = hidden */
    /* Multi-head latent attention (DeepSeek): what a token keeps; 0 = ordinary attention. */
    uint32_t latent, latent_rope, q_latent, nope_dim, value_dim;
    /* What chooses the tokens that it sees (DeepSeek V3.2, GLM-5), in so many layers: in the files,
     * not in evenkeel-server's memory. */
    uint32_t index_heads, index_dim, indexers;
    uint32_t
        index_tokens; /* how many it sees: evenkeel-server serves up to so many; 0 = no bound */
    /* Layers with a state of a fixed size instead of KV: linear attention (Qwen3-Next, Qwen3.5),
     * Mamba 2 (Granite 4, Nemotron-H, Falcon H1: k_heads are groups), or without v_heads a short
     * convolution (LFM2). gates: numbers of a token beside. */
    uint32_t recurrent_layers, k_heads, v_heads, k_dim, v_dim, conv, gates;
    bool scan, conv_bias;            /* Mamba 2; biases of convolutions */
    bool conv_apart;                 /* q, k and v have one each (OLMo Hybrid) */
    bool mixer_bias, mixer_out_bias; /* and of the products around */
    bool beside, unnormed; /* it and attention in each layer (Falcon H1); Mamba 2 without a norm */
    /* Nemotron-H: a layer is a recurrent one, attends, or is one of these, a feed-forward. */
    bool single;
    uint32_t forward_layers;
    bool output_gate;                 /* of attention: q_proj is twice as wide */
    bool gate_proj;                   /* or there is a product beside it, as wide as q_proj */
    uint32_t window, windowed_layers; /* layers that keep only so many tokens */
    /* Gemma 4: heads of layers without a window, 0 = as the others; there keys may serve as values.
     * The last layers that read the KV of others, of them with a window, and whether they have a
     * feed-forward of twice the width. Elements of a second embedding for each layer. */
    uint32_t full_head_dim, full_kv_heads, shared_layers, shared_windowed, layer_input;
    bool keys_as_values, shared_wide;
    /* Gemma 3n: streams beside each other, the rank of a product beside attention, and how many
     * tokens have a row in the second embedding; 0 = as others. */
    uint32_t streams, laurel, input_rows;
    bool streams_scaled; /* with a factor for each column of what is corrected */
    double file_bytes;   /* of the weight files, 0 = not known */
};

/* -EBADMSG with a fault that names the key. */
int plan_shape_parse(const char *text, size_t len, struct plan_shape *ret_shape,
                     struct ek_fault *fault);
/* path: config.json or a directory that holds it; weight files beside it are measured. */
int plan_shape_read(const char *path, struct plan_shape *ret_shape, struct ek_fault *fault);

/* -EBADMSG with a sentence that names the nearest class, when evenkeel-server does not load it. A
 * config.json that names no class is not refused. */
int plan_shape_loads(const struct plan_shape *s, struct ek_fault *fault);

/* Layers that attend, by their heads: all, or those with a window and those without. */
struct plan_heads {
    double layers, keeping; /* all of them; those that have KV of their own */
    uint32_t kv_heads, head_dim;
    bool keys_as_values, windowed;
};
uint32_t plan_attending(const struct plan_shape *s);  /* layers that attend */
uint32_t plan_forwarding(const struct plan_shape *s); /* those with a feed-forward, or experts */
uint32_t plan_heads_of(const struct plan_shape *s, struct plan_heads ret_heads[2]);
double plan_second_embedding(const struct plan_shape *s); /* numbers in it */
double plan_positions(const struct plan_shape *s);        /* in the table of positions */
double plan_output_layer(const struct plan_shape *s);     /* in that */
uint32_t plan_embed_width(const struct plan_shape *s);
double plan_parameters(const struct plan_shape *s);
/* Of those, what one token reads: all but the experts that it does not use and the rows of the
 * embedding. */
double plan_active_parameters(const struct plan_shape *s);
/* Weights when layers are stored with so many bits; embeddings and head stay in 16. bits 0: as the
 * files are. 4 bits carry a scale and a zero for each 128: 4.25. */
double plan_weight_bytes(const struct plan_shape *s, uint32_t bits);
/* KV cache of one token over all layers, on one of `split` cards. bits: of a number in the cache.
 */
double plan_kv_token_bytes(const struct plan_shape *s, uint32_t split, uint32_t bits);
/* Recurrent state of one sequence over all layers, in float32. */
double plan_state_bytes(const struct plan_shape *s);
/* Of one request of that length: layers with a window keep no more than it. */
double plan_kv_request_bytes(const struct plan_shape *s, uint32_t split, uint32_t bits, double len);
