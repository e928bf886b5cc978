/*
 * Mamba 2 as Granite 4 and Nemotron-H have it: in_proj gives [z | x B C | steps], x, B and C go
 * through a short convolution with SiLU, the scan (struct ek_scan) follows, what comes out is gated
 * by z, and then normed in as many groups as B and C have. In Falcon-H1 the parts of in_proj's
 * result have multipliers, and the norm comes before the gate or is not there.
 */
#include "server/model/mamba.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "server/model/config_keys.h"
#include "server/model/graph_weights.h"

#define MAMBA_HEADS_MOST  4096u
#define MAMBA_GROUPS_MOST 1024u
#define MAMBA_DIM_MOST    4096u

/* A number of time_step_limit: JSON has no infinity, so it comes as text, or as an object that
 * holds it. */
static bool mamba_limit_of(const json_t *v, float *ret_limit)
{
    const json_t *inner = json_object_get(v, "__float__");
    const char *text = json_string_value(inner ? inner : v);
    const double n = json_is_number(v) ? json_number_value(v) : text ? HUGE_VAL : -1;

    if (text && strcmp(text, "Infinity") != 0)
        return false;
    *ret_limit = (float)n;
    return n >= 0;
}

static int read_limits(const struct model_json *j, struct config_scan *s)
{
    const json_t *list = json_object_get(j->object, "time_step_limit");

    s->least = 0.0f;
    s->most = INFINITY;
    if (!list || json_is_null(list))
        return 0;
    if (json_array_size(list) == 2 && mamba_limit_of(json_array_get(list, 0), &s->least) &&
        mamba_limit_of(json_array_get(list, 1), &s->most) && s->least <= s->most &&
        isfinite(s->least))
        return 0;
    return ek_fault_set(j->fault, "time_step_limit",
                        "%s: time_step_limit must be two numbers from 0, the second no less than "
                        "the first or Infinity; correct it",
                        j->file);
}

int mamba_configure(const struct model_json *j, const struct mamba_keys *k, struct model_config *c)
{
    struct config_scan *s = &c->scan;
    int r = config_read_u32(j, k->heads, MAMBA_HEADS_MOST, 128, &s->heads);
    if (r == 0)
        r = config_read_u32(j, k->groups, MAMBA_GROUPS_MOST, k->usual_groups, &s->groups);
    if (r == 0)
        r = config_read_u32(j, k->state_dim, MAMBA_DIM_MOST, k->usual_state, &s->state_dim);
    if (r == 0)
        r = config_read_u32(j, k->kernel, EK_MOST_CONV, 4, &c->delta.kernel);
    if (r == 0 && c->delta.kernel < 2)
        r = ek_fault_set(j->fault, k->kernel, "%s: %s is %u; it must be 2 to %u", j->file,
                         k->kernel, c->delta.kernel, EK_MOST_CONV);
    if (r == 0)
        r = config_read_bool(j, k->conv_bias, true, &c->delta.conv_bias);
    if (r == 0)
        r = config_read_bool(j, k->bias, false, &s->bias);
    s->out_bias = s->bias;
    if (r == 0)
        r = read_limits(j, s);
    if (r == 0 && s->heads % s->groups != 0)
        r = ek_fault_set(j->fault, k->groups,
                         "%s: %s %u is no multiple of %s %u; correct one of them", j->file,
                         k->heads, s->heads, k->groups, s->groups);
    return r;
}

void mamba_begin(struct graph_builder *b, struct mamba_values *v)
{
    const struct config_scan *s = &b->config->scan;
    const uint32_t inner = s->heads * s->head_dim, both = 2 * s->groups * s->state_dim;

    v->wide = graph_value(b, 2 * inner + both + s->heads);
    v->xbc = graph_value(b, inner + both);
    v->out = graph_value(b, inner);
    if (s->times[0] > 0) {
        v->shared = graph_value(b, s->groups * s->state_dim);
        v->steps = graph_value(b, s->heads);
    }
}

/* Columns of a value from `first`, as many as `by` is wide, times a number; `by` is overwritten. */
static void mamba_times(struct graph_builder *b, uint16_t value, uint16_t by, uint32_t first,
                        float times)
{
    const uint32_t n = graph_width(b, by);

    if (times == 1.0f)
        return;
    graph_take(b, by, value, (struct graph_run){.first = first, .group = n, .heads = 1});
    graph_scale(b, by, times, NULL);
    graph_take(b, value, by, (struct graph_run){.group = n, .heads = 1, .to = first});
}

static void mamba_parts(struct graph_builder *b, const struct mamba_values *v)
{
    const struct config_scan *s = &b->config->scan;
    const uint32_t inner = s->heads * s->head_dim, both = s->groups * s->state_dim;

    mamba_times(b, v->wide, v->out, 0, s->times[0]);
    mamba_times(b, v->wide, v->out, inner, s->times[1]);
    mamba_times(b, v->wide, v->shared, 2 * inner, s->times[2]);
    mamba_times(b, v->wide, v->shared, 2 * inner + both, s->times[3]);
    mamba_times(b, v->wide, v->steps, 2 * inner + 2 * both, s->times[4]);
}

void mamba_mixer(struct graph_builder *b, const struct mamba_values *v, uint16_t value,
                 const char *name)
{
    const struct config_scan *s = &b->config->scan;
    const uint32_t inner = s->heads * s->head_dim, xbc = inner + 2 * s->groups * s->state_dim;
    char in[64], out[64], conv[64], norm[64];
    const struct graph_part in_proj = {in, inner + xbc + s->heads};
    const struct graph_part out_proj = {out, b->config->hidden};
    const struct graph_conv c = {.name = conv,
                                 .first = inner,
                                 .kernel = b->config->delta.kernel,
                                 .bias = b->config->delta.conv_bias,
                                 .silu = true};

    (void)snprintf(in, sizeof(in), "%s.in_proj", name);
    (void)snprintf(out, sizeof(out), "%s.out_proj", name);
    (void)snprintf(conv, sizeof(conv), "%s.conv1d", name);
    (void)snprintf(norm, sizeof(norm), "%s.norm", name);
    graph_linear(b, v->wide, value, &in_proj, 1, s->bias);
    if (s->times[0] > 0)
        mamba_parts(b, v);
    graph_convolve(b, v->xbc, v->wide, &c);
    graph_scan(b, v->out, v->xbc, v->wide, inner + xbc, name);
    if (!s->unnormed && s->norm_first)
        graph_norm_own(b, v->out, norm, inner / s->groups);
    graph_gate(b, v->out, v->wide, EK_GATE_SILU, (struct graph_run){.step = inner, .group = inner});
    if (!s->unnormed && !s->norm_first)
        graph_norm_own(b, v->out, norm, inner / s->groups);
    graph_linear(b, value, v->out, &out_proj, 1, s->out_bias);
}
