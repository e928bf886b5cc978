/*
 * The line of a server's memory that the journal gets every minute.
 */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/log.h"
#include "supervisor/io/figures.h"
#include "supervisor/io/holder.h"
#include "supervisor/servers/server_inside.h"

#define GIB         1073741824.0
#define MESSAGE_ID  "d1bbda2732d644bb9bc5958f3daa937e"
#define FIELD_BYTES 64

static void put_devices(const struct server *s, const struct gpus *g, struct ek_buf *out)
{
    for (uint32_t i = 0; g->error == 0 && i < g->count; i++) {
        if (s->config->device_set && !(s->config->device_set & 1u << i))
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

void memory_line(struct server *s, const struct figures *f)
{
    struct ek_buf out = {0};
    struct memory_figures *m = &s->memory, before = s->memory;
    if (s->child.pid <= 0)
        return;
    figures_read(&s->child, m);
    (void)ek_buf_puts(&out, "process ");
    (void)ek_buf_number(&out, m->resident / GIB, 2, " GiB");
    if (isfinite(m->cgroup))
        (void)ek_buf_printf(&out, ", cgroup %.2f GiB", m->cgroup / GIB);
    if (isfinite(m->most))
        (void)ek_buf_printf(&out, " of %.2f", m->most / GIB);
    if (isfinite(m->stalled_s) && m->stalled_s > before.stalled_s)
        (void)ek_buf_printf(&out, ", waited %.2f s for memory since the last line",
                            m->stalled_s - before.stalled_s);
    if (sample_has(&s->sample, SIG_KV_USAGE))
        (void)ek_buf_printf(&out, ", KV %.0f %%", s->sample.value[SIG_KV_USAGE] * 100);
    if (sample_has(&s->sample, SIG_POOL_RESERVED))
        (void)ek_buf_printf(&out, ", outside the pool %.2f GiB",
                            s->sample.value[SIG_POOL_RESERVED] / GIB);
    uint64_t left = holder_memory_bytes(); /* 0: it could not be read */
    leaks_step(s, figures_gpus(f), left ? (double)left : (double)NAN);
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
}
