/*
 * Puts the findings of a log in order, the one that explains it first, and says which of them rest
 * on so little that their kind is only probable. Pure.
 *
 * Only probable is what rests on one of four weaker kinds of evidence; all else is sure, also a
 * complaint without an exception of a server that serves. On logs that the catalog had not seen
 * every third finding of the first and every second of the others had the wrong kind, and of all
 * others one in twenty (the sets in docs/signatures.md):
 * - a general entry: words that many programs have for that kind, which no program's entry knows,
 *   or a headline that causes of several kinds stand under;
 * - a line beside the failure, in no exception, that a start went on after for many lines;
 * - such a line of a server that was told to stop;
 * - a request that was refused, or what was said in no exception of a start, a setting, a file, a
 *   mistake of the program or a connection, when requests were answered well after it.
 */
#pragma once

#include <stdint.h>

#include "supervisor/doctor/finding.h"

/* What it asks of the whole log. */
struct doctor_whole {
    uint64_t lines;
    uint64_t works; /* the line of the last request that was answered well, 0: none */
    uint32_t life;  /* the last start */
};
/* Ranks and sorts; notes which findings explain something, and which are only probable. */
void doctor_weigh(struct doctor_finding *findings, uint32_t count,
                  const struct doctor_whole *whole);
