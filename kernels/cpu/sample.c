/*
 * From logits to tokens. Per sampled sequence: the log of the sum of exp and the alternatives are
 * of the raw logits; then what the slot wants changed (adjust.c), then the mask, then greedy, or
 * temperature, min-p, typical-p, top-k, top-p in this order and one random number. That number is a
 * function of (seed, position of the new token) alone, so a sequence that is recomputed or meets
 * other company draws the same. Ties go to the lower id.
 */
#include <errno.h>
#include <float.h>
#include <math.h>
#include <string.h>

#include "kernels/cpu/adjust.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/sample.h"

#define COLDEST 1e-5f /* temperatures below are greedy */
#define FEW     64u   /* tokens whose largest weight is looked at first */
#define UNROLL8 _Pragma("GCC unroll 8")

struct sample_choice {
    float weight;
    uint32_t id;
};

struct sampling {
    struct ek_device *d;
    const struct ek_step *step;
    const struct ek_masks *masks;
    struct ek_result *result;
};

/* Philox 4x32, ten rounds: 53 random bits of (key, counter) as a number in [0, 1). */
static double random_at(uint64_t seed, uint64_t position)
{
    uint32_t c[4] = {(uint32_t)position, (uint32_t)(position >> 32), 0, 0};
    uint32_t k0 = (uint32_t)seed, k1 = (uint32_t)(seed >> 32);

    for (int round = 0; round < 10; round++, k0 += 0x9e3779b9u, k1 += 0xbb67ae85u) {
        uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        uint32_t next[4] = {(uint32_t)(b >> 32) ^ c[1] ^ k0, (uint32_t)b,
                            (uint32_t)(a >> 32) ^ c[3] ^ k1, (uint32_t)a};
        memcpy(c, next, sizeof(c));
    }
    return (double)(((uint64_t)c[0] << 32 | c[1]) >> 11) * 0x1p-53;
}

static bool allowed(const uint32_t *bits, uint32_t id)
{
    return !bits || (bits[id / 32] >> (id % 32) & 1u);
}

/* The `most` largest raw logits, largest first. */
static uint32_t find_top(const float *x, uint32_t n, uint32_t most, int32_t *ret_id,
                         float *ret_logit)
{
    uint32_t count = 0;

    for (uint32_t id = 0; id < n && most > 0; id++) {
        if (isnan(x[id]) || (count == most && !(x[id] > ret_logit[most - 1])))
            continue;
        uint32_t at = count < most ? count++ : most - 1;
        for (; at > 0 && x[id] > ret_logit[at - 1]; at--) {
            ret_logit[at] = ret_logit[at - 1];
            ret_id[at] = ret_id[at - 1];
        }
        ret_logit[at] = x[id];
        ret_id[at] = (int32_t)id;
    }
    return count;
}

static bool before(const struct sample_choice *a, const struct sample_choice *b)
{
    return a->weight > b->weight || (a->weight == b->weight && a->id < b->id);
}

/* Moves the choice at `at` down to its place in a heap of n with the first choice on top. */
static void sift(struct sample_choice *c, uint32_t n, uint32_t at)
{
    struct sample_choice moved = c[at];

    for (;;) {
        uint32_t child = 2 * at + 1;
        if (child >= n)
            break;
        if (child + 1 < n && before(&c[child + 1], &c[child]))
            child++;
        if (!before(&c[child], &moved))
            break;
        c[at] = c[child];
        at = child;
    }
    c[at] = moved;
}

/* Takes the first choice out of a heap of n; it then lies at c[n - 1]. */
static void pop(struct sample_choice *c, uint32_t n)
{
    struct sample_choice first = c[0];

    c[0] = c[n - 1];
    sift(c, n - 1, 0);
    c[n - 1] = first;
}

/* Leaves the tokens whose surprise is nearest to the expected one, until they hold typical_p of the
 * weight; the others' weight becomes zero. */
static void keep_typical(float *weight, uint32_t n, double typical_p, struct sample_choice *c)
{
    double total = 0.0, expected = 0.0, kept = 0.0;
    uint32_t count = 0;

    for (uint32_t id = 0; id < n; id++)
        total += (double)weight[id];
    for (uint32_t id = 0; id < n; id++)
        if (weight[id] > 0.0f)
            expected -= (double)weight[id] / total * log((double)weight[id] / total);
    for (uint32_t id = 0; id < n; id++)
        if (weight[id] > 0.0f)
            c[count++] = (struct sample_choice){
                (float)-fabs(-log((double)weight[id] / total) - expected), id};
    for (uint32_t i = count / 2; i-- > 0;)
        sift(c, count, i);
    while (count > 0 && kept < typical_p * total) {
        pop(c, count--);
        kept += (double)weight[c[count].id];
    }
    for (uint32_t i = 0; i < count; i++)
        weight[c[i].id] = 0.0f;
}

/* What those weigh that are not below `least`: in eight sums, none of which waits for another. */
static double weight_from(const float *weight, uint32_t n, float least)
{
    double sum[8] = {0};
    uint32_t id = 0;

    for (; id + 8 <= n; id += 8) {
        UNROLL8
        for (uint32_t i = 0; i < 8; i++)
            sum[i] += weight[id + i] >= least ? (double)weight[id + i] : 0.0;
    }
    for (; id < n; id++)
        sum[0] += weight[id] >= least ? (double)weight[id] : 0.0;
    return ((sum[0] + sum[1]) + (sum[2] + sum[3])) + ((sum[4] + sum[5]) + (sum[6] + sum[7]));
}

/* A weight that at least `most` tokens reach, where there are as many; or one that all reach. Of
 * the largest of each few tokens so many reach the one in that place. c: [n / FEW + 1]. */
static float least_of_most(const struct ek_device *d, const float *weight, uint32_t n,
                           uint32_t most, struct sample_choice *c)
{
    uint32_t count = 0;

    for (uint32_t id = 0; id < n; id += FEW)
        c[count++] =
            (struct sample_choice){d->ops->max(weight + id, n - id < FEW ? n - id : FEW), id};
    if (most > count / 4)
        return FLT_TRUE_MIN;
    for (uint32_t i = count / 2; i-- > 0;)
        sift(c, count, i);
    for (uint32_t i = 0; i < most; i++)
        pop(c, count - i);
    return fmaxf(c[count - most].weight, FLT_TRUE_MIN);
}

/* A weight such that the tokens that reach it hold so much together; or one that all reach. The
 * largest weight is 1 as a rule. */
static float least_of_weight(const float *weight, uint32_t n, double held)
{
    for (float least = 0x1p-4f; least > 0x1p-30f; least *= 0x1p-4f)
        if (weight_from(weight, n, least) > held * (1.0 + 1e-9)) /* sums are rounded */
            return least;
    return FLT_TRUE_MIN;
}

/* Among the heaviest top_k that together hold top_p of the weight; c has room for all n. Most
 * tokens of a large vocabulary weigh next to nothing: only those that may stay are put in order. */
static uint32_t draw_from_top(const struct ek_device *d, const float *weight,
                              const struct ek_sampling *p, double random, struct sample_choice *c)
{
    const uint32_t n = d->graph->vocab, top_k = p->top_k < n ? p->top_k : 0;
    double total = top_k > 0 ? 0.0 : weight_from(weight, n, 0.0f), kept = 0.0;
    const float least = top_k > 0 ? least_of_most(d, weight, n, top_k, c)
                                  : least_of_weight(weight, n, (double)p->top_p * total);
    uint32_t count = 0, taken = 0;

    for (uint32_t id = 0; id < n; id++)
        if (weight[id] >= least)
            c[count++] = (struct sample_choice){weight[id], id};
    for (uint32_t i = count / 2; i-- > 0;)
        sift(c, count, i);
    const uint32_t most = top_k > 0 && top_k < count ? top_k : count;
    for (; top_k > 0 && taken < most; taken++) {
        pop(c, count - taken);
        total += (double)c[count - 1 - taken].weight;
    }
    uint32_t end = 0; /* how many stay after top-p; the i-th lies at c[count - 1 - i] */
    while (end < most && (end == 0 || kept < (double)p->top_p * total)) {
        if (end == taken)
            pop(c, count - taken++);
        kept += (double)c[count - 1 - end++].weight;
    }
    double target = random * kept, sum = 0.0;
    for (uint32_t i = 0; i < end; i++) {
        sum += (double)c[count - 1 - i].weight;
        if (sum > target)
            return c[count - 1 - i].id;
    }
    return c[count - end].id;
}

static uint32_t draw(const float *weight, uint32_t n, double random)
{
    double total = 0.0, sum = 0.0;
    uint32_t last = 0;

    for (uint32_t id = 0; id < n; id++)
        total += (double)weight[id];
    for (uint32_t id = 0; id < n; id++) {
        if (weight[id] <= 0.0f)
            continue;
        sum += (double)weight[id];
        last = id;
        if (sum > random * total)
            break;
    }
    return last;
}

/* The token for one row of logits, -1 if none may be chosen. work: [3 * stride] floats. */
static int32_t cpu_sample_choose(const struct ek_device *d, const float *logits,
                                 const uint32_t *bits, const struct ek_step_seq *q, float *work)
{
    const struct ek_slot_set *set = &d->slots[q->slot].set;
    const struct ek_sampling *p = &set->sampling;
    const uint32_t n = d->graph->vocab, position = q->context;
    const float *x = logits;
    float *more = work + d->shape.logit_stride;

    if (cpu_adjusts(set)) {
        memcpy(work, logits, n * sizeof(*work));
        cpu_adjust(d, q->slot, position, work, (uint32_t *)(void *)more);
        x = work;
    }
    if (bits) {
        for (uint32_t id = 0; id < n; id++)
            work[id] = allowed(bits, id) ? x[id] : -INFINITY;
        x = work;
    }
    float max = d->ops->max(x, n);
    if (!isfinite(max))
        return -1;
    if (p->temperature < COLDEST) {
        for (uint32_t id = 0; id < n; id++)
            if (x[id] == max)
                return (int32_t)id;
        return -1;
    }
    (void)d->ops->sum_exp(x, n, max, 1.0f / p->temperature, work); /* the sum in double follows */
    for (uint32_t id = 0; p->min_p > 0.0f && id < n; id++)
        work[id] = work[id] < p->min_p ? 0.0f : work[id];
    if (p->typical_p > 0.0f && p->typical_p < 1.0f)
        keep_typical(work, n, (double)p->typical_p, (struct sample_choice *)(void *)more);
    double random = random_at(p->seed, position);
    if (p->top_k == 0 && p->top_p >= 1.0f)
        return (int32_t)draw(work, n, random);
    return (int32_t)draw_from_top(d, work, p, random, (struct sample_choice *)(void *)more);
}

static float log_sum(const struct ek_device *d, const float *logits)
{
    float max = d->ops->max(logits, d->graph->vocab);
    return max + logf(d->ops->sum_exp(logits, d->graph->vocab, max, 1.0f, NULL));
}

static void sample_seq(const struct sampling *s, uint32_t index, uint32_t member)
{
    struct ek_device *d = s->d;
    const struct ek_step_seq *q = &ek_step_seqs(s->step)[index];
    const struct ek_slot_set *set = &d->slots[q->slot].set;
    struct ek_result_seq *out = &s->result->seq[index];
    const uint32_t n = d->graph->vocab;

    *out = (struct ek_result_seq){.slot = q->slot};
    if (!q->sample)
        return;
    const float *logits = cpu_logits(d, q->logit_row);
    const uint32_t *bits =
        s->masks ? s->masks->bits + (size_t)q->logit_row * s->masks->words : NULL;
    char *work = d->slot_memory.at + d->shape.choice_at + member * d->shape.choice_bytes;
    int32_t token = cpu_sample_choose(d, logits, bits, q, (float *)(void *)work);
    out->lse = log_sum(d, logits);
    if (token < 0)
        return;
    out->tokens = 1;
    out->token[0] = token;
    out->logit[0] = logits[token];
    out->top = find_top(logits, n, set->top < n ? set->top : n, out->top_id, out->top_logit);
}

static void score_row(const struct sampling *s, const struct ek_step_seq *q, uint32_t k)
{
    const struct ek_device *d = s->d;
    const float *x = cpu_logits(d, q->score_row + k);
    uint32_t target = ek_step_words(s->step)[q->target + k], n = d->graph->vocab;
    uint32_t top = d->slots[q->slot].set.top;
    struct ek_result_score *out =
        &ek_result_scores(s->result)[q->score_row + k + s->result->scores - s->step->logit_rows];

    *out = (struct ek_result_score){.logit = x[target], .lse = log_sum(d, x), .rank = 1};
    for (uint32_t id = 0; id < n; id++)
        out->rank += x[id] > x[target];
    out->top = find_top(x, n, top < n ? top : n, out->top_id, out->top_logit);
}

static void sample_part(const struct sampling *s, uint32_t member, uint32_t members)
{
    for (uint32_t i = 0; i < s->step->seqs; i++) {
        const struct ek_step_seq *q = &ek_step_seqs(s->step)[i];
        if (i % members == member)
            sample_seq(s, i, member);
        for (uint32_t k = member; k < q->scores; k += members)
            score_row(s, q, k);
    }
}

static void sample_member(void *ctx, uint32_t member)
{
    const struct sampling *s = ctx;
    sample_part(s, member, s->d->threads);
}

/* The input of the logits, a row for each that is sampled. */
static void copy_hidden(struct sampling *s)
{
    const struct ek_graph *g = s->d->graph;
    uint32_t n = 0, op = 0;

    while (g->ops[op].kind != EK_OP_LOGITS)
        op++;
    for (uint32_t i = 0; i < s->step->seqs; i++) {
        const struct ek_step_seq *q = &ek_step_seqs(s->step)[i];
        if (q->hidden)
            memcpy(ek_result_hidden(s->result, n++), cpu_row(s->d, g->ops[op].src, q->logit_row),
                   s->result->width * sizeof(float));
    }
}

int cpu_sample(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks,
               struct ek_result *result)
{
    struct sampling s = {d, step, masks, result};
    uint32_t samples = 0, hiddens = 0;

    for (uint32_t i = 0; i < step->seqs; i++) {
        samples += ek_step_seqs(step)[i].sample;
        hiddens += ek_step_seqs(step)[i].hidden;
    }
    if (masks && (masks->rows < samples || masks->words < (d->graph->vocab + 31) / 32))
        return -EBADMSG;
    result->scores = step->logit_rows - samples;
    result->hiddens = hiddens;
    result->width = hiddens > 0 ? d->graph->hidden : 0;
    if (step->seqs > 1 || step->logit_rows > 1)
        cpu_pool_run(d->pool, sample_member, &s);
    else
        sample_part(&s, 0, 1);
    copy_hidden(&s);
    for (uint32_t i = 0; i < step->seqs; i++) {
        const struct ek_result_seq *r = &result->seq[i];
        if (ek_step_seqs(step)[i].sample) /* without a token, a step planned on top has some */
            cpu_slot_push(d, r->slot, r->tokens > 0 ? r->token[0] : 0);
    }
    return 0;
}
