/*
 * What the parts of the driver for tests (fake.h) share: fake.c has the cards and how calls are
 * made to fail, fake_memory.c what is taken on them, fake_queue.c does what waits in streams,
 * fake_stream.c puts it there, fake_graph.c has captures, graphs and events, fake_vmm.c mapped
 * memory, fake_nccl.c collectives, fake_lt.c products, fake_rules.c what is said of broken rules.
 * Everything is under the one lock of fake_g.
 */
#pragma once

#include <assert.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdlib.h>

#include "kernels/cuda/driver.h"

#define EXPORT __attribute__((visibility("default")))
#define API    EXPORT int
#define PAGE   ((size_t)2 << 20)

enum {
    MOST_OBJECTS = 8192,
    MOST_FAILURES = 4,
    MOST_COUNTED = 64,
    MOST_CARDS = 8,
    ARG_BYTES = 512,
    /* of the driver, beside those of driver.h */
    INVALID_CONTEXT = 201,
    INVALID_HANDLE = 400,
    ILLEGAL_STATE = 401,
    CONTEXT_IS_DESTROYED = 709,
    ALREADY_REGISTERED = 712,
    CAPTURE_MERGE = 902,
    CAPTURE_ISOLATION = 905,
    CAPTURED_EVENT = 907,
};

enum op_kind { OP_COPY, OP_FILL, OP_LAUNCH, OP_RECORD, OP_AWAIT, OP_MEET, OP_PRODUCT };

struct fake_comm;

/* c[n][rows] = alpha * w[k][n]^T * x[k][rows], columns first, each `ld` elements apart. */
struct fake_product {
    const void *w, *x;
    void *c, *space;
    size_t space_bytes;
    uint64_t n, rows, k;
    int64_t w_ld, x_ld, c_ld;
    int type, c_type; /* as cuBLASLt counts them */
    int w_mode;       /* of E4M3: how scales lie, */
    const float *w_scale, *x_scale;
    float alpha;
};

struct op {
    enum op_kind kind;
    void *to;
    const void *from;
    void *own; /* a snapshot of pageable memory */
    struct cu_opaque *function;
    size_t bytes;
    unsigned char value;
    int kernel;
    unsigned grid[3], threads, dynamic;
    _Alignas(16) unsigned char args[ARG_BYTES];
    struct cu_opaque *event;
    size_t record;       /* OP_AWAIT: which of its records */
    struct edges *edges; /* in a graph: instead of an event, which of these */
    size_t edge;
    struct fake_comm *comm; /* OP_MEET: a collective, of `bytes` elements of `type` */
    int type;
    bool gathers;
    enum { TO_ALL, TO_PEER, FROM_PEER } way;
    int peer;
    struct fake_product product; /* OP_PRODUCT: to = alpha * from^T * other */
};

/* What the two sides of a recorded graph wait for in one another, in one launch of it. */
struct edges {
    size_t ops; /* that name it */
    struct cu_opaque *of[2];
    bool reached[];
};

struct ops {
    struct op *at;
    size_t count, room, next;
};

enum object_kind {
    FREE,
    STREAM,
    EVENT,
    MODULE,
    FUNCTION,
    GRAPH,
    CONTEXT,
    LT_CONTEXT,
    LT_DESC,
    LT_LAYOUT,
    LT_WISH
};

struct cu_opaque { /* whatever has a handle */
    enum object_kind kind;
    int card;
    struct ops ops;              /* of a stream or graph */
    struct cu_opaque *capturing; /* of a stream: the graph */
    struct ops side;             /* of a graph: what a second stream does in it, */
    struct cu_opaque *lane;      /* when it is launched, on a stream of its own */
    bool beside;                 /* of a stream that is captured: it is that second one */
    size_t edges;                /* of a graph */
    bool failed;                 /* of a graph: a call was made to fail while it is recorded */
    bool exec, invalid;          /* of a graph: it can be launched; a call has spoilt it */
    bool uploaded;               /* of such a graph: what it takes of the card is taken */
    pthread_t owner;             /* who records it */
    size_t edge;                 /* of an event: which it was recorded as, 0 = not in a graph; */
    unsigned long long graph;    /* in this one, by its number */
    unsigned long long number;
    unsigned flags; /* of an event */
    bool draining;
    struct cu_opaque *last; /* stream in which an event was recorded */
    size_t pending;         /* records of this event that were not reached yet */
    size_t records;         /* all of them */
    uint64_t at_us;
    int kernel;
    struct cu_opaque *module; /* of a function */
    size_t arg_bytes;
    unsigned dynamic_most, dynamic_limit;
    bool lame;      /* launches of it do nothing */
    uint64_t lt[4]; /* of cuBLASLt's objects */
};

struct range {
    char *at, *base; /* base: to be freed */
    unsigned flags;  /* of pinned memory */
    size_t bytes;
    int card;
    unsigned long long handle; /* mapped memory: which, */
    bool open;                 /* and it may be touched */
    enum { NO_RANGE, DEVICE, PINNED, REGISTERED, RESERVED, MAPPED, HANDLE } kind;
};

struct card {
    size_t total, used;
    size_t others, graphs;          /* of it: other processes', and recorded steps' */
    struct cu_opaque *context;      /* the primary one */
    unsigned retained, generations; /* how often; how many there were */
    int sticky;                     /* the answer to everything, once it was given */
    uint64_t routes;                /* see fake_routes() */
    unsigned routed;
};

struct fake_state {
    pthread_mutex_t lock;
    bool vmm, peers, nvlink, eager, begun; /* begun: cuInit was called */
    unsigned long long numbers;
    int cards; /* or the answer of cuInit, if it is negative */
    int capability;
    size_t context_bytes, graph_bytes; /* of a card's memory, that one takes */
    char lame[32];                     /* kernels with this in their names do nothing; "" = none */
    struct card card[MOST_CARDS];
    struct range range[MOST_OBJECTS];
    struct cu_opaque *object[MOST_OBJECTS];
    struct {
        char name[48];
        int card; /* -1 = any */
        unsigned left;
        int result;
    } fail[MOST_FAILURES];
    struct {
        char name[48];
        unsigned calls;
    } counted[MOST_COUNTED];
};

extern struct fake_state fake_g;

/* Takes the lock and counts; what a planted failure answers. */
int fake_enter(const char *symbol);
int fake_leave(int result); /* gives the lock back; its argument */
/* The card of the caller's context, -1 = none that is alive. */
int fake_current(void);
size_t fake_free(int card); /* bytes of its memory */

#define ENTER(symbol)                                                                              \
    int r_ = fake_enter(symbol);                                                                   \
    if (r_ != CU_OK)                                                                               \
    return fake_leave(r_)
/* A rule: what the answer is when it is broken, and the sentence. */
#define RULE(holds, ...)                                                                           \
    if (!(holds))                                                                                  \
    return fake_leave(fake_broken(__VA_ARGS__))
/* Most calls need a context. */
#define ENTER_CARD(symbol)                                                                         \
    ENTER(symbol);                                                                                 \
    RULE(fake_current() >= 0, INVALID_CONTEXT, "%s: this thread has no context", symbol)
/* Some may wait or allocate, so a thread may not make them while it captures. */
#define ENTER_SAFE(symbol)                                                                         \
    ENTER_CARD(symbol);                                                                            \
    RULE(!fake_spoils(), CU_CAPTURE_UNSUPPORTED, "%s by a thread that captures", symbol)

struct cu_opaque *fake_object_new(enum object_kind kind);
void fake_object_free(struct cu_opaque *o, enum object_kind kind);
struct range *fake_range_new(char *at, size_t bytes, int kind);
struct range *fake_range_at(const void *at, int kind); /* that begins there, or NULL */
void fake_ops_done(struct ops *o);

/* fake_rules.c: a rule is broken; gives `result` back where that is forgiven. */
__attribute__((format(printf, 2, 3))) int fake_broken(int result, const char *format, ...);

/* Whether it is alive and of that kind. */
bool fake_is(const struct cu_opaque *o, enum object_kind kind);
/* A stream of the caller's card, not the default one. */
bool fake_stream_is(const struct cu_opaque *stream);
/* Whether the caller's card has memory there. */
bool fake_on_card(const void *from, size_t bytes);
/* Host memory is pinned as a whole, or nothing of it is; else it straddles. */
enum fake_host { PAGEABLE, IS_PINNED, STRADDLES, NOT_OF_HOST };
enum fake_host fake_host(const void *at, size_t bytes);
/* Whether something that waits in a stream touches it; whether anything waits on a card. */
bool fake_awaited(const void *at, size_t bytes);
bool fake_busy(int card);

/* fake_queue.c */
struct op *fake_push(struct cu_opaque *stream, enum op_kind kind);
/* Runs up to `most` of what waits in a stream, but no collective that others have not come to. */
void fake_drain(struct cu_opaque *stream, size_t most);
void fake_drain_all(struct cu_opaque *stream); /* waits for others, too */
void fake_drain_card(int card);
/* The same, up to the next collective. */
void fake_advance(struct cu_opaque *stream);

/* fake_graph.c */
bool fake_captures(void); /* the calling thread does */
bool fake_spoils(void);   /* and then what it captures is spoilt by this call */
void fake_planted(void);  /* a call was made to fail: what is captured may be left as it is */
/* What a call that enqueues answers on a stream whose capture is spoilt. */
int fake_capture_state(const struct cu_opaque *stream);

/* fake_lt.c */
void fake_multiply(const struct fake_product *p);

/* fake_nccl.c */
/* Does the collective that is next in this stream if all ranks have come to theirs. */
bool fake_meet(struct cu_opaque *stream);
void fake_nccl_forget(void);
void fake_nccl_gone(const struct cu_opaque *stream); /* it is destroyed: nothing is under way */
unsigned fake_nccl_alive(void);

/* The same signatures as the backend calls them by. */
#define DECLARE(field, symbol, args) API symbol args;
CU_FUNCTIONS(DECLARE)
