/*
 * What the server exports: the page made of metric_names.h and copies of the layers' plain
 * counters. Rendered by an HTTP thread.
 */
#pragma once

#include "common/metrics.h"
#include "server/net/metric_names.h"

struct http;
struct route;

/* The page; while loading it has the process and HTTP numbers only. */
int metrics_write(struct http *h, enum ek_expo_format format, bool whole, struct ek_buf *out);
/* One line per name: name, type, labels, help. */
int metrics_reference(struct ek_buf *out);
/* An answer was sent, status 0 = none was. route NULL = unknown path. */
void metrics_count(struct http *h, const struct route *route, int status);
