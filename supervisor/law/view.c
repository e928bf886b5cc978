/*
 * Makes the row of figures that the page, the API and the charts show of a server, once a sample
 * (servers/watch.c). A figure is added to the table here, and every place that shows figures then
 * has it.
 */
#include "supervisor/law/view.h"

#include <errno.h>
#include <math.h>

#include "common/buf.h"
#include "supervisor/law/window.h"

#define RATE_S 5.0 /* short enough to see a change, long enough to be steady at a 1 s poll */

static const struct {
    const char *name;
    int signal; /* taken as it is; -1 = computed below */
} table[VIEW_COUNT] = {
    [VIEW_KV_USAGE] = {"kv_usage", SIG_KV_USAGE},
    [VIEW_RUNNING] = {"running", SIG_RUNNING},
    [VIEW_WAITING] = {"waiting", SIG_WAITING},
    [VIEW_WAITING_CAPACITY] = {"waiting_capacity", SIG_WAITING_CAPACITY},
    [VIEW_PREEMPTIONS_TOTAL] = {"preemptions_total", SIG_PREEMPTIONS},
    [VIEW_PREEMPTION_RATE] = {"preemption_rate", -1},
    [VIEW_RECOMPUTED_TOTAL] = {"recomputed_tokens_total", SIG_RECOMPUTED},
    [VIEW_GEN_TPS] = {"generation_tokens_per_s", -1},
    [VIEW_PROMPT_TPS] = {"prompt_tokens_per_s", -1},
    [VIEW_TTFT_P50] = {"ttft_p50_s", -1},
    [VIEW_TTFT_P99] = {"ttft_p99_s", -1},
    [VIEW_ITL_P50] = {"itl_p50_s", -1},
    [VIEW_ITL_P99] = {"itl_p99_s", -1},
    [VIEW_MAX_GAP] = {"max_gap_s", SIG_MAX_GAP_S},
    [VIEW_QUEUE_OLDEST] = {"queue_oldest_s", SIG_QUEUE_OLDEST_S},
    [VIEW_STEP_AGE] = {"step_age_s", SIG_STEP_AGE_S},
    [VIEW_BLOCKS_TOTAL] = {"blocks_total", SIG_BLOCKS_TOTAL},
    [VIEW_BLOCKS_CACHED] = {"blocks_cached", SIG_BLOCKS_CACHED},
    [VIEW_PREFIX_HIT_RATE] = {"prefix_hit_rate", -1},
    [VIEW_CPU] = {"cpu_cores", -1},
    [VIEW_DEVICE_BUSY] = {"device_busy", -1},
};

void view_unknown(struct view *v)
{
    for (int i = 0; i < VIEW_COUNT; i++)
        v->value[i] = (double)NAN;
}

static void take_rates(struct view *v, const struct window *w)
{
    /* Each question leaves its value unknown when the samples cannot answer it. */
    (void)window_rate(w, SIG_PREEMPTIONS, RATE_S, &v->value[VIEW_PREEMPTION_RATE]);
    (void)window_rate(w, SIG_GEN_TOKENS, RATE_S, &v->value[VIEW_GEN_TPS]);
    (void)window_rate(w, SIG_PROMPT_TOKENS, RATE_S, &v->value[VIEW_PROMPT_TPS]);
    (void)window_rate(w, SIG_CPU_S, RATE_S, &v->value[VIEW_CPU]);
    if (window_rate(w, SIG_BUSY_S, RATE_S, &v->value[VIEW_DEVICE_BUSY]))
        v->value[VIEW_DEVICE_BUSY] = fmin(v->value[VIEW_DEVICE_BUSY], 1);
    (void)window_latency(w, HIST_TTFT, 0.5, &v->value[VIEW_TTFT_P50]);
    (void)window_latency(w, HIST_TTFT, 0.99, &v->value[VIEW_TTFT_P99]);
    (void)window_latency(w, HIST_ITL, 0.5, &v->value[VIEW_ITL_P50]);
    (void)window_latency(w, HIST_ITL, 0.99, &v->value[VIEW_ITL_P99]);
    double hits, queries;
    if (window_delta(w, SIG_PREFIX_HITS, 0, &hits) &&
        window_delta(w, SIG_PREFIX_QUERIES, 0, &queries) && queries > 0)
        v->value[VIEW_PREFIX_HIT_RATE] = hits / queries;
}

void view_take(struct view *v, const struct sample *s, const struct window *w)
{
    view_unknown(v);
    for (int i = 0; i < VIEW_COUNT; i++) {
        if (table[i].signal >= 0 && sample_has(s, (enum signal_id)table[i].signal))
            v->value[i] = s->value[table[i].signal];
    }
    if (w)
        take_rates(v, w);
}

const char *view_name(enum view_id i)
{
    return table[i].name;
}

int view_json(const struct view *v, struct ek_buf *out)
{
    for (int i = 0; i < VIEW_COUNT; i++) {
        (void)ek_buf_printf(out, "%s\"%s\":", i ? "," : "{", table[i].name);
        if (isfinite(v->value[i]))
            (void)ek_buf_printf(out, "%.12g", v->value[i]);
        else
            (void)ek_buf_puts(out, "null");
    }
    (void)ek_buf_puts(out, "}");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
