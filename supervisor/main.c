/*
 * evenkeeld: reads the command line, then checks, replays or runs the loop. systemd or an operator
 * starts it.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/log.h"
#include "common/sandbox.h"
#include "supervisor/config/options.h"
#include "supervisor/dryrun.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/io/child_run.h"
#include "supervisor/law/reasons.h"
#include "supervisor/loop.h"
#include "supervisor/servers/replay.h"
#include "supervisor/web/expo.h"

static int evenkeeld_print(int r, struct ek_buf *out)
{
    if (r == 0)
        (void)fwrite(out->data, 1, out->len, stdout); /* tested by the flush below */
    ek_buf_done(out);
    if (r == 0 && fflush(stdout) == 0)
        return EK_EXIT_OK;
    (void)fprintf(stderr, "evenkeeld: %s\n", ek_strerror(r ? r : -errno));
    return EK_EXIT_INTERNAL;
}

static int print_check(const struct config *c)
{
    int code = EK_EXIT_OK;
    size_t bad = 0;
    if (c->unused[0])
        (void)printf("note: '%s' below servers: has no file in %s\n", c->unused, c->servers_dir);
    (void)printf("configuration of evenkeeld: %zu server%s, status page %s, socket %s\n", c->count,
                 c->count == 1 ? "" : "s", c->listen, c->socket);
    for (size_t i = 0; i < c->count; i++) {
        const struct server_config *s = &c->servers[i];
        (void)printf("  %s (%s, %s) at %s port %u:", s->name, s->engine, s->mode, s->host,
                     (unsigned)s->port);
        if (s->attach)
            (void)printf(" attached to %s", s->attach);
        for (char **a = s->argv; a && *a; a++)
            (void)printf(" %s", *a);
        (void)printf("\n");
        const struct dialect_gone *g;
        for (size_t at = 0; (g = dialect_gone(s->dialect, s->argv, &at));)
            (void)printf("note: %s: newer versions of %s end at %s: %s\n", s->name, s->engine,
                         g->flag, g->instead);
    }
    (void)fflush(stdout); /* tested by the next one */
    for (size_t i = 0; i < c->count; i++) {
        int r = dryrun_flags(&c->servers[i]);
        code = r ? r : code;
        bad += r != 0;
    }
    /* The verdict comes last, and once: of all that was looked at. */
    if (bad)
        (void)printf("the configuration is not good: %zu of %zu server%s would not start\n", bad,
                     c->count, c->count == 1 ? "" : "s");
    else
        (void)printf("configuration of evenkeeld is good: %zu server%s\n", c->count,
                     c->count == 1 ? "" : "s");
    return fflush(stdout) == 0 ? code : EK_EXIT_INTERNAL;
}

/* Which constants a replay has: those of a server in the configuration, if there is one. */
static int replay_setup(const struct config *c, struct replay_setup *ret_setup)
{
    struct replay_setup setup = {.dialect = dialect_at(0)};
    policy_defaults(&setup.params);
    setup.params.seqs_min = setup.params.seqs_max = 0; /* as recorded */
    setup.params.tokens_min = setup.params.tokens_max = 0;
    if (c->count > 0) {
        const struct server_config *s = c->count == 1 ? &c->servers[0] : config_find(c, c->name);
        if (!s) {
            (void)fprintf(stderr, "evenkeeld: no server '%s' in %s; say which one with --name\n",
                          c->name, c->file);
            return -EBADMSG;
        }
        setup.dialect = s->dialect;
        setup.server = s->name;
        setup.fixed = true;
        setup.params = s->policy;
        setup.params.seqs_min = (uint32_t)s->seqs_min;
        setup.params.seqs_max = (uint32_t)s->seqs_max;
        setup.params.tokens_min = (uint32_t)s->tokens_min;
        setup.params.tokens_max = (uint32_t)s->tokens_max;
    }
    *ret_setup = setup;
    return 0;
}

static int main_replay(const struct config *c)
{
    struct replay_setup setup;
    struct ek_fault fault = {0};
    if (replay_setup(c, &setup) < 0)
        return EK_EXIT_USAGE;
    FILE *in = strcmp(c->replay, "-") == 0 ? stdin : fopen(c->replay, "re");
    if (!in) {
        (void)fprintf(stderr, "evenkeeld: --replay: cannot open %s: %s\n", c->replay,
                      ek_strerror(-errno));
        return EK_EXIT_USAGE;
    }
    int r = replay_run(&setup, in, stdout, &fault);
    if (in != stdin)
        (void)fclose(in); /* only read */
    if (r == 0 && fflush(stdout) == 0)
        return EK_EXIT_OK;
    (void)fprintf(stderr, "evenkeeld: --replay: %s: %s\n", c->replay,
                  r == -EBADMSG ? fault.msg : ek_strerror(r ? r : -errno));
    return r == -EBADMSG ? EK_EXIT_USAGE : EK_EXIT_INTERNAL;
}

/* What is asked for instead of running. */
static int print_and_end(struct config *c)
{
    struct ek_buf out = {0};
    if (c->help)
        return evenkeeld_print(config_help(&out), &out);
    if (c->version) {
        (void)printf("evenkeeld %s\n", EK_VERSION);
        return EK_EXIT_OK;
    }
    if (c->print_metrics)
        return evenkeeld_print(expo_names(&out), &out);
    if (c->print_options)
        return evenkeeld_print(config_reference(ek_opt_format(c->print_options), &out), &out);
    if (c->print_reasons)
        return evenkeeld_print(reasons_print(c->print_reasons, &out), &out);
    if (c->replay)
        return main_replay(c);
    if (c->check_config)
        return print_check(c);
    return dryrun(c);
}

static int daemon_run(struct config *c, int argc, char **argv)
{
    bool ends = c->help || c->version || c->print_metrics || c->print_options || c->print_reasons ||
                c->replay || c->check_config || c->dry_run;
    if (ends) {
        if (loop_signals(SIG_UNBLOCK) < 0) /* its caller may end it with a signal */
            return EK_EXIT_INTERNAL;
        return print_and_end(c);
    }

    enum ek_log_level level = EK_LOG_INFO;
    (void)ek_log_parse_level(c->log_level, &level); /* the table has checked it */
    ek_log_open("evenkeeld", level);
    /* The reader of the log may go away; a file may reach its most (ulimit -f, LimitFSIZE=): what
     * cannot be written is said by the call. Never fails. */
    if (signal(SIGPIPE, SIG_IGN) == SIG_ERR || signal(SIGXFSZ, SIG_IGN) == SIG_ERR)
        return EK_EXIT_INTERNAL;
    if (c->dumpable && ek_sandbox_dumpable(true) == 0)
        ek_log(EK_LOG_WARNING, "dumpable: others of this user may read evenkeeld's memory, and the "
                               "kernel may write its core");
    struct config *kept = malloc(sizeof(*kept));
    if (!kept)
        return EK_EXIT_INTERNAL;
    *kept = *c;
    *c = (struct config){0};
    return loop_run(kept, argc, argv);
}

int main(int argc, char **argv)
{
    struct config c = {0};
    struct ek_fault fault = {0};
    if (argc > 1 && strcmp(argv[1], CHILD_RAISED) == 0)
        return child_exec_raised(argc - 2, argv + 2);
    if (loop_signals(SIG_BLOCK) < 0 || ek_sandbox_dumpable(false) < 0)
        return EK_EXIT_INTERNAL;
    int r = config_parse(argc, argv, &c, &fault);
    if (r < 0) {
        (void)fprintf(stderr, "evenkeeld: %s\n", r == -EBADMSG ? fault.msg : ek_strerror(r));
        if (r != -EBADMSG)
            return EK_EXIT_INTERNAL;
        return fault.at > 0 ? EK_EXIT_CONFIG : EK_EXIT_USAGE;
    }
    r = daemon_run(&c, argc, argv);
    config_free(&c);
    return r;
}
