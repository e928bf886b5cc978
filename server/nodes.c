/* Nodes, see nodes.h. */
#include "server/nodes.h"

#include <errno.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "server/bus.h"
#include "server/model/model.h"
#include "server/options.h"
#include "server/stack.h"

#define KEY_LEAST  16u
#define KEY_MOST   4096u
#define KEY_DIGEST 32u

static const char *type_name(enum ek_dtype t)
{
    switch (t) {
    case EK_F32: return "float32";
    case EK_F16: return "float16";
    case EK_BF16: return "bfloat16";
    case EK_F8_E4M3: return "fp8";
    case EK_I8: return "int8";
    case EK_I4: return "int4";
    case EK_F4_E2M1: return "mxfp4";
    }
    return "?";
}

static void fill_card(const struct stack *s, struct ek_node_card *card)
{
    char note[MODEL_NOTE_BYTES];

    model_weights_note(s->model, false, note);
    *card = (struct ek_node_card){.abi = EK_BACKEND_ABI,
                                  .role = EK_ROLE_CONTROL,
                                  .ranks = s->open.ranks,
                                  .stages = s->open.stages > 0 ? s->open.stages : 1,
                                  .graph = ek_graph_sum(&s->model->graph),
                                  .weight = ek_weight_sum(&s->model->graph, &s->model->files),
                                  .memory_bytes = s->info.memory_bytes,
                                  .free_bytes = s->info.free_bytes};
    (void)snprintf(card->program, sizeof(card->program), "%s", EK_VERSION);
    if (gethostname(card->host, sizeof(card->host) - 1) < 0 || card->host[0] == '\0')
        (void)snprintf(card->host, sizeof(card->host), "unnamed");
    (void)snprintf(card->backend, sizeof(card->backend), "%s", s->backend->name);
    (void)snprintf(card->isa, sizeof(card->isa), "%s", s->info.isa);
    (void)snprintf(card->device, sizeof(card->device), "%s", s->info.name);
    (void)snprintf(card->model, sizeof(card->model), "%s", s->model->family);
    (void)snprintf(card->form, sizeof(card->form), "%s%s%.40s, KV cache %s",
                   type_name(s->model->graph.dtype), note[0] ? ", " : "", note,
                   s->model->graph.kv_i8   ? "int8"
                   : s->model->graph.kv_f8 ? "fp8"
                                           : "plain");
}

static void on_say(void *ctx, bool warning, const char *text)
{
    (void)ctx;
    ek_log(warning ? EK_LOG_WARNING : EK_LOG_INFO, "%s", text);
    (void)sd_notifyf(0, "STATUS=%.200s", text);
}

static void on_lost(void *ctx, const char *why)
{
    struct stack *s = ctx;
    if (!options_follows(s->o))
        s->dead(s->dead_ctx, EK_EXIT_COMM, why);
}

static void on_leaving(void *ctx, uint32_t node, const char *host)
{
    struct stack *s = ctx;
    ek_log(EK_LOG_NOTICE, "Node %u (%s) was asked to stop: draining, then all nodes end", node,
           host);
    s->leaving(s->dead_ctx);
}

/* ---- the secret ---- */

static bool blank(char c)
{
    return c == '\n' || c == '\r' || c == ' ' || c == '\t';
}

/* The digest of a secret, without the blanks around it. */
static int digest_of(const char *what, const char *path, uint8_t ret_digest[KEY_DIGEST],
                     struct ek_fault *fault)
{
    struct ek_buf text = {0};
    int r = ek_file_read(what, path, KEY_MOST, &text, fault);
    const char *at = text.data;
    size_t len = text.len;

    for (; r == 0 && len > 0 && blank(at[len - 1]); len--)
        continue;
    for (; r == 0 && len > 0 && blank(*at); len--)
        at++;
    if (r == 0 && len < KEY_LEAST)
        r = ek_fault_set(fault, "master-key-file",
                         "%s %.200s has %zu bytes, and a secret of all nodes needs %u: write one "
                         "with openssl rand -hex 32",
                         what, path, len, KEY_LEAST);
    if (r == 0 && gnutls_hash_fast(GNUTLS_DIG_SHA256, at, len, ret_digest) < 0)
        r = -EIO;
    if (text.data)
        explicit_bzero(text.data, text.cap);
    ek_buf_done(&text);
    return r;
}

/* 1 with the key, 0 where there is none. */
static int read_key(const struct options *o, uint8_t ret_digest[KEY_DIGEST], struct ek_fault *fault)
{
    const char *dir = getenv("CREDENTIALS_DIRECTORY");
    char path[512];
    int n = dir ? snprintf(path, sizeof(path), "%s/master-key", dir) : -1;
    const bool passed = n > 0 && n < (int)sizeof(path) && access(path, F_OK) == 0;

    if (!o->master_key_file && !passed)
        return 0;
    int r = o->master_key_file
                ? digest_of("--master-key-file", o->master_key_file, ret_digest, fault)
                : digest_of("credential master-key", path, ret_digest, fault);
    return r < 0 ? r : 1;
}

static void warn_open(const struct options *o)
{
    if (strncmp(o->master_addr, "127.", 4) != 0 && strcmp(o->master_addr, "::1") != 0 &&
        strcmp(o->master_addr, "localhost") != 0)
        ek_log(EK_LOG_WARNING,
               "Whoever reaches %s:%llu with the same program and model can take the place of a "
               "node: give all nodes a --master-key-file, or close the port to everybody else",
               o->master_addr, (unsigned long long)o->master_port);
}

int nodes_meet(struct stack *s, struct ek_fault *fault)
{
    const struct options *o = s->o;
    struct ek_cluster *c;
    struct ek_cluster_params p = {.node = (uint32_t)o->node_rank,
                                  .nodes = (uint32_t)o->nnodes,
                                  .addr = o->master_addr,
                                  .port = (uint16_t)o->master_port,
                                  .wait_us = (uint64_t)(o->distributed_timeout_seconds * 1e6),
                                  .stall_us = s->open.stall_us,
                                  .say = on_say,
                                  .lost = on_lost,
                                  .leaving = on_leaving,
                                  .ctx = s};
    const bool noted = s->info.note[0] != '\0';
    uint8_t key[KEY_DIGEST];

    int r = read_key(o, key, fault);
    if (r < 0)
        return r;
    p.key = r > 0 ? key : NULL;
    p.key_bytes = sizeof(key);
    if (r == 0 && p.node == 0)
        warn_open(o);
    fill_card(s, &p.card);
    http_progress(s->http, "waiting for the other nodes", 0, 0);
    r = ek_cluster_new(&p, &c, fault);
    explicit_bzero(key, sizeof(key));
    if (r < 0)
        return r;
    ek_cluster_open(c, &s->open);
    if (p.node == 0)
        ek_cluster_info(c, &s->info);
    if (p.node == 0 && !noted && s->info.note[0])
        ek_log(EK_LOG_WARNING, "%s", s->info.note);
    ek_log(EK_LOG_NOTICE, "Node %u of %u: ranks %u to %u of %u, %s", p.node, p.nodes, s->open.first,
           s->open.first + s->open.local - 1, s->open.ranks,
           p.node == 0 ? "all other nodes are there" : "taken by node 0");
    atomic_store(&s->cluster, c);
    return 0;
}

/* ---- a node that follows ---- */

static void on_loading(void *ctx, const struct ek_load_order *order)
{
    struct stack *s = ctx;

    model_serve(s->model, order->max_model_len);
    if (bus_watch(&s->model->files, s->model->dir) < 0)
        ek_log(EK_LOG_WARNING, "Files of the model that become shorter will not be explained");
}

static void on_progress(void *ctx, uint64_t done, uint64_t total)
{
    struct stack *s = ctx;
    http_progress(s->http, "loading weights", done, total);
}

static void on_ready(void *ctx, struct ek_device *d, uint32_t blocks)
{
    struct stack *s = ctx;
    struct http_follows *f = &s->follows;
    struct ek_fault fault = {.msg = ""};

    bus_done();
    model_close_files(s->model);
    *f = (struct http_follows){.backend = s->backend,
                               .device = d,
                               .dtype = type_name(s->model->graph.dtype),
                               .device_name = s->info.name,
                               .text = s->follow_text,
                               .node = (uint32_t)s->o->node_rank,
                               .nodes = (uint32_t)s->o->nnodes,
                               .first = s->open.first,
                               .ranks = s->open.local};
    for (uint32_t i = 0; i < f->ranks; i++)
        f->rank_card[i] = ek_open_device(&s->open, f->first + i);
    (void)snprintf(
        s->follow_text, sizeof(s->follow_text),
        "This is node %u of %u: it follows node 0 (%.100s), which takes requests, limits "
        "and drains.",
        f->node, f->nodes, s->o->master_addr);
    if (http_follow(s->http, f, &fault) < 0)
        ek_log(EK_LOG_WARNING, "%s", fault.msg);
    ek_log(EK_LOG_NOTICE, "Following node 0 at %s:%llu with ranks %u to %u, %u blocks",
           s->o->master_addr, (unsigned long long)s->o->master_port, f->first,
           f->first + f->ranks - 1, blocks - 1);
    (void)sd_notifyf(0, "READY=1\nSTATUS=Node %u of %u, following %s", f->node, f->nodes,
                     s->o->master_addr);
}

static void on_closing(void *ctx)
{
    struct stack *s = ctx;
    http_unfollow(s->http);
}

int nodes_follow(struct stack *s, int *ret_exit, struct ek_fault *fault)
{
    struct ek_follow_params p = {.progress = on_progress,
                                 .loading = on_loading,
                                 .ready = on_ready,
                                 .closing = on_closing,
                                 .ctx = s};
    int code = 0;

    p.backend = s->backend;
    p.open = s->open;
    p.graph = &s->model->graph;
    p.files = &s->model->files;
    int r = ek_cluster_follow(atomic_load(&s->cluster), &p, &code, fault);
    if (r < 0)
        return start_failed(r, "following node 0", ret_exit, fault);
    *ret_exit = code == EK_EXIT_RESTART ? EK_EXIT_RESTART : EK_EXIT_OK;
    return 0;
}

bool nodes_leave(struct stack *s, bool at_once)
{
    struct ek_cluster *c = atomic_load(&s->cluster);

    if (!c)
        return false;
    if (at_once)
        ek_cluster_fail(c, EK_ECOMM, "it was asked twice to stop");
    else
        ek_cluster_leave(c);
    return true;
}
