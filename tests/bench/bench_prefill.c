/*
 * Short prompts beside a long one, in virtual time on the real scheduler (schedsim.h): how long
 * they wait for their first token alone and beside it, and how much later the long one is read.
 *
 *   bench_prefill [REPORT [LONG]]
 *
 * The long prompt has LONG tokens (131,072); a short one of 256 with 16 answered comes ten times a
 * second while it is read. Three ways to run: steps of 2,048 tokens, steps of 512, and steps of
 * 2,048 of which one prompt may have 512 (long_prefill_token_threshold). And steps of 512 on
 * another device, where attention counts: a row takes 70 us, and ten times that with 131,072 tokens
 * before it. That is learned while the long prompt is read.
 *
 * Goal of each: p99 of the short ones at most twice that without the long one, and one step; the
 * long one's time at most a tenth above its share: its time alone, plus that of the short tokens.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "tests/bench/checked.h"
#include "tests/bench/report.h"

#define SHORT_TOKENS  256u
#define SHORT_ANSWER  16u
#define SHORT_EVERY_S 0.1
#define ROW_MS        0.08 /* of the modelled device, schedsim.h */

struct outcome {
    struct schedsim_result all;
    double long_ms; /* the longest time to a first token: that of the long one, if there is one */
};

/* A long prompt at the beginning unless it is 0, and so many short ones. */
static int play(const struct schedsim_params *how, uint32_t tokens, uint32_t shorts,
                struct outcome *ret_outcome)
{
    struct trace t = {.name = "prefill", .timed = true};
    struct schedsim_params p = *how;
    char *answers = NULL;
    size_t bytes = 0;
    int r = -ENOMEM;

    t.request = calloc(shorts + 1, sizeof(*t.request));
    p.answers = open_memstream(&answers, &bytes);
    if (!t.request || !p.answers)
        goto out;
    if (tokens > 0)
        t.request[t.count++] = (struct trace_request){.prompt = tokens, .output = SHORT_ANSWER};
    for (uint32_t i = 0; i < shorts; i++)
        t.request[t.count++] = (struct trace_request){
            .at_s = (i + 1) * SHORT_EVERY_S, .prompt = SHORT_TOKENS, .output = SHORT_ANSWER};
    r = schedsim_checked(&t, &p, &ret_outcome->all);
    (void)fflush(p.answers);
    ret_outcome->long_ms = 0;
    for (char *at = answers; r == 0 && at && *at; at = strchr(at, '\n') + 1) {
        double ms = strtod(at, NULL);
        ret_outcome->long_ms = ms > ret_outcome->long_ms ? ms : ret_outcome->long_ms;
    }
out:
    if (p.answers)
        (void)fclose(p.answers);
    free(answers);
    free(t.request);
    return r;
}

static void cell(struct report *rep, const char *name, const char *what, double value, double goal)
{
    char full[96], most[32];

    (void)snprintf(full, sizeof(full), "prefill.%s.%s", name, what);
    (void)snprintf(most, sizeof(most), "%.1f", goal);
    report_cell(rep, &(struct report_cell){.cell = full,
                                           .value = value,
                                           .unit = "ms",
                                           .goal = goal > 0 ? most : NULL,
                                           .met = value <= goal});
}

static int measure(struct report *rep, const char *name, uint32_t tokens, uint32_t budget,
                   uint32_t chunk, const struct schedsim_cost *cost)
{
    struct schedsim_params p = {.block_size = 16,
                                .pool_tokens = 2 * tokens,
                                .max_seqs = 64,
                                .budget = budget,
                                .long_prefill = chunk,
                                .max_model_len = tokens + SHORT_ANSWER,
                                .depth = 2,
                                .cost = cost,
                                .scale = 1,
                                .seed = 1};
    struct outcome alone, without, both;
    int r = play(&p, tokens, 0, &alone);
    if (r != 0)
        return r;
    uint32_t shorts = (uint32_t)(alone.long_ms / 1e3 / SHORT_EVERY_S);
    r = play(&p, 0, shorts, &without);
    if (r == 0)
        r = play(&p, tokens, shorts, &both);
    if (r != 0)
        return r;
    double step_ms = alone.long_ms * (chunk ? chunk : budget) / tokens;
    double ttft_goal = 2 * without.all.ttft_ms.p99 + step_ms;
    double row_ms = cost ? cost->row_us / 1e3 : ROW_MS;
    double long_goal = 1.1 * (alone.long_ms + shorts * (SHORT_TOKENS + SHORT_ANSWER) * row_ms);
    printf("%-14s %5u short: TTFT p50 %7.0f p99 %7.0f ms, alone %5.0f ms, a step %4.0f ms; long "
           "one %7.0f ms, alone %7.0f, goal %7.0f; %6.0f tokens/s\n",
           name, shorts, both.all.ttft_ms.p50, both.all.ttft_ms.p99, without.all.ttft_ms.p99,
           step_ms, both.long_ms, alone.long_ms, long_goal, both.all.total_rate);
    cell(rep, name, "ttft_p50", both.all.ttft_ms.p50, 0);
    cell(rep, name, "ttft_p99", both.all.ttft_ms.p99, ttft_goal);
    cell(rep, name, "ttft_p99_alone", without.all.ttft_ms.p99, 0);
    cell(rep, name, "long", both.long_ms, long_goal);
    cell(rep, name, "long_alone", alone.long_ms, 0);
    return 0;
}

int main(int argc, char **argv)
{
    const char *path = argc > 1 ? argv[1] : "build/reports/bench-prefill.json";
    unsigned long tokens = argc > 2 ? strtoul(argv[2], NULL, 10) : 131072;
    const struct schedsim_cost deep = {
        .base_us = 300, .row_us = 70, .context_us = 0.02, .copy_us = 5, .deep_us = 0.0048};
    struct report rep;

    if (tokens < 4096 || tokens > 1u << 22) {
        (void)fprintf(stderr, "the long prompt has 4,096 to 4,194,304 tokens\n");
        return 2;
    }
    if (report_open(&rep, "bench-prefill", path) != 0)
        return 1;
    int r = measure(&rep, "2048", (uint32_t)tokens, 2048, 0, NULL);
    if (r == 0)
        r = measure(&rep, "512", (uint32_t)tokens, 512, 0, NULL);
    if (r == 0)
        r = measure(&rep, "2048-of-512", (uint32_t)tokens, 2048, 512, NULL);
    if (r == 0)
        r = measure(&rep, "512-deep", (uint32_t)tokens, 512, 0, &deep);
    if (report_close(&rep) != 0 || r != 0) {
        (void)fprintf(stderr, "the benchmark failed: %s\n", ek_strerror(r));
        return 1;
    }
    return 0;
}
