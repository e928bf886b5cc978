/*
 * Counts connections by peer (peers.h). Called by listeners and workers as connections come and go.
 */
#include "server/net/peers.h"

#include <errno.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <unistd.h>

#define NONE UINT32_MAX

struct peer_node {
    uint64_t key;
    uint32_t count, next; /* in its bucket, or in the list of free nodes */
};

struct peers {
    pthread_mutex_t lock;
    uint32_t fds, each, mask, free;
    uint64_t secret;        /* a peer cannot choose its bucket */
    struct peer_node *node; /* [fds]: there are no more peers than connections */
    uint32_t *bucket;       /* [mask + 1] */
    uint32_t *of_fd;        /* [fds]: its node, or NONE */
};

int peers_new(uint32_t most_fd, uint32_t each, struct peers **ret_peers)
{
    uint32_t buckets = 16;
    int r = -ENOMEM;
    while (buckets < most_fd && buckets < 1u << 20)
        buckets *= 2;
    struct peers *p = calloc(1, sizeof(*p));
    if (!p)
        return r;
    p->fds = most_fd;
    p->each = each;
    p->mask = buckets - 1;
    p->node = calloc(most_fd, sizeof(*p->node));
    p->bucket = calloc(buckets, sizeof(*p->bucket));
    p->of_fd = calloc(most_fd, sizeof(*p->of_fd));
    r = -pthread_mutex_init(&p->lock, NULL);
    if (r < 0 || !p->node || !p->bucket || !p->of_fd) {
        peers_free(p);
        return r < 0 ? r : -ENOMEM;
    }
    if (getrandom(&p->secret, sizeof(p->secret), GRND_NONBLOCK) != (ssize_t)sizeof(p->secret))
        p->secret = (uintptr_t)p; /* early at boot: an address is a chance too */
    memset(p->bucket, 0xff, buckets * sizeof(*p->bucket));
    memset(p->of_fd, 0xff, most_fd * sizeof(*p->of_fd));
    for (uint32_t i = 0; i < most_fd; i++)
        p->node[i].next = i + 1 < most_fd ? i + 1 : NONE;
    *ret_peers = p;
    return 0;
}

void peers_free(struct peers *p)
{
    if (!p)
        return;
    pthread_mutex_destroy(&p->lock);
    free(p->node);
    free(p->bucket);
    free(p->of_fd);
    free(p);
}

static bool peers_key_of(const struct sockaddr_storage *a, uint64_t *ret_key)
{
    *ret_key = 0;
    if (a->ss_family == AF_INET) {
        struct sockaddr_in in;
        memcpy(&in, a, sizeof(in));
        memcpy(ret_key, &in.sin_addr, sizeof(in.sin_addr));
        return true;
    }
    if (a->ss_family != AF_INET6)
        return false;
    struct sockaddr_in6 in6;
    memcpy(&in6, a, sizeof(in6));
    bool mapped = IN6_IS_ADDR_V4MAPPED(&in6.sin6_addr);
    memcpy(ret_key, in6.sin6_addr.s6_addr + (mapped ? 12 : 0), mapped ? 4 : 8);
    return true;
}

static uint32_t *peers_bucket_of(const struct peers *p, uint64_t key)
{
    uint64_t x = (key ^ p->secret) * 0x9e3779b97f4a7c15ull;
    return &p->bucket[(x ^ x >> 29) >> 32 & p->mask];
}

bool peers_take(struct peers *p, int fd, const struct sockaddr_storage *a)
{
    uint64_t key;
    if (!p || fd < 0 || (uint32_t)fd >= p->fds || !peers_key_of(a, &key))
        return true;
    pthread_mutex_lock(&p->lock);
    uint32_t *bucket = peers_bucket_of(p, key), n = *bucket;
    while (n != NONE && p->node[n].key != key)
        n = p->node[n].next;
    bool room = n == NONE || p->node[n].count < p->each;
    if (room && n == NONE) {
        n = p->free; /* one for each descriptor: there is one */
        p->free = p->node[n].next;
        p->node[n] = (struct peer_node){.key = key, .next = *bucket};
        *bucket = n;
    }
    if (room) {
        p->node[n].count++;
        p->of_fd[fd] = n;
    }
    pthread_mutex_unlock(&p->lock);
    return room;
}

void peers_give(struct peers *p, int fd)
{
    if (!p || fd < 0 || (uint32_t)fd >= p->fds)
        return;
    pthread_mutex_lock(&p->lock);
    uint32_t n = p->of_fd[fd];
    p->of_fd[fd] = NONE;
    if (n != NONE && --p->node[n].count == 0) {
        uint32_t *at = peers_bucket_of(p, p->node[n].key);
        while (*at != n)
            at = &p->node[*at].next;
        *at = p->node[n].next;
        p->node[n].next = p->free;
        p->free = n;
    }
    pthread_mutex_unlock(&p->lock);
}

void peers_close(struct peers *p, int fd)
{
    peers_give(p, fd);
    (void)close(fd);
}
