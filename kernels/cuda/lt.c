/*
 * Large products by cuBLASLt, which is looked for at load (EVENKEEL_CUBLASLT names another file, or
 * "off"); without it the own kernels compute everything, correctly and slower. Descriptors and the
 * chosen algorithm are kept per shape; numbers of rows are rounded up, so that there are few shapes
 * and an answer does not change with each row more (the values have room for it, the rows behind
 * the last one are never read). Its workspace lies in the arena.
 *
 * cuBLAS counts columns first: c[rows, n] there is C[n, rows] = W[n, k] * X[k, rows], W transposed.
 */
#include <dlfcn.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/cuda/lt.h"

#define KEPT 128u /* shapes with their descriptors */

struct lt_key {
    uint32_t n, k, rows, x_stride, c_stride, c_dtype;
};

struct lt_plan {
    struct lt_key key;
    enum { LT_EMPTY, LT_READY, LT_REFUSED } state;
    lt_handle desc, w, x, c;
    struct lt_result best;
};

struct cuda_lt {
    void *library;
#define LT_FIELD(field, symbol, args) int(*field) args;
    LT_FUNCTIONS(LT_FIELD)
#undef LT_FIELD
    lt_handle handle, preference;
    int type; /* of the products */
    uint32_t next;
    struct lt_plan plan[KEPT];
};

static bool find_functions(struct cuda_lt *lt)
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
        void *symbol = dlsym(lt->library, wanted[i].name);
        if (!symbol)
            return false;
        memcpy(wanted[i].at, &symbol, sizeof(symbol)); /* ISO C has no such cast */
    }
    return true;
}

/* One library: with all functions, and willing to work with this driver. */
static bool open_library(struct cuda_lt *lt, const char *path)
{
    lt->library =
        dlopen(path, RTLD_NOW | RTLD_LOCAL); /* stays: it may hold state of the driver's */
    return lt->library && find_functions(lt) && lt->create(&lt->handle) == LT_OK;
}

/* The one that is wanted, or the newest that works: one of CUDA 13 does not with an older driver.
 */
static bool find_library(struct cuda_lt *lt)
{
    static const char *const names[] = {"libcublasLt.so.13", "libcublasLt.so.12",
                                        "/usr/local/cuda/lib64/libcublasLt.so"};
    const char *path = getenv("EVENKEEL_CUBLASLT");

    if (path && strcmp(path, "off") == 0)
        return false;
    if (path && path[0])
        return open_library(lt, path);
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (open_library(lt, names[i]))
            return true;
    return false;
}

struct cuda_lt *cuda_lt_open(struct ek_device *d)
{
    size_t space = CUDA_LT_SPACE;

    if (d->graph->dtype == EK_F32)
        return NULL;
    struct cuda_lt *lt = calloc(1, sizeof(*lt));
    if (!lt)
        return NULL;
    lt->type = d->graph->dtype == EK_F16 ? LT_R_16F : LT_R_16BF;
    if (!find_library(lt)) {
        free(lt);
        return NULL;
    }
    if (lt->pref_new(&lt->preference) != LT_OK ||
        lt->pref_set(lt->preference, LT_WORKSPACE, &space, sizeof(space)) != LT_OK) {
        cuda_lt_close(lt);
        return NULL;
    }
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

static bool make_plan(struct cuda_lt *lt, struct lt_plan *p)
{
    const struct lt_key *key = &p->key;
    const int transposed = LT_OP_T;
    int c_type = key->c_dtype == EK_F32 ? LT_R_32F : lt->type, found = 0;
    uint64_t stride = (key->k + 31) / 32 * 32;

    return lt->desc_new(&p->desc, LT_COMPUTE_32F, LT_R_32F) == LT_OK &&
           lt->desc_set(p->desc, LT_TRANSA, &transposed, sizeof(transposed)) == LT_OK &&
           lt->layout_new(&p->w, lt->type, key->k, key->n, (int64_t)stride) == LT_OK &&
           lt->layout_new(&p->x, lt->type, key->k, key->rows, key->x_stride) == LT_OK &&
           lt->layout_new(&p->c, c_type, key->n, key->rows, key->c_stride) == LT_OK &&
           lt->heuristic(lt->handle, p->desc, p->w, p->x, p->c, p->c, lt->preference, 1, &p->best,
                         &found) == LT_OK &&
           found > 0 && p->best.state == LT_OK;
}

static struct lt_plan *plan_of(struct cuda_lt *lt, const struct lt_key *key)
{
    for (uint32_t i = 0; i < KEPT; i++)
        if (lt->plan[i].state != LT_EMPTY && memcmp(&lt->plan[i].key, key, sizeof(*key)) == 0)
            return &lt->plan[i];
    struct lt_plan *p = &lt->plan[lt->next++ % KEPT];
    forget(lt, p);
    p->key = *key;
    p->state = make_plan(lt, p) ? LT_READY : LT_REFUSED;
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

int cuda_lt_gemm(struct ek_device *d, const struct cu_gemm_args *g, uint32_t rows)
{
    struct cuda_lt *lt = d->lt;
    const float zero = 0.0f;
    uint32_t most = g->picked ? d->shape.logit_rows : d->shape.rows, padded = round_rows(rows);

    if (!lt)
        return 0;
    const struct lt_key key = {.n = g->n,
                               .k = g->k,
                               .rows = padded < most ? padded : most,
                               .x_stride = g->x.stride,
                               .c_stride = g->c.stride,
                               .c_dtype = g->c.dtype};
    struct lt_plan *p = plan_of(lt, &key);
    if (p->state != LT_READY)
        return 0;
    void *c = (void *)(uintptr_t)g->c.at,
         *space = (void *)(uintptr_t)cuda_arena(d, d->shape.space_at);
    int status = lt->matmul(lt->handle, p->desc, &g->scale, (void *)(uintptr_t)g->w, p->w,
                            (void *)(uintptr_t)g->x.at, p->x, &zero, c, p->c, c, p->c, p->best.algo,
                            space, CUDA_LT_SPACE, d->stream);
    if (status != LT_OK)
        return refused(d, p, status);
    int r = g->bias ? add_bias(d, g, rows) : 0;
    return r < 0 ? r : 1;
}
