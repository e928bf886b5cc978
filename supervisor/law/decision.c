/*
 * Names of what a decision says, and its JSON. The same words go to the journal, the metrics, the
 * page and evenkeelctl.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/law/policy.h"

static const char *const reasons[REASON_COUNT] = {
    [REASON_NONE] = "NONE",
    [REASON_LOWER_KV_HARM] = "LOWER_KV_HARM",
    [REASON_LOWER_PANIC] = "LOWER_PANIC",
    [REASON_LOWER_ITL_PREFILL] = "LOWER_ITL_PREFILL",
    [REASON_RAISE_HEADROOM] = "RAISE_HEADROOM",
    [REASON_RAISE_PROBE1] = "RAISE_PROBE1",
    [REASON_DRIFT_BACK] = "DRIFT_BACK",
    [REASON_REVERT_INEFFECTIVE] = "REVERT_INEFFECTIVE",
    [REASON_HOLD_COOLDOWN] = "HOLD_COOLDOWN",
    [REASON_HOLD_SETTLING] = "HOLD_SETTLING",
    [REASON_HOLD_NOT_BINDING] = "HOLD_NOT_BINDING",
    [REASON_HOLD_FEEDFORWARD] = "HOLD_FEEDFORWARD",
    [REASON_HOLD_SLO] = "HOLD_SLO",
    [REASON_KV_FULL_HEALTHY] = "KV_FULL_HEALTHY",
    [REASON_SAT_LOW] = "SAT_LOW",
    [REASON_SAT_HIGH] = "SAT_HIGH",
    [REASON_OSC_DAMP] = "OSC_DAMP",
    [REASON_OSC_FREEZE] = "OSC_FREEZE",
    [REASON_SIGNAL_DEGRADED] = "SIGNAL_DEGRADED",
    [REASON_SIGNAL_RESET] = "SIGNAL_RESET",
    [REASON_LIMIT_APPLY_FAILED] = "LIMIT_APPLY_FAILED",
    [REASON_OPERATOR_PIN] = "OPERATOR_PIN",
    [REASON_HANG_NOPROGRESS] = "HANG_NOPROGRESS",
    [REASON_CRASH] = "CRASH",
    [REASON_BACKOFF] = "BACKOFF",
    [REASON_BREAKER_OPEN] = "BREAKER_OPEN",
    [REASON_DRAIN_START] = "DRAIN_START",
    [REASON_DRAIN_DONE] = "DRAIN_DONE",
    [REASON_DRAIN_DEADLINE] = "DRAIN_DEADLINE",
    [REASON_STARTED] = "STARTED",
    [REASON_READY] = "READY",
    [REASON_ADOPTED] = "ADOPTED",
    [REASON_OPERATOR] = "OPERATOR",
    [REASON_SHED_ON] = "SHED_ON",
    [REASON_SHED_OFF] = "SHED_OFF",
    [REASON_REMEDY] = "REMEDY",
    [REASON_FRAG_TRIM] = "FRAG_TRIM",
    [REASON_FRAG_CHRONIC] = "FRAG_CHRONIC",
    [REASON_FRAG_INEFFECTIVE] = "FRAG_INEFFECTIVE",
    [REASON_BLOCK_LEAK] = "BLOCK_LEAK",
    [REASON_PREFIX_CAP] = "PREFIX_CAP",
    [REASON_RESTART_BUDGET] = "RESTART_BUDGET",
    [REASON_RESTART_HOURS] = "RESTART_HOURS",
    [REASON_LEASE_WAIT] = "LEASE_WAIT",
    [REASON_ATTACHED] = "ATTACHED",
    [REASON_NO_SYSTEMD] = "NO_SYSTEMD",
    [REASON_RAMP] = "RAMP",
    [REASON_NEXT_START] = "NEXT_START",
    [REASON_STUCK_UNKILLABLE] = "STUCK_UNKILLABLE",
    [REASON_GPU_WAIT] = "GPU_WAIT",
    [REASON_HOST_WAIT] = "HOST_WAIT",
    [REASON_PORT_WAIT] = "PORT_WAIT",
    [REASON_OOM_QUESTIONS] = "OOM_QUESTIONS",
    [REASON_RESERVE_MORE] = "RESERVE_MORE",
    [REASON_RESERVE_LESS] = "RESERVE_LESS",
    [REASON_UNWATCHED] = "UNWATCHED",
    [REASON_ENGINE_HOLDS] = "ENGINE_HOLDS",
    [REASON_PREEMPTIONS] = "PREEMPTIONS",
};

const char *reason_name(enum reason r)
{
    return r < REASON_COUNT ? reasons[r] : "UNKNOWN";
}

const char *action_name(enum action_kind k)
{
    switch (k) {
    case ACT_NONE: return "none";
    case ACT_LOWER: return "lower";
    case ACT_RAISE: return "raise";
    case ACT_REVERT: return "revert";
    case ACT_RESTART: return "restart";
    case ACT_DRAIN: return "drain";
    case ACT_NOTE: return "note";
    case ACT_SHED: return "shed";
    case ACT_RESERVE: return "reserve";
    }
    return "unknown";
}

bool action_is_change(enum action_kind k)
{
    return k == ACT_LOWER || k == ACT_RAISE || k == ACT_REVERT || k == ACT_SHED || k == ACT_RESERVE;
}

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

static void number(struct ek_buf *out, const char *key, double value)
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
    number(out, "measured", d->measured);
    number(out, "limit", d->limit);
    number(out, "harm", d->harm);
    number(out, "held_s", d->held_s);
    if (change)
        (void)ek_buf_printf(out, ",\"applied\":%s", d->applied ? "true" : "false");
    (void)ek_buf_puts(out, ",\"why\":\"");
    (void)ek_buf_json(out, d->why, strnlen(d->why, sizeof(d->why)));
    (void)ek_buf_puts(out, "\"}");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
