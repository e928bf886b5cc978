/*
 * Reads a metrics page in the Prometheus text format 0.0.4 or OpenMetrics 1.0: one callback per
 * sample, nothing kept, nothing allocated. Lines that are no samples are counted and skipped, so
 * that a damaged page gives what is whole in it. Comments, types, timestamps and exemplars are
 * checked for form only. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define PROMTEXT_MOST   (4u << 20) /* longer pages are cut here and flagged */
#define PROMTEXT_LABELS 64         /* cache_config_info of vLLM 0.32 has 37 */
#define PROMTEXT_NAME   200        /* bytes of the longest metric name */
#define PROMTEXT_TEXT   4096       /* bytes of all labels of one sample, unescaped */

struct promtext_label {
    const char *name, *value; /* NUL-terminated, unescaped */
};

struct promtext_sample {
    const char *name;
    const struct promtext_label *labels;
    uint32_t label_count;
    double value; /* may be NaN or infinite */
};

struct promtext_info {
    uint32_t samples; /* reported to the callback */
    uint32_t junk;    /* lines that are neither sample, comment nor empty */
    bool truncated;   /* no newline at the end, or cut at PROMTEXT_MOST */
    bool eof;         /* "# EOF" seen; what follows it is junk */
};

typedef void (*promtext_fn)(void *ctx, const struct promtext_sample *sample);

/* Reads the page. What the callback gets is valid only during the call. An unfinished last line
 * is not reported. */
void promtext_parse(const char *page, size_t len, promtext_fn fn, void *ctx,
                    struct promtext_info *ret_info);

/* The value of a label, NULL if the sample lacks it. */
const char *promtext_label(const struct promtext_sample *sample, const char *name);

/* A number as the format spells it (decimal, NaN, +Inf, -Inf), independent of the locale. Returns
 * the bytes read, 0 if there is none at s. */
size_t promtext_number(const char *s, size_t len, double *ret_value);
