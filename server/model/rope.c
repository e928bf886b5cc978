/*
 * Rotary frequencies: 1 / theta^(2i/dim), scaled by one of the published recipes:
 *
 *   linear  all frequencies divided by the factor
 *   llama3  long waves divided by the factor, short ones kept, a ramp between
 *   yarn    a ramp over dimensions between divided and kept, and a factor on sin and cos
 *
 * "dynamic" and "longrope" change with the length of a sequence, which a paged cache of rotated
 * keys cannot follow; they are refused.
 */
#include "server/model/rope.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/err.h"

#define POSITIONS_MOST (1u << 26)

static int read_type(const struct model_json *j, struct config_rope_params *p)
{
    static const struct {
        const char *name;
        enum config_rope type;
    } table[] = {{"default", ROPE_DEFAULT},
                 {"linear", ROPE_LINEAR},
                 {"llama3", ROPE_LLAMA3},
                 {"yarn", ROPE_YARN}};
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
                        "llama3 and yarn",
                        j->file, name);
}

/* What a type needs; `j` is rope_scaling or rope_parameters. */
static int read_scaling(const struct model_json *j, struct model_config *c)
{
    struct config_rope_params *p = &c->rope;
    const struct {
        const char *key;
        struct model_range range;
        double *value;
        bool llama3, yarn, needed;
    } rows[] = {
        {"factor", {1, 1e6}, &p->factor, true, true, true},
        {"original_max_position_embeddings",
         {1, POSITIONS_MOST},
         &p->original_positions,
         true,
         true,
         false},
        {"low_freq_factor", {1e-3, 1e6}, &p->low_freq, true, false, true},
        {"high_freq_factor", {1e-3, 1e6}, &p->high_freq, true, false, true},
        {"beta_fast", {1e-3, 1e6}, &p->beta_fast, false, true, false},
        {"beta_slow", {1e-3, 1e6}, &p->beta_slow, false, true, false},
        {"attention_factor", {1e-3, 1e3}, &p->attention_factor, false, true, false},
        {"mscale", {0, 1e3}, &p->mscale, false, true, false},
        {"mscale_all_dim", {0, 1e3}, &p->mscale_all_dim, false, true, false},
    };
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        bool mine = i == 0 || (p->type == ROPE_LLAMA3 && rows[i].llama3) ||
                    (p->type == ROPE_YARN && rows[i].yarn);
        bool given = false;
        int r = mine ? model_json_float(j, rows[i].key, rows[i].range, rows[i].value, &given) : 0;
        if (r < 0)
            return r;
        if (mine && !given && rows[i].needed)
            return ek_fault_set(j->fault, rows[i].key,
                                "%s: %s is missing beside rope_type; download the file again",
                                j->file, rows[i].key);
    }
    if (p->type == ROPE_LLAMA3 && p->low_freq >= p->high_freq)
        return ek_fault_set(j->fault, "high_freq_factor",
                            "%s: high_freq_factor must be larger than low_freq_factor; correct one "
                            "of them",
                            j->file);
    bool cut = true;
    int r = config_read_bool(j, "truncate", true, &cut);
    p->keep_fraction = !cut;
    return r;
}

static int stretch(const struct model_json *j, struct model_config *c)
{
    const struct config_rope_params *p = &c->rope;
    double len = c->max_model_len;
    if (p->type == ROPE_LINEAR)
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

int config_read_rope(const struct model_json *j, struct model_config *c)
{
    const struct model_range theta = {1, 1e12};
    struct config_rope_params *p = &c->rope;
    *p = (struct config_rope_params){.theta = 10000,
                                     .factor = 1,
                                     .original_positions = c->max_model_len,
                                     .beta_fast = 32,
                                     .beta_slow = 1};
    bool given = false;
    double partial = 1;
    int r = model_json_float(j, "rope_theta", theta, &p->theta, &given);
    if (r == 0)
        r = model_json_float(j, "partial_rotary_factor", (struct model_range){0, 1}, &partial,
                             &given);
    if (r < 0)
        return r;

    const json_t *inner = json_object_get(j->object, "rope_parameters");
    const char *key = "rope_parameters";
    if (!inner || json_is_null(inner)) {
        key = "rope_scaling";
        inner = json_object_get(j->object, key);
    }
    if (inner && !json_is_null(inner)) {
        if (!json_is_object(inner))
            return ek_fault_set(j->fault, key, "%s: %s must be an object; correct it", j->file,
                                key);
        struct model_json s = {.file = j->file, .object = inner, .fault = j->fault};
        r = model_json_float(&s, "rope_theta", theta, &p->theta, &given);
        if (r == 0)
            r = model_json_float(&s, "partial_rotary_factor", (struct model_range){0, 1}, &partial,
                                 &given);
        if (r == 0)
            r = read_type(&s, p);
        if (r == 0 && p->type != ROPE_DEFAULT)
            r = read_scaling(&s, c);
        if (r < 0)
            return r;
    }
    if (partial < 1)
        return ek_fault_set(j->fault, "partial_rotary_factor",
                            "%s: partial_rotary_factor %g is not supported for this architecture; "
                            "it must be 1",
                            j->file, partial);
    return stretch(j, c);
}

static double llama3_scale(const struct config_rope_params *p, double freq)
{
    double wave = 2 * M_PI / freq;
    if (wave < p->original_positions / p->high_freq)
        return freq;
    if (wave > p->original_positions / p->low_freq)
        return freq / p->factor;
    double smooth = (p->original_positions / wave - p->low_freq) / (p->high_freq - p->low_freq);
    return (1 - smooth) * freq / p->factor + smooth * freq;
}

/* The dimension that turns `turns` times over the original positions. */
static double yarn_dim(const struct config_rope_params *p, uint32_t head_dim, double turns)
{
    return head_dim * log(p->original_positions / (turns * 2 * M_PI)) / (2 * log(p->theta));
}

static double yarn_mscale(double factor, double mscale)
{
    return factor <= 1 ? 1 : 0.1 * mscale * log(factor) + 1;
}

static double yarn_factor(const struct config_rope_params *p)
{
    if (p->attention_factor > 0)
        return p->attention_factor;
    if (p->mscale > 0 && p->mscale_all_dim > 0)
        return yarn_mscale(p->factor, p->mscale) / yarn_mscale(p->factor, p->mscale_all_dim);
    return yarn_mscale(p->factor, 1);
}

float config_rope_table(const struct config_rope_params *p, uint32_t head_dim, float *inv_freq)
{
    double low = 0, high = 0;
    if (p->type == ROPE_YARN) {
        /* theta 1 makes the logarithm 0: both ends then become infinite and are clamped. */
        low = yarn_dim(p, head_dim, p->beta_fast);
        high = yarn_dim(p, head_dim, p->beta_slow);
        low = fmax(p->keep_fraction ? low : floor(low), 0);
        high = fmin(p->keep_fraction ? high : ceil(high), head_dim - 1.0);
        if (!(high > low))
            high = low + 0.001;
    }
    for (uint32_t i = 0; i < head_dim / 2; i++) {
        double freq = pow(p->theta, -2.0 * i / head_dim);
        switch (p->type) {
        case ROPE_DEFAULT: break;
        case ROPE_LINEAR: freq /= p->factor; break;
        case ROPE_LLAMA3: freq = llama3_scale(p, freq); break;
        case ROPE_YARN: {
            double ramp = fmin(fmax((i - low) / (high - low), 0), 1);
            freq = freq / p->factor * ramp + freq * (1 - ramp);
            break;
        }
        }
        inv_freq[i] = (float)freq;
    }
    return p->type == ROPE_YARN ? (float)yarn_factor(p) : 1.0f;
}
