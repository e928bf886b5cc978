/* Which cgroups are of our servers: nobody else's process may ever be ended. */
#include "supervisor/ctl/stray.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

static void test_cgroups(void **state)
{
    (void)state;
    static const struct {
        const char *cgroup;
        bool ours;
    } cases[] = {
        {"/evenkeel.slice/evenkeel-server@main.service", true},
        {"/system.slice/evenkeel-server@a-b.service/x", true},
        {"/system.slice/evenkeeld.service/evenkeel-main-0badcafe.0", true},
        {"/system.slice/evenkeeld.service/evenkeel-main-0badcafe.0/evenkeel-engine.7", true},
        {"/system.slice/evenkeeld.service/helper", false},
        {"/system.slice/evenkeeld.service", false},
        {"/system.slice/evenkeeld.service/", false},
        {"/system.slice/evenkeeld.service/evenkeeld", false},
        {"/system.slice/vllm.service", false},
        {"/user.slice/user-1000.slice/evenkeel-server", false},
        {"/docker/evenkeel-server@x", false},
        {"/", false},
        {"", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (stray_cgroup(cases[i].cgroup) != cases[i].ours)
            fail_msg("%s", cases[i].cgroup);
    }
}

/* A child is of the server, and a child of its session whose parent has gone; a stranger is not. */
static void test_owner(void **state)
{
    (void)state;
    const pid_t self[] = {getpid()}, nobody[] = {1 << 22};
    int ends[2];
    char byte;
    assert_int_equal(pipe(ends), 0);
    pid_t child = fork();
    if (child == 0) {
        (void)close(ends[1]);
        (void)read(ends[0], &byte, 1); /* until the parent closes it */
        _exit(0);
    }
    assert_true(child > 0);
    assert_true(stray_is_of(child, self, 1) && stray_is_of(self[0], self, 1));
    assert_false(stray_is_of(child, nobody, 1));
    assert_false(stray_is_of(child, NULL, 0));
    assert_false(stray_is_of(getppid(), self, 1));
    assert_false(stray_is_of(0, self, 1));
    (void)close(ends[1]);
    assert_int_equal(waitpid(child, NULL, 0), child);
    (void)close(ends[0]);
    assert_false(stray_is_of(child, self, 1)); /* gone */
}

/* Whose server it was: nothing is a stray whose evenkeeld lives. */
static void test_keepers(void **state)
{
    (void)state;
    static const struct {
        const char *stray, *home, *keeper;
        bool keeps;
    } cases[] = {
        {"/s/evenkeeld.service/evenkeel-a-1.0", "/s/evenkeeld.service", "/s/evenkeeld.service",
         true},
        {"/s/evenkeeld.service/evenkeel-a-1.0", "/s/evenkeeld.service",
         "/s/evenkeeld.service/evenkeeld", true},
        {"/s/evenkeeld.service/evenkeel-a-1.0", "/s/evenkeeld.service", "/t/evenkeeld.service",
         false},
        {"/s/evenkeeld.service/evenkeel-a-1.0", "/s/evenkeeld.service",
         "/s/evenkeeld.service/evenkeel-b-1.0", false},
        {"/s/evenkeeld.service/evenkeel-a-1.0", "/s/evenkeeld.service", "/s/other.service", false},
        {"/s/evenkeeld.service/evenkeel-a-1.0", "/s/evenkeeld.service",
         "/s/evenkeeld.service/helper", false},
        {"/s/evenkeel-server@a.service", "", "/s/evenkeeld.service", true},
        {"/s/evenkeel-server@a.service", "", "/user/evenkeeld.service/evenkeeld", true},
        {"/s/evenkeel-server@a.service", "", "/s/evenkeel-server@b.service", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char home[100];
        stray_home(cases[i].stray, home, sizeof(home));
        assert_string_equal(home, cases[i].home);
        if (stray_is_keeper(cases[i].keeper, home) != cases[i].keeps)
            fail_msg("case %zu", i);
    }
}

/* This process is in nobody's such cgroup, so a scan never names it. */
static void test_scan(void **state)
{
    (void)state;
    static struct stray strays[STRAYS_MOST];
    uint32_t count = stray_scan(NULL, 0, strays);
    for (uint32_t i = 0; i < count; i++) {
        assert_true(strays[i].pid > 1 && strays[i].pid != getpid());
        assert_true(stray_cgroup(strays[i].cgroup));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_cgroups), cmocka_unit_test(test_owner),
                                       cmocka_unit_test(test_keepers), cmocka_unit_test(test_scan)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
