/*
 * Nodes, see nodes.h. mpirun or srun started them, and say so in the environment: which one this is
 * and how many there are is known before MPI is.
 */
#include "server/nodes.h"

#include <assert.h>
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

/* One more line of what has to be the same, and what helps where it is not. */
static void card_say(struct ek_node_card *card, const char *remedy, const char *form, ...)
    __attribute__((format(printf, 3, 4)));
static void card_say(struct ek_node_card *card, const char *remedy, const char *form, ...)
{
    const uint32_t at = card->lines++;
    va_list args;

    assert(at < sizeof(card->line) / sizeof(card->line[0]));
    va_start(args, form);
    (void)vsnprintf(card->line[at].says, sizeof(card->line[at].says), form, args);
    va_end(args);
    (void)snprintf(card->line[at].remedy, sizeof(card->line[at].remedy), "%s", remedy);
}

void nodes_card(const struct stack *s, struct ek_node_card *ret_card)
{
    const struct ek_graph *graph = &s->model->graph;
    struct ek_node_card *card = ret_card;
    char note[MODEL_NOTE_BYTES];

    model_weights_note(s->model, false, note);
    *card = (struct ek_node_card){.ranks = s->open.ranks,
                                  .stages = s->open.stages > 0 ? s->open.stages : 1,
                                  .memory_bytes = s->info.memory_bytes,
                                  .free_bytes = s->info.free_bytes};
    if (gethostname(card->host, sizeof(card->host) - 1) < 0 || card->host[0] == '\0')
        (void)snprintf(card->host, sizeof(card->host), "unnamed");
    card_say(card, "install the same on all nodes", "is evenkeel-server %s with kernels %u",
             EK_VERSION, EK_BACKEND_ABI);
    card_say(card, "give all nodes the same --device", "computes on %s", s->backend->name);
    card_say(card, "give all nodes the --cpu-isa that the oldest offers", "computes with %s",
             s->info.isa);
    card_say(card, "give all nodes the same model", "has a model %s", s->model->family);
    card_say(card, "give all nodes the same --dtype, --quantization and --kv-cache-dtype",
             "keeps it as %s%s%.40s, KV cache %s", model_dtype_name(graph->dtype),
             note[0] ? ", " : "", note,
             graph->kv_i8   ? "int8"
             : graph->kv_f8 ? "fp8"
                            : "plain");
    card_say(card, "give all nodes the same", "has --pipeline-parallel-size %u", card->stages);
    card_say(card, "give all nodes the same", "has ranks by --tensor-parallel-size %u",
             card->ranks);
    card_say(card, "give all nodes the same model, with the same config.json",
             "has a model of shape %" PRIx64, ek_graph_sum(graph));
    card_say(card, "give all nodes the same model files (sha256sum -c SHA256SUMS)",
             "has weights %" PRIx64, ek_weight_sum(graph, &s->model->files));
}

static void on_lost(void *ctx, const char *why)
{
    struct stack *s = ctx;
    if (s->o->node_rank == 0)
        s->dead(s->dead_ctx, EK_EXIT_COMM, why);
}

/* ---- what started this one ---- */

static bool nodes_number_of(const char *name, uint32_t *ret_number)
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
    const bool mpirun = nodes_number_of("OMPI_COMM_WORLD_SIZE", &nodes) &&
                        nodes_number_of("OMPI_COMM_WORLD_RANK", &node);
    const bool srun = !mpirun && nodes_number_of("PMIX_RANK", &node) &&
                      (nodes_number_of("SLURM_STEP_NUM_TASKS", &nodes) ||
                       nodes_number_of("SLURM_NTASKS", &nodes));

    if ((!mpirun && !srun) || nodes < 2)
        return false;
    *ret_node = node;
    *ret_nodes = nodes;
    return true;
}

/* ---- meeting ---- */

void nodes_info(const struct ek_node_card *cards, uint32_t nodes, struct ek_device_info *info)
{
    const struct ek_node_card *least = &cards[0];

    for (uint32_t k = 1; k < nodes; k++) {
        least = cards[k].memory_bytes < least->memory_bytes ? &cards[k] : least;
        if (cards[k].free_bytes < info->free_bytes)
            info->free_bytes = cards[k].free_bytes;
    }
    if (least->memory_bytes >= info->memory_bytes)
        return;
    const size_t at = strlen(info->note);
    (void)snprintf(info->note + at, sizeof(info->note) - at,
                   "%sThe nodes differ: node %u (%s) has %.1f GiB, node 0 %.1f GiB. Each rank gets "
                   "what the smallest can hold.",
                   at > 0 ? " " : "", least->node, least->host,
                   (double)least->memory_bytes / 0x1p30, (double)info->memory_bytes / 0x1p30);
    info->memory_bytes = least->memory_bytes;
}

/* Whether what nodes say leaves this machine. */
static bool leaves_machine(const struct ek_node_card *cards, uint32_t nodes)
{
    for (uint32_t k = 1; k < nodes; k++)
        if (strcmp(cards[k].host, cards[0].host) != 0)
            return true;
    return false;
}

static int check_network(const struct options *o, const struct ek_node_card *cards,
                         struct ek_fault *fault)
{
    char what[160];

    if (o->allow_unencrypted_network || !leaves_machine(cards, (uint32_t)o->nnodes) ||
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

    nodes_card(s, &p.card);
    http_progress(s->http, "waiting for the other nodes", 0, 0);
    (void)sd_notify(0, "STATUS=Waiting for the other nodes");
    /* Between processes of one machine: needs rights that neither a sandbox nor a container gives.
     * Without memory for it MPI does as it likes. */
    (void)setenv("OMPI_MCA_btl_vader_single_copy_mechanism", "none", 0);
    int r = ek_cluster_new(&p, &c, fault);
    if (r < 0)
        return r;
    atomic_store(&s->cluster, c);
    r = check_network(o, ek_cluster_cards(c), fault);
    if (r < 0)
        return r;
    ek_cluster_open(c, &s->open);
    if (p.node == 0)
        nodes_info(ek_cluster_cards(c), p.nodes, &s->info);
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
    const uint32_t node = c ? ek_cluster_leaver(c) : 0;

    if (node > 0)
        ek_log(EK_LOG_NOTICE, "Node %u (%s) was asked to stop: draining, then all nodes end", node,
               ek_cluster_cards(c)[node].host);
    return node > 0;
}

bool nodes_leave(struct stack *s)
{
    struct ek_cluster *c = atomic_load(&s->cluster);

    if (c)
        ek_cluster_leave(c);
    return c != NULL;
}
