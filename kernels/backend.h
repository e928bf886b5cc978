/*
 * Everything from token ids to sampled ids lies below this table: layers, sampling, masks,
 * collectives, reading weights from file ranges. Two bodies: cpu (the reference) and cuda (a
 * plug-in loaded at run time). registry.h finds them. Others include no more of kernels/.
 *
 * Threads: one caller (the engine thread), except `stats`, which any thread may call. forward() and
 * sample() enqueue and return; wait() blocks until that step's result is there. At most two steps
 * are in flight. Nothing above assumes that device state survives a failure.
 *
 * Codes: -ENOMEM host, EK_EDEVMEM device memory, EK_EDEVICE device lost, EK_ECOMM collective,
 * -EBADMSG bad input with a fault, -ENOTSUP not offered by this backend, -ETIMEDOUT from wait().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/graph.h"
#include "kernels/product_forms.h"
#include "kernels/step.h"

struct ek_backend;
struct ek_device;
struct ek_fault;
struct ek_group; /* ranks that compute one model together */
struct ek_wire;  /* of ranks in other processes: wire.h */
struct ek_cluster;
struct ek_others; /* how ranks.c has other nodes: ranks.h */

#define EK_BACKEND_ABI 31u

/* What memory for a host tier begins on: the largest page that machines have. */
#define EK_HOST_PAGE 65536u

struct ek_device_info {
    char name[64];         /* "AMD EPYC, avx512bf16, 2 threads" */
    char isa[32];          /* tier in use, "" on a GPU */
    char choice[160];      /* what it was chosen by, "" = nothing */
    char machine[64];      /* model of the CPU, "" on a GPU */
    uint64_t memory_bytes; /* total of the device (host memory for the CPU) */
    uint64_t free_bytes;
    uint32_t threads;
    char note[640]; /* a sentence that an operator should read at start, "" = none */
};

struct ek_open_params {
    uint32_t device;         /* ordinal; with ranks, that of the first one */
    const uint32_t *devices; /* of each rank here; NULL: those from `device` on */
    uint32_t threads;        /* 0 = one per usable core; of all ranks here */
    uint32_t reserve;        /* cores that a CPU does not compute on; of all ranks here */
    const char *isa;         /* force a tier, NULL = best */
    /* Of choose(), for load(), until which it must stay; NULL: the tier's own everywhere. */
    const struct ek_forms *forms;
    /* Tensor and pipeline parallelism. A backend is given one rank and its group;
     * ek_ranks_backend() is given `ranks` and what each of them runs on, and makes the rest. */
    uint32_t rank, ranks;          /* of all stages; 0 ranks: alone */
    uint32_t stages;               /* that share the layers, each of ranks / stages; 0 = 1 */
    struct ek_group *group;        /* NULL where nothing is computed: probe and plan */
    const struct ek_backend *each; /* of ek_ranks_backend() */
    uint64_t stall_us;             /* ranks wait so long for one another, 0 = for ever */
    /* Ranks [first, first + local) are in this process, the others on other nodes (cluster.h). 0
     * local: all are here. */
    uint32_t first, local;
    struct ek_cluster *cluster;
    const struct ek_others *others; /* with a cluster */
    struct ek_wire *wire;           /* to the other nodes */
    struct ek_apart *apart;         /* of ek_apart_backend(): what starts processes, and of what */
    uint8_t *meeting; /* [EK_MEETING_BYTES] by which ranks find each other: group_new() of the
                         first node writes it, those of others read it */
};

#define EK_MEETING_BYTES 128u /* NCCL's unique id */

/* How many ranks share each layer. */
static inline uint32_t ek_open_shares(const struct ek_open_params *p)
{
    return p->stages > 1 ? p->ranks / p->stages : p->ranks;
}

static inline uint32_t ek_open_local(const struct ek_open_params *p)
{
    return p->local > 0 ? p->local : p->ranks;
}

/* The ordinal of a rank that is here. */
static inline uint32_t ek_open_device(const struct ek_open_params *p, uint32_t rank)
{
    return p->devices ? p->devices[rank - p->first] : p->device + (rank - p->first);
}

struct ek_plan; /* common/memplan.h */

/* Memory that a backend needs for a graph and ceilings, before anything is allocated. */
struct ek_plan_request {
    const struct ek_graph *graph;
    struct ek_step_ceiling ceiling;
    uint32_t logit_rows; /* sampled and scored ones */
    uint32_t block_size;
    uint32_t max_model_len; /* that is served: a process with a model of its own has frequencies
                               that may depend on it */
    uint64_t offload_bytes; /* of weights that stay in host memory, at most; 0 where that is the
                               device's */
    double share;           /* of the device's memory that may be taken: load() measures what is
                               left of it for the pool (ek_device_stats.room_bytes); 0 = it does
                               not */
};

/* Files the weights lie in: read-only mappings. They may be unmapped after load() returns. */
struct ek_weight_files {
    const struct ek_weight_file {
        const void *data;
        uint64_t size_bytes;
        bool mapped; /* from a file: its pages may be fetched ahead and given back */
    } * file;
    uint32_t count;
};

typedef void (*ek_progress_fn)(void *ctx, uint64_t done_bytes, uint64_t total_bytes);
/* Called again and again by what takes long. Not 0: it is given up, with that code. */
typedef int (*ek_meanwhile_fn)(void *ctx);

struct ek_kv_params {
    uint32_t blocks;      /* device blocks, block 0 (null) included */
    uint32_t host_blocks; /* host tier, 0 = none */
    uint32_t block_size;  /* tokens */
    uint32_t states;      /* state slots: one for each sequence of the ceilings, then snapshots; 0 =
                             the graph has no recurrent state */
};

struct ek_device_stats {
    uint64_t weight_bytes, activation_bytes, kv_bytes, host_kv_bytes, state_bytes;
    uint64_t pool_reserved_bytes, pool_used_bytes; /* memory outside the KV pool */
    uint64_t pool_reserved_high_bytes, pool_used_high_bytes;
    uint64_t steps, busy_us;
    uint64_t host_weight_bytes; /* weights that are not in the device's memory, */
    uint64_t stream_bytes;      /* those of them that each step copies there, */
    uint64_t stream_us;         /* and how long that takes, measured at load; 0 = not known */
    uint64_t stream_rows;       /* steps of so many rows or fewer read experts there instead */
    const char *attention;      /* which kernels attend to prompts, NULL = there is one kind */
    const char *products;       /* what computes large products, NULL = there is one way */
    const char *collectives;    /* by which several devices reach each other, NULL = there is one
                                   way, or one device */
    const char *note;           /* a sentence an operator should read, found at load; NULL = none */
    /* After load(), where ek_plan_request.share was not 0; of several devices that with the least
     * room, and the most of the others: */
    uint64_t room_bytes;    /* that the pool and the recurrent states may take; 0 = not measured */
    uint64_t context_bytes; /* that context, kernels, libraries and graphs took */
    uint64_t others_bytes;  /* that others had before, 0 also where that is not known */
};

/* How a device ended. */
struct ek_device_end {
    bool fault;    /* by what it computed, as far as that can be told; else it was ended */
    bool unsure;   /* with a fault: as likely another node was lost, to which the same is seen */
    char why[160]; /* "its process ended with signal 11 (Segmentation fault)" */
    bool ended;    /* by itself; else a step failed in it, or it made no progress */
    int signal;    /* that ended it, 0 = none, or it is not known */
    int status;    /* else with which it ended */
    uint64_t oom_kills; /* by the kernel, for memory, in its cgroup since it began */
};

struct ek_backend {
    uint32_t abi, size;  /* EK_BACKEND_ABI, sizeof(struct ek_backend) */
    const char *name;    /* "cpu", "cuda" */
    bool in_host_memory; /* the memory of all its devices is the host's */

    /* No side effects, never aborts. -ENODEV when there is no such device. */
    int (*probe)(const struct ek_open_params *p, struct ek_device_info *ret_info,
                 struct ek_fault *fault);
    int (*open)(const struct ek_open_params *p, struct ek_device **ret_device,
                struct ek_fault *fault);
    void (*close)(struct ek_device *d); /* accepts NULL; waits for steps in flight */

    /* -ENOTSUP with a fault when this backend does not compute such a graph. */
    int (*plan)(const struct ek_open_params *p, const struct ek_plan_request *q,
                struct ek_plan *ret_plan, struct ek_fault *fault);
    /* Reads, converts and packs all weights, allocates activations and slots for the ceilings.
     * The graph must outlive the device. */
    int (*load)(struct ek_device *d, const struct ek_plan_request *q,
                const struct ek_weight_files *files, ek_progress_fn progress, void *ctx,
                struct ek_fault *fault);
    int (*kv_open)(struct ek_device *d, const struct ek_kv_params *p);
    /* With no step in flight; the content of blocks below both counts is kept, memory above the new
     * one goes back to the system. EK_EDEVMEM when a larger pool is not to be had: then it is as it
     * was. -ENOTSUP: never. */
    int (*kv_resize)(struct ek_device *d, uint32_t blocks);

    /* The step and masks buffers stay unchanged until wait() returned for this step. */
    int (*forward)(struct ek_device *d, const struct ek_step *step);
    int (*sample)(struct ek_device *d, const struct ek_step *step, const struct ek_masks *masks);
    /* Copies the result into memory of `bytes`, as many as ek_result_bytes() says for the step's
     * sequences, scores and hidden states. */
    int (*wait)(struct ek_device *d, uint64_t step_id, struct ek_result *ret_result, size_t bytes,
                uint64_t timeout_us);

    void (*stats)(struct ek_device *d, struct ek_device_stats *ret_stats);
    /* The same of one of several ranks; NULL: this device is alone. */
    void (*rank_stats)(struct ek_device *d, uint32_t rank, struct ek_device_stats *ret_stats);

    /* What the ranks of a model are opened with; NULL: a model is on one device here. load() of
     * all ranks is called at once, by a thread each. A rank that fails or stays away fails the
     * group: steps of all ranks are EK_ECOMM then, or EK_EDEVICE or EK_EDEVMEM if it was that. */
    int (*group_new)(const struct ek_open_params *p, struct ek_group **ret_group,
                     struct ek_fault *fault);
    void (*group_abort)(struct ek_group *g); /* by any thread */
    void (*group_free)(struct ek_group *g);  /* after its devices; accepts NULL */

    /* Of a device in a process of its own (apart.h), when a step failed: ends what is left of it
     * and brings up another one, with the same weights and as many blocks; nothing that was in
     * them is there. No step is in flight then. After a failure there is none, and it can be tried
     * again. `meanwhile` is called some ten times a second. NULL: a device that is lost stays lost.
     */
    int (*revive)(struct ek_device *d, ek_meanwhile_fn meanwhile, void *ctx,
                  struct ek_fault *fault);
    /* How it was lost, before revive(); ends what is left of it. With revive(), else NULL. */
    void (*how_lost)(struct ek_device *d, struct ek_device_end *ret_end);
    /* Whether another one would be begun with the files and libraries that are there now; changes
     * nothing, also with steps in flight. 0, or why not. With revive(), or NULL. */
    int (*check)(struct ek_device *d, struct ek_fault *fault);
    /* Ends it on purpose, so that all that it had is free; revive() brings up another one. No step
     * is in flight. 0, also when it had ended already. With revive(), else NULL. */
    int (*release)(struct ek_device *d);
    /* Whether it is gone, found without asking it for anything. With revive(), else NULL. */
    bool (*is_lost)(struct ek_device *d);

    /* The content of a block of a tier, as bytes that mean something to a device of the same plan
     * alone; with no step in flight. With EK_TIER_STATE it is a state slot. All three or none; 0
     * bytes: not of this device, or the graph has no recurrent state. */
    size_t (*kv_bytes)(const struct ek_device *d, uint32_t tier); /* of one block */
    int (*kv_read)(struct ek_device *d, uint32_t tier, uint32_t block, void *to);
    int (*kv_write)(struct ek_device *d, uint32_t tier, uint32_t block, const void *from);

    /* Before kv_open(): the host tier lies in this memory, which begins on an EK_HOST_PAGE, is as
     * large as kv_bytes() says of so many blocks, and a page more for each of several ranks; it
     * stays the caller's and outlives the device. NULL: it is always the device's. */
    int (*kv_host)(struct ek_device *d, void *at);
    /* With revive(): what is in the host tier is there in the next device, too, unless this gives
     * all of its memory back to the system; no step is in flight. NULL: it goes with the device. */
    void (*host_drop)(struct ek_device *d);

    /* Adds to `forms` which form of products is the fastest for each shape of the graph's weights
     * that is not there yet: measures, some 20 ms a shape. 0, -ENOMEM. NULL: there is no choice. */
    int (*choose)(const struct ek_open_params *p, const struct ek_graph *graph,
                  struct ek_forms *forms, struct ek_fault *fault);
};

/* The one symbol of a plug-in: its table, or NULL when it does not speak this ABI. */
#define EK_BACKEND_SYMBOL "ek_backend_get"
typedef const struct ek_backend *(*ek_backend_get_fn)(uint32_t abi);

/* A device of several ranks that looks like one of `each`: it divides the graph (shard.h, stage.h),
 * runs each rank that is here on a device of ek_open_params.each, and gives the answer of the first
 * rank of the last stage when all ranks of that have the same. */
const struct ek_backend *ek_ranks_backend(const struct ek_backend *each);
/* Where a rank of such a device is, and what it needs of all that is planned. As plan(). */
struct ek_rank_place {
    uint32_t node, stage, first_layer, layers;
};
int ek_rank_plan(const struct ek_open_params *p, const struct ek_plan_request *q, uint32_t rank,
                 struct ek_rank_place *ret_place, struct ek_plan *ret_plan, struct ek_fault *fault);
