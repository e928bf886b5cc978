/*
 * The int8 KV cache of the CPU backend in every instruction tier of this machine: rounding, and
 * attention as whole numbers over blocks in quads, against plain loops, whatever rows stand beside.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/cache.h"
#include "tests/unit/kernels/noise.h"

/* Rounding to 8 bits is bitwise the same in all tiers, too. */
static void test_round8(const struct cpu_ops *ops)
{
    static const float specials[] = {0.0f, 1e-35f, 3e38f, INFINITY, NAN};
    float x[133], by[133], want_x[133];
    int8_t want[133], got[133];

    fill(by, 133, 6, 2.0f);
    for (uint32_t n = 1; n <= 133; n += 11)
        for (size_t c = 0; c < 6; c++) {
            fill(x, 133, n, c == 1 ? 1e-33f : 3.0f);
            if (c < 5)
                x[n / 2] = specials[c];
            memset(want, 1, sizeof(want));
            memset(got, 1, sizeof(got));
            float a = cpu_ops_ref.round8(want, x, n), b = ops->round8(got, x, n);
            assert_true(a == b || (isnan(a) && isnan(b)));
            assert_memory_equal(got, want, sizeof(got));
            assert_int_equal(isnan(a), c == 3 || c == 4);
            for (uint32_t i = 0; i < n && c != 2 && !isnan(a); i++)
                assert_true(fabsf((float)want[i] * a - x[i]) <= 0.501f * a + 1e-30f);
            memcpy(want_x, x, sizeof(x));
            cpu_ops_ref.times(want_x, by, n);
            ops->times(x, by, n);
            for (uint32_t i = 0; i < 133; i++)
                assert_true(x[i] == want_x[i] || isnan(want_x[i]));
        }
}

enum { QUAD_ROWS = 14, QUAD_DIM = 80, QUAD_KEYS = 256 };

/* Blocks of an int8 cache in quads and their numbers, a tile of scales, queries and outputs. */
struct quad_case {
    uint32_t dim, keys, blocks; /* keys of a block */
    int8_t number[QUAD_KEYS][QUAD_DIM];
    char block[64][QUAD_KEYS * QUAD_DIM];
    float q[QUAD_ROWS][QUAD_DIM], k[QUAD_KEYS + 16], v[QUAD_KEYS + 16];
    uint32_t word[QUAD_ROWS][QUAD_KEYS + 16];
    struct cpu_unit unit[QUAD_ROWS];
    float out[QUAD_ROWS][QUAD_KEYS + 16], one[QUAD_KEYS + 16];
};

static void fill_quads(struct quad_case *c, bool mix)
{
    for (uint32_t key = 0; key < c->blocks * c->keys; key++)
        for (uint32_t i = 0; i < c->dim; i++) {
            char *block = c->block[key / c->keys];
            const uint32_t at = key % c->keys;
            int8_t n = (int8_t)(noise(key * 131 + i) * 127.9f);
            c->number[key][i] = n;
            if (mix)
                block[cpu_quad_value_index(c->dim, i, at)] = n;
            else
                block[cpu_quad_key_index(c->keys, i, at)] = (char)(n ^ -128);
        }
}

/* The whole number that an element of a query has become, and a weight. */
static int query_value(const uint32_t *word, uint32_t i)
{
    return (int8_t)(word[i / 4] >> i % 4 * 8 & 255u);
}

static int weight_value(const uint32_t *word, uint32_t i)
{
    int upper = (int)(word[i / 4 * 2] >> i % 4 * 8 & 255u);
    int lower = (int)(word[i / 4 * 2 + 1] >> i % 4 * 8 & 255u);

    return upper * 256 + lower;
}

static struct cpu_block quad_block(struct quad_case *c, uint32_t first)
{
    struct cpu_block b = {
        .dim = c->dim, .keys = c->keys, .in_stride = QUAD_KEYS + 16, .out_stride = QUAD_KEYS + 16};

    for (; b.blocks < CPU_BLOCKS && first + b.blocks < c->blocks; b.blocks++)
        b.kv[b.blocks] = b.next[b.blocks] = c->block[first + b.blocks];
    return b;
}

/* Queries are rounded to within a unit, and a score is exactly its whole number times that. */
static void quad_scores(const struct cpu_quad_cache *cache, struct quad_case *c)
{
    struct cpu_unit one;
    uint32_t word[QUAD_DIM];

    fill_quads(c, false);
    fill(c->q[0], QUAD_ROWS * QUAD_DIM, 3, 4.0f);
    for (uint32_t row = 0; row < QUAD_ROWS; row++) {
        cache->query(c->word[row], c->q[row], c->dim, &c->unit[row]);
        for (uint32_t i = 0; i < c->dim; i++)
            assert_true(fabsf((float)query_value(c->word[row], i) * c->unit[row].one -
                              c->q[row][i]) <= 0.502f * c->unit[row].one);
    }
    for (uint32_t rows = 1; rows <= QUAD_ROWS; rows += rows < 7 ? 1 : 7) {
        fill(c->out[0], sizeof(c->out) / sizeof(float), 1, 1.0f);
        for (uint32_t first = 0; first < c->blocks; first += CPU_BLOCKS) {
            struct cpu_block b = quad_block(c, first);
            b.rows = rows;
            b.in = c->word;
            b.out = c->out[0] + (size_t)first * c->keys;
            cache->scores(&b, c->unit);
        }
        for (uint32_t row = 0; row < rows; row++)
            for (uint32_t key = 0; key < c->blocks * c->keys; key++) {
                int sum = 0;
                for (uint32_t i = 0; i < c->dim; i++)
                    sum += query_value(c->word[row], i) * c->number[key][i];
                assert_true(c->out[row][key] == (float)sum * c->unit[row].one);
            }
    }
    c->q[0][1] = NAN;
    cache->query(word, c->q[0], c->dim, &one);
    assert_true(isnan(one.one));
    memset(c->q[0], 0, sizeof(c->q[0]));
    cache->query(word, c->q[0], c->dim, &one);
    assert_true(one.one == 0.0f && one.less == 0 && query_value(word, 0) == 0);
}

/* Weights against those of ref: of positions [skip, n) of a tile. */
static void quad_softmax(const struct cpu_quad_cache *cache, struct quad_case *c, uint32_t skip,
                         uint32_t n)
{
    float m[2] = {-INFINITY, -INFINITY}, l[2] = {0.0f, 0.0f};

    fill(c->k, QUAD_KEYS, 7, 1.0f);
    fill(c->v, QUAD_KEYS, 8, 1.0f);
    for (uint32_t i = 0; i < QUAD_KEYS + 16; i++)
        c->v[i] = i < skip || i >= n ? NAN : fabsf(c->v[i]); /* what is not seen is not used */
    for (uint32_t tile = 0; tile < 3; tile++) {
        float *want = c->one, *s = c->out[0];
        struct cpu_quad_scores w = {.s = s, .skip = skip, .n = n, .scale = 0.3f, .k = c->k};
        fill(s, n, tile, 40.0f);
        for (uint32_t i = 0; i < n; i++)
            want[i] = s[i] * c->k[i];
        w.v = c->v;
        w.most = &m[1];
        w.sum = &l[1];
        w.to = (uint32_t *)(void *)s;
        w.unit = c->unit;
        float a = cpu_ops_ref.softmax(want + skip, n - skip, 0.3f, 0.0f, &m[0], &l[0]);
        float b = cache->softmax(&w);
        near(b, a, 1e-4f, "quads: factor");
        near(m[1], m[0], 1e-5f, "quads: maximum");
        near(l[1], l[0], 1e-4f, "quads: sum");
        for (uint32_t i = 0; i < (n + 15) / 16 * 16; i++) {
            const float is = (float)weight_value(w.to, i) * c->unit[0].one;
            near(is, i < skip || i >= n ? 0.0f : want[i] * c->v[i], 2e-5f, "quads: weight");
        }
    }
}

static void quad_mix(const struct cpu_quad_cache *cache, struct quad_case *c)
{
    fill_quads(c, true);
    for (uint32_t row = 0; row < QUAD_ROWS; row++) {
        c->unit[row] = (struct cpu_unit){0.001f * (float)(row + 1), 0};
        for (uint32_t i = 0; i < QUAD_KEYS; i++)
            c->word[row][i] = row == 0 ? UINT32_MAX : (uint32_t)(noise(row * 997 + i) * 2e9f);
    }
    for (uint32_t rows = 1; rows <= QUAD_ROWS; rows += rows < 7 ? 1 : 7) {
        fill(c->out[0], sizeof(c->out) / sizeof(float), 1, 1.0f);
        for (uint32_t first = 0; first < c->blocks; first += CPU_BLOCKS) {
            struct cpu_block b = quad_block(c, first);
            b.rows = rows;
            b.in = c->word[0] + (size_t)first * c->keys / 2;
            b.out = c->out[0];
            cache->mix(&b, c->unit);
        }
        for (uint32_t row = 0; row < rows; row++)
            for (uint32_t i = 0; i < c->dim; i++) {
                float want = noise(row * (QUAD_KEYS + 16) + i + 7919u);
                for (uint32_t key = 0; key < c->blocks * c->keys;) {
                    int sum = 0;
                    do
                        sum += weight_value(c->word[row], key) * c->number[key][i];
                    while (++key % (CPU_BLOCKS * c->keys) && key < c->blocks * c->keys);
                    want = fmaf((float)sum, c->unit[row].one, want);
                }
                assert_true(c->out[row][i] == want);
            }
    }
}

/* Attention over int8 in whole numbers: exact but for the rounding of its inputs. */
static void test_quad_cache(const struct cpu_ops *ops)
{
    static const uint32_t dims[] = {16, 48, 64, 80}, keys[] = {4, 8, 16, 32, 64, 256};
    struct quad_case *c = calloc(1, sizeof(*c));

    for (size_t i = 0; ops->cache && i < 4 * 6 * 2; i++) {
        c->dim = dims[i % 4];
        c->keys = keys[i / 4 % 6];
        c->blocks = i / 24 ? QUAD_KEYS / c->keys : 1;
        quad_scores(ops->cache, c);
        quad_mix(ops->cache, c);
    }
    for (uint32_t n = 1; ops->cache && n <= QUAD_KEYS; n += n < 20 ? 1 : 59)
        for (uint32_t skip = 0; skip < 4 && skip < n; skip++)
            quad_softmax(ops->cache, c, skip, n);
    free(c);
}

static void test_tiers(void **state)
{
    (void)state;
    const struct cpu_ops *tiers[CPU_TIERS];

    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++) {
        test_round8(tiers[i]);
        test_quad_cache(tiers[i]);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tiers),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
