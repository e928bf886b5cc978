/*
 * What a model computes, as data: a list of operations over row-wise values. server/model builds it
 * from config.json, a backend interprets it. Both backends read the same list, which makes the CPU
 * the reference. Adding a family means writing this list, not kernels.
 *
 * A value is a matrix [rows, width] of activations that lives for one step; `rows` is the step's
 * row count, or its number of logit rows for values after EK_OP_PICK. Values may be reused.
 */
#pragma once

#include <math.h>
#include <stdbool.h>
#include <stdint.h>

/* EK_F4_E2M1: a sign above one of 0, 0.5, 1, 1.5, 2, 3, 4 and 6 (codes 0 to 7), with scales that
 * are powers of two from 2^-127 to 2^127. */
enum ek_dtype { EK_F32, EK_F16, EK_BF16, EK_F8_E4M3, EK_I8, EK_I4, EK_F4_E2M1 };

static inline uint32_t ek_dtype_bits(enum ek_dtype t)
{
    switch (t) {
    case EK_F32: return 32;
    case EK_F16:
    case EK_BF16: return 16;
    case EK_F8_E4M3:
    case EK_I8: return 8;
    case EK_I4:
    case EK_F4_E2M1: return 4;
    }
    return 0;
}

/* A range of a weight file: `rows` x `cols` elements, row-major, as stored, little-endian. The
 * offset may be unaligned for the element type: read with memcpy. Within the file: checked. */
struct ek_weight_part {
    uint32_t file; /* index into ek_weight_files */
    uint64_t offset_bytes;
    uint32_t rows;
    uint32_t skip; /* rows of the range before them: those of other ranks */
};

/* A quantized matrix [rows, cols] as published: value = (number - zero) * scale, where numbers lie
 * in files as `kind` says, and a scale and a zero serve a block of elements. A file of UINT32_MAX:
 * there is none. Bits are packed into little-endian 32-bit words, lowest first, without gaps. */
enum ek_quant_kind {
    EK_QUANT_F8,     /* numbers [rows, cols] of F8_E4M3; no zeros */
    EK_QUANT_I8,     /* [rows, cols] of int8; zeros int8 as the scales */
    EK_QUANT_PACKED, /* compressed-tensors: bits along cols, zeros along rows, both less 2^(bits-1)
                      */
    EK_QUANT_GPTQ,   /* bits along cols as [words, rows]; zeros along rows [groups, words] */
    EK_QUANT_AWQ,   /* 4 bits along rows as [cols, words], zeros [groups, words]; in a word the rows
                       0 2 4 6 1 3 5 7 */
    EK_QUANT_MXFP4, /* two columns in a byte, the lower one in its low half, of EK_F4_E2M1; scales
                       are bytes, powers of two from 2^-127; no zeros */
    EK_QUANT_NVFP4, /* the same numbers, scales are of F8_E4M3, all multiplied with `times` */
};

struct ek_quant_range {
    uint32_t file;
    enum ek_dtype dtype; /* of scales */
    uint64_t offset_bytes;
};

struct ek_quant {
    enum ek_quant_kind kind;
    uint32_t rows, cols, bits;
    uint32_t block_rows, block_cols; /* elements that share a scale */
    uint32_t zero_add;               /* added to a stored zero */
    uint32_t row_step;               /* MXFP4, NVFP4: rows of the file from one to the next, >= 1 */
    /* F8, I8, MXFP4, NVFP4: 0, or the matrix lies transposed, as numbers [cols, col_step] of which
     * `rows` side by side are its own; of E2M1 a byte holds columns 2i and 2i + 1 of a row, and
     * scales lie as [groups, col_step]. */
    uint32_t col_step;
    float times; /* NVFP4: what all scales are multiplied with */
    /* Scales [rows / block_rows, cols / block_cols] rounded up, but for GPTQ and AWQ
     * [cols / block_cols, rows]; groups: int32 [cols], which column of scales each uses. */
    struct ek_quant_range numbers, scales, zeros, groups;
};

#define EK_NVFP4_GROUP 16u /* columns */

/* Scales of EK_F4_E2M1 are powers of two, a byte each, but those of NVFP4's groups, which are
 * floats as of other types. */
static inline bool ek_power_scales(enum ek_dtype t, uint32_t group)
{
    return t == EK_F4_E2M1 && group != EK_NVFP4_GROUP;
}

/* The narrowest type and the group that a matrix can be kept in without loss. False when its scales
 * are not those of adjacent columns (desc_act), or a group is odd: then it is to be unpacked. */
bool ek_quant_form(const struct ek_quant *q, enum ek_dtype *ret_dtype, uint32_t *ret_group);
#define EK_MOST_PARTS 6

/* A weight matrix [rows, cols], made of ranges stacked by rows (fused q|k|v, gate|up; a rank may
 * have some rows of each). The weight of a norm has rows = 1; a bias has cols = 1, so that its
 * parts stack like those of its matrix. `source` is the type in the file, `dtype` the one to
 * compute with: EK_F32 for norms and biases, the graph's for matrices. A weight may serve two
 * operations (tied embeddings: EK_OP_EMBED and EK_OP_LOGITS).
 *
 * A matrix of EK_OP_LINEAR, EK_OP_HEADS, EK_OP_EXPERTS or EK_OP_LOGITS may have a dtype of 8 or 4
 * bits: it is kept as such numbers and scales, one for `group` columns of a row, and a product in
 * the graph's type takes them as they are. What lies in the file as plain numbers is quantized for
 * that (see quant.h). */
struct ek_weight {
    char name[96]; /* of the first part, for messages */
    enum ek_dtype source, dtype;
    uint32_t rows, cols;
    uint32_t group; /* with a dtype of 8 or 4 bits: columns that share a scale, 0 = the row */
    /* The columns are [first_col, first_col + cols) of `file_cols` in the file; 0 = all of them. */
    uint32_t first_col, file_cols;
    /* Plain numbers that do not lie row after row: elements from a row to the next and from a
     * column to the next (transposed, or only every other row is of this weight). 0 = they do.
     * Quantized: 1 = the only part lies transposed, its rows from `skip` on are the columns. */
    uint32_t row_step, col_step;
    uint32_t parts;
    struct ek_weight_part part[EK_MOST_PARTS];
    /* The parts are quantized: graph->quants[quant + i] says how part i is read, its offset is that
     * of the numbers, and `source` their type. They are computed with in `dtype` like others; one
     * of 8 or 4 bits is what ek_quant_form() says. */
    bool quantized;
    uint32_t quant;
    /* With a dtype of 8 bits: the checkpoint was made for inputs of that type too (W8A8), with this
     * scale, or, if it is 0, one for each row: its largest magnitude (up to input_most, if that is
     * not 0) / 127 (int8) or / 448 (E4M3); for each group of a row where the weight has groups. A
     * backend may take inputs as they are, which is closer to the model before it was quantized. */
    bool rounds_input;
    float input_scale, input_most;
};

enum ek_op_kind {
    EK_OP_EMBED,  /* dst[rows, n] = weight[token] * scale; the row 0 of tokens beyond its rows, of
                     which a graph without ranks may have fewer than the vocabulary. `by_position`:
                     weight[position] * scale; each rank has all of the weight, which has at least
                     max_position rows */
    EK_OP_NORM,   /* dst = src / rms(src) * (weight + offset) (+ bias); over groups of `group`
                     elements (group = width for a plain norm, head_dim for q/k norms). `centred`:
                     of src less its mean (LayerNorm) */
    EK_OP_LINEAR, /* dst[rows, N] = src[rows, K] * weight[N, K]^T (+ bias[N]) */
    EK_OP_HEADS,  /* a product for each of `count` heads, which lie side by side: a head of dst is
                     [the first K elements of that of src * weight[N, K]^T | the `rest` behind
                     them as they are]; weights are those of the first head, the others follow */
    EK_OP_ROPE,   /* rotates, in place, `heads` heads of dst from column first_col (src = dst);
                     rotate_half: pairs (i, i + rotary_dim/2) of the first rotary_dim elements,
                     or pairs (2i, 2i + 1) if `neighbours`: angle = position * inv_freq[i], sin
                     and cos times the table's factor. Then, where warm_every > 0, whole heads
                     times 1 + warm * ln(1 + floor((position + warm_from) / warm_every)) */
    EK_OP_ATTENTION, /* src = [q heads | k heads | v heads]: writes k, v to the cache of `layer`,
                        then dst[rows, q_heads * head_dim] = attention over the paged context.
                        `bias`, where there is one, holds a sink for each query head [q_heads]: a
                        score beside those of the positions seen, as it is (neither scaled nor
                        capped), that takes its share of the softmax and adds nothing.
                        Latent, with a value_dim: src = [q heads], the value `keys` = [k heads], and
                        V of a head is the first value_dim elements of its K: dst[rows, q_heads *
                        value_dim].
                        With `reads`, src = [q heads]: the cells of the layer were written by an
                        attention before it, of as many KV heads of that size */
    EK_OP_GLU,       /* dst[rows, n] = act(src[:, :n]) * src[:, n:]; see enum ek_activation */
    EK_OP_EXPERTS,   /* mixture of experts: dst[rows, n] = sum over the `top` experts e that the
                        logits in the value `router` [rows, count] choose, in order of e, of
                        share[e] * (act(src * gate[e]^T) * (src * up[e]^T)) * down[e]^T; how they
                        are chosen and what share is: struct ek_routing. gate may be the same weights
                        as up. Biases of gate (`bias`), up and down are added to each of the three
                        products, where there are any: f32   [count, inner], and of down [count, n] */
    EK_OP_ADD,       /* dst += src * scale */
    EK_OP_SCALE,     /* dst *= scale, and by the weight, where there is one: f32, one number for all
                        columns or one for each */
    EK_OP_SOFTCAP,   /* dst = cap * tanh(dst / cap); after EK_OP_LOGITS: of the logits */
    EK_OP_PICK,      /* dst[logit_rows, n] = src at the rows that need logits */
    EK_OP_LOGITS,    /* logits[logit_rows, vocab] = src * weight^T * scale (+ bias[vocab]), kept in
                        the backend */
    EK_OP_REDUCE,    /* dst = the sum of all ranks' dst, added in order of the ranks */
    EK_OP_GATHER,    /* the last one: logits = the columns that the ranks have computed */
    EK_OP_TAKE,  /* dst[to + h * group + i] = src[first + h * step + i] for h < heads, i < group:
                    columns of runs that lie apart; with `to` 0 dst is begun anew */
    EK_OP_GATE,  /* dst[h * group + i] *= act(src[first + h * step + i]), over all of dst; a group
                    of 1 and a step of 0: all of it by one column. src may be dst where it is one
                    group from column 0: then each element by itself */
    EK_OP_CONV,  /* causal convolution over tokens, each channel by itself: dst[t, c] = act(bias[c]
                    + sum over j < kernel of weight[j, c] * x(t - kernel + 1 + j)[c]), where x(t)
                    are columns [first, first + width of dst) of src, before the sequence 0;
                    `silu`: act(x) = x * sigmoid(x), else x. State [kernel - 1, c]: the last x */
    EK_OP_DELTA, /* the gated delta rule: struct ek_delta */
    EK_OP_SCAN,  /* the scan of Mamba 2: struct ek_scan */
    EK_OP_MIX,   /* dst[to + o * group + i] += sum over j < inputs of (coefficient[o * inputs + j] +
                    plus) * src[j * group + i], for o < outputs, i < group; the coefficients are
                    columns of the value `by` from `first`, or with `fixed` 0 */
    EK_OP_MATCH, /* dst *= sqrt(mean(src^2) / max(mean(dst^2), least)) */
    EK_OP_CUT,   /* of dst[:, :group]: x = max(x - (mean + times * standard deviation), 0), both of
                    these columns of the row */
    EK_OP_SEND,  /* the last one of a stage: all rows of src go to the stage behind it */
    EK_OP_RECV,  /* the first one of a stage: dst = the rows that the stage before it sent */
};

/* Of a gate, which is then multiplied with up; but EK_ACT_SWIGLU_CLAMPED is of both:
 * g * sigmoid(EK_SWIGLU_ALPHA * g) * (u + 1), where g = gate up to EK_SWIGLU_MOST and u = up from
 * -EK_SWIGLU_MOST to EK_SWIGLU_MOST. */
enum ek_activation {
    EK_ACT_SILU,
    EK_ACT_GELU_TANH,
    EK_ACT_GELU,
    EK_ACT_SWIGLU_CLAMPED,
    EK_ACT_RELU
};
#define EK_SWIGLU_ALPHA 1.702f
#define EK_SWIGLU_MOST  7.0f

/* What a logit of the router is worth: its share of the softmax of all, or 1 / (1 + e^-logit). */
enum ek_score { EK_SCORE_SOFTMAX, EK_SCORE_SIGMOID };

/*
 * How a token chooses its experts. Each has the score above, and the largest of score + correction
 * win, of equals the lower number; the correction counts for the choice alone. With `groups`,
 * experts lie in so many equal runs; a run is worth its largest of these, or the sum of its two
 * largest (`group_best`), and only those of the `groups_top` worthiest runs can be chosen.
 *
 * The share of a chosen one is its score, divided by the sum over the chosen if `normalise`, times
 * `scale`. With `share_in` it multiplies src instead: the products of gate and up, and what an
 * expert gives counts whole.
 */
struct ek_routing {
    enum ek_score score;
    bool normalise, share_in;
    uint16_t groups, groups_top, group_best; /* groups 0 = none */
    float scale;                             /* above 0 */
    float least;                             /* a sum over the chosen that is less counts as this */
    uint32_t correction;                     /* weight f32 [count], or EK_NO_WEIGHT */
    uint32_t each; /* weight f32 [count] that multiplies the shares, or EK_NO_WEIGHT */
};

/* Of EK_OP_GATE: 1 / (1 + e^-x), x / (1 + e^-x), x, x or 0; GELU's share of x by its tanh and as it
 * is, (1 + erf(x / sqrt(2))) / 2; 1 for x > 0, else 0, which is the share that ReLU leaves of x;
 * the share that clipping to [-rising, rising] leaves, min(1, rising / |x|); and xIELU's (Huang,
 * Schlag, "Deriving Activation Functions Using Integration", 2024) with the operation's `rising`,
 * `falling` and `slope`: rising * x + slope for x > 0, falling * ((e^x - 1) / x - 1) + slope below.
 */
enum ek_gate {
    EK_GATE_SIGMOID,
    EK_GATE_SILU,
    EK_GATE_TIMES,
    EK_GATE_RELU,
    EK_GATE_GELU_TANH,
    EK_GATE_GELU,
    EK_GATE_STEP,
    EK_GATE_CLIP,
    EK_GATE_XIELU
};

struct ek_gate_numbers {
    float rising, falling, slope; /* of EK_GATE_XIELU; the first of EK_GATE_CLIP, above 0 */
};

/*
 * Linear attention by the gated delta rule (Yang, Kautz, Hatamizadeh, "Gated Delta Networks", 2024,
 * in the recurrent form that transformers computes for Qwen3-Next and Qwen3.5). src = [q heads | k
 * heads | v heads], `k_heads` of `k_dim` for q and k each, `v_heads` of `v_dim`; the value `gates`
 * = [b | a], each [v_heads]. Head h of v goes with head h / (v_heads / k_heads) of q and k, which
 * are divided by their length: q' = q / sqrt(|q|^2 + EK_DELTA_EPS) / sqrt(k_dim), k' = k /
 * sqrt(|k|^2 + EK_DELTA_EPS). Its state S [k_dim, v_dim] and dst[h] [v_dim] go from token to token:
 *
 *   S = S * exp(-exp(A[h]) * ln(1 + e^(a[h] + dt[h])))   it forgets
 *   S = S + k' (v - S^T k') / (1 + e^-b[h])              what it says to k' comes closer to v
 *   dst[h] = S^T q'
 *
 * where A is the operation's weight and dt its bias, f32 [v_heads]. src and gates are undefined
 * afterwards. The state holds each head's S in runs of EK_STATE_COLS columns, [k_dim][columns]
 * each, the last one padded.
 */
struct ek_delta {
    uint16_t gates; /* value */
    uint32_t k_heads, v_heads, k_dim, v_dim;
    uint32_t state_at; /* floats */
    bool twice;        /* it comes closer by 2 / (1 + e^-b[h]) */
};

/*
 * The scan of Mamba 2 (Dao, Gu, "Transformers are SSMs", 2024), in its recurrent form. src = [x
 * heads | B groups | C groups]: `heads` of `head_dim`, `groups` of `state_dim` each; columns
 * [step_first, step_first + heads) of the value `steps` say how far each head goes with a token.
 * Head h goes with group h / (heads / groups). Its state S [state_dim, head_dim] and dst[h]
 * [head_dim] go from token to token:
 *
 *   d = ln(1 + e^(step[h] + bias[h])), no less than `least`, no more than `most`
 *   S = S * exp(-exp(A[h]) * d) + d * B x^T
 *   dst[h] = S^T C + skip[h] * x
 *
 * where A is the operation's weight, bias its bias and skip a weight, too: f32 [heads]. The state
 * holds each head's S as that of a delta rule, `state_dim` instead of k_dim.
 */
struct ek_scan {
    uint16_t steps; /* value */
    uint32_t step_first, heads, groups, head_dim, state_dim;
    uint32_t skip;     /* weight */
    uint32_t state_at; /* floats */
    float least, most; /* most may be infinite */
};
#define EK_DELTA_EPS    1e-6f
#define EK_STATE_COLS   32u
#define EK_MOST_STREAMS 16u /* that an EK_OP_MIX reads or writes */
#define EK_MOST_CONV    8u  /* tokens that a convolution sees, at least 2 */

#define EK_NO_WEIGHT          UINT32_MAX
#define EK_MOST_EXPERTS       4096u
#define EK_MOST_EXPERTS_TOKEN 64u /* most that one token uses */
#define EK_MOST_EXPERT_GROUPS 64u
#define EK_MOST_RANKS         64u

struct ek_op {
    enum ek_op_kind kind;
    uint16_t dst, src; /* values */
    uint32_t weight;   /* index into the graph's weights, or EK_NO_WEIGHT */
    uint32_t bias;
    uint32_t layer; /* for EK_OP_ATTENTION: which layer of the KV cache */
    union {
        struct {
            float scale;
            bool by_position;
        } embed;
        struct {
            float scale;
        } add, scale, logits;
        struct {
            float eps, offset;
            uint32_t group, first; /* norm `heads` groups of `group` elements from column `first` */
            uint32_t heads;
            uint32_t
                whole; /* of a rank: rms is of so many elements, on all ranks; 0 = of `group` */
            bool own;  /* each group has weights of its own: [heads * group] */
            bool centred;
        } norm;
        struct {
            uint32_t first_col, heads, head_dim, rotary_dim; /* heads begin head_dim apart */
            uint32_t table; /* index into the graph's rope tables; any with a rotary_dim of 0 */
            bool neighbours;
            float warm;
            uint32_t warm_from, warm_every; /* 0 = heads keep their size */
        } rope;
        struct {
            uint32_t q_heads, kv_heads, head_dim;
            float scale, softcap; /* softcap 0 = none */
            uint32_t window;      /* last positions seen, own included; 0 = whole context */
            bool chunks; /* those of the window's multiples instead: from position / window * window
                          */
            float k_scale,
                v_scale;        /* of a cache of 8 bits: a number times it is the value; 0 = 1 */
            uint32_t value_dim; /* latent attention, else 0 */
            uint16_t keys;      /* then the value with k */
            bool reads;         /* it writes no cells */
        } attention;
        struct {
            uint32_t count, rest;
        } heads;
        struct {
            enum ek_activation act;
        } glu;
        struct {
            uint16_t router; /* value; unchanged */
            uint16_t count, top;
            struct ek_routing routing;
            enum ek_activation act;
            uint32_t up, down; /* weights of the first expert, as op.weight is of gate [inner, k]:
                                  those of the others follow it; up [inner, k], down [n, inner] */
            uint32_t up_bias, down_bias; /* or EK_NO_WEIGHT */
        } experts;
        struct {
            float cap;
        } softcap;
        struct {
            uint32_t first, step, group, heads, to;
        } take;
        struct {
            uint32_t first, step, group;
            enum ek_gate act;
            struct ek_gate_numbers numbers;
        } gate;
        struct {
            uint32_t first, kernel;
            uint32_t state_at; /* floats */
            bool silu;
        } conv;
        struct ek_delta delta;
        struct ek_scan scan;
        struct {
            uint16_t by; /* value */
            bool fixed;
            uint32_t first, inputs, outputs, group, to;
            float plus;
        } mix;
        struct {
            float least;
        } match;
        struct {
            uint32_t group;
            float times;
        } cut;
    } u;
};

/* Inverse frequencies [rotary_dim / 2] and the factor on sin and cos. Owned by the graph. Where
 * they are dynamic, those are for sequences of up to `above` tokens; a row of a longer one, and the
 * length of a row's sequence is its position + 1 or that of the prompt, whichever is more, takes
 * exp(-i / count * ek_rope_log_base()). So what a row computes depends on its prompt and position
 * alone, not on what was computed before. */
struct ek_rope {
    float *inv_freq;
    uint32_t count;
    float factor;
    uint32_t above; /* 0 = not dynamic; then count > 1 */
    double theta, grow;
};

/* Log of the base for a sequence of `length` > above tokens. */
static inline double ek_rope_log_base(const struct ek_rope *r, uint32_t length)
{
    double stretched = r->grow * length / r->above - (r->grow - 1);
    return log(r->theta) + log(stretched) * r->count / (r->count - 1.0);
}

/* What a rotation that warms multiplies a head at a position with. */
static inline float ek_warmth(float warm, uint32_t from, uint32_t every, uint32_t position)
{
    return 1.0f + warm * logf(1.0f + (float)(((uint64_t)position + from) / every));
}

/* The first position that one sees through a window of an attention. */
static inline uint32_t ek_first_seen(uint32_t position, uint32_t window, bool chunks)
{
    if (window == 0 || position < window)
        return 0;
    return chunks ? position / window * window : position + 1 - window;
}

struct ek_graph {
    struct ek_op *ops;
    uint32_t op_count;
    struct ek_weight *weights;
    uint32_t weight_count;
    struct ek_quant *quants; /* NULL when no weight is quantized */
    uint32_t quant_count;
    uint32_t *value_width; /* [value_count] */
    uint32_t value_count;
    struct ek_rope *ropes;
    uint32_t rope_count;
    uint32_t layers, kv_heads, head_dim; /* of the KV cache, the same in each layer, */
    bool kv_mixed; /* or not: then they are the largest, and attentions say their layer's own */
    uint32_t value_dim; /* latent: elements of V, which are the first ones of K; 0 = head_dim */
    uint32_t hidden, vocab, max_position;
    enum ek_dtype dtype; /* of weights and, without kv_i8 or kv_f8, the KV cache */
    /* K and V of a token and head are kept as 8 bits with one scale: the largest of its elements is
     * 127. A token's numbers depend on it alone. */
    bool kv_i8;
    bool kv_f8; /* the KV cache is of EK_F8_E4M3, with the scales of each attention */
    /* A sequence's recurrent state, all layers together, in f32; 0 = none. Operations say where
     * their part begins. */
    uint32_t state_floats;
    /* One of several ranks (shard.h): which, and the tokens [vocab_first, vocab_first + vocab_rows)
     * whose embeddings and logits are here; the embedding of others is zero. 0 ranks: alone. */
    uint32_t rank, ranks, vocab_first, vocab_rows;
    /* One of several stages (stage.h), each of which has a run of the layers, the first one the
     * embedding, the last one pick and logits. Its layers are numbered from 0. 0 stages: all. */
    uint32_t stage, stages;
};

static inline bool ek_graph_first(const struct ek_graph *g)
{
    return g->stage == 0;
}

/* Whether logits are computed here, and so tokens sampled. */
static inline bool ek_graph_last(const struct ek_graph *g)
{
    return g->stages == 0 || g->stage + 1 == g->stages;
}

/* Where element (row, col) of a part lies, in elements from its offset: the row counted with those
 * of other ranks, the column with those before `first_col`. Not of quantized parts. */
static inline uint64_t ek_weight_element(const struct ek_weight *w, uint32_t row, uint32_t col)
{
    const uint32_t cols = w->file_cols > 0 ? w->file_cols : w->cols;

    if (w->row_step == 0)
        return (uint64_t)row * cols + col;
    return (uint64_t)row * w->row_step + (uint64_t)col * w->col_step;
}

/* Columns of a weight's rows in its file. */
static inline uint32_t ek_weight_file_cols(const struct ek_weight *w)
{
    return w->file_cols > 0 ? w->file_cols : w->cols;
}

/* Floats of a sequence's state that an operation has; *ret_at: where they begin. 0: it has none. */
uint64_t ek_op_state(const struct ek_graph *g, const struct ek_op *op, uint32_t *ret_at);

/* Elements of V for a head. */
static inline uint32_t ek_graph_value_dim(const struct ek_graph *g)
{
    return g->value_dim > 0 ? g->value_dim : g->head_dim;
}

/* Tokens whose logits are computed here. */
static inline uint32_t ek_graph_vocab_rows(const struct ek_graph *g)
{
    return g->ranks > 0 ? g->vocab_rows : g->vocab;
}

struct ek_fault;
/* 0, or -EBADMSG with a fault when an index, width or shape of the list does not fit the others.
 * An interpreter that got 0 needs no further checks. */
int ek_graph_check(const struct ek_graph *g, struct ek_fault *fault);
/* What it holds, made by malloc(); a zeroed one is fine. */
void ek_graph_free(struct ek_graph *g);
