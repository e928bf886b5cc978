/*
 * What a recording says of the load, as plain numbers, from which `evenkeel-bench replay` runs the
 * scheduler again: requests with when they came and how long they and their answers were, the
 * limits and the pool at the end, and a line through the times of the steps over their rows, which
 * a few slow steps do not move.
 */
#include <math.h>
#include <stdlib.h>

#include "common/buf.h"
#include "common/clock.h"
#include "supervisor/law/postmortem_inside.h"

struct step_line {
    double base_us, row_us;
};

/* Steps of as many rows, or nearly, are one point: their median, so that one that the machine held
 * does not move it. */
#define POINT_STEPS 3u

static int by_rows(const void *a, const void *b)
{
    const struct ek_recorder_step *x = a, *y = b;
    return x->rows != y->rows ? (x->rows > y->rows) - (x->rows < y->rows)
                              : (x->step_us > y->step_us) - (x->step_us < y->step_us);
}

/* Copies of the steps that landed well, by their rows. NULL without memory. */
static struct ek_recorder_step *landed(const struct ek_recorded *r, uint32_t *ret_count)
{
    struct ek_recorder_step *at = calloc(r->step_count + 1u, sizeof(*at));
    uint32_t n = 0;
    for (uint32_t i = 0; at && i < r->step_count; i++)
        if (r->steps[i].error == 0 && r->steps[i].rows > 0)
            at[n++] = r->steps[i];
    if (n > 0)
        qsort(at, n, sizeof(*at), by_rows);
    *ret_count = n;
    return at;
}

/* Where the point that begins at `from` ends. What would be left with too few is part of it. */
static uint32_t point_end(const struct ek_recorder_step *at, uint32_t from, uint32_t count)
{
    uint32_t to = from + 1;
    while (to < count && (to - from < POINT_STEPS || at[to].rows == at[to - 1].rows))
        to++;
    return count - to < POINT_STEPS ? count : to;
}

/* Least squares over the points, each weighing as many as it has steps. A line that would be below
 * 0 starts there. */
static struct step_line workload_fit(const struct ek_recorded *r)
{
    double n = 0, x = 0, y = 0, xx = 0, xy = 0;
    uint32_t count = 0;
    struct ek_recorder_step *at = landed(r, &count);
    for (uint32_t from = 0, to; from < count; from = to) {
        to = point_end(at, from, count);
        uint32_t middle = from + (to - from) / 2;
        double weight = to - from, rows = at[middle].rows;
        double us = postmortem_median(&at[from], to - from);
        n += weight;
        x += weight * rows;
        y += weight * us;
        xx += weight * rows * rows;
        xy += weight * rows * us;
    }
    free(at);
    double spread = n * xx - x * x;
    struct step_line l = {.base_us = n > 0 ? y / n : 0};
    if (spread > 0 && n * xy - x * y > 0) {
        l.row_us = (n * xy - x * y) / spread;
        l.base_us = (y - l.row_us * x) / n;
    }
    if (l.base_us < 0)
        l = (struct step_line){.row_us = xy / xx};
    return l;
}

static int by_id(const void *a, const void *b)
{
    uint64_t x = (*(const struct ek_recorder_request *const *)a)->id;
    uint64_t y = (*(const struct ek_recorder_request *const *)b)->id;
    return x < y ? -1 : x > y;
}

/* The records of a kind, by id. NULL without memory. */
static const struct ek_recorder_request **sorted(const struct ek_recorded *r, uint32_t kind,
                                                 uint32_t *ret_count)
{
    const struct ek_recorder_request **at = calloc(r->request_count + 1u, sizeof(*at));
    uint32_t n = 0;
    for (uint32_t i = 0; at && i < r->request_count; i++)
        if (r->requests[i].kind == kind)
            at[n++] = &r->requests[i];
    if (n > 0)
        qsort(at, n, sizeof(*at), by_id);
    *ret_count = n;
    return at;
}

/* [microseconds since the first, prompt, answer or null, its most, cached] */
static void put_request(const struct ek_recorder_request *q, const struct ek_recorder_request *end,
                        uint64_t first_us, struct ek_buf *out)
{
    uint64_t at = q->at_us > first_us ? q->at_us - first_us : 0;
    (void)ek_buf_printf(out, "[%llu,%u,", (unsigned long long)(at & INT64_MAX), q->prompt_tokens);
    if (end)
        (void)ek_buf_printf(out, "%u,%u,%u]", end->output_tokens, q->most_tokens,
                            end->cached_tokens);
    else
        (void)ek_buf_printf(out, "null,%u,0]", q->most_tokens);
}

struct arrivals {
    const struct ek_recorder_request **came, **gone; /* NULL without memory */
    uint32_t came_count, gone_count, from;           /* from: the first that is told */
    uint64_t first_us;
};

static void find_arrivals(const struct ek_recorded *r, struct arrivals *a)
{
    *a = (struct arrivals){0};
    a->came = sorted(r, EK_RECORDER_ARRIVED, &a->came_count);
    a->gone = sorted(r, EK_RECORDER_ENDED, &a->gone_count);
    if (!a->came || !a->gone)
        a->came_count = a->gone_count = 0;
    if (a->came_count > POSTMORTEM_LOAD)
        a->from = a->came_count - POSTMORTEM_LOAD;
    a->first_us = a->came_count > 0 ? a->came[a->from]->at_us : 0;
}

/* older: those that ended meanwhile and of which it is not known when they came. */
static void workload_requests(const struct arrivals *a, struct ek_buf *out)
{
    uint32_t older = 0;
    (void)ek_buf_puts(out, "\"requests\":[");
    for (uint32_t i = a->from; i < a->came_count; i++) {
        const struct ek_recorder_request *const *end =
            a->gone_count > 0 ? bsearch(&a->came[i], a->gone, a->gone_count,
                                        sizeof(struct ek_recorder_request *), by_id)
                              : NULL;
        (void)ek_buf_puts(out, i > a->from ? "," : "");
        put_request(a->came[i], end ? *end : NULL, a->first_us, out);
    }
    for (uint32_t i = 0; i < a->gone_count; i++)
        older += a->came_count == 0 || a->gone[i]->id < a->came[a->from]->id;
    (void)ek_buf_printf(out, "],\"older\":%u}", older);
}

/* How slow each second was beside the line, as the machine or the contexts made it; 1 without
 * steps. */
static void workload_pace(const struct ek_recorded *r, uint64_t first_us, struct step_line l,
                          struct ek_buf *out)
{
    double took[POSTMORTEM_PACE] = {0}, should[POSTMORTEM_PACE] = {0};
    uint32_t seconds = 0;
    for (uint32_t i = 0; i < r->step_count; i++) {
        const struct ek_recorder_step *t = &r->steps[i];
        uint64_t at = t->at_us >= first_us ? (t->at_us - first_us) / EK_US_PER_S : POSTMORTEM_PACE;
        if (at >= POSTMORTEM_PACE || t->error != 0)
            continue;
        took[at] += t->step_us;
        should[at] += l.base_us + l.row_us * t->rows;
        seconds = at >= seconds ? (uint32_t)at + 1 : seconds;
    }
    (void)ek_buf_puts(out, "\"pace\":[");
    for (uint32_t i = 0; i < seconds; i++)
        (void)ek_buf_printf(out, "%s%.3f", i ? "," : "", should[i] > 0 ? took[i] / should[i] : 1.0);
    (void)ek_buf_puts(out, "],");
}

/* What the steps did since the first of the requests came. */
static void workload_steps(const struct ek_recorded *r, uint64_t first_us, struct ek_buf *out)
{
    const struct ek_recorder_step none = {0}, *before = &none, *last = &none;
    uint32_t used = 0, waiting = 0, steps = 0;
    for (uint32_t i = 0; i < r->step_count; i++) {
        const struct ek_recorder_step *t = &r->steps[i];
        if (t->at_us < first_us) {
            before = t;
            continue;
        }
        before = steps == 0 && before == &none ? t : before;
        last = t;
        steps++;
        used = t->blocks_used > used ? t->blocks_used : used;
        waiting = t->waiting > waiting ? t->waiting : waiting;
    }
    uint64_t lasted = steps > 0 && last->at_us > first_us ? last->at_us - first_us : 0;
    (void)ek_buf_printf(out,
                        "\"lasted_us\":%llu,\"steps\":%u,\"preemptions\":%u,\"generated\":%u,"
                        "\"used_blocks_most\":%u,\"waiting_most\":%u,",
                        (unsigned long long)(lasted & INT64_MAX), steps,
                        steps ? last->preemptions - before->preemptions : 0,
                        steps ? last->generation_tokens - before->generation_tokens : 0, used,
                        waiting);
}

void postmortem_workload(const struct ek_recorded *r, struct ek_buf *out)
{
    const struct ek_recorder_about *about = &r->head.about;
    const struct ek_recorder_step none = {0};
    const struct ek_recorder_step *last = r->step_count ? &r->steps[r->step_count - 1] : &none;
    const bool less = last->limit_blocks && last->limit_blocks < last->blocks_total;
    struct step_line l = workload_fit(r);
    struct arrivals a;
    find_arrivals(r, &a);
    (void)ek_buf_printf(out,
                        "\"workload\":{\"block_size\":%u,\"blocks\":%u,\"max_num_seqs\":%u,"
                        "\"max_num_batched_tokens\":%u,\"base_us\":%.1f,\"row_us\":%.3f,",
                        about->block_size, less ? last->limit_blocks : last->blocks_total,
                        last->limit_seqs ? last->limit_seqs : about->max_seqs,
                        last->limit_tokens ? last->limit_tokens : about->max_tokens, l.base_us,
                        l.row_us);
    workload_pace(r, a.first_us, l, out);
    workload_steps(r, a.first_us, out);
    workload_requests(&a, out);
    free(a.came);
    free(a.gone);
}
