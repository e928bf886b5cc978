/*
 * HAProxy's agent-check, answered: each connection gets one line that says how the server is, and
 * how many connections it may have. So what an engine cannot do while it runs is done in front of
 * it: a limit becomes HAProxy's maxconn, and a drain is known there before the server refuses
 * anything. Owned by the loop's thread.
 */
#pragma once

#include <stddef.h>
#include <systemd/sd-event.h>

struct edge;

/* Writes the line, with its newline. */
typedef void (*edge_line_fn)(void *ctx, char *line, size_t size);

/* Listens on address and port. 0 or a negative errno. */
int edge_new(sd_event *event, const char *address, unsigned port, edge_line_fn fn, void *ctx,
             struct edge **ret_edge);
void edge_free(struct edge *e); /* NULL is fine */
