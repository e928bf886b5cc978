/* GET .../postmortem: what is kept of a server's ends, read in a thread. */
#pragma once

#include "supervisor/web/api.h"

struct server;

/* end: 1 = the newest. 0, then cb follows with the answer; else a status with its body in out, or
 * -ENOMEM. */
int api_postmortem(const struct server *s, unsigned end, api_fn cb, void *ctx, struct ek_buf *out);
