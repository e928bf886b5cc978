/*
 * The option table of evenkeel-server. A row is a flag, a key of the file, its range and its help;
 * what concerns more than one row is in options_read.c. The order is that of --help; rows of what
 * is computed are in options_compute.inc, those of how it is served and told here.
 */
#include "server/options.h"

#include <stddef.h>

#include "server/options_old.h"

#define AT(field) offsetof(struct options, field)

/* A row that does nothing; `what` is a sentence. */
#define OLD_VALUE(n, what) {.name = (n), .type = OPT_IGNORED, .help = (what)},
#define OLD_FLAG(n, what)  {.name = (n), .type = OPT_IGNORED, .choices = "flag", .help = (what)},

/* A flag for several machines that mpirun has made needless: options_read() refuses it. */
#define GONE(n, short, i)                                                                          \
    {                                                                                              \
        .name = (n), .alias = (short), .type = OPT_STRING, .at = AT(gone[i]),                      \
        .help = "Refused: mpirun or srun starts the processes of all machines; see docs/nodes.md." \
    }

const struct ek_opt option_table[] = {
#include "server/options_compute.inc"

    {.name = "host",
     .type = OPT_STRING,
     .at = AT(host),
     .group = "HTTP",
     .help = "Address to listen on. Default all addresses with an API key, 127.0.0.1 without."},
    {.name = "port",
     .type = OPT_UINT,
     .at = AT(port),
     .max = 65535,
     .def = "8000",
     .help = "Port of the API; 0 is any free one."},
    {.name = "uds",
     .type = OPT_STRING,
     .at = AT(uds),
     .help = "Listen on this Unix socket instead of TCP; its mode is 0660: the server's user and "
             "group may connect."},
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
    {.name = "responses-store-bytes",
     .type = OPT_UINT,
     .at = AT(responses_store_bytes),
     .max = 1ull << 40,
     .def = "0",
     .help =
         "Memory for stored responses: /v1/responses honours `store` and "
         "`previous_response_id`, and GET and DELETE find them. The oldest go first, a key sees "
         "its own alone. 0 stores none."},
    {.name = "responses-store-ttl",
     .type = OPT_SECONDS,
     .at = AT(responses_store_ttl),
     .min = 1,
     .max = 31622400,
     .def = "86400",
     .help = "How long a response is found at most; what later ones go on from is kept with them."},
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
     .def = "auto",
     .choices = "auto|refuse|hold",
     .help = "New requests while draining: refuse answers 503 with Retry-After, hold leaves new "
             "connections in the listening socket for the next process; auto holds where evenkeeld "
             "keeps that socket (--listen-from-control), and refuses otherwise."},
    {.name = "state-dir",
     .type = OPT_STRING,
     .at = AT(state_dir),
     .help = "Where exit.json goes, which says why the server ended, and what --cpu-forms keeps; "
             "default the folder of the control socket."},
    {.name = "flight-recorder",
     .type = OPT_BOOL,
     .at = AT(flight_recorder),
     .def = "true",
     .help = "Keep sizes and times of the steps and requests of the last minute, never texts, in "
             "a file named as the control socket with .ring behind it, for evenkeelctl "
             "postmortem; 4.5 MiB."},
    {.name = "enable-force-include-usage",
     .type = OPT_BOOL,
     .at = AT(enable_force_include_usage),
     .help = "Streams end with a usage chunk, asked for or not."},
    {.name = "enable-auto-tool-choice",
     .type = OPT_BOOL,
     .at = AT(enable_auto_tool_choice),
     .help = "Chats with tools answer with tool_calls by the --tool-call-parser that is named; "
             "with auto they do so anyway, and this ends the start where none is found."},
    {.name = "tool-call-parser",
     .type = OPT_CHOICE,
     .at = AT(tool_call_parser),
     .def = "auto",
     .choices =
         "hermes|llama3_json|mistral|qwen3_coder|pythonic|llama4_pythonic|llama4_json|"
         "qwen3_xml|seed_oss|glm45|glm47|ernie45|hunyuan_a13b|hy_v3|deepseek_v3|deepseek_v31|"
         "deepseek_v32|deepseek_v4|deepseek_v41|apertus|cohere_command3|cohere_command4|dots|"
         "functiongemma|gemma4|gigachat3|granite|granite-20b-fc|granite4|internlm|jamba|kimi_k2|"
         "kimi_k3|lfm2|ling3|longcat|mimo|minicpm5|minimax_m2|nemotron_json|olmo3|phi4_mini_json|"
         "poolside_v1|qwen3_json|step3|step3p5|step5|xlam|openai|auto|none",
     .help = "How the model writes tool calls, by vLLM's names; a name needs "
             "--enable-auto-tool-choice. auto chooses by the marks in the chat template, none "
             "leaves calls in the text. openai is that of gpt-oss."},
    {.name = "reasoning-parser",
     .type = OPT_CHOICE,
     .at = AT(reasoning_parser),
     .def = "auto",
     .choices =
         "deepseek_r1|deepseek_v3|deepseek_v4|qwen3|glm45|glm47|seed_oss|ernie45|hunyuan_a13b|"
         "cohere_command3|cohere_command4|deepseek_v41|gemma4|granite|granite_thinking_parser|"
         "holo2|hy_v3|kimi_k2|kimi_k3|ling3|mimo|minicpmv|minimax_m2|minimax_m3|mistral|nemotron_"
         "v3|olmo3|"
         "openai_gptoss|poolside_v1|step3|step3p5|step5|auto|none",
     .help = "Thinking goes into `reasoning` of a chat's answer, by vLLM's names for what stands "
             "around it; deepseek_r1, ernie45, holo2, kimi_k2, minimax_m2, olmo3, step3 and "
             "step5 take an answer to begin with it. auto chooses by the marks in the chat "
             "template, none leaves it in "
             "the text."},
    {.name = "enable-per-request-metrics",
     .type = OPT_BOOL,
     .at = AT(enable_per_request_metrics),
     .help = "Answers have metrics with the times of their request, streams in the usage chunk."},
    {.name = "enable-tokenizer-info-endpoint",
     .type = OPT_BOOL,
     .at = AT(enable_tokenizer_info_endpoint),
     .help = "GET /tokenizer_info gives the tokenizer's configuration and the chat template."},
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
     .help =
         "File of keys, one a line: KEY, or NAME KEY [max-concurrency=N] [queue-share=F] "
         "[weight=F] [cache-group=NAME] [priority=A..B]; a key may be sha256:HEX. SIGHUP reads it "
         "again. The systemd "
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
    {.name = "web",
     .type = OPT_BOOL,
     .at = AT(web),
     .def = "true",
     .help = "Pages for people: GET / to try a model in a browser, GET /docs for the API. They are "
             "sent without a key, and ask for it. --no-web leaves them out."},
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
             "Health is answered to any name. Default any; on the loopback without an API key only "
             "localhost and addresses, in Origin too, so that no page of another name gets in."},
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

    {.name = "sandbox",
     .type = OPT_BOOL,
     .at = AT(sandbox),
     .def = "true",
     .help = "Open only the model, what options name and the system's libraries (Landlock), and, "
             "once it serves, take away calls such as exec and ptrace (seccomp). Without Landlock "
             "in the kernel that is said and served on."},
    {.name = "dumpable",
     .type = OPT_BOOL,
     .at = AT(dumpable),
     .help = "Debuggers and profilers of the same user may look into the server and its engine, "
             "and the kernel may write their cores. Without it root alone may look, and there is "
             "no core: both would hold keys and prompts."},
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
    {.name = "otlp-traces-endpoint",
     .type = OPT_STRING,
     .at = AT(otlp_traces_endpoint),
     .help =
         "Sends a trace of each request to an OpenTelemetry collector, by OTLP over HTTP: "
         "http://localhost:4318/v1/traces. OTEL_SERVICE_NAME and OTEL_EXPORTER_OTLP_TRACES_HEADERS "
         "are read from the environment. A client's traceparent is gone on with; see "
         "docs/monitoring.md."},
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
    {.name = "dry-run-memory",
     .type = OPT_FRACTION,
     .at = AT(dry_run_memory),
     .min = 0,
     .max = 100000,
     .help = "With --dry-run: plan for a device of so many GiB without asking it, as on a machine "
             "that lacks the card; 0 asks the device."},
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
    OPTIONS_OLD(OLD_VALUE, OLD_FLAG) /* each with its comma */
    {.name = NULL},
};
