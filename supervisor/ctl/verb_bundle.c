/*
 * `evenkeelctl support-bundle`: all that is needed elsewhere to understand what happened here, in
 * one archive, without prompts, answers or keys. What cannot be had is said in the archive's
 * README; the rest is there all the same.
 */
#include <errno.h>
#include <glob.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/file.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/redact.h"
#include "supervisor/ctl/tar.h"
#include "supervisor/ctl/verb.h"

#define PART_MOST (16u << 20) /* of one command or file; its end is kept */

struct bundle_options {
    char *socket, *config;
    bool no_journal;
};

#define AT(field) offsetof(struct bundle_options, field)
static const struct ek_opt table[] = {
    {.name = "config-dir",
     .type = OPT_STRING,
     .at = AT(config),
     .def = "/etc/evenkeel",
     .help = "Directory with evenkeeld.yaml and servers/."},
    {.name = "no-journal",
     .type = OPT_BOOL,
     .at = AT(no_journal),
     .help = "Leave the journal out: it has what the servers print."},
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "evenkeeld's socket."},
    {0}};

struct bundle {
    struct tar *tar;
    struct ek_buf readme;
    int error;
};

/* Programs whose output tells of the machine. A missing one is no failure. */
static const struct {
    const char *name, *command;
    bool journal;
} commands[] = {
    {"system/memory.txt", "cat /proc/meminfo /proc/pressure/memory", false},
    {"system/cpus.txt", "lscpu", false},
    {"system/disks.txt", "df -h", false},
    {"system/limits.txt", "cat /proc/self/limits; sysctl vm.overcommit_memory vm.max_map_count",
     false},
    {"system/os.txt", "cat /etc/os-release", false},
    {"system/gpus.txt", "nvidia-smi -q", false},
    {"system/gpu-topology.txt", "nvidia-smi topo -m", false},
    {"system/packages.txt",
     "dpkg-query -W 'evenkeel*' 'libcuda*' 'libcublas*' || rpm -qa 'evenkeel*'", false},
    {"system/units.txt", "systemctl --no-pager status 'evenkeel*'", false},
    {"system/units-properties.txt",
     "systemctl --no-pager show evenkeeld -p "
     "MemoryMax,MemoryHigh,MemoryCurrent,NRestarts,Result,LimitMEMLOCK,OOMPolicy",
     false},
    {"journal/evenkeeld.txt",
     "journalctl --no-pager -o short-iso-precise -n 5000 -u evenkeeld -u 'evenkeel-server@*'",
     true},
    {"journal/kernel.txt",
     "journalctl --no-pager -k -o short-iso-precise -n 2000 -g 'oom|out of memory|NVRM|Xid|nvidia'",
     true},
};

__attribute__((format(printf, 2, 3))) static void note(struct bundle *b, const char *fmt, ...)
{
    va_list ap;
    va_start(ap, fmt);
    char line[400];
    (void)vsnprintf(line, sizeof(line), fmt, ap);
    va_end(ap);
    (void)ek_buf_printf(&b->readme, "%s\n", line);
}

static void bundle_add(struct bundle *b, const char *name, const char *text, size_t len)
{
    struct ek_buf clean = {0};
    redact(text, len, &clean);
    int r = ek_buf_ok(&clean) ? tar_add(b->tar, name, clean.data ? clean.data : "", clean.len)
                              : -ENOMEM;
    if (r < 0 && b->error == 0)
        b->error = r;
    else
        note(b, "%-44s %8zu bytes", name, clean.len);
    ek_buf_done(&clean);
}

/* The last PART_MOST bytes of a stream. */
static int read_end(FILE *f, struct ek_buf *out)
{
    char block[65536];
    size_t n;
    while ((n = fread(block, 1, sizeof(block), f)) > 0) {
        if (out->len + n > 2 * PART_MOST) {
            memmove(out->data, out->data + out->len - PART_MOST, PART_MOST);
            out->len = PART_MOST;
        }
        if (ek_buf_add(out, block, n) < 0)
            return -ENOMEM;
    }
    return ferror(f) ? -EIO : 0;
}

static void add_commands(struct bundle *b, bool journal)
{
    for (size_t i = 0; i < sizeof(commands) / sizeof(commands[0]); i++) {
        if (commands[i].journal && !journal)
            continue;
        char line[400];
        (void)snprintf(line, sizeof(line), "( %s ) 2>&1 </dev/null", commands[i].command);
        struct ek_buf out = {0};
        FILE *f = popen(line, "r"); /* constant text from the table above */
        int r = f ? read_end(f, &out) : -errno;
        int status = f ? pclose(f) : -1;
        if (r < 0)
            note(b, "%-44s not there: %s", commands[i].name, ek_strerror(r));
        else
            bundle_add(b, commands[i].name, out.data ? out.data : "", out.len);
        if (r == 0 && status != 0)
            note(b, "    (`%s` ended with status %d)", commands[i].command,
                 WIFEXITED(status) ? WEXITSTATUS(status) : -1);
        ek_buf_done(&out);
    }
}

/* Of an operator it may be a link; of a server's user neither that nor a FIFO, since root reads. */
static FILE *bundle_open(const char *path, bool of_server)
{
    if (!of_server)
        return fopen(path, "re");
    int fd = ek_file_open_regular(path);
    FILE *f = fd >= 0 ? fdopen(fd, "r") : NULL;
    if (fd < 0)
        errno = -fd;
    else if (!f)
        close(fd);
    return f;
}

static void add_file(struct bundle *b, const char *name, const char *path, bool of_server)
{
    struct ek_buf out = {0};
    FILE *f = bundle_open(path, of_server);
    int r = f ? read_end(f, &out) : -errno;
    if (f)
        (void)fclose(f);
    if (r < 0)
        note(b, "%-44s not there: %s: %s", name, path, ek_strerror(r));
    else
        bundle_add(b, name, out.data ? out.data : "", out.len);
    ek_buf_done(&out);
}

/* A path as a process sees it: relative ones are of its directory, which root alone may ask for. */
static void add_file_of(struct bundle *b, const char *name, int pid, const char *path,
                        bool of_server)
{
    char full[4300], cwd[64];
    (void)snprintf(cwd, sizeof(cwd), "/proc/%d/cwd", pid);
    if (path[0] != '/' && access(cwd, X_OK) < 0) {
        note(b, "%-44s not there: %.200s is below evenkeeld's directory, which only root may see",
             name, path);
        return;
    }
    if (path[0] == '/')
        (void)snprintf(full, sizeof(full), "%.4200s", path);
    else
        (void)snprintf(full, sizeof(full), "%s/%.4200s", cwd, path);
    add_file(b, name, full, of_server);
}

/* The words that a process was started with, on one line. */
static void bundle_add_words(struct bundle *b, const char *name, int pid)
{
    struct ek_buf out = {0};
    char path[64];
    (void)snprintf(path, sizeof(path), "/proc/%d/cmdline", pid);
    FILE *f = fopen(path, "re");
    int r = f ? read_end(f, &out) : -errno;
    if (f)
        (void)fclose(f);
    for (size_t i = 0; i < out.len; i++)
        out.data[i] = out.data[i] ? out.data[i] : i + 1 < out.len ? ' ' : '\n';
    if (r < 0)
        note(b, "%-44s not there: %s", name, ek_strerror(r));
    else
        bundle_add(b, name, out.data ? out.data : "", out.len);
    ek_buf_done(&out);
}

/* What evenkeeld reads and writes, wherever it is, by its own word. */
static void add_in_use(struct bundle *b, const json_t *answer)
{
    const json_t *servers = json_object_get(answer, "servers"), *s;
    const char *file = json_string_value(json_object_get(answer, "config_file"));
    int daemon = (int)json_integer_value(json_object_get(answer, "pid"));
    if (daemon > 0)
        bundle_add_words(b, "in-use/evenkeeld.words.txt", daemon);
    if (file)
        add_file_of(b, "in-use/evenkeeld.yaml", daemon, file, false);
    for (size_t i = 0; i < json_array_size(servers); i++) {
        char name[120];
        s = json_array_get(servers, i);
        const char *is = json_string_value(json_object_get(s, "name"));
        const char *own = json_string_value(json_object_get(s, "config_file"));
        const char *log = json_string_value(json_object_get(s, "log_file"));
        int pid = (int)json_integer_value(json_object_get(s, "pid"));
        (void)snprintf(name, sizeof(name), "in-use/servers/%.40s.words.txt", is ? is : "");
        if (pid > 0)
            bundle_add_words(b, name, pid);
        (void)snprintf(name, sizeof(name), "in-use/servers/%.40s.yaml", is ? is : "");
        if (own)
            add_file_of(b, name, daemon, own, false);
        (void)snprintf(name, sizeof(name), "logs/%.40s.log", is ? is : "");
        if (log)
            add_file_of(b, name, daemon, log, true);
        else
            note(b, "%-44s not there: it is in the journal", name);
    }
}

static void add_config(struct bundle *b, const char *dir)
{
    char path[512], name[256];
    glob_t found;
    (void)snprintf(path, sizeof(path), "%s/evenkeeld.yaml", dir);
    add_file(b, "config/evenkeeld.yaml", path, false);
    (void)snprintf(path, sizeof(path), "%s/servers/*.yaml", dir);
    if (glob(path, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        const char *base = strrchr(found.gl_pathv[i], '/') + 1;
        (void)snprintf(name, sizeof(name), "config/servers/%.60s", base);
        add_file(b, name, found.gl_pathv[i], false);
    }
    globfree(&found);
}

static bool add_answer(struct bundle *b, struct api *a, const char *name, const char *path,
                       json_t **ret)
{
    json_t *answer = NULL;
    int r = api_call(a, "GET", path, NULL, &answer);
    char *text = r == 0 ? json_dumps(answer, JSON_INDENT(1) | JSON_PRESERVE_ORDER) : NULL;
    if (text)
        bundle_add(b, name, text, strlen(text));
    else
        note(b, "%-44s not there: %s", name, r < 0 ? a->error : "out of memory");
    free(text);
    if (ret && r == 0)
        *ret = answer;
    else
        json_decref(answer);
    return r == 0;
}

/* What is kept of its ends. */
static void add_ends(struct bundle *b, struct api *a, const char *server)
{
    size_t ends = 1;
    for (size_t i = 1; i <= ends && i < 10; i++) {
        json_t *answer = NULL;
        char path[160], name[96];
        (void)snprintf(path, sizeof(path), "/api/v1/servers/%.40s/postmortem?end=%zu", server, i);
        (void)snprintf(name, sizeof(name), "evenkeeld/%.40s-postmortem-%zu.json", server, i);
        if (add_answer(b, a, name, path, &answer))
            ends = json_array_size(json_object_get(answer, "ends"));
        json_decref(answer);
    }
}

static void add_evenkeeld(struct bundle *b, const char *socket)
{
    struct api a;
    json_t *servers = NULL, *server;
    size_t i;
    if (api_open(&a, socket) < 0 ||
        !add_answer(b, &a, "evenkeeld/servers.json", "/api/v1/servers", &servers)) {
        note(b, "evenkeeld did not answer: %s", a.error);
        api_close(&a);
        return;
    }
    json_array_foreach(json_object_get(servers, "servers"), i, server)
    {
        static const char *const parts[] = {"decisions?limit=256", "history?every=5"};
        const char *is = json_string_value(json_object_get(server, "name"));
        for (size_t k = 0; is && k < sizeof(parts) / sizeof(parts[0]); k++) {
            char path[160], name[96];
            (void)snprintf(path, sizeof(path), "/api/v1/servers/%.40s/%s", is, parts[k]);
            (void)snprintf(name, sizeof(name), "evenkeeld/%.40s-%.*s.json", is,
                           (int)strcspn(parts[k], "?"), parts[k]);
            (void)add_answer(b, &a, name, path, NULL);
        }
        if (is)
            add_ends(b, &a, is);
    }
    add_in_use(b, servers);
    json_decref(servers);
    api_close(&a);
}

static int bundle_fill(struct bundle *b, const struct bundle_options *o)
{
    struct utsname u;
    (void)uname(&u);
    note(b, "Evenkeel " EK_VERSION " support bundle of %s (%s %s %s)\n", u.nodename, u.sysname,
         u.release, u.machine);
    note(b, "Values of keys, tokens and passwords are replaced; prompts and answers are never\n"
            "logged. Read it before you send it.\n");
    add_evenkeeld(b, o->socket);
    add_config(b, o->config);
    add_commands(b, !o->no_journal);
    if (b->error == 0 && ek_buf_ok(&b->readme))
        b->error = tar_add(b->tar, "README.txt", b->readme.data, b->readme.len);
    return b->error;
}

static int bundle_make(const struct bundle_options *o, const char *word)
{
    struct bundle b = {0};
    char path[512];
    time_t now = time(NULL);
    struct tm tm;
    if (word)
        (void)snprintf(path, sizeof(path), "%s", word);
    else if (!gmtime_r(&now, &tm) ||
             strftime(path, sizeof(path), "evenkeel-support-%Y%m%dT%H%M%SZ.tar.gz", &tm) == 0)
        return CTL_REFUSED;
    int r = tar_open(path, now, &b.tar);
    if (r == 0) {
        r = bundle_fill(&b, o);
        int closed = tar_close(b.tar);
        r = r < 0 ? r : closed;
        if (r < 0)
            (void)unlink(path);
    }
    ek_buf_done(&b.readme);
    if (r < 0) {
        (void)fprintf(stderr, "evenkeelctl support-bundle: %s: %s\n", path,
                      r == -EEXIST ? "is there already; name another file" : ek_strerror(r));
        return CTL_REFUSED;
    }
    (void)printf("%s\nIts README.txt says what is in it. Read it before you send it.\n", path);
    return fflush(stdout) == 0 ? CTL_OK : CTL_REFUSED;
}

static int bundle_run(void *options, char *word)
{
    return bundle_make(options, word);
}

const struct verb verb_bundle = {
    .name = "support-bundle",
    .word = "[FILE]",
    .about = "states, settings and journal in one archive",
    .help =
        "Writes an archive with the servers' states, decisions, history and last ends, the\n"
        "configuration in use and the servers' logs wherever they are, the journal and facts of\n"
        "the machine, for somebody else to look at. Values of keys and passwords are replaced;\n"
        "prompts and answers are never in a log. The file is made with mode 0600 and never "
        "overwrites another.",
    .options = table,
    .options_bytes = sizeof(struct bundle_options),
    .run = bundle_run};
