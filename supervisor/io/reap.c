/*
 * Waits for children that no part of evenkeeld has started; loop.c calls it on SIGCHLD. WNOWAIT
 * looks at a child before it is taken: one that has an owner here is left to its pidfd, and the
 * caller is told to come back later, since the kernel shows only the first.
 */
#include "supervisor/io/reap.h"

#include <sys/wait.h>

bool reap_orphans(bool (*owned)(const void *ctx, pid_t pid), const void *ctx)
{
    for (;;) {
        siginfo_t w = {0};
        if (waitid(P_ALL, 0, &w, WEXITED | WNOHANG | WNOWAIT) < 0 || w.si_pid == 0)
            return false;
        if (owned(ctx, w.si_pid))
            return true;
        (void)waitpid(w.si_pid, NULL, WNOHANG); /* its status is not used */
    }
}
