/*
 * Operations of layers with a recurrent state, and gates, around them and of feed-forwards. Each
 * state has its part of a sequence's, in order of the operations, on whole lines of 64 bytes.
 */
#include <assert.h>
#include <math.h>
#include <stdio.h>

#include "common/err.h"
#include "server/model/graph_weights.h"

#define STATE_LINE 16u /* floats */

void graph_take(struct graph_builder *b, uint16_t dst, uint16_t src, struct graph_run run)
{
    graph_op_push(b, (struct ek_op){.kind = EK_OP_TAKE,
                                    .dst = dst,
                                    .src = src,
                                    .weight = EK_NO_WEIGHT,
                                    .bias = EK_NO_WEIGHT,
                                    .u.take = {.first = run.first,
                                               .step = run.step,
                                               .group = run.group,
                                               .heads = run.heads,
                                               .to = run.to}});
}

void graph_gate(struct graph_builder *b, uint16_t dst, uint16_t src, enum ek_gate act,
                struct graph_run run)
{
    graph_op_push(
        b, (struct ek_op){
               .kind = EK_OP_GATE,
               .dst = dst,
               .src = src,
               .weight = EK_NO_WEIGHT,
               .bias = EK_NO_WEIGHT,
               .u.gate = {.first = run.first, .step = run.step, .group = run.group, .act = act}});
}

/* The one number of a tensor, *number where there need not be one. */
static void number_read(struct graph_builder *b, const char *name, const char *what, bool needed,
                        float *number)
{
    char full[96];

    (void)snprintf(full, sizeof(full), "%s%s.%s", b->prefix, name, what);
    struct st_tensor *t = b->error ? NULL : st_find(b->tensors, full);
    if (b->error || (!t && !needed))
        return;
    float f = NAN;
    if (!t || st_number(b->tensors, t, &f) < 0 || !isfinite(f)) {
        b->error = ek_fault_set(b->fault, full,
                                "*.safetensors: tensor '%s' is missing or not one finite number; "
                                "download the model again",
                                full);
        return;
    }
    t->used = true;
    *number = f;
}

static float softplus(float x)
{
    return x > 20.0f ? x : log1pf(expf(x));
}

void graph_clip(struct graph_builder *b, uint16_t value)
{
    const uint32_t n = graph_width(b, value);

    graph_gate(b, value, value, EK_GATE_CLIP, (struct graph_run){.step = n, .group = n});
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].u.gate.numbers.rising = b->config->clip;
}

/* The file's eps keeps the exponent's argument from 0, which changes nothing that a float shows. */
void graph_xielu(struct graph_builder *b, uint16_t value, const char *name)
{
    float rising = 0.0f, falling = 0.0f, slope = 0.5f, eps = 0.0f;
    const uint32_t n = graph_width(b, value);

    number_read(b, name, "alpha_p", true, &rising);
    number_read(b, name, "alpha_n", true, &falling);
    number_read(b, name, "beta", false, &slope);
    number_read(b, name, "eps", false, &eps);
    graph_gate(b, value, value, EK_GATE_XIELU, (struct graph_run){.step = n, .group = n});
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].u.gate.numbers =
            (struct ek_gate_numbers){softplus(rising), slope + softplus(falling), slope};
}

/* Room for the state of the last operation; where it begins. */
static uint32_t state_take(struct graph_builder *b)
{
    struct ek_graph *g = b->graph;
    uint32_t unused;
    if (b->error)
        return 0;
    const uint32_t at = g->state_floats;
    const uint64_t floats = ek_op_state(g, &g->ops[g->op_count - 1], &unused);
    const uint64_t end = (at + floats + STATE_LINE - 1) / STATE_LINE * STATE_LINE;
    if (end > INT32_MAX) {
        b->error = ek_fault_set(b->fault, "config.json",
                                "config.json: the recurrent state of a sequence takes more than 8 "
                                "GiB; correct the sizes of its layers");
        return 0;
    }
    g->state_floats = (uint32_t)end;
    return at;
}

void graph_convolve(struct graph_builder *b, uint16_t dst, uint16_t src,
                    const struct graph_conv *conv)
{
    const uint32_t n = graph_width(b, dst);
    const struct graph_part part = {conv->name, n};
    const uint32_t w = graph_conv_weight(b, conv->name, n, conv->kernel);
    const uint32_t bias = conv->bias ? graph_weight(b, &part, 1, 1, ".bias") : EK_NO_WEIGHT;

    graph_op_push(
        b, (struct ek_op){
               .kind = EK_OP_CONV,
               .dst = dst,
               .src = src,
               .weight = w,
               .bias = bias,
               .u.conv = {.first = conv->first, .kernel = conv->kernel, .silu = conv->silu}});
    const uint32_t at = state_take(b);
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].u.conv.state_at = at;
}

void graph_delta(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t gates,
                 const char *decay, const char *bias)
{
    const struct config_delta *t = &b->config->delta;
    const struct graph_part a = {decay, t->v_heads}, dt = {bias, t->v_heads};
    const uint32_t w = graph_weight(b, &a, 1, 1, ""), v = graph_weight(b, &dt, 1, 1, "");

    graph_op_push(b, (struct ek_op){.kind = EK_OP_DELTA,
                                    .dst = dst,
                                    .src = src,
                                    .weight = w,
                                    .bias = v,
                                    .u.delta = {.gates = gates,
                                                .k_heads = t->k_heads,
                                                .v_heads = t->v_heads,
                                                .k_dim = t->k_dim,
                                                .v_dim = t->v_dim,
                                                .twice = t->twice}});
    const uint32_t at = state_take(b);
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].u.delta.state_at = at;
}

/* A number for each head of a scan. */
static uint32_t scan_weight(struct graph_builder *b, const char *name, const char *what)
{
    char text[80];
    const struct graph_part part = {text, b->config->scan.heads};

    (void)snprintf(text, sizeof(text), "%s.%s", name, what);
    return graph_weight(b, &part, 1, 1, "");
}

void graph_scan(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t steps, uint32_t first,
                const char *name)
{
    const struct config_scan *s = &b->config->scan;
    const uint32_t falls = scan_weight(b, name, "A_log"), bias = scan_weight(b, name, "dt_bias");
    const uint32_t skip = scan_weight(b, name, "D");

    graph_op_push(b, (struct ek_op){.kind = EK_OP_SCAN,
                                    .dst = dst,
                                    .src = src,
                                    .weight = falls,
                                    .bias = bias,
                                    .u.scan = {.steps = steps,
                                               .step_first = first,
                                               .heads = s->heads,
                                               .groups = s->groups,
                                               .head_dim = s->head_dim,
                                               .state_dim = s->state_dim,
                                               .skip = skip,
                                               .least = s->least,
                                               .most = s->most}});
    const uint32_t at = state_take(b);
    if (!b->error)
        b->graph->ops[b->graph->op_count - 1].u.scan.state_at = at;
}
