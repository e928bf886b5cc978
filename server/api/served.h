/* What is served: the model as the requests see it. server/start_load.c makes it. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/engine/engine.h"
#include "server/text/answer/harmony.h"
#include "server/text/answer/reasoning.h"
#include "server/text/answer/toolcall.h"

struct api_error;
struct chat;
struct fim;
struct grammar_cache;
struct kvlog;
struct past_store;
struct tokenizer;

#define HTTP_NAMES_MOST 16u
#define HTTP_EOS_MOST   8u
#define HTTP_ITEMS_MOST 13u

/* What holds for requests that say nothing of it. */
struct served_defaults {
    struct ek_sampling sampling;
    uint32_t max_tokens; /* 0 = none */
};

#define SERVED_CLASSES_MOST 1024u

enum served_act { SERVED_BY_COUNT, SERVED_SIGMOID, SERVED_AS_IT_IS };

/* Classes that the model's last state is told by, see server/model/classes.h. Borrowed. */
struct served_classes {
    const float *weight, *bias; /* [rows, width], NULL: there are none; [rows] or NULL */
    uint32_t width, scores;     /* numbers that a client is told: rows, or 1 of two rows */
    bool two_way;
    float softcap;
    enum served_act act;
    char *const *label; /* [scores], NULL and each of them: no names */
};

enum http_place { HTTP_HOST, HTTP_DEVICE, HTTP_PLACES };

/* One line of the memory plan, for metrics. */
struct http_item {
    const char *name;
    uint64_t bytes;
};

/* What is served: made by start_load.c once the model is loaded, unchanged and alive until
 * http_free().
 */
struct served {
    struct engine *engine;
    const struct tokenizer *tok;
    const struct fim *fim;          /* NULL: the model fills in no gaps */
    const struct chat *chat;        /* NULL: no template, chat is refused */
    struct grammar_cache *grammars; /* NULL: only free text is answered */
    const struct kvlog *kvlog;      /* NULL: no KV events */
    struct past_store *pasts;       /* NULL: no responses are stored */
    const struct ek_backend *backend;
    struct ek_device *device;

    const char *name[HTTP_NAMES_MOST];
    uint32_t names;
    const char *root;   /* the model's directory as given */
    const char *family; /* model_type of its config.json */
    uint64_t parameters, weight_bytes;
    uint32_t hidden; /* width of a hidden state */
    uint32_t max_model_len, vocab, block_size, blocks, host_blocks;
    int32_t eos[HTTP_EOS_MOST];
    uint32_t eos_count;
    struct served_defaults defaults;
    int64_t seed; /* -1 = by chance */
    uint32_t max_logprobs;
    size_t body_most;
    uint64_t step_deadline_us;
    bool force_usage, prompt_details, prefix_caching;
    struct served_classes classes;
    bool textless;              /* the model has no output layer for text */
    bool embeds;                /* it was made for its states */
    bool pair_template;         /* `chat` takes the roles query and document */
    bool hidden_metrics;        /* names that vLLM once had are exported too */
    const char *tokenizer_info; /* JSON, NULL: it is not told */
    bool request_metrics;       /* answers tell the times of their request */
    enum thinkstyle think;      /* thinking that is taken out of the text of chats */
    enum toolstyle tools;       /* calls that are taken out of the text of chats with tools */
    const char *tool_parser, *reasoning_parser; /* their names; NULL or "none": there is none */
    int32_t mark[HARMONY_MARKS]; /* their tokens, when `think` is THINK_HARMONY; then `tools` is
                                    TOOLS_OPENAI */

    const char *dtype, *kv_dtype, *device_name;
    uint32_t ranks; /* 0 = alone */
    uint32_t rank_card[EK_MOST_RANKS];
    double memory_utilization;
    struct http_item item[HTTP_ITEMS_MOST];
    uint32_t items;
    uint64_t memory_planned[HTTP_PLACES], memory_taken[HTTP_PLACES]; /* at the start */
};

/* Its place among the served names; their count when it is none of them, or NULL. */
uint32_t served_place(const struct served *s, const char *name);
/* 0, or a 404 in err. `name` may be NULL or empty: whichever is served. Of Ollama's names "latest"
 * is the one tag. */
int served_model_tagged(const struct served *s, const char *name, struct api_error *err);
int served_model(const struct served *s, const char *name, struct api_error *err);
