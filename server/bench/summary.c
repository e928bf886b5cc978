/*
 * From the answers of a run to figures, for serve.c: a table on stdout and rows of the report. An
 * answer that failed counts in the tokens and the seconds but in no distribution; a good answer
 * meets both objectives, that of its first token and that of its mean time per token.
 */
#include "server/bench/summary.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "server/bench/rows.h"
#include "server/bench/samples.h"

static struct distribution distribution_of(double *values, size_t n)
{
    sort_numbers(values, n);
    return (struct distribution){quantile(values, n, 0.5), quantile(values, n, 0.9),
                                 quantile(values, n, 0.99), n > 0 ? values[n - 1] : (double)NAN};
}

/* Mean time from token to token behind the first; 0 with less than two. */
static double per_token(const struct bench_answer *a)
{
    return a->tokens > 1 ? (a->end_s - a->first_s) / (double)(a->tokens - 1) : 0.0;
}

int summarize(const struct bench_answer *answers, uint32_t count, double *gaps, size_t gap_count,
              const struct slo *slo, struct summary *ret_summary)
{
    struct summary s = {0};
    double *first = calloc((size_t)count + 1, 3 * sizeof(*first));

    if (!first)
        return -ENOMEM;
    double *each = first + count, *whole = each + count;
    size_t many = 0;
    for (uint32_t i = 0; i < count; i++) {
        const struct bench_answer *a = &answers[i];
        s.tokens += a->tokens;
        s.seconds = a->end_s > s.seconds ? a->end_s : s.seconds;
        if (!a->ok) {
            s.failed++;
            continue;
        }
        first[s.done] = a->first_s - a->begin_s;
        whole[s.done] = a->end_s - a->begin_s;
        s.good += first[s.done] <= slo->ttft_s && per_token(a) <= slo->gap_s;
        s.done++;
        if (a->tokens > 1)
            each[many++] = per_token(a);
    }
    if (s.seconds > 0.0) {
        s.tokens_per_s = (double)s.tokens / s.seconds;
        s.requests_per_s = s.done / s.seconds;
        s.goodput = s.good / s.seconds;
    }
    s.ttft = distribution_of(first, s.done);
    s.per_token = distribution_of(each, many);
    s.latency = distribution_of(whole, s.done);
    s.gap = distribution_of(gaps, gap_count);
    free(first);
    *ret_summary = s;
    return 0;
}

static int print_distribution(const char *name, const struct distribution *d)
{
    if (isnan(d->p50))
        return 0;
    return printf("%-28s %10.1f %10.1f %10.1f %10.1f ms\n", name, 1e3 * d->p50, 1e3 * d->p90,
                  1e3 * d->p99, 1e3 * d->most);
}

int summary_print(const struct summary *s, const struct slo *slo)
{
    int n = printf("%u answers, %u failed, %llu tokens in %.2f s\n\n", s->done, s->failed,
                   (unsigned long long)s->tokens, s->seconds);

    n |= printf("%-28s %10.1f tok/s\n", "output", s->tokens_per_s);
    n |= printf("%-28s %10.2f 1/s\n", "answers", s->requests_per_s);
    n |= printf("%-28s %10.2f 1/s (%u of %u: first token within %.3g s, then one each %.3g s)\n",
                "goodput", s->goodput, s->good, s->done + s->failed, slo->ttft_s, slo->gap_s);
    n |= printf("\n%-28s %10s %10s %10s %10s\n", "", "p50", "p90", "p99", "most");
    n |= print_distribution("time to first token", &s->ttft);
    n |= print_distribution("between two events", &s->gap);
    n |= print_distribution("per token, mean of an answer", &s->per_token);
    n |= print_distribution("whole answer", &s->latency);
    return n < 0 ? -EIO : 0;
}

static int summary_add(json_t *rows, const char *prefix, const char *name, const char *unit,
                       double value)
{
    char cell[96];

    (void)snprintf(cell, sizeof(cell), "%s.%s", prefix, name);
    return rows_add(rows,
                    &(struct row){.cell = cell, .unit = unit, .value = {value, value, value}});
}

static int add_times(json_t *rows, const char *prefix, const char *name,
                     const struct distribution *d)
{
    const double value[] = {d->p50, d->p90, d->p99, d->most};
    static const char *const which[] = {"p50", "p90", "p99", "most"};
    char cell[64];
    int r = 0;

    for (int i = 0; i < 4; i++) {
        (void)snprintf(cell, sizeof(cell), "%s.%s", name, which[i]);
        r |= summary_add(rows, prefix, cell, "ms", 1e3 * value[i]);
    }
    return r;
}

int summary_rows(const struct summary *s, const char *prefix, json_t *rows)
{
    int r = summary_add(rows, prefix, "output", "tok/s", s->tokens_per_s);

    r |= summary_add(rows, prefix, "answers", "1/s", s->requests_per_s);
    r |= summary_add(rows, prefix, "goodput", "1/s", s->goodput);
    r |= summary_add(rows, prefix, "failed", "failed", s->failed);
    r |= add_times(rows, prefix, "ttft", &s->ttft);
    r |= add_times(rows, prefix, "gap", &s->gap);
    r |= add_times(rows, prefix, "per_token", &s->per_token);
    r |= add_times(rows, prefix, "latency", &s->latency);
    return r == 0 ? 0 : -ENOMEM;
}
