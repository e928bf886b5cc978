/*
 * One step as plain data, and its result as plain data: each is one flat buffer that holds offsets
 * and never pointers, so that it can be copied, sent to a child process or uploaded as it is.
 *
 * A step is a mix of rows: each row is one token of one sequence. Rows of a sequence are adjacent
 * and in order of position; sequences that decode have one row, prompt chunks have many. A row's
 * token may be EK_FROM_PREVIOUS: the token that this sequence's slot sampled in the step before,
 * which may still be on the device. Two steps may be in flight.
 *
 * Order within a step: block copies (one after the other), slot changes, forward, sample.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#define EK_FROM_PREVIOUS (-1)
#define EK_NULL_BLOCK    0u  /* block 0 is never given to a sequence */
#define EK_TOP_MOST      20u /* most alternatives reported for a sampled token */
#define EK_STEP_TOKENS   8u  /* most tokens a sequence can gain in one step (speculation, later) */
#define EK_TIER_DEVICE   0u
#define EK_TIER_HOST     1u

/* One sequence of a step. */
struct ek_step_seq {
    uint32_t slot;          /* persistent sampling state, 0 .. max_seqs-1 */
    uint32_t row, rows;     /* its rows in this step */
    uint32_t context;       /* tokens in the cache after this step (position of the last row + 1) */
    uint32_t table, blocks; /* its block table: entries [table, table + blocks) */
    uint32_t sample;        /* 1: the last row's logits are sampled (a chunk that ends a prompt, or
                               a decode); 0: a chunk in the middle */
    uint32_t logit_row;     /* index among the logit rows when sample = 1 */
};

/* Sets the sampling state of a slot; sent once when a request enters, not with every step. */
struct ek_slot_set {
    uint32_t slot;
    uint32_t top_k;     /* 0 = off */
    float temperature;  /* 0 = greedy */
    float top_p, min_p; /* 1 and 0 = off */
    uint32_t top;       /* how many alternatives to report, 0 .. EK_TOP_MOST */
    uint64_t seed; /* the random number of a token is a function of (seed, its position) alone */
};

struct ek_block_copy {
    uint32_t from, to;
    uint8_t from_tier, to_tier;
    uint8_t pad[2];
};

/* Header of the flat buffer; `*_at` are byte offsets from its start, 8-byte aligned. */
struct ek_step {
    uint64_t id; /* 1, 2, 3, ... */
    uint32_t bytes;
    uint32_t rows, seqs, logit_rows, entries, sets, copies;
    uint32_t token_at, position_at, kv_slot_at, seq_at, table_at, set_at, copy_at;
    uint32_t pad;
};

#define EK_STEP_ARRAY(name, type, at)                                                              \
    static inline type *ek_step_##name(const struct ek_step *s)                                    \
    {                                                                                              \
        return (type *)((uintptr_t)s + s->at);                                                     \
    }
EK_STEP_ARRAY(tokens, int32_t, token_at)             /* [rows] id or EK_FROM_PREVIOUS */
EK_STEP_ARRAY(positions, uint32_t, position_at)      /* [rows] */
EK_STEP_ARRAY(kv_slots, uint32_t, kv_slot_at)        /* [rows] block * block_size + offset */
EK_STEP_ARRAY(seqs, struct ek_step_seq, seq_at)      /* [seqs] */
EK_STEP_ARRAY(tables, uint32_t, table_at)            /* [entries] block ids */
EK_STEP_ARRAY(sets, struct ek_slot_set, set_at)      /* [sets] */
EK_STEP_ARRAY(copies, struct ek_block_copy, copy_at) /* [copies] */
#undef EK_STEP_ARRAY

/* Ceilings of a step; both buffers are sized for them once. */
struct ek_step_ceiling {
    uint32_t rows, seqs, entries, copies;
};

/* Bytes of a step buffer for these ceilings, 0 on overflow. */
size_t ek_step_size(const struct ek_step_ceiling *c);
/* Lays out an empty step (all counts 0, all offsets set for the ceilings) in memory of that size,
 * 8-byte aligned. A writer then fills the arrays and raises the counts. */
void ek_step_layout(struct ek_step *s, const struct ek_step_ceiling *c);
/*
 * 0, or -EBADMSG when an offset, count or index of a received step is out of its bounds. Besides
 * what the structs say: the sequences tile the rows in order (row of the first is 0, each begins
 * where the one before ended), logit rows are numbered in the order of the sequences, a row's
 * position is context - rows + its index, and its KV slot lies in the block that the table names.
 */
int ek_step_check(const struct ek_step *s, size_t bytes, const struct ek_step_ceiling *c,
                  uint32_t vocab, uint32_t kv_blocks, uint32_t block_size);

/* What one sampled sequence gained. */
struct ek_result_seq {
    uint32_t slot;
    uint32_t tokens; /* 1 .. EK_STEP_TOKENS; 0 for a sequence that was not sampled, or of whose
                        logits no token may be chosen (none allowed, or not a number) */
    int32_t token[EK_STEP_TOKENS];
    float logit[EK_STEP_TOKENS]; /* raw logit of the token, before temperature */
    float lse;    /* log of the sum of exp of all raw logits: logprob = logit - lse */
    uint32_t top; /* alternatives of the last token, largest first */
    int32_t top_id[EK_TOP_MOST];
    float top_logit[EK_TOP_MOST];
};

struct ek_result {
    uint64_t step;
    int32_t error; /* 0 or a code of common/err.h for the whole step */
    uint32_t seqs; /* as many as the step's, in its order */
    uint64_t forward_us, sample_us;
    uint64_t copy_us; /* time of the block copies alone, 0 = not measured */
    struct ek_result_seq seq[];
};

static inline size_t ek_result_size(uint32_t seqs)
{
    return sizeof(struct ek_result) + (size_t)seqs * sizeof(struct ek_result_seq);
}

/* Allowed tokens per logit row (grammars): bits[row][vocab / 32 rounded up], bit set = allowed. */
struct ek_masks {
    uint32_t rows, words; /* words per row */
    uint32_t bits[];
};
