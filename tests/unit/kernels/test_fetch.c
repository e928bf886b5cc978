/*
 * Protects: what attention fetches meanwhile. Over all groups of queries and all vectors of V, each
 * line of the blocks that come next is fetched once: none is forgotten, nor asked for by two.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/attend_fetch.h"

#define MOST_LINES (32u * 8u) /* of a block: 512 dims, 16 keys in pairs */

static char now[CPU_BLOCKS][MOST_LINES * 64], next[CPU_BLOCKS][MOST_LINES * 64];
static uint32_t times[CPU_BLOCKS][MOST_LINES];

/* One line is fetched. */
static void count(const char *at)
{
    const size_t byte = (size_t)(at - &next[0][0]);

    if (at < &next[0][0] || byte >= sizeof(next))
        return; /* what is being read */
    assert_int_equal(byte % 64, 0);
    times[byte / sizeof(next[0])][byte % sizeof(next[0]) / 64]++;
}

/* As a vector of V is walked through blocks of `rows`. */
static void walk(const struct cpu_block *b, size_t at, uint32_t rows, struct turn t)
{
    struct fetch f = fetch_from(b, at, rows, t);

    for (uint32_t block = 0; block < b->blocks; block++) {
        const char *from = fetch_next(b, &f, (const char *)b->kv[block] + at, t);
        for (uint32_t row = 0; row < rows; row++)
            count(from + row * f.step);
    }
}

static void check(uint32_t dim, uint32_t rows, uint32_t blocks, uint32_t groups)
{
    struct cpu_block b = {.dim = dim, .blocks = blocks};

    memset(times, 0, sizeof(times));
    for (uint32_t i = 0; i < blocks; i++) {
        b.kv[i] = now[i];
        b.next[i] = next[i];
    }
    for (uint32_t i = 0; i < groups; i++)
        for (size_t at = 0; at < (size_t)dim * 4; at += 64)
            walk(&b, at, rows, groups == 1 ? TURN_ALONE : TURN_OF(i, groups));
    for (uint32_t i = 0; i < CPU_BLOCKS; i++)
        for (uint32_t line = 0; line < MOST_LINES; line++)
            assert_int_equal(times[i][line], i < blocks && line < dim / 16 * rows ? 1 : 0);
}

static void each_line_once(void **state)
{
    static const uint32_t dims[] = {16, 48, 64, 80, 128, 256, 512};

    (void)state;
    for (size_t d = 0; d < sizeof(dims) / sizeof(dims[0]); d++)
        for (uint32_t rows = 0; rows <= 8; rows = rows ? rows * 2 : 1)
            for (uint32_t blocks = 1; blocks <= (rows ? CPU_BLOCKS : 1); blocks++)
                for (uint32_t groups = 1; groups <= 6; groups++)
                    check(dims[d], rows, blocks, groups);
}

static uint32_t reached;

static void group(uint32_t rows, uint32_t row, struct turn t)
{
    assert_int_equal(row, reached);
    assert_int_equal(t.alone, t.count == 1);
    assert_true(t.index < t.count);
    reached += rows;
}

/* Every query is in one group, whatever their number. */
static void each_query_once(void **state)
{
    (void)state;
    for (uint32_t all = 0; all <= CPU_QUERIES; all++) {
        reached = 0;
        EACH_GROUP(6u, all, group)
        assert_int_equal(reached, all);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(each_line_once),
        cmocka_unit_test(each_query_once),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
