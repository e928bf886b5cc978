/*
 * Who touched what. Memory is followed in cells of 4 bytes, or of 2 or 1 in pages of 4096 bytes
 * where something narrower was touched. A cell holds the last write since the checker began and
 * four of the reads and atomic operations behind it: the last, and the last by another thread, by
 * another warp and by another block than that. Where barriers and whole warps are all that orders
 * threads, these four are enough to find every conflict.
 *
 * Here are the functions that -fsanitize=thread and -fsanitize=alignment,bounds call, none of which
 * may be compiled with these themselves. What is no shared or global memory is left alone: stacks
 * of the fibers, data of this library.
 */
#include <link.h>
#include <stdlib.h>
#include <string.h>
#include <unordered_map>

#include "tests/cuda/races_inner.h"

namespace
{

enum { PAGE = 4096, FASTER = 4096 };

struct cell {
    races_access write, read[4];
};

struct page {
    unsigned shift; /* log2 of the bytes of a cell */
    cell *cells;
};

struct range {
    uintptr_t begin;
    size_t bytes;

    bool has(uintptr_t at) const
    {
        return at - begin < bytes;
    }
};

extern "C" { /* what is the shim's own (SHIM_OWN), from the linker */
extern char __start_ek_shim[] __attribute__((visibility("hidden")));
extern char __stop_ek_shim[] __attribute__((visibility("hidden")));
}

std::unordered_map<uintptr_t, page> g_pages;
struct {
    uintptr_t index;
    page *at;
} g_faster[FASTER];
range g_image, g_stacks, g_args, g_own;
range g_fixed;             /* of shared memory: what is declared */
range g_dynamic, g_around; /* what the launch asked for, and what lies around it */

/* Whether an access is before what runs now. */
bool ordered(const races_access &a, bool shared, uintptr_t at)
{
    const uint32_t who = a.who & RACES_WHO;

    if (a.time < (shared ? races_g.block : races_g.launch))
        return true;
    if (a.who & RACES_ASYNC)
        return false;
    if (who == races_g.me)
        return true;
    if (who >> 10 == races_g.me >> 10)
        return a.time < races_g.barrier || races_seen(who & 1023, a.time);
    return races_known(a, at);
}

/* One access of `bytes` at `at`, which may lie in several cells. */
struct touching {
    uintptr_t at;
    unsigned bytes;
    const void *pc;
    bool shared, writes;
    uint32_t flags;
};

void conflict(const touching &t, const races_access &a)
{
    const bool copy = a.who & RACES_ASYNC;
    const char *what = t.flags & RACES_ASYNC    ? "copies to"
                       : t.flags & RACES_ATOMIC ? "changes atomically"
                       : t.writes               ? "writes"
                                                : "reads";

    races_report(copy       ? RACES_COPY
                 : t.shared ? RACES_SHARED
                            : RACES_GLOBAL,
                 what, t.at, t.bytes, t.pc, &a);
}

void check(const touching &t, const races_access &a)
{
    if (!(t.flags & a.who & RACES_ATOMIC) && !ordered(a, t.shared, t.at))
        conflict(t, a);
}

void note(cell *c, const races_access &a)
{
    const races_access last = c->read[0];
    const uint32_t differ = (last.who ^ a.who) & RACES_WHO;

    if (differ != 0)
        c->read[1] = last;
    if (differ >> 5 != 0)
        c->read[2] = last;
    if (differ >> 10 != 0)
        c->read[3] = last;
    c->read[0] = a;
}

void touch_cell(cell *c, const touching &t)
{
    const races_access mine = {races_g.now, races_g.me | t.flags, races_pc(t.pc)};
    const races_access &last = c->read[0];

    if (!t.writes && last.who == mine.who && last.time == mine.time)
        return;
    if (t.writes && t.flags == 0 && last.time == 0 && c->write.who == mine.who &&
        c->write.time == mine.time)
        return;
    check(t, c->write);
    for (const races_access &r : c->read)
        if (t.writes || (r.who & RACES_ATOMIC))
            check(t, r);
    if (t.shared && (!t.writes || t.flags & RACES_ATOMIC) && c->write.time < races_g.block)
        races_report(RACES_UNSET, t.writes ? "changes" : "reads", t.at, t.bytes, t.pc, NULL);
    if (t.writes)
        c->write = mine;
    if (t.writes && !(t.flags & RACES_ATOMIC))
        memset(c->read, 0, sizeof(c->read));
    else
        note(c, mine);
}

/* From now on the cells of a page are smaller. */
void refine(page *p, unsigned shift)
{
    const size_t count = PAGE >> shift;
    cell *cells = (cell *)malloc(count * sizeof(cell));

    for (size_t i = 0; i < count; i++)
        cells[i] = p->cells[i << shift >> p->shift];
    free(p->cells);
    p->cells = cells;
    p->shift = shift;
}

page *page_at(uintptr_t at)
{
    const uintptr_t index = at / PAGE;
    auto *fast = &g_faster[index % FASTER];

    if (fast->index != index || !fast->at) {
        page *p = &g_pages[index];
        if (!p->cells) {
            p->shift = 2;
            p->cells = (cell *)calloc(PAGE >> 2, sizeof(cell));
        }
        *fast = {index, p};
    }
    return fast->at;
}

void touch(touching t)
{
    if (!races_g.running || g_stacks.has(t.at) || g_args.has(t.at) || g_own.has(t.at) ||
        (g_image.has(t.at) && !g_fixed.has(t.at)))
        return;
    t.shared = g_fixed.has(t.at) || g_around.has(t.at);
    if (g_around.has(t.at) && (!g_dynamic.has(t.at) || !g_dynamic.has(t.at + t.bytes - 1))) {
        races_report(RACES_OUTSIDE, t.writes ? "writes" : "reads", t.at, t.bytes, t.pc, NULL);
        return;
    }
    if (!t.shared && t.writes)
        races_before_write(t.at, t.bytes);
    const uintptr_t end = t.at + t.bytes;
    for (uintptr_t at = t.at; at < end;) {
        const uintptr_t stop = end < (at / PAGE + 1) * PAGE ? end : (at / PAGE + 1) * PAGE;
        const unsigned fits = (unsigned)__builtin_ctzll(at | stop | 4);
        page *p = page_at(at);
        if (fits < p->shift)
            refine(p, fits);
        cell *c = &p->cells[at % PAGE >> p->shift];
        for (; at < stop; at += (uintptr_t)1 << p->shift)
            touch_cell(c++, t);
    }
}

/* Our library, and of it what can be written. */
int find_image(struct dl_phdr_info *info, size_t, void *)
{
    const uintptr_t here = (uintptr_t)&g_pages;
    uintptr_t end = 0;
    range data = {};

    for (int i = 0; i < info->dlpi_phnum; i++) {
        const range r = {info->dlpi_addr + info->dlpi_phdr[i].p_vaddr, info->dlpi_phdr[i].p_memsz};
        if (info->dlpi_phdr[i].p_type != PT_LOAD)
            continue;
        end = r.begin + r.bytes > end ? r.begin + r.bytes : end;
        if (r.has(here))
            data = r;
    }
    if (data.bytes == 0)
        return 0;
    g_image = {info->dlpi_addr, end - info->dlpi_addr};
    g_fixed = data;
    return 1;
}

} // namespace

uint32_t races_pc(const void *pc)
{
    return (uint32_t)((uintptr_t)pc - g_image.begin);
}

void races_memory(const void *stacks, size_t bytes)
{
    g_stacks = {(uintptr_t)stacks, bytes};
    g_own = {(uintptr_t)__start_ek_shim, (size_t)(__stop_ek_shim - __start_ek_shim)};
    dl_iterate_phdr(find_image, NULL);
}

void races_launch(const char *kernel, const void *args, size_t bytes)
{
    races_g.kernel = kernel;
    g_args = {(uintptr_t)args, bytes};
    races_order_launch();
}

void races_block(unsigned index, unsigned threads, unsigned char *dynamic, size_t bytes)
{
    races_g.me = index << 10;
    races_g.threads = threads;
    races_order_block();
    g_dynamic = {(uintptr_t)dynamic, bytes};
    g_around = {(uintptr_t)dynamic - SHIM_GUARD, bytes + 2 * SHIM_GUARD};
}

void races_thread(int index)
{
    races_g.running = index >= 0;
    if (index >= 0)
        races_g.me = (races_g.me & ~1023u) | (unsigned)index;
}

void races_copy(void *to, const void *from, bool valid, const void *pc)
{
    if (!g_fixed.has((uintptr_t)to) && !g_around.has((uintptr_t)to))
        races_report(RACES_OUTSIDE, "copies to", (uintptr_t)to, 16, pc, NULL);
    races_aligned(to, 16, pc);
    races_aligned(from, 16, pc);
    if (valid)
        touch({(uintptr_t)from, 16, pc, false, false, 0});
    touch({(uintptr_t)to, 16, pc, true, true, RACES_ASYNC});
}

/* Its source was to stay as it was until now. */
void races_copied(void *to, const void *from, bool valid, const void *pc)
{
    page *p = page_at((uintptr_t)to);
    cell *c = &p->cells[(uintptr_t)to % PAGE >> p->shift];

    if (valid)
        touch({(uintptr_t)from, 16, pc, false, false, 0});
    for (unsigned i = 0; i < 16u >> p->shift; i++, c++)
        if (c->write.who == (races_g.me | RACES_ASYNC))
            c->write = {races_g.now, races_g.me, c->write.pc};
}

void races_atomic(const void *at, size_t bytes, const void *pc)
{
    races_aligned(at, bytes, pc);
    touch({(uintptr_t)at, (unsigned)bytes, pc, false, true, RACES_ATOMIC});
    if (!g_fixed.has((uintptr_t)at) && !g_around.has((uintptr_t)at))
        races_order_atomic((uintptr_t)at);
}

void races_aligned(const void *at, size_t bytes, const void *pc)
{
    if ((uintptr_t)at % bytes != 0)
        races_report(RACES_UNALIGNED, "wants", (uintptr_t)at, bytes, pc, NULL);
}

/* ---- what instrumented code calls ---- */

#define HERE __builtin_return_address(0)
#define ACCESS(bytes)                                                                              \
    void __tsan_read##bytes(void *at)                                                              \
    {                                                                                              \
        touch({(uintptr_t)at, bytes, HERE, false, false, 0});                                      \
    }                                                                                              \
    void __tsan_write##bytes(void *at)                                                             \
    {                                                                                              \
        touch({(uintptr_t)at, bytes, HERE, false, true, 0});                                       \
    }                                                                                              \
    void __tsan_unaligned_read##bytes(void *at)                                                    \
    {                                                                                              \
        touch({(uintptr_t)at, bytes, HERE, false, false, 0});                                      \
    }                                                                                              \
    void __tsan_unaligned_write##bytes(void *at)                                                   \
    {                                                                                              \
        touch({(uintptr_t)at, bytes, HERE, false, true, 0});                                       \
    }

extern "C" {
ACCESS(1)
ACCESS(2)
ACCESS(4)
ACCESS(8)
ACCESS(16)
void __tsan_read_range(void *at, size_t bytes)
{
    touch({(uintptr_t)at, (unsigned)bytes, HERE, false, false, 0});
}
void __tsan_write_range(void *at, size_t bytes)
{
    touch({(uintptr_t)at, (unsigned)bytes, HERE, false, true, 0});
}
void __tsan_vptr_update(void **, void *)
{
}
void __tsan_init()
{
}
void __tsan_func_entry(void *)
{
}
void __tsan_func_exit()
{
}

/* A type's alignment is not met, or an index lies behind its array. */
struct where {
    const char *file;
    uint32_t line, column;
};
void __ubsan_handle_type_mismatch_v1(const struct where *, uintptr_t at)
{
    if (races_g.running)
        races_report(RACES_UNALIGNED, "wants", at, 0, HERE, NULL);
}
void __ubsan_handle_out_of_bounds(const struct where *, uintptr_t index)
{
    if (races_g.running)
        races_report(RACES_OUTSIDE, "has an index of", index, 0, HERE, NULL);
}
}
