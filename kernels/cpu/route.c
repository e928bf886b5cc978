/*
 * Which experts of a mixture a row takes and what each contributes: struct ek_routing in graph.h.
 * A function of the row's own logits alone. Equal scores: the lower number is chosen first. A score
 * that is no number is never chosen before one that is.
 */
#include <math.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/route.h"

/* Unscaled: of softmax e^(logit - largest), to be divided by the sum over all. */
static float worth(const struct ek_routing *r, float logit, float largest)
{
    if (r->score == EK_SCORE_SIGMOID)
        return 1.0f / (1.0f + expf(-logit));
    return expf(logit - largest);
}

/* The largest of n, or the sum of the two largest. */
static float best_sum(const float *x, uint32_t n, uint32_t best)
{
    float first = -INFINITY, second = -INFINITY;

    for (uint32_t e = 0; e < n; e++) {
        if (x[e] > first) {
            second = first;
            first = x[e];
        } else if (x[e] > second) {
            second = x[e];
        }
    }
    return best > 1 ? first + second : first;
}

/* Makes the scores of all groups but the worthiest -infinity. */
static void keep_groups(const struct ek_routing *r, uint32_t count, float *score)
{
    const uint32_t n = count / r->groups;
    float sum[EK_MOST_EXPERT_GROUPS];
    bool kept[EK_MOST_EXPERT_GROUPS] = {false};

    for (uint32_t g = 0; g < r->groups; g++)
        sum[g] = best_sum(score + (size_t)g * n, n, r->group_best);
    for (uint32_t i = 0; i < r->groups_top; i++) {
        uint32_t best = r->groups;
        for (uint32_t g = 0; g < r->groups; g++)
            if (!kept[g] && (best == r->groups || sum[g] > sum[best]))
                best = g;
        kept[best] = true;
    }
    for (uint32_t e = 0; e < count; e++)
        if (!kept[e / n])
            score[e] = -INFINITY;
}

/* What experts compete with: their logits, where the order is the same. */
static const float *compete(const struct cpu_routing *w, const float *logit, float largest,
                            float all)
{
    const struct ek_routing *r = w->routing;

    if (!w->correction && r->groups == 0)
        return logit;
    for (uint32_t e = 0; e < w->count; e++) {
        float score = worth(r, logit[e], largest);
        if (r->score == EK_SCORE_SOFTMAX)
            score /= all;
        w->scratch[e] = score + (w->correction ? w->correction[e] : 0.0f);
    }
    if (r->groups > 0)
        keep_groups(r, w->count, w->scratch);
    return w->scratch;
}

/* The `top` with the largest scores, in order of their number. */
static void choose(const struct cpu_routing *w, const float *score, struct cpu_route *to)
{
    for (uint32_t i = 0; i < w->top; i++) {
        uint32_t best = w->count;
        for (uint32_t e = 0; e < w->count; e++) {
            bool taken = false;
            for (uint32_t k = 0; k < i && !taken; k++)
                taken = to[k].expert == e;
            if (!taken && (best == w->count || score[e] > score[best] || isnan(score[best])))
                best = e;
        }
        to[i].expert = best;
    }
    for (uint32_t i = 1; i < w->top; i++) /* few: insertion */
        for (uint32_t k = i; k > 0 && to[k].expert < to[k - 1].expert; k--) {
            struct cpu_route swap = to[k];
            to[k] = to[k - 1];
            to[k - 1] = swap;
        }
}

void cpu_route(const struct cpu_routing *w, const float *logit, struct cpu_route *to)
{
    const struct ek_routing *r = w->routing;
    const bool softmax = r->score == EK_SCORE_SOFTMAX;
    float largest = -INFINITY, all = 0.0f, chosen = 0.0f;

    for (uint32_t e = 0; softmax && e < w->count; e++)
        largest = logit[e] > largest ? logit[e] : largest;
    for (uint32_t e = 0; softmax && e < w->count; e++)
        all += worth(r, logit[e], largest);
    choose(w, compete(w, logit, largest, all), to);
    for (uint32_t i = 0; i < w->top; i++) {
        to[i].share = worth(r, logit[to[i].expert], largest);
        chosen += to[i].share;
    }
    const float least = softmax ? r->least * all : r->least;
    const float by = r->normalise ? fmaxf(chosen, least) : softmax ? all : 1.0f;
    for (uint32_t i = 0; i < w->top; i++)
        to[i].share = to[i].share / by * r->scale * (w->each ? w->each[to[i].expert] : 1.0f);
}
