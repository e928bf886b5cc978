/* Who is refused for the wait, and when, while the head of the queue lacks blocks. */
#include <errno.h>

#include "tests/unit/engine/world.h"

#define DEADLINE_US 10000000u
#define EARLIER_US  5000u /* a step takes 1000 */

struct queue_world {
    struct world w;
    struct request *runs, *head, *behind;
    uint64_t since_us; /* both wait */
};

static void one_step(struct world *w)
{
    struct ek_step *step = w->steps[w->s->flights.first];

    if (sched_plan(w->s, w->now_us, step) == 0)
        return;
    assert_int_equal(null_backend.forward(w->d, step), 0);
    land(w);
}

/* One runs that holds half of the pool, one with more than the other half is the head, and a small
 * one waits behind it. */
static void open_queue(struct queue_world *q, struct engine_params *p, struct tenant_ref second,
                       uint32_t runs_tokens, uint32_t head_tokens)
{
    const struct tenant_ref first = {0};

    p->limits.value[LIMIT_QUEUE_DEADLINE] = DEADLINE_US;
    open_world(&q->w, p);
    q->runs = submit_of(&q->w, first, 64, runs_tokens, 100);
    for (int i = 0; i < 5; i++)
        one_step(&q->w);
    q->since_us = q->w.now_us;
    q->head = submit_of(&q->w, second, 80, head_tokens, 300);
    q->behind = submit_of(&q->w, second, 4, 1, 500);
    one_step(&q->w);
    assert_int_equal(q->w.s->admission.held, HELD_BLOCKS);
}

static void close_queue(struct queue_world *q)
{
    sched_finish_all(q->w.s, REQ_FIN_DEADLINE, 0, q->w.now_us);
    request_unref(q->runs);
    request_unref(q->head);
    request_unref(q->behind);
    close_world(&q->w);
}

/* Plans one step so long after they came. */
static void plan_at(struct queue_world *q, uint64_t after_us)
{
    assert_true(q->w.now_us <= q->since_us + after_us);
    q->w.now_us = q->since_us + after_us;
    one_step(&q->w);
}

static void waits(const struct request *r)
{
    assert_int_equal(atomic_load(&r->state), REQ_WAITING);
}

static void is_refused(const struct request *r)
{
    assert_int_equal(atomic_load(&r->state), REQ_DONE);
    assert_int_equal(r->finish, REQ_FIN_ERROR);
    assert_int_equal(r->error, -ETIMEDOUT);
}

static void a_costly_head_makes_way(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct queue_world q;
    open_queue(&q, &p, (struct tenant_ref){0}, 20, 40);
    plan_at(&q, DEADLINE_US / 4 * 3 - EARLIER_US);
    waits(q.head);
    waits(q.behind);
    plan_at(&q, DEADLINE_US / 4 * 3);
    is_refused(q.head);
    assert_int_not_equal(atomic_load(&q.behind->state), REQ_WAITING); /* it fits at once */
    assert_int_equal(q.w.s->stats.refused_deadline, 1);
    close_queue(&q);
}

static void a_cheap_head_keeps_its_turn(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct queue_world q;
    open_queue(&q, &p, (struct tenant_ref){0}, 60, 40);
    plan_at(&q, DEADLINE_US / 10 * 9 - EARLIER_US);
    waits(q.head);
    waits(q.behind);
    plan_at(&q, DEADLINE_US / 10 * 9);
    waits(q.head);
    is_refused(q.behind);
    plan_at(&q, DEADLINE_US - EARLIER_US);
    waits(q.head);
    plan_at(&q, DEADLINE_US);
    is_refused(q.head);
    assert_int_equal(q.w.s->stats.refused_deadline, 2);
    close_queue(&q);
}

/* It costs more than those of others, and just what its own tenant's do. */
static void costs_are_compared_within_a_tenant(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct queue_world q;
    open_queue(&q, &p, (struct tenant_ref){.place = 1, .stamp = 7}, 20, 40);
    struct request *another = submit_of(&q.w, (struct tenant_ref){.place = 1, .stamp = 7}, 80, 48,
                                        700); /* the mean is above the head's cost now */
    for (int i = 0; i < 200; i++)
        sched_refuse_note(q.w.s, &q.w.s->entries.at[another->entry]);
    plan_at(&q, DEADLINE_US - EARLIER_US);
    waits(q.head);
    is_refused(q.behind);
    plan_at(&q, DEADLINE_US);
    is_refused(q.head);
    close_queue(&q);
    request_unref(another);
}

static void the_most_important_one_keeps_its_turn(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.priority_policy = true;
    struct queue_world q;
    open_queue(&q, &p, (struct tenant_ref){0}, 20, 40);
    plan_at(&q, DEADLINE_US - EARLIER_US);
    waits(q.head);
    plan_at(&q, DEADLINE_US);
    is_refused(q.head);
    close_queue(&q);
}

/* A limit of one sequence holds it, no lack of blocks: nobody is refused early. */
static void a_limit_is_no_lack(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct queue_world q;
    open_queue(&q, &p, (struct tenant_ref){0}, 20, 40);
    sched_finish(q.w.s, q.head, REQ_FIN_ABORT, 0, q.w.now_us);
    struct limits l = p.limits;
    l.value[LIMIT_RUNNING_SEQS] = 1;
    sched_limits(q.w.s, &l, q.w.now_us);
    plan_at(&q, DEADLINE_US - EARLIER_US);
    waits(q.behind);
    plan_at(&q, DEADLINE_US);
    is_refused(q.behind);
    close_queue(&q);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_costly_head_makes_way),
        cmocka_unit_test(a_cheap_head_keeps_its_turn),
        cmocka_unit_test(costs_are_compared_within_a_tenant),
        cmocka_unit_test(the_most_important_one_keeps_its_turn),
        cmocka_unit_test(a_limit_is_no_lack),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
