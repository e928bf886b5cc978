/*
 * Whether this machine has an address that MPI may use and that is not of a private network: what
 * nodes say to each other is not encrypted. Reads the interfaces as they are now.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

struct sockaddr;

/* Loopback, link-local, 10/8, 172.16/12, 192.168/16, 100.64/10 (shared), fc00::/7. */
bool private_net_has(const struct sockaddr *address);
/* Whether an interface or its address is in a list as MPI takes it: "eth0,10.9.0.0/24". */
bool private_net_listed(const char *list, const char *name, const struct sockaddr *address);
/* True with "interface eth0 with 203.0.113.5" where there is one. include, exclude: such lists,
 * NULL = all, none. */
bool private_net_find_public(const char *include, const char *exclude, char *ret_what, size_t size);
