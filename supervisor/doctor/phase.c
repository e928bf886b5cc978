/*
 * Names of the phases of a server's life for output, and which of them come before it serves;
 * resolve.c, weigh.c and flow.c decide by that whether a lack of memory is one of the start.
 */
#include "supervisor/doctor/phase.h"

bool doctor_phase_early(enum doctor_phase p)
{
    return p == DOCTOR_PHASE_STARTING || p == DOCTOR_PHASE_WARMUP;
}

bool doctor_phase_late(enum doctor_phase p)
{
    return p == DOCTOR_PHASE_READY || p == DOCTOR_PHASE_STOPPING;
}

const char *doctor_phase_name(enum doctor_phase p)
{
    static const char *const names[] = {"unknown", "starting", "ready", "warm-up", "stopping"};
    return names[p];
}
