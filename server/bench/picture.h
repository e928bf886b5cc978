/* A run as a picture (SVG): tokens a second over time, time to first token of each answer over
 * time, and how long gaps between events were. Light or dark as the viewer is. Pure. */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct bench_answer;
struct ek_buf;
struct slo;

struct picture {
    const char *title;
    const struct bench_answer *answers;
    uint32_t count;
    const double *gaps; /* sorted */
    size_t gap_count;
    const uint32_t *tokens; /* [seconds]: that came in each second */
    uint32_t seconds;
    const struct slo *slo;
};

/* Appends the picture; look at ek_buf_ok(). */
void picture_draw(const struct picture *p, struct ek_buf *out);
