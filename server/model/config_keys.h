/*
 * Keys of config.json as families share them. Every reader gives 0, -EBADMSG with a fault (field,
 * limit and remedy) or -ENOMEM.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/model/json.h"
#include "server/model/parameters.h"

int config_read_bool(const struct model_json *j, const char *key, bool if_missing, bool *ret_value);
/* Written only if the key is there. */
int config_read_float(const struct model_json *j, const char *key, struct model_range range,
                      float *value);
/* A whole number from 1; if_missing 0: it must be there. */
int config_read_u32(const struct model_json *j, const char *key, uint32_t max, uint32_t if_missing,
                    uint32_t *ret_value);
/* A whole number from 1, or a list of it for all layers; written only if the key is there and not
 * null. */
int config_read_same(const struct model_json *j, const char *key, uint32_t max, uint32_t *number);
/* The number of experts (it goes by either key), how many a token takes, and the size of one, which
 * `inner` names. */
int config_read_experts(const struct model_json *j, const char *inner, struct model_config *c);
/* How DeepSeek and those after it spell how experts are chosen and what is beside them: shares,
 * groups, shared experts, first layers that are plain, layers for drafts. After the experts. */
int config_read_routing(const struct model_json *j, struct model_config *c);
/* Which layers have linear attention: by layer_types, or all but every full_attention_interval-th;
 * and its heads, with what a family has where a key is missing. */
int config_read_delta_layers(const struct model_json *j, struct model_config *c);
int config_read_delta(const struct model_json *j, struct config_delta usual,
                      struct model_config *c);
/* A list that the file has, with one of two kinds for each layer: a layer's flag tells whether it
 * is the second (`flagged` 1) or the first one (0). */
int config_read_kinds(const struct model_json *j, const char *key, const char *const kinds[2],
                      unsigned flagged, const struct model_config *c, bool *flags);
/* A list of numbers of layers: those layers' flags become `value`; without the key nothing is. */
int config_read_layers(const struct model_json *j, const char *key, bool value,
                       const struct model_config *c, bool *flags);
/* Layers without experts: those that mlp_only_layers names, and all but every
 * decoder_sparse_step-th.
 */
int config_read_plain(const struct model_json *j, struct model_config *c);
/* The same as mlp_layer_types names them: dense or sparse; not there: as they are. */
int config_read_mlp_types(const struct model_json *j, struct model_config *c);
/* Queries that grow with the position, as rope_parameters or rope_scaling tell. */
int config_read_warm(const struct model_json *j, struct model_config *c);
/* sliding_window and layer_types; with `chunks` set attention_chunk_size. Without layer_types, a
 * window counts if `use` says so, in layers from `first_layer`, but for every `full_every`th (0 =
 * none); `if_missing`: the window where the file has no such key. */
struct config_window {
    bool use;
    uint32_t first_layer, full_every, if_missing;
};
int config_read_window(const struct model_json *j, struct config_window w, struct model_config *c);
/* OLMo's bound on q, k and v; null: there is none. Or it must be null. */
int config_refuse_clip(const struct model_json *j);
int config_read_clip(const struct model_json *j, struct model_config *c);
/* How many of the last layers read the keys and values of an earlier layer of their kind, which
 * must be there; after the windows. `if_missing` beyond the layers is all of them, and refused so.
 */
int config_read_shared(const struct model_json *j, uint32_t if_missing, struct model_config *c);
