/* Findings as JSON, see diagnose.h. Bytes and counts as numbers, texts in the language asked for.
 */
#include <string.h>

#include "common/buf.h"
#include "supervisor/ctl/diagnose.h"
#include "supervisor/doctor/advise.h"
#include "supervisor/doctor/flow.h"
#include "supervisor/doctor/tell.h"

static json_t *diagnose_json_told(const char *text, const struct doctor_numbers *n)
{
    struct ek_buf out = {0};
    doctor_tell(text, n, &out);
    json_t *j = ek_buf_ok(&out) ? json_string(out.data ? out.data : "") : NULL;
    ek_buf_done(&out);
    return j;
}

static json_t *remedies(const struct doctor_finding *f, bool dead, enum doctor_lang lang)
{
    struct doctor_advice advice[DOCTOR_ADVICE_MOST];
    const struct doctor_signature *s = f->signature;
    const struct doctor_numbers *n = &f->numbers;
    uint32_t kept =
        dead ? doctor_advise(s->dead_ends, s->dead_end_count, n, advice, DOCTOR_ADVICE_MOST)
             : doctor_advise_for(f, advice);
    json_t *all = json_array();
    for (uint32_t i = 0; all && i < kept; i++) {
        const struct doctor_remedy *r = advice[i].remedy;
        json_t *one = json_pack("{s:o, s:s?, s:s?, s:s?, s:s?}", "text",
                                diagnose_json_told(r->text.in[lang], n), "flag", advice[i].flag,
                                "value", advice[i].has_value ? advice[i].value : NULL, "sum",
                                advice[i].sum[0] ? advice[i].sum : NULL, "rate_from", r->from);
        if (one)
            (void)json_object_set_new(one, "rate_percent",
                                      r->rate ? json_integer(r->rate) : json_null());
        (void)json_array_append_new(all, one); /* a missing entry shows in the count */
    }
    return all;
}

static json_t *diagnose_json_numbers(const struct doctor_numbers *n)
{
    json_t *all = json_object();
    for (uint32_t i = 0; all && i < n->count; i++) {
        if (!doctor_numbers_silent(n->at[i].name))
            (void)json_object_set_new(all, n->at[i].name, json_real(n->at[i].value));
    }
    return all;
}

/* A line of the log; its bytes need not be UTF-8. */
static json_t *diagnose_quoted(uint64_t line, const char *said)
{
    struct ek_buf text = {0};
    (void)ek_buf_puts(&text, "\"");
    (void)ek_buf_json(&text, said, strlen(said));
    (void)ek_buf_puts(&text, "\"");
    json_t *s = ek_buf_ok(&text) ? json_loadb(text.data, text.len, JSON_DECODE_ANY, NULL) : NULL;
    ek_buf_done(&text);
    return json_pack("{s:I, s:o}", "line", (json_int_t)line, "text", s ? s : json_string(""));
}

static json_t *evidence(const struct doctor_finding *f)
{
    json_t *all = json_array();
    for (uint32_t i = 0; all && i < f->evidence_count; i++)
        (void)json_array_append_new(all, diagnose_quoted(f->evidence[i].line, f->evidence[i].text));
    return all;
}

static json_t *flow(const struct doctor_finding *f, enum doctor_lang lang)
{
    struct doctor_step steps[DOCTOR_QUESTIONS];
    json_t *all = json_array();
    if (!doctor_flow_applies(f->cls))
        return all;
    doctor_flow(f->cls, f->phase, &f->numbers, steps);
    for (int i = 0; all && i < DOCTOR_QUESTIONS; i++)
        (void)json_array_append_new(all,
                                    json_pack("{s:s, s:s, s:s?}", "question",
                                              doctor_question((enum doctor_question)i, lang),
                                              "answer", doctor_answer(steps[i].answer, lang), "why",
                                              steps[i].why ? steps[i].why->in[lang] : NULL));
    return all;
}

static json_t *ranks(uint64_t mask)
{
    json_t *all = json_array();
    for (int i = 0; all && i < 64; i++) {
        if (mask >> i & 1)
            (void)json_array_append_new(all, json_integer(i));
    }
    return all;
}

static json_t *sources(const struct doctor_finding *f)
{
    json_t *all = json_array();
    for (uint32_t i = 0; all && i < f->signature->source_count; i++)
        (void)json_array_append_new(all, json_string(f->signature->sources[i]));
    for (uint32_t h = 0; all && h < f->help_count; h++) {
        for (uint32_t i = 0; i < f->help[h]->source_count; i++)
            (void)json_array_append_new(all, json_string(f->help[h]->sources[i]));
    }
    return all;
}

/* What would tell more of such a failure. */
static json_t *asked(const struct diagnose_report *r, enum doctor_class kind)
{
    const char *const *asks = diagnose_asks(r, kind);
    json_t *all = json_array();
    for (uint32_t i = 0; all && asks[0] && i < DOCTOR_ASKS; i++)
        (void)json_array_append_new(all, json_string(asks[i]));
    if (all)
        (void)json_array_append_new(all, json_string("evenkeelctl support-bundle"));
    return all;
}

static json_t *finding(const struct diagnose_report *r, const struct doctor_finding *f,
                       enum doctor_lang lang)
{
    const struct doctor_signature *s = f->signature;
    return json_pack(
        "{s:s, s:b, s:s, s:o, s:s, s:s, s:o, s:s, s:I, s:I, s:I, s:i, s:o, s:o, s:o, s:o, s:o, s:o,"
        " s:o}",
        "id", s->id, "explains", f->explains, "confidence", f->probable ? "probable" : "sure",
        "ask", f->probable ? asked(r, f->cls) : json_array(), "class", doctor_class_name(f->cls),
        "title", s->title.in[lang], "cause", diagnose_json_told(s->cause.in[lang], &f->numbers),
        "phase", doctor_phase_name(f->phase), "count", (json_int_t)f->count, "first_line",
        (json_int_t)f->first_line, "last_line", (json_int_t)f->last_line, "starts", (int)f->starts,
        "ranks", ranks(f->ranks), "evidence", evidence(f), "numbers",
        diagnose_json_numbers(&f->numbers), "questions", flow(f, lang), "remedies",
        remedies(f, false, lang), "dead_ends", remedies(f, true, lang), "sources", sources(f));
}

/* null where the catalog explains the log, or nothing in it failed. */
static json_t *diagnose_unknown(const struct diagnose_report *r)
{
    const struct doctor_decisive *d = &r->decisive;
    if (d->known || d->line == 0)
        return json_null();
    return json_pack("{s:o, s:s?, s:o}", "decisive", diagnose_quoted(d->line, d->text), "probably",
                     d->probably != DOCTOR_CLASSES ? doctor_class_name(d->probably) : NULL, "ask",
                     asked(r, d->probably));
}

json_t *diagnose_json(const struct diagnose_report *r, enum doctor_lang lang)
{
    json_t *all = json_array();
    for (uint32_t i = 0; all && i < r->count; i++)
        (void)json_array_append_new(all, finding(r, &r->findings[i], lang));
    return json_pack("{s:s, s:I, s:I, s:i, s:b, s:o, s:o}", "source", r->source, "lines",
                     (json_int_t)r->lines, "bytes", (json_int_t)r->bytes, "starts", (int)r->lives,
                     "known", r->decisive.known, "unknown", diagnose_unknown(r), "findings", all);
}
