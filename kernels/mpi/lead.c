/*
 * The other nodes, as the device of ranks of node 0 (ranks.c) has them: its calls are orders, and
 * what a node answers is what the node's own device of ranks does, so that no token leaves on which
 * the nodes do not agree. The node with the first rank of the last stage tells its results whole,
 * unless that is node 0; the others tell a sum of what they sampled, or that they did their part.
 *
 * An order goes to all nodes at once and is waited for together. A step goes packed.
 *
 * Owner: the caller of backend.h. A step's own ranks have landed long before other nodes are waited
 * for; who asks again after a timeout goes on with the same wait.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/mpi/cluster_inside.h"

/* The body to the nodes from `from` on, nothing to those before it. */
static int lead_order(struct ek_cluster *c, uint32_t order, const void *body, size_t bytes,
                      uint32_t from)
{
    struct ek_mpi_message m[EK_NODES_MOST];

    for (uint32_t k = 1; k < c->p.nodes; k++)
        m[k - 1] = ek_mpi_flat(k, order, true, body, k < from ? 0 : bytes);
    return ek_wire_move(&c->orders, m, c->p.nodes - 1, 0);
}

/* ---- loading ---- */

static int lead_load(struct ek_cluster *c, const struct ek_plan_request *q)
{
    struct cluster_load o = {.plan = *q};

    o.plan.graph = NULL;
    memcpy(o.meeting, c->meeting, sizeof(o.meeting));
    return lead_order(c, ORDER_LOAD, &o, sizeof(o), 0);
}

static int lead_kv(struct ek_cluster *c, const struct ek_kv_params *p)
{
    return lead_order(c, ORDER_KV, p, sizeof(*p), 0);
}

/* That may be a long time: mpirun ends this node where another one dies. */
static int lead_settle(struct ek_cluster *c, uint64_t *ret_room_bytes, struct ek_fault *fault)
{
    int first = 0;

    for (uint32_t k = 1; k < c->p.nodes; k++) {
        int r = ek_wire_take(&c->orders, k, EK_MPI_REPLY, &c->in, 0);
        if (r < 0)
            return r;
        const struct cluster_reply *reply = c->in.data;
        if (reply->room_bytes > 0 && reply->room_bytes < *ret_room_bytes)
            *ret_room_bytes = reply->room_bytes;
        if (reply->code == 0 || first < 0)
            continue;
        first = reply->code;
        ek_fault_write(fault, reply->fault.field, "node %u (%s): %.380s", k, c->card[k].host,
                       reply->fault.msg[0] ? reply->fault.msg : ek_strerror(reply->code));
    }
    return first;
}

/* ---- steps ---- */

static int lead_forward(struct ek_cluster *c, const struct ek_step *step)
{
    struct ek_wire_buffer *asked = &c->asked[step->id & 1];
    int r = ek_wire_room(asked, step->bytes);

    c->until_us[step->id & 1] = 0;
    if (r < 0)
        return r;
    struct ek_step *packed = asked->data;
    ek_step_pack(step, packed);
    return lead_order(c, ORDER_STEP, packed, packed->bytes, 0);
}

/* Of the oldest step that was not. */
static int lead_sample(struct ek_cluster *c, const struct ek_masks *masks)
{
    return lead_order(c, ORDER_SAMPLE, masks, masks ? ek_masks_bytes(masks) : 0, cluster_teller(c));
}

static void lead_blame(struct ek_cluster *c, uint32_t node, int code, uint64_t step)
{
    const char *host = c->card[node].host;

    if (code == -ETIMEDOUT && node > 0)
        cluster_lost(c, node, code);
    else if (code == -EBADMSG)
        cluster_fail(c,
                     "node %u (%s) sampled other tokens than node %u in step %llu: its memory, "
                     "processor or network is faulty",
                     node, host, cluster_teller(c), (unsigned long long)step);
    else
        cluster_fail(c, "A rank of node %u (%s) failed: %s", node, host, ek_strerror(code));
}

/* Whether it has what the step asks for; others than the one that tells it send a sum alone. */
static bool lead_is_whole(const struct ek_cluster *c, uint32_t node, const struct ek_result *from)
{
    const struct ek_step *asked = c->asked[from->step & 1].data;
    uint32_t scores = 0, hiddens = 0;

    for (uint32_t i = 0; i < asked->seqs; i++) {
        scores += ek_step_seqs(asked)[i].scores;
        hiddens += ek_step_seqs(asked)[i].hidden > 0;
    }
    return from->error < 0 || node != cluster_teller(c) ||
           (from->seqs == asked->seqs && from->scores == scores && from->hiddens == hiddens);
}

static int lead_wait(struct ek_cluster *c, uint32_t node, uint64_t step,
                     struct ek_result *ret_result, size_t bytes, uint64_t timeout_us)
{
    uint64_t *until_us = &c->until_us[step & 1];

    /* Behind what the ranks of the stages wait for one another (span.c), and time to end for it. */
    if (timeout_us > 0 && *until_us == 0 && c->p.stall_us > 0)
        *until_us = ek_now_us() + c->p.stall_us + c->p.stall_us / 4;
    int r = ek_wire_take(&c->orders, node, EK_MPI_DONE, &c->in, timeout_us > 0 ? timeout_us : 1);
    if (r == -ETIMEDOUT && *until_us > 0 && ek_now_us() >= *until_us) {
        cluster_lost(c, node, r);
        r = EK_ECOMM;
    }
    if (r < 0)
        return r;
    const struct ek_result *from = c->in.data;
    if (c->in.bytes > bytes || ek_result_check(from, c->in.bytes) < 0 || from->step != step ||
        !lead_is_whole(c, node, from)) {
        lead_blame(c, node, -EPROTO, step);
        return EK_ECOMM;
    }
    memcpy(ret_result, from, c->in.bytes);
    if (ret_result->error < 0) /* it ends, and with it all */
        lead_blame(c, node, ret_result->error, step);
    return 0;
}

/* ---- ending ---- */

uint32_t ek_cluster_leaver(struct ek_cluster *c)
{
    uint32_t node = EK_MPI_ANY, tag = EK_MPI_LEAVE;
    struct ek_wire_buffer none = {.data = NULL};

    return ek_wire_look(&c->orders, &node, &tag) == 1 &&
                   ek_wire_take(&c->orders, node, tag, &none, 0) == 0
               ? node
               : 0;
}

void ek_cluster_bye(struct ek_cluster *c, int code)
{
    const int32_t body = code;

    if (c)
        c->over = lead_order(c, ORDER_BYE, &body, sizeof(body), 0) == 0;
}

const struct ek_others cluster_others = {.group = cluster_group,
                                         .load = lead_load,
                                         .kv = lead_kv,
                                         .settle = lead_settle,
                                         .forward = lead_forward,
                                         .sample = lead_sample,
                                         .wait = lead_wait,
                                         .blame = lead_blame};
