/*
 * Prompts as tokens: text, ids, or messages through the chat template. A last message that is to be
 * continued gets a mark at its end before the template is applied; the text behind the mark, which
 * would close the message, is cut off.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "common/work.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/fim.h"
#include "server/api/pair.h"
#include "server/api/reply.h"
#include "server/api/served.h"
#include "server/text/chat.h"
#include "server/text/tokenizer.h"

/* Between private characters: templates copy it, and no ordinary text ends in it. */
static const char end_mark[] = "\xee\x80\x81/evenkeel/\xee\x80\x82";

/* The messages with the mark in the last one; a new reference, NULL when out of memory. */
static json_t *marked_messages(const json_t *messages)
{
    size_t last = json_array_size(messages) - 1;
    const json_t *m = json_array_get(messages, last), *content = json_object_get(m, "content");
    struct ek_buf text = {0};
    (void)ek_buf_add(&text, json_string_value(content), json_string_length(content));
    (void)ek_buf_puts(&text, end_mark);
    union {
        const json_t *c;
        json_t *v;
    } from = {.c = messages}, one = {.c = m};
    json_t *list = ek_buf_ok(&text) ? json_copy(from.v) : NULL;
    json_t *copy = list ? json_copy(one.v) : NULL;
    int r =
        copy ? json_object_set_new(copy, "content", json_stringn_nocheck(text.data, text.len)) : -1;
    ek_buf_done(&text);
    if (r < 0)
        json_decref(copy);
    else
        r = json_array_set_new(list, last, copy);
    if (r == 0)
        return list;
    json_decref(list);
    return NULL;
}

/* For templates without the role developer: such messages become the system's, and all of those
 * become one at the beginning, where templates expect it. A new reference, NULL when out of memory.
 */
static json_t *system_messages(const json_t *messages)
{
    struct ek_buf text = {0};
    json_t *list = json_array(), *m = NULL;
    bool ok = list != NULL;
    for (size_t i = 0; ok && i < json_array_size(messages); i++) {
        m = json_array_get(messages, i);
        const json_t *content = json_object_get(m, "content");
        const char *role = json_string_value(json_object_get(m, "role"));
        if (strcmp(role, "developer") != 0 && strcmp(role, "system") != 0) {
            ok = json_array_append(list, m) == 0;
            continue;
        }
        if (text.len && json_string_length(content))
            (void)ek_buf_puts(&text, "\n\n");
        ok = ek_buf_add(&text, json_string_value(content), json_string_length(content)) == 0;
    }
    m = ok ? json_pack("{s:s}", "role", "system") : NULL;
    ok = m && json_object_set_new(m, "content",
                                  json_stringn_nocheck(text.data ? text.data : "", text.len)) == 0;
    ok = ok && json_array_insert(list, 0, m) == 0;
    json_decref(m);
    ek_buf_done(&text);
    if (ok)
        return list;
    json_decref(list);
    return NULL;
}

static bool has_developer(const json_t *messages)
{
    for (size_t i = 0; i < json_array_size(messages); i++) {
        const json_t *role = json_object_get(json_array_get(messages, i), "role");
        if (strcmp(json_string_value(role), "developer") == 0)
            return true;
    }
    return false;
}

/* An assistant's message for templates that show `thinking`, which take neither null for text nor
 * text beside the thinking that led to a call. */
static int show_thinking(json_t *m)
{
    const json_t *calls = json_object_get(m, "tool_calls");
    json_t *thought = json_object_get(m, "thinking");
    bool called = json_array_size(calls) > 0;
    int r = 0;
    if (!json_is_string(thought))
        thought = json_object_get(m, "reasoning_content");
    if (!json_is_string(thought))
        thought = json_object_get(m, "reasoning");
    bool thinks = json_string_length(thought) > 0;
    if (calls && !called)
        (void)json_object_del(m, "tool_calls");
    r = thinks ? json_object_set(m, "thinking", thought) : 0;
    if (!thinks)
        (void)json_object_del(m, "thinking");
    if (called && (thinks || !json_is_string(json_object_get(m, "content"))))
        (void)json_object_del(m, "content");
    else if (!called && !json_is_string(json_object_get(m, "content")))
        r = r < 0 ? r : json_object_set_new(m, "content", json_string(""));
    return r;
}

/* Takes over the list. NULL when out of memory. */
static json_t *thinking_messages(json_t *list)
{
    json_t *own = list ? json_copy(list) : NULL;
    bool ok = own != NULL;
    for (size_t i = 0; ok && i < json_array_size(own); i++) {
        json_t *m = json_array_get(own, i);
        const char *role = json_string_value(json_object_get(m, "role"));
        if (strcmp(role, "assistant") != 0)
            continue;
        m = json_copy(m);
        ok = m && show_thinking(m) == 0;
        if (ok)
            ok = json_array_set_new(own, i, m) == 0;
        else
            json_decref(m);
    }
    json_decref(list);
    if (ok)
        return own;
    json_decref(own);
    return NULL;
}

/* The messages as the template gets them; a new reference. */
static json_t *template_messages(const struct chat *chat, const struct openai_ask *a)
{
    json_t *list = a->continue_final ? marked_messages(a->messages) : json_incref(a->messages);
    if (chat_shows_thinking(chat))
        list = thinking_messages(list);
    if (!list || chat_knows_developer(chat) || !has_developer(list))
        return list;
    json_t *as_system = system_messages(list);
    json_decref(list);
    return as_system;
}

static json_t *make_context(const struct chat *chat, const struct openai_ask *a)
{
    json_t *context = a->template_args ? json_copy(a->template_args) : json_object();
    json_t *messages = template_messages(chat, a);
    bool ok = context && messages && json_object_set(context, "messages", messages) == 0 &&
              json_object_set_new(context, "add_generation_prompt",
                                  json_boolean(a->add_generation_prompt)) == 0 &&
              (!a->tools || json_object_set(context, "tools", a->tools) == 0) &&
              (!a->effort ||
               json_object_set_new(context, "reasoning_effort", json_string(a->effort)) == 0) &&
              (!a->documents || json_object_set(context, "documents", a->documents) == 0);
    json_decref(messages);
    if (ok)
        return context;
    json_decref(context);
    return NULL;
}

static int cut_at_mark(struct ek_buf *text, struct api_error *err)
{
    const size_t n = sizeof(end_mark) - 1;
    for (size_t i = text->len < n ? 0 : text->len - n + 1; i-- > 0;) {
        if (memcmp(text->data + i, end_mark, n) == 0) {
            text->len = i;
            return 0;
        }
    }
    return api_refuse(err, 400, "continue_final_message",
                      "The chat template does not show the last message, so it cannot be "
                      "continued.");
}

/* What the prompt came in. */
static const char *prompt_field(const struct openai_ask *a)
{
    if (a->api == API_INFILL)
        return "input_prefix";
    if (pair_is(a))
        return a->second_field;
    if (a->api == API_RESPONSES || openai_embeds(a->api))
        return "input";
    return a->messages && a->api != API_OLLAMA_TEXT ? "messages" : "prompt";
}

static int render_chat(const struct served *s, const struct openai_ask *a, struct ek_buf *text,
                       uint32_t *ret_guard, struct api_error *err)
{
    struct ek_fault fault = {0};
    const json_t *last = json_array_get(a->messages, json_array_size(a->messages) - 1);
    if (a->continue_final && !json_is_string(json_object_get(last, "content")))
        return api_refuse(err, 400, "continue_final_message",
                          "`continue_final_message` needs text in the last message.");
    json_t *context = make_context(s->chat, a);
    int r =
        context ? chat_render(s->chat, s->tok, context, a->work, text, ret_guard, &fault) : -ENOMEM;
    json_decref(context);
    if (r == -ENOMEM)
        return api_no_memory(err);
    if (r < 0 && ek_work_stopped(a->work))
        return api_refuse_work(a->work, prompt_field(a), err);
    if (r < 0)
        return api_refuse(err, 400, "messages", "The chat template refused the messages: %.400s",
                          fault.msg[0] ? fault.msg : ek_strerror(r));
    return a->continue_final ? cut_at_mark(text, err) : 0;
}

/* The head of the message that the answer is bound to, when it is: see form_settle(). */
static int add_head(const struct served *s, const struct openai_ask *a, struct token_vec *out)
{
    bool final = a->form_kind == GRAMMAR_CALLS && a->form_field;
    struct ek_buf text = {0};
    if (s->think != THINK_HARMONY || !a->chat || (!final && !a->args_of))
        return 0;
    if (a->args_of)
        (void)ek_buf_printf(&text, "%scommentary to=functions.%s %sjson%s",
                            harmony_text(HARMONY_CHANNEL), a->args_of,
                            harmony_text(HARMONY_CONSTRAIN), harmony_text(HARMONY_MESSAGE));
    else
        (void)ek_buf_printf(&text, "%sfinal%s", harmony_text(HARMONY_CHANNEL),
                            harmony_text(HARMONY_MESSAGE));
    int r =
        ek_buf_ok(&text) ? tokenizer_encode(s->tok, text.data, text.len, true, 0, out) : -ENOMEM;
    ek_buf_done(&text);
    return r;
}

static int copy_ids(const json_t *ids, struct token_vec *out)
{
    size_t n = json_array_size(ids);
    if (out->limit && n > out->limit)
        return -E2BIG;
    out->at = malloc(n * sizeof(*out->at));
    if (!out->at)
        return -ENOMEM;
    out->cap = n;
    for (size_t i = 0; i < n; i++)
        out->at[i] = (int32_t)json_integer_value(json_array_get(ids, i));
    out->count = n;
    return 0;
}

int prompt_refuse_length(const struct served *s, size_t prompt, bool more, uint32_t wanted,
                         struct api_error *err)
{
    const char *least = more ? "at least " : "";
    return api_refuse(err, 400, "input_tokens",
                      "This model's maximum context length is %u tokens. However, you requested %u "
                      "output tokens and your prompt contains %s%zu input tokens, for a total of "
                      "%s%zu tokens. Please reduce the length of the input prompt or the number "
                      "of requested output tokens.",
                      s->max_model_len, wanted, least, prompt, least, prompt + wanted);
}

static int encode_text(const struct tokenizer *tok, bool specials, const char *text, size_t len,
                       uint32_t guard, struct token_vec *out)
{
    return specials ? tokenizer_encode_prompt(tok, text, len, out)
                    : tokenizer_encode(tok, text, len, true, guard, out);
}

/* Keeps the last tokens, or the first. */
static void truncate_tokens(const struct served *s, const struct openai_ask *a, struct token_vec *v)
{
    uint32_t wanted = a->max_tokens ? a->max_tokens : 1;
    size_t fit = s->max_model_len > wanted ? s->max_model_len - wanted : 1;
    size_t keep = a->truncate < 0 ? fit : (size_t)a->truncate;
    if (v->count <= keep)
        return;
    if (a->keep_first) {
        v->count = keep;
        return;
    }
    memmove(v->at, v->at + v->count - keep, keep * sizeof(*v->at));
    v->count = keep;
}

int prompt_tokens(const struct served *s, const struct openai_ask *a, uint32_t index,
                  struct token_vec *out, struct api_error *err)
{
    struct ek_buf text = {0};
    uint32_t guard = 0;
    const char *field = prompt_field(a);
    int r = 0;
    if (a->api == API_INFILL && !a->fim)
        return api_refuse(err, 400, "model",
                          "This model has no tokens for filling in the middle; serve a model for "
                          "code that has them.");
    out->work = a->work;
    out->limit = a->truncate || a->api == API_TOKENIZE ? 0 : s->max_model_len;
    if (a->messages) {
        r = render_chat(s, a, &text, &guard, err);
        if (r < 0)
            goto out;
        r = encode_text(s->tok, a->add_specials, text.data ? text.data : "", text.len, guard, out);
        if (r == 0)
            r = add_head(s, a, out);
    } else if (pair_is(a)) {
        err->msg[0] = '\0';
        r = pair_tokens(s, a, index, out, err);
        if (r < 0 && err->msg[0])
            goto out;
    } else {
        struct openai_prompt p = openai_prompt(a, index);
        r = a->suffix ? fim_tokens(s, a, p.text, p.len, out)
            : p.text  ? encode_text(s->tok, a->add_specials, p.text, p.len, 0, out)
                      : copy_ids(p.ids, out);
    }
    if (r < 0 && ek_work_stopped(a->work))
        r = api_refuse_work(a->work, field, err);
    else if (r == -E2BIG)
        r = prompt_refuse_length(s, (size_t)s->max_model_len + 1, true, a->max_tokens, err);
    else if (r < 0)
        r = api_no_memory(err);
    else if (out->count == 0 && a->api != API_TOKENIZE)
        r = api_refuse(err, 400, field, "The prompt has no tokens.");
    else if (a->truncate)
        truncate_tokens(s, a, out);
out:
    ek_buf_done(&text);
    return r;
}

size_t prompt_tail(const struct served *s, const struct token_vec *tokens, char *buf, size_t most)
{
    size_t used = most, len = 0;
    for (size_t i = tokens->count; i-- > 0;) {
        const char *bytes = tokenizer_bytes(s->tok, tokens->at[i], &len);
        if (!bytes || len > used)
            break;
        used -= len;
        memcpy(buf + used, bytes, len);
    }
    memmove(buf, buf + used, most - used);
    return most - used;
}

int prompt_echo(const struct choice *c, struct ek_buf *text)
{
    const struct openai_ask *a = &c->of->ask;
    if (a->chat) {
        const json_t *last = json_array_get(a->messages, json_array_size(a->messages) - 1);
        const json_t *content = json_object_get(last, "content");
        const char *role = json_string_value(json_object_get(last, "role"));
        if (a->add_generation_prompt && strcmp(role, "assistant") != 0)
            return 0; /* text of another turn */
        return ek_buf_add(text, json_string_value(content), json_string_length(content));
    }
    struct openai_prompt p = openai_prompt(a, c->prompt);
    if (p.text && !a->truncate)
        return ek_buf_add(text, p.text, p.len);
    return detok_row(c->of->served->tok, c->req->ask.prompt, c->req->ask.prompt_tokens,
                     a->skip_specials, text);
}
