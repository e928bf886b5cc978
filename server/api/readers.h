/*
 * Readers of fields that have a shape of their own, for the table of field_table.c: each is
 * declared here under the file that has it. 0, or -EBADMSG with err.
 */
#pragma once

#include <jansson.h>

#include "server/grammar/compile.h"

struct api_error;
struct field_source;
struct openai_ask;

/* field_readers.c: */
int read_model(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err);
int read_stream_options(const struct field_source *from, json_t *v, struct openai_ask *a,
                        struct api_error *err);
int read_logprobs(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err);
int read_top_logprobs(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err);
int read_responses_top(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_prompt_logprobs(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err);
int read_best_of(const struct field_source *from, json_t *v, struct openai_ask *a,
                 struct api_error *err);
int read_seed(const struct field_source *from, json_t *v, struct openai_ask *a,
              struct api_error *err);
int read_top_k(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err);
int read_max_tokens(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err);
int read_needed_max(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err);
int read_truncate(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err);
int read_salt(const struct field_source *from, json_t *v, struct openai_ask *a,
              struct api_error *err);
int read_template_args(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_reasoning(const struct field_source *from, json_t *v, struct openai_ask *a,
                   struct api_error *err);
int read_thinking_budget(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err);
int read_reasoning_budget(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err);
int read_thinking(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err);
int read_documents(const struct field_source *from, json_t *v, struct openai_ask *a,
                   struct api_error *err);
int read_parallel(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err);
int read_encoding(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err);
int read_dimensions(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err);
int read_activation(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err);
int read_return_documents(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err);
int read_effort(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err);
/* messages.c, lists.c */
int read_messages(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err);
int read_tools(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err);
int read_tool_choice(const struct field_source *from, json_t *v, struct openai_ask *a,
                     struct api_error *err);
int read_prompt(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err);
int read_suffix(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err);
/* infill_in.c: */
int read_infill_prefix(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_infill_prompt(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_infill_extra(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err);
int read_infill_fields(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
/* fim.c, as read_suffix(): */
int read_infill_suffix(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_input(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err);
int read_tokens(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err);
int read_stop(const struct field_source *from, json_t *v, struct openai_ask *a,
              struct api_error *err);
int read_stop_ids(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err);
int read_logit_bias(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err);
int read_bad_words(const struct field_source *from, json_t *v, struct openai_ask *a,
                   struct api_error *err);
/* response_format.c: the form of the answer. The first five are for other fields: JSON, a schema as
 * JSON or a string that holds it, a text of a kind, any of these kinds or a choice, calls that must
 * be made (name NULL = of any tool; a->tools is read). Calls and a form do not contradict each
 * other: form_settle() says what becomes of both. */
int form_json(struct openai_ask *a, const char *field, struct api_error *err);
int form_schema(struct openai_ask *a, const char *field, json_t *schema, struct api_error *err);
int form_text_of(struct openai_ask *a, const char *field, enum grammar_kind kind, json_t *v,
                 struct api_error *err);
int form_of_kind(struct openai_ask *a, const char *field, enum grammar_kind kind, json_t *v,
                 struct api_error *err);
int form_calls(struct openai_ask *a, const char *name, struct api_error *err);
int read_response_format(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err);
int read_structured(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err);
/* pair.c: texts that are scored. */
#define PAIR_READER(name)                                                                          \
    int name(const struct field_source *from, json_t *v, struct openai_ask *a,                     \
             struct api_error *err)
PAIR_READER(read_pair_text_1);
PAIR_READER(read_pair_text_2);
PAIR_READER(read_pair_queries);
PAIR_READER(read_pair_query);
PAIR_READER(read_pair_documents);
PAIR_READER(read_pair_items);
PAIR_READER(read_pair_data_1);
PAIR_READER(read_pair_data_2);
PAIR_READER(read_pair_instruction);
PAIR_READER(read_pair_instruct);
PAIR_READER(read_rank_fields);
PAIR_READER(read_truncation_side);
PAIR_READER(read_padding);
PAIR_READER(read_pair_truncation);
PAIR_READER(read_embed_dtype);
PAIR_READER(read_endianness);
PAIR_READER(read_pooling_task);
/* ollama_in.c: its own API. */
int read_ollama_messages(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err);
int read_ollama_prompt(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_ollama_tools(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err);
int read_ollama_think(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err);
int read_ollama_text(const struct field_source *from, json_t *v, struct openai_ask *a,
                     struct api_error *err);
int read_ollama_raw(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err);
/* dialects.c: the words of other servers. */
int read_gbnf(const struct field_source *from, json_t *v, struct openai_ask *a,
              struct api_error *err);
int read_ollama_format(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_ollama_options(const struct field_source *from, json_t *v, struct openai_ask *a,
                        struct api_error *err);
int read_output_config(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_output_format(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err);
int read_predict(const struct field_source *from, json_t *v, struct openai_ask *a,
                 struct api_error *err);
int read_modalities(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err);
int read_allowed_ids(const struct field_source *from, json_t *v, struct openai_ask *a,
                     struct api_error *err);
/* responses_in.c: */
int read_responses_input(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err);
int read_instructions(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err);
int read_responses_tools(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err);
int read_include(const struct field_source *from, json_t *v, struct openai_ask *a,
                 struct api_error *err);
int read_responses_text(const struct field_source *from, json_t *v, struct openai_ask *a,
                        struct api_error *err);
/* anthropic_in.c: */
int read_anthropic_system(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err);
int read_anthropic_messages(const struct field_source *from, json_t *v, struct openai_ask *a,
                            struct api_error *err);
int read_anthropic_tools(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err);
int read_anthropic_choice(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err);
int read_stop_sequences(const struct field_source *from, json_t *v, struct openai_ask *a,
                        struct api_error *err);
/* responses_keep.c: */
int read_store(const struct field_source *from, json_t *v, struct openai_ask *a,
               struct api_error *err);
int read_previous(const struct field_source *from, json_t *v, struct openai_ask *a,
                  struct api_error *err);
