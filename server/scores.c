/* What a model's output is for, by its files and options (scores.h). Called by start.c and
 * start_load.c. */
#include "server/scores.h"

#include <errno.h>
#include <string.h>

#include <jansson.h>

#include "common/err.h"
#include "common/log.h"
#include "server/api/served.h"
#include "server/model/model.h"
#include "server/model/sentence.h"
#include "server/options.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"

#define OPTION      "hf-overrides"
#define TOKENS_MOST 64u

struct wanted {
    const json_t *tokens;
    bool qwen3, two_way, classes;
};

static bool ends_in(const char *s, const char *end)
{
    size_t n = strlen(s), m = strlen(end);
    return n >= m && strcmp(s + n - m, end) == 0;
}

static int read_method(const json_t *v, struct wanted *w, struct ek_fault *fault)
{
    const char *method = json_string_value(v);
    w->two_way = method && strcmp(method, "from_2_way_softmax") == 0;
    if (w->two_way || (method && strcmp(method, "no_post_processing") == 0))
        return 0;
    return ek_fault_set(fault, OPTION,
                        "--hf-overrides: method must be from_2_way_softmax or no_post_processing");
}

static int scores_read_key(const char *key, const json_t *v, struct wanted *w,
                           struct ek_fault *fault)
{
    const char *name = json_string_value(json_array_get(v, 0));
    if (strcmp(key, "architectures") == 0) {
        w->classes = true;
        if (name && ends_in(name, "ForSequenceClassification"))
            return 0;
        return ek_fault_set(fault, OPTION,
                            "--hf-overrides: architectures may only name a "
                            "...ForSequenceClassification; write others into config.json");
    }
    if (strcmp(key, "classifier_from_token") == 0) {
        w->tokens = v;
        return 0;
    }
    if (strcmp(key, "method") == 0)
        return read_method(v, w, fault);
    if (strcmp(key, "is_original_qwen3_reranker") == 0) {
        w->qwen3 = json_is_true(v);
        return json_is_boolean(v)
                   ? 0
                   : ek_fault_set(fault, OPTION, "--hf-overrides: %s must be true or false", key);
    }
    return ek_fault_set(fault, OPTION,
                        "--hf-overrides: '%.64s' is not taken; architectures, "
                        "classifier_from_token, is_original_qwen3_reranker and method are, write "
                        "others into config.json",
                        key);
}

/* The one token that a word is; -1: it is none or several. */
static int32_t token_of(const struct tokenizer *tok, const char *word)
{
    struct token_vec v = {0};
    int32_t id = tokenizer_find(tok, word);
    if (id < 0 && tokenizer_encode(tok, word, strlen(word), true, 0, &v) == 0 && v.count == 1)
        id = v.at[0];
    token_vec_done(&v);
    return id;
}

static int make_classes(const struct wanted *w, const struct tokenizer *tok, struct model *m,
                        struct ek_fault *fault)
{
    int32_t ids[TOKENS_MOST];
    size_t n = json_array_size(w->tokens);
    if (n == 0 || n > TOKENS_MOST)
        return ek_fault_set(fault, OPTION,
                            "--hf-overrides: classifier_from_token must be a list of 1 to %u words",
                            TOKENS_MOST);
    if ((w->qwen3 || w->two_way) && n != 2)
        return ek_fault_set(fault, OPTION,
                            "--hf-overrides: one score of two words takes two of them in "
                            "classifier_from_token, the one that counts last: [\"no\", \"yes\"]");
    for (size_t i = 0; i < n; i++) {
        const char *word = json_string_value(json_array_get(w->tokens, i));
        ids[i] = word ? token_of(tok, word) : -1;
        if (ids[i] < 0)
            return ek_fault_set(fault, OPTION,
                                "--hf-overrides: '%.64s' in classifier_from_token is not one token "
                                "of this model",
                                word ? word : "what is no text");
    }
    return classes_of_tokens(&m->graph, &m->files, ids, (uint32_t)n, w->qwen3 || w->two_way,
                             &m->classes, fault);
}

static int overrides_apply(const char *text, const struct tokenizer *tok, struct model *m,
                           struct ek_fault *fault)
{
    struct wanted w = {0};
    const char *key;
    json_t *v;
    int r = 0;
    if (!text)
        return 0;
    json_t *root = json_loads(text, JSON_REJECT_DUPLICATES, NULL);
    if (!json_is_object(root))
        r = ek_fault_set(fault, OPTION, "--hf-overrides: it must be a JSON object");
    json_object_foreach(root, key, v)
    {
        if (r == 0)
            r = scores_read_key(key, v, &w, fault);
    }
    if (r == 0 && !w.tokens && json_object_size(root) > 0 && !(w.classes && m->classes.weight))
        r = ek_fault_set(fault, OPTION,
                         "--hf-overrides: classifier_from_token must say which words stand for the "
                         "classes: this model's files have no score.weight");
    if (r == 0 && w.tokens)
        r = make_classes(&w, tok, m, fault);
    json_decref(root);
    return r;
}

/* Whether the model was made for its states, and those behind the last token. */
static int find_embeds(const struct options *o, struct ek_bundle *files, struct model *m,
                       struct ek_fault *fault)
{
    enum sentence_pooling pooling;
    int r = sentence_read(files, m->dir, &pooling, fault);
    if (r < 0)
        return r;
    if (strcmp(o->convert, "auto") != 0)
        m->embeds = strcmp(o->convert, "embed") == 0;
    else if (pooling != SENTENCE_NONE)
        m->embeds = pooling == SENTENCE_LAST;
    if (strcmp(o->convert, "classify") == 0 && !m->classes.weight)
        return ek_fault_set(fault, "convert",
                            "--convert classify: this model has no classes; that takes a "
                            "...ForSequenceClassification or --hf-overrides");
    if (pooling == SENTENCE_OTHER)
        ek_log(EK_LOG_WARNING,
               "The model's files say that its vectors are not the states behind the last tokens; "
               "/v1/embeddings gives those all the same%s",
               m->embeds ? "" : ", and pairs are not scored by them");
    return 0;
}

int scores_find(const struct options *o, struct ek_bundle *files, const struct tokenizer *tok,
                struct model *m, struct ek_fault *fault)
{
    int r = overrides_apply(o->hf_overrides, tok, m, fault);
    return r < 0 ? r : find_embeds(o, files, m, fault);
}

/* A template for pairs: one that was given, or the model's own where it knows both roles. */
static bool is_for_pairs(const struct options *o, const struct chat *chat)
{
    const char *t = chat ? chat_source(chat) : "";
    return (chat && o->chat_template) || ((strstr(t, "'query'") || strstr(t, "\"query\"")) &&
                                          (strstr(t, "'document'") || strstr(t, "\"document\"")));
}

static enum served_act act_of(enum classes_act act)
{
    switch (act) {
    case CLASSES_SIGMOID: return SERVED_SIGMOID;
    case CLASSES_AS_THEY_ARE: return SERVED_AS_IT_IS;
    case CLASSES_BY_COUNT: break;
    }
    return SERVED_BY_COUNT;
}

void scores_fill(const struct options *o, const struct model *m, const struct chat *chat,
                 struct served *served)
{
    const struct model_classes *k = &m->classes;
    const uint32_t scores = k->two_way ? 1 : k->rows;
    served->textless = m->textless;
    served->embeds = m->embeds;
    served->pair_template = k->weight && is_for_pairs(o, chat);
    served->classes = (struct served_classes){.weight = k->weight,
                                              .bias = k->bias,
                                              .width = k->width,
                                              .scores = scores,
                                              .two_way = k->two_way,
                                              .softcap = k->softcap,
                                              .act = act_of(k->act),
                                              .label = k->label};
    if (k->weight && scores > 1)
        ek_log(EK_LOG_INFO, "The model tells %u classes apart: POST /classify", scores);
    else if (k->weight)
        ek_log(EK_LOG_INFO, "The model scores pairs of texts (POST /v1/rerank, /v1/score), %s",
               served->pair_template
                   ? "through its template"
                   : "one text behind the other as they come; --chat-template gives them a frame");
    else if (m->embeds)
        ek_log(EK_LOG_INFO, "The model is one for embeddings: POST /v1/rerank and /v1/score "
                            "compare vectors");
}
