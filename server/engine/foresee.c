/*
 * Whether a newcomer fits not only now but while everybody grows. For some numbers of tokens ahead:
 * what is expected to be in use when each that runs has got so many tokens more, or has ended and
 * given back what it holds, with no other admitted meanwhile; and the variance of that, as if
 * answers were independent. It fits when expectation and `caution` standard deviations stay within
 * the pool all along.
 *
 * Caution is learned: an answer that stands still because it was preempted raises it, as soon as it
 * has for too long and not when it goes on, which may be much later; each that ends lowers it by as
 * much less as the limit says, so that in the long run that share of them stalls. It begins high,
 * since little is known then.
 */
#include <math.h>

#include "common/clock.h"
#include "server/engine/sched.h"

#define STALL_US      (2 * EK_US_PER_S) /* what a reader takes for one; evenkeeld's gap_s */
#define CAUTION_FIRST 2.0
#define CAUTION_LEAST 0.0
#define CAUTION_MOST  3.0
#define CAUTION_STEP  0.1
#define LOOKS         9u

static const uint32_t ahead[LOOKS] = {8, 32, 64, 128, 256, 512, 1024, 2048, 4096};

struct outlook {
    double more[LOOKS], variance[LOOKS]; /* tokens, against now */
};

static uint32_t foresee_kind_of(const struct entry *e)
{
    return growths_kind(e->tenant, e->req->ask.prompt_tokens);
}

/* An entry that holds `held` tokens' room: it grows until max_new_tokens unless it ends before. */
static void add_entry(const struct growths *g, const struct entry *e, double held,
                      struct outlook *o)
{
    const struct req_ask *ask = &e->req->ask;
    uint32_t got = e->known + e->pending - ask->prompt_tokens;
    uint32_t left = ask->max_new_tokens > got ? ask->max_new_tokens - got : 0;

    for (uint32_t i = 0, before = 0; i < LOOKS; before = ahead[i++]) {
        /* One that is to end between two looks is at its largest just before. */
        uint32_t more = left < ahead[i] ? left : ahead[i];
        double runs = left > before ? growths_share(g, foresee_kind_of(e), got, more) : 0;
        double room = held + more;
        o->more[i] += runs * room - held;
        o->variance[i] += runs * (1 - runs) * room * room;
    }
}

bool sched_foresee(const struct sched *s, const struct entry *e, uint64_t blocks)
{
    struct outlook o = {0};
    double used = s->blocks.referenced - s->pool.migrant_count;
    /* What two share is given back by neither: each counts for its part. */
    double own = s->slots.held_blocks > 0 ? fmin(1, used / (double)s->slots.held_blocks) : 1;
    double pool = (s->blocks.usable - 1) * (1 - (double)s->value[LIMIT_WATERMARK] * 1e-6);
    double fresh = (double)blocks * s->fixed.block_size;

    if (s->value[LIMIT_STALLED_SHARE] == 0)
        return true;
    for (uint32_t i = 0; i < s->entries.running_count; i++) {
        const struct entry *other = entries_running(&s->entries, i);
        add_entry(&s->growth, other, s->slots.at[other->slot].blocks * own * s->fixed.block_size,
                  &o);
    }
    add_entry(&s->growth, e, fresh, &o);
    for (uint32_t i = 0; i < LOOKS; i++) {
        double all = used * s->fixed.block_size + fresh + o.more[i];
        if (all + s->stats.caution * sqrt(o.variance[i]) > pool * s->fixed.block_size)
            return false;
    }
    return true;
}

/* Tokens that an entry is expected to get yet; *ret_cost: the sum over all of them of what it holds
 * then. */
static double expected_growth(const struct growths *g, const struct entry *e, double *ret_cost)
{
    const struct req_ask *ask = &e->req->ask;
    uint32_t got = e->known + e->pending - ask->prompt_tokens;
    uint32_t left = ask->max_new_tokens > got ? ask->max_new_tokens - got : 0;
    double more = 0, runs = 1, holds = (double)e->known + e->pending;

    *ret_cost = 0;
    for (uint32_t i = 0, before = 0; i < LOOKS && before < left; before = ahead[i++]) {
        uint32_t at = left < ahead[i] ? left : ahead[i];
        double then = growths_share(g, foresee_kind_of(e), got, at);
        double tokens = (at - before) * (runs + then) / 2;
        more += tokens;
        *ret_cost += tokens * (holds + (at + before) / 2.0);
        runs = then;
    }
    return more;
}

/* What it is expected to hold at its end. */
static double expected_tokens(const struct growths *growth, const struct entry *e)
{
    double ignored;

    return (double)e->known + e->pending + expected_growth(growth, e, &ignored);
}

double sched_foresee_cost(const struct growths *growth, const struct entry *e)
{
    double cost;

    (void)expected_growth(growth, e, &cost); /* of its tokens, only what they cost is asked */
    return cost;
}

void sched_foresee_note(struct sched *s, const struct entry *e)
{
    struct engine_stats *st = &s->stats;
    double sum = ceil(expected_tokens(&s->growth, e) / s->fixed.block_size);

    for (uint32_t i = 0; i < s->entries.running_count; i++)
        sum += ceil(expected_tokens(&s->growth, entries_running(&s->entries, i)) /
                    s->fixed.block_size);
    double each = fmax(1, sum / (s->entries.running_count + 1));
    st->expected_blocks = (uint32_t)lround(each);
    /* With room kept for those that grow longer than that, fewer may run; what runs does fit. */
    st->expected_fit =
        (uint32_t)fmax(s->entries.running_count, floor((s->blocks.usable - 1) / each));
}

void sched_foresee_init(struct sched *s)
{
    growths_init(&s->growth);
    s->stats.caution = CAUTION_FIRST;
}

void sched_note_stall(struct engine_stats *stats, struct entry *e, uint64_t now_us)
{
    bool begun = e->last_token_us != 0; /* its reader has something */

    if (!begun || !e->thrown_out || e->stalled || now_us <= e->last_token_us + STALL_US)
        return;
    e->stalled = true;
    stats->stalls++;
    stats->caution = fmin(stats->caution + CAUTION_STEP, CAUTION_MOST);
}

void sched_resumed(struct engine_stats *stats, struct entry *e, uint64_t now_us)
{
    sched_note_stall(stats, e, now_us);
    e->thrown_out = false;
    e->stalled = false;
    e->yielded = false;
}

void sched_answered(struct sched *s, const struct entry *e, enum req_finish how)
{
    double share = (double)s->value[LIMIT_STALLED_SHARE] * 1e-6;
    /* One that was cut off at a length that was known says nothing of how long answers are. */
    bool by_itself = how == REQ_FIN_STOP || how == REQ_FIN_ABORT;

    growths_ended(&s->growth, foresee_kind_of(e), e->known - e->req->ask.prompt_tokens, by_itself);
    s->stats.caution = fmax(s->stats.caution - CAUTION_STEP * share, CAUTION_LEAST);
    if (share > 0)
        admission_again(&s->admission); /* the next in the queue may have room to grow now */
}
