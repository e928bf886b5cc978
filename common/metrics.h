/*
 * Prometheus exposition. Names live in one table per program; layers keep plain counters, and one
 * module per program copies them here into text 0.0.4 or OpenMetrics 1.0.
 *
 * Histograms are fixed-bucket and single-writer: the owner observes, readers take a copy that the
 * owner publishes under its own lock.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_buf;

#define EK_HIST_MOST 24

struct ek_hist {
    const double *bounds; /* ascending, without +Inf; a static table */
    uint32_t count;       /* number of bounds, at most EK_HIST_MOST */
    uint64_t hits[EK_HIST_MOST + 1];
    double sum;
};

void ek_hist_init(struct ek_hist *h, const double *bounds, uint32_t count);
void ek_hist_observe(struct ek_hist *h, double value);
uint64_t ek_hist_total(const struct ek_hist *h);

/* The last request of each bucket, for OpenMetrics: the owner of a histogram keeps it beside it. */
#define EK_EXEMPLAR_ID 48u
struct ek_exemplar {
    char id[EK_EXEMPLAR_ID]; /* "" = none yet */
    double value;
    uint64_t at_us; /* monotonic */
};
struct ek_exemplars {
    struct ek_exemplar at[EK_HIST_MOST + 1];
};

/* An id that is empty or too long is not kept. */
void ek_exemplar_note(struct ek_exemplars *x, const struct ek_hist *h, const char *id, double value,
                      uint64_t at_us);

enum ek_metric_type { EK_COUNTER, EK_GAUGE, EK_HISTOGRAM };

/* One family. `name` is as exported, a counter's with its _total. */
struct ek_metric {
    const char *name; /* NULL ends a table */
    enum ek_metric_type type;
    const char *help;
    const char *labels; /* names of the extra labels, for the reference: "reason" */
};

enum ek_expo_format { EK_EXPO_TEXT, EK_EXPO_OPENMETRICS };

struct ek_expo {
    struct ek_buf *out;
    enum ek_expo_format format;
    const char *base_labels; /* rendered: engine="0",model_name="x"; NULL = none */
    uint64_t epoch_us;       /* the wall's time when the monotonic clock was 0, for exemplars */
    const struct ek_metric *family;
};

/* Starts a family: HELP and TYPE lines. Samples follow until the next family. */
void ek_expo_family(struct ek_expo *e, const struct ek_metric *m);
/* `labels` is rendered (a="b",c="d") or NULL; use ek_expo_label() for values that need escaping. */
void ek_expo_value(struct ek_expo *e, const char *labels, double value);
void ek_expo_hist(struct ek_expo *e, const char *labels, const struct ek_hist *h);
/* The same with exemplars, which only OpenMetrics has; x may be NULL. */
void ek_expo_hist_named(struct ek_expo *e, const char *labels, const struct ek_hist *h,
                        const struct ek_exemplars *x);
/* Appends name="value" with a leading comma if out is not empty; escapes \ " and newline. */
void ek_expo_label(struct ek_buf *out, const char *name, const char *value);
/* Ends the page: "# EOF" in OpenMetrics. Returns 0 or -ENOMEM. */
int ek_expo_end(struct ek_expo *e);
