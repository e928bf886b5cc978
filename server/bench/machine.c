/*
 * Each thread works on its own: a share of the buffer, or chains of fused multiply-adds enough to
 * cover their latency. They start together behind a barrier; the pass lasts as long as the one that
 * was longest on its core, so that what takes a core away from them does not count.
 */
#include "server/bench/machine.h"

#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#if defined(__x86_64__)
#include <immintrin.h>
#endif

#include "common/clock.h"
#if defined(__x86_64__)
#include "kernels/cpu/tiles.h"
#endif

#define BUFFER_BYTES (512u << 20) /* of all threads together: many times the last cache */
#define CACHE_PASSES 800000u
#define LAST_BYTES   (2ull << 30) /* read in all, from half of the last cache */
#define FMA_ROUNDS   6000000u     /* of 16 vectors each */

struct machine_worker {
    pthread_t thread;
    pthread_barrier_t *start;
    struct machine_pass pass;
    uint64_t took_us; /* on its core */
    double work;
};

#if defined(__x86_64__)
/* Unrolled: sums that were an array in memory would be what is measured. */
__attribute__((target("avx512f"))) static float read_avx512(const char *p, size_t bytes)
{
    __m512 sum[8];

    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) sum[i] = _mm512_setzero_ps();
    for (size_t at = 0; at + 512 <= bytes; at += 512) {
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) sum[i] =
            _mm512_add_ps(sum[i], _mm512_load_ps(p + at + 64 * i));
    }
    _Pragma("GCC unroll 8") for (int i = 1; i < 8; i++) sum[0] = _mm512_add_ps(sum[0], sum[i]);
    return _mm512_reduce_add_ps(sum[0]);
}

__attribute__((target("avx2"))) static float read_avx2(const char *p, size_t bytes)
{
    __m256 sum[8];
    float lane[8];

    _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) sum[i] = _mm256_setzero_ps();
    for (size_t at = 0; at + 256 <= bytes; at += 256) {
        _Pragma("GCC unroll 8") for (int i = 0; i < 8; i++) sum[i] =
            _mm256_add_ps(sum[i], _mm256_load_ps((const float *)(const void *)(p + at) + 8 * i));
    }
    _Pragma("GCC unroll 8") for (int i = 1; i < 8; i++) sum[0] = _mm256_add_ps(sum[0], sum[i]);
    _mm256_storeu_ps(lane, sum[0]);
    return lane[0];
}

/* `rounds` times `next` of each of `count` sums, which do not wait for each other; what they come
 * to by `reduce`. */
#define CHAINS(type, count, first, next, plus, reduce)                                             \
    type sum[count];                                                                               \
    _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++) sum[i] = (first);                   \
    for (uint32_t round = 0; round < rounds; round++) {                                            \
        _Pragma("GCC unroll 16") for (int i = 0; i < (count); i++) sum[i] = (next);                \
    }                                                                                              \
    _Pragma("GCC unroll 16") for (int i = 1; i < (count); i++) sum[0] = plus(sum[0], sum[i]);      \
    return (float)reduce(sum[0])

__attribute__((target("avx512f"))) static float fma_avx512(uint32_t rounds)
{
    const __m512 x = _mm512_set1_ps(0.999f), y = _mm512_set1_ps(0.001f);

    CHAINS(__m512, 16, _mm512_set1_ps((float)i), _mm512_fmadd_ps(sum[i], x, y), _mm512_add_ps,
           _mm512_reduce_add_ps);
}

__attribute__((target("avx512f,avx512bf16"))) static float dot_avx512(uint32_t rounds)
{
    const __m512bh x = (__m512bh)_mm512_set1_epi32(0x3f803f00);
    const __m512bh y = (__m512bh)_mm512_set1_epi32(0x38803880);

    CHAINS(__m512, 16, _mm512_set1_ps((float)i), _mm512_dpbf16_ps(sum[i], x, y), _mm512_add_ps,
           _mm512_reduce_add_ps);
}

/* The compiler's own intrinsic copies sums before it (GCC 12). */
__attribute__((target("avx512f,avx512vnni"))) static __m512i fours_next(__m512i sum, __m512i x,
                                                                        __m512i y)
{
    __asm__("vpdpbusd %2, %1, %0" : "+v"(sum) : "v"(x), "v"(y));
    return sum;
}

__attribute__((target("avx512f,avx512vnni"))) static float fours_avx512(uint32_t rounds)
{
    const __m512i x = _mm512_set1_epi32(0x01020301), y = _mm512_set1_epi32(0x00010100);

    CHAINS(__m512i, 16, _mm512_set1_epi32(i), fours_next(sum[i], x, y), _mm512_add_epi32,
           _mm512_reduce_add_epi32);
}

/* Eight multiplications of fours and what a product does with their sum: it becomes a float and is
 * multiplied with a scale. Twelve sums of each kind, as a product keeps them. */
__attribute__((target("avx512f,avx512vnni"))) static float scaled_avx512(uint32_t rounds)
{
    const __m512i x = _mm512_set1_epi32(0x01020301), y = _mm512_set1_epi32(0x00010100);
    const __m512 scale = _mm512_set1_ps(0.5f);
    __m512 all[12];

    _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) all[i] = _mm512_setzero_ps();
    for (uint32_t round = 0; round < rounds; round++) {
        __m512i sum[12];
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)
        {
            sum[i] = x;
            __asm__ volatile("" : "+v"(sum[i])); /* each round anew */
        }
        _Pragma("GCC unroll 8") for (int four = 0; four < 8; four++)
        {
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) __asm__ volatile(
                "vpdpbusd %2, %1, %0" : "+v"(sum[i]) : "v"(x), "v"(y));
        }
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) all[i] =
            _mm512_fmadd_ps(_mm512_cvtepi32_ps(sum[i]), scale, all[i]);
    }
    _Pragma("GCC unroll 12") for (int i = 1; i < 12; i++) all[0] = _mm512_add_ps(all[0], all[i]);
    return _mm512_reduce_add_ps(all[0]);
}

/* `rounds` times four products of whole tiles, which do not wait for each other. */
#define TILES(product)                                                                             \
    tiles_begin(16, 64, 16);                                                                       \
    for (uint32_t round = 0; round < rounds; round++) {                                            \
        product(0, 4, 6);                                                                          \
        product(1, 4, 7);                                                                          \
        product(2, 5, 6);                                                                          \
        product(3, 5, 7);                                                                          \
    }                                                                                              \
    tiles_end()

static double dot_tiles(uint32_t rounds)
{
    TILES(TILE_PAIRS);
    return 2.0 * 16 * 16 * 32 * 4 * rounds;
}

static double fours_tiles(uint32_t rounds)
{
    TILES(TILE_FOURS);
    return 2.0 * 16 * 16 * 64 * 4 * rounds;
}

/* Whether vectors of 16 floats are what the tier works with. */
static bool has_16(const char *isa)
{
    return strncmp(isa, "avx512", 6) == 0 || strcmp(isa, "amx") == 0;
}

__attribute__((target("avx2,fma"))) static float first_avx2(__m256 v)
{
    return _mm256_cvtss_f32(v);
}

__attribute__((target("avx2,fma"))) static float fma_avx2(uint32_t rounds)
{
    const __m256 x = _mm256_set1_ps(0.999f), y = _mm256_set1_ps(0.001f);

    CHAINS(__m256, 12, _mm256_set1_ps((float)i), _mm256_fmadd_ps(sum[i], x, y), _mm256_add_ps,
           first_avx2);
}

/* As scaled_avx512(): of a group two vectors of words for each four bytes, or one of bytes, of
 * which the sum is one of words. */
#define SCALED_AVX2(steps, product, add, whole)                                                    \
    const __m256i x = _mm256_set1_epi32(0x01020301), y = _mm256_set1_epi32(0x00010100);            \
    const __m256 scale = _mm256_set1_ps(0.5f);                                                     \
    __m256 all[12];                                                                                \
    _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) all[i] = _mm256_setzero_ps();            \
    for (uint32_t round = 0; round < rounds; round++) {                                            \
        __m256i sum[12];                                                                           \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)                                      \
        {                                                                                          \
            sum[i] = x;                                                                            \
            __asm__ volatile("" : "+x"(sum[i])); /* each round anew */                             \
        }                                                                                          \
        _Pragma("GCC unroll 16") for (int step = 0; step < (steps); step++)                        \
        {                                                                                          \
            _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++)                                  \
            {                                                                                      \
                __m256i two;                                                                       \
                __asm__ volatile(product " %2, %1, %0" : "=x"(two) : "x"(x), "x"(y));              \
                __asm__ volatile(add " %1, %0, %0" : "+x"(sum[i]) : "x"(two));                     \
            }                                                                                      \
        }                                                                                          \
        _Pragma("GCC unroll 12") for (int i = 0; i < 12; i++) all[i] =                             \
            _mm256_fmadd_ps(_mm256_cvtepi32_ps(whole), scale, all[i]);                             \
    }                                                                                              \
    _Pragma("GCC unroll 12") for (int i = 1; i < 12; i++) all[0] = _mm256_add_ps(all[0], all[i]);  \
    return first_avx2(all[0])

__attribute__((target("avx2,fma"))) static float scaled_words(uint32_t rounds)
{
    SCALED_AVX2(16, "vpmaddwd", "vpaddd", sum[i]);
}

__attribute__((target("avx2,fma"))) static float scaled_halves(uint32_t rounds)
{
    SCALED_AVX2(8, "vpmaddubsw", "vpaddw", _mm256_madd_epi16(sum[i], x));
}
#endif

static float read_plain(const char *p, size_t bytes)
{
    uint64_t sum = 0, word;

    for (size_t at = 0; at + 8 <= bytes; at += 8) {
        memcpy(&word, p + at, 8);
        sum += word;
    }
    return (float)sum;
}

static float fma_plain(uint32_t rounds)
{
    volatile float seed = 0.999f;
    float sum[8] = {0}, x = seed;

    for (uint32_t round = 0; round < rounds; round++)
        for (int i = 0; i < 8; i++)
            sum[i] = sum[i] * x + 0.001f;
    return sum[0] + sum[1] + sum[2] + sum[3] + sum[4] + sum[5] + sum[6] + sum[7];
}

static float read_once(const char *isa, const char *p, size_t bytes)
{
#if defined(__x86_64__)
    if (has_16(isa))
        return read_avx512(p, bytes);
    if (strcmp(isa, "avx2") == 0)
        return read_avx2(p, bytes);
#endif
    return read_plain(p, bytes);
}

static bool has_fours(const char *isa)
{
    return strcmp(isa, "avx512bf16") == 0 || strcmp(isa, "avx512vnni") == 0;
}

double machine_pass(const struct machine_pass *p)
{
    const bool read =
        p->what == MACHINE_READ || p->what == MACHINE_CACHE || p->what == MACHINE_LAST;
    const uint32_t rounds = p->rounds;
    volatile float sink = 0.0f; /* keeps the work alive */

    for (size_t i = 0; i < p->passes && read; i++)
        sink = sink + read_once(p->isa, p->data, p->bytes);
    if (read)
        return (double)p->bytes * (double)p->passes;
#if defined(__x86_64__)
    const bool tiles = strcmp(p->isa, "amx") == 0;
    if (p->what == MACHINE_PAIRS && tiles)
        return dot_tiles(rounds);
    if (p->what == MACHINE_FOURS && tiles)
        return fours_tiles(rounds);
    if (p->what == MACHINE_PAIRS && strcmp(p->isa, "avx512bf16") == 0) {
        sink = dot_avx512(rounds);
        return 2.0 * 32 * 16 * rounds;
    }
    if (p->what == MACHINE_FOURS && has_fours(p->isa)) {
        sink = fours_avx512(rounds);
        return 2.0 * 64 * 16 * rounds;
    }
    if (p->what == MACHINE_SCALED && has_fours(p->isa)) {
        const uint32_t groups = rounds / 6; /* of inputs, a scale each */
        sink = scaled_avx512(groups);
        return 2.0 * 64 * 12 * 8 * groups;
    }
    if (has_16(p->isa)) {
        sink = fma_avx512(rounds);
        return 2.0 * 16 * 16 * rounds;
    }
    if (strcmp(p->isa, "avx2") == 0 &&
        (p->what == MACHINE_SCALED || p->what == MACHINE_SCALED_HALVES)) {
        const uint32_t groups = rounds / 24;
        sink = (p->what == MACHINE_SCALED ? scaled_words : scaled_halves)(groups);
        return 2.0 * 32 * 8 * 12 * groups;
    }
    if (strcmp(p->isa, "avx2") == 0) {
        sink = fma_avx2(rounds);
        return 2.0 * 12 * 8 * rounds;
    }
#endif
    sink = fma_plain(rounds);
    return 2.0 * 8 * rounds;
}

static void *worker_main(void *arg)
{
    struct machine_worker *w = arg;

    pthread_barrier_wait(w->start);
    const uint64_t begin_us = machine_core_us();
    w->work = machine_pass(&w->pass);
    w->took_us = machine_core_us() - begin_us;
    return NULL;
}

uint64_t machine_core_us(void)
{
    struct timespec t = {0};

    (void)clock_gettime(CLOCK_THREAD_CPUTIME_ID, &t); /* fails for no argument of ours */
    return (uint64_t)t.tv_sec * EK_US_PER_S + (uint64_t)t.tv_nsec / 1000;
}

/* Runs the workers; the seconds of the one that took longest. */
static int run_pass(struct machine_worker *workers, uint32_t threads, double *ret_seconds)
{
    uint64_t longest = 1;

    for (uint32_t i = 1; i < threads; i++)
        if (pthread_create(&workers[i].thread, NULL, worker_main, &workers[i]) != 0)
            abort(); /* the started ones wait for ever: a benchmark gives up here */
    (void)worker_main(&workers[0]);
    for (uint32_t i = 1; i < threads; i++)
        (void)pthread_join(workers[i].thread, NULL);
    for (uint32_t i = 0; i < threads; i++)
        longest = workers[i].took_us > longest ? workers[i].took_us : longest;
    *ret_seconds = (double)longest / (double)EK_US_PER_S;
    return 0;
}

size_t machine_last_cache(void)
{
    unsigned long kib = 0;
    char unit = '\0';
    FILE *f = fopen("/sys/devices/system/cpu/cpu0/cache/index3/size", "re");
    if (f && (fscanf(f, "%9lu%c", &kib, &unit) != 2 || unit != 'K'))
        kib = 0;
    if (f)
        (void)fclose(f); /* only read */
    return (size_t)kib << 10;
}

int machine_measure(enum machine_limit what, const char *isa, uint32_t threads, double *ret_value)
{
    const bool cache = what == MACHINE_CACHE, last = what == MACHINE_LAST;
    const bool read = cache || last || what == MACHINE_READ;
    size_t share = (last ? machine_last_cache() / 2 : BUFFER_BYTES) / threads / 4096 * 4096;
    if (last && share == 0) {
        *ret_value = 0.0;
        return 0;
    }
    share = cache ? MACHINE_CACHE_BYTES : share;
    size_t bytes = read ? share : 0, passes = cache ? CACHE_PASSES : 1;
    passes = last ? LAST_BYTES / (share * threads) : passes;
    char *data = NULL;
    pthread_barrier_t start;
    double seconds, work = 0.0;
    int r = -ENOMEM;

    struct machine_worker *workers = calloc(threads, sizeof(*workers));
    if (bytes > 0) {
        void *at =
            mmap(NULL, share * threads, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        data = at == MAP_FAILED ? NULL : at;
    }
    if (!workers || (bytes > 0 && !data))
        goto out;
    if (data) {
        (void)madvise(data, share * threads, MADV_HUGEPAGE); /* only faster */
        memset(data, 1, share * threads);
    }
    pthread_barrier_init(&start, NULL, threads);
    for (uint32_t i = 0; i < threads; i++)
        workers[i] = (struct machine_worker){.start = &start,
                                             .pass = {.what = what,
                                                      .isa = isa,
                                                      .rounds = FMA_ROUNDS,
                                                      .bytes = bytes,
                                                      .passes = passes,
                                                      .data = data ? data + i * share : NULL}};
    r = run_pass(workers, threads, &seconds);
    pthread_barrier_destroy(&start);
    for (uint32_t i = 0; i < threads; i++)
        work += workers[i].work;
    *ret_value = work / seconds / 1e9;
out:
    if (data)
        (void)munmap(data, share * threads);
    free(workers);
    return r;
}
