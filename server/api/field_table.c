/*
 * The table of the fields of request bodies; read by fields.c, told by server/net/openapi.c.
 */
#include "server/api/fields.h"

#include <stddef.h>

#include "server/api/dialect_rows.h"
#include "server/api/readers.h"

#define AT(member) offsetof(struct openai_ask, member)
#define ROW_BOOL(name, on, member, help)                                                           \
    {                                                                                              \
        name, on, FIELD_BOOL, AT(member), 0, 1, NULL, false, NULL, help                            \
    }
#define ROW_REAL(name, on, member, min, max, help)                                                 \
    {                                                                                              \
        name, on, FIELD_REAL, AT(member), min, max, NULL, false, NULL, help                        \
    }
#define ROW_COUNT(name, on, member, min, max, help)                                                \
    {                                                                                              \
        name, on, FIELD_COUNT, AT(member), min, max, NULL, false, NULL, help                       \
    }
#define ROW_WHOLE(name, on, member, min, max, help)                                                \
    {                                                                                              \
        name, on, FIELD_WHOLE, AT(member), min, max, NULL, false, NULL, help                       \
    }
#define ROW_OWN(name, on, fn, schema, help)                                                        \
    {                                                                                              \
        name, on, FIELD_OWN, 0, 0, 0, fn, false, schema, help                                      \
    }
#define ROW_NEED(name, on, fn, schema, help)                                                       \
    {                                                                                              \
        name, on, FIELD_OWN, 0, 0, 0, fn, true, schema, help                                       \
    }
#define ROW_FORM(name, on, kind, schema, help)                                                     \
    {                                                                                              \
        name, on, FIELD_FORM, 0, kind, 0, NULL, false, schema, help                                \
    }
#define ROW_NO(name, on, neutral, instead)                                                         \
    {                                                                                              \
        name, on, FIELD_NO, 0, neutral, 0, NULL, false, NULL, instead                              \
    }
#define ROW_NO_TRUE(name, on, instead)                                                             \
    {                                                                                              \
        name, on, FIELD_NO_TRUE, 0, 0, 0, NULL, false, NULL, instead                               \
    }
#define ROW_NO_ANY(name, on, instead)                                                              \
    {                                                                                              \
        name, on, FIELD_NO_ANY, 0, 0, 0, NULL, false, NULL, instead                                \
    }

#define ROW_FREE(name, on)                                                                         \
    {                                                                                              \
        name, on, FIELD_FREE, 0, 0, 0, NULL, false, NULL, "Accepted; it changes nothing."          \
    }

#define STRINGS "\"type\":\"array\",\"items\":{\"type\":\"string\"}"
#define IDS     "\"type\":\"array\",\"items\":{\"type\":\"integer\",\"minimum\":0}"
#define PROMPTS                                                                                    \
    "\"anyOf\":[{\"type\":\"string\",\"minLength\":1},{" STRINGS ",\"minItems\":1},{" IDS          \
    ",\"minItems\":1},{\"type\":\"array\",\"minItems\":1,\"items\":{" IDS ",\"minItems\":1}}]"
#define MESSAGES(roles)                                                                            \
    "\"type\":\"array\",\"minItems\":1,\"items\":{\"type\":\"object\",\"required\":[\"role\","     \
    "\"content\"],\"properties\":{\"role\":{\"enum\":[" roles                                      \
    "]},\"content\":{\"anyOf\":[{\"type\":\"string\"},{" OBJECTS "}]}}}"
#define OBJECTS "\"type\":\"array\",\"items\":{\"type\":\"object\"}"

#define TEXTS                                                                                      \
    "\"anyOf\":[{\"type\":\"string\"},{\"type\":\"array\",\"minItems\":1,\"items\":{\"anyOf\":[{"  \
    "\"type\":\"string\"},{\"type\":\"object\",\"required\":[\"text\"]}]}}]"
#define PAIR_ROWS                                                                                  \
    ROW_OWN("query", FOR_RERANK, read_pair_query, "\"type\":\"string\"",                           \
            "What the documents are ranked by."),                                                  \
        ROW_OWN("documents", FOR_PAIRS, read_pair_documents, TEXTS,                                \
                "Texts, or objects with `text`."),                                                 \
        ROW_OWN("text_1", FOR_SCORE, read_pair_text_1, TEXTS, "One text, or one for each other."), \
        ROW_OWN("text_2", FOR_SCORE, read_pair_text_2, TEXTS, "What it is compared with."),        \
        ROW_OWN("queries", FOR_SCORE, read_pair_queries, TEXTS, "Another name of text_1."),        \
        ROW_OWN("items", FOR_SCORE, read_pair_items, TEXTS, "Another name of text_2."),            \
        ROW_OWN("data_1", FOR_SCORE, read_pair_data_1, TEXTS, "Another name of text_1."),          \
        ROW_OWN("data_2", FOR_SCORE, read_pair_data_2, TEXTS, "Another name of text_2."),          \
        ROW_COUNT("top_n", FOR_RERANK, top_n, 0, INT32_MAX, "Only so many, the best; 0: all."),    \
        ROW_OWN("return_documents", FOR_RERANK, read_return_documents, "\"type\":\"boolean\"",     \
                "False: ranks without the texts."),                                                \
        ROW_OWN("rank_fields", FOR_RERANK, read_rank_fields, STRINGS, "Only text."),               \
        ROW_COUNT("max_tokens_per_query", FOR_PAIRS, first_most, 0, INT32_MAX,                     \
                  "Only so many of its first tokens are read; 0: all."),                           \
        ROW_COUNT("max_tokens_per_doc", FOR_PAIRS, second_most, 0, INT32_MAX,                      \
                  "Only so many of each one's first tokens are read; 0: all."),                    \
        ROW_OWN("instruction", FOR_PAIRS, read_pair_instruction, "\"type\":\"string\"",            \
                "What counts as fitting, for the template for pairs."),                            \
        ROW_OWN("instruct", FOR_PAIRS, read_pair_instruct, "\"type\":\"string\"",                  \
                "Another name of it."),                                                            \
        ROW_OWN("truncation", FOR_RERANK, read_pair_truncation, "\"type\":\"boolean\"",            \
                "True: texts that are too long are cut to what fits."),                            \
        ROW_NO_TRUE("return_embeddings", FOR_RERANK, "use /v1/embeddings"),                        \
        ROW_NO_TRUE("apply_softmax", FOR_SCORE, "start the server with --hf-overrides"),           \
        ROW_OWN("embed_dtype", FOR_EMBED | FOR_POOLING, read_embed_dtype,                          \
                "\"enum\":[\"float32\"]", "Only float32."),                                        \
        ROW_OWN("endianness", FOR_EMBED | FOR_POOLING, read_endianness,                            \
                "\"enum\":[\"native\",\"little\"]", "Only native, which is little."),              \
        ROW_OWN("task", FOR_POOLING, read_pooling_task, "\"enum\":[\"embed\",\"classify\"]",       \
                "embed: the vector; classify: the classes, where the model has them."),            \
        ROW_OWN("use_activation", FOR_STATES, read_activation, "\"type\":\"boolean\"",             \
                "False: numbers as the model gives them."),                                        \
        ROW_OWN("activation", FOR_STATES, read_activation, "\"type\":\"boolean\"",                 \
                "The older name of use_activation."),                                              \
        ROW_OWN("normalize", FOR_STATES, read_activation, "\"type\":\"boolean\"",                  \
                "The older name of use_activation."),                                              \
        ROW_OWN("softmax", FOR_STATES, read_activation, "\"type\":\"boolean\"",                    \
                "The older name of use_activation."),                                              \
        ROW_OWN("padding", FOR_STATES, read_padding, "\"enum\":[\"do_not_pad\"]",                  \
                "Only do_not_pad."),                                                               \
        ROW_NO_ANY("messages", FOR_EMBED | FOR_CLASSIFY | FOR_POOLING,                             \
                   "send input; /v1/chat/completions/render makes token ids of messages"),         \
        ROW_NO_ANY("label_token_ids", FOR_SCORE, "start the server with --hf-overrides")

const struct field field_table[] = {
    ROW_OWN("model", FOR_ANY, read_model, "\"type\":\"string\"",
            "A served name; the first one when it is left out."),
    ROW_BOOL("stream", FOR_TEXT, stream, "Answer as server-sent events."),
    ROW_OWN("stream_options", FOR_GENERATE, read_stream_options,
            "\"type\":\"object\",\"properties\":{\"include_usage\":{\"type\":\"boolean\"},"
            "\"continuous_usage_stats\":{\"type\":\"boolean\"}}",
            "Usage in the stream: at its end, in each chunk."),
    ROW_NEED("messages", FOR_CHAT | FOR_TOKENIZE, read_messages,
             MESSAGES("\"system\",\"developer\",\"user\",\"assistant\",\"tool\""),
             "The conversation: role, content (text), tool_calls."),
    ROW_NEED("prompt", FOR_PLAIN | FOR_TOKENIZE, read_prompt, PROMPTS,
             "What to complete: text, token ids, or a list of either."),
    ROW_NEED("input_prefix", FOR_INFILL, read_infill_prefix, "\"type\":\"string\"",
             "What comes before the gap."),
    ROW_OWN("prompt", FOR_INFILL, read_infill_prompt, "\"type\":\"string\"",
            "What has been typed in the gap; it goes on where the prefix ends."),
    ROW_OWN("input_extra", FOR_INFILL, read_infill_extra, OBJECTS,
            "Texts of other files: `text`, `filename`."),
    ROW_OWN("raw", FOR_OLLAMA_TEXT, read_ollama_raw, "\"type\":\"boolean\"",
            "The prompt is completed as it is, without the template."),
    ROW_OWN("system", FOR_OLLAMA_TEXT, read_ollama_text, "\"type\":\"string\"",
            "The system's message."),
    ROW_NEED("prompt", FOR_OLLAMA_TEXT, read_ollama_prompt, "\"type\":\"string\"",
             "What the user says."),
    ROW_NEED("messages", FOR_OLLAMA_CHAT, read_ollama_messages,
             MESSAGES("\"system\",\"user\",\"assistant\",\"tool\""),
             "The conversation: role, content, tool_calls."),
    ROW_OWN("tools", FOR_OLLAMA_CHAT, read_ollama_tools, OBJECTS,
            "Functions that the model may call."),
    ROW_NEED("input", FOR_EMBED | FOR_OLLAMA_EMBED | FOR_CLASSIFY | FOR_POOLING, read_input,
             PROMPTS, "What to embed or to classify: text, token ids, or a list of either."),
    PAIR_ROWS,
    ROW_NEED("tokens", FOR_DETOKENIZE, read_tokens, IDS, "The token ids."),
    ROW_OWN("instructions", FOR_RESPONSES, read_instructions, "\"type\":\"string\"",
            "The system's message."),
    ROW_OWN("system", FOR_MESSAGES, read_anthropic_system,
            "\"anyOf\":[{\"type\":\"string\"},{" OBJECTS "}]", "The system's message."),
    ROW_NEED("input", FOR_RESPONSES, read_responses_input,
             "\"anyOf\":[{\"type\":\"string\"},{" OBJECTS ",\"minItems\":1}]",
             "Text, or items: messages, function_call, function_call_output."),
    ROW_NEED("messages", FOR_MESSAGES, read_anthropic_messages,
             MESSAGES("\"user\",\"assistant\",\"system\""),
             "The conversation: text, tool_use and tool_result blocks."),
    ROW_OWN("tools", FOR_RESPONSES, read_responses_tools, OBJECTS,
            "Functions that the model may call."),
    ROW_OWN("tools", FOR_MESSAGES, read_anthropic_tools, OBJECTS,
            "Functions that the model may call."),
    ROW_OWN("tool_choice", FOR_MESSAGES, read_anthropic_choice, "\"type\":\"object\"",
            "Type auto, none, any, or tool with its name."),
    ROW_OWN("tools", FOR_CHAT | FOR_TOKENIZE, read_tools, OBJECTS,
            "Functions that the model may call."),
    ROW_OWN("tool_choice", FOR_CHAT | FOR_RESPONSES | FOR_OLLAMA_CHAT, read_tool_choice,
            "\"anyOf\":[{\"enum\":[\"none\",\"auto\",\"required\"]},{\"type\":\"object\"}]",
            "Whether it may call them, must, which one it must, or which ones it may."),
    ROW_OWN("parallel_tool_calls", FOR_CHAT | FOR_RESPONSES | FOR_OLLAMA_CHAT, read_parallel,
            "\"type\":\"boolean\"", "False: only the first call is given."),
    ROW_BOOL("include_reasoning", FOR_CHAT, include_reasoning, "False: the thinking is not shown."),
    ROW_OWN("chat_template_kwargs", FOR_CHATS | FOR_TOKENIZE | FOR_PAIRS, read_template_args,
            "\"type\":\"object\"", "Variables for the chat template."),
    ROW_OWN("think", FOR_OLLAMA, read_ollama_think,
            "\"anyOf\":[{\"type\":\"boolean\"},{\"enum\":[\"low\",\"medium\",\"high\",\"max\"]}]",
            "Whether to think, for the chat template, or how much."),
    ROW_OWN("reasoning_effort", FOR_CHAT, read_effort, "\"type\":\"string\"",
            "How much to think, for the chat template: low, medium, high."),
    ROW_OWN("thinking_token_budget", FOR_CHAT, read_thinking_budget,
            "\"type\":\"integer\",\"minimum\":-1",
            "After so many tokens of thinking the answer begins; -1: when the model says so."),
    ROW_OWN("reasoning_budget", FOR_CHAT, read_reasoning_budget,
            "\"type\":\"integer\",\"minimum\":-1", "llama.cpp's name of thinking_token_budget."),
    ROW_OWN("thinking", FOR_MESSAGES, read_thinking, "\"type\":\"object\"",
            "`budget_tokens`, as thinking_token_budget of chats."),
    ROW_OWN("reasoning", FOR_RESPONSES, read_reasoning, "\"type\":\"object\"",
            "`effort`, as reasoning_effort of chats."),
    ROW_OWN("documents", FOR_CHAT, read_documents, OBJECTS, "Documents for the chat template."),
    ROW_BOOL("add_generation_prompt", FOR_CHAT | FOR_TOKENIZE, add_generation_prompt,
             "Whether the template opens the answer."),
    ROW_BOOL("continue_final_message", FOR_CHAT | FOR_TOKENIZE, continue_final,
             "The last message is left open and continued."),
    ROW_BOOL("add_special_tokens", FOR_GENERATE | FOR_STATES | FOR_TOKENIZE, add_specials,
             "Whether the tokenizer adds its own tokens."),

    ROW_REAL("temperature", FOR_TEXT, sampling.temperature, 0, 2, "0 is greedy."),
    ROW_REAL("top_p", FOR_TEXT, sampling.top_p, 0, 1,
             "Only the likeliest tokens that together have this probability."),
    ROW_OWN("top_k", FOR_TEXT, read_top_k,
            "\"type\":\"integer\",\"minimum\":-1,\"maximum\":2147483647",
            "Only so many likeliest tokens; 0 and -1 are off."),
    ROW_REAL("min_p", FOR_TEXT, sampling.min_p, 0, 1,
             "Only tokens at least so likely, relative to the likeliest."),
    ROW_REAL("typical_p", FOR_TEXT, sampling.typical_p, 0, 1,
             "Only tokens whose surprise is near the expected one."),
    ROW_REAL("frequency_penalty", FOR_TEXT, sampling.frequency, -2, 2,
             "Taken from a token's logit each time it has come."),
    ROW_REAL("presence_penalty", FOR_TEXT, sampling.presence, -2, 2,
             "Taken from a token's logit once it has come."),
    ROW_REAL("repetition_penalty", FOR_TEXT, sampling.repetition, 0, 100,
             "Divides logits of tokens of prompt and answer."),
    ROW_OWN("logit_bias", FOR_TEXT, read_logit_bias,
            "\"type\":\"object\",\"additionalProperties\":{\"type\":\"number\",\"minimum\":-100,"
            "\"maximum\":100}",
            "Added to logits, by token id."),
    ROW_OWN("allowed_token_ids", FOR_TEXT, read_allowed_ids, IDS ",\"minItems\":1",
            "Only these tokens may come."),
    ROW_OWN("bad_words", FOR_TEXT, read_bad_words, STRINGS, "Texts whose tokens must not come."),
    ROW_OWN("seed", FOR_TEXT, read_seed, "\"type\":\"integer\"",
            "The same seed draws the same; -1 is by chance."),
    ROW_COUNT("n", FOR_GENERATE, n, 1, OPENAI_N, "How many answers."),
    ROW_OWN("max_tokens", FOR_GENERATE | FOR_RESPONSES | FOR_OLLAMA | FOR_INFILL, read_max_tokens,
            "\"type\":\"integer\",\"minimum\":0", "Most tokens of an answer."),
    ROW_COUNT("max_output_tokens", FOR_TEXT, max_tokens, 1, INT32_MAX,
              "Most tokens of the answer."),
    ROW_NEED("max_tokens", FOR_MESSAGES, read_needed_max, "\"type\":\"integer\",\"minimum\":1",
             "Most tokens of the answer."),
    DIALECT_LIMITS,
    ROW_OWN("stop_sequences", FOR_MESSAGES, read_stop_sequences, STRINGS,
            "Texts that end the answer."),
    ROW_OWN("text", FOR_RESPONSES, read_responses_text, "\"type\":\"object\"",
            "The form of the answer: type text."),
    ROW_COUNT("max_completion_tokens", FOR_TEXT, max_tokens, 1, INT32_MAX,
              "The same, and it wins."),
    ROW_COUNT("min_tokens", FOR_TEXT, min_tokens, 0, INT32_MAX, "No stop before so many tokens."),
    ROW_OWN("stop", FOR_TEXT, read_stop, "\"anyOf\":[{\"type\":\"string\"},{" STRINGS "}]",
            "Texts that end the answer."),
    ROW_OWN("stop_token_ids", FOR_TEXT, read_stop_ids, IDS, "Tokens that end the answer."),
    ROW_BOOL("ignore_eos", FOR_TEXT, ignore_eos, "The model's end token does not end the answer."),
    ROW_OWN("suffix", FOR_PLAIN, read_suffix, "\"type\":\"string\"",
            "What comes after the answer, for models that fill in the middle."),
    ROW_NEED("input_suffix", FOR_INFILL, read_infill_suffix, "\"type\":\"string\"",
             "What comes after the gap."),
    ROW_BOOL("include_stop_str_in_output", FOR_TEXT, include_stop,
             "What ended the answer stays in it."),
    ROW_BOOL("skip_special_tokens", FOR_TEXT, skip_specials, "Special tokens give no text."),
    ROW_OWN("logprobs", FOR_GENERATE | FOR_OLLAMA, read_logprobs,
            "\"anyOf\":[{\"type\":\"boolean\"},{\"type\":\"integer\",\"minimum\":0}]",
            "Log probabilities: a number of alternatives for completions, true for chats."),
    ROW_OWN("top_logprobs", FOR_CHAT | FOR_OLLAMA, read_top_logprobs,
            "\"type\":\"integer\",\"minimum\":0", "How many alternatives."),
    ROW_OWN("include", FOR_RESPONSES, read_include, STRINGS,
            "message.output_text.logprobs: the log probabilities of the answer's tokens."),
    ROW_OWN("top_logprobs", FOR_RESPONSES, read_responses_top, "\"type\":\"integer\",\"minimum\":0",
            "How many alternatives of them."),
    ROW_OWN("prompt_logprobs", FOR_GENERATE, read_prompt_logprobs,
            "\"type\":\"integer\",\"minimum\":0",
            "Log probabilities of the prompt, with so many alternatives."),
    ROW_BOOL("echo", FOR_GENERATE, echo,
             "The prompt comes before the text; in chats the message that is continued."),
    ROW_OWN("truncate_prompt_tokens", FOR_TEXT | FOR_STATES, read_truncate,
            "\"type\":\"integer\",\"minimum\":-1",
            "Only the last tokens of the prompt; -1: as many as fit."),
    ROW_BOOL("return_token_ids", FOR_GENERATE, return_token_ids, "Token ids of prompt and answer."),
    ROW_BOOL("return_prompt_text", FOR_CHAT, return_prompt_text,
             "What the chat template made of the messages."),
    ROW_BOOL("return_tokens", FOR_INFILL, return_token_ids,
             "The answer's tokens; a stream has them always."),
    ROW_OWN("response_fields", FOR_INFILL, read_infill_fields, STRINGS,
            "The only fields that are answered; timings/prompt_n is a part of one."),
    ROW_BOOL("return_tokens_as_token_ids", FOR_GENERATE, tokens_as_ids,
             "Tokens of log probabilities as token_id:N."),
    ROW_BOOL("return_token_strs", FOR_TOKENIZE, token_strings, "The text of each token."),
    ROW_OWN("truncation_side", FOR_TEXT | FOR_STATES, read_truncation_side,
            "\"enum\":[\"left\",\"right\"]",
            "Which end truncate_prompt_tokens cuts; left unless it says right."),
    ROW_WHOLE("priority", FOR_TEXT | FOR_STATES, priority, INT32_MIN, INT32_MAX,
              "Smaller comes first with --scheduling-policy priority; else it does nothing."),
    ROW_OWN("cache_salt", FOR_TEXT | FOR_STATES, read_salt, "\"type\":\"string\",\"minLength\":1",
            "Prefixes are shared only under the same salt."),
    ROW_OWN(
        "response_format", FOR_TEXT, read_response_format,
        "\"type\":\"object\",\"required\":[\"type\"],\"properties\":{\"type\":{\"enum\":["
        "\"text\",\"json_object\",\"json_schema\",\"structural_tag\"]},"
        "\"json_schema\":{\"type\":\"object\",\"required\":[\"schema\"]}}",
        "The form of the answer: text, any JSON object, JSON that is valid under a schema, or a "
        "structural tag."),
    ROW_OWN(
        "structured_outputs", FOR_TEXT, read_structured, "\"type\":\"object\"",
        "The form of the answer: one of json, json_object, regex, choice, grammar (EBNF, Lark), "
        "structural_tag."),
    ROW_FORM("guided_json", FOR_TEXT, GRAMMAR_SCHEMA,
             "\"type\":[\"object\",\"string\",\"boolean\"]",
             "The older name of structured_outputs.json."),
    ROW_FORM("guided_regex", FOR_TEXT, GRAMMAR_REGEX, "\"type\":\"string\"",
             "The older name of structured_outputs.regex."),
    ROW_FORM("guided_choice", FOR_TEXT, GRAMMAR_CHOICE, STRINGS ",\"minItems\":1",
             "The older name of structured_outputs.choice."),
    ROW_FORM("guided_grammar", FOR_TEXT, GRAMMAR_EBNF, "\"type\":\"string\"",
             "The older name of structured_outputs.grammar."),
    ROW_FORM("structural_tag", FOR_TEXT, GRAMMAR_STRUCTURE, "\"type\":[\"object\",\"string\"]",
             "The older name of structured_outputs.structural_tag."),
    DIALECT_FORMS,
    ROW_BOOL("finish_form", FOR_TEXT, finish_form,
             "An answer with a form is completed within max_tokens; false: it is cut there."),
    ROW_OWN("encoding_format", FOR_EMBED | FOR_POOLING, read_encoding,
            "\"enum\":[\"float\",\"base64\"]", "Numbers, or their bytes as base64."),
    ROW_OWN("dimensions", FOR_EMBED | FOR_OLLAMA_EMBED | FOR_POOLING, read_dimensions,
            "\"type\":\"integer\",\"minimum\":1", "Only the model's own number."),

    ROW_OWN("best_of", FOR_TEXT, read_best_of, "\"type\":\"integer\"",
            "Only 1, or as many as `n`: all that are made are given."),
    ROW_NO("length_penalty", FOR_TEXT, 1, "leave it out"),
    ROW_NO_TRUE("use_beam_search", FOR_TEXT, "leave it out"),
    ROW_NO_ANY("suffix", FOR_OLLAMA_TEXT, "use /v1/completions"),
    ROW_NO_ANY("prompt_embeds", FOR_GENERATE, "send text or token ids"),
    ROW_NO_ANY("logprob_token_ids", FOR_GENERATE, "leave it out"),
    ROW_NO_ANY("chat_template", FOR_CHAT | FOR_TOKENIZE, "start the server with --chat-template"),
    ROW_NO_ANY("guided_whitespace_pattern", FOR_TEXT, "leave it out"),
    ROW_OWN(
        "store", FOR_RESPONSES, read_store, "\"type\":\"boolean\"",
        "Whether the response is stored, with --responses-store-bytes; true unless it is false."),
    ROW_OWN("previous_response_id", FOR_RESPONSES, read_previous, "\"type\":\"string\"",
            "A stored response whose conversation goes on, with --responses-store-bytes."),
    ROW_NO_ANY("conversation", FOR_RESPONSES, "send previous_response_id, or all of it as input"),
    ROW_NO_ANY("prompt", FOR_RESPONSES, "send instructions and input"),
    ROW_NO_TRUE("background", FOR_RESPONSES, "wait for the answer, or stream"),
    ROW_NO_ANY("template", FOR_OLLAMA, "start the server with --chat-template"),
    ROW_NO_ANY("context", FOR_OLLAMA_TEXT, "send the conversation to /api/chat"),
    ROW_NO_ANY("images", FOR_OLLAMA_TEXT, "this model takes text"),
    ROW_NO_ANY("functions", FOR_CHAT, "use tools"),
    ROW_NO_ANY("function_call", FOR_CHAT, "use tool_choice"),
    ROW_NO_ANY("audio", FOR_CHAT, "leave it out"),
    DIALECT_REFUSED,
    DIALECT_FREE,
};

uint32_t field_count(void)
{
    return sizeof(field_table) / sizeof(field_table[0]);
}
