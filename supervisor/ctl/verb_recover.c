/*
 * `evenkeelctl recover`: the emergency of the guides as steps that are said: end strays (by cgroup
 * and pidfd, never by name), wait for the device's memory, start again, hold the limits low.
 */
#include <curl/curl.h>
#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/fdpass.h"
#include "supervisor/ctl/api.h"
#include "supervisor/ctl/args.h"
#include "supervisor/ctl/calls.h"
#include "supervisor/ctl/spawn.h"
#include "supervisor/ctl/stray.h"
#include "supervisor/ctl/verb.h"

#define SERVERS_MOST 64
#define HOLDERS_MOST 256
#define TERM_MS      15000
#define KILL_MS      5000
#define PAGE_MOST    65536
#define CONNECT_MS   2000

struct recover_options {
    char *socket, *below;
    bool all;
    uint64_t seqs, tokens;
    double share, wait_s, timeout_s;
    bool dry_run;
};

#define AT(field) offsetof(struct recover_options, field)
static const struct ek_opt table[] = {
    {.name = "dry-run", .type = OPT_BOOL, .at = AT(dry_run), .help = "Say the steps, do none."},
    {.name = "max-num-seqs",
     .type = OPT_UINT,
     .at = AT(seqs),
     .min = 1,
     .max = 65536,
     .def = "16",
     .help = "Most sequences at once after the start."},
    {.name = "max-num-batched-tokens",
     .type = OPT_UINT,
     .at = AT(tokens),
     .min = 1,
     .max = 1048576,
     .def = "8192",
     .help = "Most tokens of a step after the start."},
    {.name = "gpu-memory-utilization",
     .type = OPT_FRACTION,
     .at = AT(share),
     .min = 0.05,
     .max = 1,
     .def = "0.75",
     .help = "Most of the device's memory for a server that cannot change its limits while it "
             "runs; all three are start flags then."},
    {.name = "wait",
     .type = OPT_SECONDS,
     .at = AT(wait_s),
     .min = 1,
     .max = 3600,
     .def = "60",
     .help = "Longest wait for a stray to end by itself (at most 15 s), and for the device's "
             "memory."},
    {.name = "timeout",
     .type = OPT_SECONDS,
     .at = AT(timeout_s),
     .min = 1,
     .max = 86400,
     .def = "600",
     .help = "Longest wait for each server to be ready; a large model loads for minutes."},
    {.name = "all",
     .type = OPT_BOOL,
     .at = AT(all),
     .help = "End processes too whose evenkeeld runs but does not answer here."},
    {.name = "below",
     .type = OPT_STRING,
     .at = AT(below),
     .help = "Look for strays only in cgroups below this one, such as /system.slice."},
    {.name = "socket", .type = OPT_STRING, .at = AT(socket), .help = "The socket of evenkeeld."},
    {0}};

struct recovery {
    const struct recover_options *o;
    struct api api;
    json_t *servers; /* of evenkeeld; NULL: it cannot be reached */
    char home[400];  /* cgroup of the evenkeeld that answers, "" = none does or not known */
    bool failed;
};

static void pause_ms(long ms)
{
    struct timespec t = {ms / 1000, ms % 1000 * 1000000};
    (void)nanosleep(&t, NULL); /* shorter by a signal: then it asks sooner */
}

static const char *will(const struct recovery *r, const char *doing, const char *would)
{
    return r->o->dry_run ? would : doing;
}

/* ---- strays ---- */

/* True when it has ended. */
static bool signal_and_wait(int pidfd, int number, int ms)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};
    if (syscall(SYS_pidfd_send_signal, pidfd, number, NULL, 0) < 0 && errno == ESRCH)
        return true;
    return poll(&p, 1, ms) == 1;
}

/* The descriptor first, then the cgroup again: the pid may be another process's by now. */
static bool end_one(const struct stray *s, int term_ms)
{
    char now[400];
    int fd = (int)syscall(SYS_pidfd_open, s->pid, 0);
    if (fd < 0)
        return errno == ESRCH;
    bool same = stray_cgroup_of(s->pid, now, sizeof(now)) && strcmp(now, s->cgroup) == 0;
    bool ended =
        !same || signal_and_wait(fd, SIGTERM, term_ms) || signal_and_wait(fd, SIGKILL, KILL_MS);
    (void)close(fd);
    return ended;
}

/* Where the evenkeeld is that answers. */
static void find_home(struct recovery *r)
{
    struct ucred peer = {0};
    socklen_t len = sizeof(peer);
    char cgroup[400];
    int fd = ek_connect_unix(r->api.socket, CONNECT_MS);
    if (fd >= 0 && getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &peer, &len) == 0 && peer.pid > 0 &&
        stray_cgroup_of(peer.pid, cgroup, sizeof(cgroup)) && stray_is_keeper(cgroup, ""))
        (void)snprintf(r->home, sizeof(r->home), "%.*s",
                       (int)(strstr(cgroup, "/evenkeeld.service") + 18 - cgroup), cgroup);
    if (fd >= 0)
        (void)close(fd);
}

/* Another evenkeeld, one that does not answer here, may supervise it: then it is no stray. */
static pid_t kept_by(const struct recovery *r, const struct stray *s)
{
    char home[400];
    stray_home(s->cgroup, home, sizeof(home));
    if (r->o->all || (r->servers && strcmp(home, r->home) == 0) || (r->servers && !home[0]))
        return 0;
    return stray_keeper(s->cgroup);
}

/* Those of evenkeeld's servers that run. */
static uint32_t servers_pids(const struct recovery *r, pid_t pids[SERVERS_MOST])
{
    uint32_t count = 0;
    for (size_t i = 0; i < json_array_size(r->servers) && count < SERVERS_MOST; i++) {
        json_int_t pid = json_integer_value(json_object_get(json_array_get(r->servers, i), "pid"));
        if (pid > 0)
            pids[count++] = (pid_t)pid;
    }
    return count;
}

/* Looks for processes of servers that are not supervised; those that may be are counted. */
static uint32_t find_strays(struct recovery *r, struct stray *strays, uint32_t *ret_left)
{
    pid_t kept[SERVERS_MOST];
    uint32_t count = servers_pids(r, kept), ours = 0;
    size_t below = r->o->below ? strlen(r->o->below) : 0;
    uint32_t found = stray_scan(kept, count, strays);
    *ret_left = 0;
    for (uint32_t i = 0; i < found; i++) {
        if (below && strncmp(strays[i].cgroup, r->o->below, below) != 0)
            continue;
        pid_t keeper = kept_by(r, &strays[i]);
        if (keeper)
            (void)printf("   left: %d in %s, which evenkeeld %d may supervise\n",
                         (int)strays[i].pid, strays[i].cgroup, (int)keeper);
        else
            strays[ours++] = strays[i];
        *ret_left += keeper != 0;
    }
    return ours;
}

static void end_strays(struct recovery *r)
{
    static struct stray strays[STRAYS_MOST];
    uint32_t left;
    int term_ms = r->o->wait_s < TERM_MS / 1e3 ? (int)(r->o->wait_s * 1e3) : TERM_MS;
    if (r->servers)
        find_home(r);
    (void)puts("1. Strays: processes in cgroups of servers that no evenkeeld supervises.");
    uint32_t found = find_strays(r, strays, &left);
    if (found == 0)
        (void)puts("   none");
    if (left)
        (void)puts("   That evenkeeld does not answer at this socket: name its own with --socket, "
                   "or end\n   these too with --all.");
    for (uint32_t i = 0; i < found; i++) {
        (void)printf("   %s %d in %s\n", will(r, "ending", "would end"), (int)strays[i].pid,
                     strays[i].cgroup);
        (void)fflush(stdout);
        if (!r->o->dry_run && !end_one(&strays[i], term_ms)) {
            (void)printf("   it did not end: %s\n", strerror(errno));
            r->failed = true;
        }
    }
}

/* ---- device memory ---- */

struct holders {
    uint32_t all, others; /* processes on the GPUs, each once; those of no server */
    pid_t pids[HOLDERS_MOST];
};

/* One of several cards is on several lines. What is no number counts, with no owner. */
static void take_holders(char *text, const pid_t *servers, uint32_t count, struct holders *h)
{
    char *rest = text;
    *h = (struct holders){0};
    for (const char *line; (line = strsep(&rest, "\n"));) {
        uint32_t i = 0;
        char *end;
        long pid = strtol(line, &end, 10);
        if (!*line)
            continue;
        if (end == line || pid <= 0 || pid > INT_MAX)
            pid = 0;
        while (pid && i < h->all && i < HOLDERS_MOST && h->pids[i] != (pid_t)pid)
            i++;
        if ((pid && i < h->all) || h->all == HOLDERS_MOST)
            continue;
        h->pids[h->all++] = (pid_t)pid;
    }
    for (uint32_t i = 0; i < h->all; i++) {
        if (!stray_is_of(h->pids[i], servers, count))
            h->pids[h->others++] = h->pids[i];
    }
}

/* False: no driver answers. Whose they are is asked of the processes themselves: a server has as
 * many on the GPUs as it has ranks. */
static bool device_holders(const struct recovery *r, struct holders *h)
{
    char program[] = "nvidia-smi", query[] = "--query-compute-apps=pid",
         form[] = "--format=csv,noheader";
    char *argv[] = {program, query, form, NULL}, none[] = "";
    struct ek_buf out = {.limit = PAGE_MOST}, err = {.limit = PAGE_MOST};
    pid_t servers[SERVERS_MOST];
    int status = 0;
    bool answers = spawn_read(argv, 10, &out, &err, &status) == 0 && status == 0;
    if (answers)
        take_holders(out.data ? out.data : none, servers, servers_pids(r, servers), h);
    ek_buf_done(&out);
    ek_buf_done(&err);
    return answers;
}

static void stop_servers(struct recovery *r)
{
    (void)printf("2. Servers: %zu under evenkeeld.\n", json_array_size(r->servers));
    for (size_t i = 0; i < json_array_size(r->servers); i++) {
        const json_t *s = json_array_get(r->servers, i);
        const char *name = json_string_value(json_object_get(s, "name"));
        const char *state = json_string_value(json_object_get(s, "state"));
        (void)printf("   %s is %s: %s it (what runs finishes first)\n", name ? name : "?",
                     state ? state : "?", will(r, "restarting", "would restart"));
    }
}

static void tell_holders(const struct holders *h)
{
    (void)fputs("   Others hold memory still:", stdout);
    for (uint32_t i = 0; i < h->others; i++)
        (void)(h->pids[i] ? printf(" %d", (int)h->pids[i]) : printf(" (one without a number)"));
    (void)puts("; ps and nvidia-smi say what they are.\n"
               "   A reset of the card (nvidia-smi --gpu-reset -i N) ends every process on it, and "
               "on cards\n"
               "   that share a board or NVLink with it; drain those first. This program does not "
               "do it.");
}

static void wait_memory(const struct recovery *r)
{
    struct holders h;
    if (!device_holders(r, &h)) {
        (void)puts("3. Device memory: no NVIDIA driver answers; nothing to wait for.");
        return;
    }
    (void)printf("3. Device memory: %u process%s on the GPUs, %u of no server here.\n", h.all,
                 h.all == 1 ? "" : "es", h.others);
    (void)fflush(stdout);
    uint64_t until = ek_now_us() + (uint64_t)(r->o->wait_s * 1e6);
    bool answers = true;
    while (!r->o->dry_run && answers && h.others && ek_now_us() < until) {
        pause_ms(1000);
        answers = device_holders(r, &h);
    }
    if (!answers)
        (void)puts("   The driver does not answer any more; going on.");
    else if (h.others)
        tell_holders(&h);
}

/* ---- the servers ---- */

static int call(struct recovery *r, const char *method, const char *name, const char *what,
                const json_t *body)
{
    int code = calls_server(&r->api, method, name, what, body, NULL);
    if (code < 0) {
        (void)printf("   %s: %s\n", name, r->api.error);
        r->failed = true;
    }
    return code;
}

/* Never above the ceiling, which is refused. */
static json_int_t bounded(const json_t *server, const char *knob, uint64_t want)
{
    const json_t *limit = json_object_get(json_object_get(server, "limits"), knob);
    double ceiling = json_number_value(json_object_get(limit, "ceiling"));
    return ceiling > 0 && ceiling < (double)want ? (json_int_t)ceiling : (json_int_t)want;
}

/* Where limits are not live they are start flags, until a restart without them; where the
 * operator's own are lower, those stay. False when it was not restarted. */
static bool start_bounded(struct recovery *r, const char *name)
{
    json_t *body = json_pack("{s:{s:f, s:I, s:I, s:b}}", "trial", "gpu_memory_utilization",
                             r->o->share, "max_num_seqs", (json_int_t)r->o->seqs,
                             "max_num_batched_tokens", (json_int_t)r->o->tokens, "at_most", 1);
    bool begun = body && call(r, "POST", name, "restart", body) >= 0;
    json_decref(body);
    return begun;
}

static void hold_low(struct recovery *r, const char *name, json_int_t seqs, json_int_t tokens)
{
    json_t *body = json_pack("{s:I, s:I, s:s}", "max_num_running_seqs", seqs,
                             "max_num_batched_tokens", tokens, "reason", "recover");
    if (body && call(r, "PATCH", name, "limits", body) == 0)
        (void)printf("   %s: ready; evenkeeld raises the limits when nothing suffers\n", name);
    json_decref(body);
}

static void start_one(struct recovery *r, const json_t *s)
{
    const char *name = json_string_value(json_object_get(s, "name"));
    json_int_t pid = json_integer_value(json_object_get(s, "pid"));
    bool live = !json_is_false(json_object_get(s, "live_limits"));
    json_int_t seqs = (json_int_t)r->o->seqs, tokens = (json_int_t)r->o->tokens;
    char flags[80] = "";
    if (!name)
        return;
    if (live) {
        seqs = bounded(s, "max_num_running_seqs", r->o->seqs);
        tokens = bounded(s, "max_num_batched_tokens", r->o->tokens);
    } else {
        (void)snprintf(flags, sizeof(flags), ", and %.2f of the memory, by start flags",
                       r->o->share);
    }
    (void)printf("   %s: %s with at most %lld sequences and %lld tokens a step%s\n", name,
                 will(r, "starting", "would start"), (long long)seqs, (long long)tokens, flags);
    (void)fflush(stdout);
    if (r->o->dry_run)
        return;
    if (live ? call(r, "POST", name, "restart", NULL) < 0 : !start_bounded(r, name))
        return;
    uint64_t begun = ek_now_us();
    if (!calls_wait_ready(&r->api, name, pid, r->o->timeout_s)) {
        (void)printf("   %s: not ready after %.0f s; evenkeelctl explain says why\n", name,
                     (double)(ek_now_us() - begun) / 1e6);
        r->failed = true;
    } else if (live) {
        hold_low(r, name, seqs, tokens);
    } else {
        (void)printf("   %s: ready; it keeps these flags until: evenkeelctl restart %s\n", name,
                     name);
    }
}

static int recover(struct recovery *r)
{
    json_t *answer = NULL;
    if (api_call(&r->api, "GET", "/api/v1/servers", NULL, &answer) == 0)
        r->servers = json_object_get(answer, "servers");
    end_strays(r);
    if (r->servers)
        stop_servers(r);
    else
        (void)printf("2. Servers: %s\n", r->api.error);
    wait_memory(r);
    if (!r->servers)
        (void)puts("4. Start evenkeeld: systemctl start evenkeeld; then evenkeelctl recover again "
                   "for low limits.");
    else
        (void)puts("4. Start with the conservative profile:");
    for (size_t i = 0; i < json_array_size(r->servers); i++)
        start_one(r, json_array_get(r->servers, i));
    json_decref(answer);
    return r->failed ? CTL_REFUSED : r->servers || r->o->dry_run ? CTL_OK : CTL_UNREACHED;
}

static int recover_run(void *options, char *word)
{
    const struct recover_options *o = options;
    struct recovery r = {.o = o};

    (void)word; /* it takes none */
    if (curl_global_init(CURL_GLOBAL_DEFAULT) != CURLE_OK || api_open(&r.api, o->socket) < 0) {
        (void)fprintf(stderr, "evenkeelctl recover: %s\n", r.api.error);
        return CTL_REFUSED;
    }
    const int code = recover(&r);
    api_close(&r.api);
    curl_global_cleanup();
    return code;
}

const struct verb verb_recover = {
    .name = "recover",
    .about = "emergency: end strays, start with low limits",
    .help =
        "Ends processes of servers whose evenkeeld is gone or forgot them (by cgroup and pidfd, "
        "never\n"
        "by name), waits for the device's memory, restarts every server and holds its limits low:\n"
        "live ones where it has them (evenkeel-server, a vLLM with the companion), else by start\n"
        "flags until the next restart. A lower limit of the server's own command line stays.\n"
        "Says each step. A card is never reset; when that would be next, it is said with its risk.",
    .options = table,
    .options_bytes = sizeof(struct recover_options),
    .run = recover_run};
