/* What wears out: hours of samples in, trims, restarts and caps out; an idle or a large server is
 * none. */
#include "supervisor/law/chronic.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "supervisor/io/lease.h"

#define MIB 1048576.0

struct hours {
    double minutes;
    double reserved, used_high; /* MiB, at the end of it; linear from before */
    double usage, running;
    double cached, hit_rate;
};

static const struct chronic_params params = {.frag = 0.7,
                                             .frag_hard = 0.85,
                                             .window_s = 900,
                                             .least_bytes = 256 * MIB,
                                             .leak_s = 60,
                                             .prefix_hit = 0.05};

struct chronic_life {
    struct chronic c;
    uint64_t now_us;
    double reserved, used_high, queries, hits;
    char log[400];
};

static void put(struct chronic_life *l, const char *what)
{
    size_t at = strlen(l->log);
    (void)snprintf(l->log + at, sizeof(l->log) - at, "%s%s@%.0f", at ? " " : "", what,
                   (double)l->now_us / 60e6);
}

static void live(struct chronic_life *l, const struct hours *h)
{
    static const char *const names[] = {"", "trim", "restart", "leak", "ineffective", "prefix"};
    double from = l->reserved, used = l->used_high;
    for (int i = 1; i <= h->minutes * 6; i++) { /* every 10 s */
        struct sample s;
        double share = i / (h->minutes * 6);
        l->now_us += 10000000;
        l->reserved = from + (h->reserved - from) * share;
        l->used_high = used + (h->used_high - used) * share;
        l->queries += 1000;
        l->hits += 1000 * h->hit_rate;
        sample_missing(l->now_us, &s);
        const double values[][2] = {{SIG_POOL_RESERVED, l->reserved * MIB},
                                    {SIG_POOL_USED_HIGH, l->used_high * MIB},
                                    {SIG_KV_USAGE, h->usage},
                                    {SIG_RUNNING, h->running},
                                    {SIG_WAITING, 0},
                                    {SIG_BLOCKS_TOTAL, 1000},
                                    {SIG_BLOCKS_CACHED, h->cached * 1000},
                                    {SIG_PREFIX_QUERIES, l->queries},
                                    {SIG_PREFIX_HITS, l->hits}};
        s.good = i % 7 != 0; /* polls get lost */
        for (size_t k = 0; s.good && k < sizeof(values) / sizeof(values[0]); k++) {
            s.value[(int)values[k][0]] = values[k][1];
            s.flags[(int)values[k][0]] = 0;
        }
        struct chronic_verdict v = chronic_step(&l->c, &params, &s, l->now_us);
        if (v.kind != CHRONIC_NONE) {
            assert_true(v.why[0] != '\0');
            put(l, names[v.kind]);
        }
    }
}

static void test_lives(void **state)
{
    (void)state;
    static const struct {
        const char *what;
        double reserved, used; /* at the beginning */
        struct hours hours[4];
        const char *want;
    } cases[] = {
        {"reserved grows, use does not",
         500,
         400,
         {{120, 2000, 400, 0, 0, 0, 0}, {60, 2000, 400, 0, 0, 0, 0}},
         "trim@81 restart@86"},
        {"planned large from the start", 4000, 100, {{300, 4000, 100, 0, 0, 0, 0}}, ""},
        {"too little to matter", 10, 5, {{300, 200, 5, 0, 0, 0, 0}}, ""},
        {"use grows with it", 500, 400, {{300, 4000, 3600, 0, 0, 0, 0}}, ""},
        {"it mends itself",
         500,
         100,
         {{1, 2000, 400, 0, 0, 0, 0}, {300, 800, 400, 0, 0, 0, 0}},
         ""},
        {"a trim helps, much later it is back",
         500,
         400,
         {{85, 1514, 400, 0, 0, 0, 0},
          {2, 450, 400, 0, 0, 0, 0},
          {100, 450, 400, 0, 0, 0, 0},
          {200, 2400, 400, 0, 0, 0, 0}},
         "trim@83 trim@291 restart@297"},
        {"blocks that nobody has",
         500,
         400,
         {{10, 500, 400, 0.5, 3, 0, 0}, {10, 500, 400, 0.01, 0, 0, 0}},
         "leak@11"},
        {"a pause between requests",
         500,
         400,
         {{10, 500, 400, 0.5, 3, 0, 0},
          {0.9, 500, 400, 0.01, 0, 0, 0},
          {10, 500, 400, 0.5, 3, 0, 0}},
         ""},
        {"nobody hits the prefixes",
         500,
         400,
         {{30, 500, 400, 0.1, 3, 0.9, 0.01}, {60, 500, 400, 0.1, 3, 0.9, 0.01}},
         "prefix@15"},
        {"they are hit", 500, 400, {{60, 500, 400, 0.1, 3, 0.9, 0.5}}, ""},
        {"they are few", 500, 400, {{60, 500, 400, 0.1, 3, 0.5, 0}}, ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct chronic_life l = {.reserved = cases[i].reserved, .used_high = cases[i].used};
        chronic_start(&l.c, 0, false);
        for (int k = 0; k < 4; k++)
            live(&l, &cases[i].hours[k]);
        if (strcmp(l.log, cases[i].want) != 0)
            fail_msg("%s: '%s', not '%s'", cases[i].what, l.log, cases[i].want);
    }
}

static void test_a_restart_is_judged(void **state)
{
    (void)state;
    struct chronic_life l = {.reserved = 500, .used_high = 400};
    chronic_start(&l.c, 0, true);
    live(&l, &(struct hours){20, 2500, 400, 0, 0, 0, 0});
    live(&l, &(struct hours){100, 2500, 400, 0, 0, 0, 0});
    assert_non_null(strstr(l.log, "ineffective@"));
    assert_null(strstr(l.log, "restart")); /* and not asked for again */
    l = (struct chronic_life){.reserved = 500, .used_high = 400};
    chronic_start(&l.c, 0, true);
    live(&l, &(struct hours){60, 520, 400, 0, 0, 0, 0});
    live(&l, &(struct hours){120, 2500, 400, 0, 0, 0, 0});
    assert_null(strstr(l.log, "ineffective"));
    assert_non_null(strstr(l.log, "restart"));
}

static void test_lease(void **state)
{
    (void)state;
    char path[] = "/tmp/evenkeel-lease-XXXXXX", who[100] = "";
    int a = mkstemp(path), b = -1;
    assert_true(a >= 0);
    (void)close(a);
    assert_int_equal(lease_take(path, "first", &a, who, sizeof(who)), 0);
    assert_int_equal(lease_take(path, "second", &b, who, sizeof(who)), -EAGAIN);
    assert_non_null(strstr(who, "first (process"));
    (void)close(a);
    assert_int_equal(lease_take(path, "second", &b, who, sizeof(who)), 0);
    (void)close(b);
    assert_int_equal(unlink(path), 0);
    assert_int_equal(lease_take("/nonexistent/x", "first", &a, who, sizeof(who)), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lives),
        cmocka_unit_test(test_a_restart_is_judged),
        cmocka_unit_test(test_lease),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
