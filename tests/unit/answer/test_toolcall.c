/* Tool calls in text: every case whole and cut at every byte. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "server/text/answer/reasoning.h"
#include "server/text/answer/toolcall.h"
#include "tests/unit/answer/calls.h"

/* `want` is the text, then "|name:args" for each call. */
static const struct {
    const char *in, *want;
} cases[] = {
    {"", ""},
    {"no call", "no call"},
    {"  \n", "  \n"},
    {"a < b <tool_ cal", "a < b <tool_ cal"},
    {"ends with <tool_call", "ends with <tool_call"},
    {CALL("{\"city\": \"Sofia\"}"), "|f:{\"city\": \"Sofia\"}"},
    {"\n" CALL("{}") "\n", "|f:{}"},
    {"Look:\n" CALL("{}"), "Look:\n|f:{}"},
    {CALL("{\"n\":1}") "\n" CALL("{\"n\":2}"), "|f:{\"n\":1}|f:{\"n\":2}"},
    {CALL("{}") " and " CALL("{}") " end", " and  end|f:{}|f:{}"},
    {"<tool_call>{\"arguments\":{\"a\":[{\"b\":\"}\\\"]\"}]} ,\"name\":\"g\"}</tool_call>",
     "|g:{\"a\":[{\"b\":\"}\\\"]\"}]}"},
    /* numbers stay as they were written */
    {CALL("{\"x\": 0.1, \"y\": 123456789012345678901}"),
     "|f:{\"x\": 0.1, \"y\": 123456789012345678901}"},
    /* only the end marker is missing */
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}}", "|f:{}"},
    {"<tool_call>{\"name\":\"f\",\"arguments\":{}}</tool_", "|f:{}"},
    /* cut off in the middle of its arguments: as far as they came */
    {"<tool_call>{\"name\":\"f\",\"arguments\":{\"a\":\"b", "|f:{\"a\":\"b"},
    /* not calls: they stay text */
    {"<tool_call>{\"name\":\"f\",\"argum", "<tool_call>{\"name\":\"f\",\"argum"},
    {"<tool_call>", "<tool_call>"},
    {"<tool_call></tool_call>", "<tool_call></tool_call>"},
    {CALL("[1]"), CALL("[1]")},
    {CALL("\"{}\""), CALL("\"{}\"")},
    {"<tool_call>{\"arguments\":{}}</tool_call>", "<tool_call>{\"arguments\":{}}</tool_call>"},
    {"<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"name\":\"\",\"arguments\":{}}</tool_call>"},
    {"<tool_call>{\"name\":\"a\\u0000b\",\"arguments\":{}}</tool_call>",
     "<tool_call>{\"name\":\"a\\u0000b\",\"arguments\":{}}</tool_call>"},
    {"<tool_call>oh</tool_call>" CALL("{}"), "<tool_call>oh</tool_call>|f:{}"},
};

static const struct {
    enum toolstyle style;
    const char *in, *want;
} styles[] = {
    {TOOLS_GRANITE,
     "<|tool_call|>[{\"name\": \"f\", \"arguments\": {\"a\": [1]}}, {\"name\": \"g\", "
     "\"arguments\": {}}]",
     "|f:{\"a\": [1]}|g:{}"},
    {TOOLS_GRANITE, "So:\n<tool_call> [{\"name\":\"f\",\"arguments\":{}}] done", "So:\n done|f:{}"},
    {TOOLS_GRANITE, "<tool_call>no<|tool_call|>[{\"name\":\"f\",\"arguments\":{}}]",
     "<tool_call>no|f:{}"},
    {TOOLS_GRANITE, "a <|tool_c", "a <|tool_c"},
    {TOOLS_GRANITE, "a <tool_c", "a <tool_c"},
    {TOOLS_PHI4_MINI,
     "functools[{\"name\": \"f\", \"arguments\": {\"city\": \"S[o]fia\"}},"
     "{\"arguments\":{},\"name\":\"g\"}]",
     "|f:{\"city\": \"S[o]fia\"}|g:{}"},
    {TOOLS_PHI4_MINI, "Use functools.partial here", "Use functools.partial here"},
    {TOOLS_PHI4_MINI, "functools[{\"name\":\"f\",\"parameters\":{\"a\":1}}]", "|f:{\"a\":1}"},
    {TOOLS_NEMOTRON,
     "<TOOLCALL>[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
     "\"arguments\": {}}]</TOOLCALL>",
     "|f:{\"a\": 1}|g:{}"},
    {TOOLS_NEMOTRON, "Hm.\n<TOOLCALL>\n[{\"name\":\"f\",\"arguments\":{}}]\n</TOOLCALL>\n",
     "Hm.\n|f:{}"},
    {TOOLS_NEMOTRON, "<TOOLCALL>[{\"name\":\"f\",\"arguments\":{\"a\":\"b", "|f:{\"a\":\"b"},
    {TOOLS_LONGCAT,
     "So:\n<longcat_tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}\n"
     "</longcat_tool_call>",
     "So:\n|f:{\"a\": 1}"},
    {TOOLS_LONGCAT, CALL("{}"), CALL("{}")},
    {TOOLS_INTERNLM,
     "I look.<|action_start|><|plugin|>\n{\"name\": \"f\", \"arguments\": {\"a\": 1}}"
     "<|action_end|><|action_start|><|plugin|>\n{\"name\": \"g\", \"parameters\": {}}"
     "<|action_end|>",
     "I look.|f:{\"a\": 1}|g:{}"},
    {TOOLS_INTERNLM, "<|action_start|><|interpreter|>x", "<|action_start|><|interpreter|>x"},
    {TOOLS_GRANITE_20B,
     "<function_call> {\"name\": \"f\", \"arguments\": {\"a\": 1}}\n<function_call> {\"name\": "
     "\"g\", \"arguments\": {}}\n",
     "|f:{\"a\": 1}|g:{}"},
    {TOOLS_GRANITE_20B, "<function_call> x", "<function_call> x"},
    {TOOLS_GIGACHAT3,
     "Text.<|function_call|>{\"name\": \"f\", \"arguments\": {\"a\": 1}}"
     "<|message_sep|>\n\n",
     "Text.|f:{\"a\": 1}"},
    {TOOLS_GIGACHAT3,
     "Text.<|message_sep|>\n\nfunction call<|role_sep|>\n{\"name\": \"f\", \"arguments\": {}}",
     "Text.|f:{}"},
    {TOOLS_GIGACHAT3, "a function call", "a function call"},
    {TOOLS_COHERE,
     "<|START_ACTION|>[\n    {\"tool_call_id\": \"0\", \"tool_name\": \"f\", \"parameters\": "
     "{\"name\": \"}\"}},\n    {\"tool_call_id\": \"1\", \"tool_name\": \"g\", \"parameters\": "
     "{}}\n]<|END_ACTION|>",
     "|f:{\"name\": \"}\"}|g:{}"},
    {TOOLS_COHERE, "<|START_ACTION|>[{\"name\": \"f\", \"parameters\": {}}]",
     "<|START_ACTION|>[{\"name\": \"f\", \"parameters\": {}}]"},
    {TOOLS_APERTUS,
     "I will check. <|tools_prefix|>[{\"f\": {\"city\": \"Paris\"}}, {\"g\": {}}]"
     "<|tools_suffix|>",
     "I will check. |f:{\"city\": \"Paris\"}|g:{}"},
    {TOOLS_APERTUS, "<|tools_prefix|>[{\"a\": 1, \"a \\\"b\\u00e9\": {\"x\": {}}}]",
     "|a \"b\xc3\xa9:{\"x\": {}}"},
    {TOOLS_APERTUS, "<|tools_prefix|>[{\"f\": 1}]", "<|tools_prefix|>[{\"f\": 1}]"},
    {TOOLS_APERTUS, "<|tools_prefix|>[{\"\": {}}]", "<|tools_prefix|>[{\"\": {}}]"},
    {TOOLS_DEEPSEEK_V41,
     "a\n\n" DSML(" calls") "\n" DSML(" invoke name=\"f\"") "\n" DSML(
         " parameter name=\"n\" "
         "string=\"true\"") "12" DSML_(" parameter") "\n" DSML_(" invoke") "\n" DSML_(" calls"),
     "a\n\n|f:{\"n\": \"12\"}"},
    {TOOLS_STEP3,
     "I look.\n" STEP_BEGIN "\n" STEP_CALL("f", "n", "12") "\n" STEP_CALL("g", "x", "a < b")
         STEP_END "\nb",
     "I look.\n\nb|f:{\"n\": 12}|g:{\"x\": \"a < b\"}"},
    {TOOLS_STEP3, STEP_BEGIN "<｜tool_call_begin｜>other<｜tool_sep｜>",
     STEP_BEGIN "<｜tool_call_begin｜>other<｜tool_sep｜>"},
    {TOOLS_MINICPM5,
     "Text.\n<function name=\"f\"><param name=\"n\">3</param><param name=\"b\">True</param>"
     "<param name=\"o\">{'w': [1]}</param></function>\n<function name=\"g\"></function>",
     "Text.\n|f:{\"n\": 3, \"b\": true, \"o\": {\"w\": [1]}}|g:{}"},
    {TOOLS_MINICPM5,
     "<function name=\"f\"><param name=\"s\"><![CDATA[if x < 3:\n  \"</param>\"\n]]></param>"
     "</function>",
     "|f:{\"s\": \"if x < 3:\\n  \\\"</param>\\\"\\n\"}"},
    {TOOLS_MINICPM5, "<function name=\"f\"><param name=\"s\"><![CDATA[a]]>]]></param></function>",
     "|f:{\"s\": \"a]]>\"}"},
    {TOOLS_MINICPM5, "<function name=\"\"></function>", "<function name=\"\"></function>"},
    {TOOLS_MINICPM5, "a <function name", "a <function name"},
    {TOOLS_KIMI_K3,
     "Text." K3_BEGIN K3_CALL("f", "1") K3_ARG("n", "string", "3") K3_ARG("l", "array", "[1]")
         K3_CALL_END K3_CALL("g", "2") K3_CALL_END K3_END "<|close|>message<|sep|>",
     "Text.|f:{\"n\": \"3\", \"l\": [1]}|g:{}"},
    {TOOLS_KIMI_K3, K3_BEGIN K3_CALL("f", "1") "<|open|>argument key=\"s\"<|sep|>a<|close|>b",
     "|f:{\"s\": \"a<|close|>b\"}"},
    {TOOLS_KIMI_K3, K3_BEGIN K3_CALL("", "1"), K3_BEGIN K3_CALL("", "1")},
    {TOOLS_MIMO,
     "<tool_call>\n<function=f>\n<parameter=s>\na\n</parameter>\n<parameter=n>12</parameter>\n"
     "</function>\n</tool_call>",
     "|f:{\"s\": \"\\na\\n\", \"n\": 12}"},
    {TOOLS_FUNCTIONGEMMA,
     "<start_function_call>call:f{s:<escape>a,}<escape>,n:3,l:<escape>['a', 1]<escape>,b:<escape>"
     "True<escape>}<end_function_call>",
     "|f:{\"s\": \"a,}\", \"n\": 3, \"l\": [\"a\", 1], \"b\": true}"},
    {TOOLS_FUNCTIONGEMMA, "<start_function_call>f{}", "<start_function_call>f{}"},
    {TOOLS_XLAM,
     "[{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", "
     "\"arguments\": {}}]",
     "|f:{\"a\": 1}|g:{}"},
    {TOOLS_XLAM, "[]\n", "[]\n"},
    {TOOLS_XLAM, "[[{\"name\": \"f\", \"arguments\": {}}]]",
     "[[{\"name\": \"f\", \"arguments\": {}}]]"},
    {TOOLS_XLAM, "see [{\"name\": \"f\", \"arguments\": {}}]",
     "see [{\"name\": \"f\", \"arguments\": {}}]"},
    {TOOLS_LFM2,
     "<|tool_call_start|>[get(city=\"Paris\", days=3, now=True), g()]<|tool_call_end|>Wait.",
     "Wait.|get:{\"city\": \"Paris\", \"days\": 3, \"now\": true}|g:{}"},
    {TOOLS_LFM2, "I look.<|tool_call_start|>[g(s=\"]<|tool_call_end|>\")]<|tool_call_end|>",
     "I look.|g:{\"s\": \"]<|tool_call_end|>\"}"},
    {TOOLS_LFM2, "<|tool_call_start|>g()<|tool_call_end|>",
     "<|tool_call_start|>g()<|tool_call_end|>"},
    {TOOLS_LFM2, "<|tool_call_start|>[not a call]<|tool_call_end|>[g()]",
     "<|tool_call_start|>[not a call]<|tool_call_end|>[g()]"},
    {TOOLS_OLMO3, "<function_calls>get(city=\"Paris\")\ng(a=null, b=[true])</function_calls>",
     "|get:{\"city\": \"Paris\"}|g:{\"a\": null, \"b\": [true]}"},
    {TOOLS_OLMO3, "So:\n<function_calls>\ng()\n</function_calls>\nend", "So:\n\nend|g:{}"},
    {TOOLS_OLMO3, "<function_calls>\ng(s=\"</function_calls>\")\n</function_",
     "|g:{\"s\": "
     "\"</function_calls>\"}"},
    {TOOLS_OLMO3, "<function_calls></function_calls>", "<function_calls></function_calls>"},
    {TOOLS_OLMO3, "<function_calls>g)</function_calls>", "<function_calls>g)</function_calls>"},
    {TOOLS_OLMO3, "<function_calls>12</function_calls>", "<function_calls>12</function_calls>"},
    {TOOLS_KIMI_K2,
     KIMI_BEGIN KIMI_CALL "functions.get_weather:0" KIMI_ARGS
                          "{\"city\": \"Tokyo\"}" KIMI_CALL_END KIMI_CALL "functions.g:1" KIMI_ARGS
                          "{}" KIMI_CALL_END KIMI_END,
     "|get_weather:{\"city\": \"Tokyo\"}|g:{}"},
    {TOOLS_KIMI_K2, "I look." KIMI_BEGIN "\n" KIMI_CALL " g:0 \n" KIMI_ARGS " {\"a\": \"x",
     "I look.|g:{\"a\": \"x"},
    {TOOLS_KIMI_K2, KIMI_BEGIN KIMI_CALL "f" KIMI_ARGS "{}" KIMI_CALL_END KIMI_END " b", " b|f:{}"},
    {TOOLS_KIMI_K2, KIMI_BEGIN KIMI_CALL "functions.:0" KIMI_ARGS "{}",
     KIMI_BEGIN KIMI_CALL "functions.:0" KIMI_ARGS "{}"},
    {TOOLS_KIMI_K2, KIMI_BEGIN KIMI_CALL "f:0" KIMI_ARGS "[1]" KIMI_CALL_END,
     KIMI_BEGIN KIMI_CALL "f:0" KIMI_ARGS "[1]" KIMI_CALL_END},
    {TOOLS_MINIMAX_M2,
     "I look.\n" MINIMAX
     "\n<invoke name=\"f\">\n<parameter name=\"s\">a\n</parameter>\n<parameter name=\"n\">12"
     "</parameter>\n</invoke>\n<invoke name=\"g\">\n</invoke>\n" MINIMAX_END,
     "I look.\n|f:{\"s\": \"a\\n\", \"n\": 12}|g:{}"},
    {TOOLS_MINIMAX_M2,
     MINIMAX "<invoke name=f><parameter name='s'>x</parameter></invoke>" MINIMAX_END " b",
     " b|f:{\"s\": \"x\"}"},
    {TOOLS_MINIMAX_M2, MINIMAX "<invoke name=\"f\"><parameter name=\"n\">1", "|f:{\"n\": 1}"},
    {TOOLS_MINIMAX_M2, MINIMAX "<invoke name=\"f\"><parameter name=\"n\">7</invoke>" MINIMAX_END,
     "|f:{\"n\": 7}"},
    {TOOLS_MINIMAX_M2, MINIMAX "<invoke name=\"\"></invoke>" MINIMAX_END,
     MINIMAX "<invoke name=\"\"></invoke>" MINIMAX_END},
    {TOOLS_MINIMAX_M2, "a <invoke name=\"f\">", "a <invoke name=\"f\">"},
    {TOOLS_MINIMAX_M2, "a <minimax:tool", "a <minimax:tool"},
    {TOOLS_DOTS,
     "I look.<dots_function_call>\n<invoke name=\"f\">\n<parameter name=\"n\">12</parameter>\n"
     "</invoke>\n</dots_function_call>",
     "I look.|f:{\"n\": 12}"},
    /* what a parameter says of itself counts, and not the tool's schema */
    {TOOLS_DEEPSEEK_V32,
     "I look.\n\n" DSML("function_calls") "\n" DSML("invoke name=\"f\"") "\n" DSML(
         "parameter "
         "name=\"n\" "
         "string="
         "\"true\"") "12" DSML_("parameter") "\n" DSML("parameter "
                                                       "name=\"l\" "
                                                       "string="
                                                       "\"false\"") "["
                                                                    "1, "
                                                                    "{}"
                                                                    "]" DSML_("parameter") "\n" DSML_("invoke") "\n" DSML(
                                                                        "invoke name=\"g\"") "\n" DSML_("invoke") "\n" DSML_("function_calls"),
     "I look.\n\n|f:{\"n\": \"12\", \"l\": [1, {}]}|g:{}"},
    {TOOLS_DEEPSEEK_V32,
     DSML("tool_calls") DSML("invoke name=\"f\"") DSML("parameter name=\"n\"") "7" DSML_(
         "parameter") DSML("parameter name=\"x\" string=\"false\"") "no JSON" DSML_("parameter")
         DSML_("invoke") DSML_("tool_calls") " b",
     " b|f:{\"n\": 7, \"x\": \"no JSON\"}"},
    {TOOLS_DEEPSEEK_V32,
     DSML("function_calls") DSML("invoke name=\"f\"")
         DSML("parameter name=\"s\" string=\"true\"") "a<b",
     "|f:{\"s\": \"a<b\"}"},
    {TOOLS_DEEPSEEK_V32, "a " DSML("invoke name=\"f\""), "a " DSML("invoke name=\"f\"")},
    /* Hy3, then its preview */
    {TOOLS_HY_V3,
     "I look.<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>\n"
     "<arg_key:opensource>s</arg_key:opensource>\n<arg_value:opensource>a\n"
     "</arg_value:opensource>\n<arg_key:opensource>n</arg_key:opensource>\n"
     "<arg_value:opensource>12</arg_value:opensource>\n</tool_call:opensource>\n"
     "<tool_call:opensource>g<tool_sep:opensource>\n</tool_call:opensource>\n"
     "</tool_calls:opensource>",
     "I look.|f:{\"s\": \"a\\n\", \"n\": 12}|g:{}"},
    {TOOLS_HY_V3,
     "<tool_calls><tool_call>f<tool_sep><arg_key>s</arg_key><arg_value>x</arg_value><arg_key>n"
     "</arg_key><arg_value>7</arg_value></tool_call></tool_calls> b",
     " b|f:{\"s\": \"x\", \"n\": 7}"},
    {TOOLS_HY_V3, "<tool_calls>\n<tool_call>g<tool_sep>\n</tool_call>\n</tool_calls>", "|g:{}"},
    {TOOLS_HY_V3, "<tool_calls><tool_call>f<tool_sep><arg_key>n</arg_key><arg_value>7",
     "|f:{\"n\": 7}"},
    {TOOLS_HY_V3, "<tool_calls>[1]</tool_calls>", "<tool_calls>[1]</tool_calls>"},
    {TOOLS_HY_V3, "<tool_calls:opensource><tool_call:opensource><tool_sep:opensource>",
     "<tool_calls:opensource><tool_call:opensource><tool_sep:opensource>"},
    {TOOLS_HY_V3, "a <tool_calls", "a <tool_calls"},
    {TOOLS_LLAMA3_JSON, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "|f:{\"a\": 1}"},
    {TOOLS_LLAMA3_JSON, "<|python_tag|>{\"name\":\"f\",\"arguments\":{}}\n", "|f:{}"},
    {TOOLS_LLAMA3_JSON,
     " {\"name\":\"f\",\"parameters\":{\"a\":\"}\"}}; {\"parameters\":{},\"name\":\"g\"}",
     "|f:{\"a\":\"}\"}|g:{}"},
    {TOOLS_LLAMA3_JSON, "It is {\"name\":\"f\",\"parameters\":{}}",
     "It is {\"name\":\"f\",\"parameters\":{}}"},
    {TOOLS_LLAMA3_JSON, "{\"answer\": 5}", "{\"answer\": 5}"},
    {TOOLS_LLAMA3_JSON, "{not json", "{not json"},
    {TOOLS_LLAMA3_JSON, "<|python", "<|python"},
    {TOOLS_MISTRAL, "[TOOL_CALLS] [{\"name\": \"f\", \"arguments\": {\"a\": [1]}}]",
     "|f:{\"a\": [1]}"},
    {TOOLS_MISTRAL,
     "I call "
     "[TOOL_CALLS][{\"name\":\"f\",\"arguments\":{}},{\"arguments\":{\"b\":2},\"name\":\"g\"}"
     "] end",
     "I call  end|f:{}|g:{\"b\":2}"},
    {TOOLS_MISTRAL, "[TOOL_CALLS]get_it{\"a\": {\"b\": 1}}[TOOL_CALLS]g{}",
     "|get_it:{\"a\": {\"b\": 1}}|g:{}"},
    {TOOLS_MISTRAL, "[TOOL_CALLS]f[CALL_ID]a1b2c3d4e[ARGS]{\"a\":1}", "|f:{\"a\":1}"},
    {TOOLS_MISTRAL, "[TOOL_CALLS]f[ARGS]{}", "|f:{}"},
    {TOOLS_MISTRAL, "[TOOL_CALLS] no call", "[TOOL_CALLS] no call"},
    {TOOLS_MISTRAL, "[TOOL_CALLS][]", "[TOOL_CALLS][]"},
    {TOOLS_MISTRAL, "a [TOOL", "a [TOOL"},
    {TOOLS_QWEN3_CODER,
     "<tool_call>\n<function=f>\n<parameter=s>\n12\n</parameter>\n<parameter=n>\n12\n</parameter>\n"
     "<parameter=o>\n{\"a\": [1]}\n</parameter>\n</function>\n</tool_call>",
     "|f:{\"s\": \"12\", \"n\": 12, \"o\": {\"a\": [1]}}"},
    {TOOLS_QWEN3_CODER,
     "Now:\n<tool_call><function=g><parameter=x>a\n\"b\"</parameter></function></tool_call>\n"
     "<tool_call><function=f></function></tool_call>",
     "Now:\n|g:{\"x\": \"a\\n\\\"b\\\"\"}|f:{}"},
    {TOOLS_QWEN3_CODER, "<tool_call><function=f><parameter=n>many</parameter></function>",
     "|f:{\"n\": \"many\"}"},
    {TOOLS_QWEN3_CODER, "<tool_call><function=f><parameter=s>cut of", "|f:{\"s\": \"cut of\"}"},
    /* the first mark is missing, or there is one for two */
    {TOOLS_QWEN3_CODER,
     "So:\n<function=f>\n<parameter=n>\n1\n</parameter>\n</function>\n</tool_call>",
     "So:\n|f:{\"n\": 1}"},
    {TOOLS_QWEN3_CODER, "<tool_call><function=f></function><function=g></function></tool_call> end",
     " end|f:{}|g:{}"},
    {TOOLS_QWEN3_CODER, "a <function", "a <function"},
    {TOOLS_QWEN3_CODER, "a <function=", "a <function="},
    /* types: Python's words, one of several, none of them */
    {TOOLS_QWEN3_CODER,
     "<tool_call><function=f><parameter=b>True</parameter><parameter=l>null</"
     "parameter><parameter=y>"
     "7</parameter><parameter=o>{'a': (1, None)}</parameter></function></tool_call>",
     "|f:{\"b\": true, \"l\": null, \"y\": 7, \"o\": {\"a\": [1, null]}}"},
    {TOOLS_QWEN3_CODER,
     "<tool_call><function=f><parameter=b>yes</parameter><parameter=l>[1, 2.50]</parameter>"
     "<parameter=y>x</parameter><parameter=s>null</parameter></function></tool_call>",
     "|f:{\"b\": \"yes\", \"l\": [1, 2.50], \"y\": \"x\", \"s\": \"null\"}"},
    {TOOLS_QWEN3_CODER, "<tool_call>\n<funct", "<tool_call>\n<funct"},
    {TOOLS_QWEN3_CODER, "<tool_call>{\"name\":1}", "<tool_call>{\"name\":1}"},
    {TOOLS_GLM45,
     "<tool_call>f\n<arg_key>s</arg_key>\n<arg_value>a</tool_call>b</arg_value></tool_call>",
     "|f:{\"s\": \"a</tool_call>b\"}"},
    {TOOLS_GLM45, "<tool_call>f<arg_key>n</arg_key><arg_value>7</tool_call>\n", "|f:{\"n\": 7}"},
    {TOOLS_GLM45, "<tool_call>{\"name\": \"f\"}</tool_call>",
     "<tool_call>{\"name\": \"f\"}</tool_call>"},
    {TOOLS_GLM45, "<tool_call>two words here</tool_", "<tool_call>two words here</tool_"},
    {TOOLS_DEEPSEEK_V31, CALLS_BEGIN CALL_BEGIN "f" SEP "[1]" CALL_END,
     CALLS_BEGIN CALL_BEGIN "f" SEP "[1]" CALL_END},
    {TOOLS_DEEPSEEK_V31, "a" CALLS_BEGIN CALL_BEGIN "f" SEP "{}" CALL_END CALLS_END " b",
     "a b|f:{}"},
    {TOOLS_GEMMA4, "<|tool_call>call:f{s:42,n:42,o:{}}<tool_call|>b",
     "b|f:{\"s\": \"42\", \"n\": 42, \"o\": {}}"},
    {TOOLS_SEED_OSS,
     "<seed:tool_call><function=f><parameter=s>a\n</parameter><parameter=n>\n1\n</parameter>"
     "</function></seed:tool_call>",
     "|f:{\"s\": \"a\\n\", \"n\": 1}"},
    {TOOLS_GEMMA4, "<|tool_call>:f{}<tool_call|>", "|f:{}"},
    {TOOLS_GEMMA4, "<|tool_call>call:f{x}<tool_call|>The ratio is 3:4, done",
     "The ratio is 3:4, done|f:{\"x\": \"\"}"},
    {TOOLS_GEMMA4, "<|tool_call>call:f{<|\"|>x}y<|\"|>:1}<tool_call|>", "|f:{\"x}y\": 1}"},
    {TOOLS_GEMMA4, "<|tool_call>f{}", "<|tool_call>f{}"},
    {TOOLS_HUNYUAN, "<tool_calls>[]</tool_calls>", "<tool_calls>[]</tool_calls>"},
    {TOOLS_PYTHONIC, "[f(x=1, y='it\\'s', z=[True, None, 1.5]), g()]",
     "|f:{\"x\": 1, \"y\": \"it's\", \"z\": [true, null, 1.5]}|g:{}"},
    {TOOLS_PYTHONIC, " [a.b(d={'k': \"]\", \"l\": (1, 2,)})]\n",
     "|a.b:{\"d\": {\"k\": \"]\", \"l\": [1, 2]}}"},
    {TOOLS_PYTHONIC, "[f(x='caf\\u00e9 \\x41 \\U0001F600 \\ud83d \\q')]",
     "|f:{\"x\": \"caf\xc3\xa9 A \xf0\x9f\x98\x80 \\\\ud83d \\\\q\"}"},
    {TOOLS_PYTHONIC, "[1, 2]", "[1, 2]"},
    {TOOLS_PYTHONIC, "[f(x=1), oh]", "[f(x=1), oh]"},
    {TOOLS_PYTHONIC, "[f(1)]", "[f(1)]"},
    {TOOLS_PYTHONIC, "[f(x=y)]", "[f(x=y)]"},
    {TOOLS_PYTHONIC, "see [f()]", "see [f()]"},
    {TOOLS_PYTHONIC, "[f(x='", "[f(x='"},
};

/* Beside a form: a call is one from the first byte on, and the form is never touched. */
static const struct {
    enum toolstyle style;
    const char *in, *want;
} eithers[] = {
    {TOOLS_HERMES, CALL("{}"), "|f:{}"},
    {TOOLS_HERMES, CALL("{}") "\n" CALL("{\"n\":2}"), "|f:{}|f:{\"n\":2}"},
    {TOOLS_HERMES, "{\"a\": \"" CALL("{}") "\"}", "{\"a\": \"" CALL("{}") "\"}"},
    {TOOLS_HERMES, " " CALL("{}"), " " CALL("{}")},
    {TOOLS_HERMES, "<tool_", "<tool_"},
    {TOOLS_LLAMA3_JSON, "{\"name\": \"f\", \"parameters\": {\"a\": 1}}", "|f:{\"a\": 1}"},
    {TOOLS_LLAMA3_JSON, "<|python_tag|>{\"name\": \"f\", \"parameters\": {}}", "|f:{}"},
    {TOOLS_LLAMA3_JSON, "{\"name\": \"Bo\", \"parameters\": {\"a\": 1}}",
     "{\"name\": \"Bo\", \"parameters\": {\"a\": 1}}"},
    {TOOLS_LLAMA3_JSON, "{\"parameters\": {}, \"name\": \"f\"}",
     "{\"parameters\": {}, \"name\": \"f\"}"},
    {TOOLS_MISTRAL, "[TOOL_CALLS]f{\"a\": 1}", "|f:{\"a\": 1}"},
    {TOOLS_MISTRAL, "[\"[TOOL_CALLS]f{}\"]", "[\"[TOOL_CALLS]f{}\"]"},
    {TOOLS_QWEN3_CODER, "<tool_call>\n<function=f>\n</function>\n</tool_call>", "|f:{}"},
    {TOOLS_QWEN3_CODER, "\"<function=f></function>\"", "\"<function=f></function>\""},
    {TOOLS_PYTHONIC, "[f(n=1)]", "|f:{\"n\": 1}"},
    {TOOLS_PYTHONIC, "[\"f()\"]", "[\"f()\"]"},
    {TOOLS_XLAM, "[{\"name\": \"f\", \"arguments\": {}}]", "|f:{}"},
    {TOOLS_XLAM, "[{\"name\": \"Bo\", \"arguments\": {}}]",
     "[{\"name\": \"Bo\", \"arguments\": {}}]"},
    {TOOLS_XLAM, "{\"a\": 1}", "{\"a\": 1}"},
    {TOOLS_PYTHONIC, "[fun(n=1)]", "[fun(n=1)]"},
};

static bool either; /* what check_style() tries */

static void check_style(enum toolstyle style, const json_t *tools, const char *in, const char *want)
{
    size_t len = strlen(in);
    for (size_t piece = 1; piece <= len + 1; piece++) {
        struct toolcalls t = {.style = style, .tools = tools, .either = either};
        struct ek_buf out = {0};
        for (size_t at = 0; at < len; at += piece) {
            size_t n = len - at < piece ? len - at : piece;
            assert_int_equal(toolcalls_push(&t, in + at, n, &out), 0);
        }
        assert_int_equal(toolcalls_end(&t, &out), 0);
        show(&t, &out);
        if (strcmp(out.data ? out.data : "", want) != 0)
            fail_msg("%s in pieces of %zu: %s", in, piece, out.data ? out.data : "");
        toolcalls_done(&t);
        ek_buf_done(&out);
    }
}

static void test_styles(void **state)
{
    json_t *tools = json_loads(TOOLS, 0, NULL);
    (void)state;
    for (size_t c = 0; c < sizeof(styles) / sizeof(styles[0]); c++)
        check_style(styles[c].style, tools, styles[c].in, styles[c].want);
    either = true;
    for (size_t c = 0; c < sizeof(eithers) / sizeof(eithers[0]); c++)
        check_style(eithers[c].style, tools, eithers[c].in, eithers[c].want);
    either = false;
    json_decref(tools);
}

/* What is of the form is passed on with its first byte that no call has. */
static void test_forms_stream(void **state)
{
    json_t *tools = json_loads(TOOLS, 0, NULL);
    struct toolcalls t = {.style = TOOLS_LLAMA3_JSON, .tools = tools, .either = true};
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(toolcalls_push(&t, "{\"na", 4, &out), 0);
    assert_int_equal(out.len, 0);
    assert_int_equal(toolcalls_push(&t, "me\": \"x", 7, &out), 0);
    assert_string_equal(out.data, "{\"name\": \"x");
    toolcalls_done(&t);
    ek_buf_done(&out);
    json_decref(tools);
}

/* Arguments are passed on while they come. */
static void test_arguments_grow(void **state)
{
    static const char in[] = "<tool_call>{\"name\":\"f\",\"arguments\":{\"city\":\"Sof";
    struct toolcalls t = {.style = TOOLS_HERMES};
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(toolcalls_push(&t, in, sizeof(in) - 1, &out), 0);
    assert_int_equal(t.count, 1);
    assert_string_equal(t.call[0].args.data, "{\"city\":\"Sof");
    assert_int_equal(toolcalls_push(&t, "ia\"}}</tool_call>", 17, &out), 0);
    assert_string_equal(t.call[0].args.data, "{\"city\":\"Sofia\"}");
    toolcalls_done(&t);
    ek_buf_done(&out);
}

static const struct {
    enum thinkstyle style;
    const char *prompt, *in, *want; /* thought|text */
} thoughts[] = {
    {THINK_ALWAYS, "", "I see\n</think>\n\nYes.", "I see|Yes."},
    {THINK_ALWAYS, "", "<think>\nI see</think>Yes.", "I see|Yes."},
    {THINK_ALWAYS, "", "endless </thin", "endless </thin|"},
    {THINK_ALWAYS, "a<think>\n", "I see</think>Yes.", "I see|Yes."},
    {THINK_TAGS, "", "<think>\n\n</think>\n\nYes.", "|Yes."},
    {THINK_TAGS, "", "No <think> here", "|No <think> here"},
    {THINK_TAGS, "a<think>", "I </thi see</think> Yes", "I </thi see|Yes"},
    {THINK_TAGS, "a<think>\n\n</think>\n\n", "Yes </think>", "|Yes </think>"},
    {THINK_ALWAYS, "a</think>", "Yes", "|Yes"},
    {THINK_TAGS, "", "<thi", "|<thi"},
    {THINK_NONE, "a<think>", "Yes", "|Yes"},
    {THINK_QWEN3, "a<think>", "I see\n<tool_call>x", "I see|<tool_call>x"},
    {THINK_TAGS, "a<think>", "I see\n<tool_call>x", "I see\n<tool_call>x|"},
    {THINK_SEED_OSS, "", "<seed:think>I see</seed:think>\nYes", "I see|Yes"},
    {THINK_SEED_OSS, "a<seed:think>\n0\n</seed:think>", "Yes", "|Yes"},
    {THINK_ERNIE45, "a<think>\n", "I see\n</think>\n\n<response>\nYes.\n</response>\n",
     "I see|Yes."},
    {THINK_ERNIE45, "", "I see</think>\nYes.", "I see|Yes."},
    {THINK_HUNYUAN, "", "<think>\nI see\n</think>\n<answer>\nYes, a < b\n</answer>",
     "I see|Yes, a < b"},
    {THINK_HUNYUAN, "a<think>\n\n</think>\n", "<answer>\nYes\n</answer>", "|Yes"},
    {THINK_HUNYUAN, "", "Yes </answ", "|Yes </answ"},
    {THINK_MISTRAL, "", "[THINK]I see[/THINK]Yes", "I see|Yes"},
    {THINK_MISTRAL, "", "[THINK]I see[TOOL_CALLS]f{}", "I see|[TOOL_CALLS]f{}"},
    {THINK_MISTRAL, "", "Yes [THINK]", "|Yes [THINK]"},
    {THINK_GRANITE, "", "Here is my thought process: I see Here is my response: Yes", "I see|Yes"},
    {THINK_GRANITE, "", "Here's my thought process:\nHere is my\n\nHere's my response:\nYes",
     "Here is my|Yes"},
    {THINK_GRANITE, "", "Here is my answer: Yes", "|Here is my answer: Yes"},
    {THINK_GRANITE, "", "Here", "|Here"},
    {THINK_MINIMAX_M2, "<think>\n", "I see</think>Yes", "I see|Yes"},
    {THINK_MINIMAX_M2, "<think>\n", "I see" MINIMAX "<invoke", "I see|" MINIMAX "<invoke"},
    {THINK_HY_V3, "<think:opensource>", "I see</think:opensource>Yes", "I see|Yes"},
    {THINK_HY_V3, "<think:opensource>", "I see<tool_calls:opensource>x",
     "I see|<tool_calls:opensource>x"},
    {THINK_HY_V3, "<think:opensource></think:opensource>", "Yes", "|Yes"},
    {THINK_HY_V3, "<think></think>", "Yes", "|Yes"},
    {THINK_HY_V3, "<think>", "I see</think>Yes", "I see|Yes"},
    {THINK_HY_V3, "", "<think:opensource>I see</think:opensource>Yes", "I see|Yes"},
    {THINK_HY_V3, "", "Yes", "|Yes"},
    {THINK_COHERE, "<|START_THINKING|>", "I see<|END_THINKING|><|START_TEXT|>Yes<|END_TEXT|>",
     "I see|Yes"},
    {THINK_KIMI_K3, "<|open|>think<|sep|>",
     "I see<|close|>think<|sep|><|open|>response<|sep|>Yes<|close|>response<|sep|><|close|>message"
     "<|sep|>",
     "I see|Yes"},
    {THINK_KIMI_K3, "<|open|>think<|sep|>", "I see" K3_BEGIN "x", "I see|" K3_BEGIN "x"},
    {THINK_MINIMAX_M3, "<mm:think>", "I see</mm:think>Yes", "I see|Yes"},
    {THINK_MINIMAX_M3, "", "<mm:think>I see\n]<]minimax[>[<tool_call>x",
     "I see|]<]minimax[>[<tool_call>x"},
    {THINK_KIMI_K3, "", "<|open|>response<|sep|>Yes <|open|>", "|Yes <|open|>"},
    {THINK_COHERE, "<|START_THINKING|>",
     "I see<|END_THINKING|><|START_RESPONSE|>Yes<|END_RESPONSE|>", "I see|Yes"},
    {THINK_COHERE, "<|START_THINKING|><|END_THINKING|>", "<|START_TEXT|>Yes<|END_TEXT|>", "|Yes"},
    {THINK_COHERE, "", "<|START_THINKING|>I see<|START_ACTION|>[", "I see|<|START_ACTION|>["},
    {THINK_KIMI_K2, "", "I see</think>Yes", "I see|Yes"},
    {THINK_KIMI_K2, "<think></think>", "Yes", "|Yes"},
    {THINK_KIMI_K2, "", "<think>I see" KIMI_BEGIN KIMI_CALL "f:0",
     "I see|" KIMI_BEGIN KIMI_CALL "f:0"},
    {THINK_GEMMA4, "a<|turn>model\n", "<|channel>thought\nI see\n<channel|>Yes", "I see|Yes"},
    {THINK_GEMMA4, "a", "<|channel>\nI see<channel|>Yes<|channel>thought\nMore<channel|> then",
     "I seeMore|Yesthen"},
    {THINK_GEMMA4, "a<|channel>thought\n<channel|>", "Yes <channel|>now", "|Yes now"},
    {THINK_GEMMA4, "a<|channel>thought\n", "I see<|tool_call>x", "I see|<|tool_call>x"},
    {THINK_GEMMA4, "a<|channel>", "thought\nI see<channel|>x", "I see|x"},
    {THINK_GEMMA4, "", "thoughts", "|thoughts"},
};

static void test_thinking(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof(thoughts) / sizeof(thoughts[0]); c++) {
        const char *in = thoughts[c].in, *prompt = thoughts[c].prompt;
        for (size_t piece = 1; piece <= strlen(in) + 1; piece++) {
            struct reasoning r;
            struct ek_buf thought = {0}, text = {0};
            reasoning_begin(&r, thoughts[c].style, prompt, strlen(prompt));
            for (size_t at = 0; at < strlen(in); at += piece) {
                size_t n = strlen(in) - at < piece ? strlen(in) - at : piece;
                assert_int_equal(reasoning_push(&r, in + at, n, &thought, &text), 0);
            }
            assert_int_equal(reasoning_end(&r, &thought, &text), 0);
            (void)ek_buf_puts(&thought, "|");
            (void)ek_buf_add(&thought, text.data ? text.data : "", text.len);
            if (strcmp(thought.data, thoughts[c].want) != 0)
                fail_msg("%s in pieces of %zu: %s", in, piece, thought.data);
            reasoning_done(&r);
            ek_buf_done(&thought);
            ek_buf_done(&text);
        }
    }
}

static void test_cases(void **state)
{
    (void)state;
    for (size_t c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
        size_t len = strlen(cases[c].in);
        for (size_t piece = 1; piece <= len + 1; piece++) {
            struct toolcalls t = {.style = TOOLS_HERMES};
            struct ek_buf out = {0};
            for (size_t at = 0; at < len; at += piece) {
                size_t n = len - at < piece ? len - at : piece;
                assert_int_equal(toolcalls_push(&t, cases[c].in + at, n, &out), 0);
            }
            assert_int_equal(toolcalls_end(&t, &out), 0);
            show(&t, &out);
            assert_string_equal(out.data ? out.data : "", cases[c].want);
            toolcalls_done(&t);
            ek_buf_done(&out);
        }
    }
}

static void test_text_is_not_held(void **state)
{
    struct toolcalls t = {.style = TOOLS_HERMES};
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(toolcalls_push(&t, "Hello <to", 9, &out), 0);
    assert_string_equal(out.data, "Hello ");
    assert_int_equal(toolcalls_push(&t, "ken>", 4, &out), 0);
    assert_string_equal(out.data, "Hello <token>");
    toolcalls_done(&t);
    ek_buf_done(&out);
}

/* Beside strict tools a call without its mark would not be bound to its schema: it stays text. */
static void test_strict_wants_the_mark(void **state)
{
    static const char bare[] = "<function=f></function>";
    struct toolcalls t = {.style = TOOLS_QWEN3_CODER, .marked = true};
    struct ek_buf out = {0};
    (void)state;
    assert_int_equal(toolcalls_push(&t, bare, sizeof(bare) - 1, &out), 0);
    assert_int_equal(toolcalls_end(&t, &out), 0);
    assert_int_equal(t.count, 0);
    assert_string_equal(out.data, bare);
    toolcalls_done(&t);
    ek_buf_done(&out);
}

static void test_too_many(void **state)
{
    struct toolcalls t = {.style = TOOLS_HERMES};
    struct ek_buf out = {0};
    (void)state;
    for (unsigned i = 0; i <= TOOLCALL_MOST; i++)
        assert_int_equal(toolcalls_push(&t, CALL("{}"), strlen(CALL("{}")), &out), 0);
    assert_int_equal(t.count, TOOLCALL_MOST);
    assert_string_equal(out.data, CALL("{}"));
    toolcalls_done(&t);
    ek_buf_done(&out);
}

/* A value of half a megabyte that comes byte by byte is looked at once: looked at again with each
 * byte, it would take a quarter of an hour. So is a name that does not end. */
static void test_long_values(void **state)
{
    static const char *const heads[] = {"<function=f><parameter=x>\n", "<function=f><parameter="};
    (void)state;
    for (int i = 0; i < 2; i++) {
        struct toolcalls t = {.style = TOOLS_QWEN3_CODER};
        struct ek_buf text = {0};
        const char *end = i == 0 ? "</parameter></function>" : ">v</parameter></function>";
        assert_int_equal(toolcalls_push(&t, heads[i], strlen(heads[i]), &text), 0);
        for (int k = 0; k < 1 << 19; k++)
            assert_int_equal(toolcalls_push(&t, k % 7 ? "a" : "<", 1, &text), 0);
        for (; *end; end++)
            assert_int_equal(toolcalls_push(&t, end, 1, &text), 0);
        assert_int_equal(toolcalls_end(&t, &text), 0);
        assert_int_equal(t.count, 1);
        assert_int_equal(t.call[0].args.len, (1 << 19) + 9);
        toolcalls_done(&t);
        ek_buf_done(&text);
    }
}

/* The id that Kimi K2 gave a call is kept where it has a number and no call before it has it. */
static void test_ids(void **state)
{
    static const char text[] = KIMI_BEGIN KIMI_CALL
        " functions.f:3 " KIMI_ARGS "{}" KIMI_CALL_END KIMI_CALL "functions.f:3" KIMI_ARGS
        "{}" KIMI_CALL_END KIMI_CALL "g" KIMI_ARGS "{}" KIMI_CALL_END KIMI_CALL
        "functions.a:b:12" KIMI_ARGS "{}" KIMI_CALL_END KIMI_CALL "g:" KIMI_ARGS "{}" KIMI_END;
    static const char *const ids[] = {"functions.f:3", NULL, NULL, "functions.a:b:12", NULL};
    (void)state;
    for (size_t step = 1; step < 9; step++) {
        struct toolcalls t = {.style = TOOLS_KIMI_K2};
        struct ek_buf out = {0};
        for (size_t at = 0, n; at < sizeof(text) - 1; at += n) {
            n = step < sizeof(text) - 1 - at ? step : sizeof(text) - 1 - at;
            assert_int_equal(toolcalls_push(&t, text + at, n, &out), 0);
        }
        assert_int_equal(toolcalls_end(&t, &out), 0);
        assert_int_equal(t.count, 5);
        for (uint32_t i = 0; i < t.count; i++) {
            assert_true(!t.call[i].id == !ids[i]);
            if (ids[i])
                assert_string_equal(t.call[i].id, ids[i]);
        }
        toolcalls_done(&t);
        ek_buf_done(&out);
    }
}

/* vLLM's names, also those of families whose form is another's. */
static void test_names(void **state)
{
    (void)state;
    assert_int_equal(toolstyle_find("pythonic"), TOOLS_PYTHONIC);
    assert_int_equal(toolstyle_find("llama4_pythonic"), TOOLS_PYTHONIC);
    assert_int_equal(toolstyle_find("glm47"), TOOLS_GLM45);
    assert_int_equal(toolstyle_find("hy_v3"), TOOLS_HY_V3);
    assert_int_equal(thinkstyle_find("hy_v3"), THINK_HY_V3);
    assert_int_equal(toolstyle_find("glm"), TOOLS_NONE);
    assert_int_equal(thinkstyle_find("qwen3"), THINK_QWEN3);
    assert_int_equal(thinkstyle_find("glm45"), THINK_QWEN3);
    assert_int_equal(thinkstyle_find("deepseek_v3"), THINK_TAGS);
    assert_int_equal(thinkstyle_find("glm4"), THINK_NONE);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_ids),
        cmocka_unit_test(test_names),
        cmocka_unit_test(test_cases),
        cmocka_unit_test(test_styles),
        cmocka_unit_test(test_forms_stream),
        cmocka_unit_test(test_arguments_grow),
        cmocka_unit_test(test_thinking),
        cmocka_unit_test(test_text_is_not_held),
        cmocka_unit_test(test_strict_wants_the_mark),
        cmocka_unit_test(test_too_many),
        cmocka_unit_test(test_long_values),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
