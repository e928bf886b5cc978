/* Which rows and columns of weights a rank has; called by shard.c for each operation of a list. */
#include "kernels/shard_cut.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "kernels/quant.h"
#include "kernels/shard.h"

#define UNIT 32u /* columns: a panel of the CPU's products */

enum { CUT_ROWS = 1, CUT_COLS };

uint32_t ek_shard_unit(uint32_t n, uint32_t group, uint32_t ranks)
{
    uint32_t unit = group > 1 ? group : 1;

    if (n < ranks)
        return 0;
    while (unit % UNIT != 0 && (uint64_t)n / (2ull * unit) >= ranks)
        unit *= 2;
    while (n / unit < ranks)
        unit = unit % 2 == 0 ? unit / 2 : 1;
    return unit;
}

uint32_t ek_shard_vocab(uint32_t vocab, uint32_t rank, uint32_t ranks)
{
    uint32_t unit = ek_shard_unit(vocab, 1, ranks);
    return unit > 0 ? ek_shard_begin(vocab, unit, rank, ranks) : 0;
}

struct shard_cut shard_cut_of(const struct sharding *s, uint32_t n, uint32_t unit)
{
    uint32_t first = ek_shard_begin(n, unit, s->rank, s->ranks);
    return (struct shard_cut){first, ek_shard_begin(n, unit, s->rank + 1, s->ranks) - first};
}

static const char *kind_name(enum ek_op_kind k)
{
    switch (k) {
    case EK_OP_EMBED: return "embedding";
    case EK_OP_NORM: return "norm";
    case EK_OP_LINEAR: return "product";
    case EK_OP_HEADS: return "product by heads";
    case EK_OP_ROPE: return "rotation";
    case EK_OP_ATTENTION: return "attention";
    case EK_OP_GLU: return "activation";
    case EK_OP_EXPERTS: return "mixture of experts";
    case EK_OP_ADD: return "addition";
    case EK_OP_SCALE: return "scale";
    case EK_OP_SOFTCAP: return "soft cap";
    case EK_OP_TAKE: return "move of columns";
    case EK_OP_GATE: return "gate";
    case EK_OP_CONV: return "convolution";
    case EK_OP_DELTA: return "delta rule";
    case EK_OP_SCAN: return "scan";
    case EK_OP_MIX: return "mix of streams";
    case EK_OP_MATCH: return "match of sizes";
    case EK_OP_CUT: return "cut";
    case EK_OP_PICK: return "pick";
    case EK_OP_LOGITS: return "output layer";
    case EK_OP_REDUCE:
    case EK_OP_GATHER: return "collective";
    case EK_OP_SEND:
    case EK_OP_RECV: return "end of a stage";
    }
    return "operation";
}

int shard_no_rule(const struct sharding *s, const char *why)
{
    ek_fault_write(s->fault, "tensor-parallel-size",
                   "--tensor-parallel-size %u: there is no rule how ranks share a %s %s (operation "
                   "%u of %u): use 1",
                   s->ranks, kind_name(s->op.kind), why, s->at, s->g->op_count);
    return -ENOTSUP;
}

static bool heads_divide(uint32_t q, uint32_t kv, uint32_t ranks)
{
    return q % ranks == 0 && (kv % ranks == 0 || ranks % kv == 0);
}

int shard_check_heads(const struct sharding *s, uint32_t q, uint32_t kv)
{
    char fit[96] = "1";

    if (heads_divide(q, kv, s->ranks))
        return 0;
    for (uint32_t n = 2; n <= q && n <= EK_MOST_RANKS; n++)
        if (heads_divide(q, kv, n))
            (void)snprintf(fit + strlen(fit), sizeof(fit) - strlen(fit), ", %u", n);
    return ek_fault_set(s->fault, "tensor-parallel-size",
                        "--tensor-parallel-size %u: the model has %u heads of queries and %u of "
                        "keys, which so many ranks cannot share evenly; choose one of %s",
                        s->ranks, q, kv, fit);
}

int shard_too_narrow(const struct sharding *s, uint32_t columns)
{
    return ek_fault_set(s->fault, "tensor-parallel-size",
                        "--tensor-parallel-size %u: a %s has only %u columns; choose fewer ranks",
                        s->ranks, kind_name(s->op.kind), columns);
}

/* Takes rows [c.first, c.first + c.count) of the whole weight: more parts. */
static int take_rows(const struct sharding *s, const struct ek_weight *whole, struct shard_cut c,
                     struct ek_weight *w)
{
    uint32_t part = 0, row = c.first, left = c.count;

    while (part < whole->parts && row >= whole->part[part].rows)
        row -= whole->part[part++].rows;
    for (; left > 0; part++, row = 0) {
        if (part == whole->parts || w->parts == EK_MOST_PARTS)
            return shard_no_rule(s, "whose rows lie so in the files");
        uint32_t rows = whole->part[part].rows - row;
        rows = rows < left ? rows : left;
        w->part[w->parts] = whole->part[part];
        w->part[w->parts].rows = rows;
        w->part[w->parts].skip += row;
        if (whole->quantized)
            s->out->quants[s->out->quant_count++] = s->g->quants[whole->quant + part];
        w->parts++;
        w->rows += rows;
        left -= rows;
    }
    return 0;
}

int shard_cut_rows(struct sharding *s, uint32_t index, const struct shard_cut *c, uint32_t count)
{
    if (index == EK_NO_WEIGHT || s->cut[index] == CUT_ROWS)
        return 0; /* of two operations with the same rule: embedding and output layer */
    if (s->cut[index])
        return shard_no_rule(s, "whose weight serves another operation");
    const struct ek_weight *whole = &s->g->weights[index];
    struct ek_weight *w = &s->out->weights[index];
    w->parts = w->rows = 0;
    w->quant = s->out->quant_count;
    for (uint32_t i = 0; i < count; i++) {
        int r = take_rows(s, whole, c[i], w);
        if (r < 0)
            return r;
    }
    s->cut[index] = CUT_ROWS;
    return 0;
}

/* Columns that share a published scale, 1 where a cut may be anywhere. */
static uint32_t group_of(const struct ek_graph *g, uint32_t index)
{
    const struct ek_weight *w = &g->weights[index];
    bool grouped = w->quantized && ek_dtype_packed(w->dtype) && w->group > 0 && w->group < w->cols;
    return grouped ? w->group : 1;
}

uint32_t shard_widest_group(const struct ek_graph *g, uint32_t cols)
{
    uint32_t most = 1;

    for (uint32_t i = 0; i < g->weight_count; i++)
        if (g->weights[i].cols == cols && group_of(g, i) > most)
            most = group_of(g, i);
    return most;
}

int shard_cut_cols(struct sharding *s, uint32_t index, struct shard_cut c)
{
    struct ek_weight *w = &s->out->weights[index];
    uint32_t group = group_of(s->g, index), end = c.first + c.count;

    if (s->cut[index])
        return shard_no_rule(s, "whose weight serves another operation");
    s->cut[index] = CUT_COLS;
    bool between = c.first % group == 0 && (end % group == 0 || end == w->cols);
    if (!between && c.first / group != (end - 1) / group) {
        w->dtype = s->g->dtype; /* its groups cannot be kept: it is unpacked */
        w->group = 0;
    }
    w->file_cols = ek_weight_file_cols(w);
    w->first_col += c.first;
    w->cols = c.count;
    return 0;
}

int shard_piece(struct sharding *s, bool more, struct shard_cut c, bool rows, uint32_t *index)
{
    if (*index == EK_NO_WEIGHT)
        return 0;
    if (!more)
        return rows ? shard_cut_rows(s, *index, &c, 1) : shard_cut_cols(s, *index, c);
    const struct ek_weight *whole = &s->g->weights[*index];
    struct ek_weight *w = &s->out->weights[s->out->weight_count];
    *index = s->out->weight_count++;
    *w = *whole;
    if (rows) {
        w->parts = w->rows = 0;
        return take_rows(s, whole, c, w);
    }
    w->file_cols = ek_weight_file_cols(w);
    w->first_col += c.first;
    w->cols = c.count;
    return 0;
}
