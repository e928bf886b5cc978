/* The judging: a healthy machine, a sick one, none at all. */
#include "supervisor/ctl/preflight.h"

#include <errno.h>
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

/* As people showed them in reports of theirs: two RTX 5090 (tabs, and the escapes that underline
 * the head), four of eight cards of an older machine (blanks). */
static const char two_5090[] = "\t\033[4mGPU0\tGPU1\tCPU Affinity\tNUMA Affinity\tGPU NUMA "
                               "ID\033[0m\nGPU0\t X \tPHB\t0-63\t0\t\tN/A\n"
                               "GPU1\tPHB\t X \t0-63\t0\t\tN/A\n\nLegend:\n\n  X    = Self\n";
static const char four[] = "        GPU0    GPU1    GPU2    GPU3    mlx4_0  CPU Affinity\n"
                           "GPU0     X      PIX     PHB     PHB     PHB     0-9,20-29\n"
                           "GPU1    PIX      X      PHB     PHB     PHB     0-9,20-29\n"
                           "GPU2    PHB     PHB      X      PIX     PHB     0-9,20-29\n"
                           "GPU3    PHB     PHB     PIX      X      PHB     0-9,20-29\n"
                           "mlx4_0  PHB     PHB     PHB     PHB      X\n";
/* FAKE: the first one with links. */
static const char linked[] = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV12\t0-63\n"
                             "GPU1\tNV12\t X \t0-63\n";

static void test_several_cards(void **state)
{
    (void)state;
    static const char gpus[] =
        "NVIDIA A100, 550.54.15, 81920, 4, Disabled, Enabled, 0, 16, 16, Enabled, 34\n"
        "NVIDIA A100, 550.54.15, 40960, 4, Disabled, Enabled, 0, 16, 16, Enabled, 34\n";
    struct preflight p;
    preflight_judge(&(struct preflight_facts){.gpus = gpus, .links = two_5090}, &p);
    assert_int_equal(state_of(&p, "not as GPU 0: NVIDIA A100, 81920 MiB"), PREFLIGHT_NOTE);
    assert_int_equal(state_of(&p, "1 of 1 pairs of GPUs without NVLink: 0 and 1 by PHB"),
                     PREFLIGHT_NOTE);
    preflight_judge(&(struct preflight_facts){.gpus = gpus, .links = four}, &p);
    assert_int_equal(state_of(&p, "6 of 6 pairs of GPUs without NVLink: 0 and 1 by PIX"),
                     PREFLIGHT_NOTE);
    preflight_judge(&(struct preflight_facts){.gpus = gpus, .links = linked}, &p);
    assert_int_equal(state_of(&p, "NVLink between all 2 GPUs"), PREFLIGHT_OK);
    for (size_t n = 0; n <= sizeof(four); n++) { /* cut anywhere */
        char text[sizeof(four) + 1] = "";
        memcpy(text, four, n < sizeof(four) ? n : sizeof(four) - 1);
        preflight_judge(&(struct preflight_facts){.gpus = gpus, .links = text}, &p);
    }
}

static void test_none(void **state)
{
    (void)state;
    struct preflight p;
    preflight_judge(&(struct preflight_facts){.model = "/m", .model_error = EACCES}, &p);
    assert_int_equal(state_of(&p, "no NVIDIA driver"), PREFLIGHT_NOTE);
    assert_int_equal(state_of(&p, "/m cannot be read: Permission denied"), PREFLIGHT_BAD);
    preflight_judge(&(struct preflight_facts){.model = "/m", .model_error = ENOENT}, &p);
    assert_int_equal(state_of(&p, "/m cannot be read: No such file"), PREFLIGHT_BAD);
    preflight_judge(&(struct preflight_facts){.model = "/m"}, &p);
    assert_int_equal(state_of(&p, "config.json missing"), PREFLIGHT_BAD);
    preflight_judge(&(struct preflight_facts){.gpu_tool_hung = true}, &p);
    assert_int_equal(state_of(&p, "did not answer"), PREFLIGHT_BAD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_healthy), cmocka_unit_test(test_sick),
                                       cmocka_unit_test(test_several_cards),
                                       cmocka_unit_test(test_none)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
