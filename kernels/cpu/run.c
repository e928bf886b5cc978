/*
 * Interprets the operation list for one step. All members of the team walk the list together. An
 * operation that treats rows one by one is divided by rows, always alike, so that a run of such
 * operations needs no barrier between them; a matrix product is divided by panels of its output
 * (and blocks of rows), attention by spans and heads, with a barrier before and after.
 */
#include <errno.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/cpu/adjust.h"
#include "kernels/cpu/attention.h"
#include "kernels/cpu/cache.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/experts.h"
#include "kernels/cpu/heads.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/recur.h"
#include "kernels/cpu/rows.h"
#include "kernels/cpu/run.h"
#include "kernels/cpu/share.h"
#include "kernels/cpu/states.h"

struct run {
    struct ek_device *d;
    const struct ek_step *step;
    uint32_t spans;
    uint32_t highest; /* rows of a span */
    uint32_t parts;   /* that an attention is divided into; 1: it is not */
    struct cpu_taken taken[2][CPU_MOST_THREADS]; /* operations take turns with the two */
};

struct member {
    struct run *run;
    struct cpu_member rows; /* its own, and their domain: step or logit rows */
    uint32_t turns;         /* with `taken`, so far */
};

static char *scratch_of(const struct member *m)
{
    const struct ek_device *d = m->run->d;
    return (char *)cpu_arena(d, d->shape.scratch_at) + m->rows.index * d->shape.scratch_bytes;
}

static void divide(struct member *m, uint32_t rows)
{
    uint64_t threads = m->run->d->threads;

    m->rows.rows = rows;
    m->rows.first = (uint32_t)((uint64_t)rows * m->rows.index / threads);
    m->rows.end = (uint32_t)((uint64_t)rows * (m->rows.index + 1) / threads);
}

/* After a barrier: where what is taken in this operation is counted, 0 everywhere. No member uses
 * the other counters before the next barrier. */
static struct cpu_taken *taken_now(struct member *m)
{
    const uint32_t turn = m->turns++ & 1;

    atomic_store_explicit(&m->run->taken[turn ^ 1][m->rows.index].count, 0, memory_order_relaxed);
    return m->run->taken[turn];
}

struct product {
    const struct cpu_weight *w;
    const float *x, *bias;
    float *c;
    size_t x_stride, c_stride;
    float scale;
    char *scratch;
    uint32_t last, last_rows; /* what was multiplied last; last_rows 0: nothing */
};

/* Rows [row, row + rows) of panels [panel, end); after them, it seems, come those from `next` on.
 */
static void product_part(const struct ek_device *d, struct product *p, uint32_t row, uint32_t rows,
                         uint32_t panel, uint32_t end, uint32_t next)
{
    const bool again = row == p->last && rows == p->last_rows;
    const struct cpu_weight *w = p->w;
    const struct cpu_product product = {.w = w,
                                        .x = p->x + row * p->x_stride,
                                        .x_stride = p->x_stride,
                                        .c = p->c + row * p->c_stride + (size_t)panel * CPU_PANEL,
                                        .c_stride = p->c_stride,
                                        .rows = rows,
                                        .panel = panel,
                                        .panels = end - panel,
                                        .next = next < w->panels ? next : 0,
                                        .scratch = p->scratch,
                                        .before = again ? w : NULL};

    cpu_multiply(d, &product);
    p->last = row;
    p->last_rows = rows;
    uint32_t first = panel * CPU_PANEL,
             last = end * CPU_PANEL < w->rows ? end * CPU_PANEL : w->rows;
    for (uint32_t i = row; i < row + rows; i++) {
        float *c = p->c + i * p->c_stride;
        if (p->scale != 1.0f)
            d->ops->scale(c + first, c + first, last - first, p->scale);
        if (p->bias)
            d->ops->add(c + first, p->bias + first, last - first, 1.0f);
    }
}

static struct product product_of(const struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;
    bool logits = op->kind == EK_OP_LOGITS;

    return (struct product){
        .w = &d->weights[op->weight],
        .x = cpu_row(d, op->src, 0),
        .bias = cpu_vector(d, op->bias),
        .c = logits ? cpu_logits(d, 0) + d->graph->vocab_first : cpu_row(d, op->dst, 0),
        .x_stride = d->values[op->src].stride,
        .c_stride = logits ? d->shape.logit_stride : d->values[op->dst].stride,
        .scale = logits ? op->u.logits.scale : 1.0f,
        .scratch = scratch_of(m),
    };
}

static struct cpu_share share_of(struct member *m, uint32_t panels)
{
    return cpu_share_of(taken_now(m), m->rows.index, m->run->d->threads, m->rows.rows, panels);
}

static void product(struct member *m, const struct ek_op *op)
{
    struct product p = product_of(m, op);
    struct cpu_share s = share_of(m, p.w->panels);

    while (cpu_share_next(&s))
        product_part(m->run->d, &p, s.row, s.rows, s.panel, s.panel + s.count, s.panel + s.count);
}

/* A gated pair of products and its activation may be done as one: each member takes the same
 * columns of gate and up and combines them while they are in its own cache. */
static bool gated(const struct cpu_value *values, const struct ek_op *op, const struct ek_op *end)
{
    return op + 1 < end && op->kind == EK_OP_LINEAR && op[1].kind == EK_OP_GLU &&
           op[1].src == op->dst && op[1].dst != op->src && values[op[1].dst].width % CPU_PANEL == 0;
}

/* What gate and up come to stays in the second cache beside the inputs: bytes for both. */
#define GATED_BYTES (256u << 10)

/* Panels of the gate that are done at once. Inputs of more than a chunk are read again for each so
 * many panels, from where they do not stay near: that costs more. */
static uint32_t gated_panels(const struct cpu_weight *w, const struct cpu_share *s)
{
    const uint32_t near = GATED_BYTES / (2 * CPU_PANEL * (uint32_t)sizeof(float)) / s->rows;

    return w->cols > CPU_K_CHUNK || near > s->count ? s->count : near;
}

static void gated_product(struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;
    const struct ek_op *glu = op + 1;
    uint32_t n = d->values[glu->dst].width, half = n / CPU_PANEL;
    struct product p = product_of(m, op);
    struct cpu_share s = share_of(m, half);

    while (cpu_share_next(&s)) {
        const uint32_t step = gated_panels(p.w, &s), last = s.panel + s.count;
        for (uint32_t panel = s.panel, end; panel < last; panel = end) {
            end = last - panel < step ? last : panel + step;
            product_part(d, &p, s.row, s.rows, panel, end, half + panel);
            product_part(d, &p, s.row, s.rows, half + panel, half + end, end < half ? end : 0);
            for (uint32_t row = s.row; row < s.row + s.rows; row++) {
                size_t col = (size_t)panel * CPU_PANEL;
                const float *gate = cpu_row(d, op->dst, row) + col;
                d->ops->glu(cpu_row(d, glu->dst, row) + col, gate, gate + n,
                            (end - panel) * CPU_PANEL, glu->u.glu.act);
            }
        }
    }
}

/* An item of an attention: a part of a span for one head, its head and span in turn. */
static struct cpu_item item_of(const struct run *r, const struct ek_op *op, uint32_t i)
{
    const struct ek_device *d = r->d;
    const struct cpu_row_span *span = cpu_arena(d, d->shape.span_at);
    const uint32_t heads = op->u.attention.kv_heads, one = i / r->parts;
    struct cpu_item item = {.span = &span[one / heads], .head = one % heads, .part = i % r->parts};

    if (r->parts > 1) { /* all spans have the room of the highest */
        const size_t floats = cpu_partial_floats(d->shape.dim, op, r->highest) * r->parts;
        item.queries = item.span->rows * (op->u.attention.q_heads / heads);
        item.partial = (float *)cpu_arena(d, d->shape.partial_at) + one * floats;
    }
    return item;
}

/* The items of one member's part that are not taken yet. Long contexts tend to come last: begins
 * with them. */
static void attend_part(struct member *m, const struct ek_op *op, struct cpu_taken *taken,
                        uint32_t part)
{
    struct run *r = m->run;
    uint64_t items = (uint64_t)r->spans * op->u.attention.kv_heads * r->parts;
    uint32_t first = (uint32_t)(items * part / r->d->threads);
    uint32_t end = (uint32_t)(items * (part + 1) / r->d->threads);

    for (;;) {
        uint32_t count = atomic_fetch_add_explicit(&taken->count, 1, memory_order_relaxed);
        if (count >= end - first)
            return;
        uint32_t i = end - 1 - count;
        const struct cpu_item item = item_of(r, op, i), next = item_of(r, op, i > 0 ? i - 1 : 0);
        cpu_attend(r->d, r->step, op, &item, i > first && r->parts == 1 ? &next : NULL,
                   scratch_of(m));
    }
}

/* After a barrier: what the parts have come to. */
static void combine_parts(const struct member *m, const struct ek_op *op)
{
    const struct run *r = m->run;

    for (uint32_t i = m->rows.index; i < r->spans * op->u.attention.kv_heads; i += r->d->threads) {
        const struct cpu_item item = item_of(r, op, i * r->parts);
        cpu_attend_combine(r->d, op, &item, r->parts, scratch_of(m));
    }
}

/* Each member does its own part first, so that in decodes a sequence's keys and values stay in the
 * cache of the core that wrote them, then helps the others. */
static void attention(struct member *m, const struct ek_op *op)
{
    struct run *r = m->run;
    const struct ek_device *d = r->d;

    for (uint32_t row = m->rows.first; row < m->rows.end && !op->u.attention.reads; row++)
        cpu_kv_write(d, r->step, op, row);
    cpu_pool_barrier(d->pool);
    struct cpu_taken *taken = taken_now(m);
    for (uint32_t i = 0; i < d->threads; i++) {
        uint32_t part = (m->rows.index + i) % d->threads;
        attend_part(m, op, &taken[part], part);
    }
    if (r->parts > 1) {
        cpu_pool_barrier(d->pool);
        combine_parts(m, op);
    }
}

static void experts(const struct member *m, const struct ek_op *op)
{
    cpu_experts(&m->rows, op, scratch_of(m));
}

/* Has barriers of its own before and after. A group that failed is seen when the step ends. */
static void exchange(const struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;
    struct ek_exchange x = {.dtype = EK_F32, .rows = m->rows.rows, .member = m->rows.index};

    if (op->kind == EK_OP_NORM) {
        cpu_norm_of_all(&m->rows, op);
        return;
    }
    if (op->kind == EK_OP_REDUCE) {
        x.data = cpu_row(d, op->dst, 0);
        x.width = d->values[op->dst].width;
        x.stride = d->values[op->dst].stride;
        (void)d->peers->ops->reduce(d->peers, &x);
        return;
    }
    if (op->kind == EK_OP_SEND || op->kind == EK_OP_RECV) {
        const bool gives = op->kind == EK_OP_SEND;
        x.slots = d->plan.ceiling.seqs;
        x.data = cpu_row(d, gives ? op->src : op->dst, 0);
        x.width = d->values[gives ? op->src : op->dst].width;
        x.stride = d->values[gives ? op->src : op->dst].stride;
        (void)(gives ? d->peers->ops->send : d->peers->ops->recv)(d->peers, &x);
        return;
    }
    x.data = cpu_logits(d, 0);
    x.width = d->graph->vocab;
    x.stride = d->shape.logit_stride;
    x.begin = d->vocab_begin;
    (void)d->peers->ops->gather(d->peers, &x);
}

static void run_member(void *ctx, uint32_t index)
{
    struct run *r = ctx;
    const struct ek_graph *g = r->d->graph;
    struct member m = {.run = r, .rows = {.d = r->d, .step = r->step, .index = index}};
    bool shared = false; /* the operation before was not divided by rows */
    bool logits = false;

    divide(&m, r->step->rows);
    cpu_ropes(&m.rows);
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        bool splits = op->kind == EK_OP_LINEAR || op->kind == EK_OP_LOGITS ||
                      op->kind == EK_OP_PICK || op->kind == EK_OP_EXPERTS ||
                      op->kind == EK_OP_HEADS || op->kind == EK_OP_CONV ||
                      op->kind == EK_OP_DELTA || op->kind == EK_OP_SCAN;
        bool summed = op->kind == EK_OP_NORM && op->u.norm.whole > 0;
        bool meets = op->kind == EK_OP_REDUCE || op->kind == EK_OP_GATHER ||
                     op->kind == EK_OP_SEND || op->kind == EK_OP_RECV || summed;
        if ((shared && (!meets || summed)) || splits)
            cpu_pool_barrier(r->d->pool);
        shared = splits || op->kind == EK_OP_ATTENTION;
        if (meets)
            exchange(&m, op);
        else if (gated(r->d->values, op, g->ops + g->op_count)) {
            gated_product(&m, op);
            i++; /* the activation is done, too */
        } else if (op->kind == EK_OP_LINEAR || op->kind == EK_OP_LOGITS)
            product(&m, op);
        else if (op->kind == EK_OP_ATTENTION)
            attention(&m, op);
        else if (op->kind == EK_OP_PICK) {
            divide(&m, r->step->logit_rows);
            cpu_pick(&m.rows, op);
        } else if (op->kind == EK_OP_EXPERTS)
            experts(&m, op);
        else if (op->kind == EK_OP_HEADS)
            cpu_heads(&m.rows, op, scratch_of(&m));
        else if (op->kind == EK_OP_CONV)
            cpu_conv(&m.rows, op);
        else if (op->kind == EK_OP_DELTA)
            cpu_delta(&m.rows, op);
        else if (op->kind == EK_OP_SCAN)
            cpu_scan(&m.rows, op);
        else if (logits)
            cpu_cap_logits(&m.rows, op);
        else
            cpu_by_rows(&m.rows, op);
        logits = logits || op->kind == EK_OP_LOGITS;
        if (op->kind == EK_OP_PICK && r->step->logit_rows == 0)
            return; /* every member leaves here; a chunk in the middle of a prompt needs no more */
    }
}

static int copy_blocks(struct ek_device *d, const struct ek_step *step)
{
    const struct ek_block_copy *c = ek_step_copies(step);
    size_t bytes = d->shape.block_bytes;

    for (uint32_t i = 0; i < step->copies; i++)
        if ((c[i].from_tier == EK_TIER_HOST && c[i].from >= d->host_blocks) ||
            (c[i].to_tier == EK_TIER_HOST && c[i].to >= d->host_blocks))
            return -EBADMSG;
    for (uint32_t i = 0; i < step->copies; i++) {
        if (c[i].to_tier == EK_TIER_STATE) {
            cpu_state_copy(d, c[i].from, c[i].to);
            continue;
        }
        const char *from = c[i].from_tier == EK_TIER_HOST ? d->host_kv.at : d->kv.at;
        char *to = c[i].to_tier == EK_TIER_HOST ? d->host_kv.at : d->kv.at;
        memmove(to + c[i].to * bytes, from + c[i].from * bytes, bytes);
    }
    return 0;
}

/* Into how many parts attentions are divided: where there are fewer spans and heads than members,
 * as many as the longest context has, if there is room for what they come to. */
static uint32_t parts_of(const struct run *r)
{
    const struct ek_device *d = r->d;
    const struct ek_step_seq *q = ek_step_seqs(r->step);
    uint32_t most = 0;

    for (uint32_t i = 0; i < r->step->seqs; i++)
        most = q[i].context > most ? q[i].context : most;
    const uint32_t parts = most / CPU_PART + (most % CPU_PART != 0);
    for (uint32_t i = 0; i < d->graph->op_count; i++) {
        const struct ek_op *op = &d->graph->ops[i];
        if (op->kind != EK_OP_ATTENTION)
            continue;
        const uint64_t items = (uint64_t)r->spans * op->u.attention.kv_heads;
        if (items >= d->threads ||
            items * parts * cpu_partial_floats(d->shape.dim, op, r->highest) >
                d->shape.partial_floats)
            return 1;
    }
    return parts > 1 ? parts : 1;
}

/* What was sampled, by slot: of a stage before the last one that is elsewhere, and what is in the
 * making is waited for. */
static int sampled_tokens(struct ek_device *d, const int32_t **ret_last)
{
    const int32_t *last = d->last;
    const bool told = !ek_graph_last(d->graph) && d->samples > 0;
    int r = told ? d->peers->ops->hear(d->peers, d->samples, d->plan.ceiling.seqs, &last) : 0;

    if (r == 0)
        *ret_last = last;
    return r;
}

/* Tokens that the slots remember; -EBADMSG when nothing was sampled before. */
static int resolve_tokens(struct run *r, int32_t *token)
{
    const struct ek_step_seq *q = ek_step_seqs(r->step);
    const int32_t *last = NULL;
    int bad = 0;

    memcpy(token, ek_step_tokens(r->step), r->step->rows * sizeof(*token));
    for (uint32_t i = 0; ek_graph_first(r->d->graph) && i < r->step->seqs; i++, q++)
        for (uint32_t row = q->row; row < q->row + q->rows; row++) {
            int code = last || token[row] >= 0 ? 0 : sampled_tokens(r->d, &last);
            if (code < 0)
                return code;
            if (token[row] == EK_FROM_PREVIOUS)
                token[row] = last[q->slot];
            if (token[row] < 0) {
                bad = -EBADMSG;
                token[row] = 0;
            }
        }
    return bad;
}

/* Queries that share a head of keys: the most in any layer. */
static uint32_t group_of(const struct ek_op *op, uint32_t most)
{
    const uint32_t group = op->u.attention.q_heads / op->u.attention.kv_heads;

    return group > most ? group : most;
}

/* The tokens, the spans of attention and the rows that need logits. */
static int prepare(struct run *r)
{
    /* cppcheck-suppress ctuuninitvar ; what is read of it has been set */
    struct ek_device *d = r->d;
    const struct ek_step_seq *q = ek_step_seqs(r->step);
    uint32_t group = 1;
    uint32_t *picked = cpu_arena(d, d->shape.pick_at);
    struct cpu_row_span *span = cpu_arena(d, d->shape.span_at);

    for (uint32_t i = 0; i < d->graph->op_count; i++)
        if (d->graph->ops[i].kind == EK_OP_ATTENTION)
            group = group_of(&d->graph->ops[i], group);
    uint32_t height = group < CPU_QUERIES ? CPU_QUERIES / group : 1;
    for (uint32_t i = 0; i < r->step->seqs; i++, q++) {
        for (uint32_t row = 0; row < q->rows; row += height) {
            const uint32_t rows = q->rows - row < height ? q->rows - row : height;
            span[r->spans++] = (struct cpu_row_span){i, q->row + row, rows};
            r->highest = rows > r->highest ? rows : r->highest;
        }
        if (q->sample)
            picked[q->logit_row] = q->row + q->rows - 1;
        for (uint32_t k = 0; k < q->scores; k++)
            picked[q->score_row + k] = q->row + q->rows - q->sample - q->scores + k;
    }
    r->parts = parts_of(r);
    return resolve_tokens(r, cpu_arena(d, d->shape.token_at));
}

int cpu_forward(struct ek_device *d, const struct ek_step *step, uint64_t *ret_copy_us)
{
    const struct ek_slot_set *set = ek_step_sets(step);
    struct run r; /* not cleared as a whole: it has room for many members */

    r.d = d;
    r.step = step;
    r.spans = r.highest = 0;
    for (uint32_t i = 0; i < d->threads; i++)
        r.taken[0][i].count = r.taken[1][i].count = 0;
    int code = ek_step_check(step, step->bytes, &d->plan.ceiling, d->graph->vocab, d->kv_blocks,
                             d->shape.block_size, d->state_count);
    if (code == 0 && step->logit_rows > d->plan.logit_rows)
        code = -EBADMSG;
    if (code == 0)
        code = cpu_states_check(d, step);
    uint64_t start = ek_now_us();
    if (code == 0 && step->copies > 0) {
        code = copy_blocks(d, step);
        *ret_copy_us = ek_now_us() - start;
    }
    if (code < 0)
        return code;
    for (uint32_t i = 0; i < step->sets; i++)
        cpu_slot_set(d, step, &set[i]);
    cpu_states_begin(d, step);
    code = prepare(&r);
    /* Stages that have begun are not left alone for a token that is wrong. */
    const bool awaited = code == -EBADMSG && d->graph->stages > 1;
    if ((code < 0 && !awaited) || step->rows == 0)
        return code;
    cpu_pool_run(d->pool, run_member, &r);
    int state = d->peers ? d->peers->ops->state(d->peers) : 0;
    return state < 0 ? state : code;
}
