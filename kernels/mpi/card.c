/*
 * Whether a node fits to node 0: what it says of itself, compared field by field (cluster.h).
 * Called once at start, when the nodes meet.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "kernels/fingerprint.h"
#include "kernels/mpi/cluster.h"

/* What has to be the same, in the order in which it is looked at. */
#define TEXT(field) offsetof(struct ek_node_card, field)
static const struct {
    size_t at;
    const char *verb, *remedy;
} g_texts[] = {
    {TEXT(program), "is evenkeel-server", "install the same on all nodes"},
    {TEXT(backend), "computes on", "give all nodes the same --device"},
    {TEXT(isa), "computes with", "give all nodes the --cpu-isa that the oldest offers"},
    {TEXT(model), "has a model", "give all nodes the same model"},
    {TEXT(form), "keeps it as",
     "give all nodes the same --dtype, --quantization and --kv-cache-dtype"},
};

static const struct {
    size_t at;
    const char *option;
} g_numbers[] = {
    {offsetof(struct ek_node_card, stages), "--pipeline-parallel-size"},
    {offsetof(struct ek_node_card, ranks), "ranks by --tensor-parallel-size"},
};

static int differ(struct ek_fault *fault, const struct ek_node_card *mine,
                  const struct ek_node_card *first, const char *const what[2], const char *remedy)
{
    return ek_fault_set(fault, "nnodes", "Node %u (%s) %s, node %u (%s) %s: %s", mine->node,
                        mine->host, what[0], first->node, first->host, what[1], remedy);
}

int ek_card_check(const struct ek_node_card *mine, const struct ek_node_card *first,
                  struct ek_fault *fault)
{
    const char *const card[2] = {(const char *)mine, (const char *)first};
    char what[2][112];

    for (size_t i = 0; i < sizeof(g_texts) / sizeof(g_texts[0]); i++) {
        if (strcmp(card[0] + g_texts[i].at, card[1] + g_texts[i].at) == 0)
            continue;
        for (int k = 0; k < 2; k++)
            (void)snprintf(what[k], sizeof(what[k]), "%s %.80s", g_texts[i].verb,
                           card[k] + g_texts[i].at);
        return differ(fault, mine, first, (const char *const[2]){what[0], what[1]},
                      g_texts[i].remedy);
    }
    for (size_t i = 0; i < sizeof(g_numbers) / sizeof(g_numbers[0]); i++) {
        uint32_t n[2];
        for (int k = 0; k < 2; k++) {
            memcpy(&n[k], card[k] + g_numbers[i].at, sizeof(n[k]));
            (void)snprintf(what[k], sizeof(what[k]), "has %s %u", g_numbers[i].option, n[k]);
        }
        if (n[0] != n[1])
            return differ(fault, mine, first, (const char *const[2]){what[0], what[1]},
                          "give all nodes the same");
    }
    if (mine->abi != first->abi)
        return differ(fault, mine, first,
                      (const char *const[2]){"has other kernels", "has other kernels"},
                      "install the same evenkeel-server on all nodes");
    if (mine->graph != first->graph)
        return differ(
            fault, mine, first,
            (const char *const[2]){"has a model of one shape", "has one of another shape"},
            "give all nodes the same model, with the same config.json");
    if (mine->weight != first->weight)
        return differ(fault, mine, first,
                      (const char *const[2]){"has its weights", "has others of the same shape"},
                      "give all nodes the same model files (sha256sum -c SHA256SUMS)");
    return 0;
}

void ek_card_sums(struct ek_node_card *card, const struct ek_graph *g,
                  const struct ek_weight_files *files)
{
    card->graph = ek_graph_sum(g);
    card->weight = ek_weight_sum(g, files);
}
