/*
 * The handler for SIGBUS while weights are read from mapped files (sigbus.h). main.c, launcher.c
 * and the child of check.c set it before they open a model, and take it back when its files are
 * closed; files.c keeps the table of mappings.
 *
 * The handler runs on the thread that read, and does only what a signal handler may: it compares
 * the address with the table, writes a sentence that was made before, and calls _exit(). For any
 * other address, and for broken memory, it puts the old handler back and returns, so that the read
 * faults again.
 *
 * A row of the table is free (0), claimed (CLAIMED), or has the address of a mapping; the thread
 * that claims it writes the size before the address. So the handler needs no lock.
 */
#include "server/model/sigbus.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"

#define LAST_WORD_MS 1000
#define MAPPINGS     1040u /* a model has up to 1,024 files */
#define CLAIMED      ((uintptr_t)1)

/* A signal's handler gets no context: this is its. */
static struct {
    struct sigbus_row {
        _Atomic uintptr_t at;
        _Atomic uint64_t bytes;
    } row[MAPPINGS];
    char why[4400]; /* these are written before the handler is set */
    int code;
    bool on;
    struct sigaction before;
} watch;

void sigbus_add(const void *data, uint64_t bytes)
{
    for (size_t i = 0; i < MAPPINGS; i++) {
        uintptr_t none = 0;
        if (!atomic_compare_exchange_strong(&watch.row[i].at, &none, CLAIMED))
            continue;
        atomic_store(&watch.row[i].bytes, bytes);
        atomic_store(&watch.row[i].at, (uintptr_t)data);
        return;
    }
}

void sigbus_drop(const void *data)
{
    for (size_t i = 0; i < MAPPINGS; i++) {
        uintptr_t it = (uintptr_t)data;
        if (atomic_compare_exchange_strong(&watch.row[i].at, &it, 0))
            return;
    }
}

static bool is_mapped(uintptr_t address)
{
    for (size_t i = 0; i < MAPPINGS; i++) {
        const uintptr_t at = atomic_load(&watch.row[i].at);
        if (at > CLAIMED && address >= at && address - at < atomic_load(&watch.row[i].bytes))
            return true;
    }
    return false;
}

static void on_bus(int number, siginfo_t *info, void *context)
{
    (void)number;
    (void)context;
    if (info->si_code != BUS_ADRERR || !is_mapped((uintptr_t)info->si_addr)) {
        (void)sigaction(SIGBUS, &watch.before, NULL); /* the read is tried again, without us */
        if (info->si_code <= 0)
            (void)raise(SIGBUS); /* there was none: a process has sent it */
        return;
    }
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    ssize_t n = 0;
    if (watch.why[0] && poll(&out, 1, LAST_WORD_MS) == 1) /* not where it is not read */
        n = write(STDERR_FILENO, watch.why, strlen(watch.why));
    (void)n; /* nothing else can be done */
    _exit(watch.code);
}

int sigbus_watch(const char *model, int code)
{
    struct sigaction on = {.sa_sigaction = on_bus, .sa_flags = SA_SIGINFO};

    sigbus_done();
    watch.code = code;
    watch.why[0] = '\0';
    if (model)
        (void)snprintf(watch.why, sizeof(watch.why),
                       "evenkeel-server: a weight file of %.4095s was cut short while it was read, "
                       "or could not be read (the kernel's log says so then); download the model "
                       "again and start when it is complete",
                       model);
    ek_text_clean(watch.why);
    if (model)
        (void)strcat(watch.why, "\n"); /* there is room */
    (void)sigemptyset(&on.sa_mask);
    if (sigaction(SIGBUS, &on, &watch.before) < 0)
        return -errno;
    watch.on = true;
    return 0;
}

void sigbus_done(void)
{
    if (watch.on)
        (void)sigaction(SIGBUS, &watch.before, NULL); /* it was valid before */
    watch.on = false;
}
