/*
 * Explains a queue from the engine's own signals: which limit is reached, or that room is kept for
 * the growth of running requests. servers/watch.c asks with each sample and makes a decision of
 * kind "note" of it, at most once for a cause that goes on. Bursts of preemptions are told the same
 * way.
 */
#include "supervisor/law/waiting.h"

#include <math.h>
#include <stdio.h>

#include "supervisor/law/window.h"

#define HELD_S  5.0  /* so long before it is worth a line */
#define CALM_S  30.0 /* without any, and the episode is over */
#define BURST   3.0  /* preemptions ... */
#define BURST_S 10.0 /* ... within so long begin one */
#define SECONDS 1000000.0

/* The value, 0 where it is not known. */
static double waiting_value(const struct sample *s, enum signal_id i)
{
    return sample_has(s, i) ? s->value[i] : 0;
}

static bool held_by_growth(const struct sample *s, double n, char *text, size_t size)
{
    double each = waiting_value(s, SIG_HELD_EXPECTED), fit = waiting_value(s, SIG_HELD_FIT);
    double runs = waiting_value(s, SIG_RUNNING);
    if (!(waiting_value(s, SIG_HELD_GROWTH) > 0))
        return false;
    int len =
        snprintf(text, size, "%.0f wait: each is expected to grow to about %.0f blocks, %.0f fit",
                 n, each, fit);
    if (fit > runs && len > 0 && (size_t)len < size)
        (void)snprintf(text + len, size - (size_t)len,
                       " (%.0f run; room is kept for those that grow longer)", runs);
    return true;
}

/* By the engine's own word. */
static bool held(const struct sample *s, uint32_t limit, char *text, size_t size)
{
    double n = waiting_value(s, SIG_WAITING);
    if (held_by_growth(s, n, text, size))
        return true;
    if (waiting_value(s, SIG_HELD_LIMIT) > 0)
        (void)snprintf(text, size, "%.0f wait: %.0f run, the limit is %.0f", n,
                       waiting_value(s, SIG_RUNNING),
                       limit ? limit : waiting_value(s, SIG_LIMIT_SEQS));
    else if (waiting_value(s, SIG_HELD_BLOCKS) > 0)
        (void)snprintf(text, size,
                       "%.0f wait: the next one needs %.0f blocks, %.0f are available and a part "
                       "of them is kept for those that run",
                       n, waiting_value(s, SIG_HELD_NEEDED), waiting_value(s, SIG_HELD_AVAILABLE));
    else if (waiting_value(s, SIG_HELD_PREEMPTED) > 0)
        (void)snprintf(text, size, "%.0f wait: requests lack blocks to go on, they come first", n);
    else if (waiting_value(s, SIG_HELD_PAUSED) > 0)
        (void)snprintf(text, size,
                       "%.0f wait: admission paused at its high mark, KV usage is %.0f %%", n,
                       waiting_value(s, SIG_KV_USAGE) * 100);
    else if (waiting_value(s, SIG_HELD_TOKENS) > 0)
        (void)snprintf(text, size, "%.0f wait: prompts that are being read fill each step", n);
    else if (waiting_value(s, SIG_HELD_COPIES) > 0)
        (void)snprintf(text, size, "%.0f wait: blocks are on their way from host memory", n);
    else
        return false;
    return true;
}

bool waiting_why(const struct sample *s, uint32_t limit, char *ret_text, size_t size)
{
    double n = waiting_value(s, SIG_WAITING), runs = waiting_value(s, SIG_RUNNING);
    ret_text[0] = '\0';
    if (!(n > 0))
        return false;
    if (held(s, limit, ret_text, size))
        return true;
    if (sample_has(s, SIG_HELD_GROWTH)) /* it would say: they came since its last step */
        return false;
    if (limit > 0 && runs >= limit)
        (void)snprintf(ret_text, size, "%.0f wait: %.0f run, the limit is %u", n, runs, limit);
    else if (waiting_value(s, SIG_WAITING_CAPACITY) > 0)
        (void)snprintf(ret_text, size,
                       "%.0f wait for room in the KV cache: %.0f run, KV usage %.0f %%", n, runs,
                       waiting_value(s, SIG_KV_USAGE) * 100);
    else
        return false;
    return true;
}

void waiting_start(struct waiting *w)
{
    *w = (struct waiting){.last = (double)NAN};
}

static double waiting_since(uint64_t then_us, uint64_t now_us)
{
    return now_us > then_us ? (double)(now_us - then_us) / SECONDS : 0;
}

/* The limit is evenkeeld's matter, and tokens are a matter of the next step. */
static bool engine_holds(const struct sample *s)
{
    return waiting_value(s, SIG_HELD_GROWTH) > 0 || waiting_value(s, SIG_HELD_BLOCKS) > 0 ||
           waiting_value(s, SIG_HELD_PREEMPTED) > 0 || waiting_value(s, SIG_HELD_PAUSED) > 0;
}

static bool step_held(struct waiting *w, const struct sample *s, uint32_t limit, uint64_t now_us,
                      struct decision *d)
{
    bool holds = engine_holds(s);
    if (holds) {
        w->held_us = w->held_us ? w->held_us : now_us;
        w->free_us = 0;
    } else {
        w->free_us = w->free_us ? w->free_us : now_us;
    }
    if (w->free_us && waiting_since(w->free_us, now_us) >= CALM_S) {
        w->held_us = 0;
        w->said = false;
    }
    if (!holds || w->said || waiting_since(w->held_us, now_us) < HELD_S)
        return false;
    *d = (struct decision){.kind = ACT_NOTE,
                           .reason = REASON_ENGINE_HOLDS,
                           .measured = waiting_value(s, SIG_WAITING),
                           .limit = waiting_value(s, SIG_RUNNING),
                           .held_s = waiting_since(w->held_us, now_us),
                           .at_us = now_us};
    w->said = waiting_why(s, limit, d->why, sizeof(d->why));
    return w->said;
}

static void begin_burst(struct waiting *w, const struct sample *s, double count, uint64_t now_us,
                        struct decision *d)
{
    w->burst_us = now_us;
    w->began = waiting_value(s, SIG_PREEMPTIONS) - count;
    w->recomputed = waiting_value(s, SIG_RECOMPUTED);
    w->usage_most = waiting_value(s, SIG_KV_USAGE);
    *d = (struct decision){.kind = ACT_NOTE,
                           .reason = REASON_PREEMPTIONS,
                           .measured = count / BURST_S,
                           .harm = count / BURST_S,
                           .held_s = BURST_S,
                           .at_us = now_us};
    (void)snprintf(d->why, sizeof(d->why),
                   "The KV cache is too full for what runs to grow: %.0f preemptions in %.0f s, "
                   "%.0f run, %.0f wait, KV usage %.0f %%",
                   count, BURST_S, waiting_value(s, SIG_RUNNING), waiting_value(s, SIG_WAITING),
                   w->usage_most * 100);
}

static void end_burst(struct waiting *w, const struct sample *s, uint64_t now_us,
                      struct decision *d)
{
    double count = waiting_value(s, SIG_PREEMPTIONS) - w->began,
           length = waiting_since(w->burst_us, w->last_us);
    double again = waiting_value(s, SIG_RECOMPUTED) - w->recomputed;
    length = fmax(length, 1) + BURST_S;
    *d = (struct decision){.kind = ACT_NOTE,
                           .reason = REASON_PREEMPTIONS,
                           .measured = count / length,
                           .harm = count / length,
                           .held_s = length,
                           .at_us = now_us};
    int len = snprintf(d->why, sizeof(d->why),
                       "%.0f preemptions in about %.0f s, none for %.0f s now; KV usage was up to "
                       "%.0f %%",
                       count, length, CALM_S, w->usage_most * 100);
    if (again > 0 && len > 0 && (size_t)len < sizeof(d->why))
        (void)snprintf(d->why + len, sizeof(d->why) - (size_t)len,
                       ", %.0f tokens were computed again", again);
    w->burst_us = 0;
}

static bool step_burst(struct waiting *w, const struct sample *s, const struct window *window,
                       uint64_t now_us, struct decision *d)
{
    double count = 0;
    if (!sample_has(s, SIG_PREEMPTIONS)) { /* unknown, or begun anew */
        w->burst_us = s->good && s->flags[SIG_PREEMPTIONS] & SAMPLE_RESET ? 0 : w->burst_us;
        w->last = (double)NAN;
        return false;
    }
    if (s->value[SIG_PREEMPTIONS] > w->last || w->last_us == 0)
        w->last_us = now_us;
    w->last = s->value[SIG_PREEMPTIONS];
    if (w->burst_us) {
        w->usage_most = fmax(w->usage_most, waiting_value(s, SIG_KV_USAGE));
        if (waiting_since(w->last_us, now_us) < CALM_S)
            return false;
        end_burst(w, s, now_us, d);
        return true;
    }
    if (!window_delta(window, SIG_PREEMPTIONS, BURST_S, &count) || count < BURST)
        return false;
    begin_burst(w, s, count, now_us, d);
    return true;
}

bool waiting_step(struct waiting *w, const struct sample *s, const struct window *window,
                  uint32_t limit, uint64_t now_us, struct decision *ret_note)
{
    return (window && step_burst(w, s, window, now_us, ret_note)) ||
           step_held(w, s, limit, now_us, ret_note);
}
