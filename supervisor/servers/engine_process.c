/*
 * A server whose engine is a process of its own (evenkeel-server --engine-process): that process is
 * ended and started without a drain, requests wait meanwhile and lose nothing.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/log.h"
#include "supervisor/servers/server_inside.h"

bool engine_process_known(const struct server *s)
{
    return s->control && s->sample.good && sample_has(&s->sample, SIG_ENGINE_RELEASED);
}

static void on_ordered(void *ctx, const struct control_result *res)
{
    struct server *s = ctx;
    if (res->error < 0)
        ek_log(EK_LOG_WARNING, "%s: its engine's process: %s", s->config->name, res->text);
}

int engine_process_order(struct server *s, const char *word)
{
    return control_engine(s->control, word, on_ordered, s);
}

int server_engine(struct server *s, const char *word, char *text, size_t size)
{
    if (s->state != SRV_READY) {
        (void)snprintf(text, size, "%s does not serve now: its engine is left alone",
                       s->config->name);
        return -EBUSY;
    }
    if (!engine_process_known(s)) {
        (void)snprintf(text, size,
                       "%s has no process of its own for the engine: start it with "
                       "--engine-process, or use restart",
                       s->config->name);
        return -EINVAL;
    }
    if (engine_process_order(s, word) < 0) {
        (void)snprintf(text, size, "out of memory");
        return -ENOMEM;
    }
    server_note(s, ACT_NOTE, REASON_OPERATOR, "Operator%s: %s of the engine's process, no drain",
                server_asker(s), word);
    return 0;
}
