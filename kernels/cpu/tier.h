/*
 * The arithmetic of the CPU backend, one table per instruction tier: "ref" is plain C and what the
 * others are tested against; "avx2" and "avx512" come from one body (ops_vec.h); "avx2" and
 * "avx512vnni" multiply weights of 8 and 4 bits as whole numbers, with the same bits; "avx512bf16"
 * does, too, and rounds the inputs of bf16 products to bf16 and is twice as fast in them on AMD's
 * machines; "amx" multiplies the same panels in tiles.
 *
 * Every function obeys the rule that makes answers independent of their company: the value of an
 * output element is a fixed sequence of operations, given by shape, tier and position. How many
 * rows are computed together only decides which registers they sit in.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/graph.h"

struct cpu_quad_cache;
struct cpu_quads;
struct ek_fault;

#define CPU_PANEL     32u   /* output columns of a packed weight panel */
#define CPU_MOST_ROWS 8u    /* rows that share one pass over a weight */
#define CPU_QUERIES   32u   /* that share one pass over the keys and values of a tile */
#define CPU_BLOCKS    8u    /* KV blocks that are multiplied together, at most */
#define CPU_QUAD_SPAN 64u   /* positions whose V in quads is summed before it is rounded */
#define CPU_TILE      256u  /* positions between two updates of a running softmax */
#define CPU_PART      4096u /* positions whose sums may be another member's, whole tiles */
#define CPU_SLACK     16u   /* floats that a vector may write behind the end of an array */
#define CPU_K_STEP    32u   /* inputs: a sum may be continued after a multiple of them */

/*
 * c[rows, panels * 32] = x[rows, k] * w^T, over packed panels: panel p holds [k][32] elements, f32
 * and f16 in order, bf16 with columns j and j + 16 side by side, or by pairs of k (cpu_ops.pairs).
 * Each element is a chain of k fused multiply-adds in order of k (plain C: multiply, then add;
 * pairs: two at a time; tiles: the sum of CPU_K_STEP at a time); `add` continues from what c holds,
 * after a multiple of CPU_K_STEP.
 */
struct cpu_gemm {
    enum ek_dtype dtype;
    uint32_t rows, panels, k; /* rows: at most 128 */
    const float *x;
    size_t x_stride; /* floats from row to row */
    const void *w;
    size_t panel_bytes; /* from panel to panel */
    const void *next;   /* the panel read after these, fetched meanwhile; NULL: not known */
    float *c;
    size_t c_stride;
    bool add;
    bool wide;      /* many rows: bf16 and f16 become f32 once for all; the same bits */
    bool rounded;   /* work holds these inputs already: a call with them left them there */
    uint32_t *work; /* CPU_GEMM_WORK(rows, k) bytes for tiers with pairs; else may be NULL */
};

/* Whole tiles of 16 rows x CPU_K_STEP inputs in bf16, and a line between rows. */
#define CPU_GEMM_WORK(rows, k)                                                                     \
    (((size_t)(rows) + 15) / 16 * 16 * (((size_t)(k) + CPU_K_STEP - 1) / CPU_K_STEP + 1) * 64)

/* Up to CPU_BLOCKS KV blocks, one after another, against up to CPU_QUERIES queries. `scores`:
 * s[rows, blocks * keys] = q[rows, dim] * kt, kt = [dim][keys] of each block, keys a power of two.
 * `mix`: acc[rows, dim] += p[rows, blocks * keys] * v, v = [keys][dim], dim a multiple of 16; with
 * several blocks the keys are even. In order of dim and of keys. `pairs` (bf16, for tiers that have
 * them): kt = [dim / 2][keys][2], v = [keys / 2][dim][2], q and p are pairs of bf16, too. Numbers
 * of EK_I8 are taken as they are: their scales come to s and p by `times`. */
struct cpu_block {
    enum ek_dtype dtype;
    bool pairs;
    uint32_t rows, dim, keys, blocks;
    const void *kv[CPU_BLOCKS];
    const void *next[CPU_BLOCKS]; /* what will be read after them, to be fetched meanwhile */
    const void *in;               /* q or p: float, or with `pairs` bf16 */
    size_t in_stride;             /* of 4 bytes */
    float *out;                   /* s or acc */
    size_t out_stride;
};

/* Numbers of k rows [k][32] of a panel as gemm takes them: of f32, or `pairs` of bf16. Bytes, or
 * of 4 bits two k in a byte, the even one in its low half. `k` is even or followed by a row of
 * padding.
 */
#define CPU_EXPAND_AHEAD 4096u /* bytes: what is expanded next of a panel is fetched meanwhile */
struct cpu_expand {
    enum ek_dtype from; /* EK_I8, EK_I4, EK_F8_E4M3, EK_F4_E2M1 */
    bool pairs;
    const void *numbers;
    const int16_t *zeros; /* [32], subtracted; of EK_I8 and EK_I4 */
    uint32_t k;
    void *out;
};

/* n channels of a convolution for one token: what EK_OP_CONV says. x[j]: the input of token j. */
struct cpu_conv {
    float *dst;
    const float *x[EK_MOST_CONV];
    const float *w, *bias; /* [kernel][w_stride]; bias NULL = none */
    size_t w_stride;
    uint32_t kernel, n;
    bool silu;
};

/* The delta rule of EK_STATE_COLS columns of a head, for some tokens of a sequence one after
 * another: see struct ek_delta. q and k are divided by their length; row r of each lies r * stride
 * behind the first. `state`: [k_dim][EK_STATE_COLS]. The order of sums depends on k_dim alone. */
struct cpu_delta {
    float *state, *out;
    const float *q, *k, *v, *decay, *beta;
    size_t stride, out_stride, gate_stride;
    uint32_t rows, k_dim, cols; /* cols: of v and out, the others are padding */
};

/* One token of EK_STATE_COLS columns of a head's scan: state = decay * state + b by^T, out =
 * state^T c. The order of sums depends on the number of rows alone. */
struct cpu_scan {
    float *state; /* [rows][EK_STATE_COLS] */
    const float *b, *c;
    const float *by; /* [EK_STATE_COLS] */
    float *out;      /* [EK_STATE_COLS] */
    float decay;
    uint32_t rows;
};

struct cpu_ops {
    const char *name;
    bool pairs; /* bf16 panels hold [k / 2][32][2], KV blocks as in struct cpu_block */
    void (*gemm)(const struct cpu_gemm *g);
    void (*expand)(const struct cpu_expand *e);
    /* Products of bf16 graphs with numbers of 8 and 4 bits as they are; NULL: they are expanded. */
    void (*quads)(const struct cpu_quads *q);
    uint32_t quads_bytes; /* at most, of an input that it has rounded */
    /* Few rows take a panel at all inputs before the next one, so that it is read in the order in
     * which it lies: reading is what takes their time. Others walk several panels at once. */
    bool quads_in_order;
    /* c[rows, 32] = from * scale[32], or with `add` added to; c may be `from`. */
    void (*scale_panel)(float *c, size_t c_stride, const float *from, size_t from_stride,
                        const float *scale, uint32_t rows, bool add);
    void (*scores)(const struct cpu_block *b);
    void (*mix)(const struct cpu_block *b);
    /* s[n] of one tile becomes exp(soft(s * scale) - m'), m' the new running maximum; updates *m
     * and the running sum *l; returns what the accumulator is to be multiplied with. Writes up to
     * CPU_SLACK floats behind s[n]. */
    float (*softmax)(float *s, uint32_t n, float scale, float cap, float *m, float *l);
    /* The same, but the weights come as bf16, n of them where s began; NULL: no pairs. */
    float (*softmax_pairs)(float *s, uint32_t n, float scale, float cap, float *m, float *l);
    /* dst = src / sqrt(mean(src^2) + eps) * (w + offset); w may be NULL (all ones). */
    void (*norm)(float *dst, const float *src, const float *w, uint32_t n, float eps, float offset);
    void (*glu)(float *dst, const float *gate, const float *up, uint32_t n, enum ek_activation a);
    /* dst *= act(src); numbers: of EK_GATE_XIELU, others do not look. */
    void (*gate)(float *dst, const float *src, uint32_t n, enum ek_gate g,
                 const struct ek_gate_numbers *numbers);
    void (*conv)(const struct cpu_conv *c);
    void (*delta)(const struct cpu_delta *t);
    void (*scan)(const struct cpu_scan *t);
    void (*add)(float *dst, const float *src, uint32_t n, float scale);
    void (*store)(enum ek_dtype t, void *to, const float *from, uint32_t n); /* as cpu_store() */
    void (*scale)(float *dst, const float *src, uint32_t n, float factor);
    /* Rotates the pairs (x[i], x[i + half]) by the angles with cosines c and sines s. */
    void (*rope)(float *x, const float *c, const float *s, uint32_t half);
    void (*softcap)(float *x, uint32_t n, float cap);
    /* sum of exp((x - max) * factor); the terms go to out if it is not NULL. */
    float (*sum_exp)(const float *x, uint32_t n, float max, float factor, float *out);
    float (*max)(const float *x, uint32_t n); /* not-a-number counts as -infinity */
    /* n floats as 8 bits; returns what 1 is worth: the largest / 127, not a number where one of
     * them is not finite (then all are 0). The same bits in all tiers. */
    float (*round8)(int8_t *to, const float *from, uint32_t n);
    void (*times)(float *x, const float *by, uint32_t n); /* x[i] *= by[i] */
    const struct cpu_quad_cache *cache; /* attention over int8 as whole numbers (cache.h) or NULL */
};

/* The named tier, or the best this machine has if name is NULL (EVENKEEL_CPU_ISA names one too).
 * NULL with a fault that lists the tiers when it is unknown or not offered here. */
const struct cpu_ops *cpu_tier_find(const char *name, struct ek_fault *fault);
/* The tiers of this machine, the best first; NULL ends the list. Takes 4 ms once in a process where
 * it has to be measured which that is; cpu_tier_find() of a name measures nothing. */
#define CPU_TIERS 7u
void cpu_tier_list(const struct cpu_ops *ret_tiers[CPU_TIERS]);

#if defined(__x86_64__)
/* How many times as fast products of pairs of bf16 are as products of floats; 0 when this process
 * did not measure it. */
double cpu_pairs_times(void);
#endif
/* Whether a weight of this type is widened once for many rows (struct cpu_gemm); `*ret_times`: how
 * many times as fast that is, 0 where the tier has no choice. The bits are the same. */
bool cpu_widens(const struct cpu_ops *ops, enum ek_dtype dtype, double *ret_times);

extern const struct cpu_ops cpu_ops_ref, cpu_ops_avx2, cpu_ops_avx512, cpu_ops_avx512vnni,
    cpu_ops_avx512bf16, cpu_ops_amx;

/* A product of bf16 on a machine with AMX_BF16. */
void cpu_gemm_amx(const struct cpu_gemm *g);

/* Index of an element in a packed panel of 32 columns. */
static inline size_t cpu_panel_index(bool pairs, enum ek_dtype t, uint32_t k, uint32_t col)
{
    if (t != EK_BF16)
        return (size_t)k * CPU_PANEL + col;
    if (pairs)
        return (size_t)(k / 2) * 2 * CPU_PANEL + col * 2 + k % 2;
    return (size_t)k * CPU_PANEL + col % 16 * 2 + col / 16;
}

/* Index of element `i` of key `key` in the K of a block, and in its V (rows of `dim`). */
static inline size_t cpu_key_index(bool pairs, uint32_t keys, uint32_t i, uint32_t key)
{
    return pairs ? ((size_t)(i / 2) * keys + key) * 2 + i % 2 : (size_t)i * keys + key;
}

static inline size_t cpu_value_index(bool pairs, uint32_t dim, uint32_t i, uint32_t key)
{
    return pairs ? ((size_t)(key / 2) * dim + i) * 2 + key % 2 : (size_t)key * dim + i;
}
