/*
 * The way by which a server tells that its engine's process was lost and hears what follows
 * (server/net/losses.h): a pair of Unix sockets that keep messages apart, of which the server is
 * given one end over its control socket. A server that does not know of it refuses, and nothing is
 * asked of it again.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#include "supervisor/law/engine_end.h"

struct loss_line;

typedef void (*loss_line_fn)(void *ctx, const struct engine_end *loss);

/* 0: cb is called from the loop for each loss, until loss_line_close(). A negative errno. */
int loss_line_open(sd_event *event, const char *control_socket, loss_line_fn cb, void *ctx,
                   struct loss_line **ret_line);
void loss_line_close(struct loss_line *l); /* accepts NULL */
/* 0, or a negative errno when the server will not read it. `lowers`: with its limits. */
int loss_line_answer(struct loss_line *l, const struct engine_end *loss,
                     const struct engine_answer *a, bool lowers);

/* What a server may tell: each loss costs a line of the journal and a write of the state, and the
 * loop serves others, too. More than that is no way in which engines are lost. */
#define LOSS_LINE_MOST      32u
#define LOSS_LINE_WINDOW_US (600u * 1000000ull)
struct loss_rate {
    uint64_t number; /* of the last one that counted */
    uint64_t since_us;
    unsigned count; /* messages since then */
};
/* A message came. False when it is one too many: it is not heard any more. */
bool loss_rate_count(struct loss_rate *r, uint64_t now_us);
/* Whether the loss of this number is a new one: numbers rise. */
bool loss_rate_is_new(struct loss_rate *r, uint64_t number);

/* One message. 0 or -EBADMSG; for its test. */
int loss_line_parse(const char *text, size_t len, struct engine_end *ret_loss);
