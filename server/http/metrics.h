/*
 * What the server exports: one table of names (vLLM's V1 names byte for byte, then evenkeel_*), and
 * the page made from copies of the layers' plain counters. Rendered by an HTTP thread.
 */
#pragma once

#include "common/metrics.h"
#include "server/http/inside.h"

extern const struct ek_metric metrics_table[];

/* The page; while loading it has the process and HTTP numbers only. */
int metrics_write(struct http *h, enum ek_expo_format format, struct ek_buf *out);
/* One line per name: name, type, labels, help. */
int metrics_reference(struct ek_buf *out);
/* An answer was sent, status 0 = none was. route NULL = unknown path. */
void metrics_count(struct http *h, const struct route *route, int status);
