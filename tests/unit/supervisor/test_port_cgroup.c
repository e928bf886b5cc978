/* Whose port it is where the process may not be looked into: sockets of real control groups. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "supervisor/io/port_cgroup.h"
#include "supervisor/io/port_owner.h"

static int listen_at(int family, unsigned *ret_port)
{
    struct sockaddr_in6 six = {.sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT};
    struct sockaddr_in four = {.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    bool is_six = family == AF_INET6;
    struct sockaddr *at = is_six ? (struct sockaddr *)&six : (struct sockaddr *)&four;
    socklen_t len = is_six ? sizeof(six) : sizeof(four);
    int fd = socket(family, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0 || bind(fd, at, len) < 0 || listen(fd, 1) < 0 || getsockname(fd, at, &len) < 0) {
        if (fd >= 0)
            close(fd);
        return -1;
    }
    *ret_port = ntohs(is_six ? six.sin6_port : four.sin_port);
    return fd;
}

static unsigned long inode_of(int fd)
{
    struct stat st;
    assert_int_equal(fstat(fd, &st), 0);
    return st.st_ino;
}

/* A process in a group of that name that listens; its port and inode come by the pipe. */
struct listener {
    unsigned port;
    unsigned long inode;
};

static void be_listener(const char *group, int family, int to)
{
    char path[400];
    struct listener l = {0};
    struct stat st;
    (void)snprintf(path, sizeof(path), "%s/cgroup.procs", group);
    int fd = open(path, O_WRONLY | O_CLOEXEC);
    if (fd < 0 || write(fd, "0", 1) != 1)
        _exit(1);
    int sock = listen_at(family, &l.port);
    if (sock >= 0 && fstat(sock, &st) == 0)
        l.inode = st.st_ino;
    if (prctl(PR_SET_DUMPABLE, 0) < 0 || write(to, &l, sizeof(l)) != (ssize_t)sizeof(l))
        _exit(1);
    for (;;)
        (void)pause();
}

/* What somebody without rights is told of the port. */
static void ask_as_nobody(unsigned port, char *ret_who, size_t size)
{
    int ends[2];
    char who[80] = "";
    assert_int_equal(pipe(ends), 0);
    pid_t pid = fork();
    assert_true(pid >= 0);
    if (pid == 0) {
        if (setgid(65534) < 0 || setuid(65534) < 0 ||
            port_owner_is_none("127.0.0.1", port, who, sizeof(who)))
            _exit(1);
        _exit(write(ends[1], who, sizeof(who)) != (ssize_t)sizeof(who));
    }
    close(ends[1]);
    int status = 0;
    ssize_t n = read(ends[0], who, sizeof(who));
    assert_int_equal(waitpid(pid, &status, 0), pid);
    assert_int_equal(status, 0);
    assert_int_equal(n, sizeof(who));
    (void)snprintf(ret_who, size, "%s", who);
    close(ends[0]);
}

static void test_of_a_unit(void **state)
{
    static const char *const roots[] = {"/sys/fs/cgroup/unified", "/sys/fs/cgroup"};
    static const int families[] = {AF_INET, AF_INET6};
    char outer[200] = "", group[300], name[80], want[80];
    (void)state;
    for (size_t i = 0; i < 2 && !outer[0]; i++) {
        (void)snprintf(name, sizeof(name), "%s/cgroup.controllers", roots[i]);
        if (access(name, F_OK) == 0)
            (void)snprintf(outer, sizeof(outer), "%s/evenkeel-test-%d", roots[i], (int)getpid());
    }
    if (!outer[0] || mkdir(outer, 0755) < 0)
        skip(); /* not root, or no cgroup v2 */
    (void)snprintf(group, sizeof(group), "%s/some %%s@x.service", outer);
    assert_int_equal(mkdir(group, 0755), 0);
    for (size_t i = 0; i < 2; i++) {
        struct listener l = {0};
        int ends[2];
        assert_int_equal(pipe(ends), 0);
        pid_t pid = fork();
        assert_true(pid >= 0);
        if (pid == 0)
            be_listener(group, families[i], ends[1]);
        assert_int_equal(read(ends[0], &l, sizeof(l)), sizeof(l));
        if (l.inode) { /* else the machine has no IPv6 */
            assert_true(port_cgroup_name(l.inode, name, sizeof(name)));
            assert_string_equal(name, "some??s@x.service");
            assert_true(port_cgroup_name(l.inode, name, 5));
            assert_string_equal(name, "some");
        }
        if (l.inode && families[i] == AF_INET) {
            ask_as_nobody(l.port, want, sizeof(want));
            assert_string_equal(want, "some??s@x.service, as user 0");
        }
        assert_int_equal(kill(pid, SIGKILL), 0);
        assert_int_equal(waitpid(pid, NULL, 0), pid);
        close(ends[0]);
        close(ends[1]);
        if (l.inode)
            assert_false(port_cgroup_name(l.inode, name, sizeof(name)));
    }
    for (int i = 0; i < 100 && rmdir(group) < 0 && errno == EBUSY; i++)
        (void)usleep(10000);
    assert_int_equal(rmdir(outer), 0);
}

static void test_of_none(void **state)
{
    char name[64] = "as it was";
    unsigned port;
    (void)state;
    assert_false(port_cgroup_name(0, name, sizeof(name)));
    int fd = listen_at(AF_INET, &port);
    assert_true(fd >= 0);
    unsigned long inode = inode_of(fd);
    close(fd);
    assert_false(port_cgroup_name(inode, name, sizeof(name)));
    assert_string_equal(name, "as it was");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_of_a_unit),
        cmocka_unit_test(test_of_none),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
