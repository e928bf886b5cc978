/* Blocks are shared by weight among tenants: who gives way to whom, and that nothing is given in
 * vain. Slots are in test_tenants.c. */
#include "tests/unit/engine/world.h"

static const struct tenant_ref one = {.place = 1, .stamp = 1}, two = {.place = 2, .stamp = 2},
                               triple = {.place = 2, .stamp = 2, .price = TENANT_PRICE / 3},
                               light = {.place = 2, .stamp = 2, .price = 4 * TENANT_PRICE};

/* 32 blocks of 4 tokens, and slots for more than they hold. */
static struct engine_params short_of_blocks(void)
{
    struct engine_params p = params();
    p.max_seqs = 8;
    p.limits.value[LIMIT_RUNNING_SEQS] = 8;
    p.max_batched_tokens = 128;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 128;
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    return p;
}

static uint32_t running_of(const struct world *w, uint32_t tenant)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->s->entries.running_count; i++)
        n += entries_running(&w->s->entries, i)->tenant == tenant;
    return n;
}

/* One tenant's four requests hold all blocks, eight each, and have room for three tokens more. */
static void open_held(struct world *w, const struct engine_params *p, struct request *a[4])
{
    open_world(w, p);
    for (int32_t i = 0; i < 4; i++)
        a[i] = submit_of(w, one, 28, 60, 1 + 200 * i);
    step_once(w, 0);
    step_once(w, 0);
    assert_int_equal(w->s->slots.held_blocks, 32);
}

static void close_held(struct world *w, struct request *a[4], struct request *b)
{
    run_out(w); /* who gave way goes on */
    for (int i = 0; i < 4; i++) {
        assert_int_equal(a[i]->finish, REQ_FIN_LENGTH);
        assert_int_equal(a[i]->out_count, 60);
        request_unref(a[i]);
    }
    if (b)
        request_unref(b);
    close_world(w);
}

/* The same without waiting for their ends. */
static void cut_held(struct world *w, struct request *a[4], struct request *b)
{
    sched_finish_all(w->s, REQ_FIN_ABORT, 0, w->now_us);
    for (int i = 0; i < 4; i++)
        request_unref(a[i]);
    request_unref(b);
    close_world(w);
}

static void shares_blocks_by_weight(void **state)
{
    static const struct {
        const struct tenant_ref *other;
        uint32_t tokens; /* of its prompt */
        uint64_t later_us;
        uint32_t given;
    } cases[] = {
        {&two, 4, 0, 0},       /* it has not waited for long */
        {&two, 4, 300000, 1},  /* one block, and the last of four gives eight */
        {&two, 40, 300000, 2}, /* ten, and four for those that run */
        {&two, 48, 300000, 2}, /* twelve leave the other sixteen, */
        {&two, 52, 300000, 0}, /* thirteen would leave it eight: not half of them */
        {&two, 100, 300000, 0},  {&light, 16, 300000, 1},  /* four times four are less than 24 */
        {&light, 28, 300000, 0}, {&triple, 76, 300000, 3}, /* 19 of 32 */
        {&one, 4, 300000, 0},                              /* a tenant's own wait for their turn */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_params p = short_of_blocks();
        struct world w;
        struct request *a[4];
        open_held(&w, &p, a);
        struct request *b = submit_of(&w, *cases[i].other, cases[i].tokens, 2, 900);
        step_once(&w, 0);
        w.now_us += cases[i].later_us;
        step_once(&w, 0);
        assert_int_equal(w.s->stats.blocks_yielded, cases[i].given);
        assert_int_equal(w.s->stats.slots_yielded, 0);
        assert_int_equal(w.s->entries.running_count, 4 - cases[i].given);
        if (cases[i].given > 0) {
            assert_int_equal(w.s->admission.held, HELD_BLOCKS);
            step_once(&w, 0);
            assert_int_equal(running_of(&w, 2), 1);
            assert_int_equal(w.s->stats.preemptions, 0);
            assert_int_equal(w.s->stats.blocks_yielded, cases[i].given);
            assert_int_equal(a[3]->preemptions, 1); /* the last that came */
            assert_int_equal(a[0]->preemptions, 0);
        }
        close_held(&w, a, b);
    }
}

/* Blocks of which some are on their way back already: no more give way than it takes. */
static void what_comes_back_is_waited_for(void **state)
{
    (void)state;
    struct engine_params p = short_of_blocks();
    p.depth = 2;
    struct world w;
    struct request *a[4];
    open_held(&w, &p, a);
    struct request *b = submit_of(&w, two, 4, 2, 900);
    step_once(&w, 0);
    plan(&w, 4);
    w.now_us += 300000;
    plan(&w, 3); /* the last one gives way while a step that uses its blocks is in flight */
    assert_int_equal(w.s->stats.blocks_yielded, 1);
    assert_int_equal(slots_limbo(&w.s->slots), 8);
    land(&w);
    plan(&w, 7);
    assert_int_equal(running_of(&w, 2), 1);
    land(&w);
    land(&w);
    assert_int_equal(w.s->stats.blocks_yielded, 1);
    cut_held(&w, a, b);
}

/* One ended while a step that uses its blocks is in flight: these are enough. */
static void what_is_on_its_way_is_waited_for(void **state)
{
    (void)state;
    struct engine_params p = short_of_blocks();
    p.depth = 2;
    struct world w;
    struct request *a[4];
    open_held(&w, &p, a);
    struct request *b = submit_of(&w, two, 4, 2, 900);
    step_once(&w, 0);
    plan(&w, 4);
    w.now_us += 300000;
    sched_finish(w.s, a[3], REQ_FIN_ABORT, 0, w.now_us);
    assert_int_equal(slots_limbo(&w.s->slots), 8);
    plan(&w, 3);
    assert_int_equal(w.s->stats.blocks_yielded, 0);
    land(&w);
    plan(&w, 7);
    assert_int_equal(running_of(&w, 2), 1);
    land(&w);
    land(&w);
    cut_held(&w, a, b);
}

/* It fits with what another request of its tenant has in the cache: none gives way. */
static void who_fits_with_the_cache_takes_nothing(void **state)
{
    (void)state;
    struct engine_params p = short_of_blocks();
    p.blocks = 97;
    p.max_batched_tokens = 512;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 512;
    p.limits.value[LIMIT_PREFIX_CACHING] = 1;
    struct world w;
    struct request *a[4];
    open_world(&w, &p);
    for (int32_t i = 0; i < 4; i++)
        a[i] = submit_of(&w, one, 60, 60, 1 + 100 * i);
    struct request *b = submit_of(&w, two, 80, 40, 500);
    for (int i = 0; i < 3; i++)
        step_once(&w, 0);
    struct request *c = submit_of(&w, two, 84, 4, 500);
    w.now_us += 300000;
    step_once(&w, 0);
    assert_int_equal(w.s->stats.blocks_yielded, 0);
    assert_int_equal(running_of(&w, 2), 2);
    assert_int_equal(c->cached_tokens, 80);
    run_out(&w);
    for (int i = 0; i < 4; i++)
        request_unref(a[i]);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

/* Nothing that looks like too little memory comes of it, however long those wait. */
static void blocks_given_are_no_lack_of_memory(void **state)
{
    (void)state;
    struct engine_params p = short_of_blocks();
    p.blocks = 61; /* 15 for each, until its end */
    p.max_batched_tokens = 256;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 256;
    struct world w;
    struct request *a[4];
    open_world(&w, &p);
    for (int32_t i = 0; i < 4; i++)
        a[i] = submit_of(&w, one, 57, 4, 1 + 200 * i);
    step_once(&w, 0);
    struct request *b = submit_of(&w, two, 4, 40, 900);
    double caution = w.s->stats.caution;
    for (int i = 0; i < 6; i++) {
        w.now_us += 3000000;
        step_once(&w, 0);
    }
    assert_int_equal(w.s->stats.blocks_yielded, 1);
    assert_int_equal(a[3]->preemptions, 1);
    run_out(&w);
    assert_int_equal(w.s->stats.preemptions, 0);
    assert_int_equal(w.s->stats.stalls, 0);
    assert_true(w.s->stats.caution == caution);
    assert_int_equal(w.s->stats.recomputed_tokens, 0);
    assert_true(w.s->stats.yielded_tokens > 50);
    assert_int_equal(w.s->stats.preemption_lost_us, 0);
    for (int i = 0; i < 4; i++)
        request_unref(a[i]);
    request_unref(b);
    close_world(&w);
}

/* Short requests of another tenant, one after the other, do not have one and the same read again
 * without an end. */
static void all_get_on_beside_short_ones(void **state)
{
    (void)state;
    struct engine_params p = short_of_blocks();
    struct world w;
    struct request *a[4], *b = NULL;
    uint32_t made[4] = {0}, times[4] = {0}, others = 0;
    open_held(&w, &p, a);
    for (int i = 0; i < 200; i++) {
        if (!b)
            b = submit_of(&w, two, 8, 2, 900);
        w.now_us += 100000;
        step_once(&w, 0);
        for (int k = 0; k < 4; k++) {
            if (a[k]->preemptions == times[k])
                continue;
            assert_true(times[k] == 0 || a[k]->out_count >= made[k] + 1); /* a 16th of 28 */
            times[k] = a[k]->preemptions;
            made[k] = a[k]->out_count;
        }
        if (b->finish != REQ_FIN_NONE) {
            others++;
            request_unref(b);
            b = NULL;
        }
    }
    assert_true(others > 30);
    assert_true(w.s->stats.blocks_yielded > 1);
    close_held(&w, a, b);
}

/* It would fit, but not with what the others are expected to grow to: one gives way for that, and
 * no further one at once. */
static void gives_room_to_grow(void **state)
{
    (void)state;
    struct engine_params p = short_of_blocks();
    struct world w;
    struct request *a[4];
    open_held(&w, &p, a);
    w.s->value[LIMIT_STALLED_SHARE] = 10000;
    w.s->stats.caution = 0; /* what is expected has to fit, and no more */
    sched_finish(w.s, a[3], REQ_FIN_ABORT, 0, w.now_us); /* eight blocks are free */
    struct request *b = submit_of(&w, two, 4, 8, 900);
    step_once(&w, 0);
    assert_int_equal(w.s->admission.held, HELD_GROWTH);
    w.now_us += 300000;
    for (uint32_t i = 1; i < 3 && running_of(&w, 2) == 0; i++) {
        step_once(&w, 0);
        assert_int_equal(w.s->stats.blocks_yielded, i);
        step_once(&w, 0);
        assert_int_equal(w.s->stats.blocks_yielded, i);
        w.now_us += 300000;
    }
    assert_int_equal(running_of(&w, 2), 1);
    cut_held(&w, a, b);
}

/* Slots and blocks are lacking: who gives its blocks gives its slot, too, if the other's tenant has
 * less than its part of both. */
static void gives_slots_with_blocks(void **state)
{
    (void)state;
    for (uint32_t theirs = 0; theirs < 2; theirs++) {
        struct engine_params p = short_of_blocks();
        struct world w;
        struct request *a[4];
        open_held(&w, &p, a);
        w.s->value[LIMIT_RUNNING_SEQS] = 4;
        struct request *b = submit_of(&w, two, 40, 2, 900);
        if (theirs > 0)
            w.s->value[LIMIT_RUNNING_SEQS] = 3; /* a limit that was lowered */
        step_once(&w, 0);
        w.now_us += 300000;
        step_once(&w, 0);
        assert_int_equal(w.s->stats.blocks_yielded, theirs > 0 ? 0 : 2);
        close_held(&w, a, b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(shares_blocks_by_weight),
        cmocka_unit_test(what_comes_back_is_waited_for),
        cmocka_unit_test(what_is_on_its_way_is_waited_for),
        cmocka_unit_test(who_fits_with_the_cache_takes_nothing),
        cmocka_unit_test(blocks_given_are_no_lack_of_memory),
        cmocka_unit_test(all_get_on_beside_short_ones),
        cmocka_unit_test(gives_room_to_grow),
        cmocka_unit_test(gives_slots_with_blocks),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
