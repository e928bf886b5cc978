/* Where in its life a server was when something was said or failed. */
#pragma once

#include <stdbool.h>

enum doctor_phase {
    DOCTOR_PHASE_UNKNOWN,
    DOCTOR_PHASE_STARTING,
    DOCTOR_PHASE_READY,
    DOCTOR_PHASE_WARMUP, /* of the start: loaded, not ready */
    DOCTOR_PHASE_STOPPING
};

/* "starting", "serving"; a start includes its warm-up. */
const char *doctor_phase_name(enum doctor_phase p);
bool doctor_phase_early(enum doctor_phase p);
/* It has come to serve: it does, or stops. */
bool doctor_phase_late(enum doctor_phase p);
