/*
 * What the numbers of scored texts become: scores, ranks, classes, vectors. A choice keeps its own
 * in its text, as bytes of doubles or, of a vector that is compared, of floats.
 */
#include "server/api/protocols.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "server/api/complete.h"
#include "server/api/embed.h"
#include "server/api/reply.h"
#include "server/api/served.h"

static double sigmoid(double x)
{
    return 1 / (1 + exp(-x));
}

static void softmax(double *v, uint32_t count)
{
    double most = v[0], sum = 0;
    for (uint32_t i = 1; i < count; i++)
        most = v[i] > most ? v[i] : most;
    for (uint32_t i = 0; i < count; i++)
        sum += v[i] = exp(v[i] - most);
    for (uint32_t i = 0; i < count; i++)
        v[i] /= sum;
}

/* One row times the state. */
static double row_value(const struct served_classes *k, uint32_t row, const float *state)
{
    const float *w = k->weight + (size_t)row * k->width;
    double sum = k->bias ? (double)k->bias[row] : 0;
    for (uint32_t i = 0; i < k->width; i++)
        sum += (double)w[i] * (double)state[i];
    return k->softcap > 0 ? (double)k->softcap * tanh(sum / (double)k->softcap) : sum;
}

/* What the client is told of a text: [k->scores]. */
static void score_state(const struct served_classes *k, const float *state, bool as_it_is,
                        double *ret_scores)
{
    if (k->two_way)
        ret_scores[0] = row_value(k, 1, state) - row_value(k, 0, state);
    else
        for (uint32_t i = 0; i < k->scores; i++)
            ret_scores[i] = row_value(k, i, state);
    if (as_it_is || k->act == SERVED_AS_IT_IS)
        return;
    if (k->act == SERVED_BY_COUNT && k->scores > 1) {
        softmax(ret_scores, k->scores);
        return;
    }
    for (uint32_t i = 0; i < k->scores; i++)
        ret_scores[i] = sigmoid(ret_scores[i]);
}

static bool by_classes(const struct openai_ask *a, const struct served *s)
{
    return s->classes.weight && !a->vectors;
}

void scored_take(struct choice *c)
{
    const struct served *s = c->of->served;
    const struct request *q = c->req;
    ek_buf_clear(&c->text); /* of the token that is computed beside it */
    if (by_classes(&c->of->ask, s)) {
        double score[SERVED_CLASSES_MOST];
        score_state(&s->classes, q->hidden, c->of->ask.as_it_is, score);
        (void)ek_buf_add(&c->text, (const char *)score, s->classes.scores * sizeof(*score));
    } else if (c->of->ask.api == API_POOLING) {
        embed_write(&c->text, c);
    } else {
        (void)ek_buf_add(&c->text, (const char *)q->hidden,
                         q->ask.hidden_width * sizeof(*q->hidden));
    }
    if (c->index == 0)
        return; /* its times are told */
    request_unref(c->req);
    c->req = NULL;
}

static double first_score(const struct choice *c)
{
    double v = 0;
    if (c->text.len >= sizeof(v))
        memcpy(&v, c->text.data, sizeof(v));
    return v;
}

static double cosine(const struct choice *a, const struct choice *b)
{
    double ab = 0, aa = 0, bb = 0;
    size_t bytes = a->text.len < b->text.len ? a->text.len : b->text.len;
    for (size_t at = 0; at + sizeof(float) <= bytes; at += sizeof(float)) {
        float x, y;
        memcpy(&x, a->text.data + at, sizeof(x));
        memcpy(&y, b->text.data + at, sizeof(y));
        ab += (double)x * (double)y;
        aa += (double)x * (double)x;
        bb += (double)y * (double)y;
    }
    return aa > 0 && bb > 0 ? ab / sqrt(aa * bb) : 0;
}

static double pair_score(const struct generation *g, uint32_t i)
{
    if (by_classes(&g->ask, g->served))
        return first_score(&g->choice[i]);
    uint32_t firsts = g->ask.prompts - g->ask.pairs;
    return cosine(&g->choice[firsts == 1 ? 0 : i], &g->choice[firsts + i]);
}

/* A number as JSON has it, which knows no infinity. */
static void scored_put_number(struct ek_buf *out, double v)
{
    if (isfinite(v))
        (void)ek_buf_printf(out, "%.9g", v);
    else
        (void)ek_buf_puts(out, "null");
}

static void put_usage(struct ek_buf *out, const struct generation *g)
{
    uint32_t n = generation_prompt_tokens(g);
    (void)ek_buf_printf(out,
                        "\"usage\":{\"prompt_tokens\":%u,\"total_tokens\":%u,"
                        "\"completion_tokens\":0}",
                        n, n);
}

struct ranked {
    double score;
    uint32_t index;
};

static int ranked_compare(const void *a, const void *b)
{
    const struct ranked *x = a, *y = b;
    if (isnan(x->score) != isnan(y->score)) /* one that is none is the lowest */
        return isnan(x->score) ? 1 : -1;
    if (!isnan(x->score) && x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

static void put_ranked(struct ek_buf *out, const struct generation *g, const struct ranked *r)
{
    const json_t *text = g->ask.second;
    if (json_is_array(text))
        text = json_array_get(text, r->index);
    if (json_is_object(text))
        text = json_object_get(text, "text");
    (void)ek_buf_printf(out, "{\"index\":%u,", r->index);
    if (!g->ask.no_documents) {
        (void)ek_buf_puts(out, "\"document\":{\"text\":");
        reply_bytes(out, json_string_value(text), json_string_length(text));
        (void)ek_buf_puts(out, "},");
    }
    (void)ek_buf_puts(out, "\"relevance_score\":");
    scored_put_number(out, r->score);
    (void)ek_buf_puts(out, "}");
}

static void rerank_reply(struct ek_buf *out, const struct generation *g)
{
    const uint32_t count = g->ask.pairs;
    uint32_t told = g->ask.top_n && g->ask.top_n < count ? g->ask.top_n : count;
    struct ranked *r = calloc(count, sizeof(*r));
    if (!r) {
        out->failed = true;
        return;
    }
    for (uint32_t i = 0; i < count; i++)
        r[i] = (struct ranked){pair_score(g, i), i};
    qsort(r, count, sizeof(*r), ranked_compare);
    (void)ek_buf_puts(out, "{");
    reply_head(out, g, "list");
    (void)ek_buf_puts(out, ",\"results\":[");
    for (uint32_t i = 0; i < told; i++) {
        (void)ek_buf_puts(out, i ? "," : "");
        put_ranked(out, g, &r[i]);
    }
    (void)ek_buf_puts(out, "],");
    put_usage(out, g);
    (void)ek_buf_puts(out, "}");
    free(r);
}

static void put_scores(struct ek_buf *out, const struct choice *c)
{
    (void)ek_buf_puts(out, "[");
    for (size_t at = 0; at + sizeof(double) <= c->text.len; at += sizeof(double)) {
        double v;
        memcpy(&v, c->text.data + at, sizeof(v));
        (void)ek_buf_puts(out, at ? "," : "");
        scored_put_number(out, v);
    }
    (void)ek_buf_puts(out, "]");
}

/* The class with the largest number. */
static void put_class(struct ek_buf *out, const struct choice *c)
{
    const struct served_classes *k = &c->of->served->classes;
    uint32_t best = 0;
    double most = first_score(c);
    for (uint32_t i = 1; i < k->scores; i++) {
        double v;
        memcpy(&v, c->text.data + i * sizeof(v), sizeof(v));
        if (v > most) {
            most = v;
            best = i;
        }
    }
    (void)ek_buf_puts(out, "\"label\":");
    if (k->label && k->label[best])
        reply_string(out, k->label[best]);
    else
        (void)ek_buf_puts(out, "null");
    (void)ek_buf_puts(out, ",\"probs\":");
    put_scores(out, c);
    (void)ek_buf_printf(out, ",\"num_classes\":%u", k->scores);
}

static void put_row(struct ek_buf *out, const struct generation *g, uint32_t i)
{
    const struct choice *c = &g->choice[i];
    (void)ek_buf_printf(out, "%s{\"index\":%u,", i ? "," : "", i);
    if (g->ask.api == API_SCORE) {
        (void)ek_buf_puts(out, "\"object\":\"score\",\"score\":");
        scored_put_number(out, pair_score(g, i));
    } else if (g->ask.api == API_CLASSIFY) {
        put_class(out, c);
    } else {
        (void)ek_buf_puts(out, "\"object\":\"pooling\",\"data\":");
        if (by_classes(&g->ask, g->served))
            put_scores(out, c);
        else
            (void)ek_buf_add(out, c->text.data, c->text.len);
    }
    (void)ek_buf_puts(out, "}");
}

void scored_reply(struct ek_buf *out, const struct generation *g)
{
    for (uint32_t i = 0; i < g->count; i++)
        out->failed = out->failed || !ek_buf_ok(&g->choice[i].text);
    if (out->failed)
        return;
    if (g->ask.api == API_RERANK) {
        rerank_reply(out, g);
        return;
    }
    (void)ek_buf_puts(out, "{");
    reply_head(out, g, "list");
    (void)ek_buf_puts(out, ",\"data\":[");
    for (uint32_t i = 0; i < (g->ask.api == API_SCORE ? g->ask.pairs : g->count); i++)
        put_row(out, g, i);
    (void)ek_buf_puts(out, "],");
    put_usage(out, g);
    (void)ek_buf_puts(out, "}");
}
