/*
 * c = a b^T, then e = c b by wgmma, for a of 64 rows by 64 columns and b of 64 by 64 of f16; with a
 * mistake if one is asked for. The second product takes what the first made as registers.
 */
#include <stdlib.h>

#include "tests/cuda/shim.h"

#include "kernels/cuda/wgmma.cuh"
#include "tests/cuda/shim_run.h"
#include "tests/cuda/wgmma_wrong.h"

namespace
{

enum { N = 64 };

struct wrong_args {
    const uint16_t *a, *b;
    float *out;
    int mistake;
    uint32_t pad;
};

void fetch(unsigned char *shared, const uint16_t *from)
{
    for (uint32_t i = threadIdx.x; i < N * N / 8; i += blockDim.x)
        async_16(shared + wgmma_place(N, i / 8, i % 8), from + i / 8 * N + i % 8 * 8, true);
    async_commit();
}

/* Waits for copies and shows them to all, but for the mistake. */
void meet(int mistake)
{
    if (mistake == WRONG_TOO_EARLY)
        async_visible();
    if (mistake != WRONG_NO_WAIT)
        async_wait<0>();
    if (mistake != WRONG_NOT_VISIBLE && mistake != WRONG_TOO_EARLY)
        async_visible();
    if (mistake != WRONG_NO_BARRIER)
        __syncthreads();
}

void second(const struct wrong_args &w, unsigned char *b, const float (&c)[N / 2],
            float (&e)[N / 2])
{
    const uint64_t at = wgmma_matrix(shared_at(b), 0);
    uint32_t p[N / 16][4];

    for (int k = 0; k < N / 16; k++)
        for (int i = 0; i < 4; i++)
            p[k][i] = pack(f16{}, c[8 * k + 2 * i], c[8 * k + 2 * i + 1]);
    for (int i = 0; i < N / 2; i++)
        e[i] = 0.0f;
    if (w.mistake != WRONG_NO_FENCE)
        wgmma_fence();
    for (int k = 0; k < N / 16; k++)
        wgmma_columns(f16{}, e, p[k], at + (uint64_t)k * 16 * WGMMA_ROW / 16);
    wgmma_commit();
    if (w.mistake == WRONG_TOUCHED)
        e[3] = 1.0f;
    if (w.mistake == WRONG_A_TOUCHED)
        p[1][2] ^= 1;
    if (w.mistake == WRONG_OVERWRITTEN)
        fetch(b, w.a);
    if (w.mistake != WRONG_NOT_WAITED)
        wgmma_wait<0>();
    if (w.mistake == WRONG_REUSED)
        fetch(b, w.a);
}

/* Descriptors of the first product, but for the mistake. */
uint64_t first_of(int mistake, unsigned char *a)
{
    if (mistake == WRONG_MISALIGNED)
        return wgmma_matrix(shared_at(a) + 128, 0);
    if (mistake == WRONG_NOT_COPIED)
        return wgmma_matrix(shared_at(a) + 4 * N * N, 0);
    if (mistake == WRONG_BEYOND)
        return wgmma_matrix(200 << 10, 0);
    return wgmma_matrix(shared_at(a) + (mistake == WRONG_LANES ? threadIdx.x % 2 * 32 : 0), 0);
}

EK_KERNEL(wgmma_wrong, struct wrong_args, 128)
{
    EK_DYNAMIC(raw);
    const unsigned lane = threadIdx.x % 32, row = threadIdx.x / 32 * 16 + lane / 4;
    unsigned char *at = raw + (0u - shared_at(raw)) % WGMMA_ATOM, *b = at + N * N * 2;
    float c[N / 2], e[N / 2];

    fetch(at, a.a);
    fetch(b, a.b);
    meet(a.mistake);
    const uint64_t first = first_of(a.mistake, at);
    const uint64_t other = wgmma_matrix(shared_at(b), 0);
    wgmma_fence();
    for (int k = 0; k < N / 16; k++)
        wgmma_rows(f16{}, c, first + (uint64_t)k * 2, other + (uint64_t)k * 2, k > 0);
    wgmma_commit();
    if (a.mistake == WRONG_READ)
        c[0] = c[0] + 1.0f;
    wgmma_wait<0>();
    wgmma_done(c);
    second(a, b, c, e);
    for (unsigned j = 0; j < N / 2; j++)
        a.out[(row + j / 2 % 2 * 8) * N + j / 4 * 8 + lane % 4 * 2 + j % 2] = e[j];
}

/* Small whole numbers, so that all sums are exact. */
uint16_t small(unsigned i)
{
    return cpu_to_f16((float)(int)((i * 2654435761u >> 20) % 5) - 2.0f);
}

} // namespace

extern "C" __attribute__((visibility("default"))) int wgmma_wrong_run(int mistake)
{
    static uint16_t a[N * N], b[N * N];
    static float out[N * N];
    const unsigned grid[3] = {1, 1, 1};
    struct wrong_args args = {a, b, out, mistake, 0};
    size_t bytes;

    for (unsigned i = 0; i < N * N; i++) {
        a[i] = small(i);
        b[i] = small(i + 7777);
    }
    shim_launch(shim_find("wgmma_wrong", &bytes), grid, 128, 6 * N * N + 2048, &args);
    for (unsigned r = 0; r < N; r++)
        for (unsigned n = 0; n < N; n++) {
            float want = 0.0f;
            for (unsigned k = 0; k < N; k++) {
                float c = 0.0f;
                for (unsigned i = 0; i < N; i++)
                    c += cpu_from_f16(a[r * N + i]) * cpu_from_f16(b[k * N + i]);
                want += c * cpu_from_f16(b[k * N + n]);
            }
            if (out[r * N + n] != want)
                return 1;
        }
    return 0;
}
