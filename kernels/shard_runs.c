/*
 * Values of which a rank has several runs of columns (shard.c): what goes into a recurrent layer, a
 * short convolution or a feed-forward, and what is taken out of it. A recurrent layer is divided by
 * its heads, as attention is: a rank has the rows of its heads of the product before it, their
 * channels of the convolution, their part of the state, and their columns of the product behind it,
 * whose results are added up. Where groups of B and C are fewer than ranks, or heads of k are, or
 * the layer is built otherwise, shard.c gives every rank all of the layer.
 */
#include <errno.h>
#include <string.h>

#include "kernels/shard.h"
#include "kernels/shard_cut.h"

static uint32_t columns_of(const struct shard_runs *r)
{
    uint32_t sum = 0;

    for (uint32_t i = 0; i < r->count; i++)
        sum += r->run[i].count;
    return sum;
}

static void runs_add(struct shard_runs *r, uint32_t first, uint32_t count)
{
    if (r->count < SHARD_MOST_RUNS)
        r->run[r->count] = (struct shard_cut){first, count};
    r->count++; /* more than there is room for: no rule takes such a value */
}

/* The rank's of `parts` equal shares of columns [first, first + count). */
static void runs_share(const struct sharding *s, struct shard_runs *r, uint32_t first,
                       uint32_t count)
{
    runs_add(r, first + count / s->ranks * s->rank, count / s->ranks);
}

/* The runs in columns [first, first + count), moved to begin with `to`, and the rank's column where
 * they begin. False: there are none, or one lies across an end. */
static bool runs_within(const struct shard_runs *r, struct shard_cut all, uint32_t to,
                        struct shard_runs *ret_part, uint32_t *ret_local)
{
    uint32_t local = 0;
    const uint64_t end = (uint64_t)all.first + all.count;

    *ret_part = (struct shard_runs){0};
    for (uint32_t i = 0; i < r->count; i++) {
        const struct shard_cut c = r->run[i];
        const uint64_t to_end = (uint64_t)c.first + c.count;
        if (to_end > all.first && c.first < end) {
            if (c.first < all.first || to_end > end)
                return false;
            if (ret_part->count == 0)
                *ret_local = local;
            runs_add(ret_part, c.first - all.first + to, c.count);
        }
        local += c.count;
    }
    return ret_part->count > 0;
}

/* What a rank has of a value that is divided by columns. */
static bool runs_of(const struct shard_held *h, struct shard_runs *ret_runs)
{
    if (h->form != COLUMNS && h->form != RUNS)
        return false;
    *ret_runs = h->form == RUNS ? h->runs : (struct shard_runs){1, {h->columns}};
    return ret_runs->count <= SHARD_MOST_RUNS;
}

static int shard_runs_hold(struct sharding *s, uint16_t value, const struct shard_runs *r)
{
    struct shard_held *h = &s->held[value];

    if (r->count > SHARD_MOST_RUNS)
        return shard_no_rule(s, "of so many parts");
    *h = (struct shard_held){.form = r->count == 1 ? COLUMNS : RUNS, .columns = r->run[0]};
    h->runs = *r;
    return shard_width(s, value, columns_of(r));
}

/* ---- products ---- */

/* What comes of a value: the operation whose rule decides how it is divided. */
struct destiny {
    const struct ek_op *rule; /* delta rule, scan, or the last convolution before a gate */
    bool taken;               /* its columns are moved first */
    bool gates;               /* it is what a delta rule is gated by */
};

static bool destiny_of(const struct sharding *s, uint16_t value, struct destiny *d)
{
    const struct ek_op *op = &s->g->ops[s->at + 1], *end = s->g->ops + s->g->op_count;

    for (; op < end; op++) {
        if (op->kind == EK_OP_SCAN && (op->src == value || op->u.scan.steps == value)) {
            d->rule = op;
            return true;
        }
        if (op->kind == EK_OP_DELTA && (op->src == value || op->u.delta.gates == value)) {
            d->gates = op->u.delta.gates == value;
            d->rule = op;
            return true;
        }
        if ((op->kind == EK_OP_CONV || op->kind == EK_OP_TAKE) && op->src == value) {
            d->taken = d->taken || op->kind == EK_OP_TAKE;
            d->rule = op->kind == EK_OP_CONV ? op : d->rule;
            value = op->dst;
        } else if (op->kind != EK_OP_TAKE && op->kind != EK_OP_SCALE && op->kind != EK_OP_GATE &&
                   op->dst == value) {
            break;
        } else if (op->kind != EK_OP_GATE && op->src == value && op->dst != value) {
            break;
        }
    }
    return d->rule != NULL;
}

static bool delta_runs(const struct sharding *s, const struct destiny *d, uint32_t n,
                       struct shard_runs *r)
{
    const struct ek_delta *t = &d->rule->u.delta;
    const uint32_t keys = t->k_heads * t->k_dim, values = t->v_heads * t->v_dim;

    if (t->k_heads % s->ranks != 0)
        return false;
    if (d->taken) { /* heads of k one after the other, each with all that is its */
        runs_share(s, r, 0, n);
        return n % t->k_heads == 0;
    }
    if (d->gates) {
        runs_share(s, r, 0, t->v_heads);
        runs_share(s, r, t->v_heads, t->v_heads);
        return n == 2 * t->v_heads;
    }
    runs_share(s, r, 0, keys);
    runs_share(s, r, keys, keys);
    runs_share(s, r, 2 * keys, values);
    runs_share(s, r, 2 * keys + values, values);
    return n == 2 * keys + 2 * values;
}

static bool scan_runs(const struct sharding *s, const struct destiny *d, uint32_t n,
                      struct shard_runs *r)
{
    const struct ek_scan *t = &d->rule->u.scan;
    const uint32_t inner = t->heads * t->head_dim, each = t->groups * t->state_dim;

    if (t->heads % s->ranks != 0 || (t->groups % s->ranks != 0 && t->groups > 1))
        return false;
    runs_share(s, r, 0, inner);
    runs_share(s, r, inner, inner);
    for (uint32_t i = 0; i < 2; i++) {
        if (t->groups % s->ranks == 0)
            runs_share(s, r, 2 * inner + i * each, each);
        else
            runs_add(r, 2 * inner + i * each, each);
    }
    runs_share(s, r, 2 * inner + 2 * each, t->heads);
    return n == 2 * inner + 2 * each + t->heads && t->step_first == 2 * inner + 2 * each;
}

/* A short convolution between two gates: three values of one width. */
static bool conv_runs(const struct sharding *s, const struct destiny *d, uint32_t n,
                      struct shard_runs *r)
{
    const uint32_t one = s->g->value_width[d->rule->dst];
    const uint32_t unit = ek_shard_unit(one, shard_widest_group(s->g, one), s->ranks);

    if (n != 3 * one || unit == 0 || !d->taken)
        return false;
    const struct shard_cut c = shard_cut_of(s, one, unit);
    for (uint32_t i = 0; i < 3; i++)
        runs_add(r, i * one + c.first, c.count);
    return true;
}

bool shard_state_runs(const struct sharding *s, struct shard_runs *ret_runs)
{
    const uint32_t n = s->g->value_width[s->op.dst];
    struct destiny d = {0};

    *ret_runs = (struct shard_runs){0};
    if (s->whole_states || !destiny_of(s, s->op.dst, &d))
        return false;
    if (d.rule->kind == EK_OP_DELTA)
        return delta_runs(s, &d, n, ret_runs);
    if (d.rule->kind == EK_OP_SCAN)
        return scan_runs(s, &d, n, ret_runs);
    return conv_runs(s, &d, n, ret_runs);
}

int shard_linear_runs(struct sharding *s, const struct shard_runs *r)
{
    int code = shard_cut_rows(s, s->op.weight, r->run, r->count);

    if (code == 0)
        code = shard_cut_rows(s, s->op.bias, r->run, r->count);
    shard_push(s, &s->op);
    return code < 0 ? code : shard_runs_hold(s, s->op.dst, r);
}

/* ---- moves and gates ---- */

/* Columns of each head of k, out of a value where they lie by heads. */
static bool take_by_heads(struct sharding *s, const struct shard_runs *src, struct shard_runs *part)
{
    const uint32_t n = s->op.u.take.heads, step = s->op.u.take.step, mine = n / s->ranks;
    const uint32_t group = s->op.u.take.group;

    if (n % s->ranks != 0 || s->op.u.take.first + group > step || src->count != 1 ||
        src->run[0].first != s->rank * mine * step || src->run[0].count != mine * step)
        return false;
    s->op.u.take.heads = mine;
    *part = (struct shard_runs){0};
    runs_share(s, part, s->op.u.take.to, n * group);
    return true;
}

/* Columns side by side. */
static bool take_run(struct sharding *s, const struct shard_runs *src, struct shard_runs *part)
{
    const struct shard_cut all = {s->op.u.take.first, s->op.u.take.group};

    if (s->op.u.take.heads != 1 ||
        !runs_within(src, all, s->op.u.take.to, part, &s->op.u.take.first))
        return false;
    s->op.u.take.group = columns_of(part);
    return true;
}

/* Where `part` is put: over the same columns of dst, or behind those that it has. */
static bool take_to(struct sharding *s, const struct shard_runs *part, struct shard_runs *all)
{
    const struct ek_op *whole = &s->g->ops[s->at];
    const uint32_t first = whole->u.take.to, count = whole->u.take.heads * whole->u.take.group;
    struct shard_runs there;

    if (!runs_of(&s->held[s->op.dst], all))
        *all = (struct shard_runs){0};
    if (runs_within(all, (struct shard_cut){first, count}, first, &there, &s->op.u.take.to))
        return memcmp(&there, part, sizeof(there)) == 0;
    if (first == 0)
        *all = (struct shard_runs){0};
    if (all->count > 0 && all->run[all->count - 1].first >= first)
        return false;
    s->op.u.take.to = columns_of(all);
    for (uint32_t i = 0; i < part->count; i++)
        runs_add(all, part->run[i].first, part->run[i].count);
    s->width_set[s->op.dst] = 0; /* it becomes wider with each such move */
    return true;
}

int shard_take_runs(struct sharding *s)
{
    struct shard_runs src, part, all;

    if (!runs_of(&s->held[s->op.src], &src) ||
        !(s->op.u.take.heads > 1 ? take_by_heads(s, &src, &part) : take_run(s, &src, &part)) ||
        !take_to(s, &part, &all))
        return shard_no_rule(s, "of divided columns");
    shard_push(s, &s->op);
    return shard_runs_hold(s, s->op.dst, &all);
}

bool shard_columns_at(const struct sharding *s, uint16_t value, struct shard_cut c,
                      uint32_t *ret_local)
{
    struct shard_runs all, part;

    return runs_of(&s->held[value], &all) && runs_within(&all, c, 0, &part, ret_local) &&
           columns_of(&part) == c.count;
}

/* ---- operations with a state ---- */

/* One of several convolutions, by the columns [c.first, c.first + c.count) of the whole one's
 * weight, to a value of its own. */
static int conv_piece(struct sharding *s, uint32_t i, struct shard_cut c, uint32_t from)
{
    struct ek_op op = s->op;
    const uint16_t value = (uint16_t)(s->g->value_count + i);

    if (s->width_set[value] && s->out->value_width[value] != c.count)
        return shard_no_rule(s, "whose value is divided in two ways");
    s->width_set[value] = 1;
    s->out->value_width[value] = c.count;
    if (value >= s->out->value_count)
        s->out->value_count = value + 1u;
    op.dst = value;
    op.u.conv.first = from;
    int r = shard_piece(s, i > 0, c, false, &op.weight);
    if (r == 0)
        r = shard_piece(s, i > 0, c, true, &op.bias);
    shard_push(s, &op);
    return r;
}

/* The weight's columns lie apart in the file, so each run is convolved by itself. */
static int conv_apart(struct sharding *s, const struct shard_runs *part, uint32_t from)
{
    uint32_t to = 0;
    int r = 0;

    for (uint32_t i = 0, at = from; r == 0 && i < part->count; at += part->run[i++].count)
        r = conv_piece(s, i, part->run[i], at);
    for (uint32_t i = 0; i < part->count; to += part->run[i++].count) {
        const struct ek_op take = {.kind = EK_OP_TAKE,
                                   .dst = s->op.dst,
                                   .src = (uint16_t)(s->g->value_count + i),
                                   .weight = EK_NO_WEIGHT,
                                   .bias = EK_NO_WEIGHT,
                                   .u.take = {.group = part->run[i].count, .heads = 1, .to = to}};
        shard_push(s, &take);
    }
    return r;
}

int shard_conv(struct sharding *s)
{
    const struct shard_cut all = {s->op.u.conv.first, s->g->value_width[s->op.dst]};
    struct shard_runs src, part;
    uint32_t from = 0;

    if (!runs_of(&s->held[s->op.src], &src) || !runs_within(&src, all, 0, &part, &from) ||
        part.count > SHARD_MOST_PIECES)
        return shard_no_rule(s, "of divided columns");
    int r = 0;
    if (part.count > 1) {
        r = conv_apart(s, &part, from);
    } else {
        s->op.u.conv.first = from;
        r = shard_cut_cols(s, s->op.weight, part.run[0]);
        if (r == 0)
            r = shard_cut_rows(s, s->op.bias, part.run, 1);
        shard_push(s, &s->op);
    }
    return r < 0 ? r : shard_runs_hold(s, s->op.dst, &part);
}

static int hold_heads(struct sharding *s, uint32_t width)
{
    struct shard_runs r = {0};

    runs_share(s, &r, 0, width);
    shard_push(s, &s->op);
    return shard_runs_hold(s, s->op.dst, &r);
}

int shard_delta(struct sharding *s)
{
    struct ek_delta *t = &s->op.u.delta;
    const uint32_t heads = t->v_heads, width = heads * t->v_dim;
    struct shard_runs mine = {0};

    if (s->held[s->op.src].form != RUNS || s->held[t->gates].form != RUNS)
        return shard_no_rule(s, "of divided columns");
    runs_share(s, &mine, 0, heads);
    t->k_heads /= s->ranks;
    t->v_heads /= s->ranks;
    int r = shard_cut_rows(s, s->op.weight, mine.run, 1);
    if (r == 0)
        r = shard_cut_rows(s, s->op.bias, mine.run, 1);
    return r < 0 ? r : hold_heads(s, width);
}

int shard_scan(struct sharding *s)
{
    struct ek_scan *t = &s->op.u.scan;
    const uint32_t heads = t->heads, each = heads / s->ranks;
    const struct shard_cut steps = {t->step_first + each * s->rank, each};
    struct shard_runs mine = {0};

    if (s->held[s->op.src].form != RUNS || !shard_columns_at(s, t->steps, steps, &t->step_first))
        return shard_no_rule(s, "of divided columns");
    runs_share(s, &mine, 0, heads);
    t->heads = each;
    t->groups = t->groups % s->ranks == 0 ? t->groups / s->ranks : t->groups;
    int r = shard_cut_rows(s, s->op.weight, mine.run, 1);
    if (r == 0)
        r = shard_cut_rows(s, s->op.bias, mine.run, 1);
    if (r == 0)
        r = shard_cut_rows(s, t->skip, mine.run, 1);
    return r < 0 ? r : hold_heads(s, heads * t->head_dim);
}

/* In groups, each on one rank; or of all columns, whose squares are added up. */
int shard_norm_columns(struct sharding *s)
{
    const struct shard_cut c = s->held[s->op.src].columns;
    const uint32_t n = s->g->value_width[s->op.src], group = s->op.u.norm.group;
    const uint32_t heads = s->op.u.norm.heads > 0 ? s->op.u.norm.heads : 1;
    const bool grouped = group < n, own = s->op.u.norm.own || !grouped;

    if (s->op.dst != s->op.src || s->op.u.norm.first > 0 || s->op.u.norm.centred ||
        s->op.bias != EK_NO_WEIGHT || group * heads != n ||
        (grouped && (c.first % group != 0 || c.count % group != 0)))
        return shard_no_rule(s, "of divided columns");
    if (grouped) {
        s->op.u.norm.heads = c.count / group;
    } else {
        s->op.u.norm.own = false;
        s->op.u.norm.group = c.count;
        s->op.u.norm.whole = n;
    }
    int r = own && s->op.weight != EK_NO_WEIGHT ? shard_cut_cols(s, s->op.weight, c) : 0;
    shard_push(s, &s->op);
    return r;
}

#define STATE_LINE 16u /* floats */

void shard_states(struct ek_graph *out)
{
    uint32_t at = 0, was;

    for (uint32_t i = 0; i < out->op_count; i++) {
        struct ek_op *op = &out->ops[i];
        const uint64_t floats = ek_op_state(out, op, &was); /* no more than the whole model's */
        if (floats == 0)
            continue;
        *(op->kind == EK_OP_CONV    ? &op->u.conv.state_at
          : op->kind == EK_OP_DELTA ? &op->u.delta.state_at
                                    : &op->u.scan.state_at) = at;
        at += (uint32_t)((floats + STATE_LINE - 1) / STATE_LINE * STATE_LINE);
    }
    out->state_floats = at;
}
