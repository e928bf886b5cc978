/*
 * The other forms that a chat may have: OpenAI's responses and Anthropic's messages. Their fields
 * become those of a chat while they are read; their answers are written from the choice's items.
 * Nothing is kept after the answer, but for responses where the operator gives room (past.h).
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>

#include <jansson.h>

struct api_error;
struct choice;
struct ek_buf;
struct field_source;
struct generation;
struct openai_ask;

/* Takes over `list` as the chat's messages, checked like those of any chat. */
int protocol_messages(const struct field_source *from, json_t *list, struct openai_ask *a,
                      struct api_error *err);
/* A message with a role and text; NULL when out of memory. */
json_t *protocol_message(const char *role, const char *text, size_t len);
/* Appends what the tool of the call `id` said; text is the caller's. 0, or a refusal in err. */
int protocol_add_result(json_t *list, json_t *id, const struct ek_buf *text, struct api_error *err);
/* Adds a tool call to the last message of the list if it is an assistant's that may take it, else
 * to a new one. `arguments` is JSON text. 0 or -ENOMEM. */
int protocol_add_call(json_t *list, const char *id, const char *name, const char *arguments);
/* {"type":"function","function":{name, description, parameters}}, or NULL when out of memory. */
json_t *protocol_tool(const json_t *name, json_t *description, json_t *parameters, bool strict);
/* A tool of /v1/responses, or the inside of a chat's, that takes one text: a function with the
 * parameter `input`. Its format is part of the description; a regular expression binds the text by
 * its pattern, a grammar by what is kept in the body and in a->bound. NULL when out of memory. */
json_t *custom_tool(struct openai_ask *a, json_t *body, const json_t *tool);
/* Keeps in the body that the tool of this name (a string) is a custom one. 0 or -ENOMEM. */
int custom_note(json_t *body, const json_t *name);
/* Whether the request has a custom tool of that name; each event of a stream asks. */
bool custom_is(const json_t *body, const char *name);
/* The text in the arguments of a call of one, a new reference; what was cut off is as far as it
 * came. NULL when out of memory. */
json_t *custom_input(const char *arguments, size_t len);
/* The same in quotes. */
void custom_put(struct ek_buf *out, const char *arguments, size_t len);
/* The arguments of such a call, to be freed; NULL when out of memory. */
char *custom_arguments(json_t *input);
/* Whether a word (NULL is none) is in a list, which NULL ends. */
bool forms_has(const char *const *list, const char *word);
/* The text of a part of a message: what it says, or by what it refused; borrowed, NULL for none. */
const json_t *forms_part(const json_t *part);
/* The same of a part whose type must be one of `types` (NULL at the end). 0, or -EBADMSG with err
 * that names the field. */
int forms_part_of(const json_t *part, const char *const *types, const char *name,
                  const json_t **ret_text, struct api_error *err);
/* The texts of a list of such parts, or a string, as one: joined in *ret_text. -EBADMSG with err
 * that names the field. */
int forms_text(const json_t *content, const char *const *types, const char *name,
               struct ek_buf *ret_text, struct api_error *err);

/* responses_keep.c: the items that came with the body, for a response that is stored: ended text of
 * each into g->brought. What cannot be stored however short its answer is, is not. 0 or -ENOMEM. */
int responses_brought(struct generation *g);
/* Where a response stands in a buffer. */
struct response_at {
    size_t begin, output, output_end; /* of the object; the inside of its list `output` */
    size_t store;                     /* the word true that says that it is stored */
};
/* Stores the response, which ends `out`. Where there is no room it says that it is not. */
void responses_keep(struct generation *g, struct ek_buf *out, const struct response_at *at);

/* Answers: whole, and as events. */
void responses_reply(struct ek_buf *out, struct generation *g);
void responses_render(struct generation *g);
void responses_error(struct generation *g, const struct api_error *err);
void anthropic_reply(struct ek_buf *out, struct generation *g);

/* scored.c: a request for scores, classes or what is pooled is done and well: keeps its numbers in
 * the choice's text, and drops it; the whole answer. */
void scored_take(struct choice *c);
void scored_reply(struct ek_buf *out, const struct generation *g);
void anthropic_render(struct generation *g);
void anthropic_error_event(struct generation *g, const struct api_error *err);
void anthropic_error(struct ek_buf *out, const struct api_error *err);
