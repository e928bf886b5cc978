/* When a client that takes nothing is told from one that reads slowly, and what sockets say. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "server/net/unread.h"

#define MOST_US 7000

/* One connection, looked at again and again. */
static const struct {
    uint64_t at_us;
    struct unread_now now;
    bool stalls;
} looks[] = {
    {1000, {.taken = 5, .waits = true}, false},
    {8000, {.taken = 5, .waits = true}, false}, /* not longer than that */
    {8001, {.taken = 5, .waits = true}, true},
    {8002, {.taken = 6, .waits = true}, false}, /* a byte is enough */
    {15002, {.taken = 6, .waits = true}, false},
    {15003, {.taken = 6, .waits = false}, false}, /* all is taken: nothing to wait for */
    {30000, {.taken = 6, .waits = true}, false},  /* more was sent just now */
    {37000, {.taken = 6, .waits = true}, false},
    {37001, {.taken = 6, .waits = true}, true},
};

static void test_stalls(void **state)
{
    struct unread u = {0};
    (void)state;
    for (size_t i = 0; i < sizeof(looks) / sizeof(looks[0]); i++)
        assert_int_equal(unread_stalls(&u, &looks[i].now, looks[i].at_us, MOST_US),
                         looks[i].stalls);
}

/* What waits in it says nothing of what is taken where more is sent at once. */
static void test_unix_socket(void **state)
{
    char piece[1000] = "";
    int fd[2];
    (void)state;
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, fd), 0);
    assert_int_equal(write(fd[0], piece, sizeof(piece)), sizeof(piece));
    assert_false(unread_look(fd[0]).waits);
    (void)close(fd[0]);
    (void)close(fd[1]);
}

static void test_no_socket(void **state)
{
    (void)state;
    assert_false(unread_look(-1).waits);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_stalls),
                                       cmocka_unit_test(test_unix_socket),
                                       cmocka_unit_test(test_no_socket)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
