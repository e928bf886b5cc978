/*
 * What masks may cost: a form that was made to take long is put off step by step and ended at last,
 * no step takes more than the credit there is, rows that are quick never wait for it, and a slow
 * row of another key comes before those of a key that has spent much.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/work.h"
#include "server/engine/constrain.h"
#include "server/engine/maskers.h"
#include "server/engine/request.h"
#include "server/grammar/compile.h"
#include "server/grammar/lexicon.h"
#include "tests/unit/engine/world.h"

#define WORDS_MOST    131072u
#define HOSTILE_RULES 90u

static char letters[WORDS_MOST][8];
static uint32_t words = 60000;

/* All single letters, then words of them. */
static const char *word_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    (void)ctx;
    if (token + 1 == (int32_t)words)
        return NULL;
    uint32_t x = (uint32_t)token * 2654435761u;
    size_t n = token < 26 ? 1 : 2 + (x >> 28) % 6;
    letters[token][0] = (char)('a' + token % 26);
    for (size_t i = 1; i < n; i++, x = x * 1664525u + 1013904223u)
        letters[token][i] = (char)('a' + (x >> 16) % 26);
    *ret_len = n;
    return letters[token];
}

static struct grammar *compile(enum grammar_kind kind, const char *text, size_t len,
                               const struct lexicon *l)
{
    struct grammar *g = NULL;
    struct ek_work work = {.fuel = GRAMMAR_FUEL};
    assert_int_equal(grammar_compile(kind, text, len, l, &work, &g, NULL), 0);
    return g;
}

/* At each letter any of many rules may have begun, and each letter leaves others of them. */
static struct grammar *hostile(const struct lexicon *l)
{
    struct ek_buf b = {0};
    (void)ek_buf_puts(&b, "root ::= (r0");
    for (uint32_t i = 1; i < HOSTILE_RULES; i++)
        (void)ek_buf_printf(&b, " | r%u", i);
    (void)ek_buf_puts(&b, ")*\n");
    for (uint32_t i = 0, x = 1; i < HOSTILE_RULES; i++) {
        (void)ek_buf_printf(&b, "r%u ::=", i);
        for (int k = 0; k < 8; k++) {
            (void)ek_buf_puts(&b, k ? " ([" : " [");
            for (char c = 'a'; c <= 'z'; c++, x = x * 1664525u + 1013904223u)
                if (x >> 31 == 0 || c == 'a' + (char)i % 26)
                    (void)ek_buf_printf(&b, "%c", c);
            (void)ek_buf_puts(&b, "]");
        }
        (void)ek_buf_puts(&b, ")?)?)?)?)?)?)?\n");
    }
    struct grammar *g = compile(GRAMMAR_EBNF, b.data, b.len, l);
    ek_buf_done(&b);
    return g;
}

static struct request *ask(struct world *w, struct grammar *g, uint64_t owner)
{
    static const int32_t prompt[] = {1, 2};
    struct req_ask a = {.prompt = prompt,
                        .prompt_tokens = 2,
                        .max_new_tokens = 1,
                        .sampling.top_p = 1,
                        .grammar = g,
                        .cache_owner = owner,
                        .tenant = {.place = (uint32_t)owner, .stamp = (uint32_t)owner}};
    struct request *r = request_new(&a);
    assert_non_null(r);
    request_ref(r);
    assert_int_equal(sched_submit(w->s, r, w->now_us), 0);
    return r;
}

struct masks {
    struct ek_masks *at;
    struct constrain c;
    uint64_t most; /* units that a step took of the credit */
};

/* One step: returns the rows that got a mask. */
static uint32_t step(struct world *w, struct masks *m)
{
    struct ek_step *s = w->steps[w->s->flights.first];
    if (sched_plan(w->s, ++w->now_us, s) == 0)
        return 0;
    assert_int_equal(null_backend.forward(w->d, s), 0);
    struct flight *f = &w->s->flights.at[w->s->flights.first];
    uint64_t before = m->c.credit + CONSTRAIN_STEP;
    uint32_t made = constrain_fill(&m->c, w->s, f, s, words, m->at);
    before = before < CONSTRAIN_MOST ? before : CONSTRAIN_MOST;
    assert_true(m->c.credit <= before);
    m->most = before - m->c.credit > m->most ? before - m->c.credit : m->most;
    assert_int_equal(null_backend.sample(w->d, s, m->at), 0);
    land(w);
    assert_null(sched_check(w->s));
    return made;
}

static bool done(const struct request *r)
{
    return atomic_load(&r->state) == REQ_DONE;
}

static void test_hostile(void **state)
{
    const int32_t end = (int32_t)words - 1;
    struct engine_params p = params();
    struct masks m = {.c = {.credit = CONSTRAIN_MOST}};
    struct lexicon *l;
    struct world w;
    (void)state;
    assert_int_equal(lexicon_new(words, word_bytes, NULL, &end, 1, &l), 0);
    m.at = calloc(1, constrain_bytes(4, words));
    open_world(&w, &p);
    struct grammar *bad = hostile(l), *plain = compile(GRAMMAR_REGEX, ".+", 2, l);

    struct grammar *cold = compile(GRAMMAR_REGEX, "[a-y]+", 6, l);
    grammar_warm(plain, NULL);

    struct request *slow[2], *other = NULL;
    for (int i = 0; i < 2; i++)
        slow[i] = ask(&w, bad, 7);
    uint32_t steps = 0, quick = 0;
    while (!(slow[0]->mask_refused && slow[1]->mask_refused)) {
        struct request *r = ask(&w, plain, 9);
        if (steps == 3)
            other = ask(&w, cold, 8);
        (void)step(&w, &m);
        assert_true(steps != 10 || done(other)); /* it has waited for credit only */
        assert_true(++steps < 1000);
        assert_true(done(r)); /* whatever the others do */
        quick++;
        request_unref(r);
    }
    assert_true(quick > 4 && m.c.put_off > 10);
    assert_int_equal(m.c.refused, 2);
    /* who sent it has paid for what it took, the others for a part of a token a mask */
    const struct tenant *t = w.s->tenants.at;
    assert_true(t[7].masks >= CONSTRAIN_TRIES * CONSTRAIN_MOST);
    assert_true(t[7].served >= CONSTRAIN_TRIES * CONSTRAIN_MOST / TENANT_MASK * TENANT_PRICE);
    assert_true(t[9].masks > 0 && t[9].masks < quick * (uint64_t)CONSTRAIN_QUICK / 4);
    assert_true(m.most <= CONSTRAIN_MOST);
    for (int i = 0; i < 2; i++)
        request_unref(slow[i]);
    request_unref(other);
    grammar_unref(cold);
    grammar_unref(bad);
    grammar_unref(plain);
    close_world(&w);
    lexicon_free(l);
    free(m.at);
}

/* The same with as many tokens as large models have: no more units for anybody. */
static void test_hostile_with_many_tokens(void **state)
{
    const uint32_t few = words;
    words = WORDS_MOST;
    test_hostile(state);
    words = few;
}

/* A row upon recurrent state is never put off: it has its mask in the step, or its request ends. */
static void test_recurrent(void **state)
{
    const int32_t end = (int32_t)words - 1;
    struct engine_params p = params();
    struct constrain c = {.credit = 0};
    struct lexicon *l;
    struct world w;
    (void)state;
    p.states = p.max_seqs;
    assert_int_equal(lexicon_new(words, word_bytes, NULL, &end, 1, &l), 0);
    struct ek_masks *masks = calloc(1, constrain_bytes(4, words));
    open_world(&w, &p);
    struct grammar *bad = hostile(l), *cold = compile(GRAMMAR_REGEX, "[a-y]+", 6, l);
    struct request *r[2] = {ask(&w, bad, 7), ask(&w, cold, 8)};
    struct ek_step *s = w.steps[w.s->flights.first];
    assert_int_equal(sched_plan(w.s, ++w.now_us, s), 4);
    assert_int_equal(null_backend.forward(w.d, s), 0);
    struct flight *f = &w.s->flights.at[w.s->flights.first];
    assert_int_equal(constrain_fill(&c, w.s, f, s, words, masks), 2);
    assert_int_equal(c.put_off, 0);
    assert_true(r[0]->mask_refused && !r[1]->mask_refused);
    assert_true(c.credit <= CONSTRAIN_MOST);
    land(&w);
    for (int i = 0; i < 2; i++)
        request_unref(r[i]);
    grammar_unref(cold);
    grammar_unref(bad);
    close_world(&w);
    lexicon_free(l);
    free(masks);
}

/* One step with threads for slow masks; *ret_bits, when given, is the row of r, or it is NULL. */
static void step_beside(struct world *w, struct masks *m, const struct request *r,
                        const uint32_t **ret_bits)
{
    struct ek_step *s = w->steps[w->s->flights.first];
    if (ret_bits)
        *ret_bits = NULL;
    constrain_look(&m->c, w->s);
    if (sched_plan(w->s, ++w->now_us, s) == 0)
        return;
    assert_int_equal(null_backend.forward(w->d, s), 0);
    struct flight *f = &w->s->flights.at[w->s->flights.first];
    (void)constrain_fill(&m->c, w->s, f, s, words, m->at);
    for (uint32_t i = 0; ret_bits && i < f->seqs; i++)
        if (w->s->entries.at[f->seq[i].entry].req == r && f->seq[i].sample && !f->seq[i].put_off)
            *ret_bits = m->at->bits + (size_t)ek_step_seqs(s)[i].logit_row * m->at->words;
    assert_int_equal(null_backend.sample(w->d, s, m->at), 0);
    land(w);
    assert_null(sched_check(w->s));
}

/* What the threads find is what is found here: the same bits, for a form that nobody warmed. */
static void test_threads(void **state)
{
    const int32_t end = (int32_t)words - 1;
    struct engine_params p = params();
    struct masks m = {0};
    struct lexicon *l;
    struct world w;
    const uint32_t *got = NULL;
    (void)state;
    assert_int_equal(lexicon_new(words, word_bytes, NULL, &end, 1, &l), 0);
    assert_int_equal(constrain_init(&m.c, words), 0);
    assert_non_null(m.c.maskers);
    m.at = calloc(1, constrain_bytes(4, words));
    open_world(&w, &p);
    struct grammar *bad = hostile(l), *plain = compile(GRAMMAR_REGEX, ".+", 2, l);
    struct grammar *cold = compile(GRAMMAR_REGEX, "[a-y]+", 6, l);
    struct grammar *same = compile(GRAMMAR_REGEX, "[a-y]+", 6, l);
    grammar_warm(plain, NULL);

    uint32_t *want = calloc(m.at->words + (words + 31) / 32, sizeof(*want)), first = 2, quick = 0;
    struct matcher direct;
    matcher_init(&direct, same);
    assert_true(matcher_follow(&direct, NULL, 0, 0) && matcher_mask(&direct, false, 1, want) > 0);

    struct request *slow[2] = {ask(&w, bad, 7), ask(&w, bad, 7)}, *other = ask(&w, cold, 8);
    bool seen = false;
    for (; !(slow[0]->mask_refused && slow[1]->mask_refused && done(other)); quick++) {
        struct request *r = ask(&w, plain, 9);
        step_beside(&w, &m, other, &got);
        if (got && !seen)
            assert_memory_equal(got, want, (words + 31) / 32 * sizeof(*want));
        seen |= got != NULL;
        assert_true(done(r)); /* whatever the others do */
        request_unref(r);
        assert_true(quick < 100000);
        if (quick > first)
            (void)usleep(100);
    }
    assert_true(seen && m.c.put_off > 0);
    assert_int_equal(m.c.refused, 2);
    const struct tenant *t = w.s->tenants.at;
    assert_true(t[7].masks >= CONSTRAIN_TRIES * CONSTRAIN_MOST);
    assert_true(t[9].masks > 0 && t[9].masks < (quick + 1) * (uint64_t)CONSTRAIN_QUICK / 4);
    for (int i = 0; i < 2; i++)
        request_unref(slow[i]);
    request_unref(other);
    constrain_done(&m.c);
    grammar_unref(cold);
    grammar_unref(same);
    grammar_unref(bad);
    grammar_unref(plain);
    close_world(&w);
    lexicon_free(l);
    free(want);
    free(m.at);
}

/* Rows that wait for the threads are in the few steps that their masks may be there for, and in
 * none while they wait for a place: what one key waits for makes no step of others longer. */
static void test_waits_in_no_step(void **state)
{
    const int32_t end = (int32_t)words - 1;
    struct engine_params p = params();
    struct request *slow[8];
    struct masks m = {0};
    struct lexicon *l;
    struct world w;
    (void)state;
    p.max_seqs = 12;
    p.limits.value[LIMIT_RUNNING_SEQS] = 12;
    p.limits.value[LIMIT_BATCHED_TOKENS] = p.max_batched_tokens = 32;
    p.limits.ceiling[LIMIT_QUEUED_REQS] = 16;
    assert_int_equal(lexicon_new(words, word_bytes, NULL, &end, 1, &l), 0);
    assert_int_equal(constrain_init(&m.c, words), 0);
    m.at = calloc(1, constrain_bytes(12, words));
    open_world(&w, &p);
    struct grammar *bad = hostile(l), *plain = compile(GRAMMAR_REGEX, ".+", 2, l);
    grammar_warm(plain, NULL);

    for (int i = 0; i < 8; i++)
        slow[i] = ask(&w, bad, 7);
    for (uint32_t i = 0; i < 100 || !done(slow[7]) || constrain_busy(&m.c); i++) {
        struct request *r = ask(&w, plain, 9);
        step_beside(&w, &m, NULL, NULL);
        assert_true(done(r));
        request_unref(r);
        assert_true(i < 1000000);
    }
    for (int i = 0; i < 8; i++) { /* they end for what their form is, one that waited alone, too */
        for (int k = 0; k < 100 && !done(slow[i]); k++)
            step_beside(&w, &m, NULL, NULL);
        assert_true(done(slow[i]) && slow[i]->mask_refused);
        request_unref(slow[i]);
    }
    assert_true(m.c.put_off >= 8 && m.c.put_off <= 8 * (1 + CONSTRAIN_VAIN));
    assert_true(w.s->tenants.at[7].masks <=
                8 * (CONSTRAIN_QUICK + CONSTRAIN_TRIES * CONSTRAIN_MOST));
    constrain_done(&m.c);
    grammar_unref(bad);
    grammar_unref(plain);
    close_world(&w);
    lexicon_free(l);
    free(m.at);
}

/* A world with room for many rows in a step, and threads for slow masks. */
static void open_wide(struct world *w, struct masks *m, uint32_t rows)
{
    struct engine_params p = params();

    p.max_seqs = p.limits.value[LIMIT_RUNNING_SEQS] = rows;
    p.limits.value[LIMIT_BATCHED_TOKENS] = p.max_batched_tokens = 2 * rows;
    p.limits.ceiling[LIMIT_QUEUED_REQS] = rows;
    p.blocks = 4 * rows;
    assert_int_equal(constrain_init(&m->c, words), 0);
    m->at = calloc(1, constrain_bytes(rows, words));
    open_world(w, &p);
}

static void close_wide(struct world *w, struct masks *m)
{
    constrain_done(&m->c);
    close_world(w);
    free(m->at);
}

/* How many of these are with the threads, but for those that have been seen there before. */
static uint32_t count_given(struct request *const *r, uint32_t n, bool *seen)
{
    uint32_t given = 0;

    for (uint32_t i = 0; i < n; i++) {
        given += r[i]->mask_given && !seen[i];
        seen[i] |= r[i]->mask_given;
    }
    return given;
}

/* One whose owner has as many jobs as it may have does not stand before those of others, though it
 * has spent less: they get the jobs that are free. */
static void test_an_owner_at_its_cap(void **state)
{
    const int32_t end = (int32_t)words - 1;
    struct request *many[8], *other;
    struct masks m = {0};
    struct lexicon *l;
    struct world w;
    (void)state;
    assert_int_equal(lexicon_new(words, word_bytes, NULL, &end, 1, &l), 0);
    open_wide(&w, &m, 12);
    struct grammar *bad = hostile(l), *cold = compile(GRAMMAR_REGEX, "[a-y]+", 6, l);
    for (int i = 0; i < 8; i++)
        many[i] = ask(&w, bad, 7);
    other = ask(&w, cold, 8);
    m.c.owner[0].owner = sched_owner(&w.s->entries.at[other->entry]);
    m.c.owner[0].spent = CONSTRAIN_MOST * 10ull;
    step_beside(&w, &m, NULL, NULL);
    assert_int_equal(count_given(many, 8, (bool[8]){0}), MASKERS_JOBS / 2);
    assert_true(other->mask_given);
    for (int i = 0; i < 8; i++)
        request_unref(many[i]);
    request_unref(other);
    close_wide(&w, &m);
    grammar_unref(cold);
    grammar_unref(bad);
    lexicon_free(l);
}

/* Many requests of one form that is new: what a thread found for one of them is known to all, so
 * that they go on together and not as many at a time as there are jobs. */
static void test_many_of_one_cold_form(void **state)
{
    const int32_t end = (int32_t)words - 1;
    struct request *r[64];
    struct masks m = {0};
    struct lexicon *l;
    struct world w;
    uint32_t left = 64, steps = 0, given = 0;
    bool seen[64] = {0};
    (void)state;
    assert_int_equal(lexicon_new(words, word_bytes, NULL, &end, 1, &l), 0);
    open_wide(&w, &m, 64);
    struct grammar *cold = compile(GRAMMAR_REGEX, "[a-y]+", 6, l);
    for (int i = 0; i < 64; i++)
        r[i] = ask(&w, cold, 7);
    for (; left > 0; steps++) {
        step_beside(&w, &m, NULL, NULL);
        given += count_given(r, 64, seen);
        while (constrain_busy(&m.c)) {
            constrain_look(&m.c, w.s);
            given += count_given(r, 64, seen);
            (void)usleep(100);
        }
        left = 0;
        for (int i = 0; i < 64; i++)
            left += !done(r[i]);
        assert_true(steps < 16);
    }
    assert_in_range(given, 1, MASKERS_JOBS / 2);
    assert_in_range(steps, 1, 4);
    for (int i = 0; i < 64; i++) {
        assert_false(r[i]->mask_refused);
        request_unref(r[i]);
    }
    close_wide(&w, &m);
    grammar_unref(cold);
    lexicon_free(l);
}

/* Requests whose masks are with the threads may end, and so may the engine. */
static void test_ends_beside_threads(void **state)
{
    const int32_t end = (int32_t)words - 1;
    struct engine_params p = params();
    struct masks m = {0};
    struct lexicon *l;
    struct world w;
    (void)state;
    assert_int_equal(lexicon_new(words, word_bytes, NULL, &end, 1, &l), 0);
    assert_int_equal(constrain_init(&m.c, words), 0);
    m.at = calloc(1, constrain_bytes(4, words));
    open_world(&w, &p);
    struct grammar *bad = hostile(l);
    for (int i = 0; i < 20; i++) {
        struct request *r = ask(&w, bad, 7);
        step_beside(&w, &m, r, NULL);
        assert_true(grammar_is_lent(bad) || grammar_given_up(bad));
        if (!done(r))
            sched_finish(w.s, r, REQ_FIN_ABORT, 0, ++w.now_us);
        assert_true(done(r));
        request_unref(r);
    }
    struct request *last = ask(&w, bad, 7);
    step_beside(&w, &m, last, NULL);
    constrain_done(&m.c);
    assert_false(grammar_is_lent(bad));
    request_unref(last);
    grammar_unref(bad);
    close_world(&w);
    lexicon_free(l);
    free(m.at);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hostile),
                                       cmocka_unit_test(test_hostile_with_many_tokens),
                                       cmocka_unit_test(test_recurrent),
                                       cmocka_unit_test(test_threads),
                                       cmocka_unit_test(test_waits_in_no_step),
                                       cmocka_unit_test(test_an_owner_at_its_cap),
                                       cmocka_unit_test(test_many_of_one_cold_form),
                                       cmocka_unit_test(test_ends_beside_threads)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
