/*
 * The first half of a start: backend, model, texts and the memory plan; and the end of it all
 * (start.h). start_load.c goes on from there. Called by main.c on the starter's thread, and by
 * print.c for a plan that is only printed.
 */
#include "server/start.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/log.h"
#include "common/recorder.h"
#include "kernels/registry.h"
#include "server/answer_parsers.h"
#include "server/api/past.h"
#include "server/grammar/compile.h"
#include "server/grammar/lexicon.h"
#include "server/kvpub.h"
#include "server/model/find.h"
#include "server/model/model.h"
#include "server/named.h"
#include "server/nodes.h"
#include "server/options.h"
#include "server/prefix_file.h"
#include "server/rank_table.h"
#include "server/scores.h"
#include "server/sizing.h"
#include "server/start_forms.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"
#include "server/text/tokinfo.h"

/* Of the step deadline: so long ranks wait for one another. Less than all of it, so that what ends
 * the process is the word for it. */
#define STALL_SHARE 0.9

/* What a failure means at start. */
static int exit_code(int r)
{
    switch (r) {
    case -ENOMEM: return EK_EXIT_HOSTMEM_START;
    case EK_EDEVMEM: return EK_EXIT_DEVMEM_START;
    case EK_EDEVICE: return EK_EXIT_DEVICE;
    case EK_ECOMM: return EK_EXIT_COMM;
    case -E2BIG: return EK_EXIT_NO_FIT;
    case -EBADMSG:
    case -ENODEV:
    case -ENOTSUP:
    case -ENOENT: return EK_EXIT_CONFIG;
    }
    return EK_EXIT_INTERNAL;
}

int start_failed(int r, const char *what, int *ret_exit, struct ek_fault *fault)
{
    if (!fault->msg[0])
        (void)ek_fault_set(fault, "", "%s: %s", what, ek_strerror(r));
    *ret_exit = exit_code(r);
    return r;
}

/* --engine-process: the device is another process's. */
static int choose_process(struct stack *s, struct ek_fault *fault)
{
    if (!s->o->engine_process)
        return 0;
    if (s->open.ranks <= 1)
        s->open.each = s->backend;
    const struct ek_backend *apart = ek_apart_backend(s->open.each, ek_open_spans(&s->open));
    if (!apart)
        return ek_fault_set(fault, "engine-process",
                            "--engine-process is not offered for the %s backend: leave it out",
                            s->backend->name);
    bool any = strcmp(s->chosen.backend, "auto") == 0;
    (void)snprintf(s->launcher.apart.backend, sizeof(s->launcher.apart.backend), "%s",
                   any ? s->backend->name : s->chosen.backend);
    s->open.apart = &s->launcher.apart;
    s->backend = apart;
    return 0;
}

static uint64_t start_least(uint64_t a, uint64_t b)
{
    return a < b ? a : b;
}

/* Several ranks: where those of this machine begin, and the backend that joins them. */
static void choose_ranks(struct stack *s)
{
    const uint64_t shares = s->o->tensor_parallel_size, stages = s->o->pipeline_parallel_size;
    if (shares * stages <= 1)
        return;
    s->open.ranks = (uint32_t)(shares * stages);
    s->open.stages = (uint32_t)stages;
    s->open.each = s->backend;
    s->open.stall_us = (uint64_t)(s->o->step_deadline * STALL_SHARE * 1e6);
    if (s->o->nnodes > 1) {
        s->open.local = s->open.ranks / (uint32_t)s->o->nnodes;
        s->open.first = s->open.local * (uint32_t)s->o->node_rank;
    }
    s->backend = ek_ranks_backend(s->backend);
}

static int start_device(struct stack *s, struct ek_fault *fault)
{
    int r = ek_backend_choose(s->o->device, &s->chosen, fault);
    if (r < 0)
        return r;
    s->backend = ek_backend_find(s->chosen.backend, fault);
    if (!s->backend)
        return -ENODEV;
    s->open = (struct ek_open_params){.devices = s->chosen.cards > 0 ? s->chosen.card : NULL,
                                      .threads = (uint32_t)s->o->threads,
                                      .reserve = (uint32_t)s->o->cpu_reserve,
                                      .isa = s->o->cpu_isa};
    if (s->o->cpu_reserve > 0 && strcmp(s->backend->name, "cpu") != 0)
        ek_log(EK_LOG_WARNING, "--cpu-reserve %u is for the CPU backend and does nothing here",
               s->open.reserve);
    choose_ranks(s);
    r = choose_process(s, fault);
    if (r < 0)
        return r;
    if (s->o->dry_run_memory > 0) { /* a device that need not be here */
        s->info = (struct ek_device_info){
            .name = "assumed", .memory_bytes = (uint64_t)(s->o->dry_run_memory * 1073741824.0)};
        return 0;
    }
    r = s->backend->probe(&s->open, &s->info, fault);
    if (r == 0 && s->info.isa[0])
        s->open.isa = s->info.isa; /* each engine's process has this one, and measures none anew */
    /* What is planned lies in the engine's process. */
    if (r == 0 && s->launcher.most_bytes && s->backend->in_host_memory) {
        s->info.memory_bytes = start_least(s->info.memory_bytes, s->launcher.most_bytes);
        s->info.free_bytes = start_least(s->info.free_bytes, s->launcher.most_bytes);
    }
    if (r == 0 && s->info.note[0])
        ek_log(EK_LOG_WARNING, "%s", s->info.note);
    if (r == 0 && strcmp(s->info.isa, "ref") == 0)
        ek_log(EK_LOG_WARNING,
               "The CPU backend computes with plain instructions (tier \"ref\"), which "
               "is many times slower than with AVX2.");
    return r;
}

/* Ids that end an answer: the model's and the tokenizer's. */
static void find_end_ids(struct stack *s)
{
    int32_t more = tokenizer_eos(s->tok);
    for (uint32_t i = 0; i < s->model->eos_count && s->eos_count < HTTP_EOS_MOST; i++) {
        s->eos[s->eos_count++] = s->model->eos[i];
        more = s->model->eos[i] == more ? -1 : more;
    }
    if (more >= 0 && s->eos_count < HTTP_EOS_MOST)
        s->eos[s->eos_count++] = more;
    for (int i = HARMONY_RETURN; s->harmony && i <= HARMONY_CALL; i++) {
        bool known = false;
        for (uint32_t k = 0; k < s->eos_count; k++)
            known = known || s->eos[k] == s->mark[i];
        if (!known && s->eos_count < HTTP_EOS_MOST)
            s->eos[s->eos_count++] = s->mark[i];
    }
}

static const char *token_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    const struct tokenizer *t = ctx;
    return tokenizer_is_special(t, token) ? NULL : tokenizer_bytes(t, token, ret_len);
}

static const char *special_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    const struct tokenizer *t = ctx;
    return tokenizer_is_special(t, token) ? tokenizer_bytes(t, token, ret_len) : NULL;
}

/* What grammars need; before the plan, which counts what the program has taken. */
static int make_lexicon(struct stack *s)
{
    find_end_ids(s);
    int r =
        lexicon_new(s->model->graph.vocab, token_bytes, s->tok, s->eos, s->eos_count, &s->lexicon);
    if (r == 0)
        r = lexicon_add_specials(s->lexicon, special_bytes, s->tok);
    return r < 0 ? r : grammar_cache_new(s->lexicon, GRAMMAR_ROOM, &s->grammars);
}

static int open_model(struct stack *s, struct ek_fault *fault)
{
    char found[4096];
    int r = check_take(&s->check, fault);
    const char *dir = s->check.model ? s->check.dir : found;
    if (r == 0 && !s->check.model)
        r = model_find(s->o->model, found, sizeof(found), fault);
    if (r < 0)
        return r;
    s->launcher.apart.stamp = named_stamp(dir); /* before they are mapped, and compared below */
    return named_model(s->o, dir, s->backend, s->check.model, &s->model, fault);
}

static int start_texts(struct stack *s, struct ek_fault *fault)
{
    int r = open_model(s, fault);
    const char *dir = r == 0 ? s->model->dir : "";
    if (r == 0)
        r = tokenizer_load_from(s->check.text, dir, &s->tok, fault);
    if (r == 0 && tokenizer_count(s->tok) > s->model->graph.vocab)
        r = ek_fault_set(
            fault, "vocab_size",
            "%s: its tokenizer has a token with id %u, but vocab_size in config.json is "
            "%u; use the files of one model, or remove the tokens above",
            dir, tokenizer_count(s->tok) - 1, s->model->graph.vocab);
    if (r == 0)
        r = chat_load_from(s->check.text, dir, s->o->chat_template, &s->chat, fault);
    if (r == 0)
        r = scores_find(s->o, s->check.model, s->tok, s->model, fault);
    if (r == 0 && s->o->enable_tokenizer_info_endpoint)
        r = tokinfo_write(s->check.text, dir, s->chat, &s->tokenizer_info, fault);
    if (r == 0)
        r = answer_parsers_choose(s, fault);
    if (r == 0 && s->o->responses_store_bytes)
        r = past_store_new(s->o->responses_store_bytes, (uint64_t)(s->o->responses_store_ttl * 1e6),
                           &s->pasts);
    return r < 0 ? r : make_lexicon(s);
}

int start_plan(struct stack *s, int *ret_exit, struct ek_fault *fault)
{
    const char *what = "the device";
    int r = start_device(s, fault);
    if (r == 0) {
        what = "the model";
        r = start_texts(s, fault);
    }
    if (r == -E2BIG)
        r = -EBADMSG; /* only the plan does not fit */
    if (r == 0 && s->http) {
        what = "the forms of products";
        r = forms_prepare(s, fault);
    }
    if (r == 0 && options_is_node(s->o) && s->http) {
        what = "the other nodes";
        r = nodes_meet(s, fault);
    }
    if (r == 0) {
        what = "the memory plan";
        sizing_engine(s);
        r = sizing_plan(s, fault);
    }
    return r < 0 ? start_failed(r, what, ret_exit, fault) : 0;
}

int start_write_plan(const struct stack *s, bool json, struct ek_buf *out)
{
    int r = memplan_write(&s->plan, &s->plan_params, json, out);

    if (r < 0 || s->open.ranks < 2)
        return r;
    if (!json)
        return rank_table_write(s, false, out);
    while (out->len > 0 && (out->data[out->len - 1] == '\n' || out->data[out->len - 1] == '}'))
        out->len--; /* one more key of the same object */
    (void)ek_buf_puts(out, ", \"per_rank\": ");
    r = rank_table_write(s, true, out);
    (void)ek_buf_puts(out, "}\n");
    return r < 0 ? r : ek_buf_ok(out) ? 0 : -ENOMEM;
}

int start_follower(struct stack *s, int *ret_exit, struct ek_fault *fault)
{
    const char *what = "the device";
    int r = start_device(s, fault);
    if (r == 0) {
        what = "the model";
        r = open_model(s, fault);
    }
    if (r == 0)
        r = start_verify(s, fault);
    if (r == 0)
        r = forms_prepare(s, fault);
    if (r == 0) {
        check_done(&s->check);
        what = "the other nodes";
        r = nodes_meet(s, fault);
    }
    return r < 0 ? start_failed(r, what, ret_exit, fault) : 0;
}

void start_done(struct stack *s)
{
    prefix_file_end(s, s->end_code == EK_EXIT_OK || s->end_code == EK_EXIT_RESTART ||
                           s->end_code == EK_EXIT_CUT);
    engine_free(s->engine);
    kvpub_free(s->kvpub);
    ek_recorder_close(s->recorder);
    struct ek_cluster *c = atomic_load(&s->cluster);
    if (!options_follows(s->o) && s->device)
        ek_cluster_bye(c, s->end_code);
    if (s->device)
        s->backend->close(s->device);
    ek_cluster_abort(c, s->end_code); /* where it did not end well */
    atomic_store(&s->cluster, NULL);
    ek_cluster_free(c);
    grammar_cache_free(s->grammars);
    lexicon_free(s->lexicon);
    ek_buf_done(&s->tokenizer_info);
    past_store_free(s->pasts);
    check_done(&s->check);
    chat_free(s->chat);
    tokenizer_free(s->tok);
    model_free(s->model);
    s->engine = NULL;
    s->kvpub = NULL;
    s->recorder = NULL;
    s->device = NULL;
    s->chat = NULL;
    s->pasts = NULL;
    s->grammars = NULL;
    s->lexicon = NULL;
    s->tok = NULL;
    s->model = NULL;
}
