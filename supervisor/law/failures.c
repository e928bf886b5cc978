/*
 * The ring of a server's failures and their JSON. servers/ended.c pushes one at each unplanned end;
 * servers/past.c refills it at the start, the page and the API show it.
 */
#include "supervisor/law/failures.h"

#include <errno.h>
#include <stddef.h>
#include <string.h>

#include "common/buf.h"

void failures_push(struct failures *f, const struct failure *one)
{
    f->at[f->next] = *one;
    f->next = (f->next + 1) % FAILURES_KEPT;
    if (f->count < FAILURES_KEPT)
        f->count++;
}

const struct failure *failures_at(const struct failures *f, uint32_t i)
{
    return i < f->count ? &f->at[(f->next + FAILURES_KEPT - 1 - i) % FAILURES_KEPT] : NULL;
}

uint32_t failure_case(const struct failure *f)
{
    uint32_t i = 0;
    while (i < DOCTOR_QUESTIONS && f->steps[i].answer != REPLY_YES)
        i++;
    return f->asked ? i : DOCTOR_QUESTIONS;
}

static void failures_put_text(struct ek_buf *out, const char *key, const char *text)
{
    (void)ek_buf_printf(out, ",\"%s\":\"", key);
    (void)ek_buf_json(out, text, strlen(text));
    (void)ek_buf_puts(out, "\"");
}

static void put_steps(struct ek_buf *out, const struct failure *f)
{
    uint32_t found = failure_case(f);
    (void)ek_buf_puts(out, ",\"questions\":[");
    for (uint32_t i = 0; f->asked && i < DOCTOR_QUESTIONS; i++) {
        const struct doctor_step *s = &f->steps[i];
        bool open = s->answer == REPLY_UNKNOWN && i > found;
        (void)ek_buf_printf(out, "%s{\"answer\":\"%s\"", i ? "," : "",
                            open ? "not asked" : doctor_answer(s->answer, LANG_EN));
        failures_put_text(out, "question", doctor_question((enum doctor_question)i, LANG_EN));
        failures_put_text(out, "rests_on", s->why ? s->why->in[LANG_EN] : f->rests_on[i]);
        failures_put_text(out, "then", doctor_advice((enum doctor_question)i, LANG_EN));
        (void)ek_buf_puts(out, "}");
    }
    (void)ek_buf_puts(out, "]");
}

void failure_json(const struct failure *f, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "\"at_s\":%.6f,\"class\":\"%s\",\"phase\":\"%s\",\"uptime_s\":%.1f",
                        (double)f->wall_us * 1e-6, crash_name(f->cls),
                        f->starting ? "starting" : "ready", f->uptime_s);
    failures_put_text(out, "why", f->why);
    failures_put_text(out, "next", f->next);
    failures_put_text(out, "remedy", f->remedy ? f->remedy : f->kept_remedy);
    put_steps(out, f);
    (void)ek_buf_puts(out, "}");
}

int failures_json(const struct failures *f, uint32_t most, struct ek_buf *out)
{
    const struct failure *one;
    (void)ek_buf_puts(out, "[");
    for (uint32_t i = 0; i < most && (one = failures_at(f, i)); i++) {
        (void)ek_buf_puts(out, i ? ",{" : "{");
        failure_json(one, out);
    }
    (void)ek_buf_puts(out, "]");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
