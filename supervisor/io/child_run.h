/*
 * What a new process does before it is the server: between its fork and its exec, with a copy of
 * evenkeeld's memory, which no other process may read (ek_sandbox_dumpable). Nothing here returns
 * to evenkeeld's code.
 *
 * A process that is not dumpable finds root as the owner of its files in /proc: of evenkeeld's own
 * user it cannot write its oom_score_adj. Then the program of evenkeeld itself is run first, with
 * an empty memory that may be looked into: it raises the score and runs the server.
 */
#pragma once

struct child_spec;
struct run_as;

struct child_user {
    char home[270], name[80], login[80];
    char *env[4];
};

/* What the environment says of a user; NULL when there is none. */
char *const *child_user_env(const struct run_as *user, struct child_user *ret_user);

#define CHILD_RAISED "--run-with-oom-score" /* SCORE PATH ARGV...: evenkeeld's own use */

/* Room for those words and the server's, to be freed; NULL: no memory. */
char **child_raised_words(const struct child_spec *spec);

#define CHILD_LISTEN_PID  "LISTEN_PID="
#define CHILD_LISTEN_MOST 32

/* In the new process. It takes no lock and asks for no memory: another thread of evenkeeld's may
 * have held the allocator when the copy was made. listen_pid: the word of env that names the
 * process which the descriptor of spec->listen_fd is for; CHILD_LISTEN_MOST bytes. */
_Noreturn void child_run(const char *path, const struct child_spec *spec, char **raised_words,
                         char **env, char *listen_pid);
/* The words after CHILD_RAISED; an exit status when it cannot be done. */
int child_exec_raised(int argc, char **argv);
