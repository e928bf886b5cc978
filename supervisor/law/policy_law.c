/*
 * The rules of the control law, see docs/control.md. First what the window says (law_measure), then
 * one function per rule. Pressure is usage and harm: a full cache that hurts no request is
 * efficient.
 *
 * The usage test looks at the upper quartile, and asks most samples only to be above the release
 * level: usage dips right after each preemption, just because requests were thrown out.
 */
#include "supervisor/law/policy_law.h"

#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#define TOKENS_ROUND 16 /* token budgets move in multiples of this */
#define TOKENS_STEP  256
#define GAP_SHARE    (1.0 / 3) /* of the samples show a gap that is too long */
#define LOST_SHARE   0.25      /* of what ran, thrown out within the window */
#define SUSTAINED    0.66      /* of the window: 20 of 30 polls */
#define STALL_SHARE  0.099     /* of the samples, a tenth: a single gap costs less than room */
#define RESERVE_BACK 0.01      /* of the pool, a step back */
#define BINDING      0.5       /* of the samples of a raise interval */
#define HARM_KEPT    0.5  /* a cut helped when the harm is at most this share of what it was, */
#define YIELD_KEPT   0.95 /* or tokens per second are at least this: less is more than noise */
#define PROBE_SHARE  0.8  /* of where it hurt last: raises above it are careful */
#define DAMP_STEP    0.03 /* of the pool: more room before a raise while decisions flip */
#define SLO_SHARE    0.9  /* of the SLO: a raise makes every gap longer, so some of it is kept */
#define LOST_LEAST   2.0  /* requests thrown out: one that a client gave up looks the same */
#define PREFILL_MOST 0.5  /* of the tokens are prompts: above it they, not answers, fill steps */
#define LATE_SHARE   0.5  /* of the queue deadline: shedding begins before the promise is broken */
#define RESERVE_NEAR 0.0005 /* of the pool: the knob counts in thousandths, so less is the same */
#define WAIT_GROWTH  1.5    /* of the wait after a cut, for each episode that followed a raise */
#define DAMP_WAIT    2.0    /* times that wait while decisions flip */
#define TOKENS_PART  8.0    /* a raise adds an eighth of the token budget */

void law_hold(struct decision *d, enum reason r, double measured, double limit, const char *fmt,
              ...)
{
    va_list ap;
    d->kind = ACT_NONE;
    d->reason = r;
    d->measured = measured;
    d->limit = limit;
    va_start(ap, fmt);
    (void)vsnprintf(d->why, sizeof(d->why), fmt, ap); /* a sentence may be cut */
    va_end(ap);
}

static void measure_harm(const struct policy *p, struct facts *f)
{
    const struct window *w = p->window;
    double gen = 0, recomputed = 0, lost = 0;
    (void)window_rate(w, SIG_PREEMPTIONS, 0, &f->harm_rate);
    (void)window_delta(w, SIG_PREEMPTIONS, 0, &f->harm_count);
    (void)window_delta(w, SIG_GEN_TOKENS, 0, &gen);
    f->has_recompute = window_delta(w, SIG_RECOMPUTED, 0, &recomputed);
    if (f->has_recompute)
        f->recompute_share = recomputed / fmax(gen, 1);
    if (f->has_recompute && !p->counts) { /* what was computed again had been thrown out */
        f->harm_count = recomputed > 0;
        f->harm = f->recompute_share >= p->par.recompute_share;
    } else if (!f->has_recompute && window_lost(w, 0, &lost) && lost > f->harm_rate) {
        f->harm_rate = lost;
        f->harm_count = lost * f->window_s;
        /* Only a lower bound is seen, so a good part of what ran is enough. */
        f->harm = f->harm_count >= fmax(LOST_LEAST, LOST_SHARE * f->running_most);
    }
    (void)window_above(w, SIG_MAX_GAP_S, p->par.gap_s, 0, &f->gap_share);
    f->has_itl = window_latency(w, HIST_ITL, 0.99, &f->itl_p99);

    f->harm_why[0] = '\0';
    if (f->harm_rate > p->par.preempt_rate)
        f->harm = true;
    if (!f->harm || !f->has_recompute)
        return;
    if (f->recompute_share >= p->par.recompute_share)
        (void)snprintf(f->harm_why, sizeof(f->harm_why), " and %.2f recomputed tokens per new one",
                       f->recompute_share);
    else if (f->gap_share >= GAP_SHARE)
        (void)snprintf(f->harm_why, sizeof(f->harm_why),
                       " and gaps over %.1f s in %.0f %% of polls", p->par.gap_s,
                       f->gap_share * 100);
    else if (p->par.itl_slo_s > 0 && f->has_itl && f->itl_p99 > p->par.itl_slo_s)
        (void)snprintf(f->harm_why, sizeof(f->harm_why), " and ITL p99 %.3f s over %.3f s",
                       f->itl_p99, p->par.itl_slo_s);
    else
        f->harm = false; /* preemptions that cost next to nothing */
}

bool law_measure(const struct policy *p, const struct sample *s, struct facts *ret_facts)
{
    static const enum signal_id needed[] = {SIG_KV_USAGE, SIG_RUNNING, SIG_WAITING,
                                            SIG_PREEMPTIONS /* where it is counted */};
    const struct window *w = p->window;
    struct facts f = {0};
    for (size_t i = 0; i < sizeof(needed) / sizeof(needed[0]) - !p->counts; i++) {
        if (!sample_has(s, needed[i]) || window_good(w, needed[i]) < WINDOW_NEED)
            return false;
    }
    if (!window_gauge(w, SIG_KV_USAGE, 0.5, 0, &f.usage_mid) ||
        !window_gauge(w, SIG_KV_USAGE, 0.75, 0, &f.usage_upper) ||
        !window_gauge(w, SIG_RUNNING, 1, 0, &f.running_most))
        return false;
    f.window_s = window_covered_s(w, SIG_KV_USAGE);
    f.usage = s->value[SIG_KV_USAGE];
    f.running = s->value[SIG_RUNNING];
    f.waiting = s->value[SIG_WAITING];
    if (p->par.queue_outside && window_reached(f.running, p->limit[KNOB_SEQS]))
        f.waiting = fmax(f.waiting, 1); /* the queue is in front of the engine and not seen */
    (void)window_rate(w, SIG_GEN_TOKENS, 0, &f.gen_rate);
    (void)window_rate(w, SIG_PROMPT_TOKENS, 0, &f.prompt_rate);
    if (f.gen_rate + f.prompt_rate > 0)
        f.prefill_share = f.prompt_rate / (f.gen_rate + f.prompt_rate);
    measure_harm(p, &f);
    f.has_deadline = sample_has(s, SIG_LIMIT_DEADLINE_S) && sample_has(s, SIG_QUEUE_OLDEST_S);
    if (f.has_deadline && p->par.ttft_slo_s > 0) {
        f.deadline_s = s->value[SIG_LIMIT_DEADLINE_S];
        f.queue_oldest_s = s->value[SIG_QUEUE_OLDEST_S];
    }
    f.step_tokens = sample_has(s, SIG_STEP_TOKENS) ? s->value[SIG_STEP_TOKENS] : 0;
    f.has_reserve = sample_has(s, SIG_LIMIT_RESERVE) && p->par.reserve_most > 0;
    f.reserve = f.has_reserve ? s->value[SIG_LIMIT_RESERVE] : 0;
    f.stalls = f.harm_rate > p->par.preempt_rate &&
               (f.gap_share >= STALL_SHARE ||
                (f.has_recompute && f.recompute_share >= p->par.recompute_share));
    double share = 0;
    f.full =
        f.window_s >= p->par.window_s * SUSTAINED && f.usage_upper >= p->par.usage_high &&
        window_above(w, SIG_KV_USAGE, fmin(p->par.usage_release, p->par.usage_high), 0, &share) &&
        share >= SUSTAINED;
    f.pressure = f.full && f.harm;
    *ret_facts = f;
    return true;
}

bool law_is_late(const struct policy *p, double oldest_s)
{
    return oldest_s > p->par.ttft_slo_s * p->par.shed_share * LATE_SHARE;
}

uint32_t law_flips(const struct policy *p)
{
    uint32_t n = 0, kept = p->flips < POLICY_FLIPS ? p->flips : POLICY_FLIPS;
    for (uint32_t i = 0; i < kept; i++)
        n += !policy_since(p, p->flip_us[i], p->par.osc_window_s);
    return n;
}

/* Against cuts alone: what there is room for may come back. */
static bool is_locked(const struct policy *p, enum knob k)
{
    return p->locked_us[k] && p->now_us < p->locked_us[k];
}

/* Panic: the pool stayed full to the brim for panic_s while requests were thrown out. */
static bool is_panic(const struct policy *p, const struct facts *f)
{
    double share = 0, count = 0;
    const struct window *w = p->window;
    return f->window_s >= p->par.panic_s * SUSTAINED &&
           window_above(w, SIG_KV_USAGE, p->par.panic_usage, p->par.panic_s, &share) &&
           share >= 1 && window_delta(w, SIG_PREEMPTIONS, p->par.panic_s, &count) &&
           count >= p->par.panic_count;
}

/* A cut below what runs takes effect only as requests end: a second one waits for it. */
static bool is_settled(const struct policy *p, const struct facts *f)
{
    if (p->cut_us == 0)
        return true;
    return policy_since(p, p->cut_us, p->par.settle_s) &&
           (f->running <= p->cut_to || policy_since(p, p->cut_us, p->par.effect_s));
}

bool law_revert(const struct policy *p, const struct facts *f, struct decision *d)
{
    enum knob k = p->effect.knob;
    if (!p->effect.due || p->now_us < p->effect.at_us || p->pinned[k])
        return false;
    if (f->harm_rate <= HARM_KEPT * p->effect.harm_rate ||
        f->gen_rate >= YIELD_KEPT * p->effect.gen_rate)
        return false;
    uint32_t to = p->effect.from < policy_max(p, k) ? p->effect.from : policy_max(p, k);
    if (to <= p->limit[k])
        return false;
    *d = (struct decision){.kind = ACT_REVERT,
                           .reason = REASON_REVERT_INEFFECTIVE,
                           .knob = k,
                           .from = p->limit[k],
                           .to = to,
                           .measured = f->gen_rate,
                           .limit = p->effect.gen_rate,
                           .harm = f->harm_rate,
                           .held_s = p->par.effect_s};
    (void)snprintf(d->why, sizeof(d->why),
                   "took the cut of %s back from %u to %u: still %.2g preemptions/s (%.2g before) "
                   "and %.0f tokens/s after %.0f",
                   knob_name(k), d->from, to, f->harm_rate, p->effect.harm_rate, f->gen_rate,
                   p->effect.gen_rate);
    return true;
}

/*
 * The queue deadline, as CoDel does it. A request must leave the queue by a share of the promised
 * time to first token, since its prompt takes time to read. A queue whose oldest request waits
 * longer than half of that, without a break for as long, is standing: then what waited all of it is
 * refused, because its answer would be late, and what it would take is what the next ones need. A
 * burst that drains in time is let be. A deadline that is neither the server's own nor ours was set
 * by somebody else and is left alone.
 */
bool law_shed(const struct policy *p, const struct facts *f, struct decision *d)
{
    double slo_s = p->par.ttft_slo_s * p->par.shed_share, own_s = p->par.queue_start_s;
    if (!(slo_s > 0) || !f->has_deadline || (own_s > 0 && own_s <= slo_s))
        return false;
    bool is_own = fabs(f->deadline_s - own_s) < 0.001, ours = fabs(f->deadline_s - slo_s) < 0.001;
    double hold_s = fmax(1, slo_s / 2);
    bool on = is_own && p->late_us && policy_since(p, p->late_us, hold_s);
    bool off = ours && p->calm_us && policy_since(p, p->calm_us, p->par.shed_release_s);
    if ((!on && !off) || (p->shed_us && !policy_since(p, p->shed_us, hold_s)))
        return false;
    *d = (struct decision){.kind = ACT_SHED,
                           .reason = on ? REASON_SHED_ON : REASON_SHED_OFF,
                           .knob = KNOB_DEADLINE,
                           .from = (uint32_t)lround(f->deadline_s * 1000),
                           .to = (uint32_t)lround((on ? slo_s : own_s) * 1000),
                           .measured = f->queue_oldest_s,
                           .limit = slo_s / 2,
                           .harm = f->waiting,
                           .held_s = on ? hold_s : p->par.shed_release_s};
    if (on)
        (void)snprintf(d->why, sizeof(d->why),
                       "refusing what waits longer than %.3g s of the promised %.3g s: the oldest "
                       "of %.0f waiting has waited %.1f s, above half of that for %.3g s",
                       slo_s, p->par.ttft_slo_s, f->waiting, f->queue_oldest_s, hold_s);
    else
        (void)snprintf(d->why, sizeof(d->why),
                       "refusing no more: nothing has waited longer than %.3g s for %.0f s",
                       slo_s / 2, p->par.shed_release_s);
    return true;
}

static void propose_reserve(enum reason r, double from, double to, const struct facts *f,
                            struct decision *d)
{
    *d = (struct decision){.kind = ACT_RESERVE,
                           .reason = r,
                           .knob = KNOB_RESERVE,
                           .from = (uint32_t)lround(from * 1000),
                           .to = (uint32_t)lround(to * 1000),
                           .measured = f->gap_share,
                           .harm = f->harm_rate,
                           .held_s = f->window_s};
}

/*
 * The reserve: blocks that an admission must leave free, so that those that run can grow. Requests
 * of one number of sequences may hold ten times what others hold, so the reserve is the gentler
 * knob: it says how full, not how many. It grows by a step when preemptions make answers stall or
 * cost much work, and shrinks slowly while there are none. Between the server's own and the most
 * it is the law's; a value outside was set by somebody else and is left alone.
 */
bool law_reserve_more(const struct policy *p, const struct facts *f, struct decision *d)
{
    double most = p->par.reserve_most;
    if (!f->has_reserve || !f->stalls || f->reserve < p->par.reserve_start - RESERVE_NEAR ||
        f->reserve > most - RESERVE_BACK || !policy_since(p, p->cut_us, p->par.settle_s))
        return false;
    propose_reserve(REASON_RESERVE_MORE, f->reserve, fmin(f->reserve + p->par.reserve_step, most),
                    f, d);
    (void)snprintf(d->why, sizeof(d->why),
                   "keeps %.1f %% instead of %.1f %% of the KV cache free at an admission: %.0f "
                   "preemptions in %.0f s, gaps over %.1f s in %.0f %% of polls, %.2f recomputed "
                   "tokens per new one",
                   d->to / 10.0, d->from / 10.0, f->harm_count, f->window_s, p->par.gap_s,
                   f->gap_share * 100, f->recompute_share);
    return true;
}

bool law_reserve_less(const struct policy *p, const struct facts *f, struct decision *d)
{
    double own = p->par.reserve_start;
    if (!f->has_reserve || f->harm_count > 0 || f->reserve < own + RESERVE_NEAR ||
        f->reserve > p->par.reserve_most + RESERVE_NEAR ||
        !policy_since(p, p->reserve_us, p->par.reserve_back_s) ||
        !policy_since(p, p->cut_us, p->par.raise_after_cut_s))
        return false;
    propose_reserve(REASON_RESERVE_LESS, f->reserve, fmax(f->reserve - RESERVE_BACK, own), f, d);
    (void)snprintf(d->why, sizeof(d->why),
                   "keeps %.1f %% instead of %.1f %% of the KV cache free at an admission: no "
                   "preemption for %.0f s",
                   d->to / 10.0, d->from / 10.0, f->window_s);
    return true;
}

bool law_lower_seqs(const struct policy *p, const struct facts *f, struct decision *d)
{
    bool panic = is_panic(p, f);
    if (!f->pressure && !panic)
        return false;
    uint32_t limit = p->limit[KNOB_SEQS];
    if (p->pinned[KNOB_SEQS]) {
        law_hold(d, REASON_OPERATOR_PIN, f->usage_upper, p->par.usage_high,
                 "KV usage %.0f %% with %.2g preemptions/s, but an operator pinned %s at %u",
                 f->usage_upper * 100, f->harm_rate, knob_name(KNOB_SEQS), limit);
        return false;
    }
    if (is_locked(p, KNOB_SEQS)) {
        law_hold(
            d, REASON_REVERT_INEFFECTIVE, f->harm_rate, p->par.preempt_rate,
            "KV usage %.0f %% with %.2g preemptions/s, but the last cut of %s did not help: no "
            "other for %.0f s",
            f->usage_upper * 100, f->harm_rate, knob_name(KNOB_SEQS), p->par.lock_s);
        return false;
    }
    if (!is_settled(p, f)) {
        law_hold(d, REASON_HOLD_SETTLING, f->running, p->cut_to,
                 "KV usage %.0f %% with %.2g preemptions/s, but the cut to %u still takes effect: "
                 "%.0f run",
                 f->usage_upper * 100, f->harm_rate, p->cut_to, f->running);
        return false;
    }
    double base = fmin(limit, f->running_most);
    uint32_t to = (uint32_t)(p->par.cut_factor * base);
    to = to < p->par.seqs_min ? p->par.seqs_min : to;
    to = to > p->par.seqs_max ? p->par.seqs_max : to;
    if (to >= limit) {
        law_hold(d, REASON_SAT_LOW, limit, p->par.seqs_min,
                 "KV usage %.0f %% with %.2g preemptions/s, but %s is already %u (minimum %u)",
                 f->usage_upper * 100, f->harm_rate, knob_name(KNOB_SEQS), limit, p->par.seqs_min);
        return false;
    }
    double level = panic ? p->par.panic_usage : p->par.usage_high;
    *d = (struct decision){.kind = ACT_LOWER,
                           .reason = panic ? REASON_LOWER_PANIC : REASON_LOWER_KV_HARM,
                           .knob = KNOB_SEQS,
                           .from = limit,
                           .to = to,
                           .measured = f->usage_upper,
                           .limit = level,
                           .harm = f->harm_rate,
                           .held_s = panic ? p->par.panic_s : f->window_s};
    (void)snprintf(
        d->why, sizeof(d->why),
        "lowered %s from %u to %u (%.0f ran): KV usage %.0f %% above %.0f %% for %.0f s with "
        "%.2g preemptions/s%s",
        knob_name(KNOB_SEQS), limit, to, f->running_most, f->usage_upper * 100, level * 100,
        d->held_s, f->harm_rate, f->harm_why);
    return true;
}

static uint32_t round_down(double tokens)
{
    return (uint32_t)tokens / TOKENS_ROUND * TOKENS_ROUND;
}

bool law_lower_tokens(const struct policy *p, const struct facts *f, struct decision *d)
{
    bool slow = p->par.itl_slo_s > 0 && f->has_itl && f->itl_p99 > p->par.itl_slo_s;
    bool gaps = f->gap_share >= GAP_SHARE;
    uint32_t limit = p->limit[KNOB_TOKENS];
    if ((!slow && !gaps) || f->usage_mid >= p->par.usage_release ||
        f->prefill_share <= PREFILL_MOST || f->window_s < p->par.window_s * SUSTAINED)
        return false;
    if (limit == 0 || p->pinned[KNOB_TOKENS] || is_locked(p, KNOB_TOKENS) ||
        !policy_since(p, p->cut_us, p->par.settle_s))
        return false;
    /* a limit above what steps take by themselves does nothing */
    double binds = f->step_tokens > 0 ? fmin(limit, f->step_tokens) : limit;
    uint32_t to = round_down(p->par.tokens_cut_factor * binds);
    uint32_t least = p->par.tokens_min;
    if (p->limit[KNOB_SEQS] > least)
        least = p->limit[KNOB_SEQS]; /* each running sequence needs a token */
    to = to < least ? least : to;
    to = to > p->par.tokens_max ? p->par.tokens_max : to;
    if (to >= limit)
        return false;
    *d = (struct decision){.kind = ACT_LOWER,
                           .reason = REASON_LOWER_ITL_PREFILL,
                           .knob = KNOB_TOKENS,
                           .from = limit,
                           .to = to,
                           .measured = slow ? f->itl_p99 : f->gap_share,
                           .limit = slow ? p->par.itl_slo_s : GAP_SHARE,
                           .harm = f->prefill_share,
                           .held_s = f->window_s};
    char harm[64];
    if (slow)
        (void)snprintf(harm, sizeof(harm), "ITL p99 %.3f s over %.3f s", f->itl_p99,
                       p->par.itl_slo_s);
    else
        (void)snprintf(harm, sizeof(harm), "gaps over %.1f s in %.0f %% of polls", p->par.gap_s,
                       f->gap_share * 100);
    (void)snprintf(d->why, sizeof(d->why),
                   "lowered %s from %u to %u: %s while prompts are %.0f %% of the tokens and KV "
                   "usage is only %.0f %%",
                   knob_name(KNOB_TOKENS), limit, to, harm, f->prefill_share * 100,
                   f->usage_mid * 100);
    return true;
}

/* Near where it hurt last: one by one and after a longer wait. What is well above it and did not
 * hurt again is another load: its requests are shorter, or share more. */
static bool is_probing(const struct policy *p)
{
    uint32_t limit = p->limit[KNOB_SEQS];
    return limit >= PROBE_SHARE * p->ssthresh && PROBE_SHARE * limit < p->ssthresh;
}

static double wait_after_cut(const struct policy *p)
{
    double wait_s = p->par.raise_after_cut_s;
    if (is_probing(p)) {
        for (uint32_t i = 1; i < p->episodes && wait_s < p->par.hold_most_s; i++)
            wait_s *= WAIT_GROWTH;
        wait_s = fmin(wait_s, fmax(p->par.hold_most_s, p->par.raise_after_cut_s));
    }
    return law_flips(p) >= p->par.osc_damp ? wait_s * DAMP_WAIT : wait_s;
}

/* What every raise needs: no harm of late, room for what it lets in, latency within bounds. */
static bool law_headroom(const struct policy *p, const struct facts *f, uint32_t step,
                         struct decision *d)
{
    double release = p->par.usage_release;
    if (law_flips(p) >= p->par.osc_damp)
        release -= DAMP_STEP;
    double after = fmax(f->usage, f->usage_mid);
    if (f->running > 0)
        after += step * after / f->running;
    if (!policy_since(p, p->cut_us, wait_after_cut(p)))
        law_hold(d, REASON_HOLD_COOLDOWN, (double)(p->now_us - p->cut_us) * 1e-6, wait_after_cut(p),
                 "no raise within %.0f s of a cut", wait_after_cut(p));
    else if (f->harm_count > 0)
        law_hold(d, REASON_HOLD_COOLDOWN, f->harm_count, 0,
                 "no raise: %.3g preemptions in the last %.0f s", f->harm_count, f->window_s);
    else if (f->usage_mid > release)
        law_hold(d, REASON_HOLD_FEEDFORWARD, f->usage_mid, release,
                 "no raise: KV usage %.0f %% is above %.0f %%", f->usage_mid * 100, release * 100);
    else if (after > p->par.feedforward)
        law_hold(d, REASON_HOLD_FEEDFORWARD, after, p->par.feedforward,
                 "no raise: %u more would take KV usage from %.0f %% to %.0f %%, above %.0f %%",
                 step, f->usage * 100, after * 100, p->par.feedforward * 100);
    else if (p->par.itl_slo_s > 0 && (!f->has_itl || f->itl_p99 > SLO_SHARE * p->par.itl_slo_s))
        law_hold(d, REASON_HOLD_SLO, f->itl_p99, p->par.itl_slo_s,
                 "no raise: ITL p99 %.3f s is not below %.1f of %.3f s", f->itl_p99, SLO_SHARE,
                 p->par.itl_slo_s);
    else
        return true;
    return false;
}

static void propose_raise(const struct policy *p, enum reason r, enum knob k, uint32_t to,
                          const struct facts *f, struct decision *d)
{
    *d = (struct decision){.kind = ACT_RAISE,
                           .reason = r,
                           .knob = k,
                           .from = p->limit[k],
                           .to = to,
                           .measured = f->usage_mid,
                           .limit = p->par.usage_release,
                           .harm = f->harm_rate,
                           .held_s = f->window_s};
}

bool law_raise_seqs(const struct policy *p, const struct facts *f, struct decision *d)
{
    uint32_t limit = p->limit[KNOB_SEQS], most = p->par.seqs_max;
    if (p->limit[KNOB_TOKENS] && p->limit[KNOB_TOKENS] < most)
        most = p->limit[KNOB_TOKENS]; /* each running sequence needs a token */
    if (limit >= most || p->pinned[KNOB_SEQS])
        return false;
    double share = 0;
    bool knows = p->par.queue_outside
                     ? window_above(p->window, SIG_RUNNING, WINDOW_REACHED * limit,
                                    p->par.raise_every_s, &share)
                     : window_binding(p->window, limit, p->par.raise_every_s, &share);
    if (!(f->waiting > 0 && window_reached(f->running, limit)) || !knows || share < BINDING) {
        law_hold(d, REASON_HOLD_NOT_BINDING, f->running, WINDOW_REACHED * limit,
                 "no raise: %.0f run and %.0f wait, the limit of %u does not bind", f->running,
                 f->waiting, limit);
        return false;
    }
    bool probe = is_probing(p) || law_flips(p) >= p->par.osc_damp;
    uint32_t step = probe || p->par.raise_step == 0 ? 1 : p->par.raise_step;
    step = step > most - limit ? most - limit : step;
    if (!law_headroom(p, f, step, d))
        return false;
    if (!policy_since(p, p->raise_us, p->par.raise_every_s)) {
        law_hold(d, REASON_HOLD_COOLDOWN, (double)(p->now_us - p->raise_us) * 1e-6,
                 p->par.raise_every_s, "no raise within %.0f s of the last one",
                 p->par.raise_every_s);
        return false;
    }
    propose_raise(p, probe ? REASON_RAISE_PROBE1 : REASON_RAISE_HEADROOM, KNOB_SEQS, limit + step,
                  f, d);
    char slowly[48] = "";
    if (is_probing(p))
        (void)snprintf(slowly, sizeof(slowly), "; slowly, since %u hurt", p->ssthresh);
    (void)snprintf(d->why, sizeof(d->why),
                   "raised %s from %u to %u: %.0f wait, KV usage %.0f %% (up to %.0f %% is "
                   "room) and no preemption for %.0f s%s",
                   knob_name(KNOB_SEQS), limit, d->to, f->waiting, f->usage_mid * 100,
                   p->par.usage_release * 100, f->window_s, slowly);
    return true;
}

static uint32_t more_tokens(const struct policy *p)
{
    uint32_t limit = p->limit[KNOB_TOKENS], step = round_down(limit / TOKENS_PART);
    step = step < TOKENS_STEP ? TOKENS_STEP : step;
    uint32_t room = p->par.tokens_max - limit;
    return limit + (step < room ? step : room);
}

bool law_raise_tokens(const struct policy *p, const struct facts *f, struct decision *d)
{
    uint32_t limit = p->limit[KNOB_TOKENS];
    if (limit == 0 || limit >= p->par.tokens_max || p->pinned[KNOB_TOKENS])
        return false;
    /* The budget binds when prompts dominate, some wait, and it is not the number of sequences
     * that keeps them out. */
    if (!(f->waiting > 0) || f->prefill_share <= PREFILL_MOST || f->gap_share > 0 ||
        window_reached(f->running, p->limit[KNOB_SEQS]) ||
        !policy_since(p, p->raise_us, p->par.raise_every_s) || !law_headroom(p, f, 0, d))
        return false;
    propose_raise(p, REASON_RAISE_HEADROOM, KNOB_TOKENS, more_tokens(p), f, d);
    (void)snprintf(d->why, sizeof(d->why),
                   "raised %s from %u to %u: %.0f prompts wait with only %.0f running and KV usage "
                   "%.0f %%",
                   knob_name(KNOB_TOKENS), limit, d->to, f->waiting, f->running,
                   f->usage_mid * 100);
    return true;
}

/* After a long quiet time an old cut is forgotten step by step; it does not bind then, so this is
 * safe, and no request meets an invisible limit later. */
bool law_drift(const struct policy *p, const struct facts *f, struct decision *d)
{
    if (p->quiet_us == 0 || !policy_since(p, p->quiet_us, p->par.drift_quiet_s) ||
        !policy_since(p, p->raise_us, p->par.drift_every_s))
        return false;
    struct decision ignored = {0};
    for (int i = 0; i < KNOB_COUNT; i++) {
        enum knob k = (enum knob)i;
        uint32_t limit = p->limit[k], most = policy_max(p, k), to;
        if (k == KNOB_SEQS && p->limit[KNOB_TOKENS] && p->limit[KNOB_TOKENS] < most)
            most = p->limit[KNOB_TOKENS];
        if (limit == 0 || limit >= most || p->pinned[k])
            continue;
        if (k == KNOB_SEQS) {
            uint32_t step = p->par.raise_step ? p->par.raise_step : 1;
            to = step < most - limit ? limit + step : most;
            if (window_reached(f->running, limit) && f->waiting > 0)
                continue; /* it binds: only law_raise_seqs() may */
        } else {
            to = more_tokens(p);
        }
        if (!law_headroom(p, f, k == KNOB_SEQS ? to - limit : 0, &ignored))
            continue;
        propose_raise(p, REASON_DRIFT_BACK, k, to, f, d);
        d->held_s = (double)(p->now_us - p->quiet_us) * 1e-6;
        (void)snprintf(d->why, sizeof(d->why),
                       "raised %s from %u to %u: quiet for %.0f s, it drifts back to its ceiling "
                       "of %u",
                       knob_name(k), limit, to, d->held_s, policy_max(p, k));
        return true;
    }
    return false;
}
