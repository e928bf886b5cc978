/*
 * The forms of products: a weight is multiplied by the functions of a tier, its own device's or
 * another one of this machine, and lies in memory as they want it. Everything else (norms,
 * attention, the KV cache) is the device's tier's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/product_forms.h"

struct cpu_ops;
struct cpu_weight;
struct ek_device;
struct ek_graph;

/* Adds the fastest form of each shape of weights in the graph that is not there, or is one that
 * this machine does not know, beside what the device's tier would take. Some 20 ms for a shape. 0,
 * -ENOMEM. */
int cpu_forms_choose(const struct cpu_ops *own, const struct ek_graph *g, struct ek_forms *forms);
/* Pure. Which of `count` forms is taken: times as fast as the first one, which is the tier's own,
 * and how much their inputs are rounded (more counts as worse). */
uint32_t cpu_forms_best(const double *times, const uint32_t *rounding, uint32_t count);
/* Tells each weight of the device its form: that of the table, or of the device's tier (in which
 * widening is measured, as it changes no bits). */
void cpu_forms_apply(struct ek_device *d, const struct ek_forms *forms);
