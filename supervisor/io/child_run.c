/*
 * The steps between fork and exec: signals, session, oom_score_adj, descriptors, the user, what it
 * can do to other processes, exec.
 * child.c calls it in the child, main.c when evenkeeld was run to raise the score
 * (child_exec_raised()). The words and the environment were made by the parent; an error ends the
 * child.
 */
#include "supervisor/io/child_run.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "common/sandbox.h"
#include "supervisor/io/child.h"
#include "supervisor/io/run_as.h"

#define FAILED    127
#define ARGS_OWN  4 /* before the server's words */
#define LISTEN_FD 3 /* SD_LISTEN_FDS_START */

/* False when the score is lower and cannot be written by this process. */
static bool raise_oom_score(int least)
{
    char text[16] = {0};
    int fd = open("/proc/self/oom_score_adj", O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);
    if (fd >= 0)
        close(fd);
    if (n <= 0 || strtol(text, NULL, 10) >= least)
        return true; /* a wish, not a condition */
    fd = open("/proc/self/oom_score_adj", O_WRONLY | O_CLOEXEC);
    if (fd < 0)
        return errno != EACCES;
    int len = snprintf(text, sizeof(text), "%d", least);
    ssize_t w = write(fd, text, (size_t)len);
    (void)w;
    close(fd);
    return true;
}

static _Noreturn void child_fail(const char *path)
{
    (void)dprintf(STDERR_FILENO, "evenkeeld: could not run %s: %s\n", path, strerror(errno));
    _exit(FAILED);
}

char *const *child_user_env(const struct run_as *user, struct child_user *ret_user)
{
    if (!user || !user->set)
        return NULL;
    (void)snprintf(ret_user->home, sizeof(ret_user->home), "HOME=%s", user->home);
    (void)snprintf(ret_user->name, sizeof(ret_user->name), "USER=%s", user->name);
    (void)snprintf(ret_user->login, sizeof(ret_user->login), "LOGNAME=%s", user->name);
    ret_user->env[0] = ret_user->home;
    ret_user->env[1] = ret_user->name;
    ret_user->env[2] = ret_user->login;
    ret_user->env[3] = NULL;
    return ret_user->env;
}

static void become(const struct run_as *user)
{
    int r = user && user->set ? run_as_become(user) : 0;
    if (r == 0)
        return;
    (void)dprintf(STDERR_FILENO, "evenkeeld: could not become user %s: %s\n", user->name,
                  strerror(-r));
    _exit(FAILED);
}

char **child_raised_words(const struct child_spec *spec)
{
    size_t n = 0;
    while (spec->argv[n])
        n++;
    char **words = calloc(n + ARGS_OWN + 1, sizeof(*words));
    if (words)
        memcpy(words + ARGS_OWN, spec->argv, n * sizeof(*words));
    return words;
}

static void run_raised(const char *path, const struct child_spec *spec, char **words, char **env)
{
    char score[16], name[] = "evenkeeld", how[] = CHILD_RAISED, program[4096];
    (void)snprintf(score, sizeof(score), "%d", spec->oom_score_adj);
    (void)snprintf(program, sizeof(program), "%s", path); /* of child_find_program() */
    words[0] = name;
    words[1] = how;
    words[2] = score;
    words[3] = program;
    (void)execve("/proc/self/exe", words, env);
}

int child_exec_raised(int argc, char **argv)
{
    if (argc < 3)
        return FAILED;
    (void)raise_oom_score((int)strtol(argv[0], NULL, 10));
    (void)execv(argv[1], argv + 2);
    child_fail(argv[1]);
}

/* Where sd_listen_fds() looks for it. */
static void take_listener(int fd, char *listen_pid)
{
    bool there = fd == LISTEN_FD ? fcntl(fd, F_SETFD, 0) == 0 : dup2(fd, LISTEN_FD) >= 0;
    if (!there)
        _exit(FAILED);
    (void)snprintf(listen_pid, CHILD_LISTEN_MOST, CHILD_LISTEN_PID "%d", (int)getpid());
}

_Noreturn void child_run(const char *path, const struct child_spec *spec, char **raised_words,
                         char **env, char *listen_pid)
{
    sigset_t none;
    sigemptyset(&none);
    for (int s = 1; s < NSIG; s++)
        (void)signal(s, SIG_DFL); /* some cannot be set; those are at their default */
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
    (void)setsid(); /* cannot fail in a process that leads no group */
    bool raised = raise_oom_score(spec->oom_score_adj);
    int null = open("/dev/null", O_RDONLY | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0 || dup2(spec->out_fd, STDOUT_FILENO) < 0 ||
        dup2(spec->out_fd, STDERR_FILENO) < 0)
        _exit(FAILED);
    if (spec->listen_fd > 0)
        take_listener(spec->listen_fd, listen_pid);
    /* Everything of ours is close-on-exec besides. */
    (void)close_range(spec->listen_fd > 0 ? LISTEN_FD + 1 : LISTEN_FD, ~0u, 0);
    become(spec->user); /* who may do that could raise the score above */
    if (spec->isolated)
        (void)ek_sandbox_alone(); /* an older kernel: served without */
    if (!raised)
        run_raised(path, spec, raised_words, env);
    (void)execve(path, spec->argv, env);
    child_fail(path);
}
