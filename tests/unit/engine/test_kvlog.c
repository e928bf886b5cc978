/* The ring of KV events: order, wrap, what happens when nobody reads, and what the cache tells it.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/engine/blocks.h"
#include "server/engine/kvlog.h"
#include "server/engine/prefix.h"
#include "tests/unit/alloc.h"

#define BS 4u

static const struct prefix_name none = {0, 0};

static struct kvlog *open_log(void)
{
    struct kvlog *l = NULL;
    assert_int_equal(kvlog_new(1, BS, &l), 0);
    assert_int_equal(l->mask + 1, KVLOG_LEAST);
    return l;
}

static void test_order_and_wrap(void **state)
{
    struct kvlog *l = open_log();
    uint64_t from, next = 0;
    (void)state;
    for (int32_t round = 0; round < 100; round++) {
        int32_t tokens[BS] = {round, 2, 3, 4};
        struct prefix_name name = {(uint64_t)round + 1, 9};
        kvlog_stored(l, KV_DEVICE, name, none, tokens);
        kvlog_removed(l, KV_HOST, name);
        assert_int_equal(kvlog_pending(l, &from), 0); /* not before the commit */
        kvlog_commit(l);
        assert_int_equal(kvlog_pending(l, &from), 2);
        assert_int_equal(from, next);
        assert_int_equal(kvlog_at(l, from)->what, KV_STORED);
        assert_int_equal(kvlog_at(l, from)->name.lo, round + 1);
        assert_int_equal(kvlog_tokens(l, from)[0], round);
        assert_int_equal(kvlog_at(l, from + 1)->what, KV_REMOVED);
        assert_int_equal(kvlog_at(l, from + 1)->tier, KV_HOST);
        kvlog_done(l, 2);
        next += 2;
    }
    assert_int_equal(atomic_load(&l->dropped), 0);
    kvlog_free(l);
}

static void test_nobody_reads(void **state)
{
    struct kvlog *l = open_log();
    int32_t tokens[BS] = {1, 2, 3, 4};
    uint64_t from;
    (void)state;
    for (uint32_t i = 0; i < KVLOG_LEAST + 7; i++)
        kvlog_stored(l, KV_DEVICE, (struct prefix_name){i + 1, 0}, none, tokens);
    kvlog_commit(l);
    assert_int_equal(atomic_load(&l->dropped), 7);
    assert_int_equal(kvlog_pending(l, &from), KVLOG_LEAST);
    kvlog_done(l, 1);
    kvlog_removed(l, KV_DEVICE, none); /* room for one is not room for the mark and it */
    assert_int_equal(atomic_load(&l->dropped), 8);
    kvlog_done(l, KVLOG_LEAST - 1);
    kvlog_stored(l, KV_DEVICE, (struct prefix_name){500, 0}, none, tokens);
    kvlog_commit(l);
    assert_int_equal(kvlog_pending(l, &from), 2);
    assert_int_equal(kvlog_at(l, from)->what, KV_CLEARED);
    assert_int_equal(kvlog_at(l, from + 1)->name.lo, 500);
    kvlog_free(l);
}

static void test_what_the_cache_tells(void **state)
{
    static const uint64_t secret[2] = {1, 2};
    static const enum kv_news said[] = {KV_STORED, KV_STORED, KV_REMOVED};
    struct kvlog *l = open_log();
    struct blocks b;
    struct prefix p;
    int32_t tokens[2 * BS] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct prefix_name tail = none;
    uint32_t id[2];
    uint64_t from;
    (void)state;
    assert_int_equal(prefix_init(&p, 8, BS, secret), 0);
    assert_int_equal(blocks_init(&b, 8, prefix_forget, &p), 0);
    p.log = l;
    for (uint32_t i = 0; i < 2; i++) {
        struct prefix_name name = prefix_hash(&p, tail, 0, tokens + i * BS);
        assert_int_equal(blocks_take(&b, 0, &id[i]), 0);
        assert_true(prefix_add(&p, id[i], name, tail, tokens + i * BS));
        assert_false(prefix_add(&p, 7, name, tail, tokens + i * BS)); /* known: nothing to tell */
        blocks_name(&b, id[i], 0);
        tail = name;
    }
    blocks_give(&b, id[1], 1);
    blocks_evict_oldest(&b, 2);
    kvlog_commit(l);
    assert_int_equal(kvlog_pending(l, &from), 3);
    for (uint32_t i = 0; i < 3; i++)
        assert_int_equal(kvlog_at(l, from + i)->what, said[i]);
    assert_int_equal(kvlog_at(l, from + 1)->parent.lo, kvlog_at(l, from)->name.lo);
    assert_int_equal(kvlog_at(l, from + 2)->name.lo, tail.lo);
    assert_memory_equal(kvlog_tokens(l, from + 1), tokens + BS, BS * sizeof(*tokens));
    blocks_give(&b, id[0], 3);
    blocks_done(&b);
    prefix_done(&p);
    kvlog_free(l);
}

static void test_new(void **state)
{
    struct kvlog *l = NULL;
    (void)state;
    assert_int_equal(kvlog_new(8, 0, &l), -EINVAL);
    assert_int_equal(kvlog_new(8, PREFIX_BLOCK_MOST + 1, &l), -EINVAL);
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = kvlog_new(100, BS, &l);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(l);
    }
    alloc_fail_at(0);
    assert_int_equal(l->mask + 1, 128);
    kvlog_free(l);
    kvlog_free(NULL);
    kvlog_commit(NULL);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_wrap),
        cmocka_unit_test(test_nobody_reads),
        cmocka_unit_test(test_what_the_cache_tells),
        cmocka_unit_test(test_new),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
