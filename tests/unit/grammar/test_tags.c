/*
 * Text with calls of strict tools in it: what is free, what is bound, where special tokens may
 * come. That the parsers read what is written is shown by tests/e2e/test_constrained.py.
 */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"
#include "tests/unit/grammar/words.h"

#define MARK       (WORDS_END + 1) /* <tool_call> */
#define OTHER      (WORDS_END + 2) /* <|other|> */
#define VOCAB      ((uint32_t)OTHER + 1)
#define MASK_WORDS ((VOCAB + 31) / 32)

#define TOOLS                                                                                      \
    "\"tools\":[{\"function\":{\"name\":\"f\",\"strict\":true,\"parameters\":{\"type\":"           \
    "\"object\",\"properties\":{\"n\":{\"type\":\"integer\",\"minimum\":1,\"maximum\":9},\"s\":{"  \
    "\"type\":\"string\"}},\"required\":[\"n\"],\"additionalProperties\":false}}},{\"function\":{" \
    "\"name\":\"g\"}}]"

static const char *special_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    const char *s = token == MARK ? "<tool_call>" : token == OTHER ? "<|other|>" : NULL;
    (void)ctx;
    *ret_len = s ? strlen(s) : 0;
    return s;
}

static int setup(void **state)
{
    const int32_t end = WORDS_END;
    (void)state;
    if (lexicon_new(VOCAB, words_bytes, NULL, &end, 1, &lexicon) < 0)
        return -1;
    return lexicon_add_specials(lexicon, special_bytes, NULL);
}

static struct grammar *compile(const char *style, bool one)
{
    char text[1024];
    struct grammar *g = NULL;
    struct ek_fault f = {0};
    int n = snprintf(text, sizeof(text), "{\"style\":\"%s\",\"one\":%s," TOOLS "}", style,
                     one ? "true" : "false");
    if (grammar_compile(GRAMMAR_TAGS, text, (size_t)n, lexicon, NULL, &g, &f) < 0)
        fail_msg("%s: %s", style, f.msg);
    return g;
}

#define CALLS_BEGIN "<｜tool▁calls▁begin｜>"
#define CALLS_END   "<｜tool▁calls▁end｜>"
#define CALL_BEGIN  "<｜tool▁call▁begin｜>"
#define CALL_END    "<｜tool▁call▁end｜>"
#define SEP         "<｜tool▁sep｜>"

static const struct {
    const char *style, *text;
    int fits, one; /* and when there is to be one call only */
} cases[] = {
    {"hermes", "", 2, 2},
    {"hermes", "any { text <tool> [\xff", 2, 2},
    {"hermes", "<tool_call>", 1, 1},
    {"hermes", "<tool_calls>", 2, 2},
    {"hermes", "x<<tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\":3}}\n</tool_call>", 2, 2},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":30", 0, 0},
    {"hermes", "<tool_call>{\"name\": \"f\", \"arguments\": {\"s\"", 0, 0},
    {"hermes", "<tool_call>{\"name\": \"g\", \"arguments\": {\"s\": [1]}}</tool_call>", 2, 2},
    {"hermes", "<tool_call>{\"name\": \"h\"", 0, 0},
    {"hermes", "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call> and\n<tool_call>", 1,
     0},
    {"seed_oss",
     "x<seed:tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n</function>\n"
     "</seed:tool_call>",
     2, 2},
    {"seed_oss", "<tool_call>{\"name\": \"h\"", 2, 2},
    {"glm45", "<tool_call>f<arg_key>n</arg_key><arg_value>3</arg_value></tool_call>", 2, 2},
    {"glm45", "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>3</arg_value>\n</tool_call>x", 2, 0},
    {"glm45", "<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>30", 0, 0},
    {"glm45", "<tool_call>f\n<arg_key>s", 0, 0},
    {"ernie45", "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":3}}\n</tool_call>", 2, 2},
    {"hunyuan_a13b", "<tool_calls>[{\"name\": \"f\", \"arguments\": {\"n\":3}}]</tool_calls>", 2,
     2},
    {"hunyuan_a13b", "<tool_calls>[{\"name\": \"g\", \"arguments\": {}}, {\"name\": \"f\", ", 1, 0},
    {"deepseek_v31", CALLS_BEGIN CALL_BEGIN "f" SEP "{\"n\":3}" CALL_END CALLS_END, 2, 2},
    {"deepseek_v31", CALLS_BEGIN CALL_BEGIN "g" SEP "{}" CALL_END CALL_BEGIN "f" SEP "{\"n\"", 1,
     0},
    {"deepseek_v31", CALLS_BEGIN CALL_BEGIN "h", 0, 0},
    {"deepseek_v3",
     CALLS_BEGIN CALL_BEGIN "function" SEP "f\n```json\n{\"n\":3}\n```" CALL_END CALLS_END, 2, 2},
    {"gemma4", "<|tool_call>call:f{n:3,s:<|\"|>a,}<|\"|>}<tool_call|>", 2, 2},
    {"gemma4", "<|tool_call>call:g{x:[1,{y:<|\"|><|\"|>}],z:null}<tool_call|>", 2, 2},
    {"gemma4", "<|tool_call>call:f{s:", 0, 0},
    {"granite4", "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":3}}\n</tool_call>", 2, 2},
    {"granite", "a <|tool_call|>[{\"name\": \"f\", \"arguments\": {\"n\":3}}]", 2, 2},
    {"granite", "a <tool_call> [{\"name\": \"f\", \"arguments\": {\"n\":3}}]", 2, 2},
    {"granite", "<tool_call>[{\"name\": \"f\", \"arguments\": {\"s\"", 0, 0},
    {"granite", "<|tool_call|>[{\"name\": \"g\", \"arguments\": {}}, {\"name\": \"f\", ", 1, 0},
    {"phi4_mini_json", "import functools[{\"name\": \"f\", \"arguments\": {\"n\":3}}]", 2, 2},
    {"phi4_mini_json", "functools.", 2, 2},
    {"phi4_mini_json", "functools[x", 0, 0},
    {"nemotron_json", "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"n\":3}}]</TOOLCALL>", 2, 2},
    {"nemotron_json", "<TOOLCALL>[{\"name\": \"g\", \"arguments\": {}}, {\"name\": \"f\", ", 1, 0},
    {"longcat",
     "<longcat_tool_call>\n{\"name\": \"f\", \"arguments\": {\"n\":3}}\n"
     "</longcat_tool_call>",
     2, 2},
    {"longcat", "<longcat_tool_call>\n{\"name\": \"h", 0, 0},
    {"internlm",
     "<|action_start|><|plugin|>\n{\"name\": \"f\", \"parameters\": {\"n\":3}}"
     "<|action_end|>",
     2, 2},
    {"internlm", "<|action_start|><|plugin|>\n{\"name\": \"h", 0, 0},
    {"granite-20b-fc", "<function_call> {\"name\": \"f\", \"arguments\": {\"n\":3}}", 2, 2},
    {"granite-20b-fc", "<function_call> {\"name\": \"f\", \"arguments\": {\"s", 0, 0},
    {"gigachat3", "a<|function_call|>{\"name\": \"f\", \"arguments\": {\"n\":3}}", 2, 2},
    {"gigachat3",
     "a<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"g\", \"arguments\": {}}", 2, 2},
    {"gigachat3", "<|function_call|>{\"name\": \"h", 0, 0},
    {"cohere_command3",
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": "
     "{\"n\":3}}"
     "\n]<|END_ACTION|>",
     2, 2},
    {"cohere_command3",
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"g\", \"parameters\": {}},\n"
     "    {\"tool_call_id\": \"1\", \"tool_name\": \"f\", \"parameters\": {\"n\"",
     1, 0},
    {"cohere_command3", "<|START_ACTION|>[\n    {\"tool_call_id\": \"x", 0, 0},
    {"apertus", "a <|tools_prefix|>[{\"f\": {\"n\":3}}]<|tools_suffix|>", 2, 2},
    {"apertus", "<|tools_prefix|>[{\"g\": {}}, {\"f\": {\"n\":3}}]<|tools_suffix|>", 2, 0},
    {"apertus", "<|tools_prefix|>[{\"h\"", 0, 0},
    {"deepseek_v41",
     "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"f\">\n<｜DSML｜ parameter name=\"n\" "
     "string=\"false\">3</｜DSML｜ parameter>\n</｜DSML｜ invoke>\n</｜DSML｜ calls>",
     2, 2},
    {"deepseek_v41", "<｜DSML｜ calls>\n<｜DSML｜ invoke name=\"h", 0, 0},
    {"step3",
     "a<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\">"
     "<steptml:parameter name=\"n\">3</steptml:parameter><steptml:parameter name=\"s\">x < y"
     "</steptml:parameter></steptml:invoke><｜tool_call_end｜><｜tool_calls_end｜>",
     2, 2},
    {"step3",
     "<｜tool_calls_begin｜><｜tool_call_begin｜>function<｜tool_sep｜><steptml:invoke name=\"f\">"
     "<steptml:parameter name=\"s",
     0, 0},
    {"minicpm5",
     "a\n<function name=\"f\"><param name=\"n\">3</param><param name=\"s\">x > "
     "y</param></function>",
     2, 2},
    {"minicpm5",
     "<function name=\"f\"><param name=\"n\">3</param><param name=\"s\"><![CDATA[x < y\n]]></param>"
     "</function>",
     2, 2},
    {"minicpm5", "<function name=\"f\"><param name=\"n\">3</param><param name=\"s\">x & y", 0, 0},
    {"minicpm5",
     "<function name=\"g\"><param name=\"z\">1</param></function>\n<function name=\"f\"", 1, 0},
    {"minicpm5", "<function name=\"f\"></function>", 0, 0},
    {"kimi_k3",
     "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"n\" "
     "type=\"number\"<|sep|>3<|close|>argument<|sep|><|open|>argument key=\"s\" type=\"string\""
     "<|sep|>x < y<|close|>argument<|sep|><|close|>call<|sep|><|close|>tools<|sep|>",
     2, 2},
    {"kimi_k3",
     "<|open|>tools<|sep|><|open|>call tool=\"g\" index=\"1\"<|sep|><|open|>argument key=\"z\" "
     "type=\"array\"<|sep|>[1]<|close|>argument<|sep|><|close|>call<|sep|><|open|>call tool=\"f\" "
     "index=\"2\"<|sep|>",
     1, 0},
    {"kimi_k3",
     "<|open|>tools<|sep|><|open|>call tool=\"f\" index=\"1\"<|sep|><|open|>argument key=\"n\" "
     "type=\"string\"",
     0, 0},
    {"mimo",
     "<tool_call>\n<function=f>\n<parameter=n>3</parameter>\n<parameter=s>\nx < y</parameter>\n"
     "</function>\n</tool_call>",
     2, 2},
    {"mimo", "<tool_call>\n<function=f>\n<parameter=n>\n", 0, 0},
    {"functiongemma", "<start_function_call>call:f{n:3,s:<escape>a,}<escape>}<end_function_call>",
     2, 2},
    {"functiongemma", "<start_function_call>call:f{s:", 0, 0},
    {"xlam", "[{\"name\": \"f\", \"arguments\": {\"n\":3}}]", 2, 2},
    {"xlam", "[{\"name\": \"g\", \"arguments\": {}}, {\"name\": \"f\", ", 1, 0},
    {"xlam", "[{\"name\": \"f\", \"arguments\": {\"s\"", 0, 0},
    {"xlam", "text [1", 2, 2},
    {"lfm2", "Hm. <|tool_call_start|>[f(n=3)]<|tool_call_end|> and", 2, 0},
    {"lfm2", "<|tool_call_start|>[f(n=3, s=\"a\\n\"), g(a=True, b=[None])]<|tool_call_end|>", 2, 0},
    {"lfm2", "<|tool_call_start|>[f(s=", 0, 0},
    {"olmo3", "<function_calls>f(n=3)</function_calls>", 2, 2},
    {"olmo3", "<function_calls>\nf(n=3)\ng()\n</function_calls>", 2, 0},
    {"olmo3", "<function_calls>f(s=", 0, 0},
    {"kimi_k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>"
     "{\"n\":3}<|tool_call_end|><|tool_calls_section_end|>",
     2, 2},
    {"kimi_k2",
     "<|tool_calls_section_begin|><|tool_call_begin|>functions.g:0<|tool_call_argument_begin|>"
     "{}<|tool_call_end|><|tool_call_begin|>functions.f:12<|tool_call_argument_begin|>{\"n\"",
     1, 0},
    {"kimi_k2", "<|tool_calls_section_begin|><|tool_call_begin|>functions.h", 0, 0},
    {"hy_v3",
     "a <tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
     "<arg_key:opensource>n</arg_key:opensource>\n<arg_value:opensource>3"
     "</arg_value:opensource>\n<arg_key:opensource>s</arg_key:opensource>\n"
     "<arg_value:opensource>x</arg_value:opensource>\n</tool_call:opensource>\n"
     "</tool_calls:opensource>",
     2, 2},
    {"hy_v3",
     "<tool_calls><tool_call>f<tool_sep><arg_key>n</arg_key><arg_value>3</arg_value></tool_call>"
     "</tool_calls>",
     2, 2},
    {"hy_v3", "<tool_calls><tool_call>f<tool_sep><arg_key>s", 0, 0},
    {"hy_v3", "<tool_calls:opensource><tool_call:opensource>h", 0, 0},
    {"minimax_m2",
     "a <minimax:tool_call>\n<invoke name=\"f\">\n<parameter name=\"n\">3</parameter>\n"
     "<parameter name=\"s\">x < y</parameter>\n</invoke>\n</minimax:tool_call>",
     2, 2},
    {"minimax_m2",
     "<minimax:tool_call>\n<invoke name=\"g\">\n<parameter name=\"z\">[1]</parameter>\n</invoke>\n"
     "<invoke name=\"f\">\n<parameter name=\"n\"",
     1, 0},
    {"minimax_m2", "<minimax:tool_call>\n<invoke name=\"f\">\n</invoke>", 0, 0},
    {"minimax_m2", "<minimax:tool_call>\n<invoke name=\"h", 0, 0},
    {"dots",
     "<dots_function_call>\n<invoke name=\"f\">\n<parameter name=\"n\">3</parameter>\n"
     "<parameter name=\"s\">x</parameter>\n</invoke>\n</dots_function_call>",
     2, 2},
    {"dots", "<dots_function_call>\n<invoke name=\"h", 0, 0},
    {"deepseek_v32",
     "a\n\n<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
     "<｜DSML｜parameter name=\"n\" string=\"false\">3</｜DSML｜parameter>\n"
     "<｜DSML｜parameter name=\"s\" string=\"true\">x < y</｜DSML｜parameter>\n"
     "</｜DSML｜invoke>\n</｜DSML｜function_calls>",
     2, 2},
    {"deepseek_v32",
     "<｜DSML｜tool_calls>\n<｜DSML｜invoke name=\"g\">\n"
     "<｜DSML｜parameter name=\"z\" string=\"false\">[1]</｜DSML｜parameter>\n</｜DSML｜invoke>\n"
     "<｜DSML｜invoke name=\"f\">\n<｜DSML｜parameter name=\"n\" string=\"false\"",
     1, 0},
    {"deepseek_v32",
     "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"f\">\n"
     "<｜DSML｜parameter name=\"n\" string=\"true\"",
     0, 0},
    {"deepseek_v32", "<｜DSML｜function_calls>\n<｜DSML｜invoke name=\"h", 0, 0},
    {"mistral", "so [TOOL] [TOOL_CALLS]f{\"n\": 3}", 2, 2},
    {"mistral", "[TOOL_CALLS]f[ARGS]{\"n\": 3} text", 2, 0},
    {"mistral", "[TOOL_CALLS]f[ARGS]{\"m\"", 0, 0},
    {"mistral", "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"n\":3}}]", 2, 2},
    {"mistral", "[TOOL_CALLS][{\"name\": \"g\", \"arguments\": {}}, {\"name\": \"f\", ", 1, 0},
    {"mistral", "[TOOL_CALLS]h", 0, 0},
    {"qwen3_coder",
     "<tool_call>\n<function=f>\n<parameter=n>\n3\n</parameter>\n<parameter=s>\nx < y\n"
     "</parameter>\n</function>\n</tool_call>",
     2, 2},
    {"qwen3_coder", "<tool_call>\n<function=f>\n</function>", 0, 0},
    {"qwen3_coder", "<tool_call>\n<function=f>\n<parameter=n>\nx", 0, 0},
    {"qwen3_coder", "<tool_call>\n<function=g>\n<parameter=q>\nx\n</parameter>\n</function>\n", 1,
     1},
    {"llama3_json", "text with {\"name\": 1}", 2, 2},
    {"llama3_json", " \n{\"name\": \"f\", \"parameters\": {\"n\": 1}}", 2, 2},
    {"llama3_json", "{\"name\": \"f\", \"parameters\": {\"n\": \"", 0, 0},
    {"llama3_json", "{\"x", 0, 0},
    {"llama3_json", "<|python_tag|>{\"name\": \"g\", \"parameters\": {\"a\": 1}}; {\"name\"", 1, 0},
    {"llama3_json", "<|python_tag|>x", 0, 0},
    {"llama3_json", "<|python text", 2, 2},
    {"pythonic", "text [f(n=", 2, 2},
    {"pythonic", "[f(n=3, s=\"a\\n\"), g(a=True, b=[None])]", 2, 0},
    {"pythonic", "[f(n=3)]", 2, 2},
    {"pythonic", "[f(s=", 0, 0},
    {"pythonic", "[f(n=3, s=\"\\u", 0, 0},
    {"pythonic", "[g()]", 2, 2},
    {"pythonic", "[h(", 0, 0},
};

static void test_texts(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        for (int one = 0; one < 2; one++) {
            struct grammar *g = compile(cases[i].style, one);
            int got = words_fit(g, cases[i].text), want = one ? cases[i].one : cases[i].fits;
            if (got != want)
                fail_msg("%s, one %d: %s: %d", cases[i].style, one, cases[i].text, got);
            grammar_unref(g);
        }
    }
}

static bool allowed(const uint32_t *bits, int32_t token)
{
    return bits[token / 32] >> (token % 32) & 1;
}

/* Special tokens in free text and as marks; not inside of a call. */
static void test_specials(void **state)
{
    struct grammar *g = compile("hermes", false);
    struct matcher m;
    uint32_t bits[MASK_WORDS];
    int32_t token[64] = {OTHER, 'x', MARK};

    (void)state;
    matcher_init(&m, g);
    assert_true(matcher_follow(&m, token, sizeof(*token), 2));
    assert_int_equal(matcher_mask(&m, false, MATCHER_MANY, bits), VOCAB);
    assert_true(matcher_follow(&m, token, sizeof(*token), 3));
    assert_true(matcher_mask(&m, false, MATCHER_MANY, bits) < 8);
    assert_true(!allowed(bits, OTHER) && !allowed(bits, MARK) && !allowed(bits, WORDS_END));
    const char *text = "{\"name\": \"g\", \"arguments\": {\"";
    for (size_t i = 0; i < strlen(text); i++)
        token[3 + i] = (unsigned char)text[i];
    assert_true(matcher_follow(&m, token, sizeof(*token), 3 + (uint32_t)strlen(text)));
    (void)matcher_mask(&m, false, MATCHER_MANY, bits);
    assert_true(allowed(bits, 'x') && !allowed(bits, OTHER) && !allowed(bits, WORDS_END));
    grammar_unref(g);
    /* other forms never have them */
    assert_int_equal(grammar_compile(GRAMMAR_REGEX, ".*", 2, lexicon, NULL, &g, NULL), 0);
    matcher_init(&m, g);
    assert_true(matcher_follow(&m, token, sizeof(*token), 0));
    (void)matcher_mask(&m, false, MATCHER_MANY, bits);
    assert_true(!allowed(bits, OTHER) && !allowed(bits, MARK));
    grammar_unref(g);
}

/* Calls or a form: the mark of a call may be a special token, no other one comes. */
static void test_either(void **state)
{
    static const char text[] = "{\"style\":\"hermes\",\"one\":false,\"most\":2," TOOLS
                               ",\"form\":{\"kind\":0,\"text\":\"\"}}";
    struct grammar *g = NULL;
    struct matcher m;
    uint32_t bits[MASK_WORDS];

    (void)state;
    assert_int_equal(grammar_compile(GRAMMAR_EITHER, text, strlen(text), lexicon, NULL, &g, NULL),
                     0);
    matcher_init(&m, g);
    assert_true(matcher_follow(&m, NULL, sizeof(int32_t), 0));
    assert_true(matcher_mask(&m, false, MATCHER_MANY, bits) > 0);
    assert_true(allowed(bits, MARK) && allowed(bits, '{') && allowed(bits, '<'));
    assert_true(!allowed(bits, OTHER) && !allowed(bits, 'x') && !allowed(bits, WORDS_END));
    assert_int_equal(words_fit(g, "{\"a\": 1}"), 2);
    assert_int_equal(
        words_fit(g, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":3}}</tool_call>"), 2);
    assert_int_equal(words_fit(g, "<tool_call>{\"name\": \"f\", \"arguments\": {\"n\":0"), 0);
    assert_int_equal(words_fit(g, "<tool_call>{\"name\": \"g\", \"arguments\": {}}</tool_call>{"),
                     0);
    grammar_unref(g);
    struct ek_fault f = {0};
    assert_int_equal(grammar_compile(GRAMMAR_EITHER, "{}", 2, lexicon, NULL, &g, &f), -EBADMSG);
}

/* Free text needs no end; a call is begun only where it fits, and then completed. */
static void test_room(void **state)
{
    struct grammar *g = compile("hermes", false);
    struct matcher m;
    uint32_t bits[MASK_WORDS];
    int32_t token[200] = {MARK};

    (void)state;
    matcher_init(&m, g);
    assert_true(matcher_follow(&m, token, sizeof(*token), 0));
    assert_int_equal(matcher_left(&m), 0);
    assert_int_equal(matcher_mask(&m, false, 1, bits), VOCAB - 1);
    assert_true(!allowed(bits, MARK) && allowed(bits, 'x') && allowed(bits, WORDS_END));
    assert_int_equal(matcher_mask(&m, false, 20, bits), VOCAB - 1);
    assert_int_equal(matcher_mask(&m, false, 150, bits), VOCAB);
    assert_true(matcher_follow(&m, token, sizeof(*token), 1));
    uint32_t room = matcher_left(&m), n = 1;
    assert_true(room > 20 && room < 120);
    for (; n <= room; n++) {
        assert_true(matcher_follow(&m, token, sizeof(*token), n));
        assert_true(matcher_mask(&m, false, room + 1 - n, bits) > 0);
        for (token[n] = 0; !allowed(bits, token[n]);)
            token[n]++;
    }
    assert_true(matcher_follow(&m, token, sizeof(*token), n));
    assert_true(matcher_complete(&m));
    grammar_unref(g);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_texts),
        cmocka_unit_test(test_specials),
        cmocka_unit_test(test_either),
        cmocka_unit_test(test_room),
    };
    return cmocka_run_group_tests(tests, setup, words_teardown);
}
