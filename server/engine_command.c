/* Runs the command that starts an engine on several machines (engine_command.h), for launcher.c. */
#include "server/engine_command.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/err.h"
#include "server/options.h"

#define SELF         "/proc/self/exe"
#define REPLACED     " (deleted)" /* what the kernel writes behind the name of such a file */
#define BLANK        " \t\n"
#define REST_STEP_MS 20
#define END_MOST_MS  3000 /* mpirun ends its processes, and removes their files */
#define BY_SIGNAL    128

/* What mpirun is told, where its own environment does not say another thing: it kills the others of
 * a lost node at once, and not a second after it has asked them; and its daemons notice a machine
 * that they hear nothing of within half a minute, and not within eight, so that what is left of a
 * group beyond a cable that was cut makes room for the next one. */
static const char *const mpirun_settings[][2] = {
    {"OMPI_MCA_odls_base_sigkill_timeout", "0"},
    {"OMPI_MCA_oob_tcp_keepalive_time", "10"},
    {"OMPI_MCA_oob_tcp_keepalive_intvl", "5"},
    {"OMPI_MCA_oob_tcp_keepalive_probes", "3"},
};

/* The file that this process was begun by, under its name, which may be another file's by now. */
static int own_path(char ret_path[PATH_MAX])
{
    ssize_t n = readlink(SELF, ret_path, PATH_MAX - 1);

    if (n < 0)
        return -errno;
    ret_path[n] = '\0';
    char *end = strstr(ret_path, REPLACED);
    if (end && end[strlen(REPLACED)] == '\0')
        *end = '\0';
    return 0;
}

static uint32_t count_words(const char *text)
{
    uint32_t n = 0;

    for (text += strspn(text, BLANK); *text; n++) {
        text += strcspn(text, BLANK);
        text += strspn(text, BLANK);
    }
    return n;
}

/* The command's words, then this program with its flags and the tier; "--" would end the flags. */
static int command_line(const struct options *o, char *path, const char *isa, char ***ret_argv)
{
    static char isa_flag[] = "--cpu-isa";
    const uint32_t words = count_words(o->engine_command);
    uint32_t flags = 0, n = 0;
    char *rest = NULL;

    while (o->argv[1 + flags])
        flags++;
    char **argv = calloc(words + 1 + 2 + flags + 1, sizeof(*argv));
    char *text = strdup(o->engine_command);
    if (!argv || !text) {
        free(argv);
        free(text);
        return -ENOMEM;
    }
    for (char *w = strtok_r(text, BLANK, &rest); w; w = strtok_r(NULL, BLANK, &rest))
        argv[n++] = w;
    argv[n++] = path;
    if (isa[0] && !o->cpu_isa) {
        argv[n++] = isa_flag;
        argv[n++] = (char *)(uintptr_t)isa;
    }
    for (uint32_t i = 0; i < flags; i++)
        argv[n++] = o->argv[1 + i];
    *ret_argv = argv; /* and the text that its words lie in: until the process is another program */
    return 0;
}

/* As a shell would begin it: no signal is held or ignored. */
static void plain_signals(void)
{
    sigset_t none;

    (void)signal(SIGPIPE, SIG_DFL);
    (void)sigemptyset(&none);
    (void)sigprocmask(SIG_SETMASK, &none, NULL);
}

int engine_command_run(const struct options *o, int memory_fd, const char *isa)
{
    char path[PATH_MAX], name[64];
    char **argv = NULL;

    int r = own_path(path);
    if (r == 0)
        r = command_line(o, path, isa, &argv);
    if (r < 0)
        return r;
    const int fd = fcntl(memory_fd, F_DUPFD, STDERR_FILENO + 1); /* this one it keeps */
    if (fd < 0)
        return -errno;
    (void)snprintf(name, sizeof(name), "/proc/%d/fd/%d", (int)getpid(), fd);
    r = setenv(ENGINE_COMMAND_MEMORY, name, 1);
    for (size_t i = 0; r == 0 && i < sizeof(mpirun_settings) / sizeof(mpirun_settings[0]); i++)
        r = setenv(mpirun_settings[i][0], mpirun_settings[i][1], 0);
    if (r < 0)
        return -errno;
    (void)setpgid(0, 0); /* an interrupt from the terminal is the server's to deal with */
    plain_signals();
    (void)execvp(argv[0], argv);
    return -errno;
}

int engine_command_status(int status)
{
    if (!WIFEXITED(status) || WEXITSTATUS(status) <= BY_SIGNAL ||
        WEXITSTATUS(status) >= BY_SIGNAL + NSIG)
        return status;
    return W_EXITCODE(0, WEXITSTATUS(status) - BY_SIGNAL);
}

int engine_command_check(struct ek_fault *fault)
{
    char path[PATH_MAX];
    struct stat there, own;

    if (own_path(path) == 0 && stat(path, &there) == 0 && stat(SELF, &own) == 0 &&
        there.st_dev == own.st_dev && there.st_ino == own.st_ino)
        return 0;
    return ek_fault_set(fault, "engine-command",
                        "%s was replaced since the server began: restart the server", path);
}

void engine_command_end(pid_t pid, int pidfd)
{
    struct pollfd p = {.fd = pidfd, .events = POLLIN};

    if (kill(-pid, SIGTERM) == 0 || kill(pid, SIGTERM) == 0) /* a script may have started mpirun */
        (void)poll(&p, 1, END_MOST_MS);                      /* who calls ends it by force then */
}

void engine_command_rest(pid_t pid)
{
    for (int ms = 0; kill(-pid, 0) == 0 && ms < END_MOST_MS; ms += REST_STEP_MS)
        (void)usleep(REST_STEP_MS * 1000);
    (void)kill(-pid, SIGKILL);
}
