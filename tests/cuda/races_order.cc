/*
 * What is before what. Within a block: all of its threads know what was done before the last
 * barrier; a lane that came to a __syncwarp since knows more, for each thread up to a time
 * (`seen`). Between blocks: a fence takes note of what its thread knows. An atomic operation on
 * global memory publishes, at its address, what the fences that are before it have noted, and
 * receives what others published there; what was received counts from the receiver's next fence on,
 * and for its block from the barrier after that, or from fences behind a barrier. That is what
 * fence.sc allows.
 */
#include <algorithm>
#include <map>
#include <memory>
#include <vector>

#include "tests/cuda/races_inner.h"

struct races_state races_g;

namespace
{

enum { MOST_THREADS = 1024 };
typedef std::vector<uint32_t> clocks; /* for each thread of a block: what it did before then */

/* What a block has published, and where. */
struct release {
    uint32_t block;
    clocks upto;
    uintptr_t at;
    uint32_t time;
};
typedef std::vector<std::shared_ptr<const release>> releases;

struct thread {
    uint32_t fence, fence_barrier; /* times of its last fence and of the barrier before that */
    bool fence_extra;
    clocks fence_seen, seen;
    releases fence_known, known, received;
    uint32_t seen_barrier; /* `seen` is of this barrier */
};

thread g_thread[MOST_THREADS];
releases g_known, g_received; /* of the whole block */
std::map<uintptr_t, releases> g_published;

void add(releases *to, const releases &more)
{
    for (const auto &r : more)
        if (std::find(to->begin(), to->end(), r) == to->end())
            to->push_back(r);
}

bool has_seen(const thread &t)
{
    return races_g.extra && t.seen_barrier == races_g.barrier && !t.seen.empty();
}

uint32_t known_upto(unsigned t, unsigned of)
{
    if (t == of)
        return races_g.now;
    return has_seen(g_thread[t]) ? std::max(races_g.barrier, g_thread[t].seen[of])
                                 : races_g.barrier;
}

bool in(const releases &all, const races_access &a, uintptr_t at)
{
    const uint32_t who = a.who & RACES_WHO;

    for (const auto &r : all)
        if ((r->block == who >> 10 && a.time < r->upto[who & 1023]) ||
            ((a.who & RACES_ATOMIC) && r->at == at && a.time <= r->time))
            return true;
    return false;
}

} // namespace

bool races_seen(uint32_t thread, uint32_t time)
{
    return time < known_upto(races_g.me & 1023, thread);
}

bool races_known(const races_access &a, uintptr_t at)
{
    return races_g.fenced && (in(g_known, a, at) || in(g_thread[races_g.me & 1023].known, a, at));
}

void races_order_launch()
{
    races_g.launch = ++races_g.now;
    races_g.fenced = false;
    g_published.clear();
}

void races_order_block()
{
    races_g.block = races_g.barrier = ++races_g.now;
    races_g.extra = false;
    g_known.clear();
    g_received.clear();
    for (unsigned i = 0; i < races_g.threads; i++) {
        thread *t = &g_thread[i];
        t->fence = t->fence_barrier = t->seen_barrier = 0;
        t->fence_known.clear();
        t->known.clear();
        t->received.clear();
    }
}

void races_barrier()
{
    races_g.barrier = ++races_g.now;
    races_g.extra = false;
    for (unsigned i = 0; races_g.fenced && i < races_g.threads; i++) {
        add(&g_known, g_thread[i].known);
        add(&g_received, g_thread[i].received);
        g_thread[i].known.clear();
        g_thread[i].received.clear();
    }
}

void races_warp(unsigned first, uint32_t mask)
{
    clocks all(races_g.threads, races_g.barrier);
    releases known, received;

    races_g.now++;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1u) {
            thread *t = &g_thread[first + i];
            for (unsigned u = 0; has_seen(*t) && u < races_g.threads; u++)
                all[u] = std::max(all[u], t->seen[u]);
            add(&known, t->known);
            add(&received, t->received);
        }
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1u)
            all[first + i] = races_g.now;
    races_g.extra = true;
    for (unsigned i = 0; i < 32; i++)
        if (mask >> i & 1u) {
            thread *t = &g_thread[first + i];
            t->seen = all;
            t->seen_barrier = races_g.barrier;
            t->known = known;
            t->received = received;
        }
}

void races_fence()
{
    thread *t = &g_thread[races_g.me & 1023];

    races_g.fenced = true;
    add(&t->known, t->received);
    add(&t->known, g_received);
    t->fence = ++races_g.now;
    t->fence_barrier = races_g.barrier;
    t->fence_extra = has_seen(*t);
    if (t->fence_extra)
        t->fence_seen = t->seen;
    t->fence_known = t->known;
    add(&t->fence_known, g_known);
}

void races_order_atomic(uintptr_t at)
{
    if (!races_g.fenced)
        return;
    const unsigned me = races_g.me & 1023;
    auto mine = std::make_shared<release>();
    releases *published = &g_published[at];

    add(&g_thread[me].received, *published);
    mine->block = races_g.me >> 10;
    mine->upto.assign(races_g.threads, races_g.block);
    mine->at = at;
    mine->time = races_g.now;
    for (unsigned v = 0; v < races_g.threads; v++) {
        const thread *t = &g_thread[v];
        if (t->fence == 0 || t->fence > known_upto(me, v))
            continue; /* no fence, or none that is before this */
        for (unsigned u = 0; u < races_g.threads; u++) {
            uint32_t upto =
                t->fence_extra ? std::max(t->fence_barrier, t->fence_seen[u]) : t->fence_barrier;
            mine->upto[u] = std::max(mine->upto[u], u == v ? t->fence : upto);
        }
        add(published, t->fence_known);
    }
    published->push_back(mine);
    races_g.now++;
}
