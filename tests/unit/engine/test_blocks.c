/* The block store and the prefix cache on top of it. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "server/engine/blocks.h"
#include "server/engine/prefix.h"
#include "tests/unit/alloc.h"

#define BS 4u

struct blocks_world {
    struct blocks b;
    struct prefix p;
};

static const uint64_t secret[2] = {11, 22};

static void open_world(struct blocks_world *w, uint32_t total)
{
    assert_int_equal(prefix_init(&w->p, total, BS, secret), 0);
    assert_int_equal(blocks_init(&w->b, total, prefix_forget, &w->p), 0);
}

static void close_world(struct blocks_world *w)
{
    assert_null(blocks_check(&w->b, NULL));
    assert_null(prefix_check(&w->p, &w->b));
    blocks_done(&w->b);
    prefix_done(&w->p);
}

/* Takes n blocks and names them as a chain of the tokens. */
static void name_chain(struct blocks_world *w, const int32_t *tokens, uint32_t n, uint32_t *ret_ids)
{
    struct prefix_name tail = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        assert_int_equal(blocks_take(&w->b, 0, &ret_ids[i]), 0);
        struct prefix_name name = prefix_hash(&w->p, tail, 0, tokens + i * BS);
        assert_true(prefix_add(&w->p, ret_ids[i], name, tail, tokens + i * BS));
        blocks_name(&w->b, ret_ids[i], 0);
        tail = name;
    }
}

static uint32_t find_chain(struct blocks_world *w, const int32_t *tokens, uint32_t n, uint64_t salt)
{
    struct prefix_name tail = {0, 0};
    for (uint32_t i = 0; i < n; i++) {
        struct prefix_name name = prefix_hash(&w->p, tail, salt, tokens + i * BS);
        if (prefix_find(&w->p, name, tail, tokens + i * BS) == 0)
            return i;
        tail = name;
    }
    return n;
}

static void gives_every_block_but_null(void **state)
{
    (void)state;
    struct blocks_world w;
    open_world(&w, 5);
    uint32_t ids[4], seen = 0, one;
    for (int i = 0; i < 4; i++) {
        assert_int_equal(blocks_take(&w.b, 0, &ids[i]), 0);
        seen |= 1u << ids[i];
    }
    assert_int_equal(seen, 0x1e);
    assert_int_equal(blocks_take(&w.b, 0, &one), -EAGAIN);
    blocks_ref(&w.b, ids[0]);
    blocks_give(&w.b, ids[0], 0);
    assert_int_equal(blocks_available(&w.b), 0);
    for (int i = 0; i < 4; i++)
        blocks_give(&w.b, ids[i], 0);
    assert_int_equal(blocks_available(&w.b), 4);
    close_world(&w);
    assert_int_equal(blocks_init(&w.b, 1, prefix_forget, &w.p), -EINVAL);
    assert_int_equal(prefix_init(&w.p, 8, PREFIX_BLOCK_MOST + 1, secret), -EINVAL);
}

static void evicts_the_deepest_first(void **state)
{
    (void)state;
    static const int32_t tokens[3 * BS] = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
    struct blocks_world w;
    open_world(&w, 5);
    uint32_t ids[3], one;
    name_chain(&w, tokens, 3, ids);
    for (int i = 3; i > 0; i--)
        blocks_give(&w.b, ids[i - 1], 100);
    assert_int_equal(w.b.cached.count, 3);
    assert_int_equal(find_chain(&w, tokens, 3, 0), 3);
    assert_int_equal(find_chain(&w, tokens, 3, 1), 0); /* another salt is another name */
    assert_int_equal(blocks_take(&w.b, 150, &one), 0); /* the one that was never used */
    assert_int_equal(w.b.evictions, 0);
    for (uint32_t left = 3; left > 0; left--) {
        assert_int_equal(find_chain(&w, tokens, 3, 0), left);
        assert_int_equal(blocks_take(&w.b, 150, &one), 0);
        assert_int_equal(one, ids[left - 1]);
    }
    assert_int_equal(w.b.evictions, 3);
    assert_true(w.b.evicted_age.sum > 149e-6 && w.b.evicted_age.sum < 151e-6);
    close_world(&w);
}

static void takes_a_hit_out_of_the_cache(void **state)
{
    (void)state;
    static const int32_t tokens[BS] = {1, 2, 3, 4};
    struct blocks_world w;
    open_world(&w, 3);
    uint32_t id, one;
    name_chain(&w, tokens, 1, &id);
    blocks_give(&w.b, id, 0);
    blocks_ref(&w.b, id);
    assert_int_equal(w.b.cached.count, 0);
    assert_int_equal(blocks_take(&w.b, 0, &one), 0);
    assert_int_equal(blocks_take(&w.b, 0, &one), -EAGAIN); /* the hit is pinned */
    close_world(&w);
}

static void compares_tokens(void **state)
{
    (void)state;
    static const int32_t tokens[BS] = {1, 2, 3, 4}, others[BS] = {1, 2, 3, 5};
    struct blocks_world w;
    open_world(&w, 4);
    uint32_t id, one;
    const struct prefix_name none = {0, 0};
    name_chain(&w, tokens, 1, &id);
    struct prefix_name name = prefix_hash(&w.p, none, 0, tokens);
    assert_int_equal(prefix_find(&w.p, name, none, tokens), id);
    /* As if the hashes were equal. */
    assert_int_equal(prefix_find(&w.p, name, none, others), 0);
    assert_int_equal(prefix_find(&w.p, name, name, tokens), 0);
    /* A second block with the same content does not take the name. */
    assert_int_equal(blocks_take(&w.b, 0, &one), 0);
    assert_false(prefix_add(&w.p, one, name, none, tokens));
    /* Another secret gives other names. */
    struct prefix q;
    const uint64_t other[2] = {11, 23};
    assert_int_equal(prefix_init(&q, 4, BS, other), 0);
    struct prefix_name keyed = prefix_hash(&q, none, 0, tokens);
    assert_false(keyed.lo == name.lo && keyed.hi == name.hi);
    prefix_done(&q);
    close_world(&w);
}

static void caps_the_cache(void **state)
{
    (void)state;
    static const int32_t tokens[6 * BS] = {1,  2,  3,  4,  5,  6,  7,  8,  9,  10, 11, 12,
                                           13, 14, 15, 16, 17, 18, 19, 20, 21, 22, 23, 24};
    struct blocks_world w;
    open_world(&w, 8);
    uint32_t ids[6];
    name_chain(&w, tokens, 6, ids);
    blocks_cap(&w.b, 4, 0, 0);
    for (int i = 6; i > 0; i--)
        blocks_give(&w.b, ids[i - 1], 0);
    assert_int_equal(w.b.cached.count, 4);
    assert_int_equal(find_chain(&w, tokens, 6, 0), 4);
    blocks_cap(&w.b, 1, 0, 0);
    assert_int_equal(w.b.cached.count, 1);
    blocks_forget_all(&w.b);
    assert_int_equal(w.b.cached.count, 0);
    assert_int_equal(w.p.count, 0);
    close_world(&w);
}

static uint32_t held_by(const struct blocks_world *w, uint32_t id)
{
    return w->b.salts.node[w->b.salts.link[id].node].count;
}

static void caps_one_salt(void **state)
{
    (void)state;
    struct blocks_world w;
    open_world(&w, 12);
    blocks_cap(&w.b, 0, 3, 0);
    uint32_t ids[8];
    for (uint32_t i = 0; i < 8; i++) {
        const int32_t tokens[BS] = {(int32_t)i, 1, 2, 3};
        const struct prefix_name none = {0, 0};
        uint64_t salt = i < 2 ? 7 : 8;
        assert_int_equal(blocks_take(&w.b, 0, &ids[i]), 0);
        struct prefix_name name = prefix_hash(&w.p, none, salt, tokens);
        assert_true(prefix_add(&w.p, ids[i], name, none, tokens));
        blocks_name(&w.b, ids[i], salt);
    }
    for (uint32_t i = 0; i < 8; i++)
        blocks_give(&w.b, ids[i], i);
    assert_int_equal(w.b.cached.count, 5); /* the flood of salt 8 evicted its own oldest ones */
    assert_int_equal(held_by(&w, ids[0]), 2);
    assert_int_equal(held_by(&w, ids[7]), 3);
    assert_false(w.b.at[ids[4]].named);
    assert_true(w.b.at[ids[5]].named);
    assert_null(blocks_check(&w.b, NULL));
    blocks_ref(&w.b, ids[5]);
    assert_int_equal(held_by(&w, ids[7]), 2);
    blocks_cap(&w.b, 0, 1, 0);
    assert_int_equal(w.b.cached.count, 2);
    blocks_give(&w.b, ids[5], 9);
    assert_int_equal(w.b.cached.count, 2);
    assert_int_equal(ek_hist_total(&w.b.evicted_age), w.b.evictions);
    blocks_ref(&w.b, ids[5]);
    blocks_forget_all(&w.b); /* also the name of one that is in use */
    blocks_give(&w.b, ids[5], 9);
    assert_int_equal(w.b.cached.count, 0);
    close_world(&w);
}

static void shrinks_and_grows(void **state)
{
    (void)state;
    static const int32_t tokens[2 * BS] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct blocks_world w;
    open_world(&w, 9);
    uint32_t low[4], high[2], one;
    for (int i = 0; i < 4; i++)
        assert_int_equal(blocks_take(&w.b, 0, &low[i]), 0);
    name_chain(&w, tokens, 2, high); /* 5 and 6 */
    blocks_give(&w.b, high[1], 0);
    blocks_resize(&w.b, 5, 0); /* 6 is evicted, 7 and 8 were free, 5 is referenced */
    assert_int_equal(w.b.retired, 3);
    assert_int_equal(find_chain(&w, tokens, 2, 0), 1);
    assert_int_equal(blocks_take(&w.b, 0, &one), -EAGAIN);
    blocks_give(&w.b, high[0], 0);
    assert_int_equal(w.b.retired, 4);
    assert_int_equal(find_chain(&w, tokens, 2, 0), 0);
    blocks_give(&w.b, low[0], 0);
    assert_int_equal(blocks_available(&w.b), 1);
    assert_null(blocks_check(&w.b, NULL));
    blocks_resize(&w.b, 9, 0);
    assert_int_equal(w.b.retired, 0);
    assert_int_equal(blocks_available(&w.b), 5);
    close_world(&w);
}

static void survives_failed_allocations(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct blocks_world w = {0};
        alloc_fail_at(n);
        int r = prefix_init(&w.p, 64, BS, secret);
        if (r == 0)
            r = blocks_init(&w.b, 64, prefix_forget, &w.p);
        bool failed = alloc_failed();
        blocks_done(&w.b);
        prefix_done(&w.p);
        if (!failed) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(gives_every_block_but_null),
        cmocka_unit_test(evicts_the_deepest_first),
        cmocka_unit_test(takes_a_hit_out_of_the_cache),
        cmocka_unit_test(compares_tokens),
        cmocka_unit_test(caps_the_cache),
        cmocka_unit_test(caps_one_salt),
        cmocka_unit_test(shrinks_and_grows),
        cmocka_unit_test(survives_failed_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
