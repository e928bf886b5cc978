/*
 * Keeps what is known of a server's end for evenkeelctl postmortem: its flight recorder's file is
 * opened at once, before the next process makes its own; reading it and writing the document
 * (law/postmortem.h, io/ends.h) is done in a thread.
 */
#pragma once

#include <stdbool.h>

struct crash_verdict;
struct ek_buf;
struct server;

/* While the process that ended is still known. `unseen`: it ended while no evenkeeld ran. */
void postmortem_keep(struct server *s, const struct crash_verdict *v, bool starting, bool unseen);

/* Which end of which server; plain data, for any thread. */
struct postmortem_ask {
    char server[64], dir[512];
    unsigned end; /* 1 = the newest */
};
/* Appends {"ends":[{"at_s","class"}...],"end":the document or null}. 0 or a negative errno. */
int postmortem_read(const struct postmortem_ask *q, struct ek_buf *out);
