/*
 * Tokens that were added to a tokenizer.model and lie beside it: against what transformers makes of
 * directories that it saved itself, then entries that contradict the file, and failing allocations.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"
#include "tests/unit/alloc.h"
#include "tests/unit/text/sides.h"

/* A token's bytes as SentencePiece spells them: U+2581 is a space, <0x0A> a byte. */
static void spelled(const char *token, struct ek_buf *out)
{
    unsigned byte;
    ek_buf_clear(out);
    for (const char *mark; (mark = strstr(token, "\xE2\x96\x81")); token = mark + 3) {
        assert_int_equal(ek_buf_add(out, token, (size_t)(mark - token)), 0);
        assert_int_equal(ek_buf_add(out, " ", 1), 0);
    }
    if (strlen(token) == 6 && sscanf(token, "<0x%2X>", &byte) == 1)
        assert_int_equal(ek_buf_add(out, &(char){(char)byte}, 1), 0);
    else
        assert_int_equal(ek_buf_add(out, token, strlen(token)), 0);
}

static void check_beside(const struct tokenizer *t, const char *name, const json_t *root)
{
    const json_t *tokens = json_object_get(root, "tokens"),
                 *special = json_object_get(root, "special"), *c;
    struct ek_buf want = {0};
    size_t i, k = 0;
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        struct token_vec v = {0};
        const json_t *text = json_array_get(c, 0), *ids = json_array_get(c, 1);
        assert_int_equal(
            tokenizer_encode_prompt(t, json_string_value(text), json_string_length(text), &v), 0);
        bool same = v.count == json_array_size(ids);
        for (size_t n = 0; same && n < v.count; n++)
            same = v.at[n] == (int32_t)json_integer_value(json_array_get(ids, n));
        if (!same)
            fail_msg("%s: \"%s\" gives other tokens", name, json_string_value(text));
        token_vec_done(&v);
    }
    assert_true(i >= 60);
    assert_int_equal(tokenizer_count(t), json_array_size(tokens));
    json_array_foreach(tokens, i, c)
    {
        size_t len = 0;
        const char *bytes = tokenizer_bytes(t, (int32_t)i, &len);
        spelled(json_string_value(c), &want);
        assert_non_null(bytes);
        if (len != want.len || memcmp(bytes, want.data, len) != 0)
            fail_msg("%s: token %zu is \"%s\", not \"%s\"", name, i, bytes, want.data);
    }
    for (i = 0; i < json_array_size(special); i++)
        assert_true(
            tokenizer_is_special(t, (int32_t)json_integer_value(json_array_get(special, i))));
    for (i = 3; i < json_array_size(tokens); i++) /* below are the file's own */
        k += tokenizer_is_special(t, (int32_t)i);
    for (i = 0; i < json_array_size(special); i++)
        k -= json_integer_value(json_array_get(special, i)) >= 3;
    assert_int_equal(k, 0);
    assert_int_equal(tokenizer_eos(t), json_integer_value(json_object_get(root, "eos")));
    ek_buf_done(&want);
}

/* Tokens that were added to a tokenizer.model, as a new transformers and an old one save them; what
 * the new one makes of them, in the middle one with a space before the text alone ("legacy": false;
 * tools/model/make_spm_added.py). */
static void test_added_to_spm(void **state)
{
    (void)state;
    static const char *const names[] = {"spm-added", "spm-added-first", "spm-added-old"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        char path[120], dir[100];
        (void)snprintf(dir, sizeof(dir), FIXTURES "/%s", names[i]);
        (void)snprintf(path, sizeof(path), "%s/cases.json", dir);
        json_t *root = json_load_file(path, 0, NULL);
        assert_non_null(root);
        for (size_t side = 0; side < SIDES; side++) {
            struct tokenizer *t = sides[side](dir);
            check_beside(t, names[i], root);
            tokenizer_free(t);
        }
        json_decref(root);
    }
}

/* An entry for a piece of another text gives it that text; one that another piece has is refused,
 * as are ids that are none. */
static void test_listed_beside_spm(void **state)
{
    (void)state;
    static const struct {
        const char *key, *content, *says;
    } cases[] = {
        {"5", "<|im_start|>", NULL},
        {"5", "the<|x|>", NULL},
        {"5", "\xE2\x96\x81the", "is there twice"},
        {"500", "\xE2\x96\x81the", "is another token's text"},
        {"4x", "<x>", "added_tokens_decoder: 4x"},
        {"-4", "<x>", "added_tokens_decoder: -4"},
        {"4294967296", "<x>", "added_tokens_decoder"},
        {"1048576", "<x>", "must be 0 to 1048575"},
        {"5", "", "have a content"},
    };
    struct ek_buf model = {0};
    file(FIXTURES "/spm/tokenizer.model", &model);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tok_source s = {0};
        struct tokenizer *t = NULL;
        struct ek_fault fault = {.msg = ""};
        struct token_vec v = {0};
        json_t *config = json_pack("{s:{s:{s:s, s:b}}}", "added_tokens_decoder", cases[i].key,
                                   "content", cases[i].content, "special", true);
        int r = tok_from_spm(model.data, model.len, config, &s, &fault);
        assert_int_equal(r, cases[i].says ? -EBADMSG : 0);
        if (cases[i].says && !strstr(fault.msg, cases[i].says))
            fail_msg("case %zu: %s", i, fault.msg);
        if (r == 0) {
            assert_int_equal(tok_build_from(&s, NULL, &t, &fault), 0);
            assert_int_equal(
                tokenizer_encode_prompt(t, cases[i].content, strlen(cases[i].content), &v), 0);
            assert_true(v.count == 2 && v.at[1] == 5 && tokenizer_is_special(t, 5));
        }
        token_vec_done(&v);
        tokenizer_free(t);
        tok_source_done(&s);
        json_decref(config);
    }
    ek_buf_done(&model);
}

/* Tokens without a row in the embedding are left out. */
static void test_without_rows(void **state)
{
    (void)state;
    static const char *const names[] = {"tokenizer.model", "tokenizer_config.json", "config.json"};
    char dir[] = "/tmp/evenkeel-rows-XXXXXX", from[4096], path[64];
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < 2; i++) {
        (void)snprintf(path, sizeof(path), FIXTURES "/spm-added/%s", names[i]);
        assert_non_null(realpath(path, from));
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        assert_int_equal(symlink(from, path), 0);
    }
    (void)snprintf(path, sizeof(path), "%s/config.json", dir);
    json_t *config = json_pack("{s:i}", "vocab_size", 425);
    assert_int_equal(json_dump_file(config, path, 0), 0);
    json_decref(config);
    for (size_t side = 0; side < SIDES; side++) {
        struct tokenizer *t = sides[side](dir);
        assert_int_equal(tokenizer_count(t), 425);
        assert_int_equal(tokenizer_find(t, "<|im_start|>"), 424);
        assert_int_equal(tokenizer_find(t, "<|im_end|>"), -1);
        assert_int_equal(tokenizer_eos(t), -1);
        tokenizer_free(t);
    }
    for (size_t i = 0; i < 3; i++) {
        (void)snprintf(path, sizeof(path), "%s/%s", dir, names[i]);
        assert_int_equal(unlink(path), 0);
    }
    assert_int_equal(rmdir(dir), 0);
}

static void test_allocations(void **state)
{
    (void)state;
    struct ek_buf model = {0};
    json_t *config =
        json_load_file(FIXTURES "/spm-added/tokenizer_config.json", JSON_DECODE_INT_AS_REAL, NULL);
    assert_non_null(config);
    file(FIXTURES "/spm-added/tokenizer.model", &model);
    for (long n = 1;; n++) {
        struct tok_source s = {0};
        alloc_fail_at(n);
        int r = tok_from_spm(model.data, model.len, config, &s, NULL);
        const bool failed = alloc_failed();
        tok_source_done(&s);
        assert_int_equal(r, failed ? -ENOMEM : 0);
        if (!failed)
            break;
    }
    ek_buf_done(&model);
    json_decref(config);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_added_to_spm),
        cmocka_unit_test(test_listed_beside_spm),
        cmocka_unit_test(test_without_rows),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
