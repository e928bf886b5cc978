/*
 * From a page to a sample, see sample.h. Each parsed line is offered to the dialect's table; of
 * several spellings of one name the earlier in the table wins. Several engines in one page: gauges
 * of a share take the maximum, counters and queue lengths the sum, and a series that was there in
 * the sample before and is not now makes the value MISSING. A series that is written twice counts
 * once.
 */
#include "supervisor/engines/sample.h"

#include <math.h>
#include <string.h>

#include "common/fnv.h"
#include "common/promtext.h"
#include "supervisor/engines/dialect.h"

#define SERIES_KNOWN 16 /* label sets remembered per signal to notice repeats */

struct sample_reading {
    uint8_t spelling; /* index in the table + 1; 0 = not seen */
    uint64_t seen[SERIES_KNOWN];
};

struct sample_reader {
    const struct dialect *dialect;
    const struct sample_part *part;
    const struct dialect_signal *names[SIG_COUNT];
    struct sample *out;
    struct sample_reading signal[SIG_COUNT];
    uint8_t ttft_spelling, itl_spelling;
};

static const struct {
    const char *name;
    bool counter;
} signals[SIG_COUNT] = {
    [SIG_KV_USAGE] = {"kv_usage", false},
    [SIG_RUNNING] = {"running", false},
    [SIG_WAITING] = {"waiting", false},
    [SIG_WAITING_CAPACITY] = {"waiting_capacity", false},
    [SIG_PREEMPTIONS] = {"preemptions_total", true},
    [SIG_RECOMPUTED] = {"recomputed_tokens_total", true},
    [SIG_PROMPT_TOKENS] = {"prompt_tokens_total", true},
    [SIG_GEN_TOKENS] = {"generation_tokens_total", true},
    [SIG_STEPS] = {"steps_total", true},
    [SIG_STEP_AGE_S] = {"step_age_s", false},
    [SIG_QUEUE_OLDEST_S] = {"queue_oldest_s", false},
    [SIG_MAX_GAP_S] = {"max_gap_s", false},
    [SIG_PREFIX_QUERIES] = {"prefix_queries_total", true},
    [SIG_PREFIX_HITS] = {"prefix_hits_total", true},
    [SIG_BLOCKS_TOTAL] = {"blocks_total", false},
    [SIG_BLOCKS_CACHED] = {"blocks_cached", false},
    [SIG_POOL_RESERVED] = {"pool_reserved_bytes", false},
    [SIG_POOL_USED] = {"pool_used_bytes", false},
    [SIG_POOL_USED_HIGH] = {"pool_used_high_bytes", false},
    [SIG_LIMIT_SEQS] = {"max_num_running_seqs", false},
    [SIG_LIMIT_TOKENS] = {"max_num_batched_tokens", false},
    [SIG_LIMIT_DEADLINE_S] = {"queue_deadline_s", false},
    [SIG_LIMIT_RESERVE] = {"watermark", false},
    [SIG_START_TIME] = {"start_time_s", false},
    [SIG_FINISHED] = {"finished_total", true},
    [SIG_ANSWERING] = {"answering", false},
    [SIG_READING_AGE_S] = {"reading_age_s", false},
    [SIG_OPEN] = {"open_without_key", false},
    [SIG_CPU_S] = {"cpu_s_total", true},
    [SIG_BUSY_S] = {"device_busy_s_total", true},
    [SIG_HELD_LIMIT] = {"held_limit", false},
    [SIG_HELD_TOKENS] = {"held_tokens", false},
    [SIG_HELD_PREEMPTED] = {"held_preempted", false},
    [SIG_HELD_PAUSED] = {"held_paused", false},
    [SIG_HELD_BLOCKS] = {"held_blocks", false},
    [SIG_HELD_GROWTH] = {"held_growth", false},
    [SIG_HELD_COPIES] = {"held_copies", false},
    [SIG_HELD_NEEDED] = {"held_needed_blocks", false},
    [SIG_HELD_AVAILABLE] = {"held_available_blocks", false},
    [SIG_HELD_EXPECTED] = {"held_expected_blocks", false},
    [SIG_HELD_FIT] = {"held_fit_requests", false},
    [SIG_ENGINE_STARTING] = {"engine_starting", false},
    [SIG_ENGINE_RELEASED] = {"engine_released", false},
    [SIG_ENGINE_RESTARTS] = {"engine_restarts_total", true},
    [SIG_ENGINE_PAUSE] = {"engine_pause_seconds_total", true},
    [SIG_ENGINE_PLANNED] = {"engine_planned_total", true},
    [SIG_STEP_TOKENS] = {"step_tokens", false},
};

const char *signal_name(enum signal_id i)
{
    return i < SIG_COUNT ? signals[i].name : "unknown";
}

/* A number for a set of labels that does not depend on their order; never 0. */
static uint64_t label_set(const struct promtext_sample *s)
{
    uint64_t all = 1;
    for (uint32_t i = 0; i < s->label_count; i++) {
        const char *name = s->labels[i].name, *value = s->labels[i].value;
        uint64_t h = ek_fnv(EK_FNV_BEGIN, name, strlen(name));
        h = ek_fnv(ek_fnv(h, "=", 1), value, strlen(value));
        all += h | 1;
    }
    return all ? all : 1;
}

static uint8_t flags_of(double value, double most)
{
    if (isnan(value))
        return SAMPLE_NAN;
    /* A share may exceed 1 by rounding alone. */
    if (value < 0 || isinf(value) || (most > 0 && value > most * (1 + 1e-9)))
        return SAMPLE_RANGE;
    return 0;
}

static void sample_take(struct sample_reader *r, enum signal_id i, uint8_t spelling,
                        const struct promtext_sample *s)
{
    const struct dialect_signal *d = r->names[i];
    struct sample_reading *m = &r->signal[i];
    struct sample *out = r->out;
    if (m->spelling && m->spelling < spelling)
        return;
    if (m->spelling != spelling) {
        *m = (struct sample_reading){.spelling = spelling};
        out->value[i] = 0;
        out->flags[i] = 0;
        out->series[i] = 0;
    }
    uint64_t set = label_set(s);
    uint16_t known = out->series[i] < SERIES_KNOWN ? out->series[i] : SERIES_KNOWN;
    for (uint16_t k = 0; k < known; k++) {
        if (m->seen[k] == set)
            return;
    }
    if (out->series[i] < SERIES_KNOWN)
        m->seen[out->series[i]] = set;
    if (out->series[i] < UINT16_MAX)
        out->series[i]++;
    out->flags[i] |= flags_of(s->value, d->most);
    if (out->flags[i])
        return;
    if (d->sum) {
        out->value[i] += s->value;
        out->flags[i] |= flags_of(out->value[i], 0); /* numbers may be too large together */
    } else if (out->series[i] == 1 || s->value > out->value[i]) {
        out->value[i] = s->value;
    }
}

/* Puts one bucket into its place; the same bound of several engines adds up. */
static void bucket(struct sample_hist *h, double bound, double hits)
{
    uint32_t at = 0;
    while (at < h->count && h->bound[at] < bound)
        at++;
    if (at < h->count && h->bound[at] == bound) { /* the same text gives the same number */
        h->hits[at] += hits;
        return;
    }
    if (h->count == SAMPLE_BUCKETS) {
        /* No room: a bound below the last one is dropped, a new last one replaces it. */
        if (at == h->count) {
            h->bound[at - 1] = bound;
            h->hits[at - 1] = hits;
        }
        return;
    }
    memmove(h->bound + at + 1, h->bound + at, (h->count - at) * sizeof(h->bound[0]));
    memmove(h->hits + at + 1, h->hits + at, (h->count - at) * sizeof(h->hits[0]));
    h->bound[at] = bound;
    h->hits[at] = hits;
    h->count++;
}

static void take_bucket(const char *const *family, uint8_t *spelling, struct sample_hist *h,
                        const struct promtext_sample *s)
{
    for (uint8_t k = 0; k < 2 && family[k]; k++) {
        if (!dialect_same(s->name, family[k], "_bucket"))
            continue;
        const char *le = promtext_label(s, "le");
        double bound;
        if (!le || promtext_number(le, strlen(le), &bound) != strlen(le) || isnan(bound))
            return;
        if (flags_of(s->value, 0))
            return;
        if (*spelling && *spelling < k + 1)
            return;
        if (*spelling != k + 1)
            h->count = 0;
        *spelling = (uint8_t)(k + 1);
        bucket(h, bound, s->value);
        return;
    }
}

bool sample_belongs(const struct sample_part *part, const struct promtext_sample *s)
{
    const char *engine = part ? promtext_label(s, "engine") : NULL;
    const char *model = part ? promtext_label(s, "model_name") : NULL;
    return (!engine || strncmp(engine, part->engine, sizeof(part->engine) - 1) == 0) &&
           (!model || strncmp(model, part->model, sizeof(part->model) - 1) == 0);
}

static void sample_offer(void *ctx, const struct promtext_sample *s)
{
    struct sample_reader *r = ctx;
    if (!sample_belongs(r->part, s))
        return;
    for (int i = 0; i < SIG_COUNT; i++) {
        const struct dialect_signal *d = r->names[i];
        for (uint8_t k = 0; k < DIALECT_NAMES && d->name[k]; k++) {
            if (!dialect_same(s->name, d->name[k], ""))
                continue;
            const char *v = d->label ? promtext_label(s, d->label) : NULL;
            if (!d->label || (v && strcmp(v, d->value) == 0))
                sample_take(r, (enum signal_id)i, (uint8_t)(k + 1), s);
            break;
        }
    }
    take_bucket(r->dialect->hists[HIST_TTFT].family, &r->ttft_spelling, &r->out->ttft, s);
    take_bucket(r->dialect->hists[HIST_ITL].family, &r->itl_spelling, &r->out->itl, s);
}

static void check_hist(struct sample_hist *h)
{
    for (uint32_t i = 1; i < h->count; i++) {
        if (h->hits[i] < h->hits[i - 1]) {
            h->count = 0;
            return;
        }
    }
}

void sample_missing(uint64_t at_us, struct sample *ret_sample)
{
    *ret_sample = (struct sample){.at_us = at_us};
    memset(ret_sample->flags, SAMPLE_MISSING, sizeof(ret_sample->flags));
}

void sample_parse(const struct dialect *d, const char *page, size_t len, uint64_t at_us,
                  struct sample *ret_sample)
{
    sample_parse_part(d, NULL, page, len, at_us, ret_sample);
}

void sample_parse_part(const struct dialect *d, const struct sample_part *part, const char *page,
                       size_t len, uint64_t at_us, struct sample *ret_sample)
{
    struct sample_reader r = {.dialect = d, .part = part, .out = ret_sample};
    struct promtext_info info;
    for (int i = 0; i < SIG_COUNT; i++)
        r.names[i] = dialect_signal(d, (enum signal_id)i);
    sample_missing(at_us, ret_sample);
    promtext_parse(page, len, sample_offer, &r, &info);
    /* An error page or some other text: what looks like a sample in it is chance. */
    if (info.samples == 0 || info.junk > info.samples) {
        sample_missing(at_us, ret_sample);
        return;
    }
    ret_sample->good = true;
    check_hist(&ret_sample->ttft);
    check_hist(&ret_sample->itl);
    if (info.truncated) {
        /* Series behind the cut may be missing from a sum. */
        for (int i = 0; i < SIG_COUNT; i++)
            ret_sample->flags[i] |= SAMPLE_TRUNCATED;
        ret_sample->ttft.count = ret_sample->itl.count = 0;
    }
}

static bool has(const struct sample *s, enum signal_id i)
{
    return s->good && !(s->flags[i] & ~(SAMPLE_STALE | SAMPLE_RESET));
}

/* Whether another process answers, or the same one started over. */
static bool is_reset(const struct sample *s, const struct sample *prev)
{
    if (has(s, SIG_START_TIME) && has(prev, SIG_START_TIME) &&
        fabs(s->value[SIG_START_TIME] - prev->value[SIG_START_TIME]) > 1.0)
        return true;
    for (int i = 0; i < SIG_COUNT; i++) {
        if (signals[i].counter && has(s, (enum signal_id)i) && has(prev, (enum signal_id)i) &&
            s->value[i] < prev->value[i])
            return true;
    }
    return false;
}

static bool sample_moved(const struct sample *s, const struct sample *prev)
{
    static const enum signal_id progress[] = {SIG_GEN_TOKENS, SIG_PROMPT_TOKENS, SIG_STEPS,
                                              SIG_STEP_AGE_S, SIG_KV_USAGE,      SIG_RUNNING};
    for (size_t i = 0; i < sizeof(progress) / sizeof(progress[0]); i++) {
        if (s->value[progress[i]] != prev->value[progress[i]])
            return true;
    }
    return false;
}

void sample_compare(struct sample *s, const struct sample *prev)
{
    if (!prev || !s->good || !prev->good)
        return;
    if (is_reset(s, prev)) {
        for (int i = 0; i < SIG_COUNT; i++) {
            if (signals[i].counter)
                s->flags[i] |= SAMPLE_RESET;
        }
        return;
    }
    static const enum signal_id ranks[] = {SIG_KV_USAGE, SIG_RUNNING};
    for (size_t i = 0; i < sizeof(ranks) / sizeof(ranks[0]); i++) {
        enum signal_id k = ranks[i];
        if (s->series[k] < prev->series[k]) {
            s->flags[k] |= SAMPLE_MISSING;
            s->series[k] = prev->series[k];
        }
    }
    bool busy = has(s, SIG_RUNNING) && s->value[SIG_RUNNING] > 0;
    if (!busy || sample_moved(s, prev))
        return;
    s->same_since_us = prev->same_since_us ? prev->same_since_us : prev->at_us;
    if (s->at_us < s->same_since_us + SAMPLE_STALE_S * 1000000ull)
        return;
    for (int i = 0; i < SIG_COUNT; i++)
        s->flags[i] |= SAMPLE_STALE;
}
