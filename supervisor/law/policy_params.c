/*
 * The constants of the law: what they are by default, and which of them
 * contradict each other. What each of them is for and where it comes from: policy.h.
 */
#include <errno.h>
#include <stddef.h>

#include "supervisor/law/policy_law.h"

void policy_defaults(struct policy_params *p)
{
    *p = (struct policy_params){
        .mode = MODE_ACT,
        .seqs_min = 1,
        .seqs_max = 256,
        .tokens_min = 256,
        .tokens_max = 8192,
        .window_s = 30,
        .usage_high = 0.92,
        .usage_release = 0.85,
        .preempt_rate = 0.2,
        .recompute_share = 0.3,
        .gap_s = 2,
        .itl_slo_s = 0,
        .cut_factor = 0.8,
        .tokens_cut_factor = 0.75,
        .settle_s = 30,
        .effect_s = 60,
        .raise_every_s = 15,
        .raise_after_cut_s = 30,
        .raise_step = 4,
        .drift_quiet_s = 1800,
        .drift_every_s = 60,
        .warmup_s = 60,
        .feedforward = 0.90,
        .sat_low_s = 300,
        .full_s = 300,
        .panic_usage = 0.99,
        .panic_s = 15,
        .panic_count = 5,
        .hold_most_s = 480,
        .lock_s = 600,
        .osc_window_s = 900,
        .osc_damp = 6,
        .osc_freeze = 12,
        .freeze_s = 1800,
        .ttft_slo_s = 0,
        .shed_share = 0.8,
        .shed_release_s = 30,
        .reserve_most = 0.15,
        .reserve_step = 0.03,
        .reserve_back_s = 30,
    };
}

static bool is_share(double v)
{
    return v > 0 && v <= 1;
}

static bool is_time(double v)
{
    return v >= 0 && v <= 1e8;
}

int policy_check(const struct policy_params *p)
{
    if (p->seqs_min == 0 || p->seqs_min > p->seqs_max || p->tokens_min == 0 ||
        p->tokens_min > p->tokens_max)
        return -EINVAL;
    if (!is_share(p->usage_high) || !is_share(p->usage_release) || !is_share(p->feedforward) ||
        !is_share(p->panic_usage) || !is_share(p->shed_share) || !is_share(p->reserve_step) ||
        !(p->reserve_most >= 0 && p->reserve_most <= 0.5) ||
        !(p->reserve_start >= 0 && p->reserve_start <= 1) ||
        !(p->cut_factor > 0 && p->cut_factor < 1) ||
        !(p->tokens_cut_factor > 0 && p->tokens_cut_factor < 1))
        return -EINVAL;
    const double times[] = {
        p->settle_s,       p->effect_s,      p->raise_every_s,     p->lock_s,
        p->drift_quiet_s,  p->drift_every_s, p->warmup_s,          p->sat_low_s,
        p->full_s,         p->panic_s,       p->hold_most_s,       p->osc_window_s,
        p->freeze_s,       p->window_s,      p->raise_after_cut_s, p->ttft_slo_s,
        p->shed_release_s, p->queue_start_s, p->reserve_back_s};
    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
        if (!is_time(times[i]))
            return -EINVAL;
    }
    return p->window_s > 0 && p->osc_freeze <= POLICY_FLIPS ? 0 : -EINVAL;
}
