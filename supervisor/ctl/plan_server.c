#include "supervisor/ctl/plan_server.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "common/buf.h"
#include "supervisor/ctl/spawn.h"

#define ANSWER_MOST 65536
#define DEADLINE_S  60.0 /* large models: their files are mapped, not read */

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
    if (!spawn_find("evenkeel-server", program, sizeof(program)))
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
    int r = spawn_read(words, DEADLINE_S, &out, &err, &status);
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
