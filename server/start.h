/*
 * From options to something that serves, in order: backend, model, texts, plan, weights, KV pool,
 * engine. The steps run in a thread of their own, so that signals and the control socket are
 * answered meanwhile.
 */
#pragma once

#include <stdatomic.h>

#include "common/memplan.h"
#include "kernels/backend.h"
#include "kernels/nodes/cluster.h"
#include "server/engine/engine.h"
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
struct tokenizer;

struct stack {
    const struct options *o;
    struct http *http; /* NULL in a dry run */
    const struct ek_backend *backend;
    struct ek_device *device;
    struct ek_device_info info;
    struct ek_open_params open;
    struct ek_chosen chosen; /* open.devices are its cards */
    struct model *model;
    struct tokenizer *tok;
    int32_t mark[HARMONY_MARKS]; /* tokens, when the chats are harmony's */
    bool harmony;
    struct chat *chat;
    struct lexicon *lexicon; /* the vocabulary, for grammars */
    struct grammar_cache *grammars;
    struct engine_params engine_params;
    struct ek_plan need;
    struct memplan_params plan_params;
    struct memplan plan;
    struct kvpub *kvpub; /* NULL: no KV events */
    struct engine *engine;
    struct http_served served;
    char name[256];              /* the model directory's name */
    char note[MODEL_NOTE_BYTES]; /* how its weights are kept */
    bool bar;                    /* draw a progress bar on stderr */
    int percent;                 /* last one shown */
    engine_dead_fn dead;
    void (*leaving)(void *ctx); /* another node was asked to stop; with dead_ctx */
    void *dead_ctx;
    _Atomic(struct ek_cluster *) cluster; /* NULL: all ranks are here, or not met yet */
    struct http_follows follows;          /* of a node that follows */
    char follow_text[256];
    int end_code; /* of the process, for other nodes */
};

/* Reads the model and makes the memory plan; nothing large is allocated. 0, or a failure with the
 * exit code and a sentence in the fault. */
int start_plan(struct stack *s, int *ret_exit, struct ek_fault *fault);
/* Loads what was planned and starts the engine. */
int start_load(struct stack *s, int *ret_exit, struct ek_fault *fault);
/* A node that follows: reads and checks the model, and meets node 0. */
int start_follower(struct stack *s, int *ret_exit, struct ek_fault *fault);
/* Fills the fault if it is empty; r. */
int start_failed(int r, const char *what, int *ret_exit, struct ek_fault *fault);
/* The plan as a table or as JSON. */
int start_write_plan(const struct stack *s, bool json, struct ek_buf *out);
/* Everything but http; accepts half-built ones. The engine stops first. */
void start_done(struct stack *s);
