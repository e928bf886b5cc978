/*
 * Several tools write these scales, each under names of its own; the first that is there counts.
 * One number serves a layer's keys, one its values, as in vLLM.
 */
#include "server/model/kvscale.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"

static int read_one(const struct st_set *s, const struct st_tensor *t, float *ret_scale,
                    struct ek_fault *fault)
{
    float f;

    if (st_number(s, t, &f) < 0)
        return ek_fault_set(fault, t->name,
                            "%s: tensor '%.128s' is not one number, and the KV cache takes one "
                            "scale for a layer; use --kv-cache-dtype auto",
                            st_file_name(s, t), t->name);
    if (!isfinite(f))
        return ek_fault_set(fault, t->name,
                            "%s: tensor '%.128s' is not a finite number; download the model again, "
                            "or use --kv-cache-dtype auto",
                            st_file_name(s, t), t->name);
    *ret_scale = f > 0.0f ? f : 0.0f;
    return 0;
}

static int find_one(const struct st_set *s, const char *prefix, const char *const *names,
                    float *ret_scale, struct ek_fault *fault)
{
    char name[192];

    *ret_scale = 0.0f;
    for (; *names; names++) {
        int n = snprintf(name, sizeof(name), "%s%s", prefix, *names);
        struct st_tensor *t = n > 0 && (size_t)n < sizeof(name) ? st_find(s, name) : NULL;
        if (!t)
            continue;
        t->used = true;
        return read_one(s, t, ret_scale, fault);
    }
    return 0;
}

int kvscale_find(const struct st_set *tensors, const char *prefix, float *ret_k, float *ret_v,
                 struct ek_fault *fault)
{
    static const char *const k[] = {"self_attn.k_scale",        "self_attn.attn.k_scale",
                                    "self_attn.k_proj.k_scale", "self_attn.k_proj.output_scale",
                                    "self_attn.kv_scale",       NULL};
    static const char *const v[] = {"self_attn.v_scale",        "self_attn.attn.v_scale",
                                    "self_attn.v_proj.v_scale", "self_attn.v_proj.output_scale",
                                    "self_attn.kv_scale",       NULL};

    int r = find_one(tensors, prefix, k, ret_k, fault);
    return r < 0 ? r : find_one(tensors, prefix, v, ret_v, fault);
}
