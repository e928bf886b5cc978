/* Heads of requests: what could be read in two ways, or is too large, is refused. The whole set of
 * bytes is in tests/e2e/smuggling.py. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/api/error.h"
#include "server/net/bounds.h"
#include "server/net/head.h"

#define FIELDS_MOST 8

struct head_field {
    const char *name, *value;
};

static int check(const char *method, const char *target, const char *version,
                 const struct head_field *fields, struct head *h, struct api_error *err)
{
    *h = (struct head){.method = method, .version = version};
    head_target(h, target);
    for (size_t i = 0; i < FIELDS_MOST && fields[i].name; i++)
        head_field(h, fields[i].name, strlen(fields[i].name), fields[i].value,
                   strlen(fields[i].value));
    return head_check(h, err);
}

static void test_fields(void **state)
{
    static const struct {
        struct head_field field[FIELDS_MOST];
        int status; /* 0 = good */
    } cases[] = {
        {{{"Host", "x"}}, 0},
        {{{"host", "x"}, {"a", "b"}, {"a", "c"}}, 0},
        {{{"Host", "x"}, {"Content-Length", "12"}}, 0},
        {{{"Host", "x"}, {"Transfer-Encoding", "Chunked"}}, 0},
        {{{"Host", "x"}, {"Expect", "100-Continue"}}, 0},
        {{{"Host", "[::1]:80"}}, 0},
        {{{"Host", "[::ffff:1.2.3.4]"}}, 0},
        {{{"Host", ""}}, 0},
        {{{"a", "b"}}, 400},
        {{{"Host", "x"}, {"Host", "x"}}, 400},
        {{{"Host", "x y"}}, 400},
        {{{"Host", "x/y"}}, 400},
        {{{"Host", "x:"}}, 400},
        {{{"Host", ":1"}}, 400},
        {{{"Host", "[::1"}}, 400},
        {{{"Host", "[]"}}, 400},
        {{{"Host", "x"}, {"", "b"}}, 400},
        {{{"Host", "x"}, {"a b", "c"}}, 400},
        {{{"Host", "x"}, {"a", "b\x01"}}, 400},
        {{{"Host", "x"}, {"Content-Length", "1"}, {"content-length", "1"}}, 400},
        {{{"Host", "x"}, {"Content-Length", ""}}, 400},
        {{{"Host", "x"}, {"Content-Length", "+1"}}, 400},
        {{{"Host", "x"}, {"Content-Length", "1234567890123456789"}}, 400},
        {{{"Host", "x"}, {"Content-Length", "1"}, {"Transfer-Encoding", "chunked"}}, 400},
        {{{"Host", "x"}, {"Transfer-Encoding", "gzip, chunked"}}, 400},
        {{{"Host", "x"}, {"Content-Encoding", "GZip"}}, 0},
        {{{"Host", "x"}, {"Content-Encoding", "identity"}}, 0},
        {{{"Host", "x"}, {"Content-Encoding", "br"}}, 415},
        {{{"Host", "x"}, {"Content-Encoding", "gzip, gzip"}}, 415},
        {{{"Host", "x"}, {"Expect", "more"}}, 417},
    };
    struct head h;
    struct api_error err;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int r = check("GET", "/v1/models", "HTTP/1.1", cases[i].field, &h, &err);
        if (r != (cases[i].status ? -EBADMSG : 0) || (r < 0 && err.status != cases[i].status))
            fail_msg("case %zu: %d", i, r < 0 ? err.status : 0);
    }
    static const struct head_field length[FIELDS_MOST] = {{"Host", "x"},
                                                          {"Content-Length", "0120"}};
    assert_int_equal(check("POST", "/", "HTTP/1.1", length, &h, &err), 0);
    assert_int_equal(h.body_bytes, 120);
}

static void test_lines(void **state)
{
    static const struct {
        const char *method, *target, *version;
        int status;
    } cases[] = {
        {"GET", "/", "HTTP/1.1", 0},
        {"OPTIONS", "/a%20b?c=d&e", "HTTP/1.0", 0},
        {"GET", "/", "HTTP/2.0", 505},
        {"GET", "/", "HTTP/1.1 ", 505},
        {"G T", "/", "HTTP/1.1", 400},
        {"", "/", "HTTP/1.1", 400},
        {"ABCDEFGHIJKLMNOP", "/", "HTTP/1.1", 400},
        {"GET", "", "HTTP/1.1", 400},
        {"GET", "*", "HTTP/1.1", 400},
        {"GET", "http://x/", "HTTP/1.1", 0},
        {"GET", "HTTPS://y:80/a?b", "HTTP/1.1", 0},
        {"GET", "http://[::1]:80/", "HTTP/1.1", 0},
        {"GET", "http://x", "HTTP/1.1", 0},
        {"GET", "http:///a", "HTTP/1.1", 400},
        {"GET", "http://x?a", "HTTP/1.1", 400},
        {"GET", "http://me@x/", "HTTP/1.1", 400},
        {"GET", "ftp://x/", "HTTP/1.1", 400},
        {"GET", "/a b", "HTTP/1.1", 400},
        {"GET", "/a#b", "HTTP/1.1", 400},
        {"GET", "/a\\b", "HTTP/1.1", 400},
        {"GET", "/\xc3\xa9", "HTTP/1.1", 400},
        {"GET", "/\x7f", "HTTP/1.1", 400},
    };
    static const struct head_field host[FIELDS_MOST] = {{"Host", "x"}};
    struct head h;
    struct api_error err;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        int r = check(cases[i].method, cases[i].target, cases[i].version, host, &h, &err);
        if (r != (cases[i].status ? -EBADMSG : 0) || (r < 0 && err.status != cases[i].status))
            fail_msg("case %zu: %d", i, r < 0 ? err.status : 0);
    }
    /* the authority of a whole URL is the host, whatever Host says */
    assert_int_equal(check("GET", "http://y:81/v1/models", "HTTP/1.1", host, &h, &err), 0);
    assert_string_equal(h.host, "y:81");
    assert_string_equal(head_path("http://y:81/v1/models"), "/v1/models");
    assert_string_equal(head_path("http://y"), "/");
    assert_string_equal(head_path("/a"), "/a");
    static const struct head_field none[FIELDS_MOST] = {{NULL, NULL}};
    assert_int_equal(check("GET", "/", "HTTP/1.0", none, &h, &err), 0); /* Host came with 1.1 */
}

static void test_sizes(void **state)
{
    static char large[BOUND_HEADER_BYTES + 1];
    struct head h = {.method = "GET", .version = "HTTP/1.0"};
    struct api_error err;
    (void)state;
    memset(large, 'a', sizeof(large) - 1);
    large[0] = '/';
    large[BOUND_URI_BYTES] = '\0';
    head_target(&h, large);
    assert_int_equal(head_check(&h, &err), 0);
    large[BOUND_URI_BYTES] = 'a';
    head_target(&h, large);
    assert_int_equal(head_check(&h, &err), -EBADMSG);
    assert_int_equal(err.status, 414);
    h = (struct head){.method = "GET", .version = "HTTP/1.0"};
    head_target(&h, "/");
    for (uint32_t i = 0; i < BOUND_HEADERS; i++)
        head_field(&h, "a", 1, "b", 1);
    assert_int_equal(head_check(&h, &err), 0);
    head_field(&h, "a", 1, "b", 1);
    assert_int_equal(head_check(&h, &err), -EBADMSG);
    assert_int_equal(err.status, 431);
    h = (struct head){.method = "GET", .version = "HTTP/1.0"};
    head_target(&h, "/");
    head_field(&h, "a", 1, large, BOUND_HEADER_BYTES - 5);
    assert_int_equal(head_check(&h, &err), 0);
    head_field(&h, "a", 1, "b", 1);
    assert_int_equal(head_check(&h, &err), -EBADMSG);
    assert_int_equal(err.status, 431);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fields),
        cmocka_unit_test(test_lines),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
