/*
 * The way by which a server tells that its engine's process was lost and hears what follows
 * (server/net/losses.h): a pair of Unix sockets that keep messages apart, of which the server is
 * given one end over its control socket. A server that does not know of it refuses, and nothing is
 * asked of it again.
 */
#pragma once

#include <stddef.h>
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

/* One message. 0 or -EBADMSG; for its test. */
int loss_line_parse(const char *text, size_t len, struct engine_end *ret_loss);
