/*
 * Which parsers a model's answers need, told by its chat template: its author taught the model
 * the marks that stand in it. The names are vLLM's, as toolstyle_find() and thinkstyle_find()
 * know them. gpt-oss is told by its tokens, see start.c. Pure.
 */
#pragma once

struct chat;
struct tokenizer;

/* "none" when the template shows no calls that a parser reads; tok is asked for marks that
 * templates leave out. */
const char *parsers_tools(const struct chat *c, const struct tokenizer *tok);
/* "none" when it shows no thinking. Of several parsers for the same marks, the one that takes for
 * thinking only what prompt or answer opens: a template may switch it off. */
const char *parsers_thinking(const struct chat *c);
