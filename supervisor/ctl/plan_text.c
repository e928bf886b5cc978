/* The planner's answer as text (plan.h). Called by verb_plan.c. */
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/memplan.h"
#include "supervisor/ctl/plan.h"
#include "supervisor/engines/dialect.h"

#define GIB     1073741824.0
#define WIDTH   79
#define PICTURE 60 /* cells of the share */

/* A sentence of any length in the width of a terminal. */
static void plan_text_put(struct ek_buf *out, size_t indent, const char *fmt, ...)
    __attribute__((format(printf, 3, 4)));
static void plan_text_put(struct ek_buf *out, size_t indent, const char *fmt, ...)
{
    char text[1200];
    va_list args;
    va_start(args, fmt);
    (void)vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)ek_buf_printf(out, "%*s", (int)indent, "");
    ek_buf_wrap(out, text, indent, WIDTH);
}

/* The share as a row of letters: what takes how much of it. */
static void put_picture(const struct memplan *p, const struct memplan_params *with,
                        struct ek_buf *out)
{
    static const struct {
        char letter;
        const char *word;
    } row[MEMPLAN_ITEMS] = {
        [MEMPLAN_WEIGHTS] = {'W', "weights"},
        [MEMPLAN_STAGING] = {'B', "weight buffers"},
        [MEMPLAN_ACTIVATIONS] = {'A', "activations"},
        [MEMPLAN_SLOTS] = {'S', "sampling"},
        [MEMPLAN_STATES] = {'C', "recurrent"},
        [MEMPLAN_KV] = {'K', "KV pool"},
        [MEMPLAN_SWAP] = {'X', "swap"},
        [MEMPLAN_OFFLOAD] = {'P', "prefixes"},
        [MEMPLAN_HOST_WEIGHTS] = {'H', "weights, host"},
        [MEMPLAN_FILES] = {'F', "weight files"},
        [MEMPLAN_TABLES] = {'T', "tables"},
        [MEMPLAN_HOST] = {'R', "requests"},
        [MEMPLAN_OVERHEAD] = {'O', "overhead"},
    };
    _Static_assert(MEMPLAN_ITEMS == 13, "a new item needs a letter and a word");
    int at = 0;
    double sum = 0;
    uint32_t seen = 0;
    if (p->share_bytes == 0)
        return;
    (void)ek_buf_puts(out, "  [");
    for (int i = 0; i < MEMPLAN_ITEMS; i++) {
        sum += memplan_apart(with, (enum memplan_item)i) ? 0 : (double)p->bytes[i];
        for (; at < PICTURE && (at + 0.5) / PICTURE < sum / (double)p->share_bytes; at++) {
            (void)ek_buf_add(out, &row[i].letter, 1);
            seen |= 1u << i;
        }
    }
    (void)ek_buf_printf(out, "%.*s]\n   ", PICTURE - at,
                        "............................................................");
    for (int i = 0; i < MEMPLAN_ITEMS; i++)
        if (seen & 1u << i)
            (void)ek_buf_printf(out, "%c %s  ", row[i].letter, row[i].word);
    (void)ek_buf_puts(out, at < PICTURE ? ". left over\n" : "\n");
}

static void put_size(struct ek_buf *out, const char *name, double bytes)
{
    (void)ek_buf_printf(out, "  %-16s %8.2f GiB\n", name, bytes / GIB);
}

/* Whose memory it is that is shown. */
static void put_stages(const struct plan_question *q, const struct plan_answer *a,
                       struct ek_buf *out)
{
    const struct plan_setup *u = &a->chosen.setup;
    char where[48] = "";
    if (q->nodes > 1)
        (void)snprintf(where, sizeof(where), " on %u machines", q->nodes);
    if (q->own)
        plan_text_put(out, 0, "%u stages%s: the memory is that of the machine that needs the most.",
                      q->stages, where);
    else
        plan_text_put(
            out, 0,
            "%u stages of %u card%s each%s: the memory is that of a card that needs the most, "
            "whose stage has %u of the %u layers.",
            q->stages, u->cards, u->cards > 1 ? "s" : "", where, a->chosen.fit.layers,
            q->shape.layers);
}

static void plan_text_put_memory(const struct plan_question *q, const struct plan_answer *a,
                                 struct ek_buf *out)
{
    const struct plan_fit *f = &a->chosen.fit;
    const struct plan_setup *u = &a->chosen.setup;
    (void)ek_buf_puts(out, "\n");
    if (q->stages > 1)
        put_stages(q, a, out);
    if (f->plan.blocks > 0) {
        (void)memplan_write(&f->plan, &f->params, false, out); /* a failure stays in out */
        put_picture(&f->plan, &f->params, out);
        return;
    }
    (void)ek_buf_printf(out, "Memory plan: %.2f of %.2f GiB\n", u->share, u->memory_bytes / GIB);
    put_size(out, "weights", f->weights);
    put_size(out, "activations", f->activations);
    put_size(out, "overhead", f->context + f->graphs);
    if (f->kv_bytes < 0)
        (void)ek_buf_printf(out, "  %-16s %8.2f GiB too little, and no KV pool\n", "share",
                            -f->kv_bytes / GIB);
    else
        put_size(out, "KV pool", f->kv_bytes);
}

/* What evenkeel-server itself says of a card. */
static void put_server(const struct plan_answer *a, struct ek_buf *out)
{
    if (!a->server_fits)
        return;
    (void)ek_buf_puts(out, "\nevenkeel-server with the settings below (its own --dry-run)\n");
    (void)memplan_write(&a->server.plan, &a->server.params, false, out);
    put_picture(&a->server.plan, &a->server.params, out);
}

/* Three figures that count, never with an exponent. */
static const char *figure(double v, char text[24])
{
    double unit = v >= 1e5 ? 1000 : v >= 1e4 ? 100 : v >= 1e3 ? 10 : 1;
    int decimals = v >= 100 ? 0 : v >= 10 ? 1 : v >= 1 ? 2 : 3;
    (void)snprintf(text, 24, "%.*f", decimals, unit > 1 ? round(v / unit) * unit : v);
    return text;
}

static void put_band(struct ek_buf *out, const char *name, double v, double scale, const char *unit,
                     double band)
{
    char is[24], least[24], most[24];
    (void)ek_buf_printf(out, "  %-24s %9s %-10s (%s to %s)\n", name, figure(v * scale, is), unit,
                        figure(v * scale / band, least), figure(v * scale * band, most));
}

static void put_load(const struct plan_question *q, const struct plan_answer *a, struct ek_buf *out)
{
    uint32_t cards = a->chosen.setup.cards;
    if (q->load.rate > 0 && !a->promise_kept)
        (void)ek_buf_puts(
            out, "  No number of replicas keeps the promise: one request alone is slower.\n");
    else if (q->load.rate > 0 && a->replicas > 0 && !q->gpu)
        (void)ek_buf_printf(out, "  %.3g requests/s need %u such server%s (at 85 %% use).\n",
                            q->load.rate, a->replicas, a->replicas > 1 ? "s" : "");
    else if (q->load.rate > 0 && a->replicas > 0)
        (void)ek_buf_printf(
            out, "  %.3g requests/s need %u replica%s of %u card%s (at 85 %% use).\n", q->load.rate,
            a->replicas, a->replicas > 1 ? "s" : "", cards, cards > 1 ? "s" : "");
    if (a->cost_million > 0)
        (void)ek_buf_printf(out, "  A million output tokens cost %.2f at full use.\n",
                            a->cost_million);
}

static void put_speed(const struct plan_question *q, const struct plan_answer *a,
                      struct ek_buf *out)
{
    char gap[24];
    (void)ek_buf_printf(
        out, "\nPrediction by roofline, for prompts of %.0f and answers of %.0f tokens\n",
        q->load.prompt, q->load.output);
    put_band(out, "first token, alone", a->alone.ttft_s, 1e3, "ms", PLAN_BAND_PREFILL);
    put_band(out, "between tokens, alone", a->alone.step_s, 1e3, "ms", PLAN_BAND_DECODE);
    (void)ek_buf_printf(out, "  with %u sequence%s at once:\n", a->seqs, a->seqs > 1 ? "s" : "");
    put_band(out, "between tokens", a->full.itl_s, 1e3, "ms", PLAN_BAND_DECODE);
    put_band(out, "output", a->full.output_tokens_s, 1, "tokens/s", PLAN_BAND_DECODE);
    put_band(out, "requests", a->full.requests_s, 1, "requests/s", PLAN_BAND_DECODE);
    if (a->knee < a->seqs)
        plan_text_put(out, 2,
                      "%u at once already give 95 %% of that output, with %s ms between tokens.",
                      a->knee, figure(a->at_knee.itl_s * 1e3, gap));
    (void)ek_buf_printf(out, "  What binds: %s.\n", plan_bound_text(a->bound));
    if (!q->gpu && !q->speed_given)
        plan_text_put(
            out, 2,
            "Two slow cores are assumed: --measure finds out in seconds what this machine's "
            "cores can do, or give --bandwidth and --tflops.");
    put_load(q, a, out);
}

static void put_choice(const struct plan_question *q, const struct plan_choice *c,
                       struct ek_buf *out)
{
    bool stored = c->setup.weight_bits == 0;
    (void)ek_buf_printf(out, "  %5u  %2u bit%-8s %2u bit  %8.2f  %8.2f %7.0f%s  ", c->setup.cards,
                        stored ? q->shape.weight_bits : c->setup.weight_bits,
                        stored ? " stored" : "", c->setup.kv_bits, c->fit.weights / GIB,
                        c->fit.kv_bytes > 0 ? c->fit.kv_bytes / GIB : 0,
                        c->fit.kv_tokens < 1e6 ? c->fit.kv_tokens : c->fit.kv_tokens / 1000,
                        c->fit.kv_tokens < 1e6 ? " " : "k");
    if (c->fit.fits)
        (void)ek_buf_printf(out, "%8u\n", c->fit.longest);
    else
        (void)ek_buf_puts(out, c->fit.splits ? "does not fit\n" : "heads do not divide\n");
}

/* Those that do not fit only where all cards hold the stored weights or an ordinary cache. */
static void put_choices(const struct plan_question *q, const struct plan_answer *a,
                        struct ek_buf *out)
{
    uint32_t left_out = 0, most = 1;
    for (uint32_t i = 0; i < a->choice_count; i++)
        most = a->choices[i].setup.cards > most ? a->choices[i].setup.cards : most;
    (void)ek_buf_puts(out,
                      "\nWays to serve it here\n"
                      "  cards  weights        cache   weights        KV      KV    longest\n"
                      "                                    GiB       GiB  tokens    request\n");
    for (uint32_t i = 0; i < a->choice_count; i++) {
        const struct plan_choice *c = &a->choices[i];
        if (c->fit.fits || (c->setup.cards == most && c->setup.kv_bits == 16))
            put_choice(q, c, out);
        else
            left_out++;
    }
    if (left_out > 0)
        (void)ek_buf_printf(out, "  %u more way%s do%s not fit.\n", left_out,
                            left_out > 1 ? "s" : "", left_out > 1 ? "" : "es");
}

/* What a step and a prompt take of the device's figures. */
static void put_pace(const struct plan_question *q, const struct plan_answer *a, struct ek_buf *out)
{
    const struct plan_reach reach = plan_reach_of(&q->speed);
    const struct plan_shape *s = &q->shape;
    plan_text_put(
        out, 2,
        "reading at %.2f of %.0f GB/s%s; products at %.2f of %.3g TFLOP/s (%.3g with weights "
        "of 8 bits); attention at %.2f of %.3g; %.2g ms of the host a step",
        reach.reads, q->speed.read_bytes_s * 1e-9,
        q->speed.cache_bytes > 0 ? ", small models from the last cache" : "", reach.computes,
        q->speed.flops * 1e-12, (q->speed.flops8 > 0 ? q->speed.flops8 : q->speed.flops) * 1e-12,
        reach.scores, q->speed.flops * 1e-12, reach.step_s * 1e3);
    plan_text_put(
        out, 2,
        "a step of %u sequences reads weights and %.0f tokens of KV cache and computes 2 x "
        "%.4g B for each; of reading R and computing C it takes sqrt(R^2 + C^2): %.4g ms",
        a->seqs, a->seqs * (q->load.prompt + q->load.output / 2), plan_active_parameters(s) * 1e-9,
        a->full.step_s * 1e3);
}

/* Of layers whose heads differ. */
static void put_mixed_kv(const struct plan_question *q, const struct plan_answer *a,
                         struct ek_buf *out)
{
    const struct plan_setup *u = &a->chosen.setup;
    struct plan_heads of[2];
    (void)plan_heads_of(&q->shape, of);
    plan_text_put(out, 2,
                  "KV of a token = 2 x (%.0f layers x %u KV heads x %u + %.0f x %u x %u) x %u "
                  "bit%s = %.1f KiB",
                  of[0].keeping, of[0].kv_heads, of[0].head_dim, of[1].keeping, of[1].kv_heads,
                  of[1].head_dim, u->kv_bits, u->own && u->kv_bits == 8 ? " and scales" : "",
                  a->chosen.fit.token_bytes / 1024);
}

static void put_arithmetic(const struct plan_question *q, const struct plan_answer *a,
                           struct ek_buf *out)
{
    const struct plan_shape *s = &q->shape;
    const struct plan_setup *u = &a->chosen.setup;
    const struct plan_fit *f = &a->chosen.fit;
    (void)ek_buf_puts(out, "\nThe arithmetic (docs/planning.md)\n");
    plan_text_put(out, 2, "parameters %.4g B, of which one token reads %.4g B",
                  plan_parameters(s) * 1e-9, plan_active_parameters(s) * 1e-9);
    if (s->latent)
        plan_text_put(out, 2,
                      "KV of a token = %u layers x (%s%u + %u) x %u bit = %.1f KiB on every card",
                      s->layers, u->own ? "2 x " : "", s->latent, s->latent_rope, u->kv_bits,
                      f->token_bytes / 1024);
    else if (s->full_head_dim > 0)
        put_mixed_kv(q, a, out);
    else
        plan_text_put(
            out, 2,
            "KV of a token = 2 x %u layers x %u KV heads / %u card%s x %u x %u bit%s = %.1f KiB%s",
            plan_attending(s), s->kv_heads, u->cards, u->cards > 1 ? "s" : "", s->head_dim,
            u->kv_bits, u->own && u->kv_bits == 8 ? " and scales" : "", f->token_bytes / 1024,
            u->cards > 1 ? " on one card" : "");
    if (s->recurrent_layers > 0 && s->v_heads == 0)
        plan_text_put(out, 2,
                      "recurrent state of a sequence = %u layers x %u inputs x %u x 4 B = %.1f KiB",
                      s->recurrent_layers, s->conv - 1, s->hidden, plan_state_bytes(s) / 1024);
    else if (s->recurrent_layers > 0)
        plan_text_put(out, 2,
                      "recurrent state of a sequence = %u layers x (%u heads x %u x %u + %u inputs "
                      "x (2 x %u x %u + %u x %u)) x 4 B = %.1f MiB",
                      s->recurrent_layers, s->v_heads, s->k_dim, s->v_dim, s->conv - 1, s->k_heads,
                      s->k_dim, s->v_heads, s->v_dim, plan_state_bytes(s) / 1048576);
    if (q->own == NULL)
        plan_text_put(
            out, 2,
            "activations = %u tokens x (4 x %u + (2 x inner + heads) / %u) x 2 B + 2 x %u "
            "sequences x %u words x 4 B = %.2f GiB",
            u->tokens, s->hidden, u->cards, u->seqs, s->vocab, f->activations / GIB);
    else
        plan_text_put(out, 2,
                      "weights, activations and tables as evenkeel-server --dry-run counts them");
    plan_text_put(
        out, 2,
        "KV cache = share %.2f - weights %.2f - activations %.2f - graphs %.2f - context %.2f "
        "= %.2f GiB%s = %.0f tokens",
        f->share_bytes / GIB, f->weights / GIB, f->activations / GIB, f->graphs / GIB,
        f->context / GIB, f->kv_bytes / GIB,
        q->own && f->kv_bytes < 0.9 * (f->share_bytes - f->weights) ? " at most" : "",
        f->kv_tokens);
    if (a->fits)
        put_pace(q, a, out);
}

/* As a shell takes it. */
static void put_path(const char *path, struct ek_buf *out)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
                                "/._-+:@%,=~";
    if (!path || path[0] == '\0' || path[0] == '-') {
        (void)ek_buf_puts(out, "MODEL");
        return;
    }
    if (strspn(path, plain) == strlen(path) && path[0] != '~') {
        (void)ek_buf_puts(out, path);
        return;
    }
    (void)ek_buf_puts(out, "'");
    for (; *path; path++) {
        if (*path == '\'')
            (void)ek_buf_puts(out, "'\\'");
        (void)ek_buf_add(out, path, 1);
    }
    (void)ek_buf_puts(out, "'");
}

/* With the number in place of each '#'. NULL: nothing. */
static void put_counted(struct ek_buf *out, const char *text, uint32_t n)
{
    for (; text && *text; text++) {
        if (*text == '#')
            (void)ek_buf_printf(out, "%u", n);
        else
            (void)ek_buf_add(out, text, 1);
    }
}

bool plan_commands(const struct plan_question *q, const struct dialect *d)
{
    return d->plan && !(d->exit_word && (q->shape.refused[0] || (q->shape.streams > 0 && q->gpu)));
}

uint32_t plan_length(const struct plan_question *q, const struct plan_answer *a,
                     const struct dialect *d)
{
    uint32_t most = d->exit_word && a->server_fits && a->server.longest < a->max_len
                        ? a->server.longest
                        : a->max_len;
    bool bound = d->exit_word && q->shape.index_tokens > 0 && q->shape.index_tokens < most;
    return bound ? q->shape.index_tokens : most;
}

void plan_flags(const struct plan_question *q, const struct plan_answer *a, const struct dialect *d,
                struct ek_buf *out)
{
    const struct plan_setup *u = &a->chosen.setup;
    const struct dialect_plan *p = d->plan;
    if (q->nodes > 1)
        put_counted(out, p->before_nodes, q->nodes);
    (void)ek_buf_printf(out, "%s %s ", d->program, d->verb ? d->verb : d->model_flag);
    put_path(q->model, out);
    put_counted(out, q->gpu ? p->gpu : p->cpu, 0);
    if (u->cards > 1)
        (void)ek_buf_printf(out, " --tensor-parallel-size %u", u->cards);
    if (q->stages > 1)
        (void)ek_buf_printf(out, " --pipeline-parallel-size %u", q->stages);
    if (q->nodes > 1)
        put_counted(out, p->nodes, q->nodes);
    (void)ek_buf_printf(out, " %s %.2f --max-model-len %u %s %u", d->share_flag, u->share,
                        plan_length(q, a, d), d->seqs_flag, a->seqs);
    if (!d->exit_word || plan_says_tokens(q))
        (void)ek_buf_printf(out, " %s %u", d->tokens_flag,
                            a->tokens > a->seqs ? a->tokens : a->seqs);
    if (u->kv_bits == 8)
        put_counted(out, q->gpu ? p->kv_8_gpu : p->kv_8_cpu, 0);
    if (u->weight_bits == 8 && q->shape.weight_bits > 8)
        put_counted(out, p->weights_8, 0);
    if (u->weight_bits == 4 && q->shape.weight_bits > 4)
        put_counted(out, p->weights_4, 0);
    (void)ek_buf_puts(out, "\n");
}

/* A command over several lines that a shell takes as one. */
static void put_command(const struct plan_question *q, const struct plan_answer *a,
                        const struct dialect *d, struct ek_buf *out)
{
    struct ek_buf text = {0};
    size_t col = 2;
    plan_flags(q, a, d, &text);
    (void)ek_buf_puts(out, "\n  ");
    for (char *at = text.data; at && ek_buf_ok(&text) && *at;) {
        char *next = strstr(at + 1, " --");
        size_t n = next ? (size_t)(next - at) : strcspn(at, "\n");
        if (col > 2 && col + n + 2 > WIDTH) {
            (void)ek_buf_puts(out, " \\\n     ");
            col = 5;
        }
        (void)ek_buf_add(out, at, n);
        col += n;
        at += n;
        if (!next)
            break;
    }
    (void)ek_buf_puts(out, "\n");
    ek_buf_done(&text);
}

static void put_settings(const struct plan_question *q, const struct plan_answer *a,
                         struct ek_buf *out)
{
    double each = q->load.prompt + q->load.output;
    (void)ek_buf_puts(out, "\nSettings\n");
    plan_text_put(
        out, 2,
        "--max-model-len %u: the pool holds %.1f requests of that length at once. A paged "
        "cache does not reserve the length for each request, whatever articles say: a request "
        "takes blocks as it grows, and %u sequence%s of %.0f tokens take %.0f of %.0f.",
        a->max_len, a->max_len ? a->chosen.fit.kv_tokens / a->max_len : 0, a->seqs,
        a->seqs > 1 ? "s" : "", each, a->seqs * each, a->chosen.fit.kv_tokens);
    if (a->server_asked && !a->server_fits && a->server_said[0])
        plan_text_put(out, 2, "evenkeel-server was asked and says: %s", a->server_said);
    if (q->shape.latent > 0 && a->chosen.setup.kv_bits == 8 && !q->own && !a->chosen.setup.own)
        plan_text_put(out, 2,
                      "On a card evenkeel-server keeps what latent attention caches in 16 bits: it "
                      "refuses --kv-cache-dtype fp8.");
    if (q->shape.streams > 0 && q->gpu)
        plan_text_put(out, 2,
                      "evenkeel-server serves Gemma 3n on the CPU, in one rank: on a card it "
                      "refuses the model.");
    if (q->shape.index_tokens > 0 && q->shape.index_tokens < a->max_len)
        plan_text_put(out, 2,
                      "The model's attention chooses %u tokens (index_topk): evenkeel-server "
                      "serves it up to that length, where it sees all of them.",
                      q->shape.index_tokens);
    for (uint32_t i = 0; dialect_at(i); i++) {
        if (plan_commands(q, dialect_at(i)))
            put_command(q, a, dialect_at(i), out);
    }
    if (!q->load_known) {
        (void)ek_buf_puts(out, "\n");
        plan_text_put(
            out, 2,
            "Nothing is known of the load (--rate, --prompt, --output, --trace): keep the "
            "settings above, whose --max-num-seqs is the ceiling that evenkeeld never "
            "exceeds and lowers its limit from when requests suffer, and let evenkeelctl "
            "bench-fit find under your load how many of them pay.");
    }
    if (a->chosen.setup.weight_bits && a->chosen.setup.weight_bits < q->shape.weight_bits && q->gpu)
        plan_text_put(
            out, 2,
            "Weights of fewer bits need such a copy of the model, or are made while it loads "
            "(evenkeel-server: int8, int4 and FP8; vLLM: FP8).");
}

const char *plan_verdict(const struct plan_question *q, const struct plan_answer *a)
{
    const struct plan_setup *u = &a->chosen.setup;
    bool packed = !q->weight_bits && u->weight_bits, small = !q->kv_bits && u->kv_bits == 8;
    return !a->fits                        ? "It does not fit."
           : packed && u->weight_bits == 8 ? "It fits with 8-bit weights."
           : packed                        ? "It fits with 4-bit weights."
           : small                         ? "It fits with an 8-bit KV cache."
                                           : "It fits.";
}

static void put_title(const struct plan_question *q, const struct plan_answer *a, bool colour,
                      struct ek_buf *out)
{
    const struct plan_shape *s = &q->shape;
    char size[24];
    double count = plan_parameters(s);
    struct ek_fault refused;
    plan_text_put(out, 0,
                  "%s: %.4g %s parameters, %s of weights in %u bit, %u layers, up to %u tokens",
                  s->family, count < 1e9 ? count * 1e-6 : count * 1e-9, count < 1e9 ? "M" : "B",
                  memplan_size_text((uint64_t)plan_weight_bytes(s, 0), size), s->weight_bits,
                  s->layers, s->max_len);
    if (q->nodes > 1)
        (void)ek_buf_printf(out, "%u machines, each with ", q->nodes);
    if (q->gpu)
        (void)ek_buf_printf(out, "%u x ", q->cards);
    (void)ek_buf_printf(out, "%s\n\n%s%s%s\n", q->device,
                        !colour                        ? ""
                        : !a->fits || !a->promise_kept ? "\033[1;31m"
                        : a->note[0]                   ? "\033[1;33m"
                                                       : "\033[1;32m",
                        plan_verdict(q, a), colour ? "\033[0m" : "");
    if (plan_shape_loads(&q->shape, &refused) < 0)
        plan_text_put(out, 0, "An estimate: %s.", refused.msg);
    if (a->note[0])
        plan_text_put(out, 0, "%s", a->note);
    plan_text_put(out, 0, "%s", a->why);
}

void plan_write(const struct plan_question *q, const struct plan_answer *a,
                const struct plan_style *style, struct ek_buf *out)
{
    put_title(q, a, style->colour, out);
    if (a->what_count > 0) {
        (void)ek_buf_puts(out, a->fits ? "What would keep it:\n" : "What would:\n");
        for (uint32_t i = 0; i < a->what_count; i++) {
            (void)ek_buf_puts(out, "  - ");
            ek_buf_wrap(out, a->what[i], 4, WIDTH);
        }
    }
    plan_text_put_memory(q, a, out);
    if (a->fits) {
        put_server(a, out);
        put_settings(q, a, out);
        put_speed(q, a, out);
    }
    put_choices(q, a, out);
    if (style->explain)
        put_arithmetic(q, a, out);
}
