/*
 * What this machine offers the CPU backend: its name, threads and memory, and the tier that it
 * computes with. Asked before there is a device, and when one is opened or its pool grows.
 */
#include "kernels/cpu/probe.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "common/cgroup.h"
#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/cpu/nodes.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/tier.h"

uint32_t cpu_all_threads(const struct ek_open_params *p)
{
    uint32_t whole;
    const uint32_t cores = cpu_usable_cores(&whole);

    if (p->threads > 0)
        return p->threads;
    const uint32_t left = cores > p->reserve ? cores - p->reserve : 1;
    return left < whole ? left : whole;
}

uint32_t cpu_rank_threads(const struct ek_open_params *p)
{
    uint32_t threads = cpu_all_threads(p), local = ek_open_local(p);
    if (local > 1)
        threads = threads / local + (p->rank - p->first < threads % local);
    threads += threads == 0;
    return threads < CPU_MOST_THREADS ? threads : CPU_MOST_THREADS;
}

/* "key ... number" in a file of the kernel, 0 if it is not there. */
static uint64_t cpu_read_number(const char *path, const char *format)
{
    char line[256];
    unsigned long long number = 0;
    FILE *f = fopen(path, "re");

    if (!f)
        return 0;
    while (number == 0 && fgets(line, sizeof(line), f)) {
        size_t key = strcspn(format, " ");
        if (strncmp(line, format, key) == 0)
            number = strtoull(line + key, NULL, 10);
    }
    (void)fclose(f);
    return number;
}

static void machine_name(char *name, size_t size)
{
    char line[256];
    FILE *f = fopen("/proc/cpuinfo", "re");

    (void)snprintf(name, size, "CPU");
    while (f && fgets(line, sizeof(line), f)) {
        char *colon = strchr(line, ':');
        if (strncmp(line, "model name", 10) != 0 || !colon)
            continue;
        (void)snprintf(name, size, "%.*s", (int)strcspn(colon + 2, "\n"), colon + 2);
        break;
    }
    if (f)
        (void)fclose(f);
}

/* What a shell gave this process (ulimit -v, -d): it counts addresses, taken or not. */
static uint64_t address_limit(void)
{
    static const int limits[] = {RLIMIT_AS, RLIMIT_DATA};
    uint64_t least = UINT64_MAX;
    struct rlimit l;

    for (size_t i = 0; i < sizeof(limits) / sizeof(limits[0]); i++) {
        if (getrlimit(limits[i], &l) == 0 && l.rlim_cur != RLIM_INFINITY && l.rlim_cur < least)
            least = l.rlim_cur;
    }
    return least;
}

uint64_t cpu_free_memory(uint64_t *ret_limit)
{
    uint64_t left, available = cpu_read_number("/proc/meminfo", "MemAvailable: ") * 1024;
    const uint64_t most = address_limit();

    ek_cgroup_left(EK_CGROUP_SELF, "/sys/fs/cgroup", ret_limit, &left);
    available = left < available ? left : available;
    if (most == UINT64_MAX)
        return available;
    const uint64_t used = cpu_read_number("/proc/self/status", "VmSize: ") * 1024;
    left = most > used ? most - used : 0;
    *ret_limit = left < *ret_limit ? left : *ret_limit;
    return left < available ? left : available;
}

/* What is to be said about so many ranks on this machine. */
static void note_ranks(const struct ek_open_params *p, struct ek_device_info *info)
{
    const uint32_t local = ek_open_local(p);
    cpu_set_t cores;

    if (local > 1 && cpu_all_threads(p) < local)
        (void)snprintf(info->note, sizeof(info->note),
                       "%u ranks have only %u threads: lower --tensor-parallel-size (or "
                       "--pipeline-parallel-size), or raise --threads.",
                       local, info->threads);
    else if (local > 1 &&
             !cpu_rank_cores(p->rank - p->first, local, p->reserve, cpu_all_threads(p), &cores))
        (void)snprintf(info->note, sizeof(info->note),
                       "%u ranks do not divide the NUMA nodes of this machine: they take even "
                       "shares of its cores, which is slower than one rank in each node (or one "
                       "for all).",
                       local);
}

int cpu_check_reserve(const struct ek_open_params *p, struct ek_fault *fault)
{
    uint32_t whole;
    const uint32_t wanted = p->threads > 0 ? cpu_wanted(1, p->reserve, p->threads) : 1;
    const uint32_t cores = cpu_usable_cpus(wanted, &whole);

    if (p->reserve == 0 || (p->reserve < cores && p->threads <= cores - p->reserve))
        return 0;
    ek_fault_set(
        fault, "cpu-reserve",
        p->reserve < cores
            ? "--cpu-reserve %u leaves %u of the %u usable CPUs, which is less than "
              "--threads: lower one of them."
            : "--cpu-reserve %u leaves none to compute with (%u of %u usable cores): lower "
              "it.",
        p->reserve, p->reserve < cores ? cores - p->reserve : 0, cores);
    return -EBADMSG;
}

/* Why this tier, where it was measured, and why not all CPUs. */
static void say_choice(const struct ek_open_params *p, struct ek_device_info *info)
{
    const uint32_t wanted = cpu_wanted(ek_open_local(p), p->reserve, info->threads);
    cpu_set_t alone, all;

#if defined(__x86_64__)
    if (cpu_pairs_times() > 0)
        (void)snprintf(info->choice, sizeof(info->choice),
                       "pairs of bf16 are multiplied %.1f times as fast as floats",
                       cpu_pairs_times());
#endif
    cpu_usable_set(1, &alone);
    cpu_usable_set(UINT32_MAX, &all);
    if (CPU_EQUAL(&alone, &all) || wanted > (uint32_t)CPU_COUNT(&alone))
        return;
    const size_t at = strlen(info->choice);
    (void)snprintf(info->choice + at, sizeof(info->choice) - at,
                   "%sone thread on each of %d cores, which have %d CPUs", at > 0 ? "; " : "",
                   CPU_COUNT(&alone), CPU_COUNT(&all));
}

int cpu_probe(const struct ek_open_params *p, struct ek_device_info *ret_info,
              struct ek_fault *fault)
{
    if (p->device != 0)
        return -ENODEV;
    const struct cpu_ops *ops = cpu_tier_find(p->isa, fault);
    if (!ops || cpu_check_reserve(p, fault) < 0)
        return -EBADMSG;
    struct ek_device_info info = {
        .threads = cpu_all_threads(p) < CPU_MOST_THREADS ? cpu_all_threads(p) : CPU_MOST_THREADS,
        .memory_bytes = (uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE),
    };
    uint64_t limit;
    info.free_bytes = cpu_free_memory(&limit);
    info.memory_bytes = limit < info.memory_bytes ? limit : info.memory_bytes;
    (void)snprintf(info.isa, sizeof(info.isa), "%s", ops->name);
    machine_name(info.machine, sizeof(info.machine));
    (void)snprintf(info.name, sizeof(info.name), "%.39s, %s, %u thread%s", info.machine, ops->name,
                   info.threads, info.threads == 1 ? "" : "s");
    say_choice(p, &info);
    note_ranks(p, &info);
    *ret_info = info;
    return 0;
}
