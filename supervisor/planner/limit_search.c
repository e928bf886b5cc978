/*
 * The search for the best limit as a state machine without I/O: limit_search_next() says which
 * limit to measure, limit_search_note() takes the step. ctl/verb_bench_fit.c runs it. Harm is
 * preemptions, gaps between tokens above what is allowed, or twice in a row less throughput than
 * with fewer sequences. Until the first harm the limit rises by a fixed step; then it halves the
 * interval until good and bad are neighbours.
 */
#include "supervisor/planner/limit_search.h"

#include <stddef.h>
#include <stdio.h>

#define FILLED  0.9  /* of the limit runs: the load binds on it */
#define NEARLY  0.97 /* of the best */
#define AS_MANY 1.03 /* of what ran with a lower limit: no more run */

void limit_search_init(struct limit_search *c, const struct limit_search_params *p)
{
    *c = (struct limit_search){.p = *p};
    c->next = p->start < 1 ? 1 : p->start > p->ceiling ? p->ceiling : p->start;
}

uint32_t limit_search_next(const struct limit_search *c)
{
    return c->next;
}

/* What suffers at this step; false: nothing. */
static bool find_harm(struct limit_search *c, const struct limit_search_step *s)
{
    const struct limit_search_params *p = &c->p;
    bool slower = s->tokens_s < c->best_tokens_s * (1 - p->loss);
    c->losses = slower ? c->losses + 1 : 0;
    if (s->preemptions_s > p->preemptions_most)
        (void)snprintf(c->why, sizeof(c->why), "%.2f preemptions a second with %u sequences",
                       s->preemptions_s, s->limit);
    else if (p->gap_most_s > 0 && s->gap_s > p->gap_most_s)
        (void)snprintf(c->why, sizeof(c->why),
                       "5 %% of the tokens came %.0f ms after the one before with %u sequences, "
                       "above %.0f",
                       s->gap_s * 1e3, s->limit, p->gap_most_s * 1e3);
    else if (c->losses >= 2)
        (void)snprintf(c->why, sizeof(c->why),
                       "%.0f tokens/s with %u sequences, less than the %.0f of fewer", s->tokens_s,
                       s->limit, c->best_tokens_s);
    else
        return false;
    return true;
}

/* Requests wait, the limit is not reached, and with a lower one as many ran: the server holds them
 * for another reason, mostly since it keeps room in the KV cache for those that run. */
static bool is_held(const struct limit_search *c, const struct limit_search_step *s)
{
    if (s->running >= FILLED * s->limit || s->waiting < 1)
        return false;
    for (uint32_t i = 0; i < c->count; i++)
        if (c->steps[i].limit < s->limit && s->running <= AS_MANY * c->steps[i].running)
            return true;
    return false;
}

/* Between good and bad, or on by a step. */
static void choose_next(struct limit_search *c)
{
    if (c->bad > 0) {
        uint32_t from = c->good;
        c->end = c->limit_by;
        if (c->bad - from <= 1)
            return;
        c->next = from + (c->bad - from) / 2;
        c->end = LIMIT_SEARCH_ON;
        return;
    }
    if (c->good >= c->p.ceiling) {
        c->end = LIMIT_SEARCH_CEILING;
        (void)snprintf(c->why, sizeof(c->why), "%u is the most that the server was started with",
                       c->p.ceiling);
        return;
    }
    c->next = c->p.ceiling - c->good < c->p.step ? c->p.ceiling : c->good + c->p.step;
}

void limit_search_note(struct limit_search *c, const struct limit_search_step *step)
{
    struct limit_search_step *s = &c->steps[c->count++];
    *s = *step;
    s->harm = find_harm(c, s);
    bool over = s->usage > c->p.use_high, held = is_held(c, s);
    if (s->tokens_s > c->best_tokens_s && !s->harm && !over)
        c->best_tokens_s = s->tokens_s;
    if (s->harm || over || (held && s->usage < c->p.use_low)) {
        c->bad = c->bad == 0 || s->limit < c->bad ? s->limit : c->bad;
        c->limit_by = s->harm ? LIMIT_SEARCH_HARM : over ? LIMIT_SEARCH_USED : LIMIT_SEARCH_HELD;
        if (c->limit_by == LIMIT_SEARCH_USED)
            (void)snprintf(c->why, sizeof(c->why), "%.0f %% of the KV cache with %u sequences",
                           s->usage * 100, s->limit);
        else if (c->limit_by == LIMIT_SEARCH_HELD)
            (void)snprintf(c->why, sizeof(c->why),
                           "only %.0f of %u sequences ran while %.0f waited, with %.0f %% of the "
                           "KV cache",
                           s->running, s->limit, s->waiting, s->usage * 100);
        if (c->good >= c->bad) /* what was good before is not any more: the load has changed */
            c->good = c->bad - 1;
        choose_next(c);
    } else if (s->usage >= c->p.use_low) {
        c->good = s->limit;
        c->end = LIMIT_SEARCH_USED;
        (void)snprintf(c->why, sizeof(c->why), "%.0f %% of the KV cache with %u sequences",
                       s->usage * 100, s->limit);
    } else if (s->running < FILLED * s->limit && s->waiting < 1) {
        c->good = s->limit;
        c->end = LIMIT_SEARCH_IDLE;
        (void)snprintf(c->why, sizeof(c->why), "only %.0f of %u sequences ran and none waited",
                       s->running, s->limit);
    } else {
        c->good = s->limit;
        choose_next(c);
    }
    if (c->count == LIMIT_SEARCH_STEPS_MOST && c->end == LIMIT_SEARCH_ON)
        c->end = LIMIT_SEARCH_LONG;
}

static bool is_good(const struct limit_search *c, const struct limit_search_step *s)
{
    return !s->harm && s->usage <= c->p.use_high && (c->bad == 0 || s->limit < c->bad);
}

uint32_t limit_search_keep(const struct limit_search *c)
{
    uint32_t most = 0;
    for (uint32_t i = 0; i < c->count; i++)
        if (is_good(c, &c->steps[i]) && c->steps[i].limit > most)
            most = c->steps[i].limit;
    return most;
}

uint32_t limit_search_knee(const struct limit_search *c)
{
    uint32_t least = 0;
    double best = 0; /* of those that may be kept: what is too full may be faster for a while */
    for (uint32_t i = 0; i < c->count; i++)
        if (is_good(c, &c->steps[i]) && c->steps[i].tokens_s > best)
            best = c->steps[i].tokens_s;
    for (uint32_t i = 0; i < c->count; i++) {
        const struct limit_search_step *s = &c->steps[i];
        if (is_good(c, s) && s->tokens_s >= NEARLY * best && (least == 0 || s->limit < least))
            least = s->limit;
    }
    return least;
}

const struct limit_search_step *limit_search_at(const struct limit_search *c, uint32_t limit)
{
    for (uint32_t i = c->count; i-- > 0;)
        if (c->steps[i].limit == limit)
            return &c->steps[i];
    return NULL;
}

const char *limit_search_end_text(enum limit_search_end e)
{
    switch (e) {
    case LIMIT_SEARCH_ON: return "stopped before its end";
    case LIMIT_SEARCH_USED: return "the KV cache is used as wanted";
    case LIMIT_SEARCH_HARM: return "more would suffer";
    case LIMIT_SEARCH_CEILING: return "the ceiling";
    case LIMIT_SEARCH_IDLE: return "the load is too small for more";
    case LIMIT_SEARCH_HELD: return "no more sequences run at a time";
    case LIMIT_SEARCH_LONG: return "too many steps";
    }
    return "";
}
