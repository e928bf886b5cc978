/*
 * evenkeeld's end of the socket pair on which an evenkeel-server reports that its engine process
 * has ended; servers/engine_lost.c owns it and answers with lower limits. The messages are JSON
 * from a process that is not trusted with more: each is parsed with bounds, counted against a rate,
 * and one whose number was seen is dropped.
 */
#include "supervisor/io/loss_line.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "supervisor/io/handoff.h"

#define MESSAGE_MOST 4096u
#define HAND_MS      2000u

struct loss_line {
    int fd, theirs; /* theirs: until the server has it */
    sd_event_source *io;
    struct handoff *handoff;
    struct loss_rate rate;
    loss_line_fn cb;
    void *ctx;
};

bool loss_rate_count(struct loss_rate *r, uint64_t now_us)
{
    if (r->count == 0 || now_us - r->since_us >= LOSS_LINE_WINDOW_US) {
        r->since_us = now_us;
        r->count = 0;
    }
    return r->count++ < LOSS_LINE_MOST;
}

bool loss_rate_is_new(struct loss_rate *r, uint64_t number)
{
    if (number <= r->number)
        return false;
    r->number = number;
    return true;
}

void loss_line_close(struct loss_line *l)
{
    if (!l)
        return;
    handoff_cancel(l->handoff);
    sd_event_source_disable_unref(l->io);
    if (l->fd >= 0)
        close(l->fd);
    if (l->theirs >= 0)
        close(l->theirs);
    free(l);
}

static uint64_t loss_whole(const json_t *root, const char *name, uint64_t most)
{
    json_int_t v = json_integer_value(json_object_get(root, name));
    return v > 0 && (uint64_t)v <= most ? (uint64_t)v : 0;
}

int loss_line_parse(const char *text, size_t len, struct engine_end *ret_loss)
{
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    const char *why = json_string_value(json_object_get(root, "why"));
    double served_s = json_number_value(json_object_get(root, "served_s"));
    struct engine_end l = {
        .number = loss_whole(root, "loss", INT64_MAX),
        .ended = json_is_true(json_object_get(root, "ended")),
        .signal = (int)loss_whole(root, "signal", 128),
        .status = (int)loss_whole(root, "status", 255),
        .exit_code = (int)loss_whole(root, "exit_code", 255),
        .oom_kills = loss_whole(root, "oom_kills", INT64_MAX),
        .running = (uint32_t)loss_whole(root, "running", UINT32_MAX),
        .steps = loss_whole(root, "steps", INT64_MAX),
        .served_s = served_s > 0 && served_s < 1e10 ? served_s : 0,
        .tokens = (uint32_t)loss_whole(root, "max_num_batched_tokens", UINT32_MAX),
        .seqs = (uint32_t)loss_whole(root, "max_num_running_seqs", UINT32_MAX),
        .swap_bytes = loss_whole(root, "swap_bytes", INT64_MAX),
    };
    uint64_t at_us = loss_whole(root, "at_us", INT64_MAX / 2);
    l.until_us = at_us ? at_us + loss_whole(root, "wait_us", INT64_MAX / 2) : 0;
    (void)snprintf(l.why, sizeof(l.why), "%s", why ? why : "");
    json_decref(root);
    if (l.number == 0)
        return -EBADMSG;
    *ret_loss = l;
    return 0;
}

/* The server goes on by a rule of its own. */
static int hear_no_more(struct loss_line *l)
{
    ek_log(EK_LOG_WARNING,
           "a server told of more than %u lost engines in %llu minutes: it is not heard any more "
           "until it is ready again, and goes on by a rule of its own",
           LOSS_LINE_MOST, LOSS_LINE_WINDOW_US / 60000000);
    l->io = sd_event_source_disable_unref(l->io);
    close(l->fd);
    l->fd = -1;
    return 0;
}

static int on_message(sd_event_source *source, int fd, uint32_t revents, void *ctx)
{
    struct loss_line *l = ctx;
    char text[MESSAGE_MOST];
    struct engine_end loss;
    (void)revents;
    ssize_t n = recv(fd, text, sizeof(text), MSG_DONTWAIT);
    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) /* it ended, or has another one's */
        return sd_event_source_set_enabled(source, SD_EVENT_OFF);
    if (!loss_rate_count(&l->rate, ek_now_us()))
        return hear_no_more(l);
    if (loss_line_parse(text, (size_t)n, &loss) == 0 && loss_rate_is_new(&l->rate, loss.number))
        l->cb(l->ctx, &loss);
    return 0;
}

static void on_handed(void *ctx, const struct handoff_result *res)
{
    struct loss_line *l = ctx;
    l->handoff = NULL;
    close(l->theirs);
    l->theirs = -1;
    if (res->error < 0)
        ek_log(EK_LOG_DEBUG, "the server will not tell of its engine's ends: %s", res->text);
}

int loss_line_open(sd_event *event, const char *control_socket, loss_line_fn cb, void *ctx,
                   struct loss_line **ret_line)
{
    int ends[2], r = -ENOMEM;
    struct loss_line *l = calloc(1, sizeof(*l));
    if (!l)
        return r;
    *l = (struct loss_line){.fd = -1, .theirs = -1, .cb = cb, .ctx = ctx};
    if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) < 0) {
        r = -errno;
        goto out;
    }
    l->fd = ends[0];
    l->theirs = ends[1];
    r = sd_event_add_io(event, &l->io, l->fd, EPOLLIN, on_message, l);
    if (r < 0)
        goto out;
    struct handoff_ask ask = {.path = control_socket,
                              .verb = HANDOFF_PUT,
                              .name = "losses",
                              .fd = l->theirs,
                              .timeout_ms = HAND_MS};
    r = handoff_start(event, &ask, on_handed, l, &l->handoff);
    if (r < 0)
        goto out;
    *ret_line = l;
    l = NULL;
    r = 0;
out:
    loss_line_close(l);
    return r;
}

int loss_line_answer(struct loss_line *l, const struct engine_end *loss,
                     const struct engine_answer *a, bool lowers)
{
    struct ek_buf out = {0};
    (void)ek_buf_printf(&out, "{\"loss\":%llu,\"class\":\"%s\",\"why\":\"",
                        (unsigned long long)loss->number, crash_name(a->verdict.cls));
    (void)ek_buf_json(&out, a->verdict.why, strlen(a->verdict.why));
    (void)ek_buf_puts(&out, "\"");
    if (lowers && a->tokens)
        (void)ek_buf_printf(&out, ",\"max_num_batched_tokens\":%u", a->tokens);
    if (lowers && a->seqs)
        (void)ek_buf_printf(&out, ",\"max_num_running_seqs\":%u", a->seqs);
    if (lowers && a->set_swap)
        (void)ek_buf_printf(&out, ",\"swap_bytes\":%llu", (unsigned long long)a->swap_bytes);
    (void)ek_buf_puts(&out, "}");
    int r = ek_buf_ok(&out) ? 0 : -ENOMEM;
    if (r == 0 && send(l->fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL) < 0)
        r = -errno;
    ek_buf_done(&out);
    return r;
}
