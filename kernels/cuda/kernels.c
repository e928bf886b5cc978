/*
 * Kernels by name from the embedded images, and launching them. Each takes one struct by value.
 */
#include "kernels/cuda/kernels.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"

/* Which heads and which cache. */
static void add_heads(const struct ek_device *d, enum cuda_kernel k, char *name, size_t size)
{
    const char *cache = d->graph->kv_f8 ? "_f8" : d->graph->kv_i8 ? "_i8" : "";

    (void)snprintf(name + strlen(name), size - strlen(name), "_%u%s",
                   k == K_ATTEND_WIDE ? CU_DIM_MOST : d->shape.head_most, cache);
}

static void kernels_name_of(const struct ek_device *d, enum cuda_kernel k, char *name, size_t size)
{
    static const char *const forms[CU_FORMS] = {"", "_i8", "_f8", "_i4"};
    static const char *const fixed[CUDA_KERNELS] = {
        [K_PREPARE] = "ek_prepare",
        [K_EMBED] = "ek_embed",
        [K_NORM] = "ek_norm",
        [K_ANGLES] = "ek_angles",
        [K_ROPE] = "ek_rope",
        [K_ROWS] = "ek_rows",
        [K_GEMV8] = "ek_gemv8_%s",
        [K_GEMV16] = "ek_gemv16_%s",
        [K_EXPAND] = "ek_expand_%s",
        [K_FUSED64] = "ek_fused64_%s",
        [K_FUSED128] = "ek_fused128_%s",
        [K_ROUND] = "ek_round_%s",
        [K_ROUNDED8] = "ek_rounded8",
        [K_ROUNDED16] = "ek_rounded16",
        [K_ROUNDED64] = "ek_rounded64",
        [K_ROUNDED128] = "ek_rounded128",
        [K_ROUND_F8] = "ek_round_f8_%s",
        [K_ROUND_GROUPS] = "ek_round_groups_%s",
        [K_ROUNDED8_F8] = "ek_rounded8_f8",
        [K_ROUNDED16_F8] = "ek_rounded16_f8",
        [K_ROUNDED64_F8] = "ek_rounded64_f8",
        [K_ROUNDED128_F8] = "ek_rounded128_f8",
        [K_RESCALE] = "ek_rescale",
        [K_GEMM] = "ek_gemm_%s",
        [K_GEMV8_AHEAD] = "ek_gemv8_ahead_%s",
        [K_GEMV8_GLU] = "ek_gemv8_glu_%s",
        [K_GEMV16_GLU] = "ek_gemv16_glu_%s",
        [K_KEEP] = "ek_keep",
        [K_ATTEND_PLAIN] = "ek_attend_plain",
        [K_ATTEND_ROW] = "ek_attend_row_%s",
        [K_ATTEND_TILE] = "ek_attend_tile_%s",
        [K_ATTEND_WGMMA] = "ek_attend_wgmma_%s",
        [K_ATTEND_KEPT] = "ek_attend_kept_%s",
        [K_ATTEND_WIDE] = "ek_attend_wide_%s",
        [K_ROUTE] = "ek_route",
        [K_ORDER] = "ek_order",
        [K_EXPERT_UP] = "ek_expert_up_%s",
        [K_EXPERT_DOWN] = "ek_expert_down_%s",
        [K_EXPERT_UP32] = "ek_expert_up32_%s",
        [K_EXPERT_DOWN32] = "ek_expert_down32_%s",
        [K_EXPERT_UP64] = "ek_expert_up64_%s",
        [K_EXPERT_DOWN64] = "ek_expert_down64_%s",
        [K_EXPERT_SUM] = "ek_expert_sum",
        [K_SAMPLE] = "ek_sample",
        [K_SAMPLE_SCAN] = "ek_sample_scan",
        [K_SAMPLE_WEIGH] = "ek_sample_weigh",
        [K_SAMPLE_COLLECT] = "ek_sample_collect",
        [K_SCORE] = "ek_score",
        [K_HIDDEN] = "ek_hidden",
        [K_UNPACK] = "ek_unpack",
        [K_SQUARES] = "ek_squares",
        [K_NORM_BY] = "ek_norm_by",
        [K_CONV] = "ek_conv",
        [K_CONV_KEEP] = "ek_conv_keep",
        [K_DELTA_SAID] = "ek_delta_said",
        [K_DELTA] = "ek_delta",
        [K_SCAN_SAID] = "ek_scan_said",
        [K_SCAN] = "ek_scan",
        [K_COLUMNS] = "ek_columns",
        [K_CENTRE] = "ek_centre",
        [K_HEADS] = "ek_heads_%s",
        [K_HEADS_PLAIN] = "ek_heads_plain",
        [K_LATENT] = "ek_latent_%s",
        [K_LATENT_PLAIN] = "ek_latent_plain",
    };
    enum ek_dtype t = d->graph->dtype;
    const char *type = t == EK_F32 ? "f32" : t == EK_F16 ? "f16" : "bf16";
    uint32_t form = 0;
    while (!fixed[k - form])
        form++;
    const char *base = fixed[k - form], *mark = strchr(base, '%');

    (void)snprintf(name, size, "%.*s%s%s", mark ? (int)(mark - base) : (int)strlen(base), base,
                   mark ? type : "", forms[form]);
    if (k >= K_ATTEND_ROW && k <= K_ATTEND_WIDE)
        add_heads(d, k, name, size);
}

/* Which form of the kernel that begins a row of forms; CU_FORMS = of another kernel. */
static uint32_t form_after(enum cuda_kernel k, enum cuda_kernel first)
{
    return k >= first && k < first + CU_FORMS ? (uint32_t)(k - first) : CU_FORMS;
}

/* Which of the attention kernels in tiles serve the caches and heads of a graph. */
static bool kernels_attends(const struct ek_device *d, enum cuda_kernel k)
{
    const bool i8 = d->graph->kv_i8;

    if (k == K_ATTEND_WIDE)
        return d->shape.wide;
    if (k == K_ATTEND_KEPT || k == K_ATTEND_TILE)
        return i8 == (k == K_ATTEND_KEPT);
    return k == K_ATTEND_ROW || (!i8 && !d->graph->kv_f8);
}

static bool kernels_wanted(const struct ek_device *d, enum cuda_kernel k)
{
    static const enum cuda_kernel rows[] = {K_GEMV8,       K_GEMV16,      K_EXPAND,
                                            K_FUSED64,     K_FUSED128,    K_EXPERT_UP,
                                            K_EXPERT_DOWN, K_EXPERT_UP32, K_EXPERT_DOWN32};
    const bool f32 = d->graph->dtype == EK_F32;
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++) {
        uint32_t form = form_after(k, rows[i]);
        bool experts = rows[i] == K_EXPERT_UP || rows[i] == K_EXPERT_DOWN,
             many = rows[i] == K_EXPERT_UP32 || rows[i] == K_EXPERT_DOWN32;
        if (form == CU_FORMS)
            continue;
        if (many)
            return !f32 && d->choices.experts >= PAIRS_32 && d->shape.expert_forms[form];
        if (experts)
            return f32 ? form == CU_PLAIN && d->shape.pairs > 0 : d->shape.expert_forms[form];
        bool plain = rows[i] == K_GEMV8 || rows[i] == K_GEMV16 ||
                     (rows[i] == K_FUSED64 && d->choices.skinny);
        return !f32 && d->shape.forms[form] && (plain || form != CU_PLAIN);
    }
    const bool latent = d->graph->value_dim > 0;
    if (k >= K_ATTEND_ROW && k <= K_ATTEND_WIDE)
        return !latent && d->shape.tile_rows > 0 && kernels_attends(d, k);
    if (k == K_KEEP)
        return d->graph->kv_i8;
    if (k == K_HEADS)
        return latent && !f32;
    if (k == K_LATENT)
        return d->shape.latent_groups > 0;
    if (k == K_HEADS_PLAIN || k == K_LATENT_PLAIN)
        return latent;
    if (k >= K_ROUND && k <= K_ROUNDED128)
        return d->shape.rounds;
    if (k >= K_ROUND_F8 && k <= K_RESCALE)
        return d->shape.rounds_f8;
    if (k == K_GEMV8_AHEAD)
        return !f32 && d->choices.ahead;
    if (k == K_GEMV8_GLU || k == K_GEMV16_GLU)
        return !f32 && d->choices.glu;
    if (k == K_EXPERT_UP64 || k == K_EXPERT_DOWN64)
        return !f32 && d->choices.experts == PAIRS_64 && d->shape.expert_forms[CU_PLAIN];
    if (k >= K_ROUTE && k <= K_EXPERT_SUM)
        return d->shape.pairs > 0;
    if (k >= K_UNPACK && k <= K_NORM_BY)
        return d->graph->ranks > 0;
    if (k >= K_CONV && k <= K_SCAN)
        return d->graph->state_floats > 0;
    return true;
}

static uint32_t tile_shared(const struct ek_device *d)
{
    uint32_t dim = d->shape.head_most, keys = dim == 256 ? 32 : 64;
    uint32_t wide = 2 * keys * (dim + 8) * 2; /* K and V, 16 bits each */

    /* two stages; or two of bytes, and room for what they are expanded to */
    return d->graph->kv_f8 ? 2 * 2 * keys * dim + wide : 2 * wide;
}

/* Queries, two stages each of K and V, and what it takes to begin at a multiple of 1024. */
static uint32_t wgmma_shared(const struct ek_device *d)
{
    uint32_t dim = d->shape.head_most, keys = dim == 256 ? 64 : 128;

    return (2 * CU_TILE_ROWS + 4 * keys) * dim * 2 + 1024;
}

/* Dynamic shared memory of a launch. */
static uint32_t shared_of(const struct ek_device *d, enum cuda_kernel k)
{
    if (k == K_ATTEND_TILE)
        return tile_shared(d);
    if (k == K_ATTEND_WGMMA)
        return wgmma_shared(d);
    if (k == K_ATTEND_WIDE)
        return CU_WIDE_SHARED(CU_DIM_MOST);
    if (k == K_ATTEND_KEPT)
        return CU_WIDE_SHARED(d->shape.head_most);
    if (k == K_LATENT)
        return CU_LATENT_SHARED;
    if (k == K_ROUNDED64 || k == K_ROUNDED64_F8)
        return CU_TILE_STAGE(64) * CU_TILE_STAGES(64);
    if (k == K_ROUNDED128 || k == K_ROUNDED128_F8)
        return CU_TILE_STAGE(128) * CU_TILE_STAGES(128);
    if (k < K_FUSED64 || k >= K_FUSED128 + CU_FORMS)
        return 0;
    const uint32_t rows = k < K_FUSED128 ? 64 : 128,
                   first = k < K_FUSED128 ? K_FUSED64 : K_FUSED128;
    const uint32_t slices = k - first == CU_I4 ? 4 : k - first == CU_PLAIN ? 1 : 2;
    return CU_FUSED_STAGE(slices, rows) * CU_FUSED_STAGES(slices, rows);
}

uint32_t cuda_kernel_of(const struct ek_device *d, enum cuda_kernel k, char *name, size_t size)
{
    kernels_name_of(d, k, name, size);
    return shared_of(d, k);
}

static int load_modules(struct ek_device *d, struct ek_fault *fault)
{
    const size_t most = sizeof(d->module) / sizeof(d->module[0]);
    int version = 0;

    for (; d->modules < most && cuda_images[d->modules].data; d->modules++) {
        int result = d->cu.module_load(&d->module[d->modules], cuda_images[d->modules].data);
        if (result == CU_OUT_OF_MEMORY)
            return EK_EDEVMEM;
        if (result != CU_OK) {
            (void)d->cu.version(&version);
            ek_fault_write(fault, "device",
                           "The kernels of this build do not fit the card or its driver, which is "
                           "for CUDA %d.%d (%s: %s): install a driver that is as new as the CUDA "
                           "they were built with, or build with CUDA_ARCHS for this card.",
                           version / 1000, version % 1000 / 10, cuda_images[d->modules].name,
                           cu_name(&d->cu, result));
            return cu_code(result) == EK_EDEVICE ? -ENODEV : cu_code(result);
        }
    }
    return 0;
}

/* The share of the L1 cache that a kernel would have as shared memory, if one is asked for: where
 * kernels in a row ask for several, a multiprocessor may have to be empty between them. */
static int kernels_carve(struct ek_device *d, cu_handle kernel)
{
    const int percent = (d->choices.carve - 1) * 50;

    return d->choices.carve == 0 ? CU_OK : d->cu.function_set(kernel, CU_FUNC_CARVEOUT, percent);
}

/* How many blocks of a kernel the card holds at once. */
static int find_blocks(struct ek_device *d, enum cuda_kernel k, uint32_t threads,
                       uint32_t *ret_blocks)
{
    int blocks = 0, r = 0;

    if (d->kernel[k])
        r = cu_code(d->cu.occupancy(&blocks, d->kernel[k], (int)threads, shared_of(d, k)));
    *ret_blocks = d->multiprocessors * (blocks > 0 ? (uint32_t)blocks : 1);
    return r;
}

int cuda_kernels_load(struct ek_device *d, struct ek_fault *fault)
{
    char name[64];

    int r = load_modules(d, fault);
    for (int k = 0; r == 0 && k < CUDA_KERNELS; k++) {
        int result = CU_NOT_FOUND;
        if (!kernels_wanted(d, (enum cuda_kernel)k))
            continue;
        kernels_name_of(d, (enum cuda_kernel)k, name, sizeof(name));
        for (uint32_t i = 0; result == CU_NOT_FOUND && i < d->modules; i++)
            result = d->cu.module_function(&d->kernel[k], d->module[i], name);
        const uint32_t shared = shared_of(d, (enum cuda_kernel)k);
        if (result == CU_OK && shared > 0) /* what goes without asking is less what it has itself */
            result = d->cu.function_set(d->kernel[k], CU_FUNC_MAX_DYNAMIC_SHARED, (int)shared);
        if (result == CU_OK)
            result = kernels_carve(d, d->kernel[k]);
        if (result == CU_OK)
            continue;
        if (k == K_ATTEND_WGMMA) { /* there is another */
            d->kernel[k] = NULL;
            continue;
        }
        ek_fault_write(fault, "device", "The CUDA backend has no usable kernel %s (%s).", name,
                       cu_name(&d->cu, result));
        r = result == CU_OUT_OF_MEMORY ? EK_EDEVMEM : -ENODEV;
    }
    const bool latent = d->shape.latent_groups > 0;
    if (r == 0)
        r = find_blocks(d, latent ? K_LATENT : K_ATTEND_ROW,
                        latent ? CU_LATENT_THREADS : CU_ROW_THREADS, &d->row_blocks);
    if (r == 0)
        r = find_blocks(d, K_ATTEND_WIDE, CU_WIDE_THREADS(CU_DIM_MOST), &d->wide_blocks);
    if (r == 0)
        r = find_blocks(d, K_ATTEND_KEPT, CU_WIDE_THREADS(d->shape.head_most), &d->kept_blocks);
    return r;
}

void cuda_kernels_unload(struct ek_device *d)
{
    while (d->modules > 0)
        (void)d->cu.module_unload(d->module[--d->modules]);
    memset(d->kernel, 0, sizeof(d->kernel));
}

int cuda_launch(struct ek_device *d, enum cuda_kernel k, uint32_t x, uint32_t y, uint32_t threads,
                void *args)
{
    void *params[] = {args};

    int r = cu_code(d->cu.launch(d->kernel[k], x, y, 1, threads, 1, 1, shared_of(d, k), d->stream,
                                 params, NULL));
    return r < 0 ? r : cuda_times_mark(d, k, x, y);
}
