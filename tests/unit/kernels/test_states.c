/* Slots of recurrent state on the CPU: that copies, beginnings and other steps leave in them what
 * the step interface says, that they are planned as taken, and who refuses them. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/cpu/device.h"
#include "kernels/registry.h"
#include "kernels/shard.h"
#include "kernels/stage.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { FLOATS = 50, VOCAB = 64, SEQS = 16 };

static const struct tiny_params g_params = {.dtype = EK_F32,
                                            .layers = 2,
                                            .hidden = 32,
                                            .q_heads = 2,
                                            .kv_heads = 2,
                                            .head_dim = 16,
                                            .rotary = 16,
                                            .ffn = 32,
                                            .vocab = VOCAB};

static struct tiny *stateful(void)
{
    struct tiny *t = tiny_new(&g_params);

    t->g.state_floats = FLOATS;
    return t;
}

static void fill(struct tiny_device *x, uint32_t slot, float value)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        cpu_state(x->d, slot)[i] = value + (float)i;
}

static void holds(struct tiny_device *x, uint32_t slot, float value)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        assert_true(cpu_state(x->d, slot)[i] == value + (float)i);
}

static void is_zero(struct tiny_device *x, uint32_t slot)
{
    for (uint32_t i = 0; i < FLOATS; i++)
        assert_true(cpu_state(x->d, slot)[i] == 0.0f);
}

static void copy(struct tiny_device *x, uint32_t from, uint32_t to)
{
    ek_step_copies(x->step)[x->step->copies++] =
        (struct ek_block_copy){from, to, EK_TIER_STATE, EK_TIER_STATE, {0}};
}

/* Copies come first and one after the other; then what begins at position 0 is cleared; the rest
 * stays. */
static void test_order(void **state)
{
    (void)state;
    struct tiny *t = stateful();
    const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    const uint32_t table[2][1] = {{1}, {2}};
    struct tiny_device x;

    assert_int_equal(tiny_open(t, NULL, 2, 8, 8, &x), 0);
    for (uint32_t i = 0; i < TINY_STATES; i++) {
        is_zero(&x, i);
        assert_int_equal((uintptr_t)cpu_state(x.d, i) % 64, 0);
        fill(&x, i, 100.0f * (float)i);
    }
    copy(&x, 0, 16); /* what slot 0 had, before it is cleared */
    copy(&x, 16, 17);
    copy(&x, 5, 1);
    tiny_add(&x, 0, tokens, 0, 3, table[0], true);
    tiny_add(&x, 1, tokens, 3, 2, table[1], true);
    assert_int_equal(tiny_run(&x, NULL), 0);
    is_zero(&x, 0);
    holds(&x, 1, 500.0f);
    holds(&x, 16, 0.0f);
    holds(&x, 17, 0.0f);
    for (uint32_t i = 2; i < SEQS; i++)
        holds(&x, i, 100.0f * (float)i);
    copy(&x, TINY_STATES, 0);
    assert_int_equal(tiny_run(&x, NULL), -EBADMSG);
    tiny_close(&x);
    tiny_free(t);
}

/* Two sequences upon one state: nothing is done, and no member computes it. */
static void test_twice(void **state)
{
    (void)state;
    struct tiny *t = stateful();
    const int32_t tokens[2] = {1, 2};
    const uint32_t table[2][1] = {{1}, {2}};
    struct tiny_device x;

    assert_int_equal(tiny_open(t, NULL, 2, 8, 8, &x), 0);
    fill(&x, 3, 300.0f);
    for (uint32_t other = 4; other > 2; other--) {
        tiny_add(&x, 3, tokens, 1, 1, table[0], true);
        tiny_add(&x, other, tokens, 1, 1, table[1], true);
        copy(&x, 3, 16);
        copy(&x, 5, 3);
        assert_int_equal(tiny_run(&x, NULL), other == 3 ? -EBADMSG : 0);
        holds(&x, 16, 300.0f);
        if (other == 4)
            fill(&x, 3, 0.0f);
    }
    holds(&x, 3, 0.0f);
    tiny_close(&x);
    tiny_free(t);
}

/* A snapshot on its way to a file and from it: whole lines of the device's. */
static void test_moved(void **state)
{
    (void)state;
    struct tiny *t = stateful();
    char content[(FLOATS * sizeof(float) + 63) / 64 * 64];
    struct tiny_device x;

    assert_int_equal(tiny_open(t, NULL, 2, 8, 8, &x), 0);
    assert_true(x.b->kv_bytes(x.d, EK_TIER_DEVICE) > 0);
    assert_int_equal(x.b->kv_bytes(x.d, EK_TIER_STATE), sizeof(content));
    fill(&x, 16, 300.0f);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_STATE, 16, content), 0);
    assert_int_equal(x.b->kv_write(x.d, EK_TIER_STATE, 17, content), 0);
    holds(&x, 17, 300.0f);
    is_zero(&x, 18);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_STATE, TINY_STATES - 1, content), 0);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_STATE, TINY_STATES, content), -EINVAL);
    assert_int_equal(x.b->kv_write(x.d, EK_TIER_STATE, TINY_STATES, content), -EINVAL);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_STATE + 1, 1, content), -EINVAL);
    tiny_close(&x);
    tiny_free(t);
}

static void test_planned_as_taken(void **state)
{
    (void)state;
    struct tiny *t = stateful();
    const struct ek_open_params open = {.threads = 1};
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {8, 4, 8, 0, 0, 0}, .logit_rows = 4, .block_size = 8};
    const struct ek_backend *b = ek_backend_find("cpu", NULL);
    struct ek_kv_params kv = {.blocks = 4, .block_size = 8, .states = 3};
    struct ek_device_stats stats;
    struct ek_plan plan;
    struct ek_device *d;

    assert_int_equal(b->plan(&open, &q, &plan, NULL), 0);
    assert_int_equal(plan.state_bytes, 256); /* 50 floats, whole lines */
    assert_int_equal(b->open(&open, &d, NULL), 0);
    assert_int_equal(b->load(d, &q, &t->files, NULL, NULL, NULL), 0);
    assert_int_equal(b->kv_open(d, &kv), -EINVAL); /* fewer than sequences */
    kv.states = 9;
    assert_int_equal(b->kv_open(d, &kv), 0);
    b->stats(d, &stats);
    assert_int_equal(stats.state_bytes, 9 * plan.state_bytes);
    b->close(d);
    t->g.state_floats = 0;
    assert_int_equal(b->plan(&open, &q, &plan, NULL), 0);
    assert_int_equal(plan.state_bytes, 0);
    tiny_free(t);
}

/* A stage without such layers is sent the same steps: their copies are nothing to it. */
static void test_stage_without(void **state)
{
    (void)state;
    struct tiny *t = tiny_new(&g_params);
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {8, 4, 8, 2, 0, 0}, .logit_rows = 4, .block_size = 8};
    const struct ek_kv_params kv = {.blocks = 4, .block_size = 8, .states = 6};
    const struct ek_open_params open = {.threads = 1};
    struct tiny_device x = {.b = ek_backend_find("cpu", NULL), .ceiling = q.ceiling};

    assert_int_equal(x.b->open(&open, &x.d, NULL), 0);
    assert_int_equal(x.b->load(x.d, &q, &t->files, NULL, NULL, NULL), 0);
    assert_int_equal(x.b->kv_open(x.d, &kv), 0);
    x.step = calloc(1, ek_step_size(&q.ceiling));
    x.result = calloc(1, ek_result_bytes(4, 0, 4, 64));
    ek_step_layout(x.step, &q.ceiling);
    copy(&x, 0, 5);
    assert_int_equal(tiny_run(&x, NULL), 0);
    assert_int_equal(x.b->kv_bytes(x.d, EK_TIER_STATE), 0);
    assert_int_equal(x.b->kv_read(x.d, EK_TIER_STATE, 0, x.result), -EINVAL);
    assert_int_equal(x.b->kv_write(x.d, EK_TIER_STATE, 0, x.result), -EINVAL);
    tiny_close(&x);
    tiny_free(t);
}

/* A rank has the state of its own layers alone: here no operation has any (test_division.c:
 * shares). */
static void test_ranks(void **state)
{
    (void)state;
    struct tiny *t = stateful();
    struct ek_graph g = {0};
    struct ek_fault fault = {0};

    assert_int_equal(ek_shard(&t->g, 1, 2, &g, &fault), 0);
    assert_int_equal(g.state_floats, 0);
    ek_graph_free(&g);
    assert_int_equal(ek_rank_graph(&t->g, 1, 2, 2, &g, &fault), 0);
    assert_int_equal(g.state_floats, 0);
    ek_graph_free(&g);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order),         cmocka_unit_test(test_twice),
        cmocka_unit_test(test_moved),         cmocka_unit_test(test_planned_as_taken),
        cmocka_unit_test(test_stage_without), cmocka_unit_test(test_ranks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
