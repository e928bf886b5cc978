/*
 * Tokenizers of other files than tokenizer.json: SentencePiece's tokenizer.model, tekken.json,
 * tiktoken.model, and GPT-2's two files against what sentencepiece, tiktoken and tokenizers make of
 * the same texts (tools/model/make_tokenizer_files.py), then damaged files, refusals by name and
 * failing allocations.
 */
#include <errno.h>
#include <math.h>
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
#include "common/bundle.h"
#include "common/err.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"
#include "tests/unit/alloc.h"
#include "tests/unit/text/sides.h"

static void check_case(const struct tokenizer *t, const char *name, bool specials, const json_t *c)
{
    const json_t *text = json_array_get(c, 0), *ids = json_array_get(c, 1);
    struct token_vec v = {0};
    assert_int_equal(
        tokenizer_encode(t, json_string_value(text), json_string_length(text), specials, 0, &v), 0);
    bool same = v.count == json_array_size(ids);
    for (size_t i = 0; same && i < v.count; i++)
        same = v.at[i] == (int32_t)json_integer_value(json_array_get(ids, i));
    if (!same)
        fail_msg("%s: \"%s\" gives other tokens", name, json_string_value(text));
    token_vec_done(&v);
}

static void test_cases(void **state)
{
    (void)state;
    json_t *root = json_load_file(FIXTURES "/cases.json", 0, NULL), *cases, *c;
    const char *name;
    size_t i, groups = 0;
    assert_non_null(root);
    json_object_foreach(root, name, cases)
    {
        char dir[100];
        (void)snprintf(dir, sizeof(dir), FIXTURES "/%s", name);
        for (size_t side = 0; side < SIDES; side++) {
            struct tokenizer *t = sides[side](dir);
            json_array_foreach(cases, i, c) check_case(t, name, false, c);
            assert_true(i >= 30);
            tokenizer_free(t);
        }
        groups++;
    }
    assert_int_equal(groups, 8);
    json_decref(root);
}

/* A directory as transformers 4.30 saved it, with two files that say which tokens were added; what
 * 4.57 makes of it (tools/model/make_old_tokenizer.py). */
static void test_old_directory(void **state)
{
    (void)state;
    json_t *cases = json_load_file(FIXTURES "/merges-added/cases.json", 0, NULL), *c;
    size_t i;
    assert_true(json_array_size(cases) >= 60);
    for (size_t side = 0; side < SIDES; side++) {
        struct tokenizer *t = sides[side](FIXTURES "/merges-added");
        json_array_foreach(cases, i, c) check_case(t, "merges-added", true, c);
        static const char *const special[] = {"</s>", "<pad>", "<|im_start|>", "<|im_end|>",
                                              "<mask>"};
        for (i = 0; i < sizeof(special) / sizeof(special[0]); i++)
            assert_true(tokenizer_is_special(t, tokenizer_find(t, special[i])));
        assert_false(tokenizer_is_special(t, tokenizer_find(t, "<tool>")));
        assert_false(tokenizer_is_special(t, tokenizer_find(t, "<unk>")));
        assert_int_equal(tokenizer_eos(t), tokenizer_find(t, "</s>"));
        tokenizer_free(t);
    }
    json_decref(cases);
}

static void test_refused_old(void **state)
{
    (void)state;
    static const char *const bad[] = {"{\"<x>\": \"4\"}", "{\"<x>\": 4, \"<y>\": 4}", "{\"\": 4}",
                                      "{\"<x>\": -1}", "{\"<x>\": 4294967296}"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        struct ek_fault fault = {.msg = ""};
        json_t *added = json_loads(bad[i], 0, NULL), *config = NULL;
        assert_non_null(added);
        assert_int_equal(tok_config_of_old(NULL, NULL, added, &config, &fault), -EBADMSG);
        assert_non_null(strstr(fault.msg, "added_tokens.json"));
        json_decref(added);
    }
    json_t *map = json_pack("{s:s, s:[s]}", "bos_token", "<b>", "additional_special_tokens", "<x>");
    json_t *own = json_pack("{s:s, s:s}", "bos_token", "<a>", "eos_token", "<e>");
    json_t *added = json_pack("{s:i, s:i}", "<x>", 7, "<y>", 9);
    for (long n = 1;; n++) {
        json_t *config = NULL;
        alloc_fail_at(n);
        int r = tok_config_of_old(own, map, added, &config, NULL);
        if (alloc_failed()) {
            assert_int_equal(r, -ENOMEM);
            continue;
        }
        assert_int_equal(r, 0);
        assert_string_equal(json_string_value(json_object_get(config, "bos_token")), "<b>");
        assert_string_equal(json_string_value(json_object_get(config, "eos_token")), "<e>");
        json_decref(config);
        break;
    }
    json_decref(added);
    json_decref(own);
    json_decref(map);
}

/* What a prompt gets, special tokens in it, and tokens as bytes. */
static void check_prompts(struct tokenizer *(*from)(const char *dir))
{
    struct token_vec v = {0};
    size_t len;
    struct tokenizer *t = from(FIXTURES "/spm");
    assert_int_equal(tokenizer_encode_prompt(t, "</s>[TOOL]", 10, &v), 0);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.at[0], 1); /* <s> */
    assert_int_equal(v.at[1], 2);
    assert_int_equal(v.at[2], tokenizer_find(t, "[TOOL]"));
    assert_true(tokenizer_is_special(t, 1) && !tokenizer_is_special(t, v.at[2]));
    assert_string_equal(tokenizer_bytes(t, tokenizer_find(t, "<0x0A>"), &len), "\n");
    assert_string_equal(tokenizer_bytes(t, tokenizer_find(t, "\xE2\x96\x81the"), &len), " the");
    tokenizer_free(t);

    t = from(FIXTURES "/tekken");
    v.count = 0;
    assert_int_equal(tokenizer_encode_prompt(t, "a[INST]", 7, &v), 0);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.at[0], 1);
    assert_int_equal(v.at[1], 8 + 'a');
    assert_int_equal(v.at[2], 3);
    assert_string_equal(tokenizer_special(t, 0), "<unk>");
    assert_string_equal(tokenizer_special(t, 7), "[TOOL_RESULTS]");
    tokenizer_free(t);

    t = from(FIXTURES "/merges");
    v.count = 0;
    assert_int_equal(tokenizer_encode_prompt(t, "a<pad>", 6, &v), 0);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.at[0], 2); /* </s>, which begins a prompt */
    assert_int_equal(v.at[2], 1);
    assert_true(tokenizer_is_special(t, 1) && tokenizer_is_special(t, 2));
    assert_false(tokenizer_is_special(t, 3)); /* <unk>, which the configuration does not name */
    tokenizer_free(t);

    /* no token before a prompt; those that are not listed are reserved */
    t = from(FIXTURES "/tiktoken");
    int32_t bos = tokenizer_find(t, "[BOS]");
    v.count = 0;
    assert_int_equal(tokenizer_encode_prompt(t, "a[EOS]<|im_end|>", 16, &v), 0);
    assert_int_equal(v.count, 3);
    assert_int_equal(v.at[0], 'a');
    assert_int_equal(v.at[1], bos + 1);
    assert_int_equal(v.at[2], bos + 3);
    assert_int_equal(tokenizer_eos(t), bos + 1);
    assert_string_equal(tokenizer_bytes(t, bos + 2, &len) + 1, "|reserved_token_462|>");
    assert_int_equal(tokenizer_count(t), (uint32_t)bos + 256);
    tokenizer_free(t);
    token_vec_done(&v);
}

static void test_prompts(void **state)
{
    (void)state;
    for (size_t side = 0; side < SIDES; side++)
        check_prompts(sides[side]);
}

static int from_spm(const void *data, size_t len, struct tokenizer **ret_tok,
                    struct ek_fault *fault)
{
    struct tok_source s = {0};
    int r = tok_from_spm(data, len, NULL, &s, fault);
    if (r == 0)
        r = tok_build_from(&s, NULL, ret_tok, fault);
    tok_source_done(&s);
    return r;
}

/* Every length of a model, and every byte of it changed: refused with a sentence, or it works. */
static void test_damaged_spm(void **state)
{
    (void)state;
    struct ek_buf model = {0};
    file(FIXTURES "/spm-plain/tokenizer.model", &model);
    for (size_t i = 0; i < 2 * model.len; i++) {
        struct tokenizer *t = NULL;
        struct ek_fault fault = {.msg = ""};
        char *copy = malloc(model.len);
        size_t len = i < model.len ? i : model.len, at = i - model.len;
        assert_non_null(copy);
        memcpy(copy, model.data, model.len);
        if (i >= model.len)
            copy[at] = (char)(copy[at] ^ (at % 3 ? 0x81 : 0x0e));
        int r = from_spm(copy, len, &t, &fault);
        if (r != 0 && (r != -EBADMSG || !fault.msg[0]))
            fail_msg("variant %zu: %d '%s'", i, r, fault.msg);
        tokenizer_free(t);
        free(copy);
    }
    ek_buf_done(&model);
}

static void test_refused_spm(void **state)
{
    (void)state;
    static const struct {
        const char *bytes;
        size_t len;
        const char *says;
    } cases[] = {
        {"", 0, "holds no pieces"},
        {"\x0A\x03\x0A\x01x\x12\x02\x18\x03", 9, "of type word are not supported"},
        {"\x0A\x03\x0A\x01x\x12\x02\x18\x63", 9, "of type unknown are not supported"},
        {"\x0A\x03\x0A\x01x\x0A\x03\x0A\x01x\x12\x02\x18\x02", 14, "is there twice"},
        {"\x0A\x03\x0A\x01\xFF", 5, "is not a text"},
        {"\x0A\x05\x0A\x01x\x18\x09", 7, "known type"},
        {"\x0A\x08\x0A\x01x\x15\x00\x00\xC0\x7F", 10, "is not a text with a score"},
        {"\x0A\x7F", 2, "is damaged"},
        {"\x0B\x01", 2, "is damaged"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tokenizer *t = NULL;
        struct ek_fault fault = {.msg = ""};
        assert_int_equal(from_spm(cases[i].bytes, cases[i].len, &t, &fault), -EBADMSG);
        if (!strstr(fault.msg, cases[i].says) || !strstr(fault.msg, TOK_SPM))
            fail_msg("case %zu: %s", i, fault.msg);
    }
    struct tokenizer *t = NULL;
    struct ek_fault fault = {.msg = ""};
    assert_int_equal(from_spm("\x0A\x03\x0A\x01x\x12\x02\x18\x02\x1A\x03\x12\x01z", 14, &t, &fault),
                     -EBADMSG);
    assert_non_null(strstr(fault.msg, "precompiled_charsmap is damaged"));
}

static void test_refused_tekken(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"{}", "needs a config with a pattern"},
        {"{'config': {'pattern': 'x'}, 'vocab': []}", "must fit the 0 tokens"},
        {"{'config': {'pattern': 'x', 'default_vocab_size': 5, 'default_num_special_tokens': 4}, "
         "'vocab': [{'rank': 0, 'token_bytes': '!'}]}",
         "vocab: item 0"},
        {"{'config': {'pattern': 'x', 'default_vocab_size': 5, 'default_num_special_tokens': 4}, "
         "'vocab': [{'rank': 1, 'token_bytes': 'AA=='}]}",
         "vocab: item 0"},
        {"{'config': {'pattern': 'x', 'default_vocab_size': 6, 'default_num_special_tokens': 4}, "
         "'vocab': [{'rank': 0, 'token_bytes': 'AA=='}, {'rank': 1, 'token_bytes': 'AA=='}]}",
         "vocab: item 1"},
        {"{'config': {'pattern': 'x', 'default_vocab_size': 5, 'default_num_special_tokens': 4}, "
         "'special_tokens': [{'rank': 3, 'token_str': '<a>'}], "
         "'vocab': [{'rank': 0, 'token_bytes': 'AA=='}]}",
         "special_tokens: item 0"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[600];
        struct tok_source s = {0};
        struct ek_fault fault = {.msg = ""};
        (void)snprintf(text, sizeof(text), "%s", cases[i].text);
        for (char *p = text; *p; p++)
            *p = *p == '\'' ? '"' : *p;
        json_t *root = json_loads(text, 0, NULL);
        assert_non_null(root);
        assert_int_equal(tok_from_tekken(root, &s, &fault), -EBADMSG);
        if (!strstr(fault.msg, cases[i].says) || !strstr(fault.msg, TOK_TEKKEN))
            fail_msg("case %zu: %s", i, fault.msg);
        json_decref(root);
    }
}

static json_t *merges_vocab(void)
{
    return json_pack("{s:i, s:i, s:i, s:i}", "a", 0, "b", 1, "ab", 2, "<|endoftext|>", 3);
}

static void test_refused_merges(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *class, *says;
    } cases[] = {
        {"#version: 0.2\na b c\n", NULL, "merges.txt: line 2 must be two tokens"},
        {"a b\n#version: 0.2\nab\n", NULL, "line 3"},
        {"a \n", NULL, "line 1"},
        {" b", NULL, "line 1"},
        {"a \xff\n", NULL, "line 1"},
        {"a b\n", "Qwen2Tokenizer", "how a Qwen2Tokenizer splits texts is not in vocab.json"},
    };
    json_t *vocab = merges_vocab(), *root = NULL;
    assert_non_null(vocab);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_fault fault = {.msg = ""};
        json_t *config = json_pack("{s:s?}", "tokenizer_class", cases[i].class);
        assert_int_equal(
            tok_from_merges(vocab, cases[i].bytes, strlen(cases[i].bytes), config, &root, &fault),
            -EBADMSG);
        if (!strstr(fault.msg, cases[i].says))
            fail_msg("case %zu: %s", i, fault.msg);
        json_decref(config);
    }
    json_decref(vocab);
}

/* As GPT2Tokenizer's save_pretrained writes tokens that were added: in tokenizer_config.json alone.
 */
static void test_added_merges(void **state)
{
    (void)state;
    static const char merges[] = "#version: 0.2\na b\n";
    json_t *vocab = merges_vocab(), *root = NULL;
    json_t *config =
        json_pack("{s:s, s:s, s:s, s:b, s:{s:{s:s, s:b}, s:{s:s, s:b}}}", "tokenizer_class",
                  "GPT2Tokenizer", "bos_token", "<s>", "eos_token", "<|im_end|>", "add_bos_token",
                  true, "added_tokens_decoder", "4", "content", "<|im_end|>", "special", true, "5",
                  "content", "<s>", "special", false);
    struct tokenizer *t = NULL;
    struct token_vec v = {0};
    struct ek_fault fault = {.msg = ""};
    assert_true(vocab && config);
    assert_int_equal(tok_from_merges(vocab, merges, sizeof(merges) - 1, config, &root, &fault), 0);
    assert_int_equal(tok_build(root, config, &t, &fault), 0);
    assert_int_equal(tokenizer_encode_prompt(t, "ab<|im_end|>", 12, &v), 0);
    assert_true(v.count == 3 && v.at[0] == 5 && v.at[1] == 2 && v.at[2] == 4);
    assert_true(tokenizer_is_special(t, 4));
    token_vec_done(&v);
    tokenizer_free(t);
    json_decref(root);
    static const char *const bad[] = {"4x", "", "-4", "4294967296"};
    for (size_t i = 0; i < sizeof(bad) / sizeof(bad[0]); i++) {
        json_t *other =
            json_pack("{s:{s:{s:s}}}", "added_tokens_decoder", bad[i], "content", "<x>");
        assert_int_equal(tok_from_merges(vocab, merges, sizeof(merges) - 1, other, &root, &fault),
                         -EBADMSG);
        assert_non_null(strstr(fault.msg, "added_tokens_decoder"));
        json_decref(other);
    }
    json_decref(config);
    json_decref(vocab);
}

/* Without a configuration: GPT-2's only special token, and nothing before a prompt. */
static void test_plain_merges(void **state)
{
    (void)state;
    static const char merges[] = "#version: 0.2\r\na b\r\n";
    json_t *vocab = merges_vocab();
    assert_non_null(vocab);
    for (long n = 1;; n++) {
        struct tokenizer *t = NULL;
        json_t *root = NULL;
        alloc_fail_at(n);
        int r = tok_from_merges(vocab, merges, sizeof(merges) - 1, NULL, &root, NULL);
        if (r == 0)
            r = tok_build(root, NULL, &t, NULL);
        const bool failed = alloc_failed();
        if (!failed) {
            struct token_vec v = {0};
            assert_int_equal(r, 0);
            assert_int_equal(tokenizer_encode_prompt(t, "ab<|endoftext|>", 15, &v), 0);
            assert_true(v.count == 2 && v.at[0] == 2 && v.at[1] == 3 && tokenizer_is_special(t, 3));
            token_vec_done(&v);
        } else if (r != -ENOMEM && r != 0) { /* only the JIT compiler of patterns can do without */
            fail_msg("allocation %ld: %d", n, r);
        }
        tokenizer_free(t);
        json_decref(root);
        if (!failed)
            break;
    }
    json_decref(vocab);
}

static void test_refused_tiktoken(void **state)
{
    (void)state;
    static const struct {
        const char *bytes, *says;
    } cases[] = {
        {"", "1 to "},          {"IQ== 1\n", "line 1"},          {"IQ== 0\nIQ== 1\n", "line 2"},
        {"IQ==0\n", "line 1"},  {"IQ== 0 \n", "line 1"},         {"IQ== 0\n\nIg== 1\n", "line 2"},
        {"!Q== 0\n", "line 1"}, {"IQ== 0\nIg== -1\n", "line 2"}, {" 0\n", "line 1"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct tok_source s = {0};
        struct ek_fault fault = {.msg = ""};
        assert_int_equal(
            tok_from_tiktoken(cases[i].bytes, strlen(cases[i].bytes), NULL, &s, &fault), -EBADMSG);
        if (!strstr(fault.msg, cases[i].says) || !strstr(fault.msg, TOK_TIKTOKEN))
            fail_msg("case %zu: %s", i, fault.msg);
    }
    struct tok_source s = {0};
    struct ek_fault fault = {.msg = ""};
    json_t *config = json_pack("{s:{s:{s:s}}}", "added_tokens_decoder", "1", "content", "");
    assert_int_equal(tok_from_tiktoken("IQ== 0", 6, config, &s, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "added_tokens_decoder: 1 needs a content"));
    json_decref(config);
}

/* A source of three tokens as a writer that was taken over might write it; whether it is taken. */
static int form_is_taken(const char *root, const char *const names[3], const uint32_t *order,
                         const double *score, uint32_t count)
{
    struct tok_source s = {.root = json_loads(root, 0, NULL)}, again = {0};
    struct tokenizer *t = NULL;
    struct ek_fault fault = {.msg = ""};
    struct ek_buf form = {0};
    assert_non_null(s.root);
    assert_int_equal(vocab_init(&s.content, 3, false), 0); /* the same name twice, too */
    for (uint32_t i = 0; i < 3; i++)
        if (names[i])
            assert_int_equal(vocab_put(&s.content, i, names[i], strlen(names[i])), 0);
    s.order = (uint32_t *)(uintptr_t)order;
    s.score = (double *)(uintptr_t)score;
    s.orders = s.scores = count;
    assert_int_equal(tok_source_write(&s, &form), 0);
    s.order = NULL;
    s.score = NULL;
    tok_source_done(&s);
    int r = tok_source_read(TOK_SPM, form.data, form.len, &again, &fault);
    if (r == 0)
        r = tok_build_from(&again, NULL, &t, &fault);
    assert_true(r == 0 || (r == -EBADMSG && fault.msg[0]));
    tokenizer_free(t);
    tok_source_done(&again);
    ek_buf_done(&form);
    return r == 0;
}

static void test_refused_form(void **state)
{
    (void)state;
#define FUSE "\"decoder\": {\"type\": \"Fuse\"}"
#define GOOD "{\"model\": {\"type\": \"BPE\"}, " FUSE "}"
    static const struct {
        const char *root, *names[3];
        uint32_t order[4], count;
        double score[3];
        bool scores, good;
    } cases[] = {
        {.root = GOOD, .names = {"a", "b", "ab"}, .order = {2}, .count = 1, .good = true},
        {.root = GOOD, .names = {"a", NULL, "b"}, .order = {2, 0}, .count = 2, .good = true},
        {.root = GOOD, .names = {"a", "b", "ab"}, .good = true},
        {.root = GOOD,
         .names = {"a", "b", "c"},
         .scores = true,
         .score = {-1, -HUGE_VAL, 2},
         .count = 3,
         .good = true},
        {.root = GOOD, .names = {"a", "b", "a"}, .order = {2}, .count = 1},
        {.root = GOOD, .names = {"a", "b", "\xff"}, .order = {2}, .count = 1},
        {.root = GOOD, .names = {"a", "b", "ab"}, .order = {3}, .count = 1},
        {.root = GOOD, .names = {"a", "b", "ab"}, .order = {2, 2}, .count = 2},
        {.root = GOOD, .names = {"a", "b", "ab"}, .order = {0, 1, 2, 0}, .count = 4},
        {.root = GOOD, .names = {"a", "b", "c"}, .scores = true, .score = {NAN}, .count = 1},
        {.root = GOOD, .names = {"a", "b", "c"}, .scores = true, .score = {HUGE_VAL}, .count = 1},
        {.root = "[]", .names = {"a", "b", "ab"}, .order = {2}, .count = 1},
        {.root = "{\"model\": {\"vocab\": {\"a\": 0}}, " FUSE "}",
         .names = {"a", "b", "ab"},
         .order = {2},
         .count = 1},
        {.root = "{\"model\": {}, \"added_tokens\": [{\"id\": 3, \"content\": \"x\"}], " FUSE "}",
         .names = {"a", "b", "ab"},
         .order = {2},
         .count = 1}, /* above the last id */
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        if (form_is_taken(cases[i].root, cases[i].names, cases[i].scores ? NULL : cases[i].order,
                          cases[i].scores ? cases[i].score : NULL, cases[i].count) != cases[i].good)
            fail_msg("case %zu", i);
    }
}

static void form_of(const char *path, struct ek_buf *out)
{
    struct ek_buf model = {0};
    struct tok_source s = {0};
    file(path, &model);
    assert_int_equal(tok_from_spm(model.data, model.len, NULL, &s, NULL), 0);
    assert_int_equal(tok_source_write(&s, out), 0);
    tok_source_done(&s);
    ek_buf_done(&model);
}

/* Every length of it, one byte more, and every byte of it changed: refused, or it works. */
static void test_damaged_form(void **state)
{
    (void)state;
    struct ek_buf form = {0};
    form_of(FIXTURES "/spm-plain/tokenizer.model", &form);
    assert_int_equal(ek_buf_add(&form, "", 1), 0);
    for (size_t i = 0; i < 2 * form.len; i++) {
        struct tok_source s = {0};
        struct tokenizer *t = NULL;
        struct ek_fault fault = {.msg = ""};
        const bool whole = i >= form.len;
        const size_t len = form.len - 1, at = i - form.len, cut = i == len ? form.len : i;
        char *copy = malloc(form.len); /* a sanitizer sees what lies beyond */
        assert_non_null(copy);
        memcpy(copy, form.data, form.len);
        if (whole && at < len)
            copy[at] = (char)(copy[at] ^ (at % 3 ? 0x81 : 0x0e));
        int r = tok_source_read(TOK_SPM, copy, whole ? len : cut, &s, &fault);
        if (!whole)
            assert_int_equal(r, -EBADMSG);
        if (r == 0)
            r = tok_build_from(&s, NULL, &t, &fault);
        if (r != 0 && (r != -EBADMSG || !fault.msg[0]))
            fail_msg("variant %zu: %d '%s'", i, r, fault.msg);
        tokenizer_free(t);
        tok_source_done(&s);
        free(copy);
    }
    ek_buf_done(&form);
}

static void test_form_without_memory(void **state)
{
    (void)state;
    struct ek_buf form = {0};
    form_of(FIXTURES "/spm-plain/tokenizer.model", &form);
    for (long n = 1;; n++) {
        struct tok_source s = {0};
        struct ek_buf out = {0};
        alloc_fail_at(n);
        int r = tok_source_read("x", form.data, form.len, &s, NULL);
        if (r == 0)
            r = tok_source_write(&s, &out);
        bool failed = alloc_failed();
        tok_source_done(&s);
        ek_buf_done(&out);
        if (!failed) {
            assert_int_equal(r, 0);
            break;
        }
        if (r != -ENOMEM && r != -EBADMSG) /* jansson's lexer does not tell */
            fail_msg("allocation %ld: %d", n, r);
    }
    ek_buf_done(&form);
}

static void test_allocations(void **state)
{
    (void)state;
    struct ek_buf model = {0};
    file(FIXTURES "/spm-plain/tokenizer.model", &model);
    for (long n = 1;; n++) {
        struct tokenizer *t = NULL;
        alloc_fail_at(n);
        int r = from_spm(model.data, model.len, &t, NULL);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            tokenizer_free(t);
            break;
        }
        tokenizer_free(t);
        if (r != -ENOMEM && r != 0) /* only the JIT compiler of patterns can do without */
            fail_msg("allocation %ld: %d", n, r);
    }
    ek_buf_done(&model);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_prompts),
        cmocka_unit_test(test_damaged_spm),
        cmocka_unit_test(test_refused_spm),
        cmocka_unit_test(test_refused_tekken),
        cmocka_unit_test(test_old_directory),
        cmocka_unit_test(test_refused_old),
        cmocka_unit_test(test_refused_merges),
        cmocka_unit_test(test_added_merges),
        cmocka_unit_test(test_plain_merges),
        cmocka_unit_test(test_refused_tiktoken),
        cmocka_unit_test(test_refused_form),
        cmocka_unit_test(test_damaged_form),
        cmocka_unit_test(test_form_without_memory),
        cmocka_unit_test(test_allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
