/*
 * The handler for SIGBUS while weights are read from mapped files: start_load.c, launcher.c and
 * nodes.c set it around loading. It runs on the thread that read, and does only what a signal
 * handler may: it compares the address with the mapped ranges, writes a sentence that was made
 * before, and calls _exit(). For any other address it puts the old handler back and returns, so
 * that the read faults again.
 */
#include "server/sigbus.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "kernels/backend.h"

#define LAST_WORD_MS 1000

/* A signal's handler gets no context: this is its. Written before the handler is set. */
static struct {
    const struct ek_weight_files *files;
    char why[4400];
    struct sigaction before;
} watch;

static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    uintptr_t at = (uintptr_t)info->si_addr;
    for (uint32_t i = 0; i < watch.files->count; i++) {
        const struct ek_weight_file *f = &watch.files->file[i];
        if (at < (uintptr_t)f->data || at - (uintptr_t)f->data >= f->size_bytes)
            continue;
        struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
        ssize_t n = 0;
        if (poll(&out, 1, LAST_WORD_MS) == 1) /* a pipe that nobody reads holds up no end */
            n = write(STDERR_FILENO, watch.why, strlen(watch.why));
        (void)n; /* nothing else can be done */
        _exit(EK_EXIT_CONFIG);
    }
    (void)sigaction(SIGBUS, &watch.before, NULL); /* the read is tried again, without us */
}

int sigbus_watch(const struct ek_weight_files *files, const char *dir)
{
    struct sigaction on = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};

    watch.files = files;
    (void)snprintf(watch.why, sizeof(watch.why),
                   "evenkeel-server: a weight file in %.4095s was cut short while it was read; "
                   "download the model again and start when it is complete\n",
                   dir);
    (void)sigemptyset(&on.sa_mask);
    return sigaction(SIGBUS, &on, &watch.before) < 0 ? -errno : 0;
}

void sigbus_done(void)
{
    (void)sigaction(SIGBUS, &watch.before, NULL); /* it was valid before */
}
