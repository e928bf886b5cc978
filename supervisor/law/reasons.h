/*
 * Reasons of decisions and the kinds of action: their names, message ids, levels, colours and
 * texts, one table each. The law, the journal, its catalog, the metrics, the state file and the
 * page read these. Pure.
 */
#pragma once

#include <stdbool.h>

#include "common/log.h"

struct ek_buf;

enum reason {
#define REASON(name, ...) REASON_##name,
#include "supervisor/law/reasons.def"
#undef REASON
    REASON_COUNT
};

enum action_kind {
    ACT_NONE,
    ACT_LOWER,
    ACT_RAISE,
    ACT_REVERT,
    ACT_RESTART,
    ACT_DRAIN,
    ACT_NOTE,
    ACT_SHED,    /* the queue deadline, on or off */
    ACT_RESERVE, /* the share of blocks kept free when a request is admitted */
};
#define ACTION_COUNT (ACT_RESERVE + 1)

/* Of a word in the page's list of decisions, and of the line in its charts. */
enum decision_colour {
    COLOUR_PLAIN,
    COLOUR_AMBER,
    COLOUR_GREEN,
    COLOUR_RED,
    COLOUR_RED_TEXT /* red in the list, no line in the charts: another decision has that */
};

struct reason_info {
    const char *name; /* "LOWER_KV_HARM" */
    const char *id;   /* of its message, 32 hex digits; NULL for NONE */
    enum ek_log_level level;
    enum decision_colour colour;
    const char *meaning, *subject, *text; /* see reasons.def */
};

/* The row of any number; that of one out of range is called UNKNOWN. Never NULL. */
const struct reason_info *reason_info(enum reason r);
const char *reason_name(enum reason r); /* "LOWER_KV_HARM" */
/* REASON_COUNT for a name that this version does not know. */
enum reason reason_find(const char *name);

const char *action_name(enum action_kind k);
bool action_is_change(enum action_kind k); /* of a limit: from and to mean something */
/* ACTION_COUNT for a name that this version does not know. */
enum action_kind action_find(const char *name);

/* The page's colours: rules of its style sheet, and the object of its script that has the lines in
 * the charts. Each 0 or -ENOMEM. */
int reasons_style(struct ek_buf *out);
int reasons_marks(struct ek_buf *out);
/* The table as rows of docs/control.md ("markdown") or entries of the journal's catalog
 * ("catalog"). 0 or -ENOMEM. */
int reasons_print(const char *format, struct ek_buf *out);
