/*
 * How the next token of a sequence is drawn, as plain data. One struct goes from the request's body
 * (server/api) through the request (server/engine) to the slot of a step (kernels/step.h), copied
 * as a whole: what is put in at one end comes out at the other. The order in which a backend
 * applies the fields is told in kernels/cpu/sample.c and adjust.c.
 *
 * A new field is written here with its neutral value and its bounds; docs/architecture.md lists the
 * other files.
 */
#pragma once

#include <float.h>
#include <stdbool.h>
#include <stdint.h>

struct ek_sampling {
    uint64_t seed;  /* the random number of a token is a function of (seed, its position) alone */
    uint32_t top_k; /* 0 = off */
    float temperature;         /* 0 = greedy */
    float top_p, min_p;        /* 1 and 0 = off */
    float typical_p;           /* 0 or 1 = off */
    float frequency, presence; /* penalties of what was sampled, 0 = off */
    float repetition;          /* penalty of all the history, 0 or 1 = off */
};

/* Draws by the model's probabilities as they are. An initializer. */
#define EK_SAMPLING_NEUTRAL                                                                        \
    {                                                                                              \
        .temperature = 1, .top_p = 1, .typical_p = 1, .repetition = 1                              \
    }

/* A field's value of a number from outside. What is above 0 stays so: a double may be too small for
 * a float, and 0 often means off. */
static inline float ek_sampling_value(double v)
{
    return v > 0 && v < (double)FLT_MIN ? FLT_MIN : (float)v;
}

/* Whether a backend can work with it. */
static inline bool ek_sampling_fits(const struct ek_sampling *s)
{
    return s->temperature >= 0.0f && s->temperature <= FLT_MAX && s->top_p > 0.0f &&
           s->top_p <= 1.0f && s->min_p >= 0.0f && s->min_p <= 1.0f && s->typical_p >= 0.0f &&
           s->typical_p <= 1.0f && s->frequency >= -FLT_MAX && s->frequency <= FLT_MAX &&
           s->presence >= -FLT_MAX && s->presence <= FLT_MAX && s->repetition >= 0.0f &&
           s->repetition <= FLT_MAX;
}

/* Whether a token depends on those before it by more than the model. */
static inline bool ek_sampling_penalizes(const struct ek_sampling *s)
{
    return s->frequency != 0.0f || s->presence != 0.0f ||
           (s->repetition != 0.0f && s->repetition != 1.0f);
}
