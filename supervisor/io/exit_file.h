/*
 * exit.json, which evenkeel-server writes beside its control socket when it ends: the only word on
 * how a process ended that is not our child.
 */
#pragma once

#include <stddef.h>
#include <sys/types.h>

struct child_exit;

/* Fills e when the file speaks of this pid, or of a server that mpirun with this pid started; else
 * e stays as it was. */
void exit_file_read(const char *control_socket, pid_t pid, struct child_exit *e);
/* Why it ended, in its own words; "" when the file does not speak of this pid. */
void exit_file_why(const char *control_socket, pid_t pid, char *ret_why, size_t size);
