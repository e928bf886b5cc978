/*
 * Embeddings: the state behind the last token of a text, at the input of the logits, of length 1.
 * As numbers or as the bytes of little-endian floats in base64.
 */
#include "server/api/embed.h"

#include <math.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/generation.h"
#include "server/api/reply.h"
#include "server/api/served.h"

static void put_base64(struct ek_buf *out, const unsigned char *p, size_t n)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    for (size_t i = 0; i < n; i += 3) {
        size_t have = n - i < 3 ? n - i : 3;
        uint32_t v = (uint32_t)p[i] << 16 | (have > 1 ? (uint32_t)p[i + 1] << 8 : 0) |
                     (have > 2 ? p[i + 2] : 0);
        char quad[4] = {digits[v >> 18], digits[v >> 12 & 63], have > 1 ? digits[v >> 6 & 63] : '=',
                        have > 2 ? digits[v & 63] : '='};
        (void)ek_buf_add(out, quad, 4);
    }
}

static void put_vector(struct ek_buf *out, const struct request *q, bool base64, bool as_it_is)
{
    double sum = 0;
    for (uint32_t i = 0; i < q->ask.hidden_width; i++)
        sum += (double)q->hidden[i] * (double)q->hidden[i];
    double scale = sum > 0 && isfinite(sum) ? 1 / sqrt(sum) : 0;
    if (as_it_is && isfinite(sum))
        scale = 1;
    (void)ek_buf_puts(out, base64 ? "\"" : "[");
    /* three floats are four groups of three bytes: so no padding comes in between */
    for (uint32_t i = 0; i < q->ask.hidden_width; i += 3) {
        unsigned char bytes[12];
        uint32_t n = q->ask.hidden_width - i < 3 ? q->ask.hidden_width - i : 3;
        for (uint32_t k = 0; k < n; k++) {
            float f = (float)((double)q->hidden[i + k] * scale);
            memcpy(bytes + 4 * k, &f, 4);
            if (!base64)
                (void)ek_buf_printf(out, i + k ? ",%.9g" : "%.9g", (double)f);
        }
        if (base64)
            put_base64(out, bytes, 4 * (size_t)n);
    }
    (void)ek_buf_puts(out, base64 ? "\"" : "]");
}

void embed_write(struct ek_buf *out, const struct choice *c)
{
    put_vector(out, c->req, c->of->ask.base64, c->of->ask.as_it_is);
}

void embed_take(struct choice *c)
{
    ek_buf_clear(&c->text); /* of the token that is computed beside it */
    embed_write(&c->text, c);
    if (c->index == 0)
        return; /* its times are told */
    request_unref(c->req);
    c->req = NULL;
}

void embed_reply(struct ek_buf *out, const struct generation *g)
{
    uint32_t prompt = generation_prompt_tokens(g);
    (void)ek_buf_puts(out, "{");
    reply_head(out, g, "list");
    (void)ek_buf_puts(out, ",\"data\":[");
    for (uint32_t i = 0; i < g->count; i++) {
        (void)ek_buf_printf(
            out, "%s{\"index\":%u,\"object\":\"embedding\",\"embedding\":", i ? "," : "", i);
        (void)ek_buf_add(out, g->choice[i].text.data, g->choice[i].text.len);
        (void)ek_buf_puts(out, "}");
    }
    (void)ek_buf_printf(out,
                        "],\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,"
                        "\"completion_tokens\":0}}",
                        prompt, prompt);
}
