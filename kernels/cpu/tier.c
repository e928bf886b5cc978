/*
 * Which instruction tiers exist, which this machine has, and which one to take. What no list of
 * processors says is measured: whether products of pairs of bf16 are worth their rounding (on some
 * machines an instruction that multiplies pairs runs at half the rate of one that multiplies
 * floats), and whether weights of many rows are widened to f32 once or by each block of rows.
 *
 * The forms are run in turns on a product that stays in the second cache, and the best turn of each
 * counts: a machine that does something else meanwhile slows some turns down, but none up. The
 * choice of pairs changes the last bits of answers, so it is made once in a process, far from both
 * sides (twice as fast where they pay, at most as fast elsewhere), only where it decides, and the
 * server hands the tier's name to its engines. Widening gives the same bits either way.
 */
#include "kernels/cpu/tier.h"

#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#if defined(__x86_64__)
#include <cpuid.h>
#include <sys/syscall.h>
#include <unistd.h>
#endif

#include "common/clock.h"
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

#define TRIAL_ROWS   64u
#define TRIAL_INPUTS 512u
#define TRIAL_PANELS 4u
#define TRIAL_TURNS  24u

#define PAIRS_PAY 1.4  /* times as fast as floats: between 2 and 1.2, what machines show */
#define WIDE_PAYS 1.02 /* less is noise */

struct tier_trial {
    struct cpu_gemm g;
    float *x, *c;
    char *w;
    uint32_t *work;
};

static void trial_done(struct tier_trial *t)
{
    free(t->x);
    free(t->c);
    free(t->w);
    free(t->work);
}

/* False when there is no memory for it. */
static bool trial_init(struct tier_trial *t, enum ek_dtype dtype)
{
    const size_t panel = (size_t)TRIAL_INPUTS * CPU_PANEL * 2;

    t->x = malloc((size_t)TRIAL_ROWS * TRIAL_INPUTS * sizeof(*t->x));
    t->c = malloc((size_t)TRIAL_ROWS * TRIAL_PANELS * CPU_PANEL * sizeof(*t->c));
    t->w = malloc(TRIAL_PANELS * panel);
    t->work = malloc(CPU_GEMM_WORK(TRIAL_ROWS, TRIAL_INPUTS));
    if (!t->x || !t->c || !t->w || !t->work)
        return false;
    for (size_t i = 0; i < (size_t)TRIAL_ROWS * TRIAL_INPUTS; i++)
        t->x[i] = 1.0f;
    for (size_t i = 0; i < TRIAL_PANELS * panel; i++)
        t->w[i] = 0x3c; /* some 0.01 in bf16, some 1 in f16 */
    t->g = (struct cpu_gemm){.dtype = dtype,
                             .rows = TRIAL_ROWS,
                             .panels = TRIAL_PANELS,
                             .k = TRIAL_INPUTS,
                             .x = t->x,
                             .x_stride = TRIAL_INPUTS,
                             .w = t->w,
                             .panel_bytes = panel,
                             .c = t->c,
                             .c_stride = TRIAL_PANELS * CPU_PANEL,
                             .work = t->work};
    return true;
}

static uint64_t turn_us(const struct tier_trial *t, const struct cpu_ops *ops, bool wide)
{
    struct cpu_gemm g = t->g;

    g.wide = wide;
    uint64_t begin = ek_now_us();
    ops->gemm(&g);
    return ek_now_us() - begin;
}

/* How many times as fast the second form is; 0 without memory. */
static double times_as_fast(enum ek_dtype dtype, const struct cpu_ops *a, bool a_wide,
                            const struct cpu_ops *b, bool b_wide)
{
    struct tier_trial t = {0};
    uint64_t best_a = UINT64_MAX, best_b = UINT64_MAX;

    bool there = trial_init(&t, dtype);
    for (uint32_t i = 0; there && i < TRIAL_TURNS; i++) {
        uint64_t us = turn_us(&t, a, a_wide);
        best_a = us < best_a ? us : best_a;
        us = turn_us(&t, b, b_wide);
        best_b = us < best_b ? us : best_b;
    }
    trial_done(&t);
    return there && best_b > 0 ? (double)best_a / (double)best_b : 0;
}

#if defined(__x86_64__)
static _Atomic double g_pairs; /* how many times as fast as floats; written once */

static void measure_pairs(void)
{
    g_pairs = times_as_fast(EK_BF16, &cpu_ops_avx512, false, &cpu_ops_avx512bf16, false);
}

static bool pairs_pay(void)
{
    static pthread_once_t once = PTHREAD_ONCE_INIT;

    (void)pthread_once(&once, measure_pairs); /* fails for no argument of ours */
    return g_pairs >= PAIRS_PAY;
}

double cpu_pairs_times(void)
{
    return g_pairs;
}
#endif

bool cpu_widens(const struct cpu_ops *ops, enum ek_dtype dtype, double *ret_times)
{
    *ret_times = 0;
    if (ops == &cpu_ops_ref || (ops->pairs && dtype == EK_BF16))
        return false;
    if (dtype != EK_BF16 && dtype != EK_F16)
        return false;
    *ret_times = times_as_fast(dtype, ops, false, ops, true);
    return *ret_times >= WIDE_PAYS;
}

/* What this machine has, as if pairs were quick everywhere; NULL ends the list. */
static void tiers_there(const struct cpu_ops *ret_tiers[CPU_TIERS])
{
    uint32_t n = 0;

#if defined(__x86_64__)
    __builtin_cpu_init();
    bool vectors = __builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") &&
                   __builtin_cpu_supports("avx512dq") && __builtin_cpu_supports("avx512vl");
    bool fours = vectors && __builtin_cpu_supports("avx512vnni");
    bool pairs = fours && __builtin_cpu_supports("avx512bf16");
    if (pairs && tiles_granted())
        ret_tiers[n++] = &cpu_ops_amx;
    if (pairs)
        ret_tiers[n++] = &cpu_ops_avx512bf16;
    if (fours)
        ret_tiers[n++] = &cpu_ops_avx512vnni;
    if (vectors)
        ret_tiers[n++] = &cpu_ops_avx512;
    if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma"))
        ret_tiers[n++] = &cpu_ops_avx2;
#endif
    ret_tiers[n++] = &cpu_ops_ref;
    ret_tiers[n] = NULL;
}

void cpu_tier_list(const struct cpu_ops *ret_tiers[CPU_TIERS])
{
    tiers_there(ret_tiers);
#if defined(__x86_64__)
    if (ret_tiers[0] != &cpu_ops_avx512bf16 || pairs_pay())
        return; /* where tiles are the best, pairs are not tried */
    ret_tiers[0] = &cpu_ops_avx512vnni;
    ret_tiers[1] = &cpu_ops_avx512;
    ret_tiers[2] = &cpu_ops_avx512bf16;
#endif
}

const struct cpu_ops *cpu_tier_find(const char *name, struct ek_fault *fault)
{
    const struct cpu_ops *have[CPU_TIERS];
    char list[64] = "";
    size_t len = 0;

    if (!name || name[0] == '\0')
        name = getenv("EVENKEEL_CPU_ISA");
    if (!name || name[0] == '\0') {
        cpu_tier_list(have);
        return have[0];
    }
    tiers_there(have);
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
