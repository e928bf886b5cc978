/* A line on the terminal that says how far it is; nothing where standard error is no terminal. */
#pragma once

#include <stdint.h>

struct progress {
    uint64_t shown_us; /* when it was drawn last, 0 = never */
};

/* Draws at most ten times a second; `what` is what is measured now. */
void progress_show(struct progress *p, const char *what, double share);
void progress_end(struct progress *p); /* takes the line away */
