/*
 * The readings behind `evenkeelctl top` (verb_top.c), and what is computed from two of them; the
 * files of board_inside.h draw it. A row keeps the pages of the last minute in a ring. Rates come
 * from counters, quantiles from the difference of two histograms; a row whose counters went down
 * belongs to another process and begins anew, so that no rate is taken across a restart.
 */
#include "supervisor/ctl/board.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define ODD_LEAST 0.5 /* of the larger one; as the doctor's rule has it */

static void row_free(struct board_row *r)
{
    if (!r)
        return;
    free(r->at);
    free(r);
}

void board_done(struct board *b)
{
    for (uint32_t i = 0; i < b->count; i++)
        row_free(b->row[i]);
    *b = (struct board){0};
}

struct board_row *board_row(struct board *b, const char *url, const struct sample_part *part)
{
    for (uint32_t i = 0; i < b->count; i++) {
        struct board_row *r = b->row[i];
        if (strcmp(r->url, url) == 0 && strcmp(r->part.model, part->model) == 0 &&
            strcmp(r->part.engine, part->engine) == 0)
            return r;
    }
    if (b->count == BOARD_ROWS) {
        b->full = true;
        return NULL;
    }
    struct board_row *r = calloc(1, sizeof(*r));
    if (r)
        r->at = calloc(BOARD_KEPT, sizeof(*r->at));
    if (!r || !r->at) {
        row_free(r);
        return NULL;
    }
    (void)snprintf(r->url, sizeof(r->url), "%s", url);
    r->part = *part;
    for (int k = 0; k < BOARD_SPARKS; k++) {
        for (int i = 0; i < BOARD_SPARK; i++)
            r->spark[k][i] = NAN;
    }
    b->row[b->count++] = r;
    return r;
}

void board_forget(struct board *b, double before_s)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < b->count; i++) {
        if (b->row[i]->asked_s >= before_s)
            b->row[kept++] = b->row[i];
        else
            row_free(b->row[i]);
    }
    b->count = kept;
    b->full = false;
}

static const struct board_point *point(const struct board_row *r, uint32_t back)
{
    return back < r->count ? &r->at[(r->next + BOARD_KEPT - 1 - back) % BOARD_KEPT] : NULL;
}

const struct live_page *board_page(const struct board_row *r)
{
    const struct board_point *p = point(r, 0);
    return p ? &p->page : NULL;
}

void board_spark(struct board_row *r, const float value[BOARD_SPARKS])
{
    for (int k = 0; k < BOARD_SPARKS; k++)
        r->spark[k][r->spark_next] = value[k];
    r->spark_next = (r->spark_next + 1) % BOARD_SPARK;
}

static float board_known(double v)
{
    return v >= 0 ? (float)v : NAN;
}

/* A counter that went down belongs to another process: what was before is of no use. */
static bool began_anew(const struct live_page *now, const struct live_page *before)
{
    return now->output_tokens < before->output_tokens || now->prompt_tokens < before->prompt_tokens;
}

static bool board_moved(const struct live_page *a, const struct live_page *b)
{
    return a->output_tokens != b->output_tokens || a->prompt_tokens != b->prompt_tokens ||
           a->running != b->running || a->waiting != b->waiting || a->usage != b->usage;
}

int board_push(struct board_row *r, const struct live_page *page, double at_s)
{
    const struct live_page *before = board_page(r);
    if (page->samples == 0)
        return -EBADMSG;
    if (before && began_anew(page, before)) {
        r->count = 0;
        before = NULL;
    }
    if (!before || board_moved(page, before))
        r->moved_s = at_s;
    r->at[r->next] = (struct board_point){at_s, *page};
    r->next = (r->next + 1) % BOARD_KEPT;
    r->count += r->count < BOARD_KEPT;
    r->asked_s = r->seen_s = at_s;
    r->said[0] = '\0';
    struct board_rates now;
    float value[BOARD_SPARKS] = {board_known(page->usage), board_known(page->running), NAN, NAN};
    if (board_rates(r, false, &now)) {
        value[SPARK_TOKENS] = board_known(now.out);
        value[SPARK_TTFT] = board_known(now.ttft[1]);
    }
    board_spark(r, value);
    return 0;
}

void board_miss(struct board_row *r, const char *said, double at_s)
{
    static const float nothing[BOARD_SPARKS] = {NAN, NAN, NAN, NAN};
    r->asked_s = at_s;
    (void)snprintf(r->said, sizeof(r->said), "%s", said);
    board_spark(r, nothing);
}

enum board_state board_state(const struct board_row *r, double now_s)
{
    const struct live_page *p = board_page(r);
    if (!p)
        return r->said[0] ? BOARD_DOWN : BOARD_NEW;
    if (r->said[0])
        return now_s - r->seen_s > BOARD_DOWN_S ? BOARD_DOWN : BOARD_STALE;
    return p->running > 0 && now_s - r->moved_s > BOARD_STALE_S ? BOARD_STALE : BOARD_UP;
}

const char *board_state_name(enum board_state s)
{
    switch (s) {
    case BOARD_NEW: return "new";
    case BOARD_UP: return "up";
    case BOARD_STALE: return "STALE";
    case BOARD_DOWN: return "DOWN";
    }
    return "";
}

static double board_rate(double now, double before, double seconds)
{
    return now >= 0 && before >= 0 && now >= before ? (now - before) / seconds : -1;
}

bool board_rates(const struct board_row *r, bool minute, struct board_rates *ret_rates)
{
    const struct board_point *now = point(r, 0), *from = point(r, 1);
    static const double q[3] = {0.5, 0.95, 0.99};
    if (!from)
        return false;
    for (uint32_t i = 2; minute && i < r->count; i++) {
        const struct board_point *p = point(r, i);
        if (now->at_s - p->at_s > BOARD_MINUTE + 0.5)
            break;
        from = p;
    }
    const struct live_page *a = &now->page, *b = &from->page;
    double seconds = now->at_s - from->at_s;
    if (!(seconds > 0))
        return false;
    struct board_rates rates = {
        .out = board_rate(a->output_tokens, b->output_tokens, seconds),
        .in = board_rate(a->prompt_tokens, b->prompt_tokens, seconds),
        .preempted = board_rate(a->preemptions, b->preemptions, seconds),
        .hit = -1,
        .seconds = seconds,
    };
    double asked = board_rate(a->queries, b->queries, 1), hits = board_rate(a->hits, b->hits, 1);
    if (asked > 0 && hits >= 0)
        rates.hit = hits / asked;
    for (int i = 0; i < 3; i++) {
        rates.ttft[i] = live_quantile(&a->hist[HIST_TTFT], &b->hist[HIST_TTFT], q[i]);
        rates.itl[i] = live_quantile(&a->hist[HIST_ITL], &b->hist[HIST_ITL], q[i]);
    }
    *ret_rates = rates;
    return true;
}

double board_signal(const struct board_row *r, const char *key)
{
    const json_t *v = json_object_get(json_object_get(r->info, "signals"), key);
    return json_is_number(v) ? json_number_value(v) : -1;
}

/* The last page with the histograms of the last minute alone: what is odd now, not ever. */
static void of_minute(const struct board_row *r, struct live_page *ret_page)
{
    const struct board_point *now = point(r, 0), *from = now;
    if (!now) /* the callers have looked */
        return;
    for (uint32_t i = 1; i < r->count; i++) {
        const struct board_point *p = point(r, i);
        if (p && now->at_s - p->at_s <= BOARD_MINUTE + 0.5)
            from = p;
    }
    *ret_page = now->page;
    for (int h = 0; from != now && h < HIST_COUNT; h++) {
        struct live_hist *to = &ret_page->hist[h];
        const struct live_hist *old = &from->page.hist[h];
        for (uint32_t i = 0; old->buckets == to->buckets && i < to->buckets; i++)
            to->hits[i] = fmax(0, to->hits[i] - old->hits[i]);
    }
}

static bool odd_one(const struct board_row *const *rows, uint32_t count, struct live_page *pages,
                    struct board_odd *ret_odd)
{
    struct doctor_numbers n = {0};
    double off, which, what, value, median;
    for (uint32_t i = 0; i < count; i++)
        of_minute(rows[i], &pages[i]);
    live_compare(pages, count, &n);
    if (!doctor_numbers_lookup(&n, "imbalance", &off) || off <= ODD_LEAST ||
        !doctor_numbers_lookup(&n, "imbalance_replica", &which) ||
        !doctor_numbers_lookup(&n, "imbalance_what", &what) ||
        !doctor_numbers_lookup(&n, "imbalance_value", &value) ||
        !doctor_numbers_lookup(&n, "imbalance_median", &median))
        return false;
    *ret_odd =
        (struct board_odd){rows[(uint32_t)which - 1], (enum live_measure)what, value, median};
    return true;
}

/* Whether two rows are to have equal shares of the work: the same model and, as far as both are
 * known, the same ceilings. Two servers of one model with different ceilings are no replicas. */
static bool is_replica(const struct board_row *a, const struct board_row *b)
{
    static const char *const limits[] = {"max_num_running_seqs", "max_num_batched_tokens"};
    bool same = strcmp(a->part.model, b->part.model) == 0;
    for (size_t i = 0; same && a->info && b->info && i < sizeof(limits) / sizeof(limits[0]); i++) {
        const json_t *of_a = json_object_get(json_object_get(a->info, "limits"), limits[i]);
        const json_t *of_b = json_object_get(json_object_get(b->info, "limits"), limits[i]);
        of_a = json_object_get(of_a, "ceiling");
        of_b = json_object_get(of_b, "ceiling");
        same = !json_is_number(of_a) || !json_is_number(of_b) || json_equal(of_a, of_b);
    }
    return same;
}

/* One that drains, or that gets no requests, has no share to compare. */
static bool takes_part(const struct board_row *r)
{
    struct board_rates rates;
    const struct live_page *page = board_page(r);
    const char *state = json_string_value(json_object_get(r->info, "state"));
    bool serves = !state || (strcmp(state, "ready") == 0 &&
                             !json_is_false(json_object_get(r->info, "ready")));
    bool works = page && (page->running > 0 ||
                          (board_rates(r, true, &rates) && (rates.out > 0 || rates.in > 0)));
    return serves && works && !r->said[0];
}

uint32_t board_odd(const struct board *b, struct board_odd *ret_odd, uint32_t most)
{
    const struct board_row *same[BOARD_ROWS];
    struct live_page *pages = calloc(BOARD_ROWS, sizeof(*pages));
    uint32_t found = 0;
    for (uint32_t i = 0; pages && i < b->count && found < most; i++) {
        uint32_t count = 0;
        bool first = b->row[i]->part.model[0] != '\0';
        for (uint32_t k = 0; first && k < b->count; k++) {
            if (!is_replica(b->row[k], b->row[i]))
                continue;
            if (k < i)
                first = false;
            else if (takes_part(b->row[k]))
                same[count++] = b->row[k];
        }
        found += first && count > 1 && odd_one(same, count, pages, &ret_odd[found]);
    }
    free(pages);
    return found;
}
