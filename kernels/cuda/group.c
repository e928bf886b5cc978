/*
 * Who may touch what: `end[r]` belongs to the thread of rank r until the group fails; its lock is
 * held for each call of NCCL with its communicator (none of them blocks), so that the thread that
 * aborts never does so in the middle of one. `failed` is set once. The meeting of agree() is under
 * `lock`.
 */
#include "kernels/cuda/group.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/cuda/nccl.h"
#include "kernels/mpi/wire.h"

#define SPIN_US    50u      /* a call is asked for without a break for so long, */
#define NAP_NS     20000    /* then with naps in between */
#define FIRST_MORE 4u       /* so many times the deadline for the first meeting: all load NCCL */
#define LEAVE_US   2000000u /* the end waits so long for communicators that are aborted */
#define LATE_US    200000u  /* more than this at once: all of us were stopped */

/* A communicator that a thread of its own aborts. */
struct leave {
    struct nccl_end *end;
    nccl_comm comm; /* under its end's lock */
};

struct nccl_end {
    struct ek_group *group;
    pthread_mutex_t lock;
    /* Under lock; NULL before join() and once they are aborted. */
    nccl_comm comm;   /* of all ranks */
    nccl_comm shares; /* of those of a stage, where there are several stages; NCCL fills it in */
    bool shared;      /* and it has done so */
    struct leave leave[2];
    cu_handle context;
    int ordinal;
    _Atomic bool first; /* to fail */
};

struct ek_group {
    struct nccl nccl;
    struct nccl_id id;
    struct cu_driver cu;
    uint32_t ranks, each;  /* of all nodes and stages; of a stage */
    uint32_t first, local; /* those that are here: end[0 .. local) */
    struct ek_wire *wire;  /* to other nodes, NULL = all ranks are here */
    uint64_t stall_us;
    _Atomic int failed;
    pthread_mutex_t lock;
    pthread_cond_t met;
    /* under lock */
    uint32_t arrived, meeting;
    int least, agreed;
    uint32_t aborting; /* threads that abort */
    struct nccl_end end[];
};

static struct nccl_end *group_end_of(struct ek_group *g, uint32_t rank)
{
    return &g->end[rank - g->first];
}

/* ---- failing ---- */

/* An abort tells the kernels on the card to leave, then waits until no graph has any: each of the
 * two has its own thread, or the second would be told too late. */
static void *abort_one(void *arg)
{
    struct leave *l = arg;
    struct nccl_end *e = l->end;
    struct ek_group *g = e->group;

    pthread_mutex_lock(&e->lock);
    if (e->comm) { /* the first to come takes both away */
        e->leave[0].comm = e->comm;
        e->leave[1].comm = e->shares;
        e->comm = e->shares = NULL;
        e->shared = false;
    }
    nccl_comm comm = l->comm;
    pthread_mutex_unlock(&e->lock);
    if (comm && g->cu.ctx_set(e->context) == CU_OK)
        (void)g->nccl.abort(comm); /* the group has failed, whatever it says */
    pthread_mutex_lock(&g->lock);
    g->aborting--;
    pthread_cond_broadcast(&g->met);
    pthread_mutex_unlock(&g->lock);
    return NULL;
}

bool cuda_group_fail(struct ek_group *g, int code)
{
    int none = 0;
    pthread_t thread;

    if (!atomic_compare_exchange_strong(&g->failed, &none, code))
        return false;
    pthread_mutex_lock(&g->lock);
    g->aborting += 2 * g->local;
    pthread_cond_broadcast(&g->met); /* no rank comes any more */
    pthread_mutex_unlock(&g->lock);
    if (g->wire)
        ek_wire_cut(g->wire); /* nor do other nodes wait for us */
    /* By a thread each: it may take long on a card that does not answer. */
    for (uint32_t i = 0; i < 2 * g->local; i++) {
        if (pthread_create(&thread, NULL, abort_one, &g->end[i / 2].leave[i % 2]) == 0) {
            (void)pthread_detach(thread);
            continue;
        }
        pthread_mutex_lock(&g->lock);
        g->aborting--;
        pthread_mutex_unlock(&g->lock);
    }
    return true;
}

void cuda_group_abort(struct ek_group *g)
{
    (void)cuda_group_fail(g, EK_ECOMM); /* or it has failed before */
}

void cuda_group_words(const struct ek_group *g, char *text, size_t size)
{
    int v = 0;

    (void)g->nccl.version(&v);
    (void)snprintf(text, size, "NCCL %d.%d.%d", v / 10000, v / 100 % 100, v % 100);
}

uint64_t cuda_group_stall_us(const struct ek_group *g)
{
    return g->stall_us;
}

/* Which of our codes an answer of NCCL's is: its own do not tell memory that it lacks from a card
 * that is lost or a peer that is. The context is set. */
static int code_of(const struct ek_group *g, nccl_comm comm, int result)
{
    if (result == NCCL_OK)
        return 0;
    if (result == NCCL_IN_PROGRESS)
        return -EAGAIN;
    const char *last = g->nccl.last(comm);
    size_t left, all;
    if (last && strstr(last, "out of memory"))
        return EK_EDEVMEM;
    if (result == NCCL_CUDA_ERROR && cu_code(g->cu.mem_info(&left, &all)) == EK_EDEVICE)
        return EK_EDEVICE; /* the card is lost, and NCCL is told so as well */
    return EK_ECOMM;
}

/* This rank's failure is the group's, if it is the first: the code that counts. */
static int blame(struct ek_group *g, struct nccl_end *e, int code)
{
    e->first = cuda_group_fail(g, code);
    return atomic_load(&g->failed);
}

static int state_of(const struct ek_group *g, nccl_comm comm)
{
    int state = NCCL_OK, result = g->nccl.state(comm, &state);
    return code_of(g, comm, result == NCCL_OK ? state : result);
}

/* What has become of the last call: -EAGAIN while it has not begun. A failure fails the group. */
static int cuda_group_ask(struct ek_group *g, struct nccl_end *e)
{
    int failed = atomic_load(&g->failed), r = EK_ECOMM;

    if (failed)
        return failed;
    pthread_mutex_lock(&e->lock);
    if (e->comm)
        r = state_of(g, e->comm);
    if (r == 0 && e->shared)
        r = state_of(g, e->shares);
    pthread_mutex_unlock(&e->lock);
    return r < 0 && r != -EAGAIN ? blame(g, e, r) : r;
}

int cuda_group_state(struct ek_group *g, uint32_t rank)
{
    int r = cuda_group_ask(g, group_end_of(g, rank));
    return r == -EAGAIN ? 0 : r;
}

/* Until the last call has begun. */
static int group_await(struct ek_group *g, struct nccl_end *e, uint64_t deadline_us)
{
    const struct timespec nap = {.tv_nsec = NAP_NS};
    uint64_t begin = ek_now_us(), last = begin, waited = 0;
    int r;

    while ((r = cuda_group_ask(g, e)) == -EAGAIN) {
        uint64_t now = ek_now_us();
        waited += now - last < LATE_US ? now - last : LATE_US;
        last = now;
        if (deadline_us > 0 && waited > deadline_us)
            return blame(g, e, EK_ECOMM);
        if (now - begin > SPIN_US)
            (void)nanosleep(&nap, NULL); /* woken early is as good */
    }
    return r;
}

/* ---- making and ending ---- */

/* By which the ranks find each other: made by the first node, brought to the others. */
static int find_id(struct ek_group *g, const struct ek_open_params *p, struct ek_fault *fault)
{
    _Static_assert(sizeof(g->id) == EK_MEETING_BYTES, "what travels is the id");

    if (p->first > 0 && p->meeting) {
        memcpy(&g->id, p->meeting, sizeof(g->id));
        return 0;
    }
    if (g->nccl.unique(&g->id) != NCCL_OK) {
        ek_fault_write(fault, "tensor-parallel-size",
                       "NCCL cannot open the socket by which ranks find each other: set "
                       "NCCL_SOCKET_IFNAME to an interface that is up (lo serves%s).",
                       p->meeting ? " on one machine" : "");
        return EK_ECOMM;
    }
    if (p->meeting)
        memcpy(p->meeting, &g->id, sizeof(g->id));
    return 0;
}

int cuda_group_new(const struct ek_open_params *p, struct ek_group **ret_group,
                   struct ek_fault *fault)
{
    const uint32_t local = ek_open_local(p);
    struct ek_group *g = calloc(1, sizeof(*g) + local * sizeof(g->end[0]));

    if (!g)
        return -ENOMEM;
    int r = nccl_open(&g->nccl, p->ranks, fault);
    if (r == 0)
        r = cu_driver_open(&g->cu, fault);
    if (r == 0)
        r = find_id(g, p, fault);
    if (r < 0) {
        free(g);
        return r;
    }
    pthread_condattr_t attr;
    pthread_condattr_init(&attr);
    pthread_condattr_setclock(&attr, CLOCK_MONOTONIC);
    pthread_cond_init(&g->met, &attr);
    pthread_condattr_destroy(&attr);
    pthread_mutex_init(&g->lock, NULL);
    for (uint32_t i = 0; i < local; i++) {
        pthread_mutex_init(&g->end[i].lock, NULL);
        g->end[i].group = g;
        g->end[i].leave[0].end = g->end[i].leave[1].end = &g->end[i];
    }
    g->ranks = p->ranks;
    g->first = p->first;
    g->local = local;
    g->wire = p->wire;
    g->each = ek_open_shares(p);
    g->stall_us = p->stall_us;
    *ret_group = g;
    return 0;
}

static struct timespec until(uint64_t us)
{
    struct timespec t;

    clock_gettime(CLOCK_MONOTONIC, &t);
    uint64_t ns = (uint64_t)t.tv_nsec + us % 1000000 * 1000;
    t.tv_sec += (time_t)(us / 1000000 + ns / 1000000000);
    t.tv_nsec = (long)(ns % 1000000000);
    return t;
}

/* False: a card does not answer, and what is left has to be left. */
static bool aborted(struct ek_group *g)
{
    const struct timespec late = until(LEAVE_US);

    pthread_mutex_lock(&g->lock);
    while (g->aborting > 0 && pthread_cond_timedwait(&g->met, &g->lock, &late) == 0)
        continue;
    bool done = g->aborting == 0;
    pthread_mutex_unlock(&g->lock);
    return done;
}

void cuda_group_free(struct ek_group *g)
{
    if (!g || !aborted(g))
        return;
    for (uint32_t r = 0; r < g->local; r++) {
        struct nccl_end *e = &g->end[r];
        nccl_comm comm[2] = {e->shares, e->comm};
        for (int i = 0; i < 2; i++)
            if (comm[i] && g->cu.ctx_set(e->context) == CU_OK)
                (void)g->nccl.destroy(comm[i]); /* the last of them frees what they share */
    }
    for (uint32_t r = 0; r < g->local; r++) {
        if (g->end[r].context)
            (void)g->cu.ctx_release(g->end[r].ordinal);
        pthread_mutex_destroy(&g->end[r].lock);
    }
    pthread_cond_destroy(&g->met);
    pthread_mutex_destroy(&g->lock);
    free(g);
}

/* ---- what ranks do ---- */

static int group_say(const struct ek_group *g, uint32_t rank, int result, const char *last,
                     struct ek_fault *fault)
{
    if (fault && !fault->msg[0])
        ek_fault_write(fault, "tensor-parallel-size",
                       "NCCL cannot connect rank %u of %u: %s%s%.200s. NCCL_DEBUG=INFO says more; "
                       "ranks share memory in /dev/shm, which may be too small in a container.",
                       rank, g->ranks, g->nccl.text(result), last && last[0] ? ": " : "",
                       last ? last : "");
    return EK_ECOMM;
}

/* A communicator of the ranks of a stage, out of that of all. */
static int join_stage(struct ek_group *g, uint32_t rank)
{
    struct nccl_end *e = group_end_of(g, rank);
    int r = EK_ECOMM;

    if (g->each == 1 || g->each == g->ranks)
        return 0;
    pthread_mutex_lock(&e->lock);
    if (e->comm)
        r = code_of(g, e->comm,
                    g->nccl.split(e->comm, (int)(rank / g->each), (int)rank, &e->shares, NULL));
    pthread_mutex_unlock(&e->lock);
    if (r < 0 && r != -EAGAIN)
        return blame(g, e, r);
    /* It is there when that of all is done, and not before: also where the call says so. */
    r = group_await(g, e, FIRST_MORE * g->stall_us);
    if (r < 0)
        return r;
    pthread_mutex_lock(&e->lock);
    e->shared = e->shares != NULL; /* else they are aborted */
    const bool lost = !e->shared && e->comm;
    pthread_mutex_unlock(&e->lock);
    return lost ? blame(g, e, EK_ECOMM) : group_await(g, e, FIRST_MORE * g->stall_us);
}

int cuda_group_join(struct ek_group *g, uint32_t rank, const struct cu_driver *cu, int ordinal,
                    struct ek_fault *fault)
{
    struct nccl_config config = NCCL_CONFIG;

    if (rank < g->first || rank - g->first >= g->local)
        return -EINVAL;
    struct nccl_end *e = group_end_of(g, rank);
    if (e->context)
        return -EINVAL;
    if (cu->ctx_retain(&e->context, ordinal) != CU_OK) {
        e->context = NULL;
        return EK_EDEVICE;
    }
    e->ordinal = ordinal;
    int failed = atomic_load(&g->failed);
    if (failed)
        return failed;
    pthread_mutex_lock(&e->lock);
    int result = g->nccl.init(&e->comm, (int)g->ranks, g->id, (int)rank, &config);
    const char *last = result == NCCL_OK || result == NCCL_IN_PROGRESS ? "" : g->nccl.last(NULL);
    if (result != NCCL_OK && result != NCCL_IN_PROGRESS)
        e->comm = NULL;
    pthread_mutex_unlock(&e->lock);
    if (result != NCCL_OK && result != NCCL_IN_PROGRESS)
        return group_say(g, rank, result, last, fault);
    int r = group_await(g, e, FIRST_MORE * g->stall_us);
    if (r == 0)
        r = join_stage(g, rank);
    if (r == EK_ECOMM && e->first)
        return group_say(g, rank, NCCL_REMOTE_ERROR, "not all ranks came", fault);
    return r;
}

static int nccl_type(enum ek_dtype t)
{
    switch (t) {
    case EK_F32: return NCCL_F32;
    case EK_F16: return NCCL_F16;
    case EK_BF16: return NCCL_BF16;
    case EK_I8:
    case EK_F8_E4M3:
    case EK_I4:
    case EK_F4_E2M1: break;
    }
    return NCCL_I8; /* bytes */
}

/* Before a call: its lock is held. The code of a group that has failed. */
static int group_begin(struct ek_group *g, struct nccl_end *e)
{
    pthread_mutex_lock(&e->lock);
    if (e->comm)
        return 0;
    pthread_mutex_unlock(&e->lock);
    int failed = atomic_load(&g->failed);
    return failed ? failed : -EINVAL;
}

static nccl_comm sharers(const struct nccl_end *e)
{
    return e->shared ? e->shares : e->comm;
}

/* The call that was made with e's lock held, up to its begin. It is asked for whatever the call
 * says: up to 2.23 ncclSend() and ncclRecv() say that they are done while they connect. */
static int begun(struct ek_group *g, struct nccl_end *e, int result)
{
    int r = code_of(g, e->comm, result);

    pthread_mutex_unlock(&e->lock);
    return r < 0 && r != -EAGAIN ? blame(g, e, r) : group_await(g, e, g->stall_us);
}

int cuda_group_sum(struct ek_group *g, uint32_t rank, cu_ptr data, size_t count,
                   enum ek_dtype dtype, cu_handle stream)
{
    struct nccl_end *e = group_end_of(g, rank);
    void *at = (void *)(uintptr_t)data;

    int r = group_begin(g, e);
    if (r < 0)
        return r;
    return begun(g, e, g->nccl.sum(at, at, count, nccl_type(dtype), NCCL_SUM, sharers(e), stream));
}

int cuda_group_gather(struct ek_group *g, uint32_t rank, cu_ptr from, cu_ptr to, size_t count,
                      cu_handle stream)
{
    struct nccl_end *e = group_end_of(g, rank);

    int r = group_begin(g, e);
    if (r < 0)
        return r;
    return begun(g, e,
                 g->nccl.gather((const void *)(uintptr_t)from, (void *)(uintptr_t)to, count,
                                NCCL_F32, sharers(e), stream));
}

int cuda_group_send(struct ek_group *g, uint32_t rank, uint32_t to, cu_ptr data, size_t count,
                    enum ek_dtype dtype, cu_handle stream)
{
    struct nccl_end *e = group_end_of(g, rank);
    const void *at = (const void *)(uintptr_t)data;

    int r = group_begin(g, e);
    if (r < 0)
        return r;
    return begun(g, e, g->nccl.send(at, count, nccl_type(dtype), (int)to, e->comm, stream));
}

int cuda_group_recv(struct ek_group *g, uint32_t rank, uint32_t from, cu_ptr data, size_t count,
                    enum ek_dtype dtype, cu_handle stream)
{
    struct nccl_end *e = group_end_of(g, rank);
    void *at = (void *)(uintptr_t)data;

    int r = group_begin(g, e);
    if (r < 0)
        return r;
    return begun(g, e, g->nccl.recv(at, count, nccl_type(dtype), (int)from, e->comm, stream));
}

/* What the ranks here say, against what those of other nodes do; by the last one to come, without
 * the lock: the others wait for it. */
static int least_of_nodes(struct ek_group *g, int code)
{
    float block[EK_NODES_MOST] = {0};

    block[g->wire->node] = (float)code; /* codes are small: exact */
    int r = ek_wire_share(g->wire, block, 1);
    for (uint32_t i = 0; r == 0 && i < g->wire->nodes; i++)
        code = (int)block[i] < code ? (int)block[i] : code;
    return r < 0 ? r : code;
}

int cuda_group_agree(struct ek_group *g, int code)
{
    /* With other nodes, the last one here has as long again for them. */
    const struct timespec late = until(g->wire ? 2 * g->stall_us : g->stall_us);
    int r = EK_ECOMM, waits = 0;

    pthread_mutex_lock(&g->lock);
    const uint32_t meeting = g->meeting;
    g->least = g->arrived == 0 || code < g->least ? code : g->least;
    if (++g->arrived == g->local) {
        int least = g->least;
        if (g->wire) {
            pthread_mutex_unlock(&g->lock);
            least = least_of_nodes(g, least);
            pthread_mutex_lock(&g->lock);
        }
        g->agreed = least;
        g->arrived = 0;
        g->meeting++;
        pthread_cond_broadcast(&g->met);
    }
    while (g->meeting == meeting && atomic_load(&g->failed) == 0 && waits == 0) {
        if (g->stall_us > 0)
            waits = pthread_cond_timedwait(&g->met, &g->lock, &late);
        else
            waits = pthread_cond_wait(&g->met, &g->lock);
    }
    if (g->meeting != meeting)
        r = g->agreed; /* of this meeting: the next one cannot end without us */
    pthread_mutex_unlock(&g->lock);
    if (r == EK_ECOMM)
        (void)cuda_group_fail(g, EK_ECOMM); /* or it has failed before */
    int failed = atomic_load(&g->failed);
    return failed ? failed : r;
}
