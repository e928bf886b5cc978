/*
 * What a process left behind when it ended: those of its session, which evenkeeld began for it.
 * Only for want of a cgroup of its own, which says it better.
 *
 * The number of a session is not given away while anybody is in it. Should a process have that very
 * number, the session is another one by now, and nothing is touched.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* How many there are; `end` sends each SIGKILL. The leader must have been reaped. */
unsigned strays_of(pid_t session, bool end);
