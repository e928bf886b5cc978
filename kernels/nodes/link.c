#include "kernels/nodes/link.h"

#include <arpa/inet.h>
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"

#define PIECE_MS 100    /* of a wait */
#define KEEP_S   10     /* a machine that is gone is found by TCP after about six of these */
#define LATE_US  200000 /* more than this for a piece: we were stopped */

void ek_link_init(struct ek_link *l, int fd, const char *peer)
{
    const int on = 1, idle = KEEP_S, count = 5;

    l->fd = fd;
    l->run = 0;
    pthread_mutex_init(&l->lock, NULL);
    (void)snprintf(l->peer, sizeof(l->peer), "%s", peer);
    /* Where one is not to be had (a socket pair in a test), it works without. */
    (void)setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
    (void)setsockopt(fd, SOL_SOCKET, SO_KEEPALIVE, &on, sizeof(on));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPIDLE, &idle, sizeof(idle));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPINTVL, &idle, sizeof(idle));
    (void)setsockopt(fd, IPPROTO_TCP, TCP_KEEPCNT, &count, sizeof(count));
    (void)fcntl(fd, F_SETFL, fcntl(fd, F_GETFL) | O_NONBLOCK);
}

void ek_link_done(struct ek_link *l)
{
    if (l->fd < 0)
        return;
    (void)close(l->fd);
    l->fd = -1;
    pthread_mutex_destroy(&l->lock);
}

void ek_link_cut(struct ek_link *l)
{
    if (l->fd >= 0)
        (void)shutdown(l->fd, SHUT_RDWR);
}

/* ---- bytes ---- */

/* Drops what has gone from the front of a list. */
static void forward(struct iovec **list, uint32_t *count, size_t bytes)
{
    while (*count > 0 && bytes >= (*list)->iov_len) {
        bytes -= (*list)->iov_len;
        (*list)++;
        (*count)--;
    }
    if (*count > 0) {
        (*list)->iov_base = (char *)(*list)->iov_base + bytes;
        (*list)->iov_len -= bytes;
    }
}

static bool waits(int e)
{
    return e == EAGAIN || e == EWOULDBLOCK || e == EINTR;
}

/* Moves what goes now. The number of bytes, 0 when none did. */
static ssize_t move_some(int fd, struct ek_transfer *t)
{
    ssize_t all = 0, n;

    if (t->outs > 0) {
        struct msghdr m = {.msg_iov = t->out, .msg_iovlen = t->outs};
        n = sendmsg(fd, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
        if (n < 0 && !waits(errno))
            return errno == EPIPE ? -ECONNRESET : -errno;
        forward(&t->out, &t->outs, n > 0 ? (size_t)n : 0);
        all += n > 0 ? n : 0;
    }
    if (t->ins > 0) {
        struct msghdr m = {.msg_iov = t->in, .msg_iovlen = t->ins};
        n = recvmsg(fd, &m, MSG_DONTWAIT);
        if (n == 0)
            return -ECONNRESET;
        if (n < 0 && !waits(errno))
            return -errno;
        forward(&t->in, &t->ins, n > 0 ? (size_t)n : 0);
        all += n > 0 ? n : 0;
    }
    return all;
}

/* Whether something is left, without pieces that are empty. */
static bool busy(struct ek_transfer *t)
{
    forward(&t->out, &t->outs, 0);
    forward(&t->in, &t->ins, 0);
    return t->outs > 0 || t->ins > 0;
}

/* Of a caller that is not known yet: a byte now and then would hold up all others. */
static bool is_late(struct ek_link *const *l, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        if (l[i]->until_us > 0 && ek_now_us() >= l[i]->until_us)
            return true;
    return false;
}

/* One try on each connection. The bytes that moved, or a code; how many are not done. */
static ssize_t move_each(struct ek_link *const *l, struct ek_transfer *t, uint32_t count,
                         uint32_t *ret_left, uint32_t *ret_which)
{
    ssize_t all = 0;

    *ret_left = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (!busy(&t[i]))
            continue;
        ssize_t n = move_some(l[i]->fd, &t[i]);
        if (n < 0 || busy(&t[i]))
            *ret_which = i;
        if (n < 0)
            return n;
        all += n;
        *ret_left += busy(&t[i]);
    }
    return all;
}

/* A piece of a wait; what it says is seen by the next try. */
static void await_any(struct ek_link *const *l, const struct ek_transfer *t, uint32_t count)
{
    struct pollfd p[EK_NODES_MOST];
    uint32_t n = 0;

    for (uint32_t i = 0; i < count; i++)
        if (t[i].outs > 0 || t[i].ins > 0)
            p[n++] = (struct pollfd){
                .fd = l[i]->fd,
                .events = (short)((t[i].outs > 0 ? POLLOUT : 0) | (t[i].ins > 0 ? POLLIN : 0))};
    (void)poll(p, n, PIECE_MS);
}

int ek_links_move(struct ek_link *const *l, struct ek_transfer *t, uint32_t count,
                  uint64_t timeout_us, uint32_t *ret_which)
{
    uint64_t waited = 0, last = 0;
    uint32_t left = 0, which = 0;

    for (uint32_t tries = 0;; tries++) {
        ssize_t n = move_each(l, t, count, &left, &which);
        *ret_which = which;
        if (n < 0)
            return (int)n;
        if (left == 0)
            return 0;
        if (is_late(l, count))
            return -ETIMEDOUT;
        if (n > 0) {
            tries = 0;
            waited = last = 0;
            continue;
        }
        if (tries < t[0].spins)
            continue;
        await_any(l, t, count);
        uint64_t now = ek_now_us(), spent = last > 0 ? now - last : 0;
        waited += spent < LATE_US ? spent : LATE_US;
        last = now;
        if (timeout_us > 0 && waited >= timeout_us)
            return -ETIMEDOUT;
    }
}

int ek_link_move(struct ek_link *l, struct ek_transfer *t, uint64_t timeout_us)
{
    uint32_t which;
    return ek_links_move(&l, t, 1, timeout_us, &which);
}

bool ek_link_waiting(const struct ek_link *l)
{
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    return poll(&p, 1, 0) > 0;
}

/* ---- frames ---- */

int ek_link_send(struct ek_link *l, enum ek_frame_kind kind, const void *body, size_t bytes,
                 uint64_t timeout_us)
{
    struct ek_frame head = ek_frame_of(kind, l->run, body, bytes);
    struct iovec out[2] = {{&head, sizeof(head)}, {(void *)(uintptr_t)body, bytes}};
    struct ek_transfer t = {.out = out, .outs = 2};

    pthread_mutex_lock(&l->lock);
    int r = ek_link_move(l, &t, timeout_us);
    pthread_mutex_unlock(&l->lock);
    return r;
}

int ek_inbox_room(struct ek_inbox *in, size_t bytes)
{
    if (bytes <= in->room)
        return 0;
    void *more = realloc(in->data, bytes);
    if (!more)
        return -ENOMEM;
    in->data = more;
    in->room = bytes;
    return 0;
}

int ek_link_recv(struct ek_link *l, struct ek_inbox *in, struct ek_frame *ret_frame,
                 uint64_t timeout_us, struct ek_fault *fault)
{
    struct ek_frame f;
    struct iovec one = {&f, sizeof(f)};
    struct ek_transfer t = {.in = &one, .ins = 1};

    int r = ek_link_move(l, &t, timeout_us);
    if (r == 0)
        r = ek_frame_check(&f, l->run, l->peer, fault);
    if (r == 0 && in->most > 0 && f.bytes > in->most)
        r = ek_fault_set(fault, "master-port",
                         "%s sent %llu bytes at once, and it is too early for "
                         "so many",
                         l->peer, (unsigned long long)f.bytes);
    if (r == 0)
        r = ek_inbox_room(in, f.bytes > 0 ? f.bytes : 1);
    if (r < 0)
        return r;
    one = (struct iovec){in->data, f.bytes};
    t = (struct ek_transfer){.in = &one, .ins = 1};
    r = ek_link_move(l, &t, timeout_us);
    if (r == 0)
        r = ek_frame_body_check(&f, in->data, l->peer, fault);
    if (r == 0)
        *ret_frame = f;
    return r;
}

void ek_inbox_done(struct ek_inbox *in)
{
    free(in->data);
    *in = (struct ek_inbox){.data = NULL};
}

/* ---- connections ---- */

static int connect_to(const struct addrinfo *a, int timeout_ms)
{
    int e = 0;
    socklen_t len = sizeof(e);
    int fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC | SOCK_NONBLOCK, a->ai_protocol);

    if (fd < 0)
        return -errno;
    int r = connect(fd, a->ai_addr, a->ai_addrlen) < 0 ? -errno : 0;
    if (r == -EINPROGRESS) {
        struct pollfd p = {.fd = fd, .events = POLLOUT};
        r = poll(&p, 1, timeout_ms) > 0 ? 0 : -ETIMEDOUT;
        if (r == 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &e, &len) == 0)
            r = -e;
    }
    if (r < 0)
        (void)close(fd);
    return r < 0 ? r : fd;
}

int ek_link_connect(const char *host, uint16_t port, uint64_t timeout_us)
{
    const struct addrinfo hints = {
        .ai_family = AF_UNSPEC, .ai_socktype = SOCK_STREAM, .ai_flags = AI_NUMERICSERV};
    struct addrinfo *list = NULL;
    char service[8];

    (void)snprintf(service, sizeof(service), "%u", port);
    if (getaddrinfo(host, service, &hints, &list) != 0)
        return -EADDRNOTAVAIL;
    int fd = -EADDRNOTAVAIL;
    for (const struct addrinfo *a = list; a && fd < 0; a = a->ai_next)
        fd = connect_to(a, (int)(timeout_us / 1000));
    freeaddrinfo(list);
    return fd;
}

static void host_of(const struct sockaddr_storage *a, socklen_t len, char *ret_text, size_t size)
{
    if (getnameinfo((const struct sockaddr *)a, len, ret_text, (socklen_t)size, NULL, 0,
                    NI_NUMERICHOST) != 0)
        (void)snprintf(ret_text, size, "?");
}

void ek_link_host(int fd, char *ret_text, size_t size)
{
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof(a);

    (void)getpeername(fd, (struct sockaddr *)&a, &len); /* else "?" */
    host_of(&a, len, ret_text, size);
}

void ek_link_own_host(int fd, char *ret_text, size_t size)
{
    struct sockaddr_storage a = {.ss_family = AF_UNSPEC};
    socklen_t len = sizeof(a);

    (void)getsockname(fd, (struct sockaddr *)&a, &len); /* else "?" */
    host_of(&a, len, ret_text, size);
}

void ek_link_address(int fd, char *ret_text, size_t size)
{
    struct sockaddr_storage a;
    socklen_t len = sizeof(a);
    char host[64] = "?", port[8] = "?";

    if (getpeername(fd, (struct sockaddr *)&a, &len) == 0)
        (void)getnameinfo((struct sockaddr *)&a, len, host, sizeof(host), port, sizeof(port),
                          NI_NUMERICHOST | NI_NUMERICSERV); /* else "?" stays */
    (void)snprintf(ret_text, size, "%s:%s", host, port);
}
