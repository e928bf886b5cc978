/*
 * Live limits that hold from the first request on: what the process before had, or an operator has
 * pinned. evenkeeld gives them in the environment, because a limit that is written only after the
 * start comes too late for the requests that wait in the kept socket.
 */
#pragma once

#define START_LIMITS_ENV "EVENKEEL_START_LIMITS"

struct limits;

/* "max_num_running_seqs=4,max_num_batched_tokens=512", names as in GET /v1/runtime_config; NULL or
 * "" changes nothing. A value outside of a limit's bounds becomes the nearest one inside; what
 * cannot be understood is warned of and left out. */
void start_limits(const char *text, struct limits *l);
