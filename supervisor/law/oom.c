/*
 * Why a server ended, see oom.h. Strong evidence first: what evenkeeld itself did, the cgroup's
 * kills, the exit code that evenkeel-server chose; then what the log says (oom_text.c); then the
 * bare signal.
 */
#include "supervisor/law/oom.h"

#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/law/oom_text.h"

#define SIGNALED 128 /* and the number of the signal: what mpirun and shells end with */

const char *crash_name(enum crash_class c)
{
    switch (c) {
    case CRASH_CLEAN_EXIT: return "CLEAN_EXIT";
    case CRASH_STARTUP_OOM: return "STARTUP_OOM";
    case CRASH_BURST_OOM: return "BURST_OOM";
    case CRASH_FRAG_OOM: return "FRAG_OOM";
    case CRASH_HOST_OOM: return "HOST_OOM";
    case CRASH_CONFIG: return "CONFIG";
    case CRASH_PORT: return "PORT";
    case CRASH_DISK: return "DISK";
    case CRASH_HANG_KILLED: return "HANG_KILLED";
    case CRASH_LOOP: return "LOOP";
    case CRASH_DEVICE: return "DEVICE";
    case CRASH_COMM: return "COMM";
    case CRASH_SIGNAL: return "SIGNAL";
    case CRASH_UNKNOWN: return "UNKNOWN";
    case CRASH_COUNT: break;
    }
    return "UNKNOWN";
}

static const struct {
    bool retry;
    const char *remedy;
} remedies[CRASH_COUNT] = {
    [CRASH_CLEAN_EXIT] = {true, "Nothing to do."},
    [CRASH_STARTUP_OOM] = {true, "Check for other processes on the device, then lower "
                                 "--max-num-batched-tokens or --gpu-memory-utilization; the same "
                                 "flags again will fail again."},
    [CRASH_BURST_OOM] = {true, "Restart with fewer batched tokens (x 0.75) and sequences (x 0.8); "
                               "cutting only the KV cache does not help."},
    [CRASH_FRAG_OOM] = {true, "Restart, with expandable segments where the engine has them; "
                              "lowering the number of sequences alone does not help."},
    [CRASH_HOST_OOM] = {true, "Shrink the swap space and host caches or give the service more "
                              "memory; device settings do not help."},
    [CRASH_CONFIG] = {false, "Correct the settings or the model files, then restart it; a restart "
                             "alone cannot help."},
    [CRASH_PORT] = {false, "End the process that holds the port, or choose another one."},
    [CRASH_DISK] = {true, "Free space on the disk or make it writable."},
    [CRASH_HANG_KILLED] = {true, "Keep the log and the stacks that were saved: a hang is a bug of "
                                 "the engine or the device."},
    [CRASH_LOOP] = {true,
                    "Report it with exit.json, whose stack says where; if it comes back, look "
                    "which key's requests precede it and take that key away."},
    [CRASH_DEVICE] = {true, "Look for XID and ECC events in the kernel's log; if it repeats, take "
                            "the device out of service."},
    [CRASH_COMM] = {true, "Look at the other ranks first: one of them ended or cannot be reached."},
    [CRASH_SIGNAL] = {true, "Report it with the last log lines. For a core (coredumpctl) the next "
                            "time, evenkeel-server must have --dumpable."},
    [CRASH_UNKNOWN] = {true, "Look at the last lines of its log."},
};

const char *crash_remedy(enum crash_class c)
{
    return (unsigned)c < CRASH_COUNT ? remedies[c].remedy : NULL;
}

bool crash_vanishes(enum crash_class c, int status, const struct oom_numbers *numbers)
{
    if (c == CRASH_STARTUP_OOM) {
        bool never = numbers && numbers->found && numbers->capacity > 0 &&
                     numbers->requested > numbers->capacity;
        return status != EK_EXIT_NO_FIT && !never;
    }
    return c == CRASH_PORT || c == CRASH_DISK || (c == CRASH_CONFIG && status != EK_EXIT_USAGE);
}

static void verdict(struct crash_verdict *v, enum crash_class c, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));

static void verdict(struct crash_verdict *v, enum crash_class c, const char *fmt, ...)
{
    va_list ap;
    v->cls = c;
    v->retry = remedies[c].retry;
    v->remedy = remedies[c].remedy;
    va_start(ap, fmt);
    (void)vsnprintf(v->why, sizeof(v->why), fmt, ap); /* a sentence may be cut */
    va_end(ap);
}

static void size_text(char *out, size_t size, uint64_t bytes)
{
    if (bytes >= 1ull << 30)
        (void)snprintf(out, size, "%.2f GiB", (double)bytes / 1073741824.0);
    else
        (void)snprintf(out, size, "%.2f MiB", (double)bytes / 1048576.0);
}

/* Device memory ran out: which kind, by the numbers of the line. */
static void device_oom(const struct crash_evidence *e, struct crash_verdict *v)
{
    const struct oom_numbers *n = &v->numbers;
    char asked[32], left[32], reserved[32], all[32], told[160] = "the log gives no numbers";
    size_text(asked, sizeof(asked), n->requested);
    size_text(left, sizeof(left), n->free);
    size_text(reserved, sizeof(reserved), n->reserved);
    size_text(all, sizeof(all), n->capacity);
    if (n->requested)
        (void)snprintf(told, sizeof(told), "%s were asked for with %s free and %s reserved unused",
                       asked, left, reserved);

    if (n->capacity && n->requested > n->capacity)
        verdict(v, CRASH_CONFIG,
                "It asked for %s of device memory on a device of %s: the settings "
                "cannot fit.",
                asked, all);
    else if (e->phase == PHASE_STARTING)
        verdict(v, CRASH_STARTUP_OOM, "Device memory ran out before it was ready: %s.", told);
    else if (n->requested && n->free < n->requested && n->free + n->reserved >= n->requested)
        verdict(v, CRASH_FRAG_OOM,
                "Device memory is fragmented after %.1f h: %s, so it was there but in pieces.",
                e->uptime_s / 3600, told);
    else
        verdict(v, CRASH_BURST_OOM, "Device memory ran out while it served: %s.", told);
}

/* An engine's own sentence, which names the field and the remedy; v as it was without one. */
static void quote_own_words(const struct crash_evidence *e, struct crash_verdict *v)
{
    const struct dialect *d;
    const char *said = NULL;
    struct oom_text line = {0};
    for (uint32_t i = 0; !said && (d = dialect_at(i)) != NULL; i++) {
        const char *const phrases[] = {d->error_mark, NULL};
        if (!d->error_mark ||
            !oom_last_line(oom_cut_log(e->log, e->log ? e->log_len : 0), phrases, &line))
            continue;
        said = memmem(line.at, line.len, d->error_mark, strlen(d->error_mark));
        said = said ? said + strlen(d->error_mark) : NULL;
    }
    if (!said)
        return;
    size_t len = line.len - (size_t)(said - line.at), at = strlen(v->why);
    if (at > 0 && v->why[at - 1] == '.')
        at--;
    (void)snprintf(v->why + at, sizeof(v->why) - at, ": %.*s", (int)(len < 240 ? len : 240), said);
}

/* What evenkeel-server's own exit codes say; false if the code says nothing. */
static bool by_exit_code(const struct crash_evidence *e, struct crash_verdict *v)
{
    switch (e->status) {
    case EK_EXIT_USAGE:
        verdict(v, CRASH_CONFIG, "Exit code 2: an unknown flag or a bad value.");
        quote_own_words(e, v);
        return true;
    case EK_EXIT_CONFIG:
        verdict(v, CRASH_CONFIG, "Exit code 78: configuration or model files.");
        quote_own_words(e, v);
        return true;
    case EK_EXIT_NO_FIT:
        verdict(v, CRASH_STARTUP_OOM,
                "Exit code 75: the memory plan does not fit; its log names the setting to change.");
        v->retry = false;
        quote_own_words(e, v);
        return true;
    case EK_EXIT_DEVMEM_START:
    case EK_EXIT_DEVMEM_RUN: {
        struct crash_evidence known = *e;
        known.phase = e->status == EK_EXIT_DEVMEM_START ? PHASE_STARTING : PHASE_READY;
        device_oom(&known, v);
        return true;
    }
    case EK_EXIT_HOSTMEM_START:
        verdict(v, CRASH_HOST_OOM, "Exit code 79: host memory ran out at start.");
        return true;
    case EK_EXIT_COMM:
        verdict(v, CRASH_COMM, "Exit code 73: a collective operation or a peer failed.");
        return true;
    case EK_EXIT_DEVICE:
        verdict(v, CRASH_DEVICE, "Exit code 76: the device was lost or reported a fault.");
        return true;
    case EK_EXIT_HANG:
        verdict(v, CRASH_HANG_KILLED, "Exit code 74: a step missed its own deadline.");
        return true;
    case EK_EXIT_LOOP:
        verdict(
            v, CRASH_LOOP,
            "Exit code 80: a thread that serves all did not come round; exit.json has its stack.");
        return true;
    default: return false; /* an int from outside: other engines use what they like */
    }
}

/* What was decided elsewhere: an end that another node or a client asked for, and that of a node of
 * several machines, which mpirun tells as a shell does. In either case it was not this evenkeeld
 * that asked.
 */
static bool by_group(const struct crash_evidence *e, struct crash_verdict *v)
{
    if (e->asked || e->signaled || e->unseen || !e->has_word)
        return false;
    if (e->status == EK_EXIT_RESTART) {
        verdict(v, CRASH_CLEAN_EXIT,
                "It drained for a restart that another node or a client asked it for.");
        v->group = true;
        return true;
    }
    if (e->status <= SIGNALED || e->status > SIGNALED + 64)
        return false;
    verdict(v, CRASH_COMM,
            "Exit code %d: signal %d ended a node of the group, and mpirun all others; its output "
            "says which.",
            e->status, e->status - SIGNALED);
    return true;
}

/* A server whose engine process died ends by itself, vLLM with status 0. A vLLM that was asked to
 * end may say the same of an engine that ended first. */
static bool by_dead_engine(const struct crash_evidence *e, struct crash_verdict *v)
{
    struct oom_text log = oom_cut_log(e->log, e->log_len), line;
    const struct dialect *d;
    uint32_t i = 0;
    while ((d = dialect_at(i)) != NULL && !(d->dead && oom_last_line(log, d->dead, &line)) &&
           !(d->lost && oom_last_line(log, d->lost, &line)))
        i++;
    if (!d || (e->asked && e->unseen))
        return false;
    char status[32] = "";
    if (!e->unseen)
        (void)snprintf(status, sizeof(status), "with status %d ", e->status);
    if (d->lost && oom_last_line(log, d->lost, &line)) {
        verdict(v, CRASH_SIGNAL,
                "A worker process of its engine ended (killed, or a fault of native code), so it "
                "ended %safter %.0f s.",
                status, e->uptime_s);
        v->remedy = "Find who ended it: an operator, a script, or the kernel (journalctl -k).";
    } else if (d->fatal && oom_last_line(log, d->fatal, &line))
        verdict(v, CRASH_UNKNOWN,
                "Its engine process failed with an exception that the log shows, so it ended "
                "%safter %.0f s.",
                status, e->uptime_s);
    else
        verdict(v, CRASH_SIGNAL,
                "Its engine process ended without a word (killed, or a fault of native code), so "
                "it ended %safter %.0f s.",
                status, e->uptime_s);
    return true;
}

/* Settings are a reason only before it was ready: later they had been good enough. */
static bool by_catalog(const struct crash_evidence *e, struct crash_verdict *v)
{
    const struct crash_found *f = e->found;
    if (!f || (f->cls == CRASH_CONFIG && e->phase != PHASE_STARTING))
        return false;
    if (strcmp(f->id, "worker-sigkill") == 0) /* host memory is a guess; the kernel counts kills */
        return false;
    const char *named = f->id;
    if (f->cls == CRASH_CONFIG && strncmp(f->id, "kind-", 5) == 0) {
        verdict(v, f->cls, "%s: %s", f->title, f->line); /* flags, files or what is installed */
        named = "";
    } else if (f->cls == CRASH_CONFIG) {
        verdict(v, f->cls, "It refused its flags or model (%s): %s", f->id, f->line);
    } else if (f->cls == CRASH_STARTUP_OOM || f->cls == CRASH_BURST_OOM) {
        device_oom(e, v);
        named = "";
    } else {
        verdict(v, f->cls, "The log shows (%s): %s.", f->id, f->title);
    }
    v->retry |= f->weak;
    (void)snprintf(v->signature, sizeof(v->signature), "%s", named);
    return true;
}

static bool by_log(const struct crash_evidence *e, struct crash_verdict *v)
{
    if (v->numbers.found && v->numbers.host) {
        verdict(v, CRASH_HOST_OOM, "The log says that host memory ran out.");
        return true;
    }
    if (v->numbers.found) {
        device_oom(e, v);
        return true;
    }
    return by_catalog(e, v) || (!e->signaled && by_dead_engine(e, v));
}

/* Its status was not seen: what is left is that it said nothing. */
static void by_silence(const struct crash_evidence *e, struct crash_verdict *v)
{
    char after[48] = "";
    if (e->uptime_s > 0)
        (void)snprintf(after, sizeof(after), " after %.0f s", e->uptime_s);
    if (e->asked && !e->has_word)
        verdict(
            v, CRASH_CLEAN_EXIT,
            "Asked to stop, and it ended; its exit status is not known, since it was started by "
            "an evenkeeld before this one.");
    else if (e->has_word)
        verdict(v, CRASH_SIGNAL,
                "It ended%s without an exit record, so by a signal; which one is not known, since "
                "it was started by an evenkeeld before this one.",
                after);
    else
        verdict(v, CRASH_UNKNOWN,
                "It ended%s; its exit status is not known, since it was started by an evenkeeld "
                "before this one.",
                after);
}

static bool by_own_doing(const struct crash_evidence *e, struct crash_verdict *v)
{
    if (e->killed_for_hang && e->killed_for_loop) {
        verdict(v, CRASH_LOOP,
                "evenkeeld killed it after %.0f s because a thread that reads bodies and compiles "
                "forms did not come back.",
                e->uptime_s);
        return true;
    }
    if (e->killed_for_hang) {
        verdict(v, CRASH_HANG_KILLED,
                "evenkeeld killed it after %.0f s because it made no "
                "progress.",
                e->uptime_s);
        return true;
    }
    if (e->killed_unready && (e->unseen || (e->signaled && e->status == SIGKILL))) {
        struct oom_text line = oom_end_of_log(e);
        verdict(
            v, CRASH_HANG_KILLED,
            "evenkeeld killed it because it was not ready after %.0f s (start_deadline_s)%s%.*s.",
            e->uptime_s, line.len ? "; its last line was: " : "", (int)line.len, line.at);
        v->remedy = "If it was still loading, give it a longer start_deadline_s; else its log says "
                    "what it waits for.";
        return true;
    }
    if (!e->asked)
        return false;
    if (e->killed && (e->unseen || (e->signaled && e->status == SIGKILL))) {
        verdict(v, CRASH_CLEAN_EXIT, "Asked to stop; killed at the deadline.");
        return true;
    }
    if (e->unseen)
        return false;
    if (e->signaled ? e->status == SIGTERM || e->status == SIGINT
                    : e->status == EK_EXIT_OK || e->status == EK_EXIT_RESTART) {
        verdict(v, CRASH_CLEAN_EXIT, "Stopped as it was asked to.");
        return true;
    }
    if (!e->signaled && e->status == EK_EXIT_CUT) {
        verdict(v, CRASH_CLEAN_EXIT, "Asked to stop; its deadline cut requests off.");
        return true;
    }
    return false;
}

/* The bare signal. One that asks a program to end was sent by somebody, and not by us. */
static void by_signal(const struct crash_evidence *e, struct crash_verdict *v)
{
    const char *name = sigabbrev_np(e->status);
    bool sent = e->status == SIGTERM || e->status == SIGINT || e->status == SIGHUP;
    verdict(v, CRASH_SIGNAL, "Signal %d (SIG%s) ended it after %.0f s%s.", e->status,
            name ? name : "?", e->uptime_s,
            e->status == SIGKILL ? "; the cgroup shows no lack of memory"
            : sent               ? "; evenkeeld did not send it"
                                 : "");
    if (e->status == SIGKILL)
        v->remedy = "Find who sent it: an operator, a script, or the kernel (dmesg). A kill leaves "
                    "no core dump.";
    else if (sent)
        v->remedy = "Find who sent it: an operator, a script, another supervisor. A Python program "
                    "may tell SIGTERM as SIGINT.";
    else if (!e->has_word)
        v->remedy = "Report it with the last log lines to the engine's makers; a core is where "
                    "kernel.core_pattern says (coredumpctl).";
}

struct crash_verdict crash_classify(const struct crash_evidence *e)
{
    struct crash_verdict v = {0};
    (void)oom_parse(e->log, e->log ? e->log_len : 0, &v.numbers);
    if (e->oom_kills > 0 && !e->killed_for_hang) {
        verdict(&v, CRASH_HOST_OOM,
                "The kernel's OOM killer ended %llu process%s in its cgroup: host memory ran out.",
                (unsigned long long)e->oom_kills, e->oom_kills == 1 ? "" : "es");
        return v;
    }
    if (e->xid && !e->asked) {
        verdict(&v, CRASH_DEVICE, "The kernel reported Xid %u of a device shortly before.", e->xid);
        v.retry = !e->xid_final;
        return v;
    }
    if (by_own_doing(e, &v) || by_group(e, &v) ||
        (!e->unseen && !e->signaled && by_exit_code(e, &v)) || by_log(e, &v))
        return v;
    if (e->unseen) {
        by_silence(e, &v);
        return v;
    }
    if (e->signaled) {
        by_signal(e, &v);
        return v;
    }
    if (e->status == EK_EXIT_OK && !e->exit0_is_failure) {
        verdict(&v, CRASH_UNKNOWN, "It ended with status 0 after %.0f s though nobody asked.",
                e->uptime_s);
        return v;
    }
    verdict(&v, CRASH_UNKNOWN, "It ended with status %d after %.0f s and its log does not say why.",
            e->status, e->uptime_s);
    return v;
}
