/*
 * evenkeel-nvml: asks NVIDIA's library for each client of its socket (evenkeel-nvml.socket),
 * one at a time. Only this unit may open the devices. A device that blocks its callers blocks this
 * process alone: it then feeds the watchdog no more, and systemd kills it and starts the next at
 * the next question. Where there is no library it answers so and ends. Without a socket it prints
 * what it reads, for a person.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/err.h"
#include "supervisor/io/nvml.h"

#define REST_MS 5000 /* without a watchdog */

static int nvml_print(void)
{
    struct gpus g;
    nvml_read(&g);
    for (uint32_t i = 0; g.error == 0 && i < g.count; i++)
        (void)printf(
            "device %u: %s%.2f of %.2f GiB used by %u processes, %llu uncorrected errors\n", i,
            g.at[i].lost         ? "lost; "
            : g.at[i].total == 0 ? "memory not said; "
                                 : "",
            (double)g.at[i].used / 1073741824.0, (double)g.at[i].total / 1073741824.0,
            g.at[i].processes, (unsigned long long)g.at[i].ecc_errors);
    if (g.error < 0)
        (void)printf("%s\n", g.text);
    return fflush(stdout) != 0 || g.error < 0 ? 1 : 0;
}

/* Answers one caller. True: there is nothing to answer with, now or later. */
static bool nvml_answer(int listening)
{
    struct gpus g;
    int fd = accept4(listening, NULL, NULL, SOCK_CLOEXEC);
    if (fd < 0)
        return false; /* it went away */
    nvml_read(&g);
    (void)send(fd, &g, sizeof(g), MSG_NOSIGNAL); /* a peer that is gone gets nothing */
    close(fd);
    return g.error == -ENOENT;
}

int main(int argc, char **argv)
{
    uint64_t watchdog_us = 0;
    int fds = sd_listen_fds(1), listening = SD_LISTEN_FDS_START;
    if (argc > 1) {
        (void)fprintf(stderr,
                      "usage: %s\nPrints what NVML says of the devices; evenkeel-nvml.socket "
                      "starts it for evenkeeld.\n",
                      argv[0]);
        return EK_EXIT_USAGE;
    }
    if (fds < 1)
        return nvml_print();
    if (sd_is_socket_unix(listening, SOCK_SEQPACKET, 1, NULL, 0) <= 0) {
        (void)fprintf(stderr, "evenkeel-nvml: what was passed is no listening socket\n");
        return EK_EXIT_USAGE;
    }
    int rest_ms = sd_watchdog_enabled(0, &watchdog_us) > 0 ? (int)(watchdog_us / 2000) : REST_MS;
    (void)sd_notify(0, "READY=1");
    for (bool done = false; !done;) {
        struct pollfd p = {.fd = listening, .events = POLLIN};
        (void)sd_notify(0, "WATCHDOG=1");
        int n = poll(&p, 1, rest_ms);
        if (n < 0 && errno != EINTR)
            return EK_EXIT_INTERNAL;
        done = n > 0 && nvml_answer(listening);
    }
    return EK_EXIT_OK;
}
