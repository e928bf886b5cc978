/* Ladders: each step once within a day, never a dead end; flags are capped, never raised. */
#include "supervisor/law/remedy.h"

#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/engines/dialect.h"
#include "supervisor/law/planned.h"
#include "tests/unit/alloc.h"

#define GIB   (1ull << 30)
#define HOUR  3600000000ull
#define START 1795000000000000ull

/* Takes steps until there is none; writes "tokens/seqs/share ..." of each. */
static void climb(struct remedy_memory *m, struct remedy_case *c, char *out, size_t size)
{
    out[0] = '\0';
    for (int i = 0; i < 10; i++) {
        struct remedy_plan plan = remedy_next(m, c);
        if (!plan.found)
            return;
        assert_true(plan.why[0] != '\0');
        remedy_take(m, c, &plan);
        c->now.tokens = plan.caps.tokens ? plan.caps.tokens : c->now.tokens;
        c->now.seqs = plan.caps.seqs ? plan.caps.seqs : c->now.seqs;
        c->now.share = plan.caps.share > 0 ? plan.caps.share : c->now.share;
        c->now.expandable |= plan.caps.expandable;
        if (plan.caps.swap_gib > 0 || plan.caps.no_swap)
            c->now.swap_gib = plan.caps.swap_gib;
        size_t at = strlen(out);
        (void)snprintf(out + at, size - at, "%s%u/%u/%.2f%s%s", at ? " " : "", plan.caps.tokens,
                       plan.caps.seqs, plan.caps.share, plan.caps.expandable ? "e" : "",
                       plan.wait_s > 0 ? "w" : "");
    }
    fail_msg("the ladder has no end: %s", out);
}

/* What ran, how it ended, and all steps that follow as tokens/sequences/share (w: waits, e: with
 * an environment). */
static const struct ladder_case {
    const char *what, *engine;
    enum crash_class cls;
    struct remedy_settings now;
    bool soon, no_kv;
    uint64_t capacity;
    uint32_t tokens_min;
    const char *want;
} ladders[] = {
    {"start",
     "vllm",
     CRASH_STARTUP_OOM,
     {8192, 256, 0.92, 0, 0, 0},
     .want = "6144/0/0.00 6144/0/0.87 4608/16/0.75",
     .capacity = 80 * GIB},
    {"start soon after another",
     "vllm",
     CRASH_STARTUP_OOM,
     {8192, 256, 0.92, 0, 0, 0},
     .want = "0/0/0.00w 6144/0/0.00 6144/0/0.87 4608/16/0.75",
     .soon = true,
     .capacity = 80 * GIB},
    {"a small card",
     "vllm",
     CRASH_STARTUP_OOM,
     {8192, 256, 0.92, 0, 0, 0},
     .want = "4096/0/0.00 4096/0/0.87 3072/16/0.75",
     .capacity = 24 * GIB},
    {"a card of 40",
     "vllm",
     CRASH_BURST_OOM,
     {16384, 64, 0.88, 0, 0, 0},
     .want = "8192/51/0.85 6144/40/0.82 4608/16/0.75",
     .capacity = 40 * GIB},
    {"no room for the cache",
     "vllm",
     CRASH_STARTUP_OOM,
     {8192, 256, 0.80, 0, 0, 0},
     .want = "6144/0/0.00 6144/0/0.83 4608/16/0.83",
     .no_kv = true},
    {"the operator's floor",
     "vllm",
     CRASH_BURST_OOM,
     {8192, 256, 0.92, 0, 0, 0},
     .want = "8000/204/0.89 8000/163/0.86 8000/16/0.75",
     .tokens_min = 8000},
    {"never below the sequences",
     "evenkeel",
     CRASH_BURST_OOM,
     {64, 64, 0.92, 0, 0, 0},
     .want = "51/51/0.89 40/40/0.86 16/16/0.75"},
    {"pieces",
     "vllm",
     CRASH_FRAG_OOM,
     {8192, 256, 0.92, 0, 0, 0},
     .want = "0/0/0.00e 6144/0/0.00e 4608/16/0.75e"},
    {"pieces without PyTorch",
     "evenkeel",
     CRASH_FRAG_OOM,
     {8192, 256, 0.92, 0, 0, 0},
     .want = "6144/0/0.00 4608/16/0.75"},
    {"host", "evenkeel", CRASH_HOST_OOM, {8192, 256, 0.92, 8, 0, 0}, .want = "0/0/0.00 0/0/0.00"},
    {"host without swap", "vllm", CRASH_HOST_OOM, {8192, 256, 0.92, 8, 0, 0}, .want = ""},
    {"nothing is known", "evenkeel", CRASH_BURST_OOM, {0}, .want = ""},
    {"no memory", "vllm", CRASH_SIGNAL, {8192, 256, 0.92, 8, 0, 0}, .want = ""},
    {"device", "vllm", CRASH_DEVICE, {8192, 256, 0.92, 8, 0, 0}, .want = ""},
    {"already low", "vllm", CRASH_STARTUP_OOM, {16, 16, 0.5, 0, 0, 0}, .want = "12/12/0.00"},
};

static void test_ladders(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(ladders) / sizeof(ladders[0]); i++) {
        struct remedy_memory m = {0};
        struct remedy_case c = {
            .cls = ladders[i].cls,
            .dialect = dialect_find(ladders[i].engine),
            .numbers = {.found = true, .no_kv = ladders[i].no_kv, .capacity = ladders[i].capacity},
            .now = ladders[i].now,
            .tokens_min = ladders[i].tokens_min,
            .soon = ladders[i].soon,
            .wall_us = START};
        char got[400];
        climb(&m, &c, got, sizeof(got));
        if (strcmp(got, ladders[i].want) != 0)
            fail_msg("%s: %s, not %s", ladders[i].what, got, ladders[i].want);
    }
}

/* Each step has a name, and a ladder none of them twice. */
static void test_names(void **state)
{
    (void)state;
    for (int cls = 0; cls <= CRASH_COUNT; cls++) {
        uint32_t count = 0;
        while (remedy_step((enum crash_class)cls, count))
            count++;
        assert_int_equal(count > 0, remedy_exists((enum crash_class)cls));
        assert_true(count <= REMEDY_STEPS);
        for (uint32_t a = 0; a < count; a++) {
            for (uint32_t b = 0; b < a; b++)
                assert_string_not_equal(remedy_step((enum crash_class)cls, a),
                                        remedy_step((enum crash_class)cls, b));
        }
    }
    assert_string_equal(remedy_step(CRASH_HOST_OOM, 1), "no_swap");
    assert_null(remedy_step(CRASH_HOST_OOM, 2));
}

static void test_memory(void **state)
{
    (void)state;
    struct remedy_memory m = {0};
    struct remedy_case c = {.cls = CRASH_BURST_OOM,
                            .dialect = dialect_find("vllm"),
                            .now = {8192, 256, 0.92, 0, false, false},
                            .wall_us = START};
    char got[400];
    climb(&m, &c, got, sizeof(got));
    assert_false(remedy_next(&m, &c).found); /* I17: no step twice within its day */
    assert_false(remedy_expire(&m, START + 23 * HOUR));
    assert_false(remedy_next(&m, &c).found);
    assert_true(remedy_expire(&m, START + 24 * HOUR));
    assert_false(remedy_expire(&m, START + 25 * HOUR));
    assert_int_equal(m.caps.tokens, 0);
    assert_true(remedy_next(&m, &c).found);
    c.wall_us =
        START + 400 * HOUR; /* a clock that goes back makes nothing last longer than a day */
    struct remedy_plan plan = remedy_next(&m, &c);
    remedy_take(&m, &c, &plan);
    assert_false(remedy_expire(&m, START));
    assert_true(remedy_expire(&m, START + 24 * HOUR));
    assert_int_equal(m.tried[CRASH_BURST_OOM].steps, 0);
}

static char **words(const struct dialect *d, const struct remedy_settings *caps, char *text)
{
    char *argv[16], **out = NULL;
    size_t n = 0;
    for (char *save = NULL, *w = strtok_r(text, " ", &save); w; w = strtok_r(NULL, " ", &save))
        argv[n++] = w;
    argv[n] = NULL;
    struct remedy_settings has;
    remedy_read(d, argv, &(struct remedy_settings){0}, &has);
    assert_int_equal(remedy_argv(d, argv, &has, caps, &out), 0);
    return out;
}

static void test_flags(void **state)
{
    (void)state;
    const struct dialect *d = dialect_find("evenkeel");
    static const struct {
        const char *argv;
        struct remedy_settings caps;
        const char *want;
    } cases[] = {
        {"s --model m", {0}, "s --model m"},
        {"s",
         {512, 8, 0.75, 0, false, false},
         "s --max-num-batched-tokens 512 --max-num-seqs 8 --gpu-memory-utilization 0.75"},
        {"s --max-num-seqs 4", {0, 8, 0, 0, false, false}, "s --max-num-seqs 4"},
        {"s --max-num-seqs=16", {0, 8, 0, 0, false, false}, "s --max-num-seqs=16 --max-num-seqs 8"},
        {"s --max-num-seqs 99 --max-num-seqs 4",
         {0, 8, 0, 0, false, false},
         "s --max-num-seqs 99 --max-num-seqs 4"},
        {"s --swap-space 4", {0, 0, 0, 2, false, false}, "s --swap-space 4 --swap-space 2"},
        {"s --swap-space 4", {0, 0, 0, 0, true, false}, "s --swap-space 4 --swap-space 0"},
        /* Capped because it had one: by the server's own file. */
        {"s", {0, 0, 0, 0, true, false}, "s --swap-space 0"},
        {"s --max-num-seqs", {0, 8, 0, 0, false, false}, "s --max-num-seqs --max-num-seqs 8"},
        {"s --max-num-seqs-more 1", {0}, "s --max-num-seqs-more 1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[200], got[400] = "";
        (void)snprintf(text, sizeof(text), "%s", cases[i].argv);
        char **out = words(d, &cases[i].caps, text);
        for (size_t k = 0; out[k]; k++)
            (void)snprintf(got + strlen(got), sizeof(got) - strlen(got), "%s%s", k ? " " : "",
                           out[k]);
        assert_string_equal(got, cases[i].want);
        remedy_free(out);
    }
    char a[] = "s", b[] = "--max-num-seqs", e[] = "12", f[] = "--max-num-batched-tokens=2k",
         g[] = "--gpu-memory-utilization=0.9";
    char *argv[] = {a, b, e, f, g, NULL};
    struct remedy_settings got;
    const struct remedy_settings none = {0};
    remedy_read(d, argv, &none, &got);
    assert_int_equal(got.seqs, 12);
    assert_int_equal(got.tokens, 2000); /* as both servers read it */
    assert_true(fabs(got.share - 0.9) < 1e-9);
    char u[] = "--max_num_seqs=16"; /* vLLM's parser takes both spellings; the last one counts */
    char *snake[] = {a, b, e, u, NULL};
    remedy_read(d, snake, &none, &got);
    assert_int_equal(got.seqs, 16);
    /* A file's words hold where no flag says another, and a cap above them is none. */
    const struct remedy_settings file = {.seqs = 4, .tokens = 900, .share = 0.5};
    char **kept = NULL;
    remedy_read(d, snake, &file, &got);
    assert_true(got.seqs == 16 && got.tokens == 900 && fabs(got.share - 0.5) < 1e-9);
    assert_int_equal(
        remedy_argv(d, snake, &got, &(struct remedy_settings){.tokens = 1024, .seqs = 8}, &kept),
        0);
    assert_string_equal(kept[4], "--max-num-seqs");
    assert_string_equal(kept[5], "8");
    assert_null(kept[6]);
    remedy_free(kept);
    struct remedy_settings caps = {.seqs = 3, .tokens = 5};
    for (long n = 1;; n++) {
        char **out = NULL;
        alloc_fail_at(n);
        int r = remedy_argv(d, argv, &got, &caps, &out);
        bool done = !alloc_failed();
        remedy_free(out);
        if (done) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -12);
        assert_null(out);
    }
}

static void test_planned(void **state)
{
    (void)state;
    struct planned_params p = {.budget = 2, .apart_s = 7200, .hours = "any"};
    struct planned_log log = {0};
    char why[160];
    assert_int_equal(planned_check(&log, &p, START, 0, false, why, sizeof(why)), PLANNED_OK);
    planned_note(&log, START);
    assert_int_equal(planned_check(&log, &p, START + HOUR, 0, true, why, sizeof(why)),
                     PLANNED_BUDGET);
    assert_int_equal(planned_check(&log, &p, START + 2 * HOUR, 0, false, why, sizeof(why)),
                     PLANNED_OK);
    planned_note(&log, START + 2 * HOUR);
    for (int h = 3; h < 24; h++) /* I8 */
        assert_int_equal(
            planned_check(&log, &p, START + (uint64_t)h * HOUR, 0, true, why, sizeof(why)),
            PLANNED_BUDGET);
    assert_int_equal(planned_check(&log, &p, START + 24 * HOUR, 0, false, why, sizeof(why)),
                     PLANNED_OK);
    assert_int_equal(planned_check(&log, &p, START - 9 * HOUR, 0, true, why, sizeof(why)),
                     PLANNED_BUDGET); /* in the future: as if now (I20) */
    log.off_until_us = START + 30 * HOUR;
    assert_int_equal(planned_check(&log, &p, START + 26 * HOUR, 0, true, why, sizeof(why)),
                     PLANNED_OFF);
    log = (struct planned_log){0};
    p.hours = "02:00-05:30";
    assert_int_equal(planned_check(&log, &p, START, 60, false, why, sizeof(why)), PLANNED_HOURS);
    assert_int_equal(planned_check(&log, &p, START, 60, true, why, sizeof(why)), PLANNED_OK);
    for (uint32_t i = 0; i < 100; i++)
        planned_note(&log, START + i);
    assert_int_equal(log.count, PLANNED_KEPT);
    assert_int_equal(log.wall_us[PLANNED_KEPT - 1], START + 99);
    p.budget = 0;
    log.count = 0;
    assert_int_equal(planned_check(&log, &p, START, 150, true, why, sizeof(why)), PLANNED_BUDGET);
}

static void test_of_engine(void **state)
{
    (void)state;
    for (int there = 0; there < 2; there++) {
        assert_true(planned_of_engine(REASON_FRAG_CHRONIC, true, there));
        assert_false(planned_of_engine(REASON_FRAG_CHRONIC, false, there));
        assert_false(planned_of_engine(REASON_BLOCK_LEAK, true, there));
        assert_int_equal(planned_of_engine(REASON_MEMORY_GROWS, true, there), there);
        assert_false(planned_of_engine(REASON_MEMORY_GROWS, false, there));
        assert_false(planned_of_engine(REASON_OPERATOR, true, there));
    }
}

static void test_hours(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int minute, want; /* -1 = not a list */
    } cases[] = {
        {"any", 0, 1},
        {"never", 0, 0},
        {"02:00-05:30", 119, 0},
        {"02:00-05:30", 120, 1},
        {"02:00-05:30", 330, 0},
        {"22:00-01:00", 1400, 1},
        {"22:00-01:00", 30, 1},
        {"22:00-01:00", 60, 0},
        {"22:00-24:00,03:00-04:00", 200, 1},
        {"22:00-24:00,03:00-04:00", 1439, 1},
        {"", 0, -1},
        {"2:00-3:00", 0, -1},
        {"02:00", 0, -1},
        {"02:00-03:60", 0, -1},
        {"24:01-03:00", 0, -1},
        {"02:00-03:00,", 0, -1},
        {"02:00-03:00 ", 0, -1},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool inside = false;
        int r = planned_hours(cases[i].text, cases[i].minute, &inside);
        assert_int_equal(r < 0 ? -1 : inside, cases[i].want);
    }
}

/* The actuator RESTART: lower only, for a day from the last change. */
static void test_cap(void **state)
{
    (void)state;
    struct remedy_memory m = {0};
    assert_false(remedy_cap(&m, 0, 0, 1));
    assert_int_equal(m.until_us, 0);
    assert_true(remedy_cap(&m, 20, 0, 1000));
    assert_int_equal(m.caps.seqs, 20);
    assert_int_equal(m.caps.tokens, 0);
    uint64_t until = m.until_us;
    assert_int_equal(until, 1000 + (uint64_t)(REMEDY_KEEP_S * 1e6));
    assert_false(remedy_cap(&m, 20, 0, 2000));
    assert_false(remedy_cap(&m, 30, 0, 2000));
    assert_int_equal(m.until_us, until);
    assert_true(remedy_cap(&m, 30, 1024, 3000));
    assert_int_equal(m.caps.seqs, 20);
    assert_int_equal(m.caps.tokens, 1024);
    assert_true(m.until_us > until);
    assert_true(remedy_expire(&m, m.until_us + 1));
    assert_int_equal(m.caps.seqs, 0);
}

/* What is not known is not lowered: an assumed number may lie above the one that failed. */
static void test_unknown_settings_stay(void **state)
{
    (void)state;
    struct remedy_memory m = {0};
    struct remedy_case c = {.cls = CRASH_STARTUP_OOM,
                            .dialect = dialect_find("evenkeel"),
                            .now = {.share = 0.92},
                            .wall_us = START};
    struct remedy_plan plan = remedy_next(&m, &c);
    assert_true(plan.found);
    assert_string_equal(plan.why, "--gpu-memory-utilization 0.87 instead of 0.92");
    assert_int_equal(plan.caps.tokens, 0);
    assert_int_equal(plan.caps.seqs, 0);
}

static void test_a_step_is_looked_at(void **state)
{
    (void)state;
    const struct remedy_facts before = {true, true, 174ull << 20, {0}}, unknown = {0};
    static const struct {
        struct remedy_facts with;
        bool no_kv, fits;
        const char *why;
    } cases[] = {
        {{true, true, 228ull << 20, {0}}, false, false, "the plan would grow from 174 to 228 MiB"},
        {{true, true, 228ull << 20, {0}}, true, true, ""}, /* more room was what it lacked */
        {{true, true, 174ull << 20, {0}}, false, true, ""},
        {{true, true, 100ull << 20, {0}}, false, true, ""},
        {{true, false, 0, {0}}, false, false, "the plan would not fit"},
        {{true, false, 0, {0}}, true, false, "the plan would not fit"},
        {{false, false, 0, {0}}, false, true, ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct remedy_case c = {.cls = CRASH_STARTUP_OOM, .numbers.no_kv = cases[i].no_kv};
        char why[80] = "";
        assert_int_equal(remedy_fits(&c, &before, &cases[i].with, why, sizeof(why)), cases[i].fits);
        assert_string_equal(why, cases[i].why);
        assert_true(cases[i].with.bytes == 0 ||
                    remedy_fits(&c, &unknown, &cases[i].with, why, sizeof(why)));
    }
    /* A step that was passed over is not offered again, and leaves no cap. */
    struct remedy_memory m = {0};
    struct remedy_case c = {.cls = CRASH_STARTUP_OOM,
                            .dialect = dialect_find("evenkeel"),
                            .now = {2048, 64, 0.92, 0, 0, 0},
                            .wall_us = START};
    struct remedy_plan plan = remedy_next(&m, &c);
    assert_string_equal(plan.why, "--max-num-batched-tokens 1536 instead of 2048");
    remedy_pass(&m, &c, &plan);
    plan = remedy_next(&m, &c);
    assert_string_equal(plan.why, "--gpu-memory-utilization 0.87 instead of 0.92");
    assert_true(plan.caps.tokens == 0 && m.until_us == 0);
}

static void test_what_is_in_force(void **state)
{
    (void)state;
    char program[] = "evenkeel-server", flag[] = "--max-num-seqs", value[] = "64";
    char swap[] = "--swap-space=4", *own[] = {program, flag, value, swap, NULL};
    static const struct {
        struct remedy_settings caps;
        const char *engine, *want;
    } cases[] = {
        {{0}, "evenkeel", ""},
        {{.seqs = 51}, "evenkeel", "--max-num-seqs 51 instead of 64"},
        {{.seqs = 64}, "evenkeel", ""}, /* no lower than what the operator wrote since */
        {{.tokens = 1536, .share = 0.87},
         "evenkeel",
         "--max-num-batched-tokens 1536, --gpu-memory-utilization 0.87"},
        {{.no_swap = true}, "evenkeel", "--swap-space 0 instead of 4"},
        {{.expandable = true}, "vllm", "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True"},
        {{.expandable = true}, "evenkeel", ""},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[200];
        const struct dialect *d = dialect_find(cases[i].engine);
        struct remedy_settings has;
        remedy_read(d, own, &(struct remedy_settings){0}, &has);
        bool any = remedy_text(d, &has, &cases[i].caps, text, sizeof(text));
        assert_string_equal(text, cases[i].want);
        assert_int_equal(any, text[0] != '\0');
    }
    struct remedy_memory m = {.caps = {.seqs = 4}, .until_us = START, .tried[0] = {1, START}};
    remedy_forget(&m);
    assert_true(m.until_us == 0 && m.caps.seqs == 0 && m.tried[0].steps == 0);
}

/* Worn out, not crashed: only that step, once a day, and FRAG_OOM goes on behind it. */
static void test_worn(void **state)
{
    (void)state;
    const struct dialect *vllm = dialect_find("vllm");
    struct remedy_memory m = {.caps = {.tokens = 1536}};
    struct remedy_case c = {.cls = CRASH_FRAG_OOM,
                            .dialect = vllm,
                            .now = {.tokens = 8192, .expandable = true},
                            .wall_us = START + HOUR};
    assert_false(remedy_worn(&m, dialect_find("evenkeel"), false, START));
    assert_false(remedy_worn(&m, vllm, true, START)); /* the operator's own choice */
    assert_true(m.until_us == 0 && !m.caps.expandable);
    assert_true(remedy_worn(&m, vllm, false, START));
    assert_true(m.caps.expandable && m.caps.tokens == 1536 && m.until_us > START);
    assert_false(remedy_worn(&m, vllm, false, START + HOUR));
    struct remedy_plan plan = remedy_next(&m, &c);
    assert_true(plan.found && plan.step == 1 && plan.caps.tokens == 6144);
    assert_true(remedy_unworn(&m)); /* it did not start with that */
    assert_true(!m.caps.expandable && m.caps.tokens == 1536);
    assert_false(remedy_unworn(&m) || remedy_worn(&m, vllm, false, START + HOUR));
    assert_true(remedy_expire(&m, START + 25 * HOUR));
    assert_true(remedy_worn(&m, vllm, false, START + 25 * HOUR));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cap),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_ladders),
        cmocka_unit_test(test_memory),
        cmocka_unit_test(test_flags),
        cmocka_unit_test(test_planned),
        cmocka_unit_test(test_of_engine),
        cmocka_unit_test(test_hours),
        cmocka_unit_test(test_unknown_settings_stay),
        cmocka_unit_test(test_a_step_is_looked_at),
        cmocka_unit_test(test_what_is_in_force),
        cmocka_unit_test(test_worn),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
