/*
 * Which files a server may open, and which calls it may make once it serves (confine.h). Called by
 * main, the launcher and the child that checks files.
 */
#include "server/confine.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "common/err.h"
#include "common/log.h"
#include "common/sandbox.h"
#include "server/model/find.h"
#include "server/options.h"

#define READ EK_MAY_READ
#define OWN  (EK_MAY_READ | EK_MAY_WRITE | EK_MAY_CREATE)
#define NODE (EK_MAY_READ | EK_MAY_WRITE | EK_MAY_DEVICE)

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED true
#else
#define SANITIZED false
#endif

struct rules {
    struct ek_sandbox *set;
    int r; /* the first failure */
};

static void allow(struct rules *t, const char *path, unsigned may)
{
    if (t->r == 0 && path && *path)
        t->r = ek_sandbox_allow(t->set, path, may);
}

/* The directory of a file: a program that writes it anew renames another one there. But not a
 * directory that holds half of the system. */
static void allow_folder(struct rules *t, const char *file, unsigned may)
{
    static const char *const large[] = {"/", "/etc", "/home", "/root", "/var", "/run"};
    char dir[PATH_MAX];
    bool is_large = false;
    if (!file || !*file || snprintf(dir, sizeof(dir), "%s", file) >= (int)sizeof(dir))
        return;
    char *slash = strrchr(dir, '/');
    if (slash)
        slash[slash == dir] = '\0';
    for (size_t i = 0; i < sizeof(large) / sizeof(large[0]); i++)
        is_large = is_large || strcmp(dir, large[i]) == 0;
    allow(t, !slash ? "." : is_large && !(may & EK_MAY_CREATE) ? file : dir, may);
}

/* A file that an option names, and where it lies if that is a link (certificates, secrets). */
static void allow_file(struct rules *t, const char *file)
{
    char real[PATH_MAX];
    if (!file || !*file)
        return;
    allow_folder(t, file, READ);
    if (realpath(file, real))
        allow_folder(t, real, READ);
}

static void allow_files(struct rules *t, const struct ek_strings *l)
{
    for (size_t i = 0; i < l->count; i++)
        allow_file(t, l->at[i]);
}

static bool is_directory(const char *path)
{
    struct stat st;
    return stat(path, &st) == 0 && S_ISDIR(st.st_mode);
}

/* The files that a directory has links to, and `deep` also the folders in it. A link out of it to a
 * directory opens nothing. */
static void allow_links(struct rules *t, const char *dir, bool deep)
{
    char path[PATH_MAX + 256], real[PATH_MAX];
    DIR *d = opendir(dir);
    for (struct dirent *e; d && (e = readdir(d)) != NULL;) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, e->d_name);
        if (e->d_type == DT_LNK && realpath(path, real) && !is_directory(real))
            allow(t, real, READ);
        else if (deep && e->d_type == DT_DIR && e->d_name[0] != '.')
            allow_links(t, path, false);
    }
    if (d)
        (void)closedir(d);
}

/* A directory with a model's files. Hugging Face's cache is made of links, also in folders that lie
 * in it (1_Pooling, additional_chat_templates). */
static void allow_files_of(struct rules *t, const char *dir)
{
    allow(t, dir, READ);
    allow_links(t, dir, true);
}

static void allow_model(struct rules *t, const char *name)
{
    char dir[PATH_MAX];
    if (model_find(name, dir, sizeof(dir), NULL) == 0)
        allow_files_of(t, dir);
}

/* Libraries, what the C library reads of /etc, what the kernel tells of itself and the machine. */
static void allow_system(struct rules *t)
{
    static const char *const paths[] = {
        "/usr",
        "/lib",
        "/lib64",
        "/opt",
        "/nix/store",
        "/gnu/store",
        "/proc",
        "/sys",
        "/etc/ld.so.cache",
        "/etc/ld.so.preload",
        "/etc/localtime",
        "/etc/hosts",
        "/etc/host.conf",
        "/etc/nsswitch.conf",
        "/etc/resolv.conf",
        "/etc/services",
        "/etc/gai.conf",
        "/etc/protocols",
        "/etc/ssl",
        "/etc/pki",
        "/etc/gnutls",
        "/etc/crypto-policies",
        "/etc/nccl.conf",
        "/etc/nvidia",
        "/etc/OpenCL",
    };
    static const char *const nodes[] = {"/dev/null", "/dev/zero", "/dev/full", "/dev/random",
                                        "/dev/urandom"};
    for (size_t i = 0; i < sizeof(paths) / sizeof(paths[0]); i++)
        allow(t, paths[i], READ);
    for (size_t i = 0; i < sizeof(nodes) / sizeof(nodes[0]); i++)
        allow(t, nodes[i], NODE);
    allow(t, "/dev/shm", OWN);
}

/* Where the program lies (its plug-in beside it, or in ../lib), and what names other libraries. */
static void allow_libraries(struct rules *t)
{
    static const char *const names[] = {"EVENKEEL_NCCL", "EVENKEEL_CUDA_DRIVER",
                                        "EVENKEEL_CUBLASLT"};
    char self[PATH_MAX], path[PATH_MAX + 16];
    if (realpath("/proc/self/exe", self)) {
        allow_folder(t, self, READ);
        char *slash = strrchr(self, '/');
        (void)snprintf(path, sizeof(path), "%.*s/../lib", (int)(slash - self), self);
        allow(t, path, READ);
    }
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        allow_folder(t, getenv(names[i]), READ);
    const char *list = getenv("LD_LIBRARY_PATH");
    char *copy = list ? strdup(list) : NULL;
    for (char *save, *dir = copy ? strtok_r(copy, ":", &save) : NULL; dir;
         dir = strtok_r(NULL, ":", &save))
        allow(t, dir, READ);
    free(copy);
}

/* A card's driver: its nodes, the names of its threads (it does not begin where it may not write
 * them), the pipe of its multi-process service, its cache of code. */
static void allow_cards(struct rules *t)
{
    const char *home = getenv("HOME"), *cache = getenv("CUDA_CACHE_PATH");
    char path[PATH_MAX];
    allow(t, "/dev", NODE);
    allow(t, "/proc/self/task", READ | EK_MAY_WRITE);
    allow(t, "/tmp/nvidia-mps", OWN);
    allow(t, "/run/nvidia-persistenced", READ);
    allow(t, getenv("CUDA_MPS_PIPE_DIRECTORY"), OWN);
    allow(t, cache, OWN);
    if (home && snprintf(path, sizeof(path), "%s/.nv", home) < (int)sizeof(path))
        allow(t, path, OWN);
}

/* ipc:// endpoints of KV events are sockets in the file system. */
static void allow_endpoints(struct rules *t, const char *config)
{
    char path[PATH_MAX];
    static const char scheme[] = "ipc://";
    const char *at = config ? strstr(config, scheme) : NULL;
    for (; at; at = strstr(at, scheme)) {
        at += sizeof(scheme) - 1;
        (void)snprintf(path, sizeof(path), "%.*s", (int)strcspn(at, "\""), at);
        allow_folder(t, path, OWN);
    }
}

static void allow_generation(struct rules *t, const char *dir)
{
    if (dir && is_directory(dir))
        allow_files_of(t, dir);
    else
        allow(t, dir, READ);
}

/* A fake driver (tests) needs no node. */
static bool has_cards(const struct options *o)
{
    return strcmp(o->device, "cpu") != 0 &&
           (access("/dev/nvidiactl", F_OK) == 0 || getenv("EVENKEEL_CUDA_DRIVER"));
}

static void allow_all(struct rules *t, const struct options *o)
{
    allow_system(t);
    allow_libraries(t);
    if (has_cards(o))
        allow_cards(t);
    allow_model(t, o->model);
    allow_generation(t, o->generation_config);
    allow_file(t, o->weights_checksums);
    allow_file(t, o->chat_template);
    allow_files(t, &o->api_key_file);
    allow_file(t, o->ssl_certfile);
    allow_file(t, o->ssl_keyfile);
    allow_file(t, o->ssl_ca_certs);
    allow(t, getenv("CREDENTIALS_DIRECTORY"), READ);
    allow(t, o->state_dir, OWN);
    allow_folder(t, o->prefix_file, OWN);
    allow_folder(t, o->control_socket, OWN);
    allow_folder(t, o->uds, OWN);
    allow_endpoints(t, o->kv_events_config);
}

bool confine_is_on(const struct options *o)
{
    return o->sandbox && !SANITIZED;
}

void confine_check(const struct options *o, const char *dir)
{
    struct rules t = {0};
    t.r = ek_sandbox_new(true, &t.set);
    if (t.r == 0) {
        allow_files_of(&t, dir);
        allow_generation(&t, o->generation_config);
        allow(&t, o->chat_template, READ);
        if (t.r == 0)
            (void)ek_sandbox_enter(t.set);
        ek_sandbox_free(t.set);
    }
    (void)ek_sandbox_filter(EK_CALLS_NO_SOCKET | EK_CALLS_LISTED);
}

void confine_memory(bool dumpable, struct confined *c)
{
    c->memory = ek_sandbox_dumpable(dumpable) == 0 && !dumpable;
}

bool confine_engine_itself(const struct options *o)
{
    return has_cards(o) || o->engine_command; /* a command may need any file */
}

void confine_files(const struct options *o, struct confined *c)
{
    struct rules t = {0};
    /* Ranks find one another by TCP, and an endpoint may be another host's. */
    bool alone = o->tensor_parallel_size * o->pipeline_parallel_size == 1 && !o->kv_events_config &&
                 !o->otlp_traces_endpoint;
    c->off = !confine_is_on(o);
    if (c->off)
        return;
    if (options_is_node(o)) {
        (void)snprintf(c->why, sizeof(c->why),
                       "files: MPI makes folders of its own among those of others");
        return;
    }
    t.r = ek_sandbox_new(alone, &t.set);
    if (t.r == 0)
        allow_all(&t, o);
    if (t.r == 0)
        t.r = ek_sandbox_enter(t.set);
    ek_sandbox_free(t.set);
    c->files = t.r == 0;
    c->landlock = ek_sandbox_version();
    if (t.r < 0)
        (void)snprintf(c->why, sizeof(c->why), "files: %s",
                       t.r == -EOPNOTSUPP ? "the kernel has no Landlock" : ek_strerror(t.r));
}

void confine_calls(const struct options *o, struct confined *c)
{
    if (c->off)
        return;
    /* NCCL connects its ranks, and MPI the nodes, when they first need one another. */
    bool together = (has_cards(o) || options_is_node(o)) &&
                    o->tensor_parallel_size * o->pipeline_parallel_size > 1;
    bool known = !has_cards(o); /* no foreign driver */
    int r = ek_sandbox_filter((together ? EK_CALLS_LISTEN : 0u) | (known ? EK_CALLS_LISTED : 0u) |
                              (options_is_node(o) ? EK_CALLS_MPI : 0u));
    c->calls = r == 0;
    size_t n = strlen(c->why);
    if (r < 0)
        (void)snprintf(c->why + n, sizeof(c->why) - n, "%scalls: %s", n ? "; " : "",
                       r == -EOPNOTSUPP ? "the kernel has no seccomp filters" : ek_strerror(r));
}

void confine_engine_calls(const struct options *o, struct confined *c)
{
    confine_calls(o, c);
    if (!c->calls && !c->off)
        ek_log(EK_LOG_WARNING, "The engine's process may make every system call: %s", c->why);
}

void confine_say(const struct confined *c)
{
    if (!c->memory)
        ek_log(EK_LOG_WARNING, "Sandbox: others of this user may read the process's memory and "
                               "the kernel may write its core (--dumpable)");
    if (c->off)
        ek_log(EK_LOG_INFO,
               "Sandbox: off (--no-sandbox, or a build with sanitizers), also for the parsers of "
               "the model's files");
    else if (c->why[0])
        ek_log(EK_LOG_WARNING, "Sandbox: not all of it can be had here, serving without: %s",
               c->why);
    else
        ek_log(EK_LOG_INFO,
               "Sandbox: files by Landlock %d, calls by seccomp; --no-sandbox turns it off",
               c->landlock);
}
