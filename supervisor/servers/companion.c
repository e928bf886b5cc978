/*
 * A vLLM whose start ended because of the companion: a version without one of our flags, or without
 * what our package uses at its start. Then it serves as it is, which is less, and evenkeeld says
 * so. Until evenkeeld ends: trying again would cost a start, which may take minutes.
 */
#include <string.h>
#include <unistd.h>

#include "supervisor/config/options.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/control.h"
#include "supervisor/io/reject_listener.h"
#include "supervisor/servers/server_inside.h"

static bool companion_says(const char *line, size_t len, const char *what)
{
    return memmem(line, len, what, strlen(what)) != NULL;
}

bool companion_blamed(const char *log, size_t len)
{
    for (const char *at = log, *end = log + len; at < end;) {
        const char *eol = memchr(at, '\n', (size_t)(end - at));
        size_t n = (size_t)((eol ? eol : end) - at);
        if (companion_says(at, n, "evenkeel_vllm") &&
            (companion_says(at, n, "unrecognized arguments") ||
             companion_says(at, n, "No module named") ||
             companion_says(at, n, "evenkeel_vllm: the companion is off") ||
             companion_says(at, n, "evenkeel_vllm: the API server's part is off") ||
             (companion_says(at, n, "File \"") && companion_says(at, n, "evenkeel_vllm/"))))
            return true;
        at += n + 1;
    }
    return false;
}

const struct server_config *companion_plain(struct server *s, const struct server_config *config)
{
    if (!s->companion.gone || !config->dialect->companion)
        return config;
    s->companion.plain = *config;
    s->companion.plain.dialect = dialect_find(config->engine);
    s->companion.plain.argv = config->plain_argv;
    s->companion.plain.env.count = config->plain_env;
    return &s->companion.plain;
}

void companion_drop(struct server *s)
{
    s->companion.gone = true;
    s->config = companion_plain(s, s->config);
    reject_listener_free(s->socket.rejects);
    s->socket.rejects = NULL;
    if (s->socket.fd >= 0) {
        close(s->socket.fd);
        s->socket.fd = -1;
        s->with->keep_fd(s->with->ctx, s->config->name, -1);
    }
    control_free(s->act.control);
    s->act.control = NULL;
    server_answer_operator(s);
    s->address.control_path[0] = '\0';
    s->act.limits = (struct control_limits){0};
    s->act.limits_known = false;
    server_set_urls(s);
    watch_point(s);
    server_note(s, ACT_NOTE, REASON_CRASH,
                "Its companion ended the start: vLLM runs as it is from now on, without live "
                "limits; its log says why, and companion: off saves the attempt");
}
