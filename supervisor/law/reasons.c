/*
 * The tables of reasons and actions, and what is printed from them: names everywhere, colours for
 * the page, reference pages for tools/reference.sh.
 */
#include "supervisor/law/reasons.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "common/buf.h"

static const struct reason_info reasons[] = {
#define REASON(name, id, level, colour, ...)                                                       \
    [REASON_##name] = {#name, id, EK_LOG_##level, COLOUR_##colour, __VA_ARGS__},
#include "supervisor/law/reasons.def"
#undef REASON
    [REASON_COUNT] = {.name = "UNKNOWN", .level = EK_LOG_NOTICE},
};

static const struct {
    const char *name;
    bool change;
    enum decision_colour colour;
} actions[] = {
    [ACT_NONE] = {"none", false, COLOUR_PLAIN},
    [ACT_LOWER] = {"lower", true, COLOUR_AMBER},
    [ACT_RAISE] = {"raise", true, COLOUR_GREEN},
    [ACT_REVERT] = {"revert", true, COLOUR_GREEN},
    [ACT_RESTART] = {"restart", false, COLOUR_RED},
    [ACT_DRAIN] = {"drain", false, COLOUR_PLAIN},
    [ACT_NOTE] = {"note", false, COLOUR_PLAIN},
    [ACT_SHED] = {"shed", true, COLOUR_PLAIN}, /* the reason says which way */
    [ACT_RESERVE] = {"reserve", true, COLOUR_PLAIN},
    [ACTION_COUNT] = {"unknown", false, COLOUR_PLAIN},
};

const struct reason_info *reason_info(enum reason r)
{
    return &reasons[(unsigned)r < REASON_COUNT ? r : REASON_COUNT];
}

const char *reason_name(enum reason r)
{
    return reason_info(r)->name;
}

enum reason reason_find(const char *name)
{
    int r = 0;
    while (r < REASON_COUNT && strcmp(name, reasons[r].name) != 0)
        r++;
    return (enum reason)r;
}

const char *action_name(enum action_kind k)
{
    return actions[(unsigned)k < ACTION_COUNT ? k : ACTION_COUNT].name;
}

bool action_is_change(enum action_kind k)
{
    return actions[(unsigned)k < ACTION_COUNT ? k : ACTION_COUNT].change;
}

enum action_kind action_find(const char *name)
{
    int k = 0;
    while (k < ACTION_COUNT && strcmp(name, actions[k].name) != 0)
        k++;
    return (enum action_kind)k;
}

/* The page's variable of a colour, "" for none. */
static const char *variable(enum decision_colour c)
{
    switch (c) {
    case COLOUR_PLAIN: return "";
    case COLOUR_AMBER: return "--amber";
    case COLOUR_GREEN: return "--green";
    case COLOUR_RED:
    case COLOUR_RED_TEXT: return "--red";
    }
    return "";
}

int reasons_style(struct ek_buf *out)
{
    static const enum decision_colour all[] = {COLOUR_AMBER, COLOUR_GREEN, COLOUR_RED};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++) {
        const char *want = variable(all[i]), *before = i ? " tr:is(" : "tr:is(";
        for (int k = 0; k < ACTION_COUNT; k++) {
            if (strcmp(variable(actions[k].colour), want) != 0)
                continue;
            (void)ek_buf_printf(out, "%s[data-kind=%s]", before, actions[k].name);
            before = ", ";
        }
        for (int r = 0; r < REASON_COUNT; r++) {
            if (strcmp(variable(reasons[r].colour), want) != 0)
                continue;
            (void)ek_buf_printf(out, "%s[data-reason=%s]", before, reasons[r].name);
            before = ", ";
        }
        (void)ek_buf_printf(out, ") b { color: var(%s); }", want);
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

static void put_mark(struct ek_buf *out, const char **before, const char *name,
                     enum decision_colour c)
{
    if (c == COLOUR_PLAIN || c == COLOUR_RED_TEXT)
        return;
    (void)ek_buf_printf(out, "%s%s: \"%s\"", *before, name, variable(c));
    *before = ", ";
}

int reasons_marks(struct ek_buf *out)
{
    const char *before = "{";
    for (int k = 0; k < ACTION_COUNT; k++)
        put_mark(out, &before, actions[k].name, actions[k].colour);
    for (int r = 0; r < REASON_COUNT; r++)
        put_mark(out, &before, reasons[r].name, reasons[r].colour);
    (void)ek_buf_puts(out, "}");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

int reasons_print(const char *format, struct ek_buf *out)
{
    bool catalog = strcmp(format, "catalog") == 0;
    if (!catalog)
        (void)ek_buf_puts(out, "| code | meaning |\n|---|---|\n");
    for (int i = REASON_NONE + 1; i < REASON_COUNT; i++) {
        const struct reason_info *r = &reasons[i];
        if (catalog)
            (void)ek_buf_printf(out,
                                "-- %s\nSubject: %s\nDefined-By: Evenkeel\n\n"
                                "Server @EVENKEEL_SERVER@: reason @EVENKEEL_REASON@.\n%s%s\n",
                                r->id, r->subject, r->text, r->text[0] ? "\n" : "");
        else
            (void)ek_buf_printf(out, "| `%s` | %s |\n", r->name, r->meaning);
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
