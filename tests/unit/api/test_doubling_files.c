/*
 * The files of a model in doubling sizes, see test_doubling.c: what a client never sends, but what
 * a model that was downloaded from somebody may hold. Each row grows one member of one file; what
 * reads it is everything that reads text of a model's directory, and then the tokenizer on a text
 * that grows with it. The header of a safetensors file and its index, tekken.json,
 * tiktoken.model and SentencePiece's tokenizer.model are made here.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
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
#include "server/model/config.h"
#include "server/model/safetensors.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"
#include "tests/unit/alloc.h"
#include "tests/unit/api/doubling.h"

#define MODEL "models/evenkeel-tiny"

static const char *const all_files[] = {
    "config.json",           "generation_config.json", "tokenizer.json",
    "tokenizer_config.json", "chat_template.jinja",    "special_tokens_map.json",
};
#define ALL_FILES (sizeof(all_files) / sizeof(all_files[0]))

/* A JSON file that is not there says nothing. */
static char *read_all(const char *dir, const char *name, size_t *ret_len)
{
    char path[512], *text = malloc(1u << 24);
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "rb");
    if (!f && errno == ENOENT && text && strstr(name, ".json")) {
        *ret_len = (size_t)snprintf(text, 16, "{\"_\":0}");
        return text;
    }
    assert_true(f && text);
    *ret_len = fread(text, 1, (1u << 24) - 1, f);
    text[*ret_len] = '\0';
    (void)fclose(f);
    return text;
}

static void write_all(const char *dir, const char *name, const void *data, size_t len)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "wb");
    assert_non_null(f);
    assert_int_equal(fwrite(data, 1, len, f), len);
    assert_int_equal(fclose(f), 0);
}

static void remove_all(const char *dir, const char *name)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    (void)unlink(path);
}

/* Reads what is there; then n words are encoded. */
static struct cost read_model(const char *dir, uint32_t n)
{
    struct tokenizer *t = NULL;
    struct chat *chat = NULL;
    struct ek_fault f = {0};
    struct model_config config;
    struct model_defaults defaults;
    struct token_vec tokens = {0};
    struct ek_buf words = {0};
    size_t len = 0, more = 0;
    char *text = read_all(dir, "config.json", &len);
    char *generation = read_all(dir, "generation_config.json", &more);
    put_pieces(&words, "w%u a", "", n);
    uint64_t before = blocks;
    unsigned long bytes = alloc_bytes();
    int r = tokenizer_load(dir, &t, &f);
    if (r == 0)
        r = tokenizer_encode(t, words.data, words.len, true, 0, &tokens);
    if (r == 0)
        r = chat_load(dir, NULL, &chat, &f);
    if (r == 0)
        r = config_parse(text, len, &config, &f);
    if (r == 0)
        r = config_parse_generation(generation, more, &config, &defaults, &f);
    struct cost c = {.blocks = blocks - before, .bytes = alloc_bytes() - bytes, .result = r};
    assert_true(r == 0 || r == -E2BIG || f.msg[0]); /* too much text of the tokenizer */
    tokenizer_free(t);
    chat_free(chat);
    token_vec_done(&tokens);
    ek_buf_done(&words);
    free(text);
    free(generation);
    return c;
}

/* ---- members of JSON files, and templates ---- */

/* A JSON file gets a member of each shape, in place of the one it has; a template gets text. */
static void put_file(struct ek_buf *b, const char *text, size_t len, const struct doubling_shape *s,
                     const char *member, uint32_t n)
{
    json_t *root = member ? json_loadb(text, len, 0, NULL) : NULL;
    char *without = NULL;
    if (root) {
        (void)json_object_del(root, member);
        text = without = json_dumps(root, JSON_COMPACT);
        assert_non_null(text);
    }
    const char *end = member ? strrchr(text, '}') : text + len;
    assert_non_null(end);
    (void)ek_buf_add(b, text, (size_t)(end - text));
    (void)ek_buf_printf(b, member ? ",\"%s\":%s" : "%s%s", member ? member : "", s->open);
    put_pieces(b, s->piece, s->between, n);
    (void)ek_buf_puts(b, s->close);
    (void)ek_buf_puts(b, member ? "}" : "");
    free(without);
    json_decref(root);
}

#define DECODER   "\"decoder\":{\"type\":\"Fuse\"},"
#define BPE(rest) "{" DECODER "\"model\":{\"type\":\"BPE\"," rest
#define SMALL_MODEL                                                                                \
    "\"model\":{\"type\":\"BPE\",\"vocab\":{\"a\":0,\"w\":1,\"b\":2},\"merges\":[]}}"
#define REPLACE(what) "{\"type\":\"Replace\",\"pattern\":" what ",\"content\":\"b\"}"
#define SPLIT(what)   "{\"type\":\"Split\",\"pattern\":" what ",\"behavior\":\"Isolated\"}"
#define BYTES_32      "abcdefghijklmnopqrstuvwxyzabcdef"

static const struct fed_file {
    const char *name, *member; /* a new member; NULL: more of a template; "": the whole file */
    struct doubling_shape shape;
} fed_files[] = {
    {"config.json", "x", {"{", "\"k%u\":1", ",", "}"}},
    {"config.json", "x", {"[", "\"a%u\"", ",", "]"}},
    {"config.json", "eos_token_id", {"[", "1", ",", "]"}},
    {"config.json", "architectures", {"[", "\"a%u\"", ",", "]"}},
    {"config.json", "layer_types", {"[", "\"full_attention\"", ",", "]"}},
    {"generation_config.json", "eos_token_id", {"[", "1", ",", "]"}},
    {"generation_config.json", "x", {"{", "\"k%u\":1", ",", "}"}},
    {"tokenizer_config.json", "x", {"{", "\"k%u\":1", ",", "}"}},
    {"tokenizer_config.json",
     "added_tokens_decoder",
     {"{", "\"%u\":{\"content\":\"z\"}", ",", "}"}},
    {"tokenizer_config.json", "additional_special_tokens", {"[", "\"t%u\"", ",", "]"}},
    {"tokenizer_config.json", "chat_template", {"\"", "{{ a%u }}", "", "\""}},
    {"tokenizer_config.json",
     "chat_template",
     {"[", "{\"name\":\"n%u\",\"template\":\"a\"}", ",", "]"}},
    {"special_tokens_map.json", "x", {"{", "\"k%u\":1", ",", "}"}},
    {"special_tokens_map.json", "additional_special_tokens", {"[", "\"t%u\"", ",", "]"}},
    {"special_tokens_map.json",
     "additional_special_tokens",
     {"[", "{\"content\":\"t%u\"}", ",", "]"}},
    {"special_tokens_map.json", "bos_token", {"\"", "a%u", "", "\""}},
    {"chat_template.jinja", NULL, {"", "{{ a%u }}", "", ""}},
    {"chat_template.jinja", NULL, {"", "word ", "", ""}},
    {"chat_template.jinja", NULL, {"", "{% set a%u = 1 %}", "", ""}},
    {"chat_template.jinja", NULL, {"", "{# c #}\n", "", ""}},
    {"chat_template.jinja", NULL, {"{{ 0", "", "+1", " }}"}},
    {"chat_template.jinja", NULL, {"", "{{ 'a\\n' }}\n", "", ""}},
    {"chat_template.jinja", NULL, {"", "{% macro m%u() %}{% endmacro %}", "", ""}},
    {"chat_template.jinja", NULL, {"{% if a %}", "{% elif b%u %}", "", "{% endif %}"}},
    {"tokenizer.json", "x", {"{", "\"k%u\":1", ",", "}"}},
    {"tokenizer.json", "x", {"[", "[%u]", ",", "]"}},
    {"tokenizer.json", "", {BPE("\"vocab\":{"), "\"w%u\":%u", ",", "},\"merges\":[]}}"}},
    {"tokenizer.json", "", {BPE("\"vocab\":{\""), BYTES_32, "", "\":0},\"merges\":[]}}"}},
    {"tokenizer.json",
     "",
     {BPE("\"vocab\":{\"a\":0,\"b\":1,\"ab\":2},\"merges\":["), "\"a b\"", ",", "]}}"}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"added_tokens\":[", "{\"id\":%u,\"content\":\"w%u\",\"special\":true}", ",",
      "],\"model\":{\"type\":\"BPE\",\"vocab\":{\"q\":99999},\"merges\":[]}}"}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"added_tokens\":[", "{\"id\":%u,\"content\":\"w%u\",\"normalized\":true}", ",",
      "],\"normalizer\":{\"type\":\"NFC\"},"
      "\"model\":{\"type\":\"BPE\",\"vocab\":{\"q\":99999},\"merges\":[]}}"}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"added_tokens\":[{\"id\":0,\"content\":\"", BYTES_32, "",
      "\",\"special\":true}],\"model\":{\"type\":\"BPE\",\"vocab\":{\"q\":9},\"merges\":[]}}"}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[", "{\"type\":\"NFC\"}",
      ",", "]}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"normalizer\":{\"type\":\"Sequence\",\"normalizers\":[",
      REPLACE("{\"String\":\"a%u\"}"), ",", "]}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"Regex\":\"", "a%u", "|",
      "\"},\"content\":\"b\"}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{" DECODER
      "\"normalizer\":{\"type\":\"Replace\",\"pattern\":{\"String\":\"a\"},\"content\":\"",
      "b", "", "\"}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"normalizer\":{\"type\":\"Precompiled\",\"precompiled_charsmap\":\"", "AAAA",
      "", "\"}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"pre_tokenizer\":{\"type\":\"Sequence\",\"pretokenizers\":[",
      SPLIT("{\"String\":\"a%u\"}"), ",", "]}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"pre_tokenizer\":{\"type\":\"Split\",\"pattern\":{\"Regex\":\"", "a%u", "|",
      "\"},\"behavior\":\"Isolated\"}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{\"decoder\":{\"type\":\"Sequence\",\"decoders\":[", "{\"type\":\"Fuse\"}", ",",
      "]}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{" DECODER
      "\"post_processor\":{\"type\":\"TemplateProcessing\",\"single\":[{\"Sequence\":{\"id\":"
      "\"A\"}}],\"special_tokens\":{",
      "\"t%u\":{\"id\":\"t%u\",\"ids\":[0]}", ",", "}}," SMALL_MODEL}},
    {"tokenizer.json",
     "",
     {"{" DECODER "\"model\":{\"type\":\"Unigram\",\"unk_id\":0,\"vocab\":[[\"u\",0],",
      "[\"w%u\",-1.5]", ",", "]}}"}},
};

static void test_members(void **state)
{
    char dir[] = "/tmp/evenkeel-doubling-XXXXXX";
    int bad = 0;
    uint32_t read = 0;
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t i = 0; i < sizeof(fed_files) / sizeof(fed_files[0]); i++) {
        const struct fed_file *f = &fed_files[i];
        struct cost cost[SIZES];
        size_t len;
        bool whole = f->member && !f->member[0];
        for (size_t k = 0; k < ALL_FILES; k++) {
            char *text = read_all(MODEL, all_files[k], &len);
            write_all(dir, all_files[k], text, len);
            free(text);
        }
        char *text = read_all(MODEL, f->name, &len);
        for (uint32_t n = 0; n < SIZES; n++) {
            struct ek_buf b = {0};
            put_file(&b, text, whole ? 0 : len, &f->shape, whole ? NULL : f->member, FIRST << n);
            assert_true(ek_buf_ok(&b));
            write_all(dir, f->name, b.data, b.len);
            ek_buf_done(&b);
            cost[n] = read_model(dir, FIRST << n);
        }
        free(text);
        bad += judge(f->name, whole || !f->member ? f->shape.piece : f->member, cost);
        read += cost[0].result == 0;
    }
    for (size_t k = 0; k < ALL_FILES; k++)
        remove_all(dir, all_files[k]);
    (void)rmdir(dir);
    print_message("%u of %zu accepted\n", read, sizeof(fed_files) / sizeof(fed_files[0]));
    assert_true(read >= 25);
    assert_int_equal(bad, 0);
}

/* ---- SentencePiece's file ---- */

static void put_varint(struct ek_buf *b, uint64_t v)
{
    for (; v >= 0x80; v >>= 7)
        (void)ek_buf_add(b, &(char){(char)(v | 0x80)}, 1);
    (void)ek_buf_add(b, &(char){(char)v}, 1);
}

static void put_message(struct ek_buf *b, uint32_t number, const void *data, size_t len)
{
    put_varint(b, number << 3 | 2);
    put_varint(b, len);
    (void)ek_buf_add(b, data, len);
}

static void put_spm_piece(struct ek_buf *b, const char *text, size_t len, uint32_t kind)
{
    struct ek_buf piece = {0};
    put_message(&piece, 1, text, len);
    put_varint(&piece, 3 << 3);
    put_varint(&piece, kind);
    put_message(b, 1, piece.data, piece.len);
    ek_buf_done(&piece);
}

static void put_spm_end(struct ek_buf *b, uint32_t type, const struct ek_buf *table)
{
    struct ek_buf part = {0};
    put_varint(&part, 3 << 3);
    put_varint(&part, type);
    put_message(b, 2, part.data, part.len);
    ek_buf_clear(&part);
    put_message(&part, 2, table->data, table->len);
    if (table->len)
        put_message(b, 3, part.data, part.len);
    ek_buf_done(&part);
}

static const char spm_basics[] = "\x0A\x09\x0A\x05<unk>\x18\x02"
                                 "\x0A\x05\x0A\x01"
                                 "a\x18\x01\x0A\x05\x0A\x01w\x18\x01";
#define SPM_BASICS (sizeof(spm_basics) - 1)

static void put_spm_pieces(struct ek_buf *b, uint32_t n, uint32_t type, uint32_t kind)
{
    (void)ek_buf_add(b, spm_basics, SPM_BASICS);
    for (uint32_t i = 0; i < n; i++) {
        char text[16];
        int len = snprintf(text, sizeof(text), "w%u", i);
        put_spm_piece(b, text, (size_t)len, kind);
    }
    put_spm_end(b, type, &(struct ek_buf){0});
}

static void put_spm_bpe(struct ek_buf *b, uint32_t n)
{
    put_spm_pieces(b, n, 2, 1);
}

static void put_spm_unigram(struct ek_buf *b, uint32_t n)
{
    put_spm_pieces(b, n, 1, 1);
}

static void put_spm_user(struct ek_buf *b, uint32_t n)
{
    put_spm_pieces(b, n, 2, 4);
}

/* One piece that grows up to the most there may be. */
static void put_spm_long(struct ek_buf *b, uint32_t n)
{
    struct ek_buf text = {0};
    (void)ek_buf_add(b, spm_basics, SPM_BASICS);
    put_pieces(&text, BYTES_32, "", n);
    put_spm_piece(b, text.data, text.len, 1);
    put_spm_end(b, 2, &(struct ek_buf){0});
    ek_buf_done(&text);
}

/* Pieces that each begin with those before them. */
static void put_spm_nested(struct ek_buf *b, uint32_t n)
{
    char text[512];
    memset(text, 'a', sizeof(text));
    (void)ek_buf_add(b, spm_basics, SPM_BASICS);
    for (uint32_t i = 2; i * i < n * 16; i++)
        put_spm_piece(b, text, i, 1);
    put_spm_end(b, 2, &(struct ek_buf){0});
}

/* A table of so many units without a value, and so many bytes to replace with. */
static void put_spm_table(struct ek_buf *b, uint32_t n)
{
    struct ek_buf table = {0};
    const uint32_t trie = n * 4;
    (void)ek_buf_add(b, spm_basics, SPM_BASICS);
    (void)ek_buf_add(&table, &trie, sizeof(trie));
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_add(&table, "\0\0\0\0", 4);
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_add(&table, "b", 2);
    put_spm_end(b, 2, &table);
    ek_buf_done(&table);
}

/* ---- tekken.json ---- */

static void put_base64(struct ek_buf *b, const uint8_t *bytes, size_t len)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < len; i += 3) {
        uint32_t bits = 0;
        for (size_t k = 0; k < 3; k++)
            bits = bits << 8 | (i + k < len ? bytes[i + k] : 0u);
        for (size_t k = 0; k < 4; k++)
            (void)ek_buf_add(b, i + k <= len ? &digits[bits >> (18 - 6 * k) & 63] : "=", 1);
    }
}

/* All bytes, then n tokens of `len` bytes each. */
static void put_tekken(struct ek_buf *b, uint32_t n, size_t len, const char *specials)
{
    uint8_t *token = malloc(len);
    assert_non_null(token);
    memset(token, 'a', len);
    (void)ek_buf_puts(b, "{\"vocab\":[");
    for (uint32_t i = 0; i < 256 + n; i++) {
        for (size_t k = 0; i >= 256 && k < 3 && k < len; k++)
            token[k] = (uint8_t)('0' + (i - 256) / (k == 0 ? 1 : k == 1 ? 40 : 1600) % 40);
        (void)ek_buf_printf(b, "%s{\"rank\":%u,\"token_bytes\":\"", i ? "," : "", i);
        const uint8_t byte = (uint8_t)i;
        put_base64(b, i < 256 ? &byte : token, i < 256 ? 1 : len);
        (void)ek_buf_puts(b, "\"}");
    }
    (void)ek_buf_printf(b,
                        "],%s\"config\":{\"pattern\":\"\\\\p{L}+|.\",\"default_vocab_size\":%u,"
                        "\"default_num_special_tokens\":%u}}",
                        specials, 256 + n + 4096, 4096);
    free(token);
}

static void put_tekken_many(struct ek_buf *b, uint32_t n)
{
    put_tekken(b, n, 5, "");
}

static void put_tekken_long(struct ek_buf *b, uint32_t n)
{
    put_tekken(b, 1, (size_t)n * 32 - 1, "");
}

static void put_tekken_specials(struct ek_buf *b, uint32_t n)
{
    struct ek_buf specials = {0};
    (void)ek_buf_puts(&specials, "\"special_tokens\":[");
    put_pieces(&specials, "{\"rank\":%u,\"token_str\":\"s%u\",\"is_control\":true}", ",", n);
    (void)ek_buf_puts(&specials, "],");
    put_tekken(b, 1, 2, specials.data);
    ek_buf_done(&specials);
}

/* All bytes, then n tokens of `len` bytes each. */
static void put_tiktoken(struct ek_buf *b, uint32_t n, size_t len)
{
    uint8_t *token = malloc(len);
    assert_non_null(token);
    memset(token, 'a', len);
    for (uint32_t i = 0; i < 256 + n; i++) {
        for (size_t k = 0; i >= 256 && k < 3 && k < len; k++)
            token[k] = (uint8_t)('0' + (i - 256) / (k == 0 ? 1 : k == 1 ? 40 : 1600) % 40);
        const uint8_t byte = (uint8_t)i;
        put_base64(b, i < 256 ? &byte : token, i < 256 ? 1 : len);
        (void)ek_buf_printf(b, " %u\n", i);
    }
    free(token);
}

static void put_tiktoken_many(struct ek_buf *b, uint32_t n)
{
    put_tiktoken(b, n, 5);
}

static void put_tiktoken_long(struct ek_buf *b, uint32_t n)
{
    put_tiktoken(b, 1, (size_t)n * 32 - 1);
}

static void test_other_tokenizers(void **state)
{
    static const struct {
        const char *file, *what;
        void (*put)(struct ek_buf *b, uint32_t n);
        bool refused; /* the largest one */
    } made[] = {
        {"tokenizer.model", "pieces", put_spm_bpe, false},
        {"tokenizer.model", "pieces of a unigram", put_spm_unigram, false},
        {"tokenizer.model", "pieces of the user", put_spm_user, false},
        {"tokenizer.model", "one long piece", put_spm_long, true},
        {"tokenizer.model", "pieces that begin alike", put_spm_nested, false},
        {"tokenizer.model", "a table", put_spm_table, false},
        {"tekken.json", "tokens", put_tekken_many, false},
        {"tekken.json", "one long token", put_tekken_long, true},
        {"tekken.json", "special tokens", put_tekken_specials, false},
        {"tiktoken.model", "tokens", put_tiktoken_many, false},
        {"tiktoken.model", "one long token", put_tiktoken_long, true},
    };
    char dir[] = "/tmp/evenkeel-doubling-XXXXXX";
    int bad = 0;
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (size_t k = 0; k < ALL_FILES; k++) {
        size_t len;
        char *text = read_all(MODEL, all_files[k], &len);
        if (strcmp(all_files[k], "tokenizer.json") != 0)
            write_all(dir, all_files[k], text, len);
        free(text);
    }
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        struct cost cost[SIZES];
        for (uint32_t n = 0; n < SIZES; n++) {
            struct ek_buf b = {0};
            made[i].put(&b, FIRST << n);
            assert_true(ek_buf_ok(&b));
            write_all(dir, made[i].file, b.data, b.len);
            ek_buf_done(&b);
            cost[n] = read_model(dir, FIRST << n);
        }
        if ((cost[SIZES - 1].result == 0) == made[i].refused)
            fail_msg("%s of %s gave %d", made[i].file, made[i].what, cost[SIZES - 1].result);
        bad += judge(made[i].file, made[i].what, cost);
        remove_all(dir, made[i].file);
    }
    for (size_t k = 0; k < ALL_FILES; k++)
        remove_all(dir, all_files[k]);
    (void)rmdir(dir);
    assert_int_equal(bad, 0);
}

/* GPT-2's files as they were before 2023: lists of tokens that were added. */
static void test_old_tokenizers(void **state)
{
    static const char vocab[] = "{\"a\":99996,\"b\":99997,\"ab\":99998,\"w\":99999}";
    static const struct {
        const char *file;
        struct doubling_shape shape;
    } made[] = {
        {"merges.txt", {"#version: 0.2\n", "a b\n", "", ""}},
        {"added_tokens.json", {"{", "\"w%u\":%u", ",", "}"}},
        {"special_tokens_map.json", {"{\"additional_special_tokens\":[", "\"w%u\"", ",", "]}"}},
    };
    char dir[] = "/tmp/evenkeel-doubling-XXXXXX";
    int bad = 0;
    (void)state;
    assert_non_null(mkdtemp(dir));
    size_t len;
    char *config = read_all(MODEL, "config.json", &len);
    write_all(dir, "config.json", config, len);
    free(config);
    write_all(dir, "vocab.json", vocab, sizeof(vocab) - 1);
    write_all(dir, "merges.txt", "a b\n", 4);
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++) {
        struct cost cost[SIZES];
        for (uint32_t n = 0; n < SIZES; n++) {
            struct ek_buf b = {0};
            put_file(&b, "", 0, &made[i].shape, NULL, FIRST << n);
            write_all(dir, made[i].file, b.data, b.len);
            ek_buf_done(&b);
            cost[n] = read_model(dir, FIRST << n);
            assert_int_equal(cost[n].result, 0);
        }
        bad += judge(made[i].file, "of an old directory", cost);
    }
    for (size_t i = 0; i < sizeof(made) / sizeof(made[0]); i++)
        remove_all(dir, made[i].file);
    remove_all(dir, "vocab.json");
    remove_all(dir, "config.json");
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(bad, 0);
}

/* ---- safetensors ---- */

/* Names of n tensors, a number each, and their bytes; backwards they are sorted anew. */
static void put_tensors(struct ek_buf *b, uint32_t n, bool backwards)
{
    struct ek_buf head = {0};
    static const char number[4];
    (void)ek_buf_puts(&head, "{");
    for (uint32_t i = 0; i < n; i++) {
        uint32_t at = backwards ? n - 1 - i : i;
        (void)ek_buf_printf(&head,
                            "%s\"t%u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[%u,%u]}",
                            i ? "," : "", i, at * 4, at * 4 + 4);
    }
    (void)ek_buf_puts(&head, "}");
    const uint64_t len = head.len;
    (void)ek_buf_add(b, &len, sizeof(len));
    (void)ek_buf_add(b, head.data, head.len);
    for (uint32_t i = 0; i < n; i++)
        (void)ek_buf_add(b, number, sizeof(number));
    ek_buf_done(&head);
}

static void put_metadata(struct ek_buf *b, uint32_t n)
{
    struct ek_buf head = {0};
    (void)ek_buf_puts(&head, "{\"__metadata__\":{");
    put_pieces(&head, "\"k%u\":\"v\"", ",", n);
    (void)ek_buf_puts(&head, "},\"t\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":[0,4]}}");
    const uint64_t len = head.len;
    (void)ek_buf_add(b, &len, sizeof(len));
    (void)ek_buf_add(b, head.data, head.len);
    (void)ek_buf_add(b, "\0\0\0\0", 4);
    ek_buf_done(&head);
}

static struct cost open_tensors(const char *dir)
{
    struct st_set s = {0};
    struct ek_fault f = {0};
    uint64_t before = blocks;
    unsigned long bytes = alloc_bytes();
    int r = st_open(&s, dir, &f);
    struct cost c = {.blocks = blocks - before, .bytes = alloc_bytes() - bytes, .result = r};
    if (r < 0)
        print_error("%s\n", f.msg);
    st_done(&s);
    return c;
}

/* Kind 0: names in order, 1: backwards, 2: metadata, 3: an index of n names in one file, 4: an
 * index of files of a tensor each. */
static void put_weights(const char *dir, int kind, uint32_t n)
{
    struct ek_buf b = {0}, index = {0};
    if (kind == 2)
        put_metadata(&b, n);
    else if (kind < 4)
        put_tensors(&b, n, kind == 1);
    (void)ek_buf_puts(&index, "{\"weight_map\":{");
    put_pieces(&index, kind == 3 ? "\"t%u\":\"a.safetensors\"" : "\"t%u\":\"%u.safetensors\"", ",",
               n);
    (void)ek_buf_puts(&index, "}}");
    assert_true(ek_buf_ok(&b) && ek_buf_ok(&index));
    if (kind >= 3)
        write_all(dir, "model.safetensors.index.json", index.data, index.len);
    if (kind < 4)
        write_all(dir, kind == 3 ? "a.safetensors" : "model.safetensors", b.data, b.len);
    for (uint32_t i = 0; kind == 4 && i < n; i++) {
        char name[64], head[128];
        int len = snprintf(head, sizeof(head),
                           "        {\"t%u\":{\"dtype\":\"F32\",\"shape\":[1],\"data_offsets\":"
                           "[0,4]}}1234",
                           i);
        const uint64_t head_len = (uint64_t)len - 12;
        memcpy(head, &head_len, sizeof(head_len));
        (void)snprintf(name, sizeof(name), "%u.safetensors", i);
        write_all(dir, name, head, (size_t)len);
    }
    ek_buf_done(&b);
    ek_buf_done(&index);
}

static void test_safetensors(void **state)
{
    static const char *const what[] = {"names in order", "names backwards", "metadata",
                                       "an index of one file", "an index of many files"};
    char dir[] = "/tmp/evenkeel-doubling-XXXXXX", name[64];
    int bad = 0;
    (void)state;
    assert_non_null(mkdtemp(dir));
    for (int kind = 0; kind < 5; kind++) {
        const uint32_t first = kind == 4 ? FIRST / 2 : FIRST * 4; /* at most ST_FILES_MOST */
        struct cost cost[SIZES];
        for (uint32_t n = 0; n < SIZES; n++) {
            put_weights(dir, kind, first << n);
            cost[n] = open_tensors(dir);
            assert_int_equal(cost[n].result, 0);
        }
        bad += judge("safetensors", what[kind], cost);
        remove_all(dir, "model.safetensors");
    }
    remove_all(dir, "model.safetensors.index.json");
    remove_all(dir, "a.safetensors");
    for (uint32_t i = 0; i < FIRST / 2 << (SIZES - 1); i++) {
        (void)snprintf(name, sizeof(name), "%u.safetensors", i);
        remove_all(dir, name);
    }
    assert_int_equal(rmdir(dir), 0);
    assert_int_equal(bad, 0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_members),
        cmocka_unit_test(test_other_tokenizers),
        cmocka_unit_test(test_old_tokenizers),
        cmocka_unit_test(test_safetensors),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
