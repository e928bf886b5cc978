/* Losses over a socket: what is told, which answers count, and that nobody waits for a dead peer.
 */
#include "server/net/losses.h"

#include <errno.h>
#include <jansson.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"

static const struct engine_loss one = {
    .number = 3,
    .exit_code = 76,
    .end = {.ended = true, .signal = 9, .why = "its process ended with \"signal\" 9"},
    .running = 5,
    .steps = 812,
    .served_us = 61204000,
    .tokens = 2048,
    .seqs = 16,
};

static void test_told(void **state)
{
    (void)state;
    struct ek_buf out = {0};
    losses_write(&one, &out);
    assert_true(ek_buf_ok(&out));
    json_t *j = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    assert_int_equal(json_integer_value(json_object_get(j, "loss")), 3);
    assert_int_equal(json_integer_value(json_object_get(j, "signal")), 9);
    assert_string_equal(json_string_value(json_object_get(j, "why")), one.end.why);
    assert_int_equal(json_integer_value(json_object_get(j, "max_num_batched_tokens")), 2048);
    json_decref(j);
    ek_buf_done(&out);
}

static void test_answers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        int want;
        uint32_t tokens, seqs;
        bool swap;
    } cases[] = {
        {"{\"loss\":3,\"class\":\"SIGNAL\"}", 0, 0, 0, false},
        {"{\"loss\":3,\"class\":\"A\",\"max_num_batched_tokens\":7,\"max_num_running_seqs\":2}", 0,
         7, 2, false},
        {"{\"loss\":3,\"class\":\"HOST_OOM\",\"swap_bytes\":0}", 0, 0, 0, true},
        {"{\"loss\":3,\"class\":\"A\",\"later\":{\"x\":[1]}}", 0, 0, 0, false},
        {"{\"loss\":2,\"class\":\"A\"}", -EAGAIN, 0, 0, false},
        {"{\"loss\":3}", -EBADMSG, 0, 0, false},
        {"{\"class\":\"A\"}", -EBADMSG, 0, 0, false},
        {"{\"loss\":3,\"class\":\"A\",\"max_num_batched_tokens\":-1}", -EBADMSG, 0, 0, false},
        {"{\"loss\":3,\"class\":\"A\",\"max_num_batched_tokens\":4294967296}", -EBADMSG, 0, 0,
         false},
        {"{\"loss\":3,\"class\":\"A\",\"max_num_running_seqs\":1.5}", -EBADMSG, 0, 0, false},
        {"{\"loss\":3,\"class\":\"A\",\"swap_bytes\":\"1\"}", -EBADMSG, 0, 0, false},
        {"{\"loss\":3,\"loss\":3,\"class\":\"A\"}", -EBADMSG, 0, 0, false},
        {"[3]", -EBADMSG, 0, 0, false},
        {"", -EBADMSG, 0, 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_verdict v = {.tokens = 99};
        assert_int_equal(losses_read(cases[i].text, strlen(cases[i].text), 3, &v), cases[i].want);
        assert_int_equal(v.tokens, cases[i].want == 0 ? cases[i].tokens : 99);
        assert_int_equal(v.seqs, cases[i].seqs);
        assert_int_equal(v.set_swap, cases[i].swap);
    }
}

static void say(int fd, const char *text)
{
    assert_int_equal(send(fd, text, strlen(text), 0), strlen(text));
}

static void test_the_newest_is_asked(void **state)
{
    (void)state;
    struct losses l;
    struct engine_verdict v;
    int a[2], b[2], c[2], stream[2];
    char text[4096];
    assert_int_equal(losses_init(&l), 0);
    assert_false(losses_tell(&l, &one)); /* nobody is there */
    assert_int_equal(losses_wait(&l, 3, 0, &v), -ENOTCONN);
    assert_non_null(losses_put(&l, -1));
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, stream), 0);
    assert_non_null(losses_put(&l, stream[1]));
    (void)close(stream[0]);

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, a), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, b), 0);
    assert_null(losses_put(&l, a[1]));
    assert_null(losses_put(&l, b[1]));
    assert_int_equal(recv(a[0], text, sizeof(text), 0), 0); /* closed, never asked */
    assert_true(losses_tell(&l, &one));
    assert_true(recv(b[0], text, sizeof(text), 0) > 0);
    assert_int_equal(losses_wait(&l, 3, 0, &v), 0);
    say(b[0], "{\"loss\":2,\"class\":\"A\"}"); /* late */
    say(b[0], "{\"loss\":3,\"class\":\"B\"}");
    assert_int_equal(losses_wait(&l, 3, 0, &v), 1); /* who looks once only has it, too */
    assert_string_equal(v.cls, "B");
    say(b[0], "{\"loss\":2,\"class\":\"A\"}");
    assert_int_equal(losses_wait(&l, 3, 0, &v), 0);
    say(b[0], "no answer");
    assert_int_equal(losses_wait(&l, 3, 0, &v), -EBADMSG);

    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, c), 0);
    assert_null(losses_put(&l, c[1])); /* used from the next loss on */
    (void)close(b[0]);
    assert_int_equal(losses_wait(&l, 3, 1000000, &v), -ENOTCONN); /* at once */
    assert_true(losses_tell(&l, &one));
    (void)close(c[0]);
    assert_false(losses_tell(&l, &one)); /* it left */
    (void)close(a[0]);
    losses_done(&l);
}

/* One that does not read any more: the engine's thread does not wait for it. */
static void test_a_full_socket(void **state)
{
    (void)state;
    struct losses l;
    int a[2];
    assert_int_equal(losses_init(&l), 0);
    assert_int_equal(socketpair(AF_UNIX, SOCK_SEQPACKET, 0, a), 0);
    assert_null(losses_put(&l, a[1]));
    uint32_t told = 0;
    while (told < 100000 && losses_tell(&l, &one))
        told++;
    assert_true(told > 0 && told < 100000);
    (void)close(a[0]);
    losses_done(&l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_told),
        cmocka_unit_test(test_answers),
        cmocka_unit_test(test_the_newest_is_asked),
        cmocka_unit_test(test_a_full_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
