/*
 * Findings as text and Markdown, and the catalog as a page (diagnose.h). Called by verb_diagnose.c.
 */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/ctl/diagnose.h"
#include "supervisor/doctor/advise.h"
#include "supervisor/doctor/flow.h"
#include "supervisor/doctor/tell.h"
#include "supervisor/doctor/texts.h"

enum label {
    SAY_NOTHING,
    SAY_READ,
    SAY_CAUSE,
    SAY_EVIDENCE,
    SAY_NUMBERS,
    SAY_HELPS,
    SAY_DEAD,
    SAY_SOURCES,
    SAY_OTHERS,
    SAY_HELPED,
    SAY_FAILED,
    SAY_LINE,
    SAY_SEEN,
    SAY_RANKS,
    SAY_FLOW,
    SAY_UNKNOWN,
    SAY_DECISIVE,
    SAY_PROBABLY,
    SAY_ASK,
    SAY_BUNDLE,
    SAY_LIKELY,
    SAY_WEAK,
    LABELS
};
static const struct doctor_text labels[LABELS] = {
    [SAY_NOTHING] = DOCTOR_TEXT(say_nothing),   [SAY_READ] = DOCTOR_TEXT(say_read),
    [SAY_CAUSE] = DOCTOR_TEXT(say_cause),       [SAY_EVIDENCE] = DOCTOR_TEXT(say_evidence),
    [SAY_NUMBERS] = DOCTOR_TEXT(say_numbers),   [SAY_HELPS] = DOCTOR_TEXT(say_helps),
    [SAY_DEAD] = DOCTOR_TEXT(say_dead),         [SAY_SOURCES] = DOCTOR_TEXT(say_sources),
    [SAY_OTHERS] = DOCTOR_TEXT(say_others),     [SAY_HELPED] = DOCTOR_TEXT(say_helped),
    [SAY_FAILED] = DOCTOR_TEXT(say_failed),     [SAY_LINE] = DOCTOR_TEXT(say_line),
    [SAY_SEEN] = DOCTOR_TEXT(say_seen),         [SAY_RANKS] = DOCTOR_TEXT(say_ranks),
    [SAY_FLOW] = DOCTOR_TEXT(say_flow),         [SAY_UNKNOWN] = DOCTOR_TEXT(say_unknown),
    [SAY_DECISIVE] = DOCTOR_TEXT(say_decisive), [SAY_PROBABLY] = DOCTOR_TEXT(say_probably),
    [SAY_ASK] = DOCTOR_TEXT(say_ask),           [SAY_BUNDLE] = DOCTOR_TEXT(say_bundle),
    [SAY_LIKELY] = DOCTOR_TEXT(say_likely),     [SAY_WEAK] = DOCTOR_TEXT(say_weak),
};

struct writer {
    const struct diagnose_style *style;
    struct ek_buf *out;
};

static const char *diagnose_say(const struct writer *w, enum label l)
{
    return labels[l].in[w->style->lang];
}

static bool markdown(const struct writer *w)
{
    return w->style->form == DIAGNOSE_MARKDOWN;
}

/* Text from a log: Markdown must not take it for its own, a terminal gets no control characters. */
static void put_quoted(const struct writer *w, const char *text)
{
    for (; *text; text++) {
        if (markdown(w) && *text == '`')
            (void)ek_buf_puts(w->out, "'");
        else
            (void)ek_buf_add(w->out, (unsigned char)*text < ' ' ? " " : text, 1);
    }
}

static void heading(const struct writer *w, enum label l)
{
    if (markdown(w))
        (void)ek_buf_printf(w->out, "\n**%s**\n\n", diagnose_say(w, l));
    else if (w->style->colour)
        (void)ek_buf_printf(w->out, "\n  \033[1m%s\033[0m\n", diagnose_say(w, l));
    else
        (void)ek_buf_printf(w->out, "\n  %s\n", diagnose_say(w, l));
}

static void put_rate(const struct writer *w, const struct doctor_remedy *r, enum label how)
{
    if (r->rate)
        (void)ek_buf_printf(w->out, " (%s %u %%%s%s)", diagnose_say(w, how), r->rate,
                            r->from ? ": " : "", r->from ? r->from : "");
}

static void put_advice(const struct writer *w, const struct doctor_advice *a, uint32_t number,
                       const struct doctor_numbers *n, enum label how)
{
    const struct doctor_remedy *r = a->remedy;
    (void)ek_buf_printf(w->out, markdown(w) ? "%u. " : "   %u. ", number);
    if (a->flag) {
        const char *between = strncmp(a->flag, "--", 2) == 0 ? " " : "=";
        (void)ek_buf_printf(w->out, markdown(w) ? "`%s%s%s` " : "%s%s%s  ", a->flag,
                            a->has_value ? between : "", a->has_value ? a->value : "");
    }
    doctor_tell(r->text.in[w->style->lang], n, w->out);
    if (a->sum[0])
        (void)ek_buf_printf(w->out, " (%s)", a->sum);
    put_rate(w, r, how);
    (void)ek_buf_puts(w->out, "\n");
}

static void put_list(const struct writer *w, const struct doctor_finding *f, bool dead)
{
    struct doctor_advice advice[DOCTOR_ADVICE_MOST];
    const struct doctor_signature *s = f->signature;
    uint32_t kept = dead ? doctor_advise(s->dead_ends, s->dead_end_count, &f->numbers, advice,
                                         DOCTOR_ADVICE_MOST)
                         : doctor_advise_for(f, advice);
    if (kept == 0)
        return;
    heading(w, dead ? SAY_DEAD : SAY_HELPS);
    for (uint32_t i = 0; i < kept; i++)
        put_advice(w, &advice[i], i + 1, &f->numbers, dead ? SAY_FAILED : SAY_HELPED);
}

const char *const *diagnose_asks(const struct diagnose_report *r, enum doctor_class kind)
{
    const char *const *asks = r->catalog->asks[kind];
    return asks[0] ? asks : r->catalog->asks[DOCTOR_CLASSES];
}

static void put_asks(const struct writer *w, const struct diagnose_report *r,
                     enum doctor_class kind)
{
    const char *const *asks = diagnose_asks(r, kind);
    heading(w, SAY_ASK);
    for (uint32_t i = 0; asks[0] && i < DOCTOR_ASKS; i++)
        (void)ek_buf_printf(w->out, markdown(w) ? "%u. `%s`\n" : "   %u. %s\n", i + 1, asks[i]);
    (void)ek_buf_printf(w->out,
                        markdown(w) ? "%u. `evenkeelctl support-bundle`: %s\n"
                                    : "   %u. evenkeelctl support-bundle: %s\n",
                        DOCTOR_ASKS + 1, diagnose_say(w, SAY_BUNDLE));
}

/* What is known of a log that the catalog does not explain. */
static void put_unknown(const struct writer *w, const struct diagnose_report *r)
{
    const struct doctor_decisive *d = &r->decisive;
    (void)ek_buf_printf(w->out, "\n%s\n", diagnose_say(w, SAY_UNKNOWN));
    heading(w, SAY_DECISIVE);
    (void)ek_buf_printf(w->out, markdown(w) ? "- %s %" PRIu64 ": `" : "   %s %" PRIu64 ": ",
                        diagnose_say(w, SAY_LINE), d->line);
    put_quoted(w, d->text);
    (void)ek_buf_puts(w->out, markdown(w) ? "`\n" : "\n");
    if (d->probably != DOCTOR_CLASSES)
        (void)ek_buf_printf(w->out, "%s%s %s: %s\n", markdown(w) ? "\n" : "   ",
                            diagnose_say(w, SAY_PROBABLY), doctor_class_name(d->probably),
                            doctor_class_text(d->probably, w->style->lang));
    put_asks(w, r, d->probably);
}

static void put_numbers(const struct writer *w, const struct doctor_numbers *n)
{
    char text[32];
    uint32_t shown = 0;
    for (uint32_t i = 0; i < n->count; i++) {
        if (doctor_numbers_silent(n->at[i].name))
            continue;
        if (shown == 0)
            heading(w, SAY_NUMBERS);
        if (doctor_numbers_versioned(n->at[i].name)) { /* below 1e8, see doctor_version() */
            unsigned v = (unsigned)n->at[i].value;
            (void)snprintf(text, sizeof(text), "%u.%u.%u", v / 10000, v / 100 % 100, v % 100);
        } else {
            (void)doctor_number_text(n->at[i].value, n->at[i].bytes, text);
        }
        (void)ek_buf_printf(w->out, "%s%s %s",
                            shown         ? ", "
                            : markdown(w) ? ""
                                          : "   ",
                            n->at[i].name, text);
        shown++;
    }
    if (shown > 0)
        (void)ek_buf_puts(w->out, "\n");
}

static void put_evidence(const struct writer *w, const struct doctor_finding *f)
{
    heading(w, SAY_EVIDENCE);
    if (f->count > 1 || f->ranks) {
        (void)ek_buf_printf(w->out, "%s%" PRIu64 " %s %u", markdown(w) ? "" : "   ", f->count,
                            diagnose_say(w, SAY_SEEN), f->starts);
        if (w->style->lang == LANG_EN)
            (void)ek_buf_puts(w->out, f->starts == 1 ? " start" : " starts");
        if (f->ranks)
            (void)ek_buf_printf(w->out, ", %s", diagnose_say(w, SAY_RANKS));
        for (uint32_t i = 0; f->ranks && i < 64; i++) {
            if (f->ranks >> i & 1)
                (void)ek_buf_printf(w->out, " %u", i);
        }
        (void)ek_buf_puts(w->out, markdown(w) ? "\n\n" : "\n");
    }
    for (uint32_t i = 0; i < f->evidence_count; i++) {
        (void)ek_buf_printf(w->out, markdown(w) ? "- %s %" PRIu64 ": `" : "   %s %" PRIu64 ": ",
                            diagnose_say(w, SAY_LINE), f->evidence[i].line);
        put_quoted(w, f->evidence[i].text);
        (void)ek_buf_puts(w->out, markdown(w) ? "`\n" : "\n");
    }
}

/* Of an entry, and of what helps by program and module (f, or NULL). */
static void put_sources(const struct writer *w, const struct doctor_signature *s,
                        const struct doctor_finding *f)
{
    (void)ek_buf_printf(w->out, markdown(w) ? "\n%s: " : "\n  %s: ", diagnose_say(w, SAY_SOURCES));
    for (uint32_t i = 0; i < s->source_count; i++)
        (void)ek_buf_printf(w->out, "%s%s", i ? "; " : "", s->sources[i]);
    for (uint32_t h = 0; f && h < f->help_count; h++) {
        for (uint32_t i = 0; i < f->help[h]->source_count; i++)
            (void)ek_buf_printf(w->out, "; %s", f->help[h]->sources[i]);
    }
    (void)ek_buf_puts(w->out, "\n");
}

/* "HANG", "probably HANG". */
static void put_title(const struct writer *w, const struct doctor_signature *s,
                      enum doctor_class cls, bool probable)
{
    const char *title = s->title.in[w->style->lang];
    const char *likely = probable ? diagnose_say(w, SAY_LIKELY) : "", *gap = probable ? " " : "";
    if (markdown(w))
        (void)ek_buf_printf(w->out, "## %s%s%s: %s\n\n%s (`%s`)\n", likely, gap,
                            doctor_class_name(cls), title, doctor_class_text(cls, w->style->lang),
                            s->id);
    else
        (void)ek_buf_printf(w->out, "%s%s%s%s%s  %s  [%s]\n  %s\n",
                            w->style->colour ? (probable ? "\033[1;33m" : "\033[1;31m") : "",
                            likely, gap, doctor_class_name(cls), w->style->colour ? "\033[0m" : "",
                            title, s->id, doctor_class_text(cls, w->style->lang));
}

static void put_flow(const struct writer *w, const struct doctor_finding *f)
{
    struct doctor_step steps[DOCTOR_QUESTIONS];
    heading(w, SAY_FLOW);
    doctor_flow(f->cls, f->phase, &f->numbers, steps);
    for (int i = 0; i < DOCTOR_QUESTIONS; i++) {
        (void)ek_buf_printf(w->out, markdown(w) ? "%d. %s **%s**" : "   %d. %s %s", i + 1,
                            doctor_question((enum doctor_question)i, w->style->lang),
                            doctor_answer(steps[i].answer, w->style->lang));
        if (steps[i].why)
            (void)ek_buf_printf(w->out, " (%s)", steps[i].why->in[w->style->lang]);
        (void)ek_buf_puts(w->out, "\n");
    }
}

static void put_finding(const struct writer *w, const struct diagnose_report *r,
                        const struct doctor_finding *f)
{
    const struct doctor_signature *s = f->signature;
    put_title(w, s, f->cls, f->probable);
    heading(w, SAY_CAUSE);
    (void)ek_buf_puts(w->out, markdown(w) ? "" : "   ");
    doctor_tell(s->cause.in[w->style->lang], &f->numbers, w->out);
    (void)ek_buf_puts(w->out, "\n");
    put_evidence(w, f);
    put_numbers(w, &f->numbers);
    if (f->probable) {
        (void)ek_buf_printf(w->out, "\n%s%s\n", markdown(w) ? "" : "  ", diagnose_say(w, SAY_WEAK));
        put_asks(w, r, f->cls);
    }
    if (doctor_flow_applies(f->cls))
        put_flow(w, f);
    put_list(w, f, false);
    put_list(w, f, true);
    put_sources(w, s, f);
}

/* Whether nothing in the log failed: no line says so, and what was found are remarks of a server
 * that goes on. */
static bool only_remarks(const struct diagnose_report *r)
{
    if (r->decisive.known || r->decisive.line > 0)
        return false;
    for (uint32_t i = 0; i < r->count; i++) {
        if (r->findings[i].explains)
            return false;
    }
    return true;
}

void diagnose_write(const struct diagnose_report *r, const struct diagnose_style *style,
                    struct ek_buf *out)
{
    struct writer w = {style, out};
    if (markdown(&w))
        (void)ek_buf_puts(out, "# evenkeelctl diagnose\n\n");
    (void)ek_buf_printf(out, "%s: %" PRIu64 " %s%s\n", r->source, r->lines,
                        diagnose_say(&w, SAY_READ), markdown(&w) ? "\n" : "");
    bool remarks = only_remarks(r);
    uint32_t most = remarks ? 0 : r->most; /* so many are told in full */
    if (remarks || r->count == 0)
        (void)ek_buf_printf(out, "%s\n", diagnose_say(&w, SAY_NOTHING));
    if (!r->decisive.known && r->decisive.line > 0)
        put_unknown(&w, r);
    for (uint32_t i = 0; i < r->count && i < most; i++) {
        (void)ek_buf_puts(out, "\n");
        put_finding(&w, r, &r->findings[i]);
    }
    if (r->count > most) {
        (void)ek_buf_printf(out, "\n%s:\n", diagnose_say(&w, SAY_OTHERS));
        for (uint32_t i = most; i < r->count; i++) {
            const struct doctor_finding *f = &r->findings[i];
            (void)ek_buf_printf(out, "- %s: %s (%s %" PRIu64 ")\n", f->signature->id,
                                f->signature->title.in[style->lang], diagnose_say(&w, SAY_LINE),
                                f->first_line);
        }
    }
}

void diagnose_list(const struct doctor_catalog *c, enum doctor_lang lang, struct ek_buf *out)
{
    for (uint32_t i = 0; i < c->signature_count; i++) {
        const struct doctor_signature *s = &c->signatures[i];
        (void)ek_buf_printf(out, "%-32s %-12s %s\n", s->id, doctor_class_name(s->cls),
                            s->title.in[lang]);
    }
}

void diagnose_explain(const struct doctor_signature *s, const struct diagnose_style *style,
                      struct ek_buf *out)
{
    static const struct doctor_numbers none;
    struct writer w = {style, out};
    put_title(&w, s, s->cls, false);
    (void)ek_buf_printf(out, markdown(&w) ? "\n%s; %s\n" : "  %s; %s\n", s->engines, s->versions);
    heading(&w, SAY_CAUSE);
    (void)ek_buf_printf(out, "%s%s\n", markdown(&w) ? "" : "   ", s->cause.in[style->lang]);
    for (int dead = 0; dead < 2; dead++) {
        const struct doctor_remedy *list = dead ? s->dead_ends : s->remedies;
        uint32_t count = dead ? s->dead_end_count : s->remedy_count;
        if (count > 0)
            heading(&w, dead ? SAY_DEAD : SAY_HELPS);
        for (uint32_t i = 0; i < count; i++) {
            struct doctor_advice a = {.remedy = &list[i], .flag = list[i].flag};
            put_advice(&w, &a, i + 1, &none, dead ? SAY_FAILED : SAY_HELPED);
        }
    }
    put_sources(&w, s, NULL);
}

/* What helps, numbered where the order counts, or what does not, as one paragraph. */
static void page_list(const struct writer *w, const struct doctor_remedy *list, uint32_t count,
                      bool dead)
{
    if (count == 0)
        return;
    (void)ek_buf_puts(w->out, dead ? "\nDoes not help:" : "\nHelps:");
    (void)ek_buf_puts(w->out, dead || count == 1 ? " " : "\n\n");
    for (uint32_t i = 0; i < count; i++) {
        if (dead && i > 0)
            (void)ek_buf_puts(w->out, " ");
        if (!dead && count > 1)
            (void)ek_buf_printf(w->out, "%u. ", i + 1);
        if (list[i].flag)
            (void)ek_buf_printf(w->out, "`%s`: ", list[i].flag);
        (void)ek_buf_puts(w->out, list[i].text.in[w->style->lang]);
        put_rate(w, &list[i], dead ? SAY_FAILED : SAY_HELPED);
        if (!dead || i + 1 == count)
            (void)ek_buf_puts(w->out, "\n");
    }
}

static void page_sources(const struct writer *w, const char *const *list, uint32_t count)
{
    (void)ek_buf_puts(w->out, "\nFrom:");
    for (uint32_t k = 0; k < count; k++)
        (void)ek_buf_printf(w->out, "%s %s", k ? ";" : "", list[k]);
    (void)ek_buf_puts(w->out, "\n");
}

static void page_entry(const struct writer *w, const struct doctor_signature *s)
{
    (void)ek_buf_printf(w->out, "\n### %s (`%s`)\n\n%s (%s; %s)\n", s->title.in[LANG_EN], s->id,
                        s->cause.in[LANG_EN], s->engines, s->versions);
    page_list(w, s->remedies, s->remedy_count, false);
    page_list(w, s->dead_ends, s->dead_end_count, true);
    page_sources(w, s->sources, s->source_count);
}

static void page_helps(const struct writer *w, const struct doctor_catalog *c)
{
    if (c->help_count > 0)
        (void)ek_buf_puts(w->out, "\n## By program and module\n\nTold where a failure of these "
                                  "kinds is of this program or module: before an entry's own "
                                  "remedies, after them where its rank is 60 or more.\n");
    for (uint32_t i = 0; i < c->help_count; i++) {
        const struct doctor_help *h = &c->helps[i];
        (void)ek_buf_printf(w->out, "\n### %s (", h->what);
        for (int cls = 0, any = 0; cls < DOCTOR_CLASSES; cls++) {
            if (h->classes >> cls & 1)
                (void)ek_buf_printf(w->out, "%s%s", any++ ? ", " : "",
                                    doctor_class_name((enum doctor_class)cls));
        }
        (void)ek_buf_puts(w->out, ")\n");
        page_list(w, h->remedies, h->remedy_count, false);
        page_sources(w, h->sources, h->source_count);
    }
}

static void page_class(const struct writer *w, const struct doctor_catalog *c, int cls)
{
    bool any = false;

    for (uint32_t i = 0; i < c->signature_count; i++) {
        if ((int)c->signatures[i].cls != cls)
            continue;
        if (!any)
            (void)ek_buf_printf(w->out, "%s## %s\n\n%s\n", cls ? "\n" : "", doctor_class_name(cls),
                                doctor_class_text(cls, LANG_EN));
        any = true;
        page_entry(w, &c->signatures[i]);
    }
}

void diagnose_page(const struct doctor_catalog *c, struct ek_buf *out)
{
    static const struct diagnose_style style = {LANG_EN, DIAGNOSE_MARKDOWN, false};
    const struct writer w = {&style, out};

    for (int cls = 0; cls < DOCTOR_CLASSES; cls++)
        page_class(&w, c, cls);
    page_helps(&w, c);
}
