/* Cores by NUMA nodes: lists as the kernel writes them, and who gets which. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "kernels/cpu/nodes.h"

static void set_of(const char *list, cpu_set_t *set)
{
    assert_true(cpu_list_parse(list, set));
}

static void test_lists(void **state)
{
    static const char *const bad[] = {"x", "1-", "-1", "3-1", "1,,2", "1;2", "9999999"};
    cpu_set_t set;
    (void)state;

    set_of("0-3,8\n", &set);
    assert_true(CPU_COUNT(&set) == 5 && CPU_ISSET(3, &set) && CPU_ISSET(8, &set));
    set_of("\n", &set);
    assert_int_equal(CPU_COUNT(&set), 0);
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_false(cpu_list_parse(bad[i], &set));
}

static void test_cores(void **state)
{
    static const struct {
        const char *node[4];
        uint32_t ranks;
        bool by_node;
        const char *cores[4];
    } cases[] = {
        {{"0-3", "4-7"}, 2, true, {"0-3", "4-7"}},
        {{"0-1", "2-3", "4-5", "6-7"}, 2, true, {"0-3", "4-7"}},
        {{"0-7"}, 2, false, {"0-3", "4-7"}},
        {{"0-3", "4-7"}, 4, false, {"0-1", "2-3", "4-5", "6-7"}},
        {{"0-1", "2-3", "4-5"}, 2, false, {"0-2", "3-5"}},
        {{"5"}, 2, false, {"5", "5"}},
        {{"0-3"}, 1, true, {"0-3"}},
    };
    (void)state;

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct cpu_nodes n = {.count = 0};
        for (; n.count < 4 && cases[c].node[n.count]; n.count++)
            set_of(cases[c].node[n.count], &n.node[n.count]);
        for (uint32_t r = 0; r < cases[c].ranks; r++) {
            cpu_set_t got, want;
            assert_int_equal(cpu_nodes_cores(&n, r, cases[c].ranks, &got), cases[c].by_node);
            set_of(cases[c].cores[r], &want);
            assert_true(CPU_EQUAL(&got, &want));
        }
    }
}

/* Cores for others come from the ends of the nodes in turn, and one always stays. */
static void test_left_cores(void **state)
{
    static const struct {
        const char *node[3];
        uint32_t cores;
        const char *left[3];
    } cases[] = {
        {{"0-3"}, 0, {"0-3"}},
        {{"0-3"}, 1, {"0-2"}},
        {{"0-3"}, 9, {"0"}},
        {{"0-3", "4-7"}, 1, {"0-3", "4-6"}},
        {{"0-3", "4-7"}, 3, {"0-2", "4-5"}},
        {{"0-3", "4", "8,12"}, 5, {"0-1"}},
    };
    (void)state;

    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        struct cpu_nodes n = {.count = 0};
        cpu_set_t want;
        for (; n.count < 3 && cases[c].node[n.count]; n.count++)
            set_of(cases[c].node[n.count], &n.node[n.count]);
        cpu_nodes_leave(&n, cases[c].cores);
        for (uint32_t i = 0; i < n.count; i++) {
            CPU_ZERO(&want);
            if (cases[c].left[i])
                set_of(cases[c].left[i], &want);
            assert_true(CPU_EQUAL(&n.node[i], &want));
        }
    }
}

static void write_node(const char *dir, int node, const char *list)
{
    char path[128];

    (void)snprintf(path, sizeof(path), "%s/node%d", dir, node);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/node%d/cpulist", dir, node);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fputs(list, f);
    (void)fclose(f);
}

/* Nodes without usable cores (memory alone, or not in our affinity) do not count. */
static void test_nodes(void **state)
{
    char dir[] = "/tmp/evenkeel-nodes-XXXXXX", path[128];
    static const int numbers[] = {0, 1, 4};
    struct cpu_nodes n;
    cpu_set_t usable;
    (void)state;

    assert_non_null(mkdtemp(dir));
    write_node(dir, 0, "0-7\n");
    write_node(dir, 1, "\n");
    write_node(dir, 4, "8-15\n");
    set_of("2-9", &usable);
    cpu_nodes_read(dir, &usable, &n);
    assert_int_equal(n.count, 2);
    assert_true(CPU_COUNT(&n.node[0]) == 6 && CPU_COUNT(&n.node[1]) == 2);
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s/node%d/cpulist", dir, numbers[i]);
        assert_int_equal(unlink(path), 0);
        (void)snprintf(path, sizeof(path), "%s/node%d", dir, numbers[i]);
        assert_int_equal(rmdir(path), 0);
    }
    cpu_nodes_read(dir, &usable, &n); /* nothing there: one node */
    assert_true(n.count == 1 && CPU_EQUAL(&n.node[0], &usable));
    assert_int_equal(rmdir(dir), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_cores),
        cmocka_unit_test(test_left_cores),
        cmocka_unit_test(test_nodes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
