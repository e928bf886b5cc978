/*
 * The table of servers. Without a terminal its columns never move, so that awk can cut them; on one
 * that is narrower they take what their words need, and the least important ones are left out until
 * a line fits.
 */
#include "supervisor/ctl/show.h"

#include <string.h>

#include "common/buf.h"

#define GAP 2

/* In the order of a line. */
enum status_column {
    COL_SERVER,
    COL_ENGINE,
    COL_STATE,
    COL_MODE,
    COL_POLICY,
    COL_UP,
    COL_RUNNING,
    COL_WAITING,
    COL_KV,
    COL_LIMIT,
    COL_TOKENS,
    COL_RESTARTS,
    COLUMNS
};

static const struct {
    const char *head, *brief;
    size_t width; /* without a terminal */
} table[COLUMNS] = {
    [COL_SERVER] = {"SERVER", "SERVER", 12},
    [COL_ENGINE] = {"ENGINE", "ENGINE", 10},
    [COL_STATE] = {"STATE", "STATE", 14},
    [COL_MODE] = {"MODE", "MODE", 9},
    [COL_POLICY] = {"POLICY", "POLICY", 10},
    [COL_UP] = {"UP", "UP", 9},
    [COL_RUNNING] = {"RUNNING", "RUN", 9},
    [COL_WAITING] = {"WAITING", "WAIT", 9},
    [COL_KV] = {"KV", "KV", 6},
    [COL_LIMIT] = {"LIMIT", "LIMIT", 9},
    [COL_TOKENS] = {"TOK/S", "TOK/S", 8},
    [COL_RESTARTS] = {"RESTARTS", "RESTARTS", 8},
};
static const enum status_column dispensable[] = {COL_ENGINE, COL_POLICY,   COL_MODE,
                                                 COL_TOKENS, COL_RESTARTS, COL_UP};

struct layout {
    size_t width[COLUMNS]; /* with the gap, 0 = left out */
    bool brief;
};

static void put_cell(struct ek_buf *out, const json_t *s, enum status_column c)
{
    static const char *const words[] = {"name", "engine", "state", "mode", "policy_state"};
    const json_t *g = json_object_get(s, "signals"), *kv = json_object_get(g, "kv_usage");
    const json_t *seqs = json_object_get(json_object_get(s, "limits"), "max_num_running_seqs");
    const json_t *pid = json_object_get(s, "pid"), *up = json_object_get(s, "uptime_s");
    bool runs = json_is_number(up) && !(json_is_number(pid) && json_number_value(pid) <= 0);
    switch (c) {
    case COL_SERVER:
    case COL_ENGINE:
    case COL_MODE: show_text(out, show_word(s, words[c])); break;
    case COL_POLICY: show_text(out, show_policy(show_word(s, words[c]))); break;
    case COL_STATE: show_text(out, show_state(s)); break;
    case COL_UP: show_duration(out, runs ? json_number_value(up) : -1); break;
    case COL_RUNNING: show_value(out, g, "running", "", 0); break;
    case COL_WAITING: show_value(out, g, "waiting", "", 0); break;
    case COL_KV:
        if (json_is_number(kv))
            (void)ek_buf_printf(out, "%.0f%%", json_number_value(kv) * 100);
        else
            (void)ek_buf_puts(out, "-");
        break;
    case COL_LIMIT:
        show_value(out, seqs, "value", "", 0);
        (void)ek_buf_puts(out, "/");
        show_value(out, seqs, "ceiling", "", 0);
        break;
    case COL_TOKENS: show_value(out, g, "generation_tokens_per_s", "", 0); break;
    case COL_RESTARTS: show_value(out, s, "restarts", "", 0); break;
    case COLUMNS: break;
    }
}

/* Columns that a text takes; characters of several bytes are one. */
static size_t columns_of(const char *text, size_t len)
{
    size_t n = 0;
    for (size_t i = 0; i < len; i++)
        n += ((unsigned char)text[i] & 0xC0) != 0x80;
    return n;
}

static size_t total(const struct layout *l)
{
    size_t sum = 0;
    for (int c = 0; c < COLUMNS; c++)
        sum += l->width[c];
    return sum > GAP ? sum - GAP : 0; /* behind the last one nothing comes */
}

/* What the words of all lines need, without what does not fit. */
static void show_fit(struct layout *l, const json_t *servers, const char *only, uint32_t cols)
{
    l->brief = true;
    for (int c = 0; c < COLUMNS; c++) {
        size_t most = strlen(table[c].brief), i;
        const json_t *s;
        json_array_foreach((json_t *)(uintptr_t)servers, i, s)
        {
            struct ek_buf cell = {0};
            put_cell(&cell, s, (enum status_column)c);
            size_t n = columns_of(cell.data ? cell.data : "", cell.len);
            most = show_named(s, only) && n > most ? n : most;
            ek_buf_done(&cell);
        }
        l->width[c] = most + GAP;
    }
    for (size_t i = 0; i < sizeof(dispensable) / sizeof(*dispensable) && total(l) > cols; i++)
        l->width[dispensable[i]] = 0;
}

static void show_status_choose(struct layout *l, const json_t *servers, const char *only,
                               uint32_t cols)
{
    *l = (struct layout){0};
    for (int c = 0; c < COLUMNS; c++)
        l->width[c] = table[c].width;
    if (cols && cols < total(l) + GAP)
        show_fit(l, servers, only, cols);
}

/* s: NULL = the heads. */
static void show_status_put_line(struct ek_buf *out, const struct layout *l, const json_t *s)
{
    size_t blanks = 0;
    for (int c = 0; c < COLUMNS; c++) {
        if (l->width[c] == 0)
            continue;
        for (; blanks > 0; blanks--)
            (void)ek_buf_puts(out, " ");
        size_t start = out->len;
        if (s)
            put_cell(out, s, (enum status_column)c);
        else
            (void)ek_buf_puts(out, l->brief ? table[c].brief : table[c].head);
        size_t took = out->failed ? 0 : columns_of(out->data + start, out->len - start);
        blanks = took < l->width[c] ? l->width[c] - took : 1;
    }
    (void)ek_buf_puts(out, "\n");
}

static void put_last(struct ek_buf *out, const json_t *d, uint32_t cols)
{
    struct ek_buf text = {0};
    show_clock(&text, json_number_value(json_object_get(d, "at_s")));
    (void)ek_buf_printf(&text, "  %s: %s", show_word(d, "reason"), show_word(d, "why"));
    (void)ek_buf_puts(out, "    ");
    show_lines(out, ek_buf_ok(&text) ? text.data : "", 4, cols);
    ek_buf_done(&text);
}

void show_status(const json_t *answer, const char *only, uint32_t cols, struct ek_buf *out)
{
    const json_t *servers = json_object_get(answer, "servers"), *s;
    const char *hint = json_string_value(json_object_get(answer, "hint"));
    struct layout l;
    size_t i;
    if (hint) {
        show_lines(out, hint, 0, cols);
        return;
    }
    show_status_choose(&l, servers, only, cols);
    show_status_put_line(out, &l, NULL);
    json_array_foreach((json_t *)(uintptr_t)servers, i, s)
    {
        if (!show_named(s, only))
            continue;
        show_status_put_line(out, &l, s);
        const char *why = json_string_value(json_object_get(s, "waiting_why"));
        if (why) {
            (void)ek_buf_puts(out, "    ");
            show_lines(out, why, 4, cols);
        }
        const json_t *d = json_object_get(s, "last_decision");
        if (json_is_object(d))
            put_last(out, d, cols);
        show_learned(s, 4, cols, out);
    }
}
