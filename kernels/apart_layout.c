/*
 * What lies where in the memory that server and engine share (apart_memory.h). Called by the server
 * when it asks for its first engine, and when the KV pool is opened.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "common/memplan.h"
#include "kernels/apart_memory.h"
#include "kernels/fingerprint.h"

static uint64_t take_room(uint64_t *end, uint64_t bytes)
{
    uint64_t at = (*end + 63) / 64 * 64;

    *end = at + bytes;
    return at;
}

/* Of a block and a state what kv_read() gives: that of all ranks, one after the other. */
static void add_contents(const struct ek_open_params *p, const struct ek_plan_request *q,
                         struct ek_apart_memory *layout)
{
    struct ek_rank_place place;
    struct ek_plan plan = {0};
    int r = 0;

    if (!p->each->kv_bytes || ek_open_spans(p))
        return;
    for (uint32_t i = 0; r == 0 && i < (p->ranks > 1 ? p->ranks : 1); i++) {
        r = p->ranks > 1 ? ek_rank_plan(p, q, i, &place, &plan, NULL)
                         : p->each->plan(p, q, &plan, NULL);
        layout->block_bytes += plan.block_bytes;
        layout->state_bytes += plan.state_bytes;
    }
    if (r < 0)
        layout->block_bytes = layout->state_bytes = 0;
}

/* All of it now, as pages that could not be had later would be a SIGBUS. */
static int apart_layout_take_memory(uint64_t bytes, int *ret_fd, void **ret_at)
{
    int fd = memfd_create("evenkeel-engine", MFD_CLOEXEC);
    int r = fd < 0 || fallocate(fd, 0, 0, (off_t)bytes) < 0 ? -errno : 0;
    void *at = r == 0 ? mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0) : MAP_FAILED;

    if (r == 0 && at == MAP_FAILED)
        r = -errno;
    if (r < 0 && fd >= 0)
        (void)close(fd);
    if (r < 0)
        return r;
    *ret_fd = fd;
    *ret_at = at;
    return 0;
}

int apart_layout(const struct ek_open_params *p, const struct ek_plan_request *q,
                 struct ek_apart_memory **ret_memory, struct ek_fault *fault)
{
    struct ek_apart_memory layout = {
        .abi = EK_BACKEND_ABI, .size = sizeof(layout), .program = EK_VERSION};
    const uint64_t words = ((uint64_t)q->graph->vocab + 31) / 32;

    ek_build_id(layout.build);
    layout.want = (struct ek_apart_order){.ranks = p->ranks,
                                          .stages = p->stages,
                                          .local = ek_open_local(p),
                                          .stall_us = p->stall_us,
                                          .threads = p->threads,
                                          .reserve = p->reserve,
                                          .plan = *q,
                                          .stamp = p->apart->stamp,
                                          .graph = ek_graph_sum(q->graph)};
    layout.want.plan.graph = NULL; /* the engine has its own */
    if (p->forms)
        layout.want.forms = *p->forms;
    if (p->devices) {
        layout.want.cards = p->ranks > 1 ? p->ranks : 1;
        memcpy(layout.want.card, p->devices, layout.want.cards * sizeof(layout.want.card[0]));
    }
    (void)snprintf(layout.want.backend, sizeof(layout.want.backend), "%s", p->apart->backend);
    (void)snprintf(layout.want.isa, sizeof(layout.want.isa), "%s", p->isa ? p->isa : "");
    layout.step_bytes = ek_step_size(&q->ceiling);
    layout.masks_bytes = sizeof(struct ek_masks) + q->ceiling.seqs * words * 4;
    layout.result_bytes =
        ek_result_bytes(q->ceiling.seqs, q->ceiling.scores, q->ceiling.seqs, q->graph->hidden);
    if (layout.step_bytes == 0 || layout.result_bytes == 0)
        return -EOVERFLOW;
    layout.bytes = sizeof(layout);
    for (uint32_t i = 0; i < APART_SLOTS; i++) {
        layout.step_at[i] = take_room(&layout.bytes, layout.step_bytes);
        layout.masks_at[i] = take_room(&layout.bytes, layout.masks_bytes);
        layout.result_at[i] = take_room(&layout.bytes, layout.result_bytes);
    }
    add_contents(p, q, &layout);
    layout.block_at =
        take_room(&layout.bytes, layout.state_bytes > layout.block_bytes ? layout.state_bytes
                                                                         : layout.block_bytes);
    int fd = -1;
    void *at = NULL;
    int r = apart_layout_take_memory(layout.bytes, &fd, &at);
    if (r < 0) {
        ek_fault_write(fault, "engine-process",
                       "The memory that server and engine share, %.1f MiB, cannot be had: %s",
                       (double)layout.bytes / (1 << 20), ek_strerror(r));
        return r == -ENOSPC ? -ENOMEM : r;
    }
    layout.fd = fd;
    memcpy(at, &layout, sizeof(layout));
    *ret_memory = at;
    return 0;
}

int apart_layout_host(const struct ek_open_params *open, const struct ek_kv_params *p,
                      struct ek_apart_memory *m)
{
    const uint64_t at = (m->bytes + EK_HOST_PAGE - 1) / EK_HOST_PAGE * EK_HOST_PAGE;
    uint64_t bytes, end;

    if (!open->each->kv_host || ek_open_spans(open) || m->host_bytes != 0)
        return 0;
    if (__builtin_mul_overflow(m->block_bytes, p->host_blocks, &bytes) ||
        __builtin_add_overflow(bytes, bytes > 0 ? open->ranks * EK_HOST_PAGE : 0, &bytes) ||
        __builtin_add_overflow(at, bytes, &end) || end > INT64_MAX)
        return -EOVERFLOW;
    if (bytes > 0 && ftruncate(m->fd, (off_t)end) < 0)
        return -errno;
    m->host_at = at;
    m->host_bytes = bytes;
    return 0;
}
