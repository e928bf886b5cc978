/*
 * The progress bar of the commands that measure (kernels, engine, serve). It is drawn on stderr, at
 * most ten times a second, so that it costs nothing that would be measured.
 */
#include "server/bench/progress.h"

#include <stdio.h>
#include <unistd.h>

#include "common/clock.h"

#define WIDTH    32
#define PAUSE_US 100000u

void progress_show(struct progress *p, const char *what, double share)
{
    uint64_t now = ek_now_us();
    char bar[WIDTH + 1];

    if (isatty(STDERR_FILENO) != 1 || (p->shown_us != 0 && now - p->shown_us < PAUSE_US))
        return;
    p->shown_us = now;
    share = share < 0.0 ? 0.0 : share > 1.0 ? 1.0 : share;
    for (int i = 0; i < WIDTH; i++)
        bar[i] = i < (int)(share * WIDTH) ? '#' : '.';
    bar[WIDTH] = '\0';
    (void)fprintf(stderr, "\r[%s] %3.0f %%  %-40.40s", bar, 100.0 * share, what);
    (void)fflush(stderr);
}

void progress_end(struct progress *p)
{
    if (p->shown_us != 0)
        (void)fputs("\r\033[K", stderr);
    p->shown_us = 0;
}
