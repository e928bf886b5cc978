/* An NCCL for tests, on the driver for tests (fake.h): communicators of the cards of one process,
 * non-blocking ones only. A collective is put in its stream when its communicator is asked for the
 * second time whether it has begun, not before: who does not ask gets another order, as with the
 * real one. It is done when the streams of all ranks have come to it; ranks that meet with
 * different calls end the program. */
#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "kernels/cpu/num.h"
#include "kernels/cuda/nccl.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/fake_inner.h"

enum { MOST_GROUPS = 64, ASKED = 2, VERSION = 22809 };

struct group {
    int ranks, arrived;
    struct fake_comm *end[MOST_CARDS];
};

struct fake_comm {
    struct group *group;
    int rank, card;
    bool alive, aborted;
    struct cu_opaque *stream;
    struct op op; /* not yet in the stream */
    unsigned asks;
};

static struct {
    struct group *group[MOST_GROUPS];
    int groups, stall, spoil, version;
} n = {.stall = -1, .spoil = -1, .version = VERSION};

#define DECLARE_NCCL(type, field, symbol, args) EXPORT type symbol args;
NCCL_FUNCTIONS(DECLARE_NCCL)

EXPORT void fake_stall(int rank)
{
    n.stall = rank;
}

EXPORT void fake_spoil(int rank)
{
    n.spoil = rank;
}

EXPORT void fake_nccl_version(int version)
{
    n.version = version > 0 ? version : VERSION;
}

__attribute__((constructor)) static void stall_from_environment(void)
{
    const char *rank = getenv("FAKE_NCCL_STALL");

    if (rank)
        n.stall = (int)strtol(rank, NULL, 10);
}

void fake_nccl_forget(void)
{
    for (int i = 0; i < n.groups; i++) {
        for (int r = 0; r < MOST_CARDS; r++)
            free(n.group[i]->end[r]);
        free(n.group[i]);
    }
    n.groups = 0;
    n.stall = n.spoil = -1;
    n.version = VERSION;
}

void fake_nccl_gone(const struct cu_opaque *stream)
{
    for (int i = 0; i < n.groups; i++)
        for (int r = 0; r < MOST_CARDS; r++)
            if (n.group[i]->end[r] && n.group[i]->end[r]->stream == stream)
                n.group[i]->end[r]->stream = NULL;
}

unsigned fake_nccl_alive(void)
{
    unsigned alive = 0;

    for (int i = 0; i < n.groups; i++)
        for (int r = 0; r < MOST_CARDS; r++)
            alive += n.group[i]->end[r] && n.group[i]->end[r]->alive;
    return alive;
}

/* ---- when all have come ---- */

static struct op *head(struct cu_opaque *stream)
{
    struct ops *o = &stream->ops;
    return o->next < o->count && o->at[o->next].kind == OP_MEET ? &o->at[o->next] : NULL;
}

static float element(const struct op *o, size_t i)
{
    enum ek_dtype t = o->type == NCCL_F32 ? EK_F32 : o->type == NCCL_F16 ? EK_F16 : EK_BF16;
    return cpu_load(t, o->from, i);
}

static void put(const struct op *o, size_t i, float f)
{
    enum ek_dtype t = o->type == NCCL_F32 ? EK_F32 : o->type == NCCL_F16 ? EK_F16 : EK_BF16;
    cpu_store(t, o->to, i, f);
}

static void sum(struct op **op, int ranks)
{
    const size_t count = op[0]->bytes;

    for (size_t i = 0; i < count; i++) {
        float all = 0.0f;
        for (int r = 0; r < ranks; r++)
            all += element(op[r], i);
        for (int r = 0; r < ranks; r++)
            put(op[r], i, r == n.spoil ? all + 1.0f : all);
    }
}

static void gather(struct op **op, int ranks)
{
    for (int from = 0; from < ranks; from++)
        for (size_t i = 0; i < op[0]->bytes; i++)
            for (int r = 0; r < ranks; r++)
                put(op[r], (size_t)from * op[0]->bytes + i, element(op[from], i));
}

bool fake_meet(struct cu_opaque *stream)
{
    struct op *op[MOST_CARDS] = {NULL}, *mine = head(stream);

    assert(mine && mine->comm);
    struct group *g = mine->comm->group;
    if (mine->comm->aborted) { /* its kernel has left */
        stream->ops.next++;
        return true;
    }
    for (int r = 0; r < g->ranks; r++) {
        struct fake_comm *c = g->end[r];
        if (!c || !c->stream || c->aborted || r == n.stall)
            return false;
        fake_advance(c->stream);
        op[r] = head(c->stream);
        if (!op[r])
            return false;
        if (op[r]->comm != c || op[r]->bytes != op[0]->bytes || op[r]->type != op[0]->type ||
            op[r]->gathers != op[0]->gathers) {
            (void)fprintf(stderr, "fake NCCL: rank %d meets rank 0 with another call\n", r);
            abort();
        }
    }
    assert(g->ranks > 0 && op[0]);
    if (mine->gathers)
        gather(op, g->ranks);
    else
        sum(op, g->ranks);
    for (int r = 0; r < g->ranks; r++)
        g->end[r]->stream->ops.next++;
    return true;
}

/* ---- the interface ---- */

EXPORT int ncclGetVersion(int *version)
{
    *version = n.version;
    return NCCL_OK;
}

EXPORT const char *ncclGetErrorString(int result)
{
    return result == NCCL_REMOTE_ERROR ? "remote process exited or there was a network error"
                                       : "unhandled cuda error";
}

EXPORT const char *ncclGetLastError(nccl_comm comm)
{
    (void)comm;
    return "";
}

EXPORT int ncclGetUniqueId(struct nccl_id *id)
{
    ENTER("ncclGetUniqueId");
    assert(n.groups < MOST_GROUPS);
    n.group[n.groups] = calloc(1, sizeof(struct group));
    memset(id, 0, sizeof(*id));
    memcpy(id->bytes, &n.groups, sizeof(n.groups));
    n.groups++;
    return fake_leave(NCCL_OK);
}

EXPORT int ncclCommInitRankConfig(nccl_comm *comm, int ranks, struct nccl_id id, int rank,
                                  struct nccl_config *config)
{
    ENTER_CARD("ncclCommInitRankConfig");
    int index;
    memcpy(&index, id.bytes, sizeof(index));
    assert(config->magic == 0xcafebeef && config->size >= 20 && config->blocking == 0);
    if (index >= n.groups || ranks > MOST_CARDS || rank < 0 || rank >= ranks)
        return fake_leave(NCCL_INVALID_ARGUMENT);
    struct group *g = n.group[index];
    assert(!g->end[rank] && (g->arrived == 0 || g->ranks == ranks));
    for (int r = 0; r < MOST_CARDS; r++)
        assert(!g->end[r] || g->end[r]->card != fake_current()); /* as NCCL: one rank on a card */
    struct fake_comm *c = calloc(1, sizeof(*c));
    *c = (struct fake_comm){.group = g, .rank = rank, .card = fake_current(), .alive = true};
    g->ranks = ranks;
    g->end[rank] = c;
    g->arrived++;
    *comm = (nccl_comm)(void *)c;
    return fake_leave(NCCL_IN_PROGRESS);
}

static struct fake_comm *comm_of(nccl_comm comm)
{
    struct fake_comm *c = (struct fake_comm *)(void *)comm;

    assert(c->alive); /* else it was destroyed before */
    return c;
}

EXPORT int ncclCommGetAsyncError(nccl_comm comm, int *state)
{
    *state = fake_enter("ncclCommGetAsyncError");
    if (*state != CU_OK)
        return fake_leave(NCCL_OK);
    struct fake_comm *c = comm_of(comm);
    bool ready = c->group->arrived == c->group->ranks;
    if (ready && c->op.comm && ++c->asks >= ASKED) {
        *fake_push(c->stream, OP_MEET) = c->op;
        c->op.comm = NULL;
    }
    *state = ready && !c->op.comm ? NCCL_OK : NCCL_IN_PROGRESS;
    return fake_leave(NCCL_OK);
}

static int leave_group(nccl_comm comm, bool aborts)
{
    struct fake_comm *c = comm_of(comm);

    for (size_t i = 0; c->stream && !aborts && i < c->stream->ops.count; i++)
        assert(i < c->stream->ops.next || c->stream->ops.at[i].comm != c); /* under way */
    c->alive = false;
    c->aborted = aborts;
    return NCCL_OK;
}

EXPORT int ncclCommAbort(nccl_comm comm)
{
    ENTER("ncclCommAbort");
    return fake_leave(leave_group(comm, true));
}

EXPORT int ncclCommDestroy(nccl_comm comm)
{
    ENTER("ncclCommDestroy");
    return fake_leave(leave_group(comm, false));
}

static int begin(nccl_comm comm, struct cu_opaque *stream, struct op op)
{
    struct fake_comm *c = comm_of(comm);

    assert(!c->op.comm);                          /* one after the other */
    assert(c->card == stream->card);              /* its card's stream */
    assert(!c->stream || c->stream == stream);    /* only that much is done here */
    assert(c->group->arrived == c->group->ranks); /* begun before all were there */
    assert(op.type == NCCL_F32 || op.type == NCCL_F16 || op.type == NCCL_BF16);
    c->stream = stream;
    c->op = op;
    c->op.kind = OP_MEET;
    c->op.comm = c;
    c->asks = 0;
    return NCCL_IN_PROGRESS;
}

EXPORT int ncclAllReduce(const void *from, void *to, size_t count, int type, int how,
                         nccl_comm comm, struct cu_opaque *stream)
{
    ENTER_CARD("ncclAllReduce");
    assert(how == NCCL_SUM);
    return fake_leave(
        begin(comm, stream, (struct op){.from = from, .to = to, .bytes = count, .type = type}));
}

EXPORT int ncclAllGather(const void *from, void *to, size_t count, int type, nccl_comm comm,
                         struct cu_opaque *stream)
{
    ENTER_CARD("ncclAllGather");
    return fake_leave(
        begin(comm, stream,
              (struct op){.from = from, .to = to, .bytes = count, .type = type, .gathers = true}));
}
