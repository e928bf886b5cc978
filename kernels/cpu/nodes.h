/*
 * Which cores a rank computes on: those of its NUMA nodes where the nodes divide among the ranks,
 * else an even run of all usable ones. So a rank's weights, cache and threads are in one node. Of a
 * core with several hardware threads one computes, and the others are left to HTTP, text and the
 * system; unless there are more threads to place than cores.
 */
#pragma once

#include <sched.h>
#include <stdbool.h>
#include <stdint.h>

#define CPU_MOST_NODES 64u

/* The usable cores of each node that has any. */
struct cpu_nodes {
    uint32_t count;
    cpu_set_t node[CPU_MOST_NODES];
};

/* Reads DIR/node<n>/cpulist for all n ("/sys/devices/system/node"); one node of all `usable` where
 * nothing can be read. */
void cpu_nodes_read(const char *dir, const cpu_set_t *usable, struct cpu_nodes *ret_nodes);
/* Pure. Whether the nodes divide among the ranks. A core for each rank at least, the same one for
 * several if there are fewer. */
bool cpu_nodes_cores(const struct cpu_nodes *nodes, uint32_t rank, uint32_t ranks,
                     cpu_set_t *ret_cores);
/* Pure. Takes away so many cores, the last of each node in turn from the last node on; all but one
 * where there are no more. */
void cpu_nodes_leave(struct cpu_nodes *nodes, uint32_t cores);
/* Leaves of the CPUs of a set that are threads of one core the first: two that compute share its
 * multipliers. By DIR/cpu<n>/topology/thread_siblings_list ("/sys/devices/system/cpu"); a CPU about
 * which nothing can be read stays. */
void cpu_cores_alone(const char *dir, cpu_set_t *set);
/* The CPUs that this process may use and so many threads are for: one of each core, or all of them
 * where there are more threads than cores. */
void cpu_usable_set(uint32_t threads, cpu_set_t *ret_set);
/* Pure. How many CPUs are asked for, by so many threads of all ranks: one for each rank at least,
 * and those that are reserved. */
uint32_t cpu_wanted(uint32_t ranks, uint32_t reserve, uint32_t threads);
/* What nodes, ranks and reserved cores leave of one CPU of each core, or of all of them where more
 * are wanted; `threads`: of all ranks. */
bool cpu_rank_cores(uint32_t rank, uint32_t ranks, uint32_t reserve, uint32_t threads,
                    cpu_set_t *ret_cores);
/* The same of a machine that DIR/cpu and DIR/node describe ("/sys/devices/system"). */
bool cpu_rank_cores_in(const char *dir, const cpu_set_t *allowed, uint32_t rank, uint32_t ranks,
                       uint32_t reserve, uint32_t threads, cpu_set_t *ret_cores);
/* "0-3,8" into a set; false when it is no such list. */
bool cpu_list_parse(const char *text, cpu_set_t *ret_set);
