/*
 * The rules, see live.h. A rule is a row: what must be known, when it applies, and the words; the
 * first ten are those that operators know from vllm-doctor, with values in place of hints.
 */
#include "supervisor/doctor/live.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "supervisor/doctor/expr.h"
#include "supervisor/doctor/texts.h"

#define LIVE(name)                                                                                 \
    DOCTOR_TEXT(live_##name##_title), DOCTOR_TEXT(live_##name##_text),                             \
        DOCTOR_TEXT(live_##name##_remedy)

static const struct {
    const char *id, *when, *flag, *value;
    struct doctor_text title, text, remedy;
} rules[] = {
    {"no-progress",
     "((running ?? 0) > 0 or (waiting ?? 0) > 0) and output_s <= 0 and prompt_s <= 0", NULL, NULL,
     LIVE(no_progress)},
    {"queue-pressure", "waiting > 3 * max(running, 1)", "--max-num-queued-reqs",
     "max(up(running * 2, 1), 1)", LIVE(queue_pressure)},
    {"queue-latency", "queue_p95 > 1", "--max-num-queued-reqs", "max(up(running * 2, 1), 1)",
     LIVE(queue_latency)},
    {"ttft",
     /* vLLM tells the time in the queue when a request ends: that some wait now says it earlier. */
     "ttft_p95 * ((waiting ?? 0) * 8 <= (running ?? 1)) * ((queue_p95 ?? 0) < ttft_p95 / 2) > 2",
     "--max-num-batched-tokens", "min(up((tokens_limit ?? 4096) * 2, 16), 16384)", LIVE(ttft)},
    {"tpot", "itl_p95 > 0.2", "--max-num-batched-tokens",
     "max(down((tokens_limit ?? 8192) * 0.75, 16), 512)", LIVE(tpot)},
    {"kv-pressure", "usage > 0.9 and (waiting > 0 or preemptions_s > 0)", "--max-num-seqs",
     "max(floor(running * 0.8), 1)", LIVE(kv_pressure)},
    {"preemption", "preemptions_s > 0", "--max-num-seqs", "max(floor(running * 0.8), 1)",
     LIVE(preemption)},
    {"prefix-cache", "queries > 10000 and hit_rate < 0.3", "--no-enable-prefix-caching", NULL,
     LIVE(prefix_cache)},
    {"low-throughput",
     "waiting > 0 and running > 0 and usage < 0.5 and room_requests >= 1 and "
     "(preemptions_s ?? 0) <= 0",
     "--max-num-seqs", "down(min(running + room_requests * 0.85, running * 4), 1)",
     LIVE(low_throughput)},
    {"errors", "error_rate > 0.01", NULL, NULL, LIVE(errors)},
    {"imbalance", "imbalance > 0.5", NULL, NULL, LIVE(imbalance)},
    {"max-model-len", "len_p95 * 2 < max_model_len and len_count >= 100", "--max-model-len",
     "up(len_p99 * 1.2, 256)", LIVE(max_model_len)},
    {"block-size", "block_size > 8 and len_mean > 0 and block_size / 2 / len_mean > 0.1",
     "--block-size", "8", LIVE(block_size)},
};
#define RULES (sizeof(rules) / sizeof(rules[0]))
_Static_assert(RULES <= LIVE_RULES, "the caller's array");

static void set(struct doctor_numbers *n, const char *name, double v)
{
    if (v >= 0)
        doctor_numbers_set(n, name, v, false);
}

static void blocks(const struct live_page *p, struct doctor_numbers *n)
{
    set(n, "running", p->running);
    set(n, "waiting", p->waiting);
    set(n, "usage", p->usage);
    set(n, "block_size", p->block_size);
    set(n, "cached_blocks", p->cached_blocks);
    set(n, "seqs_limit", p->limit_seqs);
    set(n, "tokens_limit", p->limit_tokens);
    if (p->blocks < 2 || p->usage < 0)
        return;
    double total = p->blocks - 1, used = round(p->usage * total); /* block 0 is never given out */
    set(n, "total_blocks", total);
    set(n, "used_blocks", used);
    set(n, "free_blocks", total - used);
    if (p->running > 0 && used > 0) {
        set(n, "blocks_per_request", used / p->running);
        set(n, "room_requests", (total - used) / (used / p->running));
    }
}

/* Growth a second; -1 when it is not known or the counter began anew. */
static double rate(double now, double before, double seconds)
{
    return now >= 0 && before >= 0 && now >= before && seconds > 0 ? (now - before) / seconds : -1;
}

static void rates(const struct live_page *p, const struct live_page *b, double seconds,
                  struct doctor_numbers *n)
{
    set(n, "preemptions_s", rate(p->preemptions, b->preemptions, seconds));
    set(n, "prompt_s", rate(p->prompt_tokens, b->prompt_tokens, seconds));
    set(n, "output_s", rate(p->output_tokens, b->output_tokens, seconds));
}

static void latency(const struct live_page *p, const struct live_page *b, enum hist_id h,
                    const char *name, struct doctor_numbers *n)
{
    char text[DOCTOR_NAME_MOST];
    const struct live_hist *before = b ? &b->hist[h] : NULL;
    /* No request finished in between: what is known since the server began. */
    if (live_quantile(&p->hist[h], before, 0.5) < 0)
        before = NULL;
    (void)snprintf(text, sizeof(text), "%s_p50", name);
    set(n, text, live_quantile(&p->hist[h], before, 0.5));
    (void)snprintf(text, sizeof(text), "%s_p95", name);
    set(n, text, live_quantile(&p->hist[h], before, 0.95));
}

/* Prompt and answer are counted apart: the sum of both quantiles is an upper bound. */
static void lengths(const struct live_page *p, double max_model_len, struct doctor_numbers *n)
{
    const struct live_hist *in = &p->hist[HIST_PROMPT], *out = &p->hist[HIST_OUTPUT];
    set(n, "max_model_len", max_model_len > 0 ? max_model_len : -1);
    if (in->count <= 0)
        return;
    double mean = in->sum / in->count;
    set(n, "prompt_mean", round(mean));
    set(n, "len_count", in->count);
    if (out->count <= 0)
        return;
    set(n, "output_mean", round(out->sum / out->count));
    set(n, "len_mean", round(mean + out->sum / out->count));
    set(n, "len_p95", live_quantile(in, NULL, 0.95) + live_quantile(out, NULL, 0.95));
    set(n, "len_p99", live_quantile(in, NULL, 0.99) + live_quantile(out, NULL, 0.99));
}

void live_numbers(const struct live_page *now, const struct live_page *before, double seconds,
                  double max_model_len, struct doctor_numbers *n)
{
    n->count = 0;
    blocks(now, n);
    if (before)
        rates(now, before, seconds, n);
    latency(now, before, HIST_TTFT, "ttft", n);
    latency(now, before, HIST_ITL, "itl", n);
    latency(now, before, HIST_QUEUE, "queue", n);
    lengths(now, max_model_len, n);
    set(n, "queries", now->queries);
    if (now->queries > 0 && now->hits >= 0)
        set(n, "hit_rate", now->hits / now->queries);
    double bad = fmax(now->bad, 0) + fmax(now->refused, 0);
    if (now->good >= 0 && now->good + bad > 0)
        set(n, "error_rate", bad / (now->good + bad));
}

uint32_t live_judge(const struct doctor_numbers *n, struct live_finding ret_findings[LIVE_RULES])
{
    for (size_t i = 0; i < RULES; i++) {
        struct live_finding *f = &ret_findings[i];
        double v = 0;
        int r = doctor_eval(rules[i].when, doctor_numbers_lookup, n, &v);
        *f = (struct live_finding){.id = rules[i].id,
                                   .state = r < 0    ? LIVE_UNKNOWN
                                            : v != 0 ? LIVE_APPLIES
                                                     : LIVE_FINE,
                                   .title = &rules[i].title,
                                   .text = &rules[i].text,
                                   .remedy = &rules[i].remedy,
                                   .flag = rules[i].flag};
        if (f->state == LIVE_APPLIES && rules[i].value &&
            doctor_eval(rules[i].value, doctor_numbers_lookup, n, &v) == 0) {
            v = round(v);
            (void)snprintf(f->value, sizeof(f->value), "%.0f", v < 0 || v > 0 ? v : 0); /* no -0 */
            f->has_value = true;
        }
    }
    return RULES;
}

static double live_measure(const struct live_page *p, int what)
{
    switch (what) {
    case 0: return p->running;
    case 1: return p->usage;
    case 2: return live_quantile(&p->hist[HIST_TTFT], NULL, 0.5);
    default: return live_quantile(&p->hist[HIST_ITL], NULL, 0.5);
    }
}

/* The median of the others' values. */
static double median_but(const struct live_page *pages, uint32_t count, uint32_t but, int what)
{
    double sorted[64];
    uint32_t n = 0;
    for (uint32_t i = 0; i < count && n < 64; i++) {
        double v = i == but ? -1 : live_measure(&pages[i], what);
        if (v < 0)
            continue;
        uint32_t k = n++;
        for (; k > 0 && sorted[k - 1] > v; k--)
            sorted[k] = sorted[k - 1];
        sorted[k] = v;
    }
    return n == 0 ? -1 : n % 2 ? sorted[n / 2] : (sorted[n / 2 - 1] + sorted[n / 2]) / 2;
}

void live_compare(const struct live_page *pages, uint32_t count, struct doctor_numbers *n)
{
    static const double least[] = {4, 0.2, 0.2, 0.02}; /* smaller differences do not matter */
    double worst = -1;
    for (uint32_t i = 0; count > 1 && i < count; i++) {
        for (int what = 0; what < 4; what++) {
            double v = live_measure(&pages[i], what), m = median_but(pages, count, i, what);
            if (v < 0 || m < 0)
                continue;
            double off = fabs(v - m) < least[what] ? 0 : fabs(v - m) / fmax(fmax(v, m), 1e-9);
            if (off <= worst)
                continue;
            worst = off;
            set(n, "imbalance", off);
            set(n, "imbalance_replica", i + 1);
            set(n, "imbalance_what", what);
            set(n, "imbalance_value", v);
            set(n, "imbalance_median", m);
        }
    }
}
