/* The scheduler's decisions, one by one, on the null backend. The simulation covers the rest. */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "tests/unit/alloc.h"
#include "tests/unit/engine/world.h"

static void chunks_beside_decodes(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 3, 9, 100), *b = submit(&w, 30, 2, 200);
    const struct ek_step *step = plan(&w, 16); /* 3 of a, 13 of b */
    assert_int_equal(step->seqs, 2);
    assert_int_equal(step->logit_rows, 1); /* b's chunk is not the last */
    assert_int_equal(step->sets, 2);
    land(&w);
    assert_int_equal(atomic_load(&a->out_count), 1);
    assert_int_equal(atomic_load(&b->out_count), 0);
    step = plan(&w, 16); /* a decodes, 15 of b */
    assert_int_equal(ek_step_seqs(step)[0].rows, 1);
    assert_int_equal(ek_step_seqs(step)[1].rows, 15);
    assert_int_equal(step->sets, 0);
    land(&w);
    step = plan(&w, 3); /* a decodes, the last 2 of b */
    assert_int_equal(step->logit_rows, 2);
    land(&w);
    assert_int_equal(atomic_load(&b->out_count), 1);
    run_out(&w);
    assert_int_equal(b->finish, REQ_FIN_LENGTH);
    assert_int_equal(atomic_load(&a->out_count), 9);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void takes_tokens_from_the_step_before(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.depth = 2;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 3, 3, 100);
    plan(&w, 3);
    const struct ek_step *step = plan(&w, 1);
    assert_int_equal(ek_step_tokens(step)[0], EK_FROM_PREVIOUS);
    land(&w);
    plan(&w, 1);
    land(&w);
    plan(&w, 0); /* the step in flight samples the last token */
    land(&w);
    assert_int_equal(a->finish, REQ_FIN_LENGTH);
    assert_true(sched_idle(w.s));
    request_unref(a);
    close_world(&w);
}

static void drops_the_token_after_a_stop(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.depth = 2;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 3, 50, 100);
    plan(&w, 3);
    plan(&w, 1);
    sched_finish(w.s, a, REQ_FIN_ABORT, 0, w.now_us);
    assert_int_equal(atomic_load(&a->state), REQ_DONE);
    assert_int_equal(w.s->blocks.referenced, 1); /* steps in flight write there */
    land(&w);
    assert_int_equal(w.s->blocks.referenced, 1);
    land(&w);
    assert_int_equal(w.s->blocks.referenced, 0);
    assert_int_equal(atomic_load(&a->out_count), 0);
    request_unref(a);
    close_world(&w);
}

static void preempts_the_last_and_resumes_it(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.blocks = 9; /* 8 blocks of 4 tokens */
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 8, 20, 100), *b = submit(&w, 8, 20, 300);
    while (w.s->stats.preemptions == 0) {
        assert_true(sched_plan(w.s, w.now_us, w.steps[w.s->flights.first]) > 0);
        assert_int_equal(null_backend.forward(w.d, w.steps[w.s->flights.first]), 0);
        land(&w);
    }
    assert_int_equal(a->preemptions, 0);
    assert_int_equal(b->preemptions, 1);
    assert_int_equal(atomic_load(&b->state), REQ_PREEMPTED);
    uint32_t kept = atomic_load(&b->out_count);
    assert_true(kept > 0);
    run_out(&w);
    assert_int_equal(atomic_load(&a->out_count), 20);
    assert_int_equal(atomic_load(&b->out_count), 20);
    assert_true(w.s->stats.recomputed_tokens > 0);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void pauses_between_marks(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.blocks = 11; /* 10 blocks of 4 tokens */
    p.max_batched_tokens = 32;
    p.limits.value[LIMIT_BATCHED_TOKENS] = 32;
    p.limits.value[LIMIT_ADMISSION_HIGH] = 600000;
    p.limits.value[LIMIT_ADMISSION_LOW] = 400000;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 12, 3, 100), *b = submit(&w, 12, 12, 200);
    struct request *c = submit(&w, 4, 2, 300);
    step_once(&w, 0); /* a, and of b what the budget holds; c waits above 6 of 10 blocks */
    assert_int_equal(w.s->entries.running_count, 2);
    assert_true(w.s->admission.paused);
    assert_int_equal(w.s->stats.admission_pauses, 1);
    while (atomic_load(&a->state) != REQ_DONE)
        step_once(&w, 0);
    assert_int_equal(atomic_load(&c->state), REQ_WAITING);
    step_once(&w, 0); /* b alone holds 4, which is not below 4 of 10 */
    assert_int_equal(atomic_load(&c->state), REQ_WAITING);
    run_out(&w); /* with nobody running c is admitted */
    assert_int_equal(c->finish, REQ_FIN_LENGTH);
    assert_false(w.s->admission.paused);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

static void switches_the_prefix_cache(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *r[5];
    r[0] = submit(&w, 12, 1, 100);
    run_out(&w);
    r[1] = submit(&w, 12, 9, 100);
    step_once(&w, 0);
    sched_reset_prefix(w.s); /* while r[1] runs */
    assert_null(sched_check(w.s));
    assert_int_equal(w.s->blocks.cached.count, 0);
    run_out(&w);
    assert_int_equal(w.s->prefix.count, 0);
    r[2] = submit(&w, 12, 1, 100);
    run_out(&w);
    assert_int_equal(r[2]->cached_tokens, 0);
    p.limits.value[LIMIT_PREFIX_CACHING] = 0;
    sched_limits(w.s, &p.limits, w.now_us);
    r[3] = submit(&w, 12, 1, 100);
    run_out(&w);
    assert_int_equal(w.s->blocks.cached.count, 0);
    p.limits.value[LIMIT_PREFIX_CACHING] = 1;
    sched_limits(w.s, &p.limits, w.now_us);
    r[4] = submit(&w, 12, 1, 100);
    run_out(&w);
    assert_int_equal(w.s->blocks.cached.count, 3);
    assert_int_equal(w.s->stats.window_queries,
                     4 * 12); /* the one without a cache is not counted */
    assert_int_equal(w.s->stats.window_hits, 8);
    for (int i = 0; i < 5; i++)
        request_unref(r[i]);
    close_world(&w);
}

static void shows_room(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct engine_stats st;
    struct world w;
    open_world(&w, &p);
    sched_stats(w.s, 0, &st);
    assert_int_equal(st.fit_longest, 1); /* 32 blocks, 128 tokens of 4 */
    assert_int_equal(st.fit_average, 1);
    struct request *a = submit(&w, 10, 4, 100), *b = submit(&w, 5, 4, 200);
    step_once(&w, 0);
    sched_stats(w.s, 0, &st);
    assert_int_equal(st.blocks_used, 5);
    assert_true(st.request_blocks == 2.5);
    assert_int_equal(st.fit_average, 10); /* 27 / 2.5 */
    assert_int_equal(st.table_pairs, 3);
    assert_int_equal(st.table_adjacent, 3);
    run_out(&w);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void shares_a_prefix(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 12, 1, 100);
    run_out(&w);
    struct request *b = submit(&w, 12, 1, 100);
    plan(&w, 4); /* of 3 full blocks, 2 are hit: the last token is always computed */
    land(&w);
    assert_int_equal(b->cached_tokens, 8);
    assert_int_equal(w.s->stats.prefix_queries, 24);
    assert_int_equal(w.s->stats.prefix_hits, 8);
    assert_int_equal(a->out[0].id, b->out[0].id);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void lowers_without_preempting(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *r[4];
    for (int i = 0; i < 4; i++)
        r[i] = submit(&w, 2, 6, 100 * i + 100);
    plan(&w, 8);
    land(&w);
    struct limits l = p.limits;
    l.value[LIMIT_RUNNING_SEQS] = 1;
    l.value[LIMIT_BATCHED_TOKENS] = 3; /* fewer than run: they take turns */
    sched_limits(w.s, &l, w.now_us);
    for (int i = 0; i < 4; i++) {
        plan(&w, 3);
        land(&w);
    }
    for (int i = 0; i < 4; i++)
        assert_true(atomic_load(&r[i]->out_count) >= 3);
    run_out(&w);
    assert_int_equal(w.s->stats.preemptions, 0);
    for (int i = 0; i < 4; i++)
        request_unref(r[i]);
    close_world(&w);
}

static void follows_priorities(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.priority_policy = true;
    p.limits.value[LIMIT_RUNNING_SEQS] = 1;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 2, 1, 100), *b = submit(&w, 2, 1, 200);
    struct request *c = submit(&w, 2, 1, 900); /* more important */
    plan(&w, 2);
    land(&w);
    assert_int_equal(atomic_load(&c->state), REQ_DONE);
    plan(&w, 2);
    land(&w);
    assert_int_equal(atomic_load(&a->state), REQ_DONE);
    run_out(&w);
    request_unref(a);
    request_unref(b);
    request_unref(c);
    close_world(&w);
}

static void refuses_what_waits_too_long(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.limits.value[LIMIT_RUNNING_SEQS] = 1;
    p.limits.value[LIMIT_QUEUE_DEADLINE] = 5000;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 2, 20, 100), *b = submit(&w, 2, 1, 200);
    plan(&w, 2);
    land(&w);
    w.now_us += 5000;
    plan(&w, 1);
    assert_int_equal(atomic_load(&b->state), REQ_DONE);
    assert_int_equal(b->finish, REQ_FIN_ERROR);
    assert_int_equal(b->error, -ETIMEDOUT);
    assert_int_equal(w.s->stats.refused_deadline, 1);
    land(&w);
    sched_finish_all(w.s, REQ_FIN_DEADLINE, 0, w.now_us);
    assert_int_equal(a->finish, REQ_FIN_DEADLINE);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void refuses_what_never_fits(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.blocks = 9;
    struct world w;
    open_world(&w, &p);
    struct ek_fault fault = {0};
    struct req_ask ask = {.prompt_tokens = 20, .max_new_tokens = 13};
    assert_int_equal(sched_fit(w.s, &ask, &fault),
                     0); /* 32 places for 33 tokens: the last has none */
    ask.max_new_tokens = 14;
    assert_int_equal(sched_fit(w.s, &ask, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "9 KV blocks of 4 tokens, but the pool has 8"));
    ask.max_new_tokens = UINT32_MAX;
    assert_int_equal(sched_fit(w.s, &ask, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "this model's maximum context length is"));
    close_world(&w);
}

static void takes_a_failed_step_back(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.depth = 2;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 3, 4, 100), *b = submit(&w, 6, 4, 200);
    plan(&w, 9);
    plan(&w, 2);
    null_backend.wait(w.d, 1, w.result, w.bytes, 0);
    null_backend.wait(w.d, 2, w.result, w.bytes, 0);
    sched_cancel(w.s, 0, w.now_us);
    sched_cancel(w.s, -ENOMEM, w.now_us);
    assert_null(sched_check(w.s));
    assert_int_equal(b->finish, REQ_FIN_ERROR); /* brought most rows */
    assert_int_equal(b->error, -ENOMEM);
    const struct ek_step *step = plan(&w, 3);
    assert_int_equal(step->sets, 1); /* the slot is set again */
    land(&w);
    assert_int_equal(atomic_load(&a->out_count), 1);
    sched_finish_all(w.s, REQ_FIN_ABORT, 0, w.now_us);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static void allocates_only_at_start(void **state)
{
    (void)state;
    struct engine_params p = params();
    for (long n = 1;; n++) {
        struct sched *s = NULL;
        alloc_fail_at(n);
        int r = sched_new(&p, &s);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            sched_free(s);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(s);
    }
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 30, 40, 100), *b = submit(&w, 30, 40, 300);
    unsigned long before = alloc_count();
    run_out(&w);
    assert_int_equal(alloc_count(), before);
    request_unref(a);
    request_unref(b);
    close_world(&w);
    p.max_batched_tokens = 3; /* fewer than the sequences */
    assert_int_equal(sched_new(&p, &w.s), -EINVAL);
}

/* Where frequencies change with the length of a long prompt, so do its keys. */
static void keeps_stretched_prompts_apart(void **state)
{
    static const struct {
        uint32_t first, second, cached;
    } cases[] = {{10, 12, 8}, {12, 13, 0}, {13, 13, 12}, {13, 15, 0}, {15, 12, 0}};
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_params p = params();
        struct world w;
        p.stretched_above = 12;
        open_world(&w, &p);
        struct request *a = submit(&w, cases[i].first, 1, 100);
        run_out(&w);
        struct request *b = submit(&w, cases[i].second, 1, 100);
        const struct ek_step *step = w.steps[w.s->flights.first];
        assert_ptr_equal(plan(&w, cases[i].second - cases[i].cached), step);
        assert_int_equal(ek_step_seqs(step)[0].prompt, cases[i].second);
        land(&w);
        assert_int_equal(b->cached_tokens, cases[i].cached);
        request_unref(a);
        request_unref(b);
        close_world(&w);
    }
}

/* Blocks count for whose share they are, which need not be what their names start from: a key's
 * requests have a salt for each that its client chose. */
static void counts_blocks_for_their_owner(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    int32_t prompt[12];
    open_world(&w, &p);
    for (int32_t i = 0; i < 12; i++)
        prompt[i] = i;
    const struct req_ask ask = {.prompt = prompt,
                                .prompt_tokens = 12,
                                .max_new_tokens = 3,
                                .sampling.top_p = 1,
                                .cache_salt = 77,
                                .cache_owner = 5};
    struct request *r = request_new(&ask);
    assert_non_null(r);
    request_ref(r);
    assert_int_equal(sched_submit(w.s, r, w.now_us), 0);
    plan(&w, 12);
    land(&w); /* and all is recounted */
    const struct slot *slot = &w.s->slots.at[w.s->entries.at[r->entry].slot];
    assert_int_equal(slot->named, 3);
    assert_int_equal(w.s->blocks.at[slots_table(&w.s->slots, 0)[0]].salt, 5);
    run_out(&w);
    request_unref(r);
    close_world(&w);
}

/* Cached tokens are a part of the prompts' tokens, so they are counted with them: what is shown as
 * computed is a counter, which must not go down between an admission and its first token. */
static void counts_cached_tokens_with_their_prompts(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct engine_stats st;
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 12, 1, 100);
    run_out(&w);
    struct request *b = submit(&w, 40, 1, 100); /* 12 are there: two steps of 16 and 12 */
    uint64_t fresh = 12;                        /* so far */
    while (!sched_idle(w.s)) {
        assert_true(sched_plan(w.s, w.now_us, w.steps[w.s->flights.first]) > 0);
        assert_int_equal(null_backend.forward(w.d, w.steps[w.s->flights.first]), 0);
        sched_stats(w.s, w.now_us, &st);
        assert_true(st.prompt_tokens - st.cached_tokens >= fresh);
        fresh = st.prompt_tokens - st.cached_tokens;
        land(&w);
    }
    sched_stats(w.s, w.now_us, &st);
    assert_int_equal(st.prompt_tokens, 52);
    assert_int_equal(st.cached_tokens, 12);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

/* What short prompts reach says nothing of how fast a queue of long ones is computed: the rate is
 * measured where the budget binds. */
static void measures_prompts_where_the_budget_binds(void **state)
{
    (void)state;
    struct engine_params p = params();
    struct world w;
    open_world(&w, &p);
    struct request *a = submit(&w, 2, 1, 100);
    plan(&w, 2);
    land(&w); /* 2 tokens in a millisecond, with room for 14 more */
    struct engine_stats st;
    sched_stats(w.s, w.now_us, &st);
    assert_true(st.prefill_rate == 0);
    struct request *b = submit(&w, 40, 1, 300);
    plan(&w, 16);
    land(&w);
    sched_stats(w.s, w.now_us, &st);
    assert_true(st.prefill_rate == 16000);
    plan(&w, 16);
    land(&w);
    plan(&w, 8);
    land(&w); /* the rest of it: no slower */
    sched_stats(w.s, w.now_us, &st);
    assert_true(st.prefill_rate == 16000);
    request_unref(a);
    request_unref(b);
    close_world(&w);
}

static struct request *submit_answer(struct world *w, uint32_t answers, uint32_t max_new,
                                     struct request *first)
{
    static const int32_t prompt[] = {5, 6, 7};
    const struct req_ask ask = {.prompt = prompt,
                                .prompt_tokens = 3,
                                .max_new_tokens = max_new,
                                .answers = answers,
                                .sampling.top_p = 1};
    struct request *r = request_new(&ask);
    assert_non_null(r);
    if (first)
        request_follow(r, first);
    request_ref(r);
    assert_int_equal(sched_submit(w->s, r, w->now_us), 0);
    return r;
}

/* As in vLLM: once for each prompt, when its last answer has ended, by the longest of them; not
 * where one of them did not end well. */
static void counts_a_prompt_with_its_answers_once(void **state)
{
    (void)state;
    struct engine_params p = params();
    p.limits.value[LIMIT_RUNNING_SEQS] = 4;
    struct world w;
    open_world(&w, &p);
    struct request *first = submit_answer(&w, 3, 2, NULL);
    struct request *others[] = {submit_answer(&w, 3, 9, first), submit_answer(&w, 3, 4, first)};
    request_unref(first); /* those that follow it have it still */
    while (atomic_load(&others[1]->state) != REQ_DONE)
        step_once(&w, 0);
    assert_int_equal(ek_hist_total(&w.s->stats.generation_len), 2);
    assert_int_equal(ek_hist_total(&w.s->stats.answers), 0);
    run_out(&w);
    assert_int_equal(ek_hist_total(&w.s->stats.answers), 1);
    assert_true(w.s->stats.answers.sum == 3 && w.s->stats.longest_answer.sum == 9);
    assert_int_equal(ek_hist_total(&w.s->stats.longest_answer), 1);

    struct request *whole = submit_answer(&w, 2, 6, NULL), *cut = submit_answer(&w, 2, 6, whole);
    step_once(&w, 0);
    sched_finish(w.s, cut, REQ_FIN_ABORT, 0, w.now_us);
    run_out(&w);
    struct request *one = submit(&w, 3, 5, 100);
    run_out(&w);
    assert_int_equal(ek_hist_total(&w.s->stats.answers), 2);
    assert_true(w.s->stats.answers.sum == 4 && w.s->stats.longest_answer.sum == 14);
    assert_int_equal(ek_hist_total(&w.s->stats.e2e), 5);
    struct request *const all[] = {others[0], others[1], whole, cut, one};
    for (size_t i = 0; i < sizeof(all) / sizeof(all[0]); i++)
        request_unref(all[i]);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(counts_blocks_for_their_owner),
        cmocka_unit_test(counts_cached_tokens_with_their_prompts),
        cmocka_unit_test(measures_prompts_where_the_budget_binds),
        cmocka_unit_test(chunks_beside_decodes),
        cmocka_unit_test(takes_tokens_from_the_step_before),
        cmocka_unit_test(drops_the_token_after_a_stop),
        cmocka_unit_test(preempts_the_last_and_resumes_it),
        cmocka_unit_test(pauses_between_marks),
        cmocka_unit_test(switches_the_prefix_cache),
        cmocka_unit_test(shows_room),
        cmocka_unit_test(shares_a_prefix),
        cmocka_unit_test(keeps_stretched_prompts_apart),
        cmocka_unit_test(lowers_without_preempting),
        cmocka_unit_test(follows_priorities),
        cmocka_unit_test(refuses_what_waits_too_long),
        cmocka_unit_test(refuses_what_never_fits),
        cmocka_unit_test(takes_a_failed_step_back),
        cmocka_unit_test(allocates_only_at_start),
        cmocka_unit_test(counts_a_prompt_with_its_answers_once),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
