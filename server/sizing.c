/*
 * How large everything becomes: from options and the device to ceilings and the memory plan
 * (sizing.h). Called by start.c.
 */
#include "server/sizing.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <math.h>
#include <string.h>

#include "common/budget.h"
#include "common/clock.h"
#include "common/log.h"
#include "kernels/registry.h"
#include "server/engine/sizes.h"
#include "server/model/model.h"
#include "server/net/bounds.h"
#include "server/net/process.h"
#include "server/options.h"
#include "server/stack.h"

#define GIB               1073741824.0
#define MIB               1048576.0
#define CPU_SEQS          64u
#define GPU_SEQS          256u
#define GPU_SEQS_LARGE    512u /* from GPU_LARGE on; decode steps are recorded up to that many */
#define GPU_LARGE         (70ull << 30)
#define SEQ_TOKENS        256u /* of the KV pool for each, at least, where no number is given */
#define SEQS_LEAST        16u
#define TOKENS_LEAST      2048u        /* a card that is short of memory gets no smaller budget */
#define CPU_KV_MOST       (4ull << 30) /* without --kv-cache-memory-bytes */
#define QUEUED_LEAST      65536u
#define CACHED_SHARE_MOST 1000000u

static bool is_cpu(const struct ek_backend *b)
{
    return strcmp(b->name, "cpu") == 0;
}

/* Multiplications and additions for a token of a prompt, attention not counted. */
static double token_flops(const struct ek_graph *g)
{
    double weights = 0;

    for (uint32_t i = 0; i < g->op_count; i++) {
        const struct ek_op *op = &g->ops[i];
        if (op->kind != EK_OP_LINEAR && op->kind != EK_OP_EXPERTS && op->kind != EK_OP_HEADS)
            continue;
        const struct ek_weight *w = &g->weights[op->weight];
        double times = op->kind == EK_OP_EXPERTS ? 3.0 * op->u.experts.top /* gate, up, down */
                       : op->kind == EK_OP_HEADS ? op->u.heads.count
                                                 : 1.0;
        weights += times * w->rows * w->cols;
    }
    return 2 * weights;
}

/* What a CPU does a second in prefill, by its tier: about, for it only chooses a budget. */
static double cpu_flops(const struct ek_device_info *info)
{
    static const struct {
        const char *isa;
        double thread; /* per thread */
    } tiers[] = {{"ref", 2e9},         {"avx2", 6e10},       {"avx512", 1e11},
                 {"avx512vnni", 1e11}, {"avx512bf16", 4e11}, {"amx", 1.2e12}};

    for (size_t i = 0; i < sizeof(tiers) / sizeof(tiers[0]); i++)
        if (strcmp(info->isa, tiers[i].isa) == 0)
            return tiers[i].thread * info->threads;
    return 0; /* one that is not here */
}

static uint32_t start_tokens(const struct stack *s)
{
    double flops = is_cpu(s->backend) ? cpu_flops(&s->info) : 0;

    if (!is_cpu(s->backend))
        return ek_budget_card((double)s->info.memory_bytes);
    return flops > 0 ? ek_budget_cpu(flops, token_flops(&s->model->graph)) : EK_BUDGET_MOST;
}

static uint32_t start_seqs(const struct stack *s)
{
    return is_cpu(s->backend)                 ? CPU_SEQS
           : s->info.memory_bytes < GPU_LARGE ? GPU_SEQS
                                              : GPU_SEQS_LARGE;
}

void sizing_engine(struct stack *s)
{
    const struct options *o = s->o;
    uint64_t seqs = o->max_num_seqs ? o->max_num_seqs : start_seqs(s);
    uint64_t tokens = o->max_num_batched_tokens;
    if (!o->max_num_seqs && tokens && seqs > tokens)
        seqs = tokens;
    uint32_t prompt_rows = tokens ? 0 : start_tokens(s);
    if (!tokens)
        tokens = ek_budget_step(is_cpu(s->backend), prompt_rows, (uint32_t)seqs);
    if (tokens < seqs)
        tokens = seqs;
    s->engine_params = (struct engine_params){
        .max_seqs = (uint32_t)seqs,
        .max_batched_tokens = (uint32_t)tokens,
        .prompt_rows = prompt_rows,
        .gap_us = s->open.stages > 1                     ? 0
                  : is_cpu(s->backend) && o->nnodes <= 1 ? ENGINE_GAP_CPU_US
                                                         : ENGINE_GAP_CARD_US,
        .max_model_len = o->max_model_len ? (uint32_t)o->max_model_len : s->model->max_model_len,
        .block_size = (uint32_t)o->block_size,
        .vocab = s->model->graph.vocab,
        .hidden = s->model->graph.hidden,
        .depth = o->async_scheduling ? 2 : 1,
        .priority_policy = strcmp(o->scheduling_policy, "priority") == 0,
        .step_deadline_us = (uint64_t)(o->step_deadline * 1e6),
    };
}

/* A live limit: its ceiling, its floor and what it is at start. */
static void set_limit(struct limits *l, enum limit_id id, uint64_t floor, uint64_t ceiling,
                      uint64_t value)
{
    l->floor[id] = floor;
    l->ceiling[id] = ceiling;
    l->value[id] = l->start[id] = value;
}

/* A live limit that begins with its option's value and stays in the option's bounds. */
static void set_limit_by_option(struct limits *l, enum limit_id id, const struct options *o)
{
    const struct ek_opt *row = option_table;
    const double scale = limit_table[id].scale;
    while (row->name && strcmp(row->name, limit_table[id].option) != 0)
        row++;
    assert(row->name); /* test_options looks up all of them */
    const void *at = (const char *)o + row->at;
    double most = row->max, value = 0;
    if (row->type == OPT_BOOL) {
        most = 1;
        value = *(const bool *)at;
    } else if (row->type == OPT_UINT) {
        value = (double)*(const uint64_t *)at;
    } else {
        value = *(const double *)at;
    }
    set_limit(l, id, (uint64_t)llround(row->min * scale), (uint64_t)llround(most * scale),
              (uint64_t)llround(value * scale));
}

/* Most prompt tokens that may wait. */
static uint64_t queued_tokens(const struct stack *s)
{
    const struct engine_params *e = &s->engine_params;
    if (s->o->max_num_queued_tokens)
        return s->o->max_num_queued_tokens;
    uint64_t tokens =
        e->max_batched_tokens > e->max_model_len ? e->max_batched_tokens : e->max_model_len;
    return tokens * 8 > QUEUED_LEAST ? tokens * 8 : QUEUED_LEAST;
}

static void set_limits(struct stack *s)
{
    struct engine_params *e = &s->engine_params;
    struct limits *l = &e->limits;
    uint64_t reqs = s->o->max_num_queued_reqs, tokens = queued_tokens(s);
    *l = (struct limits){.generation = 1};
    set_limit(l, LIMIT_RUNNING_SEQS, 1, e->max_seqs, e->max_seqs);
    set_limit(l, LIMIT_BATCHED_TOKENS, 1, e->max_batched_tokens, e->max_batched_tokens);
    set_limit(l, LIMIT_QUEUED_REQS, 1, reqs, reqs);
    set_limit(l, LIMIT_QUEUED_TOKENS, 1, tokens, tokens);
    set_limit(l, LIMIT_CACHED_SHARE, 0, CACHED_SHARE_MOST, 0);
    uint32_t pool = e->blocks - 1, longest = (e->max_model_len + e->block_size - 1) / e->block_size;
    set_limit(l, LIMIT_KV_BLOCKS, longest < pool ? longest : pool, pool, pool);
    for (uint32_t i = 0; i < LIMIT_COUNT; i++) {
        if (limit_table[i].option && !limit_table[i].flag)
            set_limit_by_option(l, (enum limit_id)i, s->o);
    }
}

/* ---- the plan ---- */

/* Its size was asked for, whatever the share. */
static bool pool_is_named(const struct options *o)
{
    return o->num_gpu_blocks_override > 0 || o->kv_cache_memory_bytes > 0;
}

/* Of the device's memory; a pool that is asked for by name may be larger than the share. */
static double measured_share(const struct stack *s)
{
    return pool_is_named(s->o) ? 1 : s->o->gpu_memory_utilization;
}

void sizing_request(const struct stack *s, struct ek_plan_request *ret_request)
{
    *ret_request =
        (struct ek_plan_request){.graph = &s->model->graph,
                                 .logit_rows = s->engine_params.max_seqs + EK_STEP_SCORES,
                                 .block_size = s->engine_params.block_size,
                                 .max_model_len = s->engine_params.max_model_len,
                                 .offload_bytes = (uint64_t)(s->o->cpu_offload_gb * GIB),
                                 .share = measured_share(s)};
    engine_ceiling(&s->engine_params, &ret_request->ceiling);
}

/* Of the machine that the device is in, 0 = not known. */
static uint64_t host_memory(void)
{
    const struct ek_backend *cpu = ek_backend_find("cpu", NULL);
    struct ek_device_info info = {0};
    if (!cpu || cpu->probe(&(struct ek_open_params){0}, &info, NULL) < 0)
        return 0;
    return info.memory_bytes;
}

/* What lies in host memory whatever the device. The program and its texts are here already. */
static void size_host(const struct stack *s, struct memplan_params *p)
{
    struct engine_params e = s->engine_params;
    uint64_t requests = e.max_seqs, waiting = queued_tokens(s);
    e.limits.ceiling[LIMIT_QUEUED_REQS] = s->o->max_num_queued_reqs;
    e.host_blocks = p->swap_bytes + p->offload_bytes > 0 ? 2 : 0;
    e.states = p->states > 0 ? 3 * p->states : 0; /* with about two snapshots each */
    p->table_bytes = process_anonymous_bytes() + engine_table_bytes(&e);
    p->block_table_bytes = engine_block_table_bytes(e.block_size);
    p->host_bytes = s->o->max_connections * BOUND_CONNECTION_BYTES +
                    requests * engine_request_bytes(e.max_model_len) + waiting * sizeof(int32_t);
}

static int check_index(const struct model *m, uint64_t asked, struct ek_fault *fault)
{
    if (m->index_tokens == 0 || asked <= m->index_tokens)
        return 0;
    return ek_fault_set(fault, "max-model-len",
                        "--max-model-len %llu: the model's attention chooses %u tokens "
                        "(index_topk), and it is served up to that length; set it to %u or less",
                        (unsigned long long)asked, m->index_tokens, m->index_tokens);
}

static int plan_once(struct stack *s, struct ek_fault *fault)
{
    const struct options *o = s->o;
    struct engine_params *e = &s->engine_params;
    struct ek_plan_request q;
    sizing_request(s, &q);
    int r = s->backend->plan(&s->open, &q, &s->need, fault);
    if (r < 0)
        return r;
    const bool stateful = s->need.state_bytes > 0;
    model_weights_note(s->model, false, s->note);
    s->plan_params = (struct memplan_params){
        .weights_note = s->note,
        .kv_note = options_kv_i8(o)   ? "int8"
                   : options_kv_f8(o) ? "fp8"
                                      : NULL,
        .memory_bytes = s->info.memory_bytes,
        .utilization = o->gpu_memory_utilization,
        .kv_cache_bytes = o->kv_cache_memory_bytes,
        .blocks_override = (uint32_t)o->num_gpu_blocks_override,
        .kv_most_bytes = is_cpu(s->backend) ? CPU_KV_MOST : 0,
        .ranks = is_cpu(s->backend) ? 1 : s->open.ranks,
        .ranks_here = s->open.ranks > 0 ? ek_open_local(&s->open) : 1,
        .stages = s->open.stages,
        .swap_bytes = stateful ? 0 : (uint64_t)(o->swap_space * GIB),
        .offload_bytes = stateful ? 0 : (uint64_t)(o->kv_offloading_size * GIB),
        .file_bytes = o->keep_weights_host ? s->model->weight_file_bytes : 0,
        .block_size = e->block_size,
        .max_model_len = (uint32_t)o->max_model_len,
        .max_num_seqs = e->max_seqs,
        .max_num_batched_tokens = e->max_batched_tokens,
        .states = stateful ? e->max_seqs : 0,
        .snapshots = o->enable_prefix_caching || o->state_snapshots > 0 ? o->state_snapshots : 0,
        .host_apart = !is_cpu(s->backend),
        .host_memory_bytes = is_cpu(s->backend) || o->dry_run_memory > 0 ? 0 : host_memory()};
    size_host(s, &s->plan_params);
    r = check_index(s->model, o->max_model_len, fault);
    if (r < 0)
        return r;
    r = memplan_make(&s->plan_params, &s->need, s->model->max_model_len, &s->plan, fault);
    if (r < 0)
        return r;
    model_serve(s->model, s->plan.max_model_len);
    e->max_model_len = s->plan.max_model_len;
    e->stretched_above = s->model->stretched_above;
    e->blocks = s->plan.blocks;
    e->block_bytes = s->need.block_bytes;
    e->host_blocks = s->plan.host_blocks;
    e->states = stateful ? e->max_seqs + s->plan.snapshots : 0;
    e->offload_blocks = s->plan.offload_blocks;
    set_limits(s);
    return 0;
}

/* Whether what is chosen by default is smaller now and the plan has to be made again. */
static bool sizing_shrink(struct stack *s, int r)
{
    struct engine_params *e = &s->engine_params;
    uint32_t tokens = e->max_batched_tokens / 2, seqs = e->max_seqs / 2;
    bool narrow =
        r == 0 && (uint64_t)e->blocks * e->block_size < (uint64_t)e->max_seqs * SEQ_TOKENS;

    if (r == -E2BIG && !s->o->max_num_batched_tokens && tokens >= TOKENS_LEAST &&
        tokens >= e->max_seqs)
        e->max_batched_tokens = tokens;
    else if ((r == -E2BIG || narrow) && !is_cpu(s->backend) && !s->o->max_num_seqs &&
             seqs >= SEQS_LEAST)
        e->max_seqs = seqs;
    else
        return false;
    return true;
}

/* What the plan takes on each device, or apart from it; not what is taken as clients come, nor the
 * kernel's pages of files. */
static uint64_t planned_bytes(const struct stack *s, bool apart)
{
    uint64_t bytes = 0;

    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        if (i != MEMPLAN_HOST && i != MEMPLAN_FILES &&
            memplan_apart(&s->plan_params, (enum memplan_item)i) == apart)
            bytes += s->plan.bytes[i];
    return bytes;
}

/* Another program has what the plan counts on. It may be about to end, so this is only said. */
static void say_if_taken(const struct stack *s)
{
    const uint64_t bytes = planned_bytes(s, false);
    const double all = (double)s->info.memory_bytes;

    if (is_cpu(s->backend) || s->o->dry_run_memory > 0 || bytes <= s->info.free_bytes)
        return;
    ek_log(EK_LOG_WARNING,
           "Of the card's %.2f GiB only %.2f GiB are free, and the plan takes %.2f GiB: end what "
           "has the rest (nvidia-smi), or say --gpu-memory-utilization %.2f",
           all / 0x1p30, (double)s->info.free_bytes / 0x1p30, (double)bytes / 0x1p30,
           0.99 * (double)s->info.free_bytes / all);
}

int sizing_plan(struct stack *s, struct ek_fault *fault)
{
    struct engine_params *e = &s->engine_params;
    uint32_t tokens = e->max_batched_tokens, seqs = e->max_seqs;
    int r;

    do
        r = plan_once(s, fault);
    while (sizing_shrink(s, r));
    if (r == 0 && e->states > 0 && s->o->swap_space + s->o->kv_offloading_size > 0)
        ek_log(EK_LOG_WARNING,
               "The model has recurrent state, which is not kept in host memory: --swap-space and "
               "--kv-offloading-size have no effect");
    if (r == 0 && e->max_batched_tokens < tokens)
        ek_log(EK_LOG_NOTICE,
               "A step may have %u tokens instead of %u, whose activations do not fit beside the "
               "weights; --max-num-batched-tokens says how many",
               e->max_batched_tokens, tokens);
    if (r == 0 && e->max_seqs < seqs)
        ek_log(EK_LOG_NOTICE,
               "A step may have %u sequences instead of %u: for those the KV pool would have fewer "
               "than %u tokens each; --max-num-seqs says how many",
               e->max_seqs, seqs, SEQ_TOKENS);
    if (r == 0)
        say_if_taken(s);
    return r;
}

/* ---- the plan and what came of it ---- */

static int no_room(const struct stack *s, const struct ek_device_stats *d, uint64_t least,
                   struct ek_fault *fault)
{
    const uint64_t bytes =
        least * s->need.block_bytes + s->need.state_bytes * (uint64_t)s->engine_params.states;
    const uint32_t asked = s->plan_params.max_model_len ? s->plan_params.max_model_len : 1;
    const bool named = pool_is_named(s->o);
    char needs[24], has[24], context[24], others[24];

    ek_fault_write(
        fault, named ? "" : "gpu-memory-utilization",
        "One request of %u token%s needs a KV pool of %s, and the card has %s for it "
        "beside a context of %s (with what others took since the start) and %s that "
        "others had before: end other processes%s%s",
        asked, asked > 1 ? "s" : "", memplan_size_text(bytes, needs),
        memplan_size_text(d->room_bytes, has), memplan_size_text(d->context_bytes, context),
        memplan_size_text(d->others_bytes, others), named ? "" : ", raise --gpu-memory-utilization",
        asked > 1 ? ", lower --max-model-len" : "");
    return EK_EDEVMEM;
}

int sizing_measured(struct stack *s, struct ek_fault *fault)
{
    const struct options *o = s->o;
    struct engine_params *e = &s->engine_params;
    const uint64_t bs = e->block_size, states = s->need.state_bytes * (uint64_t)e->states;
    struct ek_device_stats d = {0};
    char context[24], guess[24], others[24];

    s->backend->stats(s->device, &d);
    if (d.room_bytes == 0)
        return 0;
    const bool named = pool_is_named(o);
    uint64_t most = named ? s->plan.blocks : UINT32_MAX / bs;
    uint64_t blocks = d.room_bytes > states ? (d.room_bytes - states) / s->need.block_bytes : 0;
    blocks = blocks < most ? blocks : most;
    /* A length that was fitted to the plan is fitted again. */
    const uint64_t least = (o->max_model_len + bs - 1) / bs + (o->max_model_len ? 1 : 2);
    if (blocks < least)
        return no_room(s, &d, least, fault);
    e->blocks = (uint32_t)blocks;
    if ((blocks - 1) * bs < e->max_model_len) {
        ek_log(EK_LOG_WARNING, "The largest length is %" PRIu64 " tokens instead of %u",
               (blocks - 1) * bs, e->max_model_len);
        e->max_model_len = (uint32_t)((blocks - 1) * bs);
    }
    set_limits(s);
    ek_log(named && e->blocks < s->plan.blocks ? EK_LOG_WARNING : EK_LOG_INFO,
           "KV pool: %u blocks were predicted and %u are there: context, libraries and graphs take "
           "%s (with a reserve, %s were predicted), other processes have %s",
           s->plan.blocks, e->blocks, memplan_size_text(d.context_bytes, context),
           memplan_size_text(s->need.overhead_bytes, guess),
           memplan_size_text(d.others_bytes, others));
    return 0;
}

/* uneven: the plan is that of the largest of several stages for each of them. */
static void sizing_compare_place(const char *where, uint64_t planned, uint64_t taken, bool uneven)
{
    double p = (double)planned, t = (double)taken;
    double off = fabs(t - p), share = planned ? 100 * (t - p) / p : 0;
    if (off <= SIZING_BAND * p || off <= (double)SIZING_SLACK)
        ek_log(EK_LOG_INFO, "Memory of the %s: %.1f MiB planned, %.1f MiB taken (%+.1f %%)", where,
               p / MIB, t / MIB, share);
    else if (uneven && taken < planned)
        ek_log(EK_LOG_INFO,
               "Memory of the %s: %.1f MiB planned, %.1f MiB taken (%+.1f %%); each stage was "
               "planned as large as the largest",
               where, p / MIB, t / MIB, share);
    else
        ek_log(EK_LOG_WARNING,
               "Memory of the %s: %.1f MiB planned but %.1f MiB taken (%+.1f %%); %s", where,
               p / MIB, t / MIB, share,
               taken > planned ? "lower --gpu-memory-utilization if others need the rest"
                               : "the KV pool could be larger by that much");
}

/* What weights in host memory cost: a step cannot be quicker than their copies. */
static void tell_offload(const struct stack *s, const struct ek_device_stats *d)
{
    const double ranks = s->open.ranks > 0 ? ek_open_local(&s->open) : 1;
    const double us = (double)d->stream_us;
    char all[80] = "", cost[200] = "", few[120] = "", has[24], copies[24];
    if (d->host_weight_bytes == 0)
        return;
    if (s->need.offload_most_bytes <= (uint64_t)(s->o->cpu_offload_gb * GIB))
        (void)snprintf(all, sizeof(all), ", all that can be of the %.2f GiB asked for",
                       s->o->cpu_offload_gb * ranks);
    if (d->stream_bytes > 0 && d->stream_us > 0)
        (void)snprintf(
            cost, sizeof(cost),
            ", in %.1f ms at the %.1f GB/s measured: at most %.1f steps a second, and as "
            "many tokens/s for one request",
            us / 1e3, (double)d->stream_bytes / ranks / us / 1e3, 1e6 / us);
    if (d->stream_rows > 0)
        (void)snprintf(few, sizeof(few),
                       "; steps of up to %" PRIu64 " tokens read only the experts that they chose",
                       d->stream_rows);
    ek_log(EK_LOG_INFO, "Weights in host memory: %s%s; each step copies %s to the card%s%s%s",
           memplan_size_text(d->host_weight_bytes, has), all,
           memplan_size_text(d->stream_bytes, copies), ranks > 1 ? "s" : "", cost, few);
}

void sizing_compare(struct stack *s)
{
    struct served *v = &s->served;
    struct ek_device_stats d = {0};
    struct ek_device_info now = {0};
    uint64_t share = planned_bytes(s, false);
    s->backend->stats(s->device, &d);
    tell_offload(s, &d);
    if (d.attention)
        ek_log(EK_LOG_INFO, "Attention to prompts: %s kernels", d.attention);
    if (d.products)
        ek_log(EK_LOG_INFO, "Large products: %s", d.products);
    if (d.note)
        ek_log(EK_LOG_WARNING, "%s", d.note);
    if (is_cpu(s->backend)) {
        /* Pages of pools and of the arena come with their first use. */
        v->memory_planned[HTTP_HOST] = share;
        v->memory_taken[HTTP_HOST] = process_anonymous_bytes() + d.kv_bytes + d.host_kv_bytes +
                                     d.activation_bytes + d.state_bytes;
    } else {
        v->memory_planned[HTTP_HOST] = planned_bytes(s, true);
        v->memory_taken[HTTP_HOST] = process_anonymous_bytes() + d.host_kv_bytes;
        share *= s->open.ranks > 0 ? ek_open_local(&s->open) : 1; /* the plan is for each card */
        v->memory_planned[HTTP_DEVICE] = share;
        v->memory_taken[HTTP_DEVICE] = d.kv_bytes + d.pool_reserved_bytes;
        if (s->open.ranks <= 1 && s->backend->probe(&s->open, &now, NULL) == 0 &&
            now.free_bytes < s->info.free_bytes) /* the card's own figure, with all of a context */
            v->memory_taken[HTTP_DEVICE] = s->info.free_bytes - now.free_bytes;
        if (d.room_bytes == 0 || v->memory_taken[HTTP_DEVICE] > share)
            sizing_compare_place("device", share, v->memory_taken[HTTP_DEVICE], s->open.stages > 1);
        else /* the pool has what was guessed too high, or is as large as was asked for */
            ek_log(EK_LOG_INFO, "Memory of the device: %.1f MiB planned, %.1f MiB taken",
                   (double)share / MIB, (double)v->memory_taken[HTTP_DEVICE] / MIB);
    }
    sizing_compare_place("host", v->memory_planned[HTTP_HOST], v->memory_taken[HTTP_HOST], false);
}
