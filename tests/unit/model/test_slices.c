/*
 * Quantized matrices of which one tensor of three dimensions holds many, as all experts of a layer:
 * which bytes are whose, under the names that tools write, and what does not fit.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/model/family.h"
#include "server/model/graph_weights.h"
#include "server/model/quant.h"

enum { EXPERTS = 4, ROWS = 6, COLS = 64, MOST = 4 };

#define U "m.up_proj"

struct one {
    const char *name, *type;
    uint8_t dims;
    uint64_t shape[3];
    uint32_t each; /* bytes of one number */
};

/* A set of these tensors, one behind the other in a file whose 32-bit floats are all 2. */
struct set {
    struct st_tensor tensor[MOST];
    struct ek_weight_file file;
    const char *file_name;
    struct st_set st;
};

static float numbers[4096];

static void set_make(struct set *s, const struct one *ones)
{
    uint64_t at = 0;
    uint32_t n = 0;
    for (size_t i = 0; i < sizeof(numbers) / sizeof(numbers[0]); i++)
        numbers[i] = 2;
    *s = (struct set){.file = {.data = numbers, .size_bytes = sizeof(numbers)},
                      .file_name = "model.safetensors"};
    for (; n < MOST && ones[n].name; n++) {
        struct st_tensor *t = &s->tensor[n];
        *t = (struct st_tensor){.name = ones[n].name, .type = ones[n].type, .dims = ones[n].dims};
        t->usable = strcmp(t->type, "F32") == 0 || strcmp(t->type, "BF16") == 0;
        t->dtype = strcmp(t->type, "F32") == 0 ? EK_F32 : EK_BF16;
        memcpy(t->shape, ones[n].shape, sizeof(ones[n].shape));
        uint64_t bytes = ones[n].each;
        for (uint32_t k = 0; k < t->dims; k++)
            bytes *= t->shape[k];
        t->begin = at;
        t->end = at += bytes;
    }
    s->st = (struct st_set){
        .tensor = s->tensor, .count = n, .file = &s->file, .file_name = &s->file_name, .files = 1};
}

static int find(struct set *s, uint32_t index, struct ek_quant *q, struct ek_fault *f)
{
    static const struct config_quant_params p = {
        .method = QUANT_COMPRESSED, .block_rows = 128, .block_cols = 128};
    const struct quant_slice slice = {U, index, EXPERTS, ROWS, COLS, HALF_NONE};
    return quant_find_slice(&s->st, &p, &slice, q, f);
}

#define PACKED(name)                                                                               \
    {                                                                                              \
        name, "I32", 3, {EXPERTS, ROWS, COLS / 8}, 4                                               \
    }
#define GROUPS(name)                                                                               \
    {                                                                                              \
        name, "BF16", 3, {EXPERTS, ROWS, 2}, 2                                                     \
    }
#define EIGHT(name)                                                                                \
    {                                                                                              \
        name, "I8", 3, {EXPERTS, ROWS, COLS}, 1                                                    \
    }
#define HALVES(name)                                                                               \
    {                                                                                              \
        name, "F32", 3, {EXPERTS, 2, 1}, 4                                                         \
    }
#define FOURS(name)                                                                                \
    {                                                                                              \
        name, "U8", 3, {EXPERTS, ROWS, COLS / 2}, 1                                                \
    }
#define PARTS(name)                                                                                \
    {                                                                                              \
        name, "F8_E4M3", 3, {EXPERTS, ROWS, COLS / 16}, 1                                          \
    }
#define EACH(name)                                                                                 \
    {                                                                                              \
        name, "F32", 2, {EXPERTS, 1}, 4                                                            \
    }
#define PACKED_BYTES (ROWS * COLS / 2)
#define GROUPS_BYTES (ROWS * 2 * 2)

static void test_each_expert(void **state)
{
    (void)state;
    static const struct {
        struct one ones[MOST];
        enum ek_quant_kind kind;
        uint32_t block_rows, block_cols, number_bytes, scale_bytes;
        double times;
    } cases[] = {
        {{PACKED(U ".weight_packed"), GROUPS(U ".weight_scale")},
         EK_QUANT_PACKED,
         1,
         COLS / 2,
         PACKED_BYTES,
         GROUPS_BYTES,
         0},
        {{PACKED(U "_packed"), GROUPS(U "_scale")},
         EK_QUANT_PACKED,
         1,
         COLS / 2,
         PACKED_BYTES,
         GROUPS_BYTES,
         0},
        {{EIGHT(U), HALVES(U "_scale")}, EK_QUANT_I8, ROWS / 2, COLS, ROWS * COLS, 8, 0},
        {{EIGHT(U ".weight"), HALVES(U ".weight_scale")},
         EK_QUANT_I8,
         ROWS / 2,
         COLS,
         ROWS * COLS,
         8,
         0},
        {{EACH(U "_global_scale"), FOURS(U "_packed"), PARTS(U "_scale")},
         EK_QUANT_NVFP4,
         1,
         16,
         PACKED_BYTES,
         ROWS * COLS / 16,
         0.5},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (uint32_t e = 0; e < EXPERTS; e++) {
            struct set s;
            struct ek_quant q;
            struct ek_fault f = {0};
            set_make(&s, cases[i].ones);
            if (find(&s, e, &q, &f) != 1)
                fail_msg("case %zu: %s", i, f.msg);
            const uint64_t first = cases[i].times > 0 ? EXPERTS * 4 : 0;
            const uint64_t behind = first + (uint64_t)EXPERTS * cases[i].number_bytes;
            assert_int_equal(q.kind, cases[i].kind);
            assert_true(q.block_rows == cases[i].block_rows && q.block_cols == cases[i].block_cols);
            assert_int_equal(q.numbers.offset_bytes, first + (uint64_t)e * cases[i].number_bytes);
            assert_int_equal(q.scales.offset_bytes, behind + (uint64_t)e * cases[i].scale_bytes);
            assert_true(cases[i].times == 0 || (double)q.times == cases[i].times);
            for (uint32_t k = 0; k < s.st.count; k++)
                assert_true(s.tensor[k].used);
        }
}

static void test_what_does_not_fit(void **state)
{
    (void)state;
    static const struct {
        struct one ones[MOST];
        const char *says;
    } cases[] = {
        {{PACKED(U "_packed")}, "'m.up_proj_packed' has no weight_scale beside it"},
        {{{U "_packed", "I32", 3, {EXPERTS - 1, ROWS, COLS / 8}, 4}, GROUPS(U "_scale")},
         "'m.up_proj_packed' has a type or shape that does not fit"},
        {{{U "_packed", "I32", 3, {EXPERTS, COLS, ROWS / 2}, 4}, GROUPS(U "_scale")},
         "'m.up_proj_packed' has a type or shape that does not fit"},
        {{PACKED(U "_packed"), {U "_scale", "BF16", 2, {ROWS, 2}, 2}},
         "'m.up_proj_scale' has another type than is expected"},
        {{EIGHT(U), {U "_scale", "F32", 3, {EXPERTS, 3, 1}, 4}},
         "'m.up_proj_scale' has a shape that does not fit"},
        {{{U "_global_scale", "F32", 2, {EXPERTS, 2}, 4}, FOURS(U "_packed"), PARTS(U "_scale")},
         "'m.up_proj_global_scale' has no number that scales could be multiplied with"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct set s;
        struct ek_quant q;
        struct ek_fault f = {0};
        set_make(&s, cases[i].ones);
        assert_int_equal(find(&s, 0, &q, &f), -EBADMSG);
        if (!strstr(f.msg, cases[i].says))
            fail_msg("case %zu: %s", i, f.msg);
    }
}

/* Gate and up that lie joined have a number each, which goes with its half; of a matrix that is
 * whole two numbers are refused (above). */
static void test_halves(void **state)
{
    (void)state;
    static const struct one stored[2][MOST] = {
        {{U "_global_scale", "F32", 2, {EXPERTS, 2}, 4}, FOURS(U "_packed"), PARTS(U "_scale")},
        {{U "_global_scale", "F32", 3, {EXPERTS, 2, 1}, 4}, FOURS(U "_packed"), PARTS(U "_scale")}};
    static const struct graph_shape shape = {3, {EXPERTS, ROWS, COLS}};
    const struct model_config c = {.experts = EXPERTS, .quant = {.method = QUANT_COMPRESSED}};
    for (size_t i = 0; i < 2; i++) {
        struct set s;
        struct ek_fault f = {0};
        struct ek_graph g = {.dtype = EK_BF16};
        struct graph_builder b = {.graph = &g, .tensors = &s.st, .config = &c, .fault = &f};
        set_make(&s, stored[i]);
        for (uint32_t k = 0; k < 2 * EXPERTS; k++)
            numbers[k] = (float)(k + 1);
        graph_expert_slices(&b, U, &shape, 0, ROWS / 2);
        graph_expert_slices(&b, U, &shape, ROWS / 2, ROWS / 2);
        if (b.error)
            fail_msg("case %zu: %s", i, f.msg);
        assert_int_equal(g.quant_count, 2 * EXPERTS);
        for (uint32_t e = 0; e < EXPERTS; e++) {
            assert_true(g.quants[e].times == 1.0f / (float)(2 * e + 1));
            assert_true(g.quants[EXPERTS + e].times == 1.0f / (float)(2 * e + 2));
        }
        ek_graph_free(&g);
    }
}

/* What tools write beside experts in one tensor, and what they do not. */
static void test_what_is_beside(void **state)
{
    (void)state;
    static const struct {
        const char *name;
        bool fits;
    } cases[] = {{"experts.gate_up_proj_shape", true},
                 {"experts.gate_up_proj_input_scale", true},
                 {"experts.gate_up_proj_input_global_scale", true},
                 {"experts.down_proj_input_zero_point", true},
                 {"experts.down_proj.weight_shape", true},
                 {"experts.gate_up_proj_bias", false},
                 {"experts.input_shape", false}};
    const struct model_family family = {.architecture = "Any"};
    const struct model_config c = {.family = &family, .quant = {.method = QUANT_COMPRESSED}};
    const struct model_config plain = {.family = &family};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct one ones[MOST] = {{cases[i].name, "F32", 1, {1}, 4}};
        struct set s;
        struct ek_fault f = {0};
        struct graph_builder b = {.tensors = &s.st, .config = &c, .fault = &f};
        set_make(&s, ones);
        if ((graph_check_unused(&b) == 0) != cases[i].fits)
            fail_msg("%s: %s", cases[i].name, f.msg);
        b = (struct graph_builder){.tensors = &s.st, .config = &plain, .fault = &f};
        assert_int_equal(graph_check_unused(&b), -EBADMSG);
    }
}

/* A plain tensor is none of them, whether there is a scale beside it or not. */
static void test_what_is_plain(void **state)
{
    (void)state;
    static const struct one plain[MOST] = {{U, "BF16", 3, {EXPERTS, ROWS, COLS}, 2}};
    struct set s;
    struct ek_quant q;
    struct ek_fault f = {0};
    set_make(&s, plain);
    assert_int_equal(find(&s, 0, &q, &f), 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_each_expert), cmocka_unit_test(test_what_does_not_fit),
        cmocka_unit_test(test_halves), cmocka_unit_test(test_what_is_beside),
        cmocka_unit_test(test_what_is_plain)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
