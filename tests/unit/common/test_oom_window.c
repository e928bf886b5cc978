/* Protects: an old kill explains no end, one just before a sample still does, and a count that
 * falls is no great number. Against a list of every kill's time, at times that a seed chose. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "common/oom_window.h"

#define S 1000000ull

static void test_edges(void **state)
{
    (void)state;
    struct ek_oom_window w;
    ek_oom_window_begin(&w, 5, 100 * S);
    assert_true(ek_oom_window_kills(&w, 5) == 0 && ek_oom_window_kills(&w, 7) == 2);
    assert_true(ek_oom_window_kills(&w, 0) == 0); /* its cgroup is gone */
    assert_false(ek_oom_window_due(&w, 100 * S + EK_OOM_STEP_US - 1));
    ek_oom_window_sample(&w, 6, 100 * S + EK_OOM_STEP_US - 1);
    assert_true(ek_oom_window_kills(&w, 6) == 1);
    ek_oom_window_sample(&w, 6, 100 * S + EK_OOM_STEP_US);
    assert_true(ek_oom_window_kills(&w, 6) == 1); /* it may have been just now */
    ek_oom_window_sample(&w, 6, 100 * S + 2 * EK_OOM_STEP_US);
    assert_true(ek_oom_window_kills(&w, 6) == 0);
    ek_oom_window_begin(&w, 9, 900 * S);
    assert_true(ek_oom_window_kills(&w, 9) == 0);
}

/* Sampled every second: a kill of the last step always counts, one of more than two steps and that
 * second ago never. */
static void test_against_a_list(void **state)
{
    (void)state;
    enum { SECONDS = 4000 };
    for (unsigned seed = 1; seed <= 50; seed++) {
        struct ek_oom_window w;
        uint64_t at[SECONDS], kills = 3, n = 0;
        unsigned r = seed;
        ek_oom_window_begin(&w, kills, 0);
        for (uint64_t t = 1; t < SECONDS; t++) {
            if (rand_r(&r) % 97 == 0) {
                at[n++] = t;
                kills++;
            }
            uint64_t least = 0, most = 0, said = ek_oom_window_kills(&w, kills);
            for (uint64_t i = 0; i < n; i++) {
                least += at[i] * S + EK_OOM_STEP_US > t * S;
                most += at[i] * S + 2 * EK_OOM_STEP_US + S >= t * S;
            }
            assert_true(said >= least && said <= most);
            ek_oom_window_sample(&w, kills, t * S);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_edges),
        cmocka_unit_test(test_against_a_list),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
