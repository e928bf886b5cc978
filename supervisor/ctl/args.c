/*
 * Reads the command line. Few options and two levels of words: a table of commands, a loop.
 */
#include "supervisor/ctl/args.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/options.h"
#include "supervisor/ctl/since.h"
#include "supervisor/ctl/verb.h"

#define COUNT_DEFAULT 20
#define WAIT_DEFAULT  600
#define WAIT_MOST     86400
#define HELP_WIDTH    78
#define COUNT_MOST    4096 /* as many as evenkeeld gives */
#define VALUE_MOST    1000000000u

static const char *const knobs[CTL_KNOBS] = {"max_num_running_seqs", "max_num_batched_tokens"};

enum {
    O_SERVER,
    O_SOCKET,
    O_JSON,
    O_LIMIT,
    O_SINCE,
    O_REASON,
    O_PIN,
    O_WAIT,
    O_TIMEOUT,
    O_HELP,
    O_VERSION,
    O_COUNT
};
#define OF(option) (1u << (option))
#define OF_ALL     (OF(O_SERVER) | OF(O_SOCKET) | OF(O_JSON) | OF(O_HELP))
#define OF_WAIT    (OF(O_WAIT) | OF(O_TIMEOUT))
#define WAITS_HELP                                                                                 \
    " With --wait it ends when that is done: 0; 1 if it failed, 4 if it is not done within "       \
    "--timeout (it goes on then). On a terminal it shows how far it is."

#define ENGINE_HELP ""

static const struct args_command commands[] = {
    {"status", NULL, NULL, "one line per server and what was decided last", CMD_STATUS, 0, false,
     false,
     "What each server does now, why requests wait if some do, and what was decided last. In a "
     "pipe the columns never move."},
    {"limits", "get", NULL, "values, ceilings, pins; also without get", CMD_LIMITS_GET, 0, false,
     false, NULL},
    {"limits", "set", "NAME=N...", "set max_num_running_seqs or max_num_batched_tokens",
     CMD_LIMITS_SET, OF(O_REASON) | OF(O_PIN), true, true, NULL},
    {"limits", "pin", "NAME[=N]...", "keep a limit: evenkeeld does not move it", CMD_LIMITS_PIN,
     OF(O_REASON), true, false, NULL},
    {"limits", "unpin", "NAME...", "let evenkeeld move it again", CMD_LIMITS_UNPIN, OF(O_REASON),
     true, false, NULL},
    {"drain", NULL, NULL, "finish what runs, accept nothing new", CMD_DRAIN, OF_WAIT, false, false,
     "What runs and waits finishes, nothing new is accepted, and the process stays: resume takes "
     "it back." WAITS_HELP},
    {"resume", NULL, NULL, "accept requests again; takes a drain or restart back", CMD_RESUME,
     OF_WAIT, false, false, "Ends a drain." WAITS_HELP},
    {"restart", NULL, NULL, "drain, then start again", CMD_RESTART, OF_WAIT, false, false,
     "What runs finishes, then the server is started anew; connections wait meanwhile. Also starts "
     "one that was given up after failures." WAITS_HELP},
    {"rolling-restart", NULL, NULL, "restart, one server at a time", CMD_ROLL, OF_WAIT, false,
     false,
     "As restart, but in its turn: when the other servers are ready and no other one restarts. Ask "
     "it of all at once, and they restart one after the other. Also understood as "
     "roll." WAITS_HELP},
    {"engine", "restart", NULL, "start the engine's process again, without a drain",
     CMD_ENGINE_RESTART, OF_WAIT, false, false,
     "Of a server with --engine-process: its engine is ended between two steps and started again, "
     "with the plug-in that is on disk then; release ends it and frees its memory until acquire. "
     "Requests wait meanwhile (--engine-wait) and lose nothing." WAITS_HELP},
    {"engine", "release", NULL, "end the engine's process, requests wait", CMD_ENGINE_RELEASE,
     OF_WAIT, false, false, ENGINE_HELP},
    {"engine", "acquire", NULL, "start the engine's process that was released", CMD_ENGINE_ACQUIRE,
     OF_WAIT, false, false, ENGINE_HELP},
    {"explain", NULL, NULL, "the last decisions with numbers and reason codes", CMD_EXPLAIN,
     OF(O_LIMIT) | OF(O_SINCE), false, false,
     "What evenkeeld and the engine did, with figures and reason codes (docs/control.md has them "
     "all), the newest last; then what holds now."},
    {"reload", NULL, NULL, "read the configuration again, or say why not", CMD_RELOAD, 0, false,
     false, "All of it or nothing: with an error everything stays as it was."},
    {"help", NULL, "[COMMAND]", "this text, or that of one command", CMD_HELP, 0, false, false,
     NULL},
};
#define COMMANDS (sizeof(commands) / sizeof(commands[0]))

static const struct args_option options[O_COUNT] = {
    [O_SERVER] = {"server", 's', "NAME", "which server, where there are several"},
    [O_SOCKET] = {"socket", 0, "PATH",
                  "evenkeeld's socket (else $EVENKEEL_SOCKET, then\n"
                  "/run/evenkeel/evenkeeld.sock, then\n"
                  "$XDG_RUNTIME_DIR/evenkeel/evenkeeld.sock, then\n"
                  "/tmp/evenkeel-UID/evenkeeld.sock)"},
    [O_JSON] = {"json", 'j', NULL, "print the answer as JSON"},
    [O_LIMIT] = {"limit", 'n', "N", "explain: how many decisions (20; with --since all)"},
    [O_SINCE] = {"since", 0, "WHEN",
                 "explain: from then on, like 2h, today, yesterday,\n"
                 "14:05, 2026-11-22T14:05; other evenkeelds, too"},
    [O_REASON] = {"reason", 0, "TEXT", "limits: said in the journal"},
    [O_PIN] = {"pin", 0, NULL, "limits set: pin as well"},
    [O_WAIT] = {"wait", 'w', NULL, "drain, resume, (rolling-)restart, engine: until it\nis done"},
    [O_TIMEOUT] = {"timeout", 0, "SECONDS", "and no longer (600); --wait goes without saying"},
    [O_HELP] = {"help", 'h', NULL, "a summary, or that of one command"},
    [O_VERSION] = {"version", 0, NULL, "the version"},
};

const struct args_command *args_command_at(uint32_t i)
{
    return i < COMMANDS ? &commands[i] : NULL;
}

const struct args_option *args_option_at(uint32_t i)
{
    return i < O_COUNT ? &options[i] : NULL;
}

const char *args_knob(int knob)
{
    return knobs[knob];
}

static void help_option(struct ek_buf *out, const struct args_option *o)
{
    char head[40];
    (void)snprintf(head, sizeof(head), "--%s %s", o->name, o->takes ? o->takes : "");
    if (o->letter)
        (void)ek_buf_printf(out, "  -%c, %-21s", o->letter, head);
    else
        (void)ek_buf_printf(out, "      %-21s", head);
    for (const char *line = o->about; *line;) {
        size_t n = strcspn(line, "\n");
        (void)ek_buf_printf(out, "%*s%.*s\n", line == o->about ? 1 : 28, "", (int)n, line);
        line += n + (line[n] == '\n');
    }
}

static void help_command(struct ek_buf *out, const struct args_command *c)
{
    char head[48];
    (void)snprintf(head, sizeof(head), "%s %s%s%s", c->word, c->sub ? c->sub : "",
                   c->takes ? " " : "", c->takes ? c->takes : "");
    (void)ek_buf_printf(out, "  %-25s %s\n", head, c->about);
}

static void help_options(struct ek_buf *out, uint32_t which)
{
    (void)ek_buf_puts(out, "\nOptions:\n");
    for (int o = 0; o < O_COUNT; o++) {
        if (which & OF(o))
            help_option(out, &options[o]);
    }
}

/* The commands of that word: their usage, what is to be said of them, their options. */
static bool help_word(const char *word, struct ek_buf *out)
{
    uint32_t which = 0;
    for (size_t i = 0; i < COMMANDS; i++) {
        const struct args_command *c = &commands[i];
        if (strcmp(word, c->word) != 0)
            continue;
        (void)ek_buf_printf(out, "%s evenkeelctl %s%s%s%s%s [OPTION]...\n",
                            which ? "      " : "Usage:", c->word, c->sub ? " " : "",
                            c->sub ? c->sub : "", c->takes ? " " : "", c->takes ? c->takes : "");
        which |= c->options | OF_ALL;
    }
    (void)ek_buf_puts(out, which ? "\n" : "");
    for (size_t i = 0; i < COMMANDS; i++) {
        if (strcmp(word, commands[i].word) != 0)
            continue;
        if (commands[i].help && !commands[i].help[0])
            continue; /* said with the first of its word */
        if (commands[i].help)
            ek_buf_wrap(out, commands[i].help, 0, HELP_WIDTH);
        else
            help_command(out, &commands[i]);
    }
    if (which)
        help_options(out, which);
    return which != 0;
}

/* Of one of the small commands, or of a verb; false if there is none of that name. */
static bool help_topic(const char *topic, struct ek_buf *out)
{
    bool found = help_word(topic, out);
    const struct verb *v;
    for (uint32_t i = 0; !found && (v = verb_at(i)); i++) {
        found = strcmp(topic, v->name) == 0;
        if (found)
            verb_help(v, out);
    }
    return found;
}

void args_help(const char *topic, struct ek_buf *out)
{
    if (topic && help_topic(topic, out))
        return;
    (void)ek_buf_puts(out, "Usage: evenkeelctl [OPTION]... COMMAND\n"
                           "\n"
                           "Shows and steers the servers that evenkeeld supervises.\n"
                           "\n"
                           "Commands:\n");
    for (size_t i = 0; i < COMMANDS; i++)
        help_command(out, &commands[i]);
    (void)ek_buf_puts(out, "\nWith options of their own (evenkeelctl COMMAND --help):\n");
    verb_list(out);
    help_options(out, ~0u);
    (void)ek_buf_puts(out, "\nExit status: 0 done, 1 refused or failed, 2 wrong usage, 3 evenkeeld "
                           "cannot be\nreached, 4 not done within --timeout.\n");
}

static bool args_read_number(const char *text, uint32_t most, uint32_t *ret_value)
{
    uint64_t v = 0;
    if (!*text)
        return false;
    for (; *text; text++) {
        if (*text < '0' || *text > '9')
            return false;
        v = v * 10 + (uint64_t)(*text - '0');
        if (v > most)
            return false;
    }
    *ret_value = (uint32_t)v;
    return v > 0;
}

/* "NAME" or "NAME=N"; kebab case and the flags' names are understood too. */
static int read_knob(const char *word, struct ctl_args *a, struct ek_fault *fault)
{
    static const struct {
        const char *name;
        int knob;
    } names[] = {{"max_num_running_seqs", CTL_SEQS},
                 {"max_num_batched_tokens", CTL_TOKENS},
                 {"max_num_seqs", CTL_SEQS}};
    const char *equals = strchr(word, '=');
    size_t n = equals ? (size_t)(equals - word) : strlen(word);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        bool same = n == strlen(names[i].name);
        for (size_t k = 0; same && k < n; k++)
            same = (word[k] == '-' ? '_' : word[k]) == names[i].name[k];
        if (!same)
            continue;
        int knob = names[i].knob;
        a->knob[knob].named = true;
        if (equals && !args_read_number(equals + 1, VALUE_MOST, &a->knob[knob].value))
            return ek_fault_set(fault, knobs[knob], "%s must be a number from 1 to %u, not '%s'.",
                                knobs[knob], VALUE_MOST, equals + 1);
        return 0;
    }
    return ek_fault_set(fault, "limits", "There is no limit '%.*s'; there are %s and %s.", (int)n,
                        word, knobs[CTL_SEQS], knobs[CTL_TOKENS]);
}

static int args_apply(int option, const char *value, struct ctl_args *a, struct ek_fault *fault)
{
    switch (option) {
    case O_SERVER: a->server = value; break;
    case O_SOCKET: a->socket = value; break;
    case O_JSON: a->json = true; break;
    case O_LIMIT:
        if (!args_read_number(value, COUNT_MOST, &a->count))
            return ek_fault_set(fault, "--limit",
                                "--limit must be a number from 1 to %u, not "
                                "'%s'.",
                                COUNT_MOST, value);
        break;
    case O_SINCE: a->since = value; return since_parse(value, time(NULL), &a->since_s, fault);
    case O_REASON: a->reason = value; break;
    case O_PIN: a->pin = true; break;
    case O_WAIT: a->wait = true; break;
    case O_TIMEOUT:
        a->wait = true;
        if (!args_read_number(value, WAIT_MOST, &a->timeout_s))
            return ek_fault_set(fault, "--timeout",
                                "--timeout must be a number of seconds from 1 to %u, not '%s'.",
                                WAIT_MOST, value);
        break;
    case O_HELP: a->command = CMD_HELP; break;
    case O_VERSION: a->command = CMD_VERSION; break;
    default: break; /* an int, all values are above */
    }
    return 0;
}

/* Reads the option at argv[*i]; moves *i over its value. */
static int read_option(int argc, char *const *argv, int *i, struct ctl_args *a, bool *ret_asked,
                       struct ek_fault *fault)
{
    const char *word = argv[*i];
    bool is_long = word[1] == '-';
    const char *name = word + (is_long ? 2 : 1), *equals = is_long ? strchr(name, '=') : NULL;
    size_t n = equals ? (size_t)(equals - name) : strlen(name);
    for (int o = 0; o < O_COUNT; o++) {
        bool same = is_long ? n == strlen(options[o].name) && !memcmp(name, options[o].name, n)
                            : n == 1 && options[o].letter == name[0];
        if (!same)
            continue;
        const char *value = equals ? equals + 1 : NULL;
        if (options[o].takes && !value) {
            if (*i + 1 >= argc)
                return ek_fault_set(fault, word, "%s needs a value.", word);
            value = argv[++*i];
        }
        if (value && !options[o].takes)
            return ek_fault_set(fault, word, "--%s takes no value.", options[o].name);
        *ret_asked |= o == O_HELP || o == O_VERSION;
        return args_apply(o, value, a, fault);
    }
    const char *near = NULL;
    size_t least = 3;
    for (int o = 0; is_long && o < O_COUNT; o++) {
        size_t d = ek_edit_distance(name, options[o].name);
        near = d < least ? options[o].name : near;
        least = d < least ? d : least;
    }
    if (near)
        return ek_fault_set(fault, word, "There is no option '%s'; did you mean --%s?", word, near);
    return ek_fault_set(fault, word, "There is no option '%s'; evenkeelctl --help lists them.",
                        word);
}

static int refuse_command(const char *word, struct ek_fault *fault)
{
    const char *near = NULL, *next;
    size_t least = 3;
    for (uint32_t i = 0; i < COMMANDS || verb_at(i - COMMANDS); i++) {
        next = i < COMMANDS ? commands[i].word : verb_at(i - (uint32_t)COMMANDS)->name;
        size_t d = ek_edit_distance(word, next);
        near = d < least ? next : near;
        least = d < least ? d : least;
    }
    if (near)
        return ek_fault_set(fault, word, "There is no command '%s'; did you mean %s?", word, near);
    return ek_fault_set(fault, word, "There is no command '%s'; see evenkeelctl --help.", word);
}

static int read_words(char *const *words, int count, struct ctl_args *a, struct ek_fault *fault)
{
    if (count == 0)
        return ek_fault_set(fault, "command",
                            "A command is needed: status, top, limits, drain, "
                            "resume, restart, rolling-restart or explain; see evenkeelctl --help.");
    bool has_subs = false;
    if (count == 1 && strcmp(words[0], "limits") == 0) {
        a->command = CMD_LIMITS_GET;
        return 0;
    }
    if (strcmp(words[0], "help") == 0 && count == 2) {
        struct ek_buf ignored = {0};
        bool found = help_topic(words[1], &ignored);
        ek_buf_done(&ignored);
        if (!found)
            return refuse_command(words[1], fault);
        a->command = CMD_HELP;
        a->topic = words[1];
        return 0;
    }
    for (size_t c = 0; c < COMMANDS; c++) {
        if (strcmp(words[0], commands[c].word) != 0)
            continue;
        has_subs |= commands[c].sub != NULL;
        if (commands[c].sub && (count < 2 || strcmp(words[1], commands[c].sub) != 0))
            continue;
        a->command = commands[c].command;
        int at = commands[c].sub ? 2 : 1;
        if (at < count && !commands[c].takes_knobs)
            return ek_fault_set(fault, words[at], "'%s' is too much after '%s'.", words[at],
                                words[at - 1]);
        if (at == count && commands[c].takes_knobs)
            return ek_fault_set(fault, "limits", "Which limit? %s or %s.", knobs[CTL_SEQS],
                                knobs[CTL_TOKENS]);
        for (; at < count; at++) {
            int r = read_knob(words[at], a, fault);
            if (r < 0)
                return r;
        }
        for (int k = 0; k < CTL_KNOBS; k++) {
            if (commands[c].needs_value && a->knob[k].named && !a->knob[k].value)
                return ek_fault_set(fault, knobs[k], "To which value? %s=N.", knobs[k]);
        }
        return 0;
    }
    if (has_subs)
        return ek_fault_set(fault, words[0],
                            strcmp(words[0], "engine") == 0
                                ? "'engine' is followed by restart, release or acquire."
                                : "'limits' is followed by get, set, pin or unpin.");
    return refuse_command(words[0], fault);
}

int args_parse(int argc, char *const *argv, struct ctl_args *ret_args, struct ek_fault *fault)
{
    struct ctl_args a = {.timeout_s = WAIT_DEFAULT};
    char *words[8];
    int count = 0;
    bool asked = false; /* for help or the version: that wins over everything */
    for (int i = 1; i < argc; i++) {
        if (argv[i][0] == '-' && argv[i][1]) {
            int r = read_option(argc, argv, &i, &a, &asked, fault);
            if (r < 0)
                return r;
        } else if (count == (int)(sizeof(words) / sizeof(words[0]))) {
            return ek_fault_set(fault, argv[i], "'%s' is one word too many.", argv[i]);
        } else {
            words[count++] = argv[i];
        }
    }
    static char rolling[] = "rolling-restart"; /* what it was called before */
    if (count > 0 && strcmp(words[0], "roll") == 0)
        words[0] = rolling;
    if (asked && count > 0)
        a.topic = words[0];
    if (!asked) {
        int r = read_words(words, count, &a, fault);
        if (r < 0)
            return r;
    }
    if (a.count == 0)
        a.count = a.since ? COUNT_MOST : COUNT_DEFAULT;
    *ret_args = a;
    return 0;
}
