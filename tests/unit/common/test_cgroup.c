/* The limit of a cgroup, in trees as systemd, containers and old kernels make them. */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/cgroup.h"

static char root[64];

/* Writes FILE below the root, with the folders on the way. */
static void put(const char *file, const char *text)
{
    char path[256];
    (void)snprintf(path, sizeof(path), "%s/%s", root, file);
    for (char *slash = strchr(path + strlen(root) + 1, '/'); slash;
         slash = strchr(slash + 1, '/')) {
        *slash = '\0';
        (void)mkdir(path, 0700);
        *slash = '/';
    }
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void clear(void)
{
    char command[128];
    (void)snprintf(command, sizeof(command), "rm -rf %s/*", root);
    assert_int_equal(system(command), 0);
}

static void test_limits(void **state)
{
    static const struct {
        const char *what, *self, *file[6][2];
        uint64_t limit, left;
    } cases[] = {
        {"a unit's MemoryMax=",
         "0::/system.slice/a.service\n",
         {{"system.slice/a.service/memory.max", "1000\n"},
          {"system.slice/a.service/memory.current", "400\n"},
          {"system.slice/memory.max", "max\n"}},
         1000,
         600},
        {"the slice's is smaller",
         "0::/system.slice/a.service\n",
         {{"system.slice/a.service/memory.max", "1000\n"},
          {"system.slice/memory.max", "800\n"},
          {"system.slice/memory.current", "900\n"}},
         800,
         0},
        {"MemoryHigh= is where it slows down",
         "0::/a\n",
         {{"a/memory.max", "1000\n"}, {"a/memory.high", "700\n"}, {"a/memory.current", "100\n"}},
         700,
         600},
        {"a container: its own group is the root", "0::/\n", {{"memory.max", "500\n"}}, 500, 500},
        {"a path that is not there", "0::/../x\n", {{"memory.max", "500\n"}}, 500, 500},
        {"version 1",
         "5:cpuset:/\n4:memory:/docker/x\n0::/\n",
         {{"memory/docker/x/memory.limit_in_bytes", "3000\n"},
          {"memory/docker/x/memory.usage_in_bytes", "1000\n"},
          {"memory/memory.limit_in_bytes", "9223372036854771712\n"}},
         3000,
         2000},
        {"none", "0::/a\n", {{"a/memory.max", "max\n"}}, UINT64_MAX, UINT64_MAX},
        {"nonsense", "0::/a\nx\n\n::\n", {{"a/memory.max", "lots\n"}}, UINT64_MAX, UINT64_MAX},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char self[80];
        uint64_t limit, left;
        clear();
        put("self", cases[i].self);
        for (int k = 0; k < 6 && cases[i].file[k][0]; k++)
            put(cases[i].file[k][0], cases[i].file[k][1]);
        (void)snprintf(self, sizeof(self), "%s/self", root);
        ek_cgroup_left(self, root, &limit, &left);
        if (limit != cases[i].limit || left != cases[i].left)
            fail_msg("%s: %llu %llu", cases[i].what, (unsigned long long)limit,
                     (unsigned long long)left);
    }
    uint64_t limit, left;
    ek_cgroup_left("/nonexistent", root, &limit, &left);
    assert_true(limit == UINT64_MAX && left == UINT64_MAX);
    clear();
}

static void test_cores(void **state)
{
    static const struct {
        const char *what, *self, *file[4][2];
        uint32_t cores, whole;
    } cases[] = {
        {"a unit's CPUQuota=400%",
         "0::/system.slice/a.service\n",
         {{"system.slice/a.service/cpu.max", "400000 100000\n"},
          {"system.slice/cpu.max", "max 100000\n"}},
         4,
         4},
        {"the slice's is smaller",
         "0::/a.slice/b.service\n",
         {{"a.slice/b.service/cpu.max", "800000 100000\n"}, {"a.slice/cpu.max", "250000 100000\n"}},
         3,
         2},
        {"one and a half", "0::/a\n", {{"a/cpu.max", "150000 100000\n"}}, 2, 1},
        {"less than one", "0::/\n", {{"cpu.max", "5000 100000\n"}}, 1, 1},
        {"version 1, two controllers together",
         "6:cpuset:/y\n5:cpuacct,cpu:/docker/x\n0::/\n",
         {{"cpu/docker/x/cpu.cfs_quota_us", "300000\n"},
          {"cpu/docker/x/cpu.cfs_period_us", "100000\n"},
          {"cpu/cpu.cfs_quota_us", "-1\n"},
          {"cpu/cpu.cfs_period_us", "100000\n"}},
         3,
         3},
        {"another controller of version 1",
         "6:cpuset:/y\n",
         {{"cpu/y/cpu.cfs_quota_us", "100000\n"}, {"cpu/y/cpu.cfs_period_us", "100000\n"}},
         UINT32_MAX,
         UINT32_MAX},
        {"none", "0::/a\n", {{"a/cpu.max", "max 100000\n"}}, UINT32_MAX, UINT32_MAX},
        {"nonsense", "0::/a\n", {{"a/cpu.max", "1 0\n"}}, UINT32_MAX, UINT32_MAX},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char self[80];
        clear();
        put("self", cases[i].self);
        for (int k = 0; k < 4 && cases[i].file[k][0]; k++)
            put(cases[i].file[k][0], cases[i].file[k][1]);
        (void)snprintf(self, sizeof(self), "%s/self", root);
        uint32_t whole, cores = ek_cgroup_cores(self, root, &whole);
        if (cores != cases[i].cores || whole != cases[i].whole)
            fail_msg("%s: %u, %u whole", cases[i].what, cores, whole);
    }
    uint32_t whole;
    assert_true(ek_cgroup_cores("/nonexistent", root, &whole) == UINT32_MAX);
    clear();
}

/* Files as the kernel writes them (Documentation/admin-guide/cgroup-v2.rst). */
static void test_memory(void **state)
{
    (void)state;
    put("g/memory.max", "max\n");
    put("g/memory.current", "7340032\n");
    put("g/memory.pressure", "some avg10=0.00 avg60=1.25 avg300=0.40 total=123456\n"
                             "full avg10=0.00 avg60=0.00 avg300=0.00 total=99\n");
    put("g/memory.events", "low 0\nhigh 12\nmax 3\noom 2\noom_kill 2\noom_group_kill 0\n");
    put("g/memory.stat", "anon 4096\nfile 500\ninactive_anon 7\nactive_anon 8\n"
                         "inactive_file 100\nactive_file 200\n");
    char dir[80];
    (void)snprintf(dir, sizeof(dir), "%s/g", root);
    struct ek_cgroup_memory m;
    ek_cgroup_memory(dir, &m);
    assert_true(m.most_bytes == UINT64_MAX && m.used_bytes == 7340032 && m.oom_kills == 2);
    assert_true(m.stalled_us == 123456 && m.anon_bytes == 4096 && m.file_bytes == 300);
    put("g/memory.max", "8388608\n");
    ek_cgroup_memory(dir, &m);
    assert_true(m.most_bytes == 8388608);
    (void)strcat(dir, "/none");
    ek_cgroup_memory(dir, &m);
    assert_true(m.most_bytes == UINT64_MAX && m.used_bytes == UINT64_MAX && m.file_bytes == 0);
    assert_true(m.stalled_us == UINT64_MAX && m.anon_bytes == UINT64_MAX &&
                m.oom_kills == UINT64_MAX);
    (void)snprintf(dir, sizeof(dir), "%s/g", root);
    int fd = open(dir, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    assert_true(fd >= 0);
    assert_true(ek_cgroup_oom_kills(fd) == 2);
    assert_int_equal(close(fd), 0);
    clear();
}

static void test_dir(void **state)
{
    (void)state;
    char self[80], path[300], little[4];
    put("v1", "5:cpuset:/\n4:memory:/docker/x\n");
    (void)snprintf(self, sizeof(self), "%s/v1", root);
    assert_int_equal(ek_cgroup_dir(self, path, sizeof(path)),
                     -ENOENT); /* no version 2, or no mount */
    put("v2", "0::/system.slice/evenkeeld.service\n");
    (void)snprintf(self, sizeof(self), "%s/v2", root);
    int r = ek_cgroup_dir(self, path, sizeof(path));
    if (r == 0) /* where the machine has it mounted */
        assert_non_null(strstr(path, "/system.slice/evenkeeld.service"));
    assert_true(r == 0 || r == -ENOENT);
    assert_int_equal(ek_cgroup_dir(self, little, sizeof(little)), r == 0 ? -ENAMETOOLONG : -ENOENT);
    clear();
}

/* Groups that a server makes below its own; others with names like them are left alone. */
static void test_parts(void **state)
{
    (void)state;
    static const char *const cases[][2] = {
        {"/a.service/evenkeel-engine.12", "/a.service"},
        {"/a.service/evenkeel-main", "/a.service"},
        {"/evenkeel-main", ""},
        {"/a/evenkeel-engine.5-0badcafe.0", "/a/evenkeel-engine.5-0badcafe.0"}, /* of "engine.5" */
        {"/a/evenkeel-main-0badcafe.0", "/a/evenkeel-main-0badcafe.0"},
        {"/a/evenkeel-engine.", "/a/evenkeel-engine."},
        {"/evenkeel-engine.12/b", "/evenkeel-engine.12/b"},
        {"", ""},
    };
    char path[160], dir[128];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        (void)snprintf(path, sizeof(path), "%s", cases[i][0]);
        ek_cgroup_own(path);
        assert_string_equal(path, cases[i][1]);
    }
    (void)snprintf(dir, sizeof(dir), "%s/whole", root);
    assert_int_equal(mkdir(dir, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/evenkeel-engine.7", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    (void)snprintf(path, sizeof(path), "%s/theirs", dir);
    assert_int_equal(mkdir(path, 0700), 0);
    assert_int_equal(ek_cgroup_remove(dir), -ENOTEMPTY);
    assert_int_equal(rmdir(path), 0);
    assert_int_equal(ek_cgroup_remove(dir), 0);
    assert_int_equal(ek_cgroup_remove(dir), -ENOENT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_parts),  cmocka_unit_test(test_limits), cmocka_unit_test(test_cores),
        cmocka_unit_test(test_memory), cmocka_unit_test(test_dir),
    };
    (void)snprintf(root, sizeof(root), "/tmp/cgroup-XXXXXX");
    if (!mkdtemp(root))
        return 1;
    int failed = cmocka_run_group_tests(tests, NULL, NULL);
    (void)rmdir(root);
    return failed;
}
