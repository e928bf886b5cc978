#include "supervisor/planner/speed.h"

#include <math.h>

#define READS      0.72  /* of the makers' bandwidth, in decode */
#define COMPUTES   0.50  /* of the makers' dense arithmetic, in prefill */
#define STEP_LEAST 0.002 /* host work of a step: schedule, launch, sample */
#define HOP_S      20e-6 /* one collective's latency; two a layer */
#define USE_MOST   0.85  /* of what a replica can do: queues grow without bound above */

const char *plan_bound_text(enum plan_bound b)
{
    switch (b) {
    case BOUND_CAPACITY: return "the capacity of the KV cache";
    case BOUND_BANDWIDTH: return "memory bandwidth";
    case BOUND_COMPUTE: return "arithmetic";
    case BOUND_LINK: return "the link between cards";
    }
    return "";
}

/* Bits of weights as they are read from memory. */
static double read_weights(const struct plan_shape *s, uint32_t bits, double rows)
{
    double all = plan_weight_bytes(s, bits) - (s->tied ? 0 : (double)s->vocab * s->hidden * 2);
    if (s->experts == 0)
        return all;
    /* The more rows, the more of the experts are touched. */
    double miss = pow(1.0 - (double)s->experts_used / s->experts, rows);
    double active = plan_active_parameters(s) / plan_parameters(s);
    double touched = active + (1 - active) * (1 - miss);
    return all * touched;
}

static double link_s(const struct plan_shape *s, const struct plan_device *d, uint32_t cards,
                     double rows)
{
    if (cards < 2)
        return 0;
    double bytes = 2.0 * (cards - 1) / cards * rows * s->hidden * 2;
    double rate = d->link_bytes_s > 0 ? d->link_bytes_s : 16e9;
    return 2.0 * s->layers * (HOP_S + bytes / (rate * READS));
}

double plan_decode_step(const struct plan_shape *s, const struct plan_device *d, uint32_t cards,
                        uint32_t weight_bits, uint32_t kv_bits, double seqs, double context,
                        enum plan_bound *ret_bound)
{
    double read = (read_weights(s, weight_bits, seqs) / cards +
                   seqs * plan_kv_request_bytes(s, cards, kv_bits, context)) /
                  (d->read_bytes_s * READS);
    double compute = 2 * plan_active_parameters(s) * seqs / cards / (d->flops * COMPUTES);
    double link = link_s(s, d, cards, seqs);
    *ret_bound = link > read && link > compute ? BOUND_LINK
                 : compute > read              ? BOUND_COMPUTE
                                               : BOUND_BANDWIDTH;
    return fmax(read, compute) + link + STEP_LEAST;
}

double plan_prefill(const struct plan_shape *s, const struct plan_device *d, uint32_t cards,
                    uint32_t weight_bits, double tokens)
{
    double products = 2 * plan_active_parameters(s) * tokens;
    double scores = 2.0 * s->layers * s->heads * s->head_dim * tokens * tokens;
    double compute = (products + scores) / cards / (d->flops * COMPUTES);
    double read = read_weights(s, weight_bits, tokens) / cards / (d->read_bytes_s * READS);
    return fmax(compute, read) + link_s(s, d, cards, tokens) + STEP_LEAST;
}

struct plan_speed plan_speed_at(const struct plan_engine *e, const struct plan_load *l, double seqs)
{
    struct plan_speed v = {0};
    double context = l->prompt + l->output / 2;
    v.prefill_s = plan_prefill(e->shape, &e->device, e->cards, e->weight_bits, l->prompt);
    v.step_s = plan_decode_step(e->shape, &e->device, e->cards, e->weight_bits, e->kv_bits, seqs,
                                context, &v.bound);
    /* Kept full, each answer costs its prefill once and its share of `output` steps. */
    double decode = l->output * v.step_s / seqs;
    v.requests_s = 1 / (v.prefill_s + decode);
    if (v.prefill_s > decode && v.bound == BOUND_BANDWIDTH)
        v.bound = BOUND_COMPUTE; /* prompts take the time */
    v.output_tokens_s = v.requests_s * l->output;
    v.itl_s = seqs / v.output_tokens_s; /* prefills of others are between its tokens */
    v.ttft_s = v.prefill_s + v.step_s;
    return v;
}

uint32_t plan_best_seqs(const struct plan_engine *e, const struct plan_load *l,
                        enum plan_bound *ret_bound)
{
    double each = l->prompt + l->output;
    double room = each > 0 ? floor(e->kv_tokens / each) : 0;
    uint32_t most = room < e->seqs_most ? (uint32_t)room : e->seqs_most, best = 0;
    *ret_bound = BOUND_CAPACITY;
    for (uint32_t next, n = 1; n <= most; n = next) {
        struct plan_speed v = plan_speed_at(e, l, n);
        next = n + (n < 16 ? 1 : n / 16);
        next = n < most && next > most ? most : next;
        if ((l->itl_s > 0 && v.itl_s > l->itl_s) || (l->ttft_s > 0 && v.ttft_s > l->ttft_s)) {
            *ret_bound = v.bound;
            break;
        }
        best = n;
        if (n == most && room >= e->seqs_most)
            *ret_bound = v.bound; /* the pool would hold more */
    }
    return best;
}

uint32_t plan_replicas(const struct plan_engine *e, const struct plan_load *l)
{
    enum plan_bound bound;
    uint32_t seqs = plan_best_seqs(e, l, &bound);
    if (seqs == 0 || l->rate <= 0)
        return 0;
    double one = plan_speed_at(e, l, seqs).requests_s * USE_MOST;
    double n = ceil(l->rate / one);
    return n < 1e6 ? (uint32_t)n : 0;
}
