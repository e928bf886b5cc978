/* HAProxy's agent-check: each connection gets its line, and while descriptors are short the loop
 * has nothing to do. */
#include <arpa/inet.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/fdpass.h"
#include "supervisor/io/edge.h"

static void say(void *ctx, char *line, size_t size)
{
    (void)snprintf(line, size, "%s\n", (const char *)ctx);
}

static unsigned free_port(void)
{
    unsigned port = 0;
    int fd = ek_listen_tcp("127.0.0.1", 0, 1, &port);
    assert_true(fd >= 0 && port > 0);
    close(fd);
    return port;
}

static int dial(unsigned port)
{
    struct sockaddr_in to = {.sin_family = AF_INET,
                             .sin_port = htons((uint16_t)port),
                             .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_true(fd >= 0);
    assert_int_equal(connect(fd, (struct sockaddr *)&to, sizeof(to)), 0);
    return fd;
}

/* Runs the loop until the client has its line. */
static void check_answer(sd_event *event, int fd, const char *line)
{
    char got[64] = "";
    ssize_t n = -1;
    for (int i = 0; i < 100 && n < 0; i++) {
        assert_true(sd_event_run(event, 100000) >= 0);
        n = recv(fd, got, sizeof(got) - 1, MSG_DONTWAIT);
    }
    assert_int_equal(n, strlen(line));
    assert_string_equal(got, line);
}

static void test_edge(void **state)
{
    (void)state;
    struct edge *e = NULL;
    sd_event *event = NULL;
    char word[] = "up";
    unsigned port = free_port();
    assert_int_equal(sd_event_new(&event), 0);
    assert_int_equal(edge_new(event, "127.0.0.1", port, say, word, &e), 0);
    int client = dial(port);
    check_answer(event, client, "up\n");
    close(client);
    edge_free(e);
    edge_free(NULL);
    sd_event_unref(event);
}

static void test_without_descriptors(void **state)
{
    (void)state;
    struct edge *e = NULL;
    sd_event *event = NULL;
    struct rlimit had, few;
    char word[] = "up";
    int turns = 0;
    unsigned port = free_port();
    assert_int_equal(sd_event_new(&event), 0);
    assert_int_equal(edge_new(event, "127.0.0.1", port, say, word, &e), 0);
    int client = dial(port), next = fcntl(client, F_DUPFD_CLOEXEC, 0);
    assert_true(next >= 0);
    close(next); /* the lowest that is free: what the limit must not let through */
    assert_int_equal(getrlimit(RLIMIT_NOFILE, &had), 0);
    few = had;
    few.rlim_cur = (rlim_t)next;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &few), 0);
    while (turns < 100 && sd_event_run(event, 0) > 0)
        turns++;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &had), 0);
    assert_true(turns >= 1 && turns < 100);
    check_answer(event, client, "up\n");
    close(client);
    client = dial(port);
    check_answer(event, client, "up\n");
    close(client);
    edge_free(e);
    sd_event_unref(event);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_edge),
                                       cmocka_unit_test(test_without_descriptors)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
