/*
 * Runs evenkeel-server --dry-run for `evenkeelctl plan` and `setup` and turns the JSON that it
 * prints into a plan_fit, so that its answer is printed by the same functions as an estimate. When
 * the server refuses, the last sentence of its log is the reason.
 */
#include "supervisor/ctl/plan_server.h"

#include <assert.h>
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

/* A command line with the texts of its numbers. */
struct command {
    char program[PATH_MAX], share[16], len[16], seqs[16], tokens[16], memory[32], stages[16],
        nodes[16];
    char *argv[27]; /* execv takes them so; nothing writes to them */
    size_t count;
};

static void plan_server_add_words(struct command *c, const char *flag, const char *value)
{
    c->argv[c->count++] = (char *)(uintptr_t)flag;
    if (value)
        c->argv[c->count++] = (char *)(uintptr_t)value;
    assert(c->count < sizeof(c->argv) / sizeof(c->argv[0])); /* NULL is behind the last */
}

/* The flag only where the number is more than `least`. */
static void add_number(struct command *c, const char *flag, char text[16], uint32_t value,
                       uint32_t least)
{
    (void)snprintf(text, 16, "%u", value);
    if (value > least)
        plan_server_add_words(c, flag, text);
}

/* c->program is there. */
static void write_command(struct command *c, const struct plan_server_request *q)
{
    plan_server_add_words(c, c->program, NULL);
    plan_server_add_words(c, "--model", q->model);
    plan_server_add_words(c, "--device", q->card ? "cuda" : "cpu");
    plan_server_add_words(c, "--json", "--dry-run");
    (void)snprintf(c->share, sizeof(c->share), "%.4f", q->share);
    plan_server_add_words(c, "--gpu-memory-utilization", c->share);
    if (q->weight_bits)
        plan_server_add_words(c, "--quantization", q->weight_bits == 4 ? "int4" : "int8");
    if (q->kv_bits == 8)
        plan_server_add_words(c, "--kv-cache-dtype", q->card ? "fp8" : "int8_per_token_head");
    (void)snprintf(c->memory, sizeof(c->memory), "%.12f", q->memory_bytes / 1073741824.0);
    if (q->card)
        plan_server_add_words(c, "--dry-run-memory", c->memory);
    add_number(c, "--max-model-len", c->len, q->max_len, 0);
    add_number(c, "--max-num-seqs", c->seqs, q->seqs, 0);
    add_number(c, "--max-num-batched-tokens", c->tokens, q->tokens, 0);
    add_number(c, "--pipeline-parallel-size", c->stages, q->stages, 1);
    add_number(c, "--nnodes", c->nodes, q->nodes, 1);
}

int plan_server_ask(const struct plan_server_request *q, json_t **ret_answer,
                    struct plan_fit *ret_fit, char said[400])
{
    struct command c = {.count = 0};
    struct ek_buf out = {.limit = ANSWER_MOST}, err = {.limit = ANSWER_MOST};
    int status = 0;
    if (!spawn_find("evenkeel-server", c.program, sizeof(c.program)))
        return -ENOENT;
    write_command(&c, q);
    int r = spawn_read(c.argv, DEADLINE_S, &out, &err, &status);
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
