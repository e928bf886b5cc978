/* The memory plan: hand-worked sums, what does not fit and what to change, lengths that fit
 * themselves. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/model/memplan.h"

#define MIB (1024ull * 1024)

static const struct ek_plan need = {.weight_bytes = 100 * MIB,
                                    .activation_bytes = 20 * MIB,
                                    .slot_bytes = 1 * MIB,
                                    .block_bytes = MIB,
                                    .overhead_bytes = 9 * MIB};
static const struct memplan_params base = {.memory_bytes = 1000 * MIB,
                                           .utilization = 0.5,
                                           .block_size = 16,
                                           .max_num_seqs = 8,
                                           .max_num_batched_tokens = 64,
                                           .host_bytes = 10 * MIB};

static void sums(void **state)
{
    (void)state;
    struct memplan m;
    uint64_t sum = 0;
    /* 500 MiB of share - 140 fixed = 360 blocks of 1 MiB; one is the null block: 359 * 16 tokens */
    assert_int_equal(memplan_make(&base, &need, 2048, &m, NULL), 0);
    assert_int_equal(m.blocks, 360);
    assert_int_equal(m.max_model_len, 2048);
    assert_true(m.concurrency > 2.80 && m.concurrency < 2.81); /* 359 / 128 */
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        sum += m.bytes[i];
    assert_int_equal(sum, m.share_bytes);
    /* an unset length fits itself: 359 * 16 = 5744 */
    assert_int_equal(memplan_make(&base, &need, 100000, &m, NULL), 0);
    assert_int_equal(m.max_model_len, 5744);
    assert_true(m.concurrency > 0.99 && m.concurrency < 1.01);
    struct memplan_params p = base;
    p.kv_most_bytes = 50 * MIB;
    p.swap_bytes = 30 * MIB + 5;
    assert_int_equal(memplan_make(&p, &need, 512, &m, NULL), 0);
    assert_int_equal(m.blocks, 50);
    assert_int_equal(m.host_blocks, 30);
    assert_int_equal(m.bytes[MEMPLAN_SWAP], 30 * MIB);
    p = base;
    p.blocks_override = 129;
    assert_int_equal(memplan_make(&p, &need, 2048, &m, NULL), 0);
    assert_int_equal(m.blocks, 129);
    assert_int_equal(m.max_model_len, 2048);
}

static void refusals(void **state)
{
    (void)state;
    static const struct {
        uint64_t memory, kv_cache, swap;
        double utilization;
        uint32_t override, len;
        const char *field, *says;
    } cases[] = {
        {1000 * MIB, 0, 0, 0.1, 0, 0, "gpu-memory-utilization", "to 0.15 or more"},
        {141 * MIB, 0, 0, 0.9, 0, 0, "max-num-batched-tokens", "lower --max-num-batched-tokens"},
        {1000 * MIB, 0, 0, 0.5, 0, 6000, "max-model-len", "to 5744 or less"},
        {1000 * MIB, 0, 0, 0.5, 3, 2048, "max-model-len", "to 32 or less"},
        {1000 * MIB, 1 * MIB, 0, 0.5, 0, 0, "kv-cache-memory-bytes", "give 2097152 or more"},
        {1000 * MIB, 900 * MIB, 0, 0.5, 0, 0, "kv-cache-memory-bytes", "lower --kv-cache"},
        {1000 * MIB, 0, 600 * MIB, 0.5, 0, 0, "swap-space", "lower it"},
        {1000 * MIB, 0, 0, 0.5, 1, 0, "num-gpu-blocks-override", "2 or more"},
        {1000 * MIB, 0, 0, 0.5, 4000000000u, 0, "num-gpu-blocks-override", "lower --num-gpu"},
        {1000 * MIB, 0, 0, 0, 0, 0, "", "size of zero"},
        {0, 0, 0, 0.5, 0, 0, "", "size of zero"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct memplan_params p = base;
        struct memplan m = {.blocks = 77};
        struct ek_fault f = {0};
        p.memory_bytes = cases[i].memory;
        p.kv_cache_bytes = cases[i].kv_cache;
        p.swap_bytes = cases[i].swap;
        p.utilization = cases[i].utilization;
        p.blocks_override = cases[i].override;
        p.max_model_len = cases[i].len;
        assert_int_equal(memplan_make(&p, &need, 2048, &m, &f), -E2BIG);
        assert_int_equal(m.blocks, 77);
        assert_string_equal(f.field, cases[i].field);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("'%s' does not say '%s'", f.msg, cases[i].says);
    }
}

static void texts(void **state)
{
    (void)state;
    struct memplan m;
    struct ek_buf out = {0};
    assert_int_equal(memplan_make(&base, &need, 2048, &m, NULL), 0);
    assert_int_equal(memplan_write(&m, &base, false, &out), 0);
    assert_non_null(strstr(out.data, "kv_pool                  360.0"));
    assert_non_null(strstr(out.data, "share                    500.0"));
    ek_buf_clear(&out);
    assert_int_equal(memplan_write(&m, &base, true, &out), 0);
    assert_non_null(strstr(out.data, "\"kv_pool\":377487360"));
    assert_non_null(strstr(out.data, "\"max_concurrency\":2.80"));
    ek_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(sums), cmocka_unit_test(refusals),
                                       cmocka_unit_test(texts)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
