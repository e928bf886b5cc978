#include "supervisor/options_table.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"

#define AT(field)  offsetof(struct config, field)
#define SRV(field) offsetof(struct server_config, field)
#define POL(field) offsetof(struct server_config, policy.field)

const struct ek_opt daemon_table[] = {
    {.name = "listen",
     .type = OPT_STRING,
     .at = AT(listen),
     .def = "127.0.0.1:9464",
     .group = "Daemon",
     .help = "HOST:PORT of the status page, the API (reading only) and /metrics; off for none."},
    {.name = "socket",
     .type = OPT_STRING,
     .at = AT(socket),
     .help = "Unix socket of the API that evenkeelctl uses; writing is allowed to root and to the "
             "user evenkeeld runs as. Default: evenkeeld.sock in run_dir."},
    {.name = "run-dir",
     .type = OPT_STRING,
     .at = AT(run_dir),
     .help = "Directory of sockets and the lock. Default: /run/evenkeel as root, else "
             "$XDG_RUNTIME_DIR/evenkeel."},
    {.name = "state-dir",
     .type = OPT_STRING,
     .at = AT(state_dir),
     .help = "Directory of the last limits and of server output. Default: /var/lib/evenkeel as "
             "root, else ~/.local/state/evenkeel."},
    {.name = "servers-dir",
     .type = OPT_STRING,
     .at = AT(servers_dir),
     .help = "Directories, separated by colons, with one file NAME.yaml per server: the flags of "
             "evenkeel-server as keys. The first file of a name counts; an empty one hides it."},
    {.name = "log-level",
     .type = OPT_CHOICE,
     .at = AT(log_level),
     .def = "info",
     .choices = "error|warning|notice|info|debug",
     .help = "Least important lines that are logged."},
    {.name = "on-stop",
     .type = OPT_CHOICE,
     .at = AT(on_stop),
     .def = "drain",
     .choices = "drain|leave",
     .help = "What SIGTERM does with the servers: drain and end them, or leave them running for "
             "the next evenkeeld."},
    {.name = "leave-servers",
     .type = OPT_BOOL,
     .at = AT(leave_servers),
     .help = "The same as --on-stop leave."},
    {.name = "restart-lease",
     .type = OPT_STRING,
     .at = AT(restart_lease),
     .help = "File that is locked during a planned restart, so that one server restarts at "
             "a time; give several evenkeelds on a machine the same. Default: "
             "restart.lease in run_dir."},
    {.name = "model",
     .type = OPT_STRING,
     .at = AT(model),
     .group = "One server without a file",
     .help = "Model directory; flags for the server follow after --."},
    {.name = "name", .type = OPT_STRING, .at = AT(name), .def = "main", .help = "Its name."},
    {.name = "host",
     .type = OPT_STRING,
     .at = AT(host),
     .def = "127.0.0.1",
     .help = "Address it listens on."},
    {.name = "port",
     .type = OPT_UINT,
     .at = AT(port),
     .max = 65535,
     .def = "8000",
     .help = "Port it listens on; 0 for any free one."},
    {.name = "mode",
     .type = OPT_CHOICE,
     .at = AT(mode),
     .def = "act",
     .choices = "observe|advise|act",
     .help = "observe: watch; advise: decide and log; act: change limits."},
    {.name = "poll-s",
     .type = OPT_SECONDS,
     .at = AT(poll_s),
     .min = 0.05,
     .max = 60,
     .def = "1",
     .help = "Seconds between two readings of its metrics."},
    {.name = "record",
     .type = OPT_STRING,
     .at = AT(record),
     .group = "Recordings",
     .help = "Append every page that the control law sees to this file, with its time; with "
             "several servers .NAME follows. Pages hold counts and times, no prompts."},
    {.name = "replay",
     .type = OPT_STRING,
     .at = AT(replay),
     .help = "Run the control law over such a file (- for stdin), print its decisions as JSON "
             "lines, and exit. With --config the constants are those of the server that --name "
             "says, else the recorded ones."},
    {.name = "check-config",
     .type = OPT_BOOL,
     .at = AT(check_config),
     .group = "Information",
     .help = "Read the configuration, print what it means, and exit."},
    {.name = "print-metrics",
     .type = OPT_BOOL,
     .at = AT(print_metrics),
     .help = "List the names that /metrics can show, and exit."},
    {.name = "print-options",
     .type = OPT_CHOICE,
     .at = AT(print_options),
     .choices = EK_OPT_FORMATS,
     .help = "Print all options and configuration keys, and exit."},
    {.name = "version", .alias = "V", .type = OPT_BOOL, .at = AT(version), .help = "Print it."},
    {.name = "help", .alias = "h", .type = OPT_BOOL, .at = AT(help), .help = "Print this."},
    {0},
};

size_t daemon_rows(void)
{
    return sizeof(daemon_table) / sizeof(daemon_table[0]);
}

/* The policy's rows have no default here: policy_defaults() has set them before. */
const struct ek_opt server_table[] = {
    {.name = "engine",
     .type = OPT_CHOICE,
     .at = SRV(engine),
     .def = "evenkeel",
     .choices = "evenkeel|vllm",
     .group = "Each server (keys below servers: NAME:)",
     .help = "What the server is."},
    {.name = "attach",
     .type = OPT_STRING,
     .at = SRV(attach),
     .help =
         "http://ADDRESS:PORT of a server that somebody else runs: it is watched, never started "
         "or ended. Its limits are changed only through a control_socket that is given here."},
    {.name = "command",
     .type = OPT_LIST,
     .at = SRV(command),
     .help = "Program and arguments as a list. Default: evenkeel-server with the model."},
    {.name = "args", .type = OPT_LIST, .at = SRV(args), .help = "Further arguments."},
    {.name = "model", .type = OPT_STRING, .at = SRV(model), .help = "Model directory."},
    {.name = "host",
     .type = OPT_STRING,
     .at = SRV(host),
     .def = "127.0.0.1",
     .help = "Address the server is reached at."},
    {.name = "port",
     .type = OPT_UINT,
     .at = SRV(port),
     .max = 65535,
     .def = "8000",
     .help = "Port; 0 for any free one (engine evenkeel)."},
    {.name = "edge",
     .type = OPT_STRING,
     .at = SRV(edge),
     .help = "ADDRESS:PORT where HAProxy's agent-check is answered: up, drain or down, and for an "
             "engine without live limits maxconn, which is then what the law changes."},
    {.name = "control-socket",
     .type = OPT_STRING,
     .at = SRV(control_socket),
     .help = "Its control socket. Default: NAME/control.sock in run_dir."},
    {.name = "mode",
     .type = OPT_CHOICE,
     .at = SRV(mode),
     .def = "act",
     .choices = "observe|advise|act",
     .help = "observe: watch; advise: decide and log; act: change limits."},
    {.name = "poll-s",
     .type = OPT_SECONDS,
     .at = SRV(poll_s),
     .min = 0.05,
     .max = 60,
     .def = "1",
     .help = "Seconds between two readings of its metrics."},
    {.name = "start-deadline-s",
     .type = OPT_SECONDS,
     .at = SRV(start_deadline_s),
     .min = 1,
     .max = 86400,
     .def = "600",
     .help = "A server that is not ready by then is ended and counts as a failed start."},
    {.name = "drain-deadline-s",
     .type = OPT_SECONDS,
     .at = SRV(drain_deadline_s),
     .min = 0,
     .max = 86400,
     .def = "300",
     .help = "How long running and queued requests may take to finish when it is drained."},
    {.name = "hang-s",
     .type = OPT_SECONDS,
     .at = SRV(hang_s),
     .min = 1,
     .max = 86400,
     .def = "60",
     .help = "No progress with work present for this long, and a failed request of one token: it "
             "hangs and is restarted. Longer than its longest prefill."},
    {.name = "log-file",
     .type = OPT_STRING,
     .at = SRV(log_file),
     .help = "What it writes. Default: for engine evenkeel the journal if evenkeeld logs there, "
             "else NAME.log in state_dir."},
    {.name = "log-max-bytes",
     .type = OPT_UINT,
     .at = SRV(log_max_bytes),
     .min = 65536,
     .max = 1e12,
     .def = "16000000",
     .help = "Size at which the file is rotated; one older one is kept."},
    {.name = "frag-limit",
     .type = OPT_FRACTION,
     .at = SRV(chronic.frag),
     .max = 1,
     .def = "0.7",
     .help = "Memory outside the KV pool that is reserved but was never used, as a share, "
             "above which it is trimmed, then the server restarted by plan; 0: never."},
    {.name = "frag-window-s",
     .type = OPT_SECONDS,
     .at = SRV(chronic.window_s),
     .min = 1,
     .max = 864000,
     .def = "900",
     .help = "For so long; the trend is taken over four times that."},
    {.name = "frag-least-bytes",
     .type = OPT_UINT,
     .at = SRV(frag_least_bytes),
     .max = 1e+15,
     .def = "268435456",
     .help = "Less than that, unused and added since the start, is not worth a restart."},
    {.name = "leak-s",
     .type = OPT_SECONDS,
     .at = SRV(chronic.leak_s),
     .max = 864000,
     .def = "60",
     .help = "KV blocks held so long while nothing runs or waits are a leak: restart by "
             "plan; 0: not looked for."},
    {.name = "prefix-hit-least",
     .type = OPT_FRACTION,
     .at = SRV(chronic.prefix_hit),
     .max = 1,
     .def = "0.05",
     .help = "Hit rate of the prefix cache, over frag-window-s while unused prefixes fill "
             "80 % of the pool, below which their share is capped at 25 %; 0: never."},
    {.name = "restart-budget",
     .type = OPT_UINT,
     .at = SRV(restart_budget),
     .max = 8,
     .def = "2",
     .help = "Most planned restarts within 24 hours; 0: none."},
    {.name = "restart-apart-s",
     .type = OPT_SECONDS,
     .at = SRV(restart_apart_s),
     .max = 864000,
     .def = "7200",
     .help = "Least time between two of them."},
    {.name = "restart-hours",
     .type = OPT_STRING,
     .at = SRV(restart_hours),
     .def = "any",
     .help = "When they may happen, local time: any, never, or HH:MM-HH:MM with commas "
             "between."},
    {.name = "restart-jitter-s",
     .type = OPT_SECONDS,
     .at = SRV(restart_jitter_s),
     .max = 86400,
     .def = "60",
     .help = "They wait a random time up to this, so that machines do not restart "
             "together."},
    {.name = "record",
     .type = OPT_STRING,
     .at = SRV(record),
     .help = "Append every page that the control law sees to this file, for --replay."},
    {.name = "record-max-bytes",
     .type = OPT_UINT,
     .at = SRV(record_max_bytes),
     .min = 65536,
     .max = 1e15,
     .def = "1000000000",
     .help = "Size at which recording ends."},
    {.name = "window-s",
     .type = OPT_SECONDS,
     .at = POL(window_s),
     .min = 1,
     .max = 3600,
     .group = "Control law (keys below servers: NAME:)",
     .help = "Length of the window that pressure is judged over."},
    {.name = "usage-high",
     .type = OPT_FRACTION,
     .at = POL(usage_high),
     .min = 0.05,
     .max = 1,
     .help = "KV usage above which harm counts as pressure."},
    {.name = "usage-release",
     .type = OPT_FRACTION,
     .at = POL(usage_release),
     .min = 0.01,
     .max = 1,
     .help = "Median KV usage below which limits may rise."},
    {.name = "preempt-rate",
     .type = OPT_FRACTION,
     .at = POL(preempt_rate),
     .max = 1e6,
     .help = "Preemptions per second that are harm."},
    {.name = "recompute-share",
     .type = OPT_FRACTION,
     .at = POL(recompute_share),
     .max = 1e6,
     .help = "Recomputed tokens per generated token that are harm."},
    {.name = "gap-s",
     .type = OPT_SECONDS,
     .at = POL(gap_s),
     .max = 3600,
     .help = "Gap between two tokens of a stream that is harm."},
    {.name = "itl-slo-s",
     .type = OPT_SECONDS,
     .at = POL(itl_slo_s),
     .max = 3600,
     .help = "Inter-token latency promised at the 99th percentile; 0 for none."},
    {.name = "ttft-slo-s",
     .type = OPT_SECONDS,
     .at = POL(ttft_slo_s),
     .max = 3600,
     .help = "Promised time to first token; while the queue cannot keep it, requests that waited "
             "so long are refused (queue_deadline_s of the server). 0: nothing is refused."},
    {.name = "shed-release-s",
     .type = OPT_SECONDS,
     .at = POL(shed_release_s),
     .max = 86400,
     .help = "Time without a late request after which that ends."},
    {.name = "cut-factor",
     .type = OPT_FRACTION,
     .at = POL(cut_factor),
     .min = 0.1,
     .max = 0.99,
     .help = "max_num_running_seqs is multiplied by it when lowered."},
    {.name = "tokens-cut-factor",
     .type = OPT_FRACTION,
     .at = POL(tokens_cut_factor),
     .min = 0.1,
     .max = 0.99,
     .help = "The same for max_num_batched_tokens."},
    {.name = "settle-s",
     .type = OPT_SECONDS,
     .at = POL(settle_s),
     .max = 86400,
     .help = "Least time between two cuts."},
    {.name = "effect-s",
     .type = OPT_SECONDS,
     .at = POL(effect_s),
     .max = 86400,
     .help = "Time until the effect of a cut is judged."},
    {.name = "raise-every-s",
     .type = OPT_SECONDS,
     .at = POL(raise_every_s),
     .max = 86400,
     .help = "Least time between two raises."},
    {.name = "raise-after-cut-s",
     .type = OPT_SECONDS,
     .at = POL(raise_after_cut_s),
     .max = 86400,
     .help = "Least time between a cut and the next raise."},
    {.name = "raise-step",
     .type = OPT_UINT,
     .at = SRV(raise_step),
     .min = 1,
     .max = 1024,
     .def = "4",
     .help = "What is added to max_num_running_seqs by one raise."},
    {.name = "drift-quiet-s",
     .type = OPT_SECONDS,
     .at = POL(drift_quiet_s),
     .max = 864000,
     .help = "Quiet time after which an old cut fades."},
    {.name = "warmup-s",
     .type = OPT_SECONDS,
     .at = POL(warmup_s),
     .max = 86400,
     .help = "No decision for this long after the server became ready."},
    {.name = "feedforward",
     .type = OPT_FRACTION,
     .at = POL(feedforward),
     .min = 0.05,
     .max = 1,
     .help = "No raise that would bring KV usage above this."},
    {.name = "sat-low-s",
     .type = OPT_SECONDS,
     .at = POL(sat_low_s),
     .max = 86400,
     .help = "Pressure at the least limit for this long is reported."},
    {.name = "drift-every-s",
     .type = OPT_SECONDS,
     .at = POL(drift_every_s),
     .max = 86400,
     .help = "Time between two steps of that."},
    {.name = "full-s",
     .type = OPT_SECONDS,
     .at = POL(full_s),
     .max = 864000,
     .help = "A full cache without harm is noted after this long."},
    {.name = "panic-usage",
     .type = OPT_FRACTION,
     .at = POL(panic_usage),
     .min = 0.05,
     .max = 1,
     .help = "KV usage all through panic-s that, with panic-count preemptions, cuts at once."},
    {.name = "panic-s",
     .type = OPT_SECONDS,
     .at = POL(panic_s),
     .max = 3600,
     .help = "See panic-usage."},
    {.name = "hold-most-s",
     .type = OPT_SECONDS,
     .at = POL(hold_most_s),
     .max = 864000,
     .help = "Longest wait before a raise after repeated cuts."},
    {.name = "lock-s",
     .type = OPT_SECONDS,
     .at = POL(lock_s),
     .max = 864000,
     .help = "A limit whose cut was taken back is left alone for this long."},
    {.name = "osc-window-s",
     .type = OPT_SECONDS,
     .at = POL(osc_window_s),
     .max = 864000,
     .help = "Changes of direction are counted over this time."},
    {.name = "freeze-s",
     .type = OPT_SECONDS,
     .at = POL(freeze_s),
     .max = 864000,
     .help = "How long limits are frozen when they swing."},
    {.name = "panic-count",
     .type = OPT_UINT,
     .at = SRV(panic_count),
     .min = 1,
     .max = 100000,
     .def = "5",
     .help = "See panic-usage."},
    {.name = "osc-damp",
     .type = OPT_UINT,
     .at = SRV(osc_damp),
     .min = 1,
     .max = 100000,
     .def = "6",
     .help = "Changes of direction that make steps small."},
    {.name = "osc-freeze",
     .type = OPT_UINT,
     .at = SRV(osc_freeze),
     .min = 1,
     .max = 100000,
     .def = "12",
     .help = "Changes of direction that freeze the limits."},
    {0},
};

int config_help(struct ek_buf *out)
{
    (void)ek_buf_puts(out, "usage: evenkeeld --config FILE [options]\n"
                           "       evenkeeld --model DIR [--port N] [options] [-- SERVER FLAGS]\n\n"
                           "  --config, -c FILE\n      YAML file with the keys below and `servers:`"
                           "; --print-options yaml lists all of them.\n\n");
    int r = ek_opt_write(daemon_table, EK_OPT_HELP, out);
    return r < 0 ? r : (ek_buf_ok(out) ? 0 : -ENOMEM);
}

void config_policy_json(const struct policy_params *p, struct ek_buf *out)
{
    static const char *const modes[] = {"observe", "advise", "act"};
    struct server_config c = {.policy = *p,
                              .raise_step = p->raise_step,
                              .panic_count = p->panic_count,
                              .osc_damp = p->osc_damp,
                              .osc_freeze = p->osc_freeze};
    bool law = false;
    (void)ek_buf_printf(out, "\"mode\":\"%s\"", modes[p->mode]);
    for (const struct ek_opt *o = server_table; o->name; o++) {
        law |= o->at == POL(window_s); /* the first row of the law */
        if (!law)
            continue;
        const char *at = (const char *)&c + o->at;
        if (o->type == OPT_UINT) {
            uint64_t value;
            memcpy(&value, at, sizeof(value));
            (void)ek_buf_printf(out, ",\"%s\":\"%llu\"", o->name, (unsigned long long)value);
        } else {
            double value;
            memcpy(&value, at, sizeof(value));
            (void)ek_buf_printf(out, ",\"%s\":\"%.17g\"", o->name, value);
        }
    }
}

/* The policy's rows with the defaults of policy_defaults(), which the table leaves to it. */
static int write_server_table(enum ek_opt_format format, struct ek_buf *out)
{
    struct ek_opt rows[sizeof(server_table) / sizeof(server_table[0])];
    char text[sizeof(server_table) / sizeof(server_table[0])][24];
    struct server_config c = {0};
    policy_defaults(&c.policy);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        rows[i] = server_table[i];
        if (!rows[i].name || rows[i].at < POL(window_s))
            continue;
        double value;
        memcpy(&value, (const char *)&c + rows[i].at, sizeof(value));
        (void)snprintf(text[i], sizeof(text[i]), "%g", value); /* a double has 13 characters */
        rows[i].def = text[i];
    }
    return ek_opt_write(rows, format, out);
}

int config_reference(enum ek_opt_format format, struct ek_buf *out)
{
    int r = ek_opt_write(daemon_table, format, out);
    if (r == 0 && format == EK_OPT_MARKDOWN)
        r = ek_buf_puts(out, "\n");
    return r < 0 ? r : write_server_table(format, out);
}
