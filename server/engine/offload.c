/*
 * Evicted prefix blocks in the host tier; see sched_host.h.
 *
 * Moving every evicted block costs time even when it is never asked for again. So once the tier has
 * been filled, it is filled on only while what came back saved more time than what went out took,
 * by the measured rates; else evicted blocks are dropped, until so many were that the tier is given
 * another try. A period is as many blocks as the tier has, so that a prefix had its chance.
 */
#include "server/engine/sched.h"

#define SKIP_PERIODS 4u

static bool pays(struct sched *s)
{
    struct host *h = &s->host;
    double copy = s->rates.copy > 0 ? 1 / s->rates.copy : 0;
    double compute = s->rates.prefill > 0 ? s->fixed.block_size / s->rates.prefill : 0;

    if (h->gone < h->cached_most || copy == 0 || compute == 0)
        return true;
    if ((double)h->back * (compute - copy) >= (double)h->gone * copy) {
        if (h->gone >= 2ull * h->cached_most) { /* the past counts less and less */
            h->gone /= 2;
            h->back /= 2;
        }
        return true;
    }
    if (++h->skipped > (uint64_t)SKIP_PERIODS * h->cached_most) {
        h->gone = h->back = h->skipped = 0;
        return true;
    }
    s->stats.offloads_declined++;
    return false;
}

void offload_evicted(void *ctx, uint32_t id, uint64_t now_us)
{
    struct sched *s = ctx;
    struct host *h = &s->host;

    if (!h->on || h->cached_most == 0)
        return;
    uint32_t twin = host_twin(s, id);
    if (twin != 0) { /* it is here: as young as if it had come now */
        blocks_ref(&h->blocks, twin);
        host_give(h, twin, now_us);
        return;
    }
    /* Half of a step's copies are left to those that are preempted. */
    if (blocks_available(&h->blocks) == 0 || h->copy_count + h->held >= h->most / 2 ||
        !host_worth(s, 2, s->fixed.block_size, &s->stats.offloads_declined) || !pays(s))
        return;
    host_give(h, host_take(s, id, now_us), now_us);
    s->stats.offload_out_blocks++;
    h->gone++;
}

uint32_t offload_find(const struct host *h, struct prefix_name name, struct prefix_name parent,
                      const int32_t *tokens)
{
    return h->on ? prefix_find(&h->names, name, parent, tokens) : 0;
}

bool offload_moving(const struct sched *s, uint32_t id)
{
    uint64_t step = s->host.moves[id].in_step;

    return step != 0 && (step == s->flights.next_step ||
                         (s->flights.count > 0 && step >= s->flights.at[s->flights.first].id));
}
