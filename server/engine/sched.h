/*
 * The scheduler: which token of which sequence runs in the next step. Pure: no thread, no clock, no
 * I/O, no allocation after sched_new(); time comes as a parameter, a step goes out as plain data
 * (kernels/step.h), its result comes back as plain data.
 *
 * An entry is a live request. It waits, runs, or waits again after a preemption; it ends once, and
 * then the request is done for everybody. A slot is what a running entry occupies on the device:
 * its sampling state and a block table.
 *
 *   entry: FREE -> WAITING -> RUNNING -> FREE        RUNNING -> WAITING by preemption
 *   slot:  free -> taken by an entry -> leaving (its entry ended or was preempted while a step in
 *          flight uses it) -> free
 *
 * Up to `depth` steps are in flight. A step is planned on top of the ones before it: `computed`
 * counts their rows as done and `pending` counts the tokens that they will sample, so the row after
 * is EK_FROM_PREVIOUS. What cannot be foreseen (a stop token, an abort) lags by one step: the extra
 * token is dropped, and blocks are given back when the last step that uses them is done.
 *
 * Tokens that a grammar leaves no choice about are appended to what a step has sampled; the step
 * after computes them like a piece of a prompt. What a step in flight samples for their place is
 * dropped: it was planned when they were not known. So no step is planned ahead that would have
 * nothing else.
 *
 * Prompts that are being read share what the decodes leave of a step; share.c has the law.
 *
 * A model with recurrent state changes the state of a slot in place with every row. So no position
 * may be computed twice by a slot, and none upon a state that is not that of all tokens before it:
 *
 *   - an entry begins with position 0, or behind cached blocks of which the last has a snapshot of
 *     the state (snapshots.c), which is copied at the head of the step with its first row;
 *   - what a step leaves that is taken back is not known, so its entries give their slots back and
 *     begin again, as after a preemption;
 *   - a row is never put off: its mask is waited for (constrain.c);
 *   - the host tier is off, as it has no state: what is preempted goes on from a snapshot.
 *
 * Tokens of a grammar that were appended are rows like others. Prefix hits, chunks, scores, ends
 * and aborts need nothing else, since each row is computed once and in order in all of them.
 *
 * Progress: running entries are in order of arrival (priority first). An entry that lacks a block
 * preempts the last of them, itself included, and among several tenants the last of the one that
 * holds most; never the first, so that one always goes on, and only an older one takes its place,
 * or one of another tenant that has fewer slots or blocks for its weight (yield.c): not before it
 * has waited, and one that had to be read again makes tokens before it gives way again. What could
 * not fit alone is refused when it is submitted; nothing is admitted in a step that preempted or
 * lacked a block, and a preempted entry comes back only where each running one can take one more
 * block. So no loop of preemption and admission exists without new requests, and none in which
 * nothing gets on. Waiting requests are admitted in their tenant's order of arrival, and the
 * tenants by their counters (tenants.h), so none waits for ever either.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "kernels/step.h"
#include "server/engine/blocks.h"
#include "server/engine/flight.h"
#include "server/engine/growth.h"
#include "server/engine/params.h"
#include "server/engine/prefix.h"
#include "server/engine/rates.h"
#include "server/engine/sched_admission.h"
#include "server/engine/sched_entries.h"
#include "server/engine/sched_host.h"
#include "server/engine/sched_pool.h"
#include "server/engine/slots.h"
#include "server/engine/states.h"
#include "server/engine/stats.h"
#include "server/engine/tally.h"
#include "server/engine/tenants.h"

#define SCHED_NONE         SLOTS_NONE
#define SCHED_JUMP_FORWARD 32u /* tokens appended at once without a choice */
#define SCHED_POISONS      3u  /* requests of a tenant that ended the device; then it is told */
/* Requests that are admitted at most, times the slots: of those with a slot, and of those that gave
 * theirs away. n tenants that come one after the other leave 1 + 1/2 + ... + 1/n. */
#define SCHED_ADMITTED_MOST  5u
#define SCHED_ENTRIES_BESIDE (SCHED_ADMITTED_MOST + 1) /* the queue, times the slots */
#define SCHED_QUEUE_ANY      16384u /* places in the queue when its limit has no ceiling */

/* What it was made for; it does not change after sched_new(). */
struct sched_fixed {
    uint32_t max_seqs, max_rows, max_model_len, block_size, depth;
    uint32_t stretched_above, prompt_rows, share_least; /* see struct engine_params */
    struct ek_step_ceiling ceiling;
};

/*
 * Each part is changed by its owner, or through its owner's functions, and read by all; a step's
 * progress in entries and slots, and the counters of `stats`, by the file that makes it. The
 * owners: sched.c (`fixed`, `value`), entries.c (`entries`, `news`), slots.c, flight.c, pool.c,
 * admit.c, plan.c (`turn`), share.c (`share`), results.c (`rates`, `gaps`), foresee.c (`growth`),
 * lost.c (`suspects`), the host tier's three files and snapshots.c.
 */
struct sched {
    struct sched_fixed fixed;
    uint64_t value[LIMIT_COUNT]; /* live limits */
    struct entries entries;
    struct tenants tenants; /* with the queues by policy */
    struct slots slots;
    struct flights flights;
    struct blocks blocks;
    struct prefix prefix;
    struct host host;
    struct states states;
    struct pool pool;
    struct admission admission;
    struct {
        uint32_t *readers;   /* [max_seqs] entries, of use within a plan alone */
        uint64_t beside_us;  /* when a step was planned in which a prompt ends beside others */
        uint32_t lent;       /* of its half (cost), what the first in line has not had back */
        uint64_t several_us; /* when requests of several tenants were seen last, 0 = never */
    } share;
    uint32_t turn;            /* first decode when the budget is too small for all */
    uint32_t suspects;        /* entries */
    uint64_t growth_given_us; /* when one gave way last so that another would have room to grow */
    struct rates rates;
    struct gaps gaps;
    struct growths growth;        /* of answers */
    struct engine_stats stats;    /* counters and histograms */
    struct ek_recorder *recorder; /* is told of requests, or NULL */
    uint32_t news;                /* bit per worker */
    struct {
        int32_t *tokens;   /* [block_size] of use within one call */
        uint32_t *recount; /* [blocks or host blocks], the same */
    } scratch;
};

/* Uses sizes, policy and limits of p; the rest is the engine's. 0, -EINVAL for sizes that cannot
 * work together, -ENOMEM. */
int sched_new(const struct engine_params *p, struct sched **ret_sched);
void sched_free(struct sched *s); /* NULL is fine; drops the references to live requests */

void sched_ceiling(const struct engine_params *p, struct ek_step_ceiling *ret_ceiling);
/* 0, or -EBADMSG with a fault when the request can never run here. Reads only what is fixed and
 * what sched_accept_limit() sets; both may be called by others under a lock that sched_limits() is
 * called under too. */
int sched_fit(const struct sched *s, const struct req_ask *ask, struct ek_fault *fault);

/* Takes over one reference on success. -EBUSY when every entry is taken. */
int sched_submit(struct sched *s, struct request *r, uint64_t now_us);
/* Ends a live request; nothing when it is not live. `error` is for REQ_FIN_ERROR. */
void sched_finish(struct sched *s, struct request *r, enum req_finish how, int error,
                  uint64_t now_us);
/* Ends all. */
void sched_finish_all(struct sched *s, enum req_finish how, int error, uint64_t now_us);
/* Live values, already checked against their ceilings. */
void sched_limits(struct sched *s, const struct limits *l, uint64_t now_us);

/* Forgets all names of blocks; see engine_reset_prefix_cache(). */
void sched_reset_prefix(struct sched *s);

/* Ends waiting requests that were never admitted and are past a deadline, or cannot keep it
 * (refuse.c): a plan begins with it. */
void sched_expire(struct sched *s, uint64_t now_us);
#define SHARE_OPEN 4u /* prompts that are read at a time though the step is too small for them */

/* Plans the next step into a buffer of sched_ceiling()'s size and counts it as in flight. Returns
 * its rows, or 1 for a step that only moves blocks; 0 when there is nothing to run now, and then
 * nothing is in flight for it. */
uint32_t sched_plan(struct sched *s, uint64_t now_us, struct ek_step *step);
/* When the next step is best planned, 0 = now, UINT64_MAX = when none is in flight. A request
 * that comes after a step was planned waits for all of it; so beside a long one in flight the next
 * is planned late, though early enough that the device does not wait for it; beside a very long one
 * when it is done: what the device waits then is nothing to that. */
uint64_t sched_plan_after(const struct sched *s);
/* The result of the oldest step in flight lay there when it was asked for: how long that step took
 * is not known. */
void sched_untimed(struct sched *s);
/* Takes it. */
void sched_apply(struct sched *s, const struct ek_result *result, uint64_t now_us);
/* What the newest step in flight samples for one of its sequences is not wanted: its mask is not
 * known yet. The row is planned again, with the same result in the cache. Not of a model with
 * recurrent state. */
void sched_put_off(struct sched *s, struct flight_seq *q);
/* It will take long: after sched_put_off() the running entry has no row, so that others do not wait
 * for what is sampled in vain, until this is taken back or it is preempted. */
void sched_await_mask(struct sched *s, uint32_t entry, bool awaits);
/* Finding the mask of one of its sequences took so many units of work: its tenant is charged. */
void sched_charge_mask(struct sched *s, const struct flight_seq *q, uint64_t units);
/* The newest step in flight had no effect: it is taken back and its rows will be planned again.
 * With `blame` != 0 the request that brought most rows to it ends with that error. Nothing is
 * planned before the steps that are older have been applied or taken back too. */
void sched_cancel(struct sched *s, int blame, uint64_t now_us);

static inline bool sched_idle(const struct sched *s)
{
    return s->entries.running_count == 0 && s->entries.waiting_count == 0 && s->flights.count == 0;
}

/* Workers that have news since the last call, a bit each. */
uint32_t sched_take_news(struct sched *s);

/* The steps in flight failed for good: before the first of them is taken back. */
void sched_failing(struct sched *s);
/*
 * The device is gone, and the host tier with it unless that stays; another one takes its place
 * (lost.c). All steps in flight are taken back, all that ran waits again with the tokens it has,
 * nothing is in the device's cache.
 * Returns how many requests have lost what was computed of them.
 */
uint32_t sched_lost(struct sched *s, bool host_stays, uint64_t now_us);
/* It is there again. `fault`, when it is not 0: what was computed may have been the cause, so those
 * that were in a step then run alone, one after the other, until a step with each of them went
 * well. It is a number for the way in which the device ended: one that was alone already is the
 * cause, and ends with -ENOTRECOVERABLE, when that was the same way as before, or at the second
 * time. */
void sched_found(struct sched *s, uint32_t fault, uint64_t now_us);
/* Counters, histograms and gauges; the engine adds what is its own. */
void sched_stats(struct sched *s, uint64_t now_us, struct engine_stats *ret_stats);
/* Recounts everything. NULL when all is right. */
const char *sched_check(struct sched *s);

/* Tokens that a step takes at most, by the limit alone. */
uint32_t sched_budget(const struct sched *s);
/* Of so many rows, those of a step with these answers that has no more of prompts than it may. What
 * answers take is beside them, and the one row of each that is opened (share.c): prompts that
 * fill a step together end in it then. */
uint32_t sched_prompts_within(const struct sched_fixed *fixed, uint32_t rows, uint32_t answers);

/* Shared between the scheduler's own files. */
struct plan {
    uint64_t now_us;
    struct price price; /* what rows cost */
    uint32_t rows;      /* of the step, at most */
    uint32_t budget;    /* rows left */
    int64_t work;       /* cost left */
    uint32_t words;     /* left for settings of slots */
    uint32_t scores;    /* rows left that may be scored */
    uint32_t reading;   /* prompts in the step of which it could hold more */
    uint64_t unread;    /* what those cost */
    uint32_t most;      /* the cost of the whole step at most */
    uint32_t first;     /* entry that was given the half for the first in line, SCHED_NONE = none */
    uint32_t half;      /* the cost of its rows, if it goes on after the step */
    uint32_t others;    /* the cost of others that go on */
    uint32_t ending;    /* the cost of prompts that are read to their end */
    uint32_t beside;    /* what those may cost that go on, whatever ends */
    bool cut;           /* a prompt could have used more, but for its cost */
    bool spread;        /* prompts get what is free beside the answers, see pace_spare() */
    bool shared;        /* it is small for other tenants, see pace_shared() */
    bool recent;        /* of late, prompts ended beside others that went on */
    uint32_t at;        /* of the running entries, whose turn it is; SCHED_NONE = out of turn */
    bool preempted;
    enum engine_held yielded; /* for what of the last one, see sched_preempt() */
    bool lacking;             /* an entry goes without a row because blocks are still in flight */
};
/* Whether all running ones will have room to grow when the entry takes so many blocks now. */
bool sched_foresee(const struct sched *s, const struct entry *e, uint64_t blocks);
/* What to say of an entry that sched_foresee() puts off: in the stats. */
void sched_foresee_note(struct sched *s, const struct entry *e);
/* What it is expected to cost: tokens held, summed over the steps until its end. */
double sched_foresee_cost(const struct growths *growth, const struct entry *e);
void sched_foresee_init(struct sched *s);
/* Counts the entry as stalled if its next token, which a preemption delays, has not come for too
 * long; once for each wait. */
void sched_note_stall(struct engine_stats *stats, struct entry *e, uint64_t now_us);
/* The entry gets its next token. */
void sched_resumed(struct engine_stats *stats, struct entry *e, uint64_t now_us);
/* An entry that was admitted ends. */
void sched_answered(struct sched *s, const struct entry *e, enum req_finish how);
/* One has come: what it is expected to cost enters its tenant's mean. */
void sched_refuse_note(struct sched *s, const struct entry *e);
/* Rows that the entry could use now. */
uint32_t sched_rows_wanted(const struct entry *e);
bool sched_wants_scores(const struct entry *e);
/* Words that the setting of its slot takes. */
uint32_t sched_words_of_set(const struct entry *e);
/* How many of `rows` the step has room for, besides the budget: what has to be sent with them. */
uint32_t sched_rows_that_fit(const struct plan *p, const struct entry *e, uint32_t rows,
                             bool set_due);
/* What so many rows of it cost in the step; a decode's cost one each. */
uint32_t sched_cost(const struct plan *p, const struct entry *e, uint32_t rows);
/* Takes what the entry's rows need of the step, and gives it back. */
void sched_charge(struct plan *p, const struct entry *e, bool set_due);
void sched_refund(struct plan *p, const struct entry *e, bool set_due);
/* The blocks go back (named ones stay as cache while they can, the content goes to the host tier if
 * there is room), the tokens stay. `for_other`: another tenant's request lacked its slot
 * (HELD_LIMIT) or its blocks (HELD_BLOCKS), which is no sign of too little memory: the wait, the
 * gap and what is read again count apart. HELD_NONE: a running one lacked a block. */
void sched_preempt(struct sched *s, struct plan *p, uint32_t at, enum engine_held for_other);
/* A tenant with more slots or blocks for its weight than that of the first in line gives way to it,
 * if that has waited a moment (yield.c). */
void sched_make_way(struct sched *s, struct plan *p);
/* Sets `held` of all tenants: blocks of their own that their running requests hold, else slots. */
void sched_count_held(struct sched *s, bool blocks);
/* One row, or the few that a grammar has appended: these go first, so that a stream goes on. */
bool sched_is_decode(const struct entry *e, uint32_t want);
/* Gives the entry rows, preempting others for blocks, or itself. */
void sched_plan_rows(struct sched *s, struct plan *p, uint32_t entry, uint32_t rows);
/* Prompts share a step by the law in share.c. First what the running ones have for sure, */
void sched_share_first(struct sched *s, struct plan *p);
/* then those that wait: whether there are rows for it, */
bool sched_share_has_turn(const struct sched *s, const struct plan *p, uint32_t entry);
/* and, for one that has just been admitted, the first of them; */
void sched_share_admitted(struct sched *s, struct plan *p, struct entry *e);
/* then the rest. */
void sched_share_rest(struct sched *s, struct plan *p);
/* Of the whole request. The last token is never read again, so it needs no place in the cache. */
uint64_t sched_blocks_needed(const struct sched *s, const struct req_ask *ask);
/* A running entry has to be computed again: it gives its slot back and waits. */
void sched_replay(struct sched *s, uint32_t at, uint64_t now_us);
/* Whether blocks get names, and are found by them. */
bool sched_caches(const struct sched *s);
/* snapshots.c. An entry was admitted, with `tokens` of a `chain` of cached blocks. */
void snapshot_begin(struct sched *s, struct entry *e, uint32_t tokens, uint32_t chain);
/* Of the next `rows` rows those up to where a snapshot is worth having. */
uint32_t snapshot_cut(const struct sched *s, const struct entry *e, uint32_t rows);
/* Before the entry's rows are counted in the step that is being written: takes one if it is due. */
void snapshot_take(struct sched *s, const struct entry *e);
/* The slot's blocks have names up to `named`. */
void snapshot_named(struct sched *s, struct slot *t);
void snapshot_cancel(struct sched *s, uint64_t step); /* it is taken back */
const char *snapshot_check(const struct sched *s);
/* What the names of an entry's blocks start from. Where frequencies change with the length of the
 * prompt, blocks of prompts of different lengths are not the same. */
static inline uint64_t sched_salt(const struct sched *s, const struct entry *e)
{
    uint32_t prompt = e->req->ask.prompt_tokens;
    bool apart = s->fixed.stretched_above > 0 && prompt > s->fixed.stretched_above;
    return e->req->ask.cache_salt ^ (apart ? (uint64_t)prompt * 0x9E3779B97F4A7C15ull : 0);
}
/* Whose share of the cache an entry's blocks count for. */
static inline uint64_t sched_owner(const struct entry *e)
{
    const struct req_ask *ask = &e->req->ask;
    return ask->cache_owner != 0 ? ask->cache_owner : ask->cache_salt;
}
/* The suspect whose turn it is, SCHED_NONE while another request runs. */
uint32_t sched_suspect(const struct entries *all);
void sched_cleared(struct sched *s, struct entry *e); /* it is a suspect no more */
