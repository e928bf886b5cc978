#include "server/model/memplan.h"

#include <errno.h>
#include <math.h>

#include "common/buf.h"
#include "common/err.h"

#define MIB (1024.0 * 1024.0)

static const char *const item_names[MEMPLAN_ITEMS] = {
    [MEMPLAN_WEIGHTS] = "weights",      [MEMPLAN_ACTIVATIONS] = "activations",
    [MEMPLAN_SLOTS] = "sampling_state", [MEMPLAN_KV] = "kv_pool",
    [MEMPLAN_SWAP] = "swap_pool",       [MEMPLAN_HOST] = "requests_and_http",
    [MEMPLAN_OVERHEAD] = "overhead",
};

const char *memplan_item_name(enum memplan_item i)
{
    return i < MEMPLAN_ITEMS ? item_names[i] : "";
}

/* What is needed before the first block: everything but the KV pool. */
static uint64_t fixed_bytes(const struct memplan *m)
{
    uint64_t sum = 0;
    for (int i = 0; i < MEMPLAN_ITEMS; i++) {
        if (i == MEMPLAN_KV)
            continue;
        if (__builtin_add_overflow(sum, m->bytes[i], &sum))
            return UINT64_MAX;
    }
    return sum;
}

static uint64_t blocks_for(uint64_t tokens, uint32_t block_size)
{
    return (tokens + block_size - 1) / block_size + 1; /* and the null block */
}

static int too_small(const struct memplan *m, const struct memplan_params *p,
                     struct ek_fault *fault)
{
    uint64_t fixed = fixed_bytes(m), least = blocks_for(1, p->block_size) * m->block_bytes;
    double need = (double)fixed + (double)least, share = need / (double)p->memory_bytes;

    if (m->bytes[MEMPLAN_SWAP] > p->memory_bytes / 2)
        ek_fault_write(fault, "swap-space",
                       "--swap-space takes %.0f MiB of the %.0f MiB of memory there are: lower it",
                       (double)m->bytes[MEMPLAN_SWAP] / MIB, (double)p->memory_bytes / MIB);
    else if (share < 0.99)
        ek_fault_write(fault, "gpu-memory-utilization",
                       "The model needs %.0f MiB before the first KV block, but the share is %.0f "
                       "MiB (%.2f of %.0f MiB): raise --gpu-memory-utilization to %.2f or more",
                       (double)fixed / MIB, (double)m->share_bytes / MIB, p->utilization,
                       (double)p->memory_bytes / MIB, ceil(share * 100) / 100);
    else
        ek_fault_write(
            fault, "max-num-batched-tokens",
            "The model needs %.0f MiB before the first KV block, but there are only %.0f "
            "MiB: lower --max-num-batched-tokens (now %u) or --max-num-seqs (now %u), or "
            "use a smaller model",
            (double)fixed / MIB, (double)p->memory_bytes / MIB, p->max_num_batched_tokens,
            p->max_num_seqs);
    return -E2BIG;
}

/* How many blocks the pool gets; 0 when not even one sequence of one token fits. */
static int count_blocks(struct memplan *m, const struct memplan_params *p, struct ek_fault *fault)
{
    uint64_t fixed = fixed_bytes(m), room = 0, blocks;

    if (p->blocks_override) {
        m->blocks = p->blocks_override;
        return 0;
    }
    if (p->kv_cache_bytes)
        room = p->kv_cache_bytes;
    else if (m->share_bytes > fixed)
        room = m->share_bytes - fixed;
    if (!p->kv_cache_bytes && p->kv_most_bytes && room > p->kv_most_bytes)
        room = p->kv_most_bytes;
    blocks = room / m->block_bytes;
    if (blocks < blocks_for(1, p->block_size)) {
        if (!p->kv_cache_bytes)
            return too_small(m, p, fault);
        ek_fault_write(fault, "kv-cache-memory-bytes",
                       "--kv-cache-memory-bytes %llu holds %llu blocks of %llu bytes; at least 2 "
                       "are needed: give %llu or more",
                       (unsigned long long)room, (unsigned long long)blocks,
                       (unsigned long long)m->block_bytes, 2ull * m->block_bytes);
        return -E2BIG;
    }
    m->blocks = blocks > UINT32_MAX / p->block_size ? UINT32_MAX / p->block_size : (uint32_t)blocks;
    return 0;
}

/* --max-model-len: what was asked must fit into the pool; unset it fits itself. */
static int fit_length(struct memplan *m, const struct memplan_params *p, uint32_t model_len,
                      struct ek_fault *fault)
{
    uint64_t room = (uint64_t)(m->blocks - 1) * p->block_size;
    uint32_t wanted = p->max_model_len ? p->max_model_len : model_len;

    m->max_model_len = wanted;
    if (room < wanted && p->max_model_len) {
        double bytes = (double)blocks_for(wanted, p->block_size) * (double)m->block_bytes;
        ek_fault_write(
            fault, "max-model-len",
            "A request of --max-model-len %u needs %.1f MiB of KV cache, but the pool has "
            "%.1f MiB (%u blocks of %u tokens): lower --max-model-len to %llu or less "
            "(or auto), or enlarge the pool",
            wanted, bytes / MIB, (double)m->blocks * (double)m->block_bytes / MIB, m->blocks - 1,
            p->block_size, (unsigned long long)room);
        return -E2BIG;
    }
    if (room < wanted)
        m->max_model_len = (uint32_t)room;
    m->concurrency =
        (double)(m->blocks - 1) / (double)(blocks_for(m->max_model_len, p->block_size) - 1);
    return 0;
}

static bool sums_up(struct memplan *m)
{
    uint64_t sum;
    if (__builtin_mul_overflow((uint64_t)m->blocks, m->block_bytes, &m->bytes[MEMPLAN_KV]))
        return false;
    return !__builtin_add_overflow(fixed_bytes(m), m->bytes[MEMPLAN_KV], &sum);
}

int memplan_make(const struct memplan_params *p, const struct ek_plan *need, uint32_t model_len,
                 struct memplan *ret_plan, struct ek_fault *fault)
{
    if (p->block_size == 0 || need->block_bytes == 0 || model_len == 0 || p->memory_bytes == 0 ||
        !(p->utilization > 0) || p->utilization > 1 || p->blocks_override == 1) {
        ek_fault_write(fault, p->blocks_override == 1 ? "num-gpu-blocks-override" : "",
                       p->blocks_override == 1
                           ? "--num-gpu-blocks-override 1 leaves no block: give 2 or more"
                           : "The memory plan has a size of zero");
        return -E2BIG;
    }
    struct memplan m = {
        .block_bytes = need->block_bytes,
        .share_bytes = (uint64_t)((double)p->memory_bytes * p->utilization),
        .bytes = {[MEMPLAN_WEIGHTS] = need->weight_bytes,
                  [MEMPLAN_ACTIVATIONS] = need->activation_bytes,
                  [MEMPLAN_SLOTS] = need->slot_bytes,
                  [MEMPLAN_HOST] = p->host_bytes,
                  [MEMPLAN_OVERHEAD] = need->overhead_bytes},
    };
    uint64_t host_blocks = p->swap_bytes / need->block_bytes;
    m.host_blocks = host_blocks > UINT32_MAX ? UINT32_MAX : (uint32_t)host_blocks;
    m.bytes[MEMPLAN_SWAP] = m.host_blocks * need->block_bytes;

    int r = count_blocks(&m, p, fault);
    if (r == 0)
        r = fit_length(&m, p, model_len, fault);
    if (r == 0 && !sums_up(&m)) {
        ek_fault_write(fault, "", "The memory plan exceeds 64 bits; a size is far too large");
        r = -E2BIG;
    }
    if (r == 0 && fixed_bytes(&m) + m.bytes[MEMPLAN_KV] > p->memory_bytes) {
        ek_fault_write(
            fault, p->blocks_override ? "num-gpu-blocks-override" : "kv-cache-memory-bytes",
            "The plan needs %.0f MiB, %.0f MiB of them for the KV pool, but there are %.0f "
            "MiB: lower --%s",
            (double)(fixed_bytes(&m) + m.bytes[MEMPLAN_KV]) / MIB,
            (double)m.bytes[MEMPLAN_KV] / MIB, (double)p->memory_bytes / MIB,
            p->blocks_override ? "num-gpu-blocks-override" : "kv-cache-memory-bytes");
        r = -E2BIG;
    }
    if (r == 0)
        *ret_plan = m;
    return r;
}

static void write_json(const struct memplan *m, const struct memplan_params *p, uint64_t total,
                       struct ek_buf *out)
{
    (void)ek_buf_puts(out, "{\"bytes\":{");
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        (void)ek_buf_printf(out, "%s\"%s\":%llu", i ? "," : "", item_names[i],
                            (unsigned long long)m->bytes[i]);
    (void)ek_buf_printf(out,
                        "},\"total_bytes\":%llu,\"share_bytes\":%llu,\"memory_bytes\":%llu,"
                        "\"block_bytes\":%llu,\"block_size\":%u,\"num_blocks\":%u,"
                        "\"num_host_blocks\":%u,\"max_model_len\":%u,\"max_num_seqs\":%u,"
                        "\"max_num_batched_tokens\":%u,\"max_concurrency\":%.2f}\n",
                        (unsigned long long)total, (unsigned long long)m->share_bytes,
                        (unsigned long long)p->memory_bytes, (unsigned long long)m->block_bytes,
                        p->block_size, m->blocks, m->host_blocks, m->max_model_len, p->max_num_seqs,
                        p->max_num_batched_tokens, m->concurrency);
}

int memplan_write(const struct memplan *plan, const struct memplan_params *p, bool json,
                  struct ek_buf *out)
{
    uint64_t total = fixed_bytes(plan) + plan->bytes[MEMPLAN_KV];
    if (json) {
        write_json(plan, p, total, out);
        return ek_buf_ok(out) ? 0 : -ENOMEM;
    }
    (void)ek_buf_puts(out, "  memory plan                MiB\n");
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        (void)ek_buf_printf(out, "  %-18s %11.1f\n", item_names[i], (double)plan->bytes[i] / MIB);
    if (plan->share_bytes > total)
        (void)ek_buf_printf(out, "  %-18s %11.1f\n", "not used",
                            (double)(plan->share_bytes - total) / MIB);
    (void)ek_buf_printf(out, "  %-18s %11.1f  (%.2f of %.1f MiB)\n",
                        plan->share_bytes >= total ? "share" : "total",
                        (double)(plan->share_bytes >= total ? plan->share_bytes : total) / MIB,
                        p->utilization, (double)p->memory_bytes / MIB);
    (void)ek_buf_printf(
        out,
        "  %u KV blocks of %u tokens (%llu bytes each): %.1f requests of %u tokens; "
        "%u sequences, %u tokens a step\n",
        plan->blocks - 1, p->block_size, (unsigned long long)plan->block_bytes, plan->concurrency,
        plan->max_model_len, p->max_num_seqs, p->max_num_batched_tokens);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
