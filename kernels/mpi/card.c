/*
 * Whether a node fits to node 0: what it says of itself, compared field by field (cluster.h).
 * Called once at start, when the nodes meet.
 */
#include <stddef.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "kernels/mpi/cluster.h"

enum card_kind { CARD_TEXT, CARD_COUNT, CARD_SUM /* which is not shown */ };

#define OF(field) offsetof(struct ek_node_card, field), sizeof(((struct ek_node_card *)0)->field)

/* What has to be the same, in the order in which it is looked at. */
static const struct {
    size_t at, bytes;
    enum card_kind kind;
    const char *mine, *first; /* what is said of both; NULL: the same */
    const char *remedy;
} g_fields[] = {
    {OF(program), CARD_TEXT, "is evenkeel-server", NULL, "install the same on all nodes"},
    {OF(backend), CARD_TEXT, "computes on", NULL, "give all nodes the same --device"},
    {OF(isa), CARD_TEXT, "computes with", NULL,
     "give all nodes the --cpu-isa that the oldest offers"},
    {OF(model), CARD_TEXT, "has a model", NULL, "give all nodes the same model"},
    {OF(form), CARD_TEXT, "keeps it as", NULL,
     "give all nodes the same --dtype, --quantization and --kv-cache-dtype"},
    {OF(stages), CARD_COUNT, "has --pipeline-parallel-size", NULL, "give all nodes the same"},
    {OF(ranks), CARD_COUNT, "has ranks by --tensor-parallel-size", NULL, "give all nodes the same"},
    {OF(abi), CARD_SUM, "has other kernels", NULL, "install the same evenkeel-server on all nodes"},
    {OF(graph), CARD_SUM, "has a model of one shape", "has one of another shape",
     "give all nodes the same model, with the same config.json"},
    {OF(weight), CARD_SUM, "has its weights", "has others of the same shape",
     "give all nodes the same model files (sha256sum -c SHA256SUMS)"},
};

static void card_say(enum card_kind kind, const char *verb, const void *field, char ret_text[112])
{
    uint32_t count;

    memcpy(&count, field, sizeof(count));
    if (kind == CARD_TEXT)
        (void)snprintf(ret_text, 112, "%s %.80s", verb, (const char *)field);
    else if (kind == CARD_COUNT)
        (void)snprintf(ret_text, 112, "%s %u", verb, count);
    else
        (void)snprintf(ret_text, 112, "%s", verb);
}

int ek_card_check(const struct ek_node_card *mine, const struct ek_node_card *first,
                  struct ek_fault *fault)
{
    char here[112], there[112];

    for (size_t i = 0; i < sizeof(g_fields) / sizeof(g_fields[0]); i++) {
        const char *a = (const char *)mine + g_fields[i].at;
        const char *b = (const char *)first + g_fields[i].at;
        if (memcmp(a, b, g_fields[i].bytes) == 0)
            continue;
        card_say(g_fields[i].kind, g_fields[i].mine, a, here);
        card_say(g_fields[i].kind, g_fields[i].first ? g_fields[i].first : g_fields[i].mine, b,
                 there);
        return ek_fault_set(fault, "nnodes", "Node %u (%s) %s, node %u (%s) %s: %s", mine->node,
                            mine->host, here, first->node, first->host, there, g_fields[i].remedy);
    }
    return 0;
}
