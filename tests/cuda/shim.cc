/*
 * Runs a kernel's blocks on fibers: each thread of a block has a stack, runs until it meets a
 * barrier or an exchange of its warp, and goes on when all it waits for have come. A block that can
 * never go on (a barrier that not all reach) ends the program with a message. The order in which
 * threads run is turned around from launch to launch, so that a missing barrier does not always
 * happen to be in luck.
 */
#include <assert.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <vector>

#include "tests/cuda/shim.h"
#include "tests/cuda/shim_run.h"

#if !defined(__x86_64__)
#include <ucontext.h>
#endif

struct shim_dim threadIdx, blockIdx, blockDim, gridDim;
unsigned char *shim_dynamic;

namespace
{

enum { MOST_THREADS = 1024, STACK = 256 << 10, LANE_BYTES = SHIM_LANE_BYTES, MOST_COPIES = 256 };

struct copy {
    void *to;
    const void *from;
    bool valid;
    unsigned group;
};

struct fiber {
    enum { READY, WARP, BLOCK, DONE } state;
    void *sp;
    unsigned turn;
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
void *g_scheduler;
const void *g_args;
void (*g_run)(const void *);
alignas(16) unsigned char g_lane[2][MOST_THREADS][LANE_BYTES];

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
    fprintf(stderr, "shim: block %u,%u: %s\n", blockIdx.x, blockIdx.y, why);
    abort();
}

/* Lets those go on for whom all have come; whether there were any. */
bool release()
{
    unsigned waiting = 0, done = 0;
    bool any = false;

    for (unsigned warp = 0; warp < g_threads; warp += 32) {
        unsigned here = 0, gone = 0;
        for (unsigned i = warp; i < warp + 32; i++) {
            here += g_fiber[i].state == fiber::WARP;
            gone += g_fiber[i].state == fiber::DONE;
            waiting += g_fiber[i].state == fiber::BLOCK;
        }
        done += gone;
        if (here > 0 && gone > 0)
            stuck("a lane left before an exchange of its warp");
        for (unsigned i = warp; here == 32 && i < warp + 32; i++)
            g_fiber[i].state = fiber::READY;
        any = any || here == 32;
    }
    if (waiting > 0 && done > 0)
        stuck("a thread left before a barrier of its block");
    for (unsigned i = 0; waiting == g_threads && i < g_threads; i++)
        g_fiber[i].state = fiber::READY;
    return any || waiting == g_threads;
}

void run_block()
{
    for (unsigned i = 0; i < g_threads; i++)
        make_fiber(i);
    for (;;) {
        unsigned left = 0;
        for (unsigned i = 0; i < g_threads; i++) {
            unsigned at = g_launches % 2 ? g_threads - 1 - i : i;
            if (g_fiber[at].state == fiber::READY) {
                g_current = at;
                threadIdx = {at, 0, 0};
                shim_switch(&g_scheduler, g_fiber[at].sp);
            }
            left += g_fiber[at].state != fiber::DONE;
        }
        if (left == 0)
            return;
        if (!release())
            stuck("some threads wait for others that wait elsewhere");
    }
}

} // namespace

void shim_sync_block()
{
    leave(fiber::BLOCK);
}

void shim_sync_warp(const void *mine, size_t bytes)
{
    fiber *f = &g_fiber[g_current];
    assert(bytes <= LANE_BYTES);
    f->turn ^= 1;
    memcpy(g_lane[f->turn][g_current], mine, bytes);
    leave(fiber::WARP);
}

const unsigned char *shim_lanes()
{
    return g_lane[g_fiber[g_current].turn][g_current / 32 * 32];
}

void shim_async_copy(void *to, const void *from, bool valid)
{
    fiber *f = &g_fiber[g_current];
    assert((uintptr_t)to % 16 == 0 && (uintptr_t)from % 16 == 0);
    assert(f->copies - f->first_copy < MOST_COPIES);
    f->copy[f->copies++ % MOST_COPIES] = {to, from, valid, f->groups};
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
        if (c->valid)
            memcpy(c->to, c->from, 16);
        else
            memset(c->to, 0, 16);
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
    }
    shim_dynamic = (unsigned char *)aligned_alloc(16, (dynamic_bytes + 31) & ~(size_t)15);
    memset(shim_dynamic, 0xff, (dynamic_bytes + 31) & ~(size_t)15);
    g_run = k->run;
    g_args = args;
    g_threads = threads;
    g_launches++;
    gridDim = {grid[0], grid[1], grid[2]};
    blockDim = {threads, 1, 1};
    for (unsigned y = 0; y < grid[1]; y++)
        for (unsigned x = 0; x < grid[0]; x++) {
            blockIdx = {x, y, 0};
            run_block();
        }
    free(shim_dynamic);
    shim_dynamic = nullptr;
}
