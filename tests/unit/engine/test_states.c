/* Snapshots of recurrent state: the pool by itself, and who goes on from one on the null backend,
 * which fails when a position is computed twice or upon another state than its own. */
#include <errno.h>

#include "tests/unit/alloc.h"
#include "tests/unit/engine/world.h"

enum { EVERY = 8 };

static void test_pool(void **state)
{
    (void)state;
    struct states s;

    assert_int_equal(states_init(&s, 4, 6, 20), 0);
    assert_null(states_check(&s, 0));
    uint32_t a = states_take(&s, 1), b = states_take(&s, 2);
    assert_true(a != b && a < 2 && b < 2);
    assert_int_equal(states_take(&s, 2), STATES_NONE); /* those that are pending stay */
    assert_null(states_check(&s, 2));
    states_keep(&s, a, 7);
    states_keep(&s, b, 8);
    assert_int_equal(states_find(&s, 7), a);
    assert_int_equal(states_find(&s, 9), STATES_NONE);
    states_touch(&s, a);
    assert_int_equal(states_take(&s, 3), b); /* used least recently */
    assert_int_equal(states_find(&s, 8), STATES_NONE);
    states_keep(&s, b, 7); /* it has one */
    assert_int_equal(states_find(&s, 7), a);
    assert_null(states_check(&s, 0));
    states_move(&s, 7, 11);
    states_move(&s, 9, 12); /* none */
    assert_int_equal(states_find(&s, 11), a);
    states_forget(&s, 7);
    states_cancel(&s, 2);
    assert_int_equal(s.kept, 1);
    states_cancel(&s, 1); /* what fills it */
    assert_int_equal(s.kept, 0);
    assert_null(states_check(&s, 0));
    a = states_take(&s, 4);
    s.at[a].owner = 9;
    states_keep(&s, a, 7);
    b = states_take(&s, 5); /* one that stays: the block's is not the slot's alone any more */
    states_keep(&s, b, 7);
    assert_int_equal(s.at[a].owner, 0);
    assert_null(states_check(&s, 0));
    states_done(&s);
}

static void test_pool_is_all_or_nothing(void **state)
{
    (void)state;
    struct states s;

    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = states_init(&s, 4, 6, 20);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(s.at);
    }
    states_done(&s);
    assert_int_equal(states_init(&s, 4, 0, 20), 0); /* a model without */
    assert_false(s.on);
    states_forget(&s, 3);
    states_done(&s);
}

static void open_deep(struct world *w, uint32_t snapshots, uint32_t blocks, uint32_t depth)
{
    struct engine_params p = params();

    p.depth = depth;
    p.states = p.max_seqs + snapshots;
    p.states_every = EVERY;
    p.blocks = blocks;
    p.max_batched_tokens = 64;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 64;
    open_world(w, &p);
}

static void open_stateful(struct world *w, uint32_t snapshots, uint32_t blocks)
{
    open_deep(w, snapshots, blocks, 1);
}

/* A prompt with `shared` tokens that others have too. */
static struct request *ask(struct world *w, uint32_t shared, uint32_t own, int32_t first,
                           uint32_t max_new)
{
    int32_t prompt[128];

    for (uint32_t i = 0; i < shared + own; i++)
        prompt[i] = i < shared ? (int32_t)i : first + (int32_t)i;
    const struct req_ask ask = {.prompt = prompt,
                                .prompt_tokens = shared + own,
                                .max_new_tokens = max_new,
                                .sampling.top_p = 1,
                                .arrival_us = w->now_us};
    struct request *r = request_new(&ask);
    assert_non_null(r);
    request_ref(r);
    assert_int_equal(sched_submit(w->s, r, w->now_us), 0);
    return r;
}

/* How many tokens of the prompt were found. */
static uint32_t serve(struct world *w, uint32_t shared, uint32_t own, int32_t first,
                      uint32_t max_new)
{
    struct request *r = ask(w, shared, own, first, max_new);

    run_out(w);
    assert_int_equal(r->finish, REQ_FIN_LENGTH);
    uint32_t cached = r->cached_tokens;
    request_unref(r);
    return cached;
}

/* The last full block before the prompt's last token. */
static void test_same_prompt(void **state)
{
    (void)state;
    struct world w;

    open_stateful(&w, 4, 33);
    assert_int_equal(serve(&w, 21, 0, 0, 2), 0);
    assert_int_equal(w.s->stats.steps, 3); /* 20 and 1 of the prompt, and 1 of the answer */
    assert_int_equal(serve(&w, 21, 0, 0, 1), 20);
    assert_int_equal(serve(&w, 20, 0, 0, 1), 0); /* one block less has none: it gets one */
    assert_int_equal(serve(&w, 20, 0, 0, 1), 16);
    assert_int_equal(serve(&w, 7, 0, 0, 1), 0); /* not worth it */
    assert_int_equal(w.s->states.kept, 2);
    close_world(&w);
}

/* What two prompts share is found by the third one. */
static void test_shared_beginning(void **state)
{
    (void)state;
    struct world w;

    open_stateful(&w, 8, 60);
    assert_int_equal(serve(&w, 16, 5, 100, 1), 0);
    assert_int_equal(serve(&w, 16, 5, 200, 1), 0);
    assert_int_equal(serve(&w, 16, 5, 300, 1), 16);
    assert_int_equal(serve(&w, 16, 20, 400, 1), 16);
    assert_int_equal(serve(&w, 16, 20, 400, 1), 32);
    close_world(&w);
}

/* An answer leaves one snapshot, the newest, however long it is. */
static void test_dialogue(void **state)
{
    (void)state;
    struct world w;
    int32_t turn[80];

    open_stateful(&w, 8, 60);
    struct request *r = ask(&w, 9, 0, 0, 45);
    run_out(&w);
    assert_int_equal(w.s->states.kept, 2); /* of the prompt: 8, of the answer: 48 */
    for (uint32_t i = 0; i < 54; i++)
        turn[i] = i < 9 ? (int32_t)i : r->out[i - 9].id;
    turn[54] = 999;
    struct req_ask next = {
        .prompt = turn, .prompt_tokens = 55, .max_new_tokens = 1, .sampling.top_p = 1};
    struct request *n = request_new(&next);
    request_ref(n);
    assert_int_equal(sched_submit(w.s, n, w.now_us), 0);
    run_out(&w);
    assert_int_equal(n->cached_tokens, 48);
    request_unref(n);
    request_unref(r);
    close_world(&w);
}

static void test_without_snapshots(void **state)
{
    (void)state;
    struct world w;

    open_stateful(&w, 0, 33);
    for (int i = 0; i < 2; i++)
        assert_int_equal(serve(&w, 21, 0, 0, 2), 0);
    assert_int_equal(w.s->stats.steps, 4); /* the prompt in one piece */
    assert_int_equal(w.s->blocks.cached.count, 0);
    close_world(&w);
}

/* Of few snapshots those go that nobody used for longest; a block that is evicted takes its own. */
static void test_eviction(void **state)
{
    (void)state;
    struct world w;

    open_stateful(&w, 2, 33);
    for (int32_t i = 1; i < 4; i++)
        assert_int_equal(serve(&w, 0, 21, 100 * i, 1), 0);
    assert_int_equal(w.s->states.evicted, 1);
    assert_int_equal(serve(&w, 0, 21, 200, 1), 20);
    assert_int_equal(serve(&w, 0, 21, 100, 1), 0);
    assert_int_equal(serve(&w, 0, 21, 200, 1), 20);
    assert_int_equal(serve(&w, 0, 120, 500, 1), 0); /* takes all blocks but one or two */
    assert_int_equal(w.s->states.kept, 2);          /* its own, where its two pieces end */
    sched_reset_prefix(w.s);
    assert_int_equal(w.s->states.kept, 0);
    close_world(&w);
}

/* Who is preempted goes on from its newest snapshot, not from its first token. */
static void test_preemption(void **state)
{
    (void)state;
    struct world w;

    open_stateful(&w, 8, 18);
    struct request *a = ask(&w, 0, 17, 100, 30), *b = ask(&w, 0, 17, 300, 30);
    run_out(&w);
    assert_true(a->preemptions + b->preemptions > 0);
    assert_true(w.s->states.used > 0);
    assert_int_equal(a->finish + b->finish, 2 * REQ_FIN_LENGTH);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* A step that is taken back has changed states nobody knows how: its requests begin again. */
static void test_taken_back(void **state)
{
    (void)state;
    struct world w;

    open_stateful(&w, 8, 33);
    struct request *r = ask(&w, 21, 0, 0, 4);
    (void)plan(&w, 20);
    land(&w);
    (void)plan(&w, 1); /* with a snapshot of 20 tokens, which never came to be */
    assert_int_equal(w.s->states.kept, 1);
    w.d->wait_fails = -ENOMEM;
    assert_int_equal(
        null_backend.wait(w.d, w.s->flights.at[w.s->flights.first].id, w.result, w.bytes, 0), 0);
    sched_cancel(w.s, 0, w.now_us);
    assert_null(sched_check(w.s));
    assert_int_equal(w.s->states.kept, 0);
    assert_int_equal(w.s->entries.running_count, 0);
    run_out(&w);
    assert_int_equal(r->finish, REQ_FIN_LENGTH);
    assert_int_equal(r->replays, 1);
    request_unref(r);
    close_world(&w);
}

/* Names go while a snapshot waits for one: it is free at once, not when its sequence ends. */
static void test_reset(void **state)
{
    (void)state;
    struct world w;

    open_deep(&w, 1, 33, 2);
    struct request *r = ask(&w, 21, 0, 0, 4);
    (void)plan(&w, 20);
    (void)plan(&w, 1);
    assert_int_equal(w.s->states.pending, 1);
    sched_reset_prefix(w.s);
    assert_int_equal(w.s->states.pending, 0);
    assert_null(sched_check(w.s));
    land(&w);
    land(&w);
    run_out(&w);
    assert_int_equal(r->finish, REQ_FIN_LENGTH);
    request_unref(r);
    close_world(&w);
}

/* States that do not go with the host tier, or are fewer than sequences. */
static void test_sizes(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct sched *s = NULL;

    p.states = p.max_seqs - 1;
    assert_int_equal(sched_new(&p, &s), -EINVAL);
    p.states = p.max_seqs;
    p.host_blocks = 8;
    assert_int_equal(sched_new(&p, &s), -EINVAL);
    p.host_blocks = 0;
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = sched_new(&p, &s);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
    }
    sched_free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pool),        cmocka_unit_test(test_pool_is_all_or_nothing),
        cmocka_unit_test(test_same_prompt), cmocka_unit_test(test_shared_beginning),
        cmocka_unit_test(test_dialogue),    cmocka_unit_test(test_without_snapshots),
        cmocka_unit_test(test_eviction),    cmocka_unit_test(test_preemption),
        cmocka_unit_test(test_taken_back),  cmocka_unit_test(test_reset),
        cmocka_unit_test(test_sizes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
