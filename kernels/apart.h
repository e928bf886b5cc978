/*
 * A device in a process of its own, which may end without taking the requests along: the server's
 * process (lead) has a backend that looks like any other and copies steps, masks and results
 * through shared memory; the engine's process (follow) has the real one. Several ranks are in the
 * same process, so that they begin and end as a whole, whichever of them fails. A launcher, a
 * process that was forked while there was one thread, starts engines (server/launcher.c) and says
 * how they ended.
 *
 * Shared memory: a memfd that the lead makes, with a header, two slots for steps in flight, and two
 * counters to sleep on (futex): orders that were posted, and answers. Order of a step: the lead
 * copies it into its slot, posts FORWARD, then SAMPLE; the engine answers when its result lies in
 * the slot. A call that finds the engine ended gives EK_EDEVICE; revive() then asks the launcher
 * for another one. Behind that lies the host tier of the KV cache, from kv_open() on, so that it is
 * there when an engine is not; engines alone map it.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "common/err.h"
#include "kernels/backend.h"

struct ek_apart_memory; /* apart_memory.h */

/* The lead's way to the launcher. */
struct ek_apart {
    int socket;
    char backend[16]; /* for ek_backend_find() in the engine's process */
    uint64_t stamp;   /* of the model's files, for the order */
    uint32_t number;  /* of the last message */
};
/* START comes with the memory's descriptor; CHECK asks whether another engine would be begun with
 * what is there now, and changes nothing. Both are answered, END is not. */
enum ek_apart_what { EK_APART_START = 'S', EK_APART_END = 'E', EK_APART_CHECK = 'C' };
struct ek_apart_message {
    uint32_t what, number;
};
struct ek_apart_answer {
    uint32_t number; /* of the message */
    int code;        /* 0, or why not, */
    struct ek_fault fault;
};

/* What an engine is to be, as plain data; the graph and the weights are the model's that the
 * launcher was told of. */
struct ek_apart_order {
    char backend[16];
    uint32_t ranks, stages; /* 0 ranks: one device */
    uint32_t local;         /* ranks that are in its process; the others are on other nodes */
    uint64_t stall_us;
    uint32_t cards, card[EK_MOST_RANKS]; /* 0, or of each rank */
    uint32_t threads, reserve;
    char isa[32]; /* "" = best */
    struct ek_forms forms;
    struct ek_plan_request plan; /* but its graph */
    uint64_t stamp;              /* what the engine's model has to have, too */
    uint64_t graph;              /* ek_graph_sum(): what its flags have to make of it */
};

/* What the device is planned and loaded for, of an order and its model's graph. */
static inline struct ek_plan_request ek_apart_request(const struct ek_apart_order *o,
                                                      const struct ek_graph *graph)
{
    struct ek_plan_request q = o->plan;

    q.graph = graph;
    return q;
}

/* The backend of the lead: a device of ek_open_params.each in another process, or all ranks of it
 * where there are several, started by ek_open_params.apart. `spans`: some ranks are on other nodes,
 * with their part of the KV cache, of which the lead then sees nothing. NULL where that is not
 * offered for `each`. */
const struct ek_backend *ek_apart_backend(const struct ek_backend *each, bool spans);
/* Whether some ranks are on other nodes than this process. */
static inline bool ek_open_spans(const struct ek_open_params *p)
{
    return ek_open_local(p) < p->ranks;
}
/* What that process opens, but over several nodes (cluster.h), and by which is planned here. */
static inline const struct ek_backend *ek_apart_inner(const struct ek_open_params *p)
{
    return p->ranks > 1 ? ek_ranks_backend(p->each) : p->each;
}

/* ---- launcher and engine ---- */

/* The descriptor stays the caller's. 0 or a negative errno; -EPROTO when it is not such a memory,
 * or one of another version or build of this program. */
int ek_apart_map(int fd, struct ek_apart_memory **ret_memory);
void ek_apart_unmap(struct ek_apart_memory *m); /* accepts NULL */
const struct ek_apart_order *ek_apart_order(const struct ek_apart_memory *m);
/* An engine's process has begun, and has ended with this status of waitpid(). */
void ek_apart_began(struct ek_apart_memory *m, int pid);
/* stopped: a signal had stopped it when it was ended, which its parent alone can see for sure.
 * oom_kills: processes that the kernel killed for memory meanwhile, in its cgroup. */
void ek_apart_ended(struct ek_apart_memory *m, int status, bool stopped, uint64_t oom_kills);
/* A process outside sent the signal with which it is about to end; 0: from another namespace. For a
 * signal handler. */
void ek_apart_sent(struct ek_apart_memory *m, int pid);
/* An ek_progress_fn; ctx is the memory. */
void ek_apart_progress(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
/* The engine cannot be made. */
void ek_apart_failed(struct ek_apart_memory *m, int code, const struct ek_fault *fault);
/* What a test may define in a library that it preloads: it is called around each step in the
 * engine's process, and a code below 0 takes the place of the backend's. */
#define EK_APART_TEST_SYMBOL "ek_apart_test"
enum ek_apart_place { EK_APART_BEFORE, EK_APART_COMPUTED, EK_APART_SAMPLED };
typedef int (*ek_apart_test_fn)(enum ek_apart_place place, const struct ek_step *step);

/* The device is loaded: does what is ordered until the process is ended. `fd` is the memory's. */
void ek_apart_serve(struct ek_apart_memory *m, int fd, const struct ek_backend *b,
                    struct ek_device *d, const struct ek_graph *graph) __attribute__((noreturn));
