/* Writes answers of Ollama's API, lines of JSON (ollama.h). Called by body.c and sse.c. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/fnv.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/ollama.h"
#include "server/api/reply.h"
#include "server/api/served.h"

static void ollama_put_text(struct ek_buf *out, const struct ek_buf *text)
{
    if (!ek_buf_ok(text))
        out->failed = true;
    reply_bytes(out, text->data ? text->data : "", text->len);
}

/* As RFC 3339 has it, in quotes. */
static void put_time(struct ek_buf *out, uint64_t wall_us)
{
    char text[64] = "";
    struct tm t;
    time_t s = (time_t)(wall_us / EK_US_PER_S);
    if (gmtime_r(&s, &t))
        (void)strftime(text, sizeof(text), "%Y-%m-%dT%H:%M:%S", &t);
    (void)ek_buf_printf(out, "\"%s.%06lluZ\"", text, (unsigned long long)(wall_us % EK_US_PER_S));
}

static void put_head(struct ek_buf *out, const char *model, uint64_t wall_us)
{
    (void)ek_buf_puts(out, "{\"model\":");
    reply_string(out, model);
    (void)ek_buf_puts(out, ",\"created_at\":");
    put_time(out, wall_us);
}

/* ---- the answer ---- */

static void put_calls(struct ek_buf *out, const struct choice *c, uint32_t from, uint32_t to)
{
    for (uint32_t i = from; i < to; i++) {
        const struct ek_buf *args = &c->calls.call[i].args;
        (void)ek_buf_puts(out, i > from ? ",{\"id\":\"" : ",\"tool_calls\":[{\"id\":\"");
        reply_call_id(out, c, i);
        (void)ek_buf_printf(out, "\",\"function\":{\"index\":%u,\"name\":", i);
        reply_string(out, c->calls.call[i].name);
        (void)ek_buf_puts(out, ",\"arguments\":");
        reply_object(out, args->data ? args->data : "", args->len);
        (void)ek_buf_puts(out, "}}");
    }
    if (to > from)
        (void)ek_buf_puts(out, "]");
}

/* What the choice's buffers hold, and calls `from` up to `to`, with a comma before it. */
static void put_said(struct ek_buf *out, const struct choice *c, uint32_t from, uint32_t to)
{
    bool chat = c->of->ask.api == API_OLLAMA_CHAT;
    (void)ek_buf_puts(out, chat ? ",\"message\":{\"role\":\"assistant\",\"content\":"
                                : ",\"response\":");
    ollama_put_text(out, &c->text);
    if (c->thought.len) {
        (void)ek_buf_puts(out, ",\"thinking\":");
        ollama_put_text(out, &c->thought);
    }
    put_calls(out, c, from, to);
    (void)ek_buf_puts(out, chat ? "}" : "");
    if (c->of->ask.logprobs && c->lp[LP_ENTRIES].len) {
        (void)ek_buf_puts(out, ",\"logprobs\":[");
        (void)ek_buf_add(out, c->lp[LP_ENTRIES].data, c->lp[LP_ENTRIES].len);
        (void)ek_buf_puts(out, "]");
    }
}

static uint64_t ns_between(uint64_t from_us, uint64_t to_us)
{
    return from_us && to_us > from_us ? (to_us - from_us) * 1000 : 0;
}

/* Why it ended, what was counted and how long it took; closes the object. */
static void put_end(struct ek_buf *out, const struct generation *g)
{
    const struct choice *c = &g->choice[0];
    const struct request *q = c->req;
    /* a stop string ends it here before it ends there */
    bool done = atomic_load_explicit(&q->state, memory_order_acquire) == REQ_DONE;
    uint64_t end = done ? q->done_us : ek_now_us();
    (void)ek_buf_printf(
        out,
        ",\"done\":true,\"done_reason\":\"%s\",\"total_duration\":%llu,\"load_duration\":0,"
        "\"prompt_eval_count\":%u,\"prompt_eval_duration\":%llu,\"eval_count\":%u,"
        "\"eval_duration\":%llu}\n",
        c->finish == REQ_FIN_LENGTH ? "length" : "stop",
        (unsigned long long)ns_between(q->ask.arrival_us, end), generation_prompt_tokens(g),
        (unsigned long long)ns_between(q->first_scheduled_us, q->first_token_us),
        generation_seen(g), (unsigned long long)ns_between(q->first_token_us, end));
}

void ollama_reply(struct ek_buf *out, struct generation *g)
{
    const struct choice *c = &g->choice[0];
    put_head(out, g->ask.model, ek_wall_us());
    put_said(out, c, 0, reply_calls(c));
    put_end(out, g);
}

/* ---- lines ---- */

/* A line with what is new: text, thinking, and calls that are complete. */
static void ollama_out_put_line(struct generation *g)
{
    struct choice *c = &g->choice[0];
    uint32_t calls = reply_calls(c);
    if (calls > 0 && !g->over && c->calls.open)
        calls--; /* its arguments still grow */
    bool news = c->text.len || c->thought.len || calls > c->calls_told;
    if (!news && !(g->ask.logprobs && c->lp[LP_ENTRIES].len))
        return;
    put_head(&g->out, g->ask.model, ek_wall_us());
    put_said(&g->out, c, c->calls_told, calls);
    (void)ek_buf_puts(&g->out, ",\"done\":false}\n");
    c->calls_told = calls;
    ek_buf_clear(&c->text);
    ek_buf_clear(&c->thought);
    ek_buf_clear(&c->lp[LP_ENTRIES]);
}

void ollama_render(struct generation *g)
{
    struct choice *c = &g->choice[0];
    struct api_error err;
    g->begun = true;
    if (g->over && generation_check(g, &err) < 0) {
        ollama_error_line(g, &err);
        return;
    }
    ollama_out_put_line(g);
    c->told = c->seen;
    if (!g->over)
        return;
    put_head(&g->out, g->ask.model, ek_wall_us());
    put_said(&g->out, c, c->calls_told, c->calls_told);
    put_end(&g->out, g);
    g->closed = true;
}

/* An answer in which nothing is said. */
static void put_nothing(struct ek_buf *out, const char *model, enum openai_api api,
                        uint64_t wall_us)
{
    put_head(out, model, wall_us);
    (void)ek_buf_puts(out, api == API_OLLAMA_CHAT
                               ? ",\"message\":{\"role\":\"assistant\",\"content\":\"\"}"
                               : ",\"response\":\"\"");
}

void ollama_ping(struct generation *g)
{
    put_nothing(&g->out, g->ask.model, g->ask.api, ek_wall_us());
    (void)ek_buf_puts(&g->out, ",\"done\":false}\n");
}

void ollama_error(struct ek_buf *out, const struct api_error *err)
{
    (void)ek_buf_puts(out, "{\"error\":");
    reply_string(out, err->msg);
    (void)ek_buf_puts(out, "}");
}

void ollama_error_line(struct generation *g, const struct api_error *err)
{
    ollama_error(&g->out, err);
    (void)ek_buf_puts(&g->out, "\n");
    g->closed = true;
}

/* A number or a duration (0, "0", "0s"): no time at all. */
static bool is_zero(const json_t *v)
{
    const char *text = json_string_value(v);
    if (!text)
        return json_is_number(v) && json_number_value(v) == 0;
    return strchr(text, '0') && !strpbrk(text, "123456789");
}

void ollama_loaded(struct ek_buf *out, const struct served *s, enum openai_api api,
                   const json_t *body, uint64_t wall_us)
{
    const char *model = json_string_value(json_object_get(body, "model"));
    bool unload = is_zero(json_object_get(body, "keep_alive"));
    put_nothing(out, model && *model ? model : s->name[0], api, wall_us);
    (void)ek_buf_printf(out, ",\"done\":true,\"done_reason\":\"%s\"}\n",
                        unload ? "unload" : "load");
}

void ollama_embed_reply(struct ek_buf *out, const struct generation *g)
{
    uint64_t took = ns_between(g->choice[0].req->ask.arrival_us, ek_now_us());
    (void)ek_buf_puts(out, "{\"model\":");
    reply_string(out, g->ask.model);
    (void)ek_buf_puts(out, ",\"embeddings\":[");
    for (uint32_t i = 0; i < g->count; i++) {
        (void)ek_buf_puts(out, i ? "," : "");
        (void)ek_buf_add(out, g->choice[i].text.data, g->choice[i].text.len);
    }
    (void)ek_buf_printf(out,
                        "],\"total_duration\":%llu,\"load_duration\":0,"
                        "\"prompt_eval_count\":%u}",
                        (unsigned long long)took, generation_prompt_tokens(g));
}

/* ---- what is served ---- */

static void put_details(struct ek_buf *out, const struct served *s)
{
    double count = (double)s->parameters;
    (void)ek_buf_puts(out, "{\"parent_model\":\"\",\"format\":\"safetensors\",\"family\":");
    reply_string(out, s->family);
    (void)ek_buf_puts(out, ",\"families\":[");
    reply_string(out, s->family);
    (void)ek_buf_printf(
        out, count >= 1e9 ? "],\"parameter_size\":\"%.1fB\"" : "],\"parameter_size\":\"%.1fM\"",
        count >= 1e9 ? count / 1e9 : count / 1e6);
    (void)ek_buf_puts(out, ",\"quantization_level\":");
    reply_string(out, s->dtype);
    (void)ek_buf_puts(out, "}");
}

/* There are no digests of layers: what stands for one is made of the name. */
static void put_digest(struct ek_buf *out, const char *name)
{
    uint64_t h = ek_fnv(EK_FNV_BEGIN, name, strlen(name));
    (void)ek_buf_printf(out, "\"digest\":\"%016llx%048d\"", (unsigned long long)h, 0);
}

void ollama_models(struct ek_buf *out, const struct served *s, bool running, uint64_t since_us)
{
    (void)ek_buf_puts(out, "{\"models\":[");
    for (uint32_t i = 0; i < s->names; i++) {
        (void)ek_buf_puts(out, i ? ",{\"name\":" : "{\"name\":");
        reply_string(out, s->name[i]);
        (void)ek_buf_puts(out, ",\"model\":");
        reply_string(out, s->name[i]);
        (void)ek_buf_printf(out, ",\"size\":%llu,", (unsigned long long)s->weight_bytes);
        put_digest(out, s->name[i]);
        (void)ek_buf_puts(out, ",\"details\":");
        put_details(out, s);
        if (running)
            (void)ek_buf_printf(out,
                                ",\"size_vram\":%llu,\"context_length\":%u,\"expires_at\":"
                                "\"2318-04-05T20:00:00Z\"}",
                                (unsigned long long)s->weight_bytes, s->max_model_len);
        else
            (void)ek_buf_puts(out, ",\"modified_at\":");
        if (!running) {
            put_time(out, since_us);
            (void)ek_buf_puts(out, "}");
        }
    }
    (void)ek_buf_puts(out, "]}");
}

/* What can be asked of it. */
static void put_capabilities(struct ek_buf *out, const struct served *s)
{
    (void)ek_buf_puts(out, "[\"completion\"");
    (void)ek_buf_puts(out, s->chat && s->tools != TOOLS_NONE ? ",\"tools\"" : "");
    (void)ek_buf_puts(out, s->think != THINK_NONE ? ",\"thinking\"" : "");
    (void)ek_buf_puts(out, "]");
}

void ollama_show(struct ek_buf *out, const struct served *s, json_t *body, uint64_t since_us,
                 struct api_error *ret_err)
{
    const json_t *model = json_object_get(body, "model"), *name = json_object_get(body, "name");
    if (served_model_tagged(s, json_string_value(json_is_string(model) ? model : name), ret_err) <
        0)
        return;
    *ret_err = (struct api_error){0};
    (void)ek_buf_puts(out, "{\"license\":\"\",\"modelfile\":\"\",\"parameters\":\"\","
                           "\"template\":\"\",\"details\":");
    put_details(out, s);
    (void)ek_buf_puts(out, ",\"model_info\":{\"general.architecture\":");
    reply_string(out, s->family);
    (void)ek_buf_printf(out,
                        ",\"general.parameter_count\":%llu,\"%s.context_length\":%u,"
                        "\"%s.embedding_length\":%u,\"%s.vocab_size\":%u},\"capabilities\":",
                        (unsigned long long)s->parameters, s->family, s->max_model_len, s->family,
                        s->hidden, s->family, s->vocab);
    put_capabilities(out, s);
    (void)ek_buf_puts(out, ",\"modified_at\":");
    put_time(out, since_us);
    (void)ek_buf_puts(out, "}");
}
