/*
 * Model families. A family is a row: the name in config.json, what it alone reads from there, and
 * a function that writes its operations with the helpers of graph.h. See docs/adding-a-model.md.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/families.h"
#include "server/model/json.h"
#include "server/model/parameters.h"

struct graph_builder;

/* A key that many files have by another name: hidden_size as n_embd. */
struct family_key {
    const char *usual, *own;
};
#define FAMILY_KEYS_MOST 8u

struct model_family {
    const char *architecture;
    struct family_key keys[FAMILY_KEYS_MOST]; /* those that its files may have; NULL ends them */
    uint32_t positions; /* max_position_embeddings where config.json does not say; 0 = it must */
    bool four_times;    /* a feed-forward is four times as wide as the model where it does not */
    bool relu;          /* max(x, 0) may be its activation */
    /* When config.json does not say: 0 = hidden_size / num_attention_heads, 10000, 1e-6, "silu". */
    uint32_t head_dim;
    double rope_theta, rms_eps;
    const char *head_key; /* key of head_dim, if head_dim is not it */
    const char *act;
    const char *act_key;     /* key of the one activation that it has, if hidden_act is not it */
    const char *theta_key;   /* another key of rope_theta, and of partial_rotary_factor, outside */
    const char *partial_key; /* of rope_parameters; both, or NULL = none */
    const char *eps_key;     /* key of the norms' epsilon, if rms_norm_eps is not it */
    bool tied;               /* tie_word_embeddings, too */
    bool partial_rotary;     /* whether its heads may turn in part */
    double partial;          /* which part, where config.json does not say; 0 = all */
    bool rope_alpha; /* rope type dynamic with an `alpha` is a base that is larger for good */
    /* Whether layers with a window have frequencies of their own; theta of those where the old
     * spelling lacks rope_local_base_freq, 0 = as the other layers. */
    bool local_rope;
    double local_theta;
    /* How many layers a list names, where num_hidden_layers may be missing; 0 = none does. */
    uint64_t (*count)(const struct model_json *j);
    /* Keys of its own, after the common ones were read. -EBADMSG with a fault. */
    int (*configure)(const struct model_json *j, struct model_config *c);
    /* Writes the operations; errors stick to the builder. */
    void (*build)(struct graph_builder *b, const struct model_config *c);
};

/* Names of GPT-2's time, which GPT-J and CodeGen have, too. */
#define GPT2_KEYS                                                                                  \
    {                                                                                              \
        {"hidden_size", "n_embd"}, {"num_hidden_layers", "n_layer"},                               \
            {"num_attention_heads", "n_head"}, {"max_position_embeddings", "n_positions"},         \
            {"intermediate_size", "n_inner"},                                                      \
        {                                                                                          \
            "hidden_act", "activation_function"                                                    \
        }                                                                                          \
    }

#define ROW(row, class) extern const struct model_family family_##row;
EK_FAMILIES(ROW)
#undef ROW

const struct model_family *model_family_find(const char *architecture); /* NULL: not supported */
