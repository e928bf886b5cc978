/* Fairness among tenants: the counters alone, and what the scheduler makes of them. */
#include "tests/unit/engine/world.h"

static const struct tenant_ref one = {.place = 1, .stamp = 1}, two = {.place = 2, .stamp = 2},
                               triple = {.place = 2, .stamp = 2, .price = TENANT_PRICE / 3},
                               light = {.place = 2, .stamp = 2, .price = 4 * TENANT_PRICE};

static void counts_by_weight(void **state)
{
    (void)state;
    struct tenants t;
    tenants_init(&t, SCHED_NONE);
    assert_int_equal(tenants_meet(&t, &one), 1);
    assert_int_equal(tenants_meet(&t, &triple), 2);
    tenants_begin(&t, 1);
    tenants_begin(&t, 2);
    tenants_owe(&t, 1, 30);
    tenants_owe(&t, 2, 30);
    assert_int_equal(tenants_standing(&t, 1), 30 * TENANT_PRICE);
    assert_int_equal(tenants_standing(&t, 2), 30 * (TENANT_PRICE / 3));
    tenants_read(&t, 1, 30, 20); /* a cache had the rest */
    assert_int_equal(t.at[1].served, 20 * TENANT_PRICE);
    assert_int_equal(tenants_standing(&t, 1), 20 * TENANT_PRICE);
    tenants_answer(&t, 2);
    assert_int_equal(t.at[2].served, TENANT_OUTPUT * (TENANT_PRICE / 3));
    assert_int_equal(t.at[2].outputs, 1);
    assert_int_equal(tenants_least(&t), t.at[2].served);
    assert_int_equal(tenants_ahead(&t, 2, tenants_least(&t)), 0);
    assert_int_equal(tenants_ahead(&t, 1, tenants_least(&t)),
                     20 - 1); /* by the other's 2/3 of a token, rounded down */
}

static void counts_masks_by_their_work(void **state)
{
    (void)state;
    struct tenants t;
    tenants_init(&t, SCHED_NONE);
    (void)tenants_meet(&t, &one);
    (void)tenants_meet(&t, &triple);
    tenants_mask(&t, 1, 3 * TENANT_MASK);
    tenants_mask(&t, 2, 3 * TENANT_MASK);
    assert_int_equal(t.at[1].served, 3 * TENANT_PRICE);
    assert_int_equal(t.at[2].served, 3 * (TENANT_PRICE / 3));
    for (int i = 0; i < 8; i++) /* little by little is as much */
        tenants_mask(&t, 1, TENANT_MASK / 8);
    assert_int_equal(t.at[1].served, 4 * TENANT_PRICE);
    assert_int_equal(t.at[1].masks, 4 * TENANT_MASK);
    assert_int_equal(t.at[1].prompts + t.at[1].outputs, 0);
}

static void lifts_who_was_idle(void **state)
{
    (void)state;
    struct tenants t;
    tenants_init(&t, SCHED_NONE);
    (void)tenants_meet(&t, &one);
    (void)tenants_meet(&t, &two);
    tenants_begin(&t, 1);
    for (uint32_t i = 0; i < 10; i++)
        tenants_answer(&t, 1);
    tenants_begin(&t, 2); /* the least of those who have work is the first one's */
    assert_int_equal(t.at[2].served, t.at[1].served);
    tenants_answer(&t, 1);
    tenants_begin(&t, 2); /* it has had work all along: it is owed that one */
    assert_true(t.at[2].served < t.at[1].served);
    tenants_end(&t, 2);
    tenants_end(&t, 2);
    tenants_end(&t, 1);
    uint64_t last = t.at[1].served;
    tenants_begin(&t, 2); /* nobody has work: as the last one who had */
    assert_int_equal(t.at[2].served, last);
    tenants_begin(&t, 1); /* never lowered */
    assert_int_equal(t.at[1].served, last);
}

/* Its last prompt was read long before its answers were made: a tenant that comes then owes none
 * of them. */
static void lifts_to_what_was_answered_since(void **state)
{
    (void)state;
    struct tenants t;
    tenants_init(&t, SCHED_NONE);
    (void)tenants_meet(&t, &one);
    (void)tenants_meet(&t, &two);
    tenants_begin(&t, 1);
    tenants_end(&t, 1);
    for (uint32_t i = 0; i < 4000; i++)
        tenants_answer(&t, 1);
    assert_int_equal(tenants_ahead(&t, 1, tenants_least(&t)), 0);
    tenants_begin(&t, 2);
    assert_int_equal(t.at[2].served, 4000 * TENANT_OUTPUT * TENANT_PRICE);
    assert_int_equal(tenants_ahead(&t, 1, tenants_least(&t)), 0);
}

/* The key was replaced while its requests run and wait. */
static void another_key_with_live_requests_saves_nothing(void **state)
{
    (void)state;
    struct tenants t;
    const struct tenant_ref other = {.place = 1, .stamp = 9};
    tenants_init(&t, SCHED_NONE);
    (void)tenants_meet(&t, &one);
    (void)tenants_meet(&t, &two);
    tenants_begin(&t, 2);
    for (uint32_t i = 0; i < 100; i++)
        tenants_answer(&t, 2);
    tenants_begin(&t, 1);
    tenants_answer(&t, 1);
    (void)tenants_meet(&t, &other);
    tenants_begin(&t, 1);
    assert_int_equal(t.at[1].served, t.at[2].served);
    assert_int_equal(t.at[1].active, 2);
    assert_int_equal(t.at[1].outputs, 0);
}

static void another_key_at_a_place_begins_anew(void **state)
{
    (void)state;
    struct tenants t;
    const struct tenant_ref other = {.place = 1, .stamp = 9, .price = 50}, far = {.place = 9999};
    tenants_init(&t, SCHED_NONE);
    (void)tenants_meet(&t, &one);
    tenants_begin(&t, 1);
    tenants_answer(&t, 1);
    tenants_end(&t, 1);
    assert_int_equal(tenants_meet(&t, &one), 1);
    assert_int_equal(t.at[1].outputs, 1);
    assert_int_equal(tenants_meet(&t, &other), 1);
    assert_int_equal(t.at[1].outputs, 0);
    assert_int_equal(t.at[1].served, TENANT_OUTPUT * TENANT_PRICE); /* as the last one that had */
    assert_int_equal(t.at[1].price, 50);
    assert_int_equal(t.at[1].queue.head, SCHED_NONE);
    assert_int_equal(tenants_meet(&t, &far), 0); /* a place that does not exist is nobody's */
}

static struct engine_params roomy(void)
{
    struct engine_params p = params();
    p.max_seqs = 4;
    p.blocks = 400;
    p.limits.ceiling[LIMIT_QUEUED_REQS] = 100;
    return p;
}

static void drop(struct world *w)
{
    sched_finish_all(w->s, REQ_FIN_ABORT, 0, w->now_us);
}

/* One sends twenty requests, then the other one: it is the next to be admitted. */
static void a_flood_does_not_hold_up_others(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct world w;
    open_world(&w, &p);
    for (int32_t i = 0; i < 20; i++)
        request_unref(submit_of(&w, one, 12, 8, 1 + i * 20));
    for (int i = 0; i < 6; i++)
        step_once(&w, 0);
    struct request *r = submit_of(&w, two, 12, 1, 500);
    struct request *own = submit_of(&w, one, 12, 1, 600);
    for (int i = 0; i < 12 && atomic_load(&r->state) != REQ_DONE; i++)
        step_once(&w, 0);
    assert_int_equal(atomic_load(&r->state), REQ_DONE);
    assert_int_equal(atomic_load(&own->state), REQ_WAITING);
    drop(&w);
    request_unref(r);
    request_unref(own);
    close_world(&w);
}

static uint32_t waiting_of(const struct world *w, uint32_t place)
{
    uint32_t n = 0;

    for (uint32_t i = w->s->tenants.at[place].queue.head; i != SCHED_NONE;
         i = w->s->entries.at[i].in[QUEUE_POLICY].next)
        n++;
    return n;
}

/* Both always have work: what they are served is as their weights, one and three. */
static void serves_by_weight(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    struct world w;
    open_world(&w, &p);
    int32_t n = 0;
    for (int i = 0; i < 2000; i++) {
        for (; waiting_of(&w, 1) < 5; n += 31)
            request_unref(submit_of(&w, one, 10 + (uint32_t)n % 7, 6, 1 + n % 890));
        for (; waiting_of(&w, 2) < 5; n += 17)
            request_unref(submit_of(&w, triple, 8 + (uint32_t)n % 9, 6, 1 + n % 890));
        step_once(&w, 0);
    }
    const struct tenant *x = &w.s->tenants.at[1], *y = &w.s->tenants.at[2];
    double mine = (double)(x->prompts + TENANT_OUTPUT * x->outputs);
    double its = (double)(y->prompts + TENANT_OUTPUT * y->outputs);
    assert_true(its / mine > 2.95 && its / mine < 3.05);
    drop(&w);
    close_world(&w);
}

static struct engine_params few_blocks(void)
{
    struct engine_params p = params();
    p.blocks = 15; /* 14 of 4 tokens */
    p.max_batched_tokens = 64;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 64;
    return p;
}

/* Blocks run out: the last of the tenant that holds most gives way, not the one that came last; the
 * first in line never does. */
static void who_holds_most_gives_way(void **state)
{
    (void)state;
    struct engine_params p = few_blocks();
    struct world w;
    open_world(&w, &p);
    struct request *a = submit_of(&w, one, 16, 30, 1), *b = submit_of(&w, one, 16, 30, 100),
                   *c = submit_of(&w, two, 16, 10, 200);
    for (int i = 0; i < 20 && w.s->stats.preemptions == 0; i++)
        step_once(&w, 0);
    assert_int_equal(b->preemptions, 1);
    assert_int_equal(a->preemptions + c->preemptions, 0);
    assert_int_equal(w.s->tenants.at[1].preemptions, 1);
    run_out(&w);
    assert_int_equal(c->preemptions, 0);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

/* Blocks that several use come back with the last of them: who shares a long prefix does not hold
 * it as often as it has requests. */
static void shared_blocks_are_nobodys_own(void **state)
{
    (void)state;
    struct engine_params p = few_blocks();
    struct world w;
    struct request *a[3];
    open_world(&w, &p);
    for (int i = 0; i < 3; i++) { /* four blocks for all, one for each */
        a[i] = submit_of(&w, one, 17, 20, 1);
        step_once(&w, 0);
    }
    struct request *c = submit_of(&w, two, 20, 10, 200);
    step_once(&w, 0);
    assert_int_equal(w.s->entries.running_count, 4);
    for (int i = 0; i < 20 && w.s->stats.preemptions == 0; i++)
        step_once(&w, 0);
    assert_int_equal(w.s->stats.preemptions, 1);
    assert_int_equal(c->preemptions, 1);
    run_out(&w);
    for (int i = 0; i < 3; i++)
        request_unref(a[i]);
    request_unref(c);
    close_world(&w);
}

/* Priority stands above what anybody has been served. */
static void priority_comes_first(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.priority_policy = true;
    p.limits.value[LIMIT_RUNNING_SEQS] = 1;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit_of(&w, one, 12, 4, 1);
    plan(&w, 12);
    land(&w);
    struct request *b = submit_of(&w, two, 12, 2, 100);
    struct request *c = submit_of(&w, one, 12, 2, 900); /* more important */
    while (atomic_load(&a->state) != REQ_DONE) {
        plan(&w, 1);
        land(&w);
    }
    plan(&w, 12);
    assert_int_equal(atomic_load(&c->state), REQ_RUNNING);
    assert_int_equal(atomic_load(&b->state), REQ_WAITING);
    land(&w);
    run_out(&w);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

/* How many slots a tenant's requests have. */
static uint32_t slots_of(const struct world *w, uint32_t tenant)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < w->s->entries.running_count; i++)
        n += entries_running(&w->s->entries, i)->tenant == tenant;
    return n;
}

/* All slots are one tenant's for long; others come. What it and they have after a while, and how
 * many gave way for that. */
static void share_slots(const struct tenant_ref *other, uint32_t others, uint64_t later_us,
                        uint32_t ret_slots[2], uint64_t *ret_yielded)
{
    struct engine_params p = params();
    struct world w;
    struct request *r[10];
    open_world(&w, &p);
    for (int32_t i = 0; i < 6; i++)
        r[i] = submit_of(&w, one, 4, 60, 10 + 20 * i);
    for (int i = 0; i < 3; i++)
        step_once(&w, 0);
    assert_int_equal(slots_of(&w, 1), 4);
    for (uint32_t i = 0; i < others; i++)
        r[6 + i] = submit_of(&w, *other, 4, 60, 300 + 20 * (int32_t)i);
    step_once(&w, 0);
    w.now_us += later_us;
    for (int i = 0; i < 12; i++)
        step_once(&w, 0);
    ret_slots[0] = slots_of(&w, 1);
    ret_slots[1] = slots_of(&w, 2);
    assert_int_equal(w.s->stats.preemptions, 0); /* of blocks there are enough until here */
    *ret_yielded = w.s->stats.slots_yielded;
    run_out(&w); /* who gave way goes on */
    for (uint32_t i = 0; i < 6 + others; i++) {
        assert_int_equal(r[i]->finish, REQ_FIN_LENGTH);
        assert_int_equal(r[i]->out_count, 60);
        request_unref(r[i]);
    }
    close_world(&w);
}

static void shares_slots_by_weight(void **state)
{
    static const struct {
        const struct tenant_ref *other;
        uint32_t others;
        uint64_t later_us;
        uint32_t mine, theirs;
    } cases[] = {
        {&two, 1, 0, 4, 0},      /* it has not waited for long */
        {&two, 1, 300000, 3, 1}, /* */
        {&two, 3, 300000, 2, 2}, /* half of them, never more */
        {&triple, 4, 300000, 1, 3},
        {&light, 3, 300000, 3, 1}, /* less than one by its weight is one */
        {&one, 3, 300000, 4, 0},   /* a tenant's own wait for their turn */
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        uint32_t slots[2];
        uint64_t yielded;
        share_slots(cases[i].other, cases[i].others, cases[i].later_us, slots, &yielded);
        assert_int_equal(slots[0], cases[i].mine);
        assert_int_equal(slots[1], cases[i].theirs);
        assert_int_equal(yielded, cases[i].theirs);
    }
}

/* One tenant has all slots. */
static void open_full(struct world *w, const struct engine_params *p, uint32_t tokens,
                      struct request *a[4])
{
    open_world(w, p);
    for (int32_t i = 0; i < 4; i++)
        a[i] = submit_of(w, one, tokens, 127 - tokens, 200 * i);
    for (int i = 0; i < 50 && a[3]->out_count == 0; i++)
        step_once(w, 0);
    assert_int_equal(slots_of(w, 1), 4);
}

/* A slot that was given away is no sign of too little memory, however long its request waits. */
static void a_slot_given_is_no_lack_of_memory(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    struct world w;
    struct request *a[4];
    open_full(&w, &p, 20, a);
    struct request *b = submit_of(&w, two, 4, 40, 900);
    double caution = w.s->stats.caution;
    for (int i = 0; i < 30; i++) {
        w.now_us += 200000;
        step_once(&w, 0);
        assert_true(w.s->admission.held == HELD_LIMIT || w.s->admission.held == HELD_NONE);
    }
    assert_int_equal(w.s->stats.slots_yielded, 1);
    assert_true(w.s->entries.at[a[3]->entry].waits_us > a[3]->queued_us); /* its wait begins anew */
    assert_int_equal(b->finish, REQ_FIN_NONE); /* and one of the others waits for seconds */
    run_out(&w);
    assert_int_equal(a[3]->preemptions, 1);
    assert_int_equal(w.s->stats.stalls, 0);
    assert_true(w.s->stats.caution == caution);
    assert_int_equal(w.s->stats.recomputed_tokens, 0);
    assert_true(w.s->stats.yielded_tokens > 20);
    assert_int_equal(w.s->stats.preemption_lost_us, 0);
    assert_true(gaps_largest(&w.s->gaps, w.now_us) < 1000000);
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
    struct engine_params p = roomy();
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 8;
    struct world w;
    struct request *a[4], *b = NULL;
    uint32_t made[4] = {0}, times[4] = {0}, again = 0;
    open_full(&w, &p, 64, a);
    for (int i = 0; i < 160; i++) {
        if (!b)
            b = submit_of(&w, two, 4, 2, 900);
        w.now_us += 100000;
        step_once(&w, 0);
        for (int k = 0; k < 4; k++) {
            if (a[k]->preemptions == times[k])
                continue;
            again += times[k] > 0;
            assert_true(times[k] == 0 || a[k]->out_count >= made[k] + 4); /* a 16th of 64 */
            times[k] = a[k]->preemptions;
            made[k] = a[k]->out_count;
        }
        if (b->finish != REQ_FIN_NONE) {
            request_unref(b);
            b = NULL;
        }
    }
    assert_true(again > 0);
    run_out(&w);
    for (int i = 0; i < 4; i++)
        request_unref(a[i]);
    if (b)
        request_unref(b);
    close_world(&w);
}

/* No slot is given where what waits could not take it. */
static void no_slot_is_given_in_vain(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    struct request *a[4];
    open_full(&w, &p, 16, a);
    struct request *b = submit_of(&w, two, 100, 2, 500); /* 25 blocks, and at most 17 are free */
    step_once(&w, 0);
    w.now_us += 300000;
    step_once(&w, 0);
    assert_int_equal(w.s->stats.slots_yielded, 0);
    sched_finish(w.s, b, REQ_FIN_ABORT, 0, w.now_us);
    request_unref(b);
    b = submit_of(&w, two, 4, 2, 500);
    w.now_us += 300000;
    w.s->entries.admitted_count += 100; /* as many have been preempted */
    plan(&w, 4);
    w.s->entries.admitted_count -= 100;
    land(&w);
    assert_int_equal(w.s->stats.slots_yielded, 0);
    plan(&w, 3);
    land(&w);
    assert_int_equal(w.s->stats.slots_yielded, 1);
    run_out(&w);
    for (int i = 0; i < 4; i++)
        request_unref(a[i]);
    request_unref(b);
    close_world(&w);
}

/* Those that gave their slots away do not keep the next tenants out. */
static void many_tenants_share_slots(void **state)
{
    (void)state;
    struct engine_params p = roomy();
    p.max_seqs = 12;
    p.limits.value[LIMIT_RUNNING_SEQS] = 12;
    p.limits.ceiling[LIMIT_QUEUED_REQS] = 60;
    p.blocks = 1000;
    struct world w;
    struct request *r[60];
    open_world(&w, &p);
    for (uint32_t t = 1; t <= 5; t++) {
        for (uint32_t i = 0; i < 12; i++)
            r[12 * (t - 1) + i] = submit_of(&w, (struct tenant_ref){.place = t, .stamp = t}, 4, 100,
                                            (int32_t)(t * 150 + i * 10));
        for (int i = 0; i < 16; i++) {
            w.now_us += 100000;
            step_once(&w, 0);
        }
        assert_int_equal(w.s->entries.running_count, 12);
        for (uint32_t k = 1; k <= t; k++)
            assert_in_range(slots_of(&w, k), 12 / t, (12 + t - 1) / t);
    }
    for (int i = 0; i < 60; i++)
        sched_finish(w.s, r[i], REQ_FIN_ABORT, 0, w.now_us);
    for (int i = 0; i < 60; i++)
        request_unref(r[i]);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_by_weight),
        cmocka_unit_test(shares_slots_by_weight),
        cmocka_unit_test(a_slot_given_is_no_lack_of_memory),
        cmocka_unit_test(all_get_on_beside_short_ones),
        cmocka_unit_test(no_slot_is_given_in_vain),
        cmocka_unit_test(many_tenants_share_slots),
        cmocka_unit_test(counts_masks_by_their_work),
        cmocka_unit_test(lifts_who_was_idle),
        cmocka_unit_test(lifts_to_what_was_answered_since),
        cmocka_unit_test(another_key_with_live_requests_saves_nothing),
        cmocka_unit_test(another_key_at_a_place_begins_anew),
        cmocka_unit_test(a_flood_does_not_hold_up_others),
        cmocka_unit_test(serves_by_weight),
        cmocka_unit_test(who_holds_most_gives_way),
        cmocka_unit_test(shared_blocks_are_nobodys_own),
        cmocka_unit_test(priority_comes_first),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
