/*
 * Evicted prefix blocks in the host tier; see host.h.
 */
#include "server/engine/sched.h"

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
        !host_worth(s, 2, s->block_size, &s->stats.offloads_declined))
        return;
    host_give(h, host_take(s, id, now_us), now_us);
    s->stats.offload_out_blocks++;
}

uint32_t offload_find(const struct sched *s, struct prefix_name name, struct prefix_name parent,
                      const int32_t *tokens)
{
    return s->host.on ? prefix_find(&s->host.names, name, parent, tokens) : 0;
}

bool offload_moving(const struct sched *s, uint32_t id)
{
    uint64_t step = s->host.moves[id].in_step;

    return step != 0 &&
           (step == s->next_step || (s->flying > 0 && step >= s->flights[s->flight_first].id));
}
