/*
 * Keys of config.json that several families spell alike: numbers and switches with their bounds,
 * windows, lists of layers, and how experts are chosen. Called by config.c and family_*.c.
 */
#include "server/model/config_keys.h"

#include <string.h>

#include "common/err.h"

int config_read_u32(const struct model_json *j, const char *key, uint32_t max, uint32_t if_missing,
                    uint32_t *ret_value)
{
    int64_t v = if_missing;
    bool given = false;
    int r = model_json_int(j, key, (struct model_range){1, max}, &v, &given);
    if (r < 0)
        return r;
    if (!given && if_missing == 0)
        return ek_fault_set(j->fault, key, "%s: %s is missing; download the file again", j->file,
                            key);
    *ret_value = (uint32_t)v;
    return 0;
}

int config_read_bool(const struct model_json *j, const char *key, bool if_missing, bool *ret_value)
{
    bool given = false;
    *ret_value = if_missing;
    return model_json_bool(j, key, ret_value, &given);
}

int config_read_float(const struct model_json *j, const char *key, struct model_range range,
                      float *value)
{
    double v = 0;
    bool given = false;
    int r = model_json_float(j, key, range, &v, &given);
    if (given)
        *value = (float)v;
    return r;
}

int config_read_same(const struct model_json *j, const char *key, uint32_t max, uint32_t *number)
{
    const json_t *v = json_object_get(j->object, key);
    if (!v || json_is_null(v))
        return 0;
    const json_int_t first = json_integer_value(json_is_array(v) ? json_array_get(v, 0) : v);
    bool same = json_is_integer(v) || json_array_size(v) > 0;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const json_t *each = json_array_get(v, i);
        same = same && json_is_integer(each) && json_integer_value(each) == first;
    }
    if (!same || first < 1 || first > max)
        return ek_fault_set(j->fault, key,
                            "%s: %s must be a number from 1 to %u, the same for each layer: layers "
                            "that differ are not supported",
                            j->file, key, max);
    *number = (uint32_t)first;
    return 0;
}

int config_read_kinds(const struct model_json *j, const char *key, const char *const kinds[2],
                      unsigned flagged, const struct model_config *c, bool *flags)
{
    const json_t *list = json_object_get(j->object, key);

    if (json_array_size(list) != c->layers)
        return ek_fault_set(j->fault, key,
                            "%s: %s must name the kind of each of the %u layers; correct it",
                            j->file, key, c->layers);
    for (uint32_t i = 0; i < c->layers; i++) {
        const char *kind = json_string_value(json_array_get(list, i));
        flags[i] = kind && strcmp(kind, kinds[flagged]) == 0;
        if (!flags[i] && (!kind || strcmp(kind, kinds[!flagged]) != 0))
            return ek_fault_set(j->fault, key, "%s: %s has '%.32s'; supported are %s and %s",
                                j->file, key, kind ? kind : "something that is no text", kinds[0],
                                kinds[1]);
    }
    return 0;
}

int config_refuse_clip(const struct model_json *j)
{
    const json_t *clip = json_object_get(j->object, "clip_qkv");

    if (clip && !json_is_null(clip))
        return ek_fault_set(j->fault, "clip_qkv", "%s: clip_qkv is not supported; it must be null",
                            j->file);
    return 0;
}

int config_read_clip(const struct model_json *j, struct model_config *c)
{
    return config_read_float(j, "clip_qkv", (struct model_range){1e-6, 1e6}, &c->clip);
}

int config_read_window(const struct model_json *j, struct config_window w, struct model_config *c)
{
    const json_t *types = json_object_get(j->object, "layer_types");
    const char *key = c->chunks ? "attention_chunk_size" : "sliding_window";
    int64_t window = json_object_get(j->object, key) ? 0 : w.if_missing; /* null is no window */
    bool given = false;
    int r = model_json_int(j, key, (struct model_range){w.use, 1u << 26}, &window, &given);
    if (r < 0)
        return r;
    c->window = w.use ? (uint32_t)window : 0;
    if (types && !json_is_null(types))
        return config_read_kinds(j, "layer_types",
                                 (const char *const[]){"full_attention", c->chunks
                                                                             ? "chunked_attention"
                                                                             : "sliding_attention"},
                                 1, c, c->windowed);
    for (uint32_t i = 0; i < c->layers; i++)
        c->windowed[i] = i >= w.first_layer && !(w.full_every > 0 && (i + 1) % w.full_every == 0);
    return 0;
}

int config_read_experts(const struct model_json *j, const char *inner, struct model_config *c)
{
    static const char *const keys[] = {"num_experts", "n_routed_experts", "moe_num_experts"};
    const char *key = "num_local_experts", *top = "num_experts_per_tok";
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++)
        if (json_object_get(j->object, keys[i])) {
            key = keys[i];
            break;
        }
    int r = config_read_u32(j, key, EK_MOST_EXPERTS, 0, &c->experts);
    if (r == 0)
        r = config_read_u32(j, json_object_get(j->object, "moe_k") ? "moe_k" : top,
                            EK_MOST_EXPERTS_TOKEN, 0, &c->experts_per_token);
    if (r == 0)
        r = config_read_u32(j, inner, 1u << 20, 0, &c->expert_intermediate);
    if (r == 0 && c->experts_per_token > c->experts)
        return ek_fault_set(j->fault, "num_experts_per_tok",
                            "%s: num_experts_per_tok %u is more than the %u experts of %s; correct "
                            "one of them",
                            j->file, c->experts_per_token, c->experts, key);
    return r;
}

/* Not there or null: 0. */
static int read_count(const struct model_json *j, const char *key, uint32_t max, uint32_t *count)
{
    int64_t n = 0;
    bool given = false;
    int r = model_json_int(j, key, (struct model_range){0, max}, &n, &given);
    *count = (uint32_t)n;
    return r;
}

static int read_groups(const struct model_json *j, struct model_config *c)
{
    uint32_t groups = 1, top = 1;
    int r = config_read_u32(j, "n_group", EK_MOST_EXPERT_GROUPS, 1, &groups);
    if (r == 0)
        r = config_read_u32(j, "topk_group", EK_MOST_EXPERT_GROUPS, 1, &top);
    if (r < 0 || groups == 1)
        return r;
    if (c->experts % groups != 0 || c->experts / groups < 2 || top > groups ||
        c->experts / groups * top < c->experts_per_token)
        return ek_fault_set(j->fault, "n_group",
                            "%s: %u experts do not make n_group %u groups of which topk_group %u "
                            "have %u experts for a token; correct one of them",
                            j->file, c->experts, groups, top, c->experts_per_token);
    c->routing.groups = (uint16_t)groups;
    c->routing.groups_top = (uint16_t)top;
    c->routing.group_best = 2;
    return 0;
}

int config_read_routing(const struct model_json *j, struct model_config *c)
{
    uint32_t shared = 0, first = 0, drafts = 0;
    int r = config_read_bool(j, "norm_topk_prob", true, &c->routing.normalise);
    if (r == 0)
        r = config_read_float(j, "routed_scaling_factor", (struct model_range){1e-6, 1e6},
                              &c->routing.scale);
    if (r == 0)
        r = read_groups(j, c);
    if (r == 0)
        r = read_count(j, "n_shared_experts", 64, &shared);
    if (r == 0)
        r = read_count(j, "first_k_dense_replace", 1u << 20, &first);
    if (r == 0)
        r = read_count(j, "num_mtp_layers", 64, &c->extra_layers);
    if (r == 0)
        r = read_count(j, "num_nextn_predict_layers", 64, &drafts);
    if (drafts > c->extra_layers)
        c->extra_layers = drafts;
    c->shared_intermediate = shared * c->expert_intermediate;
    for (uint32_t i = 0; i < c->layers; i++)
        c->plain[i] = i < first;
    return r;
}

int config_read_warm(const struct model_json *j, struct model_config *c)
{
    const json_t *inner = json_object_get(j->object, "rope_parameters");
    if (!json_is_object(inner))
        inner = json_object_get(j->object, "rope_scaling");
    const struct model_json rope = {.file = j->file, .object = inner, .fault = j->fault};
    uint32_t every = c->max_model_len;
    int r =
        config_read_float(&rope, "llama_4_scaling_beta", (struct model_range){0, 100}, &c->warm);
    if (r == 0)
        r = config_read_u32(&rope, "original_max_position_embeddings", 1u << 26, every, &every);
    c->warm_every = c->warm > 0 ? every : 0;
    return r;
}

int config_read_mlp_types(const struct model_json *j, struct model_config *c)
{
    static const char KEY[] = "mlp_layer_types";
    const json_t *types = json_object_get(j->object, KEY);

    if (!types || json_is_null(types))
        return 0;
    return config_read_kinds(j, KEY, (const char *const[]){"dense", "sparse"}, 0, c, c->plain);
}

int config_read_layers(const struct model_json *j, const char *key, bool value,
                       const struct model_config *c, bool *flags)
{
    const json_t *list = json_object_get(j->object, key), *v;
    size_t at;
    json_array_foreach(list, at, v)
    {
        json_int_t layer = json_is_integer(v) ? json_integer_value(v) : -1;
        if (layer < 0 || layer >= (json_int_t)c->layers)
            return ek_fault_set(j->fault, key,
                                "%s: %s must be numbers of layers from 0 to %u; correct it",
                                j->file, key, c->layers - 1);
        flags[layer] = value;
    }
    return 0;
}

int config_read_plain(const struct model_json *j, struct model_config *c)
{
    uint32_t step = 1;
    int r = config_read_u32(j, "decoder_sparse_step", 1u << 20, 1, &step);
    for (uint32_t i = 0; r == 0 && i < c->layers; i++)
        c->plain[i] = (i + 1) % step != 0;
    return r < 0 ? r : config_read_layers(j, "mlp_only_layers", true, c, c->plain);
}

int config_read_shared(const struct model_json *j, uint32_t if_missing, struct model_config *c)
{
    static const char KEY[] = "num_kv_shared_layers";
    int64_t shared = if_missing;
    bool given = false;
    int r = model_json_int(j, KEY, (struct model_range){0, c->layers - 1}, &shared, &given);
    if (r < 0)
        return r;
    c->kinds.shared = shared < c->layers ? (uint32_t)shared : c->layers;
    const uint32_t writing = c->layers - c->kinds.shared;
    for (uint32_t i = writing; i < c->layers; i++) {
        uint32_t owner = 0;
        while (owner < writing && c->windowed[owner] != c->windowed[i])
            owner++;
        if (owner == writing)
            return ek_fault_set(j->fault, KEY,
                                "%s: %s %u: layer %u reads keys and values of an earlier %s layer, "
                                "of which there is none; correct it",
                                j->file, KEY, c->kinds.shared, i,
                                c->windowed[i] ? "sliding_attention" : "full_attention");
    }
    return 0;
}
