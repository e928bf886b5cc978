/* Kills for memory of the last one or two steps: see the header. No state of its own. */
#include "common/oom_window.h"

void ek_oom_window_begin(struct ek_oom_window *w, uint64_t kills, uint64_t now_us)
{
    *w = (struct ek_oom_window){.older = kills, .newer = kills, .newer_us = now_us};
}

bool ek_oom_window_due(const struct ek_oom_window *w, uint64_t now_us)
{
    return now_us >= w->newer_us + EK_OOM_STEP_US;
}

void ek_oom_window_sample(struct ek_oom_window *w, uint64_t kills, uint64_t now_us)
{
    if (!ek_oom_window_due(w, now_us))
        return;
    w->older = w->newer;
    w->newer = kills;
    w->newer_us = now_us;
}

uint64_t ek_oom_window_kills(const struct ek_oom_window *w, uint64_t kills)
{
    return kills > w->older ? kills - w->older : 0;
}
