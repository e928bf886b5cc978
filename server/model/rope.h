/*
 * Rotary positions: reading their parameters from config.json and working out the frequencies.
 * Pairs are (i, i + dims / 2), see EK_OP_ROPE.
 */
#pragma once

#include "server/model/json.h"
#include "server/model/parameters.h"

/* Fills c->rope (and c->rope_local, where the file has two) from rope_parameters (transformers 5)
 * or rope_theta and rope_scaling (4). */
int config_read_rope(const struct model_json *j, struct model_config *c);
/* Stretches c->max_model_len by a factor that linear and yarn scaling give; after the family's own
 * keys were read. */
int config_stretch(const struct model_json *j, struct model_config *c);
/* By what yarn makes up for scores that flatten when positions are stretched by `factor`. */
double config_yarn_mscale(double factor, double mscale);
/* Writes inv_freq[dims / 2], returns the factor on sin and cos. `beyond`: longrope's factors for
 * sequences longer than the original positions. */
float config_rope_table(const struct config_rope_params *p, bool beyond, float *inv_freq);
