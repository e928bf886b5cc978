/* Ends the process when a thread that serves everybody loops (watch.h). Called by main.c. */
#include "server/watch.h"

#include <dlfcn.h>
#include <errno.h>
#include <execinfo.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "server/net/http.h"

#define ASK_SIGNAL   (SIGRTMIN + 2)
#define STILL_CPU_US 1000 /* between two looks; less is none */
#define OWN_FRAMES   2    /* the handler, and what called it */

/* Written by the handler in the thread that is asked; one is asked at a time. */
static void *frames[WATCH_FRAMES + OWN_FRAMES];
static atomic_int frame_count;

static void on_ask(int signal)
{
    int before = errno;
    (void)signal;
    atomic_store(&frame_count, backtrace(frames, (int)(WATCH_FRAMES + OWN_FRAMES)));
    errno = before;
}

void watch_open(void)
{
    struct sigaction a = {.sa_handler = on_ask, .sa_flags = SA_RESTART};
    void *first[1];

    (void)backtrace(first, 1); /* loads what it needs: a handler must not */
    (void)sigemptyset(&a.sa_mask);
    (void)sigaction(ASK_SIGNAL, &a,
                    NULL); /* cannot fail for this signal; then stacks are unknown */
}

static uint64_t cpu_us_of(pthread_t thread)
{
    struct timespec t;
    clockid_t clock;

    if (pthread_getcpuclockid(thread, &clock) != 0 || clock_gettime(clock, &t) != 0)
        return 0;
    return (uint64_t)t.tv_sec * 1000000u + (uint64_t)t.tv_nsec / 1000u;
}

static enum watch_verdict look_at(struct watch *w, uint32_t i, const struct http_thread *t,
                                  uint64_t cpu_us)
{
    bool still = cpu_us < w->seen_us[i] + STILL_CPU_US;

    w->seen_us[i] = cpu_us;
    if (w->rounds[i] != t->rounds || w->cpu_us[i] == 0 || cpu_us < w->cpu_us[i]) {
        w->rounds[i] = t->rounds;
        w->cpu_us[i] = cpu_us;
        w->still_us[i] = 0;
        return WATCH_WELL;
    }
    w->still_us[i] = still ? w->still_us[i] + WATCH_EVERY_US : 0;
    if (cpu_us - w->cpu_us[i] > t->cpu_most_us)
        return WATCH_LOOPS;
    return t->still_most_us && w->still_us[i] > t->still_most_us ? WATCH_LOST : WATCH_WELL;
}

enum watch_verdict watch_look(struct watch *w, const struct http_thread *t, uint32_t count,
                              const struct http_thread **ret_thread)
{
    enum watch_verdict found = WATCH_WELL;

    for (uint32_t i = 0; i < count && i < WATCH_THREADS; i++) {
        enum watch_verdict v = look_at(w, i, &t[i], cpu_us_of(t[i].thread));
        if (v != WATCH_WELL && found == WATCH_WELL) {
            *ret_thread = &t[i];
            found = v;
        }
    }
    return found;
}

bool watch_stack(pthread_t thread, char *ret_text, size_t size)
{
    size_t len = 0;
    int n = 0;

    ret_text[0] = '\0';
    atomic_store(&frame_count, 0);
    if (pthread_kill(thread, ASK_SIGNAL) != 0)
        return false;
    for (int i = 0; i < 100 && n == 0; i++) {
        (void)usleep(10000);
        n = atomic_load(&frame_count);
    }
    for (int i = OWN_FRAMES; i < n; i++) {
        Dl_info at;
        if (dladdr(frames[i], &at) == 0 || !at.dli_fname)
            continue;
        const char *slash = strrchr(at.dli_fname, '/');
        int wrote = snprintf(ret_text + len, size - len, "%s%.40s+0x%zx", len ? " " : "",
                             slash ? slash + 1 : at.dli_fname,
                             (size_t)((const char *)frames[i] - (const char *)at.dli_fbase));
        if (wrote < 0 || len + (size_t)wrote >= size) {
            ret_text[len] = '\0';
            break;
        }
        len += (size_t)wrote;
    }
    return n > OWN_FRAMES;
}
