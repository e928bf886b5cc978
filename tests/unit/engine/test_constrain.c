/*
 * What masks may cost: a form that was made to take long is put off step by step and ended at last,
 * no step takes more than the credit there is, rows that are quick never wait for it, and a slow
 * row of somebody else comes before those of whoever has spent much. Forms that people write never
 * end so, with the largest vocabularies, and wait for a few steps only.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/work.h"
#include "server/engine/constrain.h"
#include "server/engine/request.h"
#include "server/grammar/compile.h"
#include "server/grammar/lexicon.h"
#include "tests/unit/engine/world.h"

#define WORDS         60000u
#define HOSTILE_RULES 90u
#define LARGE         262144u
#define ANSWER        48u /* tokens */
#define WAIT_MOST     8u  /* steps that an honest form waits for a mask when no credit is left */

static char letters[WORDS][8];

/* All single letters, then words of them. */
static const char *word_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    (void)ctx;
    if (token + 1 == (int32_t)WORDS)
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
                        .top_p = 1,
                        .grammar = g,
                        .cache_owner = owner};
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
    struct ek_step *s = w->steps[w->s->flight_first];
    if (sched_plan(w->s, ++w->now_us, s) == 0)
        return 0;
    assert_int_equal(null_backend.forward(w->d, s), 0);
    struct flight *f = &w->s->flights[w->s->flight_first];
    uint64_t before = m->c.credit + CONSTRAIN_STEP;
    uint32_t made = constrain_fill(&m->c, w->s, f, s, WORDS, m->at);
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
    const int32_t end = (int32_t)WORDS - 1;
    struct engine_params p = params();
    struct masks m = {.c = {.credit = CONSTRAIN_MOST}};
    struct lexicon *l;
    struct world w;
    (void)state;
    assert_int_equal(lexicon_new(WORDS, word_bytes, NULL, &end, 1, &l), 0);
    m.at = calloc(1, constrain_bytes(4, WORDS));
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

/* ---- honest forms ---- */

/* All bytes, then words of many kinds: with a space before them, digits, punctuation, two bytes. */
static const char *large_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    static const char *const kind[] = {"etaoinshrdlucmfwypvbgkjqxz", "ETAOINSHRDLUabcdefgh",
                                       "0123456789", "{}[]\":,.-_/\\ \n"};
    static char word[16];
    (void)ctx;
    if (token + 1 == (int32_t)LARGE)
        return NULL;
    uint32_t x = (uint32_t)token * 2654435761u ^ 0x9E3779B9u;
    size_t n = 0, len = 2 + (x >> 29) + (x >> 27) % 4;
    word[0] = (char)token;
    if (token >= 256 && (x >> 20) % 2)
        word[n++] = ' ';
    const char *from = kind[(x >> 10) % 16 < 11 ? 0 : (x >> 10) % 16 - 12 + ((x >> 10) % 16 == 11)];
    for (; token >= 256 && n < len; x = x * 1664525u + 1013904223u)
        word[n++] = from[(x >> 16) % strlen(from)];
    *ret_len = token < 256 ? 1 : n;
    return word;
}

/* Another token of the mask for each x; the end only where nothing else may come. */
static int32_t choose(const uint32_t *bits, uint32_t x)
{
    for (uint32_t i = 0; i < LARGE; i++) {
        uint32_t t = (x % LARGE + i) % (LARGE - 1);
        if (bits[t / 32] >> t % 32 & 1)
            return (int32_t)t;
    }
    return (int32_t)LARGE - 1;
}

/* One step, of which tokens come that the masks allow. Returns how many rows were put off. */
static uint64_t honest_step(struct world *w, struct masks *m, uint32_t *x)
{
    struct ek_step *s = w->steps[w->s->flight_first];
    struct flight *f = &w->s->flights[w->s->flight_first];
    uint64_t before = m->c.put_off;
    assert_true(sched_plan(w->s, ++w->now_us, s) > 0);
    assert_int_equal(null_backend.forward(w->d, s), 0);
    (void)constrain_fill(&m->c, w->s, f, s, LARGE, m->at);
    assert_int_equal(null_backend.sample(w->d, s, m->at), 0);
    assert_int_equal(null_backend.wait(w->d, f->id, w->result, w->bytes, 0), 0);
    const struct ek_step_seq *q = ek_step_seqs(s);
    for (uint32_t i = 0; i < w->result->seqs; i++) {
        *x = *x * 1664525u + 1013904223u;
        if (q[i].sample && w->result->seq[i].tokens > 0)
            w->result->seq[i].token[0] =
                choose(m->at->bits + (size_t)q[i].logit_row * m->at->words, *x >> 8);
    }
    sched_apply(w->s, w->result, ++w->now_us);
    assert_null(sched_check(w->s));
    return m->c.put_off - before;
}

/* Free text that is in each step: it must not be kept waiting. */
static struct request *companion(struct world *w)
{
    static const int32_t prompt[] = {3, 4};
    struct req_ask a = {.prompt = prompt, .prompt_tokens = 2, .max_new_tokens = 100, .top_p = 1};
    struct request *r = request_new(&a);
    assert_non_null(r);
    request_ref(r);
    assert_int_equal(sched_submit(w->s, r, w->now_us), 0);
    return r;
}

static void answer(struct grammar *g, uint32_t seed, bool alone)
{
    static const int32_t prompt[] = {1, 2};
    struct engine_params p = params();
    struct masks m = {.c = {.credit = 0}}; /* others have just spent it */
    struct world w;
    struct request *other = NULL;
    p.vocab = LARGE;
    p.blocks = 129;
    m.at = calloc(1, constrain_bytes(4, LARGE));
    open_world(&w, &p);
    struct req_ask a = {.prompt = prompt,
                        .prompt_tokens = 2,
                        .max_new_tokens = ANSWER,
                        .top_p = 1,
                        .grammar = g,
                        .grammar_finish = true};
    struct request *r = request_new(&a);
    assert_non_null(r);
    request_ref(r);
    assert_int_equal(sched_submit(w.s, r, w.now_us), 0);
    uint32_t steps = 0, waited = 0, most = 0;
    while (!done(r)) {
        if (!alone && (!other || done(other))) {
            request_unref(other);
            other = companion(&w);
        }
        waited = honest_step(&w, &m, &seed) > 0 ? waited + 1 : 0;
        most = waited > most ? waited : most;
        assert_true(++steps < 1000);
    }
    assert_int_equal(m.c.refused, 0);
    assert_int_not_equal(r->finish, REQ_FIN_ERROR);
    assert_true(most <= (alone ? 1 : WAIT_MOST));
    request_unref(other);
    request_unref(r);
    close_world(&w);
    free(m.at);
}

static void test_honest(void **state)
{
    static const struct {
        enum grammar_kind kind;
        const char *text;
    } form[] = {
        {GRAMMAR_JSON, ""},
        {GRAMMAR_SCHEMA,
         "{\"type\":\"object\",\"properties\":{\"title\":{\"type\":\"string\",\"maxLength\":40},"
         "\"note\":{\"type\":\"string\",\"minLength\":3,\"maxLength\":500},\"tags\":{\"type\":"
         "\"array\",\"items\":{\"type\":\"string\"},\"maxItems\":5},\"size\":{\"type\":\"number\"},"
         "\"kind\":{\"enum\":[\"a\",\"b\",1,null]},\"at\":{\"type\":\"string\",\"pattern\":"
         "\"^[0-9]{4}-[0-9]{2}-[0-9]{2}$\"}},\"required\":[\"title\",\"note\",\"tags\"],"
         "\"additionalProperties\":false}"},
        {GRAMMAR_SCHEMA,
         "{\"$ref\":\"#/$defs/n\",\"$defs\":{\"n\":{\"type\":\"object\",\"properties\":{\"name\":"
         "{\"type\":\"string\"},\"value\":{\"anyOf\":[{\"type\":\"string\",\"maxLength\":20},"
         "{\"type\":\"integer\"},{\"$ref\":\"#/$defs/n\"}]},\"of\":{\"type\":\"array\",\"items\":"
         "{\"$ref\":\"#/$defs/n\"}}},\"required\":[\"name\",\"value\"]}}}"},
        {GRAMMAR_REGEX, "[A-Z][a-z]+( [A-Z][a-z]{0,60}){1,3}"},
        {GRAMMAR_REGEX, "[a-z0-9._-]+@[a-z0-9.-]+\\.[a-z]{2,6}"},
        {GRAMMAR_REGEX, ".{1,300}"},
        {GRAMMAR_REGEX, "(yes|no|maybe), because [^\"]{10,80}"},
        {GRAMMAR_EBNF, "root ::= term (op term)*\nterm ::= [a-z]+ | [0-9]+ | \"(\" root \")\"\n"
                       "op ::= \" + \" | \" - \" | \" * \"\n"},
    };
    const int32_t end = (int32_t)LARGE - 1;
    struct lexicon *l;
    (void)state;
    assert_int_equal(lexicon_new(LARGE, large_bytes, NULL, &end, 1, &l), 0);
    for (uint32_t i = 0; i < sizeof(form) / sizeof(form[0]); i++) {
        struct grammar *g = compile(form[i].kind, form[i].text, strlen(form[i].text), l);
        for (uint32_t k = 0; k < 3; k++) /* nothing is warmed before the first */
            answer(g, i * 7 + k + 1, k == 1);
        grammar_unref(g);
    }
    lexicon_free(l);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_hostile),
                                       cmocka_unit_test(test_honest)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
