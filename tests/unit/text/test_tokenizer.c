/*
 * The tokenizer against Hugging Face's: whole prompts of the embedded model, and small tokenizers
 * of every kind with texts in many scripts (tools/model/make_tokenizer_cases.py wrote them). Then
 * what only we promise: guards, limits, refusals by name, hostile texts in linear time.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"
#include "server/text/utf8.h"
#include "tests/unit/alloc.h"

#define TINY "models/evenkeel-tiny"

static json_t *fixture(const char *path)
{
    json_error_t err;
    json_t *root = json_load_file(path, 0, &err);
    if (!root)
        fail_msg("%s: %s", path, err.text);
    return root;
}

static struct tokenizer *tiny(void)
{
    struct tokenizer *t = NULL;
    struct ek_fault fault = {0};
    if (tokenizer_load(TINY, &t, &fault) != 0)
        fail_msg("%s", fault.msg);
    return t;
}

static struct tokenizer *built(const char *text)
{
    struct tokenizer *t = NULL;
    struct ek_fault fault = {0};
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    if (tok_build(root, NULL, &t, &fault) != 0)
        fail_msg("%s", fault.msg);
    json_decref(root);
    return t;
}

static bool same(const struct token_vec *v, const json_t *ids)
{
    size_t i;
    const json_t *id;
    if (v->count != json_array_size(ids))
        return false;
    json_array_foreach(ids, i, id)
    {
        if (v->at[i] != (int32_t)json_integer_value(id))
            return false;
    }
    return true;
}

static void joined(const struct tokenizer *t, const struct token_vec *v, struct ek_buf *out)
{
    ek_buf_clear(out);
    (void)ek_buf_add(out, "", 0);
    for (size_t i = 0; i < v->count; i++) {
        size_t len;
        const char *s = tokenizer_bytes(t, v->at[i], &len);
        assert_non_null(s);
        assert_int_equal(ek_buf_add(out, s, len), 0);
    }
}

static void test_prompts(void **state)
{
    (void)state;
    json_t *root = fixture("tests/fixtures/expected.json"), *c;
    struct tokenizer *t = tiny();
    size_t i;
    json_array_foreach(json_object_get(root, "cases"), i, c)
    {
        const json_t *text = json_object_get(c, "rendered");
        struct token_vec v = {0};
        if (!text)
            text = json_object_get(c, "prompt");
        if (!json_is_string(text))
            continue;
        assert_int_equal(
            tokenizer_encode(t, json_string_value(text), json_string_length(text), true, 0, &v), 0);
        if (!same(&v, json_object_get(c, "prompt_token_ids")))
            fail_msg("prompt of case %zu", i);
        token_vec_done(&v);
    }
    assert_true(i >= 10);
    tokenizer_free(t);
    json_decref(root);
}

static void check_case(const struct tokenizer *t, const char *group, bool strips, const json_t *c)
{
    const json_t *text = json_array_get(c, 0), *decoded = json_array_get(c, 2);
    struct token_vec v = {0};
    struct ek_buf out = {0};
    assert_int_equal(
        tokenizer_encode_prompt(t, json_string_value(text), json_string_length(text), &v), 0);
    if (!same(&v, json_array_get(c, 1)))
        fail_msg("%s: \"%s\" gives other tokens", group, json_string_value(text));
    joined(t, &v, &out);
    if (json_is_string(decoded)) {
        const char *s = out.data;
        if (strips && *s == ' ' && strcmp(s, json_string_value(decoded)) != 0)
            s++;
        assert_string_equal(s, json_string_value(decoded));
    }
    ek_buf_done(&out);
    token_vec_done(&v);
}

static void test_kinds(void **state)
{
    (void)state;
    json_t *groups = fixture("tests/fixtures/tokenizer_cases.json"), *g, *c;
    size_t i, k;
    json_array_foreach(groups, i, g)
    {
        const char *name = json_string_value(json_object_get(g, "name"));
        const json_t *own = json_object_get(g, "tokenizer");
        struct tokenizer *t = NULL;
        struct ek_fault fault = {0};
        if (!own)
            t = tiny();
        else if (tok_build(own, NULL, &t, &fault) != 0)
            fail_msg("%s: %s", name, fault.msg);
        json_array_foreach(json_object_get(g, "cases"), k, c)
        {
            check_case(t, name, json_is_true(json_object_get(g, "strips")), c);
        }
        tokenizer_free(t);
    }
    assert_true(i >= 15);
    json_decref(groups);
}

static void test_lookups(void **state)
{
    (void)state;
    struct tokenizer *t = tiny();
    size_t len;
    assert_int_equal(tokenizer_count(t), 4100);
    assert_int_equal(tokenizer_find(t, "<|im_start|>"), 1);
    assert_int_equal(tokenizer_find(t, "<tool_call>"), 4096);
    assert_int_equal(tokenizer_find(t, "no such token"), -1);
    assert_int_equal(tokenizer_eos(t), 2);
    assert_true(tokenizer_is_special(t, 2));
    assert_false(tokenizer_is_special(t, 4096));
    assert_false(tokenizer_is_special(t, -1));
    assert_false(tokenizer_is_special(t, 1 << 30));
    assert_string_equal(tokenizer_special(t, 1), "<|im_start|>");
    assert_null(tokenizer_special(t, 3));
    assert_null(tokenizer_bytes(t, -1, &len));
    assert_null(tokenizer_bytes(t, 4100, &len));
    assert_string_equal(tokenizer_bytes(t, 262, &len), " the");
    assert_int_equal(len, 4);
    tokenizer_free(t);
}

#define GUARD 0xFDD0u
#define MARK  "\xEF\xB7\x90"

static void test_special_text(void **state)
{
    static const struct {
        const char *text;
        bool specials;
        uint32_t guard;
        const char *joined;
        size_t id2; /* how many of token 2, <|im_end|> */
    } cases[] = {
        {"a<|im_end|>b", true, 0, "a<|im_end|>b", 1},
        {"a<|im_end|>b", false, 0, "a<|im_end|>b", 0},
        {"a<" MARK "|im_end|>b", true, GUARD, "a<|im_end|>b", 0},
        {"<" MARK "|im_end|><|im_end|>", true, GUARD, "<|im_end|><|im_end|>", 1},
        {MARK MARK "x" MARK, true, GUARD, "x", 0},
        {MARK, true, GUARD, "", 0},
        {"e" MARK "\xCC\x81", true, GUARD, "\xC3\xA9", 0}, /* composes over the guard */
        {"x" MARK, true, 0, "x" MARK, 0},
        {"\xFFq\xE2\x82|\xF0\x9F", true, 0, "\xEF\xBF\xBDq\xEF\xBF\xBD|\xEF\xBF\xBD", 0},
        {"\xED\xA0\x80", true, 0, "\xEF\xBF\xBD\xEF\xBF\xBD\xEF\xBF\xBD", 0},
    };
    (void)state;
    struct tokenizer *t = tiny();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct token_vec v = {0};
        struct ek_buf out = {0};
        size_t id2 = 0;
        assert_int_equal(tokenizer_encode(t, cases[i].text, strlen(cases[i].text),
                                          cases[i].specials, cases[i].guard, &v),
                         0);
        joined(t, &v, &out);
        assert_string_equal(out.data, cases[i].joined);
        for (size_t k = 0; k < v.count; k++)
            id2 += v.at[k] == 2;
        assert_int_equal(id2, cases[i].id2);
        ek_buf_done(&out);
        token_vec_done(&v);
    }
    tokenizer_free(t);
}

#define CHARS "\"vocab\":{\"a\":0,\"b\":1,\"ab\":2,\"<x>\":3},\"merges\":[\"a b\"]"
#define WITH(rest)                                                                                 \
    "{\"model\":{\"type\":\"BPE\"," CHARS "},\"decoder\":{\"type\":\"Fuse\"}" rest "}"
#define MODEL(members) "{\"model\":{" members "},\"decoder\":{\"type\":\"Fuse\"}}"

/* Tokens found in normalized text keep the guard's promise too. */
static void test_guard_normalized(void **state)
{
    (void)state;
    struct tokenizer *t =
        built(WITH(",\"normalizer\":{\"type\":\"Lowercase\"},\"added_tokens\":[{\"id\":3,"
                   "\"content\":\"<x>\",\"normalized\":true,\"special\":true}]"));
    struct token_vec v = {0};
    assert_int_equal(tokenizer_encode(t, "A<X>B", 5, true, 0, &v), 0);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.at[1], 3);
    v.count = 0;
    assert_int_equal(tokenizer_encode(t, "A<" MARK "X>B", 8, true, GUARD, &v), 0);
    assert_int_equal(v.count, 1); /* < X > are no tokens of this model: a and b merge */
    assert_int_equal(v.at[0], 2);
    token_vec_done(&v);
    tokenizer_free(t);
}

static void test_limit(void **state)
{
    (void)state;
    struct tokenizer *t = tiny();
    struct token_vec v = {.limit = 5};
    assert_int_equal(tokenizer_encode(t, "a b", 3, true, 0, &v), 0);
    assert_int_equal(v.count, 2);
    assert_int_equal(tokenizer_encode(t, "a b c d", 7, true, 0, &v), -E2BIG);
    assert_int_equal(v.count, 2);
    assert_int_equal(tokenizer_encode(t, "a b c", 5, true, 0, &v), 0);
    assert_int_equal(v.count, 5);
    assert_int_equal(tokenizer_encode(t, "", 0, true, 0, &v), 0);
    token_vec_done(&v);
    tokenizer_free(t);
}

static const struct {
    const char *text;
    const char *field; /* in the fault */
} refused[] = {
    {MODEL("\"type\":\"WordLevel\"," CHARS), "model.type"},
    {MODEL("\"type\":\"WordPiece\"," CHARS), "model.type"},
    {WITH(",\"normalizer\":{\"type\":\"BertNormalizer\"}"), "normalizer"},
    {MODEL("\"type\":\"BPE\""), "model.vocab"},
    {MODEL("\"vocab\":[],\"merges\":[]"), "model.vocab"},
    {MODEL("\"vocab\":{\"a\":-1},\"merges\":[]"), "model.vocab"},
    {MODEL("\"vocab\":{\"a\":4000000000},\"merges\":[]"), "model.vocab"},
    {MODEL("\"vocab\":{\"a\":\"0\"},\"merges\":[]"), "model.vocab"},
    {MODEL("\"vocab\":{\"\":0},\"merges\":[]"), "model.vocab"},
    {MODEL("\"vocab\":{\"a\":0,\"b\":0},\"merges\":[]"), "model.vocab"},
    {MODEL("\"vocab\":{\"a\":0}"), "model.merges"},
    {MODEL("\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a\"]"), "model.merges"},
    {MODEL("\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[\"a a a\"]"), "model.merges"},
    {MODEL("\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[[\"a\"]]"), "model.merges"},
    {MODEL("\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[[\"a\",7]]"), "model.merges"},
    {MODEL("\"vocab\":{\"a\":0,\"aa\":1},\"merges\":[[\"\",\"a\"]]"), "model.merges"},
    {MODEL("\"vocab\":{\"a\":0},\"merges\":[\"a a\"]"), "model.merges"},
    {MODEL("\"unk_token\":\"?\"," CHARS), "model.unk_token"},
    {MODEL("\"dropout\":0.1," CHARS), "model.dropout"},
    {MODEL("\"end_of_word_suffix\":\"</w>\"," CHARS), "end_of_word_suffix"},
    {MODEL("\"ignore_merges\":1," CHARS), "ignore_merges"},
    {WITH(",\"normalizer\":{\"type\":\"Nmt\"}"), "normalizer"},
    {WITH(",\"normalizer\":{\"type\":\"Precompiled\"}"), "precompiled_charsmap"},
    {WITH(",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"AAA!\"}"),
     "precompiled_charsmap"},
    {WITH(",\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"/wAAAAAA\"}"),
     "precompiled_charsmap"},
    {MODEL("\"type\":\"Unigram\",\"vocab\":{}"), "model.vocab"},
    {MODEL("\"type\":\"Unigram\",\"vocab\":[[\"a\",0],[\"a\",0]]"), "model.vocab"},
    {MODEL("\"type\":\"Unigram\",\"vocab\":[[\"a\",\"b\"]]"), "model.vocab"},
    {MODEL("\"type\":\"Unigram\",\"unk_id\":1,\"vocab\":[[\"a\",0]]"), "model.unk_id"},
    {WITH(",\"normalizer\":{\"type\":\"Sequence\"}"), "normalizer"},
    {WITH(",\"normalizer\":\"NFC\""), "normalizer"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"UnicodeScripts\"}"), "pre_tokenizer"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\"}"), "pattern"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Odd\"}"), "behavior"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
          "{\"Regex\":\"(\"}}"),
     "Regex"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
          "{\"Regex\":\"[a\"}}"),
     "Regex"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
          "{\"Regex\":\"a{1,3}+\"}}"),
     "Regex"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
          "{\"Regex\":\"[^a&&[b]]\"}}"),
     "Regex"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
          "{\"Regex\":\"[a&&b]\"}}"),
     "Regex"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
          "{\"Regex\":\"[a&&[b]c]\"}}"),
     "Regex"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
          "{\"Regex\":\"[a&&[b&&[c]]]\"}}"),
     "Regex"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":"
          "{\"Regex\":\"[a&&[b]\"}}"),
     "Regex"},
    {WITH(",\"pre_tokenizer\":{\"type\":\"Metaspace\",\"replacement\":\"__\"}"), "replacement"},
    {WITH(",\"post_processor\":{\"type\":\"Odd\"}"), "post_processor"},
    {WITH(",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[]}"), "single"},
    {WITH(",\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"SpecialToken\":"
          "{\"id\":\"s\"}}],\"special_tokens\":{\"s\":{\"ids\":[99]}}}"),
     "post_processor"},
    {WITH(",\"added_tokens\":{}"), "added_tokens"},
    {WITH(",\"added_tokens\":[{\"id\":9}]"), "added_tokens"},
    {WITH(",\"added_tokens\":[{\"id\":-9,\"content\":\"y\"}]"), "added_tokens"},
    {WITH(",\"added_tokens\":[{\"id\":1,\"content\":\"y\"}]"), "added_tokens"},
    {WITH(",\"added_tokens\":[{\"id\":9,\"content\":\"a\"}]"), "added_tokens"},
    {"{\"model\":{" CHARS "}}", "decoder"},
    {"{\"model\":{" CHARS "},\"decoder\":{\"type\":\"CTC\"}}", "decoder"},
    {"{}", "model.vocab"},
};

/* A tokenizer whose table replaces "a" by what its pool says from `value` on. */
static int with_table(const char *pool, size_t pool_len, uint32_t value, struct tokenizer **ret_tok)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    enum { UNITS = 'a' + 1 };
    uint32_t unit[UNITS] = {['a'] = 1u << 10 | 0x100 | 'a', ['a' ^ 1] = 0x80000000u | value};
    struct ek_buf table = {0}, json = {0};
    struct ek_fault fault = {0};
    uint32_t size = sizeof(unit);
    (void)ek_buf_add(&table, &size, 4);
    (void)ek_buf_add(&table, unit, sizeof(unit));
    (void)ek_buf_add(&table, pool, pool_len);
    size_t len = table.len;
    assert_int_equal(ek_buf_add(&table, "\0\0", 2), 0);
    (void)ek_buf_puts(&json, "{\"model\":{\"type\":\"BPE\"," CHARS "},\"decoder\":{\"type\":"
                             "\"Fuse\"},\"normalizer\":{\"type\":\"Precompiled\","
                             "\"precompiled_charsmap\":\"");
    for (size_t i = 0; i < len; i += 3) {
        const uint8_t *b = (const uint8_t *)table.data + i;
        uint32_t bits = (uint32_t)b[0] << 16 | (uint32_t)b[1] << 8 | b[2];
        for (uint32_t k = 0; k < 4; k++)
            (void)ek_buf_add(&json, i + k > len ? "=" : &digits[bits >> (18 - 6 * k) & 63], 1);
    }
    assert_int_equal(ek_buf_puts(&json, "\"}}"), 0);
    json_t *root = json_loads(json.data, 0, NULL);
    assert_non_null(root);
    int r = tok_build(root, NULL, ret_tok, &fault);
    if (r < 0)
        assert_string_equal(fault.field, "precompiled_charsmap");
    json_decref(root);
    ek_buf_done(&json);
    ek_buf_done(&table);
    return r;
}

/* A table that would make of a text what is none. */
static void test_tables(void **state)
{
    static const char bytes[] = "ab\0\xC3\xA9\0\xF0\x9F\0\0";
    static const struct {
        uint32_t from, len, value;
        const char *becomes; /* of "ba"; NULL: refused */
    } cases[] = {
        {0, 3, 0, "bab"}, {0, 3, 1, "bb"}, {0, 3, 2, "b"},  {0, 6, 3, "b"},
        {0, 6, 4, NULL},  {0, 6, 6, NULL}, {0, 9, 0, NULL}, {6, 3, 0, NULL},
        {0, 2, 0, NULL},  {3, 3, 1, NULL}, {3, 3, 2, "b"},  {0, 3, 0x7FFFFFFF, NULL},
    };
    char longer[300];
    struct tokenizer *t = NULL;
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct token_vec v = {0};
        int r = with_table(bytes + cases[i].from, cases[i].len, cases[i].value, &t);
        if (r != (cases[i].becomes ? 0 : -EBADMSG))
            fail_msg("table %zu: %d", i, r);
        if (r < 0)
            continue;
        struct ek_buf out = {0};
        assert_int_equal(tokenizer_encode(t, "ba", 2, true, 0, &v), 0);
        joined(t, &v, &out);
        assert_string_equal(out.data ? out.data : "", cases[i].becomes);
        ek_buf_done(&out);
        token_vec_done(&v);
        tokenizer_free(t);
        t = NULL;
    }
    memset(longer, 'b', sizeof(longer));
    longer[sizeof(longer) - 1] = '\0';
    assert_int_equal(with_table(longer, sizeof(longer), 0, &t), -EBADMSG);
    struct token_vec v = {0};
    char text[6000];
    memset(text, 'a', sizeof(text));
    assert_int_equal(with_table(longer + 50, sizeof(longer) - 50, 0, &t), 0);
    assert_int_equal(tokenizer_encode(t, text, 10, true, 0, &v), 0);
    assert_int_equal(v.count, 2490);
    assert_int_equal(tokenizer_encode(t, text, sizeof(text), true, 0, &v), -E2BIG); /* 1.5 MB */
    token_vec_done(&v);
    tokenizer_free(t);
}

/* No walk leaves its text, not even where a character is cut off. */
static void test_cut(void **state)
{
    static const char *const cut[] = {"\xC3", "\xE2\x96", "\xE2", "\xF0\x9F\x99", "\xF0"};
    (void)state;
    for (size_t i = 0; i < sizeof(cut) / sizeof(cut[0]); i++) {
        uint32_t cp = 0;
        assert_int_equal(utf8_next(cut[i], strlen(cut[i]), &cp), strlen(cut[i]));
        assert_int_equal(cp, 0xFFFD);
    }
    uint32_t cp = 0;
    assert_int_equal(utf8_next("\xF0\x9F\x99\x82", 4, &cp), 4);
    assert_int_equal(cp, 0x1F642);
}

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refused) / sizeof(refused[0]); i++) {
        struct tokenizer *t = NULL;
        struct ek_fault fault = {0};
        json_t *root = json_loads(refused[i].text, 0, NULL);
        assert_non_null(root);
        assert_int_equal(tok_build(root, NULL, &t, &fault), -EBADMSG);
        assert_null(t);
        assert_string_equal(fault.field, refused[i].field);
        assert_true(strlen(fault.msg) > 10);
        json_decref(root);
    }
    struct tokenizer *t = NULL;
    struct ek_fault fault = {0};
    assert_int_equal(tokenizer_load("tests/fixtures", &t, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "does not exist"));
}

/* Holes in the ids and an added token far above are fine. */
static void test_holes(void **state)
{
    (void)state;
    struct tokenizer *t = built("{\"model\":{\"vocab\":{\"a\":0,\"b\":7},\"merges\":[]},"
                                "\"decoder\":{\"type\":\"Fuse\"},\"added_tokens\":[{\"id\":90,"
                                "\"content\":\"!\"}]}");
    size_t len;
    assert_int_equal(tokenizer_count(t), 91);
    assert_null(tokenizer_bytes(t, 5, &len));
    assert_non_null(tokenizer_bytes(t, 90, &len));
    tokenizer_free(t);
}

/* A pattern that looks ahead to the end of the run from each match: refused, not run for hours. */
static void test_step_budget(void **state)
{
    (void)state;
    struct tokenizer *t =
        built(WITH(",\"pre_tokenizer\":{\"type\":\"Split\",\"behavior\":\"Isolated\",\"pattern\":{"
                   "\"Regex\":\"(?:(a|b)*)*c|a(?=(?:aa|ab)*c)|a\"}}"));
    struct token_vec v = {0};
    size_t len = 100000;
    char *text = malloc(len);
    assert_non_null(text);
    memset(text, 'a', len);
    assert_int_equal(tokenizer_encode(t, text, 8, true, 0, &v), 0);
    assert_int_equal(v.count, 8);
    assert_int_equal(tokenizer_encode(t, text, len, true, 0, &v), -E2BIG);
    assert_int_equal(v.count, 8);
    free(text);
    token_vec_done(&v);
    tokenizer_free(t);
}

/* Long pieces: the bytes come back, whatever was merged. */
static void test_long(void **state)
{
    static const char *const units[] = {"a", "the", " ", "\xCC\x81\xCC\xA3", "qzthe", "7", "\n "};
    (void)state;
    struct tokenizer *t = tiny();
    for (size_t i = 0; i < sizeof(units) / sizeof(units[0]); i++) {
        struct ek_buf text = {0}, out = {0};
        struct token_vec v = {0};
        while (text.len < 100000)
            assert_int_equal(ek_buf_puts(&text, units[i]), 0);
        assert_int_equal(tokenizer_encode(t, text.data, text.len, true, 0, &v), 0);
        joined(t, &v, &out);
        assert_int_equal(out.len, text.len);
        if (i != 3) /* marks are put in order */
            assert_memory_equal(out.data, text.data, text.len);
        token_vec_done(&v);
        ek_buf_done(&out);
        ek_buf_done(&text);
    }
    tokenizer_free(t);
}

#define MANY                                                                                       \
    WITH(",\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[{\"type\":\"NFC\"},"             \
         "{\"type\":\"Replace\",\"pattern\":{\"String\":\"q\"},\"content\":\"ab\"},"               \
         "{\"type\":\"Prepend\",\"prepend\":\"b\"}]},\"pre_tokenizer\":{\"type\":\"Sequence\","    \
         "\"pretokenizers\":[{\"type\":\"Metaspace\"},{\"type\":\"Digits\"},"                      \
         "{\"type\":\"ByteLevel\"}]},\"added_tokens\":[{\"id\":3,\"content\":\"<x>\","             \
         "\"special\":true},{\"id\":4,\"content\":\"yy\"}]")

static void alloc_build(const char *text)
{
    json_t *root = json_loads(text, 0, NULL);
    assert_non_null(root);
    for (long n = 1;; n++) {
        struct tokenizer *t = NULL;
        alloc_fail_at(n);
        int r = tok_build(root, NULL, &t, NULL);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            tokenizer_free(t);
            assert_true(n > 20);
            break;
        }
        if (r == 0) { /* only the JIT compiler can do without */
            tokenizer_free(t);
            continue;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(t);
    }
    json_decref(root);
}

static void test_alloc_build(void **state)
{
    (void)state;
    alloc_build(MANY);
}

static void test_alloc_encode(void **state)
{
    (void)state;
    struct tokenizer *t = built(MANY);
    struct ek_buf text = {0};
    assert_int_equal(ek_buf_puts(&text, "q e\xCC\x81 1\xFF <" MARK "x> yy <x>"), 0);
    for (int i = 0; i < 40; i++)
        assert_int_equal(ek_buf_puts(&text, "abb"), 0);
    struct token_vec whole = {0};
    assert_int_equal(tokenizer_encode(t, text.data, text.len, true, GUARD, &whole), 0);
    for (long n = 1;; n++) {
        struct token_vec v = {0};
        alloc_fail_at(n);
        int r = tokenizer_encode(t, text.data, text.len, true, GUARD, &v);
        bool failed = alloc_failed();
        assert_int_equal(r, failed ? -ENOMEM : 0);
        assert_int_equal(v.count, failed ? 0 : whole.count);
        token_vec_done(&v);
        if (!failed) {
            assert_true(n > 8);
            break;
        }
    }
    token_vec_done(&whole);
    ek_buf_done(&text);
    tokenizer_free(t);
}

static void test_alloc_load(void **state)
{
    (void)state;
    for (long n = 1; n < 12; n++) { /* the file and the first tables */
        struct tokenizer *t = NULL;
        alloc_fail_at(n);
        int r = tokenizer_load(TINY, &t, NULL);
        assert_true(alloc_failed());
        assert_int_equal(r, -ENOMEM);
        assert_null(t);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_kinds),
        cmocka_unit_test(test_lookups),
        cmocka_unit_test(test_special_text),
        cmocka_unit_test(test_guard_normalized),
        cmocka_unit_test(test_limit),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_tables),
        cmocka_unit_test(test_cut),
        cmocka_unit_test(test_holes),
        cmocka_unit_test(test_step_budget),
        cmocka_unit_test(test_long),
        cmocka_unit_test(test_alloc_build),
        cmocka_unit_test(test_alloc_encode),
        cmocka_unit_test(test_alloc_load),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
