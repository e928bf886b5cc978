/* Parsers chosen by chat templates: by the marks of the family, by the second template that is for
 * tools, and not by half of them. `make check-templates` asks for those of published templates. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "server/text/answer/parsers.h"
#include "server/text/answer/reasoning.h"
#include "server/text/answer/toolcall.h"
#include "server/text/chat.h"

#define JSON_CALL "<tool_call>{\"name\": \"f\", \"arguments\": {}}</tool_call>"

static const struct {
    const char *text, *tools_text, *tools, *think; /* tools_text NULL: one template for all */
} cases[] = {
    {"{{ messages }}", NULL, "none", "none"},
    {"{{ tools }} " JSON_CALL, NULL, "hermes", "none"},
    {"{{ messages }}", "{{ tools }} " JSON_CALL, "hermes", "none"},
    {"{{ tools }} <think></think> " JSON_CALL, NULL, "hermes", "qwen3"},
    {"{{ tools }} <tool_call><function=f><parameter=x>", NULL, "qwen3_coder", "none"},
    {"{{ tools }} <tool_call>f<arg_key>x</arg_key><think>", NULL, "glm45", "glm45"},
    /* Hy3: marks of GLM's and words of Hermes', but a call that neither writes */
    {"{{ tools }} <tool_calls><tool_call>f<tool_sep><arg_key>x</arg_key></tool_call> arguments "
     "<think></think>",
     NULL, "hy_v3", "hy_v3"},
    {"{{ tools }} <tool_call:opensource>f<tool_sep:opensource><arg_key:opensource> "
     "<think:opensource>",
     NULL, "hy_v3", "hy_v3"},
    {"{{ tools }} <tool_call><invoke name=\"f\"> arguments </tool_call>", NULL, "none", "none"},
    {"{{ tools }} <function=f>{}</function>", NULL, "none", "none"},
    {"{{ tools }} <｜tool▁calls▁begin｜>```json", NULL, "deepseek_v3", "none"},
    {"{{ tools }} <｜tool▁calls▁begin｜><｜Assistant｜><think>", NULL, "deepseek_v31",
     "deepseek_v3"},
    {"{{ tools }} {% set t = '｜DSML｜' %}{{ '<' + t + 'invoke name=' }}<｜Assistant｜><think>",
     NULL, "deepseek_v32", "deepseek_v3"},
    {"{{ tools }} <dots_function_call>", NULL, "dots", "none"},
    {"{{ messages }} <｜tool▁calls▁begin｜>```json", NULL, "none", "none"},
    {"[THINK][TOOL_CALLS]", NULL, "mistral", "mistral"},
    {"{{ '<|open|>' + 'argument' + '<|sep|>' + 'think' }}", NULL, "kimi_k3", "kimi_k3"},
    {"<function name=\"f\"><param name=\"x\">", NULL, "minicpm5", "none"},
    {"<|START_THINKING|><|START_ACTION|> tool_name", NULL, "cohere_command3", "cohere_command3"},
    {"<|message_sep|><|function_call|>", NULL, "gigachat3", "none"},
    {"<mm:think></mm:think>", NULL, "none", "minimax_m3"},
    {"<|tool_calls_section_begin|> <think>", NULL, "kimi_k2", "kimi_k2"},
    {"<tool_calls>[ <think><answer>", NULL, "hunyuan_a13b", "hunyuan_a13b"},
    {"<tool_calls>\n{", NULL, "none", "none"},
    {"\"parameters\": dictionary of argument name and its value", NULL, "llama3_json", "none"},
};

static void write_file(const char *dir, const char *name, const char *text)
{
    char path[512];
    (void)snprintf(path, sizeof(path), "%s/%s", dir, name);
    FILE *f = fopen(path, "we");
    assert_non_null(f);
    assert_true(fputs(text, f) >= 0);
    assert_int_equal(fclose(f), 0);
}

static void test_templates(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char dir[] = "/tmp/ek-parsers-XXXXXX", path[512];
        struct ek_fault fault = {0};
        struct chat *c = NULL;
        assert_non_null(mkdtemp(dir));
        write_file(dir, "chat_template.jinja", cases[i].text);
        (void)snprintf(path, sizeof(path), "%s/additional_chat_templates", dir);
        assert_int_equal(mkdir(path, 0700), 0);
        if (cases[i].tools_text)
            write_file(path, "tool_use.jinja", cases[i].tools_text);
        assert_int_equal(chat_load(dir, NULL, &c, &fault), 0);
        const char *tools = parsers_tools(c, NULL), *think = parsers_thinking(c);
        assert_string_equal(tools, cases[i].tools);
        assert_string_equal(think, cases[i].think);
        /* every name that is chosen is one that the parsers know */
        assert_int_equal(toolstyle_find(tools) == TOOLS_NONE, strcmp(tools, "none") == 0);
        assert_int_equal(thinkstyle_find(think) == THINK_NONE, strcmp(think, "none") == 0);
        chat_free(c);
        (void)snprintf(path, sizeof(path), "rm -r %s", dir);
        assert_int_equal(system(path), 0); /* NOLINT: of its own files */
    }
    assert_string_equal(parsers_tools(NULL, NULL), "none");
    assert_string_equal(parsers_thinking(NULL), "none");
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_templates)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
