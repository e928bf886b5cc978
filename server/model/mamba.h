/*
 * Layers of Mamba 2, which keep a state of a fixed size instead of keys and values: what families
 * that have them read from config.json, and their operations.
 */
#pragma once

#include "server/model/graph.h"
#include "server/model/json.h"

/* What a family calls the keys, and what it takes where a file has none. */
struct mamba_keys {
    const char *heads, *groups, *state_dim, *kernel, *conv_bias, *bias;
    uint32_t usual_groups, usual_state;
};

/* All but head_dim, which is the family's to read; -EBADMSG with a fault. */
int mamba_configure(const struct model_json *j, const struct mamba_keys *k, struct model_config *c);

struct mamba_values {
    uint16_t wide, xbc, out;
    uint16_t shared, steps; /* of the width of B, and of steps, where parts have multipliers */
};

void mamba_begin(struct graph_builder *b, struct mamba_values *v);
/* In place of `value`; the weights are NAME.in_proj and so on. */
void mamba_mixer(struct graph_builder *b, const struct mamba_values *v, uint16_t value,
                 const char *name);
