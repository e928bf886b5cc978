/* An NCCL for tests, on the driver for tests (fake.h): communicators of the cards of one process,
 * non-blocking ones only. A collective is put in its stream when its communicator is asked for the
 * second time whether it has begun, not before: who does not ask gets another order, as with the
 * real one. It is done when the streams of all ranks have come to it; ranks that meet with
 * different calls end the program. What goes from one rank to another is done when both have come.
 * A communicator may be split, by all of its ranks. */
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "kernels/cuda/nccl.h"
#include "kernels/num.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/fake_inner.h"

enum { MOST_GROUPS = 64, ASKED = 2, VERSION = 22809, DEEPEST = 16 };

struct group {
    int ranks, arrived;
    struct fake_comm *end[MOST_CARDS];
    struct { /* by rank: a split, until all have asked for it */
        struct fake_comm *end;
        nccl_comm *to; /* filled in when its own parent is found to be ready, no earlier */
        int color, key;
    } split[MOST_CARDS];
    int splits;
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
        for (int r = 0; r < MOST_CARDS; r++) {
            struct fake_comm *split = n.group[i]->split[r].end;
            if (split && !split->group)
                free(split); /* not all had asked; the others are in groups that follow */
            free(n.group[i]->end[r]);
        }
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

static size_t width_of(int type)
{
    return type == NCCL_F32 ? 4 : type == NCCL_I8 ? 1 : 2;
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

static bool meet(struct cu_opaque *stream, int depth);

/* What the stream of a rank has come to, if it is of this communicator: what it waits for before
 * that is done as far as it can be. */
static struct op *reach(struct fake_comm *c, int depth)
{
    if (!c || !c->stream || c->aborted || c->rank == n.stall)
        return NULL;
    for (;;) {
        fake_advance(c->stream);
        struct op *o = head(c->stream);
        if (!o || o->comm == c)
            return o;
        if (depth == DEEPEST || !meet(c->stream, depth + 1))
            return NULL;
    }
}

static bool hand(struct op *mine, int depth)
{
    struct fake_comm *me = mine->comm, *peer = me->group->end[mine->peer];
    struct op *other = me->rank == n.stall ? NULL : reach(peer, depth);

    while (other && (other->way == TO_ALL || other->way == mine->way || other->peer != me->rank)) {
        /* it has something to do with a third one before */
        if (depth == DEEPEST || !meet(peer->stream, depth + 1))
            return false;
        other = reach(peer, depth);
    }
    if (!other)
        return false;
    if (other->bytes != mine->bytes || other->type != mine->type) {
        (void)fprintf(stderr, "fake NCCL: ranks %d and %d hand on different things\n", me->rank,
                      peer->rank);
        abort();
    }
    const struct op *from = mine->way == TO_PEER ? mine : other;
    struct op *to = mine->way == TO_PEER ? other : mine;
    memcpy(to->to, from->from, mine->bytes * width_of(mine->type));
    if (to->comm->rank == n.spoil && to->type == NCCL_F32)
        put(to, 0, element(to, 0) + 1.0f);
    me->stream->ops.next++;
    peer->stream->ops.next++;
    return true;
}

static bool meet(struct cu_opaque *stream, int depth)
{
    struct op *op[MOST_CARDS] = {NULL}, *mine = head(stream);

    assert(mine && mine->comm);
    struct group *g = mine->comm->group;
    if (mine->comm->aborted) { /* its kernel has left */
        stream->ops.next++;
        return true;
    }
    if (mine->way != TO_ALL)
        return hand(mine, depth);
    for (int r = 0; r < g->ranks; r++) {
        op[r] = reach(g->end[r], depth);
        if (!op[r])
            return false;
        if (op[r]->bytes != op[0]->bytes || op[r]->type != op[0]->type ||
            op[r]->gathers != op[0]->gathers || op[r]->way != TO_ALL) {
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

bool fake_meet(struct cu_opaque *stream)
{
    return meet(stream, 0);
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

/* All have asked: those of one color are a group, in order of their keys. */
static void make_splits(struct group *g)
{
    for (int r = 0; r < g->ranks; r++) {
        if (g->split[r].key < 0)
            continue;
        assert(n.groups < MOST_GROUPS);
        struct group *made = n.group[n.groups++] = calloc(1, sizeof(struct group));
        for (int o = r; o < g->ranks; o++) { /* keys rise with ranks: only that much is done here */
            if (g->split[o].color != g->split[r].color || g->split[o].key < 0)
                continue;
            g->split[o].end->group = made;
            g->split[o].end->rank = made->ranks;
            made->end[made->ranks++] = g->split[o].end;
            made->arrived++;
            g->split[o].key = -1;
        }
    }
}

EXPORT int ncclCommSplit(nccl_comm comm, int color, int key, nccl_comm *made,
                         struct nccl_config *config)
{
    ENTER_CARD("ncclCommSplit");
    struct fake_comm *parent = (struct fake_comm *)(void *)comm;
    struct group *g = parent->group;
    (void)config;
    if (!parent->alive || parent->op.comm || g->arrived < g->ranks || g->split[parent->rank].end)
        return fake_leave(fake_broken(NCCL_INVALID_ARGUMENT,
                                      "ncclCommSplit: rank %d's communicator is not ready: ask it "
                                      "until it is",
                                      parent->rank));
    struct fake_comm *c = calloc(1, sizeof(*c));
    *c = (struct fake_comm){.card = fake_current(), .alive = true};
    g->split[parent->rank].end = c;
    g->split[parent->rank].to = made;
    *made = NULL;
    g->split[parent->rank].color = color;
    g->split[parent->rank].key = key;
    if (++g->splits == g->ranks)
        make_splits(g);
    return fake_leave(NCCL_OK); /* and the parent is in progress: so does the real one */
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
    bool ready = c->group && c->group->arrived == c->group->ranks &&
                 (!c->group->split[c->rank].end || c->group->splits == c->group->ranks);
    if (ready && c->op.comm && ++c->asks >= ASKED) {
        *fake_push(c->stream, OP_MEET) = c->op;
        c->op.comm = NULL;
    }
    *state = ready && !c->op.comm ? NCCL_OK : NCCL_IN_PROGRESS;
    if (*state == NCCL_OK && c->group->split[c->rank].to) {
        *c->group->split[c->rank].to = (nccl_comm)(void *)c->group->split[c->rank].end;
        c->group->split[c->rank].to = NULL;
    }
    return fake_leave(NCCL_OK);
}

/* Whether a graph that has calls of this communicator is alive. */
static bool recorded(const struct fake_comm *c)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct cu_opaque *o = fake_g.object[i];
        for (size_t k = 0; o && o->kind == GRAPH && k < o->ops.count; k++)
            if (o->ops.at[k].kind == OP_MEET && o->ops.at[k].comm == c)
                return true;
    }
    return false;
}

/* Its kernels leave at once; it is over when no graph has any of its calls. */
EXPORT int ncclCommAbort(nccl_comm comm)
{
    ENTER_CARD("ncclCommAbort");
    struct fake_comm *c = comm_of(comm);
    c->aborted = true;
    if (c->group->split[c->rank].to) { /* nobody was told of what was split off */
        c->group->split[c->rank].end->aborted = true;
        c->group->split[c->rank].end->alive = false;
        c->group->split[c->rank].to = NULL;
    }
    while (recorded(c) && !fake_g.card[c->card].sticky) {
        pthread_mutex_unlock(&fake_g.lock);
        (void)usleep(100);
        pthread_mutex_lock(&fake_g.lock);
    }
    c->alive = false;
    return fake_leave(NCCL_OK);
}

EXPORT int ncclCommDestroy(nccl_comm comm)
{
    ENTER_CARD("ncclCommDestroy");
    struct fake_comm *c = comm_of(comm);
    if (c->op.comm || !c->group)
        return fake_leave(fake_broken(NCCL_INVALID_ARGUMENT,
                                      "ncclCommDestroy: rank %d's communicator is not ready",
                                      c->rank));
    if (recorded(c))
        return fake_leave(fake_broken(NCCL_INTERNAL_ERROR,
                                      "ncclCommDestroy: a graph has calls of rank %d's "
                                      "communicator: it waits for ever",
                                      c->rank));
    for (size_t i = 0; c->stream && i < c->stream->ops.count; i++)
        if (i >= c->stream->ops.next && c->stream->ops.at[i].comm == c)
            return fake_leave(fake_broken(NCCL_INTERNAL_ERROR,
                                          "ncclCommDestroy: a call of rank %d's communicator is "
                                          "under way",
                                          c->rank));
    c->alive = false;
    return fake_leave(NCCL_OK);
}

static int begin(nccl_comm comm, struct cu_opaque *stream, struct op op)
{
    struct fake_comm *c = comm_of(comm);

    if (!c->group || c->op.comm || c->group->arrived < c->group->ranks || c->aborted)
        return fake_broken(NCCL_INVALID_ARGUMENT,
                           "a call of rank %d before the one before was found to have begun",
                           c->rank);
    if (!fake_stream_is(stream) || c->card != stream->card)
        return fake_broken(NCCL_INVALID_USAGE, "rank %d: a stream of another card", c->rank);
    const size_t bytes = op.bytes * width_of(op.type);
    if ((op.from && !fake_on_card(op.from, bytes)) ||
        (op.to && !fake_on_card(op.to, bytes * (op.gathers ? (size_t)c->group->ranks : 1))))
        return fake_broken(NCCL_INVALID_ARGUMENT, "rank %d: %zu bytes that its card has not all",
                           c->rank, bytes);
    assert(!c->stream || c->stream == stream); /* only that much is done here */
    assert(op.type == NCCL_F32 || op.type == NCCL_F16 || op.type == NCCL_BF16 ||
           (op.type == NCCL_I8 && op.way != TO_ALL));
    assert(op.way == TO_ALL || (op.peer >= 0 && op.peer < c->group->ranks && op.peer != c->rank));
    c->stream = stream;
    c->op = op;
    c->op.kind = OP_MEET;
    c->op.comm = c;
    c->asks = 0;
    /* up to 2.23 those of two ranks forget to say so */
    return op.way == TO_ALL ? NCCL_IN_PROGRESS : NCCL_OK;
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

EXPORT int ncclSend(const void *from, size_t count, int type, int peer, nccl_comm comm,
                    struct cu_opaque *stream)
{
    ENTER_CARD("ncclSend");
    return fake_leave(begin(
        comm, stream,
        (struct op){.from = from, .bytes = count, .type = type, .way = TO_PEER, .peer = peer}));
}

EXPORT int ncclRecv(void *to, size_t count, int type, int peer, nccl_comm comm,
                    struct cu_opaque *stream)
{
    ENTER_CARD("ncclRecv");
    return fake_leave(begin(
        comm, stream,
        (struct op){
            .from = to, .to = to, .bytes = count, .type = type, .way = FROM_PEER, .peer = peer}));
}
