/*
 * Memory that grows for hours or days outside of what any engine accounts for: bytes of a server's
 * processes since it was ready, their trend, and when nothing will be left. From readings to what
 * should be done about it; whether it may be done now (budget, hours, lease) is the caller's. Works
 * for any engine, for it knows nothing but bytes. Pure.
 *
 * What is judged is the floor: the least of each fifth of the time since the server was ready, so
 * that a sawtooth, however high, has no trend once its period fits a fifth. The first fifth does
 * not count, caches fill in it. Growth is a leak when the floor rose from each of the others to the
 * next, by similar amounts (a model that was loaded rose once), and either was seen for sure_s
 * or leaves no time to see more: what is left lasts for less than a fifth of what was seen. So no
 * rise in the first half of a day's load is taken for one, and a fast leak is told in time.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define LEAK_POINTS 64u
#define LEAK_SURE_S 432000.0 /* five days: each fifth holds a daily cycle */
/* Of sure_s after it was ready: caches and pools are touched for the first time. */
#define LEAK_WARM  (1.0 / 240)
#define LEAK_KEPT  1.5 /* of sure_s: the oldest point; enough that the fifths of sure_s are full */
#define LEAK_FIRST (1.0 / 3600) /* of sure_s: a point at the beginning */
#define LEAK_LEAST                                                                                 \
    0.03 /* of the first floor: less is noise, or a sawtooth that beats with the readings */
#define LEAK_EVEN   0.5  /* of the mean step from fifth to fifth: each has at least that */
#define LEAK_USABLE 0.95 /* of what is left: it lasts for so much divided by the rate */
#define LEAK_DUE_S                                                                                 \
    86400.0 /* left for less: a restart by plan is due; a day has the operator's hours */
#define LEAK_URGENT_S 7200.0 /* left for less: those hours no longer count */
#define LEAK_PART     0.8    /* of what all of it grows by: a restart of this part is enough */

/* Minima of equal times; when all are taken, two become one of twice the time. */
struct leak {
    struct {
        double least;
        uint64_t from_us;
    } point[LEAK_POINTS];
    uint32_t count;
    double interval_s; /* of a point; 0 before the first reading */
    double least;      /* of the point that is being filled */
    double sure_s;
    uint64_t ready_us, point_us;
    bool told; /* of this process */
};

struct leak_verdict {
    bool grows;    /* the trend holds now; the rest is set when it does */
    bool first;    /* for the first time in this process */
    bool due;      /* a restart by plan is */
    bool urgent;   /* and is not to wait for the operator's hours */
    double rate;   /* bytes a second */
    double left_s; /* what is left lasts for so long */
    double seen_s; /* for which it was watched */
    char why[200];
};

/* Another process, ready now. sure_s: how long growth is watched before it is told though much is
 * left, LEAK_SURE_S; 0 = nothing is looked for. */
void leak_start(struct leak *l, double sure_s, uint64_t now_us);
/* One reading: bytes that the server has, and that it could still have. what: "host memory",
 * "device 0", for the sentence. */
struct leak_verdict leak_step(struct leak *l, double used, double left, const char *what,
                              uint64_t now_us);
/* Whether what grows is mostly in a part whose readings had this verdict in the same turn. */
bool leak_is_of(const struct leak_verdict *all, const struct leak_verdict *part);
