/*
 * The board as a picture or as JSON: a table with a row for each engine, below it all about the
 * selected one. Pure. Control characters from outside never reach the terminal.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

struct board;
struct screen;

enum board_sort {
    SORT_NAME,
    SORT_USAGE,
    SORT_RUNNING,
    SORT_WAITING,
    SORT_TOKENS,
    SORT_TTFT,
    SORTS
};

struct board_view {
    double now_s, price, margin; /* dollars an hour for each engine, 0 = not known; 0.2 = 20 % */
    enum board_sort sort;
    uint32_t selected;   /* in the order shown */
    bool details, table; /* which parts; both is usual */
    bool keys;           /* help instead */
    bool paused;
    const char *error;  /* of evenkeeld, NULL = none */
    uint32_t elsewhere; /* servers found in other networks, which were not asked */
};

void board_show(const struct board *b, const struct board_view *v, struct screen *s);
/* {"at_s", "servers": [...], "imbalance": [...]}; NULL when out of memory. */
json_t *board_json(const struct board *b, const struct board_view *v);
