/*
 * The options of evenkeel-server: one table (common/options.h) of which the flags, the keys of the
 * YAML file, --help and the reference pages are made. main.c copies values into each layer's own
 * parameters; no layer below sees this struct.
 *
 * Flags are spelled as in vLLM. What vLLM has or once had and what does nothing here is a row too,
 * and warns in one sentence that says what to use.
 */
#pragma once

#include "common/options.h"

struct ek_fault;

struct options {
    char *model;
    struct ek_strings served_model_name;
    char *dtype, *quantization, *weights_checksums, *chat_template, *generation_config;
    char *hf_overrides, *convert;
    uint64_t max_model_len; /* 0 = as much as fits */
    int64_t seed;           /* -1 = by chance */

    char *device, *cpu_isa, *cpu_forms;
    uint64_t threads, cpu_reserve; /* 0 threads: one per core that is not reserved */
    uint64_t tensor_parallel_size, pipeline_parallel_size, data_parallel_size;
    uint64_t nnodes, node_rank; /* as mpirun or srun started them; nnodes at least 1 */
    char *gone[4];              /* flags that were for several machines before MPI was */
    double distributed_timeout_seconds;
    bool keep_weights_host;
    char *engine_command; /* starts the engine's nodes */
    bool engine_node;     /* this is one of them */
    char **argv;          /* as main() has it, keys hidden; the caller's */
    bool headless, allow_unencrypted_network;

    double gpu_memory_utilization;
    uint64_t kv_cache_memory_bytes, num_gpu_blocks_override, block_size;
    double engine_memory_max;                              /* GiB */
    double swap_space, kv_offloading_size, cpu_offload_gb; /* GiB */
    int64_t state_snapshots;                               /* -1 = by the plan */
    char *kv_cache_dtype;                                  /* options_kv_i8(), options_kv_f8() */
    bool enable_prefix_caching, prefix_file_keys;
    char *prefix_file;
    double prefix_file_size; /* GiB */

    uint64_t max_num_seqs, max_num_batched_tokens;       /* 0 = by the device */
    uint64_t max_num_queued_reqs, max_num_queued_tokens; /* tokens: 0 = by the ceilings */
    double queue_deadline, watermark, step_deadline;     /* seconds, share, seconds */
    double admission_high, admission_low;                /* shares, high 0 = off */
    uint64_t long_prefill_token_threshold;               /* 0 = none */
    double stalled_share;                                /* of answers, 0 = off */
    double cached_share_per_salt;                        /* share, 0 = no limit */
    char *scheduling_policy;
    bool enable_chunked_prefill, async_scheduling;

    char *host, *uds, *control_socket;
    struct ek_strings api_key, api_key_file;
    uint64_t api_key_max_concurrency; /* 0 = no limit */
    double api_key_queue_share;
    bool require_api_key, protect_metrics, allow_credentials, web;
    struct ek_strings allowed_hosts, allowed_origins, allowed_methods, allowed_headers;
    char *root_path;
    char *ssl_certfile, *ssl_keyfile, *ssl_ca_certs, *ssl_cert_reqs;
    uint64_t max_connections_per_peer; /* 0 = no limit */
    double sse_keep_alive;             /* 0 = none */
    uint64_t port, http_threads, max_connections, max_body_bytes, max_logprobs;
    bool listen_from_control, sandbox, dumpable, engine_process;
    uint64_t responses_store_bytes; /* 0 = none are stored */
    double responses_store_ttl;
    uint64_t engine_restarts;
    double engine_wait;
    double engine_verdict_wait;
    double request_timeout, keep_alive_timeout, shutdown_timeout;
    char *drain_mode, *state_dir;
    bool flight_recorder;
    bool enable_force_include_usage, enable_per_request_metrics, enable_tokenizer_info_endpoint,
        enable_prompt_tokens_details, enable_auto_tool_choice;
    char *tool_call_parser;
    char *reasoning_parser;

    char *kv_events_config, *otlp_traces_endpoint, *show_hidden_metrics_for_version;
    char *log_level;
    bool enable_log_requests;

    char *config;
    double dry_run_memory; /* GiB, 0 = the device's */
    bool dry_run, check_config, json, list_backends, print_metrics, version, help;
    char *print_options; /* the format */
    bool print_limits;
};

extern const struct ek_opt option_table[];

/* Reads argv into *o (zeroed by the caller, freed with options_done) and checks what concerns more
 * than one row. Warnings go to `warn`. 0, -EBADMSG with a fault, -ENOMEM. */
int options_read(struct options *o, int argc, char **argv, ek_opt_warn_fn warn, void *ctx,
                 struct ek_fault *fault);
void options_done(struct options *o);
bool options_kv_i8(const struct options *o); /* the KV cache in 8 bits */
bool options_kv_f8(const struct options *o); /* in 8 bits as E4M3 */
/* One of several nodes: with --engine-command the engine's processes are, and the server is not. */
bool options_is_node(const struct options *o);
/* A node that obeys: node 0, or the server whose engine it is a node of. */
bool options_follows(const struct options *o);
