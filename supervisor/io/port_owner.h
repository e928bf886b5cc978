/*
 * What a start needs of the machine: a port that is free, and memory; and which process
 * it is that listens where somebody else's server does. Reads /proc; quick, and asked only before a
 * start or when such a server is another one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

/* Whether a program could listen at host:port now. If not, who names the holder: "process 12
 * (python3)"; when it may not be seen "nginx.service, as user 33", its control group, "a process of
 * user 33" or "another process". */
bool port_owner_is_none(const char *host, unsigned port, char *who, size_t size);
/* The process that a connection to host:port of this machine gets to: of those that have a
 * listening socket there (a server and its workers) the one with the lowest number. A host that is
 * no single address ("", "0.0.0.0", "::", a name) stands for any. 0 if there is none, or it may
 * not be seen. */
pid_t port_owner_pid(const char *host, unsigned port);
/* A duplicate, close-on-exec, of a listening socket of a port out of that process, which does not
 * notice; others may listen at that port of another address, or share it. The caller's; or a
 * negative errno: -ENOENT, it has none or may not be looked into; -EPERM, it may not be traced by
 * this process. */
int port_owner_take(pid_t pid, unsigned port);
/* The process that listens at a Unix socket; 0 if there is none, or it is in a namespace that is
 * not seen from here. Never waits. */
pid_t port_owner_of_socket(const char *path);
/* Bytes that programs can still have: the machine's, or what the own cgroup's limits leave. 0 if
 * not known. */
uint64_t port_owner_memory_bytes(void);
