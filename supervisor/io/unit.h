/*
 * A systemd unit over D-Bus, for servers that systemd starts: what it is doing, start, stop, kill.
 * The connection is one for all units, made when first needed and again after it broke; nothing
 * here waits for an answer. evenkeeld alone decides when a server runs, so the unit has Restart=no.
 *
 * Errors: -EHOSTUNREACH when systemd cannot be asked now (try again later), -EPERM when it refuses
 * (an operator has to change something: no such unit, not allowed). Both come with a sentence.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>
#include <systemd/sd-event.h>

struct unit;
struct units;

struct unit_facts {
    bool loaded;      /* systemd knows the unit's file */
    char active[16];  /* ActiveState: "inactive", "active", "deactivating", "failed", ... */
    char restart[16]; /* Restart= */
    char user[64];    /* User=, "" = none */
    int dynamic_user; /* DynamicUser= */
    char result[24];  /* of the last run: "success", "exit-code", "oom-kill", ... */
    pid_t main_pid;   /* 0 = none runs */
    pid_t last_pid;   /* whose end code and status tell */
    int code, status; /* CLD_EXITED, ... and the status or signal; code 0 = it has not ended */
};

/* facts of unit_ask() without an error, else NULL; text of an error, else "". */
typedef void (*unit_fn)(void *ctx, int error, const struct unit_facts *facts, const char *text);

int units_new(sd_event *event, struct units **ret_units);
void units_free(struct units *us); /* after its units */

/* changed is called when systemd says that something about the unit changed. */
int unit_new(struct units *us, const char *name, void (*changed)(void *ctx), void *ctx,
             struct unit **ret_unit);
void unit_free(struct unit *u); /* cancels, without callbacks */

/* cb is called once, perhaps before this returns. One at a time: a second one replaces the first,
 * whose cb is not called. A kill is apart. */
void unit_ask(struct unit *u, unit_fn cb, void *ctx);
void unit_start(struct unit *u, unit_fn cb, void *ctx);
void unit_stop(struct unit *u);
/* To its main process, or with `all` to each process of the unit. */
void unit_kill(struct unit *u, bool all, int sig, unit_fn cb, void *ctx);
bool unit_is_busy(const struct unit *u); /* an answer is awaited */

/* One word of the list EVENKEEL_ARGS, and one line NAME="value", as an EnvironmentFile= has them.
 * -EBADMSG when a text has characters that such a file cannot carry. */
struct ek_buf;
int unit_put_word(struct ek_buf *out, const char *word);
int unit_put_line(struct ek_buf *out, const char *name, const char *value);
