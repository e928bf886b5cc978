/*
 * `evenkeelctl diagnose`: reads a log (a file, plain or gzip; a directory or a tar archive of them;
 * the journal; standard input) through the catalog in a fixed amount of memory, and says what
 * failed.
 */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <systemd/sd-journal.h>
#include <unistd.h>
#include <zlib.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/file.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/diagnose.h"
#include "supervisor/ctl/live.h"
#include "supervisor/ctl/verb.h"
#include "supervisor/doctor/untar.h"

#define SITE_FILE  "/etc/evenkeel/signatures.yaml"
#define FILE_MOST  (1u << 20)
#define BLOCK      (256u << 10)
#define BAR_LEAST  (64 << 20) /* smaller files are read before anybody waits */
#define COLS_LEAST 40
#define COLS_MOST  110

struct diagnose_options {
    char *lang, *journal, *explain, *signatures;
    bool json, markdown, list, page, watch, test, each;
    uint64_t most;
    struct ek_strings live;
    double seconds;
};

#define AT(field) offsetof(struct diagnose_options, field)
static const struct ek_opt table[] = {
    {.name = "live",
     .type = OPT_LIST,
     .at = AT(live),
     .help = "Ask running servers (host:port of vLLM or evenkeel-server) instead of reading a log; "
             "several are compared."},
    {.name = "seconds",
     .type = OPT_SECONDS,
     .at = AT(seconds),
     .min = 0,
     .max = 600,
     .def = "5",
     .help = "With --live: time between the two readings that rates are made of; 0 reads once."},
    {.name = "watch",
     .alias = "w",
     .type = OPT_BOOL,
     .at = AT(watch),
     .help =
         "With --live: go on, and tell each rule that begins or ceases to apply, with the time; "
         "with --json one object a line."},
    {.name = "journal",
     .type = OPT_STRING,
     .at = AT(journal),
     .help = "Read the journal of this unit (with the kernel's lines) instead of a file."},
    {.name = "lang",
     .type = OPT_CHOICE,
     .at = AT(lang),
     .def = "en",
     .choices = "en|zh",
     .help = "Language of the answer: English or Chinese."},
    {.name = "json", .alias = "j", .type = OPT_BOOL, .at = AT(json), .help = "Answer in JSON."},
    {.name = "markdown",
     .type = OPT_BOOL,
     .at = AT(markdown),
     .help = "Answer in Markdown, for a ticket."},
    {.name = "each",
     .type = OPT_BOOL,
     .at = AT(each),
     .help = "Of a directory: tell every file in it apart, as a log of its own; with --json one "
             "object a line."},
    {.name = "most",
     .type = OPT_UINT,
     .at = AT(most),
     .min = 1,
     .max = 100,
     .def = "1",
     .help = "How many findings to tell in full; the others are named."},
    {.name = "list", .type = OPT_BOOL, .at = AT(list), .help = "List the catalog and end."},
    {.name = "explain",
     .type = OPT_STRING,
     .at = AT(explain),
     .help = "Tell one entry of the catalog by its id and end."},
    {.name = "signatures",
     .type = OPT_STRING,
     .at = AT(signatures),
     .def = SITE_FILE,
     .help = "A site's own entries; one of the same id replaces the built-in one."},
    {.name = "test",
     .type = OPT_BOOL,
     .at = AT(test),
     .help =
         "Try every entry of the catalog (with --signatures the site's too) on its examples and "
         "end: status 1 when one is named by another entry, or by none."},
    {.name = "page",
     .type = OPT_BOOL,
     .at = AT(page),
     .help = "Print the whole catalog as the Markdown of docs/signatures.md and end."},
    {0}};

struct reading {
    struct doctor_scan *scan;
    struct untar tar;
    bool archive; /* a tar archive: its files are read */
    uint64_t bytes;
    int shown; /* per cent on the terminal, -1: no bar */
    bool barred;
};

static int diagnose_refuse(const char *what, const char *why)
{
    (void)fprintf(stderr, "evenkeelctl diagnose: %s: %s\n", what, why);
    return CTL_REFUSED;
}

/* A line that is drawn over itself. */
static void progress(struct reading *r, int64_t at, int64_t of)
{
    if (r->shown < 0 || of <= 0)
        return;
    int percent = (int)(at * 100 / of);
    if (percent <= r->shown || percent > 100)
        return;
    r->shown = percent;
    (void)fprintf(stderr, "\r[%-40.*s] %3d %%", percent * 40 / 100,
                  "########################################", percent);
    (void)fflush(stderr);
}

static void diagnose_take(void *ctx, const char *bytes, size_t len)
{
    struct reading *r = ctx;
    if (len == 0) /* untar_feed(): a file of the archive ends */
        doctor_scan_next_file(r->scan);
    else
        doctor_scan_feed(r->scan, bytes, len);
}

static void take_block(struct reading *r, const char *block, size_t len, bool first)
{
    if (first) {
        r->archive = untar_is(block, len);
        r->tar = (struct untar){.have = 0};
    }
    if (r->archive)
        untar_feed(&r->tar, block, len, diagnose_take, r);
    else
        diagnose_take(r, block, len);
    r->bytes += len;
}

/* Half a file is read as far as it goes. */
static void warn(const char *name, const char *what)
{
    (void)fprintf(stderr, "evenkeelctl diagnose: %s: %s; what was read before is told\n", name,
                  what);
}

static int read_gz(struct reading *r, gzFile in, int64_t size, const char *name)
{
    static char block[BLOCK];
    uint64_t before = r->bytes;
    int n, code, result = CTL_OK;
    while ((n = gzread(in, block, sizeof(block))) > 0) {
        take_block(r, block, (size_t)n, r->bytes == before);
        progress(r, gzoffset(in), size);
    }
    r->barred |= r->shown > 0;
    if (r->shown >= 0)
        (void)fprintf(stderr, "\r%50s\r", "");
    (void)gzerror(in, &code); /* a file that was cut ends without failing */
    if ((n < 0 || code != Z_OK) && r->bytes == before)
        result = diagnose_refuse(name, gzerror(in, &code));
    else if (n < 0 || code != Z_OK)
        warn(name, gzerror(in, &code));
    else if (r->archive && r->tar.damaged)
        warn(name, "the archive is damaged");
    else if (r->archive && untar_cut(&r->tar))
        warn(name, "the archive breaks off");
    return result;
}

static int read_file(struct reading *r, const char *path)
{
    struct stat st = {0};
    bool standard = strcmp(path, "-") == 0;
    gzFile in = standard ? gzdopen(dup(STDIN_FILENO), "rb") : gzopen(path, "rb");
    if (!in)
        return diagnose_refuse(path, errno ? strerror(errno) : "out of memory");
    (void)(standard ? 0 : stat(path, &st)); /* without a size there is no bar */
    r->shown = st.st_size >= BAR_LEAST && isatty(STDERR_FILENO) ? 0 : -1;
    int code = read_gz(r, in, st.st_size, path);
    (void)gzclose(in); /* only read */
    return code;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
    return strcmp((*a)->d_name, (*b)->d_name);
}

/* Calls fn for every plain file of a directory, by name, as long as it answers CTL_OK. */
static int diagnose_files(const char *path, int (*fn)(void *ctx, const char *file), void *ctx)
{
    struct dirent **names = NULL;
    int count = scandir(path, &names, NULL, by_name), code = CTL_OK;
    if (count < 0)
        return diagnose_refuse(path, strerror(errno));
    for (int i = 0; i < count; i++) {
        struct ek_buf file = {0};
        struct stat st;
        (void)ek_buf_printf(&file, "%s/%s", path, names[i]->d_name);
        if (code == CTL_OK && ek_buf_ok(&file) && stat(file.data, &st) == 0 && S_ISREG(st.st_mode))
            code = fn(ctx, file.data);
        ek_buf_done(&file);
        free(names[i]);
    }
    free(names);
    return code;
}

/* One file of several that are one log, such as those of a support bundle. */
static int read_part(void *ctx, const char *file)
{
    struct reading *r = ctx;
    int code = read_file(r, file);
    doctor_scan_feed(r->scan, "\n", 1); /* no line spans two files */
    doctor_scan_next_file(r->scan);
    return code;
}

/* The unit's own lines and the kernel's, in their order. */
static int read_journal(struct reading *r, const char *unit)
{
    sd_journal *j = NULL;
    char match[300];
    int e = sd_journal_open(&j, SD_JOURNAL_LOCAL_ONLY);
    if (e < 0)
        return diagnose_refuse("the journal", strerror(-e));
    (void)snprintf(match, sizeof(match), "_SYSTEMD_UNIT=%.200s%s", unit,
                   strchr(unit, '.') ? "" : ".service");
    e = sd_journal_add_match(j, match, 0);
    if (e >= 0)
        e = sd_journal_add_disjunction(j);
    if (e >= 0)
        e = sd_journal_add_match(j, "_TRANSPORT=kernel", 0);
    bool any = false;
    while (e >= 0 && (e = sd_journal_next(j)) > 0) {
        const void *data;
        size_t len;
        any = any || sd_journal_get_data(j, "_SYSTEMD_UNIT", &data, &len) >= 0;
        if (sd_journal_get_data(j, "MESSAGE", &data, &len) < 0 || len < 8)
            continue;
        doctor_scan_feed(r->scan, (const char *)data + 8, len - 8);
        doctor_scan_feed(r->scan, "\n", 1);
        r->bytes += len - 8;
    }
    sd_journal_close(j);
    if (e >= 0 && !any) /* the kernel's may still say something */
        (void)fprintf(
            stderr,
            "evenkeelctl diagnose: the journal has no line of %s: is that the unit's name, "
            "and may this user read the journal?\n",
            unit);
    return e < 0 ? diagnose_refuse("the journal", strerror(-e)) : CTL_OK;
}

static int read_source(struct reading *r, const char *path, const char *journal)
{
    struct stat st;
    if (journal)
        return read_journal(r, journal);
    if (stat(path, &st) == 0 && S_ISDIR(st.st_mode))
        return diagnose_files(path, read_part, r);
    return read_file(r, path);
}

/* The site's file is optional where it was not named. */
static int load_catalog(const struct diagnose_options *o, struct doctor_catalog **ret_catalog)
{
    struct ek_buf own = {0};
    struct ek_fault fault = {0};
    int r = 0;
    if (strcmp(o->signatures, SITE_FILE) != 0 || access(SITE_FILE, R_OK) == 0)
        r = ek_file_read("--signatures", o->signatures, FILE_MOST, &own, &fault);
    if (r == 0)
        r = doctor_catalog_new(o->signatures, own.data, own.len, ret_catalog, &fault);
    ek_buf_done(&own);
    if (r == 0)
        return CTL_OK;
    return diagnose_refuse("the catalog", r == -EBADMSG ? fault.msg : ek_strerror(r));
}

static int print_json(json_t *answer, bool line)
{
    if (!answer)
        return diagnose_refuse("JSON", "out of memory");
    size_t form = JSON_PRESERVE_ORDER | (line ? JSON_COMPACT : JSON_INDENT(2));
    bool ok = json_dumpf(answer, stdout, form) == 0 && putchar('\n') != EOF && fflush(stdout) == 0;
    json_decref(answer);
    return ok ? CTL_OK : CTL_REFUSED;
}

static struct diagnose_style style_of(const struct diagnose_options *o)
{
    return (struct diagnose_style){.lang = strcmp(o->lang, "zh") == 0 ? LANG_ZH : LANG_EN,
                                   .form = o->markdown ? DIAGNOSE_MARKDOWN : DIAGNOSE_TEXT,
                                   .colour = !o->markdown && isatty(STDOUT_FILENO) &&
                                             !getenv("NO_COLOR")};
}

/* On a terminal lines are wrapped; a pipe gets them whole. */
static int print_text(struct ek_buf *out, const struct diagnose_style *style)
{
    struct winsize w = {0};
    struct ek_buf text = {0};
    bool terminal = style->form == DIAGNOSE_TEXT && isatty(STDOUT_FILENO) &&
                    ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_col >= COLS_LEAST;
    if (!terminal || !ek_buf_ok(out))
        return verb_print_buf(out);
    ek_buf_reflow(&text, out->data ? out->data : "", w.ws_col < COLS_MOST ? w.ws_col : COLS_MOST);
    ek_buf_done(out);
    return verb_print_buf(&text);
}

static int test_catalog(const struct doctor_catalog *c)
{
    struct ek_buf out = {0};
    uint32_t wrong = 0;
    if (diagnose_test(c, &out, &wrong) < 0) {
        ek_buf_done(&out);
        return diagnose_refuse("the test", "out of memory");
    }
    int code = verb_print_buf(&out);
    return code == CTL_OK && wrong > 0 ? CTL_REFUSED : code;
}

static int tell_catalog(const struct diagnose_options *o, const struct doctor_catalog *c)
{
    struct diagnose_style style = style_of(o);
    struct ek_buf out = {0};
    if (o->page) {
        diagnose_page(c, &out);
    } else if (o->list) {
        diagnose_list(c, style.lang, &out);
    } else {
        const struct doctor_signature *s = doctor_catalog_find(c, o->explain);
        if (!s)
            return diagnose_refuse(o->explain, "no such signature; --list lists them");
        diagnose_explain(s, &style, &out);
    }
    return print_text(&out, &style);
}

/* For the progress bar: a log of any size takes the same memory. */
static void say_cost(uint64_t bytes, uint64_t took_us)
{
    struct rusage use = {0};
    (void)getrusage(RUSAGE_SELF, &use); /* cannot fail for oneself */
    (void)fprintf(stderr, "read %.1f MB in %.1f s with %.0f MiB of memory\n", (double)bytes / 1e6,
                  (double)took_us / 1e6, (double)use.ru_maxrss / 1024);
}

static int diagnose(const struct diagnose_options *o, const struct doctor_catalog *c,
                    const char *path)
{
    struct reading r = {.shown = -1};
    uint64_t start = ek_now_us();
    struct diagnose_style style = style_of(o);
    if (doctor_scan_new(c, &r.scan) < 0)
        return diagnose_refuse(path, "out of memory");
    int code = read_source(&r, path, o->journal);
    struct diagnose_report report = {.source = o->journal               ? o->journal
                                               : strcmp(path, "-") == 0 ? "standard input"
                                                                        : path,
                                     .bytes = r.bytes,
                                     .catalog = c,
                                     .most = (uint32_t)o->most};
    if (code == CTL_OK && doctor_scan_finish(r.scan, &report.findings, &report.count) < 0)
        code = diagnose_refuse(path, "out of memory");
    report.decisive = doctor_scan_decisive(r.scan);
    report.lines = doctor_scan_lines(r.scan);
    if (r.barred)
        say_cost(r.bytes, ek_now_us() - start);
    report.lives = doctor_scan_lives(r.scan);
    if (code == CTL_OK && o->json) {
        code = print_json(diagnose_json(&report, style.lang), o->each);
    } else if (code == CTL_OK) {
        struct ek_buf out = {0};
        diagnose_write(&report, &style, &out);
        code = print_text(&out, &style);
    }
    doctor_scan_free(r.scan);
    return code;
}

struct diagnose_each {
    const struct diagnose_options *options;
    const struct doctor_catalog *catalog;
    int code; /* of the last file that could not be told */
};

static int diagnose_one(void *ctx, const char *file)
{
    struct diagnose_each *each = ctx;
    const int code = diagnose(each->options, each->catalog, file);
    each->code = code != CTL_OK ? code : each->code;
    return CTL_OK; /* the others are told, too */
}

static int diagnose_each(const struct diagnose_options *o, const struct doctor_catalog *c,
                         const char *path)
{
    struct diagnose_each each = {o, c, CTL_OK};
    const int code = diagnose_files(path, diagnose_one, &each);
    return code != CTL_OK ? code : each.code;
}

static int contradictions(const struct diagnose_options *o, const char *path)
{
    const char *why = NULL;
    if (o->json && o->markdown)
        why = "--json and --markdown are two forms; leave one out";
    else if (o->watch && (o->live.count == 0 || o->seconds <= 0 || o->markdown))
        why = "--watch goes with --live and --seconds above 0, and not with --markdown";
    else if (o->live.count > 0 && (path || o->journal))
        why = "--live asks servers and reads no log; leave one out";
    else if (o->each && !path)
        why = "--each goes with a directory";
    else if (path && o->journal)
        why = "a log and --journal are two sources; leave one out";
    if (why)
        (void)fprintf(stderr, "evenkeelctl diagnose: %s\n", why);
    return why ? CTL_USAGE : CTL_OK;
}

static int diagnose_run(void *options, char *path)
{
    const struct diagnose_options *o = options;
    struct doctor_catalog *c = NULL;
    int code = contradictions(o, path);

    if (code == CTL_OK)
        code = load_catalog(o, &c);
    if (code != CTL_OK)
        return code;
    if (o->live.count > 0)
        code =
            live_run(&(struct live_request){&o->live, o->seconds, o->json, o->watch, style_of(o)});
    else if (o->test)
        code = test_catalog(c);
    else if (o->list || o->page || o->explain)
        code = tell_catalog(o, c);
    else if (o->each)
        code = diagnose_each(o, c, path);
    else if (!path && !o->journal && isatty(STDIN_FILENO))
        code =
            diagnose_refuse("what", "name a log file, a directory, --journal UNIT, or pipe one in");
    else
        code = diagnose(o, c, path ? path : "-");
    doctor_catalog_free(c);
    return code;
}

const struct verb verb_diagnose = {
    .name = "diagnose",
    .word = "[LOG]",
    .about = "what a log's failure is, what helps, what does not",
    .help = "Reads a log (a file, plain or gzip, a directory or tar archive of them such as a\n"
            "support-bundle, standard input) of vLLM, "
            "SGLang,\n"
            "PyTorch, llama.cpp, NCCL, the kernel or evenkeel-server, of any size, and names the\n"
            "failure in it: evidence, numbers, cause, remedies with values computed from the\n"
            "numbers, and dead ends.",
    .options = table,
    .options_bytes = sizeof(struct diagnose_options),
    .run = diagnose_run};
