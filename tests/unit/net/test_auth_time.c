/*
 * How long a wrong key takes says nothing about the right one: guesses that share no byte, half of
 * them or all but the last with a key are answered in the same time. Medians of 20,000 samples
 * each, taken in turn, may differ by 200 ns; a machine that is busy with something else gets
 * further tries, which a compare that stops at the first difference fails as well. The one unit
 * test with a clock: time is what it is about.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/net/auth.h"

enum { KEYS = 64, KEY_LEN = 64, SAMPLES = 20000, GUESSES = 3, TRIES = 5, MOST_NS = 200 };

static uint64_t now_ns(void)
{
    struct timespec t;
    (void)clock_gettime(CLOCK_MONOTONIC, &t); /* cannot fail */
    return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int by_size(const void *a, const void *b)
{
    const uint32_t *x = a, *y = b;
    return *x < *y ? -1 : *x > *y;
}

/* The difference of the largest and the smallest median. */
static uint32_t difference(struct auth *a, char guess[GUESSES][KEY_LEN + 1], uint32_t *sample)
{
    uint32_t least = UINT32_MAX, most = 0;

    for (uint32_t i = 0; i < SAMPLES; i++)
        for (uint32_t g = 0; g < GUESSES; g++) {
            uint64_t start = now_ns();
            int slot = auth_find(a, guess[g], KEY_LEN);
            uint64_t took = now_ns() - start;
            assert_int_equal(slot, -EACCES);
            sample[g * SAMPLES + i] = took < UINT32_MAX ? (uint32_t)took : UINT32_MAX;
        }
    for (uint32_t g = 0; g < GUESSES; g++) {
        qsort(sample + (size_t)g * SAMPLES, SAMPLES, sizeof(*sample), by_size);
        uint32_t median = sample[g * SAMPLES + SAMPLES / 2];
        least = median < least ? median : least;
        most = median > most ? median : most;
    }
    return most - least;
}

static void test_wrong_keys_take_the_same_time(void **state)
{
    static char keys[KEYS][KEY_LEN + 1];
    const char *list[KEYS];
    char guess[GUESSES][KEY_LEN + 1];
    struct ek_fault fault = {.msg = ""};
    struct auth *a = NULL;
    uint32_t off = UINT32_MAX;
    (void)state;

    for (uint32_t i = 0; i < KEYS; i++) {
        for (uint32_t k = 0; k < KEY_LEN; k++)
            keys[i][k] = (char)('a' + (i * 7 + k * 11) % 26);
        (void)snprintf(keys[i], 8, "sk-%04u", i); /* its NUL becomes a letter again */
        keys[i][7] = 'x';
        list[i] = keys[i];
    }
    const struct auth_source src = {.keys = list, .key_count = KEYS};
    assert_int_equal(auth_new(&src, &a, &fault), 0);
    for (uint32_t g = 0; g < GUESSES; g++) {
        size_t same = g == 0 ? 0 : g == 1 ? KEY_LEN / 2 : KEY_LEN - 1;
        memset(guess[g], '!', KEY_LEN);
        memcpy(guess[g], keys[0], same);
        guess[g][KEY_LEN] = '\0';
    }
    uint32_t *sample = malloc(sizeof(*sample) * SAMPLES * GUESSES);
    assert_non_null(sample);
    for (int i = 0; i < TRIES && off > MOST_NS; i++)
        off = difference(a, guess, sample);
    print_message("medians of wrong keys differ by %u ns\n", off);
    assert_true(off <= MOST_NS);
    free(sample);
    auth_free(a);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_wrong_keys_take_the_same_time)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
