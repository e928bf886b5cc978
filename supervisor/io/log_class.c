/*
 * Scans the end of a log with the doctor's catalog when a server has ended (servers/ended.c) and
 * maps the finding to a class of oom.h with its sentence and the flowchart's answers. The catalog
 * is loaded anew each time: failures are rare, and an operator may have changed the local one.
 */
#include "supervisor/io/log_class.h"

#include <malloc.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/file.h"
#include "supervisor/doctor/scan.h"

#define FILE_MOST  (1u << 20)
#define RANK_LEAST 40u /* below: consequences and remarks */

/* CRASH_UNKNOWN: no reason to end. */
static enum crash_class class_of(enum doctor_class c)
{
    switch (c) {
    case DOCTOR_DEVICE_OOM: return CRASH_BURST_OOM; /* numbers and phase say which */
    case DOCTOR_STARTUP_OOM: return CRASH_STARTUP_OOM;
    case DOCTOR_BURST_OOM: return CRASH_BURST_OOM;
    case DOCTOR_FRAG_OOM: return CRASH_FRAG_OOM;
    case DOCTOR_HOST_OOM: return CRASH_HOST_OOM;
    case DOCTOR_BUILD:
    case DOCTOR_FILES: /* the same start fails again, too */
    case DOCTOR_CONFIG: return CRASH_CONFIG;
    case DOCTOR_PORT: return CRASH_PORT;
    case DOCTOR_DISK: return CRASH_DISK;
    case DOCTOR_HANG: return CRASH_HANG_KILLED;
    case DOCTOR_DEVICE: return CRASH_DEVICE;
    case DOCTOR_COMM: return CRASH_COMM;
    case DOCTOR_PREFIX:
    case DOCTOR_OVERLOAD:
    case DOCTOR_KV_PRESSURE:
    case DOCTOR_CLIENT:
    case DOCTOR_LEAK:
    case DOCTOR_SIGNAL: /* the status says it better */
    case DOCTOR_BUG:
    case DOCTOR_CLASSES: break;
    }
    return CRASH_UNKNOWN;
}

static struct doctor_catalog *log_class_load(const char *site)
{
    struct doctor_catalog *c = NULL;
    struct ek_buf own = {0};
    bool has = site && ek_file_read_linked(site, FILE_MOST, &own) == 0; /* not waiting */
    int r = doctor_catalog_new(site, has ? own.data : NULL, own.len, &c, NULL);
    ek_buf_done(&own);
    if (r < 0 && has && doctor_catalog_new(NULL, NULL, 0, &c, NULL) < 0)
        return NULL;
    return c;
}

/* The best of the findings that is a reason to end. The end of a process is none that a class comes
 * from, but what ranks below it follows from it: a queue that broke, a rank that was lost. */
static bool log_class_take(const struct doctor_finding *f, uint32_t count,
                           struct crash_found *ret_found)
{
    for (uint32_t i = 0; i < count; i++) {
        enum crash_class cls = class_of(f[i].cls);
        if (f[i].cls == DOCTOR_SIGNAL && f[i].rank >= RANK_LEAST)
            return false;
        if (cls == CRASH_UNKNOWN || f[i].rank < RANK_LEAST)
            continue;
        *ret_found = (struct crash_found){.cls = cls, .weak = f[i].may_pass};
        (void)snprintf(ret_found->id, sizeof(ret_found->id), "%s", f[i].signature->id);
        (void)snprintf(ret_found->title, sizeof(ret_found->title), "%s",
                       f[i].signature->title.in[LANG_EN]);
        if (f[i].evidence_count > 0)
            (void)snprintf(ret_found->line, sizeof(ret_found->line), "%.150s",
                           f[i].evidence[f[i].evidence_count - 1].text);
        return true;
    }
    return false;
}

bool log_class_find(const char *site, enum crash_phase phase, const char *log, size_t len,
                    struct crash_found *ret_found)
{
    struct doctor_catalog *c = log && len > 0 ? log_class_load(site) : NULL;
    struct doctor_scan *s = NULL;
    const struct doctor_finding *f;
    uint32_t count;
    bool found = false;
    if (c && doctor_scan_new(c, &s) == 0) {
        doctor_scan_phase(s, phase == PHASE_STARTING ? DOCTOR_PHASE_STARTING : DOCTOR_PHASE_READY);
        doctor_scan_feed(s, log, len);
        found = doctor_scan_finish(s, &f, &count) == 0 && log_class_take(f, count, ret_found);
    }
    doctor_scan_free(s);
    doctor_catalog_free(c);
    if (c)
        (void)malloc_trim(0); /* 16 MiB of compiled patterns, needed again at the next failure */
    return found;
}

bool crash_questions(const struct crash_verdict *v, enum crash_phase phase,
                     const struct crash_cache *cache,
                     struct doctor_step ret_steps[DOCTOR_QUESTIONS])
{
    struct doctor_numbers n = {0};
    enum doctor_class cls = v->cls == CRASH_STARTUP_OOM ? DOCTOR_STARTUP_OOM
                            : v->cls == CRASH_BURST_OOM ? DOCTOR_BURST_OOM
                            : v->cls == CRASH_FRAG_OOM  ? DOCTOR_FRAG_OOM
                                                        : DOCTOR_CLASSES;
    if (cls == DOCTOR_CLASSES)
        return false;
    if (v->numbers.requested) {
        doctor_numbers_set(&n, "requested", (double)v->numbers.requested, true);
        doctor_numbers_set(&n, "free", (double)v->numbers.free, true);
        doctor_numbers_set(&n, "reserved", (double)v->numbers.reserved, true);
    }
    if (isfinite(cache->hit_frac))
        doctor_numbers_set(&n, "hit_rate_percent", 100 * cache->hit_frac, false);
    if (isfinite(cache->cached_frac))
        doctor_numbers_set(&n, "cached_percent", 100 * cache->cached_frac, false);
    doctor_flow(cls, phase == PHASE_STARTING ? DOCTOR_PHASE_STARTING : DOCTOR_PHASE_READY, &n,
                ret_steps);
    return true;
}

void crash_questions_text(const struct doctor_step steps[DOCTOR_QUESTIONS], char text[200])
{
    static const char *const names[DOCTOR_QUESTIONS] = {"before it was ready", "in a burst",
                                                        "memory in pieces", "prefix cache"};
    int at = snprintf(text, 200, "Asked in order:");
    for (int i = 0; i < DOCTOR_QUESTIONS && at > 0 && at < 200; i++)
        at += snprintf(text + at, 200 - (size_t)at, "%s %s? %s", i ? ";" : "", names[i],
                       doctor_answer(steps[i].answer, LANG_EN));
}
