/*
 * Which vLLM servers run on this host, ours or anybody's: processes whose command line says so,
 * with the ports that they listen on. Read from /proc alone; nothing is asked and nothing is
 * touched. Sockets of other users' processes can only be seen by root: then the port is that of
 * their flags, if a process listens there.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#define HOSTS_MOST  64
#define HOSTS_PORTS 8 /* of one process; an engine has some of its own beside the API's */

struct host_server {
    pid_t pid;
    char what[96];              /* the words of its command line that say what it is */
    uint16_t port[HOSTS_PORTS]; /* that may be the API's, the one of its flags first */
    uint32_t ports;
    bool elsewhere; /* in another network: 127.0.0.1 is not its address */
};

/* proc: "/proc". Returns how many were found; fewer ports than processes are no error. */
uint32_t hosts_scan(const char *proc, struct host_server ret_servers[HOSTS_MOST]);

/* Whether a command line (words with a NUL after each) is that of a server; its port, 8000 if it
 * names none. Pure. */
bool hosts_is_server(const char *words, size_t len, uint16_t *ret_port, char what[96]);
