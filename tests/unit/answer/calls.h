/* What the tests of tool calls share: marks of the styles, two tools, and calls as a text. */
#pragma once

#include "server/text/answer/toolcall.h"

#define CALL(args) "<tool_call>\n{\"name\": \"f\", \"arguments\": " args "}\n</tool_call>"

#define TOOLS                                                                                      \
    "[{\"type\":\"function\",\"function\":{\"name\":\"f\",\"parameters\":{\"properties\":{"        \
    "\"b\":{\"type\":\"boolean\"},\"l\":{\"type\":[\"array\",\"null\"]},"                          \
    "\"y\":{\"anyOf\":[{\"type\":\"integer\"},{\"type\":\"string\"}]},"                            \
    "\"n\":{\"type\":\"integer\"},\"o\":{\"type\":\"object\"},\"s\":{\"type\":\"string\"}}}}}]"

#define CALLS_BEGIN "<｜tool▁calls▁begin｜>"
#define CALLS_END   "<｜tool▁calls▁end｜>"
#define CALL_BEGIN  "<｜tool▁call▁begin｜>"
#define CALL_END    "<｜tool▁call▁end｜>"
#define SEP         "<｜tool▁sep｜>"

#define KIMI_BEGIN    "<|tool_calls_section_begin|>"
#define KIMI_END      "<|tool_calls_section_end|>"
#define KIMI_CALL     "<|tool_call_begin|>"
#define KIMI_ARGS     "<|tool_call_argument_begin|>"
#define KIMI_CALL_END "<|tool_call_end|>"

#define MINIMAX     "<minimax:tool_call>"
#define MINIMAX_END "</minimax:tool_call>"

#define DSML(text)  "<｜DSML｜" text ">"
#define DSML_(text) "</｜DSML｜" text ">"

#define STEP       "<｜tool_call_begin｜>function<｜tool_sep｜>" /* then the call */
#define STEP_BEGIN "<｜tool_calls_begin｜>"
#define STEP_END   "<｜tool_calls_end｜>"
#define STEP_CALL(name, key, value)                                                                \
    STEP "<steptml:invoke name=\"" name "\"><steptml:parameter name=\"" key "\">" value            \
         "</steptml:parameter></steptml:invoke><｜tool_call_end｜>"

#define K3_BEGIN         "<|open|>tools<|sep|>"
#define K3_END           "<|close|>tools<|sep|>"
#define K3_CALL(name, i) "<|open|>call tool=\"" name "\" index=\"" i "\"<|sep|>"
#define K3_CALL_END      "<|close|>call<|sep|>"
#define K3_ARG(key, type, v)                                                                       \
    "<|open|>argument key=\"" key "\" type=\"" type "\"<|sep|>" v "<|close|>argument<|sep|>"

/* "|name:args" for each call. */
static inline void show(const struct toolcalls *t, struct ek_buf *out)
{
    for (uint32_t i = 0; i < t->count; i++)
        (void)ek_buf_printf(out, "|%s:%s", t->call[i].name, t->call[i].args.data);
}
