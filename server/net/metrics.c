/*
 * Fills the server's exported figures and writes the page (metrics.h). Called for each reading of
 * /metrics, off the engine's thread.
 */
#include "server/net/metrics.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "server/api/past.h"
#include "server/engine/kvlog.h"
#include "server/grammar/compile.h"
#include "server/net/auth.h"
#include "server/net/conn.h"
#include "server/net/encoder.h"
#include "server/net/metric_names.h"
#include "server/net/process.h"
#include "server/net/request.h"
#include "server/net/state.h"
#include "server/net/tls.h"
#include "server/net/tracer.h"

static const int codes[HTTP_CODES] = {0,   200, 400, 404, 405, 408, 409, 413,
                                      429, 500, 501, 503, 401, 403, 422, -1};

static size_t code_slot(int status)
{
    size_t i = 0;
    while (i < HTTP_CODES - 1 && codes[i] != status)
        i++;
    return i;
}

void metrics_count(struct http *h, const struct route *route, int status)
{
    size_t row = route ? (size_t)(route - route_table) : route_count() - 1;
    atomic_fetch_add_explicit(&h->counts[row][code_slot(status)], 1, memory_order_relaxed);
}

static void one(struct ek_expo *e, int id, double value)
{
    ek_expo_family(e, &metrics_table[id]);
    ek_expo_value(e, NULL, value);
}

static void hist(struct ek_expo *e, int id, const struct ek_hist *h)
{
    ek_expo_family(e, &metrics_table[id]);
    ek_expo_hist(e, NULL, h);
}

static void hist_by(struct ek_expo *e, int id, const struct ek_hist *h,
                    const struct ek_exemplars *x)
{
    ek_expo_family(e, &metrics_table[id]);
    ek_expo_hist_named(e, NULL, h, x);
}

/* A family with one label: rows of {value of the label, number}. */
struct metrics_row {
    const char *label;
    double value;
};

static void rows(struct ek_expo *e, int id, const char *label, const struct metrics_row *row,
                 size_t count)
{
    char text[96];
    ek_expo_family(e, &metrics_table[id]);
    for (size_t i = 0; i < count; i++) {
        (void)snprintf(text, sizeof(text), "%s=\"%s\"", label, row[i].label);
        ek_expo_value(e, text, row[i].value);
    }
}
#define ROWS(e, id, label, ...)                                                                    \
    rows(e, id, label, (const struct metrics_row[]){__VA_ARGS__},                                  \
         sizeof((const struct metrics_row[]){__VA_ARGS__}) / sizeof(struct metrics_row))

static void write_cache_config(struct ek_expo *e, const struct served *s)
{
    struct ek_buf l = {0};
    char text[32];
    const struct {
        const char *name;
        double value;
    } numbers[] = {{"block_size", s->block_size},
                   {"num_gpu_blocks", s->blocks},
                   {"num_cpu_blocks", s->host_blocks},
                   {"gpu_memory_utilization", s->memory_utilization},
                   {"kv_cache_size_tokens", (double)(s->blocks - 1) * s->block_size}};
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (void)snprintf(text, sizeof(text), "%.10g", numbers[i].value);
        ek_expo_label(&l, numbers[i].name, text);
    }
    ek_expo_label(&l, "cache_dtype", s->kv_dtype ? s->kv_dtype : "auto");
    ek_expo_label(&l, "enable_prefix_caching", s->prefix_caching ? "True" : "False");
    ek_expo_label(&l, "engine", "0"); /* without the model's name, as vLLM has it */
    const char *base = e->base_labels;
    e->base_labels = NULL;
    ek_expo_family(e, &metrics_table[M_CACHE_CONFIG]);
    ek_expo_value(e, l.data, 1);
    e->base_labels = base;
    ek_buf_done(&l);
}

static void write_lora(struct ek_expo *e)
{
    ek_expo_family(e, &metrics_table[M_LORA]);
    ek_expo_value(e, "max_lora=\"0\",running_lora_adapters=\"\",waiting_lora_adapters=\"\"",
                  (double)ek_wall_us() / 1e6);
}

static void write_vllm_counts(struct ek_expo *e, const struct engine_stats *s)
{
    double used = s->blocks_total ? (double)s->blocks_used / (double)s->blocks_total : 0;
    one(e, M_RUNNING, s->running);
    one(e, M_WAITING, s->waiting);
    ROWS(e, M_WAITING_REASON, "reason", {"capacity", s->waiting}, {"deferred", 0});
    one(e, M_KV_USAGE, used);
    ROWS(e, M_SLEEP, "sleep_state", {"awake", 1}, {"weights_offloaded", 0}, {"discard_all", 0});
    one(e, M_PREFIX_QUERIES, (double)s->prefix_queries);
    one(e, M_PREFIX_HITS, (double)s->prefix_hits);
    one(e, M_PREEMPTIONS, (double)s->preemptions);
    one(e, M_PROMPT, (double)s->prompt_tokens);
    double fresh =
        s->prompt_tokens > s->cached_tokens ? (double)(s->prompt_tokens - s->cached_tokens) : 0;
    ROWS(e, M_PROMPT_SOURCE, "source", {"local_compute", fresh},
         {"local_cache_hit", (double)s->cached_tokens}, {"external_kv_transfer", 0});
    one(e, M_PROMPT_CACHED, (double)s->cached_tokens);
    one(e, M_GENERATION, (double)s->generation_tokens);
    ROWS(e, M_SUCCESS, "finished_reason", {"stop", (double)s->finished[REQ_FIN_STOP]},
         {"length", (double)s->finished[REQ_FIN_LENGTH]},
         {"abort", (double)(s->finished[REQ_FIN_ABORT] + s->finished[REQ_FIN_DEADLINE])},
         {"error", (double)s->finished[REQ_FIN_ERROR]}, {"repetition", 0});
}

/* The one family of vLLM's that does not name the engine. */
static void write_rejections(struct ek_expo *e, const struct served *served,
                             const struct engine_stats *s)
{
    const char *base = e->base_labels;
    struct ek_buf model = {0};
    ek_expo_label(&model, "model_name", served->name[0]);
    e->out->failed |= !ek_buf_ok(&model);
    e->base_labels = model.data;
    ROWS(e, M_REJECTIONS, "reason", {"max_num_queued_reqs", (double)s->refused_queue},
         {"max_num_queued_tokens", (double)s->refused_tokens});
    e->base_labels = base;
    ek_buf_done(&model);
}

static void write_vllm_hists(struct ek_expo *e, const struct engine_stats *s)
{
    static const double n_bounds[] = {1, 2, 5, 10, 20};
    struct ek_hist n;
    ek_hist_init(&n, n_bounds, 5);
    n.hits[0] = ek_hist_total(&s->e2e); /* n is always 1 */
    n.sum = (double)n.hits[0];
    hist(e, M_ITERATION, &s->iteration_tokens);
    hist(e, M_PROMPT_LEN, &s->prompt_len);
    hist(e, M_GENERATION_LEN, &s->generation_len);
    hist(e, M_MAX_GENERATION, &s->generation_len);
    hist(e, M_PARAMS_N, &n);
    hist(e, M_PARAMS_MAX, &s->max_tokens_param);
    hist_by(e, M_TTFT, &s->ttft, &s->ttft_by);
    hist_by(e, M_ITL, &s->itl, &s->itl_by);
    hist(e, M_TPOT, &s->tpot);
    hist_by(e, M_E2E, &s->e2e, &s->e2e_by);
    hist(e, M_QUEUE_TIME, &s->queue_time);
    hist(e, M_INFERENCE, &s->inference_time);
    hist(e, M_PREFILL, &s->prefill_time);
    hist(e, M_DECODE, &s->decode_time);
    hist(e, M_REQUEST_PREEMPTIONS, &s->request_preemptions);
}

/* Names that vLLM had before those above. */
static void write_vllm_old(struct ek_expo *e, const struct engine_stats *s)
{
    one(e, M_OLD_KV_USAGE, s->blocks_total ? (double)s->blocks_used / (double)s->blocks_total : 0);
    one(e, M_OLD_QUERIES, (double)s->prefix_queries);
    one(e, M_OLD_HITS, (double)s->prefix_hits);
    one(e, M_OLD_HIT_RATE,
        s->window_queries ? (double)s->window_hits / (double)s->window_queries : 0);
    hist(e, M_OLD_TPOT, &s->itl);
    one(e, M_OLD_SWAPPED, s->preempted);
}

static void write_limits(struct ek_expo *e, struct engine *engine)
{
    struct limits l;
    struct metrics_row now[LIMIT_COUNT], ceiling[LIMIT_COUNT];
    engine_limits(engine, &l);
    for (int i = 0; i < LIMIT_COUNT; i++) {
        now[i] =
            (struct metrics_row){limit_table[i].name, (double)l.value[i] / limit_table[i].scale};
        ceiling[i] =
            (struct metrics_row){limit_table[i].name, (double)l.ceiling[i] / limit_table[i].scale};
    }
    rows(e, M_LIMIT, "limit", now, LIMIT_COUNT);
    rows(e, M_CEILING, "limit", ceiling, LIMIT_COUNT);
    one(e, M_LIMIT_GENERATION, (double)l.generation);
}

static void write_limit_ages(struct ek_expo *e, const struct http *h, struct engine *engine)
{
    struct ek_buf labels = {0};
    struct limits l;
    engine_limits(engine, &l);
    uint64_t now = ek_now_us();
    ek_expo_family(e, &metrics_table[M_LIMIT_AGE]);
    for (int i = 0; i < LIMIT_COUNT; i++) {
        uint64_t since = l.changed_us[i] ? l.changed_us[i] : h->started_us;
        ek_buf_clear(&labels);
        ek_expo_label(&labels, "limit", limit_table[i].name);
        ek_expo_label(&labels, "origin",
                      !l.changed_us[i]     ? "start"
                      : l.changed_by[i][0] ? l.changed_by[i]
                                           : "unknown");
        ek_expo_value(e, labels.data, now > since ? (double)(now - since) / 1e6 : 0);
    }
    ek_buf_done(&labels);
    struct metrics_row left[LIMIT_COUNT];
    for (int i = 0; i < LIMIT_COUNT; i++)
        left[i] = (struct metrics_row){
            limit_table[i].name, l.expires_us[i] > now ? (double)(l.expires_us[i] - now) / 1e6 : 0};
    rows(e, M_LIMIT_EXPIRY, "limit", left, LIMIT_COUNT);
}

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static void write_memory(struct ek_expo *e, const struct engine_stats *s)
{
    double bytes = (double)s->block_bytes;
    hist(e, M_EVICTED_AGE, &s->evicted_age);
    one(e, M_WASTE_RATIO,
        ratio((double)s->waste_tokens, (double)s->waste_tokens + (double)s->used_tokens));
    one(e, M_CONTIGUITY, ratio((double)s->table_adjacent, (double)s->table_pairs));
    one(e, M_REQUEST_BLOCKS, s->request_blocks);
    ROWS(e, M_FIT, "length", {"average", (double)s->fit_average},
         {"longest", (double)s->fit_longest});
    ROWS(e, M_PREEMPTION_KIND, "reason", {"recompute", (double)s->preemptions_recompute},
         {"swap", (double)s->preemptions_swap});
    one(e, M_PREEMPTION_LOST, (double)s->preemption_lost_us / 1e6);
    ROWS(e, M_SWAPPED_BYTES, "direction", {"out", (double)s->swapped_out_blocks * bytes},
         {"in", (double)s->swapped_in_blocks * bytes});
    one(e, M_SWAPS_DECLINED, (double)s->swaps_declined);
    one(e, M_SWAP_SHARED, (double)s->swap_shared_blocks);
    ROWS(e, M_OFFLOAD_BYTES, "direction", {"out", (double)s->offload_out_blocks * bytes},
         {"in", (double)s->offload_in_blocks * bytes});
    one(e, M_OFFLOAD_HITS, (double)s->offload_hits);
    one(e, M_OFFLOAD_EVICTIONS, (double)s->offload_evictions);
    one(e, M_OFFLOADS_DECLINED, (double)s->offloads_declined);
    ROWS(e, M_POOL_RESIZES, "result", {"done", (double)s->pool_resizes},
         {"refused", (double)s->pool_resize_failures});
    one(e, M_MIGRATED, (double)s->migrated_blocks);
    ROWS(e, M_RATES, "of", {"copy_bytes", s->copy_rate * bytes},
         {"prefill_tokens", s->prefill_rate});
    one(e, M_HIT_RATE, ratio((double)s->window_hits, (double)s->window_queries));
    one(e, M_PAUSED, s->admission_paused);
    one(e, M_PAUSES, (double)s->admission_pauses);
    one(e, M_STEP_TOKENS, s->step_rows);
    ROWS(e, M_STEP_COST, "of", {"step", s->step_fixed_us / 1e6}, {"token", s->step_row_us / 1e6},
         {"context_token", s->step_context_us / 1e6});
    one(e, M_CAUTION, s->caution);
    one(e, M_STALLS, (double)s->stalls);
    one(e, M_PUT_OFF, (double)s->admissions_put_off);
}

/* Why some wait. */
static void write_held(struct ek_expo *e, const struct engine_stats *s)
{
    static const char *const reasons[HELD_COUNT] = {
        [HELD_LIMIT] = "limit",   [HELD_TOKENS] = "tokens", [HELD_PREEMPTED] = "preempted",
        [HELD_PAUSED] = "paused", [HELD_BLOCKS] = "blocks", [HELD_GROWTH] = "growth",
        [HELD_COPIES] = "copies"};
    struct metrics_row held[HELD_COUNT];
    bool growth = s->held == HELD_GROWTH, blocks = growth || s->held == HELD_BLOCKS;

    for (int i = HELD_NONE + 1; i < HELD_COUNT; i++)
        held[i - 1] =
            (struct metrics_row){reasons[i], s->held == (enum engine_held)i ? s->waiting : 0};
    rows(e, M_HELD, "reason", held, HELD_COUNT - 1);
    ROWS(e, M_HELD_BLOCKS, "figure", {"needed", blocks ? s->held_needed : 0},
         {"available", blocks ? s->held_available : 0},
         {"expected", growth ? s->expected_blocks : 0});
    one(e, M_HELD_FIT, growth ? s->expected_fit : 0);
}

static void write_engine(struct ek_expo *e, const struct engine_stats *s, uint64_t now)
{
    uint64_t age = s->step_started_us && now > s->step_started_us ? now - s->step_started_us : 0;
    ROWS(e, M_BLOCKS, "state", {"total", s->blocks_total}, {"used", s->blocks_used},
         {"cached", s->blocks_cached}, {"free", s->blocks_free});
    ROWS(e, M_HOST_BLOCKS, "state", {"total", s->host_blocks_total}, {"used", s->host_blocks_used},
         {"cached", s->host_blocks_cached});
    if (s->has_states) {
        ROWS(e, M_SNAPSHOTS, "state", {"total", s->snapshots_total}, {"used", s->snapshots_used});
        ROWS(e, M_SNAPSHOT_EVENTS, "event", {"taken", (double)s->snapshots_taken},
             {"hit", (double)s->snapshot_hits}, {"evicted", (double)s->snapshots_evicted});
    }
    one(e, M_WASTE, (double)s->waste_tokens);
    one(e, M_USED_TOKENS, (double)s->used_tokens);
    one(e, M_QUEUED_TOKENS, (double)s->queued_tokens);
    one(e, M_OLDEST, (double)s->oldest_wait_us / 1e6);
    one(e, M_PREEMPTED, s->preempted);
    one(e, M_STEPS, (double)s->steps);
    one(e, M_STEP_AGE, (double)age / 1e6);
    one(e, M_RECOMPUTED, (double)s->recomputed_tokens);
    one(e, M_EVICTIONS, (double)s->evictions);
    ROWS(e, M_SWAPPED, "direction", {"out", (double)s->swapped_out_blocks},
         {"in", (double)s->swapped_in_blocks});
    ROWS(e, M_REFUSED, "reason", {"queue", (double)s->refused_queue},
         {"tokens", (double)s->refused_tokens}, {"deadline", (double)s->refused_deadline},
         {"drain", (double)s->refused_drain}, {"fit", (double)s->refused_fit},
         {"engine", (double)s->refused_away});
    one(e, M_GAP, (double)s->largest_gap_us / 1e6);
    ROWS(e, M_DRAIN, "state", {"serving", s->drain == ENGINE_SERVING},
         {"draining", s->drain == ENGINE_DRAINING}, {"drained", s->drain == ENGINE_DRAINED});
    one(e, M_DRAIN_CUT, (double)s->finished[REQ_FIN_DEADLINE]);
    ROWS(e, M_ENGINE_RESTARTS, "cause", {"fault", (double)s->revivals.lost[ENGINE_LOST_FAULT]},
         {"ended", (double)s->revivals.lost[ENGINE_LOST_ENDED]},
         {"hang", (double)s->revivals.lost[ENGINE_LOST_HANG]},
         {"oom", (double)s->revivals.lost[ENGINE_LOST_OOM]},
         {"device", (double)s->revivals.lost[ENGINE_LOST_DEVICE]},
         {"planned", (double)s->revivals.planned});
    ROWS(e, M_ENGINE_VERDICTS, "by", {"evenkeeld", (double)s->revivals.judged},
         {"none", (double)s->revivals.alone});
    ROWS(e, M_PREFIX_FILE, "what", {"saved", (double)s->warmth.saved},
         {"restored", (double)s->warmth.restored}, {"damaged", (double)s->warmth.damaged});
    hist(e, M_ENGINE_PAUSE, &s->revivals.pause);
    one(e, M_ENGINE_REPLAYED, (double)s->revivals.requests);
    one(e, M_ENGINE_RECOMPUTED, (double)s->replayed_tokens);
    one(e, M_ENGINE_SUSPECTS, s->suspects);
    one(e, M_ENGINE_POISON, (double)s->poisons);
    one(e, M_ENGINE_POISON_KEYS, (double)s->poison_tenants);
    one(e, M_ENGINE_CUT, (double)s->revivals.cut);
    if (s->replaceable)
        ROWS(e, M_ENGINE_STATE, "state", {"running", s->device == ENGINE_DEVICE_THERE},
             {"starting", s->device == ENGINE_DEVICE_STARTING},
             {"released", s->device == ENGINE_DEVICE_RELEASED});
    one(e, M_PLAN_TIME, (double)s->plan_us / 1e6);
    one(e, M_WAIT_TIME, (double)s->wait_us / 1e6);
}

static void write_kv_events(struct ek_expo *e, const struct kvlog *l)
{
    if (l)
        ROWS(e, M_KV_EVENTS, "result", {"published", (double)atomic_load(&l->tail)},
             {"dropped", (double)atomic_load(&l->dropped)});
}

static void write_traces(struct ek_expo *e, struct tracer *t)
{
    if (!t)
        return;
    struct tracer_stats s = tracer_stats(t);
    ROWS(e, M_TRACES, "result", {"sent", (double)s.sent}, {"failed", (double)s.failed},
         {"dropped", (double)s.dropped});
}

static void write_grammars(struct ek_expo *e, const struct http *h, const struct served *s,
                           const struct engine_stats *st)
{
    struct grammar_cache_stats g = {0};
    if (s->grammars)
        grammar_cache_stats(s->grammars, &g);
    ROWS(e, M_GRAMMARS, "result", {"compiled", (double)g.made}, {"kept", (double)g.hits},
         {"refused", (double)g.refused});
    one(e, M_READING_AGE, (double)encoder_reading_us(h->encoder, s->grammars, ek_now_us()) / 1e6);
    one(e, M_GRAMMAR_TIME, (double)(g.compile_us + g.warm_us) / 1e6);
    one(e, M_GRAMMARS_KEPT, g.kept);
    one(e, M_MASKS, (double)st->masks);
    one(e, M_MASK_TIME, (double)st->mask_us / 1e6);
    one(e, M_MASKS_PUT_OFF, (double)st->masks_put_off);
    one(e, M_MASKS_REFUSED, (double)st->masks_refused);
    one(e, M_FORCED, (double)st->forced_tokens);
}

/* Ranks that are here. */
struct http_ranks {
    const struct ek_backend *backend;
    struct ek_device *device;
    uint32_t first, ranks;
    const uint32_t *card;
};

static void write_figures(struct ek_expo *e, const struct served *s,
                          const struct ek_device_stats *d)
{
    static const char *const places[HTTP_PLACES] = {"host", "device"};
    const double now[HTTP_PLACES] = {(double)process_anonymous_bytes(),
                                     (double)(d->kv_bytes + d->pool_reserved_bytes)};
    char text[64];
    ek_expo_family(e, &metrics_table[M_MEMORY]);
    for (int i = 0; i < HTTP_PLACES; i++) {
        if (s->memory_planned[i] == 0)
            continue;
        const struct metrics_row figure[] = {{"planned", (double)s->memory_planned[i]},
                                             {"taken", (double)s->memory_taken[i]},
                                             {"now", now[i]}};
        for (size_t f = 0; f < sizeof(figure) / sizeof(figure[0]); f++) {
            (void)snprintf(text, sizeof(text), "where=\"%s\",figure=\"%s\"", places[i],
                           figure[f].label);
            ek_expo_value(e, text, figure[f].value);
        }
    }
}

/* Of one rank that is here, on its card or its share of the host. */
static void write_rank(struct ek_expo *e, const struct http_ranks *k, uint32_t i)
{
    struct ek_device_stats d = {0};
    char device[24], text[80];
    k->backend->rank_stats(k->device, i, &d);
    const struct metrics_row item[] = {{"weights", (double)d.weight_bytes},
                                       {"activations", (double)d.activation_bytes},
                                       {"kv", (double)d.kv_bytes},
                                       {"host_weights", (double)d.host_weight_bytes}};
    if (k->backend->in_host_memory)
        (void)snprintf(device, sizeof(device), "%s", k->backend->name);
    else
        (void)snprintf(device, sizeof(device), "%s:%u", k->backend->name, k->card[i]);
    for (size_t n = 0; n < sizeof(item) / sizeof(item[0]); n++) {
        (void)snprintf(text, sizeof(text), "rank=\"%u\",device=\"%s\",item=\"%s\"", k->first + i,
                       device, item[n].label);
        ek_expo_value(e, text, item[n].value);
    }
}

/* A rank device's own numbers, also where the engine is in another process. */
static void write_stats(struct ek_expo *e, const struct http_ranks *k,
                        const struct ek_device_stats *d)
{
    ROWS(e, M_DEVICE, "item", {"weights", (double)d->weight_bytes},
         {"activations", (double)d->activation_bytes}, {"kv", (double)d->kv_bytes},
         {"host_kv", (double)d->host_kv_bytes}, {"host_weights", (double)d->host_weight_bytes});
    ek_expo_family(e, &metrics_table[M_RANK]);
    for (uint32_t i = 0; i < k->ranks; i++)
        write_rank(e, k, i);
    one(e, M_POOL_RESERVED, (double)d->pool_reserved_bytes);
    one(e, M_POOL_USED, (double)d->pool_used_bytes);
    one(e, M_POOL_RESERVED_HIGH, (double)d->pool_reserved_high_bytes);
    one(e, M_POOL_USED_HIGH, (double)d->pool_used_high_bytes);
    one(e, M_BUSY, (double)d->busy_us / 1e6);
}

static void write_device(struct ek_expo *e, const struct served *s)
{
    struct ek_device_stats d = {0};
    struct metrics_row plan[HTTP_ITEMS_MOST];
    for (uint32_t i = 0; i < s->items; i++)
        plan[i] = (struct metrics_row){s->item[i].name, (double)s->item[i].bytes};
    rows(e, M_PLANNED, "item", plan, s->items);
    s->backend->stats(s->device, &d);
    write_figures(e, s, &d);
    const struct http_ranks k = {s->backend, s->device, 0, s->ranks, s->rank_card};
    write_stats(e, &k, &d);
}

static double count_role(struct http *h, enum http_role role)
{
    double n = 0;
    for (uint32_t i = 0; i < h->workers; i++)
        n += h->worker[i].role == role ? (double)atomic_load(&h->worker[i].load) : 0;
    return n;
}

static void write_routes(struct ek_expo *e, struct http *h)
{
    char text[160], status[16];
    uint32_t most = route_count();
    ek_expo_family(e, &metrics_table[M_ROUTES]);
    for (uint32_t i = 0; i < most; i++) {
        const struct route *r = i + 1 < most ? &route_table[i] : NULL;
        for (size_t c = 0; c < HTTP_CODES; c++) {
            unsigned long long n = atomic_load(&h->counts[i][c]);
            if (n == 0)
                continue;
            (void)snprintf(status, sizeof(status), codes[c] > 0 ? "%d" : "none", codes[c]);
            (void)snprintf(text, sizeof(text), "route=\"%s%s%s\",code=\"%s\"", r ? r->method : "",
                           r ? " " : "", r ? r->path : "other", codes[c] < 0 ? "other" : status);
            ek_expo_value(e, text, (double)n);
        }
    }
}

/* By class of status, and without the routes that vLLM leaves out. */
static void write_routes_as_vllm(struct ek_expo *e, struct http *h)
{
    char text[160];
    ek_expo_family(e, &metrics_table[M_HTTP_VLLM]);
    for (uint32_t i = 0; i + 1 < route_count(); i++) {
        const struct route *r = &route_table[i];
        double class[6] = {0};
        if (r->flags & (ROUTE_HEALTH | ROUTE_LOCAL))
            continue;
        for (size_t c = 0; c < HTTP_CODES; c++) {
            if (codes[c] > 0)
                class[codes[c] / 100] += (double)atomic_load(&h->counts[i][c]);
        }
        for (int k = 2; k < 6; k++) {
            if (class[k] == 0)
                continue;
            (void)snprintf(text, sizeof(text), "handler=\"%s\",method=\"%s\",status=\"%dxx\"",
                           r->path, r->method, k);
            ek_expo_value(e, text, class[k]);
        }
    }
}

static void key_row(struct ek_expo *e, const char *key, const char *label, const char *is, double v)
{
    struct ek_buf l = {0};
    ek_expo_label(&l, "key", key);
    if (label)
        ek_expo_label(&l, label, is);
    ek_expo_value(e, l.data, v);
    ek_buf_done(&l);
}

/* What one key has of one metric; `t` is what the engine has counted for it. */
static void write_key(struct ek_expo *e, int m, const struct auth_stat *s,
                      const struct tenant_stat *t)
{
    if (m == M_KEY_REFUSED) {
        key_row(e, s->name, "reason", "concurrency", (double)s->refused_concurrency);
        key_row(e, s->name, "reason", "queue", (double)s->refused_queue);
    } else if (m == M_KEY_TOKENS) {
        key_row(e, s->name, "kind", "prompt", (double)t->prompts);
        key_row(e, s->name, "kind", "answer", (double)t->outputs);
    } else {
        key_row(e, s->name, NULL, NULL,
                m == M_KEY_REQUESTS  ? (double)s->requests
                : m == M_KEY_ACTIVE  ? s->active
                : m == M_KEY_WAITING ? s->waiting
                : m == M_KEY_AHEAD   ? (double)t->ahead
                : m == M_KEY_WEIGHT  ? s->weight
                : m == M_KEY_POISON  ? (double)t->poisons
                : m == M_KEY_MASKS   ? (double)t->masks
                                     : (double)t->preemptions);
    }
}

/* `st` is NULL before there is an engine. */
static void write_keys(struct ek_expo *e, struct http *h, const struct engine_stats *st, bool whole)
{
    struct auth_stat s;
    if (!h->auth) /* before the shell is up */
        return;
    if (h->tls)
        one(e, M_CERTIFICATE, (double)tls_expires_s(h->tls));
    one(e, M_KEYS, auth_count(h->auth));
    one(e, M_OPEN, atomic_load(&h->open_without_key));
    ROWS(e, M_SANDBOX, "part", {"files", atomic_load(&h->confined_files)},
         {"calls", atomic_load(&h->confined_calls)}, {"memory", atomic_load(&h->confined_memory)});
    one(e, M_UNAUTHORIZED, (double)atomic_load(&h->unauthorized));
    for (int m = M_KEY_REQUESTS; m <= M_KEY_PREEMPTIONS && whole; m++) {
        ek_expo_family(e, &metrics_table[m]);
        for (uint32_t i = 0; i < AUTH_SLOTS; i++) {
            if (!auth_stat(h->auth, i, &s))
                continue;
            const struct tenant_stat none = {0};
            const struct tenant_stat *t = st ? &st->tenant[s.tenant.place] : &none;
            write_key(e, m, &s, t->stamp == s.tenant.stamp ? t : &none);
        }
    }
}

static void write_stored(struct ek_expo *e, struct http *h)
{
    const struct served *s = http_served(h);
    struct past_stat stat = {0};
    if (s && s->pasts)
        past_stat(s->pasts, &stat);
    one(e, M_RESPONSES, (double)stat.pasts);
    ROWS(e, M_RESPONSES_MEMORY, "figure", {"held", (double)stat.bytes},
         {"bound", (double)stat.bound_bytes});
    one(e, M_RESPONSES_EVICTED, (double)stat.evicted);
}

static void write_http(struct ek_expo *e, struct http *h, const struct engine_stats *st, bool whole)
{
    ROWS(e, M_CONNECTIONS, "role", {"api", count_role(h, HTTP_API)},
         {"health", count_role(h, HTTP_HEALTH)}, {"control", count_role(h, HTTP_CONTROL)},
         {"parked", atomic_load(&h->parked)});
    one(e, M_ACCEPTED, (double)atomic_load(&h->accepted));
    write_routes(e, h);
    one(e, M_HTTP_ACTIVE, atomic_load(&h->active));
    one(e, M_HTTP_ABORTED, (double)atomic_load(&h->aborted));
    one(e, M_HTTP_TIMEOUTS, (double)atomic_load(&h->timeouts));
    one(e, M_SLOW, (double)atomic_load(&h->slow_readers));
    ROWS(e, M_HTTP_MEMORY, "figure", {"held", (double)ek_account_held(&h->memory)},
         {"high", (double)atomic_load(&h->memory.high)},
         {"bound", (double)atomic_load(&h->memory.most)});
    one(e, M_HTTP_MEMORY_REFUSED, (double)atomic_load(&h->memory.refused));
    write_stored(e, h);
    one(e, M_PEER_REFUSALS, (double)atomic_load(&h->peer_refusals));
    write_traces(e, h->tracer);
    write_routes_as_vllm(e, h);
    write_keys(e, h, st, whole);
}

static void write_process(struct ek_expo *e, const struct http *h)
{
    struct rusage u;
    struct rlimit l;
    uint64_t read_us = atomic_load(&h->reloaded_wall_us);
    one(e, M_RELOAD_OK, !atomic_load(&h->reload_failed));
    one(e, M_RELOADED, (double)(read_us ? read_us : h->started_wall_us) / 1e6);
    one(e, M_UPTIME, (double)(ek_now_us() - h->started_us) / 1e6);
    one(e, M_LOG_DROPPED, (double)ek_log_dropped());
    one(e, M_START, (double)h->started_wall_us / 1e6);
    one(e, M_RSS, (double)process_resident_bytes());
    if (getrusage(RUSAGE_SELF, &u) == 0)
        one(e, M_CPU,
            (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6);
    one(e, M_FDS, process_open_fds());
    if (getrlimit(RLIMIT_NOFILE, &l) == 0)
        one(e, M_MAX_FDS, (double)l.rlim_cur);
}

static void write_build(struct ek_expo *e, const struct served *s)
{
    struct ek_buf l = {0};
    ek_expo_label(&l, "version", EK_VERSION);
    if (s) {
        ek_expo_label(&l, "backend", s->backend->name);
        ek_expo_label(&l, "device", s->device_name);
        ek_expo_label(&l, "dtype", s->dtype);
        struct ek_device_stats now = {0};
        s->backend->stats(s->device, &now);
        const char *products = now.products ? now.products : "";
        char name[32]; /* without the file */
        (void)snprintf(name, sizeof(name), "%.*s", (int)strcspn(products, "("), products);
        name[strlen(name) - (name[0] && name[strlen(name) - 1] == ' ')] = '\0';
        ek_expo_label(&l, "products", name);
    }
    ek_expo_family(e, &metrics_table[M_BUILD]);
    ek_expo_value(e, l.data, 1);
    ek_buf_done(&l);
}

int metrics_write(struct http *h, enum ek_expo_format format, bool whole, struct ek_buf *out)
{
    const struct served *s = http_served(h);
    struct ek_buf base = {0};
    struct ek_expo e = {
        .out = out, .format = format, .epoch_us = h->started_wall_us - h->started_us};
    struct engine_stats st;
    if (s) {
        engine_stats(s->engine, &st);
        ek_expo_label(&base, "engine", "0");
        ek_expo_label(&base, "model_name", s->name[0]);
        if (!ek_buf_ok(&base))
            return -ENOMEM;
        e.base_labels = base.data;
        write_vllm_counts(&e, &st);
        write_rejections(&e, s, &st);
        write_cache_config(&e, s);
        write_lora(&e);
        write_vllm_hists(&e, &st);
        if (s->hidden_metrics)
            write_vllm_old(&e, &st);
        write_limits(&e, s->engine);
        write_limit_ages(&e, h, s->engine);
        write_engine(&e, &st, ek_now_us());
        write_memory(&e, &st);
        write_held(&e, &st);
        write_kv_events(&e, s->kvlog);
        write_grammars(&e, h, s, &st);
        write_device(&e, s);
        e.base_labels = NULL;
    }
    write_http(&e, h, s ? &st : NULL, whole);
    write_build(&e, s);
    write_process(&e, h);
    ek_buf_done(&base);
    return ek_expo_end(&e);
}

int metrics_reference(struct ek_buf *out)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    for (const struct ek_metric *m = metrics_table; m->name; m++)
        (void)ek_buf_printf(out, "%s %s %s%s%s%s\n", m->name, types[m->type],
                            m->labels[0] ? "{" : "", m->labels, m->labels[0] ? "} " : "", m->help);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
