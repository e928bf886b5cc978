/*
 * Products of whole numbers with vpdpbusd: 64 multiply-adds an instruction. Compiled with its own
 * flags; entered only on machines that have it.
 *
 * A block of rows x vectors keeps the sums of the group and those in f32 in registers and reads
 * each vector of weights once for all its rows. With more than two blocks of rows a part of the
 * inputs of a panel stays in the first cache for all of them, as bytes where the weight has 4 bits.
 *
 * What bounds it: reading the weights with few rows, the multiplications from about 16 up. Each
 * group of 32 inputs costs two instructions more for its eight multiplications, on the same ports:
 * the sum becomes a float and is multiplied with the scale of the inputs. So four fifths of what
 * vpdpbusd alone could do are the most.
 */
#include "kernels/cpu/quads.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/fours.h"
#include "kernels/cpu/product.h"
#include "kernels/cpu/quads_round.h"
#include "kernels/cpu/tier.h"

#define INLINE  static inline __attribute__((always_inline))
#define UNROLL8 _Pragma("GCC unroll 8")
#define NOROLL  _Pragma("GCC unroll 1")

#define ROWS    6u   /* of a block, at most */
#define VECTORS 12u  /* of sums in a block, at most */
#define PART    512u /* inputs of a part, about */
#define FETCHES 8u   /* blocks of rows that fetch the next panel, at most, an equal share each */

/* Where the numbers of a block come from. Those of 4 bits become bytes once for many rows: the
 * first block leaves them in the caches in passing. */
enum from { WEIGHT, WEIGHT_KEPT, KEPT };

/* A block of rows and panels, and where it is in its rows: numbers are those of the group. The
 * inputs, scales and starts of its rows lie one after another (rounded_by_groups). */
struct quads_place {
    const char *w; /* the first panel, from its begin */
    const char *numbers;
    const int8_t *x;
    const float *scale;
    const int32_t *start;
    char *kept;       /* bytes that were numbers of 4 bits */
    const char *next; /* what is fetched meanwhile, and how far it goes with a group; 0: nothing */
    size_t step;
};

INLINE __m512i four_inputs(const int8_t *x)
{
    int32_t four;

    memcpy(&four, x, sizeof(four));
    return _mm512_set1_epi32(four);
}

/* What a form of the kernel knows beforehand. */
struct quads_form {
    int bits;
    bool zeros; /* of the weights' own */
    bool table; /* numbers are codes */
    enum from from;
};

/* While a group is multiplied. */
INLINE void fetch(const struct quads_place *p)
{
    NOROLL
    for (size_t at = 0; at < p->step; at += 64)
        _mm_prefetch(p->next + at, _MM_HINT_T0);
}

/* One vector of weights: of four inputs, and of the next four. */
INLINE void load_weights(struct quads_form f, int v, const struct cpu_quads *q,
                         const struct quads_place *p, uint32_t eight, __m512i w[2])
{
    const size_t of_panel = (size_t)(v / 2) * q->panel_bytes + (v % 2) * 64;

    if (f.from == KEPT || f.bits == 8) {
        const char *at = f.from == KEPT ? p->kept : p->numbers;
        at += (f.from == KEPT ? (size_t)(v % 2) * 64 : of_panel) + (size_t)eight * 256;
        w[0] = _mm512_loadu_si512(at);
        w[1] = _mm512_loadu_si512(at + 128);
        return;
    }
    const __m512i both = _mm512_loadu_si512(p->numbers + of_panel + (size_t)eight * 128);
    const __m512i mask = _mm512_set1_epi8(15);
    w[0] = quads_four(_mm512_and_si512(both, mask), f.table);
    w[1] = quads_four(_mm512_and_si512(_mm512_srli_epi16(both, 4), mask), f.table);
    if (f.from == WEIGHT_KEPT) {
        char *kept = p->kept + (size_t)eight * 256 + (v % 2) * 64;
        _mm512_storeu_si512(kept, w[0]);
        _mm512_storeu_si512(kept + 128, w[1]);
    }
}

/* Eight inputs of all rows: each four of a row is read once for all vectors of weights. */
INLINE void add_eight(struct quads_form f, int rows, int panels, const struct cpu_quads *q,
                      const struct quads_place *p, uint32_t eight, __m512i sum[VECTORS])
{
    __m512i w[8][2];

    UNROLL8
    for (int v = 0; v < 2 * panels; v++)
        load_weights(f, v, q, p, eight, w[v]);
    UNROLL8
    for (int four = 0; four < 2; four++)
        UNROLL8
    for (int i = 0; i < rows; i++) {
        const int8_t *x = p->x + (size_t)i * QUADS_GROUP + (size_t)eight * 8 + four * 4;
        const __m512i in = four_inputs(x);
        UNROLL8
        for (int v = 0; v < 2 * panels; v++)
            fours_add(&sum[i * 2 * panels + v], w[v][four], in);
    }
}

/* A group's whole sums times the scale of their inputs. First all become floats: what waits for the
 * last multiplication of one does not hold the next. */
INLINE void add_inputs(int rows, int panels, const struct quads_place *p,
                       const __m512i sum[VECTORS], __m512 c[VECTORS])
{
    __m512 whole[VECTORS];

    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < 2 * panels; v++)
        whole[i * 2 * panels + v] = _mm512_cvtepi32_ps(sum[i * 2 * panels + v]);
    UNROLL8
    for (int i = 0; i < rows; i++) {
        const __m512 x = _mm512_set1_ps(p->scale[i]);
        UNROLL8
        for (int v = 0; v < 2 * panels; v++)
            c[i * 2 * panels + v] =
                _mm512_fmadd_ps(whole[i * 2 * panels + v], x, c[i * 2 * panels + v]);
    }
}

/* The same, times the scales of weights, less their zeros; `scales` is their group. */
INLINE void add_group(int rows, int panels, const struct cpu_quads *q, const struct quads_place *p,
                      uint32_t scales, __m512i sum[VECTORS], __m512 c[VECTORS])
{
    const float zero = q->dtype == EK_I4 ? -1.0f / 8.0f : -1.0f / 128.0f;
    const int usual = q->dtype == EK_I4 ? 8 : 0; /* what `start` has taken off already */

    UNROLL8
    for (int v = 0; v < 2 * panels; v++) {
        const char *panel = p->w + (size_t)(v / 2) * q->panel_bytes;
        const size_t at = ((size_t)scales * CPU_PANEL + (v % 2) * 16) * sizeof(float);
        const __m512 w = _mm512_loadu_ps(panel + q->scale_at + at);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            const __m512 x = _mm512_set1_ps(p->scale[i]);
            c[i * 2 * panels + v] =
                _mm512_fmadd_ps(_mm512_mul_ps(_mm512_cvtepi32_ps(sum[i * 2 * panels + v]), x), w,
                                c[i * 2 * panels + v]);
        }
        const __m256i own = _mm256_loadu_si256((const void *)(panel + q->zero_at + at / 2));
        const __m512i off = _mm512_sub_epi32(_mm512_cvtepi16_epi32(own), _mm512_set1_epi32(usual));
        const __m512 less = _mm512_mul_ps(_mm512_cvtepi32_ps(off), w);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            const float inputs = (float)p->start[i] * zero;
            const __m512 x = _mm512_set1_ps(inputs * p->scale[i]);
            c[i * 2 * panels + v] = _mm512_fnmadd_ps(x, less, c[i * 2 * panels + v]);
        }
    }
}

INLINE void clear(int rows, int vectors, __m512 c[VECTORS])
{
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++)
        c[i * vectors + v] = _mm512_setzero_ps();
}

/* What c holds, if it counts. */
INLINE void begin(bool none, int rows, int vectors, const float *from, size_t stride,
                  __m512 c[VECTORS])
{
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++) {
        const float *at = from + (size_t)i * stride + v * 16;
        __builtin_prefetch(at, 1); /* written at the end */
        c[i * vectors + v] = none ? _mm512_setzero_ps() : _mm512_loadu_ps(at);
    }
}

INLINE void store(int rows, int vectors, const struct cpu_quads *q, const __m512 c[VECTORS],
                  float *out)
{
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++)
        _mm512_storeu_ps(out + (size_t)i * q->c_stride + v * 16, c[i * vectors + v]);
}

/* The sums of inputs that share a scale of weights, times it, to `all`, or added to it; where that
 * does not stay in registers, it is at `out`. It is read whole before any of it is written: a read
 * that a multiple of 4096 bytes separates from a write just before would wait for that. */
INLINE void scale(bool table, bool add, bool stay, int rows, int panels, const struct cpu_quads *q,
                  const char *w, const __m512 c[VECTORS], __m512 all[VECTORS], float *out)
{
    __m512 before[VECTORS], by[8];

    UNROLL8
    for (int v = 0; v < 2 * panels; v++)
        by[v] = quads_scales(
            w + (size_t)(v / 2) * q->panel_bytes + (size_t)(v % 2) * (table ? 16 : 64), table);
    UNROLL8
    for (int i = 0; i < rows && add; i++)
        UNROLL8
    for (int v = 0; v < 2 * panels; v++) {
        const int at = i * 2 * panels + v;
        before[at] = stay ? all[at] : _mm512_loadu_ps(out + (size_t)i * q->c_stride + v * 16);
    }
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < 2 * panels; v++) {
        const int at = i * 2 * panels + v;
        const __m512 sum =
            add ? _mm512_fmadd_ps(c[at], by[v], before[at]) : _mm512_mul_ps(c[at], by[v]);
        if (stay)
            all[at] = sum;
        else
            _mm512_storeu_ps(out + (size_t)i * q->c_stride + v * 16, sum);
    }
}

/* One group of inputs; then the place is at the next. */
INLINE void one_group(struct quads_form f, int rows, int panels, const struct cpu_quads *q,
                      const struct rounded *r, struct quads_place *p, uint32_t rest,
                      uint32_t scales, __m512 c[VECTORS])
{
    __m512i sum[VECTORS];

    fetch(p);
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < 2 * panels; v++)
        sum[i * 2 * panels + v] = _mm512_set1_epi32(p->start[i]);
    if (rest >= QUADS_GROUP)
        UNROLL8
    for (uint32_t eight = 0; eight < QUADS_GROUP / 8; eight++)
        add_eight(f, rows, panels, q, p, eight, sum);
    else NOROLL for (uint32_t eight = 0; eight < (rest + 7) / 8; eight++)
        add_eight(f, rows, panels, q, p, eight, sum);
    if (f.zeros)
        add_group(rows, panels, q, p, scales, sum, c);
    else
        add_inputs(rows, panels, p, sum, c);
    p->numbers += QUADS_GROUP * CPU_PANEL * (unsigned)f.bits / 8;
    if (f.from != WEIGHT)
        p->kept += QUADS_GROUP * CPU_PANEL;
    p->next += p->step;
    p->x += r->group_bytes;
    p->scale += r->group_scales;
    p->start += r->group_scales;
}

/* All sums stay in registers where there is room: what one row reads goes by fast. */
INLINE void block(struct quads_form f, int rows, int panels, const struct cpu_quads *q,
                  const struct rounded *r, struct quads_place p, float *out)
{
    const bool stay = f.zeros || rows * panels <= 4;
    uint32_t scales = q->first / q->group, left = q->group - q->first % q->group;
    bool add = q->add;
    __m512 c[VECTORS], all[VECTORS];

    begin(!add || !stay, rows, 2 * panels, out, q->c_stride, f.zeros ? c : all);
    for (uint32_t g = 0; g < r->groups; scales++, left = q->group, add = true) {
        const uint32_t some = left / QUADS_GROUP, there = r->groups - g;
        const uint32_t end = g + (some < there ? some : there);
        const char *w = p.w + q->scale_at + (size_t)scales * CPU_PANEL * (f.table ? 1 : 4);
        if (!f.zeros)
            clear(rows, 2 * panels, c);
        NOROLL
        for (; g < end; g++)
            one_group(f, rows, panels, q, r, &p, q->k - g * QUADS_GROUP, scales, c);
        if (!f.zeros && add)
            scale(f.table, true, stay, rows, panels, q, w, c, all, out);
        else if (!f.zeros)
            scale(f.table, false, stay, rows, panels, q, w, c, all, out);
    }
    if (stay)
        store(rows, 2 * panels, q, f.zeros ? c : all, out);
}

#define ALONE (1 * 8 + 4) /* one row, four panels */
#define BLOCK(n, m)                                                                                \
    case (n)*8 + (m): block(f, n, m, q, r, p, out); break

INLINE void some(struct quads_form f, const struct cpu_quads *q, const struct rounded *r,
                 uint32_t rows, uint32_t panels, struct quads_place p, float *out)
{
    switch (rows * 8 + panels) {
        BLOCK(1, 1);
        BLOCK(2, 1);
        BLOCK(3, 1);
        BLOCK(4, 1);
        BLOCK(5, 1);
        BLOCK(6, 1);
    case ALONE:
        if (f.bits == 8)
            block(f, 1, 4, q, r, p, out);
        break;
    }
}

/* Blocks of rows of more than two. */
INLINE void many_some(enum from from, struct quads_form f, const struct cpu_quads *q,
                      const struct rounded *r, uint32_t rows, struct quads_place p, float *out)
{
    f.from = from;
    switch (rows) {
    case 4: block(f, 4, 1, q, r, p, out); break;
    case 5: block(f, 5, 1, q, r, p, out); break;
    case 6: block(f, 6, 1, q, r, p, out); break;
    }
}

/* Scales and zeros of `count` panels: they lie apart from the numbers. */
static void fetch_scales(const struct cpu_quads *q, uint32_t panel, uint32_t count)
{
    const uint32_t first = q->first / q->group, end = (q->first + q->k - 1) / q->group + 1;

    for (; count > 0; count--, panel++) {
        const char *at = (const char *)q->w + panel * q->panel_bytes;
        for (uint32_t g = first; g < end; g++) {
            if (q->dtype == EK_F4_E2M1) {
                _mm_prefetch(at + q->scale_at + (size_t)g * CPU_PANEL, _MM_HINT_T1);
                continue;
            }
            _mm_prefetch(at + q->scale_at + (size_t)g * CPU_PANEL * 4, _MM_HINT_T1);
            _mm_prefetch(at + q->scale_at + (size_t)g * CPU_PANEL * 4 + 64, _MM_HINT_T1);
            if (q->zero_at > 0)
                _mm_prefetch(at + q->zero_at + (size_t)g * CPU_PANEL * 2, _MM_HINT_T1);
        }
    }
}

/* The block of rows from `row` on, at the first panel of the step. */
INLINE struct quads_place place_of(struct quads_form f, const struct cpu_quads *q,
                                   const struct rounded *r, uint32_t row, uint32_t panel)
{
    struct quads_place p = {.w = (const char *)q->w + panel * q->panel_bytes,
                            .x = r->x + row * r->row_bytes,
                            .scale = r->scale + row * r->row_scales,
                            .start = r->start + row * r->row_scales};

    p.numbers = p.w + (size_t)q->first * CPU_PANEL * (unsigned)f.bits / 8;
    return p;
}

/* Block `block` fetches its share of what is read after this step. */
INLINE void fetch_next(struct quads_form f, struct quads_place *p, uint32_t block, uint32_t blocks,
                       uint32_t groups, size_t step_bytes)
{
    const uint32_t fetching = blocks < FETCHES ? blocks : FETCHES;
    const size_t group_bytes = QUADS_GROUP * CPU_PANEL * (unsigned)f.bits / 8; /* of a panel */

    if (block >= fetching || step_bytes == 0)
        return;
    p->next = p->numbers + step_bytes + groups * group_bytes * block / fetching;
    p->step = group_bytes / fetching;
}

/* Scales of the next panels, and how far away these are; 0: there are none. */
static size_t next_step(const struct cpu_quads *q, uint32_t panel, uint32_t step)
{
    const uint32_t left = q->panels - panel - step;

    fetch_scales(q, panel + step, left < step ? left : step);
    return left > 0 ? step * q->panel_bytes : 0;
}

/* Few rows: up to two blocks. They take a panel at a time, which is fetched while the one before is
 * multiplied; but one row of 8 bits takes four, which the processor then reads ahead by itself,
 * faster than if asked. */
INLINE void few(struct quads_form f, const struct cpu_quads *q, const struct rounded *r)
{
    const uint32_t blocks = (q->rows + ROWS - 1) / ROWS;
    uint32_t step = q->rows == 1 && f.bits == 8 ? 4 : 1;

    for (uint32_t panel = 0; panel < q->panels; panel += step) {
        if (q->panels - panel < step)
            step = 1;
        const size_t next = next_step(q, panel, step);
        for (uint32_t i = 0; i < blocks; i++) {
            const uint32_t row = i * q->rows / blocks, rows = (i + 1) * q->rows / blocks - row;
            struct quads_place p = place_of(f, q, r, row, panel);
            fetch_next(f, &p, i, blocks, r->groups, step == 1 ? next : 0);
            some(f, q, r, rows, step, p, q->c + row * q->c_stride + (size_t)panel * CPU_PANEL);
        }
    }
}

/* The inputs of a part that begins `at`. */
INLINE struct rounded rounded_from(const struct cpu_quads *part, const struct rounded *r,
                                   uint32_t at)
{
    struct rounded from = *r;

    from.groups = (part->k + QUADS_GROUP - 1) / QUADS_GROUP;
    from.x += at / QUADS_GROUP * r->group_bytes;
    from.scale += at / QUADS_GROUP * r->group_scales;
    from.start += at / QUADS_GROUP * r->group_scales;
    return from;
}

/* More rows: a part of a panel stays in the first cache until all rows are multiplied with it. */
INLINE void many(struct quads_form f, const struct cpu_quads *q, const struct rounded *r)
{
    char kept[CPU_K_CHUNK * CPU_PANEL] __attribute__((aligned(64)));
    const uint32_t blocks = (q->rows + ROWS - 1) / ROWS;
    struct cpu_quads part;

    for (uint32_t panel = 0; panel < q->panels; panel++) {
        const size_t next = next_step(q, panel, 1);
        for (uint32_t at = 0; at < q->k; at += part.k) {
            part = cpu_quads_part(q, at, PART);
            const struct rounded inputs = rounded_from(&part, r, at);
            for (uint32_t i = 0; i < blocks; i++) {
                const uint32_t row = i * q->rows / blocks, rows = (i + 1) * q->rows / blocks - row;
                float *out = q->c + row * q->c_stride + (size_t)panel * CPU_PANEL;
                struct quads_place p = place_of(f, &part, &inputs, row, panel);
                fetch_next(f, &p, i, blocks, inputs.groups, next);
                p.kept = kept;
                if (f.bits == 8)
                    many_some(WEIGHT, f, &part, &inputs, rows, p, out);
                else if (i == 0)
                    many_some(WEIGHT_KEPT, f, &part, &inputs, rows, p, out);
                else
                    many_some(KEPT, f, &part, &inputs, rows, p, out);
            }
        }
    }
}

/* A function for each form: one with the arrays of all would want much stack where they are not
 * kept in registers, in builds for tests. */
#define FORM(name, which, ...)                                                                     \
    static __attribute__((noinline)) void name(const struct cpu_quads *q, const struct rounded *r) \
    {                                                                                              \
        which((struct quads_form){__VA_ARGS__}, q, r);                                             \
    }
FORM(int4, few, 4, false, false, WEIGHT)
FORM(int4_zeros, few, 4, true, false, WEIGHT)
FORM(int8, few, 8, false, false, WEIGHT)
FORM(int8_zeros, few, 8, true, false, WEIGHT)
FORM(float4, few, 4, false, true, WEIGHT)
FORM(int4_many, many, 4, false, false, WEIGHT)
FORM(int4_zeros_many, many, 4, true, false, WEIGHT)
FORM(int8_many, many, 8, false, false, WEIGHT)
FORM(int8_zeros_many, many, 8, true, false, WEIGHT)
FORM(float4_many, many, 4, false, true, WEIGHT)

void cpu_quads_vnni(const struct cpu_quads *q)
{
    const struct rounded r = rounded_by_groups(q);
    const bool more = q->rows > 2 * ROWS, zeros = q->zero_at > 0;

    if (!q->rounded)
        round_inputs(q, &r);
    if (q->dtype == EK_F4_E2M1)
        (more ? float4_many : float4)(q, &r);
    else if (q->dtype == EK_I8 && more)
        (zeros ? int8_zeros_many : int8_many)(q, &r);
    else if (q->dtype == EK_I8)
        (zeros ? int8_zeros : int8)(q, &r);
    else if (more)
        (zeros ? int4_zeros_many : int4_many)(q, &r);
    else
        (zeros ? int4_zeros : int4)(q, &r);
}
