/*
 * The table of evenkeelctl's verbs, and all that is made from it: the choice by the first word,
 * flags, --help, completion and the man page. main.c asks here first; a word that no verb has goes
 * to args.c. A new verb is a row in this table and a file verb_NAME.c.
 */
#include "supervisor/ctl/verb.h"

#include <errno.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/ctl/exits.h"

static const struct verb *const verbs[] = {
    &verb_top,        &verb_diagnose, &verb_plan,    &verb_preflight, &verb_recover,
    &verb_bench_fit,  &verb_setup,    &verb_snippet, &verb_events,    &verb_oom,
    &verb_postmortem, &verb_bundle,   &verb_debug,   &verb_remedies};
#define HELP_WIDTH 78
#define VERBS      (sizeof(verbs) / sizeof(verbs[0]))

/* Words that an option takes: 2 with its value, 1 alone, 0 where it is none. */
static int option_words(const char *word)
{
    static const char *const valued[] = {"--socket", "--server", "-s",       "--limit",
                                         "-n",       "--reason", "--timeout"};
    for (size_t i = 0; i < sizeof(valued) / sizeof(valued[0]); i++) {
        if (strcmp(word, valued[i]) == 0)
            return 2;
    }
    return word[0] == '-';
}

static bool knows(const struct verb *v, const char *name)
{
    for (const struct ek_opt *o = v->options; o->name; o++) {
        if (strcmp(o->name, name) == 0)
            return true;
    }
    return false;
}

const struct verb *verb_find(int *argc, char **argv)
{
    int at = 1, socket = 0;
    for (int n; at < *argc && (n = option_words(argv[at])) > 0; at += n)
        socket = strcmp(argv[at], "--socket") == 0 && at + 2 < *argc ? at : socket;
    for (size_t i = 0; at < *argc && i < VERBS; i++) {
        if (strcmp(argv[at], verbs[i]->name) != 0)
            continue;
        char *name = argv[at];
        memmove(argv + 2, argv + 1, (size_t)(at - 1) * sizeof(*argv));
        argv[1] = name;
        if (socket && !knows(verbs[i], "socket")) {
            memmove(argv + socket + 1, argv + socket + 3,
                    (size_t)(*argc - socket - 2) * sizeof(*argv)); /* and the NULL behind them */
            *argc -= 2;
        }
        return verbs[i];
    }
    return NULL;
}

const struct verb *verb_at(uint32_t i)
{
    return i < VERBS ? verbs[i] : NULL;
}

void verb_list(struct ek_buf *out)
{
    for (size_t i = 0; i < VERBS; i++) {
        char name[64];
        (void)snprintf(name, sizeof(name), "%s %s", verbs[i]->name,
                       verbs[i]->word ? verbs[i]->word : "");
        (void)ek_buf_printf(out, "  %-25s %s\n", name, verbs[i]->about);
    }
}

void verb_help(const struct verb *v, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "Usage: evenkeelctl %s [OPTION]...%s%s\n\n", v->name,
                        v->word ? " " : "", v->word ? v->word : "");
    ek_buf_wrap(out, v->help, 0, HELP_WIDTH);
    (void)ek_buf_puts(out, "\n");
    (void)ek_opt_write(v->options, EK_OPT_HELP, out);
}

static void print_roff(const struct verb *v, struct ek_buf *out)
{
    (void)ek_buf_printf(out, ".SS evenkeelctl %s %s\n", v->name, v->word ? v->word : "");
    for (const char *c = v->help; *c; c++) {
        if (*c == '-' && c[1] == '-')
            (void)ek_buf_puts(out, "\\-");
        else if (*c == '-' && c > v->help && c[-1] == '-')
            (void)ek_buf_puts(out, "\\-");
        else if (*c == '\\')
            (void)ek_buf_puts(out, "\\e");
        else
            (void)ek_buf_add(out, c, 1);
    }
    (void)ek_buf_puts(out, "\n");
    (void)ek_opt_write(v->options, EK_OPT_ROFF, out);
}

void verb_print(enum ek_opt_format format, struct ek_buf *out)
{
    for (size_t i = 0; i < VERBS; i++) {
        if (format == EK_OPT_ROFF) {
            print_roff(verbs[i], out);
        } else {
            (void)ek_buf_printf(
                out, "%s### evenkeelctl %s\n\n| flag | default | meaning |\n|---|---|---|\n",
                i ? "\n" : "", verbs[i]->name);
            (void)ek_opt_write(verbs[i]->options, EK_OPT_MARKDOWN, out);
        }
    }
}

int verb_print_buf(struct ek_buf *out)
{
    bool ok = ek_buf_ok(out) &&
              (out->len == 0 || fwrite(out->data, 1, out->len, stdout) == out->len) &&
              fflush(stdout) == 0;
    ek_buf_done(out);
    return ok ? CTL_OK : CTL_REFUSED;
}

/* Whether to go on; else help was printed, or what is wrong, and there is an exit code. */
static bool verb_parse(const struct verb *v, void *into, int argc, char **argv, char **ret_word,
                       int *ret_code)
{
    struct ek_fault fault = {0};
    const struct ek_opt_source src = {.table = v->options, .into = into};
    for (int i = 1; i < argc; i++) {
        if (strcmp(argv[i], "--help") == 0 || strcmp(argv[i], "-h") == 0) {
            struct ek_buf out = {0};
            verb_help(v, &out);
            *ret_code = verb_print_buf(&out);
            return false;
        }
    }
    *ret_code = CTL_USAGE;
    for (int i = 1; i < argc && !knows(v, "server"); i++) {
        if (strcmp(argv[i], "-s") != 0 && strcmp(argv[i], "--server") != 0 &&
            strncmp(argv[i], "--server=", 9) != 0)
            continue;
        (void)fprintf(stderr,
                      "evenkeelctl %s: it is about no single server: leave --server (-s) out\n",
                      v->name);
        return false;
    }
    int r = ek_opt_parse(&src, argc, argv, v->word ? ret_word : NULL, &fault);
    if (r < 0)
        (void)fprintf(stderr, "evenkeelctl %s: %s\n", v->name,
                      r == -EBADMSG ? fault.msg : ek_strerror(r));
    return r == 0;
}

int verb_run(const struct verb *v, int argc, char **argv)
{
    char *word = NULL;
    int code = CTL_REFUSED;
    void *options = calloc(1, v->options_bytes);

    if (options && verb_parse(v, options, argc, argv, &word, &code))
        code = v->run(options, word);
    if (options)
        ek_opt_free(v->options, options);
    free(options);
    return code;
}
