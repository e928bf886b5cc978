/*
 * The inside of the policy, shared by policy.c (order of decisions, bookkeeping), policy_law.c
 * (what is measured and what each rule proposes) and policy_params.c (the constants). No other
 * file includes it.
 *
 * A rule only proposes: it fills a decision and changes nothing. What a change leaves behind (when
 * it was cut, what is checked later) is written when the caller reports that it was applied.
 */
#pragma once

#include "supervisor/law/policy.h"
#include "supervisor/law/window.h"

#define POLICY_FLIPS 16 /* direction changes remembered; more than osc_freeze may be */

/* What the window says now. */
struct facts {
    double window_s;                      /* how much of the window is covered */
    double usage, usage_mid, usage_upper; /* newest, median, upper quartile */
    double running, running_most, waiting;
    double harm_rate;  /* preemptions per second: counted, or inferred where the count is late */
    double harm_count; /* of them in the window */
    double recompute_share;
    bool has_recompute;
    double gap_share; /* of samples with a gap of at least gap_s */
    bool has_itl;
    double itl_p99;
    double gen_rate, prompt_rate, prefill_share;
    double step_tokens; /* prompts get no more of a step than this, 0 = as many as the limit */
    bool full, harm;    /* usage high for the window; it hurts */
    bool pressure;      /* both */
    double queue_oldest_s, deadline_s;
    bool has_deadline; /* and it is known */
    bool has_reserve;
    double reserve;
    bool stalls; /* preemptions make answers wait, or cost much work */
    char harm_why[64];
};

struct policy {
    struct policy_params par;
    struct window *window;
    enum policy_state state;
    uint64_t start_us, now_us; /* of this life of the server; 0 = no sample yet */
    uint32_t polls;            /* since the start, at most 6 */
    uint8_t bad_bits;          /* newest poll in bit 0, 1 = bad */
    uint32_t good_run;         /* good samples since the start */
    bool counts;               /* this process has shown a counter of preemptions */
    bool warm;                 /* enough of them, and warmup_s is over */

    uint32_t limit[KNOB_COUNT]; /* 0 = not known */
    bool pinned[KNOB_COUNT];
    uint64_t foreign_us[KNOB_COUNT]; /* since when the page shows another limit */
    uint64_t locked_us[KNOB_COUNT];  /* until then, after a revert */

    struct decision pending;
    bool is_pending;
    struct facts pending_facts;
    uint32_t apply_failures;
    uint64_t frozen_us; /* until then nothing changes */
    enum reason frozen_why;

    uint32_t ssthresh;         /* what ran when the last cut was made; 0 = none remembered */
    uint64_t cut_us, raise_us; /* last one of each, 0 = never */
    uint32_t cut_to;
    uint32_t episodes; /* cuts that followed a raise, decaying */
    uint64_t decay_us;

    struct {
        bool due;
        uint64_t at_us;
        enum knob knob;
        uint32_t from;
        double harm_rate, gen_rate;
    } effect;

    int8_t direction[KNOB_COUNT]; /* of the last change: -1, 1 */
    uint64_t flip_us[POLICY_FLIPS];
    uint32_t flips; /* ever; the newest is flip_us[(flips - 1) % POLICY_FLIPS] */

    uint64_t pressure_us, full_us, floor_us, top_us, quiet_us; /* since when; 0 = not so */
    uint64_t late_us, calm_us, shed_us; /* of the queue; shed_us: last change of its deadline */
    uint64_t reserve_us;                /* last change of the reserve */
    uint64_t noted;                     /* bit per reason: the episode has its line */
    uint64_t advised_us[REASON_COUNT];  /* when it was last proposed in advise mode */
};

static inline uint64_t policy_us(double seconds)
{
    return (uint64_t)(seconds * 1e6);
}
static inline bool policy_since(const struct policy *p, uint64_t then_us, double seconds)
{
    return then_us == 0 || p->now_us >= then_us + policy_us(seconds);
}
static inline uint32_t policy_max(const struct policy *p, enum knob k)
{
    return k == KNOB_SEQS ? p->par.seqs_max : p->par.tokens_max;
}
static inline uint32_t policy_min(const struct policy *p, enum knob k)
{
    return k == KNOB_SEQS ? p->par.seqs_min : p->par.tokens_min;
}

/* 0, or -EINVAL for constants that contradict each other. */
int policy_check(const struct policy_params *p);

/* False if the samples do not suffice for any change. */
bool law_measure(const struct policy *p, const struct sample *s, struct facts *ret_facts);
/* The oldest request waits longer than half of what the promise allows. */
bool law_is_late(const struct policy *p, double oldest_s);
uint32_t law_flips(const struct policy *p); /* direction changes in the last osc_window_s */

/* Each returns true with *d filled if it proposes a change or a note. Otherwise it may leave in *d
 * (kind NONE) why it holds. */
bool law_revert(const struct policy *p, const struct facts *f, struct decision *d);
bool law_shed(const struct policy *p, const struct facts *f, struct decision *d);
bool law_reserve_more(const struct policy *p, const struct facts *f, struct decision *d);
bool law_reserve_less(const struct policy *p, const struct facts *f, struct decision *d);
bool law_lower_seqs(const struct policy *p, const struct facts *f, struct decision *d);
bool law_lower_tokens(const struct policy *p, const struct facts *f, struct decision *d);
bool law_raise_seqs(const struct policy *p, const struct facts *f, struct decision *d);
bool law_raise_tokens(const struct policy *p, const struct facts *f, struct decision *d);
bool law_drift(const struct policy *p, const struct facts *f, struct decision *d);

void law_hold(struct decision *d, enum reason r, double measured, double limit, const char *fmt,
              ...) __attribute__((format(printf, 5, 6)));
