/* Limits that hold from the start: brought into their bounds, and nonsense changes nothing. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/engine/limits.h"
#include "server/start_limits.h"

static struct limits fresh(void)
{
    struct limits l = {.generation = 1};
    l.ceiling[LIMIT_RUNNING_SEQS] = l.value[LIMIT_RUNNING_SEQS] = 64;
    l.ceiling[LIMIT_BATCHED_TOKENS] = l.value[LIMIT_BATCHED_TOKENS] = 2048;
    l.floor[LIMIT_RUNNING_SEQS] = l.floor[LIMIT_BATCHED_TOKENS] = 1;
    l.start[LIMIT_RUNNING_SEQS] = 64;
    return l;
}

static void test_values(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        uint64_t seqs, tokens;
    } cases[] = {
        {NULL, 64, 2048},
        {"", 64, 2048},
        {"max_num_running_seqs=4", 4, 2048},
        {"max_num_running_seqs=4,max_num_batched_tokens=512", 4, 512},
        {"max_num_running_seqs=1000", 64, 2048}, /* the next process may have less */
        {"max_num_running_seqs=0", 1, 2048},
        {"max_num_running_seqs=x,max_num_batched_tokens=512", 64, 512},
        {"max_num_running_seqs", 64, 2048},
        {"flying=4,,=,max_num_running_seqs=-1", 64, 2048},
        {"max_num_running_seqs=1e300", 64, 2048},
        {"max_num_batched_tokens=8", 64, 2048}, /* fewer than its sequences: refused */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct limits l = fresh();
        start_limits(cases[i].text, &l);
        assert_int_equal(l.value[LIMIT_RUNNING_SEQS], cases[i].seqs);
        assert_int_equal(l.value[LIMIT_BATCHED_TOKENS], cases[i].tokens);
        assert_int_equal(l.start[LIMIT_RUNNING_SEQS], 64); /* where one that expires goes back to */
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_values)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
