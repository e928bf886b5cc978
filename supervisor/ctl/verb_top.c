/*
 * `evenkeelctl top`: all servers of evenkeeld, and every other vLLM that runs on this host or whose
 * address is given, live. Foreign servers are only read: GET /metrics. Here: what is asked and
 * when; board.h keeps it, board_show.h draws it, terminal.h is the terminal.
 */
#include <curl/curl.h>
#include <errno.h>
#include <langinfo.h>
#include <locale.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/path.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/board.h"
#include "supervisor/ctl/board_show.h"
#include "supervisor/ctl/fetch.h"
#include "supervisor/ctl/hosts.h"
#include "supervisor/ctl/screen.h"
#include "supervisor/ctl/terminal.h"
#include "supervisor/ctl/verb.h"

#define TARGETS_MOST 96
#define PARTS_MOST   32
#define LOOK_EVERY   10 /* pictures: what began to listen since */
#define WAIT_MS      1500u
#define PLAIN_COLS   200u /* where no terminal is */

struct top_options {
    char *server, *socket;
    struct ek_strings url;
    bool json, once, no_host;
    double interval_s, price, margin;
    uint64_t count;
};

#define AT(field) offsetof(struct top_options, field)
static const struct ek_opt table[] = {
    {.name = "server",
     .alias = "s",
     .type = OPT_STRING,
     .at = AT(server),
     .help = "Only this one of evenkeeld's, and nothing else."},
    {.name = "url",
     .type = OPT_LIST,
     .at = AT(url),
     .help = "Addresses of further servers, like gpu7:8000; only their /metrics is read."},
    {.name = "no-host",
     .type = OPT_BOOL,
     .at = AT(no_host),
     .help = "Do not look in /proc for vLLM servers of this host."},
    {.name = "once",
     .type = OPT_BOOL,
     .at = AT(once),
     .help = "One picture from two readings, then end."},
    {.name = "json",
     .alias = "j",
     .type = OPT_BOOL,
     .at = AT(json),
     .help = "One JSON object a line and reading."},
    {.name = "interval",
     .alias = "i",
     .type = OPT_SECONDS,
     .at = AT(interval_s),
     .min = 0.2,
     .max = 60,
     .def = "1",
     .help = "From one reading to the next."},
    {.name = "count",
     .alias = "n",
     .type = OPT_UINT,
     .at = AT(count),
     .max = 1e9,
     .def = "0",
     .help = "End after so many pictures; 0 is never."},
    {.name = "price",
     .type = OPT_FRACTION,
     .at = AT(price),
     .max = 1e6,
     .def = "0",
     .help = "What a server costs an hour, for the cost of a million tokens."},
    {.name = "margin",
     .type = OPT_FRACTION,
     .at = AT(margin),
     .max = 100,
     .def = "0",
     .help = "What is added to it: 0.2 is 20 %."},
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "evenkeeld's socket."},
    {0}};

struct target {
    char url[200], found[120], server[40];
    size_t info; /* in the list of evenkeeld's servers, if server */
    bool probe;  /* a port that may be something else: no row before it has shown metrics */
};

struct top {
    const struct top_options *o;
    struct api api;
    bool has_api;
    struct board board;
    struct board_view view;
    json_t *servers, *decisions, *failures; /* the last two by server */
    struct target at[TARGETS_MOST];
    uint32_t targets, looked, turns;
    struct host_server host[HOSTS_MOST];
    uint32_t hosts;
    char error[640];
};

/* ---- what there is ---- */

static bool is_target(const struct top *t, const char *url)
{
    for (uint32_t i = 0; i < t->targets; i++) {
        if (strcmp(t->at[i].url, url) == 0)
            return true;
    }
    return false;
}

static struct target *add_target(struct top *t, const char *url, const char *found)
{
    if (t->targets == TARGETS_MOST || is_target(t, url))
        return NULL;
    struct target *one = &t->at[t->targets++];
    *one = (struct target){0};
    (void)snprintf(one->url, sizeof(one->url), "%s", url);
    (void)snprintf(one->found, sizeof(one->found), "%s", found);
    return one;
}

static json_t *top_ask(struct top *t, const char *name, const char *what)
{
    char path[160];
    json_t *answer = NULL;
    (void)snprintf(path, sizeof(path), "/api/v1/servers/%.40s/%s", name, what);
    return api_call(&t->api, "GET", path, NULL, &answer) < 0 ? json_object() : answer;
}

/* What evenkeeld says of its servers. An answer that does not come leaves the last one. */
static int ask_evenkeeld(struct top *t)
{
    json_t *now = NULL, *s;
    size_t i;
    int r = t->has_api ? api_call(&t->api, "GET", "/api/v1/servers", NULL, &now) : -ECONNREFUSED;
    if (r < 0) {
        (void)snprintf(t->error, sizeof(t->error), "%s", t->api.error);
        return r;
    }
    t->error[0] = '\0';
    json_decref(t->servers);
    json_decref(t->decisions);
    json_decref(t->failures);
    t->servers = now;
    t->decisions = json_object();
    t->failures = json_object();
    json_array_foreach(json_object_get(now, "servers"), i, s)
    {
        const char *name = json_string_value(json_object_get(s, "name"));
        if (!name)
            continue;
        (void)json_object_set_new(t->decisions, name, top_ask(t, name, "decisions?limit=12"));
        (void)json_object_set_new(t->failures, name, top_ask(t, name, "failures"));
    }
    return 0;
}

static void add_ours(struct top *t)
{
    json_t *s;
    size_t i;
    json_array_foreach(json_object_get(t->servers, "servers"), i, s)
    {
        const char *name = json_string_value(json_object_get(s, "name"));
        const char *url = json_string_value(json_object_get(s, "url"));
        if (!name || !url || (t->o->server && strcmp(name, t->o->server) != 0))
            continue;
        struct target *one = add_target(t, url, "evenkeeld");
        if (!one)
            continue;
        (void)snprintf(one->server, sizeof(one->server), "%s", name);
        one->info = i;
    }
}

/* A server of ours listens at its host; another one at the same port of this host is the same. */
static bool has_port(const struct top *t, uint16_t port)
{
    char end[8];
    (void)snprintf(end, sizeof(end), ":%u", port);
    for (uint32_t i = 0; i < t->targets; i++) {
        const char *url = t->at[i].url, *at = strstr(url, "://"), *colon = strrchr(url, ':');
        at = at ? at + 3 : url;
        bool here = strncmp(at, "127.", 4) == 0 || strncmp(at, "localhost", 9) == 0 ||
                    strncmp(at, "0.0.0.0", 7) == 0 || strncmp(at, "[::", 3) == 0;
        if (here && colon && strcmp(colon, end) == 0)
            return true;
    }
    return false;
}

static void add_host(struct top *t)
{
    char url[64], found[160];
    if (t->looked++ % LOOK_EVERY == 0)
        t->hosts = hosts_scan("/proc", t->host);
    t->view.elsewhere = 0;
    for (uint32_t i = 0; i < t->hosts; i++) {
        const struct host_server *h = &t->host[i];
        t->view.elsewhere += h->elsewhere;
        for (uint32_t k = 0; !h->elsewhere && k < h->ports; k++) {
            if (has_port(t, h->port[k]))
                continue;
            (void)snprintf(url, sizeof(url), "http://127.0.0.1:%u", h->port[k]);
            (void)snprintf(found, sizeof(found), "/proc: pid %d, %s", (int)h->pid, h->what);
            struct target *one = add_target(t, url, found);
            if (one)
                one->probe = true;
        }
    }
}

static void list_targets(struct top *t)
{
    t->targets = 0;
    add_ours(t);
    if (t->o->server)
        return;
    for (size_t i = 0; i < t->o->url.count; i++) {
        char url[200], *at = t->o->url.at[i];
        (void)snprintf(url, sizeof(url), "%s%.*s", strstr(at, "://") ? "" : "http://",
                       (int)ek_path_length(at), at);
        (void)add_target(t, url, "--url");
    }
    if (!t->o->no_host)
        add_host(t);
}

/* ---- what it says ---- */

/* "chat", "qwen2-7b:8001", "qwen2-7b:8001/1" */
static void name_row(const struct target *one, struct board_row *r, uint32_t parts)
{
    const char *url = one->url + (strncmp(one->url, "http://", 7) == 0 ? 7 : 0);
    const char *port = strrchr(url, ':'), *model = strrchr(r->part.model, '/');
    model = model && model[1] ? model + 1 : r->part.model; /* org/model: the model */
    if (one->server[0])
        (void)snprintf(r->name, sizeof(r->name), "%.30s", one->server);
    else if (model[0])
        (void)snprintf(r->name, sizeof(r->name), "%.32s%.6s", model, port ? port : "");
    else
        (void)snprintf(r->name, sizeof(r->name), "%.40s", url);
    size_t len = strlen(r->name);
    if (parts > 1)
        (void)snprintf(r->name + len, sizeof(r->name) - len, "/%.10s", r->part.engine);
}

static void dress(struct top *t, const struct target *one, struct board_row *r, uint32_t parts)
{
    name_row(one, r, parts);
    (void)snprintf(r->server, sizeof(r->server), "%s", one->server);
    (void)snprintf(r->found, sizeof(r->found), "%s", one->found);
    r->info = NULL;
    r->decisions = r->failures = NULL;
    if (!one->server[0])
        return;
    r->info = json_array_get(json_object_get(t->servers, "servers"), one->info);
    r->decisions = json_object_get(t->decisions, one->server);
    r->failures = json_object_get(t->failures, one->server);
}

/* evenkeeld has two hours of what a new row shows the last minute of. */
static void seed(struct top *t, const struct target *one, struct board_row *r)
{
    static const char *const names[BOARD_SPARKS] = {"kv_usage", "running", "gen_tps", NULL};
    char what[80];
    size_t column[BOARD_SPARKS] = {0}, i;
    json_t *row, *name;
    (void)snprintf(what, sizeof(what), "history?since=%.0f", t->view.now_s - BOARD_SPARK);
    json_t *h = top_ask(t, one->server, what);
    json_array_foreach(json_object_get(h, "columns"), i, name)
    {
        for (int k = 0; k < BOARD_SPARKS; k++) {
            if (names[k] && json_is_string(name) && strcmp(json_string_value(name), names[k]) == 0)
                column[k] = i;
        }
    }
    json_array_foreach(json_object_get(h, "rows"), i, row)
    {
        float value[BOARD_SPARKS];
        for (int k = 0; k < BOARD_SPARKS; k++) {
            const json_t *v = column[k] ? json_array_get(row, column[k]) : NULL;
            value[k] = json_is_number(v) ? (float)json_number_value(v) : NAN;
        }
        board_spark(r, value);
    }
    json_decref(h);
}

static struct board_row *top_row_of(struct top *t, const struct target *one,
                                    const struct sample_part *part, uint32_t parts)
{
    uint32_t before = t->board.count;
    struct board_row *r = board_row(&t->board, one->url, part);
    if (!r)
        return NULL;
    dress(t, one, r, parts);
    if (t->board.count > before && one->server[0])
        seed(t, one, r);
    return r;
}

/* No page: all rows of the target say why. */
static void miss(struct top *t, const struct target *one, const char *said)
{
    static const struct sample_part none = {0};
    bool any = false;
    for (uint32_t i = 0; i < t->board.count; i++) {
        struct board_row *r = t->board.row[i];
        if (strcmp(r->url, one->url) != 0)
            continue;
        dress(t, one, r, r->part.engine[0] && strchr(r->name, '/') ? 2 : 1);
        board_miss(r, said, t->view.now_s);
        any = true;
    }
    struct board_row *r = any || one->probe ? NULL : top_row_of(t, one, &none, 1);
    if (r)
        board_miss(r, said, t->view.now_s);
}

static void take_page(struct top *t, const struct target *one, const struct ek_buf *page)
{
    struct sample_part parts[PARTS_MOST] = {0};
    struct live_page now;
    const char *text = page->data ? page->data : "";
    uint32_t count = live_parts(text, page->len, parts, PARTS_MOST);
    if (count == 0) {
        miss(t, one, "/metrics has none of vLLM's metrics");
        return;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct board_row *r = top_row_of(t, one, &parts[i], count);
        if (!r)
            continue;
        live_read_part(text, page->len, &parts[i], &now);
        if (board_push(r, &now, t->view.now_s) < 0)
            board_miss(r, "/metrics has no figures", t->view.now_s);
    }
}

/* One reading of all. -ECONNREFUSED when there is nothing to show at all. */
static int refresh(struct top *t)
{
    int r = ask_evenkeeld(t);
    list_targets(t);
    struct page_fetch *items = calloc(TARGETS_MOST, sizeof(*items));
    if (!items)
        return -ENOMEM;
    for (uint32_t i = 0; i < t->targets; i++) {
        items[i].base = t->at[i].url;
        items[i].path = "/metrics";
    }
    t->view.now_s = (double)ek_wall_us() * 1e-6;
    int got = fetch_pages(items, t->targets, WAIT_MS);
    for (uint32_t i = 0; got == 0 && i < t->targets; i++) {
        if (items[i].error == 0)
            take_page(t, &t->at[i], &items[i].body);
        else
            miss(t, &t->at[i], items[i].said);
    }
    for (uint32_t i = 0; i < t->targets; i++)
        ek_buf_done(&items[i].body);
    free(items);
    board_forget(&t->board, t->view.now_s - 1);
    /* Without a word from evenkeeld its servers are as they were; without any, none is missed. */
    t->view.error = t->has_api && (t->servers || !t->board.count) && r < 0 ? t->error : NULL;
    return got < 0 ? got : t->targets == 0 && r < 0 ? r : 0;
}

/* ---- the picture ---- */

static int top_put(struct ek_buf *out)
{
    bool ok =
        ek_buf_ok(out) && fwrite(out->data, 1, out->len, stdout) == out->len && fflush(stdout) == 0;
    ek_buf_done(out);
    return ok ? 0 : -EIO;
}

static int draw_json(const struct top *t)
{
    json_t *j = board_json(&t->board, &t->view);
    char *text =
        j ? json_dumps(j, JSON_COMPACT | JSON_PRESERVE_ORDER | JSON_REAL_PRECISION(12)) : NULL;
    struct ek_buf out = {0};
    (void)ek_buf_puts(&out, text ? text : "");
    (void)ek_buf_puts(&out, "\n");
    free(text);
    json_decref(j);
    return text ? top_put(&out) : (ek_buf_done(&out), -ENOMEM);
}

/* How to begin, where nothing is to be seen. */
static void put_hint(struct screen *s, const char *hint)
{
    struct ek_buf text = {0};
    ek_buf_wrap(&text, hint ? hint : "No server is running.", 0, s->cols - 1);
    const char *at = ek_buf_ok(&text) ? text.data : "";
    for (size_t n; *at; at += n + (at[n] == '\n')) {
        n = strcspn(at, "\n");
        (void)ek_buf_add(&s->line, at, n);
        screen_end_line(s);
    }
    ek_buf_done(&text);
}

static int top_draw(const struct top *t, const struct terminal *on)
{
    struct ek_buf out = {0};
    struct screen s = {
        .cols = PLAIN_COLS, .out = &out, .utf8 = strcmp(nl_langinfo(CODESET), "UTF-8") == 0};
    if (on) {
        s.colour = !getenv("NO_COLOR");
        terminal_size(&s.rows, &s.cols);
        (void)ek_buf_puts(&out, "\033[H");
    } else if (isatty(STDOUT_FILENO)) { /* --once: all rows, in its width */
        uint32_t rows;
        terminal_size(&rows, &s.cols);
        s.colour = !getenv("NO_COLOR");
    }
    if (t->board.count == 0 && !t->view.error)
        put_hint(&s, json_string_value(json_object_get(t->servers, "hint")));
    board_show(&t->board, &t->view, &s);
    if (on)
        (void)ek_buf_puts(&out, "\033[J");
    return top_put(&out);
}

static void next_parts(struct board_view *v)
{
    if (v->table && v->details)
        v->details = false;
    else if (v->table)
        v->details = !(v->table = false);
    else
        v->table = true;
}

/* False when it is time to leave. */
static bool key(struct top *t, int k)
{
    struct board_view *v = &t->view;
    uint32_t last = t->board.count ? t->board.count - 1 : 0;
    if (v->keys && k != 'q' && k != 'Q') {
        v->keys = false;
        return true;
    }
    switch (k) {
    case 'q':
    case 'Q':
    case KEY_END: return false;
    case 'j':
    case KEY_DOWN: v->selected += v->selected < last; break;
    case 'k':
    case KEY_UP: v->selected -= v->selected > 0; break;
    case '\t': next_parts(v); break;
    case 't':
        v->table = !v->table || !v->details;
        v->details = !v->table || v->details;
        break;
    case 'd':
        v->details = !v->details;
        v->table = v->table || !v->details;
        break;
    case 's': v->sort = (enum board_sort)((v->sort + 1) % SORTS); break;
    case 'p': v->paused = !v->paused; break;
    case 'h':
    case '?': v->keys = true; break;
    default: break;
    }
    return true;
}

static int live(struct top *t)
{
    struct terminal on;
    int r = 0;
    terminal_enter(&on);
    for (;;) {
        r = top_draw(t, &on);
        if (r < 0 || (t->o->count && ++t->turns >= t->o->count))
            break;
        uint64_t until = ek_now_us() + (uint64_t)(t->o->interval_s * EK_US_PER_S);
        bool stay = true;
        for (uint64_t now; stay && (now = ek_now_us()) < until;) {
            int k = terminal_key((int)((until - now) / 1000 + 1));
            stay = k == KEY_NONE || key(t, k);
            if (k != KEY_NONE && stay && top_draw(t, &on) < 0) /* answers at once */
                stay = false;
        }
        if (!stay)
            break;
        if (!t->view.paused)
            (void)refresh(t); /* the picture says when it fails */
    }
    terminal_leave(&on);
    return r;
}

/* Without a terminal: --once is one picture, else one for each reading. */
static int lines(struct top *t)
{
    uint64_t most = t->o->once ? 1 : t->o->count;
    int r = 0;
    for (uint64_t n = 0; r == 0 && (most == 0 || n < most); n++) {
        (void)usleep((useconds_t)(t->o->interval_s * 1e6)); /* a second reading: rates need two */
        (void)refresh(t);
        r = t->o->json ? draw_json(t) : top_draw(t, NULL);
    }
    return r;
}

static int run_top(struct top *t)
{
    int r = refresh(t);
    if (r < 0) {
        (void)fprintf(stderr, "evenkeelctl: %s\n", r == -ENOMEM ? "Out of memory." : t->api.error);
        if (r == -ECONNREFUSED && !t->o->no_host)
            (void)fputs("evenkeelctl: No vLLM server was found on this host either; name one with "
                        "--url.\n",
                        stderr);
        return r == -ECONNREFUSED ? CTL_UNREACHED : CTL_REFUSED;
    }
    if (t->o->server && t->targets == 0) {
        (void)fprintf(stderr,
                      "evenkeelctl: There is no server '%s'; evenkeelctl status lists them.\n",
                      t->o->server);
        return CTL_REFUSED;
    }
    bool plain = t->o->once || t->o->json || !isatty(STDOUT_FILENO) || !isatty(STDIN_FILENO);
    return (plain ? lines(t) : live(t)) < 0 ? CTL_REFUSED : CTL_OK;
}

static int top_run(void *options, char *word)
{
    const struct top_options *o = options;
    struct top *t = calloc(1, sizeof(*t));
    int code = CTL_REFUSED;

    (void)word;                    /* it takes none */
    (void)setlocale(LC_CTYPE, ""); /* whether the terminal takes UTF-8 */
    if (t && curl_global_init(CURL_GLOBAL_DEFAULT) == CURLE_OK) {
        t->o = o;
        t->view = (struct board_view){
            .price = o->price, .margin = o->margin, .table = true, .details = true};
        t->has_api = api_open(&t->api, o->socket) == 0;
        code = run_top(t);
        api_close(&t->api);
        json_decref(t->servers);
        json_decref(t->decisions);
        json_decref(t->failures);
        board_done(&t->board);
        curl_global_cleanup();
    }
    free(t);
    return code;
}

const struct verb verb_top = {
    .name = "top",
    .about = "all servers live, other vLLMs of this host too",
    .help =
        "Shows a table of all servers and all about the selected one: what runs and waits, the\n"
        "KV cache, tokens, P50, P95 and P99 of the last reading and of one minute, prefix hits,\n"
        "limits against their ceilings, memory, failures, the last decisions with their reasons.\n"
        "Servers of evenkeeld come first. Other vLLM servers of this host are found by their\n"
        "command lines and sockets in /proc, or named with --url; they are only read, and it\n"
        "says where each was found. Without a terminal one picture is printed for each reading.",
    .options = table,
    .options_bytes = sizeof(struct top_options),
    .run = top_run};
