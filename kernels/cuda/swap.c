/*
 * The block copies of a step, between the card's pool and the host tier and inside each.
 *
 * inline   on the stream of the computation: each step's copies end before its forward begins, and
 *          begin when the step before has ended.
 * beside   on a stream of their own, as EVENKEEL_CUDA_SWAP says. Copies are in the order of steps
 *          there, and wait for computing only where both touch a block:
 *
 *              the step in flight ──ordered──► copies          if one of its blocks is copied
 *              copies ──copies──► this step's forward          if it reads or writes one of them
 *              copies ──copies──► what this step has sampled   always
 *
 * So a sequence that goes is written while others compute, and one that comes is read while the
 * step before computes. Behind a step's end its copies are done, whichever way; nothing is left to
 * the next one. Which blocks both touch is decided here, on the host, from the steps alone.
 */
#include "kernels/cuda/swap.h"

#include <errno.h>
#include <stdlib.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kv.h"

int cuda_swap_open(struct ek_device *d)
{
    int result = CU_OK;

    if (d->choices.swap == SWAP_INLINE)
        return 0;
    result = d->cu.stream_new(&d->swapper, CU_STREAM_NON_BLOCKING);
    if (result == CU_OK)
        result = d->cu.event_new(&d->ordered, CU_EVENT_NO_TIMES);
    return cu_code(result);
}

void cuda_swap_close(struct ek_device *d)
{
    (void)cuda_swap_settle(d);
    if (d->ordered)
        (void)d->cu.event_free(d->ordered);
    if (d->swapper)
        (void)d->cu.stream_free(d->swapper);
    d->swapper = d->ordered = NULL;
}

int cuda_swap_settle(struct ek_device *d)
{
    return d->swapper ? cu_code(d->cu.stream_wait(d->swapper)) : 0;
}

static int by_number(const void *a, const void *b)
{
    const uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return (x > y) - (x < y);
}

/* The card's blocks that a step copies from or to, in order; how many. */
static uint32_t copied_blocks(const struct ek_step *step, uint32_t *ret_blocks)
{
    const struct ek_block_copy *c = ek_step_copies(step);
    uint32_t count = 0;

    for (uint32_t i = 0; i < step->copies; i++) {
        if (c[i].from_tier == EK_TIER_DEVICE)
            ret_blocks[count++] = c[i].from;
        if (c[i].to_tier == EK_TIER_DEVICE)
            ret_blocks[count++] = c[i].to;
    }
    qsort(ret_blocks, count, sizeof(*ret_blocks), by_number);
    return count;
}

static bool is_among(const uint32_t *blocks, uint32_t count, uint32_t block)
{
    uint32_t from = 0, to = count;

    while (from < to) {
        const uint32_t middle = (from + to) / 2;
        if (blocks[middle] < block)
            from = middle + 1;
        else
            to = middle;
    }
    return from < count && blocks[from] == block;
}

/* Whether a step's forward reads or writes one of these blocks. */
static bool computes_in(const struct ek_step *step, uint32_t shift, const uint32_t *blocks,
                        uint32_t count)
{
    bool found = false;

    for (uint32_t i = 0; !found && i < step->entries; i++)
        found = is_among(blocks, count, ek_step_tables(step)[i]);
    for (uint32_t i = 0; !found && i < step->rows; i++)
        found = is_among(blocks, count, ek_step_kv_slots(step)[i] >> shift);
    return found;
}

bool cuda_swap_meets(const struct ek_step *copies, const struct ek_step *forward, uint32_t shift,
                     uint32_t *work)
{
    const uint32_t count = copied_blocks(copies, work);

    return count > 0 && computes_in(forward, shift, work, count);
}

/* On d->swapper, once what is in flight is done with the blocks. */
static int copy_beside(struct ek_device *d, struct cuda_flight *f, const struct cuda_flight *other,
                       const struct ek_step *step)
{
    const uint32_t shift = d->shape.block_shift;
    int r = 0;

    if (other->state != CUDA_FREE && other->error == 0 &&
        cuda_swap_meets(step, other->step, shift, d->swap_work)) {
        r = cu_code(d->cu.event_record(d->ordered, d->stream));
        if (r == 0)
            r = cu_code(d->cu.stream_await(d->swapper, d->ordered, 0));
    }
    if (r == 0)
        r = cu_code(d->cu.event_record(f->copying, d->swapper));
    if (r == 0)
        r = cuda_kv_copies(d, step, d->swapper);
    if (r == 0)
        r = cu_code(d->cu.event_record(f->copies, d->swapper));
    f->late = r == 0 && !cuda_swap_meets(step, step, shift, d->swap_work);
    return r < 0 || f->late ? r : cu_code(d->cu.stream_await(d->stream, f->copies, 0));
}

int cuda_swap_begin(struct ek_device *d, struct cuda_flight *f, const struct cuda_flight *other,
                    const struct ek_step *step)
{
    f->copied = step->copies > 0;
    f->late = false;
    if (!f->copied)
        return 0;
    int r = cuda_kv_copies_check(d, step);
    if (r < 0)
        return r;
    if (d->swapper)
        return copy_beside(d, f, other, step);
    r = cu_code(d->cu.event_record(f->copying, d->stream));
    if (r == 0)
        r = cuda_kv_copies(d, step, d->stream);
    return r < 0 ? r : cu_code(d->cu.event_record(f->copies, d->stream));
}

int cuda_swap_end(struct ek_device *d, const struct cuda_flight *f)
{
    return f->copied && f->late ? cu_code(d->cu.stream_await(d->stream, f->copies, 0)) : 0;
}
