/* The limit search against made-up servers: it ends where the cache is used as wanted or where it
 * hurts, whatever the step, and says so. */
#include "supervisor/planner/limit_search.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

/* A server whose cache is full at `room` sequences, that gets slower above `fast`, with `load`
 * clients; it never runs more than `held` (0: no such bound), for it keeps room for those. */
struct search_world {
    uint32_t room, fast, load;
    double gap_each_s;
    uint32_t held;
};

static struct limit_search_step measure(const struct search_world *w, uint32_t limit)
{
    double run = w->load < limit ? w->load : limit;
    run = w->held && run > w->held ? w->held : run;
    double usage = run / w->room;
    double tokens = run <= w->fast ? run * 10 : w->fast * 10 - (run - w->fast) * 2;
    return (struct limit_search_step){.limit = limit,
                                      .usage = usage > 1 ? 1 : usage,
                                      .running = run,
                                      .waiting = w->load > run ? w->load - run : 0,
                                      .tokens_s = tokens,
                                      .preemptions_s = usage > 1 ? usage : 0,
                                      .gap_s = w->gap_each_s * run};
}

static const struct limit_search_params g_params = {.start = 8,
                                                    .step = 4,
                                                    .ceiling = 256,
                                                    .use_low = 0.85,
                                                    .use_high = 0.90,
                                                    .preemptions_most = 0.2,
                                                    .loss = 0.05};

static void run(const struct search_world *w, const struct limit_search_params *p,
                struct limit_search *c)
{
    limit_search_init(c, p);
    while (c->end == LIMIT_SEARCH_ON) {
        struct limit_search_step s = measure(w, limit_search_next(c));
        limit_search_note(c, &s);
    }
}

static void test_ends(void **state)
{
    (void)state;
    static const struct {
        struct search_world w;
        uint32_t step;
        double gap_most_s;
        enum limit_search_end end;
        uint32_t least, most; /* of what is kept */
    } cases[] = {
        {{100, 1000, 500, 0, 0}, 4, 0, LIMIT_SEARCH_USED, 85, 90},
        {{20, 1000, 500, 0, 0}, 16, 0, LIMIT_SEARCH_USED, 17, 18}, /* by halving */
        {{9, 1000, 500, 0, 0}, 4, 0, LIMIT_SEARCH_USED, 8, 8},     /* as it begins */
        {{7, 1000, 500, 0, 0}, 4, 0, LIMIT_SEARCH_USED, 6, 6}, /* the start is too much already */
        {{1, 1000, 500, 0, 0}, 4, 0, LIMIT_SEARCH_USED, 0, 0}, /* nothing is small enough */
        {{1000, 1000, 500, 0, 0}, 4, 0, LIMIT_SEARCH_CEILING, 256, 256},
        {{1000, 1000, 30, 0, 0}, 4, 0, LIMIT_SEARCH_IDLE, 32, 36},
        {{25, 1000, 500, 0, 20}, 8, 0, LIMIT_SEARCH_HELD, 20, 24}, /* 80 % are used at most */
        {{25, 1000, 20, 0, 20}, 8, 0, LIMIT_SEARCH_IDLE, 20, 24},  /* and none wait for more */
        {{1000, 40, 500, 0, 0}, 4, 0, LIMIT_SEARCH_HARM, 40, 56},  /* tokens/s fall */
        {{1000, 1000, 500, 0.001, 0}, 4, 0.05, LIMIT_SEARCH_HARM, 50, 50},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        static struct limit_search c;
        struct limit_search_params p = g_params;
        p.step = cases[i].step;
        p.gap_most_s = cases[i].gap_most_s;
        run(&cases[i].w, &p, &c);
        uint32_t keep = limit_search_keep(&c);
        if (c.end != cases[i].end || keep < cases[i].least || keep > cases[i].most)
            fail_msg("case %zu: %s, keep %u after %u steps: %s", i, limit_search_end_text(c.end),
                     keep, c.count, c.why);
        assert_true(c.why[0] != '\0');
        assert_true(limit_search_knee(&c) <= (keep ? keep : 1));
    }
}

/* The knee is where the curve goes flat. */
static void test_knee(void **state)
{
    (void)state;
    static struct limit_search c;
    struct limit_search_params p = g_params;
    limit_search_init(&c, &p);
    static const double tokens[] = {80, 118, 119, 120, 120.5};
    for (size_t i = 0; i < 5; i++) {
        struct limit_search_step s = {.limit = limit_search_next(&c),
                                      .usage = 0.5 + 0.09 * (double)i,
                                      .running = limit_search_next(&c),
                                      .waiting = 9,
                                      .tokens_s = tokens[i]};
        limit_search_note(&c, &s);
    }
    assert_int_equal(c.end, LIMIT_SEARCH_USED);
    assert_int_equal(limit_search_keep(&c), 24);
    assert_int_equal(limit_search_knee(&c), 12);
    assert_non_null(limit_search_at(&c, 12));
    assert_null(limit_search_at(&c, 13));
}

/* What is too full counts for nothing, however fast it was: there is a knee wherever something
 * fits. */
static void test_too_full_and_fast(void **state)
{
    (void)state;
    static struct limit_search c;
    limit_search_init(&c, &g_params);
    while (c.end == LIMIT_SEARCH_ON) {
        uint32_t limit = limit_search_next(&c);
        struct limit_search_step s = {.limit = limit,
                                      .usage = limit < 12 ? 0.5 : 0.95,
                                      .running = limit,
                                      .waiting = 9,
                                      .tokens_s = limit < 12 ? 100 : 200};
        limit_search_note(&c, &s);
    }
    assert_int_equal(c.end, LIMIT_SEARCH_USED);
    assert_int_equal(limit_search_keep(&c), 11);
    assert_int_equal(limit_search_knee(&c), 8);
}

/* It ends for every server and every step, without passing the ceiling. */
static void test_bounded(void **state)
{
    (void)state;
    static struct limit_search c;
    for (uint32_t room = 1; room < 400; room += 7) {
        for (uint32_t step = 1; step < 300; step += 13) {
            struct search_world w = {room, room / 2 + 3, room * 2, 0, room % 3 ? 0 : room / 2};
            struct limit_search_params p = g_params;
            p.step = step;
            p.ceiling = 120;
            run(&w, &p, &c);
            assert_true(c.count < 140);
            for (uint32_t i = 0; i < c.count; i++)
                assert_true(c.steps[i].limit >= 1 && c.steps[i].limit <= 120);
        }
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_ends), cmocka_unit_test(test_knee),
                                       cmocka_unit_test(test_too_full_and_fast),
                                       cmocka_unit_test(test_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
