/*
 * The sampler of the CUDA backend against the CPU's: the same logits to the last bit (sums of small
 * multiples of 1/16, exact in any order, and full of ties), the same tokens, alternatives and log
 * of the sum, over temperatures, top-k, top-p, min-p, masks, seeds and positions. On a card (its
 * expf is another one) a draw that lies beside a limit may go the other way: one in a hundred, at
 * most, and what follows in that sequence is another text then; vocabularies are as large as models
 * have. That it lies there is looked at: moved by a ten-thousandth, the limits must let the CPU
 * draw the card's token, too. Without a card also: the same bits, whatever number of blocks shares
 * a row.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/cuda/cuda.h"
#include "kernels/registry.h"
#include "tests/share.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { HIDDEN = 8, SEQS = 16, STEPS = 4, BAD_TOKEN = 5 };

/* Embedding, pick, logits: no layer at all. */
static struct tiny *make_model(uint32_t vocab)
{
    const struct tiny_params p = {.dtype = EK_F32,
                                  .layers = 0,
                                  .hidden = HIDDEN,
                                  .q_heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 8,
                                  .rotary = 8,
                                  .ffn = 8,
                                  .vocab = vocab};
    struct tiny *t = tiny_new(&p);

    t->g.layers = 1; /* of the cache */
    t->g.op_count = 0;
    t->op[t->g.op_count++] = (struct ek_op){
        .kind = EK_OP_EMBED, .weight = 0, .bias = EK_NO_WEIGHT, .u.embed.scale = 1.0f};
    t->op[t->g.op_count++] = (struct ek_op){
        .kind = EK_OP_PICK, .dst = 7, .src = 0, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};
    t->op[t->g.op_count++] = (struct ek_op){.kind = EK_OP_LOGITS,
                                            .src = 7,
                                            .weight = t->g.weight_count - 1,
                                            .bias = EK_NO_WEIGHT,
                                            .u.logits.scale = 0.5f};
    for (size_t i = 0; i < t->floats; i++)
        t->raw[i] = (float)((int32_t)(tiny_next(&t->random) % 33) - 16) * 0.125f;
    for (uint32_t i = 0; i < HIDDEN; i++)
        t->raw[BAD_TOKEN * HIDDEN + i] = NAN;
    return t;
}

static struct ek_slot_set random_set(uint32_t slot, uint64_t *random)
{
    static const float temperatures[] = {0.0f, 0.3f, 0.7f, 1.0f, 1.0f, 2.0f};
    static const uint32_t top_k[] = {0, 0, 1, 5, 50, 700, 1u << 20};
    static const float top_p[] = {1.0f, 1.0f, 0.95f, 0.5f, 0.1f, 1e-6f}, min_p[] = {0, 0, 0.02f};
    static const float typical_p[] = {0, 0, 1.0f, 0.9f, 0.4f};

    return (struct ek_slot_set){.slot = slot,
                                .sampling.top_k = top_k[tiny_next(random) % 7],
                                .sampling.temperature = temperatures[tiny_next(random) % 6],
                                .sampling.top_p = top_p[tiny_next(random) % 6],
                                .sampling.min_p = min_p[tiny_next(random) % 3],
                                .sampling.typical_p = typical_p[tiny_next(random) % 5],
                                .top = (uint32_t)tiny_next(random) % 4,
                                .sampling.seed = tiny_next(random) << 31 ^ tiny_next(random)};
}

/* Gives a setting lists and a history, by chance; in the step's words. */
static void random_words(struct tiny_device *x, struct ek_slot_set *set, uint32_t vocab,
                         uint64_t *random)
{
    uint32_t *w = ek_step_words(x->step) + x->step->words, *at = w;

    set->word = x->step->words;
    if (tiny_next(random) % 4 == 0 && vocab < 10000) { /* others would not fit into a step */
        set->allowed = (vocab + 31) / 32;
        for (uint32_t i = 0; i < set->allowed; i++)
            *at++ = (uint32_t)(tiny_next(random) | tiny_next(random));
    }
    set->biases = (uint32_t)tiny_next(random) % 4;
    for (uint32_t i = 0; i < set->biases; i++) {
        float bias = tiny_float(random) * 4.0f;
        *at++ = (i * 7 + (uint32_t)tiny_next(random) % 7) % vocab;
        memcpy(at++, &bias, sizeof(bias));
    }
    set->banned = (uint32_t)tiny_next(random) % 3;
    set->banned_until = 7;
    for (uint32_t i = 0; i < set->banned; i++)
        *at++ = (uint32_t)tiny_next(random) % vocab;
    set->prompt = (uint32_t)tiny_next(random) % 9;
    set->output = set->prompt > 0 ? (uint32_t)tiny_next(random) % 40 : 0;
    uint32_t *bad = at, *history = at + 5, few = vocab < 10 ? vocab : 10;
    for (uint32_t i = 0; i < set->prompt + set->output; i++)
        history[i] = (uint32_t)tiny_next(random) % few;
    set->bad = 5; /* one that comes true if the history ends so, and one of one token */
    bad[0] = 2;
    bad[1] = set->output > 0 ? history[set->prompt + set->output - 1] : 1;
    bad[2] = (uint32_t)tiny_next(random) % vocab;
    bad[3] = 1;
    bad[4] = (uint32_t)tiny_next(random) % vocab;
    set->sampling.repetition = tiny_next(random) % 2 ? 1.3f : 0.0f;
    set->sampling.frequency = tiny_next(random) % 2 ? 0.5f : 0.0f;
    set->sampling.presence = tiny_next(random) % 2 ? 0.25f : 0.0f;
    x->step->words += (uint32_t)ek_slot_words(set);
}

/* Scores for the last rows before the sampled one, and a hidden state. */
static void random_wishes(struct tiny_device *x, uint32_t vocab, uint64_t *random)
{
    struct ek_step_seq *q = ek_step_seqs(x->step);
    uint32_t scores = 0;

    for (uint32_t i = 0; i < x->step->seqs; i++) {
        q[i].hidden = tiny_next(random) % 4 == 0;
        if (q[i].rows < 3 || tiny_next(random) % 4 != 0 || scores + 2 > x->ceiling.scores)
            continue;
        q[i].scores = 2;
        q[i].score_row = SEQS + scores;
        q[i].target = x->step->words;
        scores += 2;
        for (int k = 0; k < 2; k++)
            ek_step_words(x->step)[x->step->words++] = (uint32_t)tiny_next(random) % vocab;
    }
    x->step->logit_rows += scores;
}

/* Limits of a draw a little beside where they are: what is multiplied, and by what. */
struct nudge {
    enum { NO_NUDGE, TEMPERATURE, TOP_P, MIN_P } what;
    float by;
};

static void apply(const struct nudge *n, struct ek_sampling *p)
{
    switch (n->what) {
    case NO_NUDGE: break;
    case TEMPERATURE: p->temperature *= n->by; break;
    case TOP_P: p->top_p = p->top_p * n->by > 1.0f ? 1.0f : p->top_p * n->by; break;
    case MIN_P: p->min_p *= n->by; break;
    }
}

static struct nudge g_nudge; /* of the steps that follow */

/* One step of 16 sequences with slots set anew, on either device. */
static void run_step(struct tiny_device *x, uint64_t seed, uint32_t vocab,
                     const struct ek_masks *masks)
{
    uint64_t random = seed;

    for (uint32_t s = 0; s < SEQS; s++) {
        const uint32_t table[2] = {1 + s, 20 + s};
        int32_t tokens[16];
        uint32_t n = 1 + (uint32_t)tiny_next(&random) % 12;
        struct ek_slot_set set = random_set(s, &random);
        apply(&g_nudge, &set.sampling);
        for (uint32_t i = 0; i < n; i++)
            tokens[i] = (int32_t)(tiny_next(&random) % vocab);
        if (tiny_next(&random) % 16 == 0)
            tokens[n - 1] = BAD_TOKEN;
        if (tiny_next(&random) % 2)
            random_words(x, &set, vocab, &random);
        tiny_set(x, &set);
        tiny_add(x, s, tokens, 0, n, table, true);
    }
    random_wishes(x, vocab, &random);
    assert_int_equal(tiny_run(x, masks), 0);
}

/* The slots draw once more: what was sampled counts in their histories. */
static void run_again(struct tiny_device *x)
{
    for (uint32_t s = 0; s < SEQS; s++) {
        const uint32_t table[2] = {1 + s, 20 + s};
        tiny_add(x, s, NULL, 12, 1, table, true);
    }
    assert_int_equal(tiny_run(x, NULL), 0);
}

static struct ek_masks *make_masks(uint32_t vocab, uint64_t seed)
{
    uint32_t words = (vocab + 31) / 32 + 1; /* one more than needed */
    struct ek_masks *m = calloc(1, sizeof(*m) + (size_t)SEQS * words * sizeof(uint32_t));

    m->rows = SEQS;
    m->words = words;
    for (uint32_t i = 0; i < SEQS * words; i++)
        m->bits[i] = (uint32_t)(tiny_next(&seed) & tiny_next(&seed));
    memset(m->bits + 3 * (size_t)words, 0, words * sizeof(uint32_t)); /* row 3: none */
    return m;
}

/* Whether the CPU draws such tokens as `got`, too, where they are not those of `want`, when a limit
 * lies a little beside; how many it does not draw. `near` is a device of the CPU's for these steps
 * alone, since what is drawn counts in histories. */
static uint32_t far_ones(struct tiny_device *near, uint64_t seed, uint32_t vocab,
                         const struct ek_masks *masks, const struct ek_result *want,
                         const struct ek_result *got)
{
    static const float by[] = {1 - 1e-5f, 1 + 1e-5f, 1 - 1e-4f, 1 + 1e-4f};
    bool found[SEQS];
    uint32_t far = 0;

    for (uint32_t s = 0; s < SEQS; s++) {
        found[s] = want->seq[s].token[0] == got->seq[s].token[0];
        far += !found[s];
    }
    for (int what = TEMPERATURE; far > 0 && what <= MIN_P; what++)
        for (size_t i = 0; far > 0 && i < sizeof(by) / sizeof(by[0]); i++) {
            g_nudge.what = what;
            g_nudge.by = by[i];
            run_step(near, seed, vocab, masks);
            for (uint32_t s = 0; s < SEQS; s++)
                if (!found[s] && near->result->seq[s].token[0] == got->seq[s].token[0]) {
                    found[s] = true;
                    far--;
                }
        }
    g_nudge.what = NO_NUDGE;
    return far;
}

/* Of draws on a card: how many there were, and went the other way; which sequences have parted. */
static struct {
    uint32_t draws, parted;
    bool apart[SEQS];
} g_card;

/* Whether a sequence of another text, which began with a draw that went the other way. */
static bool parted(uint32_t s, const struct ek_result_seq *a, const struct ek_result_seq *b)
{
    if (!g_fake.real)
        return false;
    if (g_card.apart[s])
        return true;
    g_card.draws++;
    g_card.apart[s] = a->tokens == b->tokens && a->token[0] != b->token[0];
    g_card.parted += g_card.apart[s];
    return g_card.apart[s];
}

static void compare(uint32_t vocab, uint64_t seed, const struct ek_result *want,
                    const struct ek_result *got)
{
    const float off = vocab > 10000 ? 1e-3f : 1e-4f; /* the plain CPU adds them one by one */

    for (uint32_t s = 0; s < SEQS; s++) {
        const struct ek_result_seq *a = &want->seq[s], *b = &got->seq[s];
        if (parted(s, a, b))
            continue;
        if (a->tokens != b->tokens || a->token[0] != b->token[0] || a->top != b->top ||
            memcmp(a->top_id, b->top_id, sizeof(a->top_id)) != 0 ||
            memcmp(a->top_logit, b->top_logit, sizeof(a->top_logit)) != 0)
            fail_msg("vocab %u, seed %llu, sequence %u: token %d of %u instead of %d of %u", vocab,
                     (unsigned long long)seed, s, b->token[0], b->tokens, a->token[0], a->tokens);
        assert_true(fabsf(a->lse - b->lse) < off || a->lse == b->lse);
        assert_true(a->logit[0] == b->logit[0]);
    }
    assert_int_equal(want->scores, got->scores);
    for (uint32_t i = 0; i < want->scores; i++) {
        const struct ek_result_score *a = &ek_result_scores(want)[i],
                                     *b = &ek_result_scores(got)[i];
        bool bad = isnan(a->logit);
        assert_true((bad && isnan(b->logit)) || a->logit == b->logit);
        assert_true(bad || fabsf(a->lse - b->lse) < off);
        assert_int_equal(a->rank, b->rank);
        assert_int_equal(a->top, b->top);
        assert_memory_equal(a->top_id, b->top_id, sizeof(a->top_id));
        assert_memory_equal(a->top_logit, b->top_logit, sizeof(a->top_logit));
    }
    assert_int_equal(want->hiddens, got->hiddens);
    assert_int_equal(want->width, got->width);
    for (uint32_t i = 0; want->hiddens > 0 && i < want->hiddens * want->width; i++) {
        const float a = ek_result_hidden(want, 0)[i], b = ek_result_hidden(got, 0)[i];
        assert_true(a == b || (isnan(a) && isnan(b))); /* one no-number has many forms */
    }
}

static void test_like_the_cpu(void **state)
{
    (void)state;
    static const uint32_t vocabularies[] = {20, 333, 3001, 128256};
    const size_t count = g_fake.real ? 4 : 3;
    const struct ek_open_params open = {.threads = 1, .isa = "ref"};

    for (size_t v = 0; v < count; v++) {
        struct tiny *t = make_model(vocabularies[v]);
        struct tiny_device cpu, near, cuda;
        g_fake.card((size_t)1 << 30, true);
        assert_int_equal(tiny_open_on(ek_backend_find("cpu", NULL), t, &open, 8, 40, &cpu), 0);
        assert_int_equal(tiny_open_on(ek_backend_find("cpu", NULL), t, &open, 8, 40, &near), 0);
        assert_int_equal(tiny_open_on(cuda_backend(), t, &open, 8, 40, &cuda), 0);
        for (uint64_t seed = share_next(1); seed <= STEPS; seed = share_next(seed + 1)) {
            struct ek_masks *m = seed % 3 == 0 ? make_masks(t->g.vocab, seed) : NULL;
            memset(g_card.apart, 0, sizeof(g_card.apart));
            run_step(&cpu, seed, t->g.vocab, m);
            run_step(&cuda, seed, t->g.vocab, m);
            compare(t->g.vocab, seed, cpu.result, cuda.result);
            if (far_ones(&near, seed, t->g.vocab, m, cpu.result, cuda.result) > 0)
                fail_msg("vocab %u, seed %llu: a draw went the other way far from any limit",
                         t->g.vocab, (unsigned long long)seed);
            for (int more = 0; more < 3; more++) {
                run_again(&cpu);
                run_again(&cuda);
                compare(t->g.vocab, seed, cpu.result, cuda.result);
            }
            free(m);
        }
        tiny_close(&cpu);
        tiny_close(&near);
        tiny_close(&cuda);
        tiny_free(t);
    }
    if (g_card.parted * 100 > g_card.draws)
        fail_msg("%u of %u draws went the other way", g_card.parted, g_card.draws);
}

/* What is held against a card, held against the CPU itself: tokens of limits that lie a little
 * beside are near, of those of another temperature most are not. */
static void test_near_and_far(void **state)
{
    (void)state;
    enum { VOCAB = 3001, SEEDS = 12 };
    const struct ek_open_params open = {.threads = 1, .isa = "ref"};
    struct tiny *t = make_model(VOCAB);
    struct tiny_device cpu, near, other;
    uint32_t little = 0, much = 0;

    if (g_fake.real)
        skip();
    assert_int_equal(tiny_open_on(ek_backend_find("cpu", NULL), t, &open, 8, 40, &cpu), 0);
    assert_int_equal(tiny_open_on(ek_backend_find("cpu", NULL), t, &open, 8, 40, &near), 0);
    assert_int_equal(tiny_open_on(ek_backend_find("cpu", NULL), t, &open, 8, 40, &other), 0);
    for (uint64_t seed = 1; seed <= SEEDS; seed++) {
        run_step(&cpu, seed, VOCAB, NULL);
        g_nudge.what = TEMPERATURE;
        g_nudge.by = 1 + 7e-5f;
        run_step(&other, seed, VOCAB, NULL);
        g_nudge.what = NO_NUDGE;
        little += far_ones(&near, seed, VOCAB, NULL, cpu.result, other.result);
        g_nudge.what = TEMPERATURE;
        g_nudge.by = 2.0f;
        run_step(&other, seed, VOCAB, NULL);
        g_nudge.what = NO_NUDGE;
        much += far_ones(&near, seed, VOCAB, NULL, cpu.result, other.result);
    }
    assert_int_equal(little, 0);
    assert_true(much > SEEDS * SEQS / 4);
    tiny_close(&cpu);
    tiny_close(&near);
    tiny_close(&other);
    tiny_free(t);
}

/* How tokens of the step were found: among what was collected of a row, and by searching it. */
static void count_ways(const struct tiny_device *x, uint32_t *listed, uint32_t *searched)
{
    const struct cu_draw *draw =
        (const struct cu_draw *)(uintptr_t)cuda_arena(x->d, x->d->shape.draw_at);

    for (uint32_t s = 0; s < SEQS; s++) {
        const struct cu_slot *slot =
            (const struct cu_slot *)(uintptr_t)cuda_arena(x->d, x->d->shape.slot_at) + s;
        const struct ek_sampling *p = &slot->set.sampling;
        const bool cut = p->temperature > 0.0f && (p->top_k > 0 || p->top_p < 1.0f) &&
                         !(p->typical_p > 0.0f && p->typical_p < 1.0f);
        *listed += cut && draw[s].listed > 0;
        *searched += cut && draw[s].listed == 0;
    }
}

static void test_any_division(void **state)
{
    (void)state;
    enum { VOCAB = 9001, DIVISIONS = 4 }; /* nine pieces: at most three blocks */
    static const uint32_t processors[DIVISIONS] = {1, 5, 11, 132};
    const struct ek_open_params open = {.threads = 1, .isa = "ref"};
    struct tiny *t = make_model(VOCAB);
    struct tiny_device cpu, cuda[DIVISIONS];
    uint32_t listed = 0, searched = 0;

    if (g_fake.real)
        skip();
    g_fake.card((size_t)1 << 30, true);
    assert_int_equal(tiny_open_on(ek_backend_find("cpu", NULL), t, &open, 8, 40, &cpu), 0);
    for (size_t i = 0; i < DIVISIONS; i++) {
        assert_int_equal(tiny_open_on(cuda_backend(), t, &open, 8, 40, &cuda[i]), 0);
        cuda[i].d->multiprocessors = processors[i];
    }
    for (uint64_t seed = 11; seed < 13; seed++) {
        struct ek_masks *m = seed % 2 ? make_masks(VOCAB, seed) : NULL;
        run_step(&cpu, seed, VOCAB, m);
        for (size_t i = 0; i < DIVISIONS; i++) {
            run_step(&cuda[i], seed, VOCAB, m);
            compare(VOCAB, seed, cpu.result, cuda[i].result);
            assert_memory_equal(cuda[i].result->seq, cuda[0].result->seq,
                                SEQS * sizeof(cuda[0].result->seq[0]));
        }
        count_ways(&cuda[1], &listed, &searched);
        free(m);
    }
    assert_true(listed > 0);
    assert_true(searched > 0);
    for (size_t i = 0; i < DIVISIONS; i++)
        tiny_close(&cuda[i]);
    tiny_close(&cpu);
    tiny_free(t);
}

static void test_masks_must_fit(void **state)
{
    (void)state;
    struct tiny *t = make_model(100);
    const struct ek_open_params open = {.device = 0};
    struct ek_masks *m = make_masks(100, 1);
    struct tiny_device x;
    const uint32_t table[1] = {1};
    const int32_t tokens[1] = {7};

    g_fake.card((size_t)1 << 30, true);
    assert_int_equal(tiny_open_on(cuda_backend(), t, &open, 8, 40, &x), 0);
    m->words = 3; /* of the 4 that 100 tokens need */
    tiny_add(&x, 0, tokens, 0, 1, table, true);
    assert_int_equal(tiny_run(&x, m), -EBADMSG);
    tiny_add(&x, 0, tokens, 0, 1, table, true);
    assert_int_equal(tiny_run(&x, NULL), 0);
    free(m);
    tiny_close(&x);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_like_the_cpu),
        cmocka_unit_test(test_near_and_far),
        cmocka_unit_test(test_any_division),
        cmocka_unit_test(test_masks_must_fit),
    };
    return cmocka_run_group_tests_name("cuda sampler", tests, fake_setup, NULL);
}
