/*
 * Text from JSON. Lists are plain columns: they can be cut with awk; for structure there is
 * --json.
 */
#include "supervisor/ctl/show.h"

#include <math.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"

#define BAR_MOST 200
#define FAR_S    72000 /* from here on the hour alone could be another day's */

const char *show_word(const json_t *object, const char *key)
{
    const char *s = json_string_value(json_object_get(object, key));
    return s ? s : "-";
}

const char *show_state(const json_t *server)
{
    const char *state = show_word(server, "state");
    if (json_is_true(json_object_get(server, "halted")))
        return "halted";
    if (strcmp(state, "ready") == 0 && json_is_false(json_object_get(server, "ready")))
        return "not ready";
    return state;
}

static bool show_number_of(const json_t *object, const char *key, double *ret_value)
{
    const json_t *v = json_object_get(object, key);
    if (!json_is_number(v))
        return false;
    *ret_value = json_number_value(v);
    return true;
}

static double number_or(const json_t *object, const char *key, double otherwise)
{
    double v = otherwise;
    (void)show_number_of(object, key, &v);
    return v;
}

bool show_named(const json_t *server, const char *only)
{
    return !only || strcmp(show_word(server, "name"), only) == 0;
}

void show_text(struct ek_buf *out, const char *text)
{
    for (size_t n; *text; text += n > 0 ? n : 1) {
        n = ek_text_control(text);
        (void)ek_buf_add(out, n > 0 ? "?" : text, 1);
    }
}

void show_duration(struct ek_buf *out, double seconds)
{
    if (!(seconds >= 0 && seconds < 1e12)) {
        (void)ek_buf_puts(out, "-");
        return;
    }
    unsigned long long s = (unsigned long long)seconds;
    if (seconds < 10)
        (void)ek_buf_printf(out, "%.1fs", seconds);
    else if (s < 60)
        (void)ek_buf_printf(out, "%llus", s);
    else if (s < 3600)
        (void)ek_buf_printf(out, "%llum %llus", s / 60, s % 60);
    else if (s < 86400)
        (void)ek_buf_printf(out, "%lluh %llum", s / 3600, s / 60 % 60);
    else
        (void)ek_buf_printf(out, "%llud %lluh", s / 86400, s / 3600 % 24);
}

void show_bar(struct ek_buf *out, double part, double limit, double whole, uint32_t width)
{
    char bar[BAR_MOST];
    width = width > BAR_MOST ? BAR_MOST : width;
    for (uint32_t i = 0; i < width; i++) {
        /* A cell belongs to what reaches its middle. */
        double at = whole > 0 ? (i + 0.5) * whole / width : HUGE_VAL;
        bar[i] = '.';
        if (at <= part)
            bar[i] = '#';
        else if (at <= limit)
            bar[i] = '-';
    }
    (void)ek_buf_printf(out, "[%.*s]", (int)width, bar);
}

static void put_when(struct ek_buf *out, double wall_s, bool dated)
{
    struct tm tm;
    char text[32];
    time_t t = wall_s > 0 && wall_s < 1e11 ? (time_t)wall_s : 0;
    if (t == 0 || !localtime_r(&t, &tm) ||
        strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm) == 0)
        (void)ek_buf_puts(out, "--:--:--");
    else
        (void)ek_buf_puts(out, text + (dated ? 0 : sizeof("2026-01-01")));
}

void show_lines(struct ek_buf *out, const char *text, size_t indent, uint32_t cols)
{
    struct ek_buf clean = {0};
    show_text(&clean, text);
    if (!ek_buf_ok(&clean))
        out->failed = true;
    else if (cols > indent + 20 && clean.len)
        ek_buf_wrap(out, clean.data, indent, cols);
    else
        (void)ek_buf_printf(out, "%s\n", clean.data ? clean.data : "");
    ek_buf_done(&clean);
}

void show_clock(struct ek_buf *out, double wall_s)
{
    time_t now = time(NULL), t = wall_s > 0 && wall_s < 1e11 ? (time_t)wall_s : 0;
    bool far = t < now - FAR_S || t > now + FAR_S;
    put_when(out, wall_s, far);
}

void show_value(struct ek_buf *out, const json_t *object, const char *key, const char *unit,
                int decimals)
{
    double v;
    if (show_number_of(object, key, &v))
        (void)ek_buf_printf(out, "%.*f%s", decimals, v, unit);
    else
        (void)ek_buf_puts(out, "-");
}

/* Pads what was written since `start` to `width` columns, and at least one space. */
static void pad(struct ek_buf *out, size_t start, size_t width)
{
    do
        (void)ek_buf_puts(out, " ");
    while (!out->failed && out->len - start < width);
}

/* "lower max_num_running_seqs 16 -> 12 LOWER_KV_HARM (advised)" */
static void decision_head(struct ek_buf *out, const json_t *d)
{
    (void)ek_buf_puts(out, "  ");
    show_text(out, show_word(d, "action"));
    (void)ek_buf_puts(out, "  ");
    if (json_is_string(json_object_get(d, "knob"))) {
        show_text(out, show_word(d, "knob"));
        (void)ek_buf_printf(out, " %.0f -> %.0f  ", number_or(d, "from", 0), number_or(d, "to", 0));
    }
    show_text(out, show_word(d, "reason"));
    if (json_is_false(json_object_get(d, "applied")))
        (void)ek_buf_puts(out, "  (not applied)");
}

void show_decision_head(struct ek_buf *out, const json_t *d)
{
    show_clock(out, number_or(d, "at_s", 0));
    decision_head(out, d);
}

/* The line that `line` holds, in two where it is wider than the terminal. */
static void head_line(struct ek_buf *out, struct ek_buf *line, uint32_t cols)
{
    if (!ek_buf_ok(line))
        out->failed = true;
    else if (cols && line->len > cols)
        ek_buf_wrap(out, line->data, 4, cols);
    else
        (void)ek_buf_printf(out, "%s\n", line->data ? line->data : "");
    ek_buf_done(line);
}

/* What `measured` and `limit` of a decision are: by reason. */
struct figure {
    const char *reason, *word, *unit;
    double times;
};

static const struct figure *figure_of(const char *reason)
{
    static const struct figure table[] = {
        {"LOWER_ITL_PREFILL", "ITL p99", " s", 1},  {"LOWER_", "KV usage", " %", 100},
        {"RAISE_", "KV usage", " %", 100},          {"DRIFT_BACK", "KV usage", " %", 100},
        {"KV_FULL_HEALTHY", "KV usage", " %", 100}, {"SAT_LOW", "KV usage", " %", 100},
        {"REVERT_", "generated", " tokens/s", 1},   {"SHED_", "oldest waiting", " s", 1}};
    for (size_t i = 0; i < sizeof(table) / sizeof(table[0]); i++) {
        if (strncmp(reason, table[i].reason, strlen(table[i].reason)) == 0)
            return &table[i];
    }
    return NULL;
}

/* "KV usage 97 %, threshold 92 %, held 30 s" on a line of its own, or nothing. */
static void figures(struct ek_buf *out, const json_t *d)
{
    static const char *const keys[] = {"measured", "limit", "held_s"};
    const struct figure *f = figure_of(show_word(d, "reason"));
    const char *before = "    ";
    for (size_t i = 0; i < sizeof(keys) / sizeof(keys[0]); i++) {
        bool held = i == 2;
        double v;
        if ((!held && !f) || !show_number_of(d, keys[i], &v) || !(v > 0))
            continue;
        if (held)
            (void)ek_buf_printf(out, "%sheld %.*f s", before, v < 9.95, v);
        else
            (void)ek_buf_printf(out, "%s%s %.4g%s", before, i == 0 ? f->word : "threshold",
                                v * f->times, f->unit);
        before = ", ";
    }
    (void)ek_buf_puts(out, before[0] == ',' ? "\n" : "");
}

const char *show_policy(const char *state)
{
    return strcmp(state, "pressure") == 0  ? "preempting"
           : strcmp(state, "sat_low") == 0 ? "at minimum"
                                           : state;
}

/* The flowchart: what was asked, in order, and what to do at the first yes. */
static void questions(struct ek_buf *out, const json_t *list, uint32_t cols)
{
    bool found = false;
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *q = json_array_get(list, i);
        const char *answer = show_word(q, "answer"), *on = show_word(q, "rests_on");
        bool yes = strcmp(answer, "Yes") == 0, rests = *on && *on != '-';
        struct ek_buf line = {0};
        (void)ek_buf_printf(&line, "%s  %s%s%s%s%s", show_word(q, "question"), answer,
                            rests ? " (" : "", rests ? on : "", rests ? ")" : "", yes ? ":" : "");
        (void)ek_buf_printf(out, "    %s %zu. ", yes && !found ? "=>" : "  ", i + 1);
        show_lines(out, ek_buf_ok(&line) ? line.data : "", 10, cols);
        ek_buf_done(&line);
        if (yes) {
            (void)ek_buf_puts(out, "          ");
            show_lines(out, show_word(q, "then"), 10, cols);
        }
        found = found || yes;
    }
}

/* What led to it and its figures, below its head. */
static void reasons(struct ek_buf *out, const json_t *d, uint32_t cols)
{
    (void)ek_buf_puts(out, "    ");
    show_lines(out, show_word(d, "why"), 4, cols);
    figures(out, d);
}

void show_event(const json_t *decision, uint32_t cols, struct ek_buf *out)
{
    struct ek_buf head = {0};
    put_when(&head, number_or(decision, "at_s", 0), true);
    decision_head(&head, decision);
    (void)ek_buf_puts(&head, "  [");
    show_text(&head, show_word(decision, "server"));
    (void)ek_buf_puts(&head, "]");
    head_line(out, &head, cols);
    const json_t *asked = json_object_get(decision, "questions");
    if (json_array_size(asked) > 0)
        questions(out, asked, cols);
    else
        reasons(out, decision, cols);
}

/* What holds now: next to the prompt, below what was decided. */
static void present(struct ek_buf *out, const json_t *server, const char *keys_why, uint32_t cols)
{
    const char *why = json_string_value(json_object_get(server, "waiting_why"));
    const char *law =
        json_string_value(json_object_get(json_object_get(server, "waits_for"), "why"));
    const char *said[] = {why, keys_why, law}, *lead = "now  ";
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        if (!said[i] || !*said[i])
            continue;
        (void)ek_buf_puts(out, lead);
        show_lines(out, said[i], 5, cols);
        lead = "     ";
    }
}

/* Where more is told of a failure that the catalog of `diagnose` knows: of the newest one, if it is
 * among these. */
static void catalog_hint(struct ek_buf *out, const json_t *list)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *d = json_array_get(list, i);
        const char *entry = json_string_value(json_object_get(d, "signature"));
        if (strcmp(show_word(d, "reason"), "CRASH") != 0)
            continue;
        if (entry)
            (void)ek_buf_printf(out, "more  evenkeelctl diagnose --explain %s\n", entry);
        return;
    }
}

void show_decisions(const json_t *answer, const json_t *server, const json_t *keys, uint32_t cols,
                    struct ek_buf *out)
{
    const char *keys_why = json_string_value(json_object_get(keys ? keys : server, "keys_why"));
    const json_t *list = json_object_get(answer, "decisions");
    size_t count = json_array_size(list);
    if (count == 0)
        (void)ek_buf_puts(out, "No decisions yet.\n");
    for (size_t i = count; i-- > 0;) { /* the newest last: next to the prompt */
        struct ek_buf head = {0};
        show_decision_head(&head, json_array_get(list, i));
        head_line(out, &head, cols);
        reasons(out, json_array_get(list, i), cols);
    }
    catalog_hint(out, list);
    present(out, server, keys_why, cols);
}

void show_learned(const json_t *server, size_t indent, uint32_t cols, struct ek_buf *out)
{
    const json_t *l = json_object_get(server, "learned");
    struct ek_buf text = {0};
    if (!json_is_object(l))
        return;
    (void)ek_buf_printf(&text,
                        "Since memory ran out %s starts with %s, for %.1f h more: evenkeelctl "
                        "remedies",
                        show_word(server, "name"), show_word(l, "flags"),
                        number_or(l, "left_s", 0) / 3600);
    (void)ek_buf_printf(out, "%*s", (int)indent, "");
    show_lines(out, ek_buf_ok(&text) ? text.data : "", indent, cols);
    ek_buf_done(&text);
}

static void row(struct ek_buf *out, const char *const *cells, const size_t *widths, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        size_t start = out->len;
        (void)ek_buf_puts(out, cells[i]);
        if (i + 1 < count)
            pad(out, start, widths[i]);
    }
    (void)ek_buf_puts(out, "\n");
}

void show_limits(const json_t *answer, const char *only, struct ek_buf *out)
{
    static const char *const head[] = {"SERVER", "LIMIT", "VALUE", "CEILING", "MIN", "PINNED"};
    static const size_t widths[] = {12, 26, 8, 9, 7, 0};
    static const char *const names[] = {"max_num_running_seqs", "max_num_batched_tokens"};
    const json_t *servers = json_object_get(answer, "servers"), *s;
    size_t i;
    row(out, head, widths, sizeof(widths) / sizeof(widths[0]));
    json_array_foreach((json_t *)(uintptr_t)servers, i, s)
    {
        for (size_t k = 0; k < 2 && show_named(s, only); k++) {
            static const char *const keys[] = {"value", "ceiling", "min"};
            const json_t *l = json_object_get(json_object_get(s, "limits"), names[k]);
            size_t start = out->len;
            show_text(out, show_word(s, "name"));
            pad(out, start, widths[0]);
            start = out->len;
            (void)ek_buf_puts(out, names[k]);
            pad(out, start, widths[1]);
            for (size_t n = 0; n < 3; n++) {
                start = out->len;
                show_value(out, l, keys[n], "", 0);
                pad(out, start, widths[2 + n]);
            }
            (void)ek_buf_puts(out, json_is_true(json_object_get(l, "pinned")) ? "yes\n" : "no\n");
        }
    }
    json_array_foreach((json_t *)(uintptr_t)servers, i, s)
    {
        if (show_named(s, only))
            show_learned(s, 0, 0, out);
    }
}
