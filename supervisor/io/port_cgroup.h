/*
 * In which control group the program was started that listens at a port: its unit's name, where its
 * process may not be seen (another user's, one that is not dumpable, hidepid). The kernel tells the
 * group of a socket to every process (sock_diag, Linux 5.9), so that no right is needed for it.
 * port_owner.c asks, before a start alone.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

/* "nginx.service" for the TCP socket with this inode, as /proc/net/tcp has it. False: it is in
 * none, or that cannot be told. Never waits; looks at so many groups at most. */
#define PORT_CGROUPS_MOST 5000u
bool port_cgroup_name(unsigned long inode, char *ret_name, size_t size);
