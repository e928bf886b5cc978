/* Which users a server may be given, and what is said of those that it may not. */
#include <errno.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "supervisor/config/options_user.h"
#include "supervisor/io/run_as.h"

static void decides(void **state)
{
    static const struct {
        struct user_case c;
        const char *says; /* NULL = it may */
    } cases[] = {
        {{.user = "a", .able = true, .uid = 7}, NULL},
        {{.user = "a", .uid = 7, .own = 8}, "only an evenkeeld that runs as root"},
        {{.user = "a", .uid = 8, .own = 8}, NULL},
        {{.user = "a", .able = true, .found = -ENOENT}, "there is no user 'a' here"},
        {{.user = "a", .able = true, .found = -E2BIG}, "cannot be looked up"},
        {{.user = "a", .able = true, .found = -ETIMEDOUT}, "no answer for 3 s"},
        {{.user = "root", .able = true}, "name another user"},
        {{.user = "root", .systemd = true, .able = true}, "name another user"},
        {{.user = "a", .attach = true, .able = true, .uid = 7}, "leave out user"},
        {{.user = "dynamic", .able = true}, "set launcher: systemd"},
        {{.user = "dynamic", .systemd = true, .able = true, .control = true}, NULL},
        {{.user = "dynamic", .systemd = true, .own = 8}, NULL},
        {{.user = "dynamic", .systemd = true, .own = 8, .control = true}, NULL},
        {{.user = "a", .systemd = true, .uid = 7, .own = 8}, NULL},
        {{.user = "a", .systemd = true, .uid = 7, .own = 8, .control = true},
         "run evenkeeld as root"},
        {{.user = "a", .systemd = true, .found = -ENOENT, .own = 8}, "useradd --system"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char why[300] = "";
        bool refused = user_refused(&cases[i].c, why, sizeof(why));
        if (refused != (cases[i].says != NULL) || (refused && !strstr(why, cases[i].says)))
            fail_msg("case %zu: %d '%s'", i, refused, why);
    }
}

static void finds(void **state)
{
    struct run_as u = {0};
    (void)state;
    assert_int_equal(run_as_find("no-such-user-here", &u), -ENOENT);
    assert_false(u.set);
    assert_int_equal(run_as_find("root", &u), 0);
    assert_true(u.set && u.uid == 0 && u.groups > 0 && strcmp(u.name, "root") == 0);
    if (geteuid() != 0)
        assert_false(run_as_able());
}

/* What a database of users does whose machine is away, whose module crashes, and that is there. */
static int never(const char *name, struct run_as *ret_user)
{
    (void)name;
    (void)ret_user;
    return pause();
}

static int crashes(const char *name, struct run_as *ret_user)
{
    (void)name;
    (void)ret_user;
    return raise(SIGKILL);
}

static int answers(const char *name, struct run_as *ret_user)
{
    ret_user->set = true;
    ret_user->groups = RUN_AS_GROUPS;
    (void)snprintf(ret_user->name, sizeof(ret_user->name), "%s", name);
    return 0;
}

static void is_bounded(void **state)
{
    struct run_as u = {0};
    (void)state;
    assert_int_equal(run_as_ask(never, "a", 50, &u), -ETIMEDOUT);
    assert_int_equal(run_as_ask(crashes, "a", 10000, &u), -EIO);
    assert_false(u.set);
    assert_int_equal(run_as_ask(answers, "a", 10000, &u), 0);
    assert_true(u.set && u.groups == RUN_AS_GROUPS && strcmp(u.name, "a") == 0);
    while (waitpid(-1, NULL, 0) > 0) /* one that a busy machine has not ended yet was killed */
        ;
    assert_int_equal(errno, ECHILD);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(decides), cmocka_unit_test(finds),
                                       cmocka_unit_test(is_bounded)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
