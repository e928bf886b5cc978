/* Writes answers of /infill, whole and as events (infill.h). Called by body.c and sse.c. */
#include "server/api/infill.h"

#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/reply.h"
#include "server/api/served.h"

/* ---- lines ---- */

static void infill_cut(struct choice *c, size_t len)
{
    c->text.len = len;
    c->text.data[len] = '\0';
    c->over = c->cut = true;
    c->finish = REQ_FIN_LENGTH;
}

static bool is_late(const struct choice *c)
{
    const int64_t most_ms = c->of->ask.predict_ms;
    uint64_t first = c->req->first_token_us;
    return most_ms > 0 && first > 0 && ek_now_us() - first > (uint64_t)most_ms * 1000;
}

void infill_look(struct choice *c, size_t from)
{
    const uint32_t least = c->of->ask.indent;
    for (size_t i = from; i < c->text.len && !c->cut; i++) {
        const char byte = c->text.data[i];
        const bool blank = byte == ' ' || byte == '\t';
        if (c->margin && blank) {
            c->indent++;
        } else if (c->margin && c->indent < least) {
            infill_cut(c, i);
        } else if (byte == '\n') {
            c->lines = c->margin = true;
            c->indent = 0;
            if (is_late(c))
                infill_cut(c, i + 1);
        } else {
            c->margin = false;
        }
    }
}

/* ---- answers ---- */

static void put_ms(struct ek_buf *out, const char *what, uint32_t tokens, uint64_t from_us,
                   uint64_t to_us)
{
    const bool known = from_us > 0 && to_us > from_us;
    const double ms = known ? (double)(to_us - from_us) / 1e3 : 0;
    (void)ek_buf_printf(out, ",\"%s_n\":%u,\"%s_ms\":%.3f,", what, tokens, what, ms);
    if (known && tokens > 0)
        (void)ek_buf_printf(out, "\"%s_per_token_ms\":%.3f,\"%s_per_second\":%.3f", what,
                            ms / tokens, what, tokens / ms * 1e3);
    else
        (void)ek_buf_printf(out, "\"%s_per_token_ms\":null,\"%s_per_second\":null", what, what);
}

static void put_timings(struct ek_buf *out, const struct generation *g)
{
    const struct request *q = g->choice[0].req;
    /* a stop string ends it here before it ends there */
    bool done = atomic_load_explicit(&q->state, memory_order_acquire) == REQ_DONE;
    uint32_t cached = q->cached_tokens, prompt = generation_prompt_tokens(g);
    (void)ek_buf_printf(out, "\"timings\":{\"cache_n\":%u", cached);
    put_ms(out, "prompt", prompt > cached ? prompt - cached : 0, q->first_scheduled_us,
           q->first_token_us);
    put_ms(out, "predicted", generation_seen(g), q->first_token_us,
           done ? q->done_us : ek_now_us());
    (void)ek_buf_puts(out, "}");
}

/* {"index":0,"content":...,"tokens":[...],"stop":...: what is not told yet; the object is open. */
static void put_piece(struct ek_buf *out, const struct choice *c, bool last)
{
    if (!ek_buf_ok(&c->text) || !ek_buf_ok(&c->ids))
        out->failed = true;
    (void)ek_buf_puts(out, "{\"index\":0,\"content\":");
    reply_bytes(out, c->text.data ? c->text.data : "", c->text.len);
    (void)ek_buf_puts(out, ",\"tokens\":[");
    if (c->ids.len)
        (void)ek_buf_add(out, c->ids.data, c->ids.len);
    (void)ek_buf_printf(out, "],\"stop\":%s,\"tokens_predicted\":%u,\"tokens_evaluated\":%u",
                        last ? "true" : "false", generation_seen(c->of),
                        generation_prompt_tokens(c->of));
}

/* The last piece, with how it ended. */
static void put_end(struct ek_buf *out, const struct generation *g)
{
    const struct choice *c = &g->choice[0];
    const bool cut = c->finish == REQ_FIN_LENGTH;
    const bool full = cut && !c->cut && !g->ask.no_output && (g->room || !g->ask.max_tokens);
    put_piece(out, c, true);
    (void)ek_buf_puts(out, ",\"model\":");
    reply_string(out, g->ask.model);
    (void)ek_buf_printf(out,
                        ",\"has_new_line\":%s,\"truncated\":%s,\"stop_type\":\"%s\","
                        "\"stopping_word\":",
                        c->lines ? "true" : "false", full ? "true" : "false",
                        cut              ? "limit"
                        : c->stop_string ? "word"
                                         : "eos");
    reply_string(out, c->stop_string ? c->stop_string : "");
    (void)ek_buf_printf(out, ",\"tokens_cached\":%u,", c->req->cached_tokens);
    put_timings(out, g);
    (void)ek_buf_puts(out, "}");
}

/* What the names say, "timings/prompt_n" is a part of a part; NULL for none. */
static json_t *infill_out_part_of(json_t *v, const char *path)
{
    for (; v && *path; path += *path == '/') {
        size_t n = strcspn(path, "/");
        v = json_is_object(v) ? json_object_getn(v, path, n) : NULL;
        path += n;
    }
    return v;
}

/* Of the object that ends `out` only what is to be shown. */
static void keep_shown(struct ek_buf *out, size_t at, const json_t *shown)
{
    json_t *all =
        ek_buf_ok(out) ? json_loadb(out->data + at, out->len - at, JSON_ALLOW_NUL, NULL) : NULL;
    json_t *some = json_object();
    bool ok = all && some;
    for (size_t i = 0; ok && i < json_array_size(shown); i++) {
        const char *path = json_string_value(json_array_get(shown, i));
        json_t *part = *path ? infill_out_part_of(all, path) : NULL;
        ok = !part || json_object_set(some, path, part) == 0;
    }
    char *text = ok ? json_dumps(some, JSON_COMPACT) : NULL;
    if (text) {
        out->len = at;
        (void)ek_buf_puts(out, text);
    } else {
        out->failed = true;
    }
    free(text);
    json_decref(some);
    json_decref(all);
}

void infill_reply(struct ek_buf *out, struct generation *g)
{
    const size_t at = out->len;
    put_end(out, g);
    if (g->ask.shown)
        keep_shown(out, at, g->ask.shown);
}

/* ---- events ---- */

void infill_error(struct generation *g, const struct api_error *err)
{
    (void)ek_buf_puts(&g->out, "data: ");
    reply_error(&g->out, err);
    (void)ek_buf_puts(&g->out, "\n\n");
    g->closed = true;
}

static void put_news(struct generation *g)
{
    struct choice *c = &g->choice[0];
    if (c->text.len || c->ids.len) {
        (void)ek_buf_puts(&g->out, "data: ");
        put_piece(&g->out, c, false);
        reply_event_end(&g->out);
    }
    ek_buf_clear(&c->text);
    ek_buf_clear(&c->ids);
    c->told = c->seen;
}

void infill_render(struct generation *g)
{
    struct api_error err;
    g->begun = true;
    if (g->over && generation_check(g, &err) < 0) {
        infill_error(g, &err);
        return;
    }
    put_news(g);
    if (!g->over)
        return;
    (void)ek_buf_puts(&g->out, "data: ");
    infill_reply(&g->out, g);
    (void)ek_buf_puts(&g->out, "\n\n");
    g->closed = true;
}
