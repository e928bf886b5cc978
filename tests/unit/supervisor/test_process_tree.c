/* Which processes belong to a server: of tables, and of processes that were started for it; what
 * they have of their own; who listens at a port and at a Unix socket. */
#include "supervisor/io/process_tree.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cmocka.h>

#include "supervisor/io/child.h"
#include "supervisor/io/figures.h"
#include "supervisor/io/port_owner.h"
#include "tests/unit/alloc.h"

#define MIB 1048576.0

/* As vLLM on a machine: 100 the API server and leader of its session, its engine with a number that
 * has wrapped around, workers of it, a tracker that lives on as init's child; 200 somebody else's.
 */
static struct process_row rows[] = {
    {1, 0, 1, 'S'},       {2, 0, 0, 'S'},       {40, 100, 100, 'S'},  {41, 40, 41, 'S'},
    {100, 90, 100, 'S'},  {101, 100, 100, 'S'}, {120, 1, 100, 'S'},   {130, 1, 130, 'S'},
    {131, 130, 130, 'S'}, {200, 90, 200, 'S'},  {201, 200, 200, 'S'}, {300, 41, 41, 'S'},
    {301, 300, 301, 'S'}, {302, 201, 200, 'S'},
};
static const struct process_list table = {rows, sizeof(rows) / sizeof(rows[0])};

static void test_pick(void **state)
{
    (void)state;
    static const struct {
        pid_t root, others[8];
    } cases[] = {
        {100, {40, 41, 101, 120, 300, 301}},
        {200, {201, 302}},
        {40, {41, 300, 301}}, /* leads no session: its leader's is not its own */
        {301, {0}},
        {1, {0}},   /* all descend from it */
        {999, {0}}, /* has ended */
        {0, {0}},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct process_tree t;
        uint32_t n = 0;
        assert_int_equal(process_tree_pick(&table, cases[i].root, &t), 0);
        assert_int_equal(t.root, cases[i].root);
        for (; cases[i].others[n]; n++)
            assert_true(process_tree_has(&t, cases[i].others[n]));
        assert_int_equal(t.count, n);
        assert_int_equal(process_tree_has(&t, cases[i].root), cases[i].root > 0);
        assert_false(process_tree_has(&t, 130) || process_tree_has(&t, 90));
        process_tree_done(&t);
    }
}

static void test_nothing_is_known(void **state)
{
    (void)state;
    const struct process_list none = {0};
    struct process_tree t;
    assert_int_equal(process_tree_pick(&none, 100, &t), 0);
    assert_true(process_tree_has(&t, 100) && t.count == 0);
    process_tree_done(&t);
}

static void test_out_of_memory(void **state)
{
    (void)state;
    struct process_list l;
    struct process_tree t;
    int failed = 0, r;
    do {
        alloc_fail_at(++failed);
        r = process_list_read(&l);
        alloc_fail_at(0);
        assert_true(r == 0 || (r == -ENOMEM && !l.at && !l.count));
    } while (r < 0);
    process_list_done(&l);
    failed = 0;
    do {
        alloc_fail_at(++failed);
        r = process_tree_pick(&table, 100, &t);
        alloc_fail_at(0);
        assert_true(process_tree_has(&t, 100));
        assert_int_equal(t.count, r < 0 ? 0 : 6);
        process_tree_done(&t);
    } while (r < 0);
    assert_int_equal(failed, 3);
}

/* Touches so much, says its number and waits to be ended. */
_Noreturn static void hold(size_t bytes, int say)
{
    volatile char *at = malloc(bytes);
    pid_t me = getpid();
    if (!at)
        _exit(1);
    for (size_t i = 0; i < bytes; i += 1024)
        at[i] = 1;
    if (write(say, &me, sizeof(me)) != sizeof(me))
        _exit(2);
    for (;;)
        (void)pause();
}

/* A server: leader of a session, with a child, and a grandchild whose parent has ended. */
_Noreturn static void serve(int say)
{
    (void)setsid();
    if (fork() == 0)
        hold(40u << 20, say);
    pid_t between = fork();
    if (between == 0) {
        if (fork() == 0)
            hold(20u << 20, say);
        _exit(0);
    }
    (void)waitpid(between, NULL, 0);
    hold(1u << 20, say);
}

static void test_of_processes(void **state)
{
    (void)state;
    int told[2];
    pid_t pid[3];
    assert_int_equal(pipe(told), 0);
    pid_t root = fork();
    if (root == 0)
        serve(told[1]);
    for (int i = 0; i < 3; i++)
        assert_int_equal(read(told[0], &pid[i], sizeof(pid[i])), sizeof(pid[i]));

    struct process_list l;
    struct process_tree t;
    struct memory_figures f, alone;
    struct child c;
    child_init(&c); /* as of an attached server: no child of ours, so no cgroup */
    assert_int_equal(process_list_read(&l), 0);
    assert_int_equal(process_tree_pick(&l, root, &t), 0);
    assert_int_equal(t.count, 2);
    for (int i = 0; i < 3; i++)
        assert_true(figures_owns(&c, &t, pid[i]));
    assert_false(figures_owns(&c, &t, getpid()) || figures_owns(&c, &t, getppid()));
    figures_read(&c, &t, &f);
    figures_read(&c, &(struct process_tree){.root = root}, &alone);
    assert_true(f.own > alone.own + 60 * MIB && f.own < alone.own + 120 * MIB);
    assert_true(f.resident > 0 && f.resident < 40 * MIB); /* of the main process */
    assert_true(isnan(f.cgroup));
    (void)kill(-root, SIGKILL);
    assert_int_equal(waitpid(root, NULL, 0), root);
    figures_read(&c, &t, &f);
    assert_true(isnan(f.resident) && isnan(f.own));
    process_tree_done(&t);
    process_list_done(&l);
    close(told[0]);
    close(told[1]);
}

static void test_who_listens_at_a_port(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    assert_int_equal(port_owner_pid("127.0.0.1", ntohs(at.sin_port)),
                     0); /* has it, and does not listen */
    assert_int_equal(listen(fd, 1), 0);
    pid_t child = fork(); /* has the socket, too */
    if (child == 0) {
        for (;;)
            (void)pause();
    }
    assert_int_equal(port_owner_pid("127.0.0.1", ntohs(at.sin_port)),
                     getpid() < child ? getpid() : child);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    close(fd);
    assert_int_equal(port_owner_pid("127.0.0.1", ntohs(at.sin_port)), 0);
}

/* Out of a process that is stopped: what waited in the socket, and what comes, is not refused. */
static void test_a_listening_socket_is_taken(void **state)
{
    (void)state;
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t len = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &len), 0);
    unsigned port = ntohs(at.sin_port);
    assert_int_equal(port_owner_take(getpid(), port), -ENOENT); /* it does not listen */
    assert_int_equal(listen(fd, 4), 0);
    pid_t child = fork();
    if (child == 0) {
        for (;;)
            (void)pause();
    }
    assert_int_equal(kill(child, SIGSTOP), 0);
    close(fd);
    int taken = port_owner_take(child, port);
    if (taken == -EPERM || taken == -ENOSYS) {
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
        skip(); /* a sandbox */
    }
    assert_true(taken >= 0);
    assert_int_equal(fcntl(taken, F_GETFD), FD_CLOEXEC);
    (void)kill(child, SIGKILL);
    (void)waitpid(child, NULL, 0);
    int client = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(connect(client, (struct sockaddr *)&at, sizeof(at)), 0);
    close(client);
    assert_int_equal(port_owner_take(child, port), -ESRCH);
    if (getppid() > 0)                                               /* 0: in another namespace */
        assert_int_equal(port_owner_take(getppid(), port), -ENOENT); /* it has another */
    close(taken);
}

static int listen_shared(const char *host, unsigned port, unsigned *ret_port)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } at = {.v6 = {.sin6_family = AF_INET6, .sin6_port = htons((uint16_t)port)}};
    const bool v4 = inet_pton(AF_INET6, host, &at.v6.sin6_addr) != 1;
    socklen_t len = v4 ? sizeof(at.v4) : sizeof(at.v6);
    int one = 1, fd = socket(v4 ? AF_INET : AF_INET6, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (v4) {
        at.v4 = (struct sockaddr_in){.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
        assert_int_equal(inet_pton(AF_INET, host, &at.v4.sin_addr), 1);
    }
    if (fd < 0 || setsockopt(fd, SOL_SOCKET, SO_REUSEPORT, &one, sizeof(one)) < 0 ||
        bind(fd, &at.any, len) < 0 || listen(fd, 4) < 0) {
        close(fd);
        return -1;
    }
    assert_int_equal(getsockname(fd, &at.any, &len), 0);
    *ret_port = ntohs(v4 ? at.v4.sin_port : at.v6.sin6_port);
    return fd;
}

/* A child that has none of these but one. */
static pid_t fork_with(const int sockets[3], size_t keep)
{
    int told[2];
    char byte = 0;
    assert_int_equal(pipe(told), 0);
    pid_t child = fork();
    if (child == 0) {
        for (size_t k = 0; k < 3; k++)
            if (k != keep && sockets[k] >= 0)
                close(sockets[k]);
        if (write(told[1], &byte, 1) != 1)
            _exit(1);
        for (;;)
            (void)pause();
    }
    assert_int_equal(read(told[0], &byte, 1), 1);
    close(told[0]);
    close(told[1]);
    return child;
}

/* Each process has one of several rows of the port. */
static void test_each_takes_its_own(void **state)
{
    (void)state;
    unsigned port = 0, again;
    int ours = listen_shared("127.0.0.1", 0, &port);
    int theirs = listen_shared("127.0.0.1", port, &again);
    int sixth = listen_shared("::1", port, &again); /* -1 without IPv6 */
    const int sockets[] = {ours, theirs, sixth};
    assert_true(ours >= 0 && theirs >= 0);
    for (size_t i = 0; i < 3 && sockets[i] >= 0; i++) {
        struct stat want, got;
        pid_t child = fork_with(sockets, i);
        int taken = port_owner_take(child, port);
        (void)kill(child, SIGKILL);
        (void)waitpid(child, NULL, 0);
        if (taken == -EPERM || taken == -ENOSYS)
            skip(); /* a sandbox */
        assert_true(taken >= 0);
        assert_int_equal(fstat(sockets[i], &want), 0);
        assert_int_equal(fstat(taken, &got), 0);
        assert_true(want.st_ino == got.st_ino);
        close(taken);
    }
    for (size_t i = 0; i < 3; i++)
        if (sockets[i] >= 0)
            close(sockets[i]);
}

/* A port that several processes have at other addresses is the one's that a connection gets to, not
 * that of the lowest number. */
static void test_who_listens_at_an_address(void **state)
{
    (void)state;
    unsigned port = 0, again;
    const int first = listen_shared("127.0.0.2", 0, &port);
    const int sockets[3] = {first, listen_shared("127.0.0.3", port, &again),
                            listen_shared("::ffff:127.0.0.4", port, &again)};
    const char *const hosts[3] = {"127.0.0.2", "127.0.0.3", "127.0.0.4"};
    pid_t children[4], least;
    for (size_t i = 0; i < 3; i++)
        children[i] = fork_with(sockets, i);
    for (size_t i = 0; i < 3; i++)
        if (sockets[i] >= 0)
            close(sockets[i]);
    for (size_t i = 0; i < 3; i++)
        if (sockets[i] >= 0) /* the last one is not there without IPv6 */
            assert_int_equal(port_owner_pid(hosts[i], port), children[i]);
    least = children[0] < children[1] ? children[0] : children[1];
    if (sockets[2] >= 0 && children[2] < least)
        least = children[2];
    assert_int_equal(port_owner_pid("localhost", port), least); /* a name: any of them */
    assert_int_equal(port_owner_pid("127.0.0.1", port), 0);
    assert_int_equal(port_owner_pid("::1", port), 0);

    const int all[3] = {listen_shared("0.0.0.0", port, &again), -1, -1};
    assert_true(all[0] >= 0);
    children[3] = fork_with(all, 0);
    close(all[0]);
    assert_int_equal(port_owner_pid("127.0.0.1", port), children[3]);
    assert_int_equal(port_owner_pid("127.0.0.2", port), children[0]);
    assert_int_equal(port_owner_pid("::1", port), 0);
    for (size_t i = 0; i < 4; i++) {
        (void)kill(children[i], SIGKILL);
        (void)waitpid(children[i], NULL, 0);
    }
}

static void test_who_listens_at_a_socket(void **state)
{
    (void)state;
    struct sockaddr_un at = {.sun_family = AF_UNIX};
    char dir[] = "/tmp/evenkeel-tree-XXXXXX";
    char longer[200];
    assert_non_null(mkdtemp(dir));
    (void)snprintf(at.sun_path, sizeof(at.sun_path), "%s/s", dir);
    assert_int_equal(port_owner_of_socket(at.sun_path), 0);
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, sizeof(at)), 0);
    assert_int_equal(port_owner_of_socket(at.sun_path), 0);
    assert_int_equal(listen(fd, 4), 0);
    assert_int_equal(port_owner_of_socket(at.sun_path), getpid());
    close(fd);
    assert_int_equal(port_owner_of_socket(at.sun_path), 0);
    memset(longer, 'x', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(port_owner_of_socket(longer), 0);
    (void)unlink(at.sun_path);
    (void)rmdir(dir);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pick),
        cmocka_unit_test(test_nothing_is_known),
        cmocka_unit_test(test_out_of_memory),
        cmocka_unit_test(test_of_processes),
        cmocka_unit_test(test_who_listens_at_a_port),
        cmocka_unit_test(test_a_listening_socket_is_taken),
        cmocka_unit_test(test_each_takes_its_own),
        cmocka_unit_test(test_who_listens_at_an_address),
        cmocka_unit_test(test_who_listens_at_a_socket),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
