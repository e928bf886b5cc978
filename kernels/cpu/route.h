/* Which experts compute a row. */
#pragma once

#include <stdint.h>

struct ek_routing;

struct cpu_route {
    uint32_t expert;
    float share;
};
struct cpu_routing {
    const struct ek_routing *routing;
    const float *correction; /* [count], NULL = none */
    const float *each;       /* likewise */
    uint32_t count, top;
    float *scratch; /* [count] */
};
/* Writes `top` experts in order of their number, by the logits [count] of a row. */
void cpu_route(const struct cpu_routing *w, const float *logit, struct cpu_route *to);
