/* Where the form of an answer begins: behind the head of a message, wherever the tokens come in. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/engine/constrain.h"
#include "server/engine/request.h"

#define MOST 16u

/* The gate: 1 2 3 in a row, then the first 9. */
static const struct {
    int32_t token[MOST];
    uint32_t count, first; /* of the form; 0 = it does not begin */
} cases[] = {
    {{1, 2, 3, 9, 7}, 5, 4},       {{1, 2, 3, 9}, 4, 4},       {{5, 1, 2, 3, 6, 6, 9, 7, 9}, 9, 7},
    {{1, 1, 2, 3, 9}, 5, 5},       {{1, 2, 1, 2, 3, 9}, 6, 6}, {{9, 1, 2, 9, 3, 9}, 6, 0},
    {{1, 2, 3, 1, 9, 7}, 6, 0}, /* another head has begun */
    {{1, 2, 3, 1, 2, 3, 9}, 7, 7}, {{1, 2, 3}, 3, 0},          {{0}, 0, 0},
};

static struct request *make(uint32_t gates)
{
    static const int32_t prompt[] = {1};
    struct req_ask ask = {.prompt = prompt,
                          .prompt_tokens = 1,
                          .max_new_tokens = MOST,
                          .gate = {1, 2, 3},
                          .gate_last = 9,
                          .gates = gates};
    return request_new(&ask);
}

static void test_cases(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        for (uint32_t piece = 1; piece <= MOST; piece++) {
            struct request *r = make(3);
            uint32_t first = 0, n = 0;
            bool begun = false;
            assert_non_null(r);
            for (uint32_t i = 0; i < cases[c].count; i++)
                r->out[i].id = cases[c].token[i];
            while (n < cases[c].count) {
                n = n + piece < cases[c].count ? n + piece : cases[c].count;
                begun = constrain_begun(r, n, &first);
            }
            assert_true(begun == (cases[c].first > 0));
            if (begun)
                assert_int_equal(first, cases[c].first);
            request_unref(r);
        }
    }
}

static void test_none(void **state)
{
    struct request *r = make(0);
    uint32_t first = 5;
    (void)state;
    assert_true(constrain_begun(r, 0, &first) && first == 0);
    request_unref(r);
    assert_null(make(REQ_GATE + 1));
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cases), cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
