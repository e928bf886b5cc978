#include "supervisor/ctl/plan_server.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "common/buf.h"

#define ANSWER_MOST 65536

extern char **environ;

/* The program beside this one, else in $PATH. */
static bool find_program(char *path, size_t size)
{
    char self[PATH_MAX];
    ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
    if (n > 0) {
        self[n] = '\0';
        char *slash = strrchr(self, '/');
        int w =
            slash ? snprintf(path, size, "%.*s/evenkeel-server", (int)(slash - self), self) : -1;
        if (w > 0 && (size_t)w < size && access(path, X_OK) == 0)
            return true;
    }
    for (const char *at = getenv("PATH"); at && *at;) {
        size_t len = strcspn(at, ":");
        int w = snprintf(path, size, "%.*s/evenkeel-server", (int)len, at);
        if (len > 0 && w > 0 && (size_t)w < size && access(path, X_OK) == 0)
            return true;
        at += len + (at[len] == ':');
    }
    return false;
}

static int start(const char *program, char *const *argv, int out[2], int err[2], pid_t *ret_pid)
{
    posix_spawn_file_actions_t actions;
    int r = posix_spawn_file_actions_init(&actions);
    if (r == 0)
        r = posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&actions, out[1], 1);
    if (r == 0)
        r = posix_spawn_file_actions_adddup2(&actions, err[1], 2);
    if (r == 0)
        r = posix_spawn(ret_pid, program, &actions, NULL, argv, environ);
    (void)posix_spawn_file_actions_destroy(&actions); /* cannot fail for one that was made */
    return -r;
}

static void drain(int fd, struct ek_buf *to)
{
    char block[4096];
    ssize_t n;
    while ((n = read(fd, block, sizeof(block))) > 0)
        (void)ek_buf_add(to, block, (size_t)n); /* cut at its limit */
}

/* Output of both streams and the exit status. What it says on stderr is little: it never blocks. */
static int run(const char *program, char *const *argv, struct ek_buf *out, struct ek_buf *err,
               int *ret_status)
{
    int o[2] = {-1, -1}, e[2] = {-1, -1};
    pid_t pid;
    int r = pipe2(o, O_CLOEXEC) < 0 || pipe2(e, O_CLOEXEC) < 0 ? -errno : 0;
    if (r == 0)
        r = start(program, argv, o, e, &pid);
    if (o[1] >= 0)
        (void)close(o[1]);
    if (e[1] >= 0)
        (void)close(e[1]);
    if (r == 0) {
        drain(o[0], out);
        drain(e[0], err);
        if (waitpid(pid, ret_status, 0) < 0)
            r = -errno;
    }
    if (o[0] >= 0)
        (void)close(o[0]);
    if (e[0] >= 0)
        (void)close(e[0]);
    return r;
}

/* The last line of its log without the prefix. */
static void last_sentence(struct ek_buf *err, char said[400])
{
    char *text = err->data;
    said[0] = '\0';
    while (text && err->len > 0 && text[err->len - 1] == '\n')
        text[--err->len] = '\0';
    if (!text)
        return;
    char *line = strrchr(text, '\n');
    line = line ? line + 1 : text;
    char *colon = strstr(line, ": ");
    (void)snprintf(said, 400, "%.399s", colon ? colon + 2 : line);
}

static double bytes_of(const json_t *answer, const char *key)
{
    return json_number_value(json_object_get(json_object_get(answer, "bytes"), key));
}

static struct plan_fit fit_of(const json_t *a)
{
    double block = json_number_value(json_object_get(a, "block_size"));
    double blocks = json_number_value(json_object_get(a, "num_blocks"));
    return (struct plan_fit){
        .weights = bytes_of(a, "weights"),
        .activations = bytes_of(a, "activations") + bytes_of(a, "sampling_state"),
        .context = bytes_of(a, "program_and_tables") + bytes_of(a, "requests_and_http") +
                   bytes_of(a, "overhead"),
        .share_bytes = json_number_value(json_object_get(a, "share_bytes")),
        .kv_bytes = bytes_of(a, "kv_pool"),
        .token_bytes = block > 0 ? json_number_value(json_object_get(a, "block_bytes")) / block : 0,
        .kv_tokens = blocks > 1 ? (blocks - 1) * block : 0,
        .longest = (uint32_t)json_integer_value(json_object_get(a, "max_model_len")),
        .fits = true,
        .splits = true};
}

int plan_server_ask(const struct plan_server_request *q, json_t **ret_answer,
                    struct plan_fit *ret_fit, char said[400])
{
    char program[PATH_MAX], share[16], len[16], seqs[16], tokens[16];
    struct ek_buf out = {.limit = ANSWER_MOST}, err = {.limit = ANSWER_MOST};
    int status = 0, n = 8;
    if (!find_program(program, sizeof(program)))
        return -ENOENT;
    (void)snprintf(share, sizeof(share), "%.4f", q->share);
    (void)snprintf(len, sizeof(len), "%u", q->max_len);
    (void)snprintf(seqs, sizeof(seqs), "%u", q->seqs);
    (void)snprintf(tokens, sizeof(tokens), "%u", q->tokens);
    const char *argv[16] = {program, "--model", q->model,    "--device",
                            "cpu",   "--json",  "--dry-run", "--gpu-memory-utilization"};
    argv[n++] = share;
    const struct {
        uint32_t value;
        const char *flag, *text;
    } more[] = {{q->max_len, "--max-model-len", len},
                {q->seqs, "--max-num-seqs", seqs},
                {q->tokens, "--max-num-batched-tokens", tokens}};
    for (size_t i = 0; i < 3; i++) {
        if (more[i].value == 0)
            continue;
        argv[n++] = more[i].flag;
        argv[n++] = more[i].text;
    }
    char *words[16] = {0};
    memcpy(words, argv, sizeof(words)); /* execv takes them so; nothing writes to them */
    int r = run(program, words, &out, &err, &status);
    json_t *answer = r == 0 && WIFEXITED(status) && WEXITSTATUS(status) == 0 && out.len
                         ? json_loadb(out.data, out.len, 0, NULL)
                         : NULL;
    last_sentence(&err, said);
    ek_buf_done(&out);
    ek_buf_done(&err);
    if (r < 0)
        return r;
    if (!answer)
        return -EBADMSG;
    *ret_fit = fit_of(answer);
    *ret_answer = answer;
    return 0;
}
