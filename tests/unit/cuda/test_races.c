/*
 * The race checker (tests/cuda/races.h): it reports each kernel that is wrong on purpose for what
 * is wrong with it and leaves its right twin alone, in whatever order threads and blocks take
 * turns. Then every kernel of the backend runs under it, twice in opposite orders, in models that
 * are just large enough for what they do; in none of them may it find anything.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "tests/cuda/races_run.h"
#include "tests/unit/cuda/fake_card.h"

static struct {
    int (*find)(const char *name, size_t *ret_bytes);
    void (*launch)(int index, const unsigned grid[3], unsigned threads, size_t dynamic_bytes,
                   const void *args);
    void (*expect)(bool expected);
    unsigned (*take)(enum races_kind kind);
    void (*repeat)(bool repeats);
} g_races;

static int races_setup(void **state)
{
    setenv("SHIM_RACES", "1", 1);
    (void)fake_setup(state);
    const struct {
        const char *name;
        void *to;
    } wanted[] = {{"shim_find", &g_races.find},
                  {"shim_launch", &g_races.launch},
                  {"races_expect", &g_races.expect},
                  {"races_take", &g_races.take},
                  {"races_repeat", &g_races.repeat}};
    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *at = fake_symbol(g_fake.library, wanted[i].name);
        memcpy(wanted[i].to, &at, sizeof(at));
    }
    return 0;
}

static const char *const g_kinds[RACES_KINDS] = {
    [RACES_SHARED] = "shared", [RACES_GLOBAL] = "global",         [RACES_COPY] = "copy",
    [RACES_UNSET] = "unset",   [RACES_OUTSIDE] = "outside",       [RACES_UNALIGNED] = "unaligned",
    [RACES_LANES] = "lanes",   [RACES_UNREPEATED] = "unrepeated",
};

/* Where a wrong kernel is only wrong in one way, nothing else may be reported. */
static const struct {
    const char *name;
    enum races_kind kind; /* RACES_KINDS: none */
    unsigned blocks;
} g_wrong[] = {
    {"wrong_neighbour", RACES_SHARED, 1},    {"right_neighbour", RACES_KINDS, 2},
    {"wrong_lanes", RACES_SHARED, 1},        {"right_lanes", RACES_KINDS, 2},
    {"wrong_warp", RACES_SHARED, 1},         {"right_warp", RACES_KINDS, 1},
    {"wrong_last_release", RACES_GLOBAL, 3}, {"right_last", RACES_KINDS, 3},
    {"wrong_last_acquire", RACES_GLOBAL, 3}, {"wrong_last_count", RACES_GLOBAL, 3},
    {"wrong_one_fence", RACES_GLOBAL, 2},    {"right_one_fence", RACES_KINDS, 2},
    {"wrong_overlap", RACES_GLOBAL, 2},      {"right_overlap", RACES_KINDS, 2},
    {"wrong_read_early", RACES_COPY, 1},     {"right_stages", RACES_KINDS, 1},
    {"wrong_filled_early", RACES_SHARED, 1}, {"wrong_no_barrier", RACES_SHARED, 1},
    {"wrong_own_copy", RACES_COPY, 1},       {"right_own_copy", RACES_KINDS, 1},
    {"wrong_mixed", RACES_GLOBAL, 1},        {"right_mixed", RACES_KINDS, 2},
    {"wrong_unset", RACES_UNSET, 2},         {"right_unset", RACES_KINDS, 2},
    {"wrong_outside", RACES_OUTSIDE, 1},     {"right_outside", RACES_KINDS, 1},
    {"wrong_index", RACES_OUTSIDE, 1},       {"wrong_wide", RACES_UNALIGNED, 1},
    {"wrong_pair", RACES_UNALIGNED, 1},      {"wrong_matrix", RACES_UNALIGNED, 1},
    {"right_wide", RACES_KINDS, 1},          {"wrong_divergent", RACES_LANES, 1},
    {"wrong_unnamed", RACES_LANES, 1},       {"wrong_other", RACES_LANES, 1},
    {"wrong_left", RACES_LANES, 1},          {"right_divergent", RACES_KINDS, 1},
    {"wrong_order", RACES_UNREPEATED, 1},    {"right_order", RACES_KINDS, 1},
};

static void launch_wrong(const char *name, unsigned blocks, void *memory, size_t bytes)
{
    const struct {
        uint64_t at, counter;
        uint32_t n, pad;
    } args = {(uint64_t)(uintptr_t)memory, (uint64_t)(uintptr_t)memory + bytes - 16, 64, 0};
    const unsigned grid[3] = {blocks, 1, 1};
    size_t size;
    const int kernel = g_races.find(name, &size);

    assert_true(kernel >= 0);
    assert_int_equal(size, sizeof(args));
    memset(memory, 0, bytes);
    g_races.launch(kernel, grid, 64, 2048, &args);
}

static void test_wrong(void **state)
{
    (void)state;
    enum { BYTES = 16384, TURNS = 4 };
    void *memory = aligned_alloc(4096, BYTES);

    g_races.repeat(true);
    for (size_t i = 0; i < sizeof(g_wrong) / sizeof(g_wrong[0]); i++)
        for (unsigned turn = 0; turn < TURNS; turn++) {
            const enum races_kind kind = g_wrong[i].kind;
            g_races.expect(kind != RACES_KINDS);
            launch_wrong(g_wrong[i].name, g_wrong[i].blocks, memory, BYTES);
            for (enum races_kind k = 0; k < RACES_KINDS; k++) {
                const unsigned count = g_races.take(k);
                if (k == kind && count == 0)
                    fail_msg("%s was not reported (%s)", g_wrong[i].name, g_kinds[k]);
                if (kind == RACES_KINDS && count > 0)
                    fail_msg("%s was reported (%s)", g_wrong[i].name, g_kinds[k]);
            }
        }
    g_races.expect(false);
    free(memory);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_wrong),
    };
    return cmocka_run_group_tests_name("races", tests, races_setup, NULL);
}
