/*
 * What `evenkeelctl diagnose --live` says: the figures of a server's pool, each rule with its
 * values, and while it watches what changes. Text, Markdown and JSON. Pure.
 */
#pragma once

#include <jansson.h>

#include "supervisor/ctl/diagnose.h"
#include "supervisor/doctor/live.h"

struct live_told {
    const char *url;
    struct doctor_numbers numbers;
    enum live_state state[LIVE_RULES]; /* as told last, for live_changes() */
};

void live_show(const struct live_told *t, const struct diagnose_style *style, struct ek_buf *out);
/* NULL when out of memory. */
json_t *live_json(const struct live_told *t, enum doctor_lang lang);
/* A line for each rule that began or ceased to apply, each with the time; as JSON lines if `json`.
 * Remembers the states. A rule that is not known now has not changed. */
void live_changes(struct live_told *t, const char *clock, const struct diagnose_style *style,
                  bool json, struct ek_buf *out);
