/*
 * What wears out over hours: memory outside the KV pool that the allocator holds but cannot use,
 * and blocks that are not given back. From samples to what should be done about it; whether it may
 * be done now (budget, hours, lease) is the caller's. Pure.
 *
 * F = 1 - most ever used / reserved now. The most ever used counts, not what is used now: an idle
 * server uses nothing, and is not fragmented. F counts where it held for most of the window and
 * does not fall, and where as many bytes as matter have come since the process began: what was
 * planned for a larger load at the start is no fragmentation. First a trim, then a restart; one
 * that did not help turns this off for a day.
 *
 * A prefix cache without hits is no reason for a restart: its share of the pool is capped.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/engines/sample.h"

#define CHRONIC_POINTS   60 /* of the trend; the last quarter is the window */
#define CHRONIC_OFF_S    86400.0
#define CHRONIC_LITTLE   0.40  /* a restart that helped brings F below it */
#define CHRONIC_CACHED   0.8   /* share of the pool that unused prefixes fill */
#define CHRONIC_QUERIES  10000 /* tokens that were looked up, to judge the hit rate */
#define CHRONIC_CACHE_TO 0.25

enum chronic_kind {
    CHRONIC_NONE,
    CHRONIC_TRIM,
    CHRONIC_RESTART,
    CHRONIC_LEAK, /* restart: blocks are held that no request has */
    CHRONIC_INEFFECTIVE,
    CHRONIC_PREFIX /* cap the cache */
};

struct chronic_params {
    double frag; /* 0.70; 0 = off */
    double frag_hard;
    double window_s;
    double least_bytes; /* that are reserved, not used, and more than at the beginning */
    double leak_s;      /* 0 = off */
    double prefix_hit;  /* 0.05; 0 = off */
};

struct chronic {
    struct {
        double frag, wasted, grown;
    } points[CHRONIC_POINTS];
    uint32_t count, next;
    double first;          /* reserved at the beginning */
    uint64_t point_us;     /* when the last one was taken */
    uint64_t trim_us;      /* 0 = not trimmed in this episode */
    bool asked;            /* for a restart, in this episode */
    uint64_t restarted_us; /* a restart for fragmentation is being judged; 0 = none */
    uint64_t leak_us, prefix_us;
    double queries, hits;
    bool leaked, capped; /* said, of this process */
};

struct chronic_verdict {
    enum chronic_kind kind;
    double measured, limit, wasted;
    char why[200];
};

/* Another process: what it wore out is gone. planned: it was restarted for that. */
void chronic_start(struct chronic *c, uint64_t now_us, bool planned);
struct chronic_verdict chronic_step(struct chronic *c, const struct chronic_params *p,
                                    const struct sample *s, uint64_t now_us);
