/*
 * What a start needs of the machine: a port that nobody listens at, and memory. Reads /proc; quick,
 * and asked only before a start.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* Whether a program could listen at host:port now. If not, who names the holder: "process 12
 * (python3)"; "a process of user 33" or "another process" when it may not be seen. */
bool holder_port_free(const char *host, unsigned port, char *who, size_t size);
/* Bytes that programs can still have: the machine's, or what the own cgroup's limits leave. 0 if
 * not known. */
uint64_t holder_memory_bytes(void);
