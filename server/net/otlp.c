/* Spans in OTLP's protobuf, see otlp.h. Numbers of fields are those of opentelemetry-proto 1.x. */
#include "server/net/otlp.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#define LENGTH_BYTES 4u /* of a message whose length is not known yet: a varint with room */

enum wire { WIRE_VARINT = 0, WIRE_FIXED64 = 1, WIRE_BYTES = 2 };
enum span_kind { KIND_INTERNAL = 1, KIND_SERVER = 2 };

static void put_varint(struct ek_buf *b, uint64_t v)
{
    char bytes[10];
    size_t n = 0;
    do {
        bytes[n++] = (char)((v & 0x7f) | (v > 0x7f ? 0x80 : 0));
        v >>= 7;
    } while (v);
    (void)ek_buf_add(b, bytes, n);
}

static void put_tag(struct ek_buf *b, uint32_t field, enum wire w)
{
    put_varint(b, (uint64_t)field << 3 | w);
}

static void put_bytes(struct ek_buf *b, uint32_t field, const void *data, size_t len)
{
    put_tag(b, field, WIRE_BYTES);
    put_varint(b, len);
    (void)ek_buf_add(b, data, len);
}

static void put_text(struct ek_buf *b, uint32_t field, const char *s)
{
    put_bytes(b, field, s, strlen(s));
}

static void put_fixed64(struct ek_buf *b, uint32_t field, uint64_t v)
{
    char bytes[8];
    for (uint32_t i = 0; i < 8; i++)
        bytes[i] = (char)(v >> 8 * i);
    put_tag(b, field, WIRE_FIXED64);
    (void)ek_buf_add(b, bytes, sizeof(bytes));
}

/* A message inside: returns where it begins, for message_end(). */
static size_t message_begin(struct ek_buf *b, uint32_t field)
{
    put_tag(b, field, WIRE_BYTES);
    (void)ek_buf_add(b, "\0\0\0\0", LENGTH_BYTES);
    return b->len;
}

static void message_end(struct ek_buf *b, size_t begin)
{
    if (!ek_buf_ok(b))
        return;
    size_t len = b->len - begin;
    for (uint32_t i = 0; i < LENGTH_BYTES; i++, len >>= 7)
        b->data[begin - LENGTH_BYTES + i] =
            (char)((len & 0x7f) | (i + 1 < LENGTH_BYTES ? 0x80 : 0));
}

/* KeyValue: key 1, value 2; AnyValue: string 1, bool 2, int 3, double 4, array 5. */
static size_t attribute_begin(struct ek_buf *b, uint32_t field, const char *key, size_t *ret_value)
{
    size_t at = message_begin(b, field);
    put_text(b, 1, key);
    *ret_value = message_begin(b, 2);
    return at;
}

static void attribute_end(struct ek_buf *b, size_t at, size_t value)
{
    message_end(b, value);
    message_end(b, at);
}

static void put_word(struct ek_buf *b, uint32_t field, const char *key, const char *text)
{
    size_t value, at = attribute_begin(b, field, key, &value);
    put_text(b, 1, text);
    attribute_end(b, at, value);
}

static void put_int(struct ek_buf *b, uint32_t field, const char *key, int64_t v)
{
    size_t value, at = attribute_begin(b, field, key, &value);
    put_tag(b, 3, WIRE_VARINT);
    put_varint(b, (uint64_t)v);
    attribute_end(b, at, value);
}

static void put_truth(struct ek_buf *b, uint32_t field, const char *key, bool v)
{
    size_t value, at = attribute_begin(b, field, key, &value);
    put_tag(b, 2, WIRE_VARINT);
    put_varint(b, v);
    attribute_end(b, at, value);
}

static void put_double(struct ek_buf *b, uint32_t field, const char *key, double v)
{
    uint64_t bits;
    size_t value, at = attribute_begin(b, field, key, &value);
    memcpy(&bits, &v, sizeof(bits));
    put_fixed64(b, 4, bits);
    attribute_end(b, at, value);
}

/* A time between two moments, in seconds; nothing where one of them did not come. */
static void put_between(struct ek_buf *b, const char *key, uint64_t from_us, uint64_t to_us)
{
    if (from_us != 0 && to_us >= from_us)
        put_double(b, 9, key, (double)(to_us - from_us) / 1e6);
}

static uint64_t wall_ns(const struct otlp_resource *r, uint64_t us)
{
    return ((uint64_t)((int64_t)us + r->wall_offset_us)) * 1000u;
}

struct span_head {
    const uint8_t *id, *parent; /* parent: NULL = none */
    const char *name;
    enum span_kind kind;
    uint64_t from_us, to_us;
};

/* Span: trace 1, id 2, parent 4, name 5, kind 6, start 7, end 8; attributes 9, events 11 and status
 * 15 are the caller's. */
static size_t span_begin(struct ek_buf *b, const struct otlp_resource *r,
                         const struct span_request *s, const struct span_head *h)
{
    size_t at = message_begin(b, 2);
    put_bytes(b, 1, s->trace, sizeof(s->trace));
    put_bytes(b, 2, h->id, 8);
    if (h->parent)
        put_bytes(b, 4, h->parent, 8);
    put_text(b, 5, h->name);
    put_tag(b, 6, WIRE_VARINT);
    put_varint(b, h->kind);
    put_fixed64(b, 7, wall_ns(r, h->from_us));
    put_fixed64(b, 8, wall_ns(r, h->to_us));
    return at;
}

/* The class of a failure: a status that tells of one by its number, as the conventions have it for
 * HTTP; an answer that broke off after 200 has none. */
static const char *status_word(int status, char room[16])
{
    if (status < 500)
        return "answer_failed";
    (void)snprintf(room, 16, "%d", status);
    return room;
}

/* Status: message 2, code 3 with 2 = error. */
static void put_failure(struct ek_buf *b, const char *type, const char *why)
{
    put_word(b, 9, "error.type", type);
    size_t at = message_begin(b, 15);
    put_text(b, 2, why);
    put_tag(b, 3, WIRE_VARINT);
    put_varint(b, 2);
    message_end(b, at);
}

static void put_events(struct ek_buf *b, const struct otlp_resource *r, const struct span_answer *a,
                       uint64_t from_us, uint64_t to_us)
{
    for (uint32_t i = 0; i < a->moment_count; i++) {
        const struct req_moment *m = &a->moments[i];
        if (m->at_us < from_us || m->at_us >= to_us)
            continue;
        size_t at = message_begin(b, 11);
        put_fixed64(b, 1, wall_ns(r, m->at_us));
        put_text(b, 2, m->kind == REQ_MET_PREEMPTION ? "preemption" : "engine_replaced");
        message_end(b, at);
    }
}

/* The span of one part of an answer; its id is made of its request's. */
static uint32_t put_part(struct ek_buf *b, const struct otlp_resource *r,
                         const struct span_request *s, uint32_t index, uint32_t part,
                         uint64_t from_us, uint64_t to_us)
{
    static const char *const names[] = {"queue", "prefill", "decode"};
    uint8_t id[8];

    if (from_us == 0 || to_us < from_us)
        return 0;
    memcpy(id, s->span, sizeof(id));
    id[7] ^= (uint8_t)(1 + index * 3 + part);
    const struct span_head h = {.id = id,
                                .parent = s->span,
                                .name = names[part],
                                .kind = KIND_INTERNAL,
                                .from_us = from_us,
                                .to_us = to_us};
    size_t at = span_begin(b, r, s, &h);
    put_int(b, 9, "evenkeel.answer", index);
    if (part == 1)
        put_int(b, 9, "evenkeel.cached_tokens", s->answer[index].cached_tokens);
    put_events(b, r, &s->answer[index], from_us, to_us);
    message_end(b, at);
    return 1;
}

static uint32_t put_answer(struct ek_buf *b, const struct otlp_resource *r,
                           const struct span_request *s, uint32_t i)
{
    const struct span_answer *a = &s->answer[i];
    uint64_t read_us = a->scheduled_us ? a->scheduled_us : a->done_us;
    uint64_t first_us = a->first_us ? a->first_us : a->done_us;

    return put_part(b, r, s, i, 0, a->queued_us, read_us) +
           put_part(b, r, s, i, 1, a->scheduled_us, first_us) +
           put_part(b, r, s, i, 2, a->first_us, a->done_us);
}

static void put_finishes(struct ek_buf *b, const struct span_request *s)
{
    size_t value, at = attribute_begin(b, 9, "gen_ai.response.finish_reasons", &value);
    size_t list = message_begin(b, 5);
    for (uint32_t i = 0; i < s->told; i++) {
        size_t one = message_begin(b, 1);
        put_text(b, 1, s->answer[i].finish);
        message_end(b, one);
    }
    message_end(b, list);
    attribute_end(b, at, value);
}

/* What was asked for, by the names of OpenTelemetry's gen_ai conventions. */
static void put_asked(struct ek_buf *b, const struct span_request *s)
{
    const struct ek_sampling *how = &s->sampling;

    put_word(b, 9, "gen_ai.operation.name", s->operation);
    put_word(b, 9, "gen_ai.provider.name", "evenkeel");
    put_word(b, 9, "gen_ai.request.model", s->asked_model);
    put_double(b, 9, "gen_ai.request.temperature", (double)how->temperature);
    put_double(b, 9, "gen_ai.request.top_p", (double)how->top_p);
    put_truth(b, 9, "gen_ai.request.stream", s->stream);
    if (how->top_k > 0)
        put_int(b, 9, "gen_ai.request.top_k", how->top_k);
    if (how->frequency != 0.0f)
        put_double(b, 9, "gen_ai.request.frequency_penalty", (double)how->frequency);
    if (how->presence != 0.0f)
        put_double(b, 9, "gen_ai.request.presence_penalty", (double)how->presence);
    if (s->seeded)
        put_int(b, 9, "gen_ai.request.seed", (int64_t)how->seed);
    if (s->n != 1)
        put_int(b, 9, "gen_ai.request.choice.count", s->n);
    if (s->max_tokens > 0)
        put_int(b, 9, "gen_ai.request.max_tokens", s->max_tokens);
}

/* What came of it, by these names. */
static void put_outcome(struct ek_buf *b, const struct span_request *s)
{
    put_word(b, 9, "gen_ai.response.id", s->answer_id);
    put_word(b, 9, "gen_ai.response.model", s->model);
    put_int(b, 9, "gen_ai.usage.input_tokens", s->prompt_tokens);
    put_int(b, 9, "gen_ai.usage.cache_read.input_tokens", s->cached_tokens);
    put_int(b, 9, "gen_ai.usage.output_tokens", s->output_tokens);
    put_finishes(b, s);
    if (s->stream)
        put_between(b, "gen_ai.response.time_to_first_chunk", s->begin_us, s->answer[0].first_us);
}

/* Also those that vLLM has beside the conventions' or from before them. */
static void put_generation(struct ek_buf *b, const struct span_request *s)
{
    const struct span_answer *a = &s->answer[0];
    uint32_t preemptions = 0, replays = 0;

    put_asked(b, s);
    put_outcome(b, s);
    put_word(b, 9, "gen_ai.request.id", s->id);
    put_int(b, 9, "gen_ai.request.n", s->n);
    put_int(b, 9, "gen_ai.usage.num_sequences", s->answers);
    put_int(b, 9, "gen_ai.usage.prompt_tokens", s->prompt_tokens);
    put_int(b, 9, "gen_ai.usage.completion_tokens", s->output_tokens);
    put_between(b, "gen_ai.latency.time_in_queue", a->queued_us, a->scheduled_us);
    put_between(b, "gen_ai.latency.time_to_first_token", s->begin_us, a->first_us);
    put_between(b, "gen_ai.latency.time_in_model_prefill", a->scheduled_us, a->first_us);
    put_between(b, "gen_ai.latency.time_in_model_decode", a->first_us, a->done_us);
    put_between(b, "gen_ai.latency.time_in_model_inference", a->scheduled_us, a->done_us);
    put_between(b, "gen_ai.latency.e2e", s->begin_us, s->end_us);
    for (uint32_t i = 0; i < s->told; i++) {
        preemptions += s->answer[i].preemptions;
        replays += s->answer[i].replays;
    }
    put_int(b, 9, "evenkeel.preemptions", preemptions);
    put_int(b, 9, "evenkeel.replays", replays);
}

static uint32_t put_request(struct ek_buf *b, const struct otlp_resource *r,
                            const struct span_request *s)
{
    char name[96] = "llm_request", word[16];
    uint32_t spans = 1;

    if (!s->operation)
        (void)snprintf(name, sizeof(name), "%s%s%s", s->method ? s->method : "HTTP",
                       s->route ? " " : "", s->route ? s->route : "");
    const struct span_head h = {.id = s->span,
                                .parent = s->has_parent ? s->parent : NULL,
                                .name = name,
                                .kind = KIND_SERVER,
                                .from_us = s->begin_us,
                                .to_us = s->end_us};
    size_t at = span_begin(b, r, s, &h);
    if (s->method)
        put_word(b, 9, "http.request.method", s->method);
    if (s->route)
        put_word(b, 9, "http.route", s->route);
    if (s->status)
        put_int(b, 9, "http.response.status_code", s->status);
    if (s->operation)
        put_generation(b, s);
    if (s->left || s->stalled)
        put_failure(b, s->left ? "client_left" : "client_stalled",
                    s->left ? "the client left" : "the client did not read");
    else if (s->status >= 500 || s->broken)
        put_failure(b, status_word(s->status, word), "the server failed");
    message_end(b, at);
    for (uint32_t i = 0; i < s->told; i++)
        spans += put_answer(b, r, s, i);
    return spans;
}

/* Request: resource spans 1; those: resource 1, scope spans 2; those: scope 1, spans 2. */
uint32_t otlp_write(struct ek_buf *out, const struct otlp_resource *r, const struct span_request *s,
                    uint32_t count)
{
    uint32_t spans = 0;
    size_t resource_spans = message_begin(out, 1);
    size_t resource = message_begin(out, 1);
    put_word(out, 1, "service.name", r->service);
    put_word(out, 1, "service.version", r->version);
    put_word(out, 1, "service.instance.id", r->instance);
    message_end(out, resource);
    size_t scope_spans = message_begin(out, 2);
    size_t scope = message_begin(out, 1);
    put_text(out, 1, "evenkeel-server");
    put_text(out, 2, r->version);
    message_end(out, scope);
    for (uint32_t i = 0; i < count; i++)
        spans += put_request(out, r, &s[i]);
    message_end(out, scope_spans);
    message_end(out, resource_spans);
    return spans;
}
