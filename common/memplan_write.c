/*
 * The memory plan (memplan.c) as a table for people and as JSON. Called at start, by `--dry-run`,
 * and by `evenkeelctl plan`.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>

#include "common/buf.h"
#include "common/memplan.h"

#define KIB (1ull << 10)
#define MIB (1ull << 20)
#define GIB (1ull << 30)
#define TIB (1ull << 40)

static const struct {
    const char *name, *text;
} item_table[MEMPLAN_ITEMS] = {
    [MEMPLAN_WEIGHTS] = {"weights", "weights"},
    [MEMPLAN_STAGING] = {"weight_buffers", "weight buffers"},
    [MEMPLAN_ACTIVATIONS] = {"activations", "activations"},
    [MEMPLAN_SLOTS] = {"sampling_state", "sampling state"},
    [MEMPLAN_STATES] = {"recurrent_state", "recurrent state"},
    [MEMPLAN_KV] = {"kv_pool", "KV pool"},
    [MEMPLAN_SWAP] = {"swap_pool", "swap pool"},
    [MEMPLAN_OFFLOAD] = {"offload_pool", "prefixes, host"},
    [MEMPLAN_HOST_WEIGHTS] = {"host_weights", "weights, host"},
    [MEMPLAN_FILES] = {"weight_files", "weight files"},
    [MEMPLAN_TABLES] = {"program_and_tables", "program, tables"},
    [MEMPLAN_HOST] = {"requests_and_http", "requests, HTTP"},
    [MEMPLAN_OVERHEAD] = {"overhead", "overhead"},
};

/* "12.5 MiB"; small enough to be shown, never "0.0". */
const char *memplan_size_text(uint64_t bytes, char text[24])
{
    if (bytes >= 10 * TIB)
        (void)snprintf(text, 24, "%.2f TiB", (double)bytes / (double)TIB);
    else if (bytes >= GIB)
        (void)snprintf(text, 24, "%.2f GiB", (double)bytes / (double)GIB);
    else if (bytes >= MIB)
        (void)snprintf(text, 24, "%.1f MiB", (double)bytes / (double)MIB);
    else if (bytes >= KIB)
        (void)snprintf(text, 24, "%.1f KiB", (double)bytes / (double)KIB);
    else
        (void)snprintf(text, 24, "%" PRIu64 " bytes", bytes);
    return text;
}

static uint32_t plan_ranks(const struct memplan_params *p)
{
    return p->ranks > 0 ? p->ranks : 1;
}

const char *memplan_item_name(enum memplan_item i)
{
    return item_table[i].name;
}

bool memplan_apart(const struct memplan_params *p, enum memplan_item i)
{
    return p->host_apart &&
           (i == MEMPLAN_SWAP || i == MEMPLAN_OFFLOAD || i == MEMPLAN_HOST_WEIGHTS ||
            i == MEMPLAN_FILES || i == MEMPLAN_TABLES || i == MEMPLAN_HOST);
}

/* Of the items that count against the share. */
static uint64_t used_bytes(const struct memplan *plan, const struct memplan_params *p)
{
    uint64_t used = 0;
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        if (!memplan_apart(p, (enum memplan_item)i))
            used = memplan_add(used, plan->bytes[i]);
    return used;
}

uint64_t memplan_left(const struct memplan *plan, const struct memplan_params *p)
{
    uint64_t used = used_bytes(plan, p);
    return used < plan->share_bytes ? plan->share_bytes - used : 0;
}

static void write_line(struct ek_buf *out, const char *name, uint64_t bytes, uint64_t share_bytes)
{
    char size[24], percent[16] = "";
    if (share_bytes > 0)
        (void)snprintf(percent, sizeof(percent), "%5.1f %%",
                       100.0 * (double)bytes / (double)share_bytes);
    (void)ek_buf_printf(out, "  %-16s %12s  %7s", name, memplan_size_text(bytes, size), percent);
}

static void write_text(const struct memplan *plan, const struct memplan_params *p,
                       struct ek_buf *out)
{
    char memory[24], block[24];
    (void)ek_buf_printf(out, "Memory plan: %.2f of %s", p->utilization,
                        memplan_size_text(p->memory_bytes, memory));
    if (plan_ranks(p) > 1)
        (void)ek_buf_printf(out, ", on each of %u cards", p->ranks);
    (void)ek_buf_puts(out, "\n");
    for (int i = 0; i < MEMPLAN_ITEMS; i++) {
        bool apart = memplan_apart(p, (enum memplan_item)i);
        if (plan->bytes[i] == 0 && i != MEMPLAN_WEIGHTS && i != MEMPLAN_KV)
            continue;
        write_line(out, item_table[i].text, plan->bytes[i], apart ? 0 : plan->share_bytes);
        if (i == MEMPLAN_WEIGHTS && p->weights_note && p->weights_note[0])
            (void)ek_buf_printf(out, "  %s", p->weights_note);
        if (i == MEMPLAN_STATES)
            (void)ek_buf_printf(out, "  %u sequences, %u snapshots", p->states, plan->snapshots);
        if (i == MEMPLAN_KV)
            (void)ek_buf_printf(out, "  %u blocks of %u tokens%s%s", plan->blocks, p->block_size,
                                p->kv_note ? ", " : "", p->kv_note ? p->kv_note : "");
        if (i == MEMPLAN_SWAP)
            (void)ek_buf_printf(out, "  %u blocks",
                                (uint32_t)(plan->bytes[i] / (plan->block_bytes * plan_ranks(p))));
        if (i == MEMPLAN_OFFLOAD)
            (void)ek_buf_printf(out, "  %u blocks", plan->offload_blocks);
        if (i == MEMPLAN_HOST_WEIGHTS && plan->gained_blocks > 0)
            (void)ek_buf_printf(out, "  for %u KV blocks", plan->gained_blocks);
        (void)ek_buf_puts(out, apart ? "  in host memory\n" : "\n");
    }
    uint64_t used = used_bytes(plan, p);
    bool over = used > plan->share_bytes;
    if (!over) {
        write_line(out, "left over", plan->share_bytes - used, plan->share_bytes);
        (void)ek_buf_puts(out, "\n");
    }
    write_line(out, over ? "total" : "share", over ? used : plan->share_bytes, plan->share_bytes);
    if (over)
        (void)ek_buf_puts(out, "  over the share, as asked");
    (void)ek_buf_printf(out,
                        "\nA block is %s. Requests may have %u tokens;\n"
                        "the KV pool holds %.2f of that length at once; a step has at most\n"
                        "%u sequences and %u tokens.\n",
                        memplan_size_text(plan->block_bytes, block), plan->max_model_len,
                        plan->concurrency, p->max_num_seqs, p->max_num_batched_tokens);
}

static void write_json(const struct memplan *plan, const struct memplan_params *p,
                       struct ek_buf *out)
{
    (void)ek_buf_puts(out, "{\"bytes\": {");
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        (void)ek_buf_printf(out, "%s\"%s\": %" PRIu64, i ? ", " : "", item_table[i].name,
                            plan->bytes[i]);
    (void)ek_buf_printf(out,
                        "}, \"total_bytes\": %" PRIu64 ", \"left_bytes\": %" PRIu64
                        ", \"share_bytes\": %" PRIu64 ", \"memory_bytes\": %" PRIu64
                        ", \"utilization\": %.4f, ",
                        used_bytes(plan, p), memplan_left(plan, p), plan->share_bytes,
                        p->memory_bytes, p->utilization);
    (void)ek_buf_printf(
        out,
        "\"ranks\": %u, \"weights\": \"%s\", \"kv_cache\": \"%s\", \"block_bytes\": %" PRIu64
        ", \"block_size\": %u, \"num_blocks\": %u, "
        "\"num_host_blocks\": %u, \"num_offload_blocks\": %u, \"num_gained_blocks\": %u, "
        "\"num_states\": %u, \"num_snapshots\": %u, \"max_model_len\": %u, \"max_num_seqs\": %u, "
        "\"max_num_batched_tokens\": %u, \"max_concurrency\": %.2f, "
        "\"host_apart\": %s}\n",
        plan_ranks(p), p->weights_note ? p->weights_note : "", p->kv_note ? p->kv_note : "",
        plan->block_bytes, p->block_size, plan->blocks, plan->host_blocks, plan->offload_blocks,
        plan->gained_blocks, p->states, plan->snapshots, plan->max_model_len, p->max_num_seqs,
        p->max_num_batched_tokens, plan->concurrency, p->host_apart ? "true" : "false");
}

int memplan_write(const struct memplan *plan, const struct memplan_params *p, bool json,
                  struct ek_buf *out)
{
    if (json)
        write_json(plan, p, out);
    else
        write_text(plan, p, out);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
