/*
 * Names in the fields Host and Origin of an HTTP request. A page whose name is made to resolve to
 * 127.0.0.1 (DNS rebinding) reaches what listens there, but sends its own name: a server that only
 * programs of its machine are meant to reach answers to localhost and to addresses alone. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/socket.h>

/* Whether the host of a Host field (its port aside) is in a list; "*.x.org" is every host below
 * x.org, "*" every one. */
bool ek_host_listed(const char *host, const char *const *list, size_t count);

/* Whether a Host field names localhost, a name below it, or an address: nothing that somebody
 * else's DNS answers for. */
bool ek_host_is_literal(const char *host);

/* The same of an Origin field, SCHEME://HOST[:PORT]; "null" is not. */
bool ek_origin_is_literal(const char *origin);

/* Whether a socket's own address is one of the loopback; false for what is not IP. */
bool ek_address_is_loopback(const struct sockaddr_storage *address);
