/* A descriptor goes over a socket pair and still works; listening sockets by name. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/fdpass.h"

static void passes(void **state)
{
    (void)state;
    int s[2], p[2], got;
    char text[64];
    assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, s), 0);
    assert_int_equal(pipe(p), 0);
    assert_int_equal(ek_fd_send(s[0], "EVENKEEL-FD put listen\n", p[1]), 0);
    assert_int_equal(ek_fd_recv(s[1], text, sizeof(text), &got), 23);
    assert_string_equal(text, "EVENKEEL-FD put listen\n");
    assert_true(got >= 0);
    assert_int_equal(write(got, "x", 1), 1);
    assert_int_equal(read(p[0], text, sizeof(text)), 1);
    assert_int_equal(ek_fd_send(s[1], "OK\n", -1), 0);
    assert_int_equal(ek_fd_recv(s[0], text, sizeof(text), &got), 3);
    assert_int_equal(got, -1);
    for (int i = 0; i < 2; i++) {
        (void)close(s[i]);
        (void)close(p[i]);
    }
}

static void listens(void **state)
{
    (void)state;
    unsigned port = 0;
    int fd = ek_listen_tcp("127.0.0.1", 0, 16, &port);
    assert_true(fd >= 0);
    assert_true(port > 0);
    assert_int_equal(ek_listen_tcp("127.0.0.1", port, 16, NULL), -EADDRINUSE);
    assert_int_equal(ek_listen_tcp("127.0.0.1", 70000, 16, NULL), -EINVAL);
    (void)close(fd);

    char path[64];
    struct stat st;
    (void)snprintf(path, sizeof(path), "/tmp/ek-fdpass-%d.sock", (int)getpid());
    fd = ek_listen_unix(path, 0600, 4);
    assert_true(fd >= 0);
    assert_int_equal(stat(path, &st), 0);
    assert_int_equal(st.st_mode & 0777, 0600);
    assert_int_equal(ek_listen_unix(path, 0600, 4), -EADDRINUSE);
    (void)close(fd); /* stale now: a new listener takes its place */
    fd = ek_listen_unix(path, 0600, 4);
    assert_true(fd >= 0);
    (void)close(fd);
    (void)unlink(path);
    char longest[200];
    memset(longest, 'a', sizeof(longest) - 1);
    longest[199] = '\0';
    assert_int_equal(ek_connect_unix(longest, 10), -ENAMETOOLONG);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(passes), cmocka_unit_test(listens)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
