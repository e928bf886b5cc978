/*
 * From a row of the board to the figures that are shown, and the order of the rows. board_show.c
 * draws them, board_json.c writes them; so a table and its JSON cannot differ. The engine's own
 * page comes first, what evenkeeld last read of it second.
 */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "supervisor/ctl/board_inside.h"
#include "supervisor/ctl/show.h"

static double first_known(double a, double b)
{
    return a >= 0 ? a : b;
}

static double board_figures_limit_of(const json_t *info, const char *which)
{
    const json_t *l = json_object_get(json_object_get(info, "limits"), "max_num_running_seqs");
    const json_t *v = json_object_get(l, which);
    return json_is_number(v) ? json_number_value(v) : -1;
}

static void figures_take(const struct board_row *r, double now_s, struct board_figures *ret_figures)
{
    struct board_figures *f = ret_figures;
    static const struct board_rates nothing = {-1, -1, -1, -1, {-1, -1, -1}, {-1, -1, -1}, 0};
    const struct live_page *p = board_page(r);
    *f = (struct board_figures){
        .row = r, .state = board_state(r, now_s), .now = nothing, .minute = nothing};
    f->has_now = board_rates(r, false, &f->now);
    f->has_minute = board_rates(r, true, &f->minute);
    f->running = first_known(p ? p->running : -1, board_signal(r, "running"));
    f->waiting = first_known(p ? p->waiting : -1, board_signal(r, "waiting"));
    f->usage = first_known(p ? p->usage : -1, board_signal(r, "kv_usage"));
    f->blocks = first_known(board_signal(r, "blocks_total"), p ? p->blocks : -1);
    f->cached = first_known(p ? p->cached_blocks : -1, board_signal(r, "blocks_cached"));
    f->limit = first_known(board_figures_limit_of(r->info, "value"), p ? p->limit_seqs : -1);
    f->ceiling = board_figures_limit_of(r->info, "ceiling");
    f->life_hit = p && p->queries > 0 && p->hits >= 0 ? p->hits / p->queries : -1;
    if (!f->has_now) { /* evenkeeld has looked longer */
        f->now.out = board_signal(r, "generation_tokens_per_s");
        f->now.in = board_signal(r, "prompt_tokens_per_s");
        f->now.preempted = board_signal(r, "preemption_rate");
        f->now.hit = board_signal(r, "prefix_hit_rate");
        f->now.ttft[0] = board_signal(r, "ttft_p50_s");
        f->now.ttft[2] = board_signal(r, "ttft_p99_s");
        f->now.itl[0] = board_signal(r, "itl_p50_s");
        f->now.itl[2] = board_signal(r, "itl_p99_s");
    }
}

static double sort_key(const struct board_figures *f, enum board_sort sort)
{
    switch (sort) {
    case SORT_NAME:
    case SORTS: break;
    case SORT_USAGE: return f->usage;
    case SORT_RUNNING: return f->running;
    case SORT_WAITING: return f->waiting;
    case SORT_TOKENS: return f->now.out;
    case SORT_TTFT: return f->minute.ttft[1];
    }
    return 0;
}

/* All rows in the order shown: ours before foreign ones, then by key, the largest first. */
struct board_figures *figures_in_order(const struct board *b, const struct board_view *v)
{
    struct board_figures *all = calloc(b->count ? b->count : 1, sizeof(*all)), one;
    for (uint32_t i = 0; all && i < b->count; i++) {
        uint32_t k = i;
        figures_take(b->row[i], v->now_s, &one);
        for (; k > 0; k--) {
            const struct board_figures *o = &all[k - 1];
            double mine = sort_key(&one, v->sort), its = sort_key(o, v->sort);
            bool less = mine != its ? mine > its
                        : !one.row->server[0] != !o->row->server[0]
                            ? one.row->server[0] != '\0'
                            : strcmp(one.row->name, o->row->name) < 0;
            if (!less)
                break;
            all[k] = all[k - 1];
        }
        all[k] = one;
    }
    return all;
}

const char *figures_state(const struct board_figures *f)
{
    const char *own = f->row->info ? show_state(f->row->info) : NULL;
    own = own && strcmp(own, "-") == 0 ? NULL : own;
    return own && (f->state == BOARD_UP || f->state == BOARD_NEW || strcmp(own, "ready") != 0)
               ? own
               : board_state_name(f->state);
}

double figures_cost(const struct board_figures *f, const struct board_view *v)
{
    double out = f->has_minute ? f->minute.out : f->now.out;
    return v->price > 0 && out > 0 ? v->price * (1 + v->margin) / (out * 3600) * 1e6 : -1;
}

const char *figures_measure(enum live_measure what)
{
    switch (what) {
    case LIVE_BY_RUNNING: return "running";
    case LIVE_BY_USAGE: return "KV";
    case LIVE_BY_TTFT: return "TTFT p50";
    case LIVE_BY_ITL: return "ITL p50";
    }
    return "";
}
