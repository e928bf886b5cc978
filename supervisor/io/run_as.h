/*
 * The user that a server runs as, where that is not evenkeeld's own: who it is, whether evenkeeld
 * may make processes of its, and what a process does to become it. A server and evenkeeld then do
 * not trust each other: what the server can write evenkeeld opens without following links, and on
 * a socket in a directory of the user's it talks to that user alone.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/types.h>

#define RUN_AS_GROUPS 64

struct run_as {
    bool set; /* else the process stays what evenkeeld is */
    uid_t uid;
    gid_t gid;
    gid_t group[RUN_AS_GROUPS]; /* all of its groups */
    int groups;
    char name[64], home[256];
};

/* Whether this process is root with all that it takes to start, watch and end others' processes. */
bool run_as_able(void);
/* 0, -ENOENT for no such user, -E2BIG for one with too many groups, -ETIMEDOUT, another errno. The
 * databases of users may be on other machines, and nothing bounds a look-up there: it is made in a
 * process of its own, so that the loop stands still for RUN_AS_FIND_MS at most. */
#define RUN_AS_FIND_MS 3000u
int run_as_find(const char *name, struct run_as *ret_user);
typedef int (*run_as_look)(const char *name, struct run_as *ret_user);
int run_as_ask(run_as_look look, const char *name, uint32_t most_ms, struct run_as *ret_user);
/* For good: a process with one thread, and what it starts. 0 or a negative errno, then it must end.
 */
int run_as_become(const struct run_as *user);
/* Makes the directory, or makes it the user's alone; what another user left in it is removed, and
 * links in any case. */
int run_as_own_dir(const struct run_as *user, const char *path);
/* Makes a directory that was given to another user evenkeeld's again, likewise; 0 also where there
 * is none, or where evenkeeld is not root and could not have given it. */
int run_as_take_back(const char *path);
/* The folder in run_dir that no server can pass. No server's name begins with a dot. */
#define RUN_AS_CLOSED ".units"
/* RUN_DIR/NAME for a unit whose user evenkeeld cannot name, as systemd chooses it: a link to
 * RUN_DIR/.units/NAME, which everybody may write to, and which only these reach: this user, root,
 * and the unit that has it mounted. What lies in RUN_DIR/NAME moves there. */
int run_as_closed_dir(const char *run_dir, const char *name);
/* Whether the process that answers on this socket may. It depends on the socket's directory:
 * - root's or our own, and others cannot write to it: any process may;
 * - a closed one: the process that listens at this very path, not one behind a link;
 * - one that others write to (/tmp): a process of root or of our own user;
 * - another user's: a process of that user, not one behind a link. */
bool run_as_owner_answers(int fd, const char *socket_path);
