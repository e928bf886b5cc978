/*
 * The control law as a pure function: samples and the time in, one decision out. No I/O, no clock,
 * no allocation after policy_new(). Law and reason codes: docs/control.md.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "supervisor/engines/sample.h"
#include "supervisor/law/reasons.h"

/* The last two are no knobs with pins: the queue deadline has two values, in milliseconds here; the
 * reserve lies between the server's own and reserve_most, in thousandths of the pool. */
enum knob { KNOB_SEQS, KNOB_TOKENS, KNOB_COUNT, KNOB_DEADLINE = KNOB_COUNT, KNOB_RESERVE };

#define KNOB_TOKENS_LEAST 64u /* unless an operator says less: below that a prefill crawls */

/* Each decision is one struct; journal, metric, status page and `evenkeelctl explain` print it. */
struct decision {
    enum action_kind kind;
    enum reason reason;
    enum knob knob;
    uint32_t from, to;      /* the knob's value before and after */
    double measured, limit; /* the figure that decided, and its threshold */
    double harm;            /* preemptions per second, or what `why` says */
    double held_s;          /* how long it held */
    bool act;               /* the caller must write the limit and call policy_applied() */
    bool applied;           /* false in advise mode or when the write failed; set by the caller */
    uint64_t at_us;         /* the policy's time */
    uint64_t wall_us;       /* set by the caller, 0 = not known; only printed */
    char why[360];          /* one sentence with the numbers; a cut one ends with "..." */
    char signature[48];     /* of a crash, the catalog's entry that tells it, "" = none */
};

enum policy_state {
    POL_INIT,
    POL_HEALTHY,
    POL_PRESSURE,
    POL_HOLD,
    POL_RECOVER,
    POL_SAT_LOW,
    POL_DEGRADED
};
enum policy_mode { MODE_OBSERVE, MODE_ADVISE, MODE_ACT };

/*
 * All durations in seconds, never in polls. Defaults (policy_defaults()) beside each, and why:
 * 30 s is one window, which a change needs to show; usage counts as full between 0.8, where
 * autoscalers add a replica, and 1.0; the dead band of 0.07 below it is about what one cut moves.
 */
struct policy_params {
    enum policy_mode mode;
    uint32_t seqs_min, seqs_max, tokens_min, tokens_max;
    double window_s;          /* 30: as many polls, at one a second */
    double usage_high;        /* 0.92 */
    double usage_release;     /* 0.85 */
    double preempt_rate;      /* 0.2 per second: 6 in a window; one now and then is normal */
    double recompute_share;   /* 0.3 recomputed per generated token: a quarter of the work */
    double gap_s;             /* 2: what a reader of a stream takes for a stall */
    double itl_slo_s;         /* 0 = none */
    double cut_factor;        /* 0.8, as in TCP and AIMD limiters */
    double tokens_cut_factor; /* 0.75 */
    double settle_s;          /* 30 between cuts: one window */
    double effect_s;          /* 60 until the effect is checked: two windows */
    double raise_every_s;     /* 15 */
    double raise_after_cut_s; /* 30: one window */
    uint32_t raise_step;      /* 4, as the additive term of Netflix's Gradient2 */
    double drift_quiet_s;     /* 1800 */
    double drift_every_s;     /* 60 between its steps */
    double warmup_s;          /* 60 after ready: a fresh start says nothing of the load */
    double feedforward;       /* 0.90, just below usage_high */
    double sat_low_s;         /* 300, as long as an alert waits */
    double full_s;            /* 300 of a full cache without harm until it is noted; likewise */
    double panic_usage;       /* 0.99 all through panic_s with panic_count preemptions */
    double panic_s;           /* 15: half a window */
    uint32_t panic_count;     /* 5 */
    double hold_most_s;       /* 480, cap of raise_after_cut_s x 1.5 per episode */
    double lock_s;            /* 600 without another cut after one was taken back */
    double osc_window_s;      /* 900: direction changes are counted in it */
    uint32_t osc_damp;        /* 6: three full swings */
    uint32_t osc_freeze;      /* 12 */
    double freeze_s;          /* 1800: twice the window they are counted over */
    double ttft_slo_s;        /* 0 = none: then nothing is shed */
    double shed_share;        /* 0.8 of it is the queue deadline: prompts take time to read */
    double shed_release_s;    /* 30 without a late request until shedding ends */
    double reserve_most;      /* 0.15 of the pool kept free, better than 0.25; 0 = left alone */
    double reserve_step;      /* 0.03 more of it when preemptions stall answers */
    double reserve_back_s;    /* 30 between steps of 0.01 back: 90 s take one back */
    bool queue_outside;       /* the queue is in front of the server: full is binding */
    double queue_start_s;     /* the server's own queue deadline, 0 = none; not a constant */
    double reserve_start;     /* the server's own reserve; not a constant */
};

struct policy;
struct window;

void policy_defaults(struct policy_params *p);
/* Returns 0, -EINVAL for constants that contradict each other, -ENOMEM. */
int policy_new(const struct policy_params *p, struct policy **ret_policy);
void policy_free(struct policy *p);
/* New constants or another mode; keeps samples, limits and history. The window's length does not
 * change any more after policy_new(). -EINVAL as policy_new(): then nothing has changed. */
int policy_set(struct policy *p, const struct policy_params *params);
/* After a start, an adoption or a reset of the server: forget samples, keep limits and history. */
void policy_restart(struct policy *p, uint64_t now_us);
/* What the limits are now, as read back from the server; 0 = not known. An engine that exports its
 * limits (evenkeel) needs this only when an operator changed one. */
void policy_limits(struct policy *p, uint32_t seqs, uint32_t tokens);
void policy_pin(struct policy *p, enum knob k, bool pinned);
bool policy_pinned(const struct policy *p, enum knob k);
uint32_t policy_limit(const struct policy *p, enum knob k); /* 0 = not known */
/* Whether the process that answers counts preemptions; without, the law infers them. */
bool policy_counts(const struct policy *p);

/*
 * One sample in, one decision out.
 *   LOWER RAISE REVERT  a new limit. If `act` (mode act) the caller writes it and answers with
 *                       policy_applied(); until then further steps only take in samples. Without
 *                       `act` (mode advise) it is only shown. Both are journaled and kept.
 *   SHED RESERVE        the queue deadline, in milliseconds, and the reserve, in thousandths; else
 *                       as above.
 *   NOTE                something worth a line, once per episode (SIGNAL_DEGRADED, SAT_LOW, ...).
 *   NONE                nothing to journal; reason and why say what it waits for (status page).
 * s has been through sample_compare().
 */
struct decision policy_step(struct policy *p, const struct sample *s, uint64_t now_us);
void policy_applied(struct policy *p, const struct decision *d, bool ok);
/* The samples of the last window_s, for rates and quantiles on the status page. */
const struct window *policy_window(const struct policy *p);

enum policy_state policy_state(const struct policy *p);
const char *policy_state_name(enum policy_state s);
const char *knob_name(enum knob k); /* "max_num_running_seqs", "max_num_batched_tokens" */
/* {"server","at_s","action","reason","knob","from","to","measured","limit","harm","held_s",
 * "applied","why"}; knob, from, to and applied only for a change; at_s is wall time where it is
 * known, else the policy's. Returns 0 or -ENOMEM. */
struct ek_buf;
int decision_json(const struct decision *d, const char *server, struct ek_buf *out);
