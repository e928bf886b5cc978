/* Bodies of requests: every wrong field is refused with its name, right ones are understood. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/openai.h"
#include "server/api/served.h"
#include "tests/unit/alloc.h"

#define USER "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"}]"

static const struct served served = {
    .chat = (const void *)&served,
    .name = {"tiny", "other"},
    .names = 2,
    .max_model_len = 2048,
    .vocab = 4128,
    .hidden = 64,
    .defaults.sampling = {.temperature = 0.7f, .top_p = 0.9f, .typical_p = 1, .repetition = 1},
    .max_logprobs = 20,
    .classes = {.weight = (const float[]){0}, .width = 1, .scores = 1}};

static int parse(const char *text, bool chat, json_t **ret_body, struct openai_ask *a,
                 struct api_error *err)
{
    *ret_body = openai_load(text, strlen(text), err);
    return *ret_body ? openai_parse(&served, chat ? API_CHAT : API_PLAIN, *ret_body, NULL, a, err)
                     : -EBADMSG;
}

static void test_forgets_what_it_does_not_know(void **state)
{
    (void)state;
    json_t *body;
    struct openai_ask a;
    struct api_error err;
    assert_int_equal(parse("{" USER ",\"junk\":[1,2,3],\"metadata\":{\"a\":\"b\"},\"Seed\":1,"
                           "\"seed\":7}",
                           true, &body, &a, &err),
                     0);
    assert_null(json_object_get(body, "junk"));
    assert_null(json_object_get(body, "Seed"));
    assert_string_equal(a.ignored, "metadata, junk, Seed");
    assert_non_null(json_object_get(body, "messages"));
    assert_non_null(json_object_get(body, "metadata"));
    assert_non_null(json_object_get(body, "seed"));
    json_decref(body);
}

/* Ollama's results have no id: the n-th one gets that of the n-th call, also of one that has one of
 * its own. */
static void test_ollama_results(void **state)
{
    static const char text[] = "{"
                               "\"messages\":[{\"role\":\"user\",\"content\":\"hi\"},{\"role\":"
                               "\"assistant\",\"tool_calls\":["
                               "{\"id\":\"mine\",\"function\":{\"name\":\"f\",\"arguments\":{}}},"
                               "{\"function\":{\"name\":\"g\",\"arguments\":{}}}]},"
                               "{\"role\":\"tool\",\"tool_name\":\"f\",\"content\":\"1\"},"
                               "{\"role\":\"tool\",\"tool_name\":\"g\",\"content\":\"2\"}]}";
    struct openai_ask a;
    struct api_error err;
    (void)state;
    json_t *body = openai_load(text, strlen(text), &err);
    if (openai_parse(&served, API_OLLAMA_CHAT, body, NULL, &a, &err) < 0)
        fail_msg("%s", err.msg);
    const json_t *calls = json_object_get(json_array_get(a.messages, 1), "tool_calls");
    for (size_t i = 0; i < 2; i++) {
        const json_t *id = json_object_get(json_array_get(calls, i), "id");
        const json_t *of = json_object_get(json_array_get(a.messages, 2 + i), "tool_call_id");
        assert_string_equal(json_string_value(id), i ? "call_1" : "mine");
        assert_string_equal(json_string_value(of), json_string_value(id));
    }
    json_decref(body);
}

#define P4  "\"a\",\"b\",\"c\",\"d\","
#define P16 P4 P4 P4 P4 /* prompts, one of which is one too many with n of 127 */

/* Bodies that are refused, with the field that the error names and its status. */
static const struct refusal {
    const char *body, *param;
    int status;
    bool plain; /* /v1/completions */
} refusals[] = {
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
    {"{\"messages\":[{\"role\":\"user\",\"content\":[{\"type\":\"image_url\"}]}]}", "messages", 400,
     false},
    {"{\"messages\":[{\"role\":\"assistant\",\"tool_calls\":[{}]}]}", "messages", 400, false},
    {"{" USER ",\"n\":0}", "n", 400, false},
    {"{" USER ",\"n\":129}", "n", 400, false},
    {"{\"prompt\":[" P16 "\"a\"],\"n\":127}", "n", 400, true},
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
    {"{" USER ",\"priority\":3000000000}", "priority", 400, false},
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
    {"{" USER ",\"stream\":true,\"stream_options\":{\"include_usage\":1}}", "include_usage", 400,
     false},
    {"{" USER ",\"top_logprobs\":2}", "top_logprobs", 400, false},
    {"{" USER ",\"logprobs\":true,\"top_logprobs\":50}", "top_logprobs", 400, false},
    {"{" USER ",\"tools\":{}}", "tools", 400, false},
    {"{" USER ",\"tools\":[],\"tool_choice\":\"required\"}", "tool_choice", 400, false},
    {"{" USER ",\"tools\":[{\"function\":{}}]}", "tools", 400, false},
    {"{" USER ",\"tool_choice\":\"auto\"}", "tool_choice", 400, false},
    {"{" USER ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":\"must\"}",
     "tool_choice", 400, false},
    {"{" USER ",\"tools\":[{\"function\":{\"name\":\"f\"}}],\"tool_choice\":{\"function\":{"
     "\"name\":\"g\"}}}",
     "tool_choice", 400, false},
    {"{" USER ",\"response_format\":{\"type\":\"xml\"}}", "response_format", 400, false},
    {"{" USER ",\"response_format\":{\"type\":\"json_schema\"}}", "response_format", 400, false},
    {"{" USER ",\"structured_outputs\":[]}", "structured_outputs", 400, false},
    {"{" USER ",\"structured_outputs\":{\"regex\":5}}", "structured_outputs", 400, false},
    {"{" USER ",\"structured_outputs\":{\"lark\":\"x\"}}", "structured_outputs", 400, false},
    {"{" USER ",\"structured_outputs\":{\"json_object\":1}}", "structured_outputs", 400, false},
    {"{" USER ",\"guided_json\":[1]}", "guided_json", 400, false},
    {"{" USER ",\"guided_regex\":\"\"}", "guided_regex", 400, false},
    {"{" USER ",\"guided_choice\":\"a\"}", "guided_choice", 400, false},
    {"{" USER ",\"guided_grammar\":{}}", "guided_grammar", 400, false},
    {"{" USER ",\"guided_regex\":\"a\",\"guided_choice\":[\"a\"]}", "guided_choice", 400, false},
    {"{" USER ",\"guided_whitespace_pattern\":\"x\"}", "guided_whitespace_pattern", 400, false},
    {"{" USER ",\"response_format\":\"json\"}", "response_format", 400, false},
    {"{" USER ",\"logit_bias\":{\"4128\":1}}", "logit_bias", 400, false},
    {"{" USER ",\"logit_bias\":{\"-5\":1}}", "logit_bias", 400, false},
    {"{" USER ",\"logit_bias\":{\"5\":101}}", "logit_bias", 400, false},
    {"{" USER ",\"logit_bias\":{\"5\":\"x\"}}", "logit_bias", 400, false},
    {"{" USER ",\"logit_bias\":[5]}", "logit_bias", 400, false},
    {"{" USER ",\"frequency_penalty\":2.5}", "frequency_penalty", 400, false},
    {"{" USER ",\"presence_penalty\":-2.5}", "presence_penalty", 400, false},
    {"{" USER ",\"repetition_penalty\":0}", "repetition_penalty", 400, false},
    {"{" USER ",\"typical_p\":0}", "typical_p", 400, false},
    {"{" USER ",\"allowed_token_ids\":[]}", "allowed_token_ids", 400, false},
    {"{" USER ",\"allowed_token_ids\":[-1]}", "allowed_token_ids", 400, false},
    {"{" USER ",\"bad_words\":\"x\"}", "bad_words", 400, false},
    {"{" USER ",\"bad_words\":[\"\"]}", "bad_words", 400, false},
    {"{" USER ",\"truncate_prompt_tokens\":0}", "truncate_prompt_tokens", 400, false},
    {"{" USER ",\"truncate_prompt_tokens\":-2}", "truncate_prompt_tokens", 400, false},
    {"{" USER ",\"continue_final_message\":true}", "continue_final_message", 400, false},
    {"{" USER ",\"temperature\":2.1}", "temperature", 400, false},
    {"{" USER ",\"truncate_prompt_tokens\":99999}", "truncate_prompt_tokens", 400, false},
    {"{" USER ",\"tools\":[{\"type\":\"web\",\"function\":{\"name\":\"a\"}}]}", "tools", 400,
     false},
    {"{" USER ",\"documents\":{}}", "documents", 400, false},
    {"{" USER ",\"documents\":[1]}", "documents", 400, false},
    {"{" USER ",\"prompt_logprobs\":21}", "prompt_logprobs", 400, false},
    {"{" USER ",\"prompt_logprobs\":1,\"stream\":true}", "prompt_logprobs", 400, false},
    {"{" USER ",\"best_of\":2}", "best_of", 400, false},
    {"{" USER ",\"best_of\":3,\"n\":2}", "best_of", 400, false},
    {"{" USER ",\"best_of\":\"2\"}", "best_of", 400, false},
    {"{\"messages\":[{\"role\":\"assistant\",\"function_call\":\"f\"}]}", "messages", 400, false},
    {"{\"prompt\":\"x\",\"max_tokens\":0}", "max_tokens", 400, true},
    {"{\"prompt\":[\"a\",\"\"]}", "prompt", 400, true},
    {"{\"prompt\":[[1],[]]}", "prompt", 400, true},
    {"{\"prompt\":[\"a\",5]}", "prompt", 400, true},
    {"{" USER ",\"cache_salt\":\"\"}", "cache_salt", 400, false},
    {"{}", "prompt", 400, true},
    {"{\"prompt\":\"\"}", "prompt", 400, true},
    {"{\"prompt\":[]}", "prompt", 400, true},
    {"{\"prompt\":{}}", "prompt", 400, true},
    {"{\"prompt\":[1,\"b\"]}", "prompt", 400, true},
    {"{\"prompt\":[1,4128]}", "prompt", 400, true},
    {"{\"prompt\":\"x\",\"logprobs\":21}", "logprobs", 400, true},
    {"{\"prompt\":\"x\",\"suffix\":\"y\"}", "suffix", 400, true},
};

static void test_refused(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct openai_ask a;
        struct api_error err = {0};
        json_t *body;
        int r = parse(refusals[i].body, !refusals[i].plain, &body, &a, &err);
        if (r != -EBADMSG || err.status != refusals[i].status ||
            strcmp(err.param, refusals[i].param) != 0 || !err.msg[0])
            fail_msg("%s: %d, status %d, param '%s', %s", refusals[i].body, r, err.status,
                     err.param, err.msg);
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
    assert_true(!a.add_specials && a.skip_specials && a.sampling.temperature == 0.7f &&
                a.sampling.top_p == 0.9f);
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
    assert_true(a.sampling.temperature == 0.01f && a.sampling.top_p == 0.5f &&
                a.sampling.min_p == 0.1f && a.sampling.top_k == 7);
    assert_true(a.seeded && (int64_t)a.sampling.seed == -3 && a.max_tokens == 5 &&
                a.min_tokens == 2);
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

/* As openai 0.28 sends a call and its result back, and others an answer without a text. */
static void test_older_messages(void **state)
{
    struct openai_ask a;
    struct api_error err;
    json_t *body;
    (void)state;
    assert_int_equal(
        parse("{\"messages\":[{\"role\":\"user\",\"content\":\"a\"},{\"role\":\"assistant\","
              "\"content\":null,\"function_call\":{\"name\":\"get_weather\",\"arguments\":"
              "\"{\\\"city\\\":\\\"Paris\\\"}\"}},{\"role\":\"function\",\"name\":"
              "\"get_weather\",\"content\":\"rain\"},{\"role\":\"assistant\",\"content\":null}]}",
              true, &body, &a, &err),
        0);
    const json_t *call =
        json_array_get(json_object_get(json_array_get(a.messages, 1), "tool_calls"), 0);
    const json_t *fn = json_object_get(call, "function");
    assert_string_equal(json_string_value(json_object_get(call, "type")), "function");
    assert_string_equal(json_string_value(json_object_get(fn, "name")), "get_weather");
    assert_string_equal(
        json_string_value(json_object_get(json_object_get(fn, "arguments"), "city")), "Paris");
    assert_string_equal(json_string_value(json_object_get(json_array_get(a.messages, 2), "role")),
                        "tool");
    assert_string_equal(
        json_string_value(json_object_get(json_array_get(a.messages, 3), "content")), "");
    json_decref(body);
}

/* As strands-agents sends it where an agent has no tools, and langchain-openai 0.1 with best_of. */
static void test_nothing_to_choose(void **state)
{
    struct openai_ask a;
    struct api_error err;
    json_t *body;
    (void)state;
    assert_int_equal(parse("{" USER ",\"tools\":[]}", true, &body, &a, &err), 0);
    assert_null(a.tools);
    json_decref(body);
    assert_int_equal(
        parse("{" USER ",\"tools\":[],\"tool_choice\":\"auto\"}", true, &body, &a, &err), 0);
    assert_null(a.tools);
    json_decref(body);
    assert_int_equal(parse("{\"prompt\":\"x\",\"best_of\":2,\"n\":2}", false, &body, &a, &err), 0);
    assert_int_equal(a.n, 2);
    json_decref(body);
}

/* As guidance sends gen("x", max_tokens=10): the grammar alone says how much there may be. */
static void test_grammar_bounds_tokens(void **state)
{
    static const struct {
        const char *more, *grammar;
        uint32_t most;
    } cases[] = {
        {"", "%llguidance {}\\n\\nstart: x\\nx[capture, max_tokens=10]: X\\nX: /(?s:.*)/\\n", 10},
        {",\"max_tokens\":4", "start: x\\nx[max_tokens=10]: /a*/", 4},
        {",\"max_tokens\":40", "start: x\\nx[ capture , max_tokens = 10 ]: /a*/", 10},
        {",\"max_tokens\":40", "start: \\\"[max_tokens=5]\\\" x\\nx[capture]: /[max_tokens=7]/",
         40},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct openai_ask a;
        struct api_error err;
        json_t *body;
        char text[512];
        (void)snprintf(text, sizeof(text),
                       "{" USER "%s,\"structured_outputs\":{\"grammar\":\"%s\"}}", cases[i].more,
                       cases[i].grammar);
        assert_int_equal(parse(text, true, &body, &a, &err), 0);
        assert_int_equal(form_settle(&served, &a, &err), 0);
        assert_int_equal(a.max_tokens, cases[i].most);
        json_decref(body);
    }
}

static void test_prompt_forms(void **state)
{
    struct openai_ask a;
    struct api_error err;
    json_t *body;
    (void)state;
    static const struct {
        const char *body;
        uint32_t prompts;
        const char *last; /* text, or NULL and the first id of the last one */
        int64_t id;
    } cases[] = {{"{\"prompt\":\"one\"}", 1, "one", 0},
                 {"{\"prompt\":[\"one\"]}", 1, "one", 0},
                 {"{\"prompt\":[\"one\",\"two\"]}", 2, "two", 0},
                 {"{\"prompt\":[1,2,3]}", 1, NULL, 1},
                 {"{\"prompt\":[[7]]}", 1, NULL, 7},
                 {"{\"prompt\":[[7],[8,9]]}", 2, NULL, 8},
                 {"{\"prompt\":[[7],\"x\"]}", 2, "x", 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        assert_int_equal(parse(cases[i].body, false, &body, &a, &err), 0);
        assert_int_equal(a.prompts, cases[i].prompts);
        struct openai_prompt p = openai_prompt(&a, a.prompts - 1);
        if (cases[i].last)
            assert_string_equal(p.text, cases[i].last);
        else
            assert_int_equal(json_integer_value(json_array_get(p.ids, 0)), cases[i].id);
        json_decref(body);
    }
}

/* Wrong types for every field of every form, from the table itself. */
static void test_every_field(void **state)
{
    static const char *const bases[API_COUNT] = {[API_CHAT] = USER,
                                                 [API_PLAIN] = "\"prompt\":\"x\"",
                                                 [API_EMBED] = "\"input\":\"x\"",
                                                 [API_RESPONSES] = "\"input\":\"x\"",
                                                 [API_MESSAGES] = USER ",\"max_tokens\":9",
                                                 [API_OLLAMA_CHAT] = USER,
                                                 [API_OLLAMA_TEXT] = "\"prompt\":\"x\"",
                                                 [API_OLLAMA_EMBED] = "\"input\":\"x\"",
                                                 [API_INFILL] = "\"input_prefix\":\"x\","
                                                                "\"input_suffix\":\"y\"",
                                                 [API_RERANK] = "\"query\":\"x\","
                                                                "\"documents\":[\"y\"]",
                                                 [API_SCORE] = "\"text_1\":\"x\","
                                                               "\"text_2\":\"y\"",
                                                 [API_CLASSIFY] = "\"input\":\"x\"",
                                                 [API_POOLING] = "\"input\":\"x\"",
                                                 [API_TOKENIZE] = "\"prompt\":\"x\"",
                                                 [API_DETOKENIZE] = "\"tokens\":[1]"};
    static const char *const values[] = {
        "\"x\"", "-1e300", "1e300", "-7.5", "true", "[]", "[[]]", "{}", "{\"a\":{\"b\":[]}}",
        "[null]"};
    char text[512];
    uint32_t refused = 0, total = 0;
    (void)state;
    for (uint32_t i = 0; i < field_count(); i++)
        for (uint32_t api = 0; api < API_COUNT; api++)
            for (size_t k = 0; k < sizeof(values) / sizeof(values[0]); k++) {
                const struct field *f = &field_table[i];
                struct openai_ask a;
                struct api_error err = {0};
                char key[64];
                (void)snprintf(key, sizeof(key), "\"%s\":", f->name);
                bool own = strstr(bases[api], key) != NULL;
                if (!(f->on & 1u << api) || f->kind == FIELD_FREE)
                    continue;
                (void)snprintf(text, sizeof(text), "{%s%s\"%s\":%s}", own ? "" : bases[api],
                               own ? "" : ",", f->name, values[k]);
                json_t *body = openai_load(text, strlen(text), &err);
                assert_non_null(body);
                int r = openai_parse(&served, (enum openai_api)api, body, NULL, &a, &err);
                total++;
                refused += r < 0;
                bool about =
                    strcmp(err.param, f->name) == 0 || (f->kind == FIELD_OWN && err.param[0]);
                if (r < 0 && (r != -EBADMSG || !about || !err.msg[0] || err.status < 400))
                    fail_msg("%s: %d, status %d, param '%s', %s", text, r, err.status, err.param,
                             err.msg);
                if (r == 0 && f->kind <= FIELD_WHOLE && k == 0)
                    fail_msg("%s was accepted", text);
                json_decref(body);
            }
    assert_true(refused > total / 2);
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
        cmocka_unit_test(test_forgets_what_it_does_not_know),
        cmocka_unit_test(test_ollama_results),
        cmocka_unit_test(test_refused),
        cmocka_unit_test(test_depth),
        cmocka_unit_test(test_defaults),
        cmocka_unit_test(test_everything),
        cmocka_unit_test(test_messages_are_normalised),
        cmocka_unit_test(test_older_messages),
        cmocka_unit_test(test_nothing_to_choose),
        cmocka_unit_test(test_grammar_bounds_tokens),
        cmocka_unit_test(test_prompt_forms),
        cmocka_unit_test(test_every_field),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
