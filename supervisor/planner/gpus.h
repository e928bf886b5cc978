/*
 * Cards as data: what fits and how fast it can be is arithmetic over this table. Memory is what a
 * program sees (torch's "total capacity"), bandwidth and dense arithmetic are the makers' figures.
 */
#pragma once

#include <stdint.h>

#include "supervisor/planner/speed.h"

struct ek_buf;

struct plan_gpu {
    const char *name; /* "a100-80" */
    const char *text; /* "NVIDIA A100 80 GB" */
    double memory_gib;
    double read_gbs;    /* device memory */
    double bf16_tflops; /* dense; 0 = none: float16 counts */
    double f8_tflops;   /* 0 = computes it as bf16 */
    double link_gbs;    /* to a neighbour, one direction; PCIe where there is no other */
    const char *source;
};

/* By name; upper case, blanks and underscores do not matter. NULL: no such card. */
const struct plan_gpu *plan_gpu_find(const char *name);
/* How fast it is; NULL: two slow cores of a CPU that was not measured. */
struct plan_device plan_gpu_speed(const struct plan_gpu *g);
/* The card at i, NULL after the last. */
const struct plan_gpu *plan_gpu_at(uint32_t i);
/* "a10, a100-40, ...": for messages. */
void plan_gpu_names(struct ek_buf *out);
/* The Markdown table of docs/planning.md. */
void plan_gpu_page(struct ek_buf *out);
