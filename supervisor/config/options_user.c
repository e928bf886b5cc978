/*
 * Checks `user` of a server while the configuration is read (options_server.c), so that what cannot
 * work is said at a start or reload and not when the server is restarted at night. The decision is
 * apart from the look-ups: user_refused() gets the facts in a struct and is tested without root.
 */
#include "supervisor/config/options_user.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "common/err.h"
#include "supervisor/config/options.h"
#include "supervisor/engines/dialect.h"

static const char *by_launcher(const struct user_case *c)
{
    bool dynamic = strcmp(c->user, USER_DYNAMIC) == 0;
    if (c->attach)
        return "attach starts nothing: leave out user";
    if (dynamic && !c->systemd)
        return "user dynamic is made by systemd: set launcher: systemd, or name a user";
    if (!dynamic && c->found == 0 && c->uid == c->own && c->own != 0)
        return NULL; /* it is what evenkeeld is */
    if (!dynamic && c->found == 0 && c->uid == 0)
        return "a server that runs as root may do all that evenkeeld may: name another user, or "
               "leave out user";
    if (c->able || dynamic)
        return NULL;
    if (!c->systemd)
        return "only an evenkeeld that runs as root, with CAP_SETUID, CAP_SETGID, CAP_CHOWN, "
               "CAP_KILL and CAP_DAC_OVERRIDE, starts servers as other users: run it so, or leave "
               "out user";
    if (c->control)
        return "its run directory is to be its own: run evenkeeld as root, or leave out user (its "
               "unit has a user of its own by itself)";
    return NULL;
}

bool user_refused(const struct user_case *c, char *why, size_t size)
{
    const char *text = by_launcher(c);
    if (text)
        (void)snprintf(why, size, "%s", text);
    else if (strcmp(c->user, USER_DYNAMIC) == 0 || c->found == 0)
        return false;
    else if (c->found == -ENOENT)
        (void)snprintf(why, size,
                       "there is no user '%.40s' here: make it (useradd --system "
                       "--no-create-home %.40s), or name another one",
                       c->user, c->user);
    else if (c->found == -ETIMEDOUT)
        (void)snprintf(why, size,
                       "user '%.40s' cannot be looked up: no answer for %u s from the databases of "
                       "users (nsswitch.conf): name one of /etc/passwd, or try again",
                       c->user, RUN_AS_FIND_MS / 1000);
    else
        (void)snprintf(why, size, "user '%.40s' cannot be looked up: %s", c->user,
                       ek_strerror(c->found));
    return true;
}

/* As found for a server before it: a slow database is asked once for each user. */
static bool found_before(const struct config *all, const struct server_config *s,
                         struct run_as *ret_user)
{
    for (size_t i = 0; i < all->count && &all->servers[i] != s; i++) {
        if (!all->servers[i].run_as.set || strcmp(all->servers[i].user, s->user) != 0)
            continue;
        *ret_user = all->servers[i].run_as;
        return true;
    }
    return false;
}

int user_check(const struct config *all, struct server_config *s, struct ek_fault *fault)
{
    char why[300];
    struct run_as found = {0};
    if (!s->user)
        return 0;
    struct user_case c = {.user = s->user,
                          .systemd = s->unit != NULL,
                          .attach = s->attach != NULL,
                          .control = s->dialect->control_socket,
                          .able = run_as_able(),
                          .own = geteuid()};
    if (strcmp(s->user, USER_DYNAMIC) != 0 && !found_before(all, s, &found))
        c.found = run_as_find(s->user, &found);
    c.uid = found.uid;
    if (user_refused(&c, why, sizeof(why)))
        return ek_fault_set(fault, "user", "server '%s': %s", s->name, why);
    if (found.set && found.uid != c.own && c.able)
        s->run_as = found;
    return 0;
}
