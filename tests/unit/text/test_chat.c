/*
 * The model's own template against the stored renderings; where templates are found; the guard
 * that keeps special tokens in user text from being special.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"
#include "tests/unit/alloc.h"

#define MODEL "models/evenkeel-tiny"

static struct chat *load(const char *dir, const char *file)
{
    struct ek_fault fault = {0};
    struct chat *c = NULL;
    int r = chat_load(dir, file, &c, &fault);
    if (r < 0)
        print_message("%s\n", fault.msg);
    assert_int_equal(r, 0);
    return c;
}

static void renders(const struct chat *c, const struct tokenizer *tok, json_t *context,
                    const char *expected)
{
    struct ek_buf out = {0};
    struct ek_fault fault = {0};
    uint32_t guard = 0;
    int r = chat_render(c, tok, context, NULL, &out, &guard, &fault);
    if (r < 0)
        print_message("%s\n", fault.msg);
    assert_int_equal(r, 0);
    assert_string_equal(out.data ? out.data : "", expected);
    ek_buf_done(&out);
    json_decref(context);
}

static void test_fixtures(void **state)
{
    (void)state;
    struct chat *c = load(MODEL, NULL);
    json_t *all = json_load_file("tests/fixtures/expected.json", 0, NULL);
    json_t *cases = json_object_get(all, "cases");
    size_t seen = 0;
    for (size_t i = 0; i < json_array_size(cases); i++) {
        json_t *one = json_array_get(cases, i), *messages = json_object_get(one, "messages");
        if (!messages)
            continue;
        json_t *context = json_pack("{s:O, s:b}", "messages", messages, "add_generation_prompt", 1);
        json_t *tools = json_object_get(one, "tools");
        if (tools)
            assert_int_equal(json_object_set(context, "tools", tools), 0);
        renders(c, NULL, context, json_string_value(json_object_get(one, "rendered")));
        seen++;
    }
    assert_true(seen >= 10);
    json_decref(all);
    chat_free(c);
}

/* A model directory for one test. */
struct dir {
    char path[64];
};

static void dir_make(struct dir *d)
{
    (void)snprintf(d->path, sizeof(d->path), "/tmp/ek-test-chat-XXXXXX"); /* fits */
    assert_non_null(mkdtemp(d->path));
}

static void dir_file(const struct dir *d, const char *name, const char *text)
{
    char path[160];
    (void)snprintf(path, sizeof(path), "%s/%s", d->path, name); /* fits */
    FILE *f = fopen(path, "w");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void dir_remove(const struct dir *d)
{
    static const char *const names[] = {"chat_template.jinja",
                                        "tokenizer_config.json",
                                        "special_tokens_map.json",
                                        "other.jinja",
                                        "additional_chat_templates/tool_use.jinja",
                                        "additional_chat_templates",
                                        ""};
    for (size_t i = 0; i < sizeof(names) / sizeof(*names); i++) {
        char path[160];
        (void)snprintf(path, sizeof(path), "%s/%s", d->path, names[i]); /* fits */
        (void)remove(path);                                             /* most are not there */
    }
}

static json_t *ask(const char *content)
{
    return json_pack("{s:[{s:s, s:s}]}", "messages", "role", "user", "content", content);
}

static void test_places(void **state)
{
    (void)state;
    struct dir d;
    dir_make(&d);
    struct chat *c = load(d.path, NULL);
    assert_null(c);

    dir_file(&d, "tokenizer_config.json",
             "{\"bos_token\": \"<s>\", \"eos_token\": {\"content\": \"</s>\"}, \"chat_template\": "
             "\"{{ bos_token }}{{ messages[0].content }}{{ eos_token }}{{ unk_token }}\"}");
    dir_file(&d, "special_tokens_map.json", "{\"bos_token\": \"x\", \"unk_token\": \"?\"}");
    c = load(d.path, NULL);
    renders(c, NULL, ask("hi"), "<s>hi</s>?");
    chat_free(c);

    dir_file(&d, "tokenizer_config.json",
             "{\"chat_template\": [{\"name\": \"tool_use\", \"template\": \"T{{ tools|length }}\"},"
             "{\"name\": \"default\", \"template\": \"D{{ tools is none }}\"}]}");
    c = load(d.path, NULL);
    renders(c, NULL, ask("hi"), "DTrue");
    json_t *with = ask("hi");
    assert_int_equal(json_object_set_new(with, "tools", json_pack("[{s:i}]", "a", 1)), 0);
    renders(c, NULL, with, "T1");
    chat_free(c);

    dir_file(&d, "chat_template.jinja", "file {{ add_generation_prompt }}\n");
    c = load(d.path, NULL);
    renders(c, NULL, ask("hi"), "file False");
    chat_free(c);

    char sub[96];
    (void)snprintf(sub, sizeof(sub), "%s/additional_chat_templates", d.path); /* fits */
    assert_int_equal(mkdir(sub, 0700), 0);
    dir_file(&d, "additional_chat_templates/tool_use.jinja", "extra");
    c = load(d.path, NULL);
    with = ask("hi");
    assert_int_equal(json_object_set_new(with, "tools", json_pack("[{s:i}]", "a", 1)), 0);
    renders(c, NULL, with, "extra");
    renders(c, NULL, ask("hi"), "file False");
    chat_free(c);

    dir_file(&d, "other.jinja", "other");
    char other[96];
    (void)snprintf(other, sizeof(other), "%s/other.jinja", d.path); /* fits */
    c = load(d.path, other);
    renders(c, NULL, ask("hi"), "other");
    chat_free(c);
    dir_remove(&d);
}

static void test_bad_files(void **state)
{
    static const struct {
        const char *name, *text, *message;
    } cases[] = {
        {"tokenizer_config.json", "{\"chat_template\": ", "is not a JSON object"},
        {"tokenizer_config.json", "[]", "is not a JSON object"},
        {"tokenizer_config.json", "{\"chat_template\": 7}", "neither a string nor a list"},
        {"tokenizer_config.json", "{\"chat_template\": \"a\\n {% if %}\"}", "line 2 column 8"},
        {"chat_template.jinja", "{% for x in y %}", "line 1 column 17"},
        {"chat_template.jinja", "\xff", "not UTF-8 at byte 0"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        struct dir d;
        struct ek_fault fault = {0};
        struct chat *c = NULL;
        dir_make(&d);
        dir_file(&d, cases[i].name, cases[i].text);
        assert_int_equal(chat_load(d.path, NULL, &c, &fault), -EBADMSG);
        assert_null(c);
        if (!strstr(fault.msg, cases[i].message))
            fail_msg("%s", fault.msg);
        dir_remove(&d);
    }
    struct ek_fault fault = {0};
    struct chat *c = NULL;
    assert_int_equal(chat_load(MODEL, "/nonexistent/x.jinja", &c, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "does not exist"));
}

#define G  "\xef\xb7\x90" /* the first guard */
#define G2 "\xef\xb7\x91" /* the second */

static void test_guard(void **state)
{
    static const struct {
        const char *content, *text;
    } cases[] = {
        {"plain < text", "plain < text"},
        {"a<|im_end|>b", "a<" G "|im_end|>b"},
        {"<|im_end|><|im_start|>", "<" G "|im_end|><" G "|im_start|>"},
        {"<<|im_end|>", "<<" G "|im_end|>"},
        {"cut <|im_en", "cut <" G "|im_en"},
        {"cut <", "cut <" G},
        {"<|im_e nd|>", "<|im_e nd|>"},
        {G "<|im_end|>", G "<" G2 "|im_end|>"},
    };
    (void)state;
    struct ek_fault fault = {0};
    struct tokenizer *tok = NULL;
    assert_int_equal(tokenizer_load(MODEL, &tok, &fault), 0);
    struct chat *c = load(MODEL, NULL);
    for (size_t i = 0; i < sizeof(cases) / sizeof(*cases); i++) {
        char expected[256];
        (void)snprintf(expected, sizeof(expected), "<|im_start|>user\n%s<|im_end|>\n",
                       cases[i].text); /* fits */
        renders(c, tok, ask(cases[i].content), expected);
    }
    chat_free(c);
    tokenizer_free(tok);
}

/* However a special token gets into the data, the prompt has as many of them as the template puts
 * there: two for each message. */
static void test_guard_holds(void **state)
{
    static const char *const contents[] = {"<|im_end|>", "x<|im_start|>y<|im_end|>", "<|im_",
                                           "end|>", "<|endoftext|>"};
    (void)state;
    struct ek_fault fault = {0};
    struct tokenizer *tok = NULL;
    assert_int_equal(tokenizer_load(MODEL, &tok, &fault), 0);
    struct chat *c = load(MODEL, NULL);
    for (size_t i = 0; i < sizeof(contents) / sizeof(*contents); i++) {
        struct ek_buf out = {0};
        struct token_vec tokens = {0};
        uint32_t guard = 0;
        size_t specials = 0;
        json_t *context = ask(contents[i]);
        assert_int_equal(chat_render(c, tok, context, NULL, &out, &guard, &fault), 0);
        assert_int_equal(tokenizer_encode(tok, out.data, out.len, true, guard, &tokens), 0);
        for (size_t k = 0; k < tokens.count; k++)
            specials += tokenizer_is_special(tok, tokens.at[k]);
        assert_int_equal(specials, 2);
        token_vec_done(&tokens);
        ek_buf_done(&out);
        json_decref(context);
    }
    chat_free(c);
    tokenizer_free(tok);
}

static void test_refusals(void **state)
{
    (void)state;
    struct chat *c = load(MODEL, NULL);
    struct ek_buf out = {0};
    struct ek_fault fault = {0};
    uint32_t guard = 7;
    assert_int_equal(ek_buf_puts(&out, "kept"), 0);
    json_t *context = json_pack("{s:[{s:s}]}", "messages", "role", "user");
    assert_int_equal(chat_render(c, NULL, context, NULL, &out, &guard, &fault), -EBADMSG);
    assert_string_equal(out.data, "kept");
    assert_int_equal(guard, 7);
    assert_non_null(strstr(fault.msg, "chat template line 19 column"));
    assert_non_null(strstr(fault.msg, "has no attribute 'content'"));
    json_decref(context);
    ek_buf_done(&out);
    chat_free(c);
}

static void test_allocation_failures(void **state)
{
    (void)state;
    struct ek_fault fault = {0};
    struct chat *c = NULL;
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = chat_load(MODEL, NULL, &c, &fault);
        if (!alloc_failed()) {
            assert_int_equal(r, 0);
            break;
        }
        assert_int_equal(r, -ENOMEM);
        assert_null(c);
    }
    json_t *context = ask("What <|im_end|> is it?");
    struct tokenizer *tok = NULL;
    assert_int_equal(tokenizer_load(MODEL, &tok, &fault), 0);
    for (long n = 1;; n++) {
        struct ek_buf out = {0};
        uint32_t guard = 0;
        alloc_fail_at(n);
        int r = chat_render(c, tok, context, NULL, &out, &guard, &fault);
        bool failed = alloc_failed();
        assert_int_equal(r, failed ? -ENOMEM : 0);
        assert_int_equal(out.len == 0, failed);
        ek_buf_done(&out);
        if (!failed)
            break;
    }
    json_decref(context);
    tokenizer_free(tok);
    chat_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_fixtures),
        cmocka_unit_test(test_places),
        cmocka_unit_test(test_bad_files),
        cmocka_unit_test(test_guard),
        cmocka_unit_test(test_guard_holds),
        cmocka_unit_test(test_refusals),
        cmocka_unit_test(test_allocation_failures),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
