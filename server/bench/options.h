/*
 * evenkeel-bench's command line: a command, then the options of that command's own table. All
 * tables fill in the same struct; an option that a command does not know is refused.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/options.h"

struct ek_buf;
struct ek_fault;

enum bench_command {
    BENCH_KERNELS,
    BENCH_ENGINE,
    BENCH_SERVE,
    BENCH_COMPARE,
    BENCH_REPLAY,
    BENCH_COMMANDS
};

struct bench_options {
    bool help;
    char *print_options;
    /* all that measure */
    char *report, *commit;
    /* kernels, engine */
    char *isa;
    uint64_t threads, repeat;
    bool limits;
    /* engine */
    char *model, *dtype, *quantization, *kv_cache_dtype;
    struct ek_strings prefill, decode;
    uint64_t context, steps, chunk;
    /* serve */
    char *url, *served_model, *endpoint, *trace, *picture;
    uint64_t clients, requests, prompt, output, vocab, seed, warmup, most_prompt, most_output;
    double rate, speed, slo_ttft, slo_gap, timeout;
    bool ignore_eos;
    /* compare */
    double tolerance;
    char *a, *b; /* its two files, in argv; of replay the one */
    /* replay */
    uint64_t max_seqs, max_tokens, blocks;
};

extern const char *const bench_command_names[BENCH_COMMANDS];
const struct ek_opt *bench_table(enum bench_command command);
/* 0, or -EBADMSG with fault. `--help` and `--version` without a command are the caller's. */
int bench_options_parse(int argc, char **argv, enum bench_command *ret_command,
                        struct bench_options *o, struct ek_fault *fault);
void bench_options_free(enum bench_command command, struct bench_options *o);
