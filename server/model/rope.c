/*
 * Rotary frequencies: 1 / theta^(2i/dims), scaled by one of the published recipes:
 *
 *   linear    all frequencies divided by the factor
 * - linear: all frequencies divided by the factor;
 * - dynamic: as trained up to max_position_embeddings; beyond, a base that grows with the length of
 *   the sequence, which the backends compute for each row (struct ek_rope);
 * - llama3: long waves divided by the factor, short ones kept, a ramp between;
 * - yarn: a ramp over dimensions between divided and kept, and a factor on sin and cos;
 * - proportional: a part of the frequencies, as they are; the other pairs do not turn;
 * - longrope: each divided by its own factor, of two lists: one up to the original positions, one
 *   for models served beyond them; and a factor on sin and cos.
 */
#include "server/model/rope.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/err.h"
#include "server/model/family.h"

#define POSITIONS_MOST (1u << 26)

static int read_type(const struct model_json *j, struct config_rope_params *p)
{
    static const struct {
        const char *name;
        enum config_rope type;
    } table[] = {{"default", ROPE_DEFAULT}, {"linear", ROPE_LINEAR},
                 {"dynamic", ROPE_DYNAMIC}, {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN},       {"longrope", ROPE_LONGROPE},
                 {"su", ROPE_LONGROPE},     {"proportional", ROPE_PROPORTIONAL}};
    const char *key = json_object_get(j->object, "rope_type") ? "rope_type" : "type";
    const char *name = "default";
    bool given = false;
    int r = model_json_string(j, key, &name, &given);
    if (r < 0)
        return r;
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++)
        if (strcmp(table[i].name, name) == 0) {
            p->type = table[i].type;
            return 0;
        }
    return ek_fault_set(j->fault, key,
                        "%s: rope type '%.32s' is not supported; supported are default, linear, "
                        "dynamic, llama3, yarn, longrope and proportional",
                        j->file, name);
}

static int read_factors(const struct model_json *j, const char *key, uint32_t count, float *values)
{
    const json_t *list = json_object_get(j->object, key);
    bool ok = json_array_size(list) == count;

    for (size_t i = 0; ok && i < count; i++) {
        double v = json_number_value(json_array_get(list, i));
        ok = v >= 1e-3 && v <= 1e6;
        values[i] = ok ? (float)v : 0.0f;
    }
    if (ok)
        return 0;
    return ek_fault_set(j->fault, key,
                        "%s: %s must be a list of %u numbers from 0.001 to 1e6; download the file "
                        "again",
                        j->file, key, count);
}

#define OF(type) (1u << (type))

/* What a type needs; `j` is rope_scaling or rope_parameters. */
static int read_scaling(const struct model_json *j, struct config_rope_params *p)
{
    const unsigned longs = OF(ROPE_YARN) | OF(ROPE_LONGROPE), llama3 = OF(ROPE_LLAMA3);
    const unsigned factors = OF(ROPE_LINEAR) | OF(ROPE_DYNAMIC) | OF(ROPE_YARN) | llama3;
    const struct {
        const char *key;
        struct model_range range;
        double *value;
        unsigned types, needed; /* which read it, which must have it */
    } rows[] = {
        {"factor", {1, 1e6}, &p->factor, factors | longs | OF(ROPE_PROPORTIONAL), factors},
        {"original_max_position_embeddings",
         {1, POSITIONS_MOST},
         &p->original_positions,
         llama3 | longs,
         0},
        {"low_freq_factor", {1e-3, 1e6}, &p->low_freq, llama3, llama3},
        {"high_freq_factor", {1e-3, 1e6}, &p->high_freq, llama3, llama3},
        {"beta_fast", {1e-3, 1e6}, &p->beta_fast, OF(ROPE_YARN), 0},
        {"beta_slow", {1e-3, 1e6}, &p->beta_slow, OF(ROPE_YARN), 0},
        {"attention_factor", {1e-3, 1e3}, &p->attention_factor, longs, 0},
        {"mscale", {0, 1e3}, &p->mscale, OF(ROPE_YARN), 0},
        {"mscale_all_dim", {0, 1e3}, &p->mscale_all_dim, OF(ROPE_YARN), 0},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool given = false;
        int r = rows[i].types & OF(p->type)
                    ? model_json_float(j, rows[i].key, rows[i].range, rows[i].value, &given)
                    : 0;
        if (r < 0)
            return r;
        if ((rows[i].needed & OF(p->type)) && !given)
            return ek_fault_set(j->fault, rows[i].key,
                                "%s: %s is missing beside rope_type; download the file again",
                                j->file, rows[i].key);
    }
    if (p->type == ROPE_LLAMA3 && p->low_freq > p->high_freq)
        return ek_fault_set(
            j->fault, "high_freq_factor",
            "%s: high_freq_factor must not be less than low_freq_factor; correct one "
            "of them",
            j->file);
    bool cut = true;
    bool given;
    int r = model_json_bool(j, "truncate", &cut, &given);
    p->keep_fraction = !cut;
    if (r == 0 && p->type == ROPE_LONGROPE)
        r = read_factors(j, "short_factor", p->dims / 2, p->short_factor);
    if (r == 0 && p->type == ROPE_LONGROPE)
        r = read_factors(j, "long_factor", p->dims / 2, p->long_factor);
    return r;
}

int config_stretch(const struct model_json *j, struct model_config *c)
{
    const struct config_rope_params *p = &c->rope;
    double len = c->max_model_len;
    if (p->type == ROPE_DYNAMIC ||
        (p->type == ROPE_LINEAR && !c->local_rope)) /* Gemma 3 counts the factor in already */
        len *= p->factor;
    else if (p->type == ROPE_YARN)
        len = p->original_positions * p->factor;
    if (!(len >= 1 && len <= POSITIONS_MOST))
        return ek_fault_set(j->fault, "factor",
                            "%s: factor %g stretches the model to %.12g tokens, more than %u; "
                            "correct it",
                            j->file, p->factor, len, POSITIONS_MOST);
    c->max_model_len = (uint32_t)len;
    return 0;
}

struct theta_keys {
    const char *theta, *partial;
};

static int read_theta(const struct model_json *j, struct theta_keys key,
                      struct config_rope_params *p, double *partial)
{
    bool given = false;
    int r = model_json_float(j, key.theta, (struct model_range){1, 1e12}, &p->theta, &given);
    return r < 0 ? r
                 : model_json_float(j, key.partial, (struct model_range){0, 1}, partial, &given);
}

/* Hunyuan's files call a base that is stretched once `dynamic`. */
static int read_alpha(const struct model_json *j, struct config_rope_params *p)
{
    double alpha = 0;
    bool given = false;
    int r = model_json_float(j, "alpha", (struct model_range){0, 1e6}, &alpha, &given);
    if (r < 0 || !(alpha > 0) || p->dims < 4)
        return r;
    p->type = ROPE_DEFAULT;
    p->theta *= pow(alpha, p->dims / (p->dims - 2.0));
    return 0;
}

/* One set of parameters: top-level keys, then those of the object `inner`, if it is there. */
static int read_params(const struct model_json *j, const char *key, const json_t *inner,
                       const struct model_config *c, struct config_rope_params *p)
{
    *p = (struct config_rope_params){.theta = c->family->rope_theta,
                                     .original_positions = c->max_model_len,
                                     .beta_fast = 32,
                                     .beta_slow = 1};
    if (p->theta <= 0)
        p->theta = 10000;
    bool there = inner && !json_is_null(inner), given = false;
    struct model_json s = {.file = j->file, .object = inner, .fault = j->fault};
    double partial = c->family->partial > 0 ? c->family->partial : 1;
    if (there && !json_is_object(inner))
        return ek_fault_set(j->fault, key, "%s: %s must be an object; correct it", j->file, key);
    const struct theta_keys keys = {"rope_theta", "partial_rotary_factor"},
                            own = {c->family->theta_key, c->family->partial_key};
    int r = read_theta(j, keys, p, &partial);
    if (r == 0 && own.theta)
        r = read_theta(j, own, p, &partial);
    if (r == 0)
        r = model_json_float(j, "original_max_position_embeddings",
                             (struct model_range){1, POSITIONS_MOST}, &p->original_positions,
                             &given);
    if (r == 0 && there)
        r = read_theta(&s, keys, p, &partial);
    if (r < 0)
        return r;

    if (there)
        r = read_type(&s, p);
    if (r < 0)
        return r;
    p->part = partial;
    p->dims = (uint32_t)(c->head_dim * (p->type == ROPE_PROPORTIONAL ? 1 : partial));
    if (partial < 1 && p->type != ROPE_PROPORTIONAL &&
        (!c->family->partial_rotary || p->dims == 0 || p->dims % 2 != 0))
        return ek_fault_set(j->fault, "partial_rotary_factor",
                            "%s: partial_rotary_factor %g is not supported for this architecture "
                            "with head_dim %u; it must be 1%s",
                            j->file, partial, c->head_dim,
                            c->family->partial_rotary ? ", or leave an even number" : "");
    if (c->family->rope_alpha && p->type == ROPE_DYNAMIC)
        r = read_alpha(&s, p);
    if (r == 0 && p->type != ROPE_DEFAULT)
        r = read_scaling(&s, p);
    if (p->type == ROPE_DYNAMIC)
        p->original_positions = c->max_model_len;
    if (r == 0 && p->type == ROPE_DYNAMIC && p->dims < 4)
        r = ek_fault_set(j->fault, "rope_type",
                         "%s: rope type 'dynamic' needs at least 4 rotated elements of a head, "
                         "here it is %u; correct head_dim",
                         j->file, p->dims);
    if (r == 0 && p->factor <= 0) /* longrope may leave it to the two lengths */
        p->factor = p->type == ROPE_LONGROPE ? c->max_model_len / p->original_positions : 1;
    return r;
}

/* The old spelling of a family with two sets: the second is plain. */
static int read_local(const struct model_json *j, const struct model_config *c,
                      struct config_rope_params *p)
{
    bool given = false;
    *p = (struct config_rope_params){.dims = c->rope.dims, .factor = 1, .theta = c->rope.theta};
    if (c->family->local_theta > 0)
        p->theta = c->family->local_theta;
    return model_json_float(j, "rope_local_base_freq", (struct model_range){1, 1e12}, &p->theta,
                            &given);
}

int config_read_rope(const struct model_json *j, struct model_config *c)
{
    const char *key = "rope_parameters";
    const json_t *inner = json_object_get(j->object, key), *local = NULL;
    if (!inner || json_is_null(inner)) {
        key = "rope_scaling";
        inner = json_object_get(j->object, key);
    }
    bool nested = json_is_object(json_object_get(inner, "full_attention")) ||
                  json_is_object(json_object_get(inner, "sliding_attention"));
    if (nested && !c->family->local_rope)
        return ek_fault_set(j->fault, key,
                            "%s: %s has frequencies by kind of layer, which %s lacks; correct it",
                            j->file, key, c->family->architecture);
    if (nested) {
        local = json_object_get(inner, "sliding_attention");
        inner = json_object_get(inner, "full_attention");
    }
    c->local_rope = c->family->local_rope;
    int r = read_params(j, key, inner, c, &c->rope);
    if (r == 0 && local)
        r = read_params(j, key, local, c, &c->rope_local);
    else if (r == 0 && c->local_rope)
        r = read_local(j, c, &c->rope_local);
    if (r == 0 && c->local_rope &&
        (c->rope.type == ROPE_LONGROPE || c->rope_local.type == ROPE_LONGROPE))
        return ek_fault_set(j->fault, key,
                            "%s: %s has longrope beside other frequencies, which is not supported",
                            j->file, key);
    return r;
}

static double llama3_scale(const struct config_rope_params *p, double freq)
{
    double wave = 2 * M_PI / freq;
    if (wave < p->original_positions / p->high_freq)
        return freq;
    if (wave > p->original_positions / p->low_freq || p->low_freq == p->high_freq)
        return freq / p->factor;
    double smooth = (p->original_positions / wave - p->low_freq) / (p->high_freq - p->low_freq);
    return (1 - smooth) * freq / p->factor + smooth * freq;
}

/* The dimension that turns `turns` times over the original positions. */
static double yarn_dim(const struct config_rope_params *p, double turns)
{
    return p->dims * log(p->original_positions / (turns * 2 * M_PI)) / (2 * log(p->theta));
}

double config_yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_factor(const struct config_rope_params *p)
{
    if (p->attention_factor > 0)
        return p->attention_factor;
    if (p->mscale > 0 && p->mscale_all_dim > 0)
        return config_yarn_mscale(p->factor, p->mscale) /
               config_yarn_mscale(p->factor, p->mscale_all_dim);
    return config_yarn_mscale(p->factor, 1);
}

static float longrope_factor(const struct config_rope_params *p)
{
    if (p->attention_factor > 0)
        return (float)p->attention_factor;
    if (p->factor <= 1 || p->original_positions <= 1)
        return 1.0f;
    return (float)sqrt(1 + log(p->factor) / log(p->original_positions));
}

float config_rope_table(const struct config_rope_params *p, bool beyond, float *inv_freq)
{
    double low = 0, high = 0;
    if (p->type == ROPE_YARN) {
        /* theta 1 makes the logarithm 0: both ends then become infinite and are clamped. */
        low = yarn_dim(p, p->beta_fast);
        high = yarn_dim(p, p->beta_slow);
        low = fmax(p->keep_fraction ? low : floor(low), 0);
        high = fmin(p->keep_fraction ? high : ceil(high), p->dims - 1.0);
        if (!(high > low))
            high = low + 0.001;
    }
    for (uint32_t i = 0; i < p->dims / 2; i++) {
        double freq = pow(p->theta, -2.0 * i / p->dims);
        switch (p->type) {
        case ROPE_DEFAULT:
        case ROPE_DYNAMIC: break;
        case ROPE_LINEAR: freq /= p->factor; break;
        case ROPE_PROPORTIONAL:
            freq = i < (uint32_t)(p->part * p->dims / 2) ? freq / p->factor : 0;
            break;
        case ROPE_LLAMA3: freq = llama3_scale(p, freq); break;
        case ROPE_YARN: {
            double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
            freq = freq / p->factor * ramp + freq * (1 - ramp);
            break;
        }
        case ROPE_LONGROPE:
            freq /= (double)(beyond ? p->long_factor[i] : p->short_factor[i]);
            break;
        }
        inv_freq[i] = (float)(p->backwards ? -freq : freq);
    }
    if (p->type == ROPE_LONGROPE)
        return longrope_factor(p);
    return p->type == ROPE_YARN ? (float)yarn_factor(p) : 1.0f;
}
