/*
 * Sampling through the backend, with a model whose logits are the same after every token: filters
 * keep what they must, draws follow the distribution, depend on seed and position alone, masks
 * hold, and what is reported (logit, lse, alternatives) is of the raw logits.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/cpu/tier.h"
#include "tests/unit/kernels/tiny.h"
#include "tests/unit/kernels/tiny_device.h"

enum { VOCAB = 40, DRAWS = 4000 };

/* Embedding 1, head = the logits: the model answers them whatever the token. */
static struct tiny *flat_model_of(const float *logits, uint32_t vocab)
{
    const struct tiny_params p = {.dtype = EK_F32,
                                  .hidden = 1,
                                  .q_heads = 1,
                                  .kv_heads = 1,
                                  .head_dim = 8,
                                  .rotary = 8,
                                  .ffn = 1,
                                  .vocab = vocab};
    struct tiny *t = tiny_new(&p);

    for (uint32_t i = 0; i < vocab; i++) {
        t->raw[i] = 1.0f;                  /* embedding */
        t->raw[vocab + 1 + i] = logits[i]; /* head, behind the norm's weight */
    }
    t->op[0].u.embed.scale = 1.0f;
    t->op[1] = (struct ek_op){.kind = EK_OP_PICK, .dst = 7, .src = 0, .weight = EK_NO_WEIGHT};
    t->op[2] = t->op[3];
    t->op[2].u.logits.scale = 1.0f;
    t->g.op_count = 3;
    t->g.layers = 1; /* of the cache, which holds nothing */
    return t;
}

static struct tiny *flat_model(const float *logits)
{
    return flat_model_of(logits, VOCAB);
}

static void make_logits(float *logits)
{
    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = 3.0f - 0.2f * (float)((i * 7) % VOCAB);
}

/* One token drawn for position `at` under these settings. */
static const struct ek_result_seq *draw(struct tiny_device *x, struct ek_slot_set set, uint32_t at,
                                        const struct ek_masks *masks)
{
    static const int32_t tokens[512] = {0};
    uint32_t table[64];

    for (uint32_t i = 0; i < 64; i++)
        table[i] = 1 + i;
    tiny_set(x, &set);
    tiny_add(x, set.slot, tokens, at - 1, 1, table, true);
    assert_int_equal(tiny_run(x, masks), 0);
    return &x->result->seq[0];
}

static void test_report(void **state)
{
    (void)state;
    float logits[VOCAB];
    double sum = 0;
    struct tiny_device x;

    make_logits(logits);
    struct tiny *t = flat_model(logits);
    for (uint32_t i = 0; i < VOCAB; i++)
        sum += exp((double)logits[i]);
    assert_int_equal(tiny_open(t, NULL, 2, 8, 80, &x), 0);
    struct ek_slot_set set = {.slot = 1, .top = 5, .sampling.top_p = 1.0f};
    const struct ek_result_seq *s = draw(&x, set, 9, NULL);
    assert_int_equal(s->slot, 1);
    assert_int_equal(s->tokens, 1);
    assert_int_equal(s->token[0], 0); /* greedy */
    assert_true(s->logit[0] == logits[0]);
    assert_true(fabs((double)s->lse - log(sum)) < 1e-5);
    assert_int_equal(s->top, 5);
    for (uint32_t i = 0; i < 5; i++) {
        assert_true(s->top_logit[i] == logits[s->top_id[i]]);
        assert_true(fabsf(s->top_logit[i] - (3.0f - 0.2f * (float)i)) < 1e-6f);
    }
    tiny_close(&x);
    tiny_free(t);
}

/* The draws' frequencies against the distribution that the settings describe. */
static void check_distribution(struct tiny_device *x, const float *logits, struct ek_slot_set set)
{
    double weight[VOCAB], total = 0, cut = 0;
    uint32_t hits[VOCAB] = {0}, order[VOCAB];

    for (uint32_t i = 0; i < VOCAB; i++) {
        weight[i] = exp(((double)logits[i] - (double)logits[0]) / (double)set.sampling.temperature);
        if (weight[i] < (double)set.sampling.min_p)
            weight[i] = 0;
        order[(i * 7) % VOCAB] = i; /* make_logits: from the largest down */
    }
    for (uint32_t rank = set.sampling.top_k ? set.sampling.top_k : VOCAB; rank < VOCAB; rank++)
        weight[order[rank]] = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        total += weight[i];
    for (uint32_t rank = 0; rank < VOCAB; rank++) {
        double own = weight[order[rank]];
        if (rank > 0 && cut >= (double)set.sampling.top_p * total)
            weight[order[rank]] = 0;
        cut += own;
    }
    total = 0;
    for (uint32_t i = 0; i < VOCAB; i++)
        total += weight[i];
    for (uint32_t n = 0; n < DRAWS; n++) {
        set.sampling.seed = 1000 + n / 500;
        hits[draw(x, set, 1 + n % 500, NULL)->token[0]]++;
    }
    for (uint32_t i = 0; i < VOCAB; i++) {
        double p = weight[i] / total, sigma = sqrt(p * (1 - p) / DRAWS);
        if (fabs((double)hits[i] / DRAWS - p) > 4.5 * sigma) /* 4.5 sigma; the seeds are fixed */
            fail_msg("token %u: %u of %d draws, expected %g", i, hits[i], DRAWS, p * DRAWS);
    }
}

static void test_distribution(void **state)
{
    (void)state;
    static const struct ek_slot_set sets[] = {
        {.sampling.temperature = 1.0f, .sampling.top_p = 1.0f},
        {.sampling.temperature = 2.5f, .sampling.top_p = 1.0f},
        {.sampling.temperature = 1.0f, .sampling.top_p = 1.0f, .sampling.top_k = 3},
        {.sampling.temperature = 1.0f, .sampling.top_p = 0.7f},
        {.sampling.temperature = 1.3f, .sampling.top_p = 0.9f, .sampling.top_k = 10},
        {.sampling.temperature = 1.0f, .sampling.top_p = 1.0f, .sampling.min_p = 0.3f},
        {.sampling.temperature = 0.8f,
         .sampling.top_p = 0.95f,
         .sampling.min_p = 0.05f,
         .sampling.top_k = 20},
        {.sampling.temperature = 1.0f, .sampling.top_p = 1e-6f},
        {.sampling.temperature = 1.0f, .sampling.top_p = 1.0f, .sampling.top_k = 1},
        {.sampling.temperature = 1.0f, .sampling.top_p = 1.0f, .sampling.top_k = 100},
    };
    float logits[VOCAB];
    struct tiny_device x;

    make_logits(logits);
    struct tiny *t = flat_model(logits);
    assert_int_equal(tiny_open(t, NULL, 1, 8, 80, &x), 0);
    for (size_t i = 0; i < sizeof(sets) / sizeof(sets[0]); i++)
        check_distribution(&x, logits, sets[i]);
    tiny_close(&x);
    tiny_free(t);
}

enum { LARGE = 20011 }; /* tokens; a prime, so that no piece of them is even */

/* Weights of a token's rank: its order among all, the lower id first of those that weigh the same.
 */
struct ranked {
    float weight;
    uint32_t id;
};

static int by_rank(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;

    if (x->weight != y->weight)
        return x->weight > y->weight ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

/* The random number of a seed and position, as sample.c says: Philox 4x32 with ten rounds. */
static double random_of(uint64_t seed, uint32_t position)
{
    uint32_t c[4] = {position}, key[2] = {(uint32_t)seed, (uint32_t)(seed >> 32)};

    for (int round = 0; round < 10; round++) {
        const uint64_t a = (uint64_t)c[0] * 0xd2511f53u, b = (uint64_t)c[2] * 0xcd9e8d57u;
        const uint32_t first = (uint32_t)(b >> 32) ^ c[1] ^ key[0];
        const uint32_t third = (uint32_t)(a >> 32) ^ c[3] ^ key[1];
        c[0] = first;
        c[1] = (uint32_t)b;
        c[2] = third;
        c[3] = (uint32_t)a;
        key[0] += 0x9e3779b9u;
        key[1] += 0xbb67ae85u;
    }
    return (double)(((uint64_t)c[0] << 32 | c[1]) >> 11) * 0x1p-53;
}

/* What is to be drawn, found by putting all tokens in order. `sorted`: [LARGE], by rank. */
static uint32_t plain_draw(const struct ranked *sorted, const struct ek_sampling *p,
                           uint32_t position)
{
    const uint32_t most = p->top_k > 0 && p->top_k < LARGE ? p->top_k : LARGE;
    double total = 0.0, kept = 0.0, sum = 0.0;
    uint32_t end = 0, i = 0;

    for (uint32_t rank = 0; rank < most; rank++)
        total += (double)sorted[rank].weight;
    while (end < most && (end == 0 || kept < (double)p->top_p * total))
        kept += (double)sorted[end++].weight;
    for (; i + 1 < end; i++) {
        sum += (double)sorted[i].weight;
        if (sum > random_of(p->seed, position) * kept)
            break;
    }
    return sorted[i].id;
}

/* A large vocabulary: few tokens that stand out, a flat one, one in which most weigh the same, one
 * whose tokens weigh next to nothing but for one. */
static float large_logit(uint32_t shape, uint32_t id)
{
    const uint32_t mixed = (id + 1) * 2654435761u >> 8;

    switch (shape) {
    case 0: return mixed % 500 == 0 ? 12.0f - (float)(mixed % 37) : (float)(mixed % 997) / 300.0f;
    case 1: return (float)(mixed % 10007) / 10007.0f;
    case 2: return mixed % 3 == 0 ? 1.0f : 0.5f;
    default: return id == 4321 ? 90.0f : (float)(mixed % 100) / 10.0f;
    }
}

static void check_large(uint32_t shape, const struct ek_sampling *settings, size_t count)
{
    float *logits = calloc(LARGE + CPU_SLACK, sizeof(*logits));
    float *weight = calloc(LARGE + CPU_SLACK, sizeof(*weight));
    struct ranked *sorted = calloc(LARGE, sizeof(*sorted));
    const struct cpu_ops *ops = cpu_tier_find(NULL, NULL);
    struct tiny_device x;

    assert_non_null(ops);
    assert_true(logits && weight && sorted);
    for (uint32_t i = 0; i < LARGE; i++)
        logits[i] = large_logit(shape, i);
    struct tiny *t = flat_model_of(logits, LARGE);
    assert_int_equal(tiny_open(t, NULL, 1, 8, 80, &x), 0);
    for (size_t s = 0; s < count; s++) {
        struct ek_slot_set set = {.sampling = settings[s]};
        (void)ops->sum_exp(logits, LARGE, ops->max(logits, LARGE), 1.0f / set.sampling.temperature,
                           weight);
        for (uint32_t i = 0; i < LARGE; i++)
            sorted[i] = (struct ranked){weight[i], i};
        qsort(sorted, LARGE, sizeof(*sorted), by_rank);
        for (uint32_t at = 1; at < 60; at++) {
            set.sampling.seed = 77 + s;
            assert_int_equal(draw(&x, set, at, NULL)->token[0],
                             plain_draw(sorted, &set.sampling, at));
        }
    }
    tiny_close(&x);
    tiny_free(t);
    free(sorted);
    free(weight);
    free(logits);
}

static void test_large(void **state)
{
    static const struct ek_sampling settings[] = {
        {.temperature = 0.7f, .top_p = 0.8f, .top_k = 20},
        {.temperature = 1.0f, .top_p = 1.0f, .top_k = 1},
        {.temperature = 1.0f, .top_p = 1.0f, .top_k = 300},
        {.temperature = 1.0f, .top_p = 0.5f, .top_k = LARGE - 1},
        {.temperature = 1.0f, .top_p = 0.9f, .top_k = LARGE + 1},
        {.temperature = 1.0f, .top_p = 0.95f},
        {.temperature = 3.0f, .top_p = 0.3f},
        {.temperature = 0.2f, .top_p = 0.9999999f},
        {.temperature = 1.0f, .top_p = 1e-6f},
    };

    (void)state;
    for (uint32_t shape = 0; shape < 4; shape++)
        check_large(shape, settings, sizeof(settings) / sizeof(settings[0]));
}

/* The same seed and position draw the same, from any slot, in any company, on any team. */
static void test_seed(void **state)
{
    (void)state;
    static const int32_t tokens[64] = {0};
    float logits[VOCAB];
    uint32_t table[8] = {1, 2, 3, 4, 5, 6, 7, 8}, differ = 0;
    struct tiny_device one, two;

    make_logits(logits);
    struct tiny *t = flat_model(logits);
    assert_int_equal(tiny_open(t, NULL, 1, 8, 80, &one), 0);
    assert_int_equal(tiny_open(t, NULL, 2, 8, 80, &two), 0);
    for (uint32_t at = 1; at < 60; at++) {
        struct ek_slot_set set = {
            .slot = 0, .sampling.temperature = 1.5f, .sampling.top_p = 0.98f, .sampling.seed = 7};
        int32_t want = draw(&one, set, at, NULL)->token[0];
        for (uint32_t slot = 0; slot < 16; slot++) {
            set.slot = slot;
            set.sampling.seed = slot == 11 ? 7 : 100 + slot;
            tiny_set(&two, &set);
            tiny_add(&two, slot, tokens, at - 1, 1, table, true);
        }
        assert_int_equal(tiny_run(&two, NULL), 0);
        assert_int_equal(two.result->seq[11].token[0], want);
        differ += two.result->seq[12].token[0] != want;
    }
    assert_true(differ > 40);
    tiny_close(&one);
    tiny_close(&two);
    tiny_free(t);
}

static void test_masks(void **state)
{
    (void)state;
    union {
        struct ek_masks m;
        uint32_t space[4];
    } u = {.space = {1, (VOCAB + 31) / 32, 0, 0}};
    float logits[VOCAB];
    struct tiny_device x;

    make_logits(logits);
    struct tiny *t = flat_model(logits);
    assert_int_equal(tiny_open(t, NULL, 1, 8, 80, &x), 0);
    struct ek_slot_set greedy = {.sampling.top_p = 1.0f, .top = 1};
    struct ek_slot_set warm = {
        .sampling.temperature = 5.0f, .sampling.top_p = 1.0f, .sampling.seed = 3};
    u.m.bits[0] = 1u << 3 | 1u << 31;
    u.m.bits[1] = 1u << 2; /* tokens 3, 31, 34 */
    int32_t best = logits[3] > logits[31] ? 3 : 31;
    best = logits[34] > logits[best] ? 34 : best;
    const struct ek_result_seq *s = draw(&x, greedy, 5, &u.m);
    assert_int_equal(s->token[0], best);
    assert_true(s->logit[0] == logits[best]);
    assert_int_equal(s->top_id[0], 0); /* the alternatives are of the raw logits */
    for (uint32_t at = 1; at < 200; at++) {
        int32_t token = draw(&x, warm, at, &u.m)->token[0];
        assert_true(token == 3 || token == 31 || token == 34);
    }
    u.m.bits[0] = u.m.bits[1] = 0;
    assert_int_equal(draw(&x, greedy, 5, &u.m)->tokens, 0); /* nothing may be chosen */
    assert_int_equal(draw(&x, warm, 5, &u.m)->tokens, 0);
    tiny_close(&x);
    tiny_free(t);
}

/* Logits that are not numbers, infinite or all alike. */
static void test_strange(void **state)
{
    (void)state;
    const struct cpu_ops *tiers[CPU_TIERS];
    const struct ek_slot_set sets[] = {
        {.sampling.top_p = 1.0f, .top = 20},
        {.sampling.temperature = 1.0f, .sampling.top_p = 0.5f, .top = 20},
        {.sampling.temperature = 1e-30f, .sampling.top_p = 1.0f},
        {.sampling.temperature = 1e30f, .sampling.top_p = 1.0f, .sampling.top_k = 5}};

    cpu_tier_list(tiers);
    for (uint32_t i = 0; tiers[i]; i++)
        for (int kind = 0; kind < 4; kind++) {
            float logits[VOCAB];
            struct tiny_device x;
            for (uint32_t k = 0; k < VOCAB; k++)
                logits[k] = kind == 0   ? NAN
                            : kind == 1 ? (k == 17 ? 2.0f : NAN)
                            : kind == 2 ? 1.0f
                                        : (k == 5 ? 0.0f : -INFINITY);
            struct tiny *t = flat_model(logits);
            assert_int_equal(tiny_open(t, tiers[i]->name, 1, 8, 80, &x), 0);
            for (size_t k = 0; k < sizeof(sets) / sizeof(sets[0]); k++) {
                const struct ek_result_seq *s = draw(&x, sets[k], 3, NULL);
                assert_int_equal(s->tokens, kind == 0 ? 0 : 1);
                if (kind == 1)
                    assert_int_equal(s->token[0], 17);
                if (kind == 2 && sets[k].sampling.temperature < 1e-5f)
                    assert_int_equal(s->token[0], 0); /* ties go to the lower id */
                if (kind == 3)
                    assert_int_equal(s->token[0], 5);
            }
            tiny_close(&x);
            tiny_free(t);
        }
}

/* What a slot's words do, one after the other, with the history growing on the device. */
static const uint32_t *words_of(struct tiny_device *x, struct ek_slot_set *set,
                                const uint32_t *words)
{
    set->word = x->step->words;
    if (ek_slot_words(set) > 0)
        memcpy(ek_step_words(x->step) + set->word, words, ek_slot_words(set) * sizeof(*words));
    x->step->words += (uint32_t)ek_slot_words(set);
    return words;
}

/* `n` tokens in a row, greedy; each but the first comes from the slot itself. */
static void run_on(struct tiny_device *x, struct ek_slot_set set, const uint32_t *words,
                   uint32_t at, uint32_t n, int32_t *ret_tokens)
{
    int32_t token[512] = {0};
    uint32_t table[64];

    for (uint32_t i = 0; i < 64; i++)
        table[i] = 1 + i;
    (void)words_of(x, &set, words);
    tiny_set(x, &set);
    for (uint32_t i = 0; i < n; i++) {
        token[at + i - 1] = i > 0 ? EK_FROM_PREVIOUS : 0;
        tiny_add(x, set.slot, token, at + i - 1, 1, table, true);
        assert_int_equal(tiny_run(x, NULL), 0);
        ret_tokens[i] = x->result->seq[0].tokens ? x->result->seq[0].token[0] : -1;
    }
}

static uint32_t bits_of(float f)
{
    uint32_t u;
    memcpy(&u, &f, sizeof(u));
    return u;
}

static void test_adjust(void **state)
{
    (void)state;
    float logits[VOCAB]; /* 3 for token 0, then in steps of 0.2: 0, 23, 6, 29, 12, ... */
    const uint32_t order[6] = {0, 23, 6, 29, 12, 35};
    struct tiny_device x;
    int32_t got[8];

    make_logits(logits);
    struct tiny *t = flat_model(logits);
    assert_int_equal(tiny_open(t, NULL, 2, 8, 80, &x), 0);
    for (uint32_t i = 0; i < 6; i++)
        assert_true(fabsf(logits[order[i]] - (3.0f - 0.2f * (float)i)) < 1e-6f);
    struct ek_slot_set set = {.slot = 3, .sampling.top_p = 1.0f};

    /* each token costs 0.3 each time it comes, the history is only one of the prompt */
    set.sampling.frequency = 0.3f;
    set.prompt = 1;
    run_on(&x, set, (uint32_t[]){6}, 2, 6, got);
    const int32_t want[6] = {0, 23, 0, 6, 23, 29};
    /* 3 2.8 2.6 2.4; 2.7 2.8; 2.7 2.5 2.6 2.4; 2.4 2.5 2.6; 2.4 2.5 2.3 2.4; 2.4 2.2 2.3 2.4 */
    for (uint32_t i = 0; i < 5; i++)
        assert_int_equal(got[i], want[i]);

    /* a token costs once; then again the largest */
    set.sampling.frequency = 0;
    set.sampling.presence = 100.0f;
    run_on(&x, set, (uint32_t[]){6}, 2, 6, got);
    for (uint32_t i = 0; i < 6; i++)
        assert_int_equal(got[i], order[i]);

    /* what the prompt holds counts, too; logits below 0 are multiplied */
    set.sampling.presence = 0;
    set.sampling.repetition = 2.0f;
    set.prompt = 2;
    run_on(&x, set, (uint32_t[]){0, 23}, 3, 3, got);
    assert_int_equal(got[0], 6);
    assert_int_equal(got[1], 29);
    assert_int_equal(got[2], 12);

    /* a sequence set anew with what is known goes on as if nothing had happened */
    set.output = 2;
    run_on(&x, set, (uint32_t[]){0, 23, 6, 29}, 5, 1, got);
    assert_int_equal(got[0], 12);

    set = (struct ek_slot_set){.slot = 3, .sampling.top_p = 1.0f, .biases = 2};
    run_on(&x, set, (uint32_t[]){0, bits_of(-50.0f), 35, bits_of(2.0f)}, 2, 2, got);
    assert_int_equal(got[0], 35);
    assert_int_equal(got[1], 35);

    set = (struct ek_slot_set){.slot = 3, .sampling.top_p = 1.0f, .banned = 2, .banned_until = 4};
    run_on(&x, set, (uint32_t[]){0, 23}, 2, 3, got);
    assert_int_equal(got[0], 6);
    assert_int_equal(got[1], 6);
    assert_int_equal(got[2], 0);

    set = (struct ek_slot_set){.slot = 3, .sampling.top_p = 1.0f, .allowed = 2};
    run_on(&x, set, (uint32_t[]){1u << 29, 1u << 3}, 2, 1, got);
    assert_int_equal(got[0], 29);
    set.banned = 2;
    set.banned_until = 9;
    run_on(&x, set, (uint32_t[]){1u << 29, 1u << 3, 29, 35}, 2, 1, got);
    assert_int_equal(got[0], -1);                                        /* none is left */
    run_on(&x, set, (uint32_t[]){1u << 29, 1u << 3, 29, 35}, 2, 3, got); /* nor does a step fail */
    assert_int_equal(got[2], -1);

    /* 0 alone never; 6 not after 23; the history begins empty but for the prompt */
    set =
        (struct ek_slot_set){.slot = 3, .sampling.top_p = 1.0f, .bad = 8, .prompt = 1, .biases = 0};
    run_on(&x, set, (uint32_t[]){1, 0, 2, 23, 23, 2, 23, 6, 23}, 2, 4, got);
    assert_int_equal(got[0], 23);
    assert_int_equal(got[1], 29);
    assert_int_equal(got[2], 23);
    assert_int_equal(got[3], 29);
    tiny_close(&x);
    tiny_free(t);
}

/* Of few likely and many unlikely tokens the typical ones stay. */
static void test_typical(void **state)
{
    (void)state;
    float logits[VOCAB];
    struct tiny_device x;
    uint32_t hits[VOCAB] = {0};

    for (uint32_t i = 0; i < VOCAB; i++)
        logits[i] = i == 0 ? 3.0f : i < 5 ? 2.0f : -3.0f;
    struct tiny *t = flat_model(logits);
    assert_int_equal(tiny_open(t, NULL, 1, 8, 80, &x), 0);
    /* p(0) = 0.38, p(1..4) = 0.14 each; entropy 1.75 nats, surprises 0.97, 1.97, 6.97 */
    struct ek_slot_set set = {
        .sampling.temperature = 1.0f, .sampling.top_p = 1.0f, .sampling.typical_p = 0.4f};
    for (uint32_t n = 0; n < 500; n++)
        hits[draw(&x, set, 1 + n, NULL)->token[0]]++;
    assert_int_equal(hits[0], 0);
    for (uint32_t i = 1; i <= 3; i++)
        assert_true(hits[i] > 100); /* three of them hold 0.42 */
    assert_int_equal(hits[1] + hits[2] + hits[3], 500);
    set.sampling.typical_p = 1.0f;
    for (uint32_t n = 0; n < 500; n++)
        hits[0] += draw(&x, set, 1 + n, NULL)->token[0] == 0;
    assert_true(hits[0] > 120);
    tiny_close(&x);
    tiny_free(t);
}

/* Scores of a chunk's known tokens and the state behind the sampled row. */
static void test_scores(void **state)
{
    (void)state;
    static const int32_t tokens[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    float logits[VOCAB];
    uint32_t table[8] = {1, 2, 3, 4, 5, 6, 7, 8};
    struct tiny_device x;

    make_logits(logits);
    struct tiny *t = flat_model(logits);
    assert_int_equal(tiny_open(t, NULL, 2, 8, 80, &x), 0);
    struct ek_slot_set set = {.slot = 1, .sampling.top_p = 1.0f, .top = 2};
    tiny_set(&x, &set);
    tiny_add(&x, 0, tokens, 4, 1, table, true); /* beside it, another sequence is sampled */
    tiny_add(&x, 1, tokens, 0, 4, table, true);
    struct ek_step_seq *q = &ek_step_seqs(x.step)[1];
    q->scores = 2; /* of the rows 1 and 2, whose next tokens are 3 and 4 */
    q->score_row = x.step->logit_rows;
    q->target = 0;
    q->hidden = 1;
    x.step->logit_rows += 2;
    memcpy(ek_step_words(x.step), (uint32_t[]){3, 4}, 8);
    x.step->words = 2;
    assert_int_equal(tiny_run(&x, NULL), 0);
    assert_int_equal(x.result->scores, 2);
    for (uint32_t i = 0; i < 2; i++) {
        const struct ek_result_score *s = &ek_result_scores(x.result)[i];
        uint32_t rank = 1;
        for (uint32_t k = 0; k < VOCAB; k++)
            rank += logits[k] > logits[3 + i];
        assert_true(s->logit == logits[3 + i]);
        assert_true(s->lse == x.result->seq[1].lse);
        assert_int_equal(s->rank, rank);
        assert_int_equal(s->top, 2);
        assert_int_equal(s->top_id[0], 0);
    }
    assert_int_equal(x.result->hiddens, 1);
    assert_int_equal(x.result->width, 1);
    assert_true(ek_result_hidden(x.result, 0)[0] == 1.0f);
    tiny_close(&x);
    tiny_free(t);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_report), cmocka_unit_test(test_distribution),
        cmocka_unit_test(test_large),  cmocka_unit_test(test_seed),
        cmocka_unit_test(test_masks),  cmocka_unit_test(test_strange),
        cmocka_unit_test(test_adjust), cmocka_unit_test(test_typical),
        cmocka_unit_test(test_scores),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
