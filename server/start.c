/* Building the stack, see start.h. */
#include "server/start.h"

#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "server/model/model.h"
#include "server/options.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"

#define GIB               1073741824.0
#define CPU_SEQS          64u
#define GPU_SEQS          256u
#define CPU_TOKENS        2048u
#define GPU_TOKENS        8192u
#define CPU_KV_MOST       (4ull << 30)  /* without --kv-cache-memory-bytes */
#define HOST_BYTES        (64ull << 20) /* requests, HTTP buffers, tables */
#define QUEUED_LEAST      65536u
#define CACHED_SHARE_MOST 1000000u

/* What a failure means at start. */
static int exit_code(int r, bool fits)
{
    switch (r) {
    case -ENOMEM: return EK_EXIT_HOSTMEM_START;
    case EK_EDEVMEM: return EK_EXIT_DEVMEM_START;
    case EK_EDEVICE: return EK_EXIT_DEVICE;
    case EK_ECOMM: return EK_EXIT_COMM;
    case -E2BIG: return fits ? EK_EXIT_NO_FIT : EK_EXIT_CONFIG;
    case -EBADMSG:
    case -ENODEV:
    case -ENOTSUP:
    case -ENOENT: return EK_EXIT_CONFIG;
    }
    return EK_EXIT_INTERNAL;
}

static int failed(int r, const char *what, int *ret_exit, struct ek_fault *fault)
{
    if (!fault->msg[0])
        (void)ek_fault_set(fault, "", "%s: %s", what, ek_strerror(r));
    *ret_exit = exit_code(r, true);
    return r;
}

static enum model_dtype dtype_of(const char *name)
{
    if (strcmp(name, "float32") == 0 || strcmp(name, "float") == 0)
        return MODEL_DTYPE_F32;
    if (strcmp(name, "float16") == 0 || strcmp(name, "half") == 0)
        return MODEL_DTYPE_F16;
    if (strcmp(name, "bfloat16") == 0)
        return MODEL_DTYPE_BF16;
    return MODEL_DTYPE_AUTO;
}

static bool is_cpu(const struct stack *s)
{
    return strcmp(s->backend->name, "cpu") == 0;
}

static int find_device(struct stack *s, struct ek_fault *fault)
{
    s->backend = ek_backend_find(s->o->device, fault);
    if (!s->backend)
        return -ENODEV;
    s->open = (struct ek_open_params){.threads = (uint32_t)s->o->threads, .isa = s->o->cpu_isa};
    return s->backend->probe(&s->open, &s->info, fault);
}

static int read_model(struct stack *s, struct ek_fault *fault)
{
    const struct options *o = s->o;
    int r = model_open(o->model, dtype_of(o->dtype), &s->model, fault);
    if (r == 0)
        r = tokenizer_load(o->model, &s->tok, fault);
    if (r == 0)
        r = chat_load(o->model, o->chat_template, &s->chat, fault);
    return r;
}

static void size_engine(struct stack *s)
{
    const struct options *o = s->o;
    uint64_t seqs = o->max_num_seqs ? o->max_num_seqs : is_cpu(s) ? CPU_SEQS : GPU_SEQS;
    uint64_t tokens = o->max_num_batched_tokens;
    if (!o->max_num_seqs && tokens && seqs > tokens)
        seqs = tokens;
    if (!tokens)
        tokens = is_cpu(s) ? CPU_TOKENS : GPU_TOKENS;
    if (tokens < seqs)
        tokens = seqs;
    s->engine_params = (struct engine_params){
        .max_seqs = (uint32_t)seqs,
        .max_batched_tokens = (uint32_t)tokens,
        .max_model_len = o->max_model_len ? (uint32_t)o->max_model_len : s->model->max_model_len,
        .block_size = (uint32_t)o->block_size,
        .depth = o->async_scheduling ? 2 : 1,
        .priority_policy = strcmp(o->scheduling_policy, "priority") == 0,
        .step_deadline_us = (uint64_t)(o->step_deadline * 1e6),
    };
}

static int make_plan(struct stack *s, struct ek_fault *fault)
{
    const struct options *o = s->o;
    struct ek_plan_request q = {.graph = &s->model->graph,
                                .logit_rows = s->engine_params.max_seqs,
                                .block_size = s->engine_params.block_size};
    engine_ceiling(&s->engine_params, &q.ceiling);
    int r = s->backend->plan(&s->open, &q, &s->need);
    if (r < 0)
        return r;
    s->plan_params =
        (struct memplan_params){.memory_bytes = s->info.memory_bytes,
                                .utilization = o->gpu_memory_utilization,
                                .kv_cache_bytes = o->kv_cache_memory_bytes,
                                .blocks_override = (uint32_t)o->num_gpu_blocks_override,
                                .kv_most_bytes = is_cpu(s) ? CPU_KV_MOST : 0,
                                .swap_bytes = (uint64_t)(o->swap_space * GIB),
                                .block_size = s->engine_params.block_size,
                                .max_model_len = (uint32_t)o->max_model_len,
                                .max_num_seqs = s->engine_params.max_seqs,
                                .max_num_batched_tokens = s->engine_params.max_batched_tokens,
                                .host_bytes = is_cpu(s) ? HOST_BYTES : 0};
    r = memplan_make(&s->plan_params, &s->need, s->model->max_model_len, &s->plan, fault);
    if (r < 0)
        return r;
    model_serve(s->model, s->plan.max_model_len);
    s->engine_params.max_model_len = s->plan.max_model_len;
    s->engine_params.blocks = s->plan.blocks;
    s->engine_params.block_bytes = s->need.block_bytes;
    s->engine_params.host_blocks = s->plan.host_blocks;
    return 0;
}

int start_plan(struct stack *s, int *ret_exit, struct ek_fault *fault)
{
    const char *what = "the device";
    int r = find_device(s, fault);
    if (r == 0) {
        what = "the model";
        r = read_model(s, fault);
    }
    if (r == -E2BIG)
        r = -EBADMSG; /* only the plan does not fit */
    if (r == 0) {
        what = "the memory plan";
        size_engine(s);
        r = make_plan(s, fault);
    }
    return r < 0 ? failed(r, what, ret_exit, fault) : 0;
}

int start_write_plan(const struct stack *s, bool json, struct ek_buf *out)
{
    return memplan_write(&s->plan, &s->plan_params, json, out);
}

/* A live limit: its ceiling, its floor and what it is at start. */
static void set_limit(struct limits *l, enum limit_id id, uint64_t floor, uint64_t ceiling,
                      uint64_t value)
{
    l->floor[id] = floor;
    l->ceiling[id] = ceiling;
    l->value[id] = l->start[id] = value;
}

static void set_limits(struct stack *s)
{
    const struct options *o = s->o;
    struct engine_params *e = &s->engine_params;
    struct limits *l = &e->limits;
    uint64_t reqs = o->max_num_queued_reqs, tokens = o->max_num_queued_tokens;
    if (!tokens) {
        tokens =
            e->max_batched_tokens > e->max_model_len ? e->max_batched_tokens : e->max_model_len;
        tokens = tokens * 8 > QUEUED_LEAST ? tokens * 8 : QUEUED_LEAST;
    }
    *l = (struct limits){.generation = 1};
    set_limit(l, LIMIT_RUNNING_SEQS, 1, e->max_seqs, e->max_seqs);
    set_limit(l, LIMIT_BATCHED_TOKENS, 1, e->max_batched_tokens, e->max_batched_tokens);
    set_limit(l, LIMIT_QUEUED_REQS, 1, reqs, reqs);
    set_limit(l, LIMIT_QUEUED_TOKENS, 1, tokens, tokens);
    set_limit(l, LIMIT_QUEUE_DEADLINE, 0, 86400 * EK_US_PER_S, (uint64_t)(o->queue_deadline * 1e6));
    set_limit(l, LIMIT_WATERMARK, 0, 500000, (uint64_t)llround(o->watermark * 1e6));
    set_limit(l, LIMIT_CACHED_SHARE, 0, CACHED_SHARE_MOST, 0);
    uint32_t pool = e->blocks - 1, longest = (e->max_model_len + e->block_size - 1) / e->block_size;
    set_limit(l, LIMIT_KV_BLOCKS, longest < pool ? longest : pool, pool, pool);
    set_limit(l, LIMIT_ADMISSION_HIGH, 0, 1000000, (uint64_t)llround(o->admission_high * 1e6));
    set_limit(l, LIMIT_ADMISSION_LOW, 0, 1000000, (uint64_t)llround(o->admission_low * 1e6));
    set_limit(l, LIMIT_PREFIX_CACHING, 0, 1, o->enable_prefix_caching);
    set_limit(l, LIMIT_SALT_SHARE, 0, 1000000, (uint64_t)llround(o->cached_share_per_salt * 1e6));
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct stack *s = ctx;
    int percent = total ? (int)(done * 100 / total) : 100;
    http_progress(s->http, "loading weights", done, total);
    if (percent == s->percent)
        return;
    if (s->bar)
        (void)fprintf(stderr, "\r  loading weights  [%-40.*s] %3d %%%s", percent * 40 / 100,
                      "########################################", percent,
                      percent == 100 ? "\n" : "");
    if (percent / 5 != s->percent / 5)
        (void)sd_notifyf(0, "STATUS=Loading weights: %d %%", percent);
    s->percent = percent;
}

static int load_device(struct stack *s, struct ek_fault *fault)
{
    struct ek_plan_request q = {.graph = &s->model->graph,
                                .logit_rows = s->engine_params.max_seqs,
                                .block_size = s->engine_params.block_size};
    struct ek_kv_params kv = {.blocks = s->plan.blocks,
                              .host_blocks = s->plan.host_blocks,
                              .block_size = s->engine_params.block_size};
    engine_ceiling(&s->engine_params, &q.ceiling);
    int r = s->backend->open(&s->open, &s->device, fault);
    if (r == 0)
        r = s->backend->load(s->device, &q, &s->model->files, on_progress, s, fault);
    if (r == 0) {
        http_progress(s->http, "reserving the KV pool", 0, 0);
        r = s->backend->kv_open(s->device, &kv);
    }
    if (r == 0)
        model_close_files(s->model);
    return r;
}

static void on_deliver(void *ctx, uint32_t worker)
{
    struct stack *s = ctx;
    http_deliver(s->http, worker);
}

static void on_dead(void *ctx, int code, const char *why)
{
    struct stack *s = ctx;
    s->dead(s->dead_ctx, code, why);
}

static int make_engine(struct stack *s, struct ek_fault *fault)
{
    struct engine_params *p = &s->engine_params;
    if (getrandom(p->hash_secret, sizeof(p->hash_secret), 0) != (ssize_t)sizeof(p->hash_secret))
        return -EIO;
    set_limits(s);
    p->vocab = s->model->graph.vocab;
    p->deliver = on_deliver;
    p->dead = on_dead;
    p->ctx = s;
    return engine_new(p, s->backend, s->device, &s->engine, fault);
}

static void set_names(struct stack *s)
{
    const struct options *o = s->o;
    struct http_served *v = &s->served;
    for (size_t i = 0; i < o->served_model_name.count && v->names < HTTP_NAMES_MOST; i++)
        v->name[v->names++] = o->served_model_name.at[i];
    if (v->names)
        return;
    size_t len = strlen(o->model);
    while (len > 1 && o->model[len - 1] == '/')
        len--;
    size_t from = len;
    while (from > 0 && o->model[from - 1] != '/')
        from--;
    (void)snprintf(s->name, sizeof(s->name), "%.*s", (int)(len - from), o->model + from);
    if (s->name[0] && strcmp(s->name, o->model) != 0)
        v->name[v->names++] = s->name;
    v->name[v->names++] = o->model;
}

static void set_defaults(struct stack *s)
{
    const struct model_defaults *d = &s->model->defaults;
    struct http_defaults *v = &s->served.defaults;
    *v = (struct http_defaults){.temperature = 1, .top_p = 1};
    if (strcmp(s->o->generation_config, "vllm") == 0)
        return;
    v->temperature = isnan(d->temperature) ? v->temperature : d->temperature;
    v->top_p = isnan(d->top_p) || d->top_p <= 0 ? v->top_p : d->top_p;
    v->min_p = isnan(d->min_p) ? 0 : d->min_p;
    v->top_k = d->top_k > 0 && d->top_k < INT32_MAX ? (uint32_t)d->top_k : 0;
    v->max_tokens =
        d->max_new_tokens > 0 && d->max_new_tokens < INT32_MAX ? (uint32_t)d->max_new_tokens : 0;
    if (!isnan(d->repetition_penalty) && d->repetition_penalty != 1)
        ek_log(EK_LOG_WARNING,
               "The model's generation_config.json sets repetition_penalty %g, which this version "
               "does not apply",
               d->repetition_penalty);
}

static void set_eos(struct stack *s)
{
    struct http_served *v = &s->served;
    int32_t more = tokenizer_eos(s->tok);
    for (uint32_t i = 0; i < s->model->eos_count && v->eos_count < HTTP_EOS_MOST; i++) {
        v->eos[v->eos_count++] = s->model->eos[i];
        more = s->model->eos[i] == more ? -1 : more;
    }
    if (more >= 0 && v->eos_count < HTTP_EOS_MOST)
        v->eos[v->eos_count++] = more;
}

static void fill_served(struct stack *s)
{
    const struct options *o = s->o;
    const struct engine_params *p = &s->engine_params;
    struct http_served *v = &s->served;
    *v = (struct http_served){.engine = s->engine,
                              .tok = s->tok,
                              .chat = s->chat,
                              .backend = s->backend,
                              .device = s->device,
                              .root = o->model,
                              .max_model_len = p->max_model_len,
                              .vocab = p->vocab,
                              .block_size = p->block_size,
                              .blocks = p->blocks,
                              .host_blocks = p->host_blocks,
                              .seed = o->seed,
                              .max_logprobs = (uint32_t)o->max_logprobs,
                              .body_most = o->max_body_bytes
                                               ? o->max_body_bytes
                                               : (4u << 20) + (size_t)p->max_model_len * 32,
                              .step_deadline_us = p->step_deadline_us,
                              .priority_policy = p->priority_policy,
                              .tool_calls = o->enable_auto_tool_choice,
                              .force_usage = o->enable_force_include_usage,
                              .prompt_details = o->enable_prompt_tokens_details,
                              .prefix_caching = o->enable_prefix_caching,
                              .dtype = o->dtype,
                              .device_name = s->info.name,
                              .memory_utilization = o->gpu_memory_utilization};
    for (int i = 0; i < MEMPLAN_ITEMS && v->items < HTTP_ITEMS_MOST; i++)
        v->item[v->items++] = (struct http_item){memplan_item_name(i), s->plan.bytes[i]};
    set_names(s);
    set_defaults(s);
    set_eos(s);
}

int start_load(struct stack *s, int *ret_exit, struct ek_fault *fault)
{
    const char *what = "loading the weights";
    s->percent = -1;
    int r = load_device(s, fault);
    if (r == 0) {
        what = "starting the engine";
        http_progress(s->http, "starting the engine", 0, 0);
        r = make_engine(s, fault);
    }
    if (r < 0)
        return failed(r, what, ret_exit, fault);
    http_progress(s->http, "waiting for the listening socket", 1, 1);
    fill_served(s);
    return 0;
}

void start_done(struct stack *s)
{
    engine_free(s->engine);
    if (s->device)
        s->backend->close(s->device);
    chat_free(s->chat);
    tokenizer_free(s->tok);
    model_free(s->model);
    s->engine = NULL;
    s->device = NULL;
    s->chat = NULL;
    s->tok = NULL;
    s->model = NULL;
}
