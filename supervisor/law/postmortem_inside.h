/* What the files of the postmortem share; no other file includes this. */
#pragma once

#include "supervisor/law/postmortem.h"

/* Requests that arrived and did not end, as far as the ring goes back. */
struct postmortem_alive {
    uint32_t count, longest_prompt, most_tokens, grammars;
    uint32_t *at; /* their records, the oldest first; freed by the caller */
};

/* Without memory none is found. */
void postmortem_find_alive(const struct ek_recorded *r, struct postmortem_alive *ret);
/* A step that began and is in no record of one that landed, failed or was taken back, nor is one
 * done that began after it. */
bool postmortem_in_flight(const struct ek_recorded *r, const struct ek_recorder_step *begun);
/* Of the steps' time, 0 without steps. */
uint32_t postmortem_median(const struct ek_recorder_step *steps, uint32_t count);
/* The end on the recorder's clock: when it was seen, or the last record if that is later or it
 * was not seen. */
uint64_t postmortem_end_us(const struct postmortem *p, const struct ek_recorded *r);
/* Appends what a replay needs: "workload":{...}. */
void postmortem_workload(const struct ek_recorded *r, struct ek_buf *out);
