/*
 * Ways of doing the same that only a card can choose between: each is a variable of the
 * environment, read when a model is loaded. The first value is taken unless another is named, and
 * no value changes which token is sampled from the same logits. tools/gpu_run.py measures them
 * (sections ab-*); what has won becomes the first value, and its variable goes.
 *
 * Tried on an H200 and left out: programmatic dependent launch (a decode of 1 the same, top-p a
 * third slower), copies ahead to shared memory of keys and values (15 us a layer against 22 for 1
 * sequence, but 446 against 336 for 256) and of weights (a decode of 8 17 % slower).
 */
#include "kernels/cuda/choices.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/cuda/cuda.h"

#define MOST_VALUES 4

static const struct choice {
    const char *name, *value[MOST_VALUES];
    size_t at;
} g_choices[] = {
    {"EVENKEEL_CUDA_SWAP", {"inline", "beside"}, offsetof(struct cuda_choices, swap)},
    {"EVENKEEL_CUDA_EXPERTS", {"16", "32", "64"}, offsetof(struct cuda_choices, experts)},
    {"EVENKEEL_CUDA_GEMV", {"plain", "ahead"}, offsetof(struct cuda_choices, ahead)},
    {"EVENKEEL_CUDA_SKINNY", {"off", "on"}, offsetof(struct cuda_choices, skinny)},
    {"EVENKEEL_CUDA_GLU", {"apart", "joined"}, offsetof(struct cuda_choices, glu)},
    {"EVENKEEL_CUDA_CARVEOUT", {"driver", "0", "50", "100"}, offsetof(struct cuda_choices, carve)},
};

void cuda_note(struct ek_device *d, const char *format, ...)
{
    const size_t at = strlen(d->note), space = at > 0;
    va_list args;

    if (at + space + 1 >= sizeof(d->note))
        return;
    d->note[at] = ' ';
    d->note[at + space] = '\0';
    va_start(args, format);
    (void)vsnprintf(d->note + at + space, sizeof(d->note) - at - space, format, args);
    va_end(args);
}

static void note_unknown(struct ek_device *d, const struct choice *c, const char *wanted)
{
    char all[64] = "";

    for (int i = 0; i < MOST_VALUES && c->value[i]; i++)
        (void)snprintf(all + strlen(all), sizeof(all) - strlen(all), "%s%s", i > 0 ? ", " : "",
                       c->value[i]);
    cuda_note(d, "%s is \"%.24s\", which is none of %s: \"%s\" is used.", c->name, wanted, all,
              c->value[0]);
}

void cuda_choices_read(struct ek_device *d)
{
    d->note[0] = '\0';
    for (size_t i = 0; i < sizeof(g_choices) / sizeof(g_choices[0]); i++) {
        const struct choice *c = &g_choices[i];
        const char *wanted = getenv(c->name);
        uint8_t *chosen = (uint8_t *)&d->choices + c->at;
        int v = 0;

        *chosen = 0;
        if (!wanted || !wanted[0])
            continue;
        while (v < MOST_VALUES && c->value[v] && strcmp(c->value[v], wanted) != 0)
            v++;
        if (v < MOST_VALUES && c->value[v])
            *chosen = (uint8_t)v;
        else
            note_unknown(d, c, wanted);
    }
}
