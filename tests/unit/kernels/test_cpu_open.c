/* The CPU backend before it computes: what opening and loading refuse, the cores that it leaves to
 * others, each allocation that fails,
 * and how far rows are apart. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "kernels/cpu/device.h"
#include "kernels/cpu/pool.h"
#include "kernels/cpu/shape.h"
#include "kernels/registry.h"
#include "tests/share.h"
#include "tests/unit/alloc.h"
#include "tests/unit/kernels/tiny.h"

static const struct tiny_params g_model = {.dtype = EK_F32,
                                           .layers = 2,
                                           .hidden = 24,
                                           .q_heads = 3,
                                           .kv_heads = 3,
                                           .head_dim = 8,
                                           .rotary = 8,
                                           .ffn = 20,
                                           .vocab = 20,
                                           .act = EK_ACT_SILU};

static void test_refusals(void **state)
{
    (void)state;
    struct ek_fault fault = {.msg = ""};
    const struct ek_backend *b = ek_backend_find("cpu", &fault);
    const struct ek_open_params bad = {.isa = "mmx"}, second = {.device = 1}, one = {.threads = 1};
    struct ek_device *d = NULL;
    struct ek_device_info info;
    struct ek_buf text = {0};

    assert_null(ek_backend_find("tpu", &fault));
    assert_non_null(strstr(fault.msg, "tpu"));
    assert_non_null(ek_backend_find("auto", NULL));
    assert_int_equal(b->open(&bad, &d, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "mmx"));
    assert_int_equal(b->probe(&second, &info, &fault), -ENODEV);
    assert_int_equal(b->probe(&one, &info, &fault), 0);
    assert_true(info.memory_bytes > 0 && info.free_bytes <= info.memory_bytes);
    assert_int_equal(ek_backend_list(&text), 0);
    assert_non_null(strstr(text.data, "cpu"));
    ek_buf_done(&text);

    struct tiny *t = tiny_new(&g_model);
    struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {8, 2, 8, 0, 0, 0}, .logit_rows = 2, .block_size = 16};
    assert_int_equal(b->open(&one, &d, NULL), 0);
    t->file.size_bytes -= 4; /* a truncated file */
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "end of its file"));
    t->file.size_bytes += 4;
    t->op[2].dst = 8;
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -EBADMSG);
    t->op[2].dst = 2;
    q.block_size = 24;
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -EBADMSG);
    q.block_size = 16;
    t->weight[1].dtype = EK_I8;
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -ENOTSUP);
    t->weight[1].dtype = EK_F32;
    t->weight[1].source = EK_I4; /* half a byte, and nothing that says how it is packed */
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), -ENOTSUP);
    t->weight[1].source = EK_F32;
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, &fault), 0);
    b->close(d);
    tiny_free(t);
}

struct cores {
    struct cpu_pool *pool;
    cpu_set_t used;
};

static void look(void *ctx, uint32_t member)
{
    struct cores *c = ctx;

    if (member > 0)
        return;
    cpu_pool_pin(c->pool);
    assert_int_equal(sched_getaffinity(0, sizeof(c->used), &c->used), 0);
}

/* Reserved cores are not computed on, and at least one is left. */
static void test_reserved_cores(void **state)
{
    (void)state;
    const struct ek_backend *b = ek_backend_find("cpu", NULL);
    uint32_t whole;
    const uint32_t cores = cpu_usable_cores(&whole);
    struct ek_open_params open = {.reserve = cores};
    struct ek_fault fault = {.msg = ""};
    struct ek_device_info info;
    struct ek_device *d = NULL;

    assert_int_equal(b->probe(&open, &info, &fault), -EBADMSG);
    assert_string_equal(fault.field, "cpu-reserve");
    assert_int_equal(b->open(&open, &d, &fault), -EBADMSG);
    if (cores < 2)
        return;
    /* With --threads hardware threads count. */
    const uint32_t cpus = cpu_usable_cpus(UINT32_MAX, &whole);
    open = (struct ek_open_params){.reserve = 1, .threads = cpus};
    assert_int_equal(b->probe(&open, &info, &fault), -EBADMSG);
    open.threads = cpus - 1;
    assert_int_equal(b->probe(&open, &info, &fault), 0);
    open.threads = 0;
    assert_int_equal(b->probe(&open, &info, &fault), 0);
    assert_int_equal(info.threads, cores - 1 < CPU_MOST_THREADS ? cores - 1 : CPU_MOST_THREADS);
    assert_int_equal(b->open(&open, &d, &fault), 0);
    struct cores c = {.pool = d->pool};
    cpu_set_t before;
    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    cpu_pool_run(d->pool, look, &c); /* the caller is member 0 */
    assert_true(CPU_COUNT(&c.used) < CPU_COUNT(&before));
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    b->close(d);
}

static void test_allocations(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_model);

    for (long n = (long)share_next(1);; n = (long)share_next((uint64_t)n + 1)) {
        const struct ek_open_params open = {.threads = 2};
        struct ek_plan_request q = {
            .graph = &t->g, .ceiling = {8, 2, 8, 0, 0, 0}, .logit_rows = 2, .block_size = 16};
        const struct ek_backend *b = ek_backend_find("cpu", NULL);
        struct ek_device *d = NULL;
        alloc_fail_at(n);
        int r = b->open(&open, &d, NULL);
        if (r == 0)
            r = b->load(d, &q, &t->files, NULL, NULL, NULL);
        bool failed = alloc_failed();
        alloc_fail_at(0);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        if (d && failed) /* a load that failed can be tried again */
            assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, NULL), 0);
        b->close(d);
        if (!failed)
            break;
    }
    tiny_free(t);
}

/* Whole panels, and never so far apart that all rows lie in the same places of a first cache. */
static void test_row_strides(void **state)
{
    (void)state;
    for (uint32_t width = 1; width <= 20000; width++) {
        const uint32_t stride = cpu_row_stride(width);
        assert_in_range(stride, width, width + 2 * CPU_PANEL);
        assert_int_equal(stride % CPU_PANEL, 0);
        assert_int_not_equal(stride * sizeof(float) % 4096, 0);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_reserved_cores),
        cmocka_unit_test(test_allocations),
        cmocka_unit_test(test_row_strides),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
