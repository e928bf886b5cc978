/*
 * Asynchronous calls to systemd for servers/launch_unit.c, which starts servers that are units. A
 * question is a chain: LoadUnit gives the object's path, then GetAll its properties; orders are one
 * call, and their end is seen by PropertiesChanged or by asking again. Each call has its own
 * struct, so an answer that comes after unit_free() finds no owner and does no harm.
 */
#include "supervisor/io/unit.h"

#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-bus.h>

#include "common/buf.h"
#include "common/err.h"

#define MANAGER    "org.freedesktop.systemd1"
#define MANAGER_AT "/org/freedesktop/systemd1"
#define MANAGER_IF "org.freedesktop.systemd1.Manager"
#define PROPERTIES "org.freedesktop.DBus.Properties"
#define CALL_US    5000000u

struct units {
    sd_event *event;
    sd_bus *bus;      /* NULL = none yet, or it broke */
    unsigned session; /* counts connections: what was subscribed belongs to one of them */
};

/* What waits for an answer. A kill is a call of its own: it must not end a question. */
enum call_kind { CALL_ASK, CALL_KILL, CALLS };

struct unit_call {
    struct unit *unit;
    sd_bus_slot *slot;
    unit_fn cb;
    void *ctx;
};

struct unit {
    struct units *all;
    char name[128];
    char path[256]; /* of its object, "" until systemd has said */
    void (*changed)(void *ctx);
    void *changed_ctx;
    unsigned session; /* in which changes are subscribed */
    sd_bus_slot *match;
    struct unit_call call[CALLS];
};

int units_new(sd_event *event, struct units **ret_units)
{
    struct units *us = calloc(1, sizeof(*us));
    if (!us)
        return -ENOMEM;
    us->event = sd_event_ref(event);
    *ret_units = us;
    return 0;
}

void units_free(struct units *us)
{
    if (!us)
        return;
    sd_bus_close_unref(us->bus);
    sd_event_unref(us->event);
    free(us);
}

/* The connection; made without waiting, so that what is wrong with it shows at the first answer. */
static int get_bus(struct units *us, sd_bus **ret_bus)
{
    if (us->bus && sd_bus_is_open(us->bus) <= 0) {
        sd_bus_close_unref(us->bus);
        us->bus = NULL;
    }
    if (!us->bus) {
        sd_bus *bus = NULL;
        int r = sd_bus_open_system(&bus);
        if (r >= 0)
            r = sd_bus_set_method_call_timeout(bus, CALL_US);
        if (r >= 0)
            r = sd_bus_attach_event(bus, us->event, SD_EVENT_PRIORITY_NORMAL);
        if (r < 0) {
            sd_bus_close_unref(bus);
            return r;
        }
        us->bus = bus;
        us->session++;
    }
    *ret_bus = us->bus;
    return 0;
}

int unit_new(struct units *us, const char *name, void (*changed)(void *ctx), void *ctx,
             struct unit **ret_unit)
{
    struct unit *u = calloc(1, sizeof(*u));
    if (!u)
        return -ENOMEM;
    u->all = us;
    u->changed = changed;
    u->changed_ctx = ctx;
    (void)snprintf(u->name, sizeof(u->name), "%s", name); /* its length was checked */
    *ret_unit = u;
    return 0;
}

static void unit_forget(struct unit_call *c)
{
    c->slot = sd_bus_slot_unref(c->slot);
    c->cb = NULL;
}

void unit_free(struct unit *u)
{
    if (!u)
        return;
    for (int i = 0; i < CALLS; i++)
        unit_forget(&u->call[i]);
    u->match = sd_bus_slot_unref(u->match);
    free(u);
}

bool unit_is_busy(const struct unit *u)
{
    return u->call[CALL_ASK].slot != NULL;
}

static void unit_finish(struct unit_call *c, int error, const struct unit_facts *facts,
                        const char *text)
{
    unit_fn cb = c->cb;
    void *ctx = c->ctx;
    unit_forget(c);
    if (cb)
        cb(ctx, error, facts, text);
}

static bool is_refusal(const char *name)
{
    return strncmp(name, "org.freedesktop.systemd1.", 25) == 0 ||
           strcmp(name, SD_BUS_ERROR_ACCESS_DENIED) == 0 ||
           strcmp(name, SD_BUS_ERROR_INTERACTIVE_AUTHORIZATION_REQUIRED) == 0;
}

/* Nothing was answered, or nothing could be asked: r is a negative errno. */
static void unit_fail(struct unit_call *c, int r)
{
    char text[200];
    (void)snprintf(text, sizeof(text), "systemd cannot be reached over D-Bus: %s", ek_strerror(r));
    unit_finish(c, -EHOSTUNREACH, NULL, text);
}

/* False when the answer is an error; then cb has been called. */
static bool take_answer(struct unit_call *c, sd_bus_message *m)
{
    char text[300];
    const sd_bus_error *e = sd_bus_message_get_error(m);
    if (!e)
        return true;
    bool refused = e->name && is_refusal(e->name);
    (void)snprintf(text, sizeof(text), "%s: %.200s",
                   refused ? "systemd refuses" : "systemd cannot be reached over D-Bus",
                   e->message ? e->message : e->name);
    unit_finish(c, refused ? -EPERM : -EHOSTUNREACH, NULL, text);
    return false;
}

/* What it does */

static int unit_read_text(sd_bus_message *m, char *ret_text, size_t size)
{
    const char *text;
    int r = sd_bus_message_read(m, "v", "s", &text);
    if (r >= 0)
        (void)snprintf(ret_text, size, "%s", text); /* states are short words */
    return r;
}

/* Takes a property's value, or skips it. */
static int read_property(sd_bus_message *m, const char *name, struct unit_facts *f)
{
    const struct {
        const char *name;
        char *text;
        size_t size;
    } texts[] = {{"ActiveState", f->active, sizeof(f->active)},
                 {"Restart", f->restart, sizeof(f->restart)},
                 {"User", f->user, sizeof(f->user)},
                 {"Result", f->result, sizeof(f->result)}};
    const struct {
        const char *name, *type;
        void *number;
    } numbers[] = {{"MainPID", "u", &f->main_pid},
                   {"DynamicUser", "b", &f->dynamic_user},
                   {"ExecMainPID", "u", &f->last_pid},
                   {"ExecMainCode", "i", &f->code},
                   {"ExecMainStatus", "i", &f->status}};
    char load[16];
    for (size_t i = 0; i < sizeof(texts) / sizeof(texts[0]); i++) {
        if (strcmp(name, texts[i].name) == 0)
            return unit_read_text(m, texts[i].text, texts[i].size);
    }
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++) {
        if (strcmp(name, numbers[i].name) == 0)
            return sd_bus_message_read(m, "v", numbers[i].type, numbers[i].number);
    }
    if (strcmp(name, "LoadState") != 0)
        return sd_bus_message_skip(m, "v");
    int r = unit_read_text(m, load, sizeof(load));
    f->loaded = r >= 0 && strcmp(load, "loaded") == 0;
    return r;
}

static int read_facts(sd_bus_message *m, struct unit_facts *ret_facts)
{
    struct unit_facts f = {0};
    const char *name;
    int r = sd_bus_message_enter_container(m, 'a', "{sv}");
    while (r >= 0 && (r = sd_bus_message_enter_container(m, 'e', "sv")) > 0) {
        r = sd_bus_message_read(m, "s", &name);
        if (r >= 0)
            r = read_property(m, name, &f);
        if (r >= 0)
            r = sd_bus_message_exit_container(m);
    }
    if (r < 0)
        return r;
    *ret_facts = f;
    return 0;
}

static int on_facts(sd_bus_message *m, void *ctx, sd_bus_error *ret_error)
{
    struct unit_call *c = ctx;
    struct unit_facts f;
    (void)ret_error;
    if (!take_answer(c, m))
        return 0;
    int r = read_facts(m, &f);
    if (r < 0)
        unit_fail(c, r);
    else
        unit_finish(c, 0, &f, "");
    return 0;
}

static int on_changed(sd_bus_message *m, void *ctx, sd_bus_error *ret_error)
{
    struct unit *u = ctx;
    (void)m;
    (void)ret_error;
    u->changed(u->changed_ctx);
    return 0;
}

/* Signals are a help, not a need: while a change is awaited, systemd is also asked now and then. */
static void subscribe(struct unit *u, sd_bus *bus)
{
    if (u->session == u->all->session)
        return;
    u->match = sd_bus_slot_unref(u->match);
    if (sd_bus_match_signal_async(bus, &u->match, MANAGER, u->path, PROPERTIES, "PropertiesChanged",
                                  on_changed, NULL, u) < 0 ||
        sd_bus_call_method_async(bus, NULL, MANAGER, MANAGER_AT, MANAGER_IF, "Subscribe", NULL,
                                 NULL, "") < 0)
        return;
    u->session = u->all->session;
}

static void ask_facts(struct unit_call *c, sd_bus *bus)
{
    c->slot = sd_bus_slot_unref(c->slot);
    int r = sd_bus_call_method_async(bus, &c->slot, MANAGER, c->unit->path, PROPERTIES, "GetAll",
                                     on_facts, c, "s", "");
    if (r < 0)
        unit_fail(c, r);
}

static int on_loaded(sd_bus_message *m, void *ctx, sd_bus_error *ret_error)
{
    struct unit_call *c = ctx;
    struct unit *u = c->unit;
    const char *path;
    (void)ret_error;
    if (!take_answer(c, m))
        return 0;
    int r = sd_bus_message_read(m, "o", &path);
    if (r < 0 || strlen(path) >= sizeof(u->path)) {
        unit_fail(c, r < 0 ? r : -ENAMETOOLONG);
        return 0;
    }
    sd_bus *bus = sd_bus_message_get_bus(m);
    (void)snprintf(u->path, sizeof(u->path), "%s", path);
    subscribe(u, bus);
    ask_facts(c, bus);
    return 0;
}

/* NULL when there is no connection; then cb has been called. */
static sd_bus *unit_begin(struct unit *u, enum call_kind kind, unit_fn cb, void *ctx)
{
    struct unit_call *c = &u->call[kind];
    sd_bus *bus = NULL;
    unit_forget(c);
    *c = (struct unit_call){.unit = u, .cb = cb, .ctx = ctx};
    int r = get_bus(u->all, &bus);
    if (r < 0)
        unit_fail(c, r);
    return r < 0 ? NULL : bus;
}

/* Loaded each time: a unit without a reference is forgotten, and its file may have changed. */
void unit_ask(struct unit *u, unit_fn cb, void *ctx)
{
    struct unit_call *c = &u->call[CALL_ASK];
    sd_bus *bus = unit_begin(u, CALL_ASK, cb, ctx);
    int r = !bus ? 0
                 : sd_bus_call_method_async(bus, &c->slot, MANAGER, MANAGER_AT, MANAGER_IF,
                                            "LoadUnit", on_loaded, c, "s", u->name);
    if (r < 0)
        unit_fail(c, r);
}

static int on_done(sd_bus_message *m, void *ctx, sd_bus_error *ret_error)
{
    struct unit_call *c = ctx;
    (void)ret_error;
    if (take_answer(c, m))
        unit_finish(c, 0, NULL, "");
    return 0;
}

void unit_start(struct unit *u, unit_fn cb, void *ctx)
{
    struct unit_call *c = &u->call[CALL_ASK];
    sd_bus *bus = unit_begin(u, CALL_ASK, cb, ctx);
    int r = !bus ? 0
                 : sd_bus_call_method_async(bus, &c->slot, MANAGER, MANAGER_AT, MANAGER_IF,
                                            "StartUnit", on_done, c, "ss", u->name, "replace");
    if (r < 0)
        unit_fail(c, r);
}

void unit_kill(struct unit *u, bool all, int sig, unit_fn cb, void *ctx)
{
    struct unit_call *c = &u->call[CALL_KILL];
    sd_bus *bus = unit_begin(u, CALL_KILL, cb, ctx);
    int r = !bus ? 0
                 : sd_bus_call_method_async(bus, &c->slot, MANAGER, MANAGER_AT, MANAGER_IF,
                                            "KillUnit", on_done, c, "ssi", u->name,
                                            all ? "all" : "main", (int32_t)sig);
    if (r < 0)
        unit_fail(c, r);
}

void unit_stop(struct unit *u)
{
    sd_bus *bus = NULL;
    if (get_bus(u->all, &bus) >= 0) /* else it is not stopped, and is found again */
        (void)sd_bus_call_method_async(bus, NULL, MANAGER, MANAGER_AT, MANAGER_IF, "StopUnit", NULL,
                                       NULL, "ss", u->name, "replace");
}

/* Environment files: systemd splits an unbraced $NAME at white space, with backslashes and quotes
 * taken away; the file's own quotes take away another layer. */

int unit_put_word(struct ek_buf *out, const char *word)
{
    if (out->len > 0)
        (void)ek_buf_puts(out, " ");
    if (!*word)
        return ek_buf_puts(out, "''");
    for (const char *c = word; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127)
            return -EBADMSG;
        if (strchr(" \"'\\", *c))
            (void)ek_buf_puts(out, "\\");
        (void)ek_buf_add(out, c, 1);
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

int unit_put_line(struct ek_buf *out, const char *name, const char *value)
{
    (void)ek_buf_printf(out, "%s=\"", name);
    for (const char *c = value; *c; c++) {
        if ((unsigned char)*c < ' ' || *c == 127)
            return -EBADMSG;
        if (strchr("\"\\`$", *c))
            (void)ek_buf_puts(out, "\\");
        (void)ek_buf_add(out, c, 1);
    }
    return ek_buf_puts(out, "\"\n");
}
