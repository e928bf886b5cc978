#include "supervisor/oom.h"
#include <stdio.h>
struct crash_verdict crash_classify(const struct crash_evidence *e)
{
    struct crash_verdict v = {.cls = e->asked ? CRASH_CLEAN_EXIT : e->killed_for_hang ? CRASH_HANG_KILLED : e->signaled ? CRASH_SIGNAL : e->status == 2 || e->status == 78 ? CRASH_CONFIG: CRASH_UNKNOWN, .retry = true, .remedy = ""};
    if (v.cls == CRASH_CONFIG) v.retry = false;
    (void)snprintf(v.why, sizeof(v.why), "%s %d", e->signaled ? "signal" : "status", e->status);
    return v;
}
const char *crash_name(enum crash_class c)
{
    static const char *const n[] = {"CLEAN_EXIT","STARTUP_OOM","BURST_OOM","FRAG_OOM","HOST_OOM","CONFIG","PORT","DISK","HANG_KILLED","DEVICE","COMM","SIGNAL","UNKNOWN"};
    return n[c];
}
