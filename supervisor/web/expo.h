/*
 * evenkeeld's own metrics: the table of names, and the page made from the fleet's counters. Layers
 * keep plain counters; only this file knows the names.
 */
#pragma once

#include "common/metrics.h"

struct ek_buf;
struct fleet;

extern const struct ek_metric expo_table[]; /* name NULL ends */

/* 0 or -ENOMEM. */
int expo_write(const struct fleet *all, enum ek_expo_format format, struct ek_buf *out);
/* One line a name: "NAME counter {labels} help", for the reference. 0 or -ENOMEM. */
int expo_names(struct ek_buf *out);
