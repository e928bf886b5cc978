/*
 * The tables of evenkeel-bench's options, one for each command, and the choice of the command; used
 * by main.c, and for the manual page by --print-options. Rows that commands share are macros.
 */
#include "server/bench/options.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "common/err.h"
#include "common/replay.h"

#define AT(field) offsetof(struct bench_options, field)

#define ROW_END                                                                                    \
    {.name = "print-options",                                                                      \
     .type = OPT_CHOICE,                                                                           \
     .choices = EK_OPT_FORMATS,                                                                    \
     .at = AT(print_options),                                                                      \
     .help = "Print this table as Markdown, man page or YAML, then exit."},                        \
        {.name = "help", .alias = "h", .type = OPT_BOOL, .at = AT(help), .help = "This text."},    \
    {                                                                                              \
        .name = NULL                                                                               \
    }
#define ROW_REPORT                                                                                 \
    {.name = "report",                                                                             \
     .type = OPT_STRING,                                                                           \
     .at = AT(report),                                                                             \
     .help = "Write the figures as JSON to this file; 'compare' reads it."},                       \
    {                                                                                              \
        .name = "commit", .type = OPT_STRING, .at = AT(commit),                                    \
        .help = "Kept in the report: what was measured."                                           \
    }
#define ROWS_MACHINE                                                                               \
    {.name = "isa",                                                                                \
     .type = OPT_STRING,                                                                           \
     .at = AT(isa),                                                                                \
     .help = "Instruction tier; else the best of this machine (or EVENKEEL_CPU_ISA)."},            \
        {.name = "threads",                                                                        \
         .type = OPT_UINT,                                                                         \
         .at = AT(threads),                                                                        \
         .max = 256,                                                                               \
         .def = "0",                                                                               \
         .help = "Threads that compute; 0 is one for each usable core."},                          \
    {                                                                                              \
        .name = "repeat", .type = OPT_UINT, .at = AT(repeat), .min = 1, .max = 99, .def = "5",     \
        .help = "Times that each cell is measured; the median is said."                            \
    }

static const struct ek_opt kernels_table[] = {
    {.name = "limits",
     .type = OPT_BOOL,
     .at = AT(limits),
     .help = "Only what the machine can do at most, without the kernels."},
    ROWS_MACHINE,
    ROW_REPORT,
    ROW_END};

static const struct ek_opt engine_table[] = {
    {.name = "model",
     .type = OPT_STRING,
     .at = AT(model),
     .def = "/usr/share/evenkeel/models/evenkeel-tiny",
     .help = "Directory of the model."},
    {.name = "dtype",
     .type = OPT_CHOICE,
     .at = AT(dtype),
     .choices = "bfloat16|float16|float32",
     .def = "bfloat16",
     .help = "Type to compute with."},
    {.name = "quantization",
     .type = OPT_CHOICE,
     .at = AT(quantization),
     .choices = "auto|int8|int4|fp8",
     .def = "auto",
     .help = "Quantize the layers while loading, as the server does; auto takes them as they are."},
    {.name = "kv-cache-dtype",
     .type = OPT_CHOICE,
     .at = AT(kv_cache_dtype),
     .choices = "auto|int8_per_token_head",
     .def = "auto",
     .help = "Type of the KV cache, as of the server."},
    {.name = "prefill",
     .type = OPT_LIST,
     .at = AT(prefill),
     .help = "Prompt lengths to compute, each alone. Default: 512."},
    {.name = "decode",
     .type = OPT_LIST,
     .at = AT(decode),
     .help = "Numbers of sequences that decode together. Default: 1 4 16."},
    {.name = "context",
     .type = OPT_UINT,
     .at = AT(context),
     .min = 1,
     .max = 1000000,
     .def = "128",
     .help = "Tokens of each sequence before it decodes."},
    {.name = "steps",
     .type = OPT_UINT,
     .at = AT(steps),
     .min = 1,
     .max = 10000,
     .def = "64",
     .help = "Decode steps of one measurement."},
    {.name = "chunk",
     .type = OPT_UINT,
     .at = AT(chunk),
     .min = 16,
     .max = 65536,
     .def = "2048",
     .help = "Most tokens of a prompt in one step."},
    ROWS_MACHINE,
    ROW_REPORT,
    ROW_END};

static const struct ek_opt serve_table[] = {
    {.name = "url",
     .type = OPT_STRING,
     .at = AT(url),
     .def = "http://127.0.0.1:8000",
     .group = "Server",
     .help = "The server, without /v1. Its key is taken from OPENAI_API_KEY if that is set."},
    {.name = "served-model",
     .type = OPT_STRING,
     .at = AT(served_model),
     .help = "Name of the model in requests; else the first that /v1/models lists."},
    {.name = "endpoint",
     .type = OPT_CHOICE,
     .at = AT(endpoint),
     .choices = "completions|chat",
     .def = "completions",
     .help =
         "completions: prompts of random token ids, exactly as long as asked for; chat: a message "
         "of about so many random short words."},
    {.name = "ignore-eos",
     .type = OPT_BOOL,
     .at = AT(ignore_eos),
     .def = "true",
     .help =
         "Ask for answers of exactly the wanted length (ignore_eos), as vLLM, SGLang and others "
         "know; --no-ignore-eos for servers that refuse it."},
    {.name = "timeout",
     .type = OPT_SECONDS,
     .at = AT(timeout),
     .min = 1,
     .max = 86400,
     .def = "600",
     .help = "A request that takes longer has failed."},
    {.name = "clients",
     .type = OPT_UINT,
     .at = AT(clients),
     .min = 1,
     .max = 10000,
     .def = "16",
     .group = "Load",
     .help = "Closed loop: so many clients, each with one request at a time."},
    {.name = "rate",
     .type = OPT_FRACTION,
     .at = AT(rate),
     .max = 100000,
     .def = "0",
     .help =
         "Open loop instead: so many requests a second on average, arriving at random (Poisson), "
         "whether the server keeps up or not. 0: closed loop."},
    {.name = "trace",
     .type = OPT_STRING,
     .at = AT(trace),
     .help =
         "Open loop from a file of arrivals and lengths (Azure, Mooncake or Vidur form, plain or "
         "gzip). Vidur has no arrivals: they are drawn with --rate, or --clients take turns."},
    {.name = "speed",
     .type = OPT_FRACTION,
     .at = AT(speed),
     .min = 0.001,
     .max = 100000,
     .def = "1",
     .help = "Plays a trace so many times as fast."},
    {.name = "requests",
     .type = OPT_UINT,
     .at = AT(requests),
     .min = 1,
     .max = 1000000,
     .def = "64",
     .help = "Requests in all."},
    {.name = "warmup",
     .type = OPT_UINT,
     .at = AT(warmup),
     .max = 10000,
     .def = "1",
     .help = "Requests before that, one after the other, not counted."},
    {.name = "prompt",
     .type = OPT_UINT,
     .at = AT(prompt),
     .min = 1,
     .max = 1000000,
     .def = "128",
     .help = "Tokens of each prompt."},
    {.name = "output",
     .type = OPT_UINT,
     .at = AT(output),
     .min = 1,
     .max = 1000000,
     .def = "128",
     .help = "Tokens of each answer."},
    {.name = "most-prompt",
     .type = OPT_UINT,
     .at = AT(most_prompt),
     .max = 1000000,
     .def = "0",
     .help = "With a trace: longer prompts are cut to this; 0 keeps them."},
    {.name = "most-output",
     .type = OPT_UINT,
     .at = AT(most_output),
     .max = 1000000,
     .def = "0",
     .help = "With a trace: longer answers are cut to this; 0 keeps them."},
    {.name = "vocab",
     .type = OPT_UINT,
     .at = AT(vocab),
     .min = 2,
     .max = 10000000,
     .def = "1000",
     .help = "Token ids of prompts are drawn below this."},
    {.name = "seed",
     .type = OPT_UINT,
     .at = AT(seed),
     .max = 4294967295.0,
     .def = "0",
     .help = "Of lengths, arrivals and prompts; 0 takes another one each time, so that no prefix "
             "cache can help."},
    {.name = "slo-ttft",
     .type = OPT_SECONDS,
     .at = AT(slo_ttft),
     .min = 0.001,
     .max = 3600,
     .def = "2",
     .group = "Results",
     .help = "Goodput counts answers whose first token came within this ..."},
    {.name = "slo-gap",
     .type = OPT_SECONDS,
     .at = AT(slo_gap),
     .min = 0.0001,
     .max = 3600,
     .def = "0.2",
     .help = "... and whose tokens came, on average, at least this often."},
    {.name = "picture",
     .type = OPT_STRING,
     .at = AT(picture),
     .help = "Write a picture (SVG) of rate, time to first token and gaps to this file."},
    ROW_REPORT,
    ROW_END};

static const struct ek_opt compare_table[] = {
    {.name = "tolerance",
     .type = OPT_FRACTION,
     .at = AT(tolerance),
     .max = 10,
     .def = "0.05",
     .help = "Differences up to this share count as equal; so do overlapping spreads."},
    ROW_END};

static const struct ek_opt replay_table[] = {
    EK_REPLAY_ROWS("Sequences in one step; 0: as recorded, here and below."), ROW_END};

const char *const bench_command_names[BENCH_COMMANDS] = {
    [BENCH_KERNELS] = "kernels", [BENCH_ENGINE] = "engine", [BENCH_SERVE] = "serve",
    [BENCH_COMPARE] = "compare", [BENCH_REPLAY] = "replay",
};

const struct ek_opt *bench_table(enum bench_command command)
{
    static const struct ek_opt *const tables[BENCH_COMMANDS] = {
        [BENCH_KERNELS] = kernels_table, [BENCH_ENGINE] = engine_table, [BENCH_SERVE] = serve_table,
        [BENCH_COMPARE] = compare_table, [BENCH_REPLAY] = replay_table,
    };
    return tables[command];
}

static int command_of(const char *word, enum bench_command *ret_command, struct ek_fault *fault)
{
    for (int c = 0; c < BENCH_COMMANDS; c++)
        if (strcmp(word, bench_command_names[c]) == 0) {
            *ret_command = (enum bench_command)c;
            return 0;
        }
    return ek_fault_set(
        fault, "command",
        "There is no command '%.64s'; there are kernels, engine, serve, compare and replay.", word);
}

/* compare A B, replay FILE: files stand before options. */
static int take_files(enum bench_command command, int *argc, char ***argv, struct bench_options *o,
                      struct ek_fault *fault)
{
    char **v = *argv;

    if (*argc < 2 || v[1][0] == '-')
        return 0; /* --help; that the files are missing is said later */
    if (command == BENCH_REPLAY) {
        o->a = v[1];
        v[1] = v[0];
        *argv += 1;
        *argc -= 1;
        return 0;
    }
    if (*argc < 3 || v[2][0] == '-')
        return ek_fault_set(fault, "compare",
                            "compare needs two reports: evenkeel-bench compare A.json B.json.");
    o->a = v[1];
    o->b = v[2];
    v[2] = v[0];
    *argv += 2;
    *argc -= 2;
    return 0;
}

int bench_options_parse(int argc, char **argv, enum bench_command *ret_command,
                        struct bench_options *o, struct ek_fault *fault)
{
    enum bench_command command = BENCH_KERNELS;

    if (argc < 2)
        return ek_fault_set(fault, "command",
                            "A command is needed: kernels, engine, serve, compare or replay; see "
                            "evenkeel-bench --help.");
    int r = command_of(argv[1], &command, fault);
    argc--;
    argv++;
    const bool files = command == BENCH_COMPARE || command == BENCH_REPLAY;
    if (r == 0 && files)
        r = take_files(command, &argc, &argv, o, fault);
    struct ek_opt_source src = {.table = bench_table(command), .into = o};
    if (r == 0)
        r = ek_opt_parse(&src, argc, argv, NULL, fault);
    if (r == 0 && files && !o->help && !o->print_options && !o->a)
        r = command == BENCH_REPLAY
                ? ek_fault_set(fault, "replay",
                               "replay needs what evenkeelctl postmortem --json wrote: "
                               "evenkeel-bench replay FILE.")
                : ek_fault_set(fault, "compare",
                               "compare needs two reports: evenkeel-bench compare A.json B.json.");
    if (r < 0) {
        ek_opt_free(src.table, o);
        *o = (struct bench_options){0};
        return r;
    }
    *ret_command = command;
    return 0;
}

void bench_options_free(enum bench_command command, struct bench_options *o)
{
    ek_opt_free(bench_table(command), o);
}
