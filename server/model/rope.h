/*
 * Rotary positions: reading their parameters from config.json and working out the frequencies.
 * Pairs are (i, i + head_dim / 2), see EK_OP_ROPE.
 */
#pragma once

#include "server/model/config.h"

/* Fills c->rope from rope_parameters (transformers 5) or rope_theta and rope_scaling (4), and
 * stretches c->max_model_len by a factor that linear and yarn scaling give. */
int config_read_rope(const struct model_json *j, struct model_config *c);
