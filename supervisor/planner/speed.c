/*
 * The roofline of a step, of a prompt, and from these tokens per second and the replicas for a
 * load; advise.c and ctl/verb_plan.c ask. Three parts are added: products, attention, and talk
 * among cards with the host's work. Each part takes the longer of reading and computing with a
 * rounded corner between, since they overlap but not wholly.
 */
#include "supervisor/planner/speed.h"

#include <math.h>

#include "supervisor/planner/weights.h"

#define HOP_S    20e-6 /* one collective's latency; two a layer */
#define USE_MOST 0.85  /* of what a replica can do: queues grow without bound above */

/* Of makers' figures: what engines publish for cards. Of a CPU's measured ones: `make bench-plan`.
 */
static const struct plan_reach of_makers = {
    .reads = 0.72, .computes = 0.50, .computes8 = 0.50, .scores = 0.50, .step_s = 0.002};
static const struct plan_reach of_measured = {
    .reads = 1.00, .computes = 0.80, .computes8 = 0.62, .scores = 0.30, .step_s = 0.00004};

struct plan_reach plan_reach_of(const struct plan_device *d)
{
    return d->own ? of_measured : of_makers;
}

const char *plan_bound_text(enum plan_bound b)
{
    switch (b) {
    case BOUND_CAPACITY: return "the capacity of the KV cache";
    case BOUND_CEILING: return "the ceiling of sequences";
    case BOUND_BANDWIDTH: return "memory bandwidth";
    case BOUND_COMPUTE: return "arithmetic";
    case BOUND_LINK: return "the link between cards";
    }
    return "";
}

/* What a step spends on each of the device's limits. */
struct step {
    double read, compute, link, sum;
};

/* Reading and computing overlap, but not wholly: at the point where both take as long, a step takes
 * 1.4 times that. */
static void add_part(struct step *t, double read, double compute)
{
    t->read += read;
    t->compute += compute;
    t->sum += hypot(read, compute);
}

/* Bytes of weights that a step with so many rows reads: all but an embedding of its own. */
static double read_weights(const struct plan_engine *e, double rows)
{
    const struct plan_shape *s = e->shape;
    double all = plan_weights_of(s, e->weight_bits, e->device.own);
    all -= s->tied ? 0 : plan_output_layer(s) * 2;
    if (s->experts == 0)
        return all;
    /* The more rows, the more of the experts are touched. */
    double miss = pow(1.0 - (double)s->experts_used / s->experts, rows);
    double active = plan_active_parameters(s) / plan_parameters(s);
    double touched = active + (1 - active) * (1 - miss);
    return all * touched;
}

/* Bytes a second where a step reads so many: from the last cache up to half of it, from memory
 * beyond the whole, between them ever less from the cache. */
static double read_rate(const struct plan_engine *e, double bytes)
{
    const struct plan_device *d = &e->device;
    double near = d->cache_bytes > 0 ? fmin(fmax(2 - 2 * bytes / d->cache_bytes, 0), 1) : 0;
    double each = (1 - near) / d->read_bytes_s;
    each += near > 0 ? near / d->cache_bytes_s : 0;
    return plan_reach_of(d).reads / each;
}

/* Cards multiply weights of 8 bits as such and unpack those of 4; evenkeel-server's CPU backend
 * multiplies whole numbers, which checkpoints of 8 bits (FP8) are not. */
static double product_rate(const struct plan_engine *e)
{
    uint32_t bits = e->weight_bits ? e->weight_bits : e->shape->weight_bits;
    bool fast = e->device.own ? bits == 4 || e->weight_bits == 8 : bits == 8;
    const struct plan_reach reach = plan_reach_of(&e->device);
    return fast && e->device.flops8 > 0 ? e->device.flops8 * reach.computes8
                                        : e->device.flops * reach.computes;
}

/* Attention of rows that look at `all` tokens in sum, and at `near` in layers with a window. */
static double attend_s(const struct plan_engine *e, double all, double near)
{
    const struct plan_shape *s = e->shape;
    double wide =
        s->latent ? s->nope_dim + s->latent_rope + (double)s->value_dim : 2.0 * s->head_dim;
    double windowed = s->window ? s->windowed_layers : 0;
    double full = s->full_head_dim > 0 ? 2.0 * s->full_head_dim : wide;
    double pairs = (plan_attending(s) - windowed) * all * full + windowed * near * wide;
    return 2 * s->heads * pairs / e->cards / (e->device.flops * plan_reach_of(&e->device).scores);
}

static double link_s(const struct plan_engine *e, double rows)
{
    const struct plan_device *d = &e->device;
    if (e->cards < 2)
        return 0;
    double bytes = 2.0 * (e->cards - 1) / e->cards * rows * e->shape->hidden * 2;
    double rate = d->link_bytes_s > 0 ? d->link_bytes_s : 16e9;
    return 2.0 * e->shape->layers * (HOP_S + bytes / (rate * plan_reach_of(d).reads));
}

double plan_decode_step(const struct plan_engine *e, double seqs, double context,
                        enum plan_bound *ret_bound)
{
    const struct plan_shape *s = e->shape;
    struct step t = {.link = link_s(e, seqs)};
    double weights = read_weights(e, seqs) / e->cards;
    double kv = seqs * plan_kv_request_bytes(s, e->cards, e->kv_bits, context);
    add_part(&t, weights / read_rate(e, weights),
             2 * plan_active_parameters(s) * seqs / e->cards / product_rate(e));
    add_part(&t, kv / read_rate(e, weights + kv),
             attend_s(e, seqs * context, seqs * fmin(context, s->window)));
    *ret_bound = t.link > t.read && t.link > t.compute ? BOUND_LINK
                 : t.compute > t.read                  ? BOUND_COMPUTE
                                                       : BOUND_BANDWIDTH;
    return t.sum + t.link + plan_reach_of(&e->device).step_s;
}

double plan_prefill(const struct plan_engine *e, double tokens)
{
    const struct plan_shape *s = e->shape;
    struct step t = {.link = link_s(e, tokens)};
    double weights = read_weights(e, tokens) / e->cards;
    double head = plan_output_layer(s); /* only the last row needs words */
    double products = 2 * ((plan_active_parameters(s) - head) * tokens + head);
    add_part(&t, weights / read_rate(e, weights), products / e->cards / product_rate(e));
    /* Each row looks at those before it, which its neighbours have just read. */
    double w = fmin(s->window, tokens);
    add_part(&t, 0, attend_s(e, tokens * tokens / 2, w * tokens - w * w / 2));
    return t.sum + t.link + plan_reach_of(&e->device).step_s;
}

struct plan_speed plan_speed_at(const struct plan_engine *e, const struct plan_load *l, double seqs)
{
    struct plan_speed v = {0};
    double context = l->prompt + l->output / 2;
    double steps = fmax(l->output - 1, 1); /* the first token comes with the prefill */
    v.prefill_s = plan_prefill(e, l->prompt);
    v.step_s = plan_decode_step(e, seqs, context, &v.bound);
    /* Kept full, each answer costs its prefill once and its share of the steps; while it comes, the
     * prompts of all others are computed once. */
    double decode = steps * v.step_s / seqs;
    v.requests_s = 1 / (v.prefill_s + decode);
    if (v.prefill_s > decode && v.bound == BOUND_BANDWIDTH)
        v.bound = BOUND_COMPUTE; /* prompts take the time */
    v.output_tokens_s = v.requests_s * l->output;
    v.itl_s = v.step_s + (seqs - 1) * v.prefill_s / steps;
    v.ttft_s = v.prefill_s + (seqs > 1 ? v.step_s : 0); /* for the step that runs */
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
