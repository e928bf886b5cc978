/* The flat step: its size and layout, and that a damaged one is refused. */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "kernels/step.h"

static const struct ek_step_ceiling g_ceiling = {
    .rows = 8, .seqs = 3, .entries = 6, .copies = 2, .words = 24, .scores = 2};

enum { VOCAB = 100, BLOCKS = 10, BLOCK_SIZE = 4, STATES = 5 };

/* Two sequences: a decode at position 5, and a chunk of three rows that begins a prompt. */
static struct ek_step *good_step(void)
{
    struct ek_step *s = calloc(1, ek_step_size(&g_ceiling));

    ek_step_layout(s, &g_ceiling);
    s->id = 1;
    s->rows = 4;
    s->seqs = 2;
    s->logit_rows = 2;
    s->words = 16;
    s->entries = 3;
    s->sets = 1;
    s->copies = 1;
    ek_step_seqs(s)[0] = (struct ek_step_seq){2, 0, 1, 6, 0, 2, 1, 0, 0, 0, 0, 0, 6};
    ek_step_seqs(s)[1] = (struct ek_step_seq){0, 1, 3, 3, 2, 1, 0, 0, 1, 1, 15, 0, 3};
    memcpy(ek_step_tokens(s), (int32_t[]){EK_FROM_PREVIOUS, 1, 2, 99}, 16);
    memcpy(ek_step_positions(s), (uint32_t[]){5, 0, 1, 2}, 16);
    memcpy(ek_step_kv_slots(s), (uint32_t[]){7 * 4 + 1, 36, 37, 38}, 16);
    memcpy(ek_step_tables(s), (uint32_t[]){3, 7, 9}, 12);
    ek_step_sets(s)[0] = (struct ek_slot_set){.slot = 2,
                                              .sampling.temperature = 0.5f,
                                              .sampling.top_p = 1.0f,
                                              .allowed = (VOCAB + 31) / 32,
                                              .biases = 1,
                                              .banned = 1,
                                              .bad = 4,
                                              .prompt = 2,
                                              .output = 2};
    memcpy(ek_step_words(s), /* allowed, bias, banned, two bad ones, history, then a target */
           (uint32_t[]){1, 0, 0, 0, 7, 0x3f800000u, 9, 1, 3, 1, 99, 5, 6, 7, 8, 99}, 64);
    ek_step_copies(s)[0] = (struct ek_block_copy){3, 1, EK_TIER_HOST, EK_TIER_DEVICE, {0}};
    return s;
}

static int check(const struct ek_step *s)
{
    return ek_step_check(s, ek_step_size(&g_ceiling), &g_ceiling, VOCAB, BLOCKS, BLOCK_SIZE,
                         STATES);
}

static void test_layout(void **state)
{
    (void)state;
    struct ek_step s;
    const struct ek_step_ceiling huge = {UINT32_MAX, UINT32_MAX, UINT32_MAX,
                                         UINT32_MAX, UINT32_MAX, 0};

    ek_step_layout(&s, &g_ceiling);
    assert_int_equal(s.bytes, ek_step_size(&g_ceiling));
    assert_int_equal(s.token_at % 8 + s.seq_at % 8 + s.set_at % 8 + s.copy_at % 8, 0);
    assert_true(s.copy_at + g_ceiling.copies * sizeof(struct ek_block_copy) <= s.bytes);
    assert_int_equal(ek_step_size(&huge), 0);
}

#define CHANGE(what)                                                                               \
    {                                                                                              \
#what, offsetof(struct ek_step, what)                                                      \
    }

/* What is packed is the same step, and no longer than what it has. */
static void test_pack(void **state)
{
    struct ek_step *s = good_step(), *p = calloc(1, s->bytes);
    const struct ek_step empty = {.bytes = sizeof(empty)};
    (void)state;

    ek_step_pack(s, p);
    assert_int_equal(check(p), 0);
    assert_int_equal(ek_step_check(p, p->bytes, &g_ceiling, VOCAB, BLOCKS, BLOCK_SIZE, STATES), 0);
    const size_t want = sizeof(*p) + 3 * 16 + 2 * sizeof(struct ek_step_seq) + 16 +
                        sizeof(struct ek_slot_set) + sizeof(struct ek_block_copy) + 64;
    assert_true(p->bytes >= want && p->bytes < want + 8 * 8 && p->bytes < s->bytes);
    assert_true(p->id == 1 && p->logit_rows == 2);
    assert_memory_equal(ek_step_tokens(p), ek_step_tokens(s), 16);
    assert_memory_equal(ek_step_positions(p), ek_step_positions(s), 16);
    assert_memory_equal(ek_step_kv_slots(p), ek_step_kv_slots(s), 16);
    assert_memory_equal(ek_step_seqs(p), ek_step_seqs(s), 2 * sizeof(struct ek_step_seq));
    assert_memory_equal(ek_step_tables(p), ek_step_tables(s), 12);
    assert_memory_equal(ek_step_sets(p), ek_step_sets(s), sizeof(struct ek_slot_set));
    assert_memory_equal(ek_step_copies(p), ek_step_copies(s), sizeof(struct ek_block_copy));
    assert_memory_equal(ek_step_words(p), ek_step_words(s), 64);
    s->rows = s->seqs = s->logit_rows = s->words = s->entries = s->sets = s->copies = 0;
    ek_step_pack(s, p);
    assert_int_equal(p->bytes, empty.bytes);
    assert_int_equal(ek_step_check(p, p->bytes, &g_ceiling, VOCAB, BLOCKS, BLOCK_SIZE, STATES), 0);
    free(p);
    free(s);
}

/* Slots, tokens and how many there are count, and where each belongs; times do not. */
static void test_sum(void **state)
{
    const size_t bytes = ek_result_bytes(2, 0, 0, 0);
    struct ek_result *r = calloc(1, bytes), *other = calloc(1, bytes);
    struct ek_result stands = {.step = 3};
    (void)state;

    r->seqs = 2;
    r->seq[0] = (struct ek_result_seq){.slot = 1, .tokens = 1, .token = {7, 9}};
    r->seq[1] = (struct ek_result_seq){.slot = 2, .tokens = 2, .token = {7, 8}};
    stands.sum = ek_result_sum(r);
    assert_int_equal(ek_result_sum(&stands), stands.sum);
    memcpy(other, r, bytes);
    other->forward_us = 5;
    other->seq[0].token[1] = 10; /* behind what it gained */
    assert_int_equal(ek_result_sum(other), stands.sum);
    for (int i = 0; i < 6; i++) {
        memcpy(other, r, bytes);
        struct ek_result_seq *a = &other->seq[0], *b = &other->seq[1];
        *(i == 0 ? &a->slot : i == 1 ? &a->tokens : i == 2 ? &b->tokens : &b->slot) += 1;
        a->token[0] += i == 4;
        b->token[1] -= i == 5;
        b->slot -= i >= 4;
        assert_int_not_equal(ek_result_sum(other), stands.sum);
    }
    free(other);
    free(r);
}

/* Each field of the header set to wild values: no check may read outside (run under ASan). */
static void test_header(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        size_t at;
    } fields[] = {CHANGE(bytes),    CHANGE(rows),    CHANGE(seqs),        CHANGE(logit_rows),
                  CHANGE(entries),  CHANGE(sets),    CHANGE(copies),      CHANGE(token_at),
                  CHANGE(seq_at),   CHANGE(set_at),  CHANGE(position_at), CHANGE(kv_slot_at),
                  CHANGE(table_at), CHANGE(copy_at), CHANGE(words),       CHANGE(word_at)};
    static const uint32_t wild[] = {1u << 20, UINT32_MAX, UINT32_MAX - 7, 0x80000000u};

    for (size_t i = 0; i < sizeof(fields) / sizeof(fields[0]); i++)
        for (size_t k = 0; k < sizeof(wild) / sizeof(wild[0]); k++) {
            struct ek_step *s = good_step();
            assert_int_equal(check(s), 0);
            memcpy((char *)s + fields[i].at, &wild[k], sizeof(wild[k]));
            if (check(s) != -EBADMSG)
                fail_msg("%s = %u was accepted", fields[i].name, wild[k]);
            free(s);
        }
}

static void test_content(void **state)
{
    (void)state;
    for (int i = 0; i < 46; i++) {
        struct ek_step *s = good_step();
        struct ek_step_seq *q = ek_step_seqs(s);
        struct ek_slot_set *set = ek_step_sets(s);
        struct ek_block_copy *c = ek_step_copies(s);
        switch (i) {
        case 0: ek_step_tokens(s)[0] = -2; break;
        case 1: ek_step_tokens(s)[3] = VOCAB; break;
        case 2: ek_step_positions(s)[1] = 1; break;
        case 3: ek_step_kv_slots(s)[0]++; break;
        case 4: ek_step_tables(s)[0] = BLOCKS; break;
        case 5: ek_step_tables(s)[2] = EK_NULL_BLOCK; break;
        case 6: q[0].slot = 3; break;
        case 7: q[1].row = 0; break;
        case 8: q[1].rows = 4; break;
        case 9: q[1].rows = 2; break;
        case 10: q[0].context = 9; break;
        case 11: q[0].context = 0; break;
        case 12: q[1].table = UINT32_MAX; break;
        case 13: q[1].blocks = UINT32_MAX; break;
        case 14: q[1].sample = 1; break;
        case 15: q[0].logit_row = 1; break;
        case 16: set[0].slot = 3; break;
        case 17: set[0].sampling.temperature = NAN; break;
        case 18: set[0].sampling.top_p = 0.0f; break;
        case 19: set[0].sampling.min_p = 1.5f; break;
        case 20: set[0].top = EK_TOP_MOST + 1; break;
        case 21: ek_step_copies(s)[0].to = EK_NULL_BLOCK; break;
        case 22: ek_step_copies(s)[0].to = BLOCKS; break;
        case 23: ek_step_copies(s)[0].from_tier = 3; break;
        case 24: set[0].word = UINT32_MAX; break;
        case 25: set[0].allowed--; break;
        case 26: set[0].output = UINT32_MAX; break;
        case 27: set[0].biases = EK_BIAS_MOST + 1; break;
        case 28: ek_step_words(s)[4] = VOCAB; break;
        case 29: ek_step_words(s)[5] = 0x7f800000u; break; /* infinity */
        case 30: ek_step_words(s)[6] = VOCAB; break;
        case 31: ek_step_words(s)[7] = 0; break;
        case 32: ek_step_words(s)[9] = 2; break;
        case 33: ek_step_words(s)[10] = VOCAB; break;
        case 34: ek_step_words(s)[14] = VOCAB; break;
        case 35: ek_step_words(s)[15] = VOCAB; break;
        case 36: q[1].scores = 4; break;
        case 37: q[1].score_row = 0; break;
        case 38: q[1].target = 16; break;
        case 39: q[1].hidden = 1; break; /* nothing is sampled */
        case 40: set[0].sampling.typical_p = NAN; break;
        case 41: set[0].sampling.repetition = -1.0f; break;
        case 42: *c = (struct ek_block_copy){STATES, 0, EK_TIER_STATE, EK_TIER_STATE, {0}}; break;
        case 43: *c = (struct ek_block_copy){0, STATES, EK_TIER_STATE, EK_TIER_STATE, {0}}; break;
        case 44: *c = (struct ek_block_copy){1, 1, EK_TIER_STATE, EK_TIER_DEVICE, {0}}; break;
        case 45: *c = (struct ek_block_copy){1, 1, EK_TIER_HOST, EK_TIER_STATE, {0}}; break;
        }
        if (check(s) != -EBADMSG)
            fail_msg("change %d was accepted", i);
        free(s);
    }
}

static void test_states(void **state)
{
    (void)state;
    struct ek_step *s = good_step();

    *ek_step_copies(s) = (struct ek_block_copy){
        STATES - 1, 0, EK_TIER_STATE, EK_TIER_STATE, {0}}; /* there is no null slot */
    assert_int_equal(check(s), 0);
    free(s);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_layout),  cmocka_unit_test(test_pack),
        cmocka_unit_test(test_sum),     cmocka_unit_test(test_header),
        cmocka_unit_test(test_content), cmocka_unit_test(test_states),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
