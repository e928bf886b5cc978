/* What the memory plan is told about the engine's tables, beside what they take. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/engine/engine.h"
#include "server/engine/sched.h"
#include "server/engine/sizes.h"
#include "tests/unit/alloc.h"

static void test_tables(void **state)
{
    static const struct {
        uint32_t seqs, tokens, length, block_size, blocks, host_blocks, queue;
    } cases[] = {
        {64, 2048, 2048, 16, 87381, 0, 1024},    {4, 256, 2048, 16, 129, 0, 1024},
        {256, 8192, 131072, 16, 50000, 0, 1024}, {1, 1, 1, 8, 2, 0, 1},
        {64, 2048, 4096, 8, 174762, 0, 16},      {64, 2048, 4096, 128, 10000, 5000, 1024},
        {1024, 4096, 8192, 32, 65536, 65536, 0}, {512, 512, 32768, 64, 131073, 1000, 4096},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_params p = {.max_seqs = cases[i].seqs,
                                  .max_batched_tokens = cases[i].tokens,
                                  .max_model_len = cases[i].length,
                                  .block_size = cases[i].block_size,
                                  .blocks = cases[i].blocks,
                                  .host_blocks = cases[i].host_blocks,
                                  .vocab = 1000,
                                  .depth = 2,
                                  .limits.ceiling[LIMIT_QUEUED_REQS] = cases[i].queue};
        struct ek_step_ceiling c;
        struct sched *s;
        unsigned long before = alloc_bytes();
        assert_int_equal(sched_new(&p, &s), 0);
        engine_ceiling(&p, &c); /* and what engine_new() takes for steps and a result */
        double took = (double)(alloc_bytes() - before) + 2.0 * (double)ek_step_size(&c) +
                      (double)ek_result_size(p.max_seqs);
        double said =
            (double)engine_table_bytes(&p) + (double)engine_block_table_bytes(p.block_size) *
                                                 (double)(p.blocks + (uint64_t)p.host_blocks);
        sched_free(s);
        if (said < 0.85 * took || said > 1.6 * took)
            fail_msg("case %zu: %.0f said, %.0f taken", i, said, took);
    }
}

static void test_requests(void **state)
{
    static int32_t prompt[3000];
    (void)state;
    for (uint32_t n = 1; n <= 3000; n = n * 3 + 1) {
        struct req_ask ask = {.prompt = prompt, .prompt_tokens = n, .max_new_tokens = n};
        unsigned long before = alloc_bytes();
        struct request *r = request_new(&ask);
        assert_non_null(r);
        unsigned long took = alloc_bytes() - before;
        request_unref(r);
        if (took > engine_request_bytes(2 * n))
            fail_msg("%u tokens: %lu taken", n, took);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_requests),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
