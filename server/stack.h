/*
 * All that one server is made of, from its options to its engine, in the order in which start.c and
 * start_load.c bring it up. Owned by main.c; filled by the starter thread, read by the others once
 * it serves.
 */
#pragma once

#include <stdatomic.h>

#include "common/buf.h"
#include "common/memplan.h"
#include "kernels/backend.h"
#include "kernels/mpi/cluster.h"
#include "kernels/registry.h"
#include "server/check.h"
#include "server/engine/engine.h"
#include "server/launcher.h"
#include "server/model/model.h"
#include "server/net/http.h"

struct chat;
struct grammar_cache;
struct kvpub;
struct lexicon;
struct ek_buf;
struct ek_fault;
struct model;
struct options;
struct past_store;
struct tokenizer;

struct stack {
    const struct options *o;
    struct http *http; /* NULL in a dry run */
    const struct ek_backend *backend;
    struct ek_device *device;
    struct ek_device_info info;
    struct ek_open_params open;
    struct ek_forms forms;    /* of products; count 0: none are chosen */
    struct ek_chosen chosen;  /* open.devices are its cards */
    struct launcher launcher; /* of the engine's process, with --engine-process */
    struct check check;       /* of the model's files; begun by main(), or none */
    struct model *model;
    struct tokenizer *tok;
    int32_t mark[HARMONY_MARKS]; /* tokens, when the chats are harmony's */
    bool harmony;
    int32_t eos[HTTP_EOS_MOST]; /* end an answer */
    uint32_t eos_count;
    const char *tool_parser, *reasoning_parser; /* "none", or one of vLLM's names */
    struct chat *chat;
    struct ek_buf tokenizer_info; /* NULL data: it is not told */
    struct past_store *pasts;     /* NULL: no responses are stored */
    struct lexicon *lexicon;      /* the vocabulary, for grammars */
    struct grammar_cache *grammars;
    struct engine_params engine_params;
    struct ek_plan need;
    struct memplan_params plan_params;
    struct memplan plan;
    struct kvpub *kvpub;          /* NULL: no KV events */
    struct ek_recorder *recorder; /* NULL: none, or it could not be made */
    uint64_t model_sum;           /* of what it computes and of its weights, with --prefix-file */
    struct engine *engine;
    struct served served;
    char name[256];              /* the model directory's name */
    char note[MODEL_NOTE_BYTES]; /* how its weights are kept */
    bool bar;                    /* draw a progress bar on stderr */
    int percent;                 /* last one shown */
    engine_dead_fn dead;
    void *dead_ctx;
    _Atomic(struct ek_cluster *) cluster; /* NULL: all ranks are here, or not met yet */
    int end_code;                         /* of the process, for other nodes */
};

/* Fills the fault if it is empty; r. */
int start_failed(int r, const char *what, int *ret_exit, struct ek_fault *fault);
