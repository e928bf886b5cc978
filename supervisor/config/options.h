/*
 * evenkeeld's configuration: flags, and a YAML file with the daemon's keys at the top and one map a
 * server below `servers:`, or one file a server in servers_dir. All come from the tables in
 * options.c, so a key, its range and its help exist once. A flag wins over the file. With --model
 * there is one server ("main") and no file.
 *
 * Reading is all or nothing: a reload that fails leaves the running configuration as it is.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/options.h"
#include "supervisor/io/run_as.h"
#include "supervisor/law/chronic.h"
#include "supervisor/law/policy.h"

#define CONFIG_SERVERS 64 /* most servers of one evenkeeld */

struct dialect;
struct ek_fault;

struct server_config {
    char *name;
    char *engine, *model, *host, *mode, *control_socket, *log_file;
    bool warm_restart, isolated;
    char *prefix_file; /* that follows from it, or NULL */
    char *edge;        /* ADDRESS:PORT of the agent-check, NULL = none */
    char *actuator;    /* "auto", "restart" */
    bool next_start;   /* lower limits wait for a start: nothing else can set them */
    char *launcher;    /* "spawn", "systemd" */
    char *devices;     /* "0,1"; NULL = not said */
    uint32_t device_set;
    double memory_wait_s;
    uint64_t host_memory_least;
    char *unit;           /* that systemd starts; NULL = a child of our own */
    char *user;           /* that it runs as, "dynamic", NULL = as evenkeeld */
    struct run_as run_as; /* that user, where evenkeeld has to see to it */
    double edge_ramp_s, ramp_every_s;
    char *edge_host;
    unsigned edge_port;
    char *attach;              /* URL of a server that somebody else runs; NULL = one of ours */
    char *record;              /* file that what the policy sees is written to, NULL = none */
    char *companion;           /* "on", "off" */
    char *program;             /* of the engine, NULL = the engine's own name for it */
    char *api_key_file;        /* NULL = it asks for no key, or evenkeeld need not know it */
    struct ek_strings command; /* empty = the engine's program with the model */
    struct ek_strings args;    /* appended to the command */
    struct ek_strings env;     /* NAME=value */
    uint64_t port;
    double poll_s, drain_deadline_s, start_deadline_s, hang_s, halt_s, kill_wait_s;
    uint64_t log_max_bytes, record_max_bytes;
    struct chronic_params chronic;
    uint64_t frag_least_bytes, restart_budget;
    double restart_apart_s, restart_jitter_s, memory_trend_s;
    char *restart_hours;
    uint64_t seqs_min, seqs_max, tokens_min, tokens_max; /* 0 = the server's own bounds */
    uint64_t raise_step, panic_count, osc_damp, osc_freeze;
    struct policy_params policy; /* complete but for the bounds, which need the ceilings */
    const struct dialect *dialect;
    char *file;        /* of servers_dir, NULL = none */
    bool file_model;   /* it names a model */
    char **argv;       /* what is run; NULL ends */
    char **plain_argv; /* the same without a companion; NULL when it has none */
    size_t plain_env;  /* so many of `env` are not for the companion */
};

struct config {
    char *file;                      /* of --config, NULL = none */
    struct ek_strings restart_peers; /* addresses of other machines' evenkeelds */
    char *restart_lease;             /* file that is locked during a planned restart */
    char *listen, *socket, *run_dir, *state_dir, *servers_dir, *log_level, *on_stop;
    bool leave_servers, check_config, dry_run, print_metrics, version, help;
    char *record, *replay;               /* files; NULL = none */
    char *print_options, *print_reasons; /* the format */
    char *model, *host, *mode, *name;    /* of the one server without a file */
    char *engine, *program, *api_key_file, *companion, *devices;
    struct ek_strings env; /* NAME=value, of that server */
    uint64_t port;
    double poll_s, memory_every_s;
    bool dumpable;
    char *kernel_log;                /* "off" for none */
    struct ek_strings allowed_hosts; /* that a Host header on `listen` may name */
    char *listen_host;               /* from `listen`; NULL with listen_port 0 and listen_off */
    unsigned listen_port;
    bool listen_off;
    struct server_config *servers;
    size_t count;
    char unused[40]; /* a server below servers: that has no file; the first of them */
};

/* Reads flags and file. Returns 0; -EBADMSG with fault (msg says file, line and column, `at` is
 * the line); -ENOMEM. The result is freed with config_free(). */
int config_parse(int argc, char **argv, struct config *ret_config, struct ek_fault *fault);
/* The servers from YAML text; for config_parse() and the tests. `given` as in struct ek_opt_source,
 * for the top-level keys that flags have set; NULL = none. */
int config_yaml(struct config *c, const uint8_t *given, const char *what, const char *text,
                size_t len, struct ek_fault *fault);
void config_free(struct config *c);

const struct server_config *config_find(const struct config *c, const char *name);
/* --help, and the tables as Markdown for the reference. 0 or -ENOMEM. */
int config_help(struct ek_buf *out);
int config_reference(enum ek_opt_format format, struct ek_buf *out);
