/* Node 0 of an engine over several machines (engine_node.h). Called by main.c. */
#include "server/engine_node.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include "common/err.h"
#include "common/log.h"
#include "kernels/apart.h"
#include "kernels/fingerprint.h"
#include "server/confine.h"
#include "server/engine_command.h"
#include "server/model/model.h"
#include "server/model/sigbus.h"
#include "server/named.h"
#include "server/options.h"
#include "server/stack.h"
#include "server/start.h"

/* The descriptor stays open, for the device. */
static int engine_node_take_memory(struct ek_apart_memory **ret_memory, int *ret_fd,
                                   struct ek_fault *fault)
{
    const char *name = getenv(ENGINE_COMMAND_MEMORY);

    if (!name)
        return ek_fault_set(fault, "engine-command",
                            "--engine-command, but no server started this process: start the "
                            "server by itself, it runs the command; and let node 0 be on its "
                            "machine");
    const int fd = open(name, O_RDWR | O_CLOEXEC);
    int r = fd < 0 ? -errno : ek_apart_map(fd, ret_memory);
    if (r < 0 && fd >= 0)
        (void)close(fd);
    if (r == -EPROTO)
        return ek_fault_set(fault, "engine-command",
                            "The server and this program, %s, are not of the same version and "
                            "build: restart the server",
                            EK_VERSION);
    if (r < 0)
        return ek_fault_set(fault, "engine-command",
                            "The memory that server and engine share, %.60s, is not to be had: "
                            "%s; node 0 has to be on the server's machine, under the same user",
                            name, ek_strerror(r));
    *ret_fd = fd;
    return 0;
}

/* Flags and files may have been changed since the server read them. */
static int compare(const struct stack *s, const struct ek_apart_order *o, struct ek_fault *fault)
{
    int r = named_same(s->model->dir, o->stamp, fault);
    if (r < 0)
        return r;
    if (s->open.ranks == o->ranks && s->open.stages == o->stages &&
        ek_open_local(&s->open) == o->local && ek_graph_sum(&s->model->graph) == o->graph)
        return 0;
    return ek_fault_set(fault, "engine-command",
                        "This node was told other ranks, or other types of weights or cache, than "
                        "the server: was --config changed since it began? Restart the server");
}

static int node_load(struct stack *s, struct ek_apart_memory *m, struct ek_fault *fault)
{
    const struct ek_apart_order *o = ek_apart_order(m);
    const struct ek_plan_request q = ek_apart_request(o, &s->model->graph);

    model_serve(s->model, q.max_model_len);
    int r = compare(s, o, fault);
    if (r < 0)
        return r;
    if (o->forms.used > 0) { /* the server's choice, which every engine has */
        s->forms = o->forms;
        s->open.forms = &s->forms;
    }
    r = s->backend->open(&s->open, &s->device, fault);
    if (r == 0)
        (void)sigbus_watch(s->model->dir, EK_EXIT_CONFIG); /* MPI's libraries take it away */
    if (r == 0)
        r = s->backend->load(s->device, &q, &s->model->files, ek_apart_progress, m, fault);
    if (r == 0)
        r = named_unchanged(s->model->dir, o->stamp, fault);
    if (r < 0)
        return r;
    model_close_files(s->model);
    sigbus_done();
    return 0;
}

int engine_node_run(struct stack *s, int *ret_exit, struct ek_fault *fault)
{
    struct confined c = {.off = !confine_is_on(s->o)};
    struct ek_apart_memory *m = NULL;
    int fd = -1;

    int r = engine_node_take_memory(&m, &fd, fault);
    if (r < 0)
        return start_failed(r, "the engine's memory", ret_exit, fault);
    r = start_follower(s, ret_exit, fault);
    if (r == 0 && (r = node_load(s, m, fault)) < 0)
        (void)start_failed(r, "loading the weights", ret_exit, fault);
    if (r == 0) {
        confine_engine_calls(s->o, &c);
        ek_log(EK_LOG_NOTICE, "The engine is there: %u ranks, %u of them here", s->open.ranks,
               ek_open_local(&s->open));
        ek_apart_serve(m, fd, s->backend, s->device, &s->model->graph);
    }
    ek_apart_failed(m, r, fault);
    return r;
}
