/*
 * How a process ended that is not our child: one that an evenkeeld before this one started. The
 * kernel tells who holds its pidfd once its parent has waited for it (Linux 6.15), and until then
 * whoever may look at it in /proc.
 */
#pragma once

#include <stdbool.h>
#include <sys/types.h>

/* The status of one that has ended, as of waitpid(). False: nobody tells. Takes some milliseconds
 * at most, while its parent has not waited for it yet. */
bool exit_status_of(int pidfd, pid_t pid, int *ret_status);
