/*
 * Writes /metrics of evenkeeld for status.c. A row of the table is a family; most are a function
 * that prints one server's samples, called for each server in turn, so that a family stays together
 * as the format demands. main.c prints the table's names, which tools/names.sh holds against
 * alerts, dashboards and documents.
 */
#include "supervisor/web/expo.h"

#include <dirent.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/log.h"
#include "supervisor/io/behind.h"
#include "supervisor/io/port_owner.h"
#include "supervisor/servers/fleet.h"

enum family {
    F_BUILD,
    F_SERVERS,
    F_UP,
    F_READY,
    F_STATE,
    F_SCRAPES,
    F_TOOK,
    F_DECISIONS,
    F_LIMIT,
    F_LIMIT_MIN,
    F_LIMIT_MAX,
    F_PINNED,
    F_POLICY,
    F_RESTARTS,
    F_EXITS,
    F_ENGINE_EXITS,
    F_REMEDIES,
    F_HANGS,
    F_GOOD,
    F_KV,
    F_LAST_DECISION,
    F_MEMORY,
    F_STALLED,
    F_GROWS,
    F_HOST_FREE,
    F_DEVICE,
    F_ECC,
    F_XID,
    F_RELOAD_OK,
    F_RELOAD_TIME,
    F_LOG_DROPPED,
    F_HISTORY_LOST,
    F_CPU,
    F_RSS,
    F_FDS,
    F_START,
    FAMILIES
};

#define P "evenkeel_supervisor_"

const struct ek_metric expo_table[] = {
    [F_BUILD] = {P "build_info", EK_GAUGE, "Version of evenkeeld; always 1.", "version"},
    [F_SERVERS] = {P "servers", EK_GAUGE, "Servers configured.", NULL},
    [F_UP] = {P "server_up", EK_GAUGE, "1 while the server's process runs.", "server"},
    [F_READY] = {P "server_ready", EK_GAUGE, "1 while the server takes requests.", "server"},
    [F_STATE] = {P "server_state", EK_GAUGE, "1 for the state the server is in.", "server,state"},
    [F_SCRAPES] = {P "scrapes_total", EK_COUNTER, "Readings of the server's metrics.",
                   "server,result"},
    [F_TOOK] = {P "scrape_duration_seconds", EK_HISTOGRAM, "Time one reading took.", "server"},
    [F_DECISIONS] = {P "decisions_total", EK_COUNTER, "Decisions, applied or only shown.",
                     "server,action,reason,applied"},
    [F_LIMIT] = {P "limit", EK_GAUGE, "A live limit as read back from the server.", "server,limit"},
    [F_LIMIT_MIN] = {P "limit_min", EK_GAUGE, "Least value the policy may set.", "server,limit"},
    [F_LIMIT_MAX] = {P "limit_max", EK_GAUGE, "Largest value the policy may set.", "server,limit"},
    [F_PINNED] = {P "limit_pinned", EK_GAUGE, "1 while an operator holds the limit.",
                  "server,limit"},
    [F_POLICY] = {P "policy_state", EK_GAUGE, "1 for the state the controller is in.",
                  "server,state"},
    [F_RESTARTS] = {P "restarts_total", EK_COUNTER, "Starts after the first one, by cause.",
                    "server,cause"},
    [F_EXITS] = {P "exits_total", EK_COUNTER, "Ends of the server's process, by class.",
                 "server,class"},
    [F_ENGINE_EXITS] = {P "engine_exits_total", EK_COUNTER,
                        "Ends of the engine's process of a server that went on, by class.",
                        "server,class"},
    [F_REMEDIES] = {P "remedies_total", EK_COUNTER,
                    "Starts with other flags after memory ran out, by class and what was changed; "
                    "none: there was nothing left to change.",
                    "server,class,remedy"},
    [F_HANGS] = {P "hangs_total", EK_COUNTER, "Hangs with both proofs; the process was killed.",
                 "server"},
    [F_GOOD] = {P "signal_good", EK_GAUGE, "1 when the last reading was whole.", "server"},
    [F_KV] = {P "kv_usage", EK_GAUGE, "KV usage as the policy sees it, 0 to 1.", "server"},
    [F_LAST_DECISION] = {P "last_decision_timestamp_seconds", EK_GAUGE,
                         "When the last decision was taken.", "server"},
    [F_MEMORY] =
        {P "server_memory_bytes", EK_GAUGE,
         "Memory of the server's main process, what its processes have of their own, of its "
         "cgroup, and that cgroup's limit.",
         "server,kind"},
    [F_GROWS] =
        {P "server_memory_exhaustion_seconds", EK_GAUGE,
         "Time for which the memory that is left lasts, by the growth of the server's processes "
         "over days; absent while they do not grow.",
         "server"},
    [F_STALLED] = {P "server_memory_stall_seconds_total", EK_COUNTER,
                   "Time that some task of the server's cgroup waited for memory.", "server"},
    [F_HOST_FREE] = {P "host_memory_available_bytes", EK_GAUGE,
                     "Host memory that programs can still have.", NULL},
    [F_DEVICE] = {P "device_memory_bytes", EK_GAUGE, "Memory of a GPU as NVML says it.",
                  "device,kind"},
    [F_ECC] = {P "device_ecc_errors", EK_GAUGE,
               "Uncorrected memory errors of a GPU since it was powered.", "device"},
    [F_XID] = {P "device_xid_total", EK_COUNTER, "Xid messages of GPUs in the kernel's log.", NULL},
    [F_RELOAD_OK] = {P "config_last_reload_successful", EK_GAUGE,
                     "1 when the last reading of the configuration succeeded.", NULL},
    [F_RELOAD_TIME] = {P "config_last_reload_success_timestamp_seconds", EK_GAUGE,
                       "When the configuration was last read with success.", NULL},
    [F_LOG_DROPPED] =
        {P "log_lines_dropped_total", EK_COUNTER,
         "Lines of evenkeeld's log that could not be written: nobody reads it, or its "
         "disk is full.",
         NULL},
    [F_HISTORY_LOST] = {P "history_lost_total", EK_COUNTER,
                        "Records for the next evenkeeld that could not be written.", NULL},
    [F_CPU] = {"process_cpu_seconds_total", EK_COUNTER, "CPU time of evenkeeld.", NULL},
    [F_RSS] = {"process_resident_memory_bytes", EK_GAUGE, "Resident memory of evenkeeld.", NULL},
    [F_FDS] = {"process_open_fds", EK_GAUGE, "Open descriptors of evenkeeld.", NULL},
    [F_START] = {"process_start_time_seconds", EK_GAUGE, "When evenkeeld started.", NULL},
    [FAMILIES] = {0},
};

/* One family of all servers: `each` emits the samples of one of them. */
typedef void (*each_fn)(struct ek_expo *e, const struct server *s, const char *label);

static void per_server(struct ek_expo *e, const struct fleet *all, enum family f, each_fn each)
{
    ek_expo_family(e, &expo_table[f]);
    for (uint32_t i = 0; i < all->count; i++) {
        char label[64]; /* a name is 1 to 32 of a-z, 0-9, - */
        (void)snprintf(label, sizeof(label), "server=\"%s\"", all->servers[i]->config->name);
        each(e, all->servers[i], label);
    }
}

/* Names in these labels are our own constants. */
static void labelled(struct ek_expo *e, const char *label, const char *key, const char *text,
                     double value)
{
    char both[256];
    (void)snprintf(both, sizeof(both), "%s,%s=\"%s\"", label, key, text);
    ek_expo_value(e, both, value);
}

static void put_up(struct ek_expo *e, const struct server *s, const char *label)
{
    ek_expo_value(e, label, s->process.child.pid > 0);
}

static void put_ready(struct ek_expo *e, const struct server *s, const char *label)
{
    ek_expo_value(e, label, s->probe.ready);
}

static void expo_put_state(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int i = 0; i < SERVER_STATES; i++)
        labelled(e, label, "state", server_state_name((enum server_state)i), (int)s->state == i);
}

static void put_scrapes(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int i = 0; i < SCRAPE_RESULTS; i++)
        labelled(e, label, "result", scrape_result_name((enum scrape_result)i),
                 (double)s->watch.scrapes[i]);
}

static void put_took(struct ek_expo *e, const struct server *s, const char *label)
{
    ek_expo_hist(e, label, &s->watch.scrape_took);
}

static void put_decisions(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int a = 0; a < ACTION_COUNT; a++) {
        for (int r = 0; r < REASON_COUNT; r++) {
            for (int applied = 0; applied < 2; applied++) {
                uint64_t n = s->law.decisions.total[a][r][applied];
                char all[200];
                if (n == 0)
                    continue;
                (void)snprintf(all, sizeof(all), "%s,action=\"%s\",reason=\"%s\",applied=\"%d\"",
                               label, action_name((enum action_kind)a), reason_name((enum reason)r),
                               applied);
                ek_expo_value(e, all, (double)n);
            }
        }
    }
}

static void put_limit(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int k = 0; k < KNOB_COUNT; k++) {
        if (s->law.policy && policy_limit(s->law.policy, (enum knob)k))
            labelled(e, label, "limit", knob_name((enum knob)k),
                     policy_limit(s->law.policy, (enum knob)k));
    }
}

static void put_min(struct ek_expo *e, const struct server *s, const char *label)
{
    struct policy_params p = server_params(s);
    labelled(e, label, "limit", knob_name(KNOB_SEQS), p.seqs_min);
    labelled(e, label, "limit", knob_name(KNOB_TOKENS), p.tokens_min);
}

static void put_max(struct ek_expo *e, const struct server *s, const char *label)
{
    struct policy_params p = server_params(s);
    if (p.seqs_max)
        labelled(e, label, "limit", knob_name(KNOB_SEQS), p.seqs_max);
    if (p.tokens_max)
        labelled(e, label, "limit", knob_name(KNOB_TOKENS), p.tokens_max);
}

static void put_pinned(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int k = 0; k < KNOB_COUNT; k++)
        labelled(e, label, "limit", knob_name((enum knob)k),
                 s->law.policy && policy_pinned(s->law.policy, (enum knob)k));
}

static void put_policy(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int i = POL_INIT; i <= POL_DEGRADED; i++)
        labelled(e, label, "state", policy_state_name((enum policy_state)i),
                 s->law.policy && (int)policy_state(s->law.policy) == i);
}

static void put_restarts(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int i = 0; i < RESTART_CAUSES; i++)
        labelled(e, label, "cause", restart_cause_name((enum restart_cause)i),
                 (double)s->ends.restarts[i]);
}

static void put_exits(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int i = 0; i < CRASH_COUNT; i++)
        labelled(e, label, "class", crash_name((enum crash_class)i), (double)s->ends.exits[i]);
}

static void put_engine_exits(struct ek_expo *e, const struct server *s, const char *label)
{
    for (int i = 0; i < CRASH_COUNT; i++)
        labelled(e, label, "class", crash_name((enum crash_class)i), (double)s->engine.exits[i]);
}

static void put_remedies(struct ek_expo *e, const struct server *s, const char *label)
{
    char more[200];
    for (int i = 0; i < CRASH_COUNT; i++) {
        enum crash_class cls = (enum crash_class)i;
        for (uint32_t step = 0; remedy_exists(cls) && step <= REMEDY_STEPS; step++) {
            const char *name = step == REMEDY_STEPS ? "none" : remedy_step(cls, step);
            if (!name)
                continue;
            (void)snprintf(more, sizeof(more), "%s,class=\"%s\"", label, crash_name(cls));
            labelled(e, more, "remedy", name, (double)s->ends.remedies[i][step]);
        }
    }
}

static void put_hangs(struct ek_expo *e, const struct server *s, const char *label)
{
    ek_expo_value(e, label, (double)s->watch.hangs);
}

static void put_good(struct ek_expo *e, const struct server *s, const char *label)
{
    if (s->state == SRV_READY || s->state == SRV_DRAINING)
        ek_expo_value(e, label, s->watch.sample.good);
}

static void put_kv(struct ek_expo *e, const struct server *s, const char *label)
{
    if (sample_has(&s->watch.sample, SIG_KV_USAGE))
        ek_expo_value(e, label, s->watch.sample.value[SIG_KV_USAGE]);
}

static void put_last(struct ek_expo *e, const struct server *s, const char *label)
{
    const struct decision *d = decisions_at(&s->law.decisions, 0);
    if (d)
        ek_expo_value(e, label, (double)d->wall_us / 1e6);
}

static void expo_put_memory(struct ek_expo *e, const struct server *s, const char *label)
{
    const struct memory_figures *m = &s->memory.now;
    const struct {
        const char *kind;
        double value;
    } rows[] = {
        {"resident", m->resident}, {"own", m->own}, {"cgroup", m->cgroup}, {"cgroup_max", m->most}};
    for (size_t i = 0; memory_known(s) && i < sizeof(rows) / sizeof(rows[0]); i++) {
        if (isfinite(rows[i].value) && rows[i].value > 0)
            labelled(e, label, "kind", rows[i].kind, rows[i].value);
    }
}

static void put_grows(struct ek_expo *e, const struct server *s, const char *label)
{
    if (memory_known(s) && isfinite(s->leaks.left_s))
        ek_expo_value(e, label, s->leaks.left_s);
}

static void put_stalled(struct ek_expo *e, const struct server *s, const char *label)
{
    if (s->process.child.pid > 0 && isfinite(s->memory.now.stalled_s))
        ek_expo_value(e, label, s->memory.now.stalled_s);
}

static void device_families(struct ek_expo *e, const struct fleet *all)
{
    const struct gpus *g = figures_gpus(all->with.figures);
    char label[40];
    ek_expo_family(e, &expo_table[F_DEVICE]);
    for (uint32_t i = 0; g->error == 0 && i < g->count; i++) {
        if (g->at[i].total == 0)
            continue; /* not said */
        (void)snprintf(label, sizeof(label), "device=\"%u\"", i);
        labelled(e, label, "kind", "used", (double)g->at[i].used);
        labelled(e, label, "kind", "total", (double)g->at[i].total);
    }
    ek_expo_family(e, &expo_table[F_ECC]);
    for (uint32_t i = 0; g->error == 0 && i < g->count; i++) {
        (void)snprintf(label, sizeof(label), "device=\"%u\"", i);
        ek_expo_value(e, label, (double)g->at[i].ecc_errors);
    }
}

static void one(struct ek_expo *e, enum family f, const char *label, double value)
{
    ek_expo_family(e, &expo_table[f]);
    ek_expo_value(e, label, value);
}

/* The second number of statm, in pages. */
static double resident_bytes(void)
{
    char text[128];
    unsigned long long pages = 0;
    FILE *f = fopen("/proc/self/statm", "re");
    if (f && fgets(text, sizeof(text), f)) {
        const char *second = strchr(text, ' ');
        pages = second ? strtoull(second, NULL, 10) : 0;
    }
    if (f)
        (void)fclose(f); /* read only */
    return (double)pages * (double)sysconf(_SC_PAGESIZE);
}

static double open_fds(void)
{
    int n = 0;
    DIR *d = opendir("/proc/self/fd");
    if (!d)
        return 0;
    while (readdir(d))
        n++;
    (void)closedir(d);                /* read only */
    return n > 3 ? (double)n - 3 : 0; /* ".", ".." and the directory itself */
}

static void process_families(struct ek_expo *e, const struct fleet *all)
{
    struct rusage u = {0};
    (void)getrusage(RUSAGE_SELF, &u); /* cannot fail with these arguments */
    double cpu = (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
                 (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
    one(e, F_CPU, NULL, cpu);
    one(e, F_RSS, NULL, resident_bytes());
    one(e, F_FDS, NULL, open_fds());
    one(e, F_START, NULL, (double)all->started_wall_us / 1e6);
}

int expo_write(const struct fleet *all, enum ek_expo_format format, struct ek_buf *out)
{
    static const each_fn each[FAMILIES] = {
        [F_UP] = put_up,
        [F_READY] = put_ready,
        [F_STATE] = expo_put_state,
        [F_SCRAPES] = put_scrapes,
        [F_TOOK] = put_took,
        [F_DECISIONS] = put_decisions,
        [F_LIMIT] = put_limit,
        [F_LIMIT_MIN] = put_min,
        [F_LIMIT_MAX] = put_max,
        [F_PINNED] = put_pinned,
        [F_POLICY] = put_policy,
        [F_RESTARTS] = put_restarts,
        [F_EXITS] = put_exits,
        [F_REMEDIES] = put_remedies,
        [F_HANGS] = put_hangs,
        [F_GOOD] = put_good,
        [F_KV] = put_kv,
        [F_LAST_DECISION] = put_last,
        [F_MEMORY] = expo_put_memory,
        [F_STALLED] = put_stalled,
        [F_GROWS] = put_grows,
        [F_ENGINE_EXITS] = put_engine_exits,
    };
    struct ek_expo e = {.out = out, .format = format};
    one(&e, F_BUILD, "version=\"" EK_VERSION "\"", 1);
    one(&e, F_SERVERS, NULL, all->count);
    for (int f = 0; f < FAMILIES; f++) {
        if (each[f])
            per_server(&e, all, (enum family)f, each[f]);
    }
    one(&e, F_HOST_FREE, NULL, (double)port_owner_memory_bytes());
    device_families(&e, all);
    one(&e, F_XID, NULL, (double)figures_xids(all->with.figures));
    one(&e, F_RELOAD_OK, NULL, all->reload_ok);
    one(&e, F_RELOAD_TIME, NULL, (double)all->reload_wall_us / 1e6);
    one(&e, F_LOG_DROPPED, NULL, (double)ek_log_dropped());
    one(&e, F_HISTORY_LOST, NULL, all->with.behind ? (double)behind_lost(all->with.behind) : 0);
    process_families(&e, all);
    return ek_expo_end(&e);
}

int expo_names(struct ek_buf *out)
{
    static const char *const types[] = {
        [EK_COUNTER] = "counter", [EK_GAUGE] = "gauge", [EK_HISTOGRAM] = "histogram"};
    for (const struct ek_metric *m = expo_table; m->name; m++)
        (void)ek_buf_printf(out, "%s %s %s%s%s%s\n", m->name, types[m->type], m->labels ? "{" : "",
                            m->labels ? m->labels : "", m->labels ? "} " : "", m->help);
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
