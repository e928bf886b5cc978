/* Reading a body is paid for: with less than it takes it is a 400 that names a field, wherever the
 * work stops; who has left or waited too long gets a 503. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/work.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/openai.h"
#include "server/api/pair.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"
#include "tests/unit/api/tiny_served.h"

#define MODEL "models/evenkeel-tiny"

static struct tokenizer *tok;
static struct chat *chat;

static int load(void **state)
{
    struct ek_fault f = {0};
    (void)state;
    if (tokenizer_load(MODEL, &tok, &f) < 0 || chat_load(MODEL, NULL, &chat, &f) < 0)
        return -1;
    served.tok = tok;
    served.chat = chat;
    return 0;
}

static int unload(void **state)
{
    (void)state;
    tokenizer_free(tok);
    chat_free(chat);
    return 0;
}

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

/* A body: what precedes 400 pieces, and what follows them. */
static const struct body {
    enum openai_api api;
    const char *open, *piece, *close;
    const char *field; /* that most of the work is about */
} bodies[] = {
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"", "word ", "\"}]}", "messages"},
    {API_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}",
     ",{\"role\":\"user\",\"content\":\"a\"}", "]}", "messages"},
    {API_MESSAGES,
     "{\"max_tokens\":1,\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":"
     "\"text\",\"text\":\"b\"}",
     ",{\"type\":\"text\",\"text\":\"a\"}", "]}]}", "messages"},
    {API_RESPONSES, "{\"input\":[{\"role\":\"user\",\"content\":\"\"}",
     ",{\"role\":\"user\",\"content\":\"a\"}", "]}", "input"},
    {API_CHAT, "{" USER ",\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"g\"}}",
     ",{\"type\":\"function\",\"function\":{\"name\":\"f\"}}", "]}", "tools"},
    {API_CHAT, "{" USER ",\"chat_template_kwargs\":{\"z\":[", "1,", "1]}}", "chat_template_kwargs"},
    {API_PLAIN, "{\"prompt\":\"", "    word \\n", "\"}", "prompt"},
    {API_PLAIN, "{\"prompt\":[1", ",5", "]}", "prompt"},
    {API_EMBED, "{\"input\":[\"a\"", ",\"b\"", "]}", "input"},
    {API_RERANK, "{\"query\":\"a b c\",\"documents\":[\"a\"", ",\"b\"", "]}", "documents"},
    {API_SCORE, "{\"text_1\":\"", "word ", "\",\"text_2\":\"a\"}", "text_1"},
    {API_TOKENIZE, "{\"prompt\":\"", "word ", "\"}", "prompt"},
    {API_DETOKENIZE, "{\"tokens\":[1", ",5", "]}", "tokens"},
    {API_OLLAMA_CHAT, "{\"messages\":[{\"role\":\"user\",\"content\":\"\"}",
     ",{\"role\":\"user\",\"content\":\"a\"}", "]}", "messages"},
    {API_OLLAMA_CHAT, "{" USER ",\"options\":{\"stop\":[\"a\"],\"z\":[", "1,", "1]}}", "options"},
    {API_OLLAMA_TEXT, "{\"prompt\":\"", "word ", "\"}", "prompt"},
    {API_OLLAMA_TEXT, "{\"raw\":true,\"prompt\":\"", "word ", "\"}", "prompt"},
    {API_OLLAMA_TEXT, "{\"prompt\":\"a\",\"system\":\"", "word ", "\"}", "prompt"},
    {API_OLLAMA_EMBED, "{\"input\":[\"a\"", ",\"b\"", "]}", "input"},
};

static int feed(const struct body *b, struct ek_work *work, struct api_error *err)
{
    struct ek_buf text = {0};
    struct token_vec tokens = {0};
    struct openai_ask a;
    (void)ek_buf_puts(&text, b->open);
    for (int i = 0; i < 400; i++)
        (void)ek_buf_puts(&text, b->piece);
    assert_int_equal(ek_buf_puts(&text, b->close), 0);
    json_t *body = openai_load(text.data, text.len, err);
    assert_non_null(body);
    int r = openai_parse(&served, b->api, body, work, &a, err);
    if (r == 0)
        r = pair_settle(&served, &a, err);
    for (uint32_t i = 0; r == 0 && b->api != API_DETOKENIZE && i < a.prompts; i++) {
        tokens.count = 0;
        r = prompt_tokens(&served, &a, i, &tokens, err);
        token_vec_done(&tokens);
    }
    json_decref(body);
    ek_buf_done(&text);
    return r;
}

static void test_spent_fuel(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        struct api_error err = {0};
        struct ek_work work = {.fuel = UINT64_MAX};
        uint32_t named = 0, whole = 0;
        if (feed(&bodies[i], &work, &err) < 0)
            fail_msg("body %zu: %s", i, err.msg);
        uint64_t all = work.used;
        if (all < 1200)
            fail_msg("body %zu: only %llu units were paid", i, (unsigned long long)all);
        for (uint64_t k = 0; k < 40; k++) {
            work = (struct ek_work){.fuel = all * k / 40};
            err = (struct api_error){0};
            assert_int_equal(feed(&bodies[i], &work, &err), -EBADMSG);
            if (err.status != 400 || !strstr(err.msg, "takes more work"))
                fail_msg("body %zu with %llu of %llu: %d %s", i, (unsigned long long)k * all / 40,
                         (unsigned long long)all, err.status, err.msg);
            /* unknown fields are looked for in the body as a whole */
            if (err.param[0] == '\0' && !strstr(err.msg, "`body`"))
                fail_msg("body %zu: nothing is named: %s", i, err.msg);
            whole += err.param[0] == '\0';
            named += strcmp(err.param, bodies[i].field) == 0;
        }
        assert_true(whole <= 1);
        if (named == 0)
            fail_msg("body %zu: %s was never named", i, bodies[i].field);
        work = (struct ek_work){.fuel = all};
        assert_int_equal(feed(&bodies[i], &work, &err), 0);
    }
}

static void test_nobody_waits(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        const atomic_bool gone = true;
        struct api_error err = {0};
        struct ek_work work = {.fuel = UINT64_MAX, .cancelled = &gone};
        assert_int_equal(feed(&bodies[i], &work, &err), -EBADMSG);
        assert_true(err.status == 503 && err.retry_after_s == 1 && err.param[0]);
        work = (struct ek_work){.fuel = UINT64_MAX, .deadline_us = 1};
        assert_int_equal(feed(&bodies[i], &work, &err), -EBADMSG);
        assert_true(err.status == 503 && err.retry_after_s == 1);
    }
}

/* What is offered is enough for all that may be sent. */
static void test_offered(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(bodies) / sizeof(bodies[0]); i++) {
        size_t bytes = strlen(bodies[i].piece) * 400;
        struct api_error err = {0};
        struct ek_work work = {.fuel = UINT64_MAX};
        assert_int_equal(feed(&bodies[i], &work, &err), 0);
        print_message("body %zu: %llu units for %zu bytes\n", i, (unsigned long long)work.used,
                      bytes);
        if (work.used > 100000 + bytes * OPENAI_FUEL_BYTE)
            fail_msg("body %zu: %llu units for %zu bytes", i, (unsigned long long)work.used, bytes);
    }
    assert_true(openai_fuel(100) == OPENAI_FUEL + 100 * OPENAI_FUEL_BYTE);
    assert_true(openai_fuel(SIZE_MAX) == UINT64_MAX);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_spent_fuel),
        cmocka_unit_test(test_nobody_waits),
        cmocka_unit_test(test_offered),
    };
    return cmocka_run_group_tests(tests, load, unload);
}
