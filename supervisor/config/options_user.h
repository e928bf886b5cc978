/* `user` of a server: what may be said, by what evenkeeld and its launcher can do. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct config;
struct ek_fault;
struct server_config;

#define USER_DYNAMIC "dynamic" /* one that systemd makes for each start */

struct user_case {
    const char *user;
    bool systemd, attach; /* the server's launcher */
    bool control;         /* evenkeeld uses its control socket */
    bool able;            /* run_as_able() */
    int found;            /* of run_as_find(), but for USER_DYNAMIC */
    uid_t uid, own;       /* the user's, evenkeeld's */
};

/* Why that cannot be, with what to do; false when it can. No I/O. */
bool user_refused(const struct user_case *c, char *why, size_t size);
/* Fills run_as where a process has to become another user. 0 or -EBADMSG with fault. */
int user_check(const struct config *all, struct server_config *s, struct ek_fault *fault);
