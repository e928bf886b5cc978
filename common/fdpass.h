/*
 * Listening sockets live above the servers: evenkeeld binds them and hands them to a server over
 * its control socket with SCM_RIGHTS; a new evenkeeld gets them back the same way.
 *
 * On a fresh connection to the control socket the client sends one line
 *     "EVENKEEL-FD put NAME\n"  with one descriptor attached, answered "OK\n" or "ERR text\n"
 *     "EVENKEEL-FD get NAME\n"  answered "OK\n" with the descriptor attached, or "ERR text\n"
 * and closes. Any other first bytes are HTTP/1.1. NAME is [a-z0-9-]{1,32}; "listen" is the TCP
 * socket of the API.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#define EK_FD_PREFIX "EVENKEEL-FD "
/* In the environment of a server that is another user: the user of evenkeeld, which may use its
 * control socket. */
#define EK_CONTROL_UID "EVENKEEL_CONTROL_UID"
/* LISTEN_FDNAMES of a listening socket that evenkeeld starts an evenkeel-server with (the protocol
 * of sd_listen_fds): from its first moment on the socket is in two processes. */
#define EK_LISTEN_NAME "evenkeel-listen"

/* Send and receive one message with at most one descriptor (fd < 0: none). recv returns the number
 * of bytes, NUL-terminated in text, *ret_fd = -1 when none came; descriptors are close-on-exec.
 * Both return a negative errno. */
int ek_fd_send(int sock, const char *text, int fd);
int ek_fd_recv(int sock, char *text, size_t size, int *ret_fd);

/* A bound, listening, non-blocking, close-on-exec TCP socket. host NULL = all addresses. port 0 =
 * any free one. *ret_port is the port got. Returns the descriptor or a negative errno. */
int ek_listen_tcp(const char *host, unsigned port, int backlog, unsigned *ret_port);
/* The same for a Unix path; removes a stale socket file on which no process listens; mode as in
 * chmod. */
int ek_listen_unix(const char *path, unsigned mode, int backlog);
int ek_connect_unix(const char *path, int timeout_ms);
/* Whether it is a listening stream socket. */
bool ek_is_listener(int fd);
/* The port that a TCP socket is bound to, 0 when it is none. */
unsigned ek_tcp_port(int fd);
