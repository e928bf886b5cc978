/* What this machine can do at most, measured: the yardstick of the benchmarks. */
#pragma once

#include <stddef.h>
#include <stdint.h>

/* Of a thread, read to measure its first cache: half of the smallest one there is, since one that
 * is just as large has room for nothing else and loses lines. */
#define MACHINE_CACHE_BYTES ((size_t)16 << 10)

enum machine_limit {
    MACHINE_READ, /* GB/s: all threads read a buffer far larger than the caches */
    MACHINE_PEAK, /* GFLOP/s: all threads multiply and add in registers, f32, vectors of the tier */
    MACHINE_PAIRS,  /* GFLOP/s: the same with pairs of bf16, for the tiers that have them */
    MACHINE_FOURS,  /* GOP/s: the same with fours of bytes, for machines that have AVX512_VNNI */
    MACHINE_SCALED, /* GOP/s: the same with the scale of each group, as products are; with words in
                     * the tier "avx2", */
    MACHINE_SCALED_HALVES, /* which multiplies numbers of 4 bits as bytes: twice as many at once */
    MACHINE_CACHE,         /* GB/s: each thread reads a buffer that stays in its first cache */
    MACHINE_LAST, /* GB/s: all threads read half of the last cache, again and again; 0: no such */
};

/* What one thread does in one pass; returns its bytes or operations. */
struct machine_pass {
    enum machine_limit what;
    const char *isa;
    uint32_t rounds;  /* of arithmetic: some ten multiplications each */
    const char *data; /* what is read, so many times */
    size_t bytes, passes;
};
double machine_pass(const struct machine_pass *p);

/* Bytes of the first core's third cache as the kernel tells (the C library may say that of all
 * packages together); 0: there is none. */
size_t machine_last_cache(void);
/* One pass of some tenths of a second with vectors of the tier `isa` ("amx", "avx512", "avx2",
 * "ref"). 0, -ENOMEM or -EAGAIN. */
int machine_measure(enum machine_limit what, const char *isa, uint32_t threads, double *ret_value);
/* Time that the calling thread was on a core, in microseconds. */
uint64_t machine_core_us(void);
