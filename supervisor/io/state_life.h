/* Where a server is in its life, with its backoff, as parts of its row in state.json. */
#pragma once

#include <jansson.h>

struct ek_buf;
struct state_server;

/* From {"life": {...}, "backoff": {...}}; what is missing or makes no sense is as if it had not
 * been written. Files of before have only "breaker_open". */
void state_life_parse(const json_t *row, struct state_server *into);
/* Appends them, each behind a comma. */
void state_life_put(const struct state_server *one, struct ek_buf *out);
