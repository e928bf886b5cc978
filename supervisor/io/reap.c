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
        (void)waitpid(w.si_pid, NULL, WNOHANG); /* its status interests nobody */
    }
}
