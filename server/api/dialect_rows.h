/*
 * Rows of the table of fields (field_table.c) that other servers and their clients have beside
 * OpenAI's and vLLM's own: SGLang, llama-server, Ollama, TGI, Anthropic's betas. There are three
 * cases. A field that is another name of one of ours is read like that one. A field that bounds or
 * chooses what may come, and that is not offered, is refused unless it is neutral. A field without
 * which the answer is still right is accepted and named in the answer's X-Ignored-Fields, as
 * unknown fields are.
 *
 * The rows want the macros of field_table.c. tests/fixtures/dialects.json says of each field, from
 * the documentation of its server, what becomes of it; tests/e2e/test_dialects.py asks for all of
 * them.
 */
#pragma once

#define DIALECT_FORMS                                                                              \
    ROW_FORM("regex", FOR_TEXT, GRAMMAR_REGEX, "\"type\":\"string\"",                              \
             "SGLang's name of structured_outputs.regex."),                                        \
        ROW_FORM("ebnf", FOR_TEXT, GRAMMAR_EBNF, "\"type\":\"string\"",                            \
                 "SGLang's name of structured_outputs.grammar."),                                  \
        ROW_OWN("grammar", FOR_TEXT, read_gbnf, "\"type\":\"string\"",                             \
                "llama-server's name of structured_outputs.grammar."),                             \
        ROW_FORM("json_schema", FOR_TEXT, GRAMMAR_SCHEMA, "\"type\":[\"object\",\"string\"]",      \
                 "llama-server's name of structured_outputs.json."),                               \
        ROW_OWN("format", FOR_TEXT, read_ollama_format, "\"type\":[\"object\",\"string\"]",        \
                "Ollama's: json, or a JSON schema."),                                              \
        ROW_OWN("output_config", FOR_MESSAGES, read_output_config, "\"type\":\"object\"",          \
                "`format`: type json_schema with a schema; `effort`: how much to think."),         \
        ROW_OWN("output_format", FOR_MESSAGES, read_output_format, "\"type\":\"object\"",          \
                "The older name of output_config.format.")

#define DIALECT_LIMITS                                                                             \
    ROW_OWN("n_predict", FOR_TEXT, read_predict, "\"type\":\"integer\",\"minimum\":-2",            \
            "llama-server's name of max_tokens; -1: as many as fit."),                             \
        ROW_COUNT("max_new_tokens", FOR_TEXT, max_tokens, 1, INT32_MAX,                            \
                  "TGI's name of max_tokens."),                                                    \
        ROW_REAL("repeat_penalty", FOR_TEXT, sampling.repetition, 0, 100,                          \
                 "llama-server's name of repetition_penalty."),                                    \
        ROW_COUNT("n_indent", FOR_INFILL, indent, 0, INT32_MAX,                                    \
                  "An answer ends before a line that is indented less; its first is free."),       \
        ROW_WHOLE("t_max_predict_ms", FOR_INFILL, predict_ms, -1, INT32_MAX,                       \
                  "After so many milliseconds the answer ends with its line; 0 and -1: never."),   \
        ROW_BOOL("no_stop_trim", FOR_TEXT, include_stop,                                           \
                 "SGLang's name of include_stop_str_in_output."),                                  \
        ROW_OWN("modalities", FOR_CHAT, read_modalities, STRINGS, "Only text."),                   \
        ROW_OWN("options", FOR_TEXT, read_ollama_options, "\"type\":\"object\"",                   \
                "Ollama's: num_predict, stop, seed, temperature and other ways to sample.")

#define DIALECT_REFUSED                                                                            \
    ROW_NO("n", FOR_RESPONSES | FOR_MESSAGES | FOR_INFILL, 1, "send the request again"),           \
        ROW_NO("n_cmpl", FOR_TEXT, 1, "use n, or send the request again"),                         \
        ROW_NO("mirostat", FOR_TEXT, 0, "use temperature, top_p or min_p"),                        \
        ROW_NO("mirostat_mode", FOR_TEXT, 0, "use temperature, top_p or min_p"),                   \
        ROW_NO("dry_multiplier", FOR_TEXT, 0, "use repetition_penalty"),                           \
        ROW_NO("xtc_probability", FOR_TEXT, 0, "use min_p"),                                       \
        ROW_NO("dynatemp_range", FOR_TEXT, 0, "use temperature"),                                  \
        ROW_NO("top_n_sigma", FOR_TEXT, -1, "use min_p"),                                          \
        ROW_NO("tfs_z", FOR_TEXT, 1, "use min_p"), ROW_NO("top_a", FOR_TEXT, 0, "use min_p"),      \
        ROW_NO("t_max_predict_ms", FOR_TEXT & ~FOR_INFILL, 0, "use max_tokens"),                   \
        ROW_NO("n_indent", FOR_TEXT & ~FOR_INFILL, 0, "use a grammar"),                            \
        ROW_NO("reasoning_budget", FOR_TEXT & ~FOR_CHAT, -1, "use chat completions"),              \
        ROW_NO("thinking_token_budget", FOR_TEXT & ~FOR_CHAT, -1, "use chat completions"),         \
        ROW_NO_ANY("stop_regex", FOR_TEXT, "use stop"),                                            \
        ROW_NO_ANY("lora_path", FOR_TEXT, "use model"),                                            \
        ROW_NO_TRUE("grammar_lazy", FOR_TEXT, "use tools with strict"),                            \
        ROW_NO_ANY("grammar_triggers", FOR_TEXT, "use tools with strict"),                         \
        ROW_NO_ANY("logits_processors", FOR_TEXT, "use logit_bias or a grammar"),                  \
        ROW_NO_ANY("custom_logit_processor", FOR_TEXT, "use logit_bias or a grammar"),             \
        ROW_NO_ANY("repetition_detection", FOR_TEXT, "use repetition_penalty")

#define DIALECT_FREE                                                                               \
    ROW_FREE("metadata", FOR_GENERATE | FOR_MESSAGES), ROW_FREE("user", FOR_TEXT | FOR_STATES),    \
        ROW_FREE("store", FOR_TEXT & ~FOR_RESPONSES), ROW_FREE("service_tier", FOR_TEXT),          \
        ROW_FREE("safety_identifier", FOR_TEXT), ROW_FREE("prompt_cache_key", FOR_TEXT),           \
        ROW_FREE("prompt_cache_retention", FOR_TEXT), ROW_FREE("prediction", FOR_CHAT),            \
        ROW_FREE("verbosity", FOR_CHAT), ROW_FREE("web_search_options", FOR_CHAT),                 \
        ROW_FREE("truncation", FOR_RESPONSES), ROW_FREE("max_tool_calls", FOR_RESPONSES),          \
        ROW_FREE("client_metadata", FOR_RESPONSES),                                                \
        ROW_FREE("thinking", FOR_TEXT & ~FOR_MESSAGES), ROW_FREE("container", FOR_MESSAGES),       \
        ROW_FREE("context_management", FOR_RESPONSES | FOR_MESSAGES),                              \
        ROW_FREE("mcp_servers", FOR_MESSAGES), ROW_FREE("inference_geo", FOR_MESSAGES),            \
        ROW_FREE("cache_control", FOR_MESSAGES), ROW_FREE("speed", FOR_MESSAGES),                  \
        ROW_FREE("guided_decoding_backend", FOR_TEXT),                                             \
        ROW_FREE("request_id", FOR_TEXT | FOR_STATES), ROW_FREE("kv_transfer_params", FOR_TEXT),   \
        ROW_FREE("vllm_xargs", FOR_TEXT), ROW_FREE("mm_processor_kwargs", FOR_TEXT | FOR_STATES),  \
        ROW_FREE("max_chunks_per_doc", FOR_RERANK), ROW_FREE("media_io_kwargs", FOR_TEXT),         \
        ROW_FREE("spaces_between_special_tokens", FOR_TEXT), ROW_FREE("rid", FOR_TEXT),            \
        ROW_FREE("session_params", FOR_TEXT), ROW_FREE("separate_reasoning", FOR_TEXT),            \
        ROW_FREE("stream_reasoning", FOR_TEXT), ROW_FREE("return_hidden_states", FOR_TEXT),        \
        ROW_FREE("cache_prompt", FOR_TEXT), ROW_FREE("id_slot", FOR_TEXT),                         \
        ROW_FREE("n_keep", FOR_TEXT), ROW_FREE("n_probs", FOR_TEXT),                               \
        ROW_FREE("min_keep", FOR_TEXT), ROW_FREE("repeat_last_n", FOR_TEXT),                       \
        ROW_FREE("samplers", FOR_TEXT), ROW_FREE("timings_per_token", FOR_TEXT),                   \
        ROW_FREE("return_progress", FOR_TEXT), ROW_FREE("post_sampling_probs", FOR_TEXT),          \
        ROW_FREE("reasoning_format", FOR_TEXT), ROW_FREE("parse_tool_calls", FOR_TEXT),            \
        ROW_FREE("keep_alive", FOR_TEXT | FOR_OLLAMA_EMBED),                                       \
        ROW_FREE("think", FOR_TEXT & ~FOR_OLLAMA), ROW_FREE("shift", FOR_OLLAMA),                  \
        ROW_FREE("truncate", FOR_OLLAMA | FOR_OLLAMA_EMBED), ROW_FREE("options", FOR_OLLAMA_EMBED)
