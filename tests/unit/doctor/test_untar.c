/* Archives as they stream by, in pieces of every size: plain files come out, nothing else does, and
 * what is no archive does no harm. */
#include "supervisor/doctor/untar.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"

static void put(struct ek_buf *b, const char *name, char type, const char *text, uint64_t size)
{
    char head[512] = "", zero[512] = "";
    unsigned sum = 0;
    (void)snprintf(head, 100, "%s", name);
    (void)snprintf(head + 124, 12, "%011llo", (unsigned long long)size);
    memset(head + 148, ' ', 8);
    head[156] = type;
    memcpy(head + 257, "ustar", 6);
    for (int i = 0; i < 512; i++)
        sum += (unsigned char)head[i];
    (void)snprintf(head + 148, 8, "%06o", sum);
    (void)ek_buf_add(b, head, 512);
    (void)ek_buf_puts(b, text);
    (void)ek_buf_add(b, zero, (512 - strlen(text) % 512) % 512);
}

static void keep(void *ctx, const char *bytes, size_t len)
{
    (void)ek_buf_add(ctx, bytes, len);
}

static struct untar feed(const struct ek_buf *b, size_t piece, struct ek_buf *out)
{
    struct untar t = {.have = 0};
    ek_buf_clear(out);
    for (size_t at = 0; at < b->len; at += piece)
        untar_feed(&t, b->data + at, b->len - at < piece ? b->len - at : piece, keep, out);
    return t;
}

static void test_members(void **state)
{
    (void)state;
    struct ek_buf b = {0}, out = {0};
    char zero[1024] = "";
    put(&b, "../../etc/passwd", '0', "one\ntwo", 7);
    put(&b, "folder/", '5', "", 0);
    put(&b, "long name", 'L', "a/very/long/name", 16);
    put(&b, "link", '2', "", 0);
    put(&b, "b", '\0', "three\n", 6);
    (void)ek_buf_add(&b, zero, 1024);
    (void)ek_buf_puts(&b, "behind the end");
    assert_true(untar_is(b.data, b.len));
    assert_false(untar_is(b.data, 511));
    assert_false(untar_is(b.data + 512, b.len - 512));
    for (size_t piece = 1; piece < 3000; piece = piece * 3 / 2 + 1) {
        struct untar t = feed(&b, piece, &out);
        assert_int_equal(out.len, strlen("one\ntwo\nthree\n\n"));
        assert_memory_equal(out.data, "one\ntwo\nthree\n\n", out.len);
        assert_int_equal(t.files, 2);
        assert_true(t.ended && !t.damaged);
    }
    b.len = 512 + 5; /* broken off */
    struct untar t = feed(&b, 100, &out);
    assert_true(untar_cut(&t) && !t.damaged);
    assert_memory_equal(out.data, "one\nt", 5);
    ek_buf_done(&b);
    ek_buf_done(&out);
}

static void test_damaged(void **state)
{
    (void)state;
    struct ek_buf b = {0}, out = {0};
    put(&b, "huge", '0', "little", (uint64_t)1 << 32); /* says more than there is */
    struct untar t = feed(&b, 4096, &out);
    assert_true(untar_cut(&t));
    ek_buf_clear(&b);
    put(&b, "a", '0', "text", 4);
    put(&b, "b", '0', "more", 4);
    b.data[1024 + 3] ^= 1; /* the second header's name: its sum is wrong */
    t = feed(&b, 4096, &out);
    assert_true(t.damaged && t.ended);
    assert_memory_equal(out.data, "text\n", 5);
    ek_buf_done(&b);
    ek_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_members),
                                       cmocka_unit_test(test_damaged)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
