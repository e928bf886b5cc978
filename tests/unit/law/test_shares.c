/* What each key had in the last minute, and when it is said that one waits for its share. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/law/shares.h"

#define SEC 1000000ull

static struct keys_reading page(const char *text)
{
    struct keys_reading k;
    keys_parse(text, strlen(text), &k);
    return k;
}

/* A line a family, as the server writes them. */
static struct keys_reading two(double first, double second, double waiting, double ahead)
{
    char text[1200];
    (void)snprintf(text, sizeof(text),
                   "vllm:num_requests_running 3\n"
                   "evenkeel_key_active_requests{engine=\"0\",key=\"batch-jobs\"} %.0f\n"
                   "evenkeel_key_active_requests{engine=\"0\",key=\"chat\"} 2\n"
                   "evenkeel_key_waiting_requests{engine=\"0\",key=\"batch-jobs\"} %.0f\n"
                   "evenkeel_key_waiting_requests{engine=\"0\",key=\"chat\"} 1\n"
                   "evenkeel_key_refused_total{key=\"chat\",reason=\"queue\"} 9\n"
                   "evenkeel_key_tokens_total{key=\"batch-jobs\",kind=\"prompt\"} %.0f\n"
                   "evenkeel_key_tokens_total{key=\"batch-jobs\",kind=\"answer\"} %.0f\n"
                   "evenkeel_key_tokens_total{key=\"chat\",kind=\"prompt\"} %.0f\n"
                   "evenkeel_key_tokens_total{key=\"chat\",kind=\"answer\"} 0\n"
                   "evenkeel_key_ahead_tokens{key=\"batch-jobs\"} %.0f\n"
                   "evenkeel_key_weight{key=\"batch-jobs\"} 1\n"
                   "evenkeel_key_weight{key=\"chat\"} 3\n",
                   waiting + 2, waiting, first / 2, first / 4, second, ahead);
    return page(text);
}

static void reads_a_page(void **state)
{
    (void)state;
    struct keys_reading k = two(100, 50, 4, 17);
    assert_int_equal(k.count, 2);
    assert_string_equal(k.at[0].name, "batch-jobs");
    assert_float_equal(k.at[0].open, 6, 0);
    assert_float_equal(k.at[0].waiting, 4, 0);
    assert_float_equal(k.at[0].prompts, 50, 0);
    assert_float_equal(k.at[0].answers, 25, 0);
    assert_float_equal(k.at[0].ahead, 17, 0);
    assert_float_equal(k.at[1].weight, 3, 0);
    assert_float_equal(keys_find(&k, "chat")->prompts, 50, 0);
    assert_null(keys_find(&k, "other"));
    /* What is no name or no number is nobody's. */
    k = page("x 1\nevenkeel_key_weight{key=\"\"} 1\nevenkeel_key_weight 2\n"
             "evenkeel_key_weight{key=\"0123456789012345678901234567890123\"} 1\n"
             "evenkeel_key_weight{key=\"a\"} NaN\nevenkeel_key_weight{key=\"b\"} -1\n");
    assert_int_equal(k.count, 0);
    assert_int_equal(page("vllm:num_requests_running 3\n").count, 0);
    assert_int_equal(page("").count, 0);
}

static struct keys_reading poisons(double first, double second)
{
    char text[400];
    (void)snprintf(text, sizeof(text),
                   "vllm:num_requests_running 3\n"
                   "evenkeel_key_poison_requests_total{key=\"batch-jobs\"} %.0f\n"
                   "evenkeel_key_poison_requests_total{key=\"chat\"} %.0f\n",
                   first, second);
    return page(text);
}

/* At the third request, at the sixth, and after a restart of the server again. */
static void says_who_brings_poison(void **state)
{
    (void)state;
    struct shares *s = calloc(1, sizeof(*s));
    char text[200];
    static const struct {
        double first, second;
        uint32_t want, then;
    } cases[] = {{9, 0, 0, 0},  {9, 2, 0, 0},  {9, 3, 2, 0}, {10, 3, 0, 0}, {11, 5, 0, 0},
                 {12, 6, 1, 2}, {12, 6, 0, 0}, {0, 0, 0, 0}, {2, 2, 0, 0},  {5, 2, 1, 0}};
    assert_non_null(s);
    assert_false(shares_poison_why(s, true, text, sizeof(text)));
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct keys_reading k = poisons(cases[i].first, cases[i].second);
        uint32_t n = shares_poison(s, &k, 0);
        assert_int_equal(n, cases[i].want);
        assert_int_equal(n ? shares_poison(s, &k, n + 1) : 0, cases[i].then);
        shares_take(s, &k, (1 + i) * SEC);
        if (i == 2) {
            assert_true(shares_poison_why(s, true, text, sizeof(text)));
            assert_string_equal(text, "key batch-jobs has brought 9 requests with which the "
                                      "engine ends");
            assert_true(shares_poison_why(s, false, text, sizeof(text)));
            assert_non_null(strstr(text, "key 1 has"));
        }
        if (i == 8)
            assert_false(shares_poison_why(s, true, text, sizeof(text)));
    }
    free(s);
}

static void keeps_to_its_bound(void **state)
{
    (void)state;
    char text[8192] = "\n";
    size_t len = 1;
    for (int i = 0; i < 100; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len,
                                "evenkeel_key_weight{key=\"key-%d\"} 1\n", i);
    struct keys_reading k = page(text);
    assert_int_equal(k.count, KEYS_MOST);
    assert_string_equal(k.at[KEYS_MOST - 1].name, "key-63");
}

static void says_who_waits(void **state)
{
    (void)state;
    struct shares *s = calloc(1, sizeof(*s));
    struct share rows[KEYS_MOST];
    char text[200];
    assert_non_null(s);
    assert_false(shares_why(s, true, text, sizeof(text)));
    struct keys_reading k = two(1000, 1000, 5, 30);
    shares_take(s, &k, SEC);
    assert_false(shares_why(s, true, text, sizeof(text))); /* nothing is known of its share */
    for (uint32_t t = 1; t <= 120; t++) { /* 71 and 29 tokens a second, as they are charged */
        k = two(1000 + 71 * t, 1000 + 29 * t, 5, 30);
        shares_take(s, &k, (1 + t) * SEC);
    }
    assert_true(shares_span_s(s) >= 60 && shares_span_s(s) <= 70);
    assert_int_equal(shares_rows(s, rows), 2);
    assert_string_equal(rows[0].key->name, "batch-jobs");
    assert_float_equal(rows[0].part, 0.71, 0.005);
    assert_float_equal(rows[0].due, 0.25, 0);
    assert_float_equal(rows[0].running, 2, 0);
    assert_float_equal(rows[0].tokens_per_s, 71 * 0.75f, 0.5);
    assert_true(rows[0].held && !rows[1].held);
    assert_true(shares_why(s, true, text, sizeof(text)));
    assert_string_equal(text, "key batch-jobs waits for its share: it had 71 % of the tokens of "
                              "the last minute with a weight of 1 of 4");
    assert_true(shares_why(s, false, text, sizeof(text)));
    assert_string_equal(text, "key 1 waits for its share: it had 71 % of the tokens of the last "
                              "minute with a weight of 1 of 4");
    /* Its turn, nothing of it waits, or it had less than its share: then that is not why. */
    static const struct {
        double waiting, ahead, more;
    } not [] = {{5, 0, 0}, {0, 30, 0}, {5, 30, 1e6}};
    for (size_t i = 0; i < sizeof(not ) / sizeof(not [0]); i++) {
        k = two(1000 + 71 * 121, 1000 + 29 * 121 + not [i].more, not [i].waiting, not [i].ahead);
        shares_take(s, &k, 122 * SEC + i);
        assert_false(shares_why(s, true, text, sizeof(text)));
        assert_string_equal(text, "");
    }
    free(s);
}

/* Finding which tokens a form allows is charged like tokens, and may be all that a key had. */
static void counts_masks(void **state)
{
    (void)state;
    struct shares *s = calloc(1, sizeof(*s));
    struct share rows[KEYS_MOST];
    char text[240];
    assert_non_null(s);
    for (uint32_t t = 0; t <= 60; t++) {
        struct keys_reading k = two(1000 + 10 * t, 1000 + 30 * t, 5, 30);
        char more[120];
        (void)snprintf(more, sizeof(more),
                       "\nevenkeel_key_mask_tokens_total{key=\"batch-jobs\"} %u\n", 700 + 60 * t);
        struct keys_reading masks = page(more);
        assert_int_equal(masks.count, 1);
        k.at[0].masks = masks.at[0].masks;
        shares_take(s, &k, (1 + t) * SEC);
    }
    assert_int_equal(shares_rows(s, rows), 2);
    assert_float_equal(rows[0].part, 0.7, 0.005);
    assert_float_equal(rows[0].masks, 60.0 / 70, 0.005);
    assert_float_equal(rows[1].masks, 0, 0);
    assert_true(shares_why(s, true, text, sizeof(text)));
    assert_string_equal(text, "key batch-jobs waits for its share: it had 70 % of the tokens of "
                              "the last minute with a weight of 1 of 4, most of it for the masks "
                              "of its forms");
    free(s);
}

static void begins_anew(void **state)
{
    (void)state;
    struct shares *s = calloc(1, sizeof(*s));
    struct share rows[KEYS_MOST];
    assert_non_null(s);
    struct keys_reading k = two(9000, 9000, 0, 0);
    for (uint32_t t = 1; t < 30; t++)
        shares_take(s, &k, t * SEC);
    assert_int_equal(shares_rows(s, rows), 2); /* both have requests open */
    assert_float_equal(rows[0].part, 0, 0);
    k = two(300, 100, 0, 0); /* another process */
    shares_take(s, &k, 30 * SEC);
    assert_int_equal(shares_rows(s, rows), 2);
    assert_float_equal(rows[0].part, 0.75, 1e-9);
    k.count = 1; /* one alone shares with nobody */
    shares_take(s, &k, 31 * SEC);
    assert_int_equal(shares_rows(s, rows), 0);
    shares_start(s);
    assert_float_equal(shares_span_s(s), 0, 0);
    assert_int_equal(shares_rows(s, rows), 0);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(reads_a_page),       cmocka_unit_test(says_who_brings_poison),
        cmocka_unit_test(keeps_to_its_bound), cmocka_unit_test(says_who_waits),
        cmocka_unit_test(counts_masks),       cmocka_unit_test(begins_anew),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
