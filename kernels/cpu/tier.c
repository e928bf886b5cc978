/* Which instruction tiers exist, which this machine has, and which one to take. */
#include "kernels/cpu/tier.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "common/err.h"

#if defined(__x86_64__)
/* Whether the processor has tiles, the kernel keeps their registers, and lets this process use
 * them: it has to be asked (again and again is the same as once) and then serves all threads. */
static bool tiles_granted(void)
{
    const uint32_t features = 1u << 22 | 1u << 24 | 1u << 25; /* bf16, tiles, int8: edx of leaf 7 */
    const long ask = 0x1023, registers = 18;                  /* ARCH_REQ_XCOMP_PERM, XTILEDATA */
    uint32_t a, b, c, d, low, high;

    if (!__get_cpuid(1, &a, &b, &c, &d) || !(c & bit_OSXSAVE))
        return false;
    if (!__get_cpuid_count(7, 0, &a, &b, &c, &d) || (d & features) != features)
        return false;
    __asm__("xgetbv" : "=a"(low), "=d"(high) : "c"(0));
    return (low & 3u << 17) == 3u << 17 && syscall(SYS_arch_prctl, ask, registers) == 0;
}
#endif

void cpu_tier_list(const struct cpu_ops *ret_tiers[CPU_TIERS])
{
    uint32_t n = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    bool vectors = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    bool fours = vectors && __builtin_cpu_supports("avx512vnni");
    bool pairs = fours && __builtin_cpu_supports("avx512bf16");
    bool quick = __builtin_cpu_is("amd"); /* Intel's run at half the rate of a multiply-add */
    if (pairs && tiles_granted())
        ret_tiers[n++] = &cpu_ops_amx;
    if (pairs && quick)
        ret_tiers[n++] = &cpu_ops_avx512bf16;
    if (fours)
        ret_tiers[n++] = &cpu_ops_avx512vnni;
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
