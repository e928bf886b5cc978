/*
 * The lower part of the picture of `evenkeelctl top`: all that is known of the selected engine.
 * board_show.c calls board_detail() and uses the number formats at the top for its table. Lines
 * come in the order of their worth: in a low terminal screen.c leaves out the last ones.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "supervisor/ctl/board_inside.h"
#include "supervisor/ctl/show.h"

#define GIB        1073741824.0
#define WHY_INDENT 12
#define BARS_FROM  72 /* columns: narrower terminals have short bars */

/* ---- numbers ---- */

void put_number(struct screen *s, int width, double v, int decimals)
{
    if (v >= 0)
        (void)ek_buf_printf(&s->line, "%*.*f", width, decimals, v);
    else
        (void)ek_buf_printf(&s->line, "%*s", width, "-");
}

void put_share(struct screen *s, int width, double v)
{
    if (v >= 0)
        (void)ek_buf_printf(&s->line, "%*.0f%%", width - 1, 100 * v);
    else
        (void)ek_buf_printf(&s->line, "%*s", width, "-");
}

/* Seconds in four digits: 0.0042, 0.412, 12.40 */
void put_time(struct screen *s, int width, double v)
{
    put_number(s, width, v, v < 0 ? 0 : v < 0.1 ? 4 : v < 10 ? 3 : 1);
}

void put_three(struct screen *s, int width, const double v[3])
{
    for (int i = 0; i < 3; i++)
        put_time(s, width, v[i]);
}

const char *usage_colour(double usage)
{
    return usage >= 0.92 ? "31" : usage >= 0.85 ? "33" : "32";
}

void put_spark(struct screen *s, const struct board_row *r, enum board_spark which, uint32_t count,
               double most)
{
    float in_order[BOARD_SPARK];
    for (uint32_t i = 0; i < BOARD_SPARK; i++)
        in_order[i] = r->spark[which][(r->spark_next + i) % BOARD_SPARK];
    screen_spark(s, in_order + BOARD_SPARK - count, count, most);
}

/* ---- all about one ---- */

static void label(struct screen *s, const char *word)
{
    (void)ek_buf_printf(&s->line, "  %-9s", word);
}

static uint32_t bar_width(const struct screen *s)
{
    return s->cols > BARS_FROM ? (s->cols - 46 > 50 ? 50 : s->cols - 46) : 20;
}

static void kv_lines(struct screen *s, const struct board_figures *f)
{
    double cached = f->cached >= 0 && f->blocks > 0 ? f->cached / f->blocks : 0;
    label(s, "KV");
    screen_colour(s, usage_colour(f->usage));
    show_bar(&s->line, fmax(f->usage, 0), fmax(f->usage, 0) + cached, 1, bar_width(s));
    screen_colour(s, "0");
    (void)ek_buf_puts(&s->line, " ");
    put_share(s, 1, f->usage);
    if (f->blocks >= 0)
        (void)ek_buf_printf(&s->line, " of %.0f blocks", f->blocks);
    if (f->cached >= 0)
        (void)ek_buf_printf(&s->line, ", %.0f cached", f->cached);
    screen_end_line(s);
    if (f->row->info || f->limit < 0)
        return;
    label(s, "seqs"); /* of an evenkeel-server that nobody supervises */
    show_bar(&s->line, fmax(f->running, 0), f->limit, f->limit, bar_width(s));
    (void)ek_buf_printf(&s->line, " limit %.0f", f->limit);
    screen_end_line(s);
}

static void limit_line(struct screen *s, const struct board_figures *f, const char *word,
                       const char *name, double part)
{
    const json_t *l = json_object_get(json_object_get(f->row->info, "limits"), name);
    double now = json_number_value(json_object_get(l, "value"));
    double ceiling = json_number_value(json_object_get(l, "ceiling"));
    label(s, word);
    if (!(now > 0 && ceiling > 0)) {
        (void)ek_buf_puts(&s->line, "not known; it has not said what it may go up to");
        screen_end_line(s);
        return;
    }
    screen_colour(s, now < ceiling ? "33" : "32");
    show_bar(&s->line, part, now, ceiling, bar_width(s));
    screen_colour(s, "0");
    (void)ek_buf_printf(&s->line, " %.0f of %.0f%s", now, ceiling,
                        json_is_true(json_object_get(l, "pinned")) ? "  pinned" : "");
    screen_end_line(s);
}

static void latency_line(struct screen *s, const char *word, const double now[3],
                         const double minute[3])
{
    label(s, word);
    (void)ek_buf_puts(&s->line, "p50 p95 p99");
    put_three(s, 8, now);
    (void)ek_buf_puts(&s->line, " s   1 min");
    put_three(s, 8, minute);
    screen_end_line(s);
}

static void spark_line(struct screen *s, const struct board_figures *f, const char *word,
                       enum board_spark which, double most)
{
    uint32_t width = s->cols > 13 + 30 ? s->cols - 13 - 30 : 10;
    label(s, word);
    put_spark(s, f->row, which, width < BOARD_SPARK ? width : BOARD_SPARK, most);
}

static void work_lines(struct screen *s, const struct board_figures *f)
{
    spark_line(s, f, "requests", SPARK_RUNNING, 0);
    (void)ek_buf_puts(&s->line, "  run");
    put_number(s, 4, f->running, 0);
    (void)ek_buf_puts(&s->line, " wait");
    put_number(s, 4, f->waiting, 0);
    screen_end_line(s);
    const char *why = json_string_value(json_object_get(f->row->info, "waiting_why"));
    if (why) {
        label(s, "waiting");
        show_text(&s->line, why);
        screen_end_line(s);
    }
    spark_line(s, f, "tokens/s", SPARK_TOKENS, 0);
    (void)ek_buf_puts(&s->line, "  out");
    put_number(s, 6, f->now.out, 0);
    (void)ek_buf_puts(&s->line, " in");
    put_number(s, 6, f->now.in, 0);
    screen_end_line(s);
    latency_line(s, "TTFT", f->now.ttft, f->minute.ttft);
    latency_line(s, "ITL", f->now.itl, f->minute.itl);
    label(s, "cache");
    (void)ek_buf_puts(&s->line, "prefix hits now");
    put_share(s, 5, f->now.hit);
    (void)ek_buf_puts(&s->line, ", 1 min");
    put_share(s, 5, f->minute.hit);
    (void)ek_buf_puts(&s->line, ", life");
    put_share(s, 5, f->life_hit);
    (void)ek_buf_puts(&s->line, "   preemptions/s");
    put_number(s, 5, f->now.preempted, 1);
    screen_end_line(s);
}

static double bytes_of(const json_t *memory, const char *key)
{
    const json_t *v = json_object_get(memory, key);
    return json_is_number(v) ? json_number_value(v) / GIB : -1;
}

static void memory_line_of(struct screen *s, const json_t *info)
{
    const json_t *m = json_object_get(info, "memory"), *d;
    double own = bytes_of(m, "resident_bytes"), group = bytes_of(m, "cgroup_bytes"),
           most = bytes_of(m, "cgroup_most_bytes");
    size_t i;
    if (own < 0 && json_array_size(json_object_get(m, "devices")) == 0)
        return;
    label(s, "memory");
    if (own >= 0)
        (void)ek_buf_printf(&s->line, "process %.2f GiB", own);
    if (group >= 0)
        (void)ek_buf_printf(&s->line, ", cgroup %.2f", group);
    if (most >= 0)
        (void)ek_buf_printf(&s->line, " of %.2f", most);
    json_array_foreach(json_object_get(m, "devices"), i, d)
    {
        double used = bytes_of(d, "used_bytes"), all = bytes_of(d, "total_bytes");
        (void)ek_buf_printf(&s->line,
                            ", device %.0f: ", json_number_value(json_object_get(d, "index")));
        (void)ek_buf_number(&s->line, used < 0 ? (double)NAN : used, 1, "");
        (void)ek_buf_puts(&s->line, " of ");
        (void)ek_buf_number(&s->line, all < 0 ? (double)NAN : all, 1, " GiB");
        const json_t *busy = json_object_get(d, "busy");
        if (json_is_number(busy))
            (void)ek_buf_printf(&s->line, ", %.0f %% busy", json_number_value(busy) * 100);
    }
    screen_end_line(s);
}

static void failure_line(struct screen *s, const json_t *failures)
{
    const json_t *list = json_object_get(failures, "failures"), *f = json_array_get(list, 0);
    const char *cls = json_string_value(json_object_get(f, "class"));
    const char *next = json_string_value(json_object_get(f, "next"));
    if (!cls || !next)
        return;
    label(s, "failed");
    screen_colour(s, "31");
    (void)ek_buf_printf(&s->line, "%zu time%s, last at ", json_array_size(list),
                        json_array_size(list) == 1 ? "" : "s");
    show_clock(&s->line, json_number_value(json_object_get(f, "at_s")));
    (void)ek_buf_puts(&s->line, ": ");
    show_text(&s->line, cls);
    (void)ek_buf_puts(&s->line, ", ");
    show_text(&s->line, next);
    screen_colour(s, "0");
    screen_end_line(s);
}

static void cost_line(struct screen *s, const struct board_figures *f, const struct board_view *v)
{
    double cost = figures_cost(f, v);
    if (!(v->price > 0))
        return;
    label(s, "cost");
    (void)ek_buf_printf(&s->line, "%.2f an hour", v->price * (1 + v->margin));
    if (cost >= 0)
        (void)ek_buf_printf(&s->line, ", %.2f for a million tokens made", cost);
    screen_end_line(s);
}

/* A sentence below its decision: all of it as far as the rows go, or the line that fits. */
static void why_lines(struct screen *s, const char *why, bool whole)
{
    struct ek_buf text = {0};
    if (whole && s->cols > 2 * WHY_INDENT)
        ek_buf_wrap(&text, why, WHY_INDENT, s->cols - 1);
    else
        (void)ek_buf_puts(&text, why);
    char *at = text.data ? text.data : NULL, *end;
    for (bool first = true; at && *at && screen_left(s) > 0; at = end, first = false) {
        end = at + strcspn(at, "\n");
        if (*end)
            *end++ = '\0';
        screen_colour(s, "2");
        (void)ek_buf_printf(&s->line, "%*s", first ? WHY_INDENT : 0, "");
        show_text(&s->line, at);
        screen_colour(s, "0");
        screen_end_line(s);
    }
    ek_buf_done(&text);
}

/* Decisions from the `first` on, at most so many, as long as there is room. */
static void decision_lines(struct screen *s, const json_t *decisions, size_t first, size_t most)
{
    const json_t *list = json_object_get(decisions, "decisions");
    for (size_t i = first; i < json_array_size(list) && i < first + most; i++) {
        const json_t *d = json_array_get(list, i);
        const char *why = json_string_value(json_object_get(d, "why"));
        if (screen_left(s) < 2)
            return;
        (void)ek_buf_puts(&s->line, "  ");
        show_decision_head(&s->line, d);
        screen_end_line(s);
        why_lines(s, why ? why : "", i == 0);
    }
}

void board_detail(struct screen *s, const struct board_figures *f, const struct board_view *v)
{
    const struct board_row *r = f->row;
    static const char *const words[] = {"engine", "state", "mode", "policy_state"};
    screen_colour(s, "1");
    show_text(&s->line, r->name);
    screen_colour(s, "0");
    for (size_t i = 0; r->info && i < sizeof(words) / sizeof(words[0]); i++) {
        const char *word = json_string_value(json_object_get(r->info, words[i]));
        (void)ek_buf_puts(&s->line, "  ");
        show_text(&s->line, word ? show_policy(word) : "-");
    }
    if (r->info) {
        (void)ek_buf_puts(&s->line, "  up ");
        show_duration(&s->line, json_number_value(json_object_get(r->info, "uptime_s")));
        (void)ek_buf_printf(&s->line, "  restarts %.0f",
                            json_number_value(json_object_get(r->info, "restarts")));
    } else {
        (void)ek_buf_printf(&s->line, "  %s", board_state_name(f->state));
    }
    screen_end_line(s);
    label(s, "found");
    show_text(&s->line, r->url);
    (void)ek_buf_puts(&s->line, "  ");
    show_text(&s->line, r->found);
    screen_end_line(s);
    if (r->said[0]) {
        label(s, "now");
        screen_colour(s, "31");
        show_text(&s->line, r->said);
        screen_colour(s, "0");
        screen_end_line(s);
    }
    kv_lines(s, f);
    if (r->info) {
        limit_line(s, f, "seqs", "max_num_running_seqs", fmax(f->running, 0));
        limit_line(s, f, "tokens", "max_num_batched_tokens", 0);
    }
    decision_lines(s, r->decisions, 0, 1); /* above what may not fit */
    work_lines(s, f);
    memory_line_of(s, r->info);
    cost_line(s, f, v);
    failure_line(s, r->failures);
    decision_lines(s, r->decisions, 1, s->rows ? 11 : 4);
}
