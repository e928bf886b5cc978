/*
 * Runs the equality oracle (oracle.h) over all kinds of worlds: bf16, also with an int8 KV cache,
 * and float32, one and two steps in flight, block sizes from 8 to 128, preemption by recompute and
 * by swap, evicted prefixes dropped and kept in the host tier.
 *
 *   REQUESTS=N SEED=S   how much and from where (2,000 from 1; less under a sanitizer)
 *   WORLD=N             only this one
 *   MODEL=DIR           models/evenkeel-tiny
 *   REPORT=FILE         also writes what was done as JSON
 *
 * A failure names the request and prints the command that runs its world again.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/clock.h"
#include "tests/bench/report.h"
#include "tests/share.h"
#include "tests/unit/server/oracle.h"

#if defined(__SANITIZE_THREAD__)
#define REQUESTS 96u
#elif defined(__SANITIZE_ADDRESS__)
#define REQUESTS 240u
#else
#define REQUESTS 2000u
#endif
#define ALL_WORLDS UINT64_MAX

struct oracle_plan {
    uint64_t requests, seed, world;
    const char *model, *report;
};

static uint64_t number(const char *name, uint64_t otherwise)
{
    const char *text = getenv(name);
    char *end;

    if (!text || *text == '\0')
        return otherwise;
    errno = 0;
    unsigned long long n = strtoull(text, &end, 10);
    if (errno != 0 || *end != '\0')
        fail_msg("%s=%s is not a number", name, text);
    return n;
}

static struct oracle_plan plan_of_environment(void)
{
    const char *model = getenv("MODEL");

    return (struct oracle_plan){.requests = number("REQUESTS", REQUESTS),
                                .seed = number("SEED", 1),
                                .world = number("WORLD", ALL_WORLDS),
                                .model = model && *model ? model : "models/evenkeel-tiny",
                                .report = getenv("REPORT")};
}

/* What was done, in words and as cells of the report. */
static const struct {
    const char *name, *unit;
    size_t at; /* in the totals */
} total_table[] = {
#define TOTAL(field, unit)                                                                         \
    {                                                                                              \
#field, unit, offsetof(struct oracle_totals, field)                                        \
    }
    TOTAL(requests, "requests"),
    TOTAL(compared_tokens, "tokens"),
    TOTAL(worlds, "worlds"),
    TOTAL(steps, "steps"),
    TOTAL(shared_steps, "steps"),
    TOTAL(preemptions, "preemptions"),
    TOTAL(recomputed_tokens, "tokens"),
    TOTAL(swapped_in_blocks, "blocks"),
    TOTAL(offload_in_blocks, "blocks"),
    TOTAL(prefix_hits, "tokens"),
    TOTAL(evictions, "blocks"),
    TOTAL(aborted, "requests"),
    TOTAL(limit_changes, "changes"),
    TOTAL(pool_resizes, "resizes"),
    TOTAL(failed_resizes, "resizes"),
    TOTAL(migrated_blocks, "blocks"),
    TOTAL(failed_steps, "steps"),
    TOTAL(victims, "requests"),
#undef TOTAL
};
#define TOTALS (sizeof(total_table) / sizeof(total_table[0]))

static uint64_t total(const struct oracle_totals *t, size_t i)
{
    uint64_t value;

    memcpy(&value, (const char *)t + total_table[i].at, sizeof(value));
    return value;
}

static void report(const struct oracle_plan *p, const struct oracle_totals *t, double seconds)
{
    struct report rep;
    char name[64];

    if (!p->report || report_open(&rep, "soak", p->report) != 0)
        return;
    report_cell(
        &rep,
        &(struct report_cell){
            .cell = "soak.differences", .value = 0, .unit = "requests", .goal = "0", .met = 1});
    for (size_t i = 0; i < TOTALS; i++) {
        (void)snprintf(name, sizeof(name), "soak.%s", total_table[i].name);
        report_cell(&rep, &(struct report_cell){.cell = name,
                                                .value = (double)total(t, i),
                                                .unit = total_table[i].unit});
    }
    report_cell(&rep, &(struct report_cell){.cell = "soak.time", .value = seconds, .unit = "s"});
    assert_int_equal(report_close(&rep), 0);
}

/* The run must have met everything that it claims to withstand. */
static void check_worth(const struct oracle_totals *t)
{
    assert_true(t->preemptions > 60);
    assert_true(t->recomputed_tokens > 300);
    assert_true(t->swapped_in_blocks > 30);
    assert_true(t->offload_in_blocks > 10);
    assert_true(t->prefix_hits > 400);
    assert_true(t->evictions > 100);
    assert_true(t->aborted > 10);
    assert_true(t->stopped > 50);
    assert_true(t->limit_changes > 50);
    assert_true(t->pool_changes > 20);
    assert_true(t->pool_resizes > 20);
    assert_true(t->failed_steps > 40);
    assert_true(t->victims > 2);
    assert_true(t->full_pools >= 6);
}

static int run_worlds(struct oracle *o, const struct oracle_plan *p, uint64_t *ret_world)
{
    uint64_t most = (p->requests + ORACLE_WORLD_REQUESTS - 1) / ORACLE_WORLD_REQUESTS;
    int r = 0;

    if (p->world != ALL_WORLDS) {
        *ret_world = p->world;
        return oracle_world(o, p->world, ORACLE_WORLD_REQUESTS);
    }
    /* Few requests: then smaller worlds. */
    uint32_t each = ORACLE_WORLD_REQUESTS;
    if (most < ORACLE_WORLDS_LEAST) {
        most = ORACLE_WORLDS_LEAST;
        each = (uint32_t)(p->requests + most - 1) / (uint32_t)most;
    }
    for (uint64_t w = share_next(0); r == 0 && w < most; w = share_next(w + 1)) {
        *ret_world = w;
        r = oracle_world(o, w, each);
    }
    return r;
}

/* Steps that are small since several tenants have requests; of how many rows follows the clock.
 * With each kind of weights, and one and two steps in flight. */
static int run_shared(struct oracle *o, uint64_t *ret_world)
{
    static const uint64_t kinds[] = {0, 1, 3, 4, 6};
    struct oracle_totals t;
    int r = 0;

    for (size_t i = 0; r == 0 && i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        *ret_world = ORACLE_SHARED + kinds[i];
        r = oracle_world(o, *ret_world, 24);
    }
    oracle_totals(o, &t);
    if (r == 0)
        assert_true(t.shared_steps >= 3);
    return r;
}

static void test_alone_and_under_load(void **state)
{
    const struct oracle_plan p = plan_of_environment();
    struct oracle_totals t;
    struct oracle *o = NULL;
    uint64_t world = 0, begun = ek_now_us();

    (void)state;
    int r = oracle_new(p.model, p.seed, &o);
    assert_non_null(o);
    if (r == 0)
        r = run_worlds(o, &p, &world);
    if (r == 0 && p.world == ALL_WORLDS)
        r = run_shared(o, &world);
    oracle_totals(o, &t);
    double seconds = (double)(ek_now_us() - begun) / 1e6;
    if (r != 0) {
        print_error("seed %llu: %s\nreplay: SEED=%llu WORLD=%llu MODEL=%s %s\n",
                    (unsigned long long)p.seed, oracle_wrong(o), (unsigned long long)p.seed,
                    (unsigned long long)world, p.model, program_invocation_name);
    } else {
        print_message("seed %llu: all equal;", (unsigned long long)p.seed);
        for (size_t i = 0; i < TOTALS; i++)
            print_message(" %s %llu", total_table[i].name, (unsigned long long)total(&t, i));
        print_message("; %.1f s\n", seconds);
        report(&p, &t, seconds);
    }
    oracle_free(o);
    assert_int_equal(r, 0);
    if (p.world == ALL_WORLDS && p.requests >= 2000 && share_next(0) == 0 && share_next(1) == 1)
        check_worth(&t);
}

/* Hybrids, whose states are not keys and values: small worlds with each kind of layer. */
static void test_hybrids(void **state)
{
    static const char *const models[] = {"qwen3.5", "nemotron-h-moe", "lfm2"};
    struct oracle_totals t = {0}, all = {0};

    (void)state;
    if (getenv("WORLD") || getenv("MODEL"))
        skip();
    for (size_t m = share_next(0); m < sizeof(models) / sizeof(models[0]); m = share_next(m + 1)) {
        char dir[80];
        struct oracle *o = NULL;
        uint64_t w = 0;
        (void)snprintf(dir, sizeof(dir), "tests/fixtures/models/%s", models[m]);
        int r = oracle_new(dir, 1, &o);
        assert_non_null(o);
        for (; r == 0 && w < 13; w++) /* 12 has an int8 cache */
            r = oracle_world(o, w, 10);
        if (r != 0)
            fail_msg("%s\nreplay: SEED=1 WORLD=%llu MODEL=%s %s", oracle_wrong(o),
                     (unsigned long long)w - 1, dir, program_invocation_name);
        oracle_totals(o, &t);
        all.requests += t.requests;
        all.preemptions += t.preemptions;
        all.prefix_hits += t.prefix_hits;
        oracle_free(o);
    }
    print_message("hybrids: all equal; requests %llu preemptions %llu prefix_hits %llu\n",
                  (unsigned long long)all.requests, (unsigned long long)all.preemptions,
                  (unsigned long long)all.prefix_hits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone_and_under_load),
                                       cmocka_unit_test(test_hybrids)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
