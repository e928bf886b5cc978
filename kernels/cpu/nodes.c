/*
 * Reads the NUMA nodes and divides their cores among ranks (nodes.h). Called once, when the CPU
 * backend is opened.
 */
#include "kernels/cpu/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define NODE_NUMBERS 1024 /* nodes are not numbered without gaps */

bool cpu_list_parse(const char *text, cpu_set_t *ret_set)
{
    cpu_set_t set;

    CPU_ZERO(&set);
    while (*text && *text != '\n') {
        char *end;
        unsigned long first = strtoul(text, &end, 10), last = first;
        if (end == text || *text < '0' || *text > '9')
            return false;
        if (*end == '-') {
            text = end + 1;
            last = strtoul(text, &end, 10);
            if (end == text || *text < '0' || *text > '9')
                return false;
        }
        if (first > last || last >= CPU_SETSIZE || (*end && *end != ',' && *end != '\n'))
            return false;
        for (unsigned long core = first; core <= last; core++)
            CPU_SET(core, &set);
        text = *end == ',' ? end + 1 : end;
    }
    *ret_set = set;
    return true;
}

void cpu_nodes_read(const char *dir, const cpu_set_t *usable, struct cpu_nodes *ret_nodes)
{
    struct cpu_nodes *n = ret_nodes;

    n->count = 0;
    for (int i = 0; i < NODE_NUMBERS && n->count < CPU_MOST_NODES; i++) {
        char path[512], line[4096] = "";
        cpu_set_t cores;
        (void)snprintf(path, sizeof(path), "%s/node%d/cpulist", dir, i);
        FILE *f = fopen(path, "re");
        if (!f)
            continue;
        bool got = fgets(line, sizeof(line), f) && cpu_list_parse(line, &cores);
        (void)fclose(f);
        if (!got)
            continue;
        CPU_AND(&n->node[n->count], &cores, usable);
        n->count += CPU_COUNT(&n->node[n->count]) > 0;
    }
    if (n->count == 0)
        n->node[n->count++] = *usable;
}

/* The cores [first, end) of a set, in order. */
static void cpu_nodes_take(const cpu_set_t *from, uint32_t first, uint32_t end, cpu_set_t *to)
{
    uint32_t nth = 0;

    for (int core = 0; core < CPU_SETSIZE; core++)
        if (CPU_ISSET(core, from)) {
            if (nth >= first && nth < end)
                CPU_SET(core, to);
            nth++;
        }
}

bool cpu_nodes_cores(const struct cpu_nodes *nodes, uint32_t rank, uint32_t ranks,
                     cpu_set_t *ret_cores)
{
    const uint32_t each = nodes->count / ranks;
    cpu_set_t all;

    CPU_ZERO(ret_cores);
    CPU_ZERO(&all);
    if (nodes->count % ranks == 0) {
        for (uint32_t i = 0; i < each; i++)
            CPU_OR(ret_cores, ret_cores, &nodes->node[rank * each + i]);
        return true;
    }
    for (uint32_t i = 0; i < nodes->count; i++)
        CPU_OR(&all, &all, &nodes->node[i]);
    uint32_t cores = (uint32_t)CPU_COUNT(&all), first = (uint32_t)((uint64_t)cores * rank / ranks);
    uint32_t end = (uint32_t)((uint64_t)cores * (rank + 1) / ranks);
    cpu_nodes_take(&all, first, end > first ? end : first + 1, ret_cores);
    return false;
}

void cpu_nodes_leave(struct cpu_nodes *nodes, uint32_t cores)
{
    uint32_t left = 0;

    for (uint32_t i = 0; i < nodes->count; i++)
        left += (uint32_t)CPU_COUNT(&nodes->node[i]);
    for (uint32_t i = 0; cores > 0 && left > 1; i++) {
        cpu_set_t *node = &nodes->node[nodes->count - 1 - i % nodes->count];
        int last = CPU_SETSIZE - 1;
        while (last >= 0 && !CPU_ISSET(last, node))
            last--;
        if (last < 0)
            continue; /* all of this one are taken away */
        CPU_CLR(last, node);
        left--;
        cores--;
    }
}

bool cpu_rank_cores(uint32_t rank, uint32_t ranks, uint32_t reserve, cpu_set_t *ret_cores)
{
    struct cpu_nodes nodes;
    cpu_set_t usable;

    CPU_ZERO(&usable);
    if (sched_getaffinity(0, sizeof(usable), &usable) != 0 || CPU_COUNT(&usable) == 0)
        CPU_SET(0, &usable);
    cpu_nodes_read("/sys/devices/system/node", &usable, &nodes);
    cpu_nodes_leave(&nodes, reserve);
    return cpu_nodes_cores(&nodes, rank, ranks, ret_cores);
}
