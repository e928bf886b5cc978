/*
 * `evenkeel-bench replay FILE`: would the load before a server's end have met the same with other
 * limits? The scheduler is the real one; how long a step takes is a line through the recorded
 * steps. What is not in a recording is assumed: an answer that had not ended becomes as long as it
 * may, and prompts that were found in the cache have one beginning in common.
 *
 * The file comes from outside: each number is checked before it is used, and their product too,
 * because the scheduler's tables are as large as limits times lengths.
 */
#include "server/bench/rerun.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/replay.h"
#include "server/bench/bench.h"
#include "server/bench/options.h"

#define BLOCK_MOST    1024u
#define LENGTH_MOST   (1u << 24) /* of a prompt or an answer */
#define REQUESTS_MOST 65536u
#define PACES_MOST    3600u
#define TABLES_MOST   (1ull << 26) /* entries: sequences times blocks of the longest */
#define ANSWERS_MOST  (1ull << 26) /* tokens of all answers: minutes of simulation */
#define DEPTH         2u           /* steps in flight, as in the server */
#define STALLED_PPM   10000u       /* the server's default of stalled_share */

/* ---- reading ---- */

static int number(const json_t *v, const char *what, double least, double most, double *ret,
                  struct ek_fault *fault)
{
    double d = json_is_number(v) ? json_number_value(v) : (double)NAN;

    if (!(d >= least && d <= most))
        return ek_fault_set(fault, "replay",
                            "workload.%s has to be a number from %.0f to %.0f; the file is what "
                            "evenkeelctl postmortem --json prints.",
                            what, least, most);
    *ret = d;
    return 0;
}

static int rerun_count(const json_t *v, const char *what, double least, double most, uint32_t *ret,
                       struct ek_fault *fault)
{
    double d = 0;
    int r = number(v, what, least, most, &d, fault);

    if (r == 0)
        *ret = (uint32_t)d;
    return r;
}

static int read_figures(const json_t *w, struct rerun_load *l, struct ek_fault *fault)
{
    const struct {
        const char *key;
        double least, most;
        double *to;
    } figures[] = {
        {"base_us", 0, 1e9, &l->cost.base_us},       {"row_us", 0, 1e9, &l->cost.row_us},
        {"lasted_us", 0, 1e12, &l->lasted_s},        {"steps", 0, 1e9, &l->steps},
        {"preemptions", 0, 5e9, &l->preemptions},    {"generated", 0, 5e9, &l->generated},
        {"used_blocks_most", 0, 5e9, &l->used_most}, {"waiting_most", 0, 5e9, &l->waiting_most}};
    int r = 0;

    for (size_t i = 0; i < sizeof(figures) / sizeof(figures[0]) && r == 0; i++)
        r = number(json_object_get(w, figures[i].key), figures[i].key, figures[i].least,
                   figures[i].most, figures[i].to, fault);
    l->lasted_s /= 1e6;
    return r;
}

static int read_limits(const json_t *w, struct rerun_load *l, struct ek_fault *fault)
{
    const struct {
        const char *key;
        double least, most;
        uint32_t *to;
    } limits[] = {{"block_size", 1, BLOCK_MOST, &l->block_size},
                  {"blocks", 1, EK_REPLAY_BLOCKS, &l->limits.blocks},
                  {"max_num_seqs", 1, EK_REPLAY_SEQS, &l->limits.seqs},
                  {"max_num_batched_tokens", 1, EK_REPLAY_TOKENS, &l->limits.tokens},
                  {"older", 0, UINT32_MAX, &l->older}};
    int r = 0;

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]) && r == 0; i++)
        r = rerun_count(json_object_get(w, limits[i].key), limits[i].key, limits[i].least,
                        limits[i].most, limits[i].to, fault);
    return r;
}

static int read_pace(const json_t *list, struct rerun_load *l, struct ek_fault *fault)
{
    const size_t n = json_array_size(list);
    int r = 0;

    if (n > PACES_MOST)
        return ek_fault_set(fault, "replay", "workload.pace has %zu seconds; at most %u are read.",
                            n, PACES_MOST);
    l->pace = calloc(n + 1, sizeof(*l->pace));
    if (!l->pace)
        return -ENOMEM;
    for (size_t i = 0; i < n && r == 0; i++) {
        double v = 1;
        r = number(json_array_get(list, i), "pace", 0, 1e9, &v, fault);
        l->pace[i] = (float)v;
    }
    l->cost.pace = l->pace;
    l->cost.paces = (uint32_t)n;
    return r;
}

/* [microseconds, prompt, answer or null, its most, cached] */
static int read_request(const json_t *list, struct rerun_load *l, struct trace_request *to,
                        struct ek_fault *fault)
{
    uint32_t most = 0, cached = 0;
    double at_us = 0;
    const json_t *answer = json_array_get(list, 2);

    int r = number(json_array_get(list, 0), "requests: the time", 0, 1e15, &at_us, fault);
    if (r == 0)
        r = rerun_count(json_array_get(list, 1), "requests: the prompt", 0, LENGTH_MOST,
                        &to->prompt, fault);
    if (r == 0)
        r = rerun_count(json_array_get(list, 3), "requests: the most", 0, UINT32_MAX, &most, fault);
    if (r == 0)
        r = rerun_count(json_array_get(list, 4), "requests: the cached part", 0, UINT32_MAX,
                        &cached, fault);
    if (r == 0 && json_is_null(answer)) {
        to->output = most < LENGTH_MOST ? most : LENGTH_MOST;
        l->unfinished++;
    } else if (r == 0) {
        r = rerun_count(answer, "requests: the answer", 0, LENGTH_MOST, &to->output, fault);
    }
    to->at_s = at_us / 1e6;
    to->prompt += to->prompt == 0;
    to->output += to->output == 0;
    to->hashes = (cached < to->prompt ? cached : to->prompt) / l->block_size;
    return r;
}

/* Of the longest one; the simulation cuts answers at half of it. */
static void note_length(struct rerun_load *l, const struct trace_request *q)
{
    uint32_t whole = q->prompt + q->output, twice = 2 * q->output;
    uint32_t most = whole > twice ? whole : twice;

    l->max_len = most > l->max_len ? most : l->max_len;
}

static int read_requests(const json_t *list, struct rerun_load *l, struct ek_fault *fault)
{
    const size_t n = json_array_size(list);
    uint64_t answers = 0;
    uint32_t pieces = 0;
    int r = 0;

    if (!json_is_array(list) || n > REQUESTS_MOST)
        return ek_fault_set(fault, "replay",
                            "The recording has %zu requests; a replay needs 1 to %u.", n,
                            REQUESTS_MOST);
    l->trace.request = calloc(n, sizeof(*l->trace.request));
    if (!l->trace.request)
        return -ENOMEM;
    for (size_t i = 0; i < n && r == 0; i++) {
        struct trace_request *q = &l->trace.request[i];
        r = read_request(json_array_get(list, i), l, q, fault);
        if (i > 0 && q->at_s < q[-1].at_s)
            q->at_s = q[-1].at_s; /* by id, which is the order of arrival */
        pieces = q->hashes > pieces ? q->hashes : pieces;
        answers += q->output;
        note_length(l, q);
    }
    if (r == 0 && answers > ANSWERS_MOST)
        r = ek_fault_set(fault, "replay", "The answers have %llu tokens in all; at most %llu run.",
                         (unsigned long long)answers, ANSWERS_MOST);
    l->trace.hash = r == 0 ? calloc(pieces + 1u, sizeof(*l->trace.hash)) : NULL;
    if (r == 0 && !l->trace.hash)
        r = -ENOMEM;
    for (uint32_t i = 0; i < pieces && r == 0; i++)
        l->trace.hash[i] = i;
    l->trace.count = (uint32_t)n;
    l->trace.hash_count = pieces;
    l->trace.timed = true;
    l->trace.hash_tokens = l->block_size;
    return r;
}

int rerun_read(const json_t *doc, struct rerun_load *ret_load, struct ek_fault *fault)
{
    struct rerun_load l = {0};
    const json_t *end = json_object_get(doc, "end");
    const json_t *w = json_object_get(json_is_object(end) ? end : doc, "workload");

    if (!json_is_object(w))
        return ek_fault_set(fault, "replay",
                            "There is no \"workload\" in it: it has to be what evenkeelctl "
                            "postmortem --json prints of an engine with a flight recorder.");
    const json_t *requests = json_object_get(w, "requests");
    if (json_is_array(requests) && json_array_size(requests) == 0)
        return ek_fault_set(fault, "replay",
                            "No request came in the time that was recorded, so there is nothing "
                            "to run again.");
    int r = read_limits(w, &l, fault);
    if (r == 0)
        r = read_figures(w, &l, fault);
    if (r == 0)
        r = read_pace(json_object_get(w, "pace"), &l, fault);
    if (r == 0)
        r = read_requests(requests, &l, fault);
    if (r < 0) {
        rerun_done(&l);
        return r;
    }
    *ret_load = l;
    return 0;
}

void rerun_done(struct rerun_load *l)
{
    free(l->trace.request);
    free(l->trace.hash);
    free(l->pace);
    *l = (struct rerun_load){0};
}

/* ---- running ---- */

int rerun_run(const struct rerun_load *l, const struct rerun_limits *change,
              struct schedsim_result *ret_result)
{
    const uint32_t seqs = change->seqs ? change->seqs : l->limits.seqs;
    const uint32_t blocks = change->blocks ? change->blocks : l->limits.blocks;
    const uint32_t tokens = change->tokens ? change->tokens : l->limits.tokens;
    const struct schedsim_params p = {.block_size = l->block_size,
                                      .pool_tokens = blocks * l->block_size,
                                      .max_seqs = seqs,
                                      .budget = tokens,
                                      .max_model_len = l->max_len,
                                      .depth = DEPTH,
                                      .stalled_ppm = STALLED_PPM,
                                      .scale = 1,
                                      .cost = &l->cost,
                                      .lasts_s = l->lasted_s,
                                      .seed = 1};

    if ((uint64_t)blocks * l->block_size > UINT32_MAX ||
        (uint64_t)seqs * (l->max_len / l->block_size + 1) > TABLES_MOST)
        return -EINVAL;
    return schedsim_run(&l->trace, &p, ret_result);
}

/* ---- telling ---- */

static void tell_row(const char *what, double recorded, double same, const double *changed,
                     struct ek_buf *out)
{
    (void)ek_buf_printf(out, "%-28s", what);
    if (recorded >= 0)
        (void)ek_buf_printf(out, "%12.0f", recorded);
    else
        (void)ek_buf_printf(out, "%12s", "-");
    (void)ek_buf_printf(out, "%12.0f", same);
    if (changed)
        (void)ek_buf_printf(out, "%12.0f", *changed);
    (void)ek_buf_puts(out, "\n");
}

void rerun_tell(const struct rerun_load *l, const struct schedsim_result *same,
                const struct schedsim_result *changed, struct ek_buf *out)
{
    const struct schedsim_result *c = changed ? changed : same;
    const struct {
        const char *what;
        double recorded, same, changed;
    } rows[] = {
        {"steps", l->steps, (double)same->steps, (double)c->steps},
        {"tokens of answers", l->generated, (double)same->output_tokens, (double)c->output_tokens},
        {"preemptions", l->preemptions, (double)same->preemptions, (double)c->preemptions},
        {"blocks used, at most", l->used_most, same->used_blocks_most, c->used_blocks_most},
        {"requests waiting, at most", l->waiting_most, same->waiting_most, c->waiting_most},
        {"first token, ms, median", -1, same->ttft_ms.p50, c->ttft_ms.p50},
        {"first token, ms, 90 %", -1, same->ttft_ms.p90, c->ttft_ms.p90},
        {"next token, ms, 90 %", -1, same->itl_ms.p90, c->itl_ms.p90},
        {"requests that do not fit", -1, same->refused, c->refused}};

    (void)ek_buf_printf(out,
                        "%u requests in %.1f s; %u of them had not ended and become as long as "
                        "they may.\n",
                        l->trace.count, l->lasted_s, l->unfinished);
    if (l->older)
        (void)ek_buf_printf(out, "%u more had come before the recording and are left out.\n",
                            l->older);
    (void)ek_buf_printf(
        out,
        "A step takes %.0f us and %.1f us a row, as recorded; limits: %u sequences, "
        "%u tokens, %u blocks.\n\n%-28s%12s%12s%s\n",
        l->cost.base_us, l->cost.row_us, l->limits.seqs, l->limits.tokens, l->limits.blocks, "",
        "recorded", "replayed", changed ? "     changed" : "");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        tell_row(rows[i].what, rows[i].recorded, rows[i].same, changed ? &rows[i].changed : NULL,
                 out);
}

/* ---- the command ---- */

static int run_both(const struct rerun_load *l, const struct rerun_limits *change,
                    struct ek_buf *out, struct ek_fault *fault)
{
    const struct rerun_limits none = {0};
    const bool changes = change->seqs || change->tokens || change->blocks;
    struct schedsim_result same = {0}, changed = {0};

    int r = rerun_run(l, &none, &same);
    if (r == 0 && changes)
        r = rerun_run(l, change, &changed);
    if (r == -EINVAL)
        return ek_fault_set(fault, "replay",
                            "These limits cannot be replayed together: with requests of up to %u "
                            "tokens give fewer --max-num-seqs or --num-gpu-blocks-override.",
                            l->max_len);
    if (r == 0)
        rerun_tell(l, &same, changes ? &changed : NULL, out);
    return r;
}

int bench_replay(const struct bench_options *o, struct ek_fault *fault)
{
    const struct rerun_limits change = {(uint32_t)o->max_seqs, (uint32_t)o->max_tokens,
                                        (uint32_t)o->blocks};
    struct rerun_load load = {0};
    struct ek_buf out = {0};
    json_error_t e;
    json_t *doc = json_load_file(o->a, 0, &e);

    if (!doc)
        return ek_fault_set(fault, "replay", "%.200s cannot be read as JSON: %.150s.", o->a,
                            e.text);
    int r = rerun_read(doc, &load, fault);
    json_decref(doc);
    if (r == 0)
        r = run_both(&load, &change, &out, fault);
    if (r == 0 && (!ek_buf_ok(&out) || fputs(out.data, stdout) < 0 || fflush(stdout) != 0))
        r = -EIO;
    ek_buf_done(&out);
    rerun_done(&load);
    return r;
}
