/*
 * Names of the states, and life_go_on(): how a new evenkeeld goes on with a server, from what the
 * last one wrote and what is found now. servers/life.c gathers both and calls it at the start.
 * Where nothing that was written can be used, life_ask() judges a running process by its age alone.
 */
#include "supervisor/law/life.h"

#include <string.h>

static const char *const state_names[SERVER_STATES] = {
    [SRV_STOPPED] = "stopped",   [SRV_ADOPTING] = "adopting", [SRV_STARTING] = "starting",
    [SRV_READY] = "ready",       [SRV_DRAINING] = "draining", [SRV_DRAINED] = "drained",
    [SRV_STOPPING] = "stopping", [SRV_BACKOFF] = "backoff",   [SRV_BREAKER] = "breaker_open",
};

static const char *const want_names[SERVER_WANTS] = {
    [WANT_RUN] = "run",
    [WANT_DRAINED] = "drained",
    [WANT_RESTART] = "restart",
    [WANT_STOP] = "stop",
};

const char *life_state_name(enum server_state st)
{
    return (unsigned)st < SERVER_STATES ? state_names[st] : "";
}

const char *life_want_name(enum server_want w)
{
    return (unsigned)w < SERVER_WANTS ? want_names[w] : "";
}

enum server_state life_state_parse(const char *text)
{
    int i = 0;
    while (i < SERVER_STATES && (!text || strcmp(text, state_names[i]) != 0))
        i++;
    return (enum server_state)i;
}

enum server_want life_want_parse(const char *text)
{
    int i = 0;
    while (i < SERVER_WANTS && (!text || strcmp(text, want_names[i]) != 0))
        i++;
    return (enum server_want)i;
}

bool life_equal(const struct life *a, const struct life *b)
{
    return a->boot == b->boot && a->state == b->state && a->want == b->want && a->pid == b->pid &&
           a->until_us == b->until_us && a->ramp == b->ramp && a->planned == b->planned &&
           a->asked == b->asked && a->waits == b->waits && a->found == b->found &&
           a->loosened == b->loosened && strcmp(a->planned_name, b->planned_name) == 0;
}

static double at_least(double a, double b)
{
    return a > b ? a : b;
}

/* What is left until the deadline that was written: never more than a drain may take. */
static double left_s(const struct life *was, const struct life_found *found)
{
    if (!was->until_us)
        return found->drain_most_s;
    if (was->until_us <= found->now_us)
        return 0;
    double left = (double)(was->until_us - found->now_us) / 1e6;
    return left < found->drain_most_s ? left : found->drain_most_s;
}

/* Nothing is known of it but its age: older than a start may take, it was ready once. */
static struct life_next life_ask(const struct life_found *found, bool known)
{
    struct life_next n = {
        .step = LIFE_ASK, .state = SRV_STARTING, .want = WANT_RUN, .known = known};
    double left = found->start_deadline_s - found->age_s;
    if (!known && left <= 0) {
        n.step = LIFE_ASK_LONG;
        n.left_s = at_least(found->hang_s, LIFE_ANSWER_S);
    } else {
        n.left_s = at_least(left, LIFE_ANSWER_S);
    }
    return n;
}

static struct life_next of_running(const struct life *was, const struct life_found *found)
{
    /* An evenkeeld that is started runs its servers, though the last one was told to stop them.
     */
    enum server_want want = was->want == WANT_STOP ? WANT_RESTART : was->want;
    struct life_next n = {.known = true, .state = was->state, .want = want, .left_s = -1};
    switch (was->state) {
    case SRV_READY:
        n.step = LIFE_ASK_LONG;
        n.state = SRV_STARTING;
        n.want = WANT_RUN;
        n.left_s = at_least(found->hang_s, LIFE_ANSWER_S);
        return n;
    case SRV_DRAINING:
    case SRV_DRAINED:
        n.step = LIFE_DRAIN;
        if (want == WANT_RESTART && !was->found)
            n.left_s = left_s(was, found);
        if (want == WANT_RUN) /* an answer came in between: it serves */
            return life_ask(found, false);
        return n;
    case SRV_STOPPING:
        n.step = LIFE_END;
        n.left_s = left_s(was, found);
        return n;
    case SRV_STARTING: return life_ask(found, true);
    case SRV_ADOPTING:
    case SRV_STOPPED:
    case SRV_BACKOFF:
    case SRV_BREAKER:
    case SERVER_STATES: break;
    }
    return life_ask(found, false);
}

struct life_next life_go_on(const struct life *was, const struct life_found *found)
{
    bool same_boot = was->boot != 0 && was->boot == found->boot;
    if (found->pid && same_boot && was->pid == found->pid)
        return of_running(was, found);
    if (found->pid)
        return life_ask(found, false);
    struct life_next n = {.step = LIFE_START, .want = WANT_RUN, .known = same_boot};
    bool drained = same_boot && was->want == WANT_DRAINED;
    if (!drained)
        return n;
    n.step = LIFE_REST;
    n.state = SRV_STOPPED;
    n.want = WANT_DRAINED;
    return n;
}
