/*
 * What server and engine share is laid out for the device that the engine opens: of two ranks on
 * cards a block's content is that of both, though each needs memory for its own alone; their parts
 * of the host tier begin on pages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/memplan.h"
#include "kernels/apart_memory.h"
#include "tests/unit/kernels/tiny.h"

static int card_plan(const struct ek_open_params *p, const struct ek_plan_request *q,
                     struct ek_plan *ret_plan, struct ek_fault *fault)
{
    (void)q;
    (void)fault;
    *ret_plan = (struct ek_plan){.block_bytes = 1000 + p->rank, .state_bytes = 10};
    return 0;
}

static int card_group(const struct ek_open_params *p, struct ek_group **ret_group,
                      struct ek_fault *fault)
{
    (void)p;
    (void)fault;
    *ret_group = NULL;
    return 0;
}

static size_t card_bytes(const struct ek_device *d, uint32_t tier)
{
    (void)d;
    (void)tier;
    return 1000;
}

static int card_host(struct ek_device *d, void *at)
{
    (void)d;
    (void)at;
    return 0;
}

static const struct ek_backend card = {.name = "cuda",
                                       .plan = card_plan,
                                       .group_new = card_group,
                                       .kv_bytes = card_bytes,
                                       .kv_host = card_host};

static struct ek_apart_memory *lay_out_some(uint32_t ranks, uint32_t local,
                                            const struct ek_backend *each, const uint32_t *cards)
{
    static const struct tiny_params model = {.dtype = EK_F32,
                                             .layers = 2,
                                             .hidden = 32,
                                             .q_heads = 4,
                                             .kv_heads = 2,
                                             .head_dim = 8,
                                             .rotary = 8,
                                             .ffn = 96,
                                             .vocab = 100,
                                             .act = EK_ACT_SILU};
    struct tiny *t = tiny_new(&model);
    struct ek_apart apart = {.backend = "cuda", .stamp = 7};
    const struct ek_open_params open = {.ranks = ranks,
                                        .local = local,
                                        .each = each,
                                        .apart = &apart,
                                        .devices = cards,
                                        .stall_us = 5};
    const struct ek_plan_request q = {
        .graph = &t->g, .ceiling = {8, 2, 8, 0, 0, 0}, .logit_rows = 2, .block_size = 16};
    const struct ek_kv_params kv = {.blocks = 10, .host_blocks = 20, .block_size = 16};
    struct ek_apart_memory *m = NULL;

    assert_int_equal(apart_layout(&open, &q, &m, NULL), 0);
    assert_int_equal(apart_layout_host(&open, &kv, m), 0);
    tiny_free(t);
    return m;
}

static struct ek_apart_memory *lay_out(uint32_t ranks, const struct ek_backend *each,
                                       const uint32_t *cards)
{
    return lay_out_some(ranks, 0, each, cards);
}

static void give_back(struct ek_apart_memory *m)
{
    (void)close(m->fd);
    ek_apart_unmap(m);
}

static void test_of_one(void **state)
{
    static const uint32_t cards[] = {3};
    struct ek_apart_memory *m = lay_out(0, &card, cards);
    struct stat st;
    (void)state;

    assert_true(m->block_bytes == 1000 && m->state_bytes == 10 && m->host_bytes == 20 * 1000);
    assert_true(m->want.ranks == 0 && m->want.cards == 1 && m->want.card[0] == 3);
    assert_true(m->host_at % EK_HOST_PAGE == 0 && m->host_at >= m->bytes);
    assert_int_equal(fstat(m->fd, &st), 0);
    assert_true((uint64_t)st.st_size == m->host_at + m->host_bytes);
    give_back(m);
}

static void test_of_two(void **state)
{
    static const uint32_t cards[] = {3, 1};
    struct ek_apart_memory *m = lay_out(2, &card, cards);
    (void)state;

    assert_true(m->block_bytes == 2001 && m->state_bytes == 20);
    assert_true(m->host_bytes == 20 * 2001 + 2 * EK_HOST_PAGE);
    assert_true(m->want.ranks == 2 && m->want.stall_us == 5 && m->want.stamp == 7);
    assert_true(m->want.cards == 2 && m->want.card[0] == 3 && m->want.card[1] == 1);
    give_back(m);
}

/* Where a backend cannot take memory of somebody else's, the tier is the engine's, and goes with
 * it; what its blocks hold is not known then. */
static void test_without(void **state)
{
    struct ek_backend plain = card;
    (void)state;

    plain.kv_host = NULL;
    plain.kv_bytes = NULL;
    struct ek_apart_memory *m = lay_out(2, &plain, NULL);
    assert_true(m->host_bytes == 0 && m->block_bytes == 0 && m->want.cards == 0);
    give_back(m);
    assert_null(ek_apart_backend(&plain, false)->host_drop);
    assert_non_null(ek_apart_backend(&card, false)->host_drop);
}

/* Other nodes have a part of each block: the lead reads none, and each node has its own host tier.
 */
static void test_of_nodes(void **state)
{
    struct ek_apart_memory *m = lay_out_some(4, 2, &card, NULL);
    const struct ek_backend *b = ek_apart_backend(&card, true);
    (void)state;

    assert_true(m->host_bytes == 0 && m->block_bytes == 0 && m->state_bytes == 0);
    assert_true(m->want.ranks == 4 && m->want.local == 2 && m->want.graph != 0);
    give_back(m);
    assert_true(!b->host_drop && !b->kv_bytes && !b->kv_read && !b->kv_write);
}

/* Of another version or build of the program, whose memory may be laid out in another way. */
static void test_of_another_version(void **state)
{
    struct ek_apart_memory *m = lay_out(0, &card, NULL), *other = NULL;
    (void)state;

    assert_int_equal(ek_apart_map(m->fd, &other), 0);
    ek_apart_unmap(other);
    m->program[0]++;
    assert_int_equal(ek_apart_map(m->fd, &other), -EPROTO);
    m->program[0]--;
    assert_true(m->build[0] || m->build[1] || m->build[2] || m->build[3]); /* linkers give one */
    m->build[EK_BUILD_ID_BYTES - 1]++;
    assert_int_equal(ek_apart_map(m->fd, &other), -EPROTO);
    m->build[EK_BUILD_ID_BYTES - 1]--;
    m->size++;
    assert_int_equal(ek_apart_map(m->fd, &other), -EPROTO);
    give_back(m);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_of_one), cmocka_unit_test(test_of_two),
                                       cmocka_unit_test(test_without),
                                       cmocka_unit_test(test_of_nodes),
                                       cmocka_unit_test(test_of_another_version)};

    return cmocka_run_group_tests(tests, NULL, NULL);
}
