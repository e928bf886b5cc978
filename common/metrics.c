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

uint64_t ek_hist_total(const struct ek_hist *h)
{
    uint64_t n = 0;
    for (uint32_t i = 0; i <= h->count; i++)
        n += h->hits[i];
    return n;
}

/* The shortest text that reads back as the same number, as Prometheus writes it. */
static void put_number(struct ek_buf *out, double v)
{
    if (isnan(v))
        (void)ek_buf_puts(out, "NaN");
    else if (isinf(v))
        (void)ek_buf_puts(out, v > 0 ? "+Inf" : "-Inf");
    else if (v == floor(v) && fabs(v) < 1e15)
        (void)ek_buf_printf(out, "%.0f", v);
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
    int n = (int)family_length(e, m);
    e->family = m;
    (void)ek_buf_printf(e->out, "# HELP %.*s %s\n# TYPE %.*s %s\n", n, m->name, m->help, n, m->name,
                        types[m->type]);
}

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
    put_number(e->out, value);
    (void)ek_buf_puts(e->out, "\n");
}

void ek_expo_value(struct ek_expo *e, const char *labels, double value)
{
    put_sample(e, "", labels, NULL, value);
}

/* Bounds as Python's client writes them (floats: 1.0, 0.001), which vLLM's dashboards match on. */
static void put_bound(struct ek_buf *le, double bound)
{
    (void)ek_buf_puts(le, "le=\"");
    put_number(le, bound);
    if (bound == floor(bound) && isfinite(bound))
        (void)ek_buf_puts(le, ".0");
    (void)ek_buf_puts(le, "\"");
}

void ek_expo_hist(struct ek_expo *e, const char *labels, const struct ek_hist *h)
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
    }
    put_sample(e, "_sum", labels, NULL, h->sum);
    put_sample(e, "_count", labels, NULL, (double)seen);
    ek_buf_done(&le);
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
