/*
 * The table per rank below the memory plan, for print.c and start.c. Each rank's plan is asked of
 * the kernels again (ek_rank_plan()), with the request that the whole plan was made of, so both say
 * the same.
 */
#include "server/rank_table.h"

#include <inttypes.h>
#include <stdio.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/memplan.h"
#include "kernels/backend.h"
#include "server/sizing.h"
#include "server/stack.h"

struct rank_row {
    struct ek_rank_place place;
    struct ek_plan plan;
    uint64_t kv_bytes, other_bytes, all_bytes;
};

static struct rank_row rank_table_row_of(const struct stack *s, const struct ek_rank_place *place,
                                         const struct ek_plan *plan)
{
    struct rank_row w = {.place = *place, .plan = *plan};

    w.kv_bytes = plan->block_bytes * s->plan.blocks;
    w.other_bytes = plan->slot_bytes + plan->overhead_bytes + plan->staging_bytes +
                    plan->state_bytes * s->engine_params.states;
    w.all_bytes = plan->weight_bytes + plan->activation_bytes + w.kv_bytes + w.other_bytes;
    return w;
}

static void write_json_row(const struct rank_row *w, uint32_t rank, struct ek_buf *out)
{
    (void)ek_buf_printf(out,
                        "%s{\"rank\": %u, \"node\": %u, \"stage\": %u, \"first_layer\": %u, "
                        "\"layers\": %u, \"weights\": %" PRIu64 ", \"activations\": %" PRIu64
                        ", \"kv_pool\": %" PRIu64 ", \"other\": %" PRIu64 ", \"all\": %" PRIu64 "}",
                        rank > 0 ? ", " : "", rank, w->place.node, w->place.stage,
                        w->place.first_layer, w->place.layers, w->plan.weight_bytes,
                        w->plan.activation_bytes, w->kv_bytes, w->other_bytes, w->all_bytes);
}

static void write_row(const struct rank_row *w, uint32_t rank, struct ek_buf *out)
{
    char layers[32], size[5][24];

    (void)snprintf(layers, sizeof(layers), "%u to %u", w->place.first_layer,
                   w->place.first_layer + w->place.layers - 1);
    (void)ek_buf_printf(out, "  %4u %5u %5u  %-9s %11s %11s %11s %11s\n", rank, w->place.node,
                        w->place.stage, layers, memplan_size_text(w->plan.weight_bytes, size[0]),
                        memplan_size_text(w->plan.activation_bytes, size[1]),
                        memplan_size_text(w->kv_bytes, size[2]),
                        memplan_size_text(w->all_bytes, size[4]));
}

int rank_table_write(const struct stack *s, bool json, struct ek_buf *out)
{
    struct ek_plan_request q;
    int r = 0;

    if (s->open.ranks < 2)
        return 0;
    sizing_request(s, &q);
    (void)ek_buf_puts(out, json ? "["
                                : "  rank  node stage  layers        weights activations     "
                                  "KV pool      in all\n");
    for (uint32_t rank = 0; r == 0 && rank < s->open.ranks; rank++) {
        struct ek_rank_place place;
        struct ek_plan plan = {0};
        r = ek_rank_plan(&s->open, &q, rank, &place, &plan, NULL);
        if (r < 0)
            break;
        const struct rank_row w = rank_table_row_of(s, &place, &plan);
        if (json)
            write_json_row(&w, rank, out);
        else
            write_row(&w, rank, out);
    }
    if (json)
        (void)ek_buf_puts(out, "]");
    return r < 0 ? r : ek_buf_ok(out) ? 0 : -ENOMEM;
}
