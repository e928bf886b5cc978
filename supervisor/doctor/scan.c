/*
 * The scan, see scan.h. A line is looked at by its bytes alone until one of the catalog's literals
 * is in it; only then it is cleaned and the expressions that own the literal are tried.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "supervisor/doctor/scan.h"

#include <errno.h>
#include <pcre2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "supervisor/doctor/help.h"
#include "supervisor/doctor/hint.h"
#include "supervisor/doctor/level.h"
#include "supervisor/doctor/lines.h"
#include "supervisor/doctor/literals.h"
#include "supervisor/doctor/resolve.h"
#include "supervisor/doctor/split.h"
#include "supervisor/doctor/trace.h"
#include "supervisor/doctor/weigh.h"

#define MATCH_MOST 200000u /* steps of one expression on one line */
#define MORE_LINES 25u     /* after a failure in which its further numbers are looked for */
#define HITS_MOST  64u     /* patterns tried on one line */
#define STOP_RANK  22u     /* of SIGTERM; signals above it are faults, also while it stops */
#define CERTAIN    46u     /* ranks below explain no exception that stands in another line */

struct doctor_scan {
    const struct doctor_catalog *catalog;
    pcre2_match_data *match;
    pcre2_match_context *context;
    struct doctor_finding *finding; /* [signatures], count 0 = not found; then sorted */
    uint32_t finding_count;
    struct doctor_numbers facts;
    enum doctor_phase phase;
    uint64_t line, works; /* the last, and that of the last request that was answered well */
    uint64_t begin_line;  /* of this life */
    uint64_t stop_line, older_stop; /* where it began to stop, 0: it did not; of the life before */
    uint32_t life;
    uint32_t early_life, late_life;   /* the last in which a line told its phase, +1 */
    bool eventful;                    /* this life has seen a failure */
    uint32_t line_best;               /* the weightiest signature of this line, TRACE_NONE: none */
    struct doctor_trace trace, older; /* of this life and of the last before that had one */
    bool known;
    uint8_t compiled[DOCTOR_PATTERNS_MOST / 8];
    struct doctor_split split;
    uint32_t hits[HITS_MOST], hit_count;
    bool marked; /* the line may say how something failed */
    bool frame;  /* it names a file, as tracebacks do */
    bool causes; /* a chain of causes follows */
    bool wraps;  /* what follows is raised from what was said */
    bool loud;   /* it may complain without an exception */
    char clean[DOCTOR_LINE_MOST + 1];
};

int doctor_scan_new(const struct doctor_catalog *c, struct doctor_scan **ret_scan)
{
    struct doctor_scan *s = calloc(1, sizeof(*s));
    if (!s)
        return -ENOMEM;
    s->catalog = c;
    s->match = pcre2_match_data_create(DOCTOR_NUMBERS_MOST, NULL);
    s->context = pcre2_match_context_create(NULL);
    s->finding = calloc(c->signature_count ? c->signature_count : 1, sizeof(*s->finding));
    if (!s->match || !s->context || !s->finding) {
        doctor_scan_free(s);
        return -ENOMEM;
    }
    (void)pcre2_set_match_limit(s->context, MATCH_MOST); /* always 0 */
    *ret_scan = s;
    return 0;
}

void doctor_scan_free(struct doctor_scan *s)
{
    if (!s)
        return;
    pcre2_match_data_free(s->match);
    pcre2_match_context_free(s->context);
    doctor_split_done(&s->split);
    free(s->finding);
    free(s);
}

void doctor_scan_phase(struct doctor_scan *s, enum doctor_phase phase)
{
    s->phase = phase;
}

/* ---- one line ---- */

static void note_hit(void *ctx, uint32_t pattern)
{
    struct doctor_scan *s = ctx;
    if (pattern >= s->catalog->pattern_count) {
        uint32_t mark = pattern - s->catalog->pattern_count;
        s->frame |= mark == MARK_FRAME;
        s->causes |= mark == MARK_CAUSES;
        s->wraps |= mark == MARK_WRAPS;
        s->loud |= mark >= MARK_LOUD || mark == MARK_ERROR;
        s->marked |= mark < MARK_FRAME;
        return;
    }
    for (uint32_t i = 0; i < s->hit_count; i++) {
        if (s->hits[i] == pattern)
            return;
    }
    if (s->hit_count < HITS_MOST)
        s->hits[s->hit_count++] = pattern;
}

/* The named groups of the last match. */
static void take_numbers(struct doctor_scan *s, const struct doctor_pattern *p,
                         struct doctor_numbers *to)
{
    uint32_t count = 0, entry = 0;
    PCRE2_SPTR table = NULL;
    const PCRE2_SIZE *at = pcre2_get_ovector_pointer(s->match);
    (void)pcre2_pattern_info(p->code, PCRE2_INFO_NAMECOUNT, &count);
    (void)pcre2_pattern_info(p->code, PCRE2_INFO_NAMEENTRYSIZE, &entry);
    (void)pcre2_pattern_info(p->code, PCRE2_INFO_NAMETABLE, &table); /* valid requests */
    for (uint32_t i = 0; i < count; i++, table += entry) {
        uint32_t group = (uint32_t)table[0] << 8 | table[1];
        if (group >= pcre2_get_ovector_count(s->match) || at[2 * group] == PCRE2_UNSET)
            continue;
        double v;
        bool bytes = false;
        const char *name = (const char *)table + 2, *from = s->clean + at[2 * group];
        size_t len = at[2 * group + 1] - at[2 * group];
        if (doctor_numbers_silent(name))
            doctor_numbers_set(to, name, 1, false);
        else if (doctor_numbers_versioned(name))
            doctor_numbers_set(to, name, doctor_version(from, len), false);
        else if (doctor_number_read(from, len, &v, &bytes))
            doctor_numbers_set(to, name, v, bytes);
    }
}

/* A closed connection or the like, once it has begun to stop, or what Python ignores then, as
 * destructors run: it was told to. */
static bool ends_by_order(const struct doctor_scan *s, size_t len)
{
    return s->phase == DOCTOR_PHASE_STOPPING &&
           (doctor_level_echo(s->clean, len) || s->line <= s->trace.ignored_until);
}

/* The same, or a signal. */
static bool is_stop(const struct doctor_scan *s, const struct doctor_signature *said, size_t len)
{
    return (s->phase == DOCTOR_PHASE_STOPPING && said->cls == DOCTOR_SIGNAL &&
            said->rank <= STOP_RANK) ||
           ends_by_order(s, len);
}

static void note_failure(struct doctor_scan *s, const struct doctor_pattern *p, size_t len)
{
    struct doctor_finding *f = &s->finding[p->signature];
    const struct doctor_signature *all = s->catalog->signatures;
    uint32_t rank = doctor_line_rank(s->clean, len), at;
    if (s->line_best == TRACE_NONE || all[p->signature].rank > all[s->line_best].rank)
        s->line_best = p->signature;
    if (f->count > 0 && f->last_line == s->line)
        return; /* two expressions, one line */
    s->eventful |= all[p->signature].rank >= DOCTOR_CONSEQUENCE;
    if (f->count == 0) {
        f->signature = &s->catalog->signatures[p->signature];
        f->first_line = s->line;
    }
    if (f->count == 0 || f->life != s->life) {
        f->starts++;
        f->phase = s->phase;
        f->firm = f->happened = f->raised = false;
        f->numbers.count = 0;
    }
    f->outlived = false;
    const PCRE2_SIZE *match = pcre2_get_ovector_pointer(s->match);
    f->happened |= !doctor_level_option(s->clean, len, match[0], match[1]);
    f->firm |= !doctor_level_mild(s->clean, len) && !is_stop(s, &all[p->signature], len);
    f->raised |= doctor_level_raises(s->clean, len) && !doctor_level_quotes(s->clean, len) &&
                 !ends_by_order(s, len);
    f->life = s->life;
    f->count++;
    f->last_line = s->line;
    if (rank < 64)
        f->ranks |= 1ull << rank;
    doctor_finding_keep(f, s->line, s->clean);
    take_numbers(s, p, &f->numbers);
    if (doctor_finding_engine(&f->numbers, &at))
        f->of_engine[at]++;
}

/* A start; a second banner of one that has only begun is the same. */
static void begin_life(struct doctor_scan *s)
{
    if (s->phase != DOCTOR_PHASE_STARTING || s->eventful || s->trace.count > 0)
        s->life += s->line > 1 || s->life > 0;
    if (s->trace.count > 0) {
        s->older = s->trace;
        s->older_stop = s->stop_line;
    }
    s->begin_line = s->line;
    s->stop_line = 0;
    s->trace = (struct doctor_trace){.count = 0};
    s->eventful = false;
    doctor_numbers_set(&s->facts, "is_loading", 0, false);
    s->phase = DOCTOR_PHASE_STARTING;
}

/* It serves: what was said before and raised nothing has not kept it from that. */
static void begin_serving(struct doctor_scan *s)
{
    doctor_numbers_set(&s->facts, "is_loading", 0, false);
    for (uint32_t i = 0; i < s->catalog->signature_count; i++) {
        struct doctor_finding *f = &s->finding[i];
        bool before = f->phase == DOCTOR_PHASE_UNKNOWN && f->life + 1 == s->life;
        f->outlived |= f->count > 0 && !f->raised && !doctor_phase_late(f->phase) &&
                       (before || f->life == s->life);
    }
    if (s->phase != DOCTOR_PHASE_READY) /* other processes of the same start come to serve later */
        doctor_trace_forget_plain(&s->trace);
    if (s->phase == DOCTOR_PHASE_STOPPING) /* it was started again, and said nothing of it */
        s->stop_line = 0;
    s->phase = DOCTOR_PHASE_READY;
}

static void note_phase(struct doctor_scan *s, enum doctor_pattern_kind kind)
{
    switch (kind) {
    case PATTERN_START: begin_life(s); break;
    case PATTERN_WARM:
        doctor_numbers_set(&s->facts, "is_loading", 0, false);
        if (s->phase == DOCTOR_PHASE_STARTING || s->phase == DOCTOR_PHASE_UNKNOWN)
            s->phase = DOCTOR_PHASE_WARMUP;
        break;
    case PATTERN_READY: begin_serving(s); break;
    case PATTERN_WORKS: s->works = s->line; break;
    case PATTERN_STOP:
        if (s->phase != DOCTOR_PHASE_STOPPING)
            s->stop_line = s->line;
        s->phase = DOCTOR_PHASE_STOPPING;
        break;
    case PATTERN_EARLY:
        s->early_life = s->life + 1;
        if (s->phase == DOCTOR_PHASE_UNKNOWN)
            s->phase = DOCTOR_PHASE_STARTING;
        break;
    case PATTERN_LATE: s->late_life = s->life + 1; break;
    case PATTERN_FAILURE:
    case PATTERN_MORE:
    case PATTERN_CLEAR:
    case PATTERN_FACT: break;
    }
}

/* It goes on: what was said less often than that is taken back, of that engine. */
static void scan_clear(struct doctor_scan *s, const struct doctor_pattern *p)
{
    struct doctor_finding *f = &s->finding[p->signature];
    const uint32_t times = s->catalog->signatures[p->signature].times;
    const uint32_t now = f->last_line == s->line; /* it may be of both kinds */
    struct doctor_numbers of = {0};
    uint32_t at, any;

    take_numbers(s, p, &of);
    if (!doctor_finding_engine(&of, &at) || !doctor_finding_engine(&f->numbers, &any)) {
        if (f->count - now < times)
            *f = (struct doctor_finding){.count = 0};
    } else if (f->of_engine[at] - (now && any == at) < times) {
        f->count -= f->of_engine[at];
        f->of_engine[at] = 0;
        if (f->count == 0)
            *f = (struct doctor_finding){.count = 0};
    }
}

static void scan_apply(struct doctor_scan *s, uint32_t pattern, size_t len)
{
    const struct doctor_pattern *p = &s->catalog->patterns[pattern];
    if (p->kind == PATTERN_CLEAR && s->finding[p->signature].count == 0)
        return;
    if (!(s->compiled[pattern / 8] >> pattern % 8 & 1)) {
        (void)pcre2_jit_compile(p->code, PCRE2_JIT_COMPLETE); /* slower without it */
        s->compiled[pattern / 8] |= (uint8_t)(1u << pattern % 8);
    }
    int n = pcre2_match(p->code, (PCRE2_SPTR)s->clean, len, 0, 0, s->match, s->context);
    if (n < 0)
        return;
    size_t at = pcre2_get_ovector_pointer(s->match)[0];
    if (p->quoted ? doctor_line_record(s->clean, at) : !doctor_line_own(s->clean, at))
        return;
    switch (p->kind) {
    case PATTERN_FAILURE: note_failure(s, p, len); break;
    case PATTERN_MORE: {
        struct doctor_finding *f = &s->finding[p->signature];
        if (f->count > 0 && s->line - f->last_line <= MORE_LINES)
            take_numbers(s, p, &f->numbers);
        break;
    }
    case PATTERN_CLEAR: scan_clear(s, p); break;
    case PATTERN_FACT: take_numbers(s, p, &s->facts); break;
    case PATTERN_START:
    case PATTERN_WARM:
    case PATTERN_READY:
    case PATTERN_WORKS:
    case PATTERN_STOP:
    case PATTERN_EARLY:
    case PATTERN_LATE: note_phase(s, p->kind); break;
    }
}

static const struct doctor_signature *named_by(const struct doctor_scan *s,
                                               const struct doctor_hint *h)
{
    return h && h->names ? doctor_catalog_find(s->catalog, h->names) : NULL;
}

/* An exception whose words say little gives way to the engine's own that is raised from it, where a
 * hint knows that one at least as well. */
static void unchain_weak(struct doctor_scan *s, size_t len)
{
    const struct doctor_signature *all = s->catalog->signatures;
    struct trace_process outer,
        *inner = doctor_trace_from(&s->trace, s->line, s->clean, len, &outer);
    if (!inner || all[inner->signature].rank >= CERTAIN)
        return;
    const struct doctor_signature *named =
        named_by(s, doctor_hint_of_process(s->catalog, &outer, s->match, s->context));
    if (named && named->rank >= all[inner->signature].rank)
        inner->chained = false;
}

static void scan_line(void *ctx, const char *line, size_t len)
{
    struct doctor_scan *s = ctx;
    s->line++;
    if (len > DOCTOR_LINE_MOST)
        len = DOCTOR_LINE_MOST;
    bool cleaned = doctor_line_dirty(line, len);
    if (cleaned) {
        len = doctor_line_clean(line, len, s->clean);
        line = s->clean;
    }
    s->hit_count = 0;
    s->marked = s->frame = s->causes = s->wraps = s->loud = false;
    s->line_best = TRACE_NONE;
    doctor_literals_find(s->catalog->words, line, len, note_hit, s);
    bool open = doctor_trace_open(&s->trace);
    if (s->hit_count == 0 && !s->marked && !s->frame && !s->loud && !s->causes && !s->wraps &&
        !open)
        return;
    if (!cleaned)
        len = doctor_line_clean(line, len, s->clean);
    for (int more = 0; more < 2; more++) { /* a failure, then what adds to it or clears it */
        for (uint32_t i = 0; i < s->hit_count; i++) {
            enum doctor_pattern_kind kind = s->catalog->patterns[s->hits[i]].kind;
            if ((kind == PATTERN_MORE || kind == PATTERN_CLEAR) == more)
                scan_apply(s, s->hits[i], len);
        }
    }
    bool follows = s->line_best != TRACE_NONE &&
                   s->catalog->signatures[s->line_best].rank < DOCTOR_CONSEQUENCE;
    if (open)
        doctor_trace_follow(&s->trace, s->line, s->clean, len, follows ? TRACE_NONE : s->line_best);
    bool raised = open && !s->marked && doctor_trace_raised(&s->trace, s->clean, len);
    bool told_to = ends_by_order(s, len);
    if (!follows && !told_to && (s->marked || raised || s->line_best != TRACE_NONE)) {
        if (s->line_best == TRACE_NONE)
            unchain_weak(s, len);
        doctor_trace_note(&s->trace, s->line, s->clean, len, s->line_best);
    }
    if (s->frame)
        doctor_trace_frame(&s->trace, s->clean, len);
    if (s->causes)
        doctor_trace_causes(&s->trace, s->clean, len);
    if (s->wraps)
        doctor_trace_wraps(&s->trace, s->clean, len);
    if (s->loud && !told_to)
        doctor_trace_loud(&s->trace, s->line, s->clean, len,
                          follows || doctor_level_warning(s->clean, len));
}

void doctor_scan_feed(struct doctor_scan *s, const char *bytes, size_t len)
{
    doctor_split_feed(&s->split, bytes, len, scan_line, s);
}

void doctor_scan_next_file(struct doctor_scan *s)
{
    (void)doctor_split_end(&s->split, scan_line, s); /* a lack of memory is told at the finish */
}

/* ---- the whole ---- */

static enum doctor_phase phase_of(const struct doctor_scan *s, const struct doctor_finding *f)
{
    if (f->phase != DOCTOR_PHASE_UNKNOWN)
        return f->phase;
    if (s->early_life == f->life + 1)
        return DOCTOR_PHASE_STARTING;
    return s->late_life == f->life + 1 ? DOCTOR_PHASE_READY : DOCTOR_PHASE_UNKNOWN;
}

static const struct trace_process *first_process(const struct doctor_scan *s)
{
    const struct trace_process *p = doctor_trace_first(&s->trace);
    return p ? p : doctor_trace_first(&s->older);
}

/* A finding of an entry that a hint named for a line. */
static uint32_t add_named(struct doctor_scan *s, const struct doctor_signature *named,
                          uint64_t line, const char *text)
{
    uint32_t at = (uint32_t)(named - s->catalog->signatures);
    struct doctor_finding *f = &s->finding[at];
    if (f->count == 0)
        *f = (struct doctor_finding){.signature = named,
                                     .first_line = line,
                                     .life = s->life,
                                     .starts = 1,
                                     .phase = s->phase};
    f->firm = f->happened = f->raised = true;
    f->count++;
    f->last_line = line;
    doctor_finding_keep(f, line, text);
    return at;
}

/* Words of a kind in a line that only follows from another: they are not the cause's. Ray's line
 * names what was raised. */
static bool is_after_cause(const struct doctor_signature *named, const char *text)
{
    return named->general && doctor_level_echo(text, strlen(text)) &&
           !strstr(text, "RayTaskError(");
}

/* The entry that a hint names for the decisive line, by what was raised and where, when it weighs
 * more than the one that knows its words (TRACE_NONE: none does); else that one. */
static uint32_t name_by_place(struct doctor_scan *s, const struct trace_process *first)
{
    const struct doctor_signature *all = s->catalog->signatures;
    uint32_t by_words = first->signature;
    if (by_words != TRACE_NONE && all[by_words].rank >= CERTAIN)
        return by_words;
    const struct doctor_signature *named =
        named_by(s, doctor_hint_of_process(s->catalog, first, s->match, s->context));
    if (!named || (by_words != TRACE_NONE && named->rank <= all[by_words].rank))
        return by_words;
    if (is_after_cause(named, first->text))
        return by_words;
    return add_named(s, named, first->last_line, first->text);
}

/* Whether an entry explains anything, so that no line without an exception has to. */
static bool is_explained(const struct doctor_scan *s)
{
    for (uint32_t i = 0; i < s->catalog->signature_count; i++) {
        if (s->finding[i].count > 0 &&
            doctor_finding_often(&s->finding[i], &s->catalog->signatures[i]) &&
            s->catalog->signatures[i].rank >= DOCTOR_CONSEQUENCE)
            return true;
    }
    return false;
}

/* Whether its life had begun to stop before that line. An engine that dies makes its server stop,
 * too: a stop after the line does not count. */
static bool was_stopping(const struct doctor_scan *s, uint64_t line)
{
    uint64_t stop = line >= s->begin_line ? s->stop_line : s->older_stop;
    return stop > 0 && stop < line;
}

/* What came to nothing: a warning, where requests were answered well after it or the server has
 * stopped since or serves at the end; what follows from another process, where requests were
 * answered well after it or the server was stopping. raised: a traceback ends in the line. */
static bool has_passed(const struct doctor_scan *s, uint64_t line, const char *text, bool raised)
{
    size_t len = strlen(text);
    if (doctor_level_echo(text, len) && (s->works > line || was_stopping(s, line)))
        return true;
    if (raised || !doctor_level_warns(text, len))
        return false;
    return s->works > line || s->phase == DOCTOR_PHASE_STOPPING ||
           (s->phase == DOCTOR_PHASE_READY && doctor_level_warning(text, len));
}

/* The entry that a hint names for the first line that complains without an exception. */
static uint32_t name_loud(struct doctor_scan *s)
{
    const struct doctor_trace *t = s->trace.loud_line ? &s->trace : &s->older;
    if (!t->loud_line || is_explained(s) || has_passed(s, t->loud_line, t->loud, false))
        return TRACE_NONE;
    const struct doctor_signature *named =
        named_by(s, doctor_hint_of(s->catalog, t->loud, s->match, s->context));
    return named && !is_after_cause(named, t->loud) ? add_named(s, named, t->loud_line, t->loud)
                                                    : TRACE_NONE;
}

/* The remedies of the program and module; raised: the exception that decided, NULL: none did. */
static void find_help(struct doctor_scan *s, struct doctor_finding *f,
                      const struct trace_process *raised)
{
    struct help_question of = {.id = f->signature->id,
                               .cls = f->cls,
                               .numbers = &f->numbers,
                               .said_count = f->evidence_count,
                               .raised = f->decisive ? raised : NULL};
    for (uint32_t i = 0; i < f->evidence_count && i < HELP_LINES; i++)
        of.said[i] = f->evidence[i].text;
    for (uint32_t i = 0; i < f->evidence_count && !f->flag[0]; i++)
        doctor_line_flag(f->evidence[i].text, f->flag, sizeof(f->flag));
    f->help_count = doctor_help_find(s->catalog, &of, s->match, s->context, f->help);
}

int doctor_scan_finish(struct doctor_scan *s, const struct doctor_finding **ret_findings,
                       uint32_t *ret_count)
{
    if (doctor_split_end(&s->split, scan_line, s) < 0)
        return -ENOMEM;
    s->finding_count = 0;
    const struct trace_process *first = first_process(s);
    uint32_t decisive = first ? name_by_place(s, first) : TRACE_NONE;
    const struct trace_process *raised = decisive != TRACE_NONE ? first : NULL;
    if (decisive == TRACE_NONE)
        decisive = name_loud(s);
    for (uint32_t i = 0; i < s->catalog->signature_count; i++) {
        if (s->finding[i].count == 0 ||
            !doctor_finding_often(&s->finding[i], &s->catalog->signatures[i]))
            continue;
        struct doctor_finding *f = &s->finding[s->finding_count++];
        if (f != &s->finding[i])
            *f = s->finding[i];
        f->decisive = decisive == i;
        f->phase = phase_of(s, f);
        doctor_resolve_finding(f, &s->facts);
    }
    doctor_weigh(s->finding, s->finding_count,
                 &(struct doctor_whole){.lines = s->line, .works = s->works, .life = s->life});
    for (uint32_t i = 0; i < s->finding_count; i++)
        find_help(s, &s->finding[i], raised);
    bool unnamed = first && decisive == TRACE_NONE && !first->plain &&
                   !doctor_level_echo(first->text, strlen(first->text));
    s->known =
        s->finding_count > 0 && s->finding[0].rank >= (unnamed ? CERTAIN : DOCTOR_CONSEQUENCE);
    *ret_findings = s->finding;
    *ret_count = s->finding_count;
    return 0;
}

static enum doctor_class kind_of(const struct doctor_hint *h)
{
    return h ? h->cls : DOCTOR_CLASSES;
}

/* Where no entry names a cause: the exception that decides, or the first line that complains. */
static struct doctor_decisive decisive_line(const struct doctor_scan *s)
{
    const struct trace_process *p = first_process(s);
    const struct doctor_trace *t = s->trace.loud_line ? &s->trace : &s->older;
    struct doctor_decisive d = {.known = s->known, .probably = DOCTOR_CLASSES, .text = ""};
    if (p) {
        d.line = p->last_line;
        d.text = p->text;
        d.probably = kind_of(doctor_hint_of_process(s->catalog, p, s->match, s->context));
    }
    if (d.probably != DOCTOR_CLASSES || !t->loud_line)
        return d;
    d.probably = kind_of(doctor_hint_of(s->catalog, t->loud, s->match, s->context));
    if (!p || d.probably != DOCTOR_CLASSES) {
        d.line = t->loud_line;
        d.text = t->loud;
    }
    return d;
}

struct doctor_decisive doctor_scan_decisive(const struct doctor_scan *s)
{
    struct doctor_decisive d = decisive_line(s);
    const struct trace_process *p = first_process(s);
    bool raised = p && d.text == p->text && !p->plain;
    if (!d.known && has_passed(s, d.line, d.text, raised)) {
        d.line = 0;
        d.text = "";
        d.probably = DOCTOR_CLASSES;
    }
    return d;
}

uint64_t doctor_scan_lines(const struct doctor_scan *s)
{
    return s->line;
}

uint32_t doctor_scan_lives(const struct doctor_scan *s)
{
    return s->life;
}
