/*
 * The second half of a start: from the memory plan to an engine that serves. Checksums, weights, KV
 * pool, engine and what it calls back, then what the API needs to know of all that (struct served).
 * start_load() is called by main.c after start_plan(), on the starter's thread; what the engine
 * calls back runs on the engine's.
 */
#include "server/start.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "common/path.h"
#include "common/recorder.h"
#include "kernels/registry.h"
#include "server/answer_parsers.h"
#include "server/api/fim.h"
#include "server/controller.h"
#include "server/kvevents.h"
#include "server/kvpub.h"
#include "server/model/checksum.h"
#include "server/model/model.h"
#include "server/model/sigbus.h"
#include "server/named.h"
#include "server/net/losses.h"
#include "server/options.h"
#include "server/prefix_file.h"
#include "server/scores.h"
#include "server/sizing.h"
#include "server/start_limits.h"

/* The memory that the CPU backend computes in is the host's: no device of anybody ran out. */
static int in_host_memory(const struct stack *s, int r, const char *what, struct ek_fault *fault)
{
    struct rlimit l;
    if (r != EK_EDEVMEM || strcmp(s->chosen.backend, "cpu") != 0)
        return r;
    bool bounded = getrlimit(RLIMIT_AS, &l) == 0 && l.rlim_cur != RLIM_INFINITY;
    if (bounded)
        (void)ek_fault_set(fault, "",
                           "%s: host memory ran out below the limit of %.0f MiB of addresses that "
                           "this process has (ulimit -v): raise it, or lower "
                           "--kv-cache-memory-bytes",
                           what, (double)l.rlim_cur / 1048576.0);
    else
        (void)ek_fault_set(fault, "",
                           "%s: host memory ran out: lower --gpu-memory-utilization or "
                           "--kv-cache-memory-bytes, or end what takes it",
                           what);
    return -ENOMEM;
}

static void load_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct stack *s = ctx;
    int percent = total ? (int)(done * 100 / total) : 100;
    http_progress(s->http, "loading weights", done, total);
    if (percent == s->percent)
        return;
    struct pollfd out = {.fd = STDERR_FILENO, .events = POLLOUT};
    if (s->bar && poll(&out, 1, 0) == 1) /* Ctrl-S at the terminal does not stop the load */
        (void)fprintf(stderr, "\r  loading weights  [%-40.*s] %3d %%%s", percent * 40 / 100,
                      "########################################", percent,
                      percent == 100 ? "\n" : "");
    if (percent / 5 != s->percent / 5)
        (void)sd_notifyf(0, "STATUS=Loading weights: %d %%", percent);
    s->percent = percent;
}

static int compare_list(struct stack *s, struct ek_fault *fault)
{
    const char *list = s->o->weights_checksums;
    uint32_t files = 0;
    uint64_t bytes = 0, start = ek_now_us();
    if (strcmp(list, "off") == 0)
        return 0;
    http_progress(s->http, "verifying checksums", 0, 0);
    (void)sd_notify(0, "STATUS=Verifying checksums");
    const struct checksum_of of = {
        .dir = s->model->dir, .model = s->model, .weights = s->check.model, .texts = s->check.text};
    int r = checksum_verify(&of, strcmp(list, "auto") == 0 ? NULL : list, &files, &bytes, fault);
    if (r == 0 && files > 0)
        ek_log(EK_LOG_INFO, "Verified the checksums of %u files, %.1f MB, in %.1f s", files,
               (double)bytes / 1e6, (double)(ek_now_us() - start) / 1e6);
    return r;
}

int start_verify(struct stack *s, struct ek_fault *fault)
{
    int r = compare_list(s, fault);
    check_done_texts(&s->check); /* they were read, and compared if there is a list */
    return r;
}

/* Locks the pages of weight files, which stay mapped for as long as the server runs: the next
 * engine finds them in the page cache, whatever else is read meanwhile. It is done before an engine
 * reads them, for pages count for the cgroup that reads them first, and an engine's has a limit
 * that locked pages would fill. Without the right to, or the memory, it is said, and files are what
 * they would have been. */
static bool keep_weights(struct stack *s)
{
    const struct ek_weight_files *files = &s->model->files;
    const uint64_t start = ek_now_us();
    uint64_t bytes = 0;
    char size[24];

    for (uint32_t i = 0; i < files->count; i++) {
        if (mlock(files->file[i].data, files->file[i].size_bytes) < 0) {
            struct rlimit most = {0};
            const int r = -errno;
            (void)getrlimit(RLIMIT_MEMLOCK, &most);
            const bool limit = r == -EPERM || bytes + files->file[i].size_bytes > most.rlim_cur;
            ek_log(EK_LOG_WARNING, "Weight files are not kept in memory: %s after %s%s",
                   ek_strerror(r), memplan_size_text(bytes, size),
                   limit ? "; LimitMEMLOCK=infinity in the unit (ulimit -l) allows it" : "");
            while (i-- > 0)
                (void)munlock(files->file[i].data, files->file[i].size_bytes);
            return false;
        }
        bytes += files->file[i].size_bytes;
    }
    ek_log(EK_LOG_INFO, "Weight files are kept in memory for the next engine: %s, locked in %.1f s",
           memplan_size_text(bytes, size), (double)(ek_now_us() - start) / 1e6);
    return true;
}

static int load_device(struct stack *s, struct ek_fault *fault)
{
    struct ek_plan_request q;
    struct ek_kv_params kv = {.host_blocks = s->plan.host_blocks,
                              .block_size = s->engine_params.block_size,
                              .states = s->engine_params.states};
    sizing_request(s, &q);
    int r = s->backend->open(&s->open, &s->device, fault);
    if (r == 0)
        (void)sigbus_watch(s->model->dir, EK_EXIT_CONFIG); /* MPI's libraries take it away */
    bool kept = false;
    if (r == 0 && s->o->keep_weights_host) {
        http_progress(s->http, "locking weight files", 0, 0);
        kept = keep_weights(s);
    }
    if (r == 0)
        r = s->backend->load(s->device, &q, &s->model->files, load_progress, s, fault);
    if (r == 0)
        r = named_unchanged(s->model->dir, s->launcher.apart.stamp, fault);
    if (r == 0)
        r = sizing_measured(s, fault);
    if (r == 0) /* whose ceilings are known now */
        start_limits(getenv(START_LIMITS_ENV), &s->engine_params.limits);
    if (r == 0) {
        http_progress(s->http, "reserving the KV pool", 0, 0);
        kv.blocks = s->engine_params.blocks;
        r = s->backend->kv_open(s->device, &kv);
    }
    if (r == 0) {
        prefix_file_note_model(s);
        if (!kept)
            model_close_files(s->model);
        sigbus_done();
        check_done(&s->check); /* an engine of its own has it, too */
    }
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

static void on_revived(void *ctx, const char *why, uint64_t pause_us, uint32_t requests)
{
    (void)ctx;
    if (why)
        ek_log(EK_LOG_WARNING,
               "The engine was replaced: %s; %u requests are computed again, after %.0f ms", why,
               requests, (double)pause_us / 1e3);
    else
        ek_log(EK_LOG_NOTICE,
               "The engine is there again, as asked for; %u requests are computed again, after "
               "%.0f ms",
               requests, (double)pause_us / 1e3);
}

static bool load_lost(void *ctx, const struct engine_loss *loss)
{
    const struct stack *s = ctx;
    return losses_tell(http_losses(s->http), loss);
}

static int on_verdict(void *ctx, uint64_t number, uint64_t wait_us,
                      struct engine_verdict *ret_verdict)
{
    const struct stack *s = ctx;
    return losses_wait(http_losses(s->http), number, wait_us, ret_verdict);
}

/* "max_num_batched_tokens 1024 instead of 2048", or "the same limits". */
static void say_limits(const struct engine_judged *j, char *text, size_t size)
{
    const struct {
        const char *name;
        uint64_t to, was;
        bool set;
    } rows[] = {
        {"max_num_batched_tokens", j->with.tokens, j->loss->tokens, j->with.tokens != 0},
        {"max_num_running_seqs", j->with.seqs, j->loss->seqs, j->with.seqs != 0},
        {"MiB of swap space", j->with.swap_bytes >> 20, j->loss->swap_bytes >> 20,
         j->with.set_swap},
    };
    size_t at = 0;
    (void)snprintf(text, size, "the same limits");
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]) && at < size; i++) {
        if (!rows[i].set)
            continue;
        int n =
            snprintf(text + at, size - at, "%s%s %llu instead of %llu", at ? ", " : "",
                     rows[i].name, (unsigned long long)rows[i].to, (unsigned long long)rows[i].was);
        at += n > 0 ? (size_t)n : 0;
    }
}

static void on_judged(void *ctx, const struct engine_judged *j)
{
    char limits[200];
    (void)ctx;
    say_limits(j, limits, sizeof(limits));
    if (j->refused)
        ek_log(EK_LOG_WARNING, "The engine goes on with the limits that it had: %s", j->refused);
    else if (j->answered)
        ek_log(EK_LOG_NOTICE, "evenkeeld judged the engine's end: %s: it goes on with %s",
               j->with.cls, limits);
    else if (j->loss->asked)
        ek_log(EK_LOG_WARNING,
               "evenkeeld did not judge the engine's end within %.3g s: it goes on with %s%s",
               (double)j->loss->wait_us / 1e6, limits,
               j->with.tokens ? " for 10 minutes, since memory may have been short" : "");
    else
        ek_log(EK_LOG_NOTICE, "Nobody judges the engine's end: it goes on with %s%s", limits,
               j->with.tokens ? " for 10 minutes, since memory may have been short" : "");
}

static void on_away(void *ctx, const char *why)
{
    (void)ctx;
    if (why)
        ek_log(EK_LOG_WARNING, "The engine cannot be had again now, which is tried again: %s", why);
    else
        ek_log(EK_LOG_NOTICE,
               "The engine is released: its process has ended, and requests wait until acquire");
}

static void on_refused(void *ctx, const char *why)
{
    (void)ctx;
    ek_log(EK_LOG_WARNING,
           "The engine is not restarted, and goes on: there would be none afterwards: %s", why);
}

/* The way of KV events from the engine to their readers, when they are asked for. */
static int open_kv_events(struct stack *s, struct ek_fault *fault)
{
    struct kvevents_config c;
    struct kvlog *log = NULL;
    int r = kvevents_config_parse(s->o->kv_events_config, &c, fault);
    if (r < 0 || !c.on)
        return r;
    r = kvlog_new(c.max_queue_size, s->engine_params.block_size, &log);
    if (r == 0)
        r = kvpub_new(&c, log, &s->kvpub, fault);
    if (r < 0) {
        kvlog_free(log);
        return r;
    }
    s->engine_params.kvlog = log;
    return 0;
}

/* evenkeeld reads it after our end, in a directory that no third one can pass. */
static void share_recorder(const char *socket)
{
    char path[160];
    int n = snprintf(path, sizeof(path), "%s" EK_RECORDER_FILE, socket);
    if (n > 0 && (size_t)n < sizeof(path))
        (void)chmod(path, 0644); /* else it is not read */
}

/* The file for the time after. Serving does not need it. */
static void open_recorder(struct stack *s)
{
    struct engine_params *p = &s->engine_params;
    const char *socket = s->o->control_socket;
    struct ek_recorder_about about = {.max_seqs = p->max_seqs,
                                      .max_tokens = p->max_batched_tokens,
                                      .block_size = p->block_size,
                                      .block_bytes = p->block_bytes};
    if (!s->o->flight_recorder || !socket)
        return;
    int r = ek_recorder_open(socket, &about, &s->recorder);
    if (r == 0 && controller_uid() != (uid_t)-1)
        share_recorder(socket);
    if (r < 0)
        ek_log(EK_LOG_WARNING, "Serving without a flight recorder: cannot make %s%s: %s", socket,
               EK_RECORDER_FILE, ek_strerror(r));
    p->recorder = s->recorder;
}

static int make_engine(struct stack *s, struct ek_fault *fault)
{
    struct engine_params *p = &s->engine_params;
    int r = open_kv_events(s, fault);
    if (r < 0)
        return r;
    if (getrandom(p->hash_secret, sizeof(p->hash_secret), 0) != (ssize_t)sizeof(p->hash_secret))
        return -EIO;
    open_recorder(s);
    prefix_file_open(s);
    p->deliver = on_deliver;
    p->dead = on_dead;
    p->revived = on_revived;
    p->away = on_away;
    p->refused = on_refused;
    p->verdict_wait_us = (uint64_t)(s->o->engine_verdict_wait * 1e6);
    p->lost = load_lost;
    p->verdict = on_verdict;
    p->judged = on_judged;
    p->revivals = (uint32_t)s->o->engine_restarts;
    p->away_most_us = (uint64_t)(s->o->engine_wait * 1e6);
    p->ctx = s;
    return engine_new(p, s->backend, s->device, &s->engine, fault);
}

static void fill_names(struct stack *s)
{
    const struct options *o = s->o;
    struct served *v = &s->served;
    for (size_t i = 0; i < o->served_model_name.count && v->names < HTTP_NAMES_MOST; i++)
        v->name[v->names++] = o->served_model_name.at[i];
    if (v->names)
        return;
    size_t bytes;
    const char *name = ek_path_name(o->model, &bytes);
    (void)snprintf(s->name, sizeof(s->name), "%.*s", (int)bytes, name);
    if (s->name[0] && strcmp(s->name, o->model) != 0)
        v->name[v->names++] = s->name;
    v->name[v->names++] = o->model;
}

static void fill_defaults(struct stack *s)
{
    const struct model_defaults *d = &s->model->defaults;
    struct served_defaults *v = &s->served.defaults;
    *v = (struct served_defaults){.sampling = EK_SAMPLING_NEUTRAL};
    if (strcmp(s->o->generation_config, "vllm") == 0)
        return;
    v->sampling = d->sampling;
    v->max_tokens =
        d->max_new_tokens > 0 && d->max_new_tokens < INT32_MAX ? (uint32_t)d->max_new_tokens : 0;
}

static void fill_served(struct stack *s)
{
    const struct options *o = s->o;
    const struct engine_params *p = &s->engine_params;
    struct served *v = &s->served;
    *v =
        (struct served){.engine = s->engine,
                        .tok = s->tok,
                        .fim = fim_find(s->tok),
                        .chat = s->chat,
                        .grammars = s->grammars,
                        .kvlog = p->kvlog,
                        .pasts = s->pasts,
                        .backend = s->backend,
                        .device = s->device,
                        .root = o->model,
                        .family = s->model->family,
                        .parameters = s->model->parameters,
                        .weight_bytes = s->model->weight_file_bytes,
                        .max_model_len = p->max_model_len,
                        .vocab = p->vocab,
                        .hidden = p->hidden,
                        .block_size = p->block_size,
                        .blocks = p->blocks,
                        .host_blocks = p->host_blocks,
                        .seed = o->seed,
                        .max_logprobs = (uint32_t)o->max_logprobs,
                        .body_most = o->max_body_bytes ? o->max_body_bytes
                                                       : (4u << 20) + (size_t)p->max_model_len * 32,
                        .step_deadline_us = p->step_deadline_us,
                        .force_usage = o->enable_force_include_usage,
                        .prompt_details = o->enable_prompt_tokens_details,
                        .hidden_metrics = o->show_hidden_metrics_for_version != NULL,
                        .tokenizer_info = s->tokenizer_info.data,
                        .request_metrics = o->enable_per_request_metrics,
                        .prefix_caching = o->enable_prefix_caching,
                        .dtype = o->dtype,
                        .kv_dtype = o->kv_cache_dtype,
                        .device_name = s->info.name,
                        .memory_utilization = o->gpu_memory_utilization};
    v->ranks = ek_open_local(&s->open);
    for (uint32_t i = 0; i < v->ranks; i++)
        v->rank_card[i] = ek_open_device(&s->open, i);
    for (int i = 0; i < MEMPLAN_ITEMS && v->items < HTTP_ITEMS_MOST; i++)
        v->item[v->items++] = (struct http_item){memplan_item_name(i), s->plan.bytes[i]};
    answer_parsers_fill(s, v);
    scores_fill(o, s->model, s->chat, v);
    fill_names(s);
    fill_defaults(s);
    memcpy(v->eos, s->eos, sizeof(v->eos));
    v->eos_count = s->eos_count;
    sizing_compare(s);
}

int start_load(struct stack *s, int *ret_exit, struct ek_fault *fault)
{
    const char *what = "loading the weights";
    s->percent = -1;
    int r = start_verify(s, fault);
    if (r == 0)
        r = load_device(s, fault);
    if (r == 0) {
        what = "starting the engine";
        http_progress(s->http, "starting the engine", 0, 0);
        r = make_engine(s, fault);
    }
    r = in_host_memory(s, r, what, fault);
    if (r < 0)
        return start_failed(r, what, ret_exit, fault);
    http_progress(s->http, "waiting for the listening socket", 1, 1);
    fill_served(s);
    return 0;
}
