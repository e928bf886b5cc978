/* As whom evenkeeld is seen at the control socket of a server that has another user. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/fdpass.h"
#include "server/controller.h"

static void test_seen(void **state)
{
    /* of the machine, of a unit with PrivateUsers=yes (read there), of a container */
    static const char whole[] = "         0          0 4294967295\n";
    static const char private[] = "         0          0          1\n"
                                  "     62350      62350          1\n";
    static const char container[] = "         0     100000      65536\n";
    (void)state;
    assert_int_equal(controller_seen(995, whole, 65534), 995);
    assert_int_equal(controller_seen(0, private, 65534), 0);
    assert_int_equal(controller_seen(62350, private, 65534), 62350);
    assert_int_equal(controller_seen(62351, private, 65534), 65534);
    assert_int_equal(controller_seen(995, private, 65533), 65533);
    assert_int_equal(controller_seen(100995, container, 65534), 995);
    assert_int_equal(controller_seen(995, "", 65534), 65534);
}

static void test_environment(void **state)
{
    static const char *const none[] = {"", "x", "12x", "-1", "4294967295", "99999999999999999999"};
    (void)state;
    assert_int_equal(unsetenv(EK_CONTROL_UID), 0);
    assert_int_equal(controller_uid(), (uid_t)-1);
    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        assert_int_equal(setenv(EK_CONTROL_UID, none[i], 1), 0);
        assert_int_equal(controller_uid(), (uid_t)-1);
    }
    char own[16];
    (void)snprintf(own, sizeof(own), "%u", (unsigned)geteuid());
    assert_int_equal(setenv(EK_CONTROL_UID, own, 1), 0);
    assert_int_equal(controller_uid(), (uid_t)-1); /* it may anyway: nothing is opened further */
    assert_int_equal(setenv(EK_CONTROL_UID, "12345", 1), 0);
    assert_int_not_equal(controller_uid(), (uid_t)-1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_seen),
        cmocka_unit_test(test_environment),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
