/*
 * Runs evenkeel-server --dry-run for `evenkeelctl plan` and `setup` and turns the JSON that it
 * prints into a plan_fit, so that its answer is printed by the same functions as an estimate. When
 * the server refuses, the last sentence of its log is the reason.
 */
#include "supervisor/ctl/plan_server.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/wait.h>

#include "common/buf.h"
#include "common/err.h"
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

static uint32_t plan_server_number(const json_t *answer, const char *key)
{
    return (uint32_t)json_integer_value(json_object_get(answer, key));
}

static uint64_t bytes_at(const json_t *answer, const char *key)
{
    return (uint64_t)json_integer_value(json_object_get(answer, key));
}

/* The plan as the server made it, to be printed by the same function. The note is the answer's. */
static void read_plan(const json_t *a, struct plan_fit *f)
{
    f->params = (struct memplan_params){
        .memory_bytes = bytes_at(a, "memory_bytes"),
        .utilization = json_number_value(json_object_get(a, "utilization")),
        .block_size = plan_server_number(a, "block_size"),
        .max_num_seqs = plan_server_number(a, "max_num_seqs"),
        .states = plan_server_number(a, "num_states"),
        .max_num_batched_tokens = plan_server_number(a, "max_num_batched_tokens"),
        .host_apart = json_is_true(json_object_get(a, "host_apart")),
        .weights_note = json_string_value(json_object_get(a, "weights"))};
    const char *kv = json_string_value(json_object_get(a, "kv_cache"));
    f->params.kv_note = kv && kv[0] ? kv : NULL;
    f->plan =
        (struct memplan){.share_bytes = bytes_at(a, "share_bytes"),
                         .block_bytes = bytes_at(a, "block_bytes"),
                         .blocks = plan_server_number(a, "num_blocks"),
                         .host_blocks = plan_server_number(a, "num_host_blocks"),
                         .offload_blocks = plan_server_number(a, "num_offload_blocks"),
                         .snapshots = plan_server_number(a, "num_snapshots"),
                         .gained_blocks = plan_server_number(a, "num_gained_blocks"),
                         .max_model_len = plan_server_number(a, "max_model_len"),
                         .concurrency = json_number_value(json_object_get(a, "max_concurrency"))};
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        f->plan.bytes[i] =
            bytes_at(json_object_get(a, "bytes"), memplan_item_name((enum memplan_item)i));
}

static struct plan_fit fit_of(const json_t *a)
{
    double block = json_number_value(json_object_get(a, "block_size"));
    double blocks = json_number_value(json_object_get(a, "num_blocks"));
    struct plan_fit f = {0};
    read_plan(a, &f);
    f = (struct plan_fit){
        .plan = f.plan,
        .params = f.params,
        .weights = bytes_of(a, "weights"),
        .activations = bytes_of(a, "activations") + bytes_of(a, "sampling_state") +
                       bytes_of(a, "recurrent_state"),
        .context = bytes_of(a, "program_and_tables") + bytes_of(a, "requests_and_http") +
                   bytes_of(a, "overhead"),
        .share_bytes = json_number_value(json_object_get(a, "share_bytes")),
        .kv_bytes = bytes_of(a, "kv_pool"),
        .token_bytes = block > 0 ? json_number_value(json_object_get(a, "block_bytes")) / block : 0,
        .kv_tokens = blocks > 1 ? (blocks - 1) * block : 0,
        .longest = (uint32_t)json_integer_value(json_object_get(a, "max_model_len")),
        .fits = true,
        .splits = true};
    if (f.params.host_apart) /* outside the card */
        f.context = bytes_of(a, "overhead");
    return f;
}

int plan_server_ask(const struct plan_server_request *q, json_t **ret_answer,
                    struct plan_fit *ret_fit, char said[400])
{
    char program[PATH_MAX], share[16], len[16], seqs[16], tokens[16], memory[32], stages[16],
        nodes[16];
    struct ek_buf out = {.limit = ANSWER_MOST}, err = {.limit = ANSWER_MOST};
    int status = 0, n = 8;
    if (!spawn_find("evenkeel-server", program, sizeof(program)))
        return -ENOENT;
    (void)snprintf(share, sizeof(share), "%.4f", q->share);
    (void)snprintf(len, sizeof(len), "%u", q->max_len);
    (void)snprintf(seqs, sizeof(seqs), "%u", q->seqs);
    (void)snprintf(tokens, sizeof(tokens), "%u", q->tokens);
    (void)snprintf(stages, sizeof(stages), "%u", q->stages);
    (void)snprintf(nodes, sizeof(nodes), "%u", q->nodes);
    const char *argv[26] = {program,
                            "--model",
                            q->model,
                            "--device",
                            q->card ? "cuda" : "cpu",
                            "--json",
                            "--dry-run",
                            "--gpu-memory-utilization"};
    argv[n++] = share;
    (void)snprintf(memory, sizeof(memory), "%.12f", q->memory_bytes / 1073741824.0);
    if (q->weight_bits) {
        argv[n++] = "--quantization";
        argv[n++] = q->weight_bits == 4 ? "int4" : "int8";
    }
    if (q->kv_bits == 8) {
        argv[n++] = "--kv-cache-dtype";
        argv[n++] = q->card ? "fp8" : "int8_per_token_head";
    }
    if (q->card) {
        argv[n++] = "--dry-run-memory";
        argv[n++] = memory;
    }
    const struct {
        uint32_t value;
        const char *flag, *text;
    } more[] = {{q->max_len, "--max-model-len", len},
                {q->seqs, "--max-num-seqs", seqs},
                {q->tokens, "--max-num-batched-tokens", tokens},
                {q->stages > 1 ? q->stages : 0, "--pipeline-parallel-size", stages},
                {q->nodes > 1 ? q->nodes : 0, "--nnodes", nodes}};
    for (size_t i = 0; i < sizeof(more) / sizeof(more[0]); i++) {
        if (more[i].value == 0)
            continue;
        argv[n++] = more[i].flag;
        argv[n++] = more[i].text;
    }
    char *words[26] = {0};
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
        return WIFEXITED(status) && WEXITSTATUS(status) == EK_EXIT_NO_FIT ? -E2BIG : -EBADMSG;
    *ret_fit = fit_of(answer);
    *ret_answer = answer;
    return 0;
}
