/*
 * Runs the equality oracle (oracle.h) over all kinds of worlds: bf16 and float32, one and two steps
 * in flight, block sizes from 8 to 128, preemption by recompute and by swap, evicted prefixes
 * dropped and kept in the host tier.
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

#include <cmocka.h>

#include "common/clock.h"
#include "tests/bench/report.h"
#include "tests/unit/server/oracle.h"

#if defined(__SANITIZE_THREAD__)
#define REQUESTS 96u
#elif defined(__SANITIZE_ADDRESS__)
#define REQUESTS 240u
#else
#define REQUESTS 2000u
#endif
#define ALL_WORLDS UINT64_MAX

struct plan {
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

static struct plan plan_of_environment(void)
{
    const char *model = getenv("MODEL");

    return (struct plan){.requests = number("REQUESTS", REQUESTS),
                         .seed = number("SEED", 1),
                         .world = number("WORLD", ALL_WORLDS),
                         .model = model && *model ? model : "models/evenkeel-tiny",
                         .report = getenv("REPORT")};
}

static void report(const struct plan *p, const struct oracle_totals *t, double seconds)
{
    struct report rep;

    if (!p->report || report_open(&rep, "soak", p->report) != 0)
        return;
    const struct report_cell cells[] = {
        {.cell = "soak.requests", .value = (double)t->requests, .unit = "requests"},
        {.cell = "soak.differences", .value = 0, .unit = "requests", .goal = "0", .met = 1},
        {.cell = "soak.compared_tokens", .value = (double)t->compared_tokens, .unit = "tokens"},
        {.cell = "soak.worlds", .value = (double)t->worlds, .unit = "worlds"},
        {.cell = "soak.steps", .value = (double)t->steps, .unit = "steps"},
        {.cell = "soak.preemptions", .value = (double)t->preemptions, .unit = "preemptions"},
        {.cell = "soak.recomputed_tokens", .value = (double)t->recomputed_tokens, .unit = "tokens"},
        {.cell = "soak.swapped_in_blocks", .value = (double)t->swapped_in_blocks, .unit = "blocks"},
        {.cell = "soak.offload_in_blocks", .value = (double)t->offload_in_blocks, .unit = "blocks"},
        {.cell = "soak.pool_resizes", .value = (double)t->pool_resizes, .unit = "resizes"},
        {.cell = "soak.migrated_blocks", .value = (double)t->migrated_blocks, .unit = "blocks"},
        {.cell = "soak.prefix_hits", .value = (double)t->prefix_hits, .unit = "tokens"},
        {.cell = "soak.evictions", .value = (double)t->evictions, .unit = "blocks"},
        {.cell = "soak.aborted", .value = (double)t->aborted, .unit = "requests"},
        {.cell = "soak.limit_changes", .value = (double)t->limit_changes, .unit = "changes"},
        {.cell = "soak.time", .value = seconds, .unit = "s"},
    };
    for (size_t i = 0; i < sizeof(cells) / sizeof(*cells); i++)
        report_cell(&rep, &cells[i]);
    assert_int_equal(report_close(&rep), 0);
}

/* The run must have met everything that it claims to withstand. */
static void check_worth(const struct oracle_totals *t)
{
    assert_true(t->preemptions > 60);
    assert_true(t->recomputed_tokens > 300);
    assert_true(t->swapped_in_blocks > 30);
    assert_true(t->offload_in_blocks > 30);
    assert_true(t->prefix_hits > 400);
    assert_true(t->evictions > 100);
    assert_true(t->aborted > 10);
    assert_true(t->stopped > 50);
    assert_true(t->limit_changes > 50);
    assert_true(t->pool_changes > 20);
    assert_true(t->pool_resizes > 20);
    assert_true(t->full_pools >= 6);
}

static int run_worlds(struct oracle *o, const struct plan *p, uint64_t *ret_world)
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
    for (uint64_t w = 0; r == 0 && w < most; w++) {
        *ret_world = w;
        r = oracle_world(o, w, each);
    }
    return r;
}

static void test_alone_and_under_load(void **state)
{
    const struct plan p = plan_of_environment();
    struct oracle_totals t;
    struct oracle *o = NULL;
    uint64_t world = 0, begun = ek_now_us();

    (void)state;
    int r = oracle_new(p.model, p.seed, &o);
    assert_non_null(o);
    if (r == 0)
        r = run_worlds(o, &p, &world);
    oracle_totals(o, &t);
    double seconds = (double)(ek_now_us() - begun) / 1e6;
    if (r != 0) {
        print_error("seed %llu: %s\nreplay: SEED=%llu WORLD=%llu MODEL=%s %s\n",
                    (unsigned long long)p.seed, oracle_wrong(o), (unsigned long long)p.seed,
                    (unsigned long long)world, p.model, program_invocation_name);
    } else {
        print_message("seed %llu: %llu requests in %llu worlds, %llu tokens equal; %llu steps, "
                      "%llu preemptions, %llu tokens recomputed, %llu blocks swapped in, %llu "
                      "prefix blocks brought back, %llu resizes, %llu blocks migrated, %llu tokens "
                      "cached, %llu aborted, %llu limit "
                      "changes; %.1f s\n",
                      (unsigned long long)p.seed, (unsigned long long)t.requests,
                      (unsigned long long)t.worlds, (unsigned long long)t.compared_tokens,
                      (unsigned long long)t.steps, (unsigned long long)t.preemptions,
                      (unsigned long long)t.recomputed_tokens,
                      (unsigned long long)t.swapped_in_blocks,
                      (unsigned long long)t.offload_in_blocks, (unsigned long long)t.pool_resizes,
                      (unsigned long long)t.migrated_blocks, (unsigned long long)t.prefix_hits,
                      (unsigned long long)t.aborted, (unsigned long long)t.limit_changes, seconds);
        report(&p, &t, seconds);
    }
    oracle_free(o);
    assert_int_equal(r, 0);
    if (p.world == ALL_WORLDS && p.requests >= 2000)
        check_worth(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_alone_and_under_load)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
