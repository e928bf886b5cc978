/* A cuBLASLt for tests, on the driver for tests (fake.h): products of matrices of 16 bits or
 * E4M3, W transposed, with every shape, type, distance and address held against what the real one
 * documents. What it chooses needs some workspace, which it fills with junk. See kernels/cuda/lt.h.
 */
#include <stdio.h>
#include <string.h>

#include "kernels/cuda/lt.h"
#include "kernels/num.h"
#include "tests/cuda/fake.h"
#include "tests/cuda/fake_inner.h"

enum {
    CHOSEN = 0x1234,   /* the first algorithm, */
    OFFERED = 4,       /* of so many, */
    BROKEN = 2,        /* one of which does not work; */
    NEEDS = 1 << 20,   /* its workspace, */
    SPACE_ALIGN = 256, /* and how that lies */
    VECTOR = 16,       /* bytes that tensor cores read at once: of columns, too */
};

static unsigned g_algorithm;

EXPORT unsigned fake_lt_algorithm(void)
{
    return g_algorithm;
}

#define DECLARE_LT(field, symbol, args) API symbol args;
LT_FUNCTIONS(DECLARE_LT)

static struct cu_opaque *inner(lt_handle h)
{
    return (struct cu_opaque *)(void *)h;
}

static bool is(lt_handle h, enum object_kind kind)
{
    return fake_is(inner(h), kind);
}

static int make(lt_handle *ret, enum object_kind kind, uint64_t a, uint64_t b, uint64_t c,
                uint64_t d)
{
    struct cu_opaque *o = fake_object_new(kind);

    memcpy(o->lt, (uint64_t[4]){a, b, c, d}, sizeof(o->lt));
    *ret = (lt_handle)(void *)o;
    return LT_OK;
}

static int end(lt_handle h, enum object_kind kind)
{
    if (!is(h, kind))
        return fake_broken(LT_INVALID_VALUE, "cuBLASLt: what is destroyed is not there");
    fake_object_free(inner(h), kind);
    return LT_OK;
}

API cublasLtCreate(lt_handle *ret)
{
    ENTER_CARD("cublasLtCreate");
    if (fake_captures())
        return fake_leave(fake_broken(LT_NOT_INITIALIZED, "cublasLtCreate in a capture"));
    return fake_leave(make(ret, LT_CONTEXT, 0, 0, 0, 0));
}

API cublasLtDestroy(lt_handle h)
{
    ENTER_CARD("cublasLtDestroy");
    return fake_leave(end(h, LT_CONTEXT));
}

API cublasLtMatmulDescCreate(lt_handle *ret, int compute, int scale)
{
    ENTER("cublasLtMatmulDescCreate");
    if (compute != LT_COMPUTE_32F || scale != LT_R_32F)
        return fake_leave(fake_broken(LT_INVALID_VALUE, "cuBLASLt: no such type to compute with"));
    return fake_leave(make(ret, LT_DESC, 0, 0, 0, 0));
}

API cublasLtMatmulDescDestroy(lt_handle h)
{
    ENTER("cublasLtMatmulDescDestroy");
    return fake_leave(end(h, LT_DESC));
}

API cublasLtMatmulDescSetAttribute(lt_handle h, int which, const void *value, size_t bytes)
{
    ENTER("cublasLtMatmulDescSetAttribute");
    const bool pointer = which == LT_A_SCALE || which == LT_B_SCALE;
    int32_t number;
    if (!is(h, LT_DESC) || bytes != (pointer ? sizeof(void *) : sizeof(number)) ||
        (!pointer && which != LT_TRANSA && which != LT_A_SCALE_MODE && which != LT_B_SCALE_MODE))
        return fake_leave(
            fake_broken(LT_INVALID_VALUE, "cuBLASLt: attribute %d of %zu bytes", which, bytes));
    if (pointer) {
        memcpy(&inner(h)->lt[which == LT_A_SCALE ? 2 : 3], value, bytes);
        return fake_leave(LT_OK);
    }
    memcpy(&number, value, sizeof(number));
    if (which == LT_TRANSA)
        inner(h)->lt[0] = number == LT_OP_T;
    else
        inner(h)->lt[1] |= (uint64_t)number << (which == LT_A_SCALE_MODE ? 0 : 8);
    return fake_leave(LT_OK);
}

API cublasLtMatrixLayoutCreate(lt_handle *ret, int type, uint64_t rows, uint64_t cols, int64_t ld)
{
    ENTER("cublasLtMatrixLayoutCreate");
    if ((type != LT_R_16F && type != LT_R_16BF && type != LT_R_32F && type != LT_R_E4M3) ||
        rows == 0 || cols == 0 || ld < (int64_t)rows)
        return fake_leave(fake_broken(
            LT_INVALID_VALUE, "cuBLASLt: a matrix of %llu rows, %llu columns, %lld apart",
            (unsigned long long)rows, (unsigned long long)cols, (long long)ld));
    return fake_leave(make(ret, LT_LAYOUT, (uint64_t)type, rows, cols, (uint64_t)ld));
}

API cublasLtMatrixLayoutDestroy(lt_handle h)
{
    ENTER("cublasLtMatrixLayoutDestroy");
    return fake_leave(end(h, LT_LAYOUT));
}

API cublasLtMatmulPreferenceCreate(lt_handle *ret)
{
    ENTER("cublasLtMatmulPreferenceCreate");
    return fake_leave(make(ret, LT_WISH, 0, 0, 0, 0));
}

API cublasLtMatmulPreferenceDestroy(lt_handle h)
{
    ENTER("cublasLtMatmulPreferenceDestroy");
    return fake_leave(end(h, LT_WISH));
}

API cublasLtMatmulPreferenceSetAttribute(lt_handle h, int which, const void *value, size_t bytes)
{
    ENTER("cublasLtMatmulPreferenceSetAttribute");
    if (!is(h, LT_WISH) || which != LT_WORKSPACE || bytes != sizeof(uint64_t))
        return fake_leave(
            fake_broken(LT_INVALID_VALUE, "cuBLASLt: preference %d of %zu bytes", which, bytes));
    memcpy(&inner(h)->lt[0], value, bytes);
    return fake_leave(LT_OK);
}

static size_t width_of(uint64_t type)
{
    return type == LT_R_32F ? 4 : type == LT_R_E4M3 ? 1 : 2;
}

/* What it asks of E4M3 beyond that: of all sides, and of scales. */
static const char *why_not_e4m3(const uint64_t *desc, const uint64_t *w, const uint64_t *x)
{
    const uint64_t modes = desc[1];

    if (w[1] % VECTOR || w[2] % VECTOR || x[2] % VECTOR)
        return "sides of matrices of E4M3 are multiples of 16";
    if (modes == 0)
        return desc[2] || desc[3] ? "scales lie somewhere, and nothing says how" : NULL;
    if (modes != (LT_SCALE_ROWS | LT_SCALE_ROWS << 8) &&
        modes != (LT_SCALE_BLOCKS | LT_SCALE_GROUPS << 8))
        return "these ways of scales do not go together";
    if (!desc[2] || !desc[3] || (desc[2] | desc[3]) % VECTOR)
        return "scales are missing, or begin at no multiple of 16 bytes";
    if (modes >> 8 == LT_SCALE_GROUPS && w[1] % 512)
        return "groups are not multiples of four";
    return NULL;
}

static const char *why_not(lt_handle desc, lt_handle w, lt_handle x, lt_handle c)
{
    if (!is(desc, LT_DESC) || !is(w, LT_LAYOUT) || !is(x, LT_LAYOUT) || !is(c, LT_LAYOUT))
        return "what describes it is not there";
    const uint64_t *a = inner(w)->lt, *b = inner(x)->lt, *d = inner(c)->lt;
    if (!inner(desc)->lt[0])
        return "W is to be transposed";
    const bool e4m3 = a[0] == LT_R_E4M3;
    if (a[0] != b[0] || a[0] == LT_R_32F || d[0] == LT_R_E4M3 ||
        (d[0] != LT_R_32F && d[0] != a[0] && !e4m3))
        return "these types do not go together";
    if (a[1] != b[1] || a[2] != d[1] || b[2] != d[2])
        return "these shapes do not go together";
    if (a[3] * width_of(a[0]) % VECTOR || b[3] * width_of(b[0]) % VECTOR ||
        d[3] * width_of(d[0]) % VECTOR)
        return "tensor cores want columns that begin at multiples of 16 bytes";
    return e4m3 ? why_not_e4m3(inner(desc)->lt, a, b) : NULL;
}

API cublasLtMatmulAlgoGetHeuristic(lt_handle h, lt_handle desc, lt_handle w, lt_handle x,
                                   lt_handle c, lt_handle d, lt_handle wish, int most,
                                   struct lt_result *results, int *ret_count)
{
    ENTER_CARD("cublasLtMatmulAlgoGetHeuristic");
    const char *why = c != d || !is(h, LT_CONTEXT) || !is(wish, LT_WISH) || most < 1
                          ? "it is asked for wrongly"
                          : why_not(desc, w, x, c);
    if (why)
        return fake_leave(fake_broken(LT_INVALID_VALUE, "cuBLASLt: a product: %s", why));
    const bool lacks = inner(desc)->lt[1] && fake_g.capability != 90; /* such scales */
    const bool offers = inner(wish)->lt[0] >= NEEDS && !lacks;
    *ret_count = most < OFFERED ? most : OFFERED;
    memset(results, 0xff, (size_t)*ret_count * sizeof(*results));
    for (int i = 0; i < *ret_count; i++) {
        results[i].algo[0] = CHOSEN + (uint64_t)i;
        results[i].workspace = NEEDS;
        results[i].state = !offers || i == BROKEN ? LT_NOT_SUPPORTED : LT_OK;
    }
    *ret_count = offers ? *ret_count : 0;
    return fake_leave(LT_OK);
}

/* From the first element of a matrix to behind the last one. */
static size_t span(const uint64_t *layout)
{
    return ((layout[2] - 1) * layout[3] + layout[1]) * width_of(layout[0]);
}

static const char *where_not(const struct fake_product *p, const uint64_t *w, const uint64_t *x,
                             const uint64_t *c)
{
    const uintptr_t all = (uintptr_t)p->w | (uintptr_t)p->x | (uintptr_t)p->c;

    if (all % LT_ALIGN)
        return "a matrix begins at no multiple of 256 bytes, and nothing said so";
    if ((uintptr_t)p->space % SPACE_ALIGN)
        return "the workspace begins at no multiple of 256 bytes";
    if (!fake_on_card(p->w, span(w)) || !fake_on_card(p->x, span(x)) ||
        !fake_on_card(p->c, span(c)) || !fake_on_card(p->space, p->space_bytes))
        return "some of it lies where the card has no memory";
    const uint64_t groups = p->w_mode == LT_SCALE_BLOCKS ? p->k / 128 : 1;
    const uint64_t blocks = p->w_mode == LT_SCALE_BLOCKS ? (p->n + 127) / 128 : p->n;
    if (p->w_mode && (!fake_on_card(p->w_scale, groups * blocks * sizeof(float)) ||
                      !fake_on_card(p->x_scale, groups * p->rows * sizeof(float))))
        return "some scales lie where the card has no memory";
    return NULL;
}

API cublasLtMatmul(lt_handle h, lt_handle desc, const void *alpha, const void *w_at, lt_handle w,
                   const void *x_at, lt_handle x, const void *beta, const void *c_at, lt_handle c,
                   void *d_at, lt_handle d, const void *algo, void *space, size_t space_bytes,
                   struct cu_opaque *stream)
{
    ENTER_CARD("cublasLtMatmul");
    uint64_t chosen;
    float factor;
    memcpy(&chosen, algo, sizeof(chosen));
    memcpy(&factor, beta, sizeof(factor));
    const char *why = why_not(desc, w, x, c);
    if (!why && (!is(h, LT_CONTEXT) || inner(h)->card != fake_current() || !fake_stream_is(stream)))
        why = "handle, stream and context are not of one card";
    if (!why && (c != d || c_at != d_at || factor != 0.0f))
        why = "what is added is not offered";
    const bool known = chosen - CHOSEN < OFFERED && chosen - CHOSEN != BROKEN;
    if (!why && (!known || space_bytes < NEEDS))
        why = "the algorithm is none, or has too little workspace";
    if (why)
        return fake_leave(fake_broken(LT_INVALID_VALUE, "cublasLtMatmul: %s", why));
    const uint64_t *a = inner(w)->lt, *b = inner(x)->lt, *out = inner(d)->lt;
    struct fake_product p = {.w = w_at,
                             .x = x_at,
                             .c = d_at,
                             .space = space,
                             .space_bytes = NEEDS,
                             .n = out[1],
                             .rows = out[2],
                             .k = a[1],
                             .w_ld = (int64_t)a[3],
                             .x_ld = (int64_t)b[3],
                             .c_ld = (int64_t)out[3],
                             .type = (int)a[0],
                             .c_type = (int)out[0],
                             .w_mode = (int)(inner(desc)->lt[1] & 0xff),
                             .w_scale = (const float *)(uintptr_t)inner(desc)->lt[2],
                             .x_scale = (const float *)(uintptr_t)inner(desc)->lt[3]};
    memcpy(&p.alpha, alpha, sizeof(p.alpha));
    g_algorithm = (unsigned)(chosen - CHOSEN);
    why = where_not(&p, a, b, out);
    if (why)
        return fake_leave(fake_broken(LT_INVALID_VALUE, "cublasLtMatmul: %s", why));
    fake_push(stream, OP_PRODUCT)->product = p;
    return fake_leave(LT_OK);
}

static enum ek_dtype dtype_of(int type)
{
    return type == LT_R_32F ? EK_F32 : type == LT_R_16F ? EK_F16 : EK_BF16;
}

static float *columns(const void *at, int type, uint64_t k, uint64_t count, int64_t ld)
{
    float *all = malloc(k * count * sizeof(float));

    for (uint64_t i = 0; i < count; i++)
        for (uint64_t e = 0; e < k; e++)
            all[i * k + e] = type == LT_R_E4M3
                                 ? cpu_from_f8(((const uint8_t *)at)[i * (uint64_t)ld + e])
                                 : cpu_load(dtype_of(type), at, i * (uint64_t)ld + e);
    return all;
}

/* What a product of element e of column i of W and of this row is multiplied with. */
static float scales(const struct fake_product *p, uint64_t i, uint64_t row, uint64_t e)
{
    const uint64_t groups = p->k / 128;

    if (p->w_mode == LT_SCALE_ROWS)
        return p->w_scale[i] * p->x_scale[row];
    if (p->w_mode == LT_SCALE_BLOCKS)
        return p->w_scale[i / 128 * groups + e / 128] * p->x_scale[e / 128 * p->rows + row];
    return 1.0f;
}

void fake_multiply(const struct fake_product *p)
{
    float *w = columns(p->w, p->type, p->k, p->n, p->w_ld);
    float *x = columns(p->x, p->type, p->k, p->rows, p->x_ld);

    memset(p->space, 0xff, p->space_bytes);
    for (uint64_t row = 0; row < p->rows; row++)
        for (uint64_t i = 0; i < p->n; i++) {
            float sum = 0.0f;
            for (uint64_t e = 0; e < p->k; e++)
                sum += w[i * p->k + e] * x[row * p->k + e] * scales(p, i, row, e);
            cpu_store(dtype_of(p->c_type), p->c, row * (uint64_t)p->c_ld + i, p->alpha * sum);
        }
    free(w);
    free(x);
}
