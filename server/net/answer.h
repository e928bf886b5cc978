/* Answers that are errors, in the form that the client knows. By whichever thread has the
 * exchange. */
#pragma once

#include "server/api/error.h"
#include "server/api/openai.h"

struct answer;
struct exchange;

/* Fills the answer with an error object. */
void answer_error(struct answer *a, const struct api_error *err);
/* In the form that the clients of this API expect. */
void generation_answer_error(struct answer *a, enum openai_api api, const struct api_error *err);
void answer_fault(struct answer *a, int status, const char *param, const char *msg);
/* The same for what is refused before, or instead of, a route's handler: in the form that the path
 * has, known or not. */
void answer_refuse(const struct exchange *x, struct answer *a, const struct api_error *err);
void answer_refuse_fault(const struct exchange *x, struct answer *a, int status, const char *msg);
