/*
 * Recurrent state: a run of f32 for each slot of a sequence, and snapshots of such runs behind them
 * (see step.h). One mapping, whose pages come with their first use.
 */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/shape.h"
#include "kernels/cpu/states.h"

int cpu_states_map(const struct ek_device *d, uint32_t states, struct cpu_memory *ret_memory)
{
    size_t bytes;

    if (d->graph->state_floats > 0 && states < d->plan.ceiling.seqs)
        return -EINVAL;
    if (__builtin_mul_overflow(d->shape.state_bytes, states, &bytes))
        return EK_EDEVMEM;
    return cpu_map(bytes, true, ret_memory);
}

void cpu_state_copy(struct ek_device *d, uint32_t from, uint32_t to)
{
    const size_t bytes = d->graph->state_floats * sizeof(float);

    if (from != to && bytes > 0)
        memcpy(cpu_state(d, to), cpu_state(d, from), bytes);
}

/* Asked by the number of states, which all stages have alike: all of them refuse a step. */
int cpu_states_check(struct ek_device *d, const struct ek_step *step)
{
    const struct ek_step_seq *q = ek_step_seqs(step);

    d->checked++;
    for (uint32_t i = 0; d->state_count > 0 && i < step->seqs; i++) {
        uint64_t *named = &d->slots[q[i].slot].named;
        if (*named == d->checked)
            return -EBADMSG;
        *named = d->checked;
    }
    return 0;
}

void cpu_states_begin(struct ek_device *d, const struct ek_step *step)
{
    const struct ek_step_seq *q = ek_step_seqs(step);

    for (uint32_t i = 0; d->graph->state_floats > 0 && i < step->seqs; i++)
        if (q[i].context == q[i].rows)
            memset(cpu_state(d, q[i].slot), 0, d->graph->state_floats * sizeof(float));
}
