/* The cards that evenkeelds show each other, and who of two goes first. */
#include "supervisor/io/peers.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"

static void test_order(void **state)
{
    (void)state;
    static const struct {
        struct peers_card a, b;
        bool a_first, b_first;
    } cases[] = {
        {{.id = 1, .ticket = 1}, {.id = 2, .ticket = 0}, true, false},
        {{.id = 1, .ticket = 1}, {.id = 2, .ticket = 0, .choosing = true}, false, false},
        {{.id = 1, .ticket = 1}, {.id = 2, .ticket = 2}, true, false},
        {{.id = 9, .ticket = 2}, {.id = 2, .ticket = 3}, true, false},
        {{.id = 1, .ticket = 2}, {.id = 2, .ticket = 2}, true, false},
        {{.id = 7, .ticket = 5}, {.id = 7, .ticket = 5}, false, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(peers_is_before(&cases[i].a, &cases[i].b), cases[i].a_first);
        if (cases[i].b.ticket > 0)
            assert_int_equal(peers_is_before(&cases[i].b, &cases[i].a), cases[i].b_first);
    }
}

static void test_card(void **state)
{
    (void)state;
    struct ek_buf out = {0};
    struct peers_card c = {.id = 9007199254740993ull, .ticket = 7, .ready = true, .usage = 0.25}, d;
    assert_int_equal(peers_card_json(&c, &out), 0);
    assert_int_equal(peers_card_parse(out.data, out.len, &d), 0);
    assert_true(d.id == c.id && d.ticket == 7 && d.ready && !d.choosing && d.usage == 0.25);
    for (size_t len = 0; len < out.len; len++) /* half an answer is none */
        assert_int_equal(peers_card_parse(out.data, len, &d), -EBADMSG);
    ek_buf_done(&out);
    static const char *const bad[] = {
        "[]",
        "{}",
        "{\"id\":1,\"choosing\":false,\"ticket\":-1,\"ready\":true,\"usage\":0}",
        "{\"id\":1,\"choosing\":false,\"ticket\":9000000000000000000,\"ready\":true,\"usage\":0}",
        "{\"id\":1,\"choosing\":0,\"ticket\":1,\"ready\":true,\"usage\":0}",
        "{\"id\":1,\"choosing\":false,\"ticket\":1,\"ready\":true,\"usage\":1.5}",
        "{\"id\":\"1\",\"choosing\":false,\"ticket\":1,\"ready\":true,\"usage\":0}",
        "{\"id\":1,\"id\":1,\"choosing\":false,\"ticket\":1,\"ready\":true,\"usage\":0}",
        "<html>404</html>"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++)
        assert_int_equal(peers_card_parse(bad[i], strlen(bad[i]), &d), -EBADMSG);
    assert_true(d.id == c.id); /* as it was */
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_order), cmocka_unit_test(test_card)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
