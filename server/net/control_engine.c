/*
 * The control socket's routes for an engine in a process of its own. Called through the table of
 * routes.
 */
#include <errno.h>
#include <stdio.h>

#include "common/err.h"
#include "common/log.h"
#include "server/api/openai.h"
#include "server/net/answer.h"
#include "server/net/control.h"
#include "server/net/request.h"
#include "server/net/state.h"

int control_engine(struct exchange *x, struct answer *a)
{
    static const char *const states[] = {"running", "starting", "released"};
    struct engine_stats s;

    engine_stats(http_served(x->http)->engine, &s);
    (void)ek_buf_printf(&a->body,
                        "{\"process\":%s,\"state\":\"%s\",\"away_s\":%.3f,\"waiting\":%u,"
                        "\"restarts\":{\"planned\":%llu,\"fault\":%llu,\"ended\":%llu,"
                        "\"hang\":%llu,\"oom\":%llu,\"device\":%llu}}",
                        s.replaceable ? "true" : "false", states[s.device], (double)s.away_us / 1e6,
                        s.waiting, (unsigned long long)s.revivals.planned,
                        (unsigned long long)s.revivals.lost[ENGINE_LOST_FAULT],
                        (unsigned long long)s.revivals.lost[ENGINE_LOST_ENDED],
                        (unsigned long long)s.revivals.lost[ENGINE_LOST_HANG],
                        (unsigned long long)s.revivals.lost[ENGINE_LOST_OOM],
                        (unsigned long long)s.revivals.lost[ENGINE_LOST_DEVICE]);
    return 0;
}

static int order_engine(struct exchange *x, struct answer *a, enum engine_order order,
                        const char *word)
{
    struct ek_fault fault = {0};
    char text[sizeof(fault.msg) + 80];
    int r = engine_device_order(http_served(x->http)->engine, order, &fault);

    if (r == -ENOTSUP)
        answer_fault(a, 409, "",
                     "This server computes in its own process: --engine-process gives the engine "
                     "one that can be ended and started.");
    if (r == -ESHUTDOWN)
        answer_fault(a, 503, "", "The server is shutting down.");
    if (r < 0 && r != -ENOTSUP && r != -ESHUTDOWN) {
        (void)snprintf(text, sizeof(text),
                       "There would be no engine after a restart, so this one goes on: %s",
                       fault.msg);
        answer_fault(a, 503, "", text);
    }
    if (r < 0)
        return 0;
    ek_log(EK_LOG_NOTICE, "The engine's process: %s, asked for on the control socket", word);
    a->status = 202; /* after the steps in flight; GET tells how far it is */
    return control_engine(x, a);
}

int control_engine_restart(struct exchange *x, struct answer *a)
{
    return order_engine(x, a, ENGINE_RESTART, "restart");
}

int control_engine_release(struct exchange *x, struct answer *a)
{
    return order_engine(x, a, ENGINE_RELEASE, "release");
}

int control_engine_acquire(struct exchange *x, struct answer *a)
{
    return order_engine(x, a, ENGINE_ACQUIRE, "acquire");
}
