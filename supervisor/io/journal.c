/*
 * Turns decisions and verdicts into entries of the journal; servers/server.c and ended.c call it
 * for each. The message ids are tables here, and packaging/evenkeel.catalog has one entry for each
 * id.
 */
#include "supervisor/io/journal.h"

#include <math.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"

static const char *const crash_ids[CRASH_COUNT] = {
    [CRASH_CLEAN_EXIT] = "04752342fb8abb3f9518a7b0fefd7f36",
    [CRASH_STARTUP_OOM] = "3c038cffdc6106898c4b1a3fdb979e6e",
    [CRASH_BURST_OOM] = "5f039fa0e8ff8bd756f46dcc28c835cb",
    [CRASH_FRAG_OOM] = "e0c562ede5ce9f501fcc2a392026ee5c",
    [CRASH_HOST_OOM] = "314cdceeb62f39f5afe98b4299502213",
    [CRASH_CONFIG] = "7ce58b3b66508b10eb10f25b0e0e1098",
    [CRASH_PORT] = "ef204e4ad7e8a01278b442c826c24546",
    [CRASH_DISK] = "3dd5ad2fb084dc63b03ead5ee7307bd9",
    [CRASH_HANG_KILLED] = "7c11f97b15955cb5fb18861a2fb68073",
    [CRASH_LOOP] = "1ab14ef74b6a4ec8b7c6e94e7323b234",
    [CRASH_DEVICE] = "cbbf22a86b85ff1539cda63d22e1070b",
    [CRASH_COMM] = "8fb4219294b5e9b44933fc0aaaf26660",
    [CRASH_SIGNAL] = "530b9287a34048fec686fcfcef942789",
    [CRASH_UNKNOWN] = "763484cb81df2d3d2ca739dec20d91b3",
};

const char *journal_crash_id(enum crash_class c)
{
    return (unsigned)c < CRASH_COUNT ? crash_ids[c] : NULL;
}

#define FIELD_BYTES 96

void journal_decision(const char *server, const struct decision *d)
{
    char f[9][FIELD_BYTES];
    const char *fields[10] = {NULL};
    int n = 0;
    bool change = action_is_change(d->kind);
    /* A field that is cut short is still the right field. */
    (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_SERVER=%s", server);
    (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_REASON=%s", reason_name(d->reason));
    (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_ACTION=%s", action_name(d->kind));
    if (change) {
        (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_KNOB=%s", knob_name(d->knob));
        (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_FROM=%u", d->from);
        (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_TO=%u", d->to);
        if (isfinite(d->measured)) /* what is not known has no field */
            (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_MEASURED=%.6g", d->measured);
        if (isfinite(d->limit))
            (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_LIMIT=%.6g", d->limit);
        (void)snprintf(f[n++], FIELD_BYTES, "EVENKEEL_APPLIED=%d", d->applied);
    }
    for (int i = 0; i < n; i++)
        fields[i] = f[i];
    const struct reason_info *reason = reason_info(d->reason);
    ek_log_event(reason->level, reason->id, fields, "%s: %s%s [%s]", server, d->why,
                 change && !d->applied ? " (not applied)" : "", reason->name);
}

void journal_crash(const char *server, const struct crash_verdict *v, int status, bool signaled)
{
    char f[3][FIELD_BYTES];
    (void)snprintf(f[0], FIELD_BYTES, "EVENKEEL_SERVER=%s", server);
    (void)snprintf(f[1], FIELD_BYTES, "EVENKEEL_CLASS=%s", crash_name(v->cls));
    (void)snprintf(f[2], FIELD_BYTES, "EVENKEEL_%s=%d", signaled ? "SIGNAL" : "STATUS", status);
    const char *fields[] = {f[0], f[1], f[2], NULL};
    bool clean = v->cls == CRASH_CLEAN_EXIT;
    size_t len = strlen(v->why);
    int why = (int)(len > 0 && v->why[len - 1] == '.' ? len - 1 : len);
    ek_log_event(clean ? EK_LOG_INFO : EK_LOG_ERR, journal_crash_id(v->cls), fields,
                 "%s: ended: %.*s%s%s [%s]", server, why, v->why, v->remedy && !clean ? ". " : "",
                 v->remedy && !clean ? v->remedy : "", crash_name(v->cls));
}
