/*
 * Chooses the parsers of answers, by options or by the model's template (answer_parsers.h). Called
 * by start.c, and by start_load.c for what is served.
 */
#include "server/answer_parsers.h"

#include <string.h>

#include "common/err.h"
#include "common/log.h"
#include "server/options.h"
#include "server/stack.h"
#include "server/text/answer/parsers.h"
#include "server/text/tokenizer.h"

static bool is_auto(const char *name)
{
    return strcmp(name, "auto") == 0;
}

/* Whether chats are harmony's: chosen by name, or by itself where the tokenizer has all its marks.
 */
static int find_marks(struct stack *s, struct ek_fault *fault)
{
    const struct options *o = s->o;
    bool think = thinkstyle_find(o->reasoning_parser) == THINK_HARMONY;
    bool named = think || toolstyle_find(o->tool_call_parser) == TOOLS_OPENAI;
    int i = 0;
    while (i < HARMONY_MARKS) {
        s->mark[i] = tokenizer_find(s->tok, harmony_text((enum harmony_mark)i));
        if (s->mark[i] < 0 || !tokenizer_is_special(s->tok, s->mark[i]))
            break;
        i++;
    }
    s->harmony = i == HARMONY_MARKS &&
                 (named || (is_auto(o->reasoning_parser) && is_auto(o->tool_call_parser)));
    if (!named || s->harmony)
        return 0;
    return ek_fault_set(fault, think ? "reasoning-parser" : "tool-call-parser",
                        "--%s is for gpt-oss, but the model's tokenizer has no special token %s; "
                        "leave the option out, or name the model's own parser",
                        think ? "reasoning-parser openai_gptoss" : "tool-call-parser openai",
                        harmony_text((enum harmony_mark)i));
}

int answer_parsers_choose(struct stack *s, struct ek_fault *fault)
{
    const struct options *o = s->o;
    int r = find_marks(s, fault);
    if (r < 0)
        return r;
    s->tool_parser = o->tool_call_parser;
    s->reasoning_parser = o->reasoning_parser;
    if (s->harmony) { /* one takes all apart */
        s->tool_parser = "openai";
        s->reasoning_parser = "openai_gptoss";
    } else if (is_auto(s->tool_parser)) {
        s->tool_parser = parsers_tools(s->chat, s->tok);
    } else if (!o->enable_auto_tool_choice) { /* as in vLLM, which needs both */
        s->tool_parser = "none";
    }
    if (is_auto(s->reasoning_parser))
        s->reasoning_parser = parsers_thinking(s->chat);
    if (o->enable_auto_tool_choice && strcmp(s->tool_parser, "none") == 0)
        return ek_fault_set(fault, "enable-auto-tool-choice",
                            "--enable-auto-tool-choice: the model's chat template shows no calls "
                            "that a parser is known for: name the model's with --tool-call-parser, "
                            "or leave the option out");
    ek_log(EK_LOG_INFO, "Parsers: tool calls %s%s, thinking %s%s", s->tool_parser,
           is_auto(o->tool_call_parser) ? " (by the chat template)" : "", s->reasoning_parser,
           is_auto(o->reasoning_parser) ? " (by the chat template)" : "");
    return 0;
}

void answer_parsers_fill(const struct stack *s, struct served *v)
{
    v->think = s->harmony ? THINK_HARMONY : thinkstyle_find(s->reasoning_parser);
    v->tools = s->harmony ? TOOLS_OPENAI : toolstyle_find(s->tool_parser);
    v->tool_parser = s->tool_parser;
    v->reasoning_parser = s->reasoning_parser;
    memcpy(v->mark, s->mark, sizeof(v->mark));
}
