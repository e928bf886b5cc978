/*
 * `evenkeelctl setup`: asks what is needed for a first server (or takes it from flags), runs the
 * planner, writes one file into the directory of servers. What is there is never overwritten
 * unasked.
 */
#include <ctype.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/file.h"
#include "common/path.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/plan.h"
#include "supervisor/ctl/plan_server.h"
#include "supervisor/ctl/spawn.h"
#include "supervisor/ctl/verb.h"
#include "supervisor/engines/dialect.h"
#include "supervisor/planner/advise.h"

#define FILE_MOST (1u << 20) /* bytes of a server's file */
#define NAME_MOST 32         /* of a server, as evenkeeld takes it */

#define GIB 1073741824.0

struct setup_options {
    char *model, *name, *host, *dir, *gpu;
    uint64_t port, gpus;
    double share;
    bool force, dry_run;
};

#define AT(field) offsetof(struct setup_options, field)
static const struct ek_opt table[] = {
    {.name = "model", .type = OPT_STRING, .at = AT(model), .help = "Directory of the model."},
    {.name = "host",
     .type = OPT_STRING,
     .at = AT(host),
     .def = "127.0.0.1",
     .help = "Address to listen on; beyond this machine keys are asked for."},
    {.name = "port",
     .type = OPT_UINT,
     .at = AT(port),
     .min = 1,
     .max = 65535,
     .def = "8000",
     .help = "Port to listen on."},
    {.name = "gpu",
     .type = OPT_STRING,
     .at = AT(gpu),
     .help = "The card, as for evenkeelctl plan; without it the CPU."},
    {.name = "gpus",
     .type = OPT_UINT,
     .at = AT(gpus),
     .min = 1,
     .max = 64,
     .def = "1",
     .help = "Cards in the machine."},
    {.name = "gpu-memory-utilization",
     .alias = "share",
     .type = OPT_FRACTION,
     .at = AT(share),
     .min = 0.05,
     .max = 1,
     .def = "0.92",
     .help = "Share of the memory that may be taken."},
    {.name = "dir",
     .type = OPT_STRING,
     .at = AT(dir),
     .def = "/etc/evenkeel/servers",
     .help = "Where the file goes: NAME.yaml."},
    {.name = "force", .type = OPT_BOOL, .at = AT(force), .help = "Replace a file that is there."},
    {.name = "dry-run",
     .type = OPT_BOOL,
     .at = AT(dry_run),
     .help = "Print the file, write nothing."},
    {0}};

static int setup_refuse(const char *why, int code)
{
    (void)fprintf(stderr, "evenkeelctl setup: %s\n", why);
    return code;
}

/* The answer to a question on the terminal, or the default. NULL: no terminal, or out of memory. */
static char *setup_ask(const char *question, const char *otherwise)
{
    char line[4096];
    if (!isatty(STDIN_FILENO))
        return otherwise ? strdup(otherwise) : NULL;
    (void)printf("%s%s%s%s: ", question, otherwise ? " [" : "", otherwise ? otherwise : "",
                 otherwise ? "]" : "");
    (void)fflush(stdout);
    if (!fgets(line, sizeof(line), stdin))
        return NULL;
    line[strcspn(line, "\n")] = '\0';
    return *line ? strdup(line) : otherwise ? strdup(otherwise) : NULL;
}

/* What evenkeeld takes as the name of a server. */
static bool name_ok(const char *name)
{
    size_t n = strspn(name, "abcdefghijklmnopqrstuvwxyz0123456789-");
    return n > 0 && n <= NAME_MOST && name[n] == '\0' && name[0] != '-';
}

/* The directory's own name as such a one: Qwen3-0.6B is qwen3-0-6b. */
static void name_from(const char *model, char ret_name[NAME_MOST + 1])
{
    size_t bytes, n = 0;
    const char *name = ek_path_name(model, &bytes);
    for (size_t i = 0; i < bytes && n < NAME_MOST; i++) {
        unsigned char c = (unsigned char)name[i];
        if (isalnum(c) && c < 0x80)
            ret_name[n++] = (char)tolower(c);
        else if (n > 0 && ret_name[n - 1] != '-')
            ret_name[n++] = '-';
    }
    while (n > 0 && ret_name[n - 1] == '-')
        n--;
    ret_name[n] = '\0';
    if (n == 0)
        (void)snprintf(ret_name, NAME_MOST + 1, "main");
}

/* evenkeeld starts elsewhere: the file has the whole path, links in it as they are. 0 or a negative
 * errno. */
static int make_absolute(char **model)
{
    if ((*model)[0] == '/')
        return 0;
    struct ek_buf whole = {0};
    char *here = getcwd(NULL, 0);
    int r = here ? ek_buf_printf(&whole, "%s/%s", here, *model) : -errno;
    free(here);
    if (r < 0) {
        ek_buf_done(&whole);
        return r;
    }
    free(*model);
    *model = whole.data;
    return 0;
}

static int plan(const struct setup_options *o, struct plan_question *q, struct plan_answer *a,
                struct ek_fault *fault)
{
    const struct plan_gpu *g = o->gpu ? plan_gpu_find(o->gpu) : NULL;
    static struct plan_fit own;
    json_t *server = NULL;
    char said[400] = "";
    if (o->gpu && !g)
        return ek_fault_set(fault, "gpu", "there is no card '%.40s'; evenkeelctl plan --list-gpus",
                            o->gpu);
    *q = (struct plan_question){.cards = (uint32_t)o->gpus, .share = o->share, .gpu = g != NULL};
    int r = plan_shape_read(o->model, &q->shape, fault);
    if (r == 0)
        r = plan_shape_loads(&q->shape, fault);
    if (r < 0)
        return r;
    double most = q->shape.max_len;
    q->load = (struct plan_load){.prompt = most < 1280 ? most * 0.75 : 1024,
                                 .output = most < 1280 ? most * 0.25 : 256};
    q->device = g ? g->text : "the CPU of this machine";
    q->memory_bytes =
        g ? g->memory_gib * GIB : (double)sysconf(_SC_PHYS_PAGES) * (double)sysconf(_SC_PAGESIZE);
    q->speed = plan_gpu_speed(g);
    if (!g) {
        r = plan_server_ask(&(struct plan_server_request){.model = o->model, .share = o->share},
                            &server, &own, said);
        own.params.weights_note = NULL; /* it goes with the answer */
        json_decref(server);
        if (r == -EBADMSG || r == -E2BIG)
            return ek_fault_set(fault, "model", "evenkeel-server says: %s", said);
        q->own = r == 0 ? &own : NULL;
    }
    plan_advise(q, a);
    if (!a->fits)
        return ek_fault_set(fault, "model", "it does not fit: %s%s%s", a->why,
                            a->what_count ? " What would: " : "", a->what_count ? a->what[0] : "");
    return 0;
}

/* A YAML scalar in quotes. */
static void put_quoted(struct ek_buf *out, const char *key, const char *value)
{
    (void)ek_buf_printf(out, "%s: '", key);
    for (; *value; value++)
        (void)ek_buf_add(out, *value == '\'' ? "''" : value, *value == '\'' ? 2 : 1);
    (void)ek_buf_puts(out, "'\n");
}

static void write_config(const struct setup_options *o, const struct plan_question *q,
                         const struct plan_answer *a, struct ek_buf *out)
{
    bool local = strncmp(o->host, "127.", 4) == 0 || strcmp(o->host, "localhost") == 0;
    (void)ek_buf_printf(
        out,
        "# Written by evenkeelctl setup for %s; yours from now on. The keys are the flags of\n"
        "# evenkeel-server: docs/options.md.\n",
        q->device);
    put_quoted(out, "model", o->model);
    put_quoted(out, "served-model-name", o->name);
    put_quoted(out, "host", o->host);
    (void)ek_buf_printf(out,
                        "port: %llu\ngpu-memory-utilization: %.2f\nmax-model-len: %u\n"
                        "max-num-seqs: %u\n",
                        (unsigned long long)o->port, o->share,
                        plan_length(q, a, dialect_find("evenkeel")), a->seqs);
    if (plan_says_tokens(q))
        (void)ek_buf_printf(out, "max-num-batched-tokens: %u\n", a->tokens);
    if (a->chosen.setup.cards > 1)
        (void)ek_buf_printf(out, "tensor-parallel-size: %u\n", a->chosen.setup.cards);
    if (!local)
        (void)ek_buf_puts(
            out, "# Others reach this address: it asks for keys (docs/install.md, \"Keys\").\n"
                 "require-api-key: true\n");
}

/* evenkeel-server reads the file as it will at start. */
static int check_file(const char *path)
{
    char program[4096], file[4400], config[] = "--config", check[] = "--check-config";
    struct ek_buf out = {.limit = 65536}, err = {.limit = 65536};
    int status = 0, code = CTL_OK;
    if (!spawn_find("evenkeel-server", program, sizeof(program)))
        return CTL_OK;
    (void)snprintf(file, sizeof(file), "%s", path);
    char *argv[] = {program, config, file, check, NULL};
    if (spawn_read(argv, 60, &out, &err, &status) < 0 || !WIFEXITED(status) ||
        WEXITSTATUS(status) != 0) {
        (void)fprintf(stderr, "evenkeelctl setup: evenkeel-server does not take %s:\n%s", path,
                      err.data ? err.data : "");
        code = CTL_REFUSED;
    }
    ek_buf_done(&out);
    ek_buf_done(&err);
    return code;
}

static int setup_finish(const struct setup_options *o, const struct ek_buf *text)
{
    char path[4300], why[4600];
    int n = snprintf(path, sizeof(path), "%s/%s.yaml", o->dir, o->name);
    if (n < 0 || (size_t)n >= sizeof(path))
        return setup_refuse("the path is too long", CTL_USAGE);
    int r =
        ek_file_replace(path, text->data, text->len, 0644, o->force ? EK_FILE_SYNC : EK_FILE_NEW);
    if (r < 0) {
        (void)snprintf(why, sizeof(why), "%s: %s%s", path, strerror(-r),
                       r == -EEXIST ? "; --force replaces it" : "");
        return setup_refuse(why, CTL_REFUSED);
    }
    int code = check_file(path);
    if (code == CTL_OK)
        (void)printf(
            "Wrote %s. Next: systemctl reload evenkeeld (or start it), then evenkeelctl status.\n",
            path);
    return code;
}

/* The port that a server's file names, as evenkeel-server writes and reads it; 0 = none. */
static unsigned long port_in(const char *path)
{
    struct ek_buf text = {0};
    unsigned long port = 0;
    int r = ek_file_read_linked(path, FILE_MOST, &text);
    for (const char *line = r == 0 ? text.data : NULL; line; line = strchr(line, '\n')) {
        line += *line == '\n';
        if (strncmp(line, "port:", 5) == 0)
            port = strtoul(line + 5 + strspn(line + 5, " '\""), NULL, 10);
    }
    ek_buf_done(&text);
    return port;
}

/* Whether another file beside o->name's has that port: which. */
static bool port_taken(const struct setup_options *o, unsigned long port, char *ret_file,
                       size_t size)
{
    char path[4400];
    struct dirent *d;
    bool taken = false;
    DIR *dir = opendir(o->dir);
    while (dir && !taken && (d = readdir(dir))) {
        size_t n = strlen(d->d_name), own = strlen(o->name);
        if (d->d_name[0] == '.' || n < 6 || strcmp(d->d_name + n - 5, ".yaml") != 0 ||
            (n == own + 5 && strncmp(d->d_name, o->name, own) == 0))
            continue;
        (void)snprintf(path, sizeof(path), "%s/%s", o->dir, d->d_name);
        taken = port_in(path) == port;
        (void)snprintf(ret_file, size, "%.255s", d->d_name);
    }
    if (dir)
        (void)closedir(dir);
    return taken;
}

/* Before anything is planned: is there a directory for the file, and a port for the server? */
static int check_place(const struct setup_options *o)
{
    char why[4800], file[256], other[256];
    struct stat st;
    if (o->dry_run)
        return CTL_OK;
    int r = stat(o->dir, &st) < 0 ? errno : S_ISDIR(st.st_mode) ? 0 : ENOTDIR;
    if (r != 0) {
        (void)snprintf(
            why, sizeof(why),
            "the directory %.4000s %s%s; make it (mkdir -p), or name another: --dir", o->dir,
            r == ENOENT ? "is not there" : "cannot be used: ", r == ENOENT ? "" : strerror(r));
        return setup_refuse(why, CTL_REFUSED);
    }
    unsigned long next = (unsigned long)o->port;
    if (!port_taken(o, next, file, sizeof(file)) || o->force)
        return CTL_OK;
    while (next < 65535 && port_taken(o, ++next, other, sizeof(other)))
        continue;
    (void)snprintf(why, sizeof(why),
                   "port %llu is that of %.3000s/%s already; --port %lu is free there",
                   (unsigned long long)o->port, o->dir, file, next);
    return setup_refuse(why, CTL_REFUSED);
}

/* What is missing is asked for. */
static int complete(struct setup_options *o, const char *name)
{
    if (!o->model)
        o->model = setup_ask("Directory of the model", NULL);
    if (!o->model)
        return setup_refuse("name the model's directory: --model DIR", CTL_USAGE);
    int r = access(o->model, R_OK) < 0 ? -errno : make_absolute(&o->model);
    if (r < 0) { /* before more is asked */
        (void)fprintf(stderr, "evenkeelctl setup: %s: %s\n", o->model, ek_strerror(r));
        return CTL_REFUSED;
    }
    char proposed[NAME_MOST + 1];
    name_from(o->model, proposed);
    o->name = name ? strdup(name) : setup_ask("Name of the server", proposed);
    if (!o->name || !name_ok(o->name))
        return setup_refuse("a server's name has 1 to 32 of a-z, 0-9 and -", CTL_USAGE);
    return check_place(o);
}

static int setup(struct setup_options *o, const char *name)
{
    static struct plan_question q;
    static struct plan_answer a;
    struct ek_fault fault = {0};
    struct ek_buf text = {0};
    int code = complete(o, name);
    if (code != CTL_OK)
        return code;
    int r = plan(o, &q, &a, &fault);
    if (r < 0)
        return setup_refuse(r == -EBADMSG ? fault.msg : ek_strerror(r), CTL_REFUSED);
    write_config(o, &q, &a, &text);
    if (!ek_buf_ok(&text))
        code = setup_refuse("out of memory", CTL_REFUSED);
    else if (o->dry_run)
        code = fputs(text.data, stdout) >= 0 && fflush(stdout) == 0 ? CTL_OK : CTL_REFUSED;
    else
        code = setup_finish(o, &text);
    ek_buf_done(&text);
    return code;
}

static int setup_run(void *options, char *name)
{
    struct setup_options *o = options;
    const int code = setup(o, name);

    free(o->name);
    return code;
}

const struct verb verb_setup = {
    .name = "setup",
    .word = "[NAME]",
    .about = "plan a server and write its first configuration",
    .help =
        "Asks for what no flag says (a model directory is enough), runs the planner, writes\n"
        "DIR/NAME.yaml with limits that fit, and lets evenkeel-server check it. A file that is\n"
        "there is not touched without --force.",
    .options = table,
    .options_bytes = sizeof(struct setup_options),
    .run = setup_run};
