/*
 * A backend around a real one whose steps lack memory now and then: before they begin (the arena,
 * the device), or half-way: then some of the block copies are not done, wrong tokens are computed
 * into the places that the step would have written, and the result says -ENOMEM or EK_EDEVMEM. A
 * pool that is to become larger may be refused. Failures come in runs of at most FAULTY_RUN, so
 * that a request ends for some of them and the engine never gives up. Header only, for one test
 * program. Engine thread, but for the counters.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/backend.h"

#define FAULTY_RUN 5u

struct faulty {
    const struct ek_backend *real;
    struct ek_device *device;
    uint64_t rng;
    uint32_t fail_ppm, vocab, run; /* run: failures in a row */
    uint32_t blocks;               /* that the pool has */
    struct {
        uint64_t id; /* of a step that fails half-way, 0 = none */
        int code;
        struct ek_step *step;
    } broken[2]; /* by the id's last bit */
    atomic_uint failed_starts, failed_steps, failed_resizes;
};

static inline struct faulty *faulty_of(struct ek_device *d)
{
    return (struct faulty *)(void *)d;
}

static inline uint64_t faulty_draw(struct faulty *f)
{
    uint64_t z = f->rng += 0x9e3779b97f4a7c15ull;
    z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ z >> 27) * 0x94d049bb133111ebull;
    return z ^ z >> 31;
}

/* Once it fails it is likely to fail again. */
static inline bool faulty_now(struct faulty *f)
{
    uint64_t ppm = f->run > 0 ? 600000 : f->fail_ppm;

    if (f->fail_ppm == 0 || f->run >= FAULTY_RUN || faulty_draw(f) % 1000000 >= ppm) {
        f->run = 0;
        return false;
    }
    f->run++;
    return true;
}

/* A copy of the step that does half of its copies and computes other tokens. */
static inline struct ek_step *faulty_break(struct faulty *f, const struct ek_step *step)
{
    struct ek_step *copy = malloc(step->bytes);

    if (!copy)
        abort();
    memcpy(copy, step, step->bytes);
    copy->copies /= 2;
    for (uint32_t i = 0; i < copy->rows; i++)
        if (ek_step_tokens(copy)[i] != EK_FROM_PREVIOUS)
            ek_step_tokens(copy)[i] = (int32_t)(faulty_draw(f) % f->vocab);
    return copy;
}

static inline int faulty_forward(struct ek_device *d, const struct ek_step *step)
{
    struct faulty *f = faulty_of(d);

    if (!faulty_now(f))
        return f->real->forward(f->device, step);
    int code = faulty_draw(f) % 2 == 0 ? -ENOMEM : EK_EDEVMEM;
    if (faulty_draw(f) % 2 == 0) {
        atomic_fetch_add(&f->failed_starts, 1);
        return code;
    }
    struct ek_step *broken = faulty_break(f, step);
    int r = f->real->forward(f->device, broken);
    if (r != 0) {
        free(broken);
        return r;
    }
    f->broken[step->id & 1].id = step->id;
    f->broken[step->id & 1].code = code;
    f->broken[step->id & 1].step = broken;
    atomic_fetch_add(&f->failed_steps, 1);
    return 0;
}

static inline int faulty_sample(struct ek_device *d, const struct ek_step *step,
                                const struct ek_masks *masks)
{
    struct faulty *f = faulty_of(d);
    bool broken = f->broken[step->id & 1].id == step->id;

    return f->real->sample(f->device, broken ? f->broken[step->id & 1].step : step, masks);
}

static inline int faulty_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result,
                              size_t bytes, uint64_t timeout_us)
{
    struct faulty *f = faulty_of(d);
    int r = f->real->wait(f->device, id, ret_result, bytes, timeout_us);

    if (r != 0 || f->broken[id & 1].id != id)
        return r;
    ret_result->error = f->broken[id & 1].code;
    free(f->broken[id & 1].step);
    f->broken[id & 1].id = 0;
    f->broken[id & 1].step = NULL;
    return 0;
}

static inline int faulty_kv_resize(struct ek_device *d, uint32_t blocks)
{
    struct faulty *f = faulty_of(d);

    if (blocks > f->blocks && f->fail_ppm != 0 && faulty_draw(f) % 3 == 0) {
        atomic_fetch_add(&f->failed_resizes, 1);
        return EK_EDEVMEM;
    }
    int r = f->real->kv_resize(f->device, blocks);
    if (r == 0)
        f->blocks = blocks;
    return r;
}

static const struct ek_backend faulty_backend = {
    .abi = EK_BACKEND_ABI,
    .size = sizeof(struct ek_backend),
    .name = "faulty",
    .kv_resize = faulty_kv_resize,
    .forward = faulty_forward,
    .sample = faulty_sample,
    .wait = faulty_wait,
};
