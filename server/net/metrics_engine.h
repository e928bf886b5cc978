/* The figures of the engine and its devices, as families of the page. Called by metrics.c alone. */
#pragma once

struct ek_expo;
struct engine_stats;
struct http;
struct served;

/* All of them, in the order of metric_names.h; `e` has the labels that they share. */
void metrics_engine_write(struct ek_expo *e, const struct http *h, const struct served *s,
                          const struct engine_stats *st);
