/*
 * Names of knobs and states, and the JSON of a decision. The same words go to the journal, the
 * metrics, the page and evenkeelctl.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/law/policy.h"

const char *knob_name(enum knob k)
{
    switch (k) {
    case KNOB_SEQS: return "max_num_running_seqs";
    case KNOB_TOKENS: return "max_num_batched_tokens";
    case KNOB_DEADLINE: return "queue_deadline_ms";
    case KNOB_RESERVE: return "watermark_permille";
    }
    return "unknown";
}

const char *policy_state_name(enum policy_state s)
{
    switch (s) {
    case POL_INIT: return "init";
    case POL_HEALTHY: return "healthy";
    case POL_PRESSURE: return "pressure";
    case POL_HOLD: return "hold";
    case POL_RECOVER: return "recover";
    case POL_SAT_LOW: return "sat_low";
    case POL_DEGRADED: return "degraded";
    }
    return "unknown";
}

static void decision_number(struct ek_buf *out, const char *key, double value)
{
    if (isfinite(value))
        (void)ek_buf_printf(out, ",\"%s\":%.6g", key, value);
    else
        (void)ek_buf_printf(out, ",\"%s\":null", key);
}

int decision_json(const struct decision *d, const char *server, struct ek_buf *out)
{
    bool change = action_is_change(d->kind);
    (void)ek_buf_puts(out, "{\"server\":\"");
    (void)ek_buf_json(out, server, strlen(server));
    (void)ek_buf_printf(out, "\",\"at_s\":%.6f",
                        (double)(d->wall_us ? d->wall_us : d->at_us) * 1e-6);
    (void)ek_buf_printf(out, ",\"action\":\"%s\",\"reason\":\"%s\"", action_name(d->kind),
                        reason_name(d->reason));
    if (change)
        (void)ek_buf_printf(out, ",\"knob\":\"%s\",\"from\":%u,\"to\":%u", knob_name(d->knob),
                            d->from, d->to);
    decision_number(out, "measured", d->measured);
    decision_number(out, "limit", d->limit);
    decision_number(out, "harm", d->harm);
    decision_number(out, "held_s", d->held_s);
    if (change)
        (void)ek_buf_printf(out, ",\"applied\":%s", d->applied ? "true" : "false");
    (void)ek_buf_puts(out, ",\"why\":\"");
    (void)ek_buf_json(out, d->why, strnlen(d->why, sizeof(d->why)));
    if (d->signature[0]) {
        (void)ek_buf_puts(out, "\",\"signature\":\"");
        (void)ek_buf_json(out, d->signature, strnlen(d->signature, sizeof(d->signature)));
    }
    (void)ek_buf_puts(out, "\"}");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
