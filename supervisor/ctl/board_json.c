/*
 * `evenkeelctl top --json`, called by verb_top.c: the figures of board_figures.c as one object for
 * each row. What is not known is null.
 */
#include <math.h>
#include <stdlib.h>

#include "supervisor/ctl/board_inside.h"

static json_t *number_or_null(double v)
{
    return v >= 0 && isfinite(v) ? json_real(v) : json_null();
}

static json_t *three_json(const double v[3])
{
    return json_pack("{s:o, s:o, s:o}", "p50", number_or_null(v[0]), "p95", number_or_null(v[1]),
                     "p99", number_or_null(v[2]));
}

static json_t *rates_json(const struct board_rates *r)
{
    return json_pack("{s:f, s:o, s:o, s:o, s:o, s:o, s:o}", "seconds", r->seconds,
                     "tokens_out_per_s", number_or_null(r->out), "tokens_in_per_s",
                     number_or_null(r->in), "preemptions_per_s", number_or_null(r->preempted),
                     "prefix_hit_rate", number_or_null(r->hit), "ttft_s", three_json(r->ttft),
                     "tpot_s", three_json(r->itl));
}

static json_t *row_json(const struct board_figures *f, const struct board_view *v)
{
    const struct board_row *r = f->row;
    json_t *j = json_pack(
        "{s:s, s:s?, s:s, s:s, s:s, s:s, s:s, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o, s:o}", "name",
        r->name, "server", r->server[0] ? r->server : NULL, "model", r->part.model, "engine_index",
        r->part.engine, "url", r->url, "found", r->found, "state", figures_state(f), "running",
        number_or_null(f->running), "waiting", number_or_null(f->waiting), "kv_usage",
        number_or_null(f->usage), "blocks_total", number_or_null(f->blocks), "blocks_cached",
        number_or_null(f->cached), "limit", number_or_null(f->limit), "ceiling",
        number_or_null(f->ceiling), "prefix_hit_rate_life", number_or_null(f->life_hit),
        "cost_per_million_tokens", number_or_null(figures_cost(f, v)));
    int bad = !j || json_object_set_new(j, "last", rates_json(&f->now)) < 0 ||
              json_object_set_new(j, "minute", rates_json(&f->minute)) < 0;
    if (!bad && r->said[0])
        bad = json_object_set_new(j, "error", json_string(r->said)) < 0;
    if (!bad && r->info) /* limits, memory, last decision: as evenkeeld has them */
        bad = json_object_set(j, "evenkeeld", (json_t *)(uintptr_t)r->info) < 0;
    if (!bad && r->failures)
        bad = json_object_update(j, (json_t *)(uintptr_t)r->failures) < 0;
    if (bad) {
        json_decref(j);
        return NULL;
    }
    return j;
}

json_t *board_json(const struct board *b, const struct board_view *v)
{
    struct board_odd odd[8];
    struct board_figures *all = figures_in_order(b, v);
    json_t *list = json_array(), *odds = json_array();
    uint32_t count = all ? board_odd(b, odd, 8) : 0;
    bool bad = !all || !list || !odds;
    for (uint32_t i = 0; !bad && i < b->count; i++)
        bad = json_array_append_new(list, row_json(&all[i], v)) < 0;
    for (uint32_t i = 0; !bad && i < count; i++)
        bad =
            json_array_append_new(odds, json_pack("{s:s, s:s, s:f, s:f}", "name", odd[i].row->name,
                                                  "what", figures_measure(odd[i].what), "value",
                                                  odd[i].value, "median", odd[i].median)) < 0;
    free(all);
    json_t *j =
        bad ? NULL
            : json_pack("{s:f, s:O, s:O}", "at_s", v->now_s, "servers", list, "imbalance", odds);
    json_decref(list);
    json_decref(odds);
    return j;
}
