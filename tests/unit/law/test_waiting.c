/* Why requests wait, in words, and the notes on what the engine does by itself. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/engines/dialect.h"
#include "supervisor/law/waiting.h"
#include "supervisor/law/window.h"

#define SEC 1000000ull

static struct sample page(const char *engine, const char *text, uint64_t at_us)
{
    struct sample s;
    sample_parse(dialect_find(engine), text, strlen(text), at_us, &s);
    assert_true(s.good);
    return s;
}

static void says_why(void **state)
{
    (void)state;
    static const char common[] = "vllm:kv_cache_usage_perc 0.44\nvllm:num_requests_running 8\n"
                                 "vllm:num_requests_waiting 16\n";
    static const char none[] = "evenkeel_admission_held{reason=\"growth\"} 0\n"; /* else, once */
    static const struct {
        const char *held, *says;
    } cases[] = {
        {"evenkeel_admission_held{reason=\"growth\"} 16\n"
         "evenkeel_admission_blocks{figure=\"expected\"} 64\nevenkeel_admission_fit_requests 8\n",
         "16 wait: each is expected to grow to about 64 blocks, 8 fit"},
        {"evenkeel_admission_held{reason=\"growth\"} 16\n"
         "evenkeel_admission_blocks{figure=\"expected\"} 64\nevenkeel_admission_fit_requests 9\n",
         "16 wait: each is expected to grow to about 64 blocks, 9 fit (8 run; room is kept for "
         "those that grow longer)"},
        {"evenkeel_admission_held{reason=\"limit\"} 16\n", "16 wait: 8 run, the limit is 24"},
        {"evenkeel_admission_held{reason=\"blocks\"} 16\n"
         "evenkeel_admission_blocks{figure=\"needed\"} 40\n"
         "evenkeel_admission_blocks{figure=\"available\"} 12\n",
         "16 wait: the next one needs 40 blocks, 12 are available and a part of them is kept for "
         "those that run"},
        {"evenkeel_admission_held{reason=\"preempted\"} 16\n",
         "16 wait: requests lack blocks to go on, they come first"},
        {"evenkeel_admission_held{reason=\"paused\"} 16\n",
         "16 wait: admission paused at its high mark, KV usage is 44 %"},
        {"evenkeel_admission_held{reason=\"tokens\"} 16\n",
         "16 wait: prompts that are being read fill each step"},
        {"evenkeel_admission_held{reason=\"copies\"} 16\n",
         "16 wait: blocks are on their way from host memory"},
        {"", ""}, /* they came since the last step */
    };
    char text[200], all[600];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(all, sizeof(all), "%s%s%s", common, cases[i].held, none);
        struct sample s = page("evenkeel", all, SEC);
        assert_int_equal(waiting_why(&s, 24, text, sizeof(text)), cases[i].says[0] != '\0');
        assert_string_equal(text, cases[i].says);
    }
}

static void says_what_a_stock_engine_tells(void **state)
{
    (void)state;
    char text[200];
    static const char running[] = "vllm:kv_cache_usage_perc 0.97\nvllm:num_requests_running 8\n";
    char all[400];
    (void)snprintf(all, sizeof(all), "%svllm:num_requests_waiting 0\n", running);
    struct sample s = page("vllm", all, SEC);
    assert_false(waiting_why(&s, 24, text, sizeof(text)));
    (void)snprintf(all, sizeof(all), "%svllm:num_requests_waiting 3\n", running);
    s = page("vllm", all, SEC);
    assert_false(waiting_why(&s, 24, text, sizeof(text)));
    assert_true(waiting_why(&s, 8, text, sizeof(text)));
    assert_string_equal(text, "3 wait: 8 run, the limit is 8");
    (void)snprintf(all, sizeof(all),
                   "%svllm:num_requests_waiting 3\n"
                   "vllm:num_requests_waiting_by_reason{reason=\"capacity\"} 3\n",
                   running);
    s = page("vllm", all, SEC);
    assert_true(waiting_why(&s, 24, text, sizeof(text)));
    assert_string_equal(text, "3 wait for room in the KV cache: 8 run, KV usage 97 %");
    sample_missing(SEC, &s);
    assert_false(waiting_why(&s, 24, text, sizeof(text)));
}

struct waiting_run {
    struct waiting w;
    struct window *window;
    uint64_t t_us;
    uint32_t notes;
    struct decision last;
};

static void seconds(struct waiting_run *r, uint32_t count, double each, double held,
                    double *preemptions)
{
    for (uint32_t i = 0; i < count; i++) {
        struct sample s;
        r->t_us += SEC;
        sample_missing(r->t_us, &s);
        *preemptions += each;
        const double values[][2] = {{SIG_KV_USAGE, 0.96},
                                    {SIG_RUNNING, 8},
                                    {SIG_WAITING, 16},
                                    {SIG_PREEMPTIONS, *preemptions},
                                    {SIG_RECOMPUTED, 100 * *preemptions},
                                    {SIG_HELD_GROWTH, held},
                                    {SIG_HELD_EXPECTED, 64},
                                    {SIG_HELD_FIT, 8}};
        s.good = true;
        for (size_t k = 0; k < sizeof(values) / sizeof(values[0]); k++) {
            s.value[(int)values[k][0]] = values[k][1];
            s.flags[(int)values[k][0]] = 0;
        }
        window_push(r->window, &s);
        r->notes += waiting_step(&r->w, &s, r->window, 24, r->t_us, &r->last);
    }
}

static void notes_each_episode_once(void **state)
{
    (void)state;
    struct waiting_run r = {.t_us = 100 * SEC};
    double preemptions = 1000;
    assert_int_equal(window_new(30, 64, &r.window), 0);
    waiting_start(&r.w);
    seconds(&r, 20, 0, 0, &preemptions);
    assert_int_equal(r.notes, 0);
    seconds(&r, 60, 0, 16, &preemptions);
    assert_int_equal(r.notes, 1);
    assert_int_equal(r.last.reason, REASON_ENGINE_HOLDS);
    assert_string_equal(r.last.why, "16 wait: each is expected to grow to about 64 blocks, 8 fit");
    seconds(&r, 10, 0, 0, &preemptions); /* too short an end */
    seconds(&r, 20, 0, 16, &preemptions);
    assert_int_equal(r.notes, 1);
    seconds(&r, 40, 0, 0, &preemptions);
    seconds(&r, 20, 0, 16, &preemptions);
    assert_int_equal(r.notes, 2);
    window_free(r.window);
}

static void notes_a_burst_and_its_cost(void **state)
{
    (void)state;
    struct waiting_run r = {.t_us = 100 * SEC};
    double preemptions = 1000;
    assert_int_equal(window_new(30, 64, &r.window), 0);
    waiting_start(&r.w);
    seconds(&r, 20, 0, 0, &preemptions);
    seconds(&r, 1, 2, 0, &preemptions); /* two are no burst */
    seconds(&r, 40, 0, 0, &preemptions);
    assert_int_equal(r.notes, 0);
    seconds(&r, 40, 2, 0, &preemptions);
    assert_int_equal(r.notes, 1);
    assert_int_equal(r.last.reason, REASON_PREEMPTIONS);
    assert_non_null(strstr(r.last.why, "preemptions in 10 s, 8 run, 16 wait, KV usage 96 %"));
    seconds(&r, 31, 0, 0, &preemptions);
    assert_int_equal(r.notes, 2);
    assert_non_null(strstr(r.last.why, "80 preemptions in about"));
    assert_non_null(strstr(r.last.why, "none for 30 s now; KV usage was up to 96 %, "));
    assert_non_null(strstr(r.last.why, "tokens were computed again"));
    seconds(&r, 100, 0, 0, &preemptions);
    assert_int_equal(r.notes, 2);
    window_free(r.window);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(says_why),
        cmocka_unit_test(says_what_a_stock_engine_tells),
        cmocka_unit_test(notes_each_episode_once),
        cmocka_unit_test(notes_a_burst_and_its_cost),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
