/* The planner's answer as JSON and as an HTML page (plan.h). Called by verb_plan.c. */
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "common/families.h"
#include "supervisor/ctl/plan.h"
#include "supervisor/engines/dialect.h"

static json_t *fit_json(const struct plan_choice *c)
{
    const struct plan_fit *f = &c->fit;
    const struct plan_setup *u = &c->setup;
    return json_pack("{s:b, s:i, s:i, s:i, s:i, s:i, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:f, s:i}",
                     "fits", f->fits, "tensor_parallel_size", (int)u->cards,
                     "pipeline_parallel_size", u->stages > 1 ? (int)u->stages : 1, "layers",
                     (int)f->layers, "weight_bits", (int)u->weight_bits, "kv_bits", (int)u->kv_bits,
                     "share", u->share, "share_bytes", f->share_bytes, "weight_bytes", f->weights,
                     "activation_bytes", f->activations, "graph_bytes", f->graphs, "context_bytes",
                     f->context, "kv_bytes", f->kv_bytes, "kv_tokens", f->kv_tokens,
                     "longest_request", (int)f->longest);
}

static json_t *speed_json(const struct plan_speed *v)
{
    return json_pack("{s:f, s:f, s:f, s:f, s:f, s:f, s:s}", "ttft_s", v->ttft_s, "inter_token_s",
                     v->itl_s, "prefill_s", v->prefill_s, "decode_step_s", v->step_s,
                     "requests_per_s", v->requests_s, "output_tokens_per_s", v->output_tokens_s,
                     "bound", plan_bound_text(v->bound));
}

static json_t *flags_json(const struct plan_question *q, const struct plan_answer *a,
                          const struct dialect *d)
{
    struct ek_buf text = {0};
    plan_flags(q, a, d, &text);
    json_t *j = ek_buf_ok(&text) ? json_stringn(text.data, text.len - 1) : NULL;
    ek_buf_done(&text);
    return j;
}

static json_t *model_json(const struct plan_shape *s)
{
    return json_pack("{s:s, s:f, s:f, s:f, s:i, s:i, s:f}", "family", s->family, "parameters",
                     plan_parameters(s), "active_parameters", plan_active_parameters(s),
                     "weight_bytes", plan_weight_bytes(s, 0), "weight_bits", (int)s->weight_bits,
                     "max_model_len", (int)s->max_len, "kv_token_bytes",
                     plan_kv_token_bytes(s, 1, 16));
}

json_t *plan_json(const struct plan_question *q, const struct plan_answer *a)
{
    json_t *what = json_array(), *ways = json_array();
    for (uint32_t i = 0; what && i < a->what_count; i++)
        (void)json_array_append_new(what, json_string(a->what[i]));
    for (uint32_t i = 0; ways && i < a->choice_count; i++)
        (void)json_array_append_new(ways, fit_json(&a->choices[i]));
    json_t *j =
        json_pack("{s:b, s:s, s:o, s:s, s:i, s:o, s:o, s:o, s:i}", "fits", a->fits, "why", a->why,
                  "what_would_fit", what, "device", q->device, "cards", (int)q->cards, "model",
                  model_json(&q->shape), "memory", fit_json(&a->chosen), "choices", ways,
                  "cards_needed", (int)a->cards_needed);
    if (j && q->shape.refused[0]) {
        const char *near = ek_family_nearest(q->shape.refused);
        (void)json_object_set_new(j, "estimate", json_true());
        (void)json_object_set_new(j, "architecture", json_string(q->shape.refused));
        (void)json_object_set_new(j, "nearest", near ? json_string(near) : json_null());
    }
    if (!j || !a->fits)
        return j;
    json_t *more = json_pack(
        "{s:s, s:b, s:i, s:o, s:i, s:i, s:i, s:o, s:o, s:s, s:i, s:f, s:f, s:f}", "note", a->note,
        "promise_kept", a->promise_kept, "knee_max_num_seqs", (int)a->knee, "at_knee",
        speed_json(&a->at_knee), "max_model_len", (int)a->max_len, "max_num_seqs", (int)a->seqs,
        "max_num_batched_tokens", (int)a->tokens, "alone", speed_json(&a->alone), "full",
        speed_json(&a->full), "what_binds", plan_bound_text(a->bound), "replicas", (int)a->replicas,
        "cost_per_million_output_tokens", a->cost_million, "band_decode", PLAN_BAND_DECODE,
        "band_prefill", PLAN_BAND_PREFILL);
    for (uint32_t i = 0; more && dialect_at(i); i++) {
        char key[40];
        (void)snprintf(key, sizeof(key), "%s_flags", dialect_at(i)->name);
        if (plan_commands(q, dialect_at(i)) &&
            json_object_set_new(more, key, flags_json(q, a, dialect_at(i))) < 0) {
            json_decref(more);
            more = NULL;
        }
    }
    if (more && a->server_said[0])
        (void)json_object_set_new(more, "evenkeel_server_says", json_string(a->server_said));
    if (!more || json_object_update(j, more) < 0) {
        json_decref(j);
        j = NULL;
    }
    json_decref(more);
    return j;
}

static void escape(struct ek_buf *out, const char *text)
{
    for (; *text; text++) {
        switch (*text) {
        case '&': (void)ek_buf_puts(out, "&amp;"); break;
        case '<': (void)ek_buf_puts(out, "&lt;"); break;
        case '>': (void)ek_buf_puts(out, "&gt;"); break;
        default: (void)ek_buf_add(out, text, 1);
        }
    }
}

static void put_share(struct ek_buf *out, const char *name, const char *colour, double bytes,
                      double whole)
{
    if (bytes > 0 && whole > 0)
        (void)ek_buf_printf(
            out, "<div style=\"background:%s;width:%.2f%%\" title=\"%s %.2f GiB\">%s<br>%.1f</div>",
            colour, bytes / whole * 100, name, bytes / 1073741824.0, name, bytes / 1073741824.0);
}

void plan_html(const struct plan_question *q, const struct plan_answer *a, struct ek_buf *out)
{
    static const struct plan_style style = {.explain = true};
    const struct plan_fit *f = &a->chosen.fit;
    struct ek_buf text = {0};
    double whole = a->chosen.setup.memory_bytes;
    (void)ek_buf_puts(
        out, "<!doctype html>\n<html lang=\"en\"><meta charset=\"utf-8\"><title>evenkeelctl "
             "plan</title>\n<style>body{font:15px system-ui;max-width:70em;margin:2em "
             "auto;color:#222}.bar{display:flex;border:1px solid #444}.bar div{overflow:hidden;"
             "padding:4px 0;text-align:center;font-size:12px;color:#111}pre{background:#f4f4f4;"
             "padding:1em;overflow:auto}</style>\n<h1>");
    escape(out, q->shape.family);
    (void)ek_buf_printf(out, " on %u x ", q->cards);
    escape(out, q->device);
    (void)ek_buf_printf(out, "</h1>\n<p><b>%s</b> ", plan_verdict(q, a));
    escape(out, a->note);
    (void)ek_buf_puts(out, a->note[0] ? " " : "");
    escape(out, a->why);
    (void)ek_buf_printf(out, "</p>\n<h2>One card of %.1f GiB</h2>\n<div class=\"bar\">",
                        whole / 1073741824.0);
    double most = f->weights + f->activations + f->graphs + f->context;
    double scale = most > whole ? most : whole;
    put_share(out, "weights", "#7aa6d9", f->weights, scale);
    put_share(out, "activations", "#e8b45a", f->activations, scale);
    put_share(out, "graphs", "#c9a0dc", f->graphs, scale);
    put_share(out, "context", "#bbbbbb", f->context, scale);
    put_share(out, "KV cache", "#8bc48a", f->kv_bytes, scale);
    (void)ek_buf_puts(out, "</div>\n<pre>");
    plan_write(q, a, &style, &text);
    escape(out, ek_buf_ok(&text) && text.data ? text.data : "");
    (void)ek_buf_puts(out, "</pre>\n</html>\n");
    ek_buf_done(&text);
}
