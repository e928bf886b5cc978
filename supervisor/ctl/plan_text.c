/* The planner's answer as text, see plan.h. */
#include <math.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/ctl/plan.h"

#define GIB 1073741824.0
#define BAR 40

static void put_bar(struct ek_buf *out, const char *name, double bytes, double whole)
{
    int n = whole > 0 ? (int)(bytes / whole * BAR + 0.5) : 0;
    (void)ek_buf_printf(out, "  %-22s %8.2f GiB %5.1f %%  ", name, bytes / GIB,
                        whole > 0 ? bytes / whole * 100 : 0);
    for (int i = 0; i < n && i < BAR; i++)
        (void)ek_buf_puts(out, "#");
    (void)ek_buf_puts(out, "\n");
}

static void put_memory(const struct plan_answer *a, struct ek_buf *out)
{
    const struct plan_fit *f = &a->chosen.fit;
    const struct plan_setup *u = &a->chosen.setup;
    (void)ek_buf_printf(out, "\nMemory of one card: %.2f of %.1f GiB\n", u->share,
                        u->memory_bytes / GIB);
    put_bar(out, "weights", f->weights, f->share_bytes);
    put_bar(out, "activations", f->activations, f->share_bytes);
    if (f->graphs > 0)
        put_bar(out, "recorded graphs", f->graphs, f->share_bytes);
    put_bar(out, "context, libraries", f->context, f->share_bytes);
    if (f->kv_bytes > 0)
        put_bar(out, "KV cache", f->kv_bytes, f->share_bytes);
    else
        (void)ek_buf_printf(out, "  %-22s %8.2f GiB too little\n", "KV cache", -f->kv_bytes / GIB);
}

static void put_band(struct ek_buf *out, const char *name, double v, double scale, const char *unit,
                     double band)
{
    (void)ek_buf_printf(out, "  %-34s %10.4g %s (%.3g to %.3g)\n", name, v * scale, unit,
                        v * scale / band, v * scale * band);
}

static void put_speed(const struct plan_question *q, const struct plan_answer *a,
                      struct ek_buf *out)
{
    (void)ek_buf_printf(
        out, "\nPrediction by roofline, for prompts of %.0f and answers of %.0f tokens\n",
        q->load.prompt, q->load.output);
    put_band(out, "first token, alone", a->alone.ttft_s, 1e3, "ms", PLAN_BAND_PREFILL);
    put_band(out, "between tokens, alone", a->alone.step_s, 1e3, "ms", PLAN_BAND_DECODE);
    (void)ek_buf_printf(out, "  with %u sequences at once:\n", a->seqs);
    put_band(out, "between tokens", a->full.itl_s, 1e3, "ms", PLAN_BAND_DECODE);
    put_band(out, "output", a->full.output_tokens_s, 1, "tokens/s", PLAN_BAND_DECODE);
    put_band(out, "requests", a->full.requests_s, 1, "requests/s", PLAN_BAND_DECODE);
    (void)ek_buf_printf(out, "  What binds: %s.\n", plan_bound_text(a->bound));
    if (q->load.rate > 0 && a->replicas > 0)
        (void)ek_buf_printf(out,
                            "  %.3g requests/s need %u replica%s of %u card%s (at 85 %% use).\n",
                            q->load.rate, a->replicas, a->replicas > 1 ? "s" : "",
                            a->chosen.setup.cards, a->chosen.setup.cards > 1 ? "s" : "");
    else if (q->load.rate > 0)
        (void)ek_buf_puts(
            out, "  No number of replicas keeps the promise: one request alone is slower.\n");
    if (a->cost_million > 0)
        (void)ek_buf_printf(out, "  A million output tokens cost %.2f at full use.\n",
                            a->cost_million);
}

static const char *bits_text(uint32_t bits, uint32_t stored, char text[24])
{
    (void)snprintf(text, 24, "%u bit%s", bits ? bits : stored, bits ? "" : " (as stored)");
    return text;
}

static void put_choices(const struct plan_question *q, const struct plan_answer *a,
                        struct ek_buf *out)
{
    char bits[24];
    (void)ek_buf_puts(out,
                      "\nWays to serve it here\n  cards  weights              KV cache  weights "
                      "GiB    KV GiB   KV tokens  longest request\n");
    for (uint32_t i = 0; i < a->choice_count; i++) {
        const struct plan_choice *c = &a->choices[i];
        (void)ek_buf_printf(out, "  %5u  %-20s %u bit  %13.1f %9.1f %11.0f  ", c->setup.cards,
                            bits_text(c->setup.weight_bits, q->shape.weight_bits, bits),
                            c->setup.kv_bits, c->fit.weights / GIB,
                            c->fit.kv_bytes > 0 ? c->fit.kv_bytes / GIB : 0, c->fit.kv_tokens);
        if (c->fit.fits)
            (void)ek_buf_printf(out, "%u\n", c->fit.longest);
        else
            (void)ek_buf_puts(out, c->fit.splits ? "does not fit\n" : "heads do not divide\n");
    }
}

static void put_arithmetic(const struct plan_question *q, const struct plan_answer *a,
                           struct ek_buf *out)
{
    const struct plan_shape *s = &q->shape;
    const struct plan_setup *u = &a->chosen.setup;
    const struct plan_fit *f = &a->chosen.fit;
    (void)ek_buf_puts(out, "\nThe arithmetic (docs/planning.md)\n");
    (void)ek_buf_printf(out, "  parameters %.2f B, of which one token reads %.2f B\n",
                        plan_parameters(s) * 1e-9, plan_active_parameters(s) * 1e-9);
    if (s->latent)
        (void)ek_buf_printf(
            out, "  KV of a token = %u layers x (%u + %u) x %u bit = %.1f KiB on every card\n",
            s->layers, s->latent, s->latent_rope, u->kv_bits, f->token_bytes / 1024);
    else
        (void)ek_buf_printf(
            out,
            "  KV of a token = 2 x %u layers x %u KV heads / %u cards x %u x %u bit "
            "= %.1f KiB on one card\n",
            s->layers, s->kv_heads, u->cards, s->head_dim, u->kv_bits, f->token_bytes / 1024);
    (void)ek_buf_printf(
        out,
        "  activations = %u tokens x (4 x %u + (2 x inner + heads) / %u) x 2 B + 2 x %u "
        "sequences x %u words x 4 B = %.2f GiB\n",
        u->tokens, s->hidden, u->cards, u->seqs, s->vocab, f->activations / GIB);
    (void)ek_buf_printf(out,
                        "  KV cache = share %.2f - weights %.2f - activations %.2f - graphs %.2f - "
                        "context %.2f = %.2f GiB = %.0f tokens\n",
                        f->share_bytes / GIB, f->weights / GIB, f->activations / GIB,
                        f->graphs / GIB, f->context / GIB, f->kv_bytes / GIB, f->kv_tokens);
    (void)ek_buf_printf(
        out,
        "  a decode step reads weights and KV at 0.72 of %.0f GB/s; prefill computes "
        "at 0.50 of %.0f TFLOP/s\n",
        q->speed.read_bytes_s * 1e-9, q->speed.flops * 1e-12);
}

void plan_flags(const struct plan_question *q, const struct plan_answer *a, bool vllm,
                struct ek_buf *out)
{
    const struct plan_setup *u = &a->chosen.setup;
    (void)ek_buf_printf(out, vllm ? "vllm serve MODEL" : "evenkeel-server --model MODEL");
    if (u->cards > 1)
        (void)ek_buf_printf(out, " --tensor-parallel-size %u", u->cards);
    (void)ek_buf_printf(out,
                        " --gpu-memory-utilization %.2f --max-model-len %u --max-num-seqs %u "
                        "--max-num-batched-tokens %u",
                        u->share, a->max_len, a->seqs, a->tokens > a->seqs ? a->tokens : a->seqs);
    if (u->kv_bits == 8)
        (void)ek_buf_puts(out, " --kv-cache-dtype fp8");
    if (u->weight_bits == 8 && q->shape.weight_bits > 8)
        (void)ek_buf_puts(out, " --quantization fp8");
    (void)ek_buf_puts(out, "\n");
}

static void put_settings(const struct plan_question *q, const struct plan_answer *a,
                         struct ek_buf *out)
{
    (void)ek_buf_printf(
        out,
        "\nSettings\n  --max-model-len %u: the pool holds %.1f requests of that length at "
        "once.\n  A paged cache does not reserve the length for each request, whatever "
        "articles say: a request\n  takes blocks as it grows, and %u sequences of %.0f "
        "tokens take %.0f of %.0f.\n",
        a->max_len, a->max_len ? a->chosen.fit.kv_tokens / a->max_len : 0, a->seqs,
        q->load.prompt + q->load.output, a->seqs * (q->load.prompt + q->load.output),
        a->chosen.fit.kv_tokens);
    (void)ek_buf_puts(out, "\n  ");
    plan_flags(q, a, false, out);
    (void)ek_buf_puts(out, "  ");
    plan_flags(q, a, true, out);
    if (!q->load_known)
        (void)ek_buf_puts(
            out,
            "\n  Nothing is known of the load (--rate, --prompt, --output, --trace): a careful "
            "start is --gpu-memory-utilization 0.80\n  --max-num-seqs 8 --max-num-batched-tokens "
            "2048; evenkeeld then climbs by 4 as long as nothing suffers.\n");
    if (a->chosen.setup.weight_bits && a->chosen.setup.weight_bits < q->shape.weight_bits)
        (void)ek_buf_puts(
            out, "  Weights of fewer bits need such a copy of the model (vLLM makes FP8 while it "
                 "loads).\n");
}

void plan_write(const struct plan_question *q, const struct plan_answer *a,
                const struct plan_style *style, struct ek_buf *out)
{
    const struct plan_shape *s = &q->shape;
    (void)ek_buf_printf(
        out, "%s: %.2f B parameters, %.2f GiB of weights in %u bit, %u layers, up to %u tokens\n",
        s->family, plan_parameters(s) * 1e-9, plan_weight_bytes(s, 0) / GIB, s->weight_bits,
        s->layers, s->max_len);
    (void)ek_buf_printf(out, "%u x %s\n\n%s%s%s  %s\n", q->cards, q->device,
                        style->colour ? (a->fits ? "\033[1;32m" : "\033[1;31m") : "",
                        a->fits ? "It fits." : "It does not fit.", style->colour ? "\033[0m" : "",
                        a->why);
    if (!a->fits && a->what_count > 0) {
        (void)ek_buf_puts(out, "What would:\n");
        for (uint32_t i = 0; i < a->what_count; i++)
            (void)ek_buf_printf(out, "  - %s\n", a->what[i]);
    }
    put_memory(a, out);
    if (a->fits) {
        put_settings(q, a, out);
        put_speed(q, a, out);
    }
    put_choices(q, a, out);
    if (style->explain)
        put_arithmetic(q, a, out);
}
