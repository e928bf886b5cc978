/*
 * What an evenkeeld knows of the time before it: reads the incident log (io/incidents.h) and the
 * charts, gives the servers their last decisions, failures and counts, and says what happened while
 * none was running: for how long that was, and a server's process that ended meanwhile. Also what
 * it leaves to the next one.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

struct decision;
struct ek_buf;
struct failure;
struct server;
struct services;

/* For servers that have not begun: fills them. `begins`: so does evenkeeld, else they are new by a
 * reload. What cannot be read is said in the log. */
void past_load(const struct services *with, struct server *const *servers, uint32_t count,
               bool begins);
/* Decisions of one server that it does not hold any more. Plain data, for any thread. */
struct past_query {
    char server[64], dir[512];
    uint64_t from_us, before_us; /* wall clock */
    uint32_t most;               /* the newest of them */
};
/* Those since then; false when there can be none. */
bool past_ask(const struct server *s, uint64_t since_us, uint32_t most, struct past_query *ret_q);
/* Reads the incident log, up to twice INCIDENTS_BYTES, which takes its time: newest first, as a
 * JSON list that is open; `comma` goes before the first. 0 or a negative errno. */
int past_decisions(const struct past_query *q, const char *comma, struct ek_buf *out);

/* An evenkeeld begins or ends: "begin", "stop", "hand over". */
void past_watch(const struct services *with, const char *what);
void past_decision(const struct server *s, const struct decision *d);
void past_failure(const struct server *s, const struct failure *f);
/* Its process runs; or has ended, which was seen. */
void past_runs(const struct server *s);
void past_ended(struct server *s);
/* One more start after the first. */
void past_restarted(const struct server *s);

/* Says that the process which the evenkeeld before had is gone, unless it is the present one, still
 * there, or its end was told from what that evenkeeld wrote last (life.c): it ended with the
 * machine, or another was started from outside. When one is started or adopted, before that is
 * said.
 */
void past_settle(struct server *s);
/* Starts after the first one, of evenkeelds before this, too. */
uint64_t past_restarts(const struct server *s);
