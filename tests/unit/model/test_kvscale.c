/* Scales of the KV cache in a checkpoint: under which names, of which types, what is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/model/kvscale.h"

#define P "model.layers.1.self_attn."

struct scale_entry {
    const char *name, *type, *shape;
    uint32_t bits; /* its bytes, little-endian */
    uint32_t bytes;
};

static void test_scales(void **state)
{
    (void)state;
    static const struct {
        struct scale_entry k, v;
        int result;
        float want_k, want_v;
    } cases[] = {
        {{P "k_scale", "F32", "[]", 0x3f400000, 4},
         {P "v_scale", "F32", "[1]", 0x40000000, 4},
         0,
         0.75f,
         2.0f},
        {{P "k_proj.k_scale", "BF16", "[1]", 0x3e80, 2},
         {P "attn.v_scale", "F16", "[1, 1]", 0x3555, 2},
         0,
         0.25f,
         0.333251953125f},
        {{P "kv_scale", "F16", "[]", 0x0001, 2},
         {"other", "F32", "[]", 0, 4},
         0,
         0x1p-24f,
         0x1p-24f},
        {{P "k_scale", "F32", "[]", 0xbf800000, 4}, {P "v_scale", "F16", "[]", 0x0000, 2}, 0, 0, 0},
        {{"model.layers.0.self_attn.k_scale", "F32", "[]", 0x3f400000, 4},
         {"x", "F32", "[]", 0, 4},
         0,
         0,
         0},
        {{P "k_scale", "F32", "[]", 0x7f800000, 4}, {"x", "F32", "[]", 0, 4}, -EBADMSG, 0, 0},
        {{P "k_scale", "F16", "[]", 0x7e00, 2}, {"x", "F32", "[]", 0, 4}, -EBADMSG, 0, 0},
        {{P "k_scale", "BF16", "[2]", 0x3e803e80, 4}, {"x", "F32", "[]", 0, 4}, -EBADMSG, 0, 0},
        {{P "k_scale", "I32", "[]", 1, 4}, {"x", "F32", "[]", 0, 4}, -EBADMSG, 0, 0},
        {{"x", "F32", "[]", 0, 4}, {P "v_scale", "F32", "[0]", 0, 0}, -EBADMSG, 0, 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct scale_entry *k = &cases[i].k, *v = &cases[i].v;
        char data[600] = {0};
        int n = snprintf(data + 8, sizeof(data) - 8,
                         "{\"%s\": {\"dtype\": \"%s\", \"shape\": %s, \"data_offsets\": [0, %u]}, "
                         "\"%s\": {\"dtype\": \"%s\", \"shape\": %s, \"data_offsets\": [%u, %u]}}",
                         k->name, k->type, k->shape, k->bytes, v->name, v->type, v->shape, k->bytes,
                         k->bytes + v->bytes);
        uint64_t header = (uint64_t)n;
        memcpy(data, &header, 8);
        memcpy(data + 8 + n, &k->bits, k->bytes);
        memcpy(data + 8 + n + k->bytes, &v->bits, v->bytes);
        const size_t size = 8 + (size_t)n + k->bytes + v->bytes;
        struct st_set s = {0};
        struct ek_fault fault = {.msg = ""};
        struct ek_weight_file file = {data, size, false};
        const char *name = "model.safetensors";
        float got_k = 9, got_v = 9;
        if (st_parse(&s, name, data, size, &fault) != 0 || st_sort(&s, &fault) != 0)
            fail_msg("case %zu: %s", i, fault.msg);
        struct st_set mapped = s;
        mapped.file = &file;
        mapped.file_name = &name;
        mapped.files = 1;
        assert_int_equal(kvscale_find(&mapped, "model.layers.1.", &got_k, &got_v, &fault),
                         cases[i].result);
        if (cases[i].result == 0)
            assert_true(got_k == cases[i].want_k && got_v == cases[i].want_v);
        else
            assert_non_null(strstr(fault.msg, "--kv-cache-dtype auto"));
        st_done(&s);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_scales)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
