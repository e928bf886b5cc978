/*
 * One product for so many rows: which kernels compute it. Few rows are bound by reading the weight,
 * many by arithmetic; packed weights are read as they are for as long as that is quicker than
 * making plain numbers of them first. What is chosen depends on the shape, the card and the number
 * of rows alone.
 */
#include "kernels/cuda/product.h"

#include <stdlib.h>

#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/lt.h"
#include "kernels/cuda/shape.h"

/*
 * Packed weights, beyond what ek_gemv_* reads 16 rows at a time: a fused product (fused.cu) takes
 * 2 * rows / own for each number, with its own kernel's rate of arithmetic; the other way writes
 * the number in 16 bits, reads it again and takes 2 * rows / lt, with that of cuBLASLt. So fused is
 * quicker up to rows = 2 / (bandwidth * (1 / own - 1 / lt)). On Hopper and later data centre cards
 * mma reaches only a part of what cuBLASLt does. Rates are what such cards are published with,
 * times what such kernels commonly reach of it: an estimate until it is measured on each; figures
 * are those of the slowest card of a row that is common for serving.
 */
static const struct rates {
    int capability;
    double gbytes, own, lt; /* GB/s, TFLOP/s */
} g_rates[] = {
    {80, 1900, 190, 260}, /* A100 */
    {86, 800, 90, 120},   /* A10, RTX 3090 */
    {89, 860, 110, 150},  /* L40S, RTX 4090 */
    {90, 4300, 350, 700}, /* H100, H200 */
    {100, 7500, 450, 1500}, {120, 1700, 150, 200},
};

static const struct rates *rates_of(int capability)
{
    const struct rates *r = &g_rates[0];

    for (size_t i = 0; i < sizeof(g_rates) / sizeof(g_rates[0]); i++)
        if (g_rates[i].capability <= capability)
            r = &g_rates[i];
    return r;
}

/* What EVENKEEL_FUSED_ROWS says, for measuring. */
static bool wanted_rows(uint32_t *ret_rows)
{
    const char *wanted = getenv("EVENKEEL_FUSED_ROWS");

    if (!wanted || wanted[0] < '0' || wanted[0] > '9')
        return false;
    unsigned long rows = strtoul(wanted, NULL, 10);
    *ret_rows = rows < CUDA_FUSED_MOST ? (uint32_t)rows : CUDA_FUSED_MOST;
    return true;
}

/* Hopper's and later data centre cards' mma does not multiply E4M3 itself (rounded.cu). */
static bool wide_e4m3(int capability)
{
    return capability < 90 || capability >= 120;
}

/* Both ways read the weight once: up to where the own kernels are no longer bound by that. */
uint32_t cuda_e4m3_rows(int capability, bool lt)
{
    const struct rates *r = rates_of(capability);
    uint32_t rows = UINT32_MAX;

    if (!lt || wanted_rows(&rows))
        return rows;
    rows = (uint32_t)(500.0 * r->own * (wide_e4m3(capability) ? 2 : 1) / r->gbytes) / 32 * 32;
    return rows > CUDA_PACKED_ROWS ? rows : CUDA_PACKED_ROWS;
}

uint32_t cuda_fused_rows(int capability, bool lt)
{
    const struct rates *r = rates_of(capability);
    uint32_t most;

    if (wanted_rows(&most))
        return most;
    const double rows = 2000.0 / (r->gbytes * (1 / r->own - 1 / r->lt));
    return !lt || rows > CUDA_FUSED_MOST ? CUDA_FUSED_MOST : (uint32_t)rows / 64 * 64;
}

/* Up to CUDA_SKINNY_ROWS rows of plain weights, with sums of parts where cuBLASLt works, which
 * fits: a product of several parts has no more blocks than FUSED_BLOCKS. */
static int run_skinny(struct ek_device *d, const struct cu_gemm_args *a)
{
    const uint32_t columns = (a->n + CU_FUSED_COLS - 1) / CU_FUSED_COLS;
    struct cu_gemm_args g = *a;

    g.parts = cuda_fused_parts(a->n, a->k, CU_PLAIN); /* of a panel: another than its matrix has */
    g.partials = cuda_arena(d, d->shape.space_at);
    return cuda_launch(d, (enum cuda_kernel)(K_FUSED64 + CU_PLAIN), 1, columns * g.parts, 256, &g);
}

/* Products of plain weights with many rows. */
static int run_plain(struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows)
{
    bool f32 = a->x.dtype == EK_F32;
    uint32_t tile = f32 ? 16 : 128;

    if (!f32 && d->choices.skinny && rows <= CUDA_SKINNY_ROWS)
        return run_skinny(d, a);
    int r = f32 ? 0 : cuda_lt_gemm(d, a, rows);
    if (r != 0)
        return r < 0 ? r : 0;
    return cuda_launch(d, K_GEMM, (a->n + tile - 1) / tile, (rows + tile - 1) / tile, 256,
                       (void *)(uintptr_t)a);
}

/* Those of a packed weight: a panel of it after the other becomes plain numbers. */
static int run_panels(struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows)
{
    const uint32_t most = cuda_panel_rows(a->k), chunks = (a->k + 511) / 512;
    int r = 0;

    for (uint32_t first = 0; r == 0 && first < a->n; first += most) {
        struct cu_expand_args e = {.w = a->w,
                                   .dst = cuda_arena(d, d->shape.panel_at),
                                   .packing = a->packing,
                                   .first = first,
                                   .rows = a->n - first < most ? a->n - first : most,
                                   .k = a->k,
                                   .stride = (a->k + 31) / 32 * 32};
        struct cu_gemm_args panel = *a;
        panel.w = e.dst;
        panel.packing = (struct cu_packing){.form = CU_PLAIN};
        panel.n = e.rows;
        panel.c.at += (uint64_t)first * (ek_dtype_bits((enum ek_dtype)a->c.dtype) / 8);
        panel.bias += a->bias ? first * sizeof(float) : 0;
        r = cuda_launch(d, (enum cuda_kernel)(K_EXPAND + a->packing.form), chunks < 8 ? chunks : 8,
                        (e.rows + 7) / 8, 256, &e);
        if (r == 0)
            r = run_plain(d, &panel, rows);
    }
    return r;
}

/* Blocks of 128 rows, unless a quarter of what they compute or more would be for no row. */
static uint32_t tile_rows(uint32_t rows)
{
    const uint32_t halves = (rows + 63) / 64;
    return halves == 1 || halves == 3 ? 64 : 128;
}

static int run_fused(struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows)
{
    const uint32_t tile = tile_rows(rows), columns = (a->n + CU_FUSED_COLS - 1) / CU_FUSED_COLS;
    const int kernel = (tile == 64 ? K_FUSED64 : K_FUSED128) + (int)a->packing.form;

    return cuda_launch(d, (enum cuda_kernel)kernel, (rows + tile - 1) / tile, columns * a->parts,
                       256, (void *)(uintptr_t)a);
}

/* The kernels of a form, and those that round to it. */
struct rounding {
    enum cuda_kernel round, few8, few16, tile64, tile128;
};
static const struct rounding g_int8 = {K_ROUND, K_ROUNDED8, K_ROUNDED16, K_ROUNDED64, K_ROUNDED128};
static const struct rounding g_e4m3 = {K_ROUND_F8, K_ROUNDED8_F8, K_ROUNDED16_F8, K_ROUNDED64_F8,
                                       K_ROUNDED128_F8};

/* Inputs as bytes, then products of bytes: by the own kernels, or where they are many and E4M3 by
 * cuBLASLt. If that does not do it and the card's mma does neither, many inputs stay as they are.
 * Sums of integers are exact, so their way may change with the rows. */
static int run_rounded(struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows)
{
    const bool f8 = a->packing.form == CU_F8, wide = !f8 || wide_e4m3(d->capability);
    const struct rounding *k = f8 ? &g_e4m3 : &g_int8;
    struct cu_gemm_args g = *a;
    const uint32_t tile = wide ? tile_rows(rows) : 64,
                   columns = (a->n + CU_FUSED_COLS - 1) / CU_FUSED_COLS;
    const bool many = f8 && rows > d->e4m3_rows && rows > CUDA_PACKED_ROWS;
    const uint32_t lt_rows = many ? cuda_lt_e4m3_rows(d, a, rows) : 0;

    if (many && lt_rows == 0 && !wide && rows > d->fused_rows)
        return run_panels(d, a, rows);
    g.scale_stride = lt_rows > 0 ? lt_rows : (rows + 15) & ~15u;
    int r =
        cuda_launch(d, f8 && a->packing.groups > 1 ? K_ROUND_GROUPS : k->round, rows, 1, 256, &g);
    if (r == 0 && lt_rows > 0) {
        r = cuda_lt_e4m3(d, &g, rows);
        if (r != 0)
            return r < 0 ? r : 0;
    }
    if (r < 0)
        return r;
    if (rows <= CUDA_PACKED_ROWS)
        return cuda_launch(d, rows <= 8 ? k->few8 : k->few16, (a->n + 15) / 16, (rows + 15) / 16,
                           256, &g);
    if (rows > CUDA_FUSED_MOST)
        g.parts = 1; /* there is no room for more, nor need */
    return cuda_launch(d, tile == 64 ? k->tile64 : k->tile128, (rows + tile - 1) / tile,
                       columns * g.parts, 256, &g);
}

int cuda_product(struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows)
{
    const bool packed = a->packing.form != CU_PLAIN;
    const int few = (rows <= 8 ? K_GEMV8 : K_GEMV16) + (int)a->packing.form;

    if (a->x.dtype == EK_F32)
        return run_plain(d, a, rows);
    if (a->rounded)
        return run_rounded(d, a, rows);
    if (d->choices.ahead && !packed && rows <= 8)
        return cuda_launch(d, K_GEMV8_AHEAD, (a->n + 15) / 16, 1, 256, (void *)(uintptr_t)a);
    /* reading packed numbers twice is less than expanding them once */
    if (rows <= (packed ? CUDA_PACKED_ROWS : 16))
        return cuda_launch(d, (enum cuda_kernel)few, (a->n + 15) / 16, (rows + 15) / 16, 256,
                           (void *)(uintptr_t)a);
    if (!packed)
        return run_plain(d, a, rows);
    return rows <= d->fused_rows ? run_fused(d, a, rows) : run_panels(d, a, rows);
}

bool cuda_product_joins(const struct ek_device *d, const struct cu_gemm_args *a, uint32_t rows)
{
    return d->choices.glu && rows <= 16 && a->x.dtype != EK_F32 && a->packing.form == CU_PLAIN;
}

int cuda_product_glu(struct ek_device *d, const struct cu_gemm_args *a,
                     const struct cu_rows_args *glu, uint32_t rows)
{
    struct cu_glu_args g = {.gemm = *a, .dst = glu->dst, .act = glu->act};

    return cuda_launch(d, rows <= 8 ? K_GEMV8_GLU : K_GEMV16_GLU, (glu->width + 15) / 16, 1, 256,
                       &g);
}
