/*
 * Which finding explains a log (weigh.h). A rank is the entry's own; it gains where the decisive
 * line is one of its lines, and falls below every cause where it was only remarked or was outlived
 * by the start.
 */
#include "supervisor/doctor/weigh.h"

#include <stdlib.h>
#include <string.h>

#include "supervisor/doctor/resolve.h"

#define MESSAGE_LINES 2u  /* around the decisive line its own message may stand */
#define FIRST_GAIN    3u  /* of the rank: it is the decisive line */
#define PRESSURE      45u /* ranks up to it are of what goes on while it serves */
#define SURE          60u /* ranks from it on of the decisive line outweigh remarks beside it */
#define GONE_ON       20u /* lines after one: what it says has not ended the start */

static int weigh_compare(const void *a, const void *b)
{
    const struct doctor_finding *x = a, *y = b;
    if (x->life != y->life)
        return x->life > y->life ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank > y->rank ? -1 : 1;
    if (x->decisive != y->decisive)
        return x->decisive ? -1 : 1;
    return x->first_line < y->first_line ? -1 : x->first_line > y->first_line;
}

/* What a program only remarks, while the decisive line names a cause: an import that was skipped, a
 * file that was not found and not needed. Faults of the machine are said in lines of their own. */
static bool is_remark(const struct doctor_finding *f)
{
    return !f->decisive && !f->raised &&
           (f->cls == DOCTOR_BUILD || f->cls == DOCTOR_CONFIG || f->cls == DOCTOR_FILES ||
            f->cls == DOCTOR_CLIENT || f->cls == DOCTOR_BUG);
}

/* What a start may complain of and go on: an interface that it does without, workers that compile.
 */
static bool is_wait(const struct doctor_finding *f)
{
    return !f->decisive && !f->raised && (f->cls == DOCTOR_COMM || f->cls == DOCTOR_HANG) &&
           !doctor_phase_late(f->phase);
}

/* Memory that a start asked for in vain and did without: pinned buffers, a larger pool. */
static bool is_done_without(const struct doctor_finding *f)
{
    return !f->decisive && !f->raised &&
           (f->cls == DOCTOR_STARTUP_OOM || f->cls == DOCTOR_DEVICE_OOM ||
            f->cls == DOCTOR_HOST_OOM);
}

/* A start that fell by an exception: memory that grows and a cache that is full did not do it. */
static bool fell_at_start(const struct doctor_finding *all, uint32_t count, uint32_t life)
{
    for (uint32_t i = 0; i < count; i++) {
        const struct doctor_finding *f = &all[i];
        if (f->decisive && f->raised && f->life == life && !doctor_phase_late(f->phase))
            return true;
    }
    return false;
}

static void lower_remarks(struct doctor_finding *all, uint32_t count)
{
    uint32_t decisive = 0;
    uint64_t first = 0, last = 0;
    for (uint32_t i = 0; i < count; i++) {
        if (all[i].decisive) {
            decisive = all[i].rank;
            first = all[i].first_line;
            last = all[i].last_line;
        }
    }
    for (uint32_t i = 0; i < count && decisive >= SURE; i++) {
        struct doctor_finding *f = &all[i];
        bool message = f->last_line > first && f->last_line + MESSAGE_LINES >= last &&
                       f->last_line <= last + MESSAGE_LINES;
        if (!is_remark(f) || f->rank < decisive)
            continue;
        f->rank = message ? decisive + 1 : decisive - 1;
    }
}

/* What warnings are enough for: a server that serves on, but badly. */
static bool goes_on(enum doctor_class cls)
{
    return cls == DOCTOR_KV_PRESSURE || cls == DOCTOR_LEAK || cls == DOCTOR_HANG ||
           cls == DOCTOR_PREFIX;
}

/* A general signature whose numbers say what another one is about is told after it: the remedies
 * for memory in pieces come before those for too little of it. */
static void rank(struct doctor_finding *all, uint32_t count, uint32_t life)
{
    bool fell = fell_at_start(all, count, life);
    for (uint32_t i = 0; i < count; i++) {
        struct doctor_finding *f = &all[i];
        bool outlived = f->outlived && (is_remark(f) || is_wait(f) || is_done_without(f));
        f->rank = f->signature->rank;
        f->explains = !outlived && (f->firm || (goes_on(f->cls) && f->happened && !fell));
        if (f->rank <= PRESSURE && f->explains)
            continue;
        if (!f->firm || outlived)
            f->rank = f->rank < DOCTOR_CONSEQUENCE ? f->rank : DOCTOR_CONSEQUENCE - 1;
        else if (f->decisive && !f->signature->general) /* of a headline the last is no cause */
            f->rank += FIRST_GAIN;
    }
    lower_remarks(all, count);
    for (uint32_t i = 0; i < count; i++) {
        struct doctor_finding *own = &all[i];
        for (uint32_t k = 0; k < count; k++) {
            const struct doctor_finding *general = &all[k];
            if (own->signature->cls != DOCTOR_FRAG_OOM || general->cls != DOCTOR_FRAG_OOM ||
                general->signature->cls != DOCTOR_DEVICE_OOM ||
                general->last_line != own->last_line)
                continue;
            doctor_resolve_add(&own->numbers, &general->numbers);
            if (own->rank <= general->rank)
                own->rank = general->rank + 1;
        }
    }
}

/* What only says that something died gives way to a cause of an older life: the last may have been
 * cut off, or ended by an operator. */
static void promote(struct doctor_finding *all, uint32_t count)
{
    uint32_t best = 0;
    for (uint32_t i = 1; i < count; i++) {
        if (all[0].rank < DOCTOR_CONSEQUENCE && all[i].rank >= DOCTOR_CONSEQUENCE &&
            all[best].rank < DOCTOR_CONSEQUENCE)
            best = i;
    }
    if (best == 0)
        return;
    struct doctor_finding main = all[best];
    memmove(&all[1], &all[0], best * sizeof(main));
    all[0] = main;
}

/* Of one process: a request was refused, or something else was said in no exception, and then
 * others were answered well. What it is by its kind has not ended: a cache that is full, memory
 * that grows, and a fault of the machine may well come back. */
static bool went_on(const struct doctor_finding *f, const struct doctor_whole *whole)
{
    if (whole->works <= f->last_line || f->life != whole->life)
        return false;
    return f->cls == DOCTOR_CLIENT ||
           (!f->raised &&
            (f->cls == DOCTOR_BUILD || f->cls == DOCTOR_CONFIG || f->cls == DOCTOR_FILES ||
             f->cls == DOCTOR_BUG || f->cls == DOCTOR_COMM || f->cls == DOCTOR_STARTUP_OOM));
}

/* Weak evidence but a general entry, see weigh.h. GONE_ON was chosen on five sets; 10 to 40 lines
 * do the same. */
static bool is_weak(const struct doctor_finding *f, const struct doctor_whole *whole)
{
    if (went_on(f, whole))
        return true;
    if (f->decisive || f->raised)
        return false;
    if (f->phase == DOCTOR_PHASE_STOPPING)
        return true;
    return f->life == whole->life && !doctor_phase_late(f->phase) && !goes_on(f->cls) &&
           whole->lines - f->last_line >= GONE_ON;
}

void doctor_weigh(struct doctor_finding *findings, uint32_t count, const struct doctor_whole *whole)
{
    rank(findings, count, whole->life);
    qsort(findings, count, sizeof(*findings), weigh_compare);
    promote(findings, count);
    for (uint32_t i = 0; i < count; i++) {
        struct doctor_finding *f = &findings[i];
        bool weak = is_weak(f, whole);
        f->probable = weak || f->signature->general;
        f->may_pass = weak || (f->signature->general && !f->signature->final);
    }
}
