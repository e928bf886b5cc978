/*
 * The table of engines. A new engine is a new row here and nothing elsewhere: names of its series,
 * its endpoints, its flags, its command line, its last words. Names are tried from new to old; ':'
 * and '_' count as the same, because some exporters on the way rewrite them.
 */
#include "supervisor/engines/dialect.h"

#include <stddef.h>
#include <string.h>

#include "common/options.h"

#define MANY_TOKENS 1e15 /* no counter of tokens gets there */
#define MANY_REQS   1e7
#define MANY_BYTES  1e14
#define MANY_DAYS   1e8 /* seconds */

const char dialect_choices[] = "evenkeel|vllm";

/* clang-format off */

static const struct dialect_signal vllm_signals[SIG_COUNT] = {
    [SIG_KV_USAGE] = {.name = {"vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"},
                      .most = 1.0},
    [SIG_RUNNING] = {.name = {"vllm:num_requests_running"}, .sum = true, .most = MANY_REQS},
    [SIG_WAITING] = {.name = {"vllm:num_requests_waiting"}, .sum = true, .most = MANY_REQS},
    [SIG_WAITING_CAPACITY] = {.name = {"vllm:num_requests_waiting_by_reason"},
                              .label = "reason", .value = "capacity",
                              .sum = true, .most = MANY_REQS},
    [SIG_PREEMPTIONS] = {.name = {"vllm:num_preemptions_total", "vllm:num_preemptions"},
                         .sum = true, .most = MANY_TOKENS},
    [SIG_PROMPT_TOKENS] = {.name = {"vllm:prompt_tokens_total", "vllm:prompt_tokens"},
                           .sum = true, .most = MANY_TOKENS},
    [SIG_GEN_TOKENS] = {.name = {"vllm:generation_tokens_total", "vllm:generation_tokens"},
                        .sum = true, .most = MANY_TOKENS},
    [SIG_PREFIX_QUERIES] = {.name = {"vllm:prefix_cache_queries_total", "vllm:prefix_cache_queries",
                                     "vllm:gpu_prefix_cache_queries_total",
                                     "vllm:gpu_prefix_cache_queries"},
                            .sum = true, .most = MANY_TOKENS},
    [SIG_PREFIX_HITS] = {.name = {"vllm:prefix_cache_hits_total", "vllm:prefix_cache_hits",
                                  "vllm:gpu_prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits"},
                         .sum = true, .most = MANY_TOKENS},
    [SIG_START_TIME] = {.name = {"process_start_time_seconds"}, .most = 1e11},
    [SIG_FINISHED] = {.name = {"vllm:request_success_total", "vllm:request_success"},
                      .sum = true, .most = MANY_TOKENS},
};

/* As evenkeel-server says them, and the companion where vLLM can know. */
static const struct dialect_signal own_signals[SIG_COUNT] = {
    [SIG_RECOMPUTED] = {.name = {"evenkeel_recomputed_tokens_total"},
                        .sum = true, .most = MANY_TOKENS},
    [SIG_STEPS] = {.name = {"evenkeel_engine_steps_total"}, .sum = true, .most = MANY_TOKENS},
    [SIG_STEP_AGE_S] = {.name = {"evenkeel_engine_step_age_seconds"}, .most = MANY_DAYS},
    [SIG_QUEUE_OLDEST_S] = {.name = {"evenkeel_queue_oldest_seconds"}, .most = MANY_DAYS},
    [SIG_MAX_GAP_S] = {.name = {"evenkeel_max_gap_seconds"}, .most = MANY_DAYS},
    [SIG_BLOCKS_TOTAL] = {.name = {"evenkeel_kv_blocks"},
                          .label = "state", .value = "total", .sum = true, .most = MANY_BYTES},
    [SIG_BLOCKS_CACHED] = {.name = {"evenkeel_kv_blocks"},
                           .label = "state", .value = "cached", .sum = true, .most = MANY_BYTES},
    [SIG_POOL_RESERVED] = {.name = {"evenkeel_devpool_reserved_bytes"},
                           .sum = true, .most = MANY_BYTES},
    [SIG_POOL_USED] = {.name = {"evenkeel_devpool_used_bytes"}, .sum = true, .most = MANY_BYTES},
    [SIG_POOL_USED_HIGH] = {.name = {"evenkeel_devpool_used_high_bytes"},
                            .sum = true, .most = MANY_BYTES},
    [SIG_LIMIT_SEQS] = {.name = {"evenkeel_limit"},
                        .label = "limit", .value = "max_num_running_seqs", .most = MANY_REQS},
    [SIG_LIMIT_TOKENS] = {.name = {"evenkeel_limit"},
                          .label = "limit", .value = "max_num_batched_tokens", .most = 1e9},
    [SIG_LIMIT_DEADLINE_S] = {.name = {"evenkeel_limit"},
                              .label = "limit", .value = "queue_deadline_s", .most = MANY_DAYS},
    [SIG_LIMIT_RESERVE] = {.name = {"evenkeel_limit"},
                           .label = "limit", .value = "watermark", .most = 1},
    [SIG_READING_AGE_S] = {.name = {"evenkeel_reading_age_seconds"}, .most = MANY_DAYS},
    [SIG_OPEN] = {.name = {"evenkeel_open_without_key"}, .most = 1},
    [SIG_CPU_S] = {.name = {"process_cpu_seconds_total"}, .most = MANY_TOKENS},
    [SIG_BUSY_S] = {.name = {"evenkeel_device_busy_seconds_total"}, .most = MANY_TOKENS},
    [SIG_HELD_LIMIT] = {.name = {"evenkeel_admission_held"},
                        .label = "reason", .value = "limit", .sum = true, .most = MANY_REQS},
    [SIG_HELD_TOKENS] = {.name = {"evenkeel_admission_held"},
                         .label = "reason", .value = "tokens", .sum = true, .most = MANY_REQS},
    [SIG_HELD_PREEMPTED] = {.name = {"evenkeel_admission_held"},
                            .label = "reason", .value = "preempted",
                            .sum = true, .most = MANY_REQS},
    [SIG_HELD_PAUSED] = {.name = {"evenkeel_admission_held"},
                         .label = "reason", .value = "paused", .sum = true, .most = MANY_REQS},
    [SIG_HELD_BLOCKS] = {.name = {"evenkeel_admission_held"},
                         .label = "reason", .value = "blocks", .sum = true, .most = MANY_REQS},
    [SIG_HELD_GROWTH] = {.name = {"evenkeel_admission_held"},
                         .label = "reason", .value = "growth", .sum = true, .most = MANY_REQS},
    [SIG_HELD_COPIES] = {.name = {"evenkeel_admission_held"},
                         .label = "reason", .value = "copies", .sum = true, .most = MANY_REQS},
    [SIG_HELD_NEEDED] = {.name = {"evenkeel_admission_blocks"},
                         .label = "figure", .value = "needed", .sum = true, .most = MANY_BYTES},
    [SIG_HELD_AVAILABLE] = {.name = {"evenkeel_admission_blocks"},
                            .label = "figure", .value = "available",
                            .sum = true, .most = MANY_BYTES},
    [SIG_HELD_EXPECTED] = {.name = {"evenkeel_admission_blocks"},
                           .label = "figure", .value = "expected", .sum = true, .most = MANY_BYTES},
    [SIG_HELD_FIT] = {.name = {"evenkeel_admission_fit_requests"}, .most = MANY_REQS},
    [SIG_ENGINE_STARTING] = {.name = {"evenkeel_engine_state"},
                             .label = "state", .value = "starting", .most = 1},
    [SIG_ENGINE_RELEASED] = {.name = {"evenkeel_engine_state"},
                             .label = "state", .value = "released", .most = 1},
    [SIG_ENGINE_RESTARTS] = {.name = {"evenkeel_engine_restarts_total"},
                             .sum = true, .most = MANY_TOKENS},
    [SIG_ENGINE_PAUSE] = {.name = {"evenkeel_engine_pause_seconds_sum"}, .most = MANY_TOKENS},
    [SIG_ENGINE_PLANNED] = {.name = {"evenkeel_engine_restarts_total"},
                            .label = "cause", .value = "planned", .most = MANY_TOKENS},
    [SIG_STEP_TOKENS] = {.name = {"evenkeel_step_tokens"}, .most = 1e9},
};

/* The companion counts a preemption when it happens: before vLLM's own number. And it knows what a
 * stopped engine has not taken yet, which vLLM counts as nothing. */
static const struct dialect_signal companion_signals[SIG_COUNT] = {
    [SIG_ANSWERING] = {.name = {"evenkeel_http_active_requests"}, .sum = true, .most = MANY_REQS},
    [SIG_PREEMPTIONS] = {.name = {"evenkeel_preemptions_total", "vllm:num_preemptions_total"},
                         .sum = true, .most = MANY_TOKENS},
};

static const struct dialect_signal sglang_signals[SIG_COUNT] = {
    [SIG_KV_USAGE] = {.name = {"sglang:token_usage"}, .most = 1.0},
    [SIG_RUNNING] = {.name = {"sglang:num_running_reqs"}, .sum = true, .most = MANY_REQS},
    [SIG_WAITING] = {.name = {"sglang:num_queue_reqs"}, .sum = true, .most = MANY_REQS},
    [SIG_PROMPT_TOKENS] = {.name = {"sglang:prompt_tokens_total"},
                           .sum = true, .most = MANY_TOKENS},
    [SIG_GEN_TOKENS] = {.name = {"sglang:generation_tokens_total"},
                        .sum = true, .most = MANY_TOKENS},
};

static const struct dialect_signal llamacpp_signals[SIG_COUNT] = {
    [SIG_KV_USAGE] = {.name = {"llamacpp:kv_cache_usage_ratio"}, .most = 1.0},
    [SIG_RUNNING] = {.name = {"llamacpp:requests_processing"}, .sum = true, .most = MANY_REQS},
    [SIG_WAITING] = {.name = {"llamacpp:requests_deferred"}, .sum = true, .most = MANY_REQS},
    [SIG_PROMPT_TOKENS] = {.name = {"llamacpp:prompt_tokens_total"},
                           .sum = true, .most = MANY_TOKENS},
    [SIG_GEN_TOKENS] = {.name = {"llamacpp:tokens_predicted_total"},
                        .sum = true, .most = MANY_TOKENS},
};

#define VLLM_FINISHED "vllm:request_success_total"
static const struct dialect_signal vllm_figures[FIG_COUNT] = {
    [FIG_STOPPED] = {.name = {VLLM_FINISHED}, .label = "finished_reason", .value = "stop"},
    [FIG_LENGTH] = {.name = {VLLM_FINISHED}, .label = "finished_reason", .value = "length"},
    [FIG_ERRORS] = {.name = {VLLM_FINISHED}, .label = "finished_reason", .value = "error"},
    [FIG_REFUSED] = {.name = {"vllm:admission_rejections_total"}},
};

static const struct dialect_hist vllm_hists[HIST_COUNT] = {
    [HIST_TTFT] = {{"vllm:time_to_first_token_seconds"}},
    [HIST_ITL] = {{"vllm:inter_token_latency_seconds", "vllm:time_per_output_token_seconds"}},
    [HIST_QUEUE] = {{"vllm:request_queue_time_seconds"}},
    [HIST_PROMPT] = {{"vllm:request_prompt_tokens"}},
    [HIST_OUTPUT] = {{"vllm:request_generation_tokens"}},
};

static const struct dialect_hist sglang_hists[HIST_COUNT] = {
    [HIST_TTFT] = {{"sglang:time_to_first_token_seconds"}},
    [HIST_ITL] = {{"sglang:inter_token_latency_seconds"}},
};

static const struct dialect_hist no_hists[HIST_COUNT] = {{{NULL}}};

static const struct dialect_gone vllm_gone[] = {
    {"--swap-space", "gone since March 2026; --kv-offloading-size keeps prefixes in host memory"},
    {"--preemption-mode", "preempted requests are always computed again"},
    {"--disable-log-requests", "the default now; --enable-log-requests is the opposite"},
    {"--max-num-on-the-fly-batches", "no vLLM ever had it; leave it out"},
    {"--scheduler-delay-factor", "gone; leave it out"},
    {"--num-scheduler-steps", "gone; leave it out"},
    {"--multi-step-stream-outputs", "gone; leave it out"},
    {"--num-lookahead-slots", "gone since November 2025; see --speculative-config"},
    {"--max-num-partial-prefills",
     "gone since July 2026; --max-num-batched-tokens bounds prefills"},
    {"--max-long-partial-prefills", "gone since July 2026; --max-num-batched-tokens bounds them"},
    {"--use-v2-block-manager", "gone; leave it out"},
    {"--max-seq-len-to-capture", "gone; see --compilation-config"},
    {"--max-context-len-to-capture", "gone; see --compilation-config"},
    {"--cuda-graph-sizes", "gone; see --compilation-config"},
    {"--disable-async-output-proc", "gone; leave it out"},
    {"--guided-decoding-backend", "gone; --structured-outputs-config"},
    {"--task", "gone; --runner and --convert"},
    {"--device", "gone; the build says it"},
    {"--worker-use-ray", "gone; --distributed-executor-backend ray"},
    {"--rope-scaling", "gone; --hf-overrides"},
    {"--rope-theta", "gone; --hf-overrides"},
    {"--quantization-param-path", "gone; scales are read from the checkpoint"},
    {"--calculate-kv-scales", "gone; scales are read from the checkpoint"},
    {"--speculative-model", "gone; --speculative-config"},
    {"--num-speculative-tokens", "gone; --speculative-config"},
    {0}};

static const char *const vllm_dead[] = {"EngineDeadError", NULL};
static const char *const vllm_lost[] = {"Worker proc ", NULL};
static const char *const vllm_fatal[] = {"EngineCore encountered a fatal error",
                                         "EngineCore failed to start", NULL};

static const struct dialect_plan plan_evenkeel = {
    .before_nodes = "mpirun -n # --map-by node --host HOSTS ",
    .gpu = " --device cuda",
    .cpu = " --device cpu",
    .kv_8_gpu = " --kv-cache-dtype fp8",
    .kv_8_cpu = " --kv-cache-dtype int8_per_token_head",
    .weights_8 = " --quantization int8",
    .weights_4 = " --quantization int4",
};
static const struct dialect_plan plan_vllm = {
    .nodes = " --nnodes # --node-rank 0 --master-addr ADDRESS",
    .kv_8_gpu = " --kv-cache-dtype fp8",
    .kv_8_cpu = " --kv-cache-dtype fp8",
    .weights_8 = " --quantization fp8",
};

/* How a vLLM is started and ends. One whose engine was killed ends with status 0; without the drain
 * flag SIGTERM cuts all answers, with finish_reason "abort" and status 0. */
#define VLLM_LIFE \
    .program = "vllm", .verb = "serve", \
    .module = "vllm.entrypoints.openai.api_server", .modules = "vllm.entrypoints.", \
    .drain_flag = "--shutdown-timeout", .key_env = "VLLM_API_KEY", \
    .flags_flag = "--config", \
    .seqs_flag = "--max-num-seqs", .tokens_flag = "--max-num-batched-tokens", \
    .share_flag = "--gpu-memory-utilization", \
    .seqs_default_most = 1024, .tokens_default_most = 16384, .share_default = 0.92, \
    .gone = vllm_gone, .torch = true, .proves_ready = true, \
    .exit0_is_failure = true, .dead = vllm_dead, .lost = vllm_lost, .fatal = vllm_fatal, \
    .error_mark = ": error: " /* of Python's argparse, behind its program's name */

static const struct dialect table[] = {
    {
        .name = "evenkeel",
        .signals = {vllm_signals, own_signals},
        .figures = vllm_figures,
        .hists = vllm_hists,
        .info = "vllm:cache_config_info",
        .ready_path = "/readyz",
        .drain_path = "/drain",
        .live_limits = true,
        .control_socket = true,
        .exit_word = true,
        .rereads = true,
        .program = "evenkeel-server",
        .beside = true,
        .model_flag = "--model",
        .prefix_flag = "--prefix-file",
        .control_flag = "--control-socket",
        .listen_flag = "--listen-from-control",
        .seqs_flag = "--max-num-seqs",
        .tokens_flag = "--max-num-batched-tokens",
        .share_flag = "--gpu-memory-utilization",
        .swap_flag = "--swap-space",
        .seqs_default_most = 512, /* on a GPU of 80 GB and more */
        .tokens_default_most = 32768,
        .share_default = 0.92,
        .error_mark = "evenkeel-server error: ",
        .plan = &plan_evenkeel,
    },
    {
        .name = "vllm",
        .signals = {vllm_signals},
        .figures = vllm_figures,
        .hists = vllm_hists,
        .info = "vllm:cache_config_info",
        .ready_path = "/health",
        .plan = &plan_vllm,
        VLLM_LIFE,
    },
    {
        .name = "vllm-companion",
        .signals = {companion_signals, vllm_signals, own_signals},
        .figures = vllm_figures,
        .hists = vllm_hists,
        .info = "vllm:cache_config_info",
        .ready_path = "/readyz",
        .drain_path = "/drain",
        .live_limits = true,
        .control_socket = true,
        .companion = true,
        VLLM_LIFE,
    },
    {
        .name = "sglang",
        .only_read = true,
        .signals = {sglang_signals},
        .hists = sglang_hists,
        .seqs_flag = "--max-running-requests", /* for what the doctor advises */
        .tokens_flag = "--chunked-prefill-size",
        .share_flag = "--mem-fraction-static",
    },
    {
        .name = "llamacpp",
        .only_read = true,
        .signals = {llamacpp_signals},
        .hists = no_hists,
    },
};

/* clang-format on */

const struct dialect *dialect_at(uint32_t i)
{
    return i < sizeof(table) / sizeof(table[0]) ? &table[i] : NULL;
}

const struct dialect *dialect_find(const char *name)
{
    for (uint32_t i = 0; dialect_at(i); i++) {
        if (!table[i].only_read && strcmp(table[i].name, name) == 0)
            return &table[i];
    }
    return NULL;
}

const struct dialect *dialect_companion(const struct dialect *d)
{
    for (uint32_t i = 0; dialect_at(i); i++) {
        if (table[i].companion && !d->exit_word && d->module && table[i].module &&
            strcmp(table[i].module, d->module) == 0)
            return &table[i];
    }
    return NULL;
}

const struct dialect_gone *dialect_gone(const struct dialect *d, char *const *argv, size_t *at)
{
    for (; d->gone && argv && argv[*at]; (*at)++) {
        for (const struct dialect_gone *g = d->gone; g->flag; g++) {
            if (!ek_opt_is(argv[*at], g->flag, NULL))
                continue;
            (*at)++;
            return g;
        }
    }
    return NULL;
}

bool dialect_same(const char *name, const char *want, const char *suffix)
{
    for (; *want; name++, want++) {
        char a = *name == ':' ? '_' : *name, b = *want == ':' ? '_' : *want;
        if (a != b)
            return false;
    }
    return strcmp(name, suffix) == 0;
}

const struct dialect_signal *dialect_signal(const struct dialect *d, enum signal_id i)
{
    const struct dialect_signal *s = &d->signals[0][i];
    for (size_t k = 1; k < DIALECT_SOURCES && d->signals[k] && !s->name[0]; k++)
        s = &d->signals[k][i];
    return s;
}
