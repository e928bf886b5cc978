/*
 * What is kept of a server's end: the verdict, the last minute of its flight recorder second by
 * second with the last steps and the requests that had not ended, and what evenkeeld saw of it from
 * outside. Pure: a recording in, a JSON document and a few sentences out.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/recorder_read.h"

struct ek_buf;

#define POSTMORTEM_S        60u  /* before the last record */
#define POSTMORTEM_STEPS    64u  /* told one by one */
#define POSTMORTEM_REQUESTS 256u /* told one by one */
#define POSTMORTEM_LOSSES   8u
#define POSTMORTEM_PACE     600u  /* seconds of which the pace is told */
#define POSTMORTEM_LOAD     4096u /* requests that a replay runs, the newest */

/* What evenkeeld knows itself. Text may be anything. */
struct postmortem {
    const char *server, *engine, *cls, *why;
    int pid;
    bool starting;    /* it had not been ready */
    bool unseen;      /* it was not watched: the end was found later, and was at the last record */
    uint64_t wall_us; /* when the end was seen or found */
    uint64_t now_us;  /* the same on the recorder's clock, CLOCK_MONOTONIC */
    double uptime_s;  /* until then, 0 = not known */
    double resident, cgroup, cgroup_most; /* bytes, looked at last; NAN = not known */
    const char *lacks;                    /* why there is no recording, NULL = there is one */
    const char *samples;                  /* JSON of history_json(): what was seen from outside */
    /* Ends of its engine's process alone, the oldest first; `loss_count` of them are known. */
    struct postmortem_loss {
        uint64_t wall_us;
        char cls[24], said[200];
    } loss[POSTMORTEM_LOSSES];
    uint32_t loss_count, losses; /* losses: all of them */
};

/* When it ended on the wall clock: what the document says. */
uint64_t postmortem_wall_us(const struct postmortem *p, const struct ek_recorded *rec);
/* Appends the document. `rec` is NULL where there is none. 0 or -ENOMEM. */
int postmortem_json(const struct postmortem *p, const struct ek_recorded *rec, struct ek_buf *out);
/* Appends the sentences as a JSON list: what a reader would look for first. */
void postmortem_summary(const struct postmortem *p, const struct ek_recorded *rec,
                        struct ek_buf *out);
