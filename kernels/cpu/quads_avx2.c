/*
 * Products of whole numbers with AVX2, which has no instruction that multiplies fours of bytes and
 * adds them up: two ways that never saturate, with the same bits as vpdpbusd (quads.h).
 *
 * Numbers of 4 bits, and codes of EK_F4_E2M1 (at most 24), are multiplied as bytes with vpmaddubsw;
 * all of a group fits 16 bits, so one addition of words for each multiplication is enough, and
 * they become 32 bits once at its end. A sum begins with what the weights' zero takes off, so that
 * its end fits whatever wraps around on the way. Numbers of 8 bits would saturate there: the even
 * and the odd bytes of a vector become words of their own, which vpmaddwd multiplies with inputs
 * that are kept as words. For many rows both kinds are made once, and stay in the first cache.
 *
 * A block of up to four rows of inputs and two vectors of eight columns, or two and four, keeps its
 * whole sums in registers; more rows would share a vector of weights, but leave no register for
 * anything else. What bounds it: reading the weights with few rows; the multiplications and
 * additions of whole numbers, of which this needs as many, with many.
 */
#include "kernels/cpu/quads.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/product.h"
#include "kernels/cpu/tier.h"

#define INLINE  static inline __attribute__((always_inline))
#define UNROLL8 _Pragma("GCC unroll 8")
#define NOROLL  _Pragma("GCC unroll 1")

#define ROWS    4u    /* of a block, at most */
#define LANES   8u    /* columns of a vector */
#define VECTORS 8u    /* of sums in a block, at most */
#define PART    256u  /* inputs that stay in the first cache for all rows, about */
#define FETCH   8192u /* bytes of a panel that are on their way */

/* What a form of the kernel knows beforehand. */
struct narrow_form {
    int bits;
    bool zeros; /* of the weights' own */
    bool table; /* numbers are codes */
    bool apart; /* what narrow_half() finds lies there by itself: [line][2][32 columns] */
};

/* Where the parts of `work` lie: of each group all rows, one after another. */
struct narrow_inputs {
    char *x;         /* bytes; or of 8 bits words, of each four the even ones, then the odd ones */
    float *scale;    /* of a group of a row */
    int32_t *start;  /* of 8 bits; of 4 two words, of the first and last two inputs of all fours */
    uint32_t groups; /* and rows as the call has them: */
    uint32_t rows;
};

/* Bytes of a group of a row. */
INLINE size_t narrow_bytes(int bits)
{
    return bits == 8 ? 2 * QUADS_GROUP : QUADS_GROUP;
}

static struct narrow_inputs narrow_of(const struct cpu_quads *q)
{
    struct narrow_inputs in = {.x = q->work, .rows = q->rows};

    in.groups = (uint32_t)(QUADS_PADDED(q->k) / QUADS_GROUP);
    const size_t each = (size_t)in.groups * q->rows;
    in.scale = (float *)(void *)(q->work + each * narrow_bytes(q->dtype == EK_I8 ? 8 : 4));
    in.start = (int32_t *)(void *)(in.scale + each);
    return in;
}

/* --- inputs to 8 bits, as quads_round.h does it --- */

/* The largest of eight whole numbers. */
INLINE int32_t narrow_largest(__m256i v)
{
    __m128i m = _mm_max_epi32(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0x4e));
    m = _mm_max_epi32(m, _mm_shuffle_epi32(m, 0xb1));
    return _mm_cvtsi128_si32(m);
}

/* Both words of the sum of eight pairs of them. */
INLINE __m128i narrow_pairs(__m256i v)
{
    __m128i s = _mm_add_epi16(_mm256_castsi256_si128(v), _mm256_extracti128_si256(v, 1));

    s = _mm_add_epi16(s, _mm_shuffle_epi32(s, 0x4e));
    return _mm_add_epi16(s, _mm_shuffle_epi32(s, 0xb1));
}

/* One group of a row, of `a` inputs by eights. As whole numbers magnitudes are in order, and what
 * is not a number is above; it makes the scale of its group none. */
INLINE void narrow_group(enum ek_dtype t, const __m256 a[4], char *x, float *scale, int32_t *start)
{
    const __m256i size = _mm256_set1_epi32(0x7fffffff),
                  ordered = _mm256_setr_epi8(0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15,
                                             0, 1, 4, 5, 2, 3, 6, 7, 8, 9, 12, 13, 10, 11, 14, 15);
    __m256i most = _mm256_setzero_si256(), i[4];

    UNROLL8
    for (int n = 0; n < 4; n++)
        most = _mm256_max_epi32(most, _mm256_and_si256(_mm256_castps_si256(a[n]), size));
    const int32_t bits = narrow_largest(most);
    float top;
    memcpy(&top, &bits, sizeof(top));
    const __m256 by = _mm256_set1_ps(bits >= QUADS_LEAST ? 127.0f / top : 0.0f);
    *scale = bits >= 0x7f800000 ? __builtin_nanf("") : top / (t == EK_F4_E2M1 ? 254.0f : 127.0f);
    UNROLL8
    for (int n = 0; n < 4; n++)
        i[n] = _mm256_cvtps_epi32(_mm256_mul_ps(a[n], by));
    __m256i low = _mm256_permute4x64_epi64(_mm256_packs_epi32(i[0], i[1]), 0xd8);
    __m256i high = _mm256_permute4x64_epi64(_mm256_packs_epi32(i[2], i[3]), 0xd8);
    low = _mm256_max_epi16(low, _mm256_set1_epi16(-128)); /* of what is no number any will do */
    high = _mm256_max_epi16(high, _mm256_set1_epi16(-128));
    if (t == EK_I8) {
        const __m128i sum = narrow_pairs(_mm256_add_epi16(low, high)); /* 16 of 128 fit a word */
        _mm256_storeu_si256((void *)x, _mm256_shuffle_epi8(low, ordered));
        _mm256_storeu_si256((void *)(x + 32), _mm256_shuffle_epi8(high, ordered));
        *start = _mm_cvtsi128_si32(_mm_madd_epi16(sum, _mm_set1_epi16(-128)));
        return;
    }
    const __m256i bytes = _mm256_permute4x64_epi64(_mm256_packs_epi16(low, high), 0xd8);
    _mm256_storeu_si256((void *)x, bytes);
    const __m128i sum = narrow_pairs(_mm256_maddubs_epi16(_mm256_set1_epi8(1), bytes));
    const short zero = (short)-(int)cpu_quads_zero(t);
    *start = _mm_cvtsi128_si32(_mm_mullo_epi16(sum, _mm_set1_epi16(zero)));
}

static void narrow_round(const struct cpu_quads *q, const struct narrow_inputs *in)
{
    const size_t bytes = narrow_bytes(q->dtype == EK_I8 ? 8 : 4);

    for (uint32_t row = 0; row < q->rows; row++)
        for (uint32_t g = 0; g < in->groups; g++) {
            const uint32_t k = g * QUADS_GROUP, left = q->k - k;
            const float *from = q->x + row * q->x_stride + k;
            const size_t at = (size_t)g * q->rows + row;
            float some[QUADS_GROUP];
            __m256 a[4];
            if (left < QUADS_GROUP) {
                memset(some, 0, sizeof(some));
                memcpy(some, from, left * sizeof(*from));
                from = some;
            }
            UNROLL8
            for (int n = 0; n < 4; n++)
                a[n] = _mm256_loadu_ps(from + 8 * n);
            narrow_group(q->dtype, a, in->x + at * bytes, in->scale + at, in->start + at);
        }
}

/* --- products --- */

/* A block and where it is in its rows: numbers are those of the group, from its first column on. */
struct narrow_place {
    const char *w; /* the panel, from its begin */
    const char *numbers;
    const char *x;
    const float *scale;
    const int32_t *start;
    uint32_t col;     /* the first in the panel */
    uint32_t ahead;   /* bytes from numbers to the lines that are fetched meanwhile; 0: none */
    const char *turn; /* where numbers are when those that far ahead are the next panel's, */
    size_t jump;      /* which begin so much behind the end of these */
};

INLINE __m256i narrow_two(const char *x)
{
    int32_t two;

    memcpy(&two, x, sizeof(two));
    return _mm256_set1_epi32(two);
}

/* sum += w * x: bytes with bytes, pairs of words of the sum; or words with words. The compiler
 * would add the products of a group to each other first, and keep all of them in memory until then.
 */
INLINE void narrow_add(int bits, __m256i *sum, __m256i w, __m256i x)
{
    *sum = bits == 8 ? _mm256_add_epi32(*sum, _mm256_madd_epi16(w, x))
                     : _mm256_add_epi16(*sum, _mm256_maddubs_epi16(w, x));
    __asm__("" : "+x"(*sum));
}

/* Half of what a vector of numbers holds: its even or odd bytes, or its low or high halves. */
INLINE __m256i narrow_half(struct narrow_form f, int half, const char *numbers)
{
    const __m256i all = _mm256_loadu_si256((const void *)numbers);

    if (f.apart)
        return all;
    if (f.bits == 8)
        return half ? _mm256_srli_epi16(all, 8) : _mm256_and_si256(all, _mm256_set1_epi16(0xff));
    const __m256i n =
        _mm256_and_si256(half ? _mm256_srli_epi16(all, 4) : all, _mm256_set1_epi8(15));
    const __m256i f4 = _mm256_broadcastsi128_si256(_mm_setr_epi8(QUADS_TABLE_F4));
    return f.table ? _mm256_shuffle_epi8(f4, n) : n;
}

/* Four inputs of 8 bits or eight of 4, a line of each two vectors: by halves, so that few vectors
 * of weights are there at once. */
INLINE void narrow_line(struct narrow_form f, int rows, int vectors, const struct narrow_place *p,
                        uint32_t line, __m256i sum[VECTORS])
{
    const size_t x_bytes = narrow_bytes(f.bits);

    UNROLL8
    for (int half = 0; half < 2; half++)
        UNROLL8
    for (int pair = 0; pair < vectors; pair += 2) {
        const char *at = p->numbers + (size_t)pair * 32 +
                         (f.apart ? (size_t)line * 256 + (size_t)half * 128 : (size_t)line * 128);
        const __m256i a = narrow_half(f, half, at), b = narrow_half(f, half, at + 32);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            const __m256i x =
                narrow_two(p->x + (size_t)i * x_bytes + (size_t)line * 8 + (size_t)half * 4);
            __m256i *to = sum + i * vectors + pair;
            narrow_add(f.bits, &to[0], a, x);
            narrow_add(f.bits, &to[1], b, x);
        }
    }
}

/* The whole sums as floats. */
INLINE __m256 narrow_float(int bits, __m256i sum)
{
    return _mm256_cvtepi32_ps(bits == 8 ? sum : _mm256_madd_epi16(sum, _mm256_set1_epi16(1)));
}

/* A group's sums times the scale of their inputs. */
INLINE void narrow_plain(struct narrow_form f, int rows, int vectors, const struct narrow_place *p,
                         const __m256i sum[VECTORS], __m256 c[VECTORS])
{
    UNROLL8
    for (int i = 0; i < rows; i++) {
        const __m256 x = _mm256_set1_ps(p->scale[i]);
        UNROLL8
        for (int v = 0; v < vectors; v++) {
            __m256 *to = c + i * vectors + v;
            *to = _mm256_fmadd_ps(narrow_float(f.bits, sum[i * vectors + v]), x, *to);
        }
    }
}

/* The same, times the scale of the weights, less their zeros. */
INLINE void narrow_zeros(struct narrow_form f, int rows, int vectors, const struct cpu_quads *q,
                         const struct narrow_place *p, uint32_t scales, const __m256i sum[VECTORS],
                         __m256 c[VECTORS])
{
    const int usual = f.bits == 4 ? 8 : 0; /* what `start` has taken off already */

    UNROLL8
    for (int v = 0; v < vectors; v++) {
        const size_t at = (size_t)scales * CPU_PANEL + p->col + (size_t)v * LANES;
        const __m256 w = _mm256_loadu_ps((const float *)(const void *)(p->w + q->scale_at) + at);
        const __m128i own = _mm_loadu_si128((const void *)(p->w + q->zero_at + at * 2));
        const __m256i off = _mm256_sub_epi32(_mm256_cvtepi16_epi32(own), _mm256_set1_epi32(usual));
        const __m256 less = _mm256_mul_ps(_mm256_cvtepi32_ps(off), w);
        UNROLL8
        for (int i = 0; i < rows; i++) {
            const int32_t start = p->start[i];
            const float inputs = f.bits == 8
                                     ? (float)start * (-1.0f / 128.0f)
                                     : (float)((int16_t)start + (start >> 16)) * (-1.0f / 8.0f);
            __m256 *to = c + i * vectors + v;
            const __m256 x = _mm256_set1_ps(p->scale[i]);
            *to = _mm256_fmadd_ps(_mm256_mul_ps(narrow_float(f.bits, sum[i * vectors + v]), x), w,
                                  *to);
            *to = _mm256_fnmadd_ps(_mm256_set1_ps(inputs * p->scale[i]), less, *to);
        }
    }
}

/* One group of inputs; then the place is at the next. */
INLINE void narrow_step(struct narrow_form f, int rows, int vectors, const struct cpu_quads *q,
                        const struct narrow_inputs *in, struct narrow_place *p, uint32_t rest,
                        uint32_t scales, __m256 c[VECTORS])
{
    const uint32_t lines = QUADS_GROUP * (unsigned)f.bits / 32;
    const uint32_t there = (rest + 7) / 8 * (unsigned)f.bits / 4;
    __m256i sum[VECTORS];

    const char *ahead = p->numbers + p->ahead + (p->numbers >= p->turn ? p->jump : 0);
    for (uint32_t at = 0; at < lines * 128 && p->ahead; at += vectors == 4 ? 64 : 128)
        _mm_prefetch(ahead + at, _MM_HINT_T1);
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++)
        sum[i * vectors + v] = _mm256_set1_epi32(p->start[i]);
    if (rest >= QUADS_GROUP)
        UNROLL8
    for (uint32_t line = 0; line < lines; line++)
        narrow_line(f, rows, vectors, p, line, sum);
    else NOROLL for (uint32_t line = 0; line < there; line++)
        narrow_line(f, rows, vectors, p, line, sum);
    if (f.zeros)
        narrow_zeros(f, rows, vectors, q, p, scales, sum, c);
    else
        narrow_plain(f, rows, vectors, p, sum, c);
    p->numbers += (size_t)lines * (f.apart ? 256 : 128);
    p->x += in->rows * narrow_bytes(f.bits);
    p->scale += in->rows;
    p->start += in->rows;
}

/* Scales of eight columns. */
INLINE __m256 narrow_scales(bool powers, const char *at)
{
    if (!powers)
        return _mm256_loadu_ps((const float *)(const void *)at);
    const __m256i power = _mm256_cvtepu8_epi32(_mm_loadl_epi64((const void *)at));
    return _mm256_castsi256_ps(
        _mm256_max_epi32(_mm256_slli_epi32(power, 23), _mm256_set1_epi32(0x400000)));
}

/* The sums of inputs that share a scale of weights, times it, to `out`, or added to it. */
INLINE void narrow_scale(struct narrow_form f, bool add, int rows, int vectors,
                         const struct cpu_quads *q, const char *w, const __m256 c[VECTORS],
                         float *out)
{
    UNROLL8
    for (int v = 0; v < vectors; v++) {
        const __m256 by = narrow_scales(f.table, w + (size_t)v * LANES * (f.table ? 1 : 4));
        UNROLL8
        for (int i = 0; i < rows; i++) {
            float *to = out + (size_t)i * q->c_stride + (size_t)v * LANES;
            const __m256 sum = c[i * vectors + v];
            _mm256_storeu_ps(to, add ? _mm256_fmadd_ps(sum, by, _mm256_loadu_ps(to))
                                     : _mm256_mul_ps(sum, by));
        }
    }
}

INLINE void narrow_store(int rows, int vectors, const struct cpu_quads *q, const __m256 c[VECTORS],
                         float *out)
{
    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++)
        _mm256_storeu_ps(out + (size_t)i * q->c_stride + v * 8, c[i * vectors + v]);
}

INLINE void narrow_block(struct narrow_form f, int rows, int vectors, const struct cpu_quads *q,
                         const struct narrow_inputs *in, struct narrow_place p, float *out)
{
    uint32_t scales = q->first / q->group, left = q->group - q->first % q->group;
    bool add = q->add;
    __m256 c[VECTORS];

    UNROLL8
    for (int i = 0; i < rows; i++)
        UNROLL8
    for (int v = 0; v < vectors; v++)
        c[i * vectors + v] = f.zeros && add ? _mm256_loadu_ps(out + (size_t)i * q->c_stride + v * 8)
                                            : _mm256_setzero_ps();
    for (uint32_t g = 0; g < in->groups; scales++, left = q->group, add = true) {
        const uint32_t some = left / QUADS_GROUP, there = in->groups - g;
        const uint32_t end = g + (some < there ? some : there);
        const size_t at = (size_t)scales * CPU_PANEL + p.col;
        NOROLL
        for (; g < end; g++)
            narrow_step(f, rows, vectors, q, in, &p, q->k - g * QUADS_GROUP, scales, c);
        if (f.zeros)
            continue;
        narrow_scale(f, add, rows, vectors, q, p.w + q->scale_at + at * (f.table ? 1 : 4), c, out);
        UNROLL8
        for (int i = 0; i < rows * vectors; i++)
            c[i] = _mm256_setzero_ps();
    }
    if (f.zeros)
        narrow_store(rows, vectors, q, c, out);
}

/* All columns of a block of rows: of few at once, else by halves of the panel. */
INLINE void narrow_some(struct narrow_form f, uint32_t rows, const struct cpu_quads *q,
                        const struct narrow_inputs *in, struct narrow_place p, float *out)
{
    for (p.col = 0; p.col < CPU_PANEL; p.col += rows <= 2 ? 32 : 16) {
        switch (rows) {
        case 1: narrow_block(f, 1, 4, q, in, p, out); break;
        case 2: narrow_block(f, 2, 4, q, in, p, out); break;
        case 3: narrow_block(f, 3, 2, q, in, p, out); break;
        case 4: narrow_block(f, 4, 2, q, in, p, out); break;
        }
        p.numbers += 64;
        out += 16;
    }
}

/* The inputs of a part that begins `at`. */
static struct narrow_inputs narrow_from(const struct cpu_quads *part,
                                        const struct narrow_inputs *in, uint32_t at)
{
    const size_t before = (size_t)at / QUADS_GROUP * in->rows;
    struct narrow_inputs from = *in;

    from.groups = (part->k + QUADS_GROUP - 1) / QUADS_GROUP;
    from.x += before * narrow_bytes(part->dtype == EK_I8 ? 8 : 4);
    from.scale += before;
    from.start += before;
    return from;
}

/* Numbers of so many inputs of a panel, halves apart: of 4 bits as bytes, of 8 bits as words. */
INLINE void narrow_widen(struct narrow_form f, const char *numbers, uint32_t k, char *to)
{
    const uint32_t lines = (k + 7) / 8 * (unsigned)f.bits / 4;

    for (uint32_t line = 0; line < lines; line++, numbers += 128, to += 256) {
        _mm_prefetch(numbers + FETCH, _MM_HINT_T1);
        _mm_prefetch(numbers + FETCH + 64, _MM_HINT_T1);
        UNROLL8
        for (int at = 0; at < 128; at += 32) {
            _mm256_store_si256((void *)(to + at), narrow_half(f, 0, numbers + at));
            _mm256_store_si256((void *)(to + 128 + at), narrow_half(f, 1, numbers + at));
        }
    }
}

/* All rows with a part of a panel, which stays in the first cache meanwhile. */
INLINE void narrow_rows(struct narrow_form f, const struct cpu_quads *q,
                        const struct narrow_inputs *in, struct narrow_place p, float *out)
{
    const uint32_t blocks = (q->rows + ROWS - 1) / ROWS;

    for (uint32_t i = 0; i < blocks; i++) {
        const uint32_t row = i * q->rows / blocks, rows = (i + 1) * q->rows / blocks - row;
        p.x = in->x + row * narrow_bytes(f.bits);
        p.scale = in->scale + row;
        p.start = in->start + row;
        p.ahead = i == 0 && !f.apart ? FETCH : 0;
        narrow_some(f, rows, q, in, p, out + row * q->c_stride);
    }
}

/* Scales and zeros of a panel: they lie apart from the numbers. */
static void narrow_fetch(const struct cpu_quads *q, uint32_t panel)
{
    const uint32_t first = q->first / q->group, end = (q->first + q->k - 1) / q->group + 1;
    const size_t scale = CPU_PANEL * (q->dtype == EK_F4_E2M1 ? 1 : sizeof(float));
    const char *w = (const char *)q->w + panel * q->panel_bytes;

    for (size_t at = first * scale; at < end * scale; at += 64)
        _mm_prefetch(w + q->scale_at + at, _MM_HINT_T1);
    for (size_t at = first * 64; at < end * 64 && q->zero_at > 0; at += 64)
        _mm_prefetch(w + q->zero_at + at, _MM_HINT_T1);
}

INLINE void narrow_all(struct narrow_form f, const struct cpu_quads *q,
                       const struct narrow_inputs *in)
{
    char halves[2 * CPU_K_CHUNK * CPU_PANEL] __attribute__((aligned(64)));
    struct cpu_quads part;

    for (uint32_t panel = 0; panel < q->panels; panel++) {
        const char *w = (const char *)q->w + panel * q->panel_bytes;
        const char *begin = w + (size_t)q->first * CPU_PANEL * (unsigned)f.bits / 8;
        const size_t size = ((size_t)q->k + 7) / 8 * (unsigned)f.bits * CPU_PANEL;
        struct narrow_place p = {.w = w, .turn = begin + size, .jump = q->panel_bytes - size};
        if (panel + 1 < q->panels) {
            p.turn = size > FETCH ? begin + size - FETCH : begin;
            narrow_fetch(q, panel + 1);
        }
        for (uint32_t at = 0; at < q->k; at += part.k) {
            part = cpu_quads_part(q, at, PART);
            const struct narrow_inputs inputs = narrow_from(&part, in, at);
            p.numbers = w + (size_t)part.first * CPU_PANEL * (unsigned)f.bits / 8;
            if (f.apart) {
                f.apart = false;
                narrow_widen(f, p.numbers, part.k, halves);
                f.apart = true;
                p.numbers = halves;
            }
            narrow_rows(f, &part, &inputs, p, q->c + (size_t)panel * CPU_PANEL);
        }
    }
}

#define FORM(name, ...)                                                                            \
    static __attribute__((noinline)) void name(const struct cpu_quads *q,                          \
                                               const struct narrow_inputs *in)                     \
    {                                                                                              \
        narrow_all((struct narrow_form){__VA_ARGS__}, q, in);                                      \
    }
FORM(narrow_int4, 4, false, false, false)
FORM(narrow_int4_zeros, 4, true, false, false)
FORM(narrow_int8, 8, false, false, false)
FORM(narrow_int8_zeros, 8, true, false, false)
FORM(narrow_float4, 4, false, true, false)
FORM(narrow_int8_many, 8, false, false, true)
FORM(narrow_int8_zeros_many, 8, true, false, true)
FORM(narrow_int4_many, 4, false, false, true)
FORM(narrow_int4_zeros_many, 4, true, false, true)
FORM(narrow_float4_many, 4, false, true, true)

void cpu_quads_avx2(const struct cpu_quads *q)
{
    const struct narrow_inputs in = narrow_of(q);
    const bool zeros = q->zero_at > 0, many = q->rows > 3 * ROWS;

    if (!q->rounded)
        narrow_round(q, &in);
    if (q->dtype == EK_F4_E2M1)
        (many ? narrow_float4_many : narrow_float4)(q, &in);
    else if (q->dtype == EK_I8 && many)
        (zeros ? narrow_int8_zeros_many : narrow_int8_many)(q, &in);
    else if (q->dtype == EK_I8)
        (zeros ? narrow_int8_zeros : narrow_int8)(q, &in);
    else if (many)
        (zeros ? narrow_int4_zeros_many : narrow_int4_many)(q, &in);
    else
        (zeros ? narrow_int4_zeros : narrow_int4)(q, &in);
}
