/*
 * `evenkeelctl bench-fit`: the guides' half hour of trying settings as a program. It drives a load,
 * raises the live limit, with no restart for each trial, and says which setting to keep; with
 * --restart also which memory share, token budget, block size and type, one after the other. Where
 * limits are not live each of them is a restart, too.
 */
#include <curl/curl.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/fit_show.h"
#include "supervisor/ctl/fit_target.h"
#include "supervisor/ctl/verb.h"

#define VALUES_MOST 8
#define LOSS        0.05

#define AT(field) offsetof(struct fit_options, field)
#define NUMBER(n, at_, min_, max_, def_, help_)                                                    \
    {                                                                                              \
        .name = (n), .type = OPT_UINT, .at = (at_), .min = (min_), .max = (max_), .def = (def_),   \
        .help = (help_)                                                                            \
    }
#define SHARE(n, at_, min_, max_, def_, help_)                                                     \
    {                                                                                              \
        .name = (n), .type = OPT_FRACTION, .at = (at_), .min = (min_), .max = (max_),              \
        .def = (def_), .help = (help_)                                                             \
    }
#define TIME(n, at_, min_, max_, def_, help_)                                                      \
    {                                                                                              \
        .name = (n), .type = OPT_SECONDS, .at = (at_), .min = (min_), .max = (max_),               \
        .def = (def_), .help = (help_)                                                             \
    }
#define TEXT(n, at_, def_, help_)                                                                  \
    {                                                                                              \
        .name = (n), .type = OPT_STRING, .at = (at_), .def = (def_), .help = (help_)               \
    }
static const struct ek_opt table[] = {
    NUMBER("start", AT(start), 1, 65536, "8", "Sequences at once to begin with."),
    NUMBER("step", AT(step), 1, 4096, "4", "How many more at each step."),
    NUMBER("max-num-seqs", AT(ceiling), 1, 65536, NULL,
           "Try no limit above this; the server's own ceiling holds in any case."),
    TIME("settle", AT(settle_s), 0, 600, "5", "Time for a new limit to show, not measured."),
    TIME("measure", AT(measure_s), 0.25, 3600, "10", "Time that each step is measured for."),
    SHARE("use-low", AT(use_low), 0.05, 1, "0.85",
          "The search ends when the KV cache is used "
          "between this ..."),
    SHARE("use-high", AT(use_high), 0.05, 1, "0.90", "... and this share."),
    SHARE("preemptions", AT(preemptions), 0, 1000, "0.2",
          "More preemptions a second than this are too many."),
    TIME("itl", AT(gap_s), 0, 3600, "0",
         "Promise: the 95th percentile of the time between tokens; more is too much. 0: none."),
    NUMBER("prompt", AT(prompt), 1, 1000000, "256", "Tokens of each prompt of the load."),
    NUMBER("output", AT(output), 1, 1000000, "128", "Tokens of each answer of the load."),
    NUMBER("clients", AT(clients), 1, 10000, NULL,
           "Clients with one request at a time; without it a quarter more than the ceiling."),
    TEXT("trace", AT(trace), NULL,
         "A recorded load instead (Azure, Mooncake or Vidur form): as evenkeel-bench serve."),
    SHARE("speed", AT(speed), 0.001, 100000, "1", "Plays the trace so many times as fast."),
    {.name = "apply",
     .type = OPT_BOOL,
     .at = AT(apply),
     .help = "Leave the limit that was found, instead of putting the old one back."},
    {.name = "json", .alias = "j", .type = OPT_BOOL, .at = AT(json), .help = "Answer in JSON."},
    {.name = "restart",
     .type = OPT_BOOL,
     .at = AT(restart),
     .help = "Try memory share, token budget, block size and type too: evenkeeld restarts the "
             "server for each, and for each limit where limits are not live."},
    TEXT("shares", AT(shares), "0.80,0.90", "With --restart: memory shares to try."),
    TEXT("batched-tokens", AT(tokens), "",
         "With --restart: token budgets of a step to try, such as 2048,8192."),
    TEXT("block-sizes", AT(block_sizes), "16,32", "With --restart: block sizes to try."),
    TEXT("dtypes", AT(dtypes), "", "With --restart: types to try, such as bfloat16,float32."),
    TIME("wait", AT(wait_s), 1, 3600, "120", "With --restart: longest wait for a start."),
    {.name = "server",
     .alias = "s",
     .type = OPT_STRING,
     .at = AT(server),
     .help = "The same as the word SERVER."},
    TEXT("socket", AT(socket), NULL, "The socket of evenkeeld."),
    TEXT("control", AT(control), NULL,
         "Instead of evenkeeld: the control socket of an evenkeel-server; with --url."),
    TEXT("url", AT(url), NULL, "Where the server answers, http://host:port."),
    {0}};

static volatile int stop; /* the signal's flag */

static void on_signal(int number)
{
    (void)number;
    stop = 1;
}

struct fit_trial {
    const char *key, *flag;
    char *value[VALUES_MOST];
    uint32_t count, chosen;
    bool text;
};

struct fit {
    struct fit_options o;
    struct fit_target t;
    struct limit_search search, best;
    json_t *trials; /* what was tried by restarts */
};

static void bench_fit_say(const struct fit *f, struct ek_buf *out)
{
    if (!f->o.json && ek_buf_ok(out) && out->data) {
        (void)fputs(out->data, stdout);
        (void)fflush(stdout);
    }
    ek_buf_clear(out);
}

/* One limit search; each row is shown as it comes. */
static int fit_search_limit(struct fit *f)
{
    struct ek_buf out = {0};
    int r = 0;
    limit_search_init(&f->search,
                      &(struct limit_search_params){.start = (uint32_t)f->o.start,
                                                    .step = (uint32_t)f->o.step,
                                                    .ceiling = f->t.ceiling,
                                                    .use_low = f->o.use_low,
                                                    .use_high = f->o.use_high,
                                                    .preemptions_most = f->o.preemptions,
                                                    .gap_most_s = f->o.gap_s,
                                                    .loss = LOSS});
    fit_show_head(&out);
    bench_fit_say(f, &out);
    while (r == 0 && f->search.end == LIMIT_SEARCH_ON) {
        struct limit_search_step s;
        r = fit_measure(&f->t, limit_search_next(&f->search), &stop, &s);
        if (r == -ETIMEDOUT && f->search.count && !stop) { /* what started before counts */
            f->search.end = LIMIT_SEARCH_HARM;
            (void)snprintf(f->search.why, sizeof(f->search.why),
                           "it does not start with %u sequences", limit_search_next(&f->search));
            r = 0;
            break;
        }
        if (r < 0)
            break;
        limit_search_note(&f->search, &s);
        fit_show_step(&f->search.steps[f->search.count - 1], &out);
        bench_fit_say(f, &out);
    }
    ek_buf_done(&out);
    return r;
}

/* ---- --restart ---- */

/* Cuts "a,b" into words; the text is changed. */
static int bench_fit_split(char *text, struct fit_trial *t)
{
    for (char *at = text, *next; at && *at; at = next) {
        next = strchr(at, ',');
        if (next)
            *next++ = '\0';
        if (t->count == VALUES_MOST)
            return -E2BIG;
        t->value[t->count++] = at;
    }
    return 0;
}

static json_t *trial_json(const struct fit_trial *all, size_t count)
{
    json_t *o = json_object();
    for (size_t i = 0; o && i < count; i++) {
        const char *v = all[i].count ? all[i].value[all[i].chosen] : NULL;
        if (v)
            (void)json_object_set_new(o, all[i].key,
                                      all[i].text ? json_string(v) : json_real(strtod(v, NULL)));
    }
    return o;
}

static double score(const struct limit_search *c)
{
    const struct limit_search_step *s = limit_search_at(c, limit_search_keep(c));
    return s ? s->tokens_s : 0;
}

/* Restarts with the settings that are chosen, searches the limit, and keeps the best. */
static int try_one(struct fit *f, const struct fit_trial *all, size_t count, double *ret_score)
{
    json_t *settings = trial_json(all, count);
    char *text = settings ? json_dumps(settings, JSON_PRESERVE_ORDER) : NULL;
    if (!f->o.json)
        (void)printf("\nRestarting with %s%s\n", text ? text : "?",
                     f->t.live ? "" : " and each limit");
    (void)fflush(stdout);
    free(text);
    fit_unload(&f->t);
    f->t.settings = settings;
    int r = !settings ? -ENOMEM : f->t.live ? fit_restart(&f->t, settings) : 0;
    if (r == 0 && f->t.live)
        r = fit_load(&f->t);
    if (r == 0)
        r = fit_search_limit(f);
    bool refused = r == -ETIMEDOUT;
    f->t.settings = NULL;
    *ret_score = r == 0 ? score(&f->search) : 0;
    if (refused && !f->o.json)
        (void)printf("%s\n", f->t.error);
    if (r == 0 || refused)
        (void)json_array_append_new(f->trials,
                                    json_pack("{s:O, s:o}", "settings", settings, "climb",
                                              refused ? json_null() : fit_json(&f->search)));
    json_decref(settings);
    return refused && !stop ? 0 : r;
}

/* One setting after the other: each value with the best of those before it. Without any value there
 * is one limit search with the server's own. */
static int search_all(struct fit *f, struct fit_trial *all, size_t count, double *ret_best)
{
    double best = -1, got;
    int r = 0;
    for (size_t i = 0; i < count && r == 0; i++) {
        uint32_t winner = all[i].chosen;
        for (uint32_t v = 0; v < all[i].count && r == 0; v++) {
            if (best >= 0 && v == 0)
                continue; /* it was in the trial before */
            all[i].chosen = v;
            r = try_one(f, all, count, &got);
            if (r == 0 && got > best * (1 + (best > 0 ? 0.02 : 0))) { /* not by noise alone */
                best = got;
                winner = v;
                f->best = f->search;
            }
        }
        all[i].chosen = winner;
    }
    if (r == 0 && best < 0) {
        r = try_one(f, all, count, &best);
        f->best = f->search;
    }
    *ret_best = best;
    return r;
}

static int search(struct fit *f)
{
    struct fit_trial all[] = {{.key = "gpu_memory_utilization", .flag = "--gpu-memory-utilization"},
                              {.key = "max_num_batched_tokens", .flag = "--max-num-batched-tokens"},
                              {.key = "block_size", .flag = "--block-size"},
                              {.key = "dtype", .flag = "--dtype", .text = true}};
    enum { COUNT = sizeof(all) / sizeof(all[0]) };
    char *lists[COUNT] = {f->o.shares, f->o.tokens, f->o.block_sizes, f->o.dtypes};
    double best = -1;
    int r = 0;
    for (size_t i = 0; i < COUNT && r == 0; i++)
        r = bench_fit_split(lists[i], &all[i]);
    if (r == 0)
        r = search_all(f, all, COUNT, &best);
    if (!f->o.json && r == 0)
        (void)puts("\nBest of the trials:");
    for (size_t i = 0; i < COUNT && r == 0 && !f->o.json; i++)
        if (all[i].count)
            (void)printf("  %s %s\n", all[i].flag, all[i].value[all[i].chosen]);
    if (r == 0 && best > 0)
        f->search = f->best;
    char why[sizeof(f->t.error)];
    memcpy(why, f->t.error, sizeof(why));
    fit_unload(&f->t);
    if (!f->o.json)
        (void)puts("Restarting with the settings of the configuration; the best go there.");
    if (fit_restart(&f->t, NULL) == 0)
        memcpy(f->t.error, why, sizeof(why));
    return r;
}

static int bench_fit_finish(struct fit *f)
{
    struct ek_buf out = {0};
    uint32_t keep = limit_search_knee(&f->search);
    if (f->o.json) {
        json_t *j = fit_json(&f->search);
        if (j && f->trials)
            (void)json_object_set(j, "trials", f->trials);
        bool ok = j && json_dumpf(j, stdout, JSON_INDENT(2) | JSON_PRESERVE_ORDER) == 0 &&
                  putchar('\n') != EOF;
        json_decref(j);
        return ok && keep ? CTL_OK : CTL_REFUSED;
    }
    fit_show_plot(&f->search, &out);
    fit_show_end(&f->search, &out);
    int code = verb_print_buf(&out);
    if (f->o.apply && keep)
        (void)printf("The limit is %u now; --max-num-seqs keeps it over a restart.\n", keep);
    else if (f->t.live)
        (void)printf("The limit is %u again.\n", f->t.before);
    else
        (void)puts("It has its own flags again.");
    return code != CTL_OK ? code : keep ? CTL_OK : CTL_REFUSED;
}

static int bench_fit(struct fit *f, const char *name)
{
    int r = fit_open(&f->t, &f->o, name);
    if (r == 0 && !f->o.json)
        (void)printf("%s%sat %s, limit %u, searching %sup to %u; %s\n", f->t.name,
                     f->t.name[0] ? " " : "", f->t.url, f->t.before,
                     f->t.live ? "" : "by restarts ", f->t.ceiling,
                     f->o.trace ? f->o.trace : "a closed loop");
    if (r == 0 && f->o.restart) {
        f->trials = json_array();
        r = search(f);
    } else if (r == 0) {
        r = fit_load(&f->t);
        if (r == 0)
            r = fit_search_limit(f);
    }
    uint32_t keep = r == 0 && f->o.apply ? limit_search_knee(&f->search) : 0;
    char why[sizeof(f->t.error)];
    memcpy(why, f->t.error, sizeof(why));
    fit_close(&f->t, keep);
    int code = CTL_REFUSED;
    if (stop)
        (void)fprintf(stderr, "evenkeelctl bench-fit: stopped; the limit is what it was\n");
    else if (r < 0)
        (void)fprintf(stderr, "evenkeelctl bench-fit: %s\n", why[0] ? why : strerror(-r));
    else
        code = bench_fit_finish(f);
    json_decref(f->trials);
    return stop ? 130 : r == -ECONNREFUSED ? CTL_UNREACHED : code;
}

static int bench_fit_run(void *options, char *name)
{
    static struct fit f;
    const struct sigaction action = {.sa_handler = on_signal};

    f.o = *(const struct fit_options *)options;
    if (f.o.use_low > f.o.use_high) {
        (void)fprintf(stderr, "evenkeelctl bench-fit: --use-low %g is above --use-high %g\n",
                      f.o.use_low, f.o.use_high);
        return CTL_USAGE;
    }
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK)
        return CTL_REFUSED;
    (void)sigaction(SIGINT, &action, NULL);
    (void)sigaction(SIGTERM, &action, NULL);
    const int code = bench_fit(&f, name ? name : f.o.server);
    curl_global_cleanup();
    return code;
}

const struct verb verb_bench_fit = {
    .name = "bench-fit",
    .word = "[SERVER]",
    .about = "search the limit that fits, under load",
    .help =
        "Drives a load at a server (of evenkeeld, or --control), begins with few sequences and\n"
        "raises the live limit until 85 to 90 % of the KV cache are used or something suffers:\n"
        "preemptions, tokens too far apart, fewer tokens a second. Shows each step, the curve\n"
        "and the setting to keep, and puts the old limit back. With --restart it searches the\n"
        "memory share, token budget, block size and type as well. A server without live limits\n"
        "(a vLLM without the companion) wants --restart: each limit is a start flag then.",
    .options = table,
    .options_bytes = sizeof(struct fit_options),
    .run = bench_fit_run};
