/*
 * Writes metrics pages for server/net/metrics.c and supervisor/web/expo.c, and counts into
 * histograms for their owners. The buffer keeps failures until ek_expo_end(). Numbers are printed
 * without printf() where they are whole or short, because a page is made at each scrape; the bounds
 * of buckets are spelled as Python's client spells them, since dashboards match on that text.
 */
#include "common/metrics.h"

#include <assert.h>
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/buf.h"

void ek_hist_init(struct ek_hist *h, const double *bounds, uint32_t count)
{
    assert(count <= EK_HIST_MOST);
    *h = (struct ek_hist){.bounds = bounds, .count = count};
}

void ek_hist_observe(struct ek_hist *h, double value)
{
    uint32_t i = 0;
    while (i < h->count && value > h->bounds[i])
        i++;
    h->hits[i]++;
    h->sum += value;
}

void ek_exemplar_note(struct ek_exemplars *x, const struct ek_hist *h, const char *id, double value,
                      uint64_t at_us)
{
    uint32_t i = 0;
    size_t len = strnlen(id, EK_EXEMPLAR_ID);
    if (len == 0 || len == EK_EXEMPLAR_ID)
        return;
    while (i < h->count && value > h->bounds[i])
        i++;
    memcpy(x->at[i].id, id, len + 1);
    x->at[i].value = value;
    x->at[i].at_us = at_us;
}

uint64_t ek_hist_total(const struct ek_hist *h)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= h->count; i++)
        n += h->hits[i];
    return n;
}

/* n / 10^places without what would end in zeros. A page has a thousand numbers, nearly all of them
 * counts or short decimals: printf's way costs ten times as much. */
static void put_decimal(struct ek_buf *out, uint64_t n, uint32_t places)
{
    char text[32];
    size_t at = sizeof(text);
    while (places > 0 && n % 10 == 0) {
        n /= 10;
        places--;
    }
    for (uint32_t i = 0; i == 0 || n > 0 || (places > 0 && i <= places); i++) {
        if (places > 0 && i == places)
            text[--at] = '.';
        text[--at] = (char)('0' + n % 10);
        n /= 10;
    }
    (void)ek_buf_add(out, text + at, sizeof(text) - at);
}

/* As Prometheus writes it: whole numbers and short decimals exactly, others to twelve digits. */
static void metrics_put_number(struct ek_buf *out, double v)
{
    double micros = v * 1e6;
    if (isnan(v))
        (void)ek_buf_puts(out, "NaN");
    else if (isinf(v))
        (void)ek_buf_puts(out, v > 0 ? "+Inf" : "-Inf");
    else if (v == floor(v) && v >= 0 && v < 1e15)
        put_decimal(out, (uint64_t)v, 0);
    else if (v == floor(v) && fabs(v) < 1e15)
        (void)ek_buf_printf(out, "%.0f", v);
    else if (v >= 1e-4 && v < 1e6 && round(micros) / 1e6 == v) /* twelve digits are enough for it */
        put_decimal(out, (uint64_t)round(micros), 6);
    else
        (void)ek_buf_printf(out, "%.12g", v);
}

/* OpenMetrics names a counter's family without the suffix. */
static size_t family_length(const struct ek_expo *e, const struct ek_metric *m)
{
    size_t n = strlen(m->name);
    if (e->format == EK_EXPO_OPENMETRICS && m->type == EK_COUNTER && n > 6 &&
        strcmp(m->name + n - 6, "_total") == 0)
        return n - 6;
    return n;
}

void ek_expo_family(struct ek_expo *e, const struct ek_metric *m)
{
    static const char *const types[] = {"counter", "gauge", "histogram"};
    size_t n = family_length(e, m);
    e->family = m;
    (void)ek_buf_puts(e->out, "# HELP ");
    (void)ek_buf_add(e->out, m->name, n);
    (void)ek_buf_puts(e->out, " ");
    (void)ek_buf_puts(e->out, m->help);
    (void)ek_buf_puts(e->out, "\n# TYPE ");
    (void)ek_buf_add(e->out, m->name, n);
    (void)ek_buf_puts(e->out, " ");
    (void)ek_buf_puts(e->out, types[m->type]);
    (void)ek_buf_puts(e->out, "\n");
}

static void put_exemplar(struct ek_expo *e, const struct ek_exemplar *x)
{
    struct ek_buf label = {0};
    ek_expo_label(&label, "request_id", x->id);
    if (!ek_buf_ok(&label))
        e->out->failed = true;
    else
        (void)ek_buf_printf(e->out, " # {%s} %.9g %.3f", label.data, x->value,
                            (double)(e->epoch_us + x->at_us) / 1e6);
    ek_buf_done(&label);
}

/* name{labels} value, without the end of the line */
static void put_sample(struct ek_expo *e, const char *suffix, const char *labels, const char *more,
                       double value)
{
    const char *sets[3] = {e->base_labels, labels, more};
    bool open = false;
    (void)ek_buf_puts(e->out, e->family->name);
    (void)ek_buf_puts(e->out, suffix);
    for (int i = 0; i < 3; i++) {
        if (!sets[i] || !sets[i][0])
            continue;
        (void)ek_buf_puts(e->out, open ? "," : "{");
        (void)ek_buf_puts(e->out, sets[i]);
        open = true;
    }
    (void)ek_buf_puts(e->out, open ? "} " : " ");
    metrics_put_number(e->out, value);
}

static void metrics_put_line(struct ek_expo *e, const char *suffix, const char *labels,
                             double value)
{
    put_sample(e, suffix, labels, NULL, value);
    (void)ek_buf_puts(e->out, "\n");
}

void ek_expo_value(struct ek_expo *e, const char *labels, double value)
{
    metrics_put_line(e, "", labels, value);
}

/* Bounds as Python's client writes them (floats: 1.0, 0.001), which vLLM's dashboards match on. */
static void put_bound(struct ek_buf *le, double bound)
{
    (void)ek_buf_puts(le, "le=\"");
    metrics_put_number(le, bound);
    if (bound == floor(bound) && isfinite(bound))
        (void)ek_buf_puts(le, ".0");
    (void)ek_buf_puts(le, "\"");
}

void ek_expo_hist_named(struct ek_expo *e, const char *labels, const struct ek_hist *h,
                        const struct ek_exemplars *x)
{
    struct ek_buf le = {0};
    uint64_t seen = 0;
    for (uint32_t i = 0; i <= h->count; i++) {
        seen += h->hits[i];
        ek_buf_clear(&le);
        put_bound(&le, i < h->count ? h->bounds[i] : (double)INFINITY);
        if (!ek_buf_ok(&le))
            e->out->failed = true;
        else
            put_sample(e, "_bucket", labels, le.data, (double)seen);
        if (x && x->at[i].id[0] && e->format == EK_EXPO_OPENMETRICS)
            put_exemplar(e, &x->at[i]);
        (void)ek_buf_puts(e->out, "\n");
    }
    metrics_put_line(e, "_sum", labels, h->sum);
    metrics_put_line(e, "_count", labels, (double)seen);
    ek_buf_done(&le);
}

void ek_expo_hist(struct ek_expo *e, const char *labels, const struct ek_hist *h)
{
    ek_expo_hist_named(e, labels, h, NULL);
}

void ek_expo_label(struct ek_buf *out, const char *name, const char *value)
{
    (void)ek_buf_printf(out, "%s%s=\"", out->len ? "," : "", name);
    for (; *value; value++) {
        if (*value == '\\' || *value == '"')
            (void)ek_buf_printf(out, "\\%c", *value);
        else if (*value == '\n')
            (void)ek_buf_puts(out, "\\n");
        else
            (void)ek_buf_add(out, value, 1);
    }
    (void)ek_buf_puts(out, "\"");
}

int ek_expo_end(struct ek_expo *e)
{
    if (e->format == EK_EXPO_OPENMETRICS)
        (void)ek_buf_puts(e->out, "# EOF\n");
    return ek_buf_ok(e->out) ? 0 : -ENOMEM;
}
