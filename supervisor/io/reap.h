/* Children that no owner waits for: what servers left behind and is ours now, see
 * child_subreaper().
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* Reaps those that have ended and that `owned` does not name: the status of an owned one is its
 * owner's to take, by its pidfd. True when one of these has ended and is not taken yet, which hides
 * the others: call again soon. */
bool reap_orphans(bool (*owned)(const void *ctx, pid_t pid), const void *ctx);
