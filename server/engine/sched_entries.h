/*
 * Entries, the live requests of a scheduler: where each waits or runs, in which order, and how it
 * ends. Written by entries.c alone, but for what a step plans and brings of an entry (plan.c,
 * results.c) and the search for late ones (refuse.c). An entry waits in two lists, runs, or waits
 * again after a preemption; sched.h has its states.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/request.h"
#include "server/engine/sched_host.h"
#include "server/engine/tenants.h"

struct sched;

enum entry_state { ENTRY_FREE, ENTRY_WAITING, ENTRY_RUNNING };

/* Lists of waiting entries: of a tenant by policy, and of all by arrival. With one tenant they are
 * the same order under fcfs. */
enum queue_id { QUEUE_POLICY, QUEUE_AGE, QUEUE_COUNT };

struct entry {
    struct request *req;
    uint64_t number; /* order of arrival, never used twice */
    enum entry_state state;
    bool admitted;    /* ever */
    bool thrown_out;  /* preempted for blocks, and has made no token since */
    bool stalled;     /* and its reader has waited for that so long that it counts */
    bool yielded;     /* it gave way to another tenant's, and has made no token since */
    bool put_off;     /* once it fitted, but others will grow */
    bool active;      /* it counts as work of its tenant: it waits, or is being read */
    bool in_flight;   /* in a step with which the device was lost, see lost.c */
    bool suspect;     /* of having been the cause: it runs alone until a step with it went well */
    bool replayed;    /* what it lost went with the device */
    bool jumped;      /* its form had no choice about tokens behind the last one that was sampled */
    bool awaits_mask; /* it runs, but has no row until it is told that its mask is there */
    bool failed_alone; /* it did so when the device was lost, in another way than before */
    uint32_t fault;    /* of a suspect: how the device ended, see sched_found() */
    uint32_t tenant;   /* place */
    uint32_t paid;     /* tokens of the prompt that the tenant is charged for, or need not be */
    uint32_t slot;     /* while running */
    uint32_t known;    /* tokens whose ids are here: prompt and output */
    uint32_t pending;  /* tokens that steps in flight sample, ids not here yet */
    uint32_t computed; /* tokens in the cache once the steps in flight are done */
    uint32_t lost;     /* tokens that were in the cache at the preemption */
    uint32_t reread;   /* of them, those that were not there at its return */
    uint64_t lost_us;  /* since when they are gone for want of blocks or of a device, 0 = not */
    uint64_t waits_us; /* since when it waits again, 0 = it has not run yet */
    uint32_t rows;     /* in the step that is being planned */
    uint32_t scored;   /* positions of the prompt whose next token has its score here */
    uint32_t scoring;  /* and once the steps in flight are done */
    uint32_t cut[2];   /* where its pieces end for a snapshot, 0 = nowhere */
    struct swapped swapped;
    uint64_t last_token_us;
    struct {
        uint32_t prev, next;
    } in[QUEUE_COUNT];
};

struct entries {
    struct entry *at; /* [count] */
    uint32_t count;
    uint32_t *free, free_count;
    bool priority_policy; /* priority goes before arrival */
    uint64_t next_number;
    uint32_t *running, running_count; /* [max_seqs] in order */
    struct queue age;                 /* all that wait; by policy they are with their tenants */
    uint32_t waiting_count, preempted_count, admitted_count;
    uint64_t waiting_tokens; /* prompt tokens of entries that were never admitted */
    uint32_t scan;           /* where the search for expired entries goes on */
};

/* 0 or -ENOMEM. */
int entries_init(struct entries *l, uint32_t count, uint32_t max_seqs, bool priority_policy);
/* Drops the references to live requests. */
void entries_done(struct entries *l);

/* The running one at this place of their order. */
static inline struct entry *entries_running(const struct entries *l, uint32_t at)
{
    return &l->at[l->running[at]];
}
/* The place of a running entry in their order. */
uint32_t entries_place(const struct entries *l, uint32_t entry);
/* True when `a` comes before `b`, by priority where that is the policy, and by arrival. */
bool entries_before(const struct entries *l, uint32_t a, uint32_t b);
/* Whether priority alone, where it is the policy, sets the two apart. */
static inline bool entries_ranked(const struct entries *l, const struct entry *x,
                                  const struct entry *y)
{
    return l->priority_policy && x->req->ask.priority != y->req->ask.priority;
}
/* The id at a position of prompt and output. */
int32_t sched_token(const struct entry *e, uint32_t position);

/* A waiting entry has got that slot; then, when all of it is known, it runs. */
void sched_take_slot(struct sched *s, uint32_t entry, uint32_t slot);
void entries_run(struct entries *l, uint32_t entry);
/* It is admitted for the first time: counted as such until it ends. */
void entries_admit(struct entries *l, struct entry *e);
/* A running entry gives its slot back and waits again, with nothing computed. */
void sched_give_slot(struct sched *s, uint32_t at, uint64_t now_us);
/* What a preemption took is back, or it is not wanted any more. */
void sched_recovered(struct engine_stats *stats, struct entry *e, uint64_t now_us);
void sched_end(struct sched *s, uint32_t entry, enum req_finish how, int error, uint64_t now_us);
