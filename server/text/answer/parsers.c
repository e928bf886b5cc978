/* Which parsers a model's chat template asks for (parsers.h). Called once at start. */
#include "server/text/answer/parsers.h"

#include <stdbool.h>
#include <stddef.h>

#include "server/text/chat.h"
#include "server/text/tokenizer.h"

#define MARKS_MOST 3

/* The first row counts whose marks are all there, and whose `no` is not: those with marks of their
 * own come before those that share some. */
struct parser_row {
    const char *name, *mark[MARKS_MOST], *no;
    const char *token; /* a special token of the model that must be there */
};

static const struct parser_row tool_rows[] = {
    {.name = "kimi_k2", .mark = {"<|tool_calls_section_begin|>"}},
    {.name = "minimax_m2", .mark = {"<minimax:tool_call>", "<invoke name="}},
    {.name = "dots", .mark = {"<dots_function_call>"}},
    {.name = "deepseek_v41", .mark = {"｜DSML｜ ", "invoke name=", "tools"}},
    {.name = "deepseek_v32", .mark = {"｜DSML｜", "invoke name=", "tools"}},
    {.name = "kimi_k3", .mark = {"<|open|>", "<|sep|>", "argument"}},
    {.name = "step3", .mark = {"<steptml:invoke"}},
    {.name = "minicpm5", .mark = {"<function name=", "<param name="}},
    {.name = "functiongemma", .mark = {"<start_function_call>"}},
    {.name = "longcat", .mark = {"<longcat_tool_call>"}},
    {.name = "internlm", .mark = {"<|action_start|>", "<|plugin|>"}},
    {.name = "gigachat3", .mark = {"<|function_call|>", "<|message_sep|>"}},
    {.name = "gigachat3", .mark = {"function call", "<|role_sep|>"}},
    {.name = "cohere_command3", .mark = {"<|START_ACTION|>", "tool_name"}},
    {.name = "apertus", .mark = {"<|tools_prefix|>"}},
    {.name = "seed_oss", .mark = {"<seed:tool_call>"}},
    {.name = "deepseek_v3", .mark = {"<｜tool▁calls▁begin｜>", "```json", "tools"}},
    {.name = "deepseek_v31", .mark = {"<｜tool▁calls▁begin｜>", "tools"}, .no = "```json"},
    {.name = "gemma4", .mark = {"<|tool_call>", "<tool_call|>"}},
    {.name = "lfm2", .mark = {"<|tool_call_start|>"}},
    {.name = "lfm2", .mark = {"tools"}, .token = "<|tool_call_start|>"},
    {.name = "nemotron_json", .mark = {"<TOOLCALL>"}},
    {.name = "olmo3", .mark = {"<function_calls>"}},
    {.name = "granite-20b-fc", .mark = {"<function_call>"}},
    {.name = "xlam", .mark = {"make calls in a single JSON array"}},
    {.name = "phi4_mini_json", .mark = {"functools"}},
    {.name = "phi4_mini_json", .mark = {"<|tool|>"}},
    {.name = "mistral", .mark = {"[TOOL_CALLS]"}},
    {.name = "qwen3_coder", .mark = {"<function=", "<parameter="}},
    {.name = "hy_v3", .mark = {"<tool_call", "<tool_sep", "<arg_key"}},
    {.name = "glm45", .mark = {"<tool_call>", "<arg_key>"}},
    {.name = "hunyuan_a13b", .mark = {"<tool_calls>["}},
    {.name = "granite", .mark = {"<|tool_call|>"}},
    /* The sentence with which Meta's own templates ask for calls. */
    {.name = "llama3_json", .mark = {"\"parameters\": dictionary of argument name"}},
    {.name = "llama3_json", .mark = {"\\\"parameters\\\": dictionary of argument name"}},
    {.name = "pythonic", .mark = {"[func_name1(params_name1=params_value1"}},
    {.name = "ernie45", .mark = {"<tool_call>", "<tool_output>"}},
    {.name = "hermes", .mark = {"<tool_call>", "</tool_call>", "arguments"}, .no = "<invoke name="},
};

static const struct parser_row think_rows[] = {
    {.name = "kimi_k2", .mark = {"<|tool_calls_section_begin|>", "<think>"}},
    {.name = "minimax_m2", .mark = {"<minimax:tool_call>", "<think>"}},
    {.name = "kimi_k3", .mark = {"<|open|>", "<|sep|>", "think"}},
    {.name = "minimax_m3", .mark = {"<mm:think>"}},
    {.name = "cohere_command3", .mark = {"<|START_THINKING|>"}},
    {.name = "seed_oss", .mark = {"<seed:think>"}},
    {.name = "gemma4", .mark = {"<|channel>", "<channel|>"}},
    {.name = "mistral", .mark = {"[THINK]"}},
    {.name = "granite", .mark = {"Here is my thought process:"}},
    {.name = "hunyuan_a13b", .mark = {"<think>", "<answer>"}},
    {.name = "ernie45", .mark = {"<think>", "<response>", "<tool_output>"}},
    {.name = "hy_v3", .mark = {"<think", "<tool_sep", "<arg_key"}},
    {.name = "glm45", .mark = {"<think>", "<arg_key>"}},
    {.name = "deepseek_v3", .mark = {"<think>", "<｜Assistant｜>"}},
    /* Granite 3.3's answer stands in marks of its own, which no parser takes off. */
    {.name = "qwen3", .mark = {"<think>", "</think>"}, .no = "<response>"},
};

static bool is_shown(const struct parser_row *row, const struct chat *c,
                     const struct tokenizer *tok)
{
    for (int i = 0; i < MARKS_MOST && row->mark[i]; i++) {
        if (!chat_shows(c, row->mark[i]))
            return false;
    }
    if (row->no && chat_shows(c, row->no))
        return false;
    return !row->token || (tok && tokenizer_find(tok, row->token) >= 0);
}

static const char *parser_of(const struct parser_row *row, size_t count, const struct chat *c,
                             const struct tokenizer *tok)
{
    for (size_t i = 0; c && i < count; i++) {
        if (is_shown(row + i, c, tok))
            return row[i].name;
    }
    return "none";
}

const char *parsers_tools(const struct chat *c, const struct tokenizer *tok)
{
    return parser_of(tool_rows, sizeof(tool_rows) / sizeof(*tool_rows), c, tok);
}

const char *parsers_thinking(const struct chat *c)
{
    return parser_of(think_rows, sizeof(think_rows) / sizeof(*think_rows), c, NULL);
}
