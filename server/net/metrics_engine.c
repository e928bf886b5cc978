/*
 * The figures of /metrics that there are once a model is served: vLLM's names, limits, blocks,
 * queue, grammars and devices, from a copy of the engine's counters. Called by metrics.c for each
 * reading.
 */
#include "server/net/metrics_engine.h"

#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "server/engine/kvlog.h"
#include "server/grammar/compile.h"
#include "server/net/encoder.h"
#include "server/net/metric_names.h"
#include "server/net/metrics_rows.h"
#include "server/net/process.h"
#include "server/net/state.h"

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
    metrics_one(e, M_RUNNING, s->running);
    metrics_one(e, M_WAITING, s->waiting);
    METRICS_ROWS(e, M_WAITING_REASON, "reason", {"capacity", s->waiting}, {"deferred", 0});
    metrics_one(e, M_KV_USAGE, used);
    METRICS_ROWS(e, M_SLEEP, "sleep_state", {"awake", 1}, {"weights_offloaded", 0},
                 {"discard_all", 0});
    metrics_one(e, M_PREFIX_QUERIES, (double)s->prefix_queries);
    metrics_one(e, M_PREFIX_HITS, (double)s->prefix_hits);
    metrics_one(e, M_PREEMPTIONS, (double)s->preemptions);
    metrics_one(e, M_SLOTS_YIELDED, (double)s->slots_yielded);
    metrics_one(e, M_BLOCKS_YIELDED, (double)s->blocks_yielded);
    metrics_one(e, M_YIELDED_TOKENS, (double)s->yielded_tokens);
    metrics_one(e, M_PROMPT, (double)s->prompt_tokens);
    double fresh =
        s->prompt_tokens > s->cached_tokens ? (double)(s->prompt_tokens - s->cached_tokens) : 0;
    METRICS_ROWS(e, M_PROMPT_SOURCE, "source", {"local_compute", fresh},
                 {"local_cache_hit", (double)s->cached_tokens}, {"external_kv_transfer", 0});
    metrics_one(e, M_PROMPT_CACHED, (double)s->cached_tokens);
    metrics_one(e, M_GENERATION, (double)s->generation_tokens);
    METRICS_ROWS(e, M_SUCCESS, "finished_reason", {"stop", (double)s->finished[REQ_FIN_STOP]},
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
    METRICS_ROWS(e, M_REJECTIONS, "reason", {"max_num_queued_reqs", (double)s->refused_queue},
                 {"max_num_queued_tokens", (double)s->refused_tokens});
    e->base_labels = base;
    ek_buf_done(&model);
}

static void write_vllm_hists(struct ek_expo *e, const struct engine_stats *s)
{
    metrics_hist(e, M_ITERATION, &s->iteration_tokens);
    metrics_hist(e, M_PROMPT_LEN, &s->prompt_len);
    metrics_hist(e, M_GENERATION_LEN, &s->generation_len);
    metrics_hist(e, M_MAX_GENERATION, &s->longest_answer);
    metrics_hist(e, M_PARAMS_N, &s->answers);
    metrics_hist(e, M_PARAMS_MAX, &s->max_tokens_param);
    metrics_hist_by(e, M_TTFT, &s->ttft, &s->ttft_by);
    metrics_hist_by(e, M_ITL, &s->itl, &s->itl_by);
    metrics_hist(e, M_TPOT, &s->tpot);
    metrics_hist_by(e, M_E2E, &s->e2e, &s->e2e_by);
    metrics_hist(e, M_QUEUE_TIME, &s->queue_time);
    metrics_hist(e, M_INFERENCE, &s->inference_time);
    metrics_hist(e, M_PREFILL, &s->prefill_time);
    metrics_hist(e, M_DECODE, &s->decode_time);
    metrics_hist(e, M_REQUEST_PREEMPTIONS, &s->request_preemptions);
}

/* Names that vLLM had before those above. */
static void write_vllm_old(struct ek_expo *e, const struct engine_stats *s)
{
    metrics_one(e, M_OLD_KV_USAGE,
                s->blocks_total ? (double)s->blocks_used / (double)s->blocks_total : 0);
    metrics_one(e, M_OLD_QUERIES, (double)s->prefix_queries);
    metrics_one(e, M_OLD_HITS, (double)s->prefix_hits);
    metrics_one(e, M_OLD_HIT_RATE,
                s->window_queries ? (double)s->window_hits / (double)s->window_queries : 0);
    metrics_hist(e, M_OLD_TPOT, &s->itl);
    metrics_one(e, M_OLD_SWAPPED, s->preempted);
}

static void write_live_limits(struct ek_expo *e, struct engine *engine)
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
    metrics_rows(e, M_LIMIT, "limit", now, LIMIT_COUNT);
    metrics_rows(e, M_CEILING, "limit", ceiling, LIMIT_COUNT);
    metrics_one(e, M_LIMIT_GENERATION, (double)l.generation);
}

static void write_limit_ages(struct ek_expo *e, uint64_t started_us, struct engine *engine)
{
    struct ek_buf labels = {0};
    struct limits l;
    engine_limits(engine, &l);
    uint64_t now = ek_now_us();
    ek_expo_family(e, &metrics_table[M_LIMIT_AGE]);
    for (int i = 0; i < LIMIT_COUNT; i++) {
        uint64_t since = l.changed_us[i] ? l.changed_us[i] : started_us;
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
    metrics_rows(e, M_LIMIT_EXPIRY, "limit", left, LIMIT_COUNT);
}

static double ratio(double part, double whole)
{
    return whole > 0 ? part / whole : 0;
}

static void write_memory(struct ek_expo *e, const struct engine_stats *s)
{
    double bytes = (double)s->block_bytes;
    metrics_hist(e, M_EVICTED_AGE, &s->evicted_age);
    metrics_one(e, M_WASTE_RATIO,
                ratio((double)s->waste_tokens, (double)s->waste_tokens + (double)s->used_tokens));
    metrics_one(e, M_CONTIGUITY, ratio((double)s->table_adjacent, (double)s->table_pairs));
    metrics_one(e, M_REQUEST_BLOCKS, s->request_blocks);
    METRICS_ROWS(e, M_FIT, "length", {"average", (double)s->fit_average},
                 {"longest", (double)s->fit_longest});
    METRICS_ROWS(e, M_PREEMPTION_KIND, "reason", {"recompute", (double)s->preemptions_recompute},
                 {"swap", (double)s->preemptions_swap});
    metrics_one(e, M_PREEMPTION_LOST, (double)s->preemption_lost_us / 1e6);
    METRICS_ROWS(e, M_SWAPPED_BYTES, "direction", {"out", (double)s->swapped_out_blocks * bytes},
                 {"in", (double)s->swapped_in_blocks * bytes});
    metrics_one(e, M_SWAPS_DECLINED, (double)s->swaps_declined);
    metrics_one(e, M_SWAP_SHARED, (double)s->swap_shared_blocks);
    METRICS_ROWS(e, M_OFFLOAD_BYTES, "direction", {"out", (double)s->offload_out_blocks * bytes},
                 {"in", (double)s->offload_in_blocks * bytes});
    metrics_one(e, M_OFFLOAD_HITS, (double)s->offload_hits);
    metrics_one(e, M_OFFLOAD_EVICTIONS, (double)s->offload_evictions);
    metrics_one(e, M_OFFLOADS_DECLINED, (double)s->offloads_declined);
    METRICS_ROWS(e, M_POOL_RESIZES, "result", {"done", (double)s->pool_resizes},
                 {"refused", (double)s->pool_resize_failures});
    metrics_one(e, M_MIGRATED, (double)s->migrated_blocks);
    METRICS_ROWS(e, M_RATES, "of", {"copy_bytes", s->copy_rate * bytes},
                 {"prefill_tokens", s->prefill_rate});
    metrics_one(e, M_HIT_RATE, ratio((double)s->window_hits, (double)s->window_queries));
    metrics_one(e, M_PAUSED, s->admission_paused);
    metrics_one(e, M_PAUSES, (double)s->admission_pauses);
    metrics_one(e, M_STEP_TOKENS, s->step_rows);
    metrics_one(e, M_SHARED_STEPS, (double)s->shared_steps);
    METRICS_ROWS(e, M_STEP_COST, "of", {"step", s->step_fixed_us / 1e6},
                 {"token", s->step_row_us / 1e6}, {"context_token", s->step_context_us / 1e6});
    METRICS_ROWS(e, M_TOKEN_COST, "depth", {"4096", price_row(&s->price, 4096)},
                 {"32768", price_row(&s->price, 32768)}, {"131072", price_row(&s->price, 131072)});
    metrics_one(e, M_CAUTION, s->caution);
    metrics_one(e, M_STALLS, (double)s->stalls);
    metrics_one(e, M_PUT_OFF, (double)s->admissions_put_off);
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
    metrics_rows(e, M_HELD, "reason", held, HELD_COUNT - 1);
    METRICS_ROWS(e, M_HELD_BLOCKS, "figure", {"needed", blocks ? s->held_needed : 0},
                 {"available", blocks ? s->held_available : 0},
                 {"expected", growth ? s->expected_blocks : 0});
    metrics_one(e, M_HELD_FIT, growth ? s->expected_fit : 0);
}

/* Of the engine's process, how often and why it was replaced. */
static void write_revivals(struct ek_expo *e, const struct engine_stats *s)
{
    METRICS_ROWS(e, M_ENGINE_RESTARTS, "cause",
                 {"fault", (double)s->revivals.lost[ENGINE_LOST_FAULT]},
                 {"ended", (double)s->revivals.lost[ENGINE_LOST_ENDED]},
                 {"hang", (double)s->revivals.lost[ENGINE_LOST_HANG]},
                 {"oom", (double)s->revivals.lost[ENGINE_LOST_OOM]},
                 {"device", (double)s->revivals.lost[ENGINE_LOST_DEVICE]},
                 {"planned", (double)s->revivals.planned});
    METRICS_ROWS(e, M_ENGINE_VERDICTS, "by", {"evenkeeld", (double)s->revivals.judged},
                 {"none", (double)s->revivals.alone});
    METRICS_ROWS(e, M_PREFIX_FILE, "what", {"saved", (double)s->warmth.saved},
                 {"restored", (double)s->warmth.restored}, {"damaged", (double)s->warmth.damaged});
    metrics_hist(e, M_ENGINE_PAUSE, &s->revivals.pause);
    metrics_one(e, M_ENGINE_REPLAYED, (double)s->revivals.requests);
    metrics_one(e, M_ENGINE_RECOMPUTED, (double)s->replayed_tokens);
    metrics_one(e, M_ENGINE_SUSPECTS, s->suspects);
    metrics_one(e, M_ENGINE_POISON, (double)s->poisons);
    metrics_one(e, M_ENGINE_POISON_KEYS, (double)s->poison_tenants);
    metrics_one(e, M_ENGINE_CUT, (double)s->revivals.cut);
    if (s->replaceable)
        METRICS_ROWS(e, M_ENGINE_STATE, "state", {"running", s->device == ENGINE_DEVICE_THERE},
                     {"starting", s->device == ENGINE_DEVICE_STARTING},
                     {"released", s->device == ENGINE_DEVICE_RELEASED});
}

static void write_engine(struct ek_expo *e, const struct engine_stats *s, uint64_t now)
{
    uint64_t age = engine_step_age_us(s, now);
    METRICS_ROWS(e, M_BLOCKS, "state", {"total", s->blocks_total}, {"used", s->blocks_used},
                 {"cached", s->blocks_cached}, {"free", s->blocks_free});
    METRICS_ROWS(e, M_HOST_BLOCKS, "state", {"total", s->host_blocks_total},
                 {"used", s->host_blocks_used}, {"cached", s->host_blocks_cached});
    if (s->has_states) {
        METRICS_ROWS(e, M_SNAPSHOTS, "state", {"total", s->snapshots_total},
                     {"used", s->snapshots_used});
        METRICS_ROWS(e, M_SNAPSHOT_EVENTS, "event", {"taken", (double)s->snapshots_taken},
                     {"hit", (double)s->snapshot_hits}, {"evicted", (double)s->snapshots_evicted});
    }
    metrics_one(e, M_WASTE, (double)s->waste_tokens);
    metrics_one(e, M_USED_TOKENS, (double)s->used_tokens);
    metrics_one(e, M_QUEUED_TOKENS, (double)s->queued_tokens);
    metrics_one(e, M_OLDEST, (double)s->oldest_wait_us / 1e6);
    metrics_one(e, M_PREEMPTED, s->preempted);
    metrics_one(e, M_STEPS, (double)s->steps);
    metrics_one(e, M_STEP_AGE, (double)age / 1e6);
    metrics_one(e, M_RECOMPUTED, (double)s->recomputed_tokens);
    metrics_one(e, M_EVICTIONS, (double)s->evictions);
    METRICS_ROWS(e, M_SWAPPED, "direction", {"out", (double)s->swapped_out_blocks},
                 {"in", (double)s->swapped_in_blocks});
    METRICS_ROWS(e, M_REFUSED, "reason", {"queue", (double)s->refused_queue},
                 {"tokens", (double)s->refused_tokens}, {"deadline", (double)s->refused_deadline},
                 {"drain", (double)s->refused_drain}, {"fit", (double)s->refused_fit},
                 {"engine", (double)s->refused_away});
    metrics_one(e, M_GAP, (double)s->largest_gap_us / 1e6);
    METRICS_ROWS(e, M_DRAIN, "state", {"serving", s->drain == ENGINE_SERVING},
                 {"draining", s->drain == ENGINE_DRAINING},
                 {"drained", s->drain == ENGINE_DRAINED});
    metrics_one(e, M_DRAIN_CUT, (double)s->finished[REQ_FIN_DEADLINE]);
    write_revivals(e, s);
    metrics_one(e, M_PLAN_TIME, (double)s->plan_us / 1e6);
    metrics_one(e, M_WAIT_TIME, (double)s->wait_us / 1e6);
}

static void write_kv_events(struct ek_expo *e, const struct kvlog *l)
{
    if (l)
        METRICS_ROWS(e, M_KV_EVENTS, "result", {"published", (double)atomic_load(&l->tail)},
                     {"dropped", (double)atomic_load(&l->dropped)});
}

static void write_grammars(struct ek_expo *e, struct encoder *n, const struct served *s,
                           const struct engine_stats *st)
{
    struct grammar_cache_stats g = {0};
    if (s->grammars)
        grammar_cache_stats(s->grammars, &g);
    METRICS_ROWS(e, M_GRAMMARS, "result", {"compiled", (double)g.made}, {"kept", (double)g.hits},
                 {"refused", (double)g.refused});
    metrics_one(e, M_READING_AGE, (double)encoder_reading_us(n, s->grammars, ek_now_us()) / 1e6);
    metrics_one(e, M_GRAMMAR_TIME, (double)(g.compile_us + g.warm_us) / 1e6);
    metrics_one(e, M_GRAMMARS_KEPT, g.kept);
    metrics_one(e, M_MASKS, (double)st->masks);
    metrics_one(e, M_MASK_TIME, (double)st->mask_us / 1e6);
    metrics_one(e, M_MASKS_PUT_OFF, (double)st->masks_put_off);
    metrics_one(e, M_MASKS_REFUSED, (double)st->masks_refused);
    metrics_one(e, M_JUMP_FORWARD, (double)st->jump_forward_tokens);
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
    METRICS_ROWS(e, M_DEVICE, "item", {"weights", (double)d->weight_bytes},
                 {"activations", (double)d->activation_bytes}, {"kv", (double)d->kv_bytes},
                 {"host_kv", (double)d->host_kv_bytes},
                 {"host_weights", (double)d->host_weight_bytes});
    ek_expo_family(e, &metrics_table[M_RANK]);
    for (uint32_t i = 0; i < k->ranks; i++)
        write_rank(e, k, i);
    metrics_one(e, M_POOL_RESERVED, (double)d->pool_reserved_bytes);
    metrics_one(e, M_POOL_USED, (double)d->pool_used_bytes);
    metrics_one(e, M_POOL_RESERVED_HIGH, (double)d->pool_reserved_high_bytes);
    metrics_one(e, M_POOL_USED_HIGH, (double)d->pool_used_high_bytes);
    metrics_one(e, M_BUSY, (double)d->busy_us / 1e6);
}

static void write_device(struct ek_expo *e, const struct served *s)
{
    struct ek_device_stats d = {0};
    struct metrics_row plan[HTTP_ITEMS_MOST];
    for (uint32_t i = 0; i < s->items; i++)
        plan[i] = (struct metrics_row){s->item[i].name, (double)s->item[i].bytes};
    metrics_rows(e, M_PLANNED, "item", plan, s->items);
    s->backend->stats(s->device, &d);
    write_figures(e, s, &d);
    const struct http_ranks k = {s->backend, s->device, 0, s->ranks, s->rank_card};
    write_stats(e, &k, &d);
}

void metrics_engine_write(struct ek_expo *e, const struct http *h, const struct served *s,
                          const struct engine_stats *st)
{
    write_vllm_counts(e, st);
    write_rejections(e, s, st);
    write_cache_config(e, s);
    write_lora(e);
    write_vllm_hists(e, st);
    if (s->hidden_metrics)
        write_vllm_old(e, st);
    write_live_limits(e, s->engine);
    write_limit_ages(e, h->started_us, s->engine);
    write_engine(e, st, ek_now_us());
    write_memory(e, st);
    write_held(e, st);
    write_kv_events(e, s->kvlog);
    write_grammars(e, h->encoder, s, st);
    write_device(e, s);
}
