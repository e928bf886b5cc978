/*
 * exit.json, which evenkeel-server writes beside its control socket when it ends: the only word on
 * how a process ended that is not our child.
 */
#pragma once

#include <sys/types.h>

struct child_exit;

/* Fills e when the file speaks of this pid; else e stays as it was. */
void exit_file_read(const char *control_socket, pid_t pid, struct child_exit *e);
