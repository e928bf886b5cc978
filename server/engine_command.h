/*
 * An engine over several machines (--engine-command): the launcher does not fork it but runs a
 * command, mpirun, which starts this program again on each of them, with the same flags. The first
 * of those processes is on the server's machine and serves the memory that server and engine share
 * (engine_node.h); the others follow it as nodes do (nodes.h). The command's end is the engine's:
 * MPI ends a group as a whole, and the launcher begins another one, while the server, which is none
 * of the group, goes on.
 *
 * The first process finds the memory under the name of a descriptor of the command's, which it is
 * told in its environment.
 */
#pragma once

#include <sys/types.h>

struct ek_fault;
struct options;

#define ENGINE_COMMAND_MEMORY "EVENKEEL_ENGINE_MEMORY" /* "/proc/12/fd/3" */

/* In a child of the launcher: becomes the command. isa: the tier that all of them have, "" = none
 * is named. Returns when that cannot be; a negative errno. */
int engine_command_run(const struct options *o, int memory_fd, const char *isa);
/* A command passes the signal that ended a process on as 128 and its number: the status of such a
 * process, of waitpid(); others as they are. */
int engine_command_status(int status);
/* Before a restart that was asked for: -EBADMSG when the program was replaced by another file, so
 * that the next engine would be another version than its server. */
int engine_command_check(struct ek_fault *fault);
/* Asks the command to end its processes, so that it removes what it has made; until it has ended,
 * which pidfd tells, or some time has passed. */
void engine_command_end(pid_t pid, int pidfd);
/* Behind waitpid(): what is left of its process group has as long to end by itself, and is killed.
 */
void engine_command_rest(pid_t pid);
