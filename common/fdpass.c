/*
 * Sockets that outlive a server: making them and handing them over. evenkeeld binds with
 * ek_listen_tcp() and passes the descriptor (supervisor/io/handoff.c); the server's control socket
 * (server/net/control.c) answers `put` and `get`. A server that runs alone binds for itself.
 *
 * Each message is a single sendmsg() or recvmsg(); descriptors beyond the first are closed at once,
 * so that a peer cannot fill the table of open files.
 */
#include "common/fdpass.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <unistd.h>

int ek_fd_send(int sock, const char *text, int fd)
{
    struct iovec iov = {.iov_len = strlen(text)};
    union {
        const char *c;
        void *v;
    } bytes = {.c = text}; /* sendmsg only reads them */
    iov.iov_base = bytes.v;
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &iov, .msg_iovlen = 1};
    if (fd >= 0) {
        m.msg_control = control.room;
        m.msg_controllen = sizeof(control.room);
        struct cmsghdr *c = CMSG_FIRSTHDR(&m);
        c->cmsg_level = SOL_SOCKET;
        c->cmsg_type = SCM_RIGHTS;
        c->cmsg_len = CMSG_LEN(sizeof(int));
        memcpy(CMSG_DATA(c), &fd, sizeof(int));
    }
    ssize_t n = sendmsg(sock, &m, MSG_NOSIGNAL);
    if (n < 0)
        return -errno;
    return (size_t)n == iov.iov_len ? 0 : -EIO;
}

int ek_fd_recv(int sock, char *text, size_t size, int *ret_fd)
{
    if (size < 2)
        return -EINVAL;
    struct iovec iov = {.iov_base = text, .iov_len = size - 1};
    union {
        struct cmsghdr align;
        char room[CMSG_SPACE(4 * sizeof(int))];
    } control = {0};
    struct msghdr m = {.msg_iov = &iov,
                       .msg_iovlen = 1,
                       .msg_control = control.room,
                       .msg_controllen = sizeof(control.room)};
    ssize_t n = recvmsg(sock, &m, MSG_CMSG_CLOEXEC);
    if (n < 0)
        return -errno;
    int got = -1;
    for (struct cmsghdr *c = CMSG_FIRSTHDR(&m); c; c = CMSG_NXTHDR(&m, c)) {
        if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
            continue;
        size_t count = (c->cmsg_len - CMSG_LEN(0)) / sizeof(int);
        for (size_t i = 0; i < count; i++) {
            int fd;
            memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(int));
            if (got < 0)
                got = fd;
            else
                (void)close(fd); /* more than one was never asked for */
        }
    }
    text[n] = '\0';
    *ret_fd = got;
    return (int)n;
}

static int listen_on(const struct addrinfo *a, int backlog)
{
    int one = 1, r;
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);
    if (fd < 0)
        return -errno;
    if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one)) < 0 ||
        bind(fd, a->ai_addr, a->ai_addrlen) < 0 || listen(fd, backlog) < 0) {
        r = -errno;
        (void)close(fd);
        return r;
    }
    return fd;
}

bool ek_is_listener(int fd)
{
    int on = 0, type = 0;
    socklen_t len = sizeof(on), type_len = sizeof(type);
    return getsockopt(fd, SOL_SOCKET, SO_ACCEPTCONN, &on, &len) == 0 && on &&
           getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_len) == 0 && type == SOCK_STREAM;
}

unsigned ek_tcp_port(int fd)
{
    union {
        struct sockaddr any;
        struct sockaddr_in v4;
        struct sockaddr_in6 v6;
    } got = {.v6 = {0}};
    socklen_t len = sizeof(got);
    if (getsockname(fd, &got.any, &len) < 0)
        return 0;
    return got.any.sa_family == AF_INET    ? ntohs(got.v4.sin_port)
           : got.any.sa_family == AF_INET6 ? ntohs(got.v6.sin6_port)
                                           : 0;
}

int ek_listen_tcp(const char *host, unsigned port, int backlog, unsigned *ret_port)
{
    char service[16];
    struct addrinfo hints = {.ai_family = AF_UNSPEC,
                             .ai_socktype = SOCK_STREAM,
                             .ai_flags = AI_PASSIVE | AI_NUMERICSERV},
                    *list = NULL;
    if (port > 65535)
        return -EINVAL;
    (void)snprintf(service, sizeof(service), "%u", port);
    if (host && strcmp(host, "0.0.0.0") == 0)
        hints.ai_family = AF_INET;
    if (getaddrinfo(host, service, &hints, &list) != 0)
        return -EADDRNOTAVAIL;
    int fd = -EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = listen_on(a, backlog);
    freeaddrinfo(list);
    if (fd < 0)
        return fd;
    const unsigned got = ret_port ? ek_tcp_port(fd) : 0;
    if (got != 0)
        *ret_port = got;
    return fd;
}

static int unix_address(const char *path, struct sockaddr_un *ret_address)
{
    struct sockaddr_un a = {.sun_family = AF_UNIX};
    if (strlen(path) >= sizeof(a.sun_path))
        return -ENAMETOOLONG;
    memcpy(a.sun_path, path, strlen(path) + 1);
    *ret_address = a;
    return 0;
}

int ek_listen_unix(const char *path, unsigned mode, int backlog)
{
    struct sockaddr_un a;
    int r = unix_address(path, &a);
    if (r < 0)
        return r;
    int alive = ek_connect_unix(path, 1000);
    if (alive >= 0) {
        (void)close(alive);
        return -EADDRINUSE;
    }
    if (alive == -ECONNREFUSED && unlink(path) < 0)
        return -errno;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (fd < 0)
        return -errno;
    mode_t old = umask(0777 & ~mode); /* the file is never open wider than asked */
    r = bind(fd, (struct sockaddr *)&a, sizeof(a)) < 0 ? -errno : 0;
    (void)umask(old);
    if (r == 0 && listen(fd, backlog) < 0)
        r = -errno;
    if (r < 0) {
        (void)close(fd);
        return r;
    }
    return fd;
}

int ek_connect_unix(const char *path, int timeout_ms)
{
    struct sockaddr_un a;
    int r = unix_address(path, &a);
    if (r < 0)
        return r;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return -errno;
    struct timeval t = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    /* connect() on a Unix socket waits only while the backlog is full: this bounds it. */
    if (setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &t, sizeof(t)) < 0 ||
        connect(fd, (struct sockaddr *)&a, sizeof(a)) < 0) {
        r = -errno;
        (void)close(fd);
        return r;
    }
    return fd;
}
