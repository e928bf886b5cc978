/*
 * Makes prompts of texts that are scored, and scores of the model's numbers (pair.h). Called by
 * complete.c, prompt.c and rows of the table in fields.c.
 */
#include "server/api/pair.h"

#include <errno.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/work.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/openai.h"
#include "server/api/readers.h"
#include "server/api/served.h"
#include "server/text/chat.h"
#include "server/text/detok.h"
#include "server/text/tokenizer.h"

bool pair_is(const struct openai_ask *a)
{
    return a->api == API_RERANK || a->api == API_SCORE;
}

static uint32_t count_of(const json_t *v)
{
    return json_is_array(v) ? (uint32_t)json_array_size(v) : 1;
}

/* The text number i of a field: a string, or an object that has it as `text`. */
static const json_t *text_at(const json_t *v, uint32_t i)
{
    if (json_is_array(v))
        v = json_array_get(v, i);
    return json_is_object(v) ? json_object_get(v, "text") : v;
}

static int check_texts(const char *field, const json_t *v, struct api_error *err)
{
    if (json_is_array(v) && (json_array_size(v) == 0 || json_array_size(v) > OPENAI_CHOICES))
        return api_refuse(err, 400, field, "`%s` must hold 1 to %u texts, got %zu.", field,
                          OPENAI_CHOICES, json_array_size(v));
    for (uint32_t i = 0; i < count_of(v); i++) {
        const json_t *text = text_at(v, i);
        if (!json_is_string(text))
            return api_refuse(err, 400, field,
                              "`%s` must be text, or a list of texts or of objects with `text`: "
                              "this model reads nothing else.",
                              field);
    }
    return 0;
}

static int read_side(json_t *v, const char *name, const json_t **side, const char **field,
                     struct api_error *err)
{
    if (*side)
        return api_refuse(err, 400, name, "`%s` and `%s` mean the same; give one of them.", *field,
                          name);
    *side = v;
    *field = name;
    return check_texts(name, v, err);
}

#define READ_FIRST(fn, name)                                                                       \
    int fn(const struct field_source *from, json_t *v, struct openai_ask *a,                       \
           struct api_error *err)                                                                  \
    {                                                                                              \
        (void)from;                                                                                \
        return read_side(v, name, &a->first, &a->first_field, err);                                \
    }
#define READ_SECOND(fn, name)                                                                      \
    int fn(const struct field_source *from, json_t *v, struct openai_ask *a,                       \
           struct api_error *err)                                                                  \
    {                                                                                              \
        (void)from;                                                                                \
        return read_side(v, name, &a->second, &a->second_field, err);                              \
    }

READ_FIRST(read_pair_text_1, "text_1")
READ_FIRST(read_pair_queries, "queries")
READ_FIRST(read_pair_data_1, "data_1")
READ_SECOND(read_pair_text_2, "text_2")
READ_SECOND(read_pair_documents, "documents")
READ_SECOND(read_pair_items, "items")
READ_SECOND(read_pair_data_2, "data_2")

int read_pair_query(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    (void)from;
    if (json_is_array(v))
        return api_refuse(err, 400, "query", "`query` must be one text; /v1/score takes more.");
    return read_side(v, "query", &a->first, &a->first_field, err);
}

/* Which fields of a document are read: its text, which is all there is. */
int read_rank_fields(const struct field_source *from, json_t *v, struct openai_ask *a,
                     struct api_error *err)
{
    (void)from;
    (void)a;
    for (size_t i = 0; i < json_array_size(v); i++) {
        const char *name = json_string_value(json_array_get(v, i));
        if (!name || strcmp(name, "text") != 0)
            return api_refuse(err, 400, "rank_fields",
                              "`rank_fields` other than text is not supported by this server; join "
                              "what is to be read in `text`.");
    }
    return 0;
}

static int read_instruction(const struct served *served, json_t *v, const char *name,
                            struct openai_ask *a, struct api_error *err)
{
    if (!json_is_string(v))
        return api_refuse(err, 400, name, "`%s` must be a string.", name);
    if (json_string_length(v) > 0 && !served->pair_template)
        return api_refuse(err, 400, name,
                          "`%s` needs a template for pairs; start the server with "
                          "--chat-template, or write it into the query.",
                          name);
    a->instruction = v;
    return 0;
}

int read_pair_instruction(const struct field_source *from, json_t *v, struct openai_ask *a,
                          struct api_error *err)
{
    return read_instruction(from->served, v, "instruction", a, err);
}

int read_pair_instruct(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    return read_instruction(from->served, v, "instruct", a, err);
}

int read_truncation_side(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    const char *side = json_string_value(v);
    (void)from;
    if (!side || (strcmp(side, "left") != 0 && strcmp(side, "right") != 0))
        return api_refuse(err, 400, "truncation_side", "`truncation_side` must be left or right.");
    a->keep_first = side[0] == 'r';
    return 0;
}

int read_padding(const struct field_source *from, json_t *v, struct openai_ask *a,
                 struct api_error *err)
{
    const char *how = json_string_value(v);
    (void)from;
    (void)a;
    if (!how || strcmp(how, "do_not_pad") != 0)
        return api_refuse(err, 400, "padding",
                          "`padding` other than do_not_pad is not supported by this server; leave "
                          "it out: no text is padded.");
    return 0;
}

int read_pair_truncation(const struct field_source *from, json_t *v, struct openai_ask *a,
                         struct api_error *err)
{
    (void)from;
    bool cut = false;
    int r = field_bool(v, "truncation", &cut, err);
    if (r == 0 && cut && a->truncate == 0) {
        a->truncate = -1;
        a->keep_first = true;
    }
    return r;
}

int read_embed_dtype(const struct field_source *from, json_t *v, struct openai_ask *a,
                     struct api_error *err)
{
    const char *type = json_string_value(v);
    (void)from;
    (void)a;
    if (!type || strcmp(type, "float32") != 0)
        return api_refuse(err, 400, "embed_dtype",
                          "`embed_dtype` other than float32 is not supported by this server; leave "
                          "it out.");
    return 0;
}

int read_endianness(const struct field_source *from, json_t *v, struct openai_ask *a,
                    struct api_error *err)
{
    const char *order = json_string_value(v);
    (void)from;
    (void)a;
    if (!order || (strcmp(order, "native") != 0 && strcmp(order, "little") != 0))
        return api_refuse(err, 400, "endianness",
                          "`endianness` other than native and little is not supported by this "
                          "server; leave it out.");
    return 0;
}

int read_pooling_task(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err)
{
    const char *task = json_string_value(v);
    bool classes = from->served->classes.weight;
    if (task && strcmp(task, "embed") == 0) {
        a->vectors = true;
        return 0;
    }
    if (task && classes && (strcmp(task, "classify") == 0 || strcmp(task, "score") == 0))
        return 0;
    return api_refuse(err, 400, "task",
                      "`task` must be %s: this server pools the last token of a text, and tells "
                      "nothing of each.",
                      classes ? "embed or classify" : "embed");
}

static int refuse_model(const struct openai_ask *a, struct api_error *err)
{
    if (a->api == API_CLASSIFY)
        return api_refuse(err, 400, "model",
                          "This model has no classes: that takes a checkpoint of a "
                          "...ForSequenceClassification, or --hf-overrides with "
                          "classifier_from_token. Or let /v1/chat/completions choose among words "
                          "with `structured_outputs` {\"choice\": [...]}.");
    return api_refuse(err, 400, "model",
                      "This model generates text and was not made to %s: that takes a reranker "
                      "(a ...ForSequenceClassification, or --hf-overrides with "
                      "classifier_from_token) or a model for embeddings; --convert embed says that "
                      "it is one. /v1/embeddings gives vectors of any model.",
                      a->api == API_POOLING ? "be pooled" : "score pairs of texts");
}

static int settle_pairs(const struct served *s, struct openai_ask *a, struct api_error *err)
{
    const char *first = a->api == API_RERANK ? "query" : "text_1";
    const char *second = a->api == API_RERANK ? "documents" : "text_2";
    if (!a->first || !a->second)
        return api_refuse(err, 400, a->first ? second : first, "`%s` is missing.",
                          a->first ? second : first);
    uint32_t firsts = count_of(a->first), seconds = count_of(a->second);
    if (firsts != 1 && firsts != seconds)
        return api_refuse(err, 400, a->second_field,
                          "`%s` has %u texts and `%s` %u: give one for all, or as many.",
                          a->first_field, firsts, a->second_field, seconds);
    a->pairs = seconds;
    a->prompts = s->classes.weight ? seconds : firsts + seconds;
    if (a->prompts > OPENAI_CHOICES)
        return api_refuse(err, 400, a->second_field,
                          "%u texts are too many; at most %u are read at once.", a->prompts,
                          OPENAI_CHOICES);
    return 0;
}

int pair_settle(const struct served *s, struct openai_ask *a, struct api_error *err)
{
    const bool one = !s->classes.weight || s->classes.scores == 1;
    if (s->textless && !openai_embeds(a->api) && a->api != API_TOKENIZE && a->api != API_DETOKENIZE)
        return api_refuse(err, 400, "model",
                          "This model has no output layer for text (its architecture is one for "
                          "%s); ask %s.",
                          s->classes.weight ? "classes" : "embeddings",
                          s->classes.weight ? "/v1/rerank, /v1/score or /classify"
                                            : "/v1/embeddings, /v1/rerank or /v1/score");
    if (a->api == API_CLASSIFY && !s->classes.weight)
        return refuse_model(a, err);
    if ((pair_is(a) || (a->api == API_POOLING && !a->vectors)) && !s->classes.weight && !s->embeds)
        return refuse_model(a, err);
    if (!pair_is(a))
        return 0;
    if (!one)
        return api_refuse(err, 400, "model",
                          "This model tells %u classes apart and not how well two texts fit; ask "
                          "/classify, or serve a reranker, which has one.",
                          s->classes.scores);
    return settle_pairs(s, a, err);
}

/* Text to its first `most` tokens; 0 = all of it. */
static int put_text(const struct served *s, const struct openai_ask *a, const json_t *text,
                    uint32_t most, struct ek_buf *out)
{
    struct token_vec v = {.work = a->work};
    if (most == 0)
        return ek_buf_add(out, json_string_value(text), json_string_length(text));
    int r =
        tokenizer_encode(s->tok, json_string_value(text), json_string_length(text), false, 0, &v);
    if (r == 0 && v.count <= most) {
        token_vec_done(&v);
        return ek_buf_add(out, json_string_value(text), json_string_length(text));
    }
    if (r == 0)
        r = detok_row(s->tok, v.at, most, false, out);
    token_vec_done(&v);
    return r;
}

static bool add_message(json_t *list, const char *role, const struct ek_buf *text)
{
    json_t *m = json_pack("{s:s}", "role", role);
    bool ok =
        m && json_object_set_new(
                 m, "content", json_stringn_nocheck(text->data ? text->data : "", text->len)) == 0;
    ok = ok && json_array_append(list, m) == 0;
    json_decref(m);
    return ok;
}

/* Through the template, which gets the roles query and document. */
static int render_pair(const struct served *s, const struct openai_ask *a, const struct ek_buf *q,
                       const struct ek_buf *d, struct ek_buf *text, uint32_t *ret_guard,
                       struct api_error *err)
{
    struct ek_fault fault = {0};
    json_t *context = a->template_args ? json_copy(a->template_args) : json_object();
    json_t *list = json_array();
    bool ok = context && list && add_message(list, "query", q) && add_message(list, "document", d);
    ok = ok && json_object_set(context, "messages", list) == 0 &&
         (!a->instruction || json_object_set(context, "instruction", a->instruction) == 0);
    json_decref(list);
    int r = ok ? chat_render(s->chat, s->tok, context, a->work, text, ret_guard, &fault) : -ENOMEM;
    json_decref(context);
    if (r == -EBADMSG && !ek_work_stopped(a->work))
        return api_refuse(err, 400, a->second_field, "The template refused the pair: %.400s",
                          fault.msg);
    return r;
}

static int pair_encode(const struct served *s, const struct openai_ask *a, const struct ek_buf *q,
                       struct ek_buf *d, struct token_vec *out, struct api_error *err)
{
    struct ek_buf text = {0};
    uint32_t guard = 0;
    int r;
    if (s->pair_template)
        r = render_pair(s, a, q, d, &text, &guard, err);
    else
        r = ek_buf_add(&text, q->data ? q->data : "", q->len) < 0 ||
                    ek_buf_add(&text, d->data ? d->data : "", d->len) < 0
                ? -ENOMEM
                : 0;
    const char *at = text.data ? text.data : "";
    if (r == 0 && a->add_specials)
        r = tokenizer_encode_around(s->tok, at, text.len, guard, out);
    else if (r == 0)
        r = tokenizer_encode(s->tok, at, text.len, true, guard, out);
    ek_buf_done(&text);
    return r;
}

int pair_tokens(const struct served *s, const struct openai_ask *a, uint32_t index,
                struct token_vec *out, struct api_error *err)
{
    const uint32_t firsts = count_of(a->first);
    const bool both = s->classes.weight;
    struct ek_buf q = {0}, d = {0};
    int r;
    if (!both) {
        bool first = index < firsts;
        const json_t *text = first ? text_at(a->first, index) : text_at(a->second, index - firsts);
        r = put_text(s, a, text, first ? a->first_most : a->second_most, &q);
        if (r == 0)
            r = a->add_specials
                    ? tokenizer_encode_prompt(s->tok, q.data ? q.data : "", q.len, out)
                    : tokenizer_encode(s->tok, q.data ? q.data : "", q.len, true, 0, out);
    } else {
        r = put_text(s, a, text_at(a->first, firsts == 1 ? 0 : index), a->first_most, &q);
        if (r == 0)
            r = put_text(s, a, text_at(a->second, index), a->second_most, &d);
        if (r == 0)
            r = pair_encode(s, a, &q, &d, out, err);
    }
    ek_buf_done(&q);
    ek_buf_done(&d);
    return r;
}
