/*
 * Rights that a process gives away for good, by Landlock (which files it can open, whether it can
 * connect by TCP) and seccomp (which calls the kernel still takes). What was opened before stays
 * open. Nothing here can be taken back, and threads started later have it too.
 *
 * The filter allows what is on a list (EK_CALLS_LISTED), or refuses what is on another one: what a
 * card's driver calls is not known here, what Open MPI calls between two nodes was seen. The
 * packages' units have a list of what is allowed besides.
 *
 * Landlock holds for the calling thread and those that it starts: begin with it, before there are
 * others. The list of calls is put on all threads at once, when what needs them is done.
 */
#pragma once

#include <stdbool.h>

enum ek_sandbox_may {
    EK_MAY_READ = 1,   /* open for reading; of a directory all below it, and its list */
    EK_MAY_WRITE = 2,  /* open for writing what is there */
    EK_MAY_CREATE = 4, /* files and sockets, and remove them */
    EK_MAY_DEVICE = 8, /* ioctl() of devices */
};

enum ek_sandbox_calls {
    EK_CALLS_LISTEN = 1,    /* listening stays allowed */
    EK_CALLS_NO_SOCKET = 2, /* no new sockets at all */
    EK_CALLS_LISTED = 4,    /* nothing but what a server without a card calls, */
    EK_CALLS_MPI = 8,       /* and what MPI may call for it */
};

struct ek_sandbox;

/* A set of rules that allows nothing yet; with no_connect it will not let TCP connections be made,
 * where the kernel can. -EOPNOTSUPP when the kernel has no Landlock (or does not let this process
 * use it), another errno. */
int ek_sandbox_new(bool no_connect, struct ek_sandbox **ret_sandbox);
void ek_sandbox_free(struct ek_sandbox *s);
/* Allows a file, or a directory with all below it. A path that is not there is no failure. `may` is
 * a sum of the above. 0 or a negative errno. */
int ek_sandbox_allow(struct ek_sandbox *s, const char *path, unsigned may);
/* From now on. 0 or a negative errno. */
int ek_sandbox_enter(const struct ek_sandbox *s);
/* The calling thread, and what it starts or becomes by an exec, can signal, trace and read
 * the memory and environment of no process but its children; files and sockets stay as they are.
 * Only where no right can be gained by an exec already (no_new_privs): a program that starts sudo
 * or newuidmap needs that. -EOPNOTSUPP there, and before Linux 6.12; another errno. Allocates
 * nothing. */
int ek_sandbox_alone(void);
/* Whether others of the same user may read the process's memory, descriptors and first environment
 * and trace it, and whether the kernel may write its core; forked processes inherit it, an exec
 * puts it back to true. Without it /proc/PID belongs to root: what is readable to all there (stat,
 * status, cgroup, cmdline) stays so. 0 or a negative errno. */
int ek_sandbox_dumpable(bool on);
/* Which version of Landlock the kernel has, 0 = none. */
int ek_sandbox_version(void);

/* All threads: no new programs or processes, no listening sockets, no tracing of others, no signal
 * to other processes and none of their limits, no mounts, namespaces, modules, users, clocks, BPF
 * or io_uring, no sockets but Unix and IP (or with EK_CALLS_NO_SOCKET none), not dumpable again:
 * such a call fails with EPERM (or says that the kernel has none). With EK_CALLS_LISTED so does all
 * that is not listed; calls that came later than the list fail with ENOSYS. -EOPNOTSUPP on a kernel
 * without seccomp or a processor whose calls are not known here, another errno. */
int ek_sandbox_filter(unsigned calls);
