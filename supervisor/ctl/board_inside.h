/* What the files that draw the board share; no other file includes this. */
#pragma once

#include "supervisor/ctl/board.h"
#include "supervisor/ctl/board_show.h"
#include "supervisor/ctl/screen.h"

/* All figures of a row, once for a picture: its pages say them, else evenkeeld does. */
struct board_figures {
    const struct board_row *row;
    enum board_state state;
    double running, waiting, usage, blocks, cached, limit, ceiling, life_hit;
    struct board_rates now, minute;
    bool has_now, has_minute;
};

/* All rows in the order shown; the caller frees. NULL when out of memory. */
struct board_figures *figures_in_order(const struct board *b, const struct board_view *v);
/* evenkeeld's word for ours, else what the pages show. */
const char *figures_state(const struct board_figures *f);
/* Dollars for a million tokens that were made in this minute; < 0 = not known. */
double figures_cost(const struct board_figures *f, const struct board_view *v);
const char *figures_measure(enum live_measure what); /* "TTFT p50" */

/* board_detail.c: right-aligned in `width` columns, "-" where it is not known. */
void put_number(struct screen *s, int width, double v, int decimals);
void put_share(struct screen *s, int width, double v);
void put_time(struct screen *s, int width, double v); /* seconds in four digits or so */
void put_three(struct screen *s, int width, const double v[3]);
void put_spark(struct screen *s, const struct board_row *r, enum board_spark which, uint32_t count,
               double most);
const char *usage_colour(double usage);
/* All about one row. */
void board_detail(struct screen *s, const struct board_figures *f, const struct board_view *v);
