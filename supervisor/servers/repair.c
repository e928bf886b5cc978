/*
 * What the next start has other than the last, after memory ran out: the next step of the class's
 * ladder (remedy.h), counted from what ran and looked at before it is taken. An evenkeel-server
 * says its plan itself, in a process of its own and a moment: once for what ran, where a flag that
 * is not there has a default that only the server knows, and once for each step. Of others the
 * flags are known, what they said when they started or were ready, and last their engine's defaults
 * (dialect.h).
 *
 * While it asks, the server is in backoff; any other start ends the question.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/state.h"
#include "supervisor/io/subprocess.h"
#include "supervisor/law/dry_answer.h"
#include "supervisor/law/engine_said.h"
#include "supervisor/servers/command_line.h"
#include "supervisor/servers/server_inside.h"

#define LOG_MOST (1u << 20)
#define PLAN_MS  20000u
#define ALL_S    60.0 /* for all questions; then it starts as it is */

struct repair {
    struct crash_verdict verdict;
    struct failure failure;
    struct remedy_case c;
    struct remedy_facts before;
    struct remedy_plan plan;
    bool tried;             /* a step of this class, before */
    struct subprocess *ask; /* NULL = none runs */
};

static struct remedy_memory *memory_of(const struct server *s)
{
    struct state_server *row = state_of(s->with->state, s->config->name);
    return row ? &row->remedy : NULL;
}

void repair_listen(struct server *s)
{
    struct ek_buf log = {0};
    struct remedy_settings said = {0};
    if (s->config->dialect->torch && s->process.log.path[0] &&
        logtail_read(&s->process.log, LOG_MOST, &log) == 0 && log.len)
        engine_said(log.data, log.len, &said);
    ek_buf_done(&log);
    s->repair.said.tokens =
        said.tokens ? said.tokens : s->repair.said.tokens; /* the start may be cut off by now */
    s->repair.said.seqs = said.seqs ? said.seqs : s->repair.said.seqs;
}

/* What it was started with. `said` is the server's own word, the last ceilings its word when it was
 * ready. What was not said stays unknown and is not lowered: a number that is only assumed may lie
 * above the one that failed. */
static struct remedy_settings settings_of(const struct server *s, const struct remedy_facts *said)
{
    const struct dialect *d = s->config->dialect;
    struct remedy_settings now = s->repair.running, plans = said->plans;
    if (said->known && said->fits) {
        now.tokens = plans.tokens ? plans.tokens : now.tokens;
        now.seqs = plans.seqs ? plans.seqs : now.seqs;
        now.share = plans.share > 0 ? plans.share : now.share;
        now.swap_gib = plans.swap_gib > 0 ? plans.swap_gib : now.swap_gib;
    }
    if (!now.tokens)
        now.tokens = s->act.limits.knob[KNOB_TOKENS].ceiling;
    if (!now.seqs)
        now.seqs = s->act.limits.knob[KNOB_SEQS].ceiling;
    now.tokens = now.tokens ? now.tokens : s->repair.said.tokens;
    now.seqs = now.seqs ? now.seqs : s->repair.said.seqs;
    now.share = now.share > 0 ? now.share : d->share_default; /* the same on every device */
    return now;
}

static void repair_finish(struct server *s)
{
    struct repair *r = s->repair.ask;
    s->repair.ask = NULL;
    ended_restart(s, &r->verdict, &r->plan, &r->failure);
    free(r);
}

/* The step that was found is taken, if this server may be changed; without one, none was left. */
static void repair_settle(struct server *s)
{
    struct repair *r = s->repair.ask;
    struct remedy_memory *m = memory_of(s);
    enum crash_class cls = r->verdict.cls;
    bool may = s->config->policy.mode == MODE_ACT;
    if (r->plan.found && may && m) {
        remedy_take(m, &r->c, &r->plan);
        s->ends.remedies[cls][r->plan.step]++;
        server_save(s);
        s->ends.backoff.start_failures = 0; /* the next start is another one */
        r->verdict.retry = true;
    } else if (r->plan.found) {
        struct decision d = {.kind = ACT_NOTE, .reason = REASON_REMEDY};
        (void)snprintf(d.why, sizeof(d.why), "%s: in mode act it would now start with %s",
                       crash_name(cls), r->plan.why);
        server_record(s, &d);
        r->plan = (struct remedy_plan){.found = false};
    } else if (may) {
        s->ends.remedies[cls][REMEDY_STEPS]++;
        if (r->tried && cls == CRASH_STARTUP_OOM)
            r->verdict.retry = false; /* every step was tried: the same again will fail again */
    }
    repair_finish(s);
}

/* Asks for the plan with these caps; false when no program can be asked, and `fn` does not follow.
 */
static bool ask_plan(struct server *s, const struct remedy_settings *caps, subprocess_fn fn)
{
    static char dry[] = "--dry-run", json[] = "--json", *flags[] = {dry, json, NULL};
    struct command_line words;
    if (s->unit.unit || !s->config->dialect->exit_word ||
        command_line_make(s->config, &s->repair.trial, caps, &words) < 0)
        return false;
    struct subprocess_spec spec = {
        .argv = words.argv, .flags = flags, .env = words.env, .timeout_ms = PLAN_MS};
    bool asked =
        dry_answer_can(words.argv) && subprocess_run(s->with->subprocesses, s->with->event, &spec,
                                                     fn, s, &s->repair.ask->ask) == 0;
    command_line_done(&words);
    return asked;
}

static void on_step(void *ctx, const struct subprocess_result *res);

/* The next step that has a chance, or none. */
static void repair_choose(struct server *s)
{
    struct repair *r = s->repair.ask;
    struct remedy_memory *m = memory_of(s);
    r->plan = (struct remedy_plan){.found = false};
    if (m)
        r->plan = remedy_next(m, &r->c);
    bool flags = r->plan.found && !(r->plan.wait_s > 0); /* else only a wait */
    if (!flags || !ask_plan(s, &r->plan.caps, on_step))
        repair_settle(s);
}

static void on_step(void *ctx, const struct subprocess_result *res)
{
    struct server *s = ctx;
    struct repair *r = s->repair.ask;
    struct remedy_memory *m = memory_of(s);
    struct remedy_facts with;
    char why[120];
    r->ask = NULL;
    dry_answer_plan(res->status, res->text, res->len, &with);
    if (!m || remedy_fits(&r->c, &r->before, &with, why, sizeof(why))) {
        repair_settle(s);
        return;
    }
    server_note(s, ACT_NOTE, REASON_REMEDY, "%s: not with %.120s: %s", crash_name(r->c.cls),
                r->plan.why, why);
    remedy_pass(m, &r->c, &r->plan);
    repair_choose(s);
}

static void begin_with(struct server *s, const struct remedy_facts *said)
{
    s->repair.ask->before = *said;
    s->repair.ask->c.now = settings_of(s, said);
    repair_choose(s);
}

static void on_before(void *ctx, const struct subprocess_result *res)
{
    struct server *s = ctx;
    struct remedy_facts said;
    s->repair.ask->ask = NULL;
    dry_answer_plan(res->status, res->text, res->len, &said);
    begin_with(s, &said);
}

/* Flags that a remedy lowered and whose plan does not fit now: its own have their turn again. */
static bool give_up_caps(struct server *s, struct crash_verdict *v)
{
    struct remedy_memory *m = memory_of(s);
    bool no_room = v->cls == CRASH_STARTUP_OOM && !v->retry;
    if (!no_room || !m || !m->until_us || s->config->policy.mode != MODE_ACT)
        return false;
    remedy_forget(m);
    server_save(s);
    server_note(s, ACT_NOTE, REASON_REMEDY,
                "What running out of memory taught does not fit either, and is forgotten: its own "
                "flags again");
    return v->retry = true;
}

void repair_begin(struct server *s, const struct crash_verdict *v, const struct failure *failure)
{
    struct remedy_memory *m = memory_of(s);
    struct crash_verdict verdict = *v;
    struct failure failed = *failure;
    struct remedy_plan none = {.found = false};
    struct remedy_settings caps = {0};
    repair_stop(s, "another end followed");
    ended_say(s, v, failure);
    bool forgot = give_up_caps(s, &verdict);
    s->repair.ask = m && remedy_exists(v->cls) && verdict.retry && !forgot
                        ? calloc(1, sizeof(*s->repair.ask))
                        : NULL;
    if (!s->repair.ask) { /* no ladder, no cure by it, or no memory for one */
        ended_restart(s, &verdict, &none, &failed);
        return;
    }
    struct repair *r = s->repair.ask;
    r->verdict = verdict;
    r->failure = failed;
    r->c = (struct remedy_case){
        .cls = v->cls,
        .numbers = v->numbers,
        .dialect = s->config->dialect,
        .tokens_min = (uint32_t)s->config->tokens_min,
        .seqs_min = (uint32_t)s->config->seqs_min,
        .soon = s->ends.soon && (s->config->device_set || !s->config->dialect->exit_word),
        .wall_us = ek_wall_us(),
    };
    (void)remedy_expire(m, r->c.wall_us);
    r->tried = m->tried[v->cls].steps != 0;
    if (s->config->policy.mode == MODE_ACT)
        caps = m->caps;
    s->state = SRV_BACKOFF;
    server_arm(s, ALL_S);
    repair_listen(s); /* it may never have been ready */
    struct remedy_facts nothing = {0};
    if (!ask_plan(s, &caps, on_before))
        begin_with(s, &nothing);
}

void repair_stop(struct server *s, const char *next)
{
    struct repair *r = s->repair.ask;
    if (!r)
        return;
    s->repair.ask = NULL;
    subprocess_cancel(r->ask);
    (void)snprintf(r->failure.next, sizeof(r->failure.next), "%s", next);
    ended_keep(s, &r->failure);
    free(r);
}

double repair_learned(const struct server *s, char *text, size_t size)
{
    const struct state_server *row = state_find(s->with->state, s->config->name);
    uint64_t now = ek_wall_us();
    struct remedy_settings has;
    if (!row || !s->config->argv || row->remedy.until_us <= now ||
        s->config->policy.mode != MODE_ACT)
        return 0;
    remedy_read(s->config->dialect, s->config->argv, &s->repair.in_file, &has);
    if (!remedy_text(s->config->dialect, &has, &row->remedy.caps, text, size))
        return 0;
    return (double)(row->remedy.until_us - now) / 1e6;
}

void repair_say(struct server *s)
{
    char text[REPAIR_TEXT];
    double left_s = repair_learned(s, text, sizeof(text));
    if (left_s > 0)
        server_note(s, ACT_NOTE, REASON_REMEDY,
                    "It has %.130s, learned before this evenkeeld, for %.1f h more; evenkeelctl "
                    "remedies forget ends that",
                    text, left_s / 3600);
}

int server_forget(struct server *s, char *text, size_t size)
{
    struct remedy_memory *m = memory_of(s);
    char had[REPAIR_TEXT];
    double left_s = repair_learned(s, had, sizeof(had));
    if (!m) {
        (void)snprintf(text, size, "out of memory");
        return -ENOMEM;
    }
    remedy_forget(m);
    server_save(s);
    s->act.limits_us = 0; /* what serves is not held below it any more, either */
    if (left_s > 0)
        server_note(s, ACT_NOTE, REASON_OPERATOR,
                    "Operator%s: forget %.110s; the next start has its own flags", server_asker(s),
                    had);
    return 0;
}
