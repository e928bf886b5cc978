/* Bodies of requests: every wrong field is refused with its name, right ones are understood. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/http/inside.h"
#include "server/http/openai.h"
#include "tests/unit/alloc.h"

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static const struct http_served served = {.chat = (const void *)&served,
                                          .name = {"tiny", "other"},
                                          .names = 2,
                                          .max_model_len = 2048,
                                          .vocab = 4128,
                                          .defaults = {.temperature = 0.7, .top_p = 0.9},
                                          .max_logprobs = 20};

static int parse(const char *text, bool chat, json_t **ret_body, struct openai_ask *a,
                 struct api_error *err)
{
    *ret_body = openai_load(text, strlen(text), err);
    return *ret_body ? openai_parse(&served, chat, *ret_body, a, err) : -EBADMSG;
}

static void test_refused(void **state)
{
    static const struct {
        const char *body, *param;
        int status;
        bool plain; /* /v1/completions */
    } cases[] = {
        {"", "", 400, false},
        {"{", "", 400, false},
        {"[]", "", 400, false},
        {"\"x\"", "", 400, false},
        {"{\"model\":\"tiny\",\"model\":\"tiny\"," USER "}", "", 400, false},
        {"{\"x\":\"\\ud800\"}", "", 400, false},
        {"{\"x\":NaN}", "", 400, false},
        {"{" USER ",\"model\":\"nope\"}", "model", 404, false},
        {"{" USER ",\"model\":7}", "model", 400, false},
        {"{}", "messages", 400, false},
        {"{\"messages\":[]}", "messages", 400, false},
        {"{\"messages\":\"hi\"}", "messages", 400, false},
        {"{\"messages\":[5]}", "messages", 400, false},
        {"{\"messages\":[{\"role\":\"king\",\"content\":\"x\"}]}", "messages", 400, false},
        {"{\"messages\":[{\"role\":\"user\"}]}", "messages", 400, false},
        {"{\"messages\":[{\"role\":\"user\",\"content\":5}]}", "messages", 400, false},
        {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages",
         400, false},
        {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "messages", 400, false},
        {"{" USER ",\"n\":0}", "n", 400, false},
        {"{" USER ",\"n\":2}", "n", 400, false},
        {"{" USER ",\"n\":\"1\"}", "n", 400, false},
        {"{" USER ",\"temperature\":-1}", "temperature", 400, false},
        {"{" USER ",\"temperature\":\"hot\"}", "temperature", 400, false},
        {"{" USER ",\"top_p\":0}", "top_p", 400, false},
        {"{" USER ",\"top_p\":1.5}", "top_p", 400, false},
        {"{" USER ",\"top_k\":-5}", "top_k", 400, false},
        {"{" USER ",\"top_k\":1.5}", "top_k", 400, false},
        {"{" USER ",\"min_p\":2}", "min_p", 400, false},
        {"{" USER ",\"seed\":1.5}", "seed", 400, false},
        {"{" USER ",\"seed\":99999999999999999999}", "", 400, false},
        {"{" USER ",\"priority\":1}", "priority", 400, false},
        {"{" USER ",\"max_tokens\":0}", "max_tokens", 400, false},
        {"{" USER ",\"max_tokens\":\"many\"}", "max_tokens", 400, false},
        {"{" USER ",\"max_tokens\":99999999999}", "max_tokens", 400, false},
        {"{" USER ",\"max_completion_tokens\":0}", "max_completion_tokens", 400, false},
        {"{" USER ",\"max_tokens\":4,\"min_tokens\":5}", "min_tokens", 400, false},
        {"{" USER ",\"stop\":5}", "stop", 400, false},
        {"{" USER ",\"stop\":[\"a\",5]}", "stop", 400, false},
        {"{" USER ",\"stop\":[\"\"]}", "stop", 400, false},
        {"{" USER ",\"stop\":[\"a\\u0000b\"]}", "stop", 400, false},
        {"{" USER ",\"stop\":[\"1\",\"2\",\"3\",\"4\",\"5\",\"6\",\"7\",\"8\",\"9\",\"a\",\"b\","
         "\"c\",\"d\",\"e\",\"f\",\"g\",\"h\"]}",
         "stop", 400, false},
        {"{" USER ",\"stop_token_ids\":[5000]}", "stop_token_ids", 400, false},
        {"{" USER ",\"stop_token_ids\":7}", "stop_token_ids", 400, false},
        {"{" USER ",\"stream\":\"yes\"}", "stream", 400, false},
        {"{" USER ",\"stream_options\":{}}", "stream_options", 400, false},
        {"{" USER ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "include_usage",
         400, false},
        {"{" USER ",\"top_logprobs\":2}", "top_logprobs", 400, false},
        {"{" USER ",\"logprobs\":true,\"top_logprobs\":50}", "top_logprobs", 400, false},
        {"{" USER ",\"tools\":[]}", "tools", 400, false},
        {"{" USER ",\"tools\":[{\"function\":{}}]}", "tools", 400, false},
        {"{" USER ",\"tool_choice\":\"auto\"}", "tool_choice", 400, false},
        {"{" USER ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"required\"}",
         "tool_choice", 400, false},
        {"{" USER ",\"response_format\":{\"type\":\"json_object\"}}", "response_format", 400,
         false},
        {"{" USER ",\"response_format\":\"json\"}", "response_format", 400, false},
        {"{" USER ",\"logit_bias\":{\"5\":1}}", "logit_bias", 400, false},
        {"{" USER ",\"frequency_penalty\":0.5}", "frequency_penalty", 400, false},
        {"{" USER ",\"cache_salt\":\"\"}", "cache_salt", 400, false},
        {"{}", "prompt", 400, true},
        {"{\"prompt\":\"\"}", "prompt", 400, true},
        {"{\"prompt\":[]}", "prompt", 400, true},
        {"{\"prompt\":{}}", "prompt", 400, true},
        {"{\"prompt\":[\"a\",\"b\"]}", "prompt", 400, true},
        {"{\"prompt\":[1,\"b\"]}", "prompt", 400, true},
        {"{\"prompt\":[1,4128]}", "prompt", 400, true},
        {"{\"prompt\":\"x\",\"logprobs\":21}", "logprobs", 400, true},
        {"{\"prompt\":\"x\",\"echo\":true}", "echo", 400, true},
        {"{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", 400, true},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct openai_ask a;
        struct api_error err = {0};
        json_t *body;
        int r = parse(cases[i].body, !cases[i].plain, &body, &a, &err);
        if (r != -EBADMSG || err.status != cases[i].status ||
            strcmp(err.param, cases[i].param) != 0 || !err.msg[0])
            fail_msg("%s: %d, status %d, param '%s', %s", cases[i].body, r, err.status, err.param,
                     err.msg);
        json_decref(body);
    }
}

static void test_depth(void **state)
{
    char text[4096];
    struct api_error err;
    (void)state;
    memset(text, '[', sizeof(text));
    assert_null(openai_load(text, sizeof(text), &err));
    for (unsigned depth = OPENAI_DEPTH - 1; depth <= OPENAI_DEPTH + 1; depth++) {
        size_t n = 0;
        n += (size_t)sprintf(text, "{\"x\":");
        for (unsigned i = 1; i < depth; i++)
            text[n++] = '[';
        for (unsigned i = 1; i < depth; i++)
            text[n++] = ']';
        text[n++] = '}';
        json_t *body = openai_load(text, n, &err);
        assert_int_equal(body != NULL, depth <= OPENAI_DEPTH);
        json_decref(body);
    }
}

static void test_defaults(void **state)
{
    struct openai_ask a;
    struct api_error err;
    json_t *body;
    (void)state;
    assert_int_equal(parse("{" USER "}", true, &body, &a, &err), 0);
    assert_true(a.chat && !a.stream && !a.logprobs && !a.seeded && a.add_generation_prompt);
    assert_true(!a.add_specials && a.skip_specials && a.temperature == 0.7 && a.top_p == 0.9);
    assert_int_equal(a.max_tokens, 0);
    assert_string_equal(a.model, "tiny");
    json_decref(body);
    assert_int_equal(parse("{\"prompt\":\"x\",\"unknown\":{\"a\":1}}", false, &body, &a, &err), 0);
    assert_true(a.add_specials && a.max_tokens == 16);
    json_decref(body);
}

static void test_everything(void **state)
{
    struct openai_ask a;
    struct api_error err;
    json_t *body;
    (void)state;
    const char *text =
        "{\"model\":\"other\"," USER
        ",\"temperature\":0.001,\"top_p\":0.5,\"top_k\":7,\"min_p\":0.1,\"seed\":-3,"
        "\"max_tokens\":9,\"max_completion_tokens\":5.0,\"min_tokens\":2,\"stop\":[\"a\",\"b\"],"
        "\"stop_token_ids\":[4,5],\"ignore_eos\":true,\"stream\":true,\"stream_options\":{"
        "\"include_usage\":true,\"continuous_usage_stats\":true},\"logprobs\":true,"
        "\"top_logprobs\":3,\"n\":1,\"presence_penalty\":0,\"logit_bias\":{},\"user\":null,"
        "\"tools\":[{\"type\":\"function\",\"function\":{\"name\":\"f\"}}],\"cache_salt\":\"s\","
        "\"return_token_ids\":true,\"response_format\":{\"type\":\"text\"}}";
    assert_int_equal(parse(text, true, &body, &a, &err), 0);
    assert_string_equal(a.model, "other");
    assert_true(a.temperature == 0.01 && a.top_p == 0.5 && a.min_p == 0.1 && a.top_k == 7);
    assert_true(a.seeded && a.seed == (uint64_t)-3 && a.max_tokens == 5 && a.min_tokens == 2);
    assert_true(a.stops == 2 && a.stop_id_count == 2 && a.stop_ids[1] == 5 && a.ignore_eos);
    assert_true(a.stream && a.include_usage && a.continuous_usage && a.logprobs && a.top == 3);
    assert_true(a.tools != NULL && a.cache_salt != 0 && a.return_token_ids);
    json_decref(body);
}

static void test_messages_are_normalised(void **state)
{
    struct openai_ask a;
    struct api_error err;
    json_t *body;
    (void)state;
    assert_int_equal(
        parse("{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"text\",\"text\":\"a\"},"
              "\"b\"]},{\"role\":\"assistant\",\"content\":null,\"tool_calls\":[{\"function\":{"
              "\"name\":\"f\",\"arguments\":\"{\\\"x\\\":1}\"}}]}]}",
              true, &body, &a, &err),
        0);
    json_t *first = json_array_get(a.messages, 0), *second = json_array_get(a.messages, 1);
    assert_string_equal(json_string_value(json_object_get(first, "content")), "a\nb");
    json_t *call = json_array_get(json_object_get(second, "tool_calls"), 0);
    json_t *arguments = json_object_get(json_object_get(call, "function"), "arguments");
    assert_int_equal(json_integer_value(json_object_get(arguments, "x")), 1);
    json_decref(body);
}

static void test_prompt_forms(void **state)
{
    struct openai_ask a;
    struct api_error err;
    json_t *body;
    (void)state;
    assert_int_equal(parse("{\"prompt\":[\"one\"]}", false, &body, &a, &err), 0);
    assert_string_equal(a.prompt, "one");
    json_decref(body);
    assert_int_equal(parse("{\"prompt\":[1,2,3]}", false, &body, &a, &err), 0);
    assert_true(!a.prompt && json_array_size(a.prompt_ids) == 3);
    json_decref(body);
    assert_int_equal(parse("{\"prompt\":[[7]]}", false, &body, &a, &err), 0);
    assert_int_equal(json_integer_value(json_array_get(a.prompt_ids, 0)), 7);
    json_decref(body);
}

/* Joining parts allocates: each failure must leave an error and nothing behind. */
static void test_out_of_memory(void **state)
{
    (void)state;
    for (long n = 1;; n++) {
        struct openai_ask a;
        struct api_error err = {0};
        json_t *body = NULL;
        alloc_fail_at(n);
        int r = parse("{\"messages\":[{\"role\":\"user\",\"content\":[\"a\",\"b\"]}]}", true, &body,
                      &a, &err);
        bool hit = alloc_failed();
        alloc_fail_at(0);
        json_decref(body);
        if (!hit) {
            assert_int_equal(r, 0);
            break;
        }
        assert_true(r == 0 || (r == -EBADMSG && err.status != 0));
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_messages_are_normalised),
        cmocka_unit_test(test_prompt_forms),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
