/*
 * Applies the ladders: remedy_next() takes the first step of the class that was not tried within a
 * day and would change something, and remedy_argv() makes the flags of the next start.
 * servers/repair.c asks for the step, and engine_end.c for an engine process;
 * servers/command_line.c makes the flags. What a step lowers is kept as caps in remedy_memory,
 * beside which flags the operator wrote, so that a cap can be forgotten when it is a day old
 * without the configuration being touched.
 */
#include "supervisor/law/remedy.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/ladder.h"
#include "common/options.h"
#include "supervisor/engines/dialect.h"

#define MORE_FACTOR 1.01 /* blocks and buffers are rounded */

/* Which ladder a class has; LADDERS: none. */
static enum ladder_kind ladder_of(enum crash_class cls)
{
    return cls == CRASH_STARTUP_OOM ? LADDER_AT_START
           : cls == CRASH_BURST_OOM ? LADDER_IN_BURST
           : cls == CRASH_FRAG_OOM  ? LADDER_IN_PIECES
           : cls == CRASH_HOST_OOM  ? LADDER_OF_HOST
                                    : LADDERS;
}

bool remedy_exists(enum crash_class cls)
{
    return ladder_of(cls) != LADDERS;
}

const char *remedy_step(enum crash_class cls, uint32_t step)
{
    return ladder_name(ladder_at(ladder_of(cls), step));
}

/* One flag of a server as a number. */
enum setting { SET_TOKENS, SET_SEQS, SET_SHARE, SET_SWAP, SETTINGS };

static const char *flag_of(const struct dialect *d, enum setting s)
{
    switch (s) {
    case SET_TOKENS: return d->tokens_flag;
    case SET_SEQS: return d->seqs_flag;
    case SET_SHARE: return d->share_flag;
    case SET_SWAP: return d->swap_flag;
    case SETTINGS: break;
    }
    return NULL;
}

/* The steps. Each lowers caps below `now` and adds to why; what it cannot lower it leaves. */

static void remedy_say(struct remedy_plan *plan, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));

static void remedy_say(struct remedy_plan *plan, const char *fmt, ...)
{
    size_t at = strlen(plan->why);
    va_list ap;
    if (at > 0 && at + 2 < sizeof(plan->why)) {
        memcpy(plan->why + at, ", ", 3);
        at += 2;
    }
    va_start(ap, fmt);
    (void)vsnprintf(plan->why + at, sizeof(plan->why) - at, fmt, ap); /* may be cut */
    va_end(ap);
}

static bool lower_tokens(const struct remedy_case *c, uint32_t most, struct remedy_plan *plan)
{
    uint32_t seqs = plan->caps.seqs ? plan->caps.seqs : c->now.seqs;
    uint32_t least = c->tokens_min > seqs ? c->tokens_min : seqs; /* one a sequence */
    uint32_t to = ladder_tokens(c->now.tokens, most, least, c->numbers.capacity);
    if (to == 0 || !c->dialect->tokens_flag)
        return false;
    remedy_say(plan, "%s %u instead of %u", c->dialect->tokens_flag, to, c->now.tokens);
    plan->caps.tokens = to;
    return true;
}

static bool lower_seqs(const struct remedy_case *c, uint32_t most, struct remedy_plan *plan)
{
    uint32_t to = ladder_seqs(c->now.seqs, most, c->seqs_min);
    if (to == 0 || !c->dialect->seqs_flag)
        return false;
    remedy_say(plan, "%s %u instead of %u", c->dialect->seqs_flag, to, c->now.seqs);
    plan->caps.seqs = to;
    return true;
}

static bool set_share(const struct remedy_case *c, enum ladder_step step, struct remedy_plan *plan)
{
    double to = ladder_share(c->now.share, step, c->numbers.no_kv);
    if (!c->dialect->share_flag || !(to > 0))
        return false;
    remedy_say(plan, "%s %.2f instead of %.2f", c->dialect->share_flag, to, c->now.share);
    plan->caps.share = to;
    return true;
}

static bool set_swap(const struct remedy_case *c, double to, struct remedy_plan *plan)
{
    if (!c->dialect->swap_flag || !(c->now.swap_gib > 0))
        return false;
    remedy_say(plan, "%s %.3g instead of %.3g", c->dialect->swap_flag, to, c->now.swap_gib);
    plan->caps.swap_gib = to;
    plan->caps.no_swap = !(to > 0);
    return true;
}

static bool conserve(const struct remedy_case *c, struct remedy_plan *plan)
{
    bool seqs = lower_seqs(c, LADDER_LOW_SEQS, plan);
    bool tokens = lower_tokens(c, LADDER_LOW_TOKENS, plan);
    bool less = set_share(c, STEP_CONSERVATIVE, plan);
    return seqs || tokens || less;
}

static bool burst(const struct remedy_case *c, struct remedy_plan *plan)
{
    bool seqs = lower_seqs(c, UINT32_MAX, plan), tokens = lower_tokens(c, UINT32_MAX, plan);
    bool share = set_share(c, STEP_BURST, plan);
    return seqs || tokens || share;
}

/* False if it would change nothing. */
static bool take_step(const struct remedy_case *c, enum ladder_step step, struct remedy_plan *plan)
{
    switch (step) {
    case STEP_WAIT:
        if (!c->soon)
            return false;
        remedy_say(plan, "the same again after %.0f s: the process before may still hold memory",
                   REMEDY_WAIT_S);
        plan->wait_s = REMEDY_WAIT_S;
        return true;
    case STEP_TOKENS: return lower_tokens(c, UINT32_MAX, plan);
    case STEP_SHARE: return set_share(c, STEP_SHARE, plan);
    case STEP_BURST:
    case STEP_BURST_AGAIN: return burst(c, plan);
    case STEP_EXPANDABLE:
        if (!c->dialect->torch || c->now.expandable)
            return false;
        remedy_say(plan, "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True");
        return plan->caps.expandable = true;
    case STEP_HALF_SWAP: return set_swap(c, c->now.swap_gib / 2, plan);
    case STEP_NO_SWAP: return set_swap(c, 0, plan);
    case STEP_CONSERVATIVE: return conserve(c, plan);
    case STEP_NONE: break;
    }
    return false;
}

struct remedy_plan remedy_next(const struct remedy_memory *m, const struct remedy_case *c)
{
    struct remedy_plan plan = {.caps = m->caps};
    if (!remedy_exists(c->cls))
        return plan;
    plan.steps = m->tried[c->cls].steps;
    for (uint32_t i = 0; ladder_at(ladder_of(c->cls), i) != STEP_NONE; i++) {
        if (plan.steps & 1u << i)
            continue;
        plan.steps |= (uint8_t)(1u << i);
        if (take_step(c, ladder_at(ladder_of(c->cls), i), &plan)) {
            plan.found = true;
            plan.step = (uint8_t)i;
            break;
        }
    }
    return plan;
}

void remedy_take(struct remedy_memory *m, const struct remedy_case *c,
                 const struct remedy_plan *plan)
{
    m->tried[c->cls].steps = plan->steps;
    m->tried[c->cls].wall_us = c->wall_us;
    m->caps = plan->caps;
    m->until_us = c->wall_us + (uint64_t)(REMEDY_KEEP_S * 1e6);
}

bool remedy_worn(struct remedy_memory *m, const struct dialect *d, bool settled, uint64_t wall_us)
{
    /* Nothing else is known of what runs, so no other step changes anything. */
    struct remedy_case c = {
        .cls = CRASH_FRAG_OOM, .dialect = d, .now = {.expandable = settled}, .wall_us = wall_us};
    struct remedy_plan plan = remedy_next(m, &c);
    if (!plan.found || m->caps.expandable || !plan.caps.expandable)
        return false;
    remedy_take(m, &c, &plan);
    return true;
}

bool remedy_unworn(struct remedy_memory *m)
{
    bool had = m->caps.expandable;
    m->caps.expandable = false;
    return had;
}

void remedy_pass(struct remedy_memory *m, const struct remedy_case *c,
                 const struct remedy_plan *plan)
{
    m->tried[c->cls].steps = plan->steps;
    m->tried[c->cls].wall_us = c->wall_us;
}

void remedy_forget(struct remedy_memory *m)
{
    *m = (struct remedy_memory){0};
}

bool remedy_fits(const struct remedy_case *c, const struct remedy_facts *before,
                 const struct remedy_facts *with, char *why, size_t size)
{
    const double mib = 1048576.0;
    if (with->known && !with->fits) {
        (void)snprintf(why, size, "the plan would not fit");
        return false;
    }
    /* More for the cache is the cure when that was what lacked. */
    bool more = !c->numbers.no_kv && with->bytes > 0 && before->bytes > 0 &&
                (double)with->bytes > (double)before->bytes * MORE_FACTOR;
    if (more)
        (void)snprintf(why, size, "the plan would grow from %.0f to %.0f MiB",
                       (double)before->bytes / mib, (double)with->bytes / mib);
    return !more;
}

static bool lower_to(uint32_t *cap, uint32_t to)
{
    if (to == 0 || (*cap > 0 && *cap <= to))
        return false;
    *cap = to;
    return true;
}

bool remedy_cap(struct remedy_memory *m, uint32_t seqs, uint32_t tokens, uint64_t wall_us)
{
    bool fewer = lower_to(&m->caps.seqs, seqs), smaller = lower_to(&m->caps.tokens, tokens);
    if (fewer || smaller)
        m->until_us = wall_us + (uint64_t)(REMEDY_KEEP_S * 1e6);
    return fewer || smaller;
}

bool remedy_expire(struct remedy_memory *m, uint64_t wall_us)
{
    const uint64_t keep_us = (uint64_t)(REMEDY_KEEP_S * 1e6);
    for (int i = 0; i < CRASH_COUNT; i++) {
        if (m->tried[i].wall_us > wall_us)
            m->tried[i].wall_us = wall_us; /* the clock went back: no longer than a day from now */
        if (m->tried[i].steps && wall_us - m->tried[i].wall_us >= keep_us) {
            m->tried[i].steps = 0;
            m->tried[i].wall_us = 0;
        }
    }
    if (m->until_us > wall_us + keep_us)
        m->until_us = wall_us + keep_us;
    if (m->until_us == 0 || wall_us < m->until_us)
        return false;
    m->until_us = 0;
    m->caps = (struct remedy_settings){0};
    return true;
}

/* Flags */

/* Whether argv[i] is this flag; *ret_value is its value, in the same or the next word. */
static bool is_flag(char *const *argv, size_t i, const char *flag, const char **ret_value)
{
    if (!ek_opt_is(argv[i], flag, ret_value))
        return false;
    if (!*ret_value)
        *ret_value = argv[i + 1];
    return *ret_value != NULL;
}

/* The last one counts, as in the servers. */
static double remedy_number_of(char *const *argv, const char *flag)
{
    double found = 0;
    for (size_t i = 0; flag && argv[i]; i++) {
        const char *text;
        double v;
        if (is_flag(argv, i, flag, &text) && ek_opt_count(text, &v) && v > 0 && v < 1e9)
            found = v;
    }
    return found;
}

void remedy_read(const struct dialect *d, char *const *argv, const struct remedy_settings *file,
                 struct remedy_settings *ret_settings)
{
    struct remedy_settings has = {
        .tokens = (uint32_t)remedy_number_of(argv, d->tokens_flag),
        .seqs = (uint32_t)remedy_number_of(argv, d->seqs_flag),
        .share = remedy_number_of(argv, d->share_flag),
        .swap_gib = remedy_number_of(argv, d->swap_flag),
    };
    has.tokens = has.tokens ? has.tokens : file->tokens;
    has.seqs = has.seqs ? has.seqs : file->seqs;
    has.share = has.share > 0 ? has.share : file->share;
    has.swap_gib = has.swap_gib > 0 ? has.swap_gib : file->swap_gib;
    *ret_settings = has;
}

void remedy_free(char **argv)
{
    for (size_t i = 0; argv && argv[i]; i++)
        free(argv[i]);
    free(argv);
}

static bool cap_text(const struct remedy_settings *caps, enum setting s, char *text, size_t size)
{
    switch (s) {
    case SET_TOKENS: (void)snprintf(text, size, "%u", caps->tokens); return caps->tokens > 0;
    case SET_SEQS: (void)snprintf(text, size, "%u", caps->seqs); return caps->seqs > 0;
    case SET_SHARE: (void)snprintf(text, size, "%.2f", caps->share); return caps->share > 0;
    case SET_SWAP:
        (void)snprintf(text, size, "%.3g", caps->swap_gib);
        return caps->swap_gib > 0 || caps->no_swap;
    case SETTINGS: break;
    }
    return false;
}

static double remedy_number_in(const struct remedy_settings *has, enum setting s)
{
    switch (s) {
    case SET_TOKENS: return has->tokens;
    case SET_SEQS: return has->seqs;
    case SET_SHARE: return has->share;
    case SET_SWAP: return has->swap_gib;
    case SETTINGS: break;
    }
    return 0;
}

/* The operator may have written a lower value since: a cap is the most, not the value. (A share may
 * be capped upwards, which is what the step was.) */
static bool in_force(const struct dialect *d, const struct remedy_settings *has,
                     const struct remedy_settings *caps, enum setting s, char *text, size_t size)
{
    if (!flag_of(d, s) || !cap_text(caps, s, text, size))
        return false;
    double from = remedy_number_in(has, s);
    return s == SET_SHARE || !(from > 0) || from > remedy_number_in(caps, s);
}

int remedy_argv(const struct dialect *d, char *const *argv, const struct remedy_settings *has,
                const struct remedy_settings *caps, char ***ret_argv)
{
    size_t count = 0, n = 0;
    while (argv[count])
        count++;
    char **out = calloc(count + 2 * SETTINGS + 1, sizeof(*out));
    if (!out)
        return -ENOMEM;
    for (; n < count; n++) {
        if (!(out[n] = strdup(argv[n])))
            goto failed;
    }
    for (int s = 0; s < SETTINGS; s++) { /* behind the others: the last of a flag counts */
        char text[32];
        if (!in_force(d, has, caps, (enum setting)s, text, sizeof(text)))
            continue;
        if (!(out[n++] = strdup(flag_of(d, (enum setting)s))) || !(out[n++] = strdup(text)))
            goto failed;
    }
    *ret_argv = out;
    return 0;
failed:
    remedy_free(out);
    return -ENOMEM;
}

bool remedy_text(const struct dialect *d, const struct remedy_settings *has,
                 const struct remedy_settings *caps, char *text, size_t size)
{
    size_t at = 0;
    text[0] = '\0';
    for (int s = 0; s < SETTINGS && at < size; s++) {
        char to[32], was[40] = "";
        if (!in_force(d, has, caps, (enum setting)s, to, sizeof(to)))
            continue;
        double from = remedy_number_in(has, (enum setting)s);
        if (from > 0)
            (void)snprintf(was, sizeof(was), " instead of %.6g", from);
        int n = snprintf(text + at, size - at, "%s%s %s%s", at ? ", " : "",
                         flag_of(d, (enum setting)s), to, was);
        at += n > 0 ? (size_t)n : 0;
    }
    if (caps->expandable && d->torch && at < size)
        (void)snprintf(text + at, size - at, "%sPYTORCH_CUDA_ALLOC_CONF=expandable_segments:True",
                       at ? ", " : "");
    return text[0] != '\0';
}
