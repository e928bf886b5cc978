/*
 * Waits for messages between nodes without using up a core (wire.h). Called by the threads of a
 * node that compute (kernels/cpu/span.c), by the group of CUDA ranks (kernels/cuda/group.c), and by
 * the rest of this folder. The first failure is reported once, with the node, and cuts the wire;
 * from then on each call returns EK_ECOMM.
 */
#include "kernels/mpi/wire.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"

#define AWAKE_US   60u     /* an answer in the middle of a step is there by then */
#define SHARE      8u      /* later it is looked for after this part of the time waited */
#define PAUSE_US   1000u   /* the longest, for the first second */
#define IDLE_US    4000u   /* and after that: a core for 1 % */
#define STOPPED_US 200000u /* a pause that took longer: this process was stopped as a whole */

/* ---- waiting ---- */

static void sleep_us(uint64_t us)
{
    static _Thread_local bool sharp;
    const struct timespec t = {.tv_nsec = (long)us * 1000};

    if (!sharp) /* the system's slack would double short pauses */
        (void)prctl(PR_SET_TIMERSLACK, 1000);
    sharp = true;
    (void)nanosleep(&t, NULL);
}

/* How long one waits; a clock that stands still while this process does. */
struct wire_wait {
    uint64_t limit_us;
    uint64_t waited_us, at_us;
};

/* A pause that grows with the time waited; at first other threads may run. 0, -ETIMEDOUT, or
 * EK_ECOMM when the wire is cut. */
static int wire_pause(const struct ek_wire *w, struct wire_wait *wait)
{
    const uint64_t now = ek_now_us(), spent = wait->at_us > 0 ? now - wait->at_us : 0;
    const uint64_t most = wait->waited_us < EK_US_PER_S ? PAUSE_US : IDLE_US;
    const uint64_t pause = wait->waited_us / SHARE;

    wait->at_us = now;
    wait->waited_us += spent < STOPPED_US ? spent : STOPPED_US;
    if (atomic_load(&w->cut))
        return EK_ECOMM;
    if (wait->waited_us >= wait->limit_us)
        return -ETIMEDOUT;
    if (wait->waited_us < AWAKE_US)
        (void)sched_yield();
    else
        sleep_us(pause < most ? pause : most);
    return 0;
}

void ek_wire_cut(struct ek_wire *w)
{
    atomic_store(&w->cut, true);
}

static int wire_fail(struct ek_wire *w, uint32_t node, int code)
{
    if (!atomic_load(&w->cut) && w->failed)
        w->failed(w->ctx, node, code);
    ek_wire_cut(w);
    return EK_ECOMM;
}

/* Until the message is done: 0, or a code of the table or of the pause. */
static int wire_await(const struct ek_wire *w, struct ek_mpi_message *m, uint64_t late_us)
{
    struct wire_wait wait = {.limit_us = w->stall_us > 0 ? w->stall_us + late_us : EK_WIRE_EVER};
    int r = 0;

    while (r == 0 && m->request && (r = w->mpi->test(w->self, m)) == 0)
        r = wire_pause(w, &wait);
    return r < 0 ? r : 0;
}

int ek_wire_move(struct ek_wire *w, struct ek_mpi_message *m, uint32_t count, uint64_t late_us)
{
    uint32_t at = 0;
    int r = 0;

    if (atomic_load(&w->cut))
        return EK_ECOMM;
    for (uint32_t i = 0; r == 0 && i < count; i++)
        r = w->mpi->begin(w->self, &m[at = i]);
    for (uint32_t i = 0; r == 0 && i < count; i++)
        r = wire_await(w, &m[at = i], late_us);
    return r < 0 ? wire_fail(w, m[at].node, r) : 0;
}

int ek_wire_tell(struct ek_wire *w, uint32_t node, uint32_t tag, const void *data, size_t bytes)
{
    struct ek_mpi_message *m = &w->told[w->begun++ % EK_WIRE_TOLD];
    int r = atomic_load(&w->cut) ? EK_ECOMM : wire_await(w, m, 0);
    void *copy = r == 0 ? realloc(m->data, bytes) : NULL;

    if (r == 0 && !copy)
        r = -ENOMEM;
    if (r < 0)
        return wire_fail(w, node, r);
    memcpy(copy, data, bytes);
    *m = ek_mpi_flat(node, tag, true, copy, bytes);
    r = w->mpi->begin(w->self, m);
    return r < 0 ? wire_fail(w, node, r) : 0;
}

void ek_wire_done(struct ek_wire *w)
{
    for (uint32_t i = 0; i < EK_WIRE_TOLD; i++)
        free(w->told[i].data);
}

int ek_wire_room(struct ek_wire_buffer *b, size_t bytes)
{
    if (bytes <= b->room)
        return 0;
    void *more = realloc(b->data, bytes);
    if (!more)
        return -ENOMEM;
    b->data = more;
    b->room = bytes;
    return 0;
}

int ek_wire_look(struct ek_wire *w, uint32_t *node, uint32_t *tag, size_t *ret_bytes)
{
    if (atomic_load(&w->cut))
        return EK_ECOMM;
    int r = w->mpi->probe(w->self, node, tag, ret_bytes);
    return r < 0 && *node != EK_MPI_ANY ? wire_fail(w, *node, r) : r;
}

int ek_wire_take(struct ek_wire *w, uint32_t node, uint32_t tag, struct ek_wire_buffer *b,
                 uint64_t limit_us)
{
    struct wire_wait wait = {.limit_us = limit_us};
    int r;

    while ((r = ek_wire_look(w, &node, &tag, &b->bytes)) == 0 && (r = wire_pause(w, &wait)) == 0)
        continue;
    if (r < 0)
        return r;
    b->node = node;
    b->tag = tag;
    r = ek_wire_room(b, b->bytes);
    struct ek_mpi_message m = ek_mpi_flat(node, tag, false, b->data, b->bytes);
    return r < 0 ? r : ek_wire_move(w, &m, 1, 0);
}

/* ---- all nodes of a circle ---- */

int ek_wire_exchange(struct ek_wire *w, float *block, uint32_t parts, size_t each)
{
    const uint32_t me = w->node - w->first;
    struct ek_mpi_message m[2 * EK_NODES_MOST];
    uint32_t count = 0;

    for (uint32_t i = 0; i < 2 * w->count; i++) {
        const uint32_t k = i / 2;
        const bool out = i % 2 > 0;
        const uint32_t whose = out == (parts > 0) ? k : me; /* slice */
        const size_t begin = ek_wire_slice(w, each, whose);
        const size_t end = ek_wire_slice(w, each, whose + 1);
        const size_t row = (size_t)(out ? me : k) * parts;
        if (k != me)
            m[count++] = (struct ek_mpi_message){.node = w->first + k,
                                                 .tag = EK_MPI_SHARE,
                                                 .out = out,
                                                 .data = block + row * each + begin,
                                                 .rows = parts > 0 ? parts : 1,
                                                 .width = (end - begin) * sizeof(*block),
                                                 .stride = each * sizeof(*block)};
    }
    return ek_wire_move(w, m, count, 0);
}

int ek_wire_share(struct ek_wire *w, void *block, size_t each)
{
    if (w->count == 0)
        w->count = w->nodes;
    return ek_wire_exchange(w, block, 0, each * w->count); /* a node's part is its slice */
}
