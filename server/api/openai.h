/*
 * Request bodies, read and checked: JSON in, a plain struct out. What a body may hold is one table
 * (fields.c); the error names the field (`param`). Fields that are known but not offered are
 * refused unless they have their neutral value; unknown fields are accepted, as vLLM does. Pure.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "server/api/ask.h"

struct api_error;
struct ek_work;
struct served;

/* Reads the bytes of a body: an object, no duplicate keys, depth bounded. NULL with an error. */
json_t *openai_load(const char *bytes, size_t len, struct api_error *err);
/* What reading a body of so many bytes may take, from its fields to the tokens of its prompts. */
uint64_t openai_fuel(size_t body_bytes);
/* The ask borrows from `body`, which is normalised on the way (content parts joined, arguments of
 * tool calls parsed). Each field pays for what it holds. 0 or -EBADMSG with err. */
int openai_parse(const struct served *s, enum openai_api api, json_t *body, struct ek_work *work,
                 struct openai_ask *ret_ask, struct api_error *err);
/* Whether the body of /api/generate has a prompt that is taken as it is: without a template. */
bool openai_is_raw(const struct served *s, const json_t *body);
