/*
 * Draws the table of `evenkeelctl top` into a screen (screen.h); verb_top.c calls it once a second
 * and after each key. Columns that no row has a value for are left out, and the rows scroll so that
 * the selected one is among them.
 */
#include "supervisor/ctl/board_show.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "supervisor/ctl/board_inside.h"
#include "supervisor/ctl/show.h"

#define NAME_COLS 22 /* in a narrow terminal; twice that where there is room */

static const char *board_sort_name(enum board_sort sort)
{
    static const char *const names[SORTS] = {"name", "KV", "running", "waiting", "tokens", "TTFT"};
    return sort < SORTS ? names[sort] : "";
}

/* ---- the table ---- */

/* What is there besides the columns that always are. */
struct columns {
    uint32_t name;
    bool more;  /* hits, preemptions */
    bool three; /* P50 and P99 too */
    uint32_t spark;
};

static struct columns columns_of(const struct screen *s)
{
    uint32_t cols = s->cols, at = 80;
    struct columns c = {.name = NAME_COLS, .more = cols >= at + 14};
    at += c.more ? 14 : 0;
    c.three = cols >= at + 28;
    at += c.three ? 28 : 0;
    if (cols > at + 40) {
        c.name += NAME_COLS;
        at += NAME_COLS;
    }
    if (cols > at + 8)
        c.spark = cols - at - 2 < BOARD_SPARK ? cols - at - 2 : BOARD_SPARK;
    return c;
}

static void table_head(struct screen *s, const struct columns *c)
{
    screen_colour(s, "1");
    (void)ek_buf_printf(&s->line, "%-*s%-8s%8s%5s%5s%8s%8s", (int)c->name, "  SERVER", "STATE",
                        "RUN/LIM", "WAIT", "KV", "OUT/s", "IN/s");
    if (c->three)
        (void)ek_buf_printf(&s->line, "%8s%7s%7s%8s%7s%7s", "TTFT50", "95", "99", "ITL50", "95",
                            "99");
    else
        (void)ek_buf_printf(&s->line, "%8s%8s", "TTFT95", "ITL95");
    if (c->more)
        (void)ek_buf_printf(&s->line, "%6s%8s", "HIT", "PREEM/s");
    if (c->spark)
        (void)ek_buf_puts(&s->line, "  KV");
    screen_colour(s, "0");
    screen_end_line(s);
}

static void table_row(struct screen *s, const struct board_figures *f, const struct columns *c,
                      bool selected)
{
    char name[sizeof(f->row->name) + 2], runs[32];
    struct ek_buf shown = {0};
    bool bad = f->state == BOARD_DOWN || f->state == BOARD_STALE;
    (void)snprintf(name, sizeof(name), "%s%s", selected ? "> " : "  ", f->row->name);
    show_text(&shown, name);
    screen_colour(s, selected ? "1" : "0");
    (void)ek_buf_printf(&s->line, "%.*s", (int)c->name - 1, shown.data ? shown.data : "");
    screen_column(s, c->name);
    ek_buf_done(&shown);
    screen_colour(s, bad ? "31" : "32");
    (void)ek_buf_printf(&s->line, "%-8.7s", figures_state(f));
    screen_colour(s, "0");
    if (f->limit >= 0)
        (void)snprintf(runs, sizeof(runs), "%.0f/%.0f", fmax(f->running, 0), f->limit);
    else if (f->running >= 0)
        (void)snprintf(runs, sizeof(runs), "%.0f", f->running);
    else
        (void)snprintf(runs, sizeof(runs), "-");
    (void)ek_buf_printf(&s->line, "%8s", runs);
    put_number(s, 5, f->waiting, 0);
    screen_colour(s, usage_colour(f->usage));
    put_share(s, 5, f->usage);
    screen_colour(s, "0");
    put_number(s, 8, f->now.out, 0);
    put_number(s, 8, f->now.in, 0);
    const struct board_rates *r = f->has_minute ? &f->minute : &f->now;
    if (c->three) {
        (void)ek_buf_puts(&s->line, " ");
        put_three(s, 7, r->ttft);
        (void)ek_buf_puts(&s->line, " ");
        put_three(s, 7, r->itl);
    } else {
        put_time(s, 8, r->ttft[1]);
        put_time(s, 8, r->itl[1]);
    }
    if (c->more) {
        put_share(s, 6, f->now.hit);
        put_number(s, 8, f->now.preempted, 1);
    }
    if (c->spark) {
        (void)ek_buf_puts(&s->line, "  ");
        put_spark(s, f->row, SPARK_USAGE, c->spark, 1);
    }
    screen_end_line(s);
}

/* ---- the picture ---- */

static void odd_lines(struct screen *s, const struct board *b)
{
    struct board_odd odd[8];
    uint32_t count = board_odd(b, odd, 8);
    for (uint32_t i = 0; i < count; i++) {
        screen_colour(s, "33");
        (void)ek_buf_puts(&s->line, "  out of balance: ");
        show_text(&s->line, odd[i].row->name);
        (void)ek_buf_printf(&s->line, " has %s %.3g, the others' median is %.3g",
                            figures_measure(odd[i].what), odd[i].value, odd[i].median);
        screen_colour(s, "0");
        screen_end_line(s);
    }
}

static void title(struct screen *s, const struct board_figures *all, uint32_t count,
                  const struct board_view *v)
{
    double running = 0, waiting = 0, out = 0;
    uint32_t foreign = 0;
    for (uint32_t i = 0; i < count; i++) {
        running += fmax(all[i].running, 0);
        waiting += fmax(all[i].waiting, 0);
        out += fmax(all[i].now.out, 0);
        foreign += !all[i].row->server[0];
    }
    screen_colour(s, "7");
    (void)ek_buf_puts(&s->line, s->cols >= 100 ? " evenkeel  " : " ");
    show_clock(&s->line, v->now_s);
    (void)ek_buf_printf(&s->line, "  %u server%s", count, count == 1 ? "" : "s");
    if (foreign)
        (void)ek_buf_printf(&s->line, ", %u foreign", foreign);
    (void)ek_buf_printf(&s->line, "  run %.0f wait %.0f  %.0f tok/s", running, waiting, out);
    if (s->rows)
        (void)ek_buf_printf(&s->line, "  by %s  %s", board_sort_name(v->sort),
                            v->paused ? "PAUSED" : "h help");
    if (v->price > 0)
        (void)ek_buf_printf(&s->line, "  %.2f an hour", count * v->price * (1 + v->margin));
    (void)ek_buf_puts(&s->line, " ");
    screen_colour(s, "0");
    screen_end_line(s);
}

static void board_show_help(struct screen *s)
{
    static const char *const lines[] = {
        "",
        "  up down j k   choose a server          Tab t d   both, table only, details only",
        "  s             sort by the next column   p         hold the picture",
        "  h ?           this help                 q         quit",
        "",
        "  RUN/LIM   requests that run, and the limit in force",
        "  KV        of the cache in use; in bars # is in use, - cached, . free",
        "  TTFT ITL  seconds to the first token and between two tokens, of one minute",
        "  STALE     no answer the last time, or nothing moves though requests run",
        "  DOWN      no answer for ten seconds",
    };
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++) {
        (void)ek_buf_puts(&s->line, lines[i]);
        screen_end_line(s);
    }
}

static void board_show_notes(struct screen *s, const struct board *b, const struct board_view *v)
{
    if (v->error) {
        screen_colour(s, "31");
        (void)ek_buf_puts(&s->line, "  ");
        show_text(&s->line, v->error);
        screen_colour(s, "0");
        screen_end_line(s);
    }
    if (v->elsewhere) {
        (void)ek_buf_printf(&s->line,
                            "  %u more in networks of their own (containers): name them with --url",
                            v->elsewhere);
        screen_end_line(s);
    }
    if (b->full) {
        (void)ek_buf_printf(&s->line, "  There are more than %d; the rest is left out.",
                            BOARD_ROWS);
        screen_end_line(s);
    }
}

/* The rows that fit, with the selected one among them. */
static void table(struct screen *s, const struct board_figures *all, uint32_t count,
                  uint32_t selected, bool details)
{
    struct columns c = columns_of(s);
    uint32_t left = screen_left(s), keep = details ? 13 : 1,
             room = left > keep + 2 ? left - keep : 3;
    uint32_t first = 0;
    room = room < count ? room : count;
    if (selected >= room)
        first = selected - room + 1;
    table_head(s, &c);
    for (uint32_t i = first; i < first + room && i < count; i++)
        table_row(s, &all[i], &c, i == selected && s->rows > 0);
}

void board_show(const struct board *b, const struct board_view *v, struct screen *s)
{
    struct board_figures *all = figures_in_order(b, v);
    uint32_t selected = v->selected < b->count ? v->selected : b->count ? b->count - 1 : 0;
    if (!all) {
        s->out->failed = true;
        return;
    }
    title(s, all, b->count, v);
    board_show_notes(s, b, v);
    if (v->keys)
        board_show_help(s);
    if (!v->keys && v->table && b->count > 0)
        table(s, all, b->count, selected, v->details);
    if (!v->keys)
        odd_lines(s, b);
    for (uint32_t i = 0; !v->keys && v->details && i < b->count; i++) {
        if (s->rows && i != selected)
            continue;
        screen_end_line(s);
        board_detail(s, &all[i], v);
    }
    free(all);
    screen_done(s);
}
