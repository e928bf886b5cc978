/*
 * Puts the findings of a log in order, the one that explains it first. Pure.
 */
#pragma once

#include <stdint.h>

#include "supervisor/doctor/finding.h"

/* Ranks and sorts; life: the log's last start. Notes which findings explain something. */
void doctor_weigh(struct doctor_finding *findings, uint32_t count, uint32_t life);
