/*
 * Large products by cuBLASLt, which is looked for at load (library.h; EVENKEEL_CUBLASLT names a
 * file, or "off"); without it the own kernels compute everything, correctly and slower. Descriptors
 * and the chosen algorithm are kept for as many shapes as a server has, by a hash; one more takes
 * the place of the one that was not used for longest. The heuristic names several algorithms, of
 * which its first is taken, or the one that EVENKEEL_CUBLASLT_CANDIDATE numbers. Numbers of rows
 * are rounded up, so that there are few shapes and an answer does not change with each row more
 * (the values have room for it, the rows behind the last one are never read). Its workspace lies in
 * the arena.
 *
 * Inputs and weights of E4M3 (rounded.cu) are multiplied as bytes, with the scales that they have:
 * of rows, of groups by blocks (both only Hopper has), or none, and a kernel of our own multiplies
 * the results by those of rows. Both operands have the columns of each 64 in the same other order,
 * which sums do not see.
 *
 * cuBLAS counts columns first: c[rows, n] there is C[n, rows] = W[n, k] * X[k, rows], W transposed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <xxhash.h>

#include "common/err.h"
#include "kernels/cuda/choices.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/kernels.h"
#include "kernels/cuda/library.h"
#include "kernels/cuda/lt.h"

#define KEPT       1024u /* shapes with their descriptors: 8,192 rows of four products are 536 */
#define CHAINS     2048u /* by a hash of the shape */
#define CANDIDATES 8     /* that the heuristic is asked for */

/* What is multiplied: numbers of 16 bits, or E4M3 with scales. */
enum lt_form { LT_PLAIN, LT_ROWS, LT_BLOCKS, LT_BARE };

struct lt_key {
    uint32_t n, k, rows, x_stride, c_stride, c_dtype, form;
};

struct lt_plan {
    struct lt_key key;
    enum { LT_EMPTY, LT_READY, LT_REFUSED } state;
    lt_handle desc, w, x, c;
    struct lt_result best;
    uint64_t used;  /* when last, by a clock that counts products */
    uint32_t after; /* next of its chain, from 1; 0 = it is the last */
};

struct cuda_lt {
#define LT_FIELD(field, symbol, args) int(*field) args;
    LT_FUNCTIONS(LT_FIELD)
#undef LT_FIELD
    lt_handle handle, preference;
    int type;        /* of the products */
    uint32_t choice; /* which of the candidates, from 0 */
    uint32_t taken;  /* plans */
    uint64_t clock;
    uint32_t first[CHAINS]; /* as lt_plan.after */
    struct lt_plan plan[KEPT];
};

static bool find_functions(struct cuda_lt *lt, void *library)
{
    struct {
        const char *name;
        void *at;
    } const wanted[] = {
#define LT_WANTED(field, symbol, args) {#symbol, &lt->field},
        LT_FUNCTIONS(LT_WANTED)
#undef LT_WANTED
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *symbol = dlsym(library, wanted[i].name);
        if (!symbol)
            return false;
        memcpy(wanted[i].at, &symbol, sizeof(symbol)); /* ISO C has no such cast */
    }
    return true;
}

/* With all functions, and willing to work with this driver: one of CUDA 13 is not with an older
 * one. */
static bool works(void *ctx, void *library)
{
    struct cuda_lt *lt = ctx;
    return find_functions(lt, library) && lt->create(&lt->handle) == LT_OK;
}

static bool find_library(struct cuda_lt *lt, char *ret_where, size_t size)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so", NULL};
    static const char *const packages[] = {"nvidia/cu1[0-9]/lib/libcublasLt.so.1[2-9]",
                                           "nvidia/cublas/lib/libcublasLt.so.1[2-9]", NULL};
    static const struct cuda_library wanted = {"EVENKEEL_CUBLASLT", names, packages};
    return cuda_library_find(&wanted, works, lt, ret_where, size) != NULL;
}

static void note_missing(struct ek_device *d, const char *where)
{
    cuda_note(d,
              "cuBLASLt is not used (looked at %s): prompts and large batches go through the own "
              "kernels, up to three times slower. Install libcublas of the CUDA toolkit or the "
              "Python package nvidia-cublas, or name the file in EVENKEEL_CUBLASLT.",
              where);
}

/* What EVENKEEL_CUBLASLT_CANDIDATE says, for measuring. */
static uint32_t wanted_choice(void)
{
    const char *wanted = getenv("EVENKEEL_CUBLASLT_CANDIDATE");

    return wanted && wanted[0] > '0' && wanted[0] < '0' + CANDIDATES && !wanted[1]
               ? (uint32_t)(wanted[0] - '0')
               : 0;
}

struct cuda_lt *cuda_lt_open(struct ek_device *d)
{
    size_t space = CUDA_LT_SPACE;
    char where[256];

    (void)snprintf(d->products, sizeof(d->products), "own kernels");
    if (d->graph->dtype == EK_F32)
        return NULL;
    struct cuda_lt *lt = calloc(1, sizeof(*lt));
    if (!lt)
        return NULL;
    lt->choice = wanted_choice();
    lt->type = d->graph->dtype == EK_F16 ? LT_R_16F : LT_R_16BF;
    if (!find_library(lt, where, sizeof(where))) {
        const char *wish = getenv("EVENKEEL_CUBLASLT");
        if (!wish || strcmp(wish, "off") != 0)
            note_missing(d, where);
        free(lt);
        return NULL;
    }
    if (lt->pref_new(&lt->preference) != LT_OK ||
        lt->pref_set(lt->preference, LT_WORKSPACE, &space, sizeof(space)) != LT_OK) {
        cuda_lt_close(lt);
        return NULL;
    }
    (void)snprintf(d->products, sizeof(d->products), "cuBLASLt (%s)", where);
    return lt;
}

static void forget(struct cuda_lt *lt, struct lt_plan *p)
{
    if (p->desc)
        (void)lt->desc_free(p->desc);
    lt_handle layouts[] = {p->w, p->x, p->c};
    for (size_t i = 0; i < sizeof(layouts) / sizeof(layouts[0]); i++)
        if (layouts[i])
            (void)lt->layout_free(layouts[i]);
    *p = (struct lt_plan){.state = LT_EMPTY};
}

void cuda_lt_close(struct cuda_lt *lt)
{
    if (!lt)
        return;
    for (uint32_t i = 0; i < KEPT; i++)
        forget(lt, &lt->plan[i]);
    if (lt->preference)
        (void)lt->pref_free(lt->preference);
    (void)lt->destroy(lt->handle);
    free(lt);
}

/* Scales of E4M3 and how they lie: those of this product. */
static bool set_scales(struct cuda_lt *lt, struct lt_plan *p, const struct cu_gemm_args *g)
{
    const bool blocks = p->key.form == LT_BLOCKS;
    const int w_mode = blocks ? LT_SCALE_BLOCKS : LT_SCALE_ROWS,
              x_mode = blocks ? LT_SCALE_GROUPS : LT_SCALE_ROWS;
    void *const w = (void *)(uintptr_t)(blocks ? g->blocks : g->w + g->packing.scale_at);
    void *const x = (void *)(uintptr_t)g->row_scales;

    if (p->key.form == LT_PLAIN || p->key.form == LT_BARE)
        return true;
    return lt->desc_set(p->desc, LT_A_SCALE_MODE, &w_mode, sizeof(w_mode)) == LT_OK &&
           lt->desc_set(p->desc, LT_B_SCALE_MODE, &x_mode, sizeof(x_mode)) == LT_OK &&
           lt->desc_set(p->desc, LT_A_SCALE, &w, sizeof(w)) == LT_OK &&
           lt->desc_set(p->desc, LT_B_SCALE, &x, sizeof(x)) == LT_OK;
}

/* The candidate that is wanted of those that work, the last one where they are fewer. */
static bool lt_choose(const struct cuda_lt *lt, const struct lt_result *found, int count,
                      struct lt_result *ret_best)
{
    uint32_t working = 0;

    for (int i = 0; i < count && working <= lt->choice; i++)
        if (found[i].state == LT_OK) {
            *ret_best = found[i];
            working++;
        }
    return working > 0;
}

static bool make_plan(struct cuda_lt *lt, struct lt_plan *p, const struct cu_gemm_args *g)
{
    const struct lt_key *key = &p->key;
    const int transposed = LT_OP_T;
    struct lt_result result[CANDIDATES];
    int c_type = key->c_dtype == EK_F32 ? LT_R_32F : lt->type, found = 0;
    int type = key->form == LT_PLAIN ? lt->type : LT_R_E4M3;
    uint64_t stride = key->form == LT_PLAIN ? (key->k + 31) / 32 * 32 : key->k;

    return lt->desc_new(&p->desc, LT_COMPUTE_32F, LT_R_32F) == LT_OK &&
           lt->desc_set(p->desc, LT_TRANSA, &transposed, sizeof(transposed)) == LT_OK &&
           set_scales(lt, p, g) &&
           lt->layout_new(&p->w, type, key->k, key->n, (int64_t)stride) == LT_OK &&
           lt->layout_new(&p->x, type, key->k, key->rows, key->x_stride) == LT_OK &&
           lt->layout_new(&p->c, c_type, key->n, key->rows, key->c_stride) == LT_OK &&
           lt->heuristic(lt->handle, p->desc, p->w, p->x, p->c, p->c, lt->preference, CANDIDATES,
                         result, &found) == LT_OK &&
           lt_choose(lt, result, found, &p->best);
}

static uint32_t *chain_of(struct cuda_lt *lt, const struct lt_key *key)
{
    return &lt->first[XXH3_64bits(key, sizeof(*key)) % CHAINS];
}

/* An unused place, or that of the plan which was not used for longest, taken out of its chain. */
static struct lt_plan *free_place(struct cuda_lt *lt)
{
    struct lt_plan *p = &lt->plan[0];

    if (lt->taken < KEPT)
        return &lt->plan[lt->taken++];
    for (uint32_t i = 1; i < KEPT; i++)
        p = lt->plan[i].used < p->used ? &lt->plan[i] : p;
    uint32_t *at = chain_of(lt, &p->key);
    while (&lt->plan[*at - 1] != p)
        at = &lt->plan[*at - 1].after;
    *at = p->after;
    forget(lt, p);
    return p;
}

static struct lt_plan *plan_of(struct cuda_lt *lt, const struct lt_key *key,
                               const struct cu_gemm_args *g)
{
    uint32_t *chain = chain_of(lt, key);

    lt->clock++;
    for (uint32_t i = *chain; i > 0; i = lt->plan[i - 1].after)
        if (memcmp(&lt->plan[i - 1].key, key, sizeof(*key)) == 0) {
            lt->plan[i - 1].used = lt->clock;
            return &lt->plan[i - 1];
        }
    struct lt_plan *p = free_place(lt);
    p->key = *key;
    p->used = lt->clock;
    p->after = *chain;
    *chain = (uint32_t)(p - lt->plan) + 1;
    p->state = make_plan(lt, p, g) ? LT_READY : LT_REFUSED;
    return p;
}

/* 16 more at a time while a tile holds few rows, then 64. */
static uint32_t round_rows(uint32_t rows)
{
    return rows <= 128 ? (rows + 15) & ~15u : (rows + 63) & ~63u;
}

static int add_bias(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows)
{
    struct cu_rows_args a = {.step = g->step,
                             .bias = g->bias,
                             .src = g->c,
                             .dst = g->c,
                             .kind = CU_ROWS_BIAS,
                             .width = g->n,
                             .picked = g->picked};
    return cuda_launch(d, K_ROWS, rows, (g->n + 1023) / 1024, 256, &a);
}

/* Own kernels do what it does not, unless the card is why; then nothing can. */
static int refused(struct ek_device *d, struct lt_plan *p, int status)
{
    size_t left, all;

    if (status == LT_ALLOC_FAILED)
        return EK_EDEVMEM;
    if (cu_code(d->cu.mem_info(&left, &all)) == EK_EDEVICE)
        return EK_EDEVICE;
    p->state = LT_REFUSED;
    return 0;
}

/* The product as planned: x and w as they lie. 1, 0 when it is refused, or a code. */
static int lt_multiply(struct ek_device *d, struct lt_plan *p, const struct cu_gemm_args *g,
                       cu_ptr x)
{
    struct cuda_lt *lt = d->lt;
    const float zero = 0.0f, one = 1.0f;
    void *c = (void *)(uintptr_t)g->c.at,
         *space = (void *)(uintptr_t)cuda_arena(d, d->shape.space_at);

    int status = lt->matmul(lt->handle, p->desc, p->key.form == LT_BARE ? &one : &g->scale,
                            (void *)(uintptr_t)g->w, p->w, (void *)(uintptr_t)x, p->x, &zero, c,
                            p->c, c, p->c, p->best.algo, space, CUDA_LT_SPACE, d->stream);
    if (status != LT_OK)
        return refused(d, p, status);
    int r = cuda_times_mark(d, CUDA_KERNELS, g->n, p->key.rows);
    return r < 0 ? r : 1;
}

static uint32_t rows_of(const struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows)
{
    const uint32_t most = g->picked ? d->shape.logit_rows : d->shape.rows, all = round_rows(rows);

    return all < most ? all : most;
}

/* E4M3 has to lie as tensor cores read it; results without their scales are too large for f16. */
static struct lt_plan *plan_e4m3(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows)
{
    const uint32_t k = (g->k + 63) & ~63u, c_bytes = g->c.dtype == EK_F32 ? 4 : 2;
    struct lt_key key = {.n = g->n,
                         .k = k,
                         .rows = rows_of(d, g, rows),
                         .x_stride = k,
                         .c_stride = g->c.stride,
                         .c_dtype = g->c.dtype,
                         .form = g->packing.groups > 1 ? LT_BLOCKS : LT_ROWS};

    if (!d->lt || g->n % 16 || key.rows % 16 || g->c.stride * c_bytes % 16 ||
        (key.form == LT_BLOCKS && !g->blocks))
        return NULL;
    struct lt_plan *p = plan_of(d->lt, &key, g);
    if (p->state == LT_READY || key.form == LT_BLOCKS || g->c.dtype == EK_F16)
        return p->state == LT_READY ? p : NULL;
    key.form = LT_BARE;
    p = plan_of(d->lt, &key, g);
    return p->state == LT_READY ? p : NULL;
}

uint32_t cuda_lt_e4m3_rows(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows)
{
    const struct lt_plan *p = plan_e4m3(d, g, rows);

    return p ? p->key.rows : 0;
}

int cuda_lt_e4m3(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows)
{
    struct lt_plan *p = plan_e4m3(d, g, rows);

    if (!p || !set_scales(d->lt, p, g))
        return 0;
    int r = lt_multiply(d, p, g, g->rounded);
    if (r == 1 && p->key.form == LT_BARE)
        r = cuda_launch(d, K_RESCALE, rows, (g->n + 1023) / 1024, 256, (void *)(uintptr_t)g);
    else if (r == 1 && g->bias)
        r = add_bias(d, g, rows);
    else
        return r;
    return r < 0 ? r : 1;
}

int cuda_lt_gemm(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows)
{
    if (!d->lt)
        return 0;
    const struct lt_key key = {.n = g->n,
                               .k = g->k,
                               .rows = rows_of(d, g, rows),
                               .x_stride = g->x.stride,
                               .c_stride = g->c.stride,
                               .c_dtype = g->c.dtype};
    struct lt_plan *p = plan_of(d->lt, &key, g);
    if (p->state != LT_READY)
        return 0;
    int r = lt_multiply(d, p, g, g->x.at);
    if (r == 1 && g->bias)
        r = add_bias(d, g, rows);
    else
        return r;
    return r < 0 ? r : 1;
}
