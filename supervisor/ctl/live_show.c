/*
 * Prints what live.c found, with the texts of the guides' analysis, in the language and form that
 * was asked for. Measuring and judging are in doctor/; nothing here reads a server.
 */
#include "supervisor/ctl/live_show.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/doctor/tell.h"
#include "supervisor/doctor/texts.h"

#define WIDTH  79
#define INDENT 13

static void live_show_put_number(const struct doctor_numbers *n, const char *name, const char *text,
                                 bool markdown, struct ek_buf *out)
{
    const struct doctor_number *v = doctor_numbers_find(n, name);
    char number[32];
    (void)ek_buf_printf(out, markdown ? "| %s | %s |\n" : "  %-34s %s\n", text,
                        v ? doctor_number_text(v->value, v->bytes, number) : "-");
}

/* The analysis that the guides print. */
static void put_blocks(const struct live_told *t, const struct diagnose_style *style,
                       struct ek_buf *out)
{
    static const struct {
        const char *name;
        struct doctor_text text;
    } rows[] = {{"total_blocks", DOCTOR_TEXT(row_total_blocks)},
                {"used_blocks", DOCTOR_TEXT(row_used_blocks)},
                {"free_blocks", DOCTOR_TEXT(row_free_blocks)},
                {"running", DOCTOR_TEXT(row_running)},
                {"waiting", DOCTOR_TEXT(row_waiting)},
                {"blocks_per_request", DOCTOR_TEXT(row_blocks_per_request)},
                {"room_requests", DOCTOR_TEXT(row_room_requests)},
                {"output_s", DOCTOR_TEXT(row_output_s)}};
    static const struct doctor_text usage = DOCTOR_TEXT(row_usage);
    const bool markdown = style->form == DIAGNOSE_MARKDOWN;
    char row[160];
    (void)ek_buf_printf(out, markdown ? "## %s\n\n| | |\n|---|---|\n" : "%s\n", t->url);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        live_show_put_number(&t->numbers, rows[i].name, rows[i].text.in[style->lang], markdown,
                             out);
    (void)snprintf(row, sizeof(row),
                   markdown ? "| %s | {usage:pct} |\n\n" : "  %-34s {usage:pct}\n",
                   usage.in[style->lang]);
    doctor_tell(row, &t->numbers, out);
}

/* A template's text with its values; the caller's ek_buf. */
static const char *live_show_told(const struct doctor_text *text, const struct live_told *t,
                                  enum doctor_lang lang, struct ek_buf *room)
{
    room->len = 0;
    doctor_tell(text->in[lang], &t->numbers, room);
    return ek_buf_ok(room) && room->len > 0 ? room->data : "";
}

static const char *state_text(enum live_state s, enum doctor_lang lang)
{
    static const struct doctor_text states[] = {DOCTOR_TEXT(state_not_known),
                                                DOCTOR_TEXT(state_fine), DOCTOR_TEXT(state_look)};
    return states[s].in[lang];
}

/* The flag with its value, and what to do. */
static void put_remedy(const struct live_finding *f, const struct live_told *t,
                       enum doctor_lang lang, const char *quote, struct ek_buf *out)
{
    struct ek_buf room = {0};
    if (f->flag)
        (void)ek_buf_printf(out, "%s%s%s%s%s: ", quote, f->flag, f->has_value ? " " : "",
                            f->has_value ? f->value : "", quote);
    (void)ek_buf_puts(out, live_show_told(f->remedy, t, lang, &room));
    ek_buf_done(&room);
}

static void put_applies(const struct live_finding *f, const struct live_told *t,
                        enum doctor_lang lang, struct ek_buf *out)
{
    struct ek_buf room = {0}, remedy = {0};
    (void)ek_buf_printf(out, "%*s", INDENT, "");
    ek_buf_wrap(out, live_show_told(f->text, t, lang, &room), INDENT, WIDTH);
    put_remedy(f, t, lang, "", &remedy);
    (void)ek_buf_printf(out, "%*s", INDENT, "");
    ek_buf_wrap(out, ek_buf_ok(&remedy) && remedy.data ? remedy.data : "", INDENT, WIDTH);
    ek_buf_done(&room);
    ek_buf_done(&remedy);
}

static void put_markdown(const struct live_finding *f, const struct live_told *t,
                         enum doctor_lang lang, struct ek_buf *out)
{
    struct ek_buf room = {0};
    bool applies = f->state == LIVE_APPLIES;
    (void)ek_buf_printf(out, "- %s%s%s: %s", applies ? "**" : "", state_text(f->state, lang),
                        applies ? "**" : "", f->title->in[lang]);
    if (applies) {
        (void)ek_buf_printf(out, ". %s ", live_show_told(f->text, t, lang, &room));
        put_remedy(f, t, lang, "`", out);
    }
    (void)ek_buf_puts(out, "\n");
    ek_buf_done(&room);
}

void live_show(const struct live_told *t, const struct diagnose_style *style, struct ek_buf *out)
{
    struct live_finding f[LIVE_RULES];
    uint32_t count = live_judge(&t->numbers, f);
    put_blocks(t, style, out);
    for (uint32_t i = 0; i < count; i++) {
        bool applies = f[i].state == LIVE_APPLIES;
        if (style->form == DIAGNOSE_MARKDOWN) {
            put_markdown(&f[i], t, style->lang, out);
            continue;
        }
        (void)ek_buf_printf(out, "  %s%-10s%s %s\n", style->colour && applies ? "\033[1;33m" : "",
                            state_text(f[i].state, style->lang),
                            style->colour && applies ? "\033[0m" : "", f[i].title->in[style->lang]);
        if (applies)
            put_applies(&f[i], t, style->lang, out);
    }
}

json_t *live_json(const struct live_told *t, enum doctor_lang lang)
{
    static const char *const states[] = {"unknown", "fine", "applies"};
    struct live_finding f[LIVE_RULES];
    uint32_t count = live_judge(&t->numbers, f);
    json_t *numbers = json_object(), *rules = json_array();
    struct ek_buf text = {0};
    for (uint32_t i = 0; numbers && i < t->numbers.count; i++)
        (void)json_object_set_new(numbers, t->numbers.at[i].name,
                                  json_real(t->numbers.at[i].value));
    for (uint32_t i = 0; rules && i < count; i++) {
        bool applies = f[i].state == LIVE_APPLIES;
        (void)json_array_append_new(
            rules,
            json_pack("{s:s, s:s, s:s, s:s?, s:s?, s:s?}", "id", f[i].id, "state",
                      states[f[i].state], "title", f[i].title->in[lang], "why",
                      applies ? live_show_told(f[i].text, t, lang, &text) : NULL, "flag",
                      applies ? f[i].flag : NULL, "value", f[i].has_value ? f[i].value : NULL));
    }
    ek_buf_done(&text);
    return json_pack("{s:s, s:o, s:o}", "url", t->url, "numbers", numbers, "rules", rules);
}

static void put_change(const struct live_finding *f, const struct live_told *t, const char *clock,
                       const struct diagnose_style *style, struct ek_buf *out)
{
    const bool applies = f->state == LIVE_APPLIES;
    (void)ek_buf_printf(out, "%s  %s  %s%s%s  %s\n", clock, t->url,
                        style->colour ? applies ? "\033[1;33m" : "\033[32m" : "",
                        state_text(f->state, style->lang), style->colour ? "\033[0m" : "",
                        f->title->in[style->lang]);
    if (applies)
        put_applies(f, t, style->lang, out);
}

static void put_change_json(const struct live_finding *f, const struct live_told *t,
                            const char *clock, enum doctor_lang lang, struct ek_buf *out)
{
    const bool applies = f->state == LIVE_APPLIES;
    struct ek_buf room = {0};
    json_t *j =
        json_pack("{s:s, s:s, s:s, s:s, s:s, s:s?, s:s?, s:s?}", "at", clock, "url", t->url, "id",
                  f->id, "state", applies ? "applies" : "fine", "title", f->title->in[lang], "why",
                  applies ? live_show_told(f->text, t, lang, &room) : NULL, "flag",
                  applies ? f->flag : NULL, "value", applies && f->has_value ? f->value : NULL);
    char *text = j ? json_dumps(j, JSON_COMPACT | JSON_PRESERVE_ORDER) : NULL;
    (void)ek_buf_printf(out, "%s\n", text ? text : "{}");
    free(text);
    json_decref(j);
    ek_buf_done(&room);
}

void live_changes(struct live_told *t, const char *clock, const struct diagnose_style *style,
                  bool json, struct ek_buf *out)
{
    struct live_finding f[LIVE_RULES];
    uint32_t count = live_judge(&t->numbers, f);
    for (uint32_t i = 0; i < count; i++) {
        enum live_state before = t->state[i];
        if (f[i].state == LIVE_UNKNOWN)
            continue;
        t->state[i] = f[i].state;
        if (f[i].state == before || (before == LIVE_UNKNOWN && f[i].state == LIVE_FINE))
            continue;
        if (json)
            put_change_json(&f[i], t, clock, style->lang, out);
        else
            put_change(&f[i], t, clock, style, out);
    }
}
