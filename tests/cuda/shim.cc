/*
 * Runs a kernel's blocks on fibers: each thread of a block has a stack, runs until it meets a
 * barrier or an exchange of its warp, and goes on when all it waits for have come. A block that can
 * never go on (a barrier that not all reach) ends the program with a message. The order in which
 * threads run is turned around from launch to launch, so that a missing barrier does not always
 * happen to be in luck; SHIM_SEED=N in the environment gives blocks and threads another one each
 * time.
 */
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <utility>
#include <vector>

#include "tests/cuda/shim.h"
#include "tests/cuda/shim_run.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

SHIM_OWN struct shim_dim threadIdx, blockIdx, blockDim, gridDim;
SHIM_OWN unsigned char *shim_dynamic;

namespace
{

enum { MOST_THREADS = 1024, STACK = 256 << 10, LANE_BYTES = SHIM_LANE_BYTES, MOST_COPIES = 256 };

struct copy {
    void *to;
    const void *from;
    bool valid;
    unsigned group;
    const void *pc;
};

struct fiber {
    enum { READY, WARP, BLOCK, DONE } state;
    void *sp;
    unsigned turn;
    enum shim_meeting at; /* while it waits for its warp */
    uint32_t mask;
    unsigned groups, first_copy, copies; /* asynchronous copies under way */
    struct copy copy[MOST_COPIES];
};

struct kernel {
    const char *name;
    size_t bytes;
    unsigned threads;
    void (*run)(const void *args);
};

std::vector<kernel> &known()
{
    static std::vector<kernel> all;
    return all;
}

fiber g_fiber[MOST_THREADS];
char *g_stacks;
unsigned g_current, g_threads, g_launches;
unsigned g_order[MOST_THREADS]; /* in which threads have their turns */
uint64_t g_seed;                /* 0: forward and backward */
void *g_scheduler;
const void *g_args;
void (*g_run)(const void *);
SHIM_OWN alignas(16) unsigned char g_lane[2][MOST_THREADS][LANE_BYTES];

#if defined(__x86_64__)
extern "C" void shim_switch(void **save, void *to);
asm(".text\n"
    ".globl shim_switch\n"
    ".type shim_switch, @function\n"
    "shim_switch:\n"
    "  push %rbp\n  push %rbx\n  push %r12\n  push %r13\n  push %r14\n  push %r15\n"
    "  mov %rsp, (%rdi)\n"
    "  mov %rsi, %rsp\n"
    "  pop %r15\n  pop %r14\n  pop %r13\n  pop %r12\n  pop %rbx\n  pop %rbp\n"
    "  ret\n");
#else
ucontext_t g_context[MOST_THREADS + 1];
void shim_switch(void **save, void *to)
{
    ucontext_t *mine = save == &g_scheduler ? &g_context[MOST_THREADS] : &g_context[g_current];
    *save = mine;
    swapcontext(mine, (ucontext_t *)to);
}
#endif

void leave(int state)
{
    fiber *f = &g_fiber[g_current];
    f->state = (decltype(f->state))state;
    shim_switch(&f->sp, g_scheduler);
}

void entry()
{
    g_run(g_args);
    leave(fiber::DONE);
    abort(); /* nobody comes back here */
}

void make_fiber(unsigned i)
{
    fiber *f = &g_fiber[i];
    f->state = fiber::READY;
    f->turn = f->groups = f->first_copy = f->copies = 0;
#if defined(__x86_64__)
    void **top = (void **)(g_stacks + (size_t)(i + 1) * STACK);
    *--top = nullptr;
    *--top = (void *)entry;
    for (int k = 0; k < 6; k++)
        *--top = nullptr;
    f->sp = top;
#else
    getcontext(&g_context[i]);
    g_context[i].uc_stack.ss_sp = g_stacks + (size_t)i * STACK;
    g_context[i].uc_stack.ss_size = STACK;
    g_context[i].uc_link = nullptr;
    makecontext(&g_context[i], entry, 0);
    f->sp = &g_context[i];
#endif
}

void stuck(const char *why)
{
    if (races_lanes(why))
        return;
    fprintf(stderr, "shim: block %u,%u: %s\n", blockIdx.x, blockIdx.y, why);
    abort();
}

/* Whether all lanes of this one's mask have come to where it waits. */
bool all_came(unsigned warp, const fiber *one)
{
    for (unsigned i = 0; i < 32; i++) {
        const fiber *f = &g_fiber[warp + i];
        if ((one->mask >> i & 1u) &&
            (f->state != fiber::WARP || f->mask != one->mask || f->at != one->at))
            return false;
    }
    return one->mask != 0;
}

/* Lets lanes go on that have met; whether there were any. */
bool release_warp(unsigned warp)
{
    bool any = false;

    for (unsigned lane = 0; lane < 32; lane++) {
        const fiber *f = &g_fiber[warp + lane];
        if (f->state != fiber::WARP || !all_came(warp, f))
            continue;
        const uint32_t mask = f->mask;
        if (f->at == SHIM_SYNCWARP)
            races_warp(warp, mask);
        for (unsigned i = 0; i < 32; i++)
            if (mask >> i & 1u)
                g_fiber[warp + i].state = fiber::READY;
        any = true;
    }
    return any;
}

/* Lets those go on for whom all have come; whether there were any. */
bool release()
{
    unsigned waiting = 0;
    bool any = false;

    for (unsigned i = 0; i < g_threads; i++)
        waiting += g_fiber[i].state == fiber::BLOCK;
    for (unsigned warp = 0; warp < g_threads; warp += 32)
        any = release_warp(warp) || any;
    if (any)
        return true;
    if (waiting != g_threads)
        return false;
    races_barrier();
    shim_wgmma_barrier();
    for (unsigned i = 0; i < g_threads; i++)
        g_fiber[i].state = fiber::READY;
    return true;
}

const char *why_stuck()
{
    unsigned waiting = 0, done = 0;

    for (unsigned i = 0; i < g_threads; i++) {
        const fiber *f = &g_fiber[i];
        waiting += f->state == fiber::BLOCK;
        done += f->state == fiber::DONE;
        if (f->state == fiber::WARP && !(f->mask >> i % 32 & 1u))
            return "a lane comes to an exchange whose mask does not name it";
        for (unsigned k = 0; f->state == fiber::WARP && k < 32; k++)
            if ((f->mask >> k & 1u) && g_fiber[i / 32 * 32 + k].state == fiber::DONE)
                return "a lane left before an exchange of its warp";
    }
    return waiting > 0 && done > 0 ? "a thread left before a barrier of its block"
                                   : "some threads wait for others that wait elsewhere";
}

unsigned random_below(unsigned limit)
{
    g_seed = g_seed * 6364136223846793005ull + 1442695040888963407ull;
    return (unsigned)((g_seed >> 33) % limit);
}

/* In which order `count` take turns. */
void set_order(unsigned *order, unsigned count, bool backward)
{
    for (unsigned i = 0; i < count; i++)
        order[i] = backward ? count - 1 - i : i;
    for (unsigned i = count; g_seed != 0 && i > 1; i--)
        std::swap(order[i - 1], order[random_below(i)]);
}

void run_block(bool backward)
{
    for (unsigned i = 0; i < g_threads; i++)
        make_fiber(i);
    for (;;) {
        unsigned left = 0;
        set_order(g_order, g_threads, backward);
        for (unsigned i = 0; i < g_threads; i++) {
            const unsigned at = g_order[i];
            if (g_fiber[at].state == fiber::READY) {
                g_current = at;
                threadIdx = {at, 0, 0};
                races_thread((int)at);
                shim_switch(&g_scheduler, g_fiber[at].sp);
                races_thread(-1);
            }
            left += g_fiber[at].state != fiber::DONE;
        }
        if (left == 0)
            return;
        if (!release()) {
            stuck(why_stuck());
            return;
        }
    }
}

void run_grid(size_t dynamic_bytes, bool backward)
{
    const unsigned blocks = gridDim.x * gridDim.y;
    std::vector<unsigned> order(blocks);

    set_order(order.data(), blocks, backward && races_repeats());
    for (unsigned at : order) {
        blockIdx = {at % gridDim.x, at / gridDim.x, 0};
        races_block(at, g_threads, shim_dynamic, dynamic_bytes);
        shim_wgmma_block(shim_dynamic, dynamic_bytes, g_threads);
        run_block(backward);
        shim_wgmma_end();
    }
}

} // namespace

void shim_sync_block()
{
    leave(fiber::BLOCK);
}

void shim_sync_warp(enum shim_meeting at, uint32_t mask, const void *mine, size_t bytes)
{
    fiber *f = &g_fiber[g_current];
    assert(bytes <= LANE_BYTES);
    f->turn ^= 1;
    f->at = at;
    f->mask = mask;
    if (bytes > 0)
        memcpy(g_lane[f->turn][g_current], mine, bytes);
    leave(fiber::WARP);
}

const unsigned char *shim_lanes()
{
    return g_lane[g_fiber[g_current].turn][g_current / 32 * 32];
}

const void *shim_lane(unsigned lane)
{
    if (!(g_fiber[g_current].mask >> lane & 1u))
        stuck("a lane asks for what one has that its mask does not name");
    return shim_lanes() + lane * SHIM_LANE_BYTES;
}

const void *shim_here()
{
    return __builtin_return_address(0);
}

void shim_async_copy(void *to, const void *from, bool valid)
{
    fiber *f = &g_fiber[g_current];
    const void *pc = __builtin_return_address(0);
    races_copy(to, from, valid, pc);
    assert((uintptr_t)to % 16 == 0 && (uintptr_t)from % 16 == 0);
    assert(f->copies - f->first_copy < MOST_COPIES);
    shim_wgmma_copies(to);
    f->copy[f->copies++ % MOST_COPIES] = {to, from, valid, f->groups, pc};
}

void shim_async_commit()
{
    g_fiber[g_current].groups++;
}

void shim_async_wait(unsigned left)
{
    fiber *f = &g_fiber[g_current];
    for (; f->first_copy < f->copies; f->first_copy++) {
        const copy *c = &f->copy[f->first_copy % MOST_COPIES];
        if (c->group + left >= f->groups)
            break;
        races_copied(c->to, c->from, c->valid, c->pc);
        if (c->valid)
            memcpy(c->to, c->from, 16);
        else
            memset(c->to, 0, 16);
        shim_wgmma_landed(c->to);
    }
}

void shim_register(const char *name, size_t bytes, unsigned threads, void (*run)(const void *args))
{
    known().push_back({name, bytes, threads, run});
}

extern "C" int shim_find(const char *name, size_t *ret_bytes)
{
    for (size_t i = 0; i < known().size(); i++)
        if (strcmp(known()[i].name, name) == 0) {
            *ret_bytes = known()[i].bytes;
            return (int)i;
        }
    return -1;
}

extern "C" void shim_launch(int index, const unsigned grid[3], unsigned threads,
                            size_t dynamic_bytes, const void *args)
{
    const kernel *k = &known()[(size_t)index];
    if (threads % 32 != 0 || threads == 0 || threads > k->threads) {
        fprintf(stderr, "shim: %s with %u threads\n", k->name, threads);
        abort();
    }
    if (!g_stacks) {
        void *at = mmap(nullptr, (size_t)STACK * MOST_THREADS, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
        assert(at != MAP_FAILED);
        g_stacks = (char *)at;
        races_memory(at, (size_t)STACK * MOST_THREADS);
        g_seed = getenv("SHIM_SEED") ? strtoull(getenv("SHIM_SEED"), nullptr, 10) : 0;
    }
    const size_t bytes = (dynamic_bytes + 31) & ~(size_t)15;
    unsigned char *memory = (unsigned char *)aligned_alloc(16, bytes + 2 * (size_t)SHIM_GUARD);
    shim_dynamic = memory + SHIM_GUARD;
    g_run = k->run;
    g_args = args;
    g_threads = threads;
    g_launches++;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    for (unsigned run = 0; run < (races_repeats() ? 2u : 1u); run++) {
        memset(shim_dynamic, 0xff, bytes);
        if (run > 0)
            races_rewind();
        races_launch(k->name, args, k->bytes);
        run_grid(dynamic_bytes, (g_launches + run) % 2);
    }
    if (races_repeats())
        races_compare(k->name);
    free(memory);
    shim_dynamic = nullptr;
}
