/*
 * The operation of experts: in which of the forms that are published the files have their matrices,
 * the router's product, and what the routing needs beside it.
 */
#include <stdio.h>

#include "server/model/graph_weights.h"

/* Experts without a gate: what comes up is its own. */
static void experts_lone(struct graph_builder *b, const struct graph_expert_names *names,
                         struct ek_op *op)
{
    const uint32_t inner = b->config->expert_intermediate, n = graph_width(b, op->src);

    if (graph_experts_joined(b, names)) {
        const struct graph_shape in = {3, {b->config->experts, inner, n}};
        const struct graph_shape out = {3, {b->config->experts, n, inner}};
        op->weight = graph_expert_slices(b, names->all_in, &in, 0, inner);
        op->u.experts.down = graph_expert_slices(b, names->all_out, &out, 0, n);
    } else {
        op->weight = graph_expert_matrices(b, names->up, inner, n);
        op->u.experts.down = graph_expert_matrices(b, names->down, n, inner);
    }
    op->u.experts.up = op->weight;
}

/* Whether experts of one tensor lie transposed, as they are published and not always saved again:
 * `down` is [experts, inner, n] then. Where the two are equal, gate and up tell. */
static bool experts_turned(const struct graph_builder *b, const struct graph_expert_names *names,
                           uint32_t n)
{
    const uint32_t inner = b->config->expert_intermediate;
    const char *name = inner != n ? names->all_out : names->all_in;
    char full[96];

    if (b->error || !names->turned || !name)
        return false;
    (void)snprintf(full, sizeof(full), "%s%s", b->prefix, name);
    const struct st_tensor *t = st_find(b->tensors, full);
    return !t || t->dims != 3 || t->shape[2] == (inner != n ? n : 2 * inner);
}

/* By the names that most families have, in one that has its own. */
static void experts_apart(struct graph_builder *b, const struct graph_expert_names *names,
                          struct ek_op *op)
{
    const uint32_t inner = b->config->expert_intermediate, n = graph_width(b, op->src);
    char name[64];

    (void)snprintf(name, sizeof(name), "%s.%%u.gate_proj", names->apart);
    op->weight = graph_expert_matrices(b, name, inner, n);
    (void)snprintf(name, sizeof(name), "%s.%%u.up_proj", names->apart);
    op->u.experts.up = graph_expert_matrices(b, name, inner, n);
    (void)snprintf(name, sizeof(name), "%s.%%u.down_proj", names->apart);
    op->u.experts.down = graph_expert_matrices(b, name, n, inner);
}

/* The matrices of all experts, and their biases. */
static void experts_all(struct graph_builder *b, const struct graph_expert_names *names,
                        struct ek_op *op)
{
    const uint32_t inner = b->config->expert_intermediate, n = graph_width(b, op->src);
    const uint32_t second = names->woven ? 1 : inner, step = names->woven ? 2 : 1;
    const struct graph_lane gate = {names->all_in, inner, n, 0, step, 2 * inner};
    const struct graph_lane up = {names->all_in, inner, n, second, step, 2 * inner};
    const struct graph_lane down = {names->all_out, n, inner, 0, 1, n};
    const bool each = names->gate && !graph_experts_joined(b, names);

    if (names->alone) {
        experts_lone(b, names, op);
    } else if (graph_experts_apart(b, names)) {
        experts_apart(b, names, op);
    } else if (names->woven || (!each && experts_turned(b, names, n))) {
        op->weight = graph_expert_lane(b, &gate);
        op->u.experts.up = graph_expert_lane(b, &up);
        op->u.experts.down = graph_expert_lane(b, &down);
    } else if (each) {
        op->weight = graph_expert_matrices(b, names->gate, inner, n);
        op->u.experts.up = graph_expert_matrices(b, names->up, inner, n);
        op->u.experts.down = graph_expert_matrices(b, names->down, n, inner);
    } else {
        const struct graph_shape in = {3, {b->config->experts, 2ull * inner, n}};
        const struct graph_shape out = {3, {b->config->experts, n, inner}};
        op->weight = graph_expert_slices(b, names->all_in, &in, 0, inner);
        op->u.experts.up = graph_expert_slices(b, names->all_in, &in, inner, inner);
        op->u.experts.down = graph_expert_slices(b, names->all_out, &out, 0, n);
    }
    if (names->woven) {
        op->bias = graph_lane_biases(b, &gate);
        op->u.experts.up_bias = graph_lane_biases(b, &up);
        op->u.experts.down_bias = graph_lane_biases(b, &down);
    }
}

/* The router's matrix. Of a pair it lies transposed, as the files name it, and is not quantized. */
static uint32_t experts_router(struct graph_builder *b, const struct graph_expert_names *names,
                               uint32_t n)
{
    const uint32_t experts = b->config->experts;
    const struct graph_shape shape = {2, {n, experts}};
    const struct graph_part router = {names->router, experts};

    if (!names->paired)
        return graph_weight(b, &router, 1, n, ".weight");
    return graph_weight_one(b, names->router, ".weight", &shape,
                            (struct ek_weight){.dtype = b->graph->dtype,
                                               .rows = experts,
                                               .cols = n,
                                               .row_step = 1,
                                               .col_step = experts});
}

/* The correction of the choice; of a pair the first one. */
static uint32_t experts_correction(struct graph_builder *b, const struct graph_expert_names *names)
{
    const uint32_t experts = b->config->experts;
    const struct graph_shape shape = {2, {2, experts}};
    const struct graph_part correction = {names->correction, experts};

    if (!names->correction)
        return EK_NO_WEIGHT;
    if (!names->paired)
        return graph_weight(b, &correction, 1, 1, "");
    return graph_weight_one(b, names->correction, "", &shape,
                            (struct ek_weight){.dtype = EK_F32, .rows = experts, .cols = 1});
}

void graph_experts(struct graph_builder *b, uint16_t dst, uint16_t src, uint16_t router,
                   const struct graph_expert_names *names)
{
    const struct model_config *c = b->config;
    const struct graph_part gate = {names->router, c->experts};
    const struct graph_part each = {names->each ? names->each : "", c->experts};
    struct ek_op op = {.kind = EK_OP_EXPERTS,
                       .dst = dst,
                       .src = src,
                       .bias = EK_NO_WEIGHT,
                       .u.experts = {.router = router,
                                     .count = (uint16_t)c->experts,
                                     .top = (uint16_t)c->experts_per_token,
                                     .routing = c->routing,
                                     .act = c->act,
                                     .up_bias = EK_NO_WEIGHT,
                                     .down_bias = EK_NO_WEIGHT}};
    /* The router is small and decides: it stays as it is. */
    if (names->router)
        graph_linear_push(b, router, src, experts_router(b, names, graph_width(b, src)),
                          names->woven ? graph_weight(b, &gate, 1, 1, ".bias") : EK_NO_WEIGHT);
    op.u.experts.routing.correction = experts_correction(b, names);
    op.u.experts.routing.each = names->each ? graph_weight(b, &each, 1, 1, "") : EK_NO_WEIGHT;
    experts_all(b, names, &op);
    graph_op_push(b, op);
}
