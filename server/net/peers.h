/*
 * How many connections each peer has, so that one cannot take all of them. A peer is an IPv4
 * address or the first 64 bits of an IPv6 address. Connections are known by their descriptor.
 *
 * Any thread; under a lock of its own. Nothing is allocated after peers_new().
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/socket.h>

struct peers;

/* For descriptors below `most_fd`; `each` = most connections of one peer. -ENOMEM. */
int peers_new(uint32_t most_fd, uint32_t each, struct peers **ret_peers);
void peers_free(struct peers *p);

/* A connection of this peer comes: false when it has too many. Other than IP is not counted. */
bool peers_take(struct peers *p, int fd, const struct sockaddr_storage *a);
/* The descriptor is about to be closed. One that was not taken, and p = NULL, are fine. */
void peers_give(struct peers *p, int fd);
/* Gives and closes. */
void peers_close(struct peers *p, int fd);
