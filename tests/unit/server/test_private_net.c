/*
 * Which addresses are of private networks, at the edges of each, and which interfaces are in a list
 * as MPI takes it.
 */
#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>

#include <cmocka.h>

#include "server/private_net.h"

static struct sockaddr_storage of(const char *text)
{
    struct sockaddr_storage s = {.ss_family = AF_INET};
    struct sockaddr_in four = {.sin_family = AF_INET};
    struct sockaddr_in6 six = {.sin6_family = AF_INET6};

    if (strchr(text, ':')) {
        assert_int_equal(inet_pton(AF_INET6, text, &six.sin6_addr), 1);
        memcpy(&s, &six, sizeof(six));
    } else {
        assert_int_equal(inet_pton(AF_INET, text, &four.sin_addr), 1);
        memcpy(&s, &four, sizeof(four));
    }
    return s;
}

/* RFC 1918, 3927, 6598, 4193, 4291. */
static void test_addresses(void **state)
{
    static const struct {
        const char *text;
        bool private;
    } cases[] = {
        {"10.0.0.0", true},
        {"10.255.255.255", true},
        {"9.255.255.255", false},
        {"11.0.0.0", false},
        {"172.16.0.1", true},
        {"172.31.255.255", true},
        {"172.15.255.255", false},
        {"172.32.0.0", false},
        {"192.168.7.7", true},
        {"192.167.255.255", false},
        {"192.169.0.0", false},
        {"127.0.0.1", true},
        {"169.254.1.1", true},
        {"100.64.0.1", true},
        {"100.127.255.255", true},
        {"100.128.0.0", false},
        {"203.0.113.5", false},
        {"8.8.8.8", false},
        {"::1", true},
        {"fe80::1", true},
        {"fd00::2", true},
        {"fc00::", true},
        {"2001:db8::1", false},
        {"fe00::1", false},
    };
    (void)state;

    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct sockaddr_storage s = of(cases[i].text);
        if (private_net_has((const struct sockaddr *)&s) != cases[i].private)
            fail_msg("%s", cases[i].text);
    }
}

static void test_lists(void **state)
{
    const struct sockaddr_storage s = of("203.0.113.5"), six = of("2001:db8::1");
    const struct sockaddr *a = (const struct sockaddr *)&s;
    (void)state;

    assert_true(private_net_listed("eth0", "eth0", a));
    assert_true(private_net_listed("lo,eth0", "eth0", a));
    assert_false(private_net_listed("lo,eth01,", "eth0", a));
    assert_false(private_net_listed("", "eth0", a));
    assert_true(private_net_listed("10.9.0.0/24,203.0.113.0/24", "eth0", a));
    assert_false(private_net_listed("203.0.113.64/26", "eth0", a));
    assert_true(private_net_listed("0.0.0.0/0", "eth0", a));
    assert_false(private_net_listed("203.0.113.0/33,garbage/8", "eth0", a));
    assert_false(private_net_listed("0.0.0.0/0", "eth0", (const struct sockaddr *)&six));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_addresses),
        cmocka_unit_test(test_lists),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
