/*
 * Bytes of HTTP through a socket, libmicrohttpd and everything before a route's handler: whatever
 * comes, the connection ends and nothing breaks. The control socket is used: no model is needed,
 * and it takes the same path. Its dictionary is http.dict, made from the table of limits.
 */
#include <assert.h>
#include <errno.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

#include "common/err.h"
#include "common/fdpass.h"
#include "common/log.h"
#include "server/net/http.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct http *http;
static char path[64];

static void on_drain(void *ctx, double deadline_s, enum http_drain_mode mode, bool leave)
{
    (void)ctx;
    (void)deadline_s;
    (void)mode;
    (void)leave;
}

static void on_resume(void *ctx)
{
    (void)ctx;
}

static void stop(void)
{
    http_free(http); /* removes the socket too */
}

static void start(void)
{
    const struct http_params p = {.threads = 1,
                                  .max_connections = 16,
                                  .request_timeout_s = 2,
                                  .keep_alive_s = 2,
                                  .control_path = path,
                                  .log_requests = true,
                                  .access = {.sse_keep_alive_s = 15},
                                  .drain = on_drain,
                                  .resume = on_resume};
    struct ek_fault fault = {0};
    ek_log_open("fuzz_http", EK_LOG_ERR);
    (void)snprintf(path, sizeof(path), "/tmp/ek-fuzz-http-%d.sock", (int)getpid());
    int r = http_new(&p, &http, &fault);
    assert(r == 0);
    (void)atexit(stop);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char answer[65536];
    const struct timeval wait = {.tv_sec = 10};
    if (!http)
        start();
    int fd = ek_connect_unix(path, 5000);
    assert(fd >= 0);
    (void)setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &wait, sizeof(wait));
    (void)setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof(wait));
    for (size_t at = 0; at < size;) {
        ssize_t n = send(fd, data + at, size - at, MSG_NOSIGNAL);
        if (n <= 0)
            break; /* it was closed on us */
        at += (size_t)n;
    }
    (void)shutdown(fd, SHUT_WR);
    ssize_t n;
    while ((n = recv(fd, answer, sizeof(answer), 0)) > 0)
        ;
    assert(n == 0 || errno != EAGAIN); /* it ends by itself */
    (void)close(fd);
    return 0;
}
