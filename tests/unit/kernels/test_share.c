/*
 * Protects: products that members take piece by piece. In whatever order they come, and however
 * slow some are, every element of the output is computed once.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/product.h"
#include "kernels/cpu/share.h"

#define MOST 24u

struct team {
    struct cpu_taken taken[MOST];
    struct cpu_share share[MOST];
    uint8_t *done; /* [rows][panels] */
    uint32_t threads, rows, panels;
};

static void begin(struct team *t)
{
    memset(t->taken, 0, sizeof(t->taken));
    for (uint32_t i = 0; i < t->threads; i++)
        t->share[i] = cpu_share_of(t->taken, i, t->threads, t->rows, t->panels);
    t->done = calloc(t->rows ? t->rows : 1, t->panels);
    assert_non_null(t->done);
}

static bool one(struct team *t, uint32_t member)
{
    struct cpu_share *s = &t->share[member];

    if (!cpu_share_next(s))
        return false;
    assert_true(s->rows > 0 && s->rows <= CPU_ROW_CHUNK && s->count > 0);
    assert_true(s->row + s->rows <= t->rows && s->panel + s->count <= t->panels);
    for (uint32_t r = s->row; r < s->row + s->rows; r++)
        for (uint32_t p = s->panel; p < s->panel + s->count; p++)
            t->done[r * t->panels + p]++;
    return true;
}

static void end(struct team *t)
{
    for (uint32_t i = 0; i < t->rows * t->panels; i++)
        assert_int_equal(t->done[i], 1);
    free(t->done);
}

/* Members come as chance has it; one comes never, or last. */
static void in_any_order(void **state)
{
    (void)state;
    srand(7);
    for (uint32_t i = 0; i < 2000; i++) {
        struct team t = {.threads = 1 + (uint32_t)rand() % MOST,
                         .rows = (uint32_t)rand() % 400,
                         .panels = 1 + (uint32_t)rand() % 100};
        uint32_t last = (uint32_t)rand() % t.threads, left = t.threads;
        bool over[MOST] = {false};
        begin(&t);
        while (left > 0) {
            uint32_t member = (uint32_t)rand() % t.threads;
            if (over[member] || (member == last && left > 1))
                continue;
            over[member] = !one(&t, member);
            left -= over[member];
        }
        end(&t);
    }
}

/* Where a member does not come, those before it do its part. */
static void others_help(void **state)
{
    (void)state;
    struct team t = {.threads = 2, .rows = 1, .panels = 128};
    uint32_t runs = 0;
    begin(&t);
    while (one(&t, 0))
        runs++;
    assert_int_equal(runs, 16); /* of each part as many as it has pieces */
    assert_false(one(&t, 1));
    end(&t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(in_any_order),
        cmocka_unit_test(others_help),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
