/* Reading a metrics page, see live.h: signals by a sample, the rest by the table of engines. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/promtext.h"
#include "supervisor/doctor/live.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/engines/sample.h"

static const struct {
    size_t at;
    enum signal_id signal;
} gauges[] = {
#define PAGE(field) offsetof(struct live_page, field)
    {PAGE(running), SIG_RUNNING},
    {PAGE(waiting), SIG_WAITING},
    {PAGE(usage), SIG_KV_USAGE},
    {PAGE(cached_blocks), SIG_BLOCKS_CACHED},
    {PAGE(preemptions), SIG_PREEMPTIONS},
    {PAGE(prompt_tokens), SIG_PROMPT_TOKENS},
    {PAGE(output_tokens), SIG_GEN_TOKENS},
    {PAGE(queries), SIG_PREFIX_QUERIES},
    {PAGE(hits), SIG_PREFIX_HITS},
    {PAGE(limit_seqs), SIG_LIMIT_SEQS},
    {PAGE(limit_tokens), SIG_LIMIT_TOKENS},
};
#define GAUGES (sizeof(gauges) / sizeof(gauges[0]))

static const size_t figures[FIG_COUNT] = {[FIG_STOPPED] = PAGE(good),
                                          [FIG_LENGTH] = PAGE(good),
                                          [FIG_ERRORS] = PAGE(bad),
                                          [FIG_REFUSED] = PAGE(refused)};

static double *at(struct live_page *p, size_t offset)
{
    return (double *)(void *)((char *)p + offset);
}

static bool live_page_matches(const struct dialect_signal *d, const struct promtext_sample *s)
{
    const char *v = d->label ? promtext_label(s, d->label) : NULL;
    for (int k = 0; k < DIALECT_NAMES && d->name[k]; k++) {
        if (dialect_same(s->name, d->name[k], ""))
            return !d->label || (v && strcmp(v, d->value) == 0);
    }
    return false;
}

static void add_bucket(struct live_hist *h, const struct promtext_sample *s)
{
    const char *le = promtext_label(s, "le");
    double bound;
    uint32_t i = 0;
    if (!le || promtext_number(le, strlen(le), &bound) == 0)
        return;
    while (i < h->buckets && h->bound[i] < bound)
        i++;
    if (i < h->buckets && !(h->bound[i] > bound)) {
        h->hits[i] += s->value; /* another engine's */
        return;
    }
    if (h->buckets == LIVE_BUCKETS)
        return;
    memmove(h->bound + i + 1, h->bound + i, (h->buckets - i) * sizeof(double));
    memmove(h->hits + i + 1, h->hits + i, (h->buckets - i) * sizeof(double));
    h->bound[i] = bound;
    h->hits[i] = s->value;
    h->buckets++;
}

static bool take_hist(const struct dialect *d, struct live_page *p, const struct promtext_sample *s)
{
    for (int h = 0; h < HIST_COUNT; h++) {
        for (int k = 0; k < 2 && d->hists[h].family[k]; k++) {
            const char *family = d->hists[h].family[k];
            if (dialect_same(s->name, family, "_bucket"))
                add_bucket(&p->hist[h], s);
            else if (dialect_same(s->name, family, "_sum"))
                p->hist[h].sum += s->value;
            else if (dialect_same(s->name, family, "_count"))
                p->hist[h].count += s->value;
            else
                continue;
            return true;
        }
    }
    return false;
}

static double label_number(const struct promtext_sample *s, const char *label)
{
    const char *text = promtext_label(s, label);
    double v;
    return text && promtext_number(text, strlen(text), &v) > 0 && isfinite(v) ? v : -1;
}

static void take_config(struct live_page *p, const struct promtext_sample *s)
{
    const char *caching = promtext_label(s, "enable_prefix_caching");
    double blocks = label_number(s, "num_gpu_blocks");
    p->block_size = label_number(s, "block_size");
    p->share = label_number(s, "gpu_memory_utilization");
    if (blocks >= 0)
        p->blocks = p->blocks < 0 ? blocks : p->blocks + blocks;
    p->prefix_caching_off =
        caching && (strcmp(caching, "False") == 0 || strcmp(caching, "false") == 0);
}

/* What is read, and of which engine; NULL = of all. */
struct page_reading {
    struct live_page *page;
    const struct dialect *dialect;
    const struct sample_part *part;
};

/* What of a page no decision needs and so no sample has. */
static void take_rest(void *ctx, const struct promtext_sample *s)
{
    const struct page_reading *r = ctx;
    const struct dialect *d = r->dialect;
    struct live_page *p = r->page;
    if (!isfinite(s->value) || !sample_belongs(r->part, s))
        return;
    if (d->info && dialect_same(s->name, d->info, "")) {
        take_config(p, s);
        p->samples++;
        return;
    }
    for (int i = 0; d->figures && i < FIG_COUNT; i++) {
        if (!live_page_matches(&d->figures[i], s))
            continue;
        double *to = at(p, figures[i]);
        *to = *to < 0 ? s->value : *to + s->value;
        p->samples++;
        return;
    }
    p->samples += take_hist(d, p, s);
}

#define ENGINES_MOST 16

/* How many lines each engine of the table would understand. */
struct guess {
    uint32_t lines[ENGINES_MOST];
};

static void live_page_weigh(void *ctx, const struct promtext_sample *s)
{
    struct guess *g = ctx;
    for (uint32_t e = 0; e < ENGINES_MOST && dialect_at(e); e++) {
        for (size_t i = 0; i < GAUGES; i++)
            g->lines[e] += live_page_matches(dialect_signal(dialect_at(e), gauges[i].signal), s);
        for (int h = 0; h < HIST_COUNT; h++) {
            const char *family = dialect_at(e)->hists[h].family[0];
            g->lines[e] += family && dialect_same(s->name, family, "_count");
        }
    }
}

/* The engine whose page it is: the one that understands most of it, the first of several. */
static const struct dialect *engine_of(const char *page, size_t len)
{
    struct promtext_info info;
    struct guess g = {{0}};
    uint32_t best = 0;
    promtext_parse(page, len, live_page_weigh, &g, &info);
    for (uint32_t e = 1; e < ENGINES_MOST && dialect_at(e); e++) {
        if (g.lines[e] > g.lines[best] && !dialect_at(e)->companion)
            best = e;
    }
    return dialect_at(best);
}

struct finding {
    struct sample_part *parts;
    uint32_t count, most;
};

static void note_part(void *ctx, const struct promtext_sample *s)
{
    struct finding *f = ctx;
    const char *engine = promtext_label(s, "engine"), *model = promtext_label(s, "model_name");
    if (f->count == f->most || !live_page_matches(dialect_signal(dialect_at(0), SIG_RUNNING), s))
        return;
    struct sample_part *p = &f->parts[f->count];
    (void)snprintf(p->engine, sizeof(p->engine), "%s", engine ? engine : "");
    (void)snprintf(p->model, sizeof(p->model), "%s", model ? model : "");
    for (uint32_t i = 0; i < f->count; i++) {
        if (strcmp(f->parts[i].engine, p->engine) == 0 && strcmp(f->parts[i].model, p->model) == 0)
            return;
    }
    f->count++;
}

uint32_t live_parts(const char *page, size_t len, struct sample_part *ret_parts, uint32_t most)
{
    struct promtext_info info;
    struct finding f = {.parts = ret_parts, .most = most};
    promtext_parse(page, len, note_part, &f, &info);
    return f.count;
}

void live_read(const char *page, size_t len, struct live_page *ret_page)
{
    live_read_part(page, len, NULL, ret_page);
}

void live_read_part(const char *page, size_t len, const struct sample_part *part,
                    struct live_page *ret_page)
{
    struct promtext_info info;
    struct sample s;
    struct live_page p = {
        .blocks = -1, .block_size = -1, .good = -1, .bad = -1, .refused = -1, .share = -1};
    struct page_reading rest = {&p, engine_of(page, len), part};
    sample_parse_part(rest.dialect, part, page, len, 0, &s);
    for (size_t i = 0; i < GAUGES; i++) {
        /* Of a page that is too long, what was read of it. */
        bool has = s.good && !(s.flags[gauges[i].signal] & ~SAMPLE_TRUNCATED);
        *at(&p, gauges[i].at) = has ? s.value[gauges[i].signal] : -1;
        p.samples += has;
    }
    promtext_parse(page, len, take_rest, &rest, &info);
    *ret_page = p;
}

double live_quantile(const struct live_hist *now, const struct live_hist *before, double q)
{
    bool matches = before && before->buckets == now->buckets;
    double all = 0, below = 0, low = 0;
    if (now->buckets == 0)
        return -1;
    all = now->hits[now->buckets - 1] - (matches ? before->hits[now->buckets - 1] : 0);
    if (!(all > 0))
        return -1;
    for (uint32_t i = 0; i < now->buckets; i++) {
        double hits = now->hits[i] - (matches ? before->hits[i] : 0);
        if (hits >= q * all) {
            if (!isfinite(now->bound[i]))
                return low;
            double in = hits - below;
            return low + (now->bound[i] - low) * (in > 0 ? (q * all - below) / in : 1);
        }
        below = hits;
        low = now->bound[i];
    }
    return low;
}
