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

static void write_siblings(const char *dir, int cpu, const char *list)
{
    char path[160];

    (void)snprintf(path, sizeof(path), "%s/cpu%d", dir, cpu);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/cpu%d/topology", dir, cpu);
    assert_int_equal(mkdir(path, 0700), 0);
    if (!list)
        return;
    (void)snprintf(path, sizeof(path), "%s/cpu%d/topology/thread_siblings_list", dir, cpu);
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    (void)fputs(list, f);
    (void)fclose(f);
}

static void remove_siblings(const char *dir, int cpu)
{
    static const char *const names[] = {"/topology/thread_siblings_list", "/topology", ""};
    char path[160];

    for (int i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s/cpu%d%s", dir, cpu, names[i]);
        (void)remove(path);
    }
}

/* One CPU of each core computes, however the kernel numbers them. */
static void test_threads_of_a_core(void **state)
{
    static const struct {
        const char *what, *siblings[8], *usable, *left;
    } cases[] = {
        {"neighbours", {"0-1\n", "0-1\n", "2-3\n", "2-3\n"}, "0-3", "0,2"},
        {"first halves, then second ones",
         {"0,4\n", "1,5\n", "2,6\n", "3,7\n", "0,4\n", "1,5\n", "2,6\n", "3,7\n"},
         "0-7",
         "0-3"},
        {"one of a pair may be used", {"0,2\n", "1,3\n", "0,2\n", "1,3\n"}, "2,3", "2,3"},
        {"and of others both", {"0,2\n", "1,3\n", "0,2\n", "1,3\n"}, "1-3", "1,2"},
        {"four threads a core", {"0-3\n", "0-3\n", "0-3\n", "0-3\n", "4-7\n"}, "0-4", "0,4"},
        {"no hardware threads", {"0\n", "1\n"}, "0-1", "0-1"},
        {"nothing to be read", {NULL}, "0-3", "0-3"},
        {"nonsense", {"x\n", "0-1\n"}, "0-1", "0-1"},
    };
    char dir[] = "/tmp/evenkeel-cpus-XXXXXX";
    (void)state;

    assert_non_null(mkdtemp(dir));
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        cpu_set_t set, want;
        for (int cpu = 0; cpu < 8; cpu++)
            write_siblings(dir, cpu, cases[c].siblings[cpu]);
        set_of(cases[c].usable, &set);
        set_of(cases[c].left, &want);
        cpu_cores_alone(dir, &set);
        if (!CPU_EQUAL(&set, &want))
            fail_msg("%s", cases[c].what);
        for (int cpu = 0; cpu < 8; cpu++)
            remove_siblings(dir, cpu);
    }
    assert_int_equal(rmdir(dir), 0);
}

/* Cores of two threads, which lie side by side: 0-1, 2-3 and so on. */
static void test_rank_cores(void **state)
{
    static const struct {
        const char *what;
        int cpus;
        uint32_t ranks, reserve, threads;
        const char *cores[4];
    } cases[] = {
        {"a thread on each core", 8, 1, 0, 4, {"0,2,4,6"}},
        {"a core is left", 8, 1, 1, 3, {"0,2,4"}},
        {"threads and what is left are more than cores", 8, 1, 1, 4, {"0-6"}},
        {"all CPUs but one", 8, 1, 1, 7, {"0-6"}},
        {"a rank on each core", 8, 4, 0, 4, {"0", "2", "4", "6"}},
        {"more ranks than cores", 2, 2, 0, 1, {"0", "1"}},
        {"also where one core is left", 4, 2, 1, 1, {"0", "1-2"}},
        {"more than there are numbers", 4, 1, UINT32_MAX, 2, {"0"}},
    };
    char dir[] = "/tmp/evenkeel-system-XXXXXX", cpus[64];
    (void)state;

    assert_non_null(mkdtemp(dir));
    (void)snprintf(cpus, sizeof(cpus), "%s/cpu", dir);
    assert_int_equal(mkdir(cpus, 0700), 0);
    for (int cpu = 0; cpu < 8; cpu++) {
        char pair[24];
        (void)snprintf(pair, sizeof(pair), "%d-%d\n", cpu / 2 * 2, cpu / 2 * 2 + 1);
        write_siblings(cpus, cpu, pair);
    }
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        cpu_set_t allowed, got, want;
        CPU_ZERO(&allowed);
        for (int cpu = 0; cpu < cases[c].cpus; cpu++)
            CPU_SET(cpu, &allowed);
        for (uint32_t r = 0; r < cases[c].ranks; r++) {
            (void)cpu_rank_cores_in(dir, &allowed, r, cases[c].ranks, cases[c].reserve,
                                    cases[c].threads, &got);
            set_of(cases[c].cores[r], &want);
            if (!CPU_EQUAL(&got, &want))
                fail_msg("%s: rank %u", cases[c].what, r);
        }
    }
    for (int cpu = 0; cpu < 8; cpu++)
        remove_siblings(cpus, cpu);
    assert_int_equal(rmdir(cpus), 0);
    assert_int_equal(rmdir(dir), 0);
}

/* More threads than cores were asked for: then they have all CPUs. */
static void test_usable(void **state)
{
    cpu_set_t all, one, most;
    (void)state;

    assert_int_equal(sched_getaffinity(0, sizeof(all), &all), 0);
    cpu_usable_set(1, &one);
    cpu_usable_set(UINT32_MAX, &most);
    assert_true(CPU_EQUAL(&most, &all));
    assert_true(CPU_COUNT(&one) > 0 && CPU_COUNT(&one) <= CPU_COUNT(&all));
    CPU_AND(&most, &one, &all);
    assert_true(CPU_EQUAL(&most, &one));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_lists),
        cmocka_unit_test(test_cores),
        cmocka_unit_test(test_left_cores),
        cmocka_unit_test(test_nodes),
        cmocka_unit_test(test_threads_of_a_core),
        cmocka_unit_test(test_rank_cores),
        cmocka_unit_test(test_usable),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
