/* What `evenkeelctl bench-fit` says: a row for each step as it comes, the curve, the setting to
 * keep; or JSON. Pure. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "supervisor/planner/limit_search.h"

struct ek_buf;

void fit_show_head(struct ek_buf *out);
void fit_show_step(const struct limit_search_step *s, struct ek_buf *out);
/* Tokens a second over the limit (*), and use of the KV cache (o), 80 columns. */
void fit_show_plot(const struct limit_search *c, struct ek_buf *out);
/* What ended it, the setting to keep, and the knee where it is another. */
void fit_show_end(const struct limit_search *c, struct ek_buf *out);
json_t *fit_json(const struct limit_search *c);
