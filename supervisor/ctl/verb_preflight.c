/* `evenkeelctl preflight`: asks the machine; preflight.c judges. Called by the table of verbs. */
#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/cgroup.h"
#include "common/file.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/preflight.h"
#include "supervisor/ctl/show.h"
#include "supervisor/ctl/spawn.h"
#include "supervisor/ctl/terminal.h"
#include "supervisor/ctl/verb.h"

#define PAGE_MOST  (64u << 10)
#define DEADLINE_S 10.0
#define CSV        "--format=csv,noheader,nounits"

struct preflight_options {
    uint64_t port;
    bool json;
};

#define AT(field) offsetof(struct preflight_options, field)
static const struct ek_opt table[] = {
    {.name = "port",
     .type = OPT_UINT,
     .at = AT(port),
     .min = 1,
     .max = 65535,
     .def = "8000",
     .help = "The port that the server will have."},
    {.name = "json", .alias = "j", .type = OPT_BOOL, .at = AT(json), .help = "Answer in JSON."},
    {0}};

static const char *preflight_text_of(const struct ek_buf *b)
{
    return b->len ? b->data : NULL;
}

/* False when the tool hangs. */
static bool ask_tool(const char *query, const char *how, struct ek_buf *out)
{
    char argument[600], form[48];
    struct ek_buf err = {.limit = PAGE_MOST};
    int status = 0;
    (void)snprintf(argument, sizeof(argument), "%s", query);
    (void)snprintf(form, sizeof(form), "%s", how);
    char program[] = "nvidia-smi";
    char *argv[] = {program, argument, form, NULL};
    int r = spawn_read(argv, DEADLINE_S, out, &err, &status);
    ek_buf_done(&err);
    if (r < 0 || status != 0)
        ek_buf_clear(out);
    return r != -ETIMEDOUT;
}

static uint64_t preflight_limit_of(int which)
{
    struct rlimit l;
    if (getrlimit((__rlimit_resource_t)which, &l) < 0)
        return 0;
    return l.rlim_cur == RLIM_INFINITY ? UINT64_MAX : l.rlim_cur;
}

/* memory.max of the own cgroup; 0 = none. */
static uint64_t cgroup_limit(void)
{
    char own[600];
    if (ek_cgroup_dir(EK_CGROUP_SELF, own, sizeof(own)) < 0)
        return 0;
    struct ek_cgroup_memory m;
    ek_cgroup_memory(own, &m);
    return m.most_bytes == UINT64_MAX ? 0 : m.most_bytes;
}

static bool port_is_free(uint32_t port)
{
    struct sockaddr_in to = {.sin_family = AF_INET, .sin_port = htons((uint16_t)port)};
    int one = 1, fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return false;
    (void)setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
    bool is_free = bind(fd, (const struct sockaddr *)&to, sizeof(to)) == 0;
    (void)close(fd);
    return is_free;
}

static void look_at_model(const char *model, struct preflight_facts *f)
{
    DIR *d = opendir(model);
    f->model = model;
    f->model_error = d ? 0 : errno;
    for (const struct dirent *e; d && (e = readdir(d));) {
        size_t n = strlen(e->d_name);
        f->config_there |= strcmp(e->d_name, "config.json") == 0;
        f->weights_there |= n > 12 && strcmp(e->d_name + n - 12, ".safetensors") == 0;
    }
    if (d)
        (void)closedir(d);
}

static void preflight_put_line(struct ek_buf *out, const char *state,
                               const struct preflight_line *l)
{
    struct ek_buf text = {0};
    (void)ek_buf_printf(&text, "%s%s%s", l->is, *l->remedy ? "; " : "", l->remedy);
    (void)ek_buf_printf(out, "%-5s %-18s ", state, l->what);
    show_lines(out, ek_buf_ok(&text) ? text.data : "", 25, terminal_cols());
    ek_buf_done(&text);
}

static int preflight_tell(const struct preflight *p, bool json)
{
    static const char *const states[] = {"ok", "note", "BAD"};
    struct ek_buf out = {0};
    bool bad = false;
    json_t *list = json_array();
    for (uint32_t i = 0; i < p->count; i++) {
        const struct preflight_line *l = &p->line[i];
        bad |= l->state == PREFLIGHT_BAD;
        if (json)
            (void)json_array_append_new(list, json_pack("{s:s, s:s, s:s, s:s}", "state",
                                                        states[l->state], "what", l->what, "is",
                                                        l->is, "remedy", l->remedy));
        else
            preflight_put_line(&out, states[l->state], l);
    }
    if (json) {
        char *text = json_dumps(list, JSON_INDENT(2));
        (void)ek_buf_printf(&out, "%s\n", text ? text : "[]");
        free(text);
    }
    json_decref(list);
    int code = verb_print_buf(&out);
    return code != CTL_OK ? code : bad ? CTL_REFUSED : CTL_OK;
}

static int preflight(const struct preflight_options *o, const char *model)
{
    struct ek_buf driver = {0}, gpus = {.limit = PAGE_MOST}, apps = {.limit = PAGE_MOST},
                  links = {.limit = PAGE_MOST};
    char query[600];
    struct statvfs shm;
    struct preflight p;
    struct preflight_facts f = {.memlock = preflight_limit_of(RLIMIT_MEMLOCK),
                                .nofile = preflight_limit_of(RLIMIT_NOFILE),
                                .cgroup_bytes = cgroup_limit(),
                                .port = (uint32_t)o->port,
                                .port_free = port_is_free((uint32_t)o->port)};
    f.memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);
    if (statvfs("/dev/shm", &shm) == 0)
        f.shm_bytes = (uint64_t)shm.f_blocks * shm.f_frsize;
    if (access("/proc/driver/nvidia/version", R_OK) == 0)
        (void)ek_file_read("driver", "/proc/driver/nvidia/version", PAGE_MOST, &driver, NULL);
    (void)snprintf(query, sizeof(query), "--query-gpu=%s", preflight_query);
    f.gpu_tool_hung = !ask_tool(query, CSV, &gpus);
    if (!f.gpu_tool_hung && gpus.len) {
        (void)ask_tool("--query-compute-apps=pid,used_memory,process_name", CSV, &apps);
        (void)ask_tool("topo", "-m", &links);
    }
    f.driver = preflight_text_of(&driver);
    f.gpus = preflight_text_of(&gpus);
    f.apps = preflight_text_of(&apps);
    f.links = preflight_text_of(&links);
    if (model)
        look_at_model(model, &f);
    preflight_judge(&f, &p);
    ek_buf_done(&driver);
    ek_buf_done(&gpus);
    ek_buf_done(&apps);
    ek_buf_done(&links);
    return preflight_tell(&p, o->json);
}

static int preflight_run(void *options, char *model)
{
    return preflight(options, model);
}

const struct verb verb_preflight = {
    .name = "preflight",
    .word = "[MODEL]",
    .about = "what of this machine would make a server fail",
    .help =
        "One line for each: driver, cards (memory in use, MIG, ECC, link width, persistence, "
        "heat),\n"
        "unequal cards, pairs without NVLink, processes on them, locked memory, open files,\n"
        "cgroup and shared memory, the port, the model directory; with the remedy. Exit status 1:\n"
        "something is bad.",
    .options = table,
    .options_bytes = sizeof(struct preflight_options),
    .run = preflight_run};
