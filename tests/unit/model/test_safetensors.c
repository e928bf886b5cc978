/* Headers of safetensors files: what is believed, and each way to lie. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/model/safetensors.h"
#include "tests/unit/alloc.h"

/* A file in memory: length, header, `data_bytes` zeros. The caller frees it. */
static uint8_t *file_make(const char *header, size_t data_bytes, uint64_t *ret_size)
{
    uint64_t len = strlen(header);
    uint8_t *p = calloc(1, 8 + len + data_bytes);
    assert_non_null(p);
    for (size_t b = 0; b < 8; b++)
        p[b] = (uint8_t)(len >> (8 * b));
    memcpy(p + 8, header, len);
    *ret_size = 8 + len + data_bytes;
    return p;
}

static int parse(const char *header, size_t data_bytes, struct st_set *s, struct ek_fault *f)
{
    uint64_t size = 0;
    uint8_t *p = file_make(header, data_bytes, &size);
    int r = st_parse(s, "x.safetensors", p, size, f);
    if (r == 0)
        r = st_sort(s, f);
    free(p);
    return r;
}

static void test_good(void **state)
{
    (void)state;
    static const char header[] =
        "{\"__metadata__\": {\"format\": \"pt\"},"
        "\"b\": {\"dtype\": \"BF16\", \"shape\": [2, 3], \"data_offsets\": [4, 16]},"
        "\"a\": {\"dtype\": \"F32\", \"shape\": [], \"data_offsets\": [0, 4]},"
        "\"empty\": {\"dtype\": \"F16\", \"shape\": [0, 7], \"data_offsets\": [16, 16]},"
        "\"ids\": {\"dtype\": \"I64\", \"shape\": [1], \"data_offsets\": [16, 24]},"
        "\"half\": {\"dtype\": \"F4\", \"shape\": [2], \"data_offsets\": [24, 25]}}";
    struct st_set s = {0};
    struct ek_fault f = {0};
    if (parse(header, 25, &s, &f) != 0)
        fail_msg("%s", f.msg);
    assert_int_equal(s.count, 5);
    const struct st_tensor *b = st_find(&s, "b");
    assert_non_null(b);
    assert_int_equal(b->dims, 2);
    assert_int_equal(b->shape[1], 3);
    assert_int_equal(b->begin, 8 + strlen(header) + 4);
    assert_int_equal(b->end - b->begin, 12);
    assert_true(b->usable && b->dtype == EK_BF16);
    assert_false(st_find(&s, "ids")->usable);
    assert_string_equal(st_find(&s, "ids")->type, "I64");
    assert_null(st_find(&s, "c"));
    st_done(&s);
    assert_null(st_find(&s, "b"));

    assert_int_equal(parse("{}", 0, &s, &f), 0); /* a file without tensors */
    st_done(&s);
}

#define T(name, shape, offsets)                                                                    \
    "\"" name "\":{\"dtype\":\"F32\",\"shape\":" shape ",\"data_offsets\":" offsets "}"

static const struct {
    const char *header;
    size_t data;
    const char *says;
} bad_cases[] = {
    {"{" T("x", "[2]", "[0,8]") "}", 4,
     "tensor 'x' ends at byte 70 but the file has 66 bytes: it is "
     "truncated; download it again"},
    {"{" T("x", "[2]", "[0,9223372036854775807]") "}", 8, "it is truncated"},
    {"{" T("x", "[2]", "[0,9223372036854775808]") "}", 8, "not two growing numbers"},
    {"{" T("x", "[2]", "[8,0]") "}", 8, "not two growing numbers"},
    {"{" T("x", "[2]", "[-8,0]") "}", 8, "not two growing numbers"},
    {"{" T("x", "[2]", "[0.0,8]") "}", 8, "not two growing numbers"},
    {"{" T("x", "[2]", "[0]") "}", 8, "not two growing numbers"},
    {"{" T("x", "[2]", "[0,8,9]") "}", 8, "not two growing numbers"},
    {"{" T("x", "[2]", "null") "}", 8, "not two growing numbers"},
    {"{" T("x", "[2]", "[0,4]") "}", 4, "has 4 bytes but its type and shape need 8"},
    {"{" T("x", "[-2]", "[0,8]") "}", 8, "negative or too large"},
    {"{" T("x", "[4294967296,4294967296]", "[0,8]") "}", 8, "negative or too large"},
    {"{" T("x", "[1152921504606846976]", "[0,0]") "}", 0, "too large for its type"},
    {"{" T("x", "[2.0]", "[0,8]") "}", 8, "negative or too large"},
    {"{" T("x", "2", "[0,8]") "}", 8, "needs a shape"},
    {"{" T("x", "[1,1,1,1,1,1,1,1,2]", "[0,8]") "}", 8, "at most 8 numbers"},
    {"{" T("x", "[1]", "[0,4]") "," T("y", "[1]", "[0,4]") "}", 4,
     "tensor 'y' begins at byte 115, before byte 119 where the one before it ends"},
    {"{" T("x", "[1]", "[0,4]") "," T("y", "[1]", "[2,6]") "}", 6, "before byte"},
    {"{" T("x", "[1]", "[0,4]") "," T("y", "[1]", "[8,12]") "}", 12, "leaving a gap after"},
    {"{" T("x", "[1]", "[4,8]") "}", 8, "leaving a gap after"},
    {"{" T("x", "[1]", "[0,4]") "}", 8,
     "its last tensor ends at byte 66 but the file has 70 bytes"},
    {"{}", 1, "its last tensor ends at byte 10 but the file has 11 bytes"},
    {"{" T("x", "[1]", "[0,4]") "," T("x", "[1]", "[4,8]") "}", 8, "duplicate object key"},
    {"{" T("", "[1]", "[0,4]") "}", 4, "empty name"},
    {"{\"x\":{\"dtype\":\"Q4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "unknown type 'Q4'"},
    {"{\"x\":{\"shape\":[1],\"data_offsets\":[0,1]}}", 1, "unknown type ''"},
    {"{\"x\":{\"dtype\":\"F4\",\"shape\":[1],\"data_offsets\":[0,1]}}", 1,
     "too large for its type"},
    {"{\"x\":3}", 0, "unknown type"},
    {"[]", 0, "must be a JSON object"},
    {"{", 0, "no valid JSON"},
    {"", 0, "no valid JSON"},
    {"{\"a\\u0000b\":{}}", 0, "no valid JSON"},
};

static void test_bad(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bad_cases) / sizeof(bad_cases[0]); i++) {
        struct st_set s = {0};
        struct ek_fault f = {0};
        int r = parse(bad_cases[i].header, bad_cases[i].data, &s, &f);
        if (r != -EBADMSG || !strstr(f.msg, bad_cases[i].says) ||
            strncmp(f.msg, "x.safetensors: ", 15) != 0)
            fail_msg("case %zu: %d %s", i, r, f.msg);
        st_done(&s);
    }
}

static void test_bad_length(void **state)
{
    (void)state;
    struct st_set s = {0};
    struct ek_fault f = {0};
    uint8_t file[16] = {0};
    assert_int_equal(st_parse(&s, "x", file, 0, &f), -EBADMSG);
    assert_int_equal(st_parse(&s, "x", file, 7, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "too few for a header"));
    file[0] = 9;
    assert_int_equal(st_parse(&s, "x", file, 16, &f), -EBADMSG);
    assert_string_equal(f.msg, "x: its header ends at byte 17 but the file has 16 bytes: it is "
                               "truncated; download it again");
    memset(file, 0xff, 8);
    assert_int_equal(st_parse(&s, "x", file, 16, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "18446744073709551615 bytes, more than the 100000000"));
    assert_null(s.tensor);
    st_done(&s);
}

/* More tensors than are allowed, in one file and over two. */
static void test_too_many(void **state)
{
    (void)state;
    struct st_set s = {0};
    struct ek_fault f = {0};
    size_t room = 64 * (size_t)40000 + 16, at = 0;
    char *header = malloc(room);
    assert_non_null(header);
    header[at++] = '{';
    for (uint32_t i = 0; i < 40000; i++)
        at +=
            (size_t)snprintf(header + at, room - at, "%s" T("%u", "[0]", "[0,0]"), i ? "," : "", i);
    (void)snprintf(header + at, room - at, "}");
    assert_int_equal(parse(header, 0, &s, &f), 0);
    assert_int_equal(s.count, 40000);
    assert_int_equal(parse(header, 0, &s, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "brings the model to 80000 tensors, more than the 65536"));
    st_done(&s);
    free(header);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    static const char header[] = "{" T("x", "[1]", "[0,4]") "," T("y", "[1]", "[4,8]") "}";
    uint64_t size = 0;
    uint8_t *p = file_make(header, 8, &size);
    for (long n = 1;; n++) {
        struct st_set s = {0};
        alloc_fail_at(n);
        int r = st_parse(&s, "x", p, size, NULL);
        bool failed = alloc_failed();
        st_done(&s);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        if (!failed) {
            assert_true(n > 2);
            break;
        }
    }
    free(p);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_good),
        cmocka_unit_test(test_bad),
        cmocka_unit_test(test_bad_length),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
