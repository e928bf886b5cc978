/* Which instruction tiers exist, which this machine has, and which one to take. */
#include "kernels/cpu/tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"

void cpu_tier_list(const struct cpu_ops *ret_tiers[CPU_TIERS])
{
    uint32_t n = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    bool vectors = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    bool pairs =
        vectors && __builtin_cpu_supports("avx512bf16") && __builtin_cpu_supports("avx512vnni");
    bool quick = __builtin_cpu_is("amd"); /* Intel's run at half the rate of a multiply-add */
    if (pairs && quick)
        ret_tiers[n++] = &cpu_ops_avx512bf16;
    if (vectors)
        ret_tiers[n++] = &cpu_ops_avx512;
    if (pairs && !quick)
        ret_tiers[n++] = &cpu_ops_avx512bf16;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        ret_tiers[n++] = &cpu_ops_avx2;
#endif
    ret_tiers[n++] = &cpu_ops_ref;
    ret_tiers[n] = NULL;
}

const struct cpu_ops *cpu_tier_find(const char *name, struct ek_fault *fault)
{
    const struct cpu_ops *have[CPU_TIERS];
    char list[64] = "";
    size_t len = 0;

    cpu_tier_list(have);
    if (!name || name[0] == '\0')
        name = getenv("EVENKEEL_CPU_ISA");
    if (!name || name[0] == '\0')
        return have[0];
    for (uint32_t i = 0; have[i]; i++) {
        if (strcmp(name, have[i]->name) == 0)
            return have[i];
        int n = snprintf(list + len, sizeof(list) - len, "%s%s", len ? ", " : "", have[i]->name);
        len += n > 0 ? (size_t)n : 0;
    }
    ek_fault_set(fault, "EVENKEEL_CPU_ISA",
                 "This machine has no instruction tier \"%s\" for the CPU backend: it has %s.",
                 name, list);
    return NULL;
}
