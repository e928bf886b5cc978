/*
 * Every byte before the first allocation, for evenkeel-server (--dry-run) and evenkeelctl plan
 * alike: weights, activation arena for the ceilings, KV pool, swap pool, per-request tables, HTTP
 * buffers; a table that sums, with what is left over, to the share, unless the KV pool was asked
 * for by name: then it is bounded by the memory. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct ek_buf;
struct ek_fault;

/* Columns that share a scale in a matrix that is made 4 bits while loading. */
static inline uint32_t ek_int4_group(uint32_t cols)
{
    return cols % 64 == 0 ? 64 : 32;
}

/* The same of 8 bits, and of the output layer, on the CPU; on a card it is the row. */
#define EK_INT8_GROUP 128u
#define EK_HEAD_GROUP 32u

/* What an engine needs of the device: a backend's plan(), or the planner's formulas. */
struct ek_plan {
    uint64_t weight_bytes;     /* as packed for computing */
    uint64_t activation_bytes; /* arena for the ceilings, logits included */
    uint64_t slot_bytes;       /* sampling state */
    uint64_t block_bytes;      /* one KV block over all layers, K and V */
    uint64_t state_bytes;      /* recurrent state of one sequence, 0 = the model has none */
    uint64_t overhead_bytes;   /* context, workspaces, thread stacks */
    /* Of weights that stay in host memory (--cpu-offload-gb), not in weight_bytes: */
    uint64_t host_weight_bytes;  /* what they take there */
    uint64_t staging_bytes;      /* buffers on the device that they are copied to */
    uint64_t offload_most_bytes; /* all that could be there, */
    uint64_t staging_most_bytes; /* and the most that the device would need more for it */
};

struct memplan_params {
    uint64_t memory_bytes;    /* of the device, or what the cgroup or machine offers */
    double utilization;       /* --gpu-memory-utilization */
    uint64_t kv_cache_bytes;  /* --kv-cache-memory-bytes, 0 = what is left */
    uint32_t blocks_override; /* --num-gpu-blocks-override, 0 = none */
    uint64_t kv_most_bytes;   /* CPU: 4 GiB unless set otherwise; 0 = no such bound. It gives way
                                 to kv_cache_bytes, blocks_override and max_model_len */
    uint32_t ranks;           /* cards that have such a plan each and share the host; 0 = 1 */
    uint32_t stages;          /* of layers that they are divided among; 0 = 1 */
    uint32_t ranks_here;      /* of the ranks, on this machine; 0 = all */
    uint64_t swap_bytes;      /* --swap-space */
    uint64_t offload_bytes;   /* --kv-offloading-size */
    uint32_t block_size;
    uint32_t max_model_len; /* 0 = fit it */
    uint32_t max_num_seqs, max_num_batched_tokens;
    uint32_t states;   /* recurrent states of sequences */
    int64_t snapshots; /* more of them for the prefix cache, -1 = as many as seem right */
    /* What lies in host memory besides the host blocks: */
    uint64_t table_bytes;       /* the program, its texts, the engine's tables */
    uint64_t block_table_bytes; /* of those tables for each block of both pools */
    uint64_t host_bytes;        /* requests, HTTP buffers: what clients may make it take */
    uint64_t file_bytes;        /* weight files whose pages are kept, --keep-weights-host */
    bool host_apart;            /* a GPU: all that is outside the share, and host blocks too */
    uint64_t host_memory_bytes; /* then: must hold it; 0 = not known */
    const char *weights_note;   /* how they are kept, for the table; NULL = plain */
    const char *kv_note;        /* the same of the KV cache; NULL = in the type of the model */
};

enum memplan_item {
    MEMPLAN_WEIGHTS,
    MEMPLAN_STAGING,
    MEMPLAN_ACTIVATIONS,
    MEMPLAN_SLOTS,
    MEMPLAN_STATES,
    MEMPLAN_KV,
    MEMPLAN_SWAP,
    MEMPLAN_OFFLOAD,
    MEMPLAN_HOST_WEIGHTS,
    MEMPLAN_FILES,
    MEMPLAN_TABLES,
    MEMPLAN_HOST,
    MEMPLAN_OVERHEAD,
    MEMPLAN_ITEMS
};

struct memplan {
    uint64_t bytes[MEMPLAN_ITEMS];
    uint64_t share_bytes; /* memory * utilization */
    uint64_t block_bytes;
    uint32_t blocks, host_blocks; /* block 0 included */
    uint32_t offload_blocks;      /* of the host blocks: for evicted prefixes */
    uint32_t max_model_len;
    uint32_t snapshots;     /* recurrent states besides those of sequences */
    uint32_t gained_blocks; /* of them for the weights that are in host memory */
    double concurrency;     /* requests of max_model_len that the pool holds */
};

/* 0; -E2BIG with a fault that says by how much it does not fit and which setting to change to what
 * (exit code 75); -EBADMSG with a fault for a value that makes no sense on any machine. */
int memplan_make(const struct memplan_params *p, const struct ek_plan *need, uint32_t model_len,
                 struct memplan *ret_plan, struct ek_fault *fault);
uint64_t memplan_add(uint64_t a, uint64_t b); /* UINT64_MAX where it is more */
/* "12.5 MiB" */
const char *memplan_size_text(uint64_t bytes, char text[24]);
const char *memplan_item_name(enum memplan_item i); /* "kv_pool" */
/* Whether the item lies in host memory that does not count against the share. */
bool memplan_apart(const struct memplan_params *p, enum memplan_item i);
/* Bytes of the share that no item takes. */
uint64_t memplan_left(const struct memplan *plan, const struct memplan_params *p);
/* The table for people (at most 80 columns), or one line of JSON. -ENOMEM. */
int memplan_write(const struct memplan *plan, const struct memplan_params *p, bool json,
                  struct ek_buf *out);
