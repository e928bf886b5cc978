/* What several verbs ask evenkeeld about one server. */
#pragma once

#include <jansson.h>
#include <stdbool.h>

struct api;

/* Says why a call failed; the exit code. */
int calls_failed(const struct api *a, int r);
/* A server's row in the answer of /api/v1/servers; NULL = there is none. Borrowed. */
const json_t *calls_find(const json_t *answer, const char *name);
/* The name of the only server there is, borrowed from that answer. NULL after saying why. */
const char *calls_only(const json_t *answer);
/* A call below /api/v1/servers/NAME. Codes as api_call(); ret_answer may be NULL. */
int calls_server(struct api *a, const char *method, const char *name, const char *what,
                 const json_t *body, json_t **ret_answer);
/* Its row as it is now; NULL when it cannot be had. The list is the caller's, the row lies in it.
 */
const json_t *calls_row(struct api *a, const char *name, json_t **ret_list);
/* Waits until it is ready with another process than `before`; false: not in this time, or it failed
 * to start and is down. */
bool calls_wait_ready(struct api *a, const char *name, json_int_t before, double seconds);
