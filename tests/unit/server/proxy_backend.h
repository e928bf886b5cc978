/*
 * A backend whose device lives in a forked child: steps, masks and results travel as bytes through
 * shared memory that is filled with 0xa5 before and after, and each side works on a copy of its
 * own. What passes through it is plain data. Weights and graph reach the child through the fork.
 * Header only, for one test program. One device at a time per process, no threads beside it.
 */
#pragma once

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "kernels/backend.h"
#include "kernels/registry.h"

#define PROXY_BYTES (1u << 20) /* of one buffer */

enum proxy_verb { PROXY_KV, PROXY_FORWARD, PROXY_SAMPLE, PROXY_WAIT, PROXY_STATS };

struct proxy_call {
    enum proxy_verb verb;
    uint32_t which; /* step id modulo 2 */
    uint64_t id, timeout_us;
    size_t bytes, masks; /* bytes of the masks, 0 = none */
    struct ek_kv_params kv;
};

struct proxy_answer {
    int code;
    struct ek_device_stats stats;
};

struct proxy {
    struct ek_open_params open;
    int sock;
    pid_t child;
    char *shared; /* [0] step, [1] step, [2] masks, [3] result; PROXY_BYTES each */
};

static inline char *proxy_buffer(const struct proxy *p, uint32_t which)
{
    return p->shared + (size_t)which * PROXY_BYTES;
}

static inline void proxy_poison(const struct proxy *p, uint32_t which)
{
    memset(proxy_buffer(p, which), 0xa5, PROXY_BYTES);
}

/* ---- the child ---- */

struct proxy_child {
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step *step[2];
    struct ek_masks *masks[2];
};

/* A copy of exactly these bytes; the shared buffer is poisoned behind it. */
static inline void *proxy_receive(const struct proxy *p, uint32_t which, size_t bytes)
{
    void *copy = malloc(bytes);
    memcpy(copy, proxy_buffer(p, which), bytes);
    proxy_poison(p, which);
    return copy;
}

static inline int proxy_wait_in_child(const struct proxy *p, struct proxy_child *c,
                                      const struct proxy_call *call)
{
    struct ek_result *result = malloc(call->bytes);
    memset(result, 0xa5, call->bytes);
    int r = c->b->wait(c->d, call->id, result, call->bytes, call->timeout_us);
    proxy_poison(p, 3);
    if (r == 0) {
        memcpy(proxy_buffer(p, 3), result, ek_result_own_bytes(result));
        memset(c->step[call->which], 0xa5, c->step[call->which]->bytes);
        free(c->step[call->which]);
        free(c->masks[call->which]);
        c->step[call->which] = NULL;
        c->masks[call->which] = NULL;
    }
    free(result);
    return r;
}

static inline void proxy_serve(const struct proxy *p, struct proxy_child *c)
{
    struct proxy_call call;

    while (read(p->sock, &call, sizeof(call)) == (ssize_t)sizeof(call)) {
        struct proxy_answer a = {.code = 0};
        switch (call.verb) {
        case PROXY_KV: a.code = c->b->kv_open(c->d, &call.kv); break;
        case PROXY_FORWARD:
            c->step[call.which] = proxy_receive(p, call.which, call.bytes);
            a.code = c->b->forward(c->d, c->step[call.which]);
            break;
        case PROXY_SAMPLE:
            if (call.masks > 0)
                c->masks[call.which] = proxy_receive(p, 2, call.masks);
            a.code = c->b->sample(c->d, c->step[call.which], c->masks[call.which]);
            break;
        case PROXY_WAIT: a.code = proxy_wait_in_child(p, c, &call); break;
        case PROXY_STATS: c->b->stats(c->d, &a.stats); break;
        }
        if (write(p->sock, &a, sizeof(a)) != (ssize_t)sizeof(a))
            return;
    }
}

static inline void proxy_child(const struct proxy *p, const struct ek_plan_request *q,
                               const struct ek_weight_files *files)
{
    struct proxy_child c = {.b = ek_backend_find("cpu", NULL)};
    struct proxy_answer a = {.code = c.b->open(&p->open, &c.d, NULL)};

    if (a.code == 0)
        a.code = c.b->load(c.d, q, files, NULL, NULL, NULL);
    if (write(p->sock, &a, sizeof(a)) == (ssize_t)sizeof(a) && a.code == 0)
        proxy_serve(p, &c);
    c.b->close(c.d);
    _exit(0);
}

/* ---- the parent ---- */

static inline int proxy_ask(const struct proxy *p, const struct proxy_call *call,
                            struct proxy_answer *ret_answer)
{
    if (write(p->sock, call, sizeof(*call)) != (ssize_t)sizeof(*call) ||
        read(p->sock, ret_answer, sizeof(*ret_answer)) != (ssize_t)sizeof(*ret_answer))
        return -EPIPE;
    return ret_answer->code;
}

static inline struct proxy *proxy_of(struct ek_device *d)
{
    return (struct proxy *)(void *)d;
}

static inline void proxy_close(struct ek_device *d)
{
    struct proxy *p = proxy_of(d);

    if (!p)
        return;
    if (p->child > 0) {
        (void)close(p->sock); /* the child reads the end of file and leaves */
        (void)waitpid(p->child, NULL, 0);
    }
    (void)munmap(p->shared, 4 * (size_t)PROXY_BYTES);
    free(p);
}

static inline int proxy_open(const struct ek_open_params *o, struct ek_device **ret_device,
                             struct ek_fault *fault)
{
    (void)fault;
    struct proxy *p = calloc(1, sizeof(*p));
    void *shared = mmap(NULL, 4 * (size_t)PROXY_BYTES, PROT_READ | PROT_WRITE,
                        MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (!p || shared == MAP_FAILED) {
        free(p);
        return -ENOMEM;
    }
    p->open = *o;
    p->shared = shared;
    for (uint32_t i = 0; i < 4; i++)
        proxy_poison(p, i);
    *ret_device = (struct ek_device *)(void *)p;
    return 0;
}

static inline int proxy_load(struct ek_device *d, const struct ek_plan_request *q,
                             const struct ek_weight_files *files, ek_progress_fn progress,
                             void *ctx, struct ek_fault *fault)
{
    struct proxy *p = proxy_of(d);
    struct proxy_answer a;
    int ends[2];

    (void)progress;
    (void)ctx;
    (void)fault;
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, ends) < 0)
        return -errno;
    p->child = fork();
    p->sock = ends[p->child == 0];
    (void)close(ends[p->child != 0]);
    if (p->child == 0)
        proxy_child(p, q, files);
    if (p->child < 0 || read(p->sock, &a, sizeof(a)) != (ssize_t)sizeof(a))
        return -EPIPE;
    return a.code;
}

static inline int proxy_kv_open(struct ek_device *d, const struct ek_kv_params *kv)
{
    struct proxy_answer a;
    return proxy_ask(proxy_of(d), &(struct proxy_call){.verb = PROXY_KV, .kv = *kv}, &a);
}

static inline int proxy_forward(struct ek_device *d, const struct ek_step *step)
{
    struct proxy *p = proxy_of(d);
    struct proxy_call call = {.verb = PROXY_FORWARD, .which = step->id & 1, .bytes = step->bytes};
    struct proxy_answer a;

    if (step->bytes > PROXY_BYTES)
        return -E2BIG;
    memcpy(proxy_buffer(p, call.which), step, step->bytes);
    return proxy_ask(p, &call, &a);
}

static inline int proxy_sample(struct ek_device *d, const struct ek_step *step,
                               const struct ek_masks *masks)
{
    struct proxy *p = proxy_of(d);
    struct proxy_call call = {.verb = PROXY_SAMPLE, .which = step->id & 1};
    struct proxy_answer a;

    if (masks)
        call.masks = sizeof(*masks) + (size_t)masks->rows * masks->words * sizeof(uint32_t);
    if (call.masks > PROXY_BYTES)
        return -E2BIG;
    if (masks)
        memcpy(proxy_buffer(p, 2), masks, call.masks);
    return proxy_ask(p, &call, &a);
}

static inline int proxy_wait(struct ek_device *d, uint64_t id, struct ek_result *ret_result,
                             size_t bytes, uint64_t timeout_us)
{
    struct proxy *p = proxy_of(d);
    struct proxy_call call = {
        .verb = PROXY_WAIT, .which = id & 1, .id = id, .bytes = bytes, .timeout_us = timeout_us};
    struct proxy_answer a;

    int r = bytes > PROXY_BYTES ? -E2BIG : proxy_ask(p, &call, &a);
    if (r < 0)
        return r;
    const struct ek_result *got = (const struct ek_result *)(const void *)proxy_buffer(p, 3);
    memcpy(ret_result, got, ek_result_own_bytes(got));
    proxy_poison(p, 3);
    return 0;
}

static inline void proxy_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    struct proxy_answer a = {.code = 0};
    (void)proxy_ask(proxy_of(d), &(struct proxy_call){.verb = PROXY_STATS}, &a);
    *ret_stats = a.stats;
}

static inline int proxy_kv_resize(struct ek_device *d, uint32_t blocks)
{
    (void)d;
    (void)blocks;
    return -ENOTSUP;
}

static inline const struct ek_backend *proxy_backend(void)
{
    static struct ek_backend table;
    const struct ek_backend *cpu = ek_backend_find("cpu", NULL);

    table = (struct ek_backend){
        .abi = EK_BACKEND_ABI,
        .size = sizeof(table),
        .name = "proxy",
        .probe = cpu->probe,
        .open = proxy_open,
        .close = proxy_close,
        .plan = cpu->plan,
        .load = proxy_load,
        .kv_open = proxy_kv_open,
        .kv_resize = proxy_kv_resize,
        .forward = proxy_forward,
        .sample = proxy_sample,
        .wait = proxy_wait,
        .stats = proxy_stats,
    };
    return &table;
}
