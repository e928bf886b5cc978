/*
 * What `evenkeelctl plan` says: the planner's answer as text with a small picture, JSON or an HTML
 * page. Pure.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "supervisor/planner/advise.h"

struct dialect;
struct ek_buf;

struct plan_style {
    bool explain, colour;
};

void plan_write(const struct plan_question *q, const struct plan_answer *a,
                const struct plan_style *style, struct ek_buf *out);
/* "It fits with 8-bit weights." */
const char *plan_verdict(const struct plan_question *q, const struct plan_answer *a);
/* Whether the engine of the table has a `plan`, and loads such a model as far as is known. */
bool plan_commands(const struct plan_question *q, const struct dialect *d);
/* Whether evenkeel-server is to be told the token budget: what its CPU computes in a step it
 * measures itself, and keeps what prompts and answers have of it apart. */
static inline bool plan_says_tokens(const struct plan_question *q)
{
    return q->gpu || q->tokens != 0;
}
/* The longest request that a command of that engine is given. */
uint32_t plan_length(const struct plan_question *q, const struct plan_answer *a,
                     const struct dialect *d);
/* A command line ready to paste, of an engine with a `plan` in the table. */
void plan_flags(const struct plan_question *q, const struct plan_answer *a, const struct dialect *d,
                struct ek_buf *out);
json_t *plan_json(const struct plan_question *q, const struct plan_answer *a);
void plan_html(const struct plan_question *q, const struct plan_answer *a, struct ek_buf *out);
