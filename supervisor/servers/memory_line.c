/* The line of a server's memory that the journal gets every minute. Called by loop.c. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/log.h"
#include "supervisor/io/figures.h"
#include "supervisor/io/port_owner.h"
#include "supervisor/servers/server_inside.h"

#define GIB         1073741824.0
#define MESSAGE_ID  "d1bbda2732d644bb9bc5958f3daa937e"
#define FIELD_BYTES 64

static void put_devices(const struct server *s, const struct gpus *g, struct ek_buf *out)
{
    for (uint32_t i = 0; g->error == 0 && i < g->count; i++) {
        if (!gpus_has(s->config->device_set, i))
            continue;
        if (g->at[i].total > 0)
            (void)ek_buf_printf(out, ", device %u %.1f of %.1f GiB", i, (double)g->at[i].used / GIB,
                                (double)g->at[i].total / GIB);
        else
            (void)ek_buf_printf(out, ", device %u%s", i, g->at[i].lost ? " lost" : "");
        if (g->at[i].ecc_errors)
            (void)ek_buf_printf(out, " with %llu ECC errors",
                                (unsigned long long)g->at[i].ecc_errors);
    }
}

bool memory_known(const struct server *s)
{
    return s->process.child.pid > 0 || s->memory.theirs.pid > 0;
}

/* Through its control socket, which knows also a process in a container; else by its port, here. */
static pid_t look_for_theirs(const struct server *s)
{
    if (s->address.control_path[0])
        return port_owner_of_socket(s->address.control_path);
    const char *host = s->config->host;
    return strncmp(host, "127.", 4) == 0 || strcmp(host, "::1") == 0
               ? port_owner_pid(host, s->address.port)
               : 0;
}

/* Asked for again when it has ended; its growth then begins anew. */
static void find_theirs(struct server *s)
{
    if (s->memory.theirs.pid > 0 &&
        child_start_ticks(s->memory.theirs.pid) == s->memory.theirs.start)
        return;
    s->memory.theirs.pid = s->state == SRV_READY ? look_for_theirs(s) : 0;
    s->memory.theirs.start = s->memory.theirs.pid > 0 ? child_start_ticks(s->memory.theirs.pid) : 0;
    if (!s->memory.theirs.start)
        s->memory.theirs.pid = 0;
    s->memory.now = MEMORY_UNKNOWN;
    leaks_begin(s);
}

static void put_processes(const struct process_tree *t, const struct memory_figures *m,
                          struct ek_buf *out)
{
    (void)ek_buf_puts(out, "process ");
    (void)ek_buf_number(out, m->resident / GIB, 2, " GiB");
    if (t->count > 0 && isfinite(m->own))
        (void)ek_buf_printf(out, ", with %u others %.2f GiB of their own", (unsigned)t->count,
                            m->own / GIB);
}

void memory_line(struct server *s, const struct process_list *all, const struct figures *f)
{
    struct ek_buf out = {0};
    struct memory_figures *m = &s->memory.now, before = s->memory.now;
    struct process_tree tree;
    if (s->process.attached)
        find_theirs(s);
    if (!memory_known(s))
        return;
    /* out of memory: its main process alone */
    (void)process_tree_pick(all, s->process.attached ? s->memory.theirs.pid : s->process.child.pid,
                            &tree);
    figures_read(&s->process.child, &tree, m);
    put_processes(&tree, m, &out);
    if (isfinite(m->cgroup))
        (void)ek_buf_printf(&out, ", cgroup %.2f GiB", m->cgroup / GIB);
    if (isfinite(m->most))
        (void)ek_buf_printf(&out, " of %.2f", m->most / GIB);
    if (isfinite(m->stalled_s) && m->stalled_s > before.stalled_s)
        (void)ek_buf_printf(&out, ", waited %.2f s for memory since the last line",
                            m->stalled_s - before.stalled_s);
    if (sample_has(&s->watch.sample, SIG_KV_USAGE))
        (void)ek_buf_printf(&out, ", KV %.0f %%", s->watch.sample.value[SIG_KV_USAGE] * 100);
    if (sample_has(&s->watch.sample, SIG_POOL_RESERVED))
        (void)ek_buf_printf(&out, ", outside the pool %.2f GiB",
                            s->watch.sample.value[SIG_POOL_RESERVED] / GIB);
    uint64_t left = port_owner_memory_bytes(); /* 0: it could not be read */
    leaks_step(s, &tree, figures_gpus(f), left ? (double)left : (double)NAN);
    (void)ek_buf_puts(&out, ", host ");
    (void)ek_buf_number(&out, left ? (double)left / GIB : (double)NAN, 1, " GiB");
    (void)ek_buf_puts(&out, " free");
    put_devices(s, figures_gpus(f), &out);
    char fields[2][FIELD_BYTES];
    (void)snprintf(fields[0], FIELD_BYTES, "EVENKEEL_SERVER=%s", s->config->name);
    (void)snprintf(fields[1], FIELD_BYTES, "EVENKEEL_RESIDENT_BYTES=%.0f", m->resident);
    const char *const list[] = {fields[0], isfinite(m->resident) ? fields[1] : NULL, NULL};
    if (ek_buf_ok(&out))
        ek_log_event(EK_LOG_INFO, MESSAGE_ID, list, "%s: memory: %s", s->config->name, out.data);
    ek_buf_done(&out);
    process_tree_done(&tree);
}
