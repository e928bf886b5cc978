/* The thread of a device, and the jobs that it is given. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct cpu_worker;
struct ek_device;
struct ek_masks;
struct ek_plan_request;
struct ek_result;
struct ek_step;

int cpu_worker_new(struct ek_device *d, struct cpu_worker **ret_worker);
void cpu_worker_free(struct cpu_worker *w);
int cpu_worker_ready(struct cpu_worker *w, const struct ek_plan_request *q); /* at load: results */
bool cpu_worker_idle(struct cpu_worker *w);
int cpu_worker_forward(struct cpu_worker *w, const struct ek_step *step);
int cpu_worker_sample(struct cpu_worker *w, const struct ek_step *step,
                      const struct ek_masks *masks);
int cpu_worker_wait(struct cpu_worker *w, uint64_t id, struct ek_result *ret_result, size_t bytes,
                    uint64_t timeout_us);
