/* Two reports (rows.h) side by side. Pure: from JSON to text. */
#pragma once

#include <jansson.h>

struct ek_buf;
struct ek_fault;

/* Appends a table to out. *ret_worse: cells of both in which b is worse than a by more than the
 * share `tolerance` while the spreads do not overlap. More is better, but for times. -EBADMSG with
 * a fault when one is no report, -ENOMEM. */
int compare_reports(const json_t *a, const json_t *b, double tolerance, struct ek_buf *out,
                    unsigned *ret_worse, struct ek_fault *fault);
