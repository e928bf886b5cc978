/* The judging: a healthy machine, a sick one, none at all. */
#include "supervisor/ctl/preflight.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

static enum preflight_state state_of(const struct preflight *p, const char *is)
{
    for (uint32_t i = 0; i < p->count; i++) {
        if (strstr(p->line[i].is, is)) {
            assert_true((p->line[i].state == PREFLIGHT_OK) == (p->line[i].remedy[0] == '\0'));
            return p->line[i].state;
        }
    }
    fail_msg("nothing says %s", is);
    abort();
}

static void test_healthy(void **state)
{
    (void)state;
    struct preflight p;
    struct preflight_facts f = {.driver = "NVRM version",
                                .gpus = "NVIDIA H100 80GB HBM3, 550.54.15, 81559, 4, Disabled, "
                                        "Enabled, 0, 16, 16, Enabled, 34\n",
                                .memlock = UINT64_MAX,
                                .nofile = 65536,
                                .memory_bytes = 64ull << 30,
                                .shm_bytes = 32ull << 30,
                                .port = 8000,
                                .port_free = true,
                                .model = "/m",
                                .model_readable = true,
                                .config_there = true,
                                .weights_there = true};
    preflight_judge(&f, &p);
    for (uint32_t i = 0; i < p.count; i++) {
        if (p.line[i].state != PREFLIGHT_OK)
            fail_msg("%s: %s", p.line[i].what, p.line[i].is);
    }
    assert_true(p.count >= 10);
}

static void test_sick(void **state)
{
    (void)state;
    struct preflight p;
    struct preflight_facts f = {
        .driver = "NVRM version",
        .gpus = "NVIDIA A100, 470.82.01, 40960, 30211, Enabled, Enabled, 3, 4, 16, Disabled, 91\n"
                "not a line\n",
        .apps = "4242, 30000, python3\n",
        .memlock = 65536,
        .nofile = 1024,
        .memory_bytes = 64ull << 30,
        .cgroup_bytes = 4ull << 30,
        .shm_bytes = 64 << 20,
        .port = 8000,
        .model = "/m",
        .model_readable = true,
        .config_there = true};
    preflight_judge(&f, &p);
    assert_int_equal(state_of(&p, "version 470"), PREFLIGHT_BAD);
    assert_int_equal(state_of(&p, "30211 MiB in use"), PREFLIGHT_NOTE);
    assert_int_equal(state_of(&p, "MIG is on"), PREFLIGHT_NOTE);
    assert_int_equal(state_of(&p, "3 uncorrected"), PREFLIGHT_BAD);
    assert_int_equal(state_of(&p, "PCIe x4 of x16"), PREFLIGHT_NOTE);
    assert_int_equal(state_of(&p, "91 degrees"), PREFLIGHT_BAD);
    assert_int_equal(state_of(&p, "4242"), PREFLIGHT_NOTE);
    assert_int_equal(state_of(&p, "8000 is taken"), PREFLIGHT_BAD);
    assert_int_equal(state_of(&p, "weights missing"), PREFLIGHT_BAD);
    assert_int_equal(state_of(&p, "1024"), PREFLIGHT_NOTE);
}

static void test_none(void **state)
{
    (void)state;
    struct preflight p;
    preflight_judge(&(struct preflight_facts){.model = "/m"}, &p);
    assert_int_equal(state_of(&p, "no NVIDIA driver"), PREFLIGHT_NOTE);
    assert_int_equal(state_of(&p, "cannot be read"), PREFLIGHT_BAD);
    preflight_judge(&(struct preflight_facts){.gpu_tool_hung = true}, &p);
    assert_int_equal(state_of(&p, "did not answer"), PREFLIGHT_BAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_healthy), cmocka_unit_test(test_sick),
                                       cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
