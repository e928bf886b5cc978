/*
 * After a restart by plan: the load that waited comes at once, to a process whose caches are cold.
 * So max_num_running_seqs begins at a quarter of what it was and rises by an eighth of it, as long
 * as nothing is preempted and usage is low. What the law or an operator sets meanwhile ends it.
 */
#include "common/clock.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/servers/server_inside.h"

#define BEGIN_PART 4u
#define STEP_PART  8u

uint32_t ramp_first(const struct server *s, uint32_t least, uint32_t want)
{
    uint32_t from = want / BEGIN_PART > least ? want / BEGIN_PART : least;
    return s->config->ramp_every_s > 0 && from < want ? from : want;
}

uint32_t ramp_begin(struct server *s, const struct policy_params *p, uint32_t want)
{
    double every_s = s->config->ramp_every_s;
    uint32_t from = ramp_first(s, p->seqs_min, want);
    bool due = s->ramp.due;
    s->ramp.due = false;
    if (!due || !(every_s > 0) || p->mode != MODE_ACT || from == 0 || from >= want ||
        (s->law.policy && policy_pinned(s->law.policy, KNOB_SEQS)))
        return want;
    s->ramp.target = want;
    s->ramp.at = from;
    s->ramp.next_us = ek_now_us() + (uint64_t)(every_s * 1e6);
    s->ramp.preemptions = 0; /* of a new process */
    server_note(s, ACT_NOTE, REASON_RAMP, "Ramp: %s from %u to %u, a step every %.3g s",
                knob_name(KNOB_SEQS), from, want, every_s);
    return from;
}

void ramp_go_on(struct server *s)
{
    uint32_t live = s->act.limits.knob[KNOB_SEQS].value, target = s->ramp.kept;
    s->ramp.kept = 0;
    if (live == 0 || live >= target || !(s->config->ramp_every_s > 0))
        return;
    s->ramp.target = target;
    s->ramp.at = live;
    s->ramp.next_us = ek_now_us() + (uint64_t)(s->config->ramp_every_s * 1e6);
    s->ramp.preemptions = -1; /* as many as there were until its first step */
    server_note(s, ACT_NOTE, REASON_RAMP, "The ramp goes on: %s from %u to %u",
                knob_name(KNOB_SEQS), live, target);
}

static void over(struct server *s, const char *why)
{
    s->ramp.target = 0;
    server_note(s, ACT_NOTE, REASON_RAMP, "Ramp over at %u: %s", s->ramp.at, why);
}

static void on_written(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    if (res->error < 0) {
        ek_log(EK_LOG_WARNING, "%s: a step of its ramp failed: %s", s->config->name, res->text);
        s->ramp.at = s->act.limits.knob[KNOB_SEQS].value; /* the next one writes again */
        return;
    }
    action_take_limits(s, &res->limits);
    if (s->ramp.target && s->ramp.at >= s->ramp.target)
        over(s, "all of it");
}

void ramp_step(struct server *s, uint64_t now_us)
{
    const struct sample *x = &s->watch.sample;
    uint32_t live = s->act.limits.knob[KNOB_SEQS].value;
    if (!s->ramp.target || now_us < s->ramp.next_us || s->act.writing || !s->act.limits_known)
        return;
    s->ramp.next_us = now_us + (uint64_t)(s->config->ramp_every_s * 1e6);
    bool counts = sample_has(x, SIG_PREEMPTIONS);
    bool absent = s->law.policy && !policy_counts(s->law.policy); /* this engine has none */
    if (!sample_has(x, SIG_KV_USAGE) || (!counts && !absent))
        return; /* hold */
    if (s->state != SRV_READY || live != s->ramp.at || s->config->policy.mode != MODE_ACT) {
        over(s, "somebody else has set it");
        return;
    }
    if (counts && s->ramp.preemptions < 0)
        s->ramp.preemptions = x->value[SIG_PREEMPTIONS];
    if (counts && x->value[SIG_PREEMPTIONS] > s->ramp.preemptions) {
        over(s, "requests were preempted; the controller goes on from here");
        return;
    }
    if (x->value[SIG_KV_USAGE] > s->config->policy.usage_release)
        return; /* hold until there is room */
    uint32_t step = s->ramp.target / STEP_PART > 0 ? s->ramp.target / STEP_PART : 1;
    uint32_t to = live + step < s->ramp.target ? live + step : s->ramp.target;
    struct control_change change = {.generation = s->act.limits.generation,
                                    .origin = "evenkeeld",
                                    .reason = reason_name(REASON_RAMP)};
    change.value[KNOB_SEQS] = to;
    s->ramp.at = to;
    if (control_write(s->act.control, &change, on_written, s) < 0)
        s->ramp.at = live; /* out of memory: at the next step */
}
