/*
 * Products of whole numbers with tiles: 16 rows x 32 inputs x 16 columns an instruction. Sums of a
 * group are exact and what follows is done as by cpu_quads_vnni(), in the same order: both give the
 * same bits, so few rows, which are bound by reading the weights, go there. What bounds it from
 * there on: scaling the sums of each group, some 5 vector operations for 16 of them.
 *
 * Whole sums of some groups of up to 32 rows and a panel are put aside by the tiles, then added up
 * in f32 by vectors. Numbers of 4 bits are widened for each such block.
 */
#include "kernels/cpu/quads.h"

#include <immintrin.h>
#include <string.h>

#include "kernels/cpu/quads_round.h"
#include "kernels/cpu/tier.h"
#include "kernels/cpu/tiles.h"

#define INLINE static inline __attribute__((always_inline))
#define FEWEST 16u                        /* rows: with less the vectors keep up with the memory */
#define ASIDE  4u                         /* groups */
#define WIDTH  (CPU_PANEL * 4u)           /* bytes of four inputs of all columns */
#define BYTES  (QUADS_GROUP / 4u * WIDTH) /* of a group of weights as a tile takes them */
#define ROWS   32u                        /* two tiles */

/* A block: up to two tiles of rows, one panel. */
struct quads_block {
    const struct cpu_quads *q;
    const struct rounded *r;
    const char *panel;
    uint32_t tiles, height, row, rows; /* rows that are there, from `row` on */
    uint32_t group, groups;            /* put aside: the first one in these inputs, how many */
    bool add;                          /* c holds what is added to */
    float *c;                          /* at the first row and column */
};

struct sums {
    int32_t whole[ASIDE][ROWS][CPU_PANEL];
    float w[ASIDE][CPU_PANEL],
        less[ASIDE][CPU_PANEL]; /* scales of weights, and times their zeros */
    bool ends[ASIDE];           /* the last that shares its scale, or of all */
    float c[ROWS][CPU_PANEL];
    char wide[ASIDE][BYTES];
};

/* Eight inputs of 4 bits in 128 bytes, the first four in the low halves, as bytes. */
INLINE void widen(const char *from, bool table, char *to)
{
    const __m512i mask = _mm512_set1_epi8(15);

    for (int half = 0; half < 2; half++) {
        const __m512i both = _mm512_loadu_si512(from + (size_t)half * 64);
        const __m512i high = _mm512_and_si512(_mm512_srli_epi16(both, 4), mask);
        _mm512_storeu_si512(to + (size_t)half * 64,
                            quads_four(_mm512_and_si512(both, mask), table));
        _mm512_storeu_si512(to + WIDTH + (size_t)half * 64, quads_four(high, table));
    }
}

/* The weights of each group as tiles take them: where they lie, or widened or filled up. */
static void weights(const struct quads_block *s, struct sums *sums, const char *ret[ASIDE])
{
    const uint32_t bits = ek_dtype_bits(s->q->dtype);

    for (uint32_t i = 0; i < s->groups; i++) {
        const uint32_t k = (s->group + i) * QUADS_GROUP, left = s->q->k - k;
        const uint32_t eights = left < QUADS_GROUP ? (left + 7) / 8 : QUADS_GROUP / 8;
        const char *from = s->panel + (size_t)(s->q->first + k) * CPU_PANEL * bits / 8;
        ret[i] = bits == 8 && eights == QUADS_GROUP / 8 ? from : sums->wide[i];
        if (ret[i] == from)
            continue;
        for (uint32_t e = 0; e < QUADS_GROUP / 8; e++) {
            char *to = sums->wide[i] + (size_t)e * 2 * WIDTH;
            if (e >= eights)
                memset(to, 0, (size_t)2 * WIDTH);
            else if (bits == 8)
                memcpy(to, from + (size_t)e * 2 * WIDTH, (size_t)2 * WIDTH);
            else
                widen(from + (size_t)e * WIDTH, s->q->dtype == EK_F4_E2M1, to);
        }
    }
}

/* Rows of a last tile that are not there are read from what lies behind them in `work`. */
static void add_whole(const struct quads_block *s, struct sums *sums)
{
    const size_t padded = s->r->padded, below = s->height * padded;
    const char *w[ASIDE];

    weights(s, sums, w);
    for (uint32_t i = 0; i < s->groups; i++) {
        const int8_t *x = s->r->x + s->row * padded + (size_t)(s->group + i) * QUADS_GROUP;
        int32_t *to = sums->whole[i][0];
        TILE_ZERO(0);
        TILE_ZERO(1);
        TILE_LOAD(6, w[i], WIDTH);
        TILE_LOAD(7, w[i] + WIDTH / 2, WIDTH);
        TILE_LOAD(4, x, padded);
        TILE_FOURS(0, 4, 6);
        TILE_FOURS(1, 4, 7);
        TILE_STORE(0, to, WIDTH);
        TILE_STORE(1, to + 16, WIDTH);
        if (s->tiles == 1)
            continue;
        to += s->height * CPU_PANEL;
        TILE_ZERO(2);
        TILE_ZERO(3);
        TILE_LOAD(5, x + below, padded);
        TILE_FOURS(2, 5, 6);
        TILE_FOURS(3, 5, 7);
        TILE_STORE(2, to, WIDTH);
        TILE_STORE(3, to + 16, WIDTH);
    }
}

static void read_scales(const struct quads_block *s, struct sums *sums)
{
    const struct cpu_quads *q = s->q;
    const int usual = q->dtype == EK_I4 ? 8 : 0; /* what `start` has taken off already */

    for (uint32_t i = 0; i < s->groups; i++) {
        const uint32_t k = q->first + (s->group + i) * QUADS_GROUP;
        const size_t at = (size_t)(k / q->group) * CPU_PANEL;
        sums->ends[i] = (k + QUADS_GROUP) % q->group == 0 || s->group + i + 1 == s->r->groups;
        for (size_t half = 0; half < CPU_PANEL; half += 16) {
            const bool powers = q->dtype == EK_F4_E2M1;
            const __m512 w = quads_scales(
                s->panel + q->scale_at + (at + half) * (powers ? 1 : sizeof(float)), powers);
            _mm512_storeu_ps(sums->w[i] + half, w);
            if (q->zero_at == 0)
                continue;
            const __m256i own = _mm256_loadu_si256(
                (const void *)(s->panel + q->zero_at + (at + half) * sizeof(int16_t)));
            const __m512i off =
                _mm512_sub_epi32(_mm512_cvtepi16_epi32(own), _mm512_set1_epi32(usual));
            _mm512_storeu_ps(sums->less[i] + half, _mm512_mul_ps(_mm512_cvtepi32_ps(off), w));
        }
    }
}

/* Adds the groups put aside to the sums in f32, and those of a scale of weights to c. */
static void add_groups(struct quads_block *s, struct sums *sums)
{
    bool add = s->add;

    for (uint32_t row = 0; row < s->rows; row++) {
        const size_t at = (size_t)(s->row + row) * s->r->groups + s->group;
        for (size_t half = 0; half < CPU_PANEL; half += 16) {
            float *out = s->c + row * s->q->c_stride + half;
            __m512 c = _mm512_loadu_ps(sums->c[row] + half);
            add = s->add;
            for (uint32_t i = 0; i < s->groups; i++) {
                const __m512i whole = _mm512_loadu_si512(sums->whole[i][row] + half);
                const __m512i start = _mm512_set1_epi32(s->r->start[at + i]);
                const __m512 sum = _mm512_cvtepi32_ps(_mm512_add_epi32(whole, start));
                c = _mm512_fmadd_ps(sum, _mm512_set1_ps(s->r->scale[at + i]), c);
                if (!sums->ends[i])
                    continue;
                const __m512 w = _mm512_loadu_ps(sums->w[i] + half);
                c = add ? _mm512_fmadd_ps(c, w, _mm512_loadu_ps(out)) : _mm512_mul_ps(c, w);
                _mm512_storeu_ps(out, c);
                c = _mm512_setzero_ps();
                add = true;
            }
            _mm512_storeu_ps(sums->c[row] + half, c);
        }
    }
    s->add = add;
}

/* The same with zeros of the weights' own: each group is scaled and added by itself. */
static void add_zeros(const struct quads_block *s, struct sums *sums)
{
    const float zero = s->q->dtype == EK_I4 ? -1.0f / 8.0f : -1.0f / 128.0f;

    for (uint32_t row = 0; row < s->rows; row++) {
        const size_t at = (size_t)(s->row + row) * s->r->groups + s->group;
        for (size_t half = 0; half < CPU_PANEL; half += 16) {
            __m512 c = _mm512_loadu_ps(sums->c[row] + half);
            for (uint32_t i = 0; i < s->groups; i++) {
                const __m512i whole = _mm512_loadu_si512(sums->whole[i][row] + half);
                const int32_t start = s->r->start[at + i];
                const __m512 x = _mm512_set1_ps(s->r->scale[at + i]);
                const __m512 sum =
                    _mm512_cvtepi32_ps(_mm512_add_epi32(whole, _mm512_set1_epi32(start)));
                c = _mm512_fmadd_ps(_mm512_mul_ps(sum, x), _mm512_loadu_ps(sums->w[i] + half), c);
                const float inputs = (float)start * zero;
                c = _mm512_fnmadd_ps(_mm512_set1_ps(inputs * s->r->scale[at + i]),
                                     _mm512_loadu_ps(sums->less[i] + half), c);
            }
            _mm512_storeu_ps(sums->c[row] + half, c);
        }
    }
}

static void block(struct quads_block *s)
{
    const bool zeros = s->q->zero_at > 0;
    struct sums sums;

    for (uint32_t row = 0; row < s->rows; row++) {
        if (zeros && s->q->add)
            /* cppcheck-suppress uninitvar ; it is what is written */
            memcpy(sums.c[row], s->c + row * s->q->c_stride, sizeof(sums.c[row]));
        else
            memset(sums.c[row], 0, sizeof(sums.c[row]));
    }
    for (s->group = 0; s->group < s->r->groups; s->group += ASIDE) {
        s->groups = s->r->groups - s->group < ASIDE ? s->r->groups - s->group : ASIDE;
        add_whole(s, &sums);
        read_scales(s, &sums);
        if (zeros)
            add_zeros(s, &sums);
        else
            add_groups(s, &sums);
    }
    for (uint32_t row = 0; zeros && row < s->rows; row++)
        memcpy(s->c + row * s->q->c_stride, sums.c[row], sizeof(sums.c[row]));
}

void cpu_quads_amx(const struct cpu_quads *q)
{
    if (q->rows < FEWEST) {
        cpu_quads_vnni(q);
        return;
    }
    const struct tiles_cut cut = tiles_cut(q->rows);
    const struct rounded r = rounded_of(q);
    if (!q->rounded)
        round_inputs(q, &r);
    tiles_begin(cut.height, QUADS_GROUP, QUADS_GROUP / 4);
    for (uint32_t panel = 0; panel < q->panels; panel++)
        for (uint32_t tile = 0; tile < cut.tiles; tile += 2) {
            struct quads_block s = {.q = q,
                                    .r = &r,
                                    .panel = (const char *)q->w + panel * q->panel_bytes,
                                    .tiles = cut.tiles - tile > 1 ? 2 : 1,
                                    .height = cut.height,
                                    .row = tile * cut.height,
                                    .add = q->add};
            s.rows = s.tiles * cut.height;
            s.rows = q->rows - s.row < s.rows ? q->rows - s.row : s.rows;
            s.c = q->c + s.row * q->c_stride + (size_t)panel * CPU_PANEL;
            block(&s);
        }
    tiles_end();
}
