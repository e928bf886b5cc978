/* A request: its memory, its references, its names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/engine/request.h"
#include "tests/unit/alloc.h"

static const int32_t prompt[] = {1, 2, 3, 4};

static struct req_ask ask(void)
{
    return (struct req_ask){
        .prompt = prompt, .prompt_tokens = 4, .max_new_tokens = 8, .top = 2, .sampling.top_p = 1};
}

static void owns_its_prompt(void **state)
{
    (void)state;
    struct req_ask a = ask();
    struct request *r = request_new(&a);
    assert_non_null(r);
    assert_ptr_not_equal(r->ask.prompt, prompt);
    assert_memory_equal(r->ask.prompt, prompt, sizeof(prompt));
    assert_int_equal(atomic_load(&r->refs), 1);
    assert_int_equal(r->stop_token, -1);
    r->out[7].id = 5;
    r->top_at[15].id = 6; /* room for every token and its alternatives */
    request_ref(r);
    request_unref(r);
    request_unref(r);
    request_unref(NULL);
}

static void refuses_counts_out_of_range(void **state)
{
    (void)state;
    for (int i = 0; i < 4; i++) {
        struct req_ask a = ask();
        *(uint32_t *[]){&a.max_new_tokens, &a.prompt_tokens, &a.top, &a.stop_count}[i] =
            (const uint32_t[]){0, 0, EK_TOP_MOST + 1, REQ_STOP_IDS + 1}[i];
        assert_null(request_new(&a));
    }
}

static void survives_failed_allocations(void **state)
{
    (void)state;
    struct req_ask a = ask();
    a.max_new_tokens = 4000; /* more than one chunk of the arena */
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        struct request *r = request_new(&a);
        if (!alloc_failed()) {
            assert_true(n > 3);
            request_unref(r);
            break;
        }
        assert_null(r);
    }
}

static void names_ends(void **state)
{
    (void)state;
    assert_string_equal(request_finish_name(REQ_FIN_STOP), "stop");
    assert_string_equal(request_finish_name(REQ_FIN_LENGTH), "length");
    assert_string_equal(request_finish_name(REQ_FIN_ABORT), "abort");
    assert_string_equal(request_finish_name(REQ_FIN_ERROR), "error");
    assert_string_equal(request_finish_name(REQ_FIN_NONE), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(owns_its_prompt),
        cmocka_unit_test(refuses_counts_out_of_range),
        cmocka_unit_test(survives_failed_allocations),
        cmocka_unit_test(names_ends),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
