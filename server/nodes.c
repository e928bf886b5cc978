/*
 * Nodes, see nodes.h. mpirun or srun started them, and say so in the environment: which one this is
 * and how many there are is known before MPI is.
 */
#include "server/nodes.h"

#include <errno.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/err.h"
#include "common/log.h"
#include "kernels/fingerprint.h"
#include "server/model/model.h"
#include "server/model/sigbus.h"
#include "server/options.h"
#include "server/private_net.h"
#include "server/stack.h"

static void card_say(struct ek_node_card *card, enum ek_card_line line, const char *form, ...)
    __attribute__((format(printf, 3, 4)));
static void card_say(struct ek_node_card *card, enum ek_card_line line, const char *form, ...)
{
    va_list args;

    va_start(args, form);
    (void)vsnprintf(card->line[line], sizeof(card->line[line]), form, args);
    va_end(args);
}

static void fill_card(const struct stack *s, struct ek_node_card *card)
{
    const struct ek_graph *graph = &s->model->graph;
    char note[MODEL_NOTE_BYTES];

    model_weights_note(s->model, false, note);
    *card = (struct ek_node_card){.ranks = s->open.ranks,
                                  .stages = s->open.stages > 0 ? s->open.stages : 1,
                                  .memory_bytes = s->info.memory_bytes,
                                  .free_bytes = s->info.free_bytes};
    if (gethostname(card->host, sizeof(card->host) - 1) < 0 || card->host[0] == '\0')
        (void)snprintf(card->host, sizeof(card->host), "unnamed");
    card_say(card, EK_CARD_PROGRAM, "%s with kernels %u", EK_VERSION, EK_BACKEND_ABI);
    card_say(card, EK_CARD_BACKEND, "%s", s->backend->name);
    card_say(card, EK_CARD_ISA, "%s", s->info.isa);
    card_say(card, EK_CARD_MODEL, "%s", s->model->family);
    card_say(card, EK_CARD_FORM, "%s%s%.40s, KV cache %s", model_dtype_name(graph->dtype),
             note[0] ? ", " : "", note,
             graph->kv_i8   ? "int8"
             : graph->kv_f8 ? "fp8"
                            : "plain");
    card_say(card, EK_CARD_STAGES, "%u", card->stages);
    card_say(card, EK_CARD_RANKS, "%u", card->ranks);
    card_say(card, EK_CARD_SHAPE, "%" PRIx64, ek_graph_sum(graph));
    card_say(card, EK_CARD_WEIGHTS, "%" PRIx64, ek_weight_sum(graph, &s->model->files));
}

static void on_lost(void *ctx, const char *why)
{
    struct stack *s = ctx;
    if (s->o->node_rank == 0)
        s->dead(s->dead_ctx, EK_EXIT_COMM, why);
}

/* ---- what started this one ---- */

static bool number_of(const char *name, uint32_t *ret_number)
{
    const char *text = getenv(name);
    char *end = NULL;

    if (!text || text[0] < '0' || text[0] > '9')
        return false;
    unsigned long n = strtoul(text, &end, 10);
    *ret_number = n < UINT32_MAX ? (uint32_t)n : UINT32_MAX;
    return *end == '\0';
}

bool nodes_started(uint32_t *ret_node, uint32_t *ret_nodes)
{
    uint32_t node = 0, nodes = 1;
    const bool mpirun =
        number_of("OMPI_COMM_WORLD_SIZE", &nodes) && number_of("OMPI_COMM_WORLD_RANK", &node);
    const bool srun =
        !mpirun && number_of("PMIX_RANK", &node) &&
        (number_of("SLURM_STEP_NUM_TASKS", &nodes) || number_of("SLURM_NTASKS", &nodes));

    if ((!mpirun && !srun) || nodes < 2)
        return false;
    *ret_node = node;
    *ret_nodes = nodes;
    return true;
}

/* ---- meeting ---- */

static int check_network(const struct options *o, const struct ek_cluster *c,
                         struct ek_fault *fault)
{
    char what[160];

    if (o->allow_unencrypted_network || !ek_cluster_leaves_machine(c) ||
        !private_net_find_public(getenv("OMPI_MCA_btl_tcp_if_include"),
                                 getenv("OMPI_MCA_btl_tcp_if_exclude"), what, sizeof(what)))
        return 0;
    return ek_fault_set(fault, "allow-unencrypted-network",
                        "MPI encrypts nothing, and here it may use %s, which is no private "
                        "network: name the nodes' own with mpirun --mca btl_tcp_if_include "
                        "10.9.0.0/24, or say --allow-unencrypted-network",
                        what);
}

int nodes_meet(struct stack *s, struct ek_fault *fault)
{
    const struct options *o = s->o;
    struct ek_cluster *c;
    struct ek_cluster_params p = {.node = (uint32_t)o->node_rank,
                                  .nodes = (uint32_t)o->nnodes,
                                  .wait_us = (uint64_t)(o->distributed_timeout_seconds * 1e6),
                                  .stall_us = s->open.stall_us,
                                  .lost = on_lost,
                                  .ctx = s};
    const bool noted = s->info.note[0] != '\0';

    fill_card(s, &p.card);
    http_progress(s->http, "waiting for the other nodes", 0, 0);
    (void)sd_notify(0, "STATUS=Waiting for the other nodes");
    /* Between processes of one machine: needs rights that neither a sandbox nor a container gives.
     * Without memory for it MPI does as it likes. */
    (void)setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    int r = ek_cluster_new(&p, &c, fault);
    if (r < 0)
        return r;
    atomic_store(&s->cluster, c);
    r = check_network(o, c, fault);
    if (r < 0)
        return r;
    ek_cluster_open(c, &s->open);
    if (p.node == 0)
        ek_cluster_info(c, &s->info);
    if (p.node == 0 && !noted && s->info.note[0])
        ek_log(EK_LOG_WARNING, "%s", s->info.note);
    ek_log(EK_LOG_NOTICE, "Node %u of %u: ranks %u to %u of %u", p.node, p.nodes, s->open.first,
           s->open.first + s->open.local - 1, s->open.ranks);
    return 0;
}

/* ---- a node that follows ---- */

static void on_loading(void *ctx, uint32_t max_model_len)
{
    struct stack *s = ctx;

    model_serve(s->model, max_model_len);
    (void)sigbus_watch(s->model->dir, EK_EXIT_CONFIG); /* MPI's libraries take it away */
}

static void on_ready(void *ctx, uint32_t blocks)
{
    struct stack *s = ctx;

    model_close_files(s->model);
    sigbus_done();
    ek_log(EK_LOG_NOTICE, "Following node 0 with ranks %u to %u, %u blocks", s->open.first,
           s->open.first + s->open.local - 1, blocks - 1);
}

int nodes_follow(struct stack *s, int *ret_exit, struct ek_fault *fault)
{
    struct ek_follow_params p = {.loading = on_loading, .ready = on_ready, .ctx = s};
    int code = 0;

    p.backend = s->backend;
    p.open = s->open;
    p.graph = &s->model->graph;
    p.files = &s->model->files;
    int r = ek_cluster_follow(atomic_load(&s->cluster), &p, &code, fault);
    if (r < 0)
        return start_failed(r, "following node 0", ret_exit, fault);
    *ret_exit = code == EK_EXIT_RESTART ? EK_EXIT_RESTART : EK_EXIT_OK;
    return 0;
}

bool nodes_asked(struct stack *s)
{
    struct ek_cluster *c = s->o->node_rank == 0 ? atomic_load(&s->cluster) : NULL;
    uint32_t node;
    const char *host = c ? ek_cluster_leaver(c, &node) : NULL;

    if (host)
        ek_log(EK_LOG_NOTICE, "Node %u (%s) was asked to stop: draining, then all nodes end", node,
               host);
    return host != NULL;
}

bool nodes_leave(struct stack *s)
{
    struct ek_cluster *c = atomic_load(&s->cluster);

    if (c)
        ek_cluster_leave(c);
    return c != NULL;
}
