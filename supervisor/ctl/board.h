/*
 * What `evenkeelctl top` knows: a row for each engine of each server (a vLLM with data parallelism
 * has several), with the pages of the last minute, from which come rates and quantiles of the last
 * reading and of the minute. Buckets are subtracted and added before a quantile is taken. Rows of
 * servers under evenkeeld also have what it says of them. Pure: pages and times are given.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

#include "supervisor/doctor/live.h"

#define BOARD_ROWS    64
#define BOARD_KEPT    64 /* pages; readings are a second apart or more */
#define BOARD_SPARK   60
#define BOARD_MINUTE  60.0
#define BOARD_DOWN_S  10.0 /* without an answer; before, and while nothing moves, it is stale */
#define BOARD_STALE_S 15.0

enum board_state { BOARD_NEW, BOARD_UP, BOARD_STALE, BOARD_DOWN };
enum board_spark { SPARK_USAGE, SPARK_RUNNING, SPARK_TOKENS, SPARK_TTFT, BOARD_SPARKS };

/* Of the last reading, or of the minute. What is not known is negative. */
struct board_rates {
    double out, in, preempted, hit;  /* tokens/s, 1/s, fraction */
    double ttft[3], itl[3], seconds; /* P50, P95, P99; over how long */
};

struct board_point {
    double at_s;
    struct live_page page;
};

struct board_row {
    char name[64];             /* what it is called here: that of evenkeeld, or its model */
    char server[40];           /* its name under evenkeeld, "" = foreign */
    char url[200], found[120]; /* where it was found */
    struct sample_part part;
    struct board_point *at; /* ring */
    uint32_t next, count;
    double asked_s, seen_s, moved_s; /* last asked, last good page, last time that it changed */
    char said[200];                  /* why there is no page */
    const json_t *info, *decisions, *failures; /* of evenkeeld; borrowed, NULL = none */
    float spark[BOARD_SPARKS][BOARD_SPARK];    /* ring like `at` but by spark_next; NAN = unknown */
    uint32_t spark_next;
};

struct board {
    struct board_row *row[BOARD_ROWS];
    uint32_t count;
    bool full; /* some were left out */
};

void board_done(struct board *b);
/* The row of this engine of a server, made if absent. NULL when the board is full or -ENOMEM. */
struct board_row *board_row(struct board *b, const char *url, const struct sample_part *part);
/* Takes away what was not asked for since then. */
void board_forget(struct board *b, double before_s);
int board_push(struct board_row *r, const struct live_page *page, double at_s);
/* No page came: `said` tells why. */
void board_miss(struct board_row *r, const char *said, double at_s);
/* Adds one to each sparkline; evenkeeld's history goes in before. */
void board_spark(struct board_row *r, const float value[BOARD_SPARKS]);

enum board_state board_state(const struct board_row *r, double now_s);
const char *board_state_name(enum board_state s);
/* Since the reading before, or over the last minute. False when there are not two readings. */
bool board_rates(const struct board_row *r, bool minute, struct board_rates *ret_rates);
const struct live_page *board_page(const struct board_row *r); /* the newest, NULL = none */
/* The same from evenkeeld's word where there is no page: a key of its "signals"; < 0 = not known.
 */
double board_signal(const struct board_row *r, const char *key);

/* Which row is far from the median of its replicas: rows of its model with its ceilings, of which
 * each serves and has work. */
struct board_odd {
    const struct board_row *row;
    enum live_measure what;
    double value, median;
};
/* One for each model with two engines or more where it matters. Returns how many. */
uint32_t board_odd(const struct board *b, struct board_odd *ret_odd, uint32_t most);
