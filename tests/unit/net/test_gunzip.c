/* Bodies that came packed: what zlib's own deflate makes is unpacked whole; what is cut short,
 * damaged, too large or beyond the account is refused, and nothing is taken that was not charged.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <zlib.h>

#include "common/buf.h"
#include "server/net/gunzip.h"

struct account {
    size_t charged, most; /* bytes; -E2BIG above most */
};

static int charge(void *ctx, size_t len)
{
    struct account *a = ctx;
    assert_true(len >= a->charged);
    if (len > a->most)
        return -E2BIG;
    a->charged = len;
    return 0;
}

/* One gzip member, appended. */
static void pack(struct ek_buf *out, const char *s, size_t len)
{
    z_stream z = {.next_in = (Bytef *)(uintptr_t)s, .avail_in = (uInt)len};
    assert_int_equal(deflateInit2(&z, 6, Z_DEFLATED, MAX_WBITS + 16, 8, Z_DEFAULT_STRATEGY), Z_OK);
    size_t most = deflateBound(&z, len);
    assert_int_equal(ek_buf_reserve(out, most), 0);
    z.next_out = (Bytef *)out->data + out->len;
    z.avail_out = (uInt)most;
    assert_int_equal(deflate(&z, Z_FINISH), Z_STREAM_END);
    out->len += most - z.avail_out;
    (void)deflateEnd(&z);
}

/* What becomes of `in`; *ret_out is the caller's. */
static int unpack(const char *in, size_t len, size_t limit, size_t most, struct ek_buf *ret_out)
{
    struct account a = {.most = most};
    *ret_out = (struct ek_buf){.limit = limit};
    /* a copy without a byte more, for the sanitizer */
    char *copy = malloc(len ? len : 1);
    assert_non_null(copy);
    memcpy(copy, in, len);
    int r = gunzip(copy, len, ret_out, charge, &a);
    free(copy);
    assert_true(ret_out->len <= a.charged);
    return r;
}

static char *text_of(size_t len)
{
    char *s = malloc(len + 1);
    assert_non_null(s);
    uint32_t x = 1;
    for (size_t i = 0; i < len; i++) {
        x = x * 1664525u + 1013904223u;
        s[i] = (char)('a' + (x >> 24) % 26);
    }
    return s;
}

static void test_whole(void **state)
{
    static const size_t sizes[] = {0, 1, 65535, 65536, 65537, 400000};
    (void)state;
    for (size_t i = 0; i < sizeof(sizes) / sizeof(sizes[0]); i++) {
        struct ek_buf packed = {0}, out;
        char *text = text_of(sizes[i]);
        pack(&packed, text, sizes[i]);
        for (size_t members = 1; members <= 3; members++) {
            size_t want = members * sizes[i];
            assert_int_equal(unpack(packed.data, packed.len, want + 1, want, &out), 0);
            assert_int_equal(out.len, want);
            for (size_t m = 0; m < members && sizes[i]; m++)
                assert_memory_equal(out.data + m * sizes[i], text, sizes[i]);
            ek_buf_done(&out);
            pack(&packed, text, sizes[i]);
        }
        ek_buf_done(&packed);
        free(text);
    }
}

/* Cut at every byte, and one byte changed at every place: refused, or the same text. */
static void test_damaged(void **state)
{
    struct ek_buf packed = {0}, out;
    const size_t len = 300;
    char *text = text_of(len);
    (void)state;
    pack(&packed, text, len);
    for (size_t i = 0; i < packed.len; i++) {
        assert_int_equal(unpack(packed.data, i, 1 << 20, 1 << 20, &out), -EBADMSG);
        ek_buf_done(&out);
        packed.data[i] ^= 0x10;
        int r = unpack(packed.data, packed.len, 1 << 20, 1 << 20, &out);
        assert_true(r == -EBADMSG || (r == 0 && out.len == len && !memcmp(out.data, text, len)));
        ek_buf_done(&out);
        packed.data[i] ^= 0x10;
    }
    assert_int_equal(ek_buf_puts(&packed, "rest"), 0);
    assert_int_equal(unpack(packed.data, packed.len, 1 << 20, 1 << 20, &out), -EBADMSG);
    ek_buf_done(&out);
    assert_int_equal(unpack("{\"a\":1}", 7, 1 << 20, 1 << 20, &out), -EBADMSG);
    ek_buf_done(&out);
    ek_buf_done(&packed);
    free(text);
}

/* A thousand bytes become a million, as far as they may. */
static void test_bounds(void **state)
{
    const size_t len = 1u << 20;
    struct ek_buf packed = {0}, out;
    char *zeros = calloc(1, len);
    (void)state;
    assert_non_null(zeros);
    pack(&packed, zeros, len);
    assert_true(packed.len < 2000);
    assert_int_equal(unpack(packed.data, packed.len, 100000, len, &out), -EFBIG);
    assert_true(out.len <= 100000);
    ek_buf_done(&out);
    assert_int_equal(unpack(packed.data, packed.len, len, 200000, &out), -E2BIG);
    assert_true(out.len <= 200000);
    ek_buf_done(&out);
    assert_int_equal(unpack(packed.data, packed.len, len, len, &out), 0);
    assert_int_equal(out.len, len);
    ek_buf_done(&out);
    ek_buf_done(&packed);
    free(zeros);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_whole),
        cmocka_unit_test(test_damaged),
        cmocka_unit_test(test_bounds),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
