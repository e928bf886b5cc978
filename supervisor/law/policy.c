/*
 * policy_step(): takes in a sample, decides whether the signals may be trusted at all, asks the
 * rules of policy_law.c in order of urgency, and keeps what applied changes leave behind. One
 * action at a time; after it, wait until the numbers could have changed. In doubt, hold.
 *
 * Order: take a useless cut back, lower, note, raise, drift back. At most one of them per sample.
 * Owned by one thread; never reads a clock.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "supervisor/law/policy_law.h"

#define SLOTS      512
#define RECENT     6 /* polls by which signals are judged */
#define RECENT_BAD 3
#define WARM_GOOD  6
#define ADOPT_S    10.0 /* another limit on the page for so long was set by another program */
#define FAILURES   3

int policy_new(const struct policy_params *params, struct policy **ret_policy)
{
    int r = policy_check(params);
    if (r < 0)
        return r;
    struct policy *p = calloc(1, sizeof(*p));
    if (!p)
        return -ENOMEM;
    p->par = *params;
    r = window_new(params->window_s, SLOTS, &p->window);
    if (r < 0)
        goto out;

    *ret_policy = p;
    p = NULL;
out:
    policy_free(p);
    return r;
}

void policy_free(struct policy *p)
{
    if (!p)
        return;
    window_free(p->window);
    free(p);
}

int policy_set(struct policy *p, const struct policy_params *params)
{
    int r = policy_check(params);
    if (r < 0)
        return r;
    double window_s = p->par.window_s;
    p->par = *params;
    p->par.window_s = window_s;
    return 0;
}

static void forget_samples(struct policy *p, uint64_t now_us)
{
    window_clear(p->window);
    p->start_us = now_us;
    p->polls = p->good_run = 0;
    p->bad_bits = 0;
    p->state = POL_INIT;
    p->warm = false;
    p->counts = false;
    p->effect.due = false;
    p->pressure_us = p->full_us = p->floor_us = p->top_us = p->quiet_us = 0;
    p->late_us = p->calm_us = 0;
    p->foreign_us[KNOB_SEQS] = p->foreign_us[KNOB_TOKENS] = 0;
}

void policy_restart(struct policy *p, uint64_t now_us)
{
    forget_samples(p, now_us);
    p->is_pending = false;
    p->apply_failures = 0;
    if (p->frozen_why == REASON_LIMIT_APPLY_FAILED)
        p->frozen_us = 0;
}

static void set_limit(struct policy *p, enum knob k, uint32_t value)
{
    if (value == p->limit[k])
        return;
    p->limit[k] = value;
    if (p->effect.due && p->effect.knob == k)
        p->effect.due = false; /* it was moved from outside: the check would judge that */
}

void policy_limits(struct policy *p, uint32_t seqs, uint32_t tokens)
{
    set_limit(p, KNOB_SEQS, seqs);
    set_limit(p, KNOB_TOKENS, tokens);
    p->foreign_us[KNOB_SEQS] = p->foreign_us[KNOB_TOKENS] = 0;
    p->apply_failures = 0;
}

void policy_pin(struct policy *p, enum knob k, bool pinned)
{
    p->pinned[k] = pinned;
    if (pinned && p->effect.knob == k)
        p->effect.due = false;
}

bool policy_pinned(const struct policy *p, enum knob k)
{
    return p->pinned[k];
}

bool policy_counts(const struct policy *p)
{
    return p->counts;
}

uint32_t policy_limit(const struct policy *p, enum knob k)
{
    return p->limit[k];
}

enum policy_state policy_state(const struct policy *p)
{
    return p->state;
}

const struct window *policy_window(const struct policy *p)
{
    return p->window;
}

_Static_assert(REASON_COUNT <= 64, "policy.noted has a bit for each reason");

/* The first time in an episode; law: a note is one line, however long the state lasts. */
static bool note_once(struct policy *p, enum reason r)
{
    uint64_t bit = 1ull << r;
    bool first = !(p->noted & bit);
    p->noted |= bit;
    return first;
}

static void note_over(struct policy *p, enum reason r)
{
    p->noted &= ~(1ull << r);
}

/* Takes over a limit that the page has shown long enough and that is not ours. */
static void adopt_limit(struct policy *p, const struct sample *s, enum knob k)
{
    enum signal_id i = k == KNOB_SEQS ? SIG_LIMIT_SEQS : SIG_LIMIT_TOKENS;
    if (!sample_has(s, i) || s->value[i] < 1 || s->value[i] > UINT32_MAX)
        return;
    uint32_t shown = (uint32_t)s->value[i];
    if (shown == p->limit[k]) {
        p->foreign_us[k] = 0;
        return;
    }
    if (p->limit[k] && p->foreign_us[k] == 0)
        p->foreign_us[k] = p->now_us;
    if (p->limit[k] == 0 || policy_since(p, p->foreign_us[k], ADOPT_S)) {
        set_limit(p, k, shown);
        p->foreign_us[k] = 0;
    }
}

/* A counter of preemptions that this process once had is missed; one that it never had is not. */
static bool is_bad(const struct policy *p, const struct sample *s)
{
    return !sample_has(s, SIG_KV_USAGE) || !sample_has(s, SIG_RUNNING) ||
           !sample_has(s, SIG_WAITING) || (p->counts && !sample_has(s, SIG_PREEMPTIONS));
}

static void take_in(struct policy *p, const struct sample *s)
{
    if (s->good && !(s->flags[SIG_PREEMPTIONS] & SAMPLE_MISSING)) {
        p->counts = true;
        note_over(p, REASON_SIGNAL_ABSENT);
    }
    bool bad = is_bad(p, s);
    window_push(p->window, s);
    p->bad_bits = (uint8_t)((p->bad_bits << 1 | bad) & ((1u << RECENT) - 1));
    if (p->polls < RECENT)
        p->polls++;
    p->good_run += !bad;
    adopt_limit(p, s, KNOB_SEQS);
    adopt_limit(p, s, KNOB_TOKENS);
}

/* Whether nothing may be decided on these samples. */
static bool gate(struct policy *p, const struct sample *s, struct decision *d)
{
    int bad = __builtin_popcount(p->bad_bits);
    if (bad >= RECENT_BAD) {
        p->state = POL_DEGRADED;
        law_hold(d, REASON_SIGNAL_DEGRADED, bad, RECENT_BAD,
                 "%d of the last %u samples are bad: limits stay as they are", bad, p->polls);
        if (note_once(p, REASON_SIGNAL_DEGRADED))
            d->kind = ACT_NOTE;
        return true;
    }
    note_over(p, REASON_SIGNAL_DEGRADED);
    if (p->state == POL_DEGRADED)
        p->state = p->warm ? POL_HOLD : POL_INIT;
    if (is_bad(p, s)) {
        law_hold(d, REASON_SIGNAL_DEGRADED, bad, RECENT_BAD, "this sample is bad: hold");
        return true;
    }
    return false;
}

/* A fresh start says nothing about the load: only its queue may be cut then, for which nothing has
 * to be known but how long a request waits. */
static bool is_warming(struct policy *p, struct decision *d)
{
    double up_s = (double)(p->now_us - p->start_us) * 1e-6;
    if (p->warm)
        return false;
    if (p->good_run < WARM_GOOD || up_s < p->par.warmup_s) {
        law_hold(d, REASON_HOLD_SETTLING, up_s, p->par.warmup_s,
                 "warming up: %.0f of %.0f s, %u good samples of at least %d", up_s,
                 p->par.warmup_s, p->good_run, WARM_GOOD);
        return true;
    }
    p->warm = true;
    return false;
}

/* Remembers since when something holds; 0 = it does not. */
static void track(uint64_t *since_us, bool holds, uint64_t now_us)
{
    if (!holds)
        *since_us = 0;
    else if (*since_us == 0)
        *since_us = now_us ? now_us : 1;
}

/* From the sample itself: one whose other figures are bad may still show that the queue was short,
 * which breaks a standing queue. */
static void track_queue(struct policy *p, const struct sample *s)
{
    if (!sample_has(s, SIG_QUEUE_OLDEST_S) && is_bad(p, s))
        return; /* unknown is no break */
    bool known = sample_has(s, SIG_QUEUE_OLDEST_S) && sample_has(s, SIG_LIMIT_DEADLINE_S) &&
                 p->par.ttft_slo_s > 0;
    bool late = known && law_is_late(p, s->value[SIG_QUEUE_OLDEST_S]);
    track(&p->late_us, late, p->now_us);
    track(&p->calm_us, known && !late, p->now_us);
}

static void track_all(struct policy *p, const struct facts *f)
{
    uint32_t limit = p->limit[KNOB_SEQS];
    bool binds = f->waiting > 0 && window_reached(f->running, limit);
    track(&p->pressure_us, f->pressure, p->now_us);
    track(&p->full_us, f->full && !f->harm, p->now_us);
    track(&p->floor_us, f->pressure && limit <= p->par.seqs_min, p->now_us);
    track(&p->top_us, binds && limit >= p->par.seqs_max && f->usage_mid < p->par.usage_release,
          p->now_us);
    track(&p->quiet_us, !f->pressure && !(f->harm_count > 0), p->now_us);
    if (!f->pressure)
        note_over(p, REASON_OPERATOR_PIN);
    if (p->full_us == 0)
        note_over(p, REASON_KV_FULL_HEALTHY);
    if (p->floor_us == 0)
        note_over(p, REASON_SAT_LOW);
    if (p->top_us == 0)
        note_over(p, REASON_SAT_HIGH);
    if (law_flips(p) < p->par.osc_damp)
        note_over(p, REASON_OSC_DAMP);
    if (p->episodes && policy_since(p, p->decay_us, p->par.osc_window_s)) {
        p->episodes /= 2;
        p->decay_us = p->now_us;
    }
}

/* States worth a line that no rule acts on. */
static bool policy_notes(struct policy *p, const struct facts *f, struct decision *d)
{
    if (p->floor_us && policy_since(p, p->floor_us, p->par.sat_low_s) &&
        note_once(p, REASON_SAT_LOW)) {
        law_hold(d, REASON_SAT_LOW, f->usage_upper, p->par.usage_high,
                 "the KV cache is too small for the load: %s is at its minimum, %u, and KV "
                 "usage %.0f %% with %.2g preemptions/s goes on",
                 knob_name(KNOB_SEQS), p->par.seqs_min, f->usage_upper * 100, f->harm_rate);
    } else if (p->full_us && policy_since(p, p->full_us, p->par.full_s) &&
               note_once(p, REASON_KV_FULL_HEALTHY)) {
        law_hold(
            d, REASON_KV_FULL_HEALTHY, f->usage_upper, p->par.usage_high,
            "KV usage %.0f %% without preemptions for %.0f s: a full cache is efficient, nothing "
            "to do",
            f->usage_upper * 100, p->par.full_s);
    } else if (p->top_us && policy_since(p, p->top_us, p->par.sat_low_s) &&
               note_once(p, REASON_SAT_HIGH)) {
        law_hold(d, REASON_SAT_HIGH, f->running, p->par.seqs_max,
                 "%s is at its ceiling, %u, and binds with KV usage at %.0f %%: a higher "
                 "--max-num-seqs would serve more",
                 knob_name(KNOB_SEQS), p->par.seqs_max, f->usage_mid * 100);
    } else if (law_flips(p) >= p->par.osc_damp && note_once(p, REASON_OSC_DAMP)) {
        law_hold(d, REASON_OSC_DAMP, law_flips(p), p->par.osc_damp,
                 "limits changed direction %u times in %.0f s: smaller steps, longer waits",
                 law_flips(p), p->par.osc_window_s);
    } else if (f->pressure && p->pinned[KNOB_SEQS] && note_once(p, REASON_OPERATOR_PIN)) {
        d->kind = ACT_NOTE; /* law_lower_seqs() has said why */
        return true;
    } else {
        return false;
    }
    d->kind = ACT_NOTE;
    return true;
}

static bool would_flip(const struct policy *p, const struct decision *d)
{
    if (d->kind == ACT_SHED || d->kind == ACT_RESERVE)
        return false; /* these follow the queue and the cache, not each other */
    int direction = d->kind == ACT_LOWER ? -1 : 1;
    return p->direction[d->knob] && p->direction[d->knob] != direction;
}

/* The last raise that oscillation allows has been made: stay at the lower value. */
static bool freeze(struct policy *p, struct decision *d)
{
    if (d->kind == ACT_LOWER || !would_flip(p, d) || law_flips(p) + 1 < p->par.osc_freeze)
        return false;
    p->frozen_us = p->now_us + policy_us(p->par.freeze_s);
    p->frozen_why = REASON_OSC_FREEZE;
    (void)note_once(p, REASON_OSC_FREEZE); /* this is the note */
    law_hold(d, REASON_OSC_FREEZE, law_flips(p), p->par.osc_freeze,
             "limits changed direction %u times in %.0f s: frozen at %u for %.0f s", law_flips(p),
             p->par.osc_window_s, p->limit[d->knob], p->par.freeze_s);
    d->kind = ACT_NOTE;
    return true;
}

/* Advise: the server does not answer to what is only said, so each episode is said once. */
static bool is_repeated(struct policy *p, const struct decision *d)
{
    uint64_t last_us = p->advised_us[d->reason];
    p->advised_us[d->reason] = p->now_us;
    return last_us && !policy_since(p, last_us, p->par.settle_s);
}

static void decide(struct policy *p, const struct facts *f, struct decision *d)
{
    struct decision hold = {0};
    law_hold(&hold, REASON_NONE, f->usage_mid, p->par.usage_high,
             "nothing to do: KV usage %.0f %%, %.0f run, %.0f wait", f->usage_mid * 100, f->running,
             f->waiting);
    *d = hold;
    bool change = law_revert(p, f, d) || law_shed(p, f, d) || law_reserve_more(p, f, d) ||
                  law_lower_seqs(p, f, d);
    if (!change && p->effect.due && p->now_us >= p->effect.at_us)
        p->effect.due = false; /* checked: it helped */
    if (change)
        return;
    if (f->pressure) {
        (void)policy_notes(p, f, d);
        return; /* holding under pressure: nothing may grow */
    }
    if (law_lower_tokens(p, f, d) || policy_notes(p, f, d))
        return;
    if (law_raise_seqs(p, f, d) || law_raise_tokens(p, f, d) || law_reserve_less(p, f, d) ||
        law_drift(p, f, d))
        return;
}

static void update_state(struct policy *p, const struct facts *f)
{
    if (p->noted & 1ull << REASON_SAT_LOW)
        p->state = POL_SAT_LOW;
    else if (p->cut_us && !policy_since(p, p->cut_us, p->par.settle_s))
        p->state = POL_HOLD;
    else if (f->pressure)
        p->state = POL_PRESSURE;
    else if (p->ssthresh && p->limit[KNOB_SEQS] < p->par.seqs_max)
        p->state = POL_RECOVER;
    else
        p->state = POL_HEALTHY;
}

/* Says once what the law has to do without. */
static bool note_absent(struct policy *p, struct decision *d)
{
    if (p->counts || !note_once(p, REASON_SIGNAL_ABSENT))
        return false;
    law_hold(d, REASON_SIGNAL_ABSENT, 0, 0,
             "the engine shows no counter of preemptions: harm is inferred from recomputed tokens "
             "and from requests that leave without having finished");
    d->kind = ACT_NOTE;
    return true;
}

/* Makes of a proposal what the mode allows. */
static void commit(struct policy *p, const struct facts *f, struct decision *d)
{
    if (!action_is_change(d->kind))
        return;
    if (freeze(p, d))
        return;
    if (p->par.mode == MODE_ACT) {
        d->act = true;
        p->pending = *d;
        p->pending_facts = *f;
        p->is_pending = true;
        return;
    }
    if (p->par.mode == MODE_OBSERVE || is_repeated(p, d))
        d->kind = ACT_NONE;
}

struct decision policy_step(struct policy *p, const struct sample *s, uint64_t now_us)
{
    struct decision d = {.at_us = now_us};
    if (now_us < p->now_us)
        now_us = p->now_us; /* a clock that went back shortens no wait */
    p->now_us = now_us;
    if (p->start_us == 0)
        p->start_us = now_us;
    if (s->good && s->flags[SIG_PREEMPTIONS] & SAMPLE_RESET) {
        forget_samples(p, now_us);
        law_hold(&d, REASON_SIGNAL_RESET, 0, 0,
                 "counters started anew: another process answers, samples so far are forgotten");
        d.kind = ACT_NOTE;
        return d;
    }
    take_in(p, s);
    track_queue(p, s);
    struct facts f = {0};
    if (gate(p, s, &d))
        return d;
    bool warming = is_warming(p, &d);
    if (!law_measure(p, s, &f)) {
        if (!warming)
            law_hold(&d, REASON_SIGNAL_DEGRADED, window_good(p->window, SIG_KV_USAGE), WINDOW_NEED,
                     "too few good samples in the window: hold");
        return d;
    }
    if (!warming)
        track_all(p, &f);
    if (p->limit[KNOB_SEQS] == 0) {
        law_hold(&d, REASON_HOLD_SETTLING, 0, 0, "the limits are not known yet");
    } else if (p->is_pending) {
        law_hold(&d, REASON_HOLD_SETTLING, p->pending.to, p->pending.from,
                 "waiting for the server to confirm %s = %u", knob_name(p->pending.knob),
                 p->pending.to);
    } else if (p->frozen_us && now_us < p->frozen_us) {
        law_hold(&d, p->frozen_why, (double)(p->frozen_us - now_us) * 1e-6, 0,
                 "limits are frozen for another %.0f s", (double)(p->frozen_us - now_us) * 1e-6);
        if (note_once(p, p->frozen_why))
            d.kind = ACT_NOTE;
    } else if (warming) {
        (void)law_shed(p, &f, &d); /* else what is_warming() said */
        commit(p, &f, &d);
    } else {
        p->frozen_us = 0;
        note_over(p, REASON_LIMIT_APPLY_FAILED);
        note_over(p, REASON_OSC_FREEZE);
        if (!note_absent(p, &d))
            decide(p, &f, &d);
        commit(p, &f, &d);
    }
    d.at_us = now_us;
    if (!warming)
        update_state(p, &f);
    return d;
}

static void remember_flip(struct policy *p, const struct decision *d)
{
    if (would_flip(p, d)) {
        p->flip_us[p->flips % POLICY_FLIPS] = p->now_us;
        p->flips++;
    }
    p->direction[d->knob] = d->kind == ACT_LOWER ? -1 : 1;
}

static void remember_cut(struct policy *p, const struct decision *d, bool after_raise)
{
    const struct facts *f = &p->pending_facts;
    p->effect.due = true;
    p->effect.at_us = p->now_us + policy_us(p->par.effect_s);
    p->effect.knob = d->knob;
    p->effect.from = d->from;
    p->effect.harm_rate = f->harm_rate;
    p->effect.gen_rate = f->gen_rate;
    p->cut_us = p->now_us ? p->now_us : 1;
    p->decay_us = p->now_us;
    if (d->knob != KNOB_SEQS) {
        p->cut_to = UINT32_MAX; /* nothing to wait for but the time */
        return;
    }
    p->cut_to = d->to;
    double base = fmin(d->from, f->running_most);
    p->ssthresh = base >= 1 ? (uint32_t)base : 1;
    if (p->episodes == 0 || after_raise)
        p->episodes++;
}

void policy_applied(struct policy *p, const struct decision *d, bool ok)
{
    if (!p->is_pending)
        return; /* the server was restarted meanwhile */
    p->is_pending = false;
    if (!ok) {
        if (++p->apply_failures >= FAILURES) {
            p->frozen_us = p->now_us + policy_us(p->par.lock_s);
            p->frozen_why = REASON_LIMIT_APPLY_FAILED;
            p->apply_failures = 0;
        }
        return;
    }
    p->apply_failures = 0;
    if (d->kind == ACT_SHED) {
        p->shed_us = p->now_us;
        return; /* the page says what it is */
    }
    if (d->kind == ACT_RESERVE) {
        p->reserve_us = p->now_us;
        if (d->reason == REASON_RESERVE_MORE) {
            p->cut_us = p->now_us ? p->now_us : 1;
            p->cut_to = UINT32_MAX; /* nothing to wait for but the time */
        }
        return;
    }
    bool after_raise = p->direction[d->knob] > 0;
    remember_flip(p, d);
    p->limit[d->knob] = d->to;
    p->foreign_us[d->knob] = 0;
    switch (d->kind) {
    case ACT_LOWER: remember_cut(p, d, after_raise); break;
    case ACT_REVERT:
        p->effect.due = false;
        p->locked_us[d->knob] = p->now_us + policy_us(p->par.lock_s);
        p->raise_us = p->now_us;
        break;
    case ACT_RAISE:
        p->raise_us = p->now_us ? p->now_us : 1;
        p->effect.due = false;
        p->locked_us[d->knob] = 0; /* the load that no cut helped has gone by */
        if (d->knob == KNOB_SEQS && d->to >= p->par.seqs_max && d->reason == REASON_DRIFT_BACK) {
            p->ssthresh = 0; /* all the way back: what was learned is forgotten */
            p->episodes = 0;
        }
        break;
    case ACT_NONE:
    case ACT_SHED:
    case ACT_RESERVE:
    case ACT_RESTART:
    case ACT_DRAIN:
    case ACT_NOTE: break;
    }
}
