/*
 * The sentences of a postmortem. Each looks for one thing in the recording and says it with its
 * numbers, or nothing.
 */
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "supervisor/law/postmortem.h"
#include "supervisor/law/postmortem_inside.h"

#define SILENT_S   1.0  /* without a step, which is worth a word */
#define SLOW_TIMES 5u   /* the median: a step that is worth a word */
#define SCARCE     100u /* less than this part of the blocks could be had: they ran out */
#define RECENT_US  (10 * EK_US_PER_S)
#define CODES      100000 /* no code is below the negative of it */
#define GREW       10u    /* percent of the process's memory */

struct say {
    struct ek_buf *out;
    const char *comma;
    const struct ek_recorded *rec;
    uint64_t end_us; /* of the recorder's clock */
};

__attribute__((format(printf, 2, 3))) static void say(struct say *s, const char *fmt, ...)
{
    char text[320];
    va_list ap;
    va_start(ap, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, ap); /* a longer one is cut */
    va_end(ap);
    (void)ek_buf_printf(s->out, "%s\"", s->comma);
    (void)ek_buf_json(s->out, text, strlen(text));
    (void)ek_buf_puts(s->out, "\"");
    s->comma = ",";
}

static double before_s(const struct say *s, uint64_t at_us)
{
    return at_us < s->end_us ? (double)(s->end_us - at_us) / 1e6 : 0;
}

static const struct ek_recorder_step *last_step(const struct ek_recorded *r)
{
    return r->step_count > 0 ? &r->steps[r->step_count - 1] : NULL;
}

static void say_flight(struct say *s)
{
    const char *which = "A step was on the device";
    for (uint32_t i = 0; i < s->rec->begun_count; i++) {
        const struct ek_recorder_step *b = &s->rec->begun[i];
        if (!postmortem_in_flight(s->rec, b))
            continue;
        say(s, "%s, begun %.3f s before the end: %u rows, %u of them of prompts, %u sequences%s.",
            which, before_s(s, b->at_us), b->rows, b->prefill_rows, b->seqs,
            b->copies ? ", and copies of blocks" : "");
        which = "Another was waiting behind it";
    }
}

static void say_silence(struct say *s, uint32_t alive)
{
    const struct ek_recorder_step *last = last_step(s->rec);
    if (!last) {
        say(s, "It made no step that is recorded.");
        return;
    }
    double idle_s = before_s(s, last->at_us);
    if (idle_s < SILENT_S)
        return;
    if (alive == 0)
        say(s, "The engine was idle: its last step landed %.1f s before the end.", idle_s);
    else
        say(s, "No step landed in the %.1f s before the end, though %u request%s had not ended.",
            idle_s, alive, alive == 1 ? "" : "s");
}

static bool is_scarce(const struct ek_recorder_step *t)
{
    uint64_t room = (uint64_t)t->blocks_free + t->blocks_cached;
    return t->blocks_total > 0 && room * SCARCE < t->blocks_total;
}

/* Since when there were none to be had, without a break until the end. */
static void say_blocks(struct say *s)
{
    const struct ek_recorder_step *since = NULL, *last = last_step(s->rec);
    for (uint32_t i = s->rec->step_count; i > 0 && is_scarce(&s->rec->steps[i - 1]); i--)
        since = &s->rec->steps[i - 1];
    if (since)
        say(s, "Blocks ran out %.1f s before the end: %u of %u used, %u requests waited at last.",
            before_s(s, since->at_us), last->blocks_used, last->blocks_total, last->waiting);
}

static const struct ek_recorder_step *first_recent(const struct say *s)
{
    for (uint32_t i = 0; i < s->rec->step_count; i++)
        if (s->rec->steps[i].at_us + RECENT_US >= s->end_us)
            return &s->rec->steps[i];
    return NULL;
}

static void say_pressure(struct say *s)
{
    const struct ek_recorder_step *from = first_recent(s), *last = last_step(s->rec);
    if (!from)
        return;
    uint32_t preemptions = last->preemptions - from->preemptions; /* a counter: it may wrap */
    if (preemptions > 0)
        say(s, "%u preemption%s in the last 10 s.", preemptions, preemptions == 1 ? "" : "s");
    if (last->waiting > from->waiting + 4 && last->waiting > 2 * from->waiting)
        say(s, "The queue grew from %u to %u in the last 10 s.", from->waiting, last->waiting);
}

static void say_slow(struct say *s)
{
    const struct ek_recorder_step *last = last_step(s->rec);
    uint32_t median = postmortem_median(s->rec->steps, s->rec->step_count);
    if (last && s->rec->step_count > 2 && last->step_us / SLOW_TIMES > median &&
        last->step_us >= 10000)
        say(s, "The last step took %.1f ms, the median of the recorded ones is %.1f ms.",
            last->step_us / 1e3, median / 1e3);
}

static void say_errors(struct say *s)
{
    const struct ek_recorder_step *last = NULL;
    uint32_t failed = 0;
    for (uint32_t i = 0; i < s->rec->step_count; i++) {
        if (s->rec->steps[i].error == 0 || s->rec->steps[i].error == -ECANCELED)
            continue; /* one that was planned on top of the failed one did not fail itself */
        failed++;
        last = &s->rec->steps[i];
    }
    if (!last)
        return;
    int code = last->error < 0 && last->error > -CODES ? last->error : 0; /* another's file */
    say(s, "%u step%s failed, the last with: %s: %u rows, %u of them of prompts, %u sequences.",
        failed, failed == 1 ? "" : "s", ek_strerror(code), last->rows, last->prefill_rows,
        last->seqs);
}

static void say_limit(struct say *s, const char *name, size_t at)
{
    for (uint32_t i = s->rec->step_count; i > 1; i--) {
        uint32_t now, before;
        memcpy(&now, (const char *)&s->rec->steps[i - 1] + at, sizeof(now));
        memcpy(&before, (const char *)&s->rec->steps[i - 2] + at, sizeof(before));
        if (now == before)
            continue;
        say(s, "%s went from %u to %u %.1f s before the end.", name, before, now,
            before_s(s, s->rec->steps[i - 1].at_us));
        return;
    }
}

static void say_memory(struct say *s)
{
    const struct ek_recorder_step *last = last_step(s->rec);
    uint32_t first = 0;
    for (uint32_t i = 0; i < s->rec->step_count && first == 0; i++)
        first = s->rec->steps[i].resident_mib;
    if (last && first > 0 && (uint64_t)last->resident_mib * 100 > (uint64_t)first * (100 + GREW))
        say(s, "The process's memory grew from %u to %u MiB.", first, last->resident_mib);
}

static void say_requests(struct say *s, const struct postmortem_alive *a)
{
    if (a->count == 0)
        return;
    say(s,
        "%u request%s had not ended: the longest prompt has %u tokens, the largest answer may have "
        "%u%s.",
        a->count, a->count == 1 ? "" : "s", a->longest_prompt, a->most_tokens,
        a->grammars ? "; with a grammar among them" : "");
}

static void say_losses(struct say *s, const struct postmortem *p)
{
    if (p->loss_count == 0)
        return;
    const struct postmortem_loss *last = &p->loss[p->loss_count - 1];
    double ago_s = p->wall_us > last->wall_us ? (double)(p->wall_us - last->wall_us) / 1e6 : 0;
    if (p->losses == 1)
        say(s, "Its engine's process had ended %.1f s before: %s.", ago_s, last->said);
    else
        say(s, "Its engine's process had ended %u times, %.1f s before for the last time: %s.",
            p->losses, ago_s, last->said);
}

void postmortem_summary(const struct postmortem *p, const struct ek_recorded *rec,
                        struct ek_buf *out)
{
    struct say s = {.out = out, .comma = "", .rec = rec};
    struct postmortem_alive alive;
    (void)ek_buf_puts(out, "[");
    say_losses(&s, p);
    if (!rec) {
        say(&s, "There is no flight recording: %s.", p->lacks ? p->lacks : "it was not looked for");
        (void)ek_buf_puts(out, "]");
        return;
    }
    postmortem_find_alive(rec, &alive);
    s.end_us = postmortem_end_us(p, rec);
    if (p->unseen)
        say(&s, "Nobody watched: its end was found later, and is told as of its last record.");
    say_flight(&s);
    say_silence(&s, alive.count);
    say_blocks(&s);
    say_pressure(&s);
    say_slow(&s);
    say_errors(&s);
    say_limit(&s, "max_num_running_seqs", offsetof(struct ek_recorder_step, limit_seqs));
    say_limit(&s, "max_num_batched_tokens", offsetof(struct ek_recorder_step, limit_tokens));
    say_limit(&s, "num_kv_blocks", offsetof(struct ek_recorder_step, limit_blocks));
    say_memory(&s);
    say_requests(&s, &alive);
    free(alive.at);
    if (rec->torn)
        say(&s, "%u record%s not whole and left out.", rec->torn,
            rec->torn == 1 ? " was" : "s were");
    (void)ek_buf_puts(out, "]");
}
