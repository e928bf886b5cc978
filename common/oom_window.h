/*
 * What the kernel killed for memory lately. A cgroup's count says how many since it was made, and
 * of how long ago nothing: a process that it killed in the morning does not explain what ends in
 * the evening. So the count is sampled while all is well, and of an end only what came after a
 * sample of one to two steps ago is evidence; longer ago where no sample was taken. A step is
 * longer than the last of several processes needs to end after one of them was killed. Used for
 * engines by the launcher, for servers and their engines by evenkeeld.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#define EK_OOM_STEP_US (60 * 1000000ull)

struct ek_oom_window {
    uint64_t older, newer; /* counts */
    uint64_t newer_us;
};

/* From here on: when a process begins, and when kills were told that explain no other end. */
void ek_oom_window_begin(struct ek_oom_window *w, uint64_t kills, uint64_t now_us);
/* Whether a step is over, so that the count is worth reading. */
bool ek_oom_window_due(const struct ek_oom_window *w, uint64_t now_us);
/* The count as it is while nothing has ended; before a step is over nothing changes. */
void ek_oom_window_sample(struct ek_oom_window *w, uint64_t kills, uint64_t now_us);
/* Of the count at an end those that may explain it; 0 when the count fell, as of another cgroup. */
uint64_t ek_oom_window_kills(const struct ek_oom_window *w, uint64_t kills);
