/*
 * Products that use the rounded inputs of the product before have the bits of those that round
 * their own, whatever there was room for: in all tiers, for bf16 and for whole numbers. And a row
 * by itself, which may take panels in another order, has the bits that it has among many.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/device.h"
#include "kernels/cpu/product.h"
#include "kernels/num.h"
#include "tests/unit/kernels/noise.h"

enum { PANELS = 5, WIDTH = PANELS * CPU_PANEL };

/* A device with one weight, rows for it, and what they come to. */
struct product_case {
    struct ek_device d;
    struct ek_graph graph;
    struct cpu_weight w;
    float *x, *once, *twice;
    char *scratch;
};

static void *taken(size_t bytes)
{
    void *at = aligned_alloc(64, (bytes + 63) / 64 * 64);
    assert_non_null(at);
    memset(at, 0xff, (bytes + 63) / 64 * 64);
    return at;
}

static void open_case(struct product_case *c, const struct cpu_ops *ops, enum ek_dtype t,
                      uint32_t rows, uint32_t cols)
{
    const size_t numbers = (size_t)CPU_PANEL * cols * ek_dtype_bits(t) / 8;

    c->w = (struct cpu_weight){.ops = ops,
                               .layout = CPU_PANELS,
                               .dtype = t,
                               .rows = WIDTH,
                               .cols = cols,
                               .panels = PANELS,
                               .group = cols,
                               .groups = 1,
                               .scale_at = numbers,
                               .panel_bytes = numbers + CPU_PANEL * sizeof(float)};
    c->graph.dtype = EK_BF16;
    c->d.ops = ops;
    c->d.graph = &c->graph;
    c->d.weight_memory.at = taken(PANELS * c->w.panel_bytes + 2048);
    for (uint32_t p = 0; p < PANELS; p++) {
        char *at = c->d.weight_memory.at + p * c->w.panel_bytes;
        for (uint32_t i = 0; i < numbers; i++)
            at[i] = (char)(t == EK_BF16 && i % 2 ? 0x3d : i * 7 + p);
        for (uint32_t i = 0; i < CPU_PANEL; i++)
            cpu_store(EK_F32, at + c->w.scale_at, i, noise(p * CPU_PANEL + i));
    }
    c->x = taken((size_t)rows * cols * sizeof(*c->x));
    for (uint32_t i = 0; i < rows * cols; i++)
        c->x[i] = noise(i);
    c->once = taken((size_t)rows * WIDTH * sizeof(*c->once));
    c->twice = taken((size_t)rows * WIDTH * sizeof(*c->twice));
    c->scratch = taken(CPU_PRODUCT_BYTES);
}

static void close_case(struct product_case *c)
{
    free(c->d.weight_memory.at);
    free(c->x);
    free(c->once);
    free(c->twice);
    free(c->scratch);
}

static void multiply(const struct product_case *c, uint32_t rows, uint32_t panel, uint32_t end,
                     const struct cpu_weight *before, float *to)
{
    const struct cpu_product p = {.w = &c->w,
                                  .x = c->x,
                                  .x_stride = c->w.cols,
                                  .c = to + (size_t)panel * CPU_PANEL,
                                  .c_stride = WIDTH,
                                  .rows = rows,
                                  .panel = panel,
                                  .panels = end - panel,
                                  .scratch = c->scratch,
                                  .before = before};
    cpu_multiply(&c->d, &p);
}

static void one_case(const struct cpu_ops *ops, enum ek_dtype t, uint32_t rows, uint32_t cols)
{
    struct product_case c = {0};

    open_case(&c, ops, t, rows, cols);
    multiply(&c, rows, 0, PANELS, NULL, c.once);
    memset(c.scratch, 0xff, CPU_PRODUCT_BYTES);
    multiply(&c, rows, 0, 2, NULL, c.twice);
    multiply(&c, rows, 2, PANELS, &c.w, c.twice);
    assert_memory_equal(c.twice, c.once, (size_t)rows * WIDTH * sizeof(float));
    multiply(&c, 1, 0, PANELS, NULL, c.twice);
    assert_memory_equal(c.twice, c.once, WIDTH * sizeof(float));
    close_case(&c);
}

static void test_again(void **state)
{
    (void)state;
    static const uint32_t shapes[][2] = {{1, 96},     {20, 1024},  {20, 1056}, {17, 2592},
                                         {128, 4096}, {128, 5152}, {3, 9000},  {9, 2080}};
    const struct cpu_ops *tiers[CPU_TIERS];

    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++)
        for (size_t s = 0; s < sizeof(shapes) / sizeof(shapes[0]); s++) {
            one_case(tiers[i], EK_BF16, shapes[s][0], shapes[s][1]);
            one_case(tiers[i], EK_I8, shapes[s][0], shapes[s][1]);
            one_case(tiers[i], EK_I4, shapes[s][0], shapes[s][1]);
        }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_again)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
