/*
 * Recurrent states on the card: one buffer with a run of f32 for each slot of a sequence, and
 * snapshots of such runs behind them (see step.h). Kernels take a state as zero where a sequence
 * begins, so nothing is cleared.
 */
#include "kernels/cuda/states.h"

#include <errno.h>
#include <stdlib.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"

static cu_ptr state_at(const struct ek_device *d, uint32_t state)
{
    return d->states.at + state * d->shape.state_bytes;
}

int cuda_states_open(struct ek_device *d, uint32_t states)
{
    const uint32_t seqs = d->plan.ceiling.seqs;
    size_t bytes;

    if (d->shape.state_bytes > 0 && states < seqs)
        return -EINVAL;
    if (__builtin_mul_overflow(d->shape.state_bytes, (size_t)states, &bytes))
        return EK_EDEVMEM;
    d->named = calloc((size_t)seqs + 1, sizeof(*d->named));
    if (!d->named)
        return -ENOMEM;
    if (bytes > 0) {
        int r = cu_code(d->cu.alloc(&d->states.at, bytes));
        if (r < 0) {
            d->states.at = 0;
            return r;
        }
        d->states.bytes = bytes;
    }
    d->state_count = states; /* also of a stage that has none of the layers with state */
    atomic_store(&d->state_bytes, bytes);
    return 0;
}

void cuda_states_close(struct ek_device *d)
{
    if (d->states.at)
        (void)d->cu.free(d->states.at);
    free(d->named);
    d->named = NULL;
    d->states = (struct cuda_buffer){0};
    d->state_count = 0;
    d->checked = 0;
}

/* Asked by the number of states, which all stages have alike: all of them refuse a step. */
int cuda_states_check(struct ek_device *d, const struct ek_step *step)
{
    const struct ek_step_seq *q = ek_step_seqs(step);

    d->checked++;
    for (uint32_t i = 0; d->state_count > 0 && i < step->seqs; i++) {
        uint64_t *named = &d->named[q[i].slot];
        if (*named == d->checked)
            return -EBADMSG;
        *named = d->checked;
    }
    return 0;
}

int cuda_state_copy(struct ek_device *d, uint32_t from, uint32_t to)
{
    const size_t bytes = d->graph->state_floats * sizeof(float);

    if (from == to || bytes == 0)
        return 0;
    return cu_code(d->cu.copy(state_at(d, to), state_at(d, from), bytes, d->stream));
}

/* No step may be writing to it; what the stream still copies is done then. */
static int begin_move(struct ek_device *d, uint32_t state)
{
    if (!d->states.at || state >= d->state_count)
        return -EINVAL;
    return cuda_step_idle(d) ? cu_code(d->cu.stream_wait(d->stream)) : -EBUSY;
}

int cuda_state_read(struct ek_device *d, uint32_t state, void *to)
{
    int r = begin_move(d, state);

    if (r == 0)
        r = cu_code(d->cu.copy_out(to, state_at(d, state), d->shape.state_bytes, d->stream));
    return r < 0 ? r : cu_code(d->cu.stream_wait(d->stream));
}

int cuda_state_write(struct ek_device *d, uint32_t state, const void *from)
{
    int r = begin_move(d, state);

    if (r == 0)
        r = cu_code(d->cu.copy_in(state_at(d, state), from, d->shape.state_bytes, d->stream));
    return r < 0 ? r : cu_code(d->cu.stream_wait(d->stream));
}
