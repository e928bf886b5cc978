/*
 * One step as plain data, and its result as plain data: each is one flat buffer that holds offsets
 * and never pointers, so that it can be copied, sent to a child process or uploaded as it is.
 *
 * A step is a mix of rows: each row is one token of one sequence. Rows of a sequence are adjacent
 * and in order of position; sequences that decode have one row, prompt chunks have many. A row's
 * token may be EK_FROM_PREVIOUS: the token that this sequence's slot sampled in the step before,
 * which may still be on the device. Two steps may be in flight. A step may have block copies alone
 * and no rows.
 *
 * Order within a step: block copies (one after the other), slot changes, forward, sample.
 *
 * A slot that wants penalties or banned words has a history: the ids of its sequence. It is sent
 * once, with the slot's setting, as far as it is known then; from there on the backend adds each
 * token that it samples for the slot, so a token that is still on the device counts in the step
 * that follows it. A sequence that comes back after a preemption is set anew with the longer
 * history, which is why its draws do not depend on what happened to it. So is one whose step was
 * taken back.
 *
 * A graph with recurrent state has state slots: that of a sequence is the one with the number of
 * its `slot`, and each row changes it in place, so no position may be computed twice upon it and no
 * step may name it twice. A sequence whose first row in a step is at position 0 begins from zero.
 * Slots behind those of the sequences are snapshots: copies with EK_TIER_STATE fill and read them.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/sampling.h"

#define EK_FROM_PREVIOUS (-1)
#define EK_NULL_BLOCK    0u  /* block 0 is never given to a sequence */
#define EK_TOP_MOST      20u /* most alternatives reported for a sampled token */
#define EK_STEP_TOKENS   8u  /* most tokens a sequence can gain in one step (speculation, later) */
#define EK_STEP_SCORES   64u /* most rows of a step whose next, known token is scored */
#define EK_BIAS_MOST     1024u /* of a slot */
#define EK_BANNED_MOST   32u
#define EK_BAD_WORDS     1024u /* words of banned sequences of a slot */
#define EK_TIER_DEVICE   0u
#define EK_TIER_HOST     1u
#define EK_TIER_STATE    2u /* from and to: state slots, and so both tiers */

/* One sequence of a step. */
struct ek_step_seq {
    uint32_t slot;          /* persistent sampling state, 0 .. max_seqs-1 */
    uint32_t row, rows;     /* its rows in this step */
    uint32_t context;       /* tokens in the cache after this step (position of the last row + 1) */
    uint32_t table, blocks; /* its block table: entries [table, table + blocks) */
    uint32_t sample;        /* 1: the last row's logits are sampled (a chunk that ends a prompt, or
                               a decode); 0: a chunk in the middle */
    uint32_t logit_row;     /* index among the logit rows when sample = 1 */
    uint32_t scores;        /* how many rows, the last ones before a sampled one, are scored: the
                               log probability of the token that follows is asked for */
    uint32_t score_row;     /* index of the first among the logit rows; sampled ones come first */
    uint32_t target;        /* in the words: the tokens that follow [scores] */
    uint32_t hidden;        /* 1: the hidden state behind the sampled row's logits is asked for */
    uint32_t prompt;        /* tokens of its prompt: what frequencies that change with the length
                               of a sequence (struct ek_rope) take for its length at least */
};

/* Sets the sampling state of a slot; sent once when a request enters, not with every step. */
struct ek_slot_set {
    uint32_t slot;
    uint32_t top; /* how many alternatives to report, 0 .. EK_TOP_MOST */
    struct ek_sampling sampling;
    uint32_t banned_until;   /* positions below do not get one of the banned tokens */
    uint32_t word;           /* where its words begin; in this order: */
    uint32_t allowed;        /* words of a bit set of the vocabulary, 0 = all may be chosen */
    uint32_t biases;         /* pairs of id and float: added to logits */
    uint32_t banned;         /* ids: not chosen for positions below banned_until */
    uint32_t bad;            /* words of sequences, each its length and its ids: what has been
                                sampled is not continued so that it ends in one of them */
    uint32_t prompt, output; /* history: ids of the prompt and behind it; 0, 0 = not needed */
};

/* Words that a slot's setting brings. */
static inline uint64_t ek_slot_words(const struct ek_slot_set *s)
{
    return (uint64_t)s->allowed + 2 * (uint64_t)s->biases + s->banned + s->bad +
           (uint64_t)s->prompt + s->output;
}

struct ek_block_copy {
    uint32_t from, to;
    uint8_t from_tier, to_tier;
    uint8_t pad[2];
};

/* Header of the flat buffer; `*_at` are byte offsets from its start, 8-byte aligned. */
struct ek_step {
    uint64_t id; /* 1, 2, 3, ... */
    uint32_t bytes;
    uint32_t rows, seqs, logit_rows, entries, sets, copies, words;
    uint32_t token_at, position_at, kv_slot_at, seq_at, table_at, set_at, copy_at, word_at;
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
EK_STEP_ARRAY(words, uint32_t, word_at)              /* [words] of slots and of scores */
#undef EK_STEP_ARRAY

/* Ceilings of a step; both buffers are sized for them once. `words` is also what a slot can hold,
 * a history that grows to the model's length included. */
struct ek_step_ceiling {
    uint32_t rows, seqs, entries, copies;
    uint32_t words, scores;
};

/* Bytes of a step buffer for these ceilings, 0 on overflow. */
size_t ek_step_size(const struct ek_step_ceiling *c);
/* Lays out an empty step (all counts 0, all offsets set for the ceilings) in memory of that size,
 * 8-byte aligned. A writer then fills the arrays and raises the counts. */
void ek_step_layout(struct ek_step *s, const struct ek_step_ceiling *c);
/* A copy without what the ceilings leave unused, so that a decode step is a few hundred bytes;
 * there is room for s->bytes. */
void ek_step_pack(const struct ek_step *s, struct ek_step *ret_packed);
/*
 * 0, or -EBADMSG when an offset, count or index of a received step is out of its bounds. Besides
 * what the structs say: the sequences tile the rows in order (row of the first is 0, each begins
 * where the one before ended), logit rows are numbered in the order of the sequences, those of
 * scores behind those that are sampled, a row's position is context - rows + its index, and its KV
 * slot lies in the block that the table names. `states`: state slots that copies may name.
 */
int ek_step_check(const struct ek_step *s, size_t bytes, const struct ek_step_ceiling *c,
                  uint32_t vocab, uint32_t kv_blocks, uint32_t block_size, uint32_t states);

/* What one sampled sequence gained. */
struct ek_result_seq {
    uint32_t slot;
    uint32_t tokens; /* 1 .. EK_STEP_TOKENS; 0 for a sequence that was not sampled, or of whose
                        logits no token may be chosen (none allowed, or not a number: then
                        lse is not a number either); a step that was planned on top of it
                        goes on with token 0 */
    int32_t token[EK_STEP_TOKENS];
    float logit[EK_STEP_TOKENS]; /* raw logit of the token, before temperature */
    float lse;    /* log of the sum of exp of all raw logits: logprob = logit - lse */
    uint32_t top; /* alternatives of the last token, largest first */
    int32_t top_id[EK_TOP_MOST];
    float top_logit[EK_TOP_MOST];
};

/* How likely the known token was that follows a scored row. */
struct ek_result_score {
    float logit, lse; /* as above */
    uint32_t rank;    /* 1 = the likeliest */
    uint32_t top;
    int32_t top_id[EK_TOP_MOST];
    float top_logit[EK_TOP_MOST];
};

/* Behind the sequences lie the scores in the order of their logit rows, then the hidden states in
 * the order of the sequences that asked for one. */
struct ek_result {
    uint64_t step;
    int32_t error; /* 0 or a code of common/err.h for the whole step */
    uint32_t seqs; /* as many as the step's, in its order */
    uint32_t scores, hiddens;
    uint32_t width; /* of a hidden state, 0 when there is none */
    uint32_t sum;   /* without sequences: ek_result_sum() of a result that it stands for, or 0 */
    uint64_t forward_us, sample_us;
    uint64_t copy_us; /* time of the block copies alone, 0 = not measured */
    struct ek_result_seq seq[];
};

static inline size_t ek_result_size(uint32_t seqs)
{
    return sizeof(struct ek_result) + (size_t)seqs * sizeof(struct ek_result_seq);
}

/* With scores and hidden states; 0 on overflow. */
size_t ek_result_bytes(uint32_t seqs, uint32_t scores, uint32_t hiddens, uint32_t width);
static inline size_t ek_result_own_bytes(const struct ek_result *r)
{
    return ek_result_bytes(r->seqs, r->scores, r->hiddens, r->width);
}
/* Of slots and tokens: ranks that sample have to agree on it. */
uint32_t ek_result_sum(const struct ek_result *r);
/* -EBADMSG when counts of a received result do not fit its bytes, or their own arrays. */
int ek_result_check(const struct ek_result *r, size_t bytes);
static inline struct ek_result_score *ek_result_scores(const struct ek_result *r)
{
    return (struct ek_result_score *)((uintptr_t)r + ek_result_size(r->seqs));
}
static inline float *ek_result_hidden(const struct ek_result *r, uint32_t index)
{
    return (float *)((uintptr_t)(ek_result_scores(r) + r->scores)) + (size_t)index * r->width;
}

/* Allowed tokens per sampled logit row (grammars): bits[row][vocab / 32 rounded up], bit set =
 * allowed. */
struct ek_masks {
    uint32_t rows, words; /* words per row */
    uint32_t bits[];
};

static inline size_t ek_masks_bytes(const struct ek_masks *m)
{
    return sizeof(*m) + (size_t)m->rows * m->words * sizeof(m->bits[0]);
}
