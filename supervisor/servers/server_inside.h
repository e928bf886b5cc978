/* What the files of struct server share; no other file includes this. */
#pragma once

#include "supervisor/io/client.h"
#include "supervisor/servers/server.h"

struct command_line;
struct failure;
struct crash_verdict;

/* Records, counts and journals one thing that happened. */
void server_note(struct server *s, enum action_kind kind, enum reason reason, const char *fmt, ...)
    __attribute__((format(printf, 4, 5)));
/* An end that is a failure or not, with the catalog's entry by which it was told. */
void server_note_end(struct server *s, enum reason reason, const struct crash_verdict *v,
                     const char *fmt, ...) __attribute__((format(printf, 4, 5)));
void server_record(struct server *s, struct decision *d);

/* The user that asked for what is being done, to stand behind "Operator": " (root)", or "". */
const char *server_asker(const struct server *s);

void server_launch(struct server *s);
/* Rotates its output when it is over the bound; a stat when it is not. */
void server_bound_log(struct server *s);
/* One shot of the state's timer, seconds from now; < 0 disarms. */
void server_arm(struct server *s, double seconds);
/* The next readiness probe, seconds from now. */
void server_arm_probe(struct server *s, double seconds);
void server_signal(struct server *s, int sig);
/* A GET that says ready or not; on_ready or nothing follows. */
void server_probe(struct server *s);

/* launch.c */
/* Somebody else's server does not answer any more: wait until it does. */
void server_detached(struct server *s);
void server_set_urls(struct server *s);
int server_bind(struct server *s); /* its listening socket, unless it has one; negative errno */
/* Its process is there: `how` it came, "Started" or "Adopted". */
void launch_started(struct server *s, const char *how, enum reason reason);
/* What the next start has. 0, then command_line_done() ends it; or -ENOMEM. */
int launch_words(const struct server *s, struct command_line *w);
int launch_note_words(struct server *s); /* what it would be started with now is what it has */
/* ended.c */
void server_ended(struct server *s, struct child_exit e);
void ended_say(struct server *s, const struct crash_verdict *v, const struct failure *failure);
/* What follows an unwanted end, once it is known with what it starts again. */
void ended_restart(struct server *s, const struct crash_verdict *v,
                   const struct remedy_plan *remedy, struct failure *failure);

/* A failure of which all is known goes to those that are kept, and to the history. */
void ended_keep(struct server *s, const struct failure *failure);
/* What an operator drained is gone: it stays so, and clients are told. */
void ended_rest(struct server *s);

/* repair.c */
/* Finds what the next start has other than the last; ended_restart() follows, now or later. */
/* Reads what it said of its own limits at its start, where its log is a file of ours. */
void repair_listen(struct server *s);
void repair_begin(struct server *s, const struct crash_verdict *v, const struct failure *failure);
void repair_say(struct server *s); /* what an evenkeeld before learned, after an adoption */
/* Ends the question. The failure that it was for is kept, with what was done instead. */
void repair_stop(struct server *s, const char *next);
/* The same of a process that ended before this evenkeeld began: it is told, and nothing follows. */
void ended_unseen(struct server *s, const struct child_exit *e);

/* life.c */
void life_read(struct server *s);      /* what the evenkeeld before wrote */
void life_none_runs(struct server *s); /* no process was found: start one, if that is wanted */
void life_adopted(struct server *s);   /* a process was found, and is STARTING */
void life_attached(struct server *s);  /* the same of somebody else's */

/* prove.c */
/* Whether what would be started next can start: 1 = the answer follows by cb (-EBUSY with a
 * sentence), 0 = as far as it can be told, else -EBUSY with a sentence in text. */
int prove_next(struct server *s, prove_fn cb, const struct prove_for *whom, char *text,
               size_t size);
void prove_stop(struct server *s); /* cb follows now, with -EBUSY */
void prove_free(struct server *s); /* without an answer */

/* prestart.c */
/* Whether a start may go on now. If not, it has failed, or server_launch() follows. */
bool prestart_check(struct server *s);
/* Its port is taken (-EADDRINUSE), or its address is not there (-EADDRNOTAVAIL): waits for it. */
void prestart_wait_port(struct server *s, int error);
/* evenkeeld lacks what a start needs, as descriptors: the same. `for_what` as in "cannot ...".
 * False when `error` is another one, and nothing was done. */
bool prestart_wait_lack(struct server *s, const char *for_what, int error);
void prestart_stop(struct server *s);

/* obstacle.c */
enum obstacle obstacle_of(const struct crash_verdict *v); /* of a start that failed */
void obstacle_watch(struct server *s, enum obstacle kind);
void obstacle_stop(struct server *s);

/* launch_unit.c */
int launch_unit_open(struct server *s);
void launch_unit_begin(struct server *s); /* finds what runs, or starts it */
void launch_unit(struct server *s, const struct command_line *words);
void launch_unit_look(struct server *s); /* the probe timer's turn while no process is known */
void launch_unit_ended(struct server *s);
void launch_unit_signal(struct server *s, int sig);
void launch_unit_stop(struct server *s); /* a start that is under way */

/* action.c: writes the state; a failure is logged. */
void server_save(struct server *s);
/* A start that waits for what will pass: a failure that is said and kept once; the caller waits. */
void server_start_waits(struct server *s, enum crash_class cls, const char *what);
/* A start that did not even begin is an end of its own kind. */
void server_start_failed(struct server *s, enum crash_class cls, bool retry, const char *what,
                         int r);

/* watch.c */
/* After the address or the engine's row has changed, while nothing runs. */
void watch_point(struct server *s);
int watch_open(struct server *s); /* makes scrape and history */
void watch_stop(struct server *s);
void watch_ready(struct server *s);
void watch_drain(struct server *s); /* adopted while it drains */
/* Asks for a completion of one token. 0, then cb follows; or -ENOMEM. */
int watch_one_token(struct server *s, uint32_t timeout_ms, client_fn cb,
                    struct client_call **ret_call);

/* upkeep.c */
void upkeep_step(struct server *s, uint64_t now_us); /* at each sample */
void upkeep_ready(struct server *s);                 /* forgets what was worn out */
/* launch_unit.c: what the kernel killed for memory in its cgroup so far; 0 where it is not counted.
 */
uint64_t server_oom_kills(const struct server *s);
/* engine_process.c: whether its engine is a process of its own. */
bool engine_process_known(const struct server *s);
/* engine_lost.c: from here on it tells when that process was lost; and no more. */
void engine_lost_listen(struct server *s);
void engine_lost_stop(struct server *s);
/* A restart by plan of that process alone; 0, or -ENOMEM. Then it is under way, and over when this
 * has said so by upkeep_engine_done(). */
int engine_process_by_plan(struct server *s);
void engine_process_step(struct server *s, uint64_t now_us);
void upkeep_engine_done(struct server *s, bool done); /* false: it takes too long */
/* The server is restarted as a whole instead, within the same budget. */
void upkeep_engine_refused(struct server *s);
/* A start failed: if expandable segments came with it by plan, they go again, and this is true. */
bool upkeep_tighten(struct server *s);
bool upkeep_acts(const struct server *s); /* whether a server is restarted, or only told about */
/* A restart by plan for this reason, as soon as it may be. In modes that do not act it is told. */
void upkeep_due(struct server *s, enum reason reason, bool urgent, const char *why);
void upkeep_stop(struct server *s);
void upkeep_release(struct server *s); /* the lease */
void upkeep_ask(struct server *s);     /* a restart in its turn */
void upkeep_forget(struct server *s);  /* it was taken back */
/* leaks.c */
void leaks_begin(struct server *s); /* another process, ready */
/* At each reading. */
void leaks_step(struct server *s, const struct process_tree *t, const struct gpus *g,
                double host_left);
/* drain.c */
#define TERM_GRACE_S  15.0
#define DRAIN_SLACK_S 2.0 /* the server ends by its own deadline first, with its own exit code */
/* An adopted process was draining, or drained: it has left_s more; < 0 = until it is resumed. */
void drain_go_on(struct server *s, enum server_state state, double left_s);
/* How an adopted process answers that should drain, or says that it drains. */
void drain_answered(struct server *s, bool serves, bool drains);
/* It is ready: a restart that waited for that begins. */
void drain_ready(struct server *s);
void drain_edge_told(struct server *s); /* HAProxy has had its time */
void server_restart_by_plan(struct server *s);

/* operate.c */
/* What an operator asked of the server's process; `cb` is called once, from wherever it ends. */
struct operation {
    struct operation *next, **link; /* in act.operations */
    struct server *server;
    struct server_change change; /* of limits; {0} for all else */
    server_fn cb;
    void *ctx;
};
struct operation *operation_new(struct server *s, server_fn cb, void *ctx); /* NULL: no memory */
void operation_drop(struct operation *o);                                   /* cb is not called */
void operation_end(struct operation *o, int error, const char *text);

/* action.c */
/* What HAProxy is told. */
void action_edge_line(void *ctx, char *line, size_t size);
void action_ready(struct server *s); /* reads the limits, restores what was kept */
/* Those that the next process has before it serves: "name=value,...", "" = its own. */
void action_start_limits(const struct server *s, char *text, size_t size);
void action_refresh(struct server *s, uint64_t now_us);
void action_apply(struct server *s, const struct decision *d);
void action_take_limits(struct server *s, const struct control_limits *l); /* as read back */
/* For the next start. by_operator: bit k, an operator has just set the value of this knob, which
 * alone changes what is kept of a pinned one. */
void action_keep(struct server *s, unsigned by_operator);
/* ramp.c: what max_num_running_seqs begins with instead of `want`. */
uint32_t ramp_first(const struct server *s, uint32_t least, uint32_t want);
uint32_t ramp_begin(struct server *s, const struct policy_params *p, uint32_t want);
void ramp_go_on(struct server *s);                 /* what the evenkeeld before began */
void ramp_step(struct server *s, uint64_t now_us); /* at each sample */
/* The actuator RESTART: keeps a lower limit for the next start; restarts nothing. */
void action_for_next_start(struct server *s, const struct decision *d);
void action_stop(struct server *s); /* forgets what is under way */

/* companion.c: a vLLM whose start our package ended goes on without it, until evenkeeld ends. */

/* Whether the output of a start that failed says that it was the companion. */
bool companion_blamed(const char *log, size_t len);
/* Between two processes: the next one is vLLM as it is. */
void companion_drop(struct server *s);
/* A new configuration for a server that has dropped it; else `config` itself. */
const struct server_config *companion_plain(struct server *s, const struct server_config *config);
