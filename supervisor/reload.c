/*
 * Reading the configuration again, all or nothing: constants and bounds of running servers change
 * at once, servers that are new begin, servers that are gone drain and end. What cannot change
 * under running servers is refused, and so are flags that an evenkeel-server does not take: it is
 * asked first (--check-config). Then nothing has changed.
 *
 * A server that is gone keeps reading its old configuration until it has ended; that one is freed
 * with the last such server.
 */
#include "supervisor/reload.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/sandbox.h"
#include "supervisor/daemon.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/subprocess.h"
#include "supervisor/law/dry_answer.h"
#include "supervisor/servers/server_past.h"

#define ASK_MS 20000u

static bool reload_same(const char *a, const char *b)
{
    return strcmp(a, b) == 0;
}

/* NULL is a text of its own. */
static bool same_text(const char *a, const char *b)
{
    return a && b ? reload_same(a, b) : a == b;
}

static bool same_list(const struct ek_strings *a, const struct ek_strings *b)
{
    for (size_t i = 0; i < a->count && i < b->count; i++) {
        if (!reload_same(a->at[i], b->at[i]))
            return false;
    }
    return a->count == b->count;
}

/* The key that cannot change while the server runs; NULL when none differs. */
static const char *fixed_key(const struct server_config *a, const struct server_config *b)
{
    return !reload_same(a->engine, b->engine)                 ? "engine"
           : !reload_same(a->host, b->host)                   ? "host"
           : a->port != b->port                               ? "port"
           : !same_text(a->control_socket, b->control_socket) ? "control_socket"
           : !same_text(a->attach, b->attach)                 ? "attach"
           : !same_text(a->edge, b->edge)                     ? "edge"
           : !same_text(a->unit, b->unit)                     ? "unit"
                                                              : NULL;
}

/* What cannot change under running servers, in text where it is one server's; NULL when all can. */
static const char *unchangeable(const struct fleet *f, const struct config *fresh, char *text,
                                size_t size)
{
    const struct config *old = f->config;
    if (!reload_same(old->run_dir, fresh->run_dir) ||
        !reload_same(old->state_dir, fresh->state_dir) ||
        !reload_same(old->socket, fresh->socket) || !reload_same(old->listen, fresh->listen))
        return "listen, socket, run_dir and state_dir need a restart of evenkeeld";
    if (!same_list(&old->restart_peers, &fresh->restart_peers))
        return "restart_peers needs a restart of evenkeeld";
    for (size_t i = 0; i < fresh->count; i++) {
        const struct server_config *a = &fresh->servers[i], *b = config_find(old, a->name);
        if (!b && fleet_find(f, a->name))
            return "a server of this name is still ending; reload again when it has ended";
        if (!b)
            continue;
        const char *key = fixed_key(a, b);
        if (key) {
            (void)snprintf(
                text, size,
                "server '%s' has another %s, which needs a restart of evenkeeld; or take "
                "it out, reload, and when it has ended put it in again",
                a->name, key);
            return text;
        }
    }
    return NULL;
}

/* Room for the servers that are new, and for the configuration that may have to be kept. */
static int reload_make_room(struct loop *l, const struct config *fresh)
{
    size_t servers = l->fleet.count + fresh->count + 1, retired = l->retired_count + 1;
    struct server **more = realloc(l->fleet.servers, servers * sizeof(struct server *));
    if (!more)
        return -ENOMEM;
    l->fleet.servers = more;
    struct config **kept = realloc(l->retired, retired * sizeof(struct config *));
    if (!kept)
        return -ENOMEM;
    l->retired = kept;
    return 0;
}

/* The servers that are new, none of them begun; on failure there are none. */
static int make_new(const struct fleet *f, const struct config *fresh, struct server **ret_fresh,
                    uint32_t *ret_count)
{
    uint32_t n = 0;
    int r = 0;
    for (size_t i = 0; i < fresh->count && r == 0; i++) {
        if (config_find(f->config, fresh->servers[i].name))
            continue;
        r = server_new(&f->with, &fresh->servers[i], &ret_fresh[n]);
        n += r == 0;
    }
    for (uint32_t i = 0; r < 0 && i < n; i++)
        server_free(ret_fresh[i]);
    *ret_count = r < 0 ? 0 : n;
    return r;
}

static void take_over(struct loop *l, struct config *fresh)
{
    struct config *old = l->fleet.config;
    uint32_t had = l->fleet.count, gone = 0;
    l->fleet.config = fresh;
    l->fleet.with.config = fresh;
    (void)ek_sandbox_dumpable(fresh->dumpable); /* cannot fail with these values */
    for (uint32_t i = 0; i < had; i++) {
        const struct server_config *c = config_find(fresh, l->fleet.servers[i]->config->name);
        if (c)
            server_reconfigure(l->fleet.servers[i], c);
        else
            gone++;
    }
    if (gone > 0) {
        l->retired[l->retired_count++] = old;
    } else {
        config_free(old);
        free(old);
    }
}

void reload_note_unused(const struct config *c)
{
    if (c->unused[0])
        ek_log(EK_LOG_WARNING, "'%s' below servers: has no file in %s; its settings wait for one",
               c->unused, c->servers_dir);
    for (size_t i = 0; i < c->count; i++) {
        const struct server_config *s = &c->servers[i];
        const struct dialect_gone *g;
        for (size_t at = 0; (g = dialect_gone(s->dialect, s->argv, &at));)
            ek_log(EK_LOG_WARNING, "%s: newer versions of %s end at %s: %s", s->name, s->engine,
                   g->flag, g->instead);
    }
}

struct reloading {
    struct config *fresh;
    size_t next;            /* server whose flags are asked for next */
    struct subprocess *ask; /* NULL = none runs */
    void (*cb)(void *ctx, int error, const char *text);
    void *ctx;
    bool again; /* a SIGHUP came meanwhile: the files may have changed since they were read */
};

/* What runs is not what it was started with any more: said, because only a restart changes that. */
static void say_changes(const struct fleet *f)
{
    for (uint32_t i = 0; i < f->count; i++) {
        struct server *s = f->servers[i];
        server_look_changes(s);
        if (s->prove.needs[0])
            ek_log(EK_LOG_NOTICE, "%s needs a restart for %s", s->config->name, s->prove.needs);
    }
}

/* 0, or a negative code with a sentence. The configuration is taken, or freed. */
static int reload_apply(struct loop *l, struct config *fresh, char *text, size_t size)
{
    struct server *added[CONFIG_SERVERS];
    uint32_t count = 0, had = l->fleet.count;
    char said[320];
    const char *why =
        l->ending ? "evenkeeld is ending" : unchangeable(&l->fleet, fresh, said, sizeof(said));
    int r = why ? -EBADMSG : reload_make_room(l, fresh);
    if (r == 0)
        r = make_new(&l->fleet, fresh, added, &count);
    if (r < 0) {
        (void)snprintf(text, size, "%s", why ? why : ek_strerror(r));
        config_free(fresh);
        free(fresh);
        return r == -ENOMEM ? r : -EBADMSG;
    }
    take_over(l, fresh);
    for (uint32_t i = 0; i < count; i++)
        l->fleet.servers[l->fleet.count++] = added[i];
    past_load(&l->fleet.with, l->fleet.servers + had, count, false);
    for (uint32_t i = had; i < l->fleet.count; i++)
        server_begin(l->fleet.servers[i]);
    for (uint32_t i = 0; i < had; i++) {
        if (!config_find(fresh, l->fleet.servers[i]->config->name))
            server_stop(l->fleet.servers[i]);
        else
            server_reread(l->fleet.servers[i]);
    }
    l->fleet.reload_wall_us = ek_wall_us();
    reload_note_unused(fresh);
    ek_log(EK_LOG_NOTICE,
           "read the configuration again: %zu server%s, %u new; the others read their keys and "
           "certificates again",
           fresh->count, fresh->count == 1 ? "" : "s", count);
    say_changes(&l->fleet);
    return 0;
}

static void reload_finish(struct loop *l, int r, const char *text)
{
    struct reloading *g = l->reloading;
    char next[640];
    l->reloading = NULL;
    l->fleet.reload_ok = r == 0;
    if (r < 0)
        ek_log(EK_LOG_ERR, "the configuration stays as it was: %s", text);
    if (l->said_ready)
        (void)sd_notify(0, "READY=1");
    if (g && g->cb)
        g->cb(g->ctx, r, text);
    bool again = g && g->again && !l->ending;
    free(g);
    if (again)
        (void)reload_begin(l, NULL, NULL, next, sizeof(next)); /* it logs why not */
}

static bool same_command(char *const *a, char *const *b)
{
    size_t i = 0;
    while (a && b && a[i] && b[i] && reload_same(a[i], b[i]))
        i++;
    return a && b && !a[i] && !b[i];
}

static void on_flags(void *ctx, const struct subprocess_result *res);

static int ask_flags(struct loop *l, struct reloading *g, char *const *argv)
{
    static char check[] = "--check-config", *flags[] = {check, NULL};
    struct subprocess_spec spec = {.argv = argv, .flags = flags, .timeout_ms = ASK_MS};
    return subprocess_run(&l->subprocesses, l->fleet.with.event, &spec, on_flags, l, &g->ask);
}

/* Asks the next one whose command is not known to be good: 1; 0 when there is none left. */
static int ask_next(struct loop *l, struct reloading *g)
{
    while (g->next < g->fresh->count) {
        const struct server_config *c = &g->fresh->servers[g->next];
        const struct server_config *old = config_find(l->fleet.config, c->name);
        const struct server *s = fleet_find(&l->fleet, c->name);
        /* One that serves is asked in any case: what it reads itself (--config) may be new. */
        bool known = old && same_command(old->argv, c->argv) && !(s && s->probe.ready);
        if (!known && !c->unit && !c->attach && dry_answer_can(c->argv) &&
            ask_flags(l, g, c->argv) == 0)
            return 1;
        g->next++; /* what cannot be asked is no reason against it */
    }
    return 0;
}

static void on_flags(void *ctx, const struct subprocess_result *res)
{
    struct loop *l = ctx;
    struct reloading *g = l->reloading;
    char text[560] = "";
    g->ask = NULL;
    if (res->status == EK_EXIT_USAGE || res->status == EK_EXIT_CONFIG) {
        char said[400];
        dry_answer_sentence(res->text, said, sizeof(said));
        (void)snprintf(text, sizeof(text), "%s: evenkeel-server does not take its flags: %s",
                       g->fresh->servers[g->next].name, said);
        config_free(g->fresh);
        free(g->fresh);
        reload_finish(l, -EBADMSG, text);
        return;
    }
    g->next++;
    if (ask_next(l, g) == 0) {
        int r = reload_apply(l, g->fresh, text, sizeof(text));
        reload_finish(l, r, text);
    }
}

int reload_begin(struct loop *l, void (*cb)(void *ctx, int error, const char *text), void *ctx,
                 char *text, size_t size)
{
    struct ek_fault fault = {0};
    if (l->reloading) {
        l->reloading->again = l->reloading->again || !cb;
        (void)snprintf(text, size, "it is being read already");
        return -EBUSY;
    }
    if (l->said_ready)
        (void)sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)ek_now_us());
    struct config *fresh = calloc(1, sizeof(*fresh));
    struct reloading *g = calloc(1, sizeof(*g));
    int r = fresh && g ? config_parse(l->argc, l->argv, fresh, &fault) : -ENOMEM;
    const char *why = r == -EBADMSG ? fault.msg : NULL;
    if (r == 0 && fresh)
        why = unchangeable(&l->fleet, fresh, fault.msg, sizeof(fault.msg));
    if (r < 0 || why || !fresh || !g) {
        (void)snprintf(text, size, "%s", why ? why : ek_strerror(r));
        if (fresh)
            config_free(fresh);
        free(fresh);
        free(g);
        reload_finish(l, r == -ENOMEM ? r : -EBADMSG, text);
        return r == -ENOMEM ? r : -EBADMSG;
    }
    *g = (struct reloading){.fresh = fresh, .cb = cb, .ctx = ctx};
    if (ask_next(l, g) > 0) {
        l->reloading = g;
        return 1;
    }
    free(g);
    r = reload_apply(l, fresh, text, size);
    reload_finish(l, r, text);
    return r;
}

void reload_free(struct loop *l)
{
    if (!l->reloading)
        return;
    subprocess_cancel(l->reloading->ask);
    config_free(l->reloading->fresh);
    free(l->reloading->fresh);
    free(l->reloading);
    l->reloading = NULL;
}

void reload_sweep(struct loop *l)
{
    uint32_t kept = 0;
    bool leaving = false;
    for (uint32_t i = 0; i < l->fleet.count; i++) {
        struct server *s = l->fleet.servers[i];
        bool gone = !config_find(l->fleet.config, s->config->name);
        if (gone && s->state == SRV_STOPPED && s->process.child.pid == 0) {
            ek_log(EK_LOG_NOTICE, "%s: it ended and is no longer configured", s->config->name);
            (void)sd_notifyf(0, "FDSTOREREMOVE=1\nFDNAME=" LOOP_FD_PREFIX "%s", s->config->name);
            server_answer_operator(s);
            server_free(s);
            continue;
        }
        leaving = leaving || gone;
        l->fleet.servers[kept++] = s;
    }
    l->fleet.count = kept;
    while (!leaving && l->retired_count > 0) {
        struct config *old = l->retired[--l->retired_count];
        config_free(old);
        free(old);
    }
}
