/*
 * The scan, see scan.h. A line is looked at by its bytes alone until one of the catalog's literals
 * is in it; only then it is cleaned and the expressions that own the literal are tried.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "supervisor/doctor/scan.h"

#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "supervisor/doctor/lines.h"
#include "supervisor/doctor/words.h"

#define MATCH_MOST 200000u /* steps of one expression on one line */
#define MORE_LINES 25u     /* after a failure in which its further numbers are looked for */
#define HITS_MOST  64u     /* patterns tried on one line */

struct doctor_scan {
    const struct doctor_catalog *catalog;
    pcre2_match_data *match;
    pcre2_match_context *context;
    struct doctor_finding *finding; /* [signatures], count 0 = not found; then sorted */
    uint32_t finding_count;
    struct doctor_numbers facts;
    enum doctor_phase phase;
    uint64_t line;
    uint32_t life;
    struct ek_buf rest; /* of a line that is not whole yet, at most DOCTOR_LINE_MOST bytes */
    uint32_t hits[HITS_MOST], hit_count;
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
    ek_buf_done(&s->rest);
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
        bool bytes;
        if (doctor_number_read(s->clean + at[2 * group], at[2 * group + 1] - at[2 * group], &v,
                               &bytes))
            doctor_numbers_set(to, (const char *)table + 2, v, bytes);
    }
}

static void keep_evidence(struct doctor_scan *s, struct doctor_finding *f)
{
    uint32_t i =
        f->evidence_count < DOCTOR_EVIDENCE_MOST ? f->evidence_count++ : DOCTOR_EVIDENCE_MOST - 1;
    size_t n = strlen(s->clean);
    if (n >= DOCTOR_EVIDENCE_TEXT) {
        n = DOCTOR_EVIDENCE_TEXT - 1;
        while (n > 0 && ((unsigned char)s->clean[n] & 0xc0) == 0x80)
            n--; /* not within a character */
    }
    f->evidence[i].line = s->line;
    memcpy(f->evidence[i].text, s->clean, n);
    f->evidence[i].text[n] = '\0';
}

static void note_failure(struct doctor_scan *s, const struct doctor_pattern *p, size_t len)
{
    struct doctor_finding *f = &s->finding[p->signature];
    uint32_t rank = doctor_line_rank(s->clean, len);
    if (f->count > 0 && f->last_line == s->line)
        return; /* two expressions, one line */
    if (f->count == 0) {
        f->signature = &s->catalog->signatures[p->signature];
        f->first_line = s->line;
    }
    if (f->count == 0 || f->life != s->life) {
        f->starts++;
        f->phase = s->phase;
        f->numbers.count = 0;
    }
    f->life = s->life;
    f->count++;
    f->last_line = s->line;
    if (rank < 64)
        f->ranks |= 1ull << rank;
    keep_evidence(s, f);
    take_numbers(s, p, &f->numbers);
}

static void apply(struct doctor_scan *s, const struct doctor_pattern *p, size_t len)
{
    int n = pcre2_match(p->code, (PCRE2_SPTR)s->clean, len, 0, 0, s->match, s->context);
    if (n < 0)
        return;
    if (!p->quoted && !doctor_line_own(s->clean, pcre2_get_ovector_pointer(s->match)[0]))
        return;
    switch (p->kind) {
    case PATTERN_FAILURE: note_failure(s, p, len); break;
    case PATTERN_MORE: {
        struct doctor_finding *f = &s->finding[p->signature];
        if (f->count > 0 && s->line - f->last_line <= MORE_LINES)
            take_numbers(s, p, &f->numbers);
        break;
    }
    case PATTERN_FACT: take_numbers(s, p, &s->facts); break;
    case PATTERN_START:
        s->life += s->line > 1 || s->life > 0;
        s->phase = DOCTOR_PHASE_STARTING;
        break;
    case PATTERN_READY: s->phase = DOCTOR_PHASE_READY; break;
    }
}

static void scan_line(struct doctor_scan *s, const char *line, size_t len)
{
    s->line++;
    if (len > DOCTOR_LINE_MOST)
        len = DOCTOR_LINE_MOST;
    bool cleaned = doctor_line_dirty(line, len);
    if (cleaned) {
        len = doctor_line_clean(line, len, s->clean);
        line = s->clean;
    }
    s->hit_count = 0;
    doctor_words_find(s->catalog->words, line, len, note_hit, s);
    if (s->hit_count == 0)
        return;
    if (!cleaned)
        len = doctor_line_clean(line, len, s->clean);
    for (int more = 0; more < 2; more++) { /* a failure, then what adds to it */
        for (uint32_t i = 0; i < s->hit_count; i++) {
            const struct doctor_pattern *p = &s->catalog->patterns[s->hits[i]];
            if ((p->kind == PATTERN_MORE) == more)
                apply(s, p, len);
        }
    }
}

void doctor_scan_feed(struct doctor_scan *s, const char *bytes, size_t len)
{
    while (len > 0) {
        const char *newline = memchr(bytes, '\n', len);
        size_t n = newline ? (size_t)(newline - bytes) : len;
        if (newline && s->rest.len == 0) {
            scan_line(s, bytes, n);
        } else {
            size_t room = DOCTOR_LINE_MOST - s->rest.len;
            (void)ek_buf_add(&s->rest, bytes, n < room ? n : room); /* finish() tells */
        }
        if (newline && s->rest.len > 0) {
            scan_line(s, s->rest.data, s->rest.len);
            s->rest.len = 0;
        }
        bytes += n + (newline != NULL);
        len -= n + (newline != NULL);
    }
}

/* ---- the whole ---- */

enum doctor_class doctor_resolve(enum doctor_class cls, const struct doctor_numbers *n,
                                 enum doctor_phase phase)
{
    if (cls != DOCTOR_DEVICE_OOM)
        return cls;
    double x = 0, y = 0, z = 0, c = 0;
    bool has_x = doctor_numbers_lookup(n, "requested", &x);
    bool has_y = doctor_numbers_lookup(n, "free", &y);
    bool has_z = doctor_numbers_lookup(n, "reserved", &z);
    if (has_x && doctor_numbers_lookup(n, "capacity", &c) && x > c)
        return DOCTOR_CONFIG;
    if (phase == DOCTOR_PHASE_STARTING)
        return DOCTOR_STARTUP_OOM;
    if (has_x && has_y && has_z && y < x && y + z >= x)
        return DOCTOR_FRAG_OOM;
    return phase == DOCTOR_PHASE_READY ? DOCTOR_BURST_OOM : cls;
}

/* Old PyTorch says what is reserved in all. */
static void derive(struct doctor_numbers *n)
{
    double all = 0, allocated = 0;
    if (!doctor_numbers_find(n, "reserved") && doctor_numbers_lookup(n, "reserved_all", &all) &&
        doctor_numbers_lookup(n, "allocated", &allocated) && all >= allocated)
        doctor_numbers_set(n, "reserved", all - allocated, true);
}

/* The failure's own numbers win over the log's. */
static void add_facts(struct doctor_numbers *n, const struct doctor_numbers *facts)
{
    for (uint32_t i = 0; i < facts->count; i++) {
        if (!doctor_numbers_find(n, facts->at[i].name))
            doctor_numbers_set(n, facts->at[i].name, facts->at[i].value, facts->at[i].bytes);
    }
}

static int compare(const void *a, const void *b)
{
    const struct doctor_finding *x = a, *y = b;
    if (x->life != y->life)
        return x->life > y->life ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank > y->rank ? -1 : 1;
    return x->first_line < y->first_line ? -1 : x->first_line > y->first_line;
}

/* A general signature whose numbers say what another one is about is told after it: the remedies
 * for memory in pieces come before those for too little of it. */
static void rank(struct doctor_scan *s)
{
    for (uint32_t i = 0; i < s->finding_count; i++)
        s->finding[i].rank = s->finding[i].signature->rank;
    for (uint32_t i = 0; i < s->finding_count; i++) {
        struct doctor_finding *own = &s->finding[i];
        for (uint32_t k = 0; k < s->finding_count; k++) {
            const struct doctor_finding *general = &s->finding[k];
            if (own->signature->cls != DOCTOR_FRAG_OOM || general->cls != DOCTOR_FRAG_OOM ||
                general->signature->cls != DOCTOR_DEVICE_OOM ||
                general->last_line != own->last_line)
                continue;
            add_facts(&own->numbers, &general->numbers);
            if (own->rank <= general->signature->rank)
                own->rank = general->signature->rank + 1;
        }
    }
}

int doctor_scan_finish(struct doctor_scan *s, const struct doctor_finding **ret_findings,
                       uint32_t *ret_count)
{
    if (!ek_buf_ok(&s->rest))
        return -ENOMEM;
    if (s->rest.len > 0)
        scan_line(s, s->rest.data, s->rest.len);
    s->rest.len = 0;
    s->finding_count = 0;
    for (uint32_t i = 0; i < s->catalog->signature_count; i++) {
        if (s->finding[i].count == 0)
            continue;
        struct doctor_finding *f = &s->finding[s->finding_count++];
        if (f != &s->finding[i])
            *f = s->finding[i];
        derive(&f->numbers);
        add_facts(&f->numbers, &s->facts);
        f->cls = doctor_resolve(f->signature->cls, &f->numbers, f->phase);
    }
    rank(s);
    qsort(s->finding, s->finding_count, sizeof(*s->finding), compare);
    *ret_findings = s->finding;
    *ret_count = s->finding_count;
    return 0;
}

uint64_t doctor_scan_lines(const struct doctor_scan *s)
{
    return s->line;
}

uint32_t doctor_scan_lives(const struct doctor_scan *s)
{
    return s->life;
}
