/*
 * Admission's state, written by admit.c alone: what keeps the head of the queue out, the pause
 * between its two marks, and how much of what was admitted the prefix cache had.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/stats.h"

struct entry;
struct plan;
struct sched;

#define SCHED_WINDOW 1000u

struct admission {
    uint64_t blocked_number; /* head of the queue that did not fit, and into how many blocks */
    uint32_t blocked_available, blocked_needed;
    enum engine_held blocked_held; /* why it did not */
    enum engine_held held;         /* why the last plan admitted no more */
    bool paused;                   /* between its two marks */
    uint32_t *bring; /* [table_most] for an admission: host blocks, 0 = on the device */
    struct {
        uint32_t queries, hits;
    } window[SCHED_WINDOW]; /* prefix tokens of the last admitted requests */
    uint32_t window_at;
};

/* 0 or -ENOMEM. */
int admission_init(struct admission *a, uint32_t table_most);
void admission_done(struct admission *a);
/* The head of the queue may fit now: it is looked at again. */
static inline void admission_again(struct admission *a)
{
    a->blocked_number = 0;
}

/* Whether so many are admitted, with those that were preempted, that no new one may be. */
bool admission_is_full(const struct sched *s);
/* Blocks that a waiting entry lacks when it needs so many: 0 = it has room, UINT64_MAX: none is
 * admitted now. */
uint64_t admission_lacks(struct sched *s, const struct entry *e, uint64_t need);
/* The entry that is admitted next, SCHED_NONE when none waits. */
uint32_t sched_head(const struct sched *s);
/* Admits as many as there is room for, while the plan preempts no entry and no entry lacks a block.
 */
void sched_admit(struct sched *s, struct plan *p);
/* NULL, or what is wrong with the counts. */
const char *admission_check(const struct sched *s);
