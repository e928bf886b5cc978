/*
 * Makes the requests that `evenkeel-bench serve` sends (serve.c). All random numbers are a hash of
 * the seed and a count, so any prompt can be made at any time, in any order, without being stored,
 * and the same seed gives the same load. With a trace that says what prompts share, words come from
 * the ids of its pieces, so that equal pieces are equal text and a prefix cache finds them.
 */
#include "server/bench/load.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/bench/options.h"
#include "server/bench/trace.h"

uint64_t load_random(uint64_t seed, uint64_t n)
{
    uint64_t z = seed + (n + 1) * 0x9e3779b97f4a7c15ull;

    z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
    z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
    return z ^ (z >> 31);
}

/* Seconds between two arrivals of a Poisson process. */
static double gap(uint64_t seed, uint64_t n, double rate)
{
    double u = (double)(load_random(seed ^ 0x6761705f6f66ull, n) >> 11) / 9007199254740992.0;

    return -log1p(-u) / rate;
}

static uint32_t load_cut(uint32_t n, uint64_t most)
{
    n = most > 0 && n > most ? (uint32_t)most : n;
    return n > 0 ? n : 1;
}

static int read_trace(const struct bench_options *o, struct load *l, struct ek_fault *fault)
{
    l->trace = calloc(1, sizeof(*l->trace));
    if (!l->trace)
        return -ENOMEM;
    int r = trace_read(o->trace, (uint32_t)o->requests, l->trace);
    if (r == -ENOMEM)
        return r;
    if (r < 0)
        return ek_fault_set(fault, "trace", "The trace %.300s %s.", o->trace,
                            r == -ENOTSUP ? "is in none of the forms Azure, Mooncake and Vidur"
                            : r == -EIO   ? "cannot be read"
                                          : "has a line that is not like the others");
    return 0;
}

int load_make(const struct bench_options *o, uint64_t seed, struct load *ret_load,
              struct ek_fault *fault)
{
    struct load l = {.seed = seed, .count = (uint32_t)o->requests};
    int r = o->trace ? read_trace(o, &l, fault) : 0;

    if (r == 0 && l.trace)
        l.count = l.trace->count;
    if (r == 0) {
        l.request = calloc(l.count, sizeof(*l.request));
        r = l.request ? 0 : -ENOMEM;
    }
    if (r < 0) {
        load_free(&l);
        return r;
    }
    const bool timed = l.trace && l.trace->timed;
    double at = 0.0;
    l.open = timed || o->rate > 0.0;
    for (uint32_t i = 0; i < l.count; i++) {
        struct load_request *q = &l.request[i];
        *q = (struct load_request){.prompt = (uint32_t)o->prompt, .output = (uint32_t)o->output};
        if (l.trace) {
            const struct trace_request *t = &l.trace->request[i];
            q->prompt = load_cut(t->prompt, o->most_prompt);
            q->output = load_cut(t->output, o->most_output);
            q->piece_at = t->hash_at;
            q->pieces = t->hashes;
        }
        if (timed)
            q->at_s = l.trace->request[i].at_s / o->speed;
        else if (l.open)
            q->at_s = at += gap(seed, i, o->rate);
    }
    *ret_load = l;
    return 0;
}

void load_free(struct load *l)
{
    if (l->trace)
        trace_done(l->trace);
    free(l->trace);
    free(l->request);
    *l = (struct load){0};
}

/* What a prompt's word at `k` is drawn from: its piece of the trace where it has one. */
static uint64_t load_draw(const struct load *l, uint32_t i, uint32_t k)
{
    const struct load_request *q = &l->request[i];
    uint32_t size = l->trace ? l->trace->hash_tokens : 0;

    if (size > 0 && k / size < q->pieces)
        return load_random(l->trace->hash[q->piece_at + k / size], k % size);
    return load_random(l->seed ^ load_random(l->seed, i), k);
}

static void load_add_words(const struct load *l, uint32_t i, struct ek_buf *out)
{
    static const char *const words[] = {"the",  "house", "stands", "near", "water", "and",
                                        "wind", "moves", "over",   "old",  "green", "hills",
                                        "day",  "by",    "long",   "day"};

    (void)ek_buf_puts(out, ",\"messages\":[{\"role\":\"user\",\"content\":\"");
    for (uint32_t k = 0; k < l->request[i].prompt; k++)
        (void)ek_buf_printf(out, "%s%s", k > 0 ? " " : "", words[load_draw(l, i, k) % 16]);
    (void)ek_buf_puts(out, "\"}]");
}

static void add_ids(const struct load *l, uint32_t i, uint64_t vocab, struct ek_buf *out)
{
    (void)ek_buf_puts(out, ",\"prompt\":[");
    for (uint32_t k = 0; k < l->request[i].prompt; k++)
        (void)ek_buf_printf(out, "%s%llu", k > 0 ? "," : "",
                            (unsigned long long)(load_draw(l, i, k) % vocab));
    (void)ek_buf_puts(out, "]");
}

void load_body(const struct load *l, const struct bench_options *o, const char *model, uint32_t i,
               struct ek_buf *out)
{
    (void)ek_buf_puts(out, "{\"model\":\"");
    (void)ek_buf_json(out, model, strlen(model));
    (void)ek_buf_puts(out, "\"");
    if (strcmp(o->endpoint, "chat") == 0)
        load_add_words(l, i, out);
    else
        add_ids(l, i, o->vocab, out);
    (void)ek_buf_printf(out,
                        ",\"max_tokens\":%u,\"temperature\":0,\"stream\":true,"
                        "\"stream_options\":{\"include_usage\":true}%s}",
                        l->request[i].output, o->ignore_eos ? ",\"ignore_eos\":true" : "");
}
