/*
 * Kinds of a lack of memory by their numbers. Pure.
 */
#pragma once

#include "supervisor/doctor/finding.h"

/* Which kind of device OOM the numbers show (requested, free, reserved, capacity). */
enum doctor_class doctor_resolve(enum doctor_class cls, const struct doctor_numbers *n,
                                 enum doctor_phase phase);
/* The finding's kind, its numbers completed by the log's own facts; and the facts about them that
 * its remedies ask ("is_startup", "is_not_full"). */
void doctor_resolve_finding(struct doctor_finding *f, const struct doctor_numbers *facts);
/* The numbers of others that a finding lacks; its own win. */
void doctor_resolve_add(struct doctor_numbers *n, const struct doctor_numbers *others);
