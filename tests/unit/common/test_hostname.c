/* Fields Host and Origin: names in a list, and what only this machine can be called. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "common/hostname.h"

static void test_hosts(void **state)
{
    static const char *const list[] = {"api.example.org", "*.inside.net", "[::1]", "10.0.0.1"};
    static const char *const any[] = {"*"};
    static const struct {
        const char *host;
        bool in;
    } cases[] = {
        {"api.example.org", true},
        {"API.Example.Org:8000", true},
        {"api.example.org.evil", false},
        {"xapi.example.org", false},
        {"a.inside.net", true},
        {"a.b.inside.net:1", true},
        {"inside.net", false},
        {".inside.net", false},
        {"ainside.net", false},
        {"[::1]:80", true},
        {"[::2]", false},
        {"10.0.0.1:80", true},
        {"10.0.0.10", false},
        {"", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (ek_host_listed(cases[i].host, list, 4) != cases[i].in)
            fail_msg("%s", cases[i].host);
        assert_true(ek_host_listed(cases[i].host, any, 1));
        assert_false(ek_host_listed(cases[i].host, NULL, 0));
    }
}

static void test_literals(void **state)
{
    static const struct {
        const char *host;
        bool literal;
    } cases[] = {
        {"localhost", true},
        {"LocalHost:8000", true},
        {"app.localhost:80", true},
        {"127.0.0.1", true},
        {"127.0.0.1:8000", true},
        {"192.168.1.4:1", true},
        {"[::1]", true},
        {"[::1]:8000", true},
        {"[fe80::1]:1", true},
        {"evil.org", false},
        {"localhost.evil.org", false},
        {"evillocalhost", false},
        {"127.0.0.1.nip.io", false},
        {"127.1", false},
        {"0x7f.1", false},
        {"[::1", false},
        {"[evil.org]", false},
        {"::1", false},
        {"", false},
        {":80", false},
        {"[]", false},
        {"127.0.0.1@evil.org", false},
        {"1111111111111111111111111111111111111111111111111111", false},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char origin[128] = "http://";
        if (ek_host_is_literal(cases[i].host) != cases[i].literal)
            fail_msg("%s", cases[i].host);
        (void)strncat(origin, cases[i].host, sizeof(origin) - 8);
        if (ek_origin_is_literal(origin) != cases[i].literal)
            fail_msg("%s", origin);
    }
    assert_false(ek_origin_is_literal("null"));
    assert_false(ek_origin_is_literal("file://"));
    assert_false(ek_origin_is_literal("localhost"));
}

static void test_addresses(void **state)
{
    static const struct {
        const char *text;
        bool v6, loopback;
    } cases[] = {{"127.0.0.1", false, true},
                 {"127.9.9.9", false, true},
                 {"0.0.0.0", false, false},
                 {"10.0.0.1", false, false},
                 {"::1", true, true},
                 {"::", true, false},
                 {"::ffff:127.0.0.1", true, true},
                 {"::ffff:10.0.0.1", true, false}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct sockaddr_storage a = {0};
        struct sockaddr_in v4 = {.sin_family = AF_INET};
        struct sockaddr_in6 v6 = {.sin6_family = AF_INET6};
        if (cases[i].v6) {
            assert_int_equal(inet_pton(AF_INET6, cases[i].text, &v6.sin6_addr), 1);
            memcpy(&a, &v6, sizeof(v6));
        } else {
            assert_int_equal(inet_pton(AF_INET, cases[i].text, &v4.sin_addr), 1);
            memcpy(&a, &v4, sizeof(v4));
        }
        if (ek_address_is_loopback(&a) != cases[i].loopback)
            fail_msg("%s", cases[i].text);
    }
    struct sockaddr_storage none = {.ss_family = AF_UNIX};
    assert_false(ek_address_is_loopback(&none));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_hosts),
        cmocka_unit_test(test_literals),
        cmocka_unit_test(test_addresses),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
