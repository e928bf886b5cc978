/*
 * Interprets the operation list for one step. All members of the team walk the list together. An
 * operation that treats rows one by one is divided by rows, always alike, so that a run of such
 * operations needs no barrier between them; a matrix product is divided by panels of its output
 * (and blocks of rows), attention by spans and heads, with a barrier before and after.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/cpu/cpu.h"
#include "kernels/cpu/num.h"
#include "kernels/quant.h"

/* How many items of a member's part of an attention are taken; in a cache line of its own. */
struct taken {
    _Alignas(64) _Atomic uint32_t count;
};

struct run {
    struct ek_device *d;
    const struct ek_step *step;
    uint32_t spans;
    uint32_t highest;                        /* rows of a span */
    uint32_t parts;                          /* that an attention is divided into; 1: it is not */
    struct taken taken[2][CPU_MOST_THREADS]; /* attentions take turns with the two */
};

struct member {
    struct run *run;
    uint32_t index;
    uint32_t first, end; /* its rows: of the step, after the pick of the logit rows */
    uint32_t rows;       /* of the domain: step or logit rows */
    uint32_t attentions; /* done so far */
};

static void *arena(const struct ek_device *d, size_t at)
{
    return d->arena.at + at;
}

static char *scratch_of(const struct member *m)
{
    const struct ek_device *d = m->run->d;
    return d->arena.at + d->shape.scratch_at + m->index * d->shape.scratch_bytes;
}

static const float *vector(const struct ek_device *d, uint32_t weight)
{
    if (weight == EK_NO_WEIGHT)
        return NULL;
    return (const float *)(const void *)(d->weight_memory.at + d->weights[weight].at);
}

static void divide(struct member *m, uint32_t rows)
{
    uint64_t threads = m->run->d->threads;

    m->rows = rows;
    m->first = (uint32_t)((uint64_t)rows * m->index / threads);
    m->end = (uint32_t)((uint64_t)rows * (m->index + 1) / threads);
}

/* cos and sin of a row, [count] each, times the table's factor. */
static void fill_rope(const struct ek_rope *r, uint32_t position, uint32_t length, float *cosine,
                      float *sine)
{
    const bool beyond = r->above > 0 && length > r->above;
    const double step = beyond ? -ek_rope_log_base(r, length) / r->count : 0;

    for (uint32_t k = 0; k < r->count; k++) {
        float freq = beyond ? (float)exp(step * k) : r->inv_freq[k], s, c;
        sincosf((float)position * freq, &s, &c);
        cosine[k] = c * r->factor;
        sine[k] = s * r->factor;
    }
}

static void fill_ropes(const struct member *m)
{
    const struct ek_device *d = m->run->d;
    const uint32_t *position = ek_step_positions(m->run->step);
    const struct ek_step_seq *q = ek_step_seqs(m->run->step);

    for (uint32_t i = 0; i < d->graph->rope_count; i++) {
        const struct ek_rope *r = &d->graph->ropes[i];
        float *cosine = arena(d, d->rope_at[i]);
        float *sine = cosine + (size_t)d->plan.ceiling.rows * r->count;
        for (uint32_t row = m->first, seq = 0; row < m->end; row++) {
            while (row >= q[seq].row + q[seq].rows)
                seq++;
            uint32_t length = position[row] + 1 > q[seq].prompt ? position[row] + 1 : q[seq].prompt;
            fill_rope(r, position[row], length, cosine + (size_t)row * r->count,
                      sine + (size_t)row * r->count);
        }
    }
}

static void rope_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const uint32_t half = op->u.rope.rotary_dim / 2;
    const float *c = (const float *)arena(d, d->rope_at[op->u.rope.table]) + (size_t)row * half;
    const float *s = c + (size_t)d->plan.ceiling.rows * half;
    float *x = cpu_row(d, op->dst, row) + op->u.rope.first_col;

    for (uint32_t h = 0; h < op->u.rope.heads; h++)
        d->ops->rope(x + (size_t)h * op->u.rope.head_dim, c, s, half);
}

static void embed_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    const struct cpu_weight *w = &d->weights[op->weight];
    const char *at = d->weight_memory.at + w->at;
    uint32_t token = (uint32_t)((const int32_t *)arena(d, d->shape.token_at))[row];
    float *dst = cpu_row(d, op->dst, row), scale = op->u.embed.scale;

    token -= d->graph->vocab_first;
    if (token >= w->rows) { /* of another rank */
        memset(dst, 0, w->cols * sizeof(*dst));
        return;
    }
    if (w->layout == CPU_PANELS) { /* tied to the logits: gathered from the packed panel */
        at += token / CPU_PANEL * w->panel_bytes;
        for (uint32_t k = 0; k < w->cols && ek_dtype_packed(w->dtype); k++)
            dst[k] = cpu_kept_value(d, w, at, k, token % CPU_PANEL) * scale;
        for (uint32_t k = 0; k < w->cols && !ek_dtype_packed(w->dtype); k++) {
            size_t index = cpu_panel_index(d->ops->pairs, w->dtype, k, token % CPU_PANEL);
            dst[k] = cpu_load(w->dtype, at, index) * scale;
        }
        return;
    }
    for (uint32_t k = 0; k < w->cols; k++)
        dst[k] = cpu_load(w->dtype, at, (size_t)token * w->cols + k) * scale;
}

static void norm_row(const struct ek_device *d, const struct ek_op *op, uint32_t row)
{
    uint32_t heads = op->u.norm.heads ? op->u.norm.heads : 1;

    for (uint32_t h = 0; h < heads; h++) {
        size_t col = op->u.norm.first + (size_t)h * op->u.norm.group;
        d->ops->norm(cpu_row(d, op->dst, row) + col, cpu_row(d, op->src, row) + col,
                     vector(d, op->weight), op->u.norm.group, op->u.norm.eps, op->u.norm.offset);
    }
}

static void by_rows(const struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;

    for (uint32_t row = m->first; row < m->end; row++) {
        float *dst = cpu_row(d, op->dst, row);
        uint32_t n = d->values[op->dst].width;
        switch (op->kind) {
        case EK_OP_EMBED: embed_row(d, op, row); break;
        case EK_OP_NORM: norm_row(d, op, row); break;
        case EK_OP_ROPE: rope_row(d, op, row); break;
        case EK_OP_GLU: {
            const float *src = cpu_row(d, op->src, row);
            d->ops->glu(dst, src, src + n, n, op->u.glu.act);
            break;
        }
        case EK_OP_ADD: d->ops->add(dst, cpu_row(d, op->src, row), n, op->u.add.scale); break;
        case EK_OP_SOFTCAP: d->ops->softcap(dst, n, op->u.softcap.cap); break;
        case EK_OP_LINEAR:
        case EK_OP_ATTENTION:
        case EK_OP_EXPERTS:
        case EK_OP_PICK:
        case EK_OP_LOGITS:
        case EK_OP_REDUCE:
        case EK_OP_GATHER:
        case EK_OP_SEND:
        case EK_OP_RECV: break; /* not of this kind */
        }
    }
}

struct product {
    const struct cpu_weight *w;
    const float *x, *bias;
    float *c;
    size_t x_stride, c_stride;
    float scale;
    char *scratch;
};

/* Rows [row, row + rows) of panels [panel, end). */
static void product_part(const struct ek_device *d, const struct product *p, uint32_t row,
                         uint32_t rows, uint32_t panel, uint32_t end)
{
    const struct cpu_weight *w = p->w;
    const struct cpu_product product = {.w = w,
                                        .x = p->x + row * p->x_stride,
                                        .x_stride = p->x_stride,
                                        .c = p->c + row * p->c_stride + (size_t)panel * CPU_PANEL,
                                        .c_stride = p->c_stride,
                                        .rows = rows,
                                        .panel = panel,
                                        .panels = end - panel,
                                        .scratch = p->scratch};

    cpu_multiply(d, &product);
    uint32_t first = panel * CPU_PANEL,
             last = end * CPU_PANEL < w->rows ? end * CPU_PANEL : w->rows;
    for (uint32_t i = row; i < row + rows; i++) {
        float *c = p->c + i * p->c_stride;
        if (p->scale != 1.0f)
            d->ops->scale(c + first, c + first, last - first, p->scale);
        for (uint32_t k = first; p->bias && k < last; k++)
            c[k] += p->bias[k];
    }
}

static struct product product_of(const struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;
    bool logits = op->kind == EK_OP_LOGITS;

    return (struct product){
        .w = &d->weights[op->weight],
        .x = cpu_row(d, op->src, 0),
        .bias = logits ? NULL : vector(d, op->bias),
        .c = logits ? cpu_logits(d, 0) + d->graph->vocab_first : cpu_row(d, op->dst, 0),
        .x_stride = d->values[op->src].stride,
        .c_stride = logits ? d->shape.logit_stride : d->values[op->dst].stride,
        .scale = logits ? op->u.logits.scale : 1.0f,
        .scratch = scratch_of(m),
    };
}

/* A share of the units (blocks of rows) x (panels): a run of panels in one block of rows. Blocks
 * are of equal height, give or take one row. */
struct share {
    uint64_t unit, end, blocks;
    uint32_t panels, row, rows, panel, count;
};

static struct share share_of(const struct member *m, uint32_t panels)
{
    uint64_t blocks = (m->rows + CPU_ROW_CHUNK - 1) / CPU_ROW_CHUNK, units = blocks * panels;
    uint64_t threads = m->run->d->threads;

    return (struct share){.unit = units * m->index / threads,
                          .end = units * (m->index + 1) / threads,
                          .blocks = blocks,
                          .panels = panels};
}

/* The next run; false at the end of the share. */
static bool share_next(const struct member *m, struct share *s)
{
    if (s->unit >= s->end)
        return false;
    const uint64_t block = s->unit / s->panels;
    s->row = (uint32_t)(m->rows * block / s->blocks);
    s->rows = (uint32_t)(m->rows * (block + 1) / s->blocks) - s->row;
    s->panel = (uint32_t)(s->unit % s->panels);
    s->count = s->panels - s->panel;
    s->count = s->end - s->unit < s->count ? (uint32_t)(s->end - s->unit) : s->count;
    s->unit += s->count;
    return true;
}

static void product(const struct member *m, const struct ek_op *op)
{
    struct product p = product_of(m, op);
    struct share s = share_of(m, p.w->panels);

    while (share_next(m, &s))
        product_part(m->run->d, &p, s.row, s.rows, s.panel, s.panel + s.count);
}

/* A gated pair of products and its activation may be done as one: each member takes the same
 * columns of gate and up and combines them while they are in its own cache. */
static bool gated(const struct ek_device *d, const struct ek_op *op, const struct ek_op *end)
{
    return op + 1 < end && op->kind == EK_OP_LINEAR && op[1].kind == EK_OP_GLU &&
           op[1].src == op->dst && op[1].dst != op->src &&
           d->values[op[1].dst].width % CPU_PANEL == 0;
}

static void gated_product(const struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;
    const struct ek_op *glu = op + 1;
    uint32_t n = d->values[glu->dst].width, half = n / CPU_PANEL;
    struct product p = product_of(m, op);
    struct share s = share_of(m, half);

    while (share_next(m, &s)) {
        product_part(d, &p, s.row, s.rows, s.panel, s.panel + s.count);
        product_part(d, &p, s.row, s.rows, half + s.panel, half + s.panel + s.count);
        for (uint32_t row = s.row; row < s.row + s.rows; row++) {
            size_t col = (size_t)s.panel * CPU_PANEL;
            const float *gate = cpu_row(d, op->dst, row) + col;
            d->ops->glu(cpu_row(d, glu->dst, row) + col, gate, gate + n, s.count * CPU_PANEL,
                        glu->u.glu.act);
        }
    }
}

/* An item of an attention: a part of a span for one head, its head and span in turn. */
static struct cpu_item item_of(const struct run *r, const struct ek_op *op, uint32_t i)
{
    const struct ek_device *d = r->d;
    const struct cpu_span *span = arena(d, d->shape.span_at);
    const uint32_t heads = op->u.attention.kv_heads, one = i / r->parts;
    struct cpu_item item = {.span = &span[one / heads], .head = one % heads, .part = i % r->parts};

    if (r->parts > 1) { /* all spans have the room of the highest */
        const size_t floats = cpu_partial_floats(d, op, r->highest) * r->parts;
        item.queries = item.span->rows * (op->u.attention.q_heads / heads);
        item.partial = (float *)arena(d, d->shape.partial_at) + one * floats;
    }
    return item;
}

/* The items of one member's part that nobody has taken yet. Long contexts tend to come last: begins
 * with them. */
static void attend_part(struct member *m, const struct ek_op *op, struct taken *taken,
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

    for (uint32_t i = m->index; i < r->spans * op->u.attention.kv_heads; i += r->d->threads) {
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
    uint32_t turn = m->attentions++ & 1;

    for (uint32_t row = m->first; row < m->end; row++)
        cpu_kv_write(d, r->step, op, row);
    cpu_pool_barrier(d->pool);
    /* nobody uses the other counters before the next barrier */
    atomic_store_explicit(&r->taken[turn ^ 1][m->index].count, 0, memory_order_relaxed);
    for (uint32_t i = 0; i < d->threads; i++) {
        uint32_t part = (m->index + i) % d->threads;
        attend_part(m, op, &r->taken[turn][part], part);
    }
    if (r->parts > 1) {
        cpu_pool_barrier(d->pool);
        combine_parts(m, op);
    }
}

static void experts(const struct member *m, const struct ek_op *op)
{
    const struct cpu_experts_member e = {m->index, m->first, m->end, m->rows, scratch_of(m)};

    cpu_experts(m->run->d, op, &e);
}

static void pick(struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;
    const uint32_t *from = arena(d, d->shape.pick_at);

    divide(m, m->run->step->logit_rows);
    for (uint32_t row = m->first; row < m->end; row++)
        memcpy(cpu_row(d, op->dst, row), cpu_row(d, op->src, from[row]),
               d->values[op->dst].width * sizeof(float));
}

static void cap_logits(const struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;

    for (uint32_t row = m->first; row < m->end; row++)
        d->ops->softcap(cpu_logits(d, row) + d->graph->vocab_first, ek_graph_vocab_rows(d->graph),
                        op->u.softcap.cap);
}

/* A norm of which this rank has a share: the squares of all ranks are added first. */
static void norm_of_all(const struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;
    const uint32_t n = op->u.norm.group, first = op->u.norm.first;
    float *squares = arena(d, d->shape.square_at);
    const float *w = vector(d, op->weight);
    const struct ek_exchange x = {.data = squares,
                                  .dtype = EK_F32,
                                  .rows = 1,
                                  .width = m->rows,
                                  .stride = m->rows,
                                  .member = m->index};

    for (uint32_t row = m->first; row < m->end; row++) {
        const float *src = cpu_row(d, op->src, row) + first;
        float sum = 0.0f;
        for (uint32_t i = 0; i < n; i++)
            sum += src[i] * src[i];
        squares[row] = sum;
    }
    (void)d->peers->ops->reduce(d->peers, &x);
    for (uint32_t row = m->first; row < m->end; row++) {
        const float *src = cpu_row(d, op->src, row) + first;
        float *dst = cpu_row(d, op->dst, row) + first;
        float by = 1.0f / sqrtf(squares[row] / (float)op->u.norm.whole + op->u.norm.eps);
        for (uint32_t i = 0; i < n; i++)
            dst[i] = src[i] * by * (w ? w[i] + op->u.norm.offset : 1.0f);
    }
}

/* Has barriers of its own before and after. A group that failed is seen when the step ends. */
static void exchange(const struct member *m, const struct ek_op *op)
{
    const struct ek_device *d = m->run->d;
    struct ek_exchange x = {.dtype = EK_F32, .rows = m->rows, .member = m->index};

    if (op->kind == EK_OP_NORM) {
        norm_of_all(m, op);
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
    struct member m = {.run = r, .index = index};
    bool shared = false; /* the operation before was not divided by rows */
    bool logits = false;

    divide(&m, r->step->rows);
    fill_ropes(&m);
    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        bool splits = op->kind == EK_OP_LINEAR || op->kind == EK_OP_LOGITS ||
                      op->kind == EK_OP_PICK || op->kind == EK_OP_EXPERTS;
        bool summed = op->kind == EK_OP_NORM && op->u.norm.whole > 0;
        bool meets = op->kind == EK_OP_REDUCE || op->kind == EK_OP_GATHER ||
                     op->kind == EK_OP_SEND || op->kind == EK_OP_RECV || summed;
        if ((shared && (!meets || summed)) || splits)
            cpu_pool_barrier(r->d->pool);
        shared = splits || op->kind == EK_OP_ATTENTION;
        if (meets)
            exchange(&m, op);
        else if (gated(r->d, op, g->ops + g->op_count)) {
            gated_product(&m, op);
            i++; /* the activation is done, too */
        } else if (op->kind == EK_OP_LINEAR || op->kind == EK_OP_LOGITS)
            product(&m, op);
        else if (op->kind == EK_OP_ATTENTION)
            attention(&m, op);
        else if (op->kind == EK_OP_PICK)
            pick(&m, op);
        else if (op->kind == EK_OP_EXPERTS)
            experts(&m, op);
        else if (logits)
            cap_logits(&m, op);
        else
            by_rows(&m, op);
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
            items * parts * cpu_partial_floats(d, op, r->highest) > d->shape.partial_floats)
            return 1;
    }
    return parts > 1 ? parts : 1;
}

/* The slots that know what was sampled: of a stage before the last one they are elsewhere, and what
 * is in the making is waited for. */
static int sampled_slots(struct ek_device *d, const struct cpu_slot **ret_slots)
{
    const void *slots = d->slots;
    const bool told = !ek_graph_last(d->graph) && d->samples > 0;
    int r = told ? d->peers->ops->hear(d->peers, d->samples, &slots) : 0;

    if (r == 0)
        *ret_slots = slots;
    return r;
}

/* Tokens that the slots remember; -EBADMSG when nothing was sampled before. */
static int resolve_tokens(struct run *r, int32_t *token)
{
    const struct ek_step_seq *q = ek_step_seqs(r->step);
    const struct cpu_slot *slots = NULL;
    int bad = 0;

    memcpy(token, ek_step_tokens(r->step), r->step->rows * sizeof(*token));
    for (uint32_t i = 0; ek_graph_first(r->d->graph) && i < r->step->seqs; i++, q++)
        for (uint32_t row = q->row; row < q->row + q->rows; row++) {
            int code = slots || token[row] >= 0 ? 0 : sampled_slots(r->d, &slots);
            if (code < 0)
                return code;
            if (token[row] == EK_FROM_PREVIOUS)
                token[row] = slots[q->slot].last;
            if (token[row] < 0) {
                bad = -EBADMSG;
                token[row] = 0;
            }
        }
    return bad;
}

/* The tokens, the spans of attention and the rows that need logits. */
static int prepare(struct run *r)
{
    struct ek_device *d = r->d;
    const struct ek_step_seq *q = ek_step_seqs(r->step);
    uint32_t group = 1;
    uint32_t *picked = arena(d, d->shape.pick_at);
    struct cpu_span *span = arena(d, d->shape.span_at);

    for (uint32_t i = 0; i < d->graph->op_count; i++)
        if (d->graph->ops[i].kind == EK_OP_ATTENTION)
            group = d->graph->ops[i].u.attention.q_heads / d->graph->ops[i].u.attention.kv_heads;
    uint32_t height = group < CPU_QUERIES ? CPU_QUERIES / group : 1;
    for (uint32_t i = 0; i < r->step->seqs; i++, q++) {
        for (uint32_t row = 0; row < q->rows; row += height) {
            const uint32_t rows = q->rows - row < height ? q->rows - row : height;
            span[r->spans++] = (struct cpu_span){i, q->row + row, rows};
            r->highest = rows > r->highest ? rows : r->highest;
        }
        if (q->sample)
            picked[q->logit_row] = q->row + q->rows - 1;
        for (uint32_t k = 0; k < q->scores; k++)
            picked[q->score_row + k] = q->row + q->rows - q->sample - q->scores + k;
    }
    r->parts = parts_of(r);
    return resolve_tokens(r, arena(d, d->shape.token_at));
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
                             d->shape.block_size);
    if (code == 0 && step->logit_rows > d->plan.logit_rows)
        code = -EBADMSG;
    uint64_t start = ek_now_us();
    if (code == 0 && step->copies > 0) {
        code = copy_blocks(d, step);
        *ret_copy_us = ek_now_us() - start;
    }
    if (code < 0)
        return code;
    for (uint32_t i = 0; i < step->sets; i++)
        cpu_slot_set(d, step, &set[i]);
    code = prepare(&r);
    /* Stages that have begun are not left alone for a token that is wrong. */
    const bool awaited = code == -EBADMSG && d->graph->stages > 1;
    if ((code < 0 && !awaited) || step->rows == 0)
        return code;
    cpu_pool_run(d->pool, run_member, &r);
    int state = d->peers ? d->peers->ops->state(d->peers) : 0;
    return state < 0 ? state : code;
}
