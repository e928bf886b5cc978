/* The option table of evenkeel-server and the checks that concern more than one row. */
#include "server/options.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "server/kvevents.h"

#define AT(field) offsetof(struct options, field)

/* One row that does nothing, because a later or an earlier vLLM has it; `what` is a sentence. */
#define OLD_VALUE(n, what)                                                                         \
    {                                                                                              \
        .name = (n), .type = OPT_IGNORED, .help = (what)                                           \
    }
#define OLD_FLAG(n, what)                                                                          \
    {                                                                                              \
        .name = (n), .type = OPT_IGNORED, .choices = "flag", .help = (what)                        \
    }

const struct ek_opt option_table[] = {
    {.name = "model",
     .type = OPT_STRING,
     .at = AT(model),
     .group = "Model",
     .help = "Directory of the model in Hugging Face layout, or the id of one in its local cache; "
             "also the first argument."},
    {.name = "served-model-name",
     .type = OPT_LIST,
     .at = AT(served_model_name),
     .help = "Name that requests use; the first one labels the metrics. Default: the directory's "
             "name and the path as given."},
    {.name = "dtype",
     .type = OPT_CHOICE,
     .at = AT(dtype),
     .def = "auto",
     .choices = "auto|bfloat16|float16|half|float32|float",
     .help = "Type to compute with; auto is the type of the weights."},
    {.name = "quantization",
     .type = OPT_CHOICE,
     .at = AT(quantization),
     .def = "auto",
     .choices = "auto|int8|int4|fp8|gptq|gptq_marlin|awq|awq_marlin|compressed-tensors|fbgemm_fp8",
     .help = "int8, int4 and fp8 quantize the weights of layers while they are loaded; the others "
             "name what the checkpoint is; auto takes it as it is."},
    {.name = "weights-checksums",
     .type = OPT_STRING,
     .at = AT(weights_checksums),
     .def = "auto",
     .help = "List of SHA-256 sums, as sha256sum writes it, that the model's files must have; auto "
             "takes SHA256SUMS in the model directory if it is there, off none."},
    {.name = "max-model-len",
     .type = OPT_UINT,
     .at = AT(max_model_len),
     .min = 1,
     .max = 1 << 24,
     .def = "auto",
     .auto_ok = true,
     .help = "Most tokens of prompt and answer together; auto is what the model and the memory "
             "allow."},
    {.name = "chat-template",
     .type = OPT_STRING,
     .at = AT(chat_template),
     .help = "File with the chat template, instead of the model's own."},
    {.name = "generation-config",
     .type = OPT_STRING,
     .at = AT(generation_config),
     .def = "auto",
     .help = "auto takes sampling defaults from the model's generation_config.json, vllm neutral "
             "ones, a directory those of the generation_config.json in it."},
    {.name = "seed",
     .type = OPT_INT,
     .at = AT(seed),
     .min = -1,
     .max = 9007199254740992.0,
     .def = "-1",
     .help = "Seeds requests that bring none; -1 is by chance."},
    {.name = "max-logprobs",
     .type = OPT_UINT,
     .at = AT(max_logprobs),
     .max = 20,
     .def = "20",
     .help = "Most alternatives that a request may ask for."},

    {.name = "device",
     .type = OPT_CHOICE,
     .at = AT(device),
     .def = "auto",
     .choices = "auto|cpu|cuda",
     .group = "Device",
     .help = "Where to compute; auto is a usable GPU, else the CPU."},
    {.name = "threads",
     .type = OPT_UINT,
     .at = AT(threads),
     .max = 1024,
     .def = "auto",
     .auto_ok = true,
     .help = "Threads of the CPU backend; auto is one per usable core."},
    {.name = "cpu-isa",
     .type = OPT_STRING,
     .at = AT(cpu_isa),
     .help = "Instruction tier of the CPU backend, instead of the best (see --list-backends)."},
    {.name = "tensor-parallel-size",
     .alias = "tp",
     .type = OPT_UINT,
     .at = AT(tensor_parallel_size),
     .min = 1,
     .max = 64,
     .def = "1",
     .help = "Devices that share the model; taken as 1 in this version, with a warning."},
    {.name = "pipeline-parallel-size",
     .alias = "pp",
     .type = OPT_UINT,
     .at = AT(pipeline_parallel_size),
     .min = 1,
     .max = 64,
     .def = "1",
     .help = "Pipelines are not offered: taken as 1, with a warning."},
    {.name = "data-parallel-size",
     .alias = "dp",
     .type = OPT_UINT,
     .at = AT(data_parallel_size),
     .min = 1,
     .max = 64,
     .def = "1",
     .help = "1: run one server per replica under evenkeeld instead."},

    {.name = "gpu-memory-utilization",
     .alias = "device-memory-utilization",
     .type = OPT_FRACTION,
     .at = AT(gpu_memory_utilization),
     .min = 0.01,
     .max = 1,
     .def = "0.92",
     .group = "Memory",
     .help = "Share of the device's (or the machine's) memory that the server may plan."},
    {.name = "kv-cache-memory-bytes",
     .type = OPT_UINT,
     .at = AT(kv_cache_memory_bytes),
     .min = 1,
     .max = 1099511627776.0 * 16,
     .def = "auto",
     .auto_ok = true,
     .help = "Size of the KV pool; auto is what the share leaves (on the CPU at most 4 GiB)."},
    {.name = "num-gpu-blocks-override",
     .type = OPT_UINT,
     .at = AT(num_gpu_blocks_override),
     .min = 2,
     .max = 1 << 28,
     .def = "auto",
     .auto_ok = true,
     .help = "Number of KV blocks, for tests of preemption."},
    {.name = "block-size",
     .type = OPT_UINT,
     .at = AT(block_size),
     .max = 1 << 20, /* check() knows which */
     .def = "16",
     .help = "Tokens per KV block: 8, 16, 32, 64 or 128."},
    {.name = "swap-space",
     .type = OPT_FRACTION,
     .at = AT(swap_space),
     .max = 4096,
     .def = "0",
     .help = "GiB of host memory for KV blocks of preempted requests; 0 computes them again."},
    {.name = "kv-offloading-size",
     .type = OPT_FRACTION,
     .at = AT(kv_offloading_size),
     .max = 4096,
     .def = "0",
     .help = "GiB of host memory for prefix blocks that the KV pool evicts; 0 drops them."},
    {.name = "kv-cache-dtype",
     .type = OPT_CHOICE,
     .at = AT(kv_cache_dtype),
     .def = "auto",
     .choices = "auto",
     .help = "auto: the cache has the type of the model."},
    {.name = "enable-prefix-caching",
     .type = OPT_BOOL,
     .at = AT(enable_prefix_caching),
     .def = "true",
     .help = "Keep the blocks of finished requests and reuse them for equal beginnings."},
    {.name = "cached-share-per-salt",
     .type = OPT_FRACTION,
     .at = AT(cached_share_per_salt),
     .max = 1,
     .def = "0",
     .live = true,
     .help = "Most of the pool that unused prefix blocks of one cache salt may keep; 0 is no "
             "limit."},

    {.name = "max-num-seqs",
     .type = OPT_UINT,
     .at = AT(max_num_seqs),
     .min = 1,
     .max = 4096,
     .def = "auto",
     .auto_ok = true,
     .live = true,
     .group = "Scheduling",
     .help = "Most sequences in one step, and the ceiling of the live limit max_num_running_seqs; "
             "auto is 64 on the CPU, 256 on a GPU."},
    {.name = "max-num-batched-tokens",
     .type = OPT_UINT,
     .at = AT(max_num_batched_tokens),
     .min = 1,
     .max = 1 << 20,
     .def = "auto",
     .auto_ok = true,
     .live = true,
     .help = "Token budget of one step, and the ceiling of the live limit of that name; auto is "
             "2048 on the CPU, 8192 on a GPU."},
    {.name = "max-num-queued-reqs",
     .type = OPT_UINT,
     .at = AT(max_num_queued_reqs),
     .min = 1,
     .max = 1 << 20,
     .def = "1024",
     .live = true,
     .help = "Most waiting requests; one more is answered with 429."},
    {.name = "max-num-queued-tokens",
     .type = OPT_UINT,
     .at = AT(max_num_queued_tokens),
     .min = 1,
     .max = 1 << 30,
     .def = "auto",
     .auto_ok = true,
     .live = true,
     .help = "Most prompt tokens waiting; auto is 8 times the larger of token budget and model "
             "length, at least 64k."},
    {.name = "queue-deadline",
     .type = OPT_SECONDS,
     .at = AT(queue_deadline),
     .max = 86400,
     .def = "0",
     .live = true,
     .help = "A request that would wait longer is refused with 429; 0 is no deadline."},
    {.name = "watermark",
     .type = OPT_FRACTION,
     .at = AT(watermark),
     .max = 0.5,
     .def = "0.01",
     .live = true,
     .help = "Share of KV blocks kept free when a waiting request is admitted."},
    {.name = "admission-high",
     .type = OPT_FRACTION,
     .at = AT(admission_high),
     .max = 1,
     .def = "0",
     .live = true,
     .help = "Share of KV blocks in use above which no new request is admitted; 0 is off."},
    {.name = "admission-low",
     .type = OPT_FRACTION,
     .at = AT(admission_low),
     .max = 1,
     .def = "0.8",
     .live = true,
     .help = "Share of KV blocks in use below which admission goes on after --admission-high."},
    {.name = "step-deadline",
     .type = OPT_SECONDS,
     .at = AT(step_deadline),
     .max = 86400,
     .def = "120",
     .help = "A step that takes longer is a hang: the server ends with code 74; 0 is off."},
    {.name = "scheduling-policy",
     .type = OPT_CHOICE,
     .at = AT(scheduling_policy),
     .def = "fcfs",
     .choices = "fcfs|priority",
     .help = "Order of admission: by arrival, or by the requests' priority first."},
    {.name = "enable-chunked-prefill",
     .type = OPT_BOOL,
     .at = AT(enable_chunked_prefill),
     .def = "true",
     .help = "Always on: prompts are computed in chunks under the token budget."},
    {.name = "async-scheduling",
     .type = OPT_BOOL,
     .at = AT(async_scheduling),
     .def = "true",
     .help = "Plan the next step while one runs (two steps in flight)."},

    {.name = "host",
     .type = OPT_STRING,
     .at = AT(host),
     .group = "HTTP",
     .help = "Address to listen on; default all addresses."},
    {.name = "port",
     .type = OPT_UINT,
     .at = AT(port),
     .max = 65535,
     .def = "8000",
     .help = "Port of the API; 0 is any free one."},
    {.name = "uds",
     .type = OPT_STRING,
     .at = AT(uds),
     .help = "Listen on this Unix socket instead of TCP."},
    {.name = "control-socket",
     .type = OPT_STRING,
     .at = AT(control_socket),
     .help = "Unix socket for limits, drain, health and metrics; open before the model is "
             "loaded."},
    {.name = "listen-from-control",
     .type = OPT_BOOL,
     .at = AT(listen_from_control),
     .help = "The listening socket is handed over the control socket (evenkeeld does)."},
    {.name = "http-threads",
     .type = OPT_UINT,
     .at = AT(http_threads),
     .min = 1,
     .max = 14,
     .def = "auto",
     .auto_ok = true,
     .help = "Threads for API connections; auto is half the cores, 1 to 4."},
    {.name = "max-connections",
     .type = OPT_UINT,
     .at = AT(max_connections),
     .min = 1,
     .max = 16384,
     .def = "4096",
     .help = "Most open API connections; further ones wait."},
    {.name = "max-body-bytes",
     .type = OPT_UINT,
     .at = AT(max_body_bytes),
     .min = 1024,
     .max = 1 << 30,
     .def = "auto",
     .auto_ok = true,
     .help = "Largest request body; auto is 4 MiB and 32 bytes per token of the model's length."},
    {.name = "request-timeout",
     .type = OPT_SECONDS,
     .at = AT(request_timeout),
     .min = 0.1,
     .max = 3600,
     .def = "30",
     .help = "Total time for a request's headers and body to arrive."},
    {.name = "keep-alive-timeout",
     .type = OPT_SECONDS,
     .at = AT(keep_alive_timeout),
     .min = 1,
     .max = 3600,
     .def = "75",
     .help = "An open connection without traffic is closed after this time."},
    {.name = "shutdown-timeout",
     .type = OPT_SECONDS,
     .at = AT(shutdown_timeout),
     .max = 86400,
     .def = "60",
     .help = "Time that running and queued requests have to finish after SIGTERM; 0 cuts them."},
    {.name = "drain-mode",
     .type = OPT_CHOICE,
     .at = AT(drain_mode),
     .def = "refuse",
     .choices = "refuse|hold",
     .help = "New requests while draining: refuse answers 503 with Retry-After, hold leaves new "
             "connections in the listening socket."},
    {.name = "state-dir",
     .type = OPT_STRING,
     .at = AT(state_dir),
     .help = "Where exit.json goes, which says why the server ended; default the folder of the "
             "control socket."},
    {.name = "enable-force-include-usage",
     .type = OPT_BOOL,
     .at = AT(enable_force_include_usage),
     .help = "Streams end with a usage chunk, asked for or not."},
    {.name = "enable-auto-tool-choice",
     .type = OPT_BOOL,
     .at = AT(enable_auto_tool_choice),
     .help = "Chats with tools answer with tool_calls; else calls stay in the text. Needs "
             "--tool-call-parser."},
    {.name = "tool-call-parser",
     .type = OPT_CHOICE,
     .at = AT(tool_call_parser),
     .choices = "hermes|llama3_json|mistral|qwen3_coder|pythonic",
     .help = "How the model writes tool calls: hermes is <tool_call> and JSON, llama3_json JSON "
             "alone, mistral [TOOL_CALLS], qwen3_coder <function=...>, pythonic a list of calls."},
    {.name = "reasoning-parser",
     .type = OPT_CHOICE,
     .at = AT(reasoning_parser),
     .choices = "deepseek_r1|qwen3",
     .help = "Thinking between <think> and </think> goes into `reasoning` of a chat's answer: "
             "deepseek_r1 always begins with it, qwen3 where prompt or answer open it."},
    {.name = "enable-per-request-metrics",
     .type = OPT_BOOL,
     .at = AT(enable_per_request_metrics),
     .help = "Answers have metrics with the times of their request, streams in the usage chunk."},
    {.name = "enable-prompt-tokens-details",
     .type = OPT_BOOL,
     .at = AT(enable_prompt_tokens_details),
     .help = "Usage tells how many prompt tokens came from the prefix cache."},

    {.name = "api-key",
     .type = OPT_LIST,
     .at = AT(api_key),
     .group = "Access",
     .help = "A key that clients must send as Authorization: Bearer KEY; may be given several "
             "times. Other users see command lines: --api-key-file keeps it out of them."},
    {.name = "api-key-file",
     .type = OPT_LIST,
     .at = AT(api_key_file),
     .help = "File of keys, one a line: KEY, or NAME KEY [max-concurrency=N] [queue-share=F] "
             "[cache-group=NAME]; a key may be sha256:HEX. SIGHUP reads it again. The systemd "
             "credential api-keys is such a file."},
    {.name = "require-api-key",
     .type = OPT_BOOL,
     .at = AT(require_api_key),
     .help = "Do not start without a key on an address that others can reach; else that is a "
             "warning."},
    {.name = "protect-metrics",
     .type = OPT_BOOL,
     .at = AT(protect_metrics),
     .help = "/metrics asks for a key too."},
    {.name = "api-key-max-concurrency",
     .type = OPT_UINT,
     .at = AT(api_key_max_concurrency),
     .max = 1000000,
     .def = "0",
     .help = "Most open requests of one key, where its line says nothing else; 0 is no limit."},
    {.name = "api-key-queue-share",
     .type = OPT_FRACTION,
     .at = AT(api_key_queue_share),
     .min = 0.001,
     .max = 1,
     .def = "0.5",
     .help = "Most of --max-num-queued-reqs that requests of one key without a first token may "
             "take, where its line says nothing else and there are several keys."},

    {.name = "ssl-certfile",
     .type = OPT_STRING,
     .at = AT(ssl_certfile),
     .help = "PEM file with the server's certificate, then those that signed it: the API speaks "
             "TLS. SIGHUP reads it again."},
    {.name = "ssl-keyfile",
     .type = OPT_STRING,
     .at = AT(ssl_keyfile),
     .help = "PEM file with the certificate's private key; default --ssl-certfile."},
    {.name = "ssl-ca-certs",
     .type = OPT_STRING,
     .at = AT(ssl_ca_certs),
     .help = "PEM file of those who sign clients' certificates; read at start only."},
    {.name = "ssl-cert-reqs",
     .type = OPT_CHOICE,
     .at = AT(ssl_cert_reqs),
     .choices = "0|1|2",
     .help = "Clients' certificates: 0 none is asked for, 1 it must be good if there is one, 2 "
             "there must be a good one. Default 2 with --ssl-ca-certs."},
    {.name = "allowed-hosts",
     .type = OPT_LIST,
     .at = AT(allowed_hosts),
     .help = "Names that a Host header may have, else 400; *.example.org is every one below it. "
             "Health is answered to any name. Default any."},
    {.name = "allowed-origins",
     .type = OPT_LIST,
     .at = AT(allowed_origins),
     .help = "Origins whose pages may use the API in a browser (CORS), or *; also as vLLM's JSON "
             "list. Default none."},
    {.name = "allowed-methods",
     .type = OPT_LIST,
     .at = AT(allowed_methods),
     .help = "Methods that such pages may use; default those that the API has."},
    {.name = "allowed-headers",
     .type = OPT_LIST,
     .at = AT(allowed_headers),
     .help = "Headers that such pages may send; default all that they ask for."},
    {.name = "allow-credentials",
     .type = OPT_BOOL,
     .at = AT(allow_credentials),
     .help = "Such pages may send cookies; not with --allowed-origins *."},
    {.name = "root-path",
     .type = OPT_STRING,
     .at = AT(root_path),
     .help = "Path that a proxy leaves in front of the API's, like /llm."},
    {.name = "max-connections-per-peer",
     .type = OPT_UINT,
     .at = AT(max_connections_per_peer),
     .max = 16384,
     .def = "0",
     .help = "Most open connections of one address (IPv6: one /64), further ones are closed; 0 is "
             "no limit, as behind a proxy."},
    {.name = "sse-keep-alive",
     .type = OPT_SECONDS,
     .at = AT(sse_keep_alive),
     .max = 3600,
     .def = "15",
     .help = "A stream without news sends a comment after this time, so that proxies leave it "
             "open; 0 sends none."},

    {.name = "show-hidden-metrics-for-version",
     .type = OPT_STRING,
     .at = AT(show_hidden_metrics_for_version),
     .group = "Metrics and events",
     .help = "A version of vLLM, like 0.7: names that it had and that later ones dropped are "
             "exported as well, for dashboards and routers that still read them."},
    {.name = "kv-events-config",
     .type = OPT_STRING,
     .at = AT(kv_events_config),
     .help =
         "Publishes what the prefix cache gains and loses, for routers, by ZeroMQ as vLLM does: "
         "JSON with enable_kv_cache_events, publisher (zmq, null), endpoint (tcp://*:5557), "
         "replay_endpoint, topic, buffer_steps, hwm, max_queue_size; see docs/scaling.md."},
    {.name = "log-level",
     .type = OPT_CHOICE,
     .at = AT(log_level),
     .def = "info",
     .choices = "err|warning|notice|info|debug",
     .group = "Log and configuration",
     .help = "Least important lines to log."},
    {.name = "enable-log-requests",
     .type = OPT_BOOL,
     .at = AT(enable_log_requests),
     .help = "One line per request: id, sizes, times; never text."},
    {.name = "config",
     .type = OPT_STRING,
     .at = AT(config),
     .help = "YAML file with the same keys as these flags; flags win."},
    {.name = "dry-run",
     .type = OPT_BOOL,
     .at = AT(dry_run),
     .group = "Information",
     .help = "Print the memory plan and end: 0 when it fits, 75 when not."},
    {.name = "check-config",
     .type = OPT_BOOL,
     .at = AT(check_config),
     .help = "Check options and configuration file and end."},
    {.name = "json", .type = OPT_BOOL, .at = AT(json), .help = "With --dry-run: print JSON."},
    {.name = "list-backends",
     .type = OPT_BOOL,
     .at = AT(list_backends),
     .help = "Print the backends and whether they can be used, and end."},
    {.name = "print-metrics",
     .type = OPT_BOOL,
     .at = AT(print_metrics),
     .help = "Print the reference of exported metrics and end."},
    {.name = "print-options",
     .type = OPT_CHOICE,
     .at = AT(print_options),
     .choices = EK_OPT_FORMATS,
     .help = "Print the reference of options and end; yaml is a configuration file with all "
             "keys."},
    {.name = "print-limits",
     .type = OPT_BOOL,
     .at = AT(print_limits),
     .help = "Print the fixed limits on what clients send, and end."},
    {.name = "version", .type = OPT_BOOL, .at = AT(version), .help = "Print the version and end."},
    {.name = "help", .alias = "h", .type = OPT_BOOL, .at = AT(help), .help = "Print this and end."},

    {.name = "disable-log-requests",
     .type = OPT_IGNORED,
     .choices = "flag",
     .group = "Accepted for old command lines, without effect",
     .help = "requests are not logged unless --enable-log-requests is given."},
    OLD_FLAG("disable-log-stats", "counters are always kept; scrape /metrics."),
    OLD_VALUE("max-num-on-the-fly-batches",
              "no vLLM ever had it; --max-num-seqs bounds what runs at once."),
    OLD_FLAG("trust-remote-code", "no code is ever loaded from a model directory."),
    OLD_VALUE("cpu-offload-gb",
              "weights stay on the device; use a smaller --gpu-memory-utilization plan, and "
              "--swap-space for KV blocks."),
    OLD_FLAG("enforce-eager", "there is no compiled mode to turn off."),
    OLD_VALUE("tokenizer", "the tokenizer is read from the model directory."),
    OLD_VALUE("tokenizer-mode", "there is one tokenizer implementation."),
    OLD_VALUE("revision", "models are local directories."),
    OLD_VALUE("download-dir", "nothing is downloaded; give a local directory as --model."),
    OLD_VALUE("load-format", "weights are always read from safetensors."),
    OLD_FLAG("enable-ssl-refresh", "SIGHUP reads the certificate again."),
    OLD_VALUE("ssl-ciphers", "TLS 1.2 and 1.3 with the secure ciphers of GnuTLS are used."),
    OLD_FLAG("enable-request-id-headers", "X-Request-Id is in every answer."),
    OLD_FLAG("disable-uvicorn-access-log", "answers are counted by /metrics; see "
                                           "--enable-log-requests for lines."),
    OLD_FLAG("disable-fastapi-docs", "there are no such pages."),
    OLD_VALUE("middleware", "no Python runs here; use --api-key-file, --allowed-hosts or a proxy."),
    OLD_VALUE("log-config-file", "use --log-level."),
    OLD_VALUE("max-log-len", "text of requests is never logged."),
    OLD_VALUE("h11-max-incomplete-event-size",
              "headers are limited to 16 KiB; see --print-limits."),
    OLD_VALUE("h11-max-header-count", "there may be 100 headers; see --print-limits."),
    OLD_FLAG("use-v2-block-manager", "there is one block manager."),
    OLD_VALUE("num-scheduler-steps", "--async-scheduling is what overlaps steps."),
    OLD_VALUE("preemption-mode", "--swap-space decides between swapping and recomputing."),
    OLD_VALUE("scheduler-delay-factor", "use --queue-deadline and the live limits."),
    OLD_VALUE("max-num-partial-prefills", "the token budget shares a step among prompts."),
    OLD_VALUE("max-long-partial-prefills", "the token budget shares a step among prompts."),
    OLD_VALUE("max-seq-len-to-capture", "graphs are sized by --max-num-seqs."),
    OLD_FLAG("disable-custom-all-reduce", "this version runs on one device."),
    OLD_VALUE("distributed-executor-backend", "this version runs on one device."),
    OLD_FLAG("worker-use-ray", "this version runs on one device."),
    OLD_FLAG("engine-use-ray", "this version runs on one device."),
    OLD_VALUE("max-parallel-loading-workers", "weights are read in order."),
    OLD_VALUE("api-server-count", "use --http-threads."),
    OLD_FLAG("disable-frontend-multiprocessing", "the server is one process."),
    OLD_FLAG("enable-server-load-tracking", "/load always counts."),
    OLD_VALUE("uvicorn-log-level", "use --log-level."),
    OLD_VALUE("guided-decoding-backend", "there is one implementation of constrained output."),
    {.name = NULL},
};

/* Commands for several devices run on one: whether the model fits, the memory plan says. */
static void warn_one_device(uint64_t n, const char *name, ek_opt_warn_fn warn, void *ctx)
{
    char msg[256];
    if (n == 1 || !warn)
        return;
    (void)snprintf(msg, sizeof(msg),
                   "--%s %llu is taken as 1: this version runs a model on one device; if it does "
                   "not fit, choose a smaller or quantized model, or start one server per device.",
                   name, (unsigned long long)n);
    warn(ctx, msg);
}

static int check(const struct options *o, ek_opt_warn_fn warn, void *ctx, struct ek_fault *f)
{
    warn_one_device(o->tensor_parallel_size, "tensor-parallel-size", warn, ctx);
    warn_one_device(o->pipeline_parallel_size, "pipeline-parallel-size", warn, ctx);
    if (o->data_parallel_size > 1)
        return ek_fault_set(f, "data-parallel-size",
                            "--data-parallel-size %llu: a server is one replica; let evenkeeld run "
                            "several servers",
                            (unsigned long long)o->data_parallel_size);
    if (o->kv_offloading_size > 0 && !o->enable_prefix_caching)
        return ek_fault_set(f, "kv-offloading-size",
                            "--kv-offloading-size %g is for blocks of the prefix cache, which "
                            "--no-enable-prefix-caching switches off: leave one out",
                            o->kv_offloading_size);
    if (o->admission_high > 0 && o->admission_low > o->admission_high)
        return ek_fault_set(f, "admission-low",
                            "--admission-low %g is above --admission-high %g: lower it, or leave "
                            "--admission-high out",
                            o->admission_low, o->admission_high);
    if (o->block_size & (o->block_size - 1) || o->block_size < 8 || o->block_size > 128)
        return ek_fault_set(f, "block-size", "--block-size %llu: choose 8, 16, 32, 64 or 128",
                            (unsigned long long)o->block_size);
    if (o->max_num_seqs && o->max_num_batched_tokens && o->max_num_batched_tokens < o->max_num_seqs)
        return ek_fault_set(f, "max-num-batched-tokens",
                            "--max-num-batched-tokens %llu is less than --max-num-seqs %llu: each "
                            "running sequence needs one token of the budget; raise it or lower "
                            "--max-num-seqs",
                            (unsigned long long)o->max_num_batched_tokens,
                            (unsigned long long)o->max_num_seqs);
    if (o->enable_auto_tool_choice && !o->tool_call_parser)
        return ek_fault_set(
            f, "enable-auto-tool-choice",
            "--enable-auto-tool-choice needs --tool-call-parser, for example hermes");
    const char *v = o->show_hidden_metrics_for_version;
    if (v && (v[0] < '0' || v[0] > '9' || !strchr(v, '.') || v[strspn(v, "0123456789.")]))
        return ek_fault_set(f, "show-hidden-metrics-for-version",
                            "--show-hidden-metrics-for-version %.40s: write a version of vLLM, "
                            "like 0.7",
                            v);
    struct kvevents_config events;
    int r = kvevents_config_parse(o->kv_events_config, &events, f);
    if (r < 0)
        return r;
    if (events.on && !o->enable_prefix_caching)
        return ek_fault_set(f, "kv-events-config",
                            "--kv-events-config tells of the prefix cache, which "
                            "--no-enable-prefix-caching switches off: leave one out");
    if (o->listen_from_control && !o->control_socket)
        return ek_fault_set(f, "listen-from-control",
                            "--listen-from-control needs --control-socket PATH");
    if (o->listen_from_control && o->uds)
        return ek_fault_set(f, "uds", "--uds and --listen-from-control exclude each other");
    if (!o->enable_chunked_prefill && warn)
        warn(ctx, "--no-enable-chunked-prefill is accepted and ignored: prompts are always "
                  "computed in chunks under --max-num-batched-tokens.");
    return 0;
}

int options_read(struct options *o, int argc, char **argv, ek_opt_warn_fn warn, void *ctx,
                 struct ek_fault *fault)
{
    struct ek_opt_source src = {.table = option_table, .into = o, .warn = warn, .warn_ctx = ctx};
    char *model = NULL;
    int r = ek_opt_parse(&src, argc, argv, &model, fault);
    if (r == 0 && model) {
        r = ek_opt_set(&src, "model", model, fault);
    }
    if (r == 0)
        r = check(o, warn, ctx, fault);
    return r;
}

void options_done(struct options *o)
{
    ek_opt_free(option_table, o);
}
