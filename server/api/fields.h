/*
 * The fields of request bodies: one table (field_table.c). What reads them, what refuses them and
 * what describes them to others (/openapi.json, the fuzzer's dictionary) are the same rows.
 *
 * A row is read by its kind; one with a shape of its own has a function. Rows are read in order, so
 * a row may rely on those above it. What needs several fields is checked by openai_parse().
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "server/api/ask.h"

struct api_error;
struct served;

#define FOR_CHAT         (1u << API_CHAT)
#define FOR_PLAIN        (1u << API_PLAIN)
#define FOR_EMBED        (1u << API_EMBED)
#define FOR_TOKENIZE     (1u << API_TOKENIZE)
#define FOR_DETOKENIZE   (1u << API_DETOKENIZE)
#define FOR_RESPONSES    (1u << API_RESPONSES)
#define FOR_MESSAGES     (1u << API_MESSAGES)
#define FOR_OLLAMA_CHAT  (1u << API_OLLAMA_CHAT)
#define FOR_OLLAMA_TEXT  (1u << API_OLLAMA_TEXT)
#define FOR_OLLAMA_EMBED (1u << API_OLLAMA_EMBED)
#define FOR_INFILL       (1u << API_INFILL)
#define FOR_RERANK       (1u << API_RERANK)
#define FOR_SCORE        (1u << API_SCORE)
#define FOR_CLASSIFY     (1u << API_CLASSIFY)
#define FOR_POOLING      (1u << API_POOLING)
#define FOR_PAIRS        (FOR_RERANK | FOR_SCORE)
#define FOR_STATES       (FOR_EMBED | FOR_PAIRS | FOR_CLASSIFY | FOR_POOLING)
#define FOR_OLLAMA       (FOR_OLLAMA_CHAT | FOR_OLLAMA_TEXT)
#define FOR_GENERATE     (FOR_CHAT | FOR_PLAIN)
#define FOR_TEXT         (FOR_GENERATE | FOR_RESPONSES | FOR_MESSAGES | FOR_OLLAMA | FOR_INFILL)
#define FOR_CHATS        (FOR_CHAT | FOR_RESPONSES | FOR_MESSAGES | FOR_OLLAMA)
#define FOR_ANY          ((1u << API_COUNT) - 1)

enum field_kind {
    FIELD_BOOL,    /* bool */
    FIELD_REAL,    /* float from min to max, see ek_sampling_value() */
    FIELD_COUNT,   /* uint32_t from min to max */
    FIELD_WHOLE,   /* int64_t from min to max */
    FIELD_OWN,     /* by its function */
    FIELD_FORM,    /* the form of the answer, of the enum grammar_kind in `min` */
    FIELD_NO,      /* not offered: refused unless it is the neutral number `min`, */
    FIELD_NO_TRUE, /* unless it is false, */
    FIELD_NO_ANY,  /* unless it is empty, or auto or none */
    FIELD_FREE,    /* known, and the answer is right without it: accepted and told as ignored */
};

struct field_source {
    const struct served *served;
    json_t *body;
    struct ek_work *work; /* its meter */
};

struct field {
    const char *name;
    unsigned on; /* FOR_... */
    enum field_kind kind;
    size_t at; /* in struct openai_ask */
    double min, max;
    /* v is neither absent nor null; or NULL for a row that is `needed`. */
    int (*read)(const struct field_source *from, json_t *v, struct openai_ask *a,
                struct api_error *err);
    bool needed;
    const char *schema; /* of FIELD_OWN and FIELD_FORM: the inside of a JSON schema object */
    const char *help;   /* one sentence; for what is not offered, what to do instead */
};

extern const struct field field_table[];
uint32_t field_count(void);

/* Reads all fields of a->api. 0 or -EBADMSG with err. */
int fields_read(const struct field_source *from, struct openai_ask *a, struct api_error *err);

/* One value of the row of that name that is on a->api, as if it stood in the body. */
int fields_read_one(const struct field_source *from, const char *name, json_t *v,
                    struct openai_ask *a, struct api_error *err);

/* Absent and null are the same: NULL. */
json_t *field_of(const json_t *body, const char *name);
/* One value of a plain kind, also of nested objects. `v` may be NULL: nothing happens. */
int field_bool(const json_t *v, const char *name, bool *at, struct api_error *err);
int field_real(const json_t *v, const char *name, double min, double max, double *at,
               struct api_error *err);
int field_whole(const json_t *v, const char *name, int64_t min, int64_t max, int64_t *at,
                struct api_error *err);
int field_uint(const json_t *v, const char *name, uint32_t min, uint32_t max, uint32_t *at,
               struct api_error *err);
/* Every element must be a token id. */
int field_ids(const struct served *s, const json_t *list, const char *name, struct api_error *err);
