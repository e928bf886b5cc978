/* What a client accepts: reading Accept and Accept-Encoding. Pure. */
#pragma once

#include <stdbool.h>

/* Whether `list` (NULL = no header) names `what` with a weight that is not 0. Wildcards are not
 * taken for it: what is asked about is only sent when it is named. */
bool accept_has(const char *list, const char *what);
