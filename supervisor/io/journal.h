/*
 * Every action and every class of failure as one line with a fixed message id and fields, so that
 * `journalctl MESSAGE_ID=...` and the catalog (packaging/evenkeel.catalog) find them. Without a
 * journal the same lines go to stderr. Ids never change once released.
 *
 * Fields: EVENKEEL_SERVER, EVENKEEL_REASON, EVENKEEL_ACTION, and for a change of limits
 * EVENKEEL_KNOB, EVENKEEL_FROM, EVENKEEL_TO, EVENKEEL_MEASURED, EVENKEEL_LIMIT, EVENKEEL_APPLIED.
 */
#pragma once

#include "supervisor/law/oom.h"
#include "supervisor/law/policy.h"

/* 32 hex digits; those of reasons: law/reasons.def. */
const char *journal_crash_id(enum crash_class c);

/* Logs a decision: its `why` with the server's name before it. */
void journal_decision(const char *server, const struct decision *d);
/* Logs the end of a server: notice when it was asked for, else error. */
void journal_crash(const char *server, const struct crash_verdict *v, int status, bool signaled);
