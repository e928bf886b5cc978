/*
 * Each kernel of a tier of the CPU backend by itself, beside what the machine can do at most,
 * measured in the same run. All threads run the same kernel, each on memory of its own. Attention
 * is here twice: its products, and all of it over a long context (attend.h).
 *
 * Matrix kernels and attention are held against their roofline: the longer of reading their weights
 * (or keys and values) from memory and doing their arithmetic. What treats a row at a time works in
 * the caches and is held against reading the first, exponentials against the instructions they take
 * as well. Limits and kernels take turns in windows of a
 * millisecond or two, and a share is the median of what a window reaches of the limit in the
 * windows just before and after it: on a shared machine clocks and neighbours change more often
 * than a cell is measured. Only the time that threads are on their cores counts, of the one that
 * took longest.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "common/clock.h"
#include "common/err.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/quads.h"
#include "kernels/cpu/shape.h"
#include "kernels/cpu/tier.h"
#include "server/bench/attend.h"
#include "server/bench/bench.h"
#include "server/bench/machine.h"
#include "server/bench/options.h"
#include "server/bench/progress.h"
#include "server/bench/rows.h"

#define STREAM_BYTES (64u << 20) /* of a thread: what is read from memory */
#define K            1024u
#define MOST_ROWS    64u
#define DIM          128u
#define KEYS         16u
#define WIDTH        4096u /* of a row */
#define GROUP        128u  /* inputs with one scale, of whole numbers */
#define GLU_OPS      22u   /* as SOFTMAX_OPS: an exponential is 13 of them, an inverse 4 */
#define TIMES        128u  /* that a kernel of rows is repeated in a window */
#define WINDOWS      16u
#define WINDOW_BYTES (STREAM_BYTES / WINDOWS)
#define WINDOW_CACHE 2000u   /* times that the first cache is read */
#define WINDOW_PEAK  200000u /* rounds of arithmetic; tiles take eight times as long */

enum bench_kind {
    GEMM,
    SCORES,
    MIX,
    ATTEND_8K, /* tokens of context */
    ATTEND_32K,
    SOFTMAX,
    NORM,
    GLU,
    ADD,
    ROPE,
    KINDS
};

struct test {
    enum bench_kind kind;
    enum ek_dtype dtype;
    uint32_t rows;
};

static const struct test tests[] = {
    {GEMM, EK_BF16, 1},    {GEMM, EK_BF16, 4},      {GEMM, EK_BF16, 8},
    {GEMM, EK_BF16, 16},   {GEMM, EK_BF16, 64},     {GEMM, EK_I8, 1},
    {GEMM, EK_I8, 4},      {GEMM, EK_I8, 16},       {GEMM, EK_I8, 64},
    {GEMM, EK_I4, 1},      {GEMM, EK_I4, 4},        {GEMM, EK_I4, 16},
    {GEMM, EK_I4, 64},     {GEMM, EK_F16, 1},       {GEMM, EK_F16, 64},
    {GEMM, EK_F32, 1},     {GEMM, EK_F32, 16},      {GEMM, EK_F32, 64},
    {SCORES, EK_BF16, 1},  {SCORES, EK_BF16, 32},   {MIX, EK_BF16, 1},
    {MIX, EK_BF16, 32},    {ATTEND_8K, EK_BF16, 1}, {ATTEND_32K, EK_BF16, 1},
    {ATTEND_8K, EK_I8, 1}, {ATTEND_32K, EK_I8, 1},  {ATTEND_8K, EK_BF16, 8},
    {ATTEND_8K, EK_I8, 8}, {SOFTMAX, EK_F32, 1},    {NORM, EK_F32, 1},
    {GLU, EK_F32, 1},      {ADD, EK_F32, 1},        {ROPE, EK_F32, 1},
};
enum { TESTS = sizeof(tests) / sizeof(tests[0]) };

enum limit { READ, CACHE, LAST, PEAK, PAIRS, FOURS, SCALED, SCALED_HALVES, LIMITS };

static const struct {
    enum machine_limit what;
    const char *cell, *unit, *name;
} limits[LIMITS] = {
    [READ] = {MACHINE_READ, "machine.read", "GB/s", "read bandwidth"},
    [CACHE] = {MACHINE_CACHE, "machine.cache", "GB/s", "cache bandwidth"},
    [LAST] = {MACHINE_LAST, "machine.last_cache", "GB/s", "last cache"},
    [PEAK] = {MACHINE_PEAK, "machine.peak", "GFLOP/s", "arithmetic peak"},
    [PAIRS] = {MACHINE_PAIRS, "machine.peak_bf16", "GFLOP/s", "arithmetic peak"},
    [FOURS] = {MACHINE_FOURS, "machine.peak_int8", "GOP/s", "arithmetic peak"},
    [SCALED] = {MACHINE_SCALED, "machine.peak_int8_scaled", "GOP/s", "peak with scales"},
    [SCALED_HALVES] = {MACHINE_SCALED_HALVES, "machine.peak_int4_scaled", "GOP/s",
                       "peak with scales"},
};

/* Memory of one thread. */
struct lane {
    char *stream;
    float *x, *y, *z;
    uint32_t *work;
    struct bench_attend *attend[TESTS]; /* of tests of that kind */
    uint64_t took_us;                   /* on its core, in the last window */
    double done;                        /* bytes or operations of a limit, calls of a kernel */
};

/* Of one turn: medians of its windows, against what may bound it. */
enum bound { BY_READ, BY_PEAK, BOUNDS };
struct kernel_cell {
    double calls; /* of the kernel, all threads, a second */
    double limit[BOUNDS], share[BOUNDS];
};

struct kernels {
    const struct cpu_ops *ops;
    struct cpu_pool *pool;
    uint32_t threads;
    const struct test *test; /* NULL: the limit `pass` */
    enum limit pass;
    uint32_t window;
    struct lane *lanes;
    uint32_t repeats;
    bool wide[TESTS];                        /* as the backend would: struct cpu_gemm */
    size_t tests;                            /* none when only limits are wanted */
    double limit[LIMITS][ROWS_MOST_REPEATS]; /* bytes or operations / 10^9 a second */
    struct kernel_cell cells[TESTS][ROWS_MOST_REPEATS];
};

static bool in_quads(const struct test *t)
{
    return t->kind == GEMM && (t->dtype == EK_I8 || t->dtype == EK_I4);
}

static bool bench_kernels_attends(const struct test *t)
{
    return t->kind == ATTEND_8K || t->kind == ATTEND_32K;
}

static struct attend_shape shape_of(const struct test *t)
{
    return (struct attend_shape){t->dtype, t->rows, t->kind == ATTEND_8K ? 8192 : 32768};
}

static void run_gemm(const struct kernels *k, const struct test *t, struct lane *l)
{
    size_t panel_bytes = (size_t)CPU_PANEL * K * ek_dtype_bits(t->dtype) / 8;
    struct cpu_gemm g = {.dtype = t->dtype,
                         .rows = t->rows,
                         .panels = 32,
                         .k = K,
                         .x = l->x,
                         .x_stride = cpu_row_stride(K),
                         .panel_bytes = panel_bytes,
                         .c = l->y,
                         .c_stride = cpu_row_stride(32 * CPU_PANEL),
                         .wide = k->wide[t - tests],
                         .work = l->work};

    for (size_t at = 0; at + 32 * panel_bytes <= WINDOW_BYTES; at += 32 * panel_bytes) {
        g.w = l->stream + k->window * WINDOW_BYTES + at;
        k->ops->gemm(&g);
        l->done++;
    }
}

/* Numbers of 8 or 4 bits as they are; their scales lie behind all panels' numbers. */
static void run_quads(const struct kernels *k, const struct test *t, struct lane *l)
{
    const size_t numbers = (size_t)CPU_PANEL * K * ek_dtype_bits(t->dtype) / 8;
    const size_t panel_bytes = numbers + (size_t)CPU_PANEL * K / GROUP * sizeof(float);
    struct cpu_quads q = {.dtype = t->dtype,
                          .rows = t->rows,
                          .panels = 32,
                          .k = K,
                          .group = GROUP,
                          .x = l->x,
                          .x_stride = cpu_row_stride(K),
                          .panel_bytes = panel_bytes,
                          .scale_at = numbers,
                          .c = l->y,
                          .c_stride = cpu_row_stride(32 * CPU_PANEL),
                          .work = (char *)l->work};

    for (size_t at = 0; at + 32 * panel_bytes <= WINDOW_BYTES; at += 32 * panel_bytes) {
        q.w = l->stream + k->window * WINDOW_BYTES + at;
        k->ops->quads(&q);
        l->done++;
    }
}

static void run_blocks(const struct kernels *k, const struct test *t, struct lane *l)
{
    const struct cpu_ops *ops = k->ops;
    const char *stream = l->stream + k->window * WINDOW_BYTES;
    const size_t bytes = (size_t)DIM * KEYS * ek_dtype_bits(t->dtype) / 8;
    const bool mix = t->kind == MIX;
    struct cpu_block b = {.dtype = t->dtype,
                          .pairs = ops->pairs && t->dtype == EK_BF16,
                          .rows = t->rows,
                          .dim = DIM,
                          .keys = KEYS,
                          .blocks = CPU_BLOCKS,
                          .in = l->x,
                          .in_stride = mix ? (size_t)KEYS * CPU_BLOCKS : DIM,
                          .out = l->y,
                          .out_stride = mix ? DIM : (size_t)KEYS * CPU_BLOCKS};

    for (size_t at = 0; at + 2 * CPU_BLOCKS * bytes <= WINDOW_BYTES; at += CPU_BLOCKS * bytes) {
        for (uint32_t i = 0; i < CPU_BLOCKS; i++) {
            b.kv[i] = stream + at + i * bytes;
            b.next[i] = stream + at + (CPU_BLOCKS + i) * bytes;
        }
        if (mix)
            ops->mix(&b);
        else
            ops->scores(&b);
        l->done++;
    }
}

static void run_rows(const struct cpu_ops *ops, enum bench_kind kind, struct lane *l)
{
    for (uint32_t i = 0; i < TIMES; i++, l->done++) {
        float most = -INFINITY, sum = 0.0f;
        if (kind == SOFTMAX) {
            for (uint32_t at = 0; at < WIDTH; at += CPU_TILE)
                (void)ops->softmax(l->x + at, CPU_TILE, 0.125f, 0.0f, &most, &sum);
        } else if (kind == NORM)
            ops->norm(l->y, l->x, l->z, WIDTH, 1e-6f, 0.0f);
        else if (kind == GLU)
            ops->glu(l->y, l->x, l->z, WIDTH, EK_ACT_SILU);
        else if (kind == ADD)
            ops->add(l->y, l->x, WIDTH, 0.5f);
        else
            for (uint32_t at = 0; at < WIDTH; at += DIM)
                ops->rope(l->x + at, l->z, l->z + DIM / 2, DIM / 2);
    }
}

static double run_limit(const struct kernels *k, const struct lane *l)
{
    /* half a stream away from where the kernel is */
    const size_t at = (k->window + WINDOWS / 2) % WINDOWS * WINDOW_BYTES;
    struct machine_pass p = {.what = limits[k->pass].what,
                             .isa = k->ops->name,
                             .rounds = WINDOW_PEAK / (strcmp(k->ops->name, "amx") == 0 ? 8 : 1),
                             .data = l->stream + at,
                             .bytes = WINDOW_BYTES,
                             .passes = 1};

    if (k->pass == CACHE) {
        p.data = (const char *)l->x;
        p.bytes = MACHINE_CACHE_BYTES;
        p.passes = WINDOW_CACHE;
    }
    return machine_pass(&p);
}

static void run_member(void *ctx, uint32_t member)
{
    const struct kernels *k = ctx;
    const struct test *t = k->test;
    struct lane *l = &k->lanes[member];
    const uint64_t begin_us = machine_core_us();

    l->done = 0.0;
    if (!t)
        l->done = run_limit(k, l);
    else if (in_quads(t))
        run_quads(k, t, l);
    else if (t->kind == GEMM)
        run_gemm(k, t, l);
    else if (t->kind == SCORES || t->kind == MIX)
        run_blocks(k, t, l);
    else if (bench_kernels_attends(t)) {
        bench_attend_run(l->attend[t - tests], k->window);
        l->done++;
    } else
        run_rows(k->ops, t->kind, l);
    l->took_us = machine_core_us() - begin_us;
}

/* Bytes and operations of a call; *ret_cache: the bytes come from the first cache. */
static void work_of(const struct test *t, double *ret_bytes, double *ret_flops, bool *ret_cache)
{
    const double elem = ek_dtype_bits(t->dtype) / 8.0, row = WIDTH * sizeof(float);
    const double weights = 32.0 * CPU_PANEL * K, cells = (double)DIM * KEYS * CPU_BLOCKS;

    *ret_cache = t->kind >= SOFTMAX;
    *ret_bytes = *ret_flops = 0.0;
    switch (t->kind) {
    case GEMM:
        *ret_bytes = weights * (elem + (in_quads(t) ? sizeof(float) / (double)GROUP : 0.0));
        *ret_flops = 2.0 * t->rows * weights;
        break;
    case SCORES:
    case MIX:
        *ret_bytes = cells * elem;
        *ret_flops = 2.0 * t->rows * cells;
        break;
    case ATTEND_8K:
    case ATTEND_32K: {
        const struct attend_shape shape = shape_of(t);
        bench_attend_work(&shape, ret_bytes, ret_flops);
        break;
    }
    case SOFTMAX:
        *ret_bytes = 2.0 * row;
        *ret_flops = 2.0 * SOFTMAX_OPS * WIDTH;
        break;
    case GLU:
        *ret_bytes = 3.0 * row;
        *ret_flops = 2.0 * GLU_OPS * WIDTH;
        break;
    case ROPE: *ret_bytes = 2.0 * row; break;
    case NORM:
    case ADD: *ret_bytes = 3.0 * row; break;
    case KINDS: break;
    }
}

static void bench_kernels_name_of(const struct test *t, char *name, size_t size)
{
    static const char *const kinds[KINDS] = {[GEMM] = "gemm",
                                             [SCORES] = "scores",
                                             [MIX] = "mix",
                                             [ATTEND_8K] = "attend_8k",
                                             [ATTEND_32K] = "attend_32k",
                                             [SOFTMAX] = "softmax",
                                             [NORM] = "norm",
                                             [GLU] = "glu",
                                             [ADD] = "add",
                                             [ROPE] = "rope"};
    static const char *const types[] = {[EK_F32] = "f32",    [EK_F16] = "f16", [EK_BF16] = "bf16",
                                        [EK_F8_E4M3] = "f8", [EK_I8] = "int8", [EK_I4] = "int4"};

    if (t->kind >= SOFTMAX)
        (void)snprintf(name, size, "%s", kinds[t->kind]);
    else
        (void)snprintf(name, size, "%s.%s.%u", kinds[t->kind], types[t->dtype], t->rows);
}

static bool has_limit(const struct kernels *k, size_t l)
{
    const bool avx2 = strcmp(k->ops->name, "avx2") == 0;

    switch ((enum limit)l) {
    case LAST: return machine_last_cache() > 0;
    case PAIRS: return k->ops->pairs;
    case FOURS: return k->ops->quads && !avx2;
    case SCALED_HALVES: return avx2;
    case SCALED: return k->ops->quads && strcmp(k->ops->name, "amx") != 0;
    case READ:
    case CACHE:
    case PEAK:
    case LIMITS: break;
    }
    return true;
}

/* What may bound a test. */
static enum limit kernels_limit_of(const struct kernels *k, const struct test *t, enum bound b)
{
    if (b == BY_READ)
        return t->kind >= SOFTMAX ? CACHE : READ;
    if (t->dtype == EK_I4 && has_limit(k, SCALED_HALVES))
        return SCALED_HALVES;
    if (in_quads(t))
        return has_limit(k, SCALED) ? SCALED : FOURS;
    if (bench_kernels_attends(t) && t->dtype == EK_I8 && k->ops->cache)
        return FOURS;
    return t->dtype == EK_BF16 && k->ops->pairs ? PAIRS : PEAK;
}

/* Its rate where it is bound, and the median of its share of that limit, turn by turn. */
static int report_test(const struct kernels *k, size_t index, json_t *rows)
{
    const struct test *t = &tests[index];
    double of_call[BOUNDS], limit[BOUNDS], value[ROWS_MOST_REPEATS], share[ROWS_MOST_REPEATS];
    bool cache;
    char name[48];

    work_of(t, &of_call[BY_READ], &of_call[BY_PEAK], &cache);
    bench_kernels_name_of(t, name, sizeof(name));
    for (int b = 0; b < BOUNDS; b++) {
        for (uint32_t i = 0; i < k->repeats; i++)
            value[i] = k->cells[index][i].limit[b];
        limit[b] = spread_of(value, k->repeats).median;
    }
    const bool peak = of_call[BY_PEAK] / limit[BY_PEAK] > of_call[BY_READ] / limit[BY_READ];
    const enum bound bound = peak ? BY_PEAK : BY_READ;
    const enum limit by = kernels_limit_of(k, t, bound);
    for (uint32_t i = 0; i < k->repeats; i++) {
        value[i] = k->cells[index][i].calls * of_call[bound] / 1e9;
        share[i] = k->cells[index][i].share[bound];
    }
    struct spread s = spread_of(value, k->repeats);
    double of = spread_of(share, k->repeats).median;
    printf("%-18s %10.1f %-7s%8.1f - %-8.1f %8.1f %% of %s\n", name, s.median, limits[by].unit,
           s.least, s.most, 100.0 * of, limits[by].name);
    return rows_add(rows, &(struct row){name, limits[by].unit, s, limits[by].name, s.median / of});
}

static int report_limit(const struct kernels *k, enum limit l, json_t *rows)
{
    struct spread s = spread_of(k->limit[l], k->repeats);

    printf("%-18s %10.1f %-7s%8.1f - %-8.1f\n", limits[l].cell, s.median, limits[l].unit, s.least,
           s.most);
    return rows_add(rows,
                    &(struct row){.cell = limits[l].cell, .unit = limits[l].unit, .value = s});
}

static bool has_test(const struct kernels *k, const struct test *t)
{
    return !in_quads(t) || k->ops->quads;
}

/* Work a second of all threads in one window: of a kernel, or of a limit. */
static double measure_window(struct kernels *k, const struct test *t, enum limit pass)
{
    uint64_t longest = 1;
    double work = 0.0;

    k->test = t;
    k->pass = pass;
    cpu_pool_run(k->pool, run_member, k);
    for (uint32_t i = 0; i < k->threads; i++) {
        longest = k->lanes[i].took_us > longest ? k->lanes[i].took_us : longest;
        work += k->lanes[i].done;
    }
    return work * (double)EK_US_PER_S / (double)longest;
}

/* Limits, kernel, limits, kernel and so on. */
static void measure_test(struct kernels *k, const struct test *t, struct kernel_cell *ret_cell)
{
    double limit[BOUNDS][WINDOWS + 1], calls[WINDOWS], share[WINDOWS], of_call[BOUNDS];
    bool cache;

    work_of(t, &of_call[BY_READ], &of_call[BY_PEAK], &cache);
    for (uint32_t w = 0; w <= WINDOWS; w++) {
        k->window = w % WINDOWS;
        for (enum bound b = BY_READ; b < BOUNDS; b++)
            limit[b][w] = measure_window(k, NULL, kernels_limit_of(k, t, b));
        if (w < WINDOWS)
            calls[w] = measure_window(k, t, READ);
    }
    ret_cell->calls = spread_of(calls, WINDOWS).median;
    for (int b = 0; b < BOUNDS; b++) {
        for (uint32_t w = 0; w < WINDOWS; w++)
            share[w] = 2.0 * calls[w] * of_call[b] / (limit[b][w] + limit[b][w + 1]);
        ret_cell->share[b] = spread_of(share, WINDOWS).median;
        ret_cell->limit[b] = spread_of(limit[b], WINDOWS + 1).median;
    }
}

/* One turn: each limit by itself, then each kernel. */
static int measure_turn(struct kernels *k, uint32_t turn, struct progress *p)
{
    int r = 0;

    for (size_t l = 0; l < LIMITS && r == 0; l++)
        if (has_limit(k, l))
            r = machine_measure(limits[l].what, k->ops->name, k->threads, &k->limit[l][turn]);
    for (size_t t = 0; t < k->tests && r == 0; t++) {
        char name[48];
        if (!has_test(k, &tests[t]))
            continue;
        bench_kernels_name_of(&tests[t], name, sizeof(name));
        progress_show(p, name, (double)(turn * TESTS + t) / (k->repeats * (double)TESTS));
        if (turn == 0)
            (void)measure_window(k, &tests[t], READ); /* warm */
        measure_test(k, &tests[t], &k->cells[t][turn]);
    }
    return r;
}

static int measure_all(struct kernels *k, json_t *rows)
{
    struct progress p = {0};
    int r = 0;

    for (uint32_t i = 0; i < k->repeats && r == 0; i++)
        r = measure_turn(k, i, &p);
    progress_end(&p);
    for (size_t l = 0; l < LIMITS && r == 0; l++)
        if (has_limit(k, l))
            r = report_limit(k, (enum limit)l, rows);
    for (size_t t = 0; t < k->tests && r == 0; t++)
        if (has_test(k, &tests[t]))
            r = report_test(k, t, rows);
    return r;
}

static void touch(void *ctx, uint32_t member)
{
    struct kernels *k = ctx;
    struct lane *l = &k->lanes[member];

    memset(l->stream, 0x3c, STREAM_BYTES); /* a small number in every type */
    for (uint32_t i = 0; i < MOST_ROWS * WIDTH; i++)
        l->x[i] = l->y[i] = l->z[i] = 0.25f;
}

static int open_lanes(struct kernels *k)
{
    const size_t row_bytes = (size_t)MOST_ROWS * WIDTH * sizeof(float) + CPU_SLACK * sizeof(float);
    const size_t bytes = STREAM_BYTES + 4 * row_bytes;

    k->lanes = calloc(k->threads, sizeof(*k->lanes));
    if (!k->lanes)
        return -ENOMEM;
    for (uint32_t i = 0; i < k->threads; i++) {
        void *at = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
        if (at == MAP_FAILED)
            return -ENOMEM;
        (void)madvise(at, bytes, MADV_HUGEPAGE); /* only faster */
        struct lane *l = &k->lanes[i];
        l->stream = at;
        l->x = (float *)(void *)(l->stream + STREAM_BYTES);
        l->y = (float *)(void *)(l->stream + STREAM_BYTES + row_bytes);
        l->z = (float *)(void *)(l->stream + STREAM_BYTES + 2 * row_bytes);
        l->work = (uint32_t *)(void *)(l->stream + STREAM_BYTES + 3 * row_bytes);
        for (size_t t = 0; t < TESTS; t++) {
            const struct attend_shape shape = shape_of(&tests[t]);
            if (bench_kernels_attends(&tests[t]) &&
                bench_attend_new(k->ops, &shape, l->stream, STREAM_BYTES, &l->attend[t]) < 0)
                return -ENOMEM;
        }
    }
    cpu_pool_run(k->pool, touch, k); /* each thread its own: near its core */
    return 0;
}

static void close_lanes(struct kernels *k)
{
    const size_t row_bytes = (size_t)MOST_ROWS * WIDTH * sizeof(float) + CPU_SLACK * sizeof(float);

    for (uint32_t i = 0; k->lanes && i < k->threads; i++) {
        for (size_t t = 0; t < TESTS; t++)
            bench_attend_free(k->lanes[i].attend[t]);
        if (k->lanes[i].stream)
            (void)munmap(k->lanes[i].stream, STREAM_BYTES + 4 * row_bytes);
    }
    free(k->lanes);
}

int bench_kernels(const struct bench_options *o, struct ek_fault *fault)
{
    uint32_t whole;
    (void)cpu_usable_cores(&whole);
    const uint32_t threads = o->threads ? (uint32_t)o->threads : whole;
    struct kernels *k = calloc(1, sizeof(*k));
    json_t *rows = json_array();
    int r = -ENOMEM;

    if (!k || !rows)
        goto out;
    k->threads = threads;
    k->repeats = (uint32_t)o->repeat;
    k->tests = o->limits ? 0 : TESTS;
    k->ops = cpu_tier_find(o->isa, fault);
    for (size_t i = 0; k->ops && i < k->tests; i++) {
        double times;
        k->wide[i] = tests[i].kind == GEMM && cpu_widens(k->ops, tests[i].dtype, &times);
    }
    r = k->ops ? cpu_pool_new(threads, NULL, &k->pool) : -EBADMSG;
    if (r == 0 && k->tests > 0)
        r = open_lanes(k);
    if (r == 0) {
        printf("%s, %u threads, %u repeats\n\n", k->ops->name, threads, k->repeats);
        r = measure_all(k, rows);
    }
    if (r == 0 && o->report) {
        json_t *machine = rows_machine();
        (void)json_object_set_new(machine, "isa", json_string(k->ops->name));
        (void)json_object_set_new(machine, "threads", json_integer(threads));
        (void)json_object_set_new(machine, "last_cache_bytes",
                                  json_integer((json_int_t)machine_last_cache()));
        r = rows_write(o->report, "bench-kernels", o->commit, machine, rows, fault);
    }
out:
    if (k) {
        close_lanes(k);
        cpu_pool_free(k->pool);
    }
    free(k);
    json_decref(rows);
    return r;
}
