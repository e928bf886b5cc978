/*
 * Operations of layers with a recurrent state, and the gates around them. Each has its part of a
 * sequence's state, in order of the operations, on whole lines of 64 bytes.
 */
#include <assert.h>
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
                                                .v_dim = t->v_dim}});
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
