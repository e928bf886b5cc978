/* Whether a client takes what was sent to it (unread.h). Called by worker.c. */
#include "server/net/unread.h"

#include <linux/tcp.h> /* the C library's struct tcp_info ends before what is acknowledged */
#include <netinet/in.h>
#include <stddef.h>
#include <sys/socket.h>

struct unread_now unread_look(int fd)
{
    struct tcp_info info = {0};
    socklen_t len = sizeof(info);

    if (getsockopt(fd, IPPROTO_TCP, TCP_INFO, &info, &len) < 0 ||
        len <= offsetof(struct tcp_info, tcpi_notsent_bytes))
        return (struct unread_now){0};
    return (struct unread_now){.taken = info.tcpi_bytes_acked,
                               .waits = info.tcpi_unacked > 0 || info.tcpi_notsent_bytes > 0};
}

bool unread_stalls(struct unread *u, const struct unread_now *now, uint64_t now_us,
                   uint64_t most_us)
{
    if (!now->waits || u->since_us == 0 || u->taken != now->taken) {
        *u = (struct unread){.since_us = now->waits ? now_us : 0, .taken = now->taken};
        return false;
    }
    return now_us - u->since_us > most_us;
}
