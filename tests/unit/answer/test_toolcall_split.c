/* Tool calls in text: any split of any text gives the same, and so does any failure of memory. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/text/answer/reasoning.h"
#include "server/text/answer/toolcall.h"
#include "tests/unit/alloc.h"
#include "tests/unit/answer/calls.h"

static uint64_t draw(uint64_t *seed)
{
    *seed ^= *seed << 13;
    *seed ^= *seed >> 7;
    *seed ^= *seed << 17;
    return *seed;
}

/* Pieces of which texts are made that come near to calls of every style. */
static const char *const pieces[] = {"<tool_call>",
                                     "</tool_call>",
                                     "[TOOL_CALLS]",
                                     "[CALL_ID]",
                                     "[ARGS]",
                                     "<|python_tag|>",
                                     "<|python_start|>",
                                     "<function=f>",
                                     "<function=",
                                     "</function>",
                                     "<parameter=n>",
                                     "<parameter=",
                                     "</parameter>",
                                     "<think>",
                                     "</think>",
                                     "{\"name\": \"f\", \"arguments\": ",
                                     "{\"parameters\":{\"a\":[1]},\"name\":\"g\"}",
                                     "{\"a\": \"}\\\"\"}",
                                     "{}",
                                     "{",
                                     "}",
                                     "[",
                                     "]",
                                     "(",
                                     ")",
                                     "f(x=1)",
                                     "g(y='it\\'s', z=[True])",
                                     "[f(x=1), g()]",
                                     ", ",
                                     ";",
                                     ",",
                                     " ",
                                     "\n",
                                     "\n\n",
                                     "\t",
                                     "\"",
                                     "'",
                                     "\\",
                                     "12",
                                     "null",
                                     "true",
                                     "caf\xc3\xa9",
                                     "name",
                                     "text",
                                     "<arg_key>",
                                     "</arg_key>",
                                     "<arg_value>",
                                     "</arg_value>",
                                     "<tool_calls>",
                                     "</tool_calls>",
                                     "<answer>",
                                     "</answer>",
                                     "<response>",
                                     "</response>",
                                     "<|channel>",
                                     "<channel|>",
                                     "thought\n",
                                     "<|tool_call>",
                                     "<tool_call|>",
                                     "<|\"|>",
                                     "call:f{",
                                     ":",
                                     "<seed:think>",
                                     "</seed:think>",
                                     "<",
                                     "</",
                                     "<t",
                                     "a"};
#define PIECES (sizeof(pieces) / sizeof(pieces[0]))

/* Whole calls, of which some are damaged by a cut or by what follows. */
static const char *const whole_calls[][3] = {
    [TOOLS_HERMES] = {CALL("{\"a\": [\"}\"]}"), CALL("{}") "\n" CALL("{}"),
                      "<tool_call>{\"arguments\": {\"a\": 1}, \"name\": \"g\"}</tool_call>"},
    [TOOLS_LLAMA3_JSON] =
        {"{\"name\": \"f\", \"parameters\": {\"a\": {}}}",
         "<|python_tag|>{\"name\":\"f\",\"arguments\":{}}",
         "{\"parameters\":{},\"name\":\"g\"}; {\"name\":\"f\",\"parameters\":{}}"},
    [TOOLS_MISTRAL] = {"[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}}]",
                       "[TOOL_CALLS]f{\"a\": 1}[TOOL_CALLS]g{}",
                       "[TOOL_CALLS]f[CALL_ID]a1b2[ARGS]{\"a\":1}"},
    [TOOLS_QWEN3_CODER] =
        {"<tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n</function>\n"
         "</tool_call>",
         "<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
         "<tool_call><function=g><parameter=x>a</parameter><parameter=y>b"},
    [TOOLS_PYTHONIC] = {"[f(x=1, y='it\\'s', z=[True, None]), g()]", "<|python_start|>[g()]",
                        "[f(d={'k': (1, 2,)})]"},
    [TOOLS_SEED_OSS] = {"<seed:tool_call>\n<function=f>\n<parameter=s>1</parameter>\n</function>\n"
                        "</seed:tool_call>",
                        "<function=f>\n<parameter=n>1</parameter></function></seed:tool_call>",
                        "<seed:tool_call><function=g><parameter=x>a</parameter><parameter=y>b"},
    [TOOLS_GLM45] = {"<tool_call>f\n<arg_key>n</arg_key>\n<arg_value>1</arg_value>\n</tool_call>",
                     "<tool_call>f<arg_key>s</arg_key><arg_value>1</arg_value></tool_call>"
                     "<tool_call>g</tool_call>",
                     "<tool_call>g<arg_key>x</arg_key><arg_value>a</arg_value><arg_key>y"},
    [TOOLS_ERNIE45] = {CALL("{\"a\": [\"}\"]}"), "\n\n" CALL("{}") "\n" CALL("{}") "\n",
                       CALL("{}")},
    [TOOLS_KIMI_K2] = {KIMI_BEGIN KIMI_CALL "functions.f:0" KIMI_ARGS
                                            "{\"a\": [1]}" KIMI_CALL_END KIMI_END,
                       KIMI_BEGIN KIMI_CALL "functions.f:0" KIMI_ARGS "{}" KIMI_CALL_END
                                            "\n" KIMI_CALL "g:1" KIMI_ARGS
                                            "{\"b\": 2}" KIMI_CALL_END KIMI_END,
                       KIMI_BEGIN KIMI_CALL "functions.f:0" KIMI_ARGS "{\"a\": \"x"},
    [TOOLS_MINIMAX_M2] =
        {MINIMAX
         "\n<invoke name=\"f\">\n<parameter name=\"n\">1</parameter>\n</invoke>\n" MINIMAX_END,
         MINIMAX "<invoke name=\"f\"></invoke>\n<invoke name='g'><parameter name=x>a</parameter>"
                 "</invoke>" MINIMAX_END,
         MINIMAX "<invoke name=\"g\"><parameter name=\"x\">a</parameter><parameter name=\"y\">b"},
    [TOOLS_DOTS] = {"<dots_function_call><invoke name=\"f\"><parameter name=\"n\">1</parameter>"
                    "</invoke></dots_function_call>",
                    "<dots_function_call>\n<invoke name=\"f\">\n</invoke>\n<invoke name=\"g\">"
                    "</invoke>\n</dots_function_call>",
                    "<dots_function_call><invoke name=\"f\"><parameter name=\"n\">a"},
    [TOOLS_DEEPSEEK_V32] =
        {DSML("function_calls") "\n" DSML("invoke name=\"f\"") "\n" DSML(
             "parameter name=\"n\" "
             "string=\"false\"") "1" DSML_("parameter") "\n" DSML_("invoke") "\n" DSML_("function_"
                                                                                        "calls"),
         DSML("tool_calls") DSML("invoke name=\"f\"") DSML_("invoke") "\n" DSML("invoke name=\"g\"")
             DSML("parameter name=\"x\" string=\"true\"") "a" DSML_("parameter") DSML_("invoke")
                 DSML_("tool_calls"),
         DSML("function_calls") DSML("invoke name=\"f\"")
             DSML("parameter name=\"x\" string=\"true\"") "b"},
    [TOOLS_GRANITE] = {"<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}]",
                       "<tool_call> [{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", "
                       "\"arguments\": {\"a\": 1}}]",
                       "<tool_call>[{\"name\": \"g\", \"arguments\": {"},
    [TOOLS_PHI4_MINI] = {"functools[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}]",
                         "functools[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", "
                         "\"arguments\": {\"a\": 1}}]",
                         "functools [{\"name\": \"f\", \"arguments\": {}}]"},
    [TOOLS_NEMOTRON] = {"<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}]</TOOLCALL>",
                        "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", "
                        "\"arguments\": {\"a\": 1}}]</TOOLCALL>",
                        "<TOOLCALL>\n[{\"name\": \"g\", \"arguments\": {}}]\n</TOOLCALL>"},
    [TOOLS_LONGCAT] =
        {"<longcat_tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
         "</longcat_tool_call>",
         "<longcat_tool_call>{\"name\": \"f\", \"arguments\": {}}</longcat_tool_call>\n"
         "<longcat_tool_call>{\"arguments\": {}, \"name\": \"g\"}",
         "<longcat_tool_call>{\"name\": \"g\", \"arguments\": {"},
    [TOOLS_INTERNLM] = {"<|action_start|><|plugin|>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}"
                        "<|action_end|>",
                        "<|action_start|><|plugin|>{\"name\": \"f\", \"parameters\": {}}"
                        "<|action_end|><|action_start|><|plugin|>{\"name\": \"g\", "
                        "\"arguments\": {}}<|action_end|>",
                        "<|action_start|><|plugin|>{\"name\": \"g\", \"arguments\": {"},
    [TOOLS_GRANITE_20B] = {"<function_call> {\"name\": \"f\", \"arguments\": {\"a\": 1}}",
                           "<function_call> {\"name\": \"f\", \"arguments\": {}}\n"
                           "<function_call> {\"name\": \"g\", \"arguments\": {}}\n",
                           "<function_call>{\"name\": \"g\", \"arguments\": {"},
    [TOOLS_GIGACHAT3] = {"<|function_call|>{\"name\": \"f\", \"arguments\": {\"a\": 1}}"
                         "<|message_sep|>\n\n",
                         "<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", "
                         "\"arguments\": {}}<|message_sep|>",
                         "<|message_sep|>\n\nfunction call<|role_sep|>{\"name\": \"g\", "
                         "\"arguments\": {"},
    [TOOLS_COHERE] = {"<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", "
                      "\"parameters\": {\"a\": 1}}\n]<|END_ACTION|>",
                      "<|START_ACTION|>[{\"tool_name\": \"f\", \"parameters\": {}}, "
                      "{\"parameters\": {}, \"tool_name\": \"g\"}]<|END_ACTION|>",
                      "<|START_ACTION|>[{\"tool_name\": \"g\", \"parameters\": {"},
    [TOOLS_APERTUS] = {"<|tools_prefix|>[{\"f\": {\"a\": [1]}}]<|tools_suffix|>",
                       "<|tools_prefix|>[{\"f\": {}}, {\"g\": {\"a\": 1}}]<|tools_suffix|>",
                       "<|tools_prefix|>[{\"g\": {"},
    [TOOLS_DEEPSEEK_V41] =
        {DSML(" calls") "\n" DSML(" invoke name=\"f\"") "\n" DSML(
             " parameter name=\"n\" "
             "string=\"false\"") "1" DSML_(" parameter") "\n" DSML_(" invoke") "\n" DSML_(" calls"),
         DSML(" calls") DSML(" invoke name=\"f\"") DSML_(" invoke") DSML(" invoke name=\"g\"")
             DSML_(" invoke") DSML_(" calls"),
         DSML(" calls") DSML(" invoke name=\"g\"")
             DSML(" parameter name=\"x\" string=\"true\"") "a"},
    [TOOLS_STEP3] = {STEP_BEGIN STEP_CALL("f", "n", "1") STEP_END,
                     STEP_BEGIN "\n" STEP_CALL("f", "s", "a") "\n" STEP_CALL("g", "x", "1")
                         STEP_END,
                     STEP_BEGIN STEP "<steptml:invoke name=\"g\"><steptml:parameter name=\"x\">a"},
    [TOOLS_MINICPM5] = {"<function name=\"f\"><param name=\"n\">1</param></function>",
                        "<function name=\"f\"><param name=\"s\"><![CDATA[a </param> b\n]]></param>"
                        "</function>\n<function name=\"g\"></function>",
                        "<function name=\"g\"><param name=\"x\"><![CDATA[a</param>"},
    [TOOLS_KIMI_K3] = {K3_BEGIN K3_CALL("f", "1") K3_ARG("n", "number", "1") K3_CALL_END K3_END,
                       K3_BEGIN K3_CALL("f", "1") K3_CALL_END K3_CALL("g", "2")
                           K3_ARG("x", "string", "1") K3_CALL_END K3_END "<|close|>message<|sep|>",
                       K3_BEGIN K3_CALL("g",
                                        "1") "<|open|>argument key=\"x\" type=\"string\"<|sep|>a"},
    [TOOLS_MIMO] = {"<tool_call>\n<function=f>\n<parameter=s>\n1\n</parameter>\n</function>\n"
                    "</tool_call>",
                    "<function=f>\n<parameter=n>1</parameter>\n</function>\n</tool_call>",
                    "<tool_call><function=g><parameter=x>a</parameter><parameter=y>b"},
    [TOOLS_FUNCTIONGEMMA] =
        {"<start_function_call>call:f{n:1,s:<escape>a}b,<escape>,o:{x:[true]}}<end_function_call>",
         "<start_function_call>call:f{}<end_function_call><start_function_call>call:g{s:<escape>2"
         "<escape>}<end_function_call>",
         "<start_function_call>call:g{l:[<escape>a<escape>, 2.5],s:<escape>b<esc"},
    [TOOLS_XLAM] = {"[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}]",
                    "[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", \"arguments\": "
                    "{\"a\": 1}}]",
                    " [{\"arguments\": {}, \"name\": \"g\"}]\n"},
    [TOOLS_LFM2] = {"<|tool_call_start|>[f(x=1, y='it\\'s'), g()]<|tool_call_end|>",
                    "<|tool_call_start|>[g()]<|tool_call_end|>",
                    "<|tool_call_start|>[f(d={'k': (1, 2,)})]"},
    [TOOLS_OLMO3] = {"<function_calls>f(x=1, y=\"it's\")\ng()</function_calls>",
                     "<function_calls>\ng()\n</function_calls>",
                     "<function_calls>f(d={'k': [null, true]})\n"},
    [TOOLS_HUNYUAN] = {"<tool_calls>[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}]</tool_calls>",
                       "<tool_calls>[{\"name\": \"f\", \"arguments\": {}}, {\"name\": \"g\", "
                       "\"arguments\": {\"a\": 1}}]</tool_calls>",
                       "<tool_calls>\n[{\"name\": \"g\", \"arguments\": {}}]\n</tool_calls>"},
    [TOOLS_HY_V3] = {"<tool_calls><tool_call>f<tool_sep><arg_key>a</arg_key><arg_value>[1]"
                     "</arg_value></tool_call></tool_calls>",
                     "<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
                     "</tool_call:opensource>\n<tool_call:opensource>g<tool_sep:opensource>\n"
                     "<arg_key:opensource>a</arg_key:opensource>\n<arg_value:opensource>1"
                     "</arg_value:opensource>\n</tool_call:opensource>\n</tool_calls:opensource>",
                     "<tool_calls>\n<tool_call>g<tool_sep><arg_key>a</arg_key>"},
    [TOOLS_DEEPSEEK_V3] = {CALLS_BEGIN CALL_BEGIN "function" SEP
                                                  "f\n```json\n{\"a\": 1}\n```" CALL_END CALLS_END,
                           CALLS_BEGIN CALL_BEGIN
                           "function" SEP "f\n```json\n{}\n```" CALL_END "\n" CALL_BEGIN
                           "function" SEP "g\n```json\n{\"b\": [2]}\n```" CALL_END CALLS_END,
                           CALLS_BEGIN CALL_BEGIN "function" SEP "f\n```json\n{\"a\": \"```"},
    [TOOLS_DEEPSEEK_V31] = {CALLS_BEGIN CALL_BEGIN "f" SEP "{\"a\": 1}" CALL_END CALLS_END,
                            CALLS_BEGIN CALL_BEGIN "f" SEP "{}" CALL_END CALL_BEGIN "g" SEP
                                                   "{\"b\": 2}" CALL_END CALLS_END,
                            CALLS_BEGIN CALL_BEGIN "g" SEP "{}" CALL_END},
    [TOOLS_GEMMA4] = {"<|tool_call>call:f{n:1,s:<|\"|>a}b,<|\"|>,o:{x:[true,None]}}<tool_call|>",
                      "<|tool_call>call:f{}<tool_call|><|tool_call>call:g{s:2}<tool_call|>",
                      "<|tool_call>call:g{l:[<|\"|>a<|\"|>, 2.5],o:{<|\"|>k<|\"|>:<|\"|>v"},
};

static void check_memory(enum toolstyle style, const json_t *tools, const char *in)
{
    struct ek_buf want = {0};
    for (long n = 0;; n++) {
        struct toolcalls t = {.style = style, .tools = tools};
        struct ek_buf out = {0};
        alloc_fail_at(n);
        int r = toolcalls_push(&t, in, strlen(in), &out);
        if (r == 0)
            r = toolcalls_end(&t, &out);
        bool hit = alloc_failed();
        alloc_fail_at(0);
        if (n == 0) {
            show(&t, &want);
            assert_true(want.len > 0);
        }
        assert_true(r == 0 || (hit && r == -ENOMEM));
        if (r == 0 && !hit) {
            ek_buf_clear(&out);
            show(&t, &out);
            assert_string_equal(out.data, want.data);
        }
        toolcalls_done(&t);
        ek_buf_done(&out);
        if (n > 0 && !hit)
            break;
    }
    ek_buf_done(&want);
}

static void test_out_of_memory(void **state)
{
    json_t *tools = json_loads(TOOLS, 0, NULL);
    (void)state;
    check_memory(TOOLS_HERMES, tools, "a " CALL("{\"n\":1}") CALL("{}") CALL("{}"));
    for (int style = TOOLS_HERMES; style < TOOLS_OPENAI; style++) {
        for (int i = 0; i < 3; i++)
            check_memory((enum toolstyle)style, tools, whole_calls[style][i]);
    }
    json_decref(tools);
}

static void make_text(uint64_t *seed, enum toolstyle style, char *text, size_t size)
{
    size_t len = 0, count = draw(seed) % 14;
    uint64_t near = draw(seed) % 4;
    text[0] = '\0';
    for (size_t i = 0; i < count; i++) {
        const char *piece =
            i == near ? whole_calls[style][draw(seed) % 3] : pieces[draw(seed) % PIECES];
        size_t n = strlen(piece), cut = draw(seed) % 8 == 0 ? draw(seed) % (n + 1) : n;
        if (len + cut + 1 >= size)
            return;
        memcpy(text + len, piece, cut);
        len += cut;
        text[len] = '\0';
    }
}

/* "thought|text|name:args..." of the text cut at random places; seed 0 = not cut. What is passed on
 * is never taken back, so nothing is looked at before the end. */
static void sift(enum toolstyle style, enum thinkstyle think, const json_t *tools, const char *in,
                 uint64_t seed, struct ek_buf *out)
{
    struct toolcalls t = {.style = style, .tools = tools};
    struct reasoning r;
    struct ek_buf thought = {0}, rest = {0}, text = {0};
    size_t len = strlen(in);
    reasoning_begin(&r, think, "", 0);
    for (size_t at = 0, n; at < len; at += n) {
        n = seed ? 1 + draw(&seed) % (draw(&seed) % 4 ? 3 : 12) : len;
        n = n < len - at ? n : len - at;
        assert_int_equal(reasoning_push(&r, in + at, n, &thought, &rest), 0);
        assert_int_equal(toolcalls_push(&t, rest.data ? rest.data : "", rest.len, &text), 0);
        ek_buf_clear(&rest);
    }
    assert_int_equal(reasoning_end(&r, &thought, &rest), 0);
    assert_int_equal(toolcalls_push(&t, rest.data ? rest.data : "", rest.len, &text), 0);
    assert_int_equal(toolcalls_end(&t, &text), 0);
    ek_buf_clear(out);
    (void)ek_buf_add(out, thought.data ? thought.data : "", thought.len);
    (void)ek_buf_puts(out, "|");
    (void)ek_buf_add(out, text.data ? text.data : "", text.len);
    show(&t, out);
    reasoning_done(&r);
    toolcalls_done(&t);
    ek_buf_done(&thought);
    ek_buf_done(&rest);
    ek_buf_done(&text);
}

static void test_any_split(void **state)
{
    static const enum thinkstyle thinks[] = {
        THINK_NONE,    THINK_TAGS,       THINK_ALWAYS, THINK_QWEN3,   THINK_ERNIE45,
        THINK_HUNYUAN, THINK_SEED_OSS,   THINK_GEMMA4, THINK_MISTRAL, THINK_GRANITE,
        THINK_KIMI_K2, THINK_MINIMAX_M2, THINK_COHERE, THINK_KIMI_K3};
    json_t *tools = json_loads(TOOLS, 0, NULL);
    struct ek_buf whole = {0}, cut = {0};
    uint64_t seed = 0x9e3779b97f4a7c15u;
    unsigned calls = 0, thoughts_seen = 0;
    (void)state;
    for (unsigned i = 0; i < 30000; i++) {
        enum toolstyle style =
            (enum toolstyle)(TOOLS_HERMES + (int)(i % (TOOLS_OPENAI - TOOLS_HERMES)));
        enum thinkstyle think = thinks[draw(&seed) % (sizeof(thinks) / sizeof(thinks[0]))];
        char in[512];
        make_text(&seed, style, in, sizeof(in));
        sift(style, think, tools, in, 0, &whole);
        for (int k = 0; k < 4; k++) {
            sift(style, think, tools, in, draw(&seed) | 1, &cut);
            if (whole.len != cut.len || memcmp(whole.data, cut.data, whole.len) != 0)
                fail_msg("%s, thinking %d: '%s'\nwhole: %s\ncut:   %s", toolstyle_name(style),
                         (int)think, in, whole.data, cut.data);
        }
        calls += strstr(whole.data, "|f:") || strstr(whole.data, "|g:");
        thoughts_seen += whole.data[0] != '|';
    }
    assert_true(calls > 500 && thoughts_seen > 2000); /* the texts are not all too far off */
    json_decref(tools);
    ek_buf_done(&whole);
    ek_buf_done(&cut);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_any_split),
        cmocka_unit_test(test_out_of_memory),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
