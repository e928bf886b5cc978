/* Opens what clients connect to; called by main.c before the model is read. */
#include "server/listening.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/fdpass.h"
#include "common/log.h"
#include "server/access_options.h"
#include "server/controller.h"
#include "server/drain.h"

#define BACKLOG     4096
#define LOOPBACK    "127.0.0.1"
#define UDS_MODE    0660 /* of --uds: without a key, a process that may connect may use the server */
#define EXTRA_FILES 1024u
#define OWN_FILES   48u /* at least: control, health, metrics, the model's files */

/* Without keys only this machine is served; NULL = all addresses. */
const char *listening_host(const struct instance *s)
{
    return s->o.host ? s->o.host : http_has_keys(s->http) ? NULL : LOOPBACK;
}

static int refuse_address(const struct instance *s, int fd, struct ek_fault *f)
{
    const struct options *o = &s->o;
    const char *field = fd == -EADDRINUSE || fd == -EACCES ? "port" : "host";
    const char *remedy = fd == -EADDRINUSE ? "choose another or stop who has it"
                         : fd == -EACCES   ? "ports below 1024 need a right of their own"
                                           : "name an address of this machine";
    return ek_fault_set(f, field, "--%s: cannot listen on %s:%llu: %s; %s", field,
                        listening_host(s) ? listening_host(s) : "*", (unsigned long long)o->port,
                        ek_strerror(fd), remedy);
}

/* The socket that the process was started with, or -1. evenkeeld's has a name by which it knows
 * again that it is the one which it would hand over; another one is not taken in its place. */
static int given_listener(const struct options *o)
{
    char **names = NULL;
    int given = sd_listen_fds_with_names(1, &names);
    bool evenkeeld = given > 0 && strcmp(names[0], EK_LISTEN_NAME) == 0;
    for (int i = 0; i < given; i++)
        free(names[i]);
    free(names);
    if (given <= 0 || evenkeeld != o->listen_from_control || options_follows(o) ||
        sd_is_socket(SD_LISTEN_FDS_START, AF_UNSPEC, SOCK_STREAM, 1) <= 0)
        return -1;
    ek_log(EK_LOG_INFO, "Listening on the socket given by %s", evenkeeld ? "evenkeeld" : "systemd");
    return SD_LISTEN_FDS_START;
}

/* A listening socket of our own, from systemd or evenkeeld, or none yet (it comes over the control
 * socket). */
static int open_listener(struct instance *s, struct ek_fault *f)
{
    const struct options *o = &s->o;
    int fd = given_listener(o);
    if (fd >= 0)
        return fd;
    if (o->listen_from_control || options_follows(o))
        return -EAGAIN;
    if (o->uds) {
        fd = ek_listen_unix(o->uds, UDS_MODE, BACKLOG);
        if (fd < 0)
            return ek_fault_set(f, "uds", "--uds: cannot listen on %s: %s", o->uds,
                                ek_strerror(fd));
        return fd;
    }
    fd = ek_listen_tcp(listening_host(s), (unsigned)o->port, BACKLOG, &s->port);
    if (fd < 0)
        return refuse_address(s, fd, f);
    if (!o->host && listening_host(s))
        ek_log(EK_LOG_NOTICE,
               "Without an API key only this machine is served: listening on " LOOPBACK
               "; --api-key-file FILE or --host ADDRESS opens it to others");
    return fd;
}

int listening_with(struct instance *s, int fd, struct ek_fault *f)
{
    int r = http_listen(s->http, fd, f);
    s->listening = r == 0;
    return r;
}

/* Returns how many sockets the API may have, 0 = as many as it likes. */
uint32_t listening_files(const struct options *o)
{
    struct rlimit l;
    rlim_t want = o->max_connections + EXTRA_FILES;
    if (getrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur >= want)
        return 0;
    l.rlim_cur = l.rlim_max < want ? l.rlim_max : want;
    if (setrlimit(RLIMIT_NOFILE, &l) < 0 || l.rlim_cur < want)
        ek_log(EK_LOG_WARNING,
               "Only %llu descriptors are allowed; --max-connections %llu needs %llu",
               (unsigned long long)l.rlim_cur, (unsigned long long)o->max_connections,
               (unsigned long long)want);
    if (l.rlim_cur >= want)
        return 0;
    return l.rlim_cur > 2 * OWN_FILES ? (uint32_t)l.rlim_cur - OWN_FILES
                                      : (uint32_t)l.rlim_cur / 4 + 1;
}

static uint32_t http_threads(const struct options *o)
{
    long cores = sysconf(_SC_NPROCESSORS_ONLN);
    if (o->http_threads)
        return (uint32_t)o->http_threads;
    return cores <= 3 ? 1 : cores >= 8 ? 4 : (uint32_t)cores / 2;
}

int listening_open(struct instance *s, struct ek_fault *f)
{
    const struct options *o = &s->o;
    struct http_params p = {.threads = http_threads(o),
                            .max_connections = (uint32_t)o->max_connections,
                            .max_sockets = s->most_sockets,
                            .request_timeout_s = o->request_timeout,
                            .keep_alive_s = o->keep_alive_timeout,
                            .shutdown_timeout_s = o->shutdown_timeout,
                            .drain_mode = drain_mode(o),
                            .control_path = options_follows(o) ? NULL : o->control_socket,
                            .control_uid = controller_uid(),
                            .log_requests = o->enable_log_requests,
                            .traces_endpoint = o->otlp_traces_endpoint,
                            .drain = drain_on_order,
                            .resume = drain_on_resume,
                            .ctx = s};
    access_options_params(o, &p.access);
    if (options_follows(o))
        p.access.keys.key_count =
            0; /* it takes no requests, and an engine's nodes see them hidden */
    int r = http_new(&p, &s->http, f);
    access_options_forget(&s->o);
    if (r < 0)
        return r;
    s->stack.http = s->http;
    int fd = open_listener(s, f);
    if (fd == -EAGAIN)
        return 0;
    return fd < 0 ? fd : listening_with(s, fd, f);
}
