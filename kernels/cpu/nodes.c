/*
 * Reads the NUMA nodes and which CPUs are threads of one core, and divides the cores among ranks
 * (nodes.h). Called when the CPU backend is planned and opened.
 */
#include "kernels/cpu/nodes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SYSTEM       "/sys/devices/system"
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

/* A list in a file; false when there is none. */
static bool read_list(const char *path, cpu_set_t *ret_set)
{
    char line[4096] = "";
    FILE *f = fopen(path, "re");

    if (!f)
        return false;
    bool got = fgets(line, sizeof(line), f) && cpu_list_parse(line, ret_set);
    (void)fclose(f); /* read only */
    return got;
}

void cpu_nodes_read(const char *dir, const cpu_set_t *usable, struct cpu_nodes *ret_nodes)
{
    struct cpu_nodes *n = ret_nodes;

    n->count = 0;
    for (int i = 0; i < NODE_NUMBERS && n->count < CPU_MOST_NODES; i++) {
        char path[512];
        cpu_set_t cores;
        (void)snprintf(path, sizeof(path), "%s/node%d/cpulist", dir, i);
        if (!read_list(path, &cores))
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

void cpu_cores_alone(const char *dir, cpu_set_t *set)
{
    for (int cpu = 0; cpu < CPU_SETSIZE; cpu++) {
        char path[512];
        cpu_set_t siblings;
        if (!CPU_ISSET(cpu, set))
            continue;
        (void)snprintf(path, sizeof(path), "%s/cpu%d/topology/thread_siblings_list", dir, cpu);
        if (!read_list(path, &siblings))
            continue;
        for (int other = cpu + 1; other < CPU_SETSIZE; other++)
            if (CPU_ISSET(other, &siblings))
                CPU_CLR(other, set);
    }
}

/* What this process may use. */
static void cpu_allowed(cpu_set_t *ret_set)
{
    CPU_ZERO(ret_set);
    if (sched_getaffinity(0, sizeof(*ret_set), ret_set) != 0 || CPU_COUNT(ret_set) == 0)
        CPU_SET(0, ret_set);
}

/* One of each core, or all where more are wanted. */
static void cpu_enough(const char *dir, uint32_t wanted, cpu_set_t *set)
{
    const cpu_set_t all = *set;

    cpu_cores_alone(dir, set);
    if (wanted > (uint32_t)CPU_COUNT(set))
        *set = all;
}

void cpu_usable_set(uint32_t threads, cpu_set_t *ret_set)
{
    cpu_allowed(ret_set);
    cpu_enough(SYSTEM "/cpu", threads, ret_set);
}

uint32_t cpu_wanted(uint32_t ranks, uint32_t reserve, uint32_t threads)
{
    uint32_t wanted;

    threads = threads > ranks ? threads : ranks;
    return __builtin_add_overflow(threads, reserve, &wanted) ? UINT32_MAX : wanted;
}

bool cpu_rank_cores_in(const char *dir, const cpu_set_t *allowed, uint32_t rank, uint32_t ranks,
                       uint32_t reserve, uint32_t threads, cpu_set_t *ret_cores)
{
    struct cpu_nodes nodes;
    cpu_set_t usable = *allowed;
    char path[512];

    (void)snprintf(path, sizeof(path), "%s/cpu", dir);
    cpu_enough(path, cpu_wanted(ranks, reserve, threads), &usable);
    (void)snprintf(path, sizeof(path), "%s/node", dir);
    cpu_nodes_read(path, &usable, &nodes);
    cpu_nodes_leave(&nodes, reserve);
    return cpu_nodes_cores(&nodes, rank, ranks, ret_cores);
}

bool cpu_rank_cores(uint32_t rank, uint32_t ranks, uint32_t reserve, uint32_t threads,
                    cpu_set_t *ret_cores)
{
    cpu_set_t allowed;

    cpu_allowed(&allowed);
    return cpu_rank_cores_in(SYSTEM, &allowed, rank, ranks, reserve, threads, ret_cores);
}
