/*
 * The engine's side of a device in a process of its own, see apart.h: orders are done in order, and
 * between them it waits for the oldest step. The launcher calls the first functions, the engine's
 * process the last.
 */
#include <dlfcn.h>
#include <errno.h>
#include <limits.h>
#include <linux/futex.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/clock.h"
#include "kernels/apart_memory.h"

#define SLICE_US 200u   /* of a wait for a step, between two looks for orders; */
#define SOON_US  100u   /* after a step the orders of the one after the next come */
#define LONG_US  20000u /* with all steps in flight there will be none */
#define IDLE_US  1000000u
#define LATE_US  10000u /* a wait that outlasts its time by more: the machine had none for it */
#define STATS_US 50000u /* they are copied no more often */

struct apart_follow {
    struct ek_apart_memory *m;
    int fd; /* its */
    const struct ek_backend *b;
    struct ek_device *d;
    const struct ek_graph *graph;
    uint32_t taken;                      /* orders */
    uint32_t blocks;                     /* of the pool */
    uint32_t flying[APART_SLOTS], count; /* slots, the oldest first */
    bool sampled[APART_SLOTS];
    uint64_t stats_us;
    ek_apart_test_fn test; /* NULL but in a test */
};

void apart_sleep(atomic_uint *word, uint32_t seen, uint64_t timeout_us)
{
    struct timespec t = {.tv_sec = (time_t)(timeout_us / EK_US_PER_S),
                         .tv_nsec = (long)(timeout_us % EK_US_PER_S) * 1000};

    (void)syscall(SYS_futex, word, FUTEX_WAIT, seen, &t, NULL, 0);
}

void apart_raise(atomic_uint *word)
{
    (void)atomic_fetch_add(word, 1);
    (void)syscall(SYS_futex, word, FUTEX_WAKE, INT_MAX, NULL, NULL, 0);
}

/* Whether it was made by this build of this program. */
static bool is_ours(const struct ek_apart_memory *head)
{
    uint8_t build[EK_BUILD_ID_BYTES];

    ek_build_id(build);
    return head->abi == EK_BACKEND_ABI && head->size == sizeof(*head) &&
           strncmp(head->program, EK_VERSION, sizeof(head->program)) == 0 &&
           memcmp(head->build, build, sizeof(build)) == 0 && head->bytes >= sizeof(*head);
}

int ek_apart_map(int fd, struct ek_apart_memory **ret_memory)
{
    struct stat st;
    struct ek_apart_memory head;

    if (fstat(fd, &st) < 0)
        return -errno;
    if (pread(fd, &head, sizeof(head), 0) != (ssize_t)sizeof(head) || !is_ours(&head))
        return -EPROTO;
    const uint64_t end = head.host_bytes > 0 ? head.host_at + head.host_bytes : head.bytes;
    if (end != (uint64_t)st.st_size || head.bytes > end)
        return -EPROTO;
    void *at = mmap(NULL, head.bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (at == MAP_FAILED)
        return -errno;
    *ret_memory = at;
    return 0;
}

void ek_apart_unmap(struct ek_apart_memory *m)
{
    if (m)
        (void)munmap(m, m->bytes);
}

const struct ek_apart_order *ek_apart_order(const struct ek_apart_memory *m)
{
    return &m->want;
}

void ek_apart_began(struct ek_apart_memory *m, int pid)
{
    atomic_store(&m->pid, pid);
}

void ek_apart_ended(struct ek_apart_memory *m, int status, bool stopped, uint64_t oom_kills)
{
    m->oom_kills = oom_kills;
    m->status = status;
    m->stopped = stopped;
    atomic_store(&m->ended, 1);
    apart_raise(&m->answered);
}

void ek_apart_sent(struct ek_apart_memory *m, int pid)
{
    atomic_store(&m->sent_by, pid);
    atomic_store(&m->sent, 1);
}

void ek_apart_progress(void *ctx, uint64_t done_bytes, uint64_t total_bytes)
{
    struct ek_apart_memory *m = ctx;

    atomic_store(&m->total_bytes, total_bytes);
    atomic_store(&m->done_bytes, done_bytes);
    apart_raise(&m->answered);
}

static void say_state(struct ek_apart_memory *m, enum apart_state state)
{
    atomic_store(&m->state, state);
    apart_raise(&m->answered);
}

void ek_apart_failed(struct ek_apart_memory *m, int code, const struct ek_fault *fault)
{
    m->code = code;
    m->fault = *fault;
    say_state(m, APART_FAILED);
}

static void copy_text(char *to, size_t size, const char *from)
{
    (void)snprintf(to, size, "%s", from ? from : "");
}

/* A sequence lock: readers try again while it is odd, or has changed meanwhile. */
static void copy_stats(struct apart_follow *f)
{
    struct apart_stats *s = &f->m->stats;
    struct ek_device_stats now;

    f->stats_us = ek_now_us();
    f->b->stats(f->d, &now);
    (void)atomic_fetch_add(&s->turn, 1);
    atomic_thread_fence(memory_order_seq_cst);
    s->stats = now;
    for (uint32_t i = 0; f->b->rank_stats && i < f->m->want.local; i++)
        f->b->rank_stats(f->d, i, &s->rank[i]);
    copy_text(s->words.attention, sizeof(s->words.attention), now.attention);
    copy_text(s->words.products, sizeof(s->words.products), now.products);
    copy_text(s->words.collectives, sizeof(s->words.collectives), now.collectives);
    copy_text(s->words.note, sizeof(s->words.note), now.note);
    atomic_thread_fence(memory_order_seq_cst);
    (void)atomic_fetch_add(&s->turn, 1);
}

static void say_code(struct apart_follow *f, int code)
{
    f->m->reply = code;
    atomic_store(&f->m->replied, 1);
    apart_raise(&f->m->answered);
}

static void apart_reply(struct apart_follow *f, int code)
{
    copy_stats(f);
    say_code(f, code);
}

static struct ek_step *step_in(const struct apart_follow *f, uint32_t slot)
{
    return apart_at(f->m, f->m->step_at[slot]);
}

static void apart_follow_land(struct apart_follow *f, uint32_t slot, int code)
{
    f->m->landed[slot].code = code;
    atomic_store(&f->m->landed[slot].id, step_in(f, slot)->id);
    apart_raise(&f->m->answered);
}

static int try_test(const struct apart_follow *f, enum ek_apart_place place,
                    const struct ek_step *step)
{
    return f->test ? f->test(place, step) : 0;
}

static void apart_forward(struct apart_follow *f, uint32_t slot)
{
    struct ek_step *step = step_in(f, slot);
    int r = ek_step_check(step, f->m->step_bytes, &f->m->want.plan.ceiling, f->graph->vocab,
                          f->blocks, f->m->want.plan.block_size, f->m->kv.states);

    f->sampled[slot] = false;
    if (r == 0)
        r = try_test(f, EK_APART_BEFORE, step);
    if (r == 0)
        r = f->b->forward(f->d, step);
    if (r == 0)
        r = try_test(f, EK_APART_COMPUTED, step);
    if (r < 0)
        apart_follow_land(f, slot, r); /* what is sampled of it is nothing */
    else
        f->flying[f->count++] = slot;
}

static void apart_forget(struct apart_follow *f, uint32_t at)
{
    f->count--;
    for (uint32_t i = at; i < f->count; i++)
        f->flying[i] = f->flying[i + 1];
}

static void sample(struct apart_follow *f, const struct apart_order *o)
{
    uint32_t at = 0;

    while (at < f->count && f->flying[at] != o->slot)
        at++;
    if (at == f->count)
        return;
    int r = f->b->sample(f->d, step_in(f, o->slot),
                         o->masked ? apart_at(f->m, f->m->masks_at[o->slot]) : NULL);
    f->sampled[o->slot] = r == 0;
    if (r == 0)
        return;
    apart_forget(f, at);
    apart_follow_land(f, o->slot, r);
}

static void resize(struct apart_follow *f, uint32_t blocks)
{
    int r = f->b->kv_resize ? f->b->kv_resize(f->d, blocks) : -ENOTSUP;

    if (r == 0)
        f->blocks = blocks;
    apart_reply(f, r);
}

static int take_host(const struct apart_follow *f)
{
    const struct ek_apart_memory *m = f->m;

    if (m->host_bytes == 0)
        return 0;
    if (!f->b->kv_host)
        return -ENOTSUP; /* the server's plug-in had one */
    void *at = mmap(NULL, m->host_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_NORESERVE, f->fd,
                    (off_t)m->host_at);
    return at == MAP_FAILED ? -errno : f->b->kv_host(f->d, at); /* until the process ends */
}

static void open_kv(struct apart_follow *f)
{
    int r = take_host(f);

    if (r == 0)
        r = f->b->kv_open(f->d, &f->m->kv);

    f->blocks = f->m->kv.blocks;
    apart_reply(f, r);
}

static void move_block(struct apart_follow *f, const struct apart_order *o)
{
    void *at = apart_at(f->m, f->m->block_at);
    int r = -ENOTSUP;

    if (f->b->kv_bytes && f->b->kv_bytes(f->d, o->tier) == apart_tier_bytes(f->m, o->tier))
        r = o->kind == APART_KV_READ ? f->b->kv_read(f->d, o->tier, o->blocks, at)
                                     : f->b->kv_write(f->d, o->tier, o->blocks, at);
    say_code(f, r);
}

static void take_orders(struct apart_follow *f)
{
    while (f->taken != atomic_load(&f->m->posted)) {
        const struct apart_order o = f->m->order[f->taken % APART_ORDERS];
        f->taken++;
        if (o.slot >= APART_SLOTS || (o.kind == APART_FORWARD && f->count == APART_SLOTS))
            _exit(EK_EXIT_INTERNAL); /* the lead never does that */
        switch ((enum apart_kind)o.kind) {
        case APART_FORWARD: apart_forward(f, o.slot); break;
        case APART_SAMPLE: sample(f, &o); break;
        case APART_KV_OPEN: open_kv(f); break;
        case APART_KV_RESIZE: resize(f, o.blocks); break;
        case APART_KV_READ:
        case APART_KV_WRITE: move_block(f, &o); break;
        }
    }
}

static void note_late(struct apart_follow *f, uint64_t from_us, uint64_t most_us)
{
    const uint64_t took = ek_now_us() - from_us;

    if (took > most_us + LATE_US)
        (void)atomic_fetch_add(&f->m->late_us, took - most_us);
}

/* A piece of the oldest step. */
static void wait_step(struct apart_follow *f)
{
    uint32_t slot = f->flying[0];
    bool all = f->count == APART_SLOTS && f->sampled[f->flying[1]];
    const uint64_t most = all ? LONG_US : SLICE_US, from = ek_now_us();
    int r = f->b->wait(f->d, step_in(f, slot)->id, apart_at(f->m, f->m->result_at[slot]),
                       f->m->result_bytes, most);

    if (r == -ETIMEDOUT) {
        note_late(f, from, most);
        return;
    }
    if (r == 0)
        r = try_test(f, EK_APART_SAMPLED, step_in(f, slot));
    apart_forget(f, 0);
    apart_follow_land(f, slot, r);
    if (ek_now_us() - f->stats_us >= STATS_US)
        copy_stats(f);
    if (f->count > 0) {
        const uint64_t landed_us = ek_now_us();
        apart_sleep(&f->m->posted, f->taken, SOON_US);
        note_late(f, landed_us, SOON_US);
    }
}

void ek_apart_serve(struct ek_apart_memory *m, int fd, const struct ek_backend *b,
                    struct ek_device *d, const struct ek_graph *graph)
{
    struct apart_follow f = {.m = m, .fd = fd, .b = b, .d = d, .graph = graph};

    *(void **)&f.test = dlsym(RTLD_DEFAULT, EK_APART_TEST_SYMBOL);
    copy_stats(&f);
    say_state(m, APART_LOADED);
    for (;;) {
        take_orders(&f);
        if (f.count > 0 && f.sampled[f.flying[0]]) {
            wait_step(&f);
            continue;
        }
        if (f.count == 0 && ek_now_us() - f.stats_us >= IDLE_US)
            copy_stats(&f);
        apart_sleep(&m->posted, f.taken, IDLE_US);
    }
}
