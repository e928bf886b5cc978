/*
 * The catalog in memory: patterns compiled and indexed by a literal each. See catalog.h; the file's
 * form is read in catalog_yaml.c.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "supervisor/doctor/catalog.h"

#include <errno.h>
#include <pcre2.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/doctor/catalog_yaml.h"
#include "supervisor/doctor/literals.h"
#include "supervisor/doctor/texts.h"

#define LITERAL_LEAST 4
#define LITERAL_MOST  40

static const struct {
    const char *name;
    struct doctor_text text;
} classes[DOCTOR_CLASSES] = {
    [DOCTOR_DEVICE_OOM] = {"DEVICE_OOM", DOCTOR_TEXT(class_device_oom)},
    [DOCTOR_STARTUP_OOM] = {"STARTUP_OOM", DOCTOR_TEXT(class_startup_oom)},
    [DOCTOR_BURST_OOM] = {"BURST_OOM", DOCTOR_TEXT(class_burst_oom)},
    [DOCTOR_FRAG_OOM] = {"FRAG_OOM", DOCTOR_TEXT(class_frag_oom)},
    [DOCTOR_PREFIX] = {"PREFIX", DOCTOR_TEXT(class_prefix)},
    [DOCTOR_HOST_OOM] = {"HOST_OOM", DOCTOR_TEXT(class_host_oom)},
    [DOCTOR_CONFIG] = {"CONFIG", DOCTOR_TEXT(class_config)},
    [DOCTOR_PORT] = {"PORT", DOCTOR_TEXT(class_port)},
    [DOCTOR_DISK] = {"DISK", DOCTOR_TEXT(class_disk)},
    [DOCTOR_HANG] = {"HANG", DOCTOR_TEXT(class_hang)},
    [DOCTOR_DEVICE] = {"DEVICE", DOCTOR_TEXT(class_device)},
    [DOCTOR_COMM] = {"COMM", DOCTOR_TEXT(class_comm)},
    [DOCTOR_OVERLOAD] = {"OVERLOAD", DOCTOR_TEXT(class_overload)},
    [DOCTOR_SIGNAL] = {"SIGNAL", DOCTOR_TEXT(class_signal)},
    [DOCTOR_BUG] = {"BUG", DOCTOR_TEXT(class_bug)},
    [DOCTOR_KV_PRESSURE] = {"KV_PRESSURE", DOCTOR_TEXT(class_kv_pressure)},
    [DOCTOR_BUILD] = {"BUILD", DOCTOR_TEXT(class_build)},
    [DOCTOR_FILES] = {"FILES", DOCTOR_TEXT(class_files)},
    [DOCTOR_CLIENT] = {"CLIENT", DOCTOR_TEXT(class_client)},
    [DOCTOR_LEAK] = {"LEAK", DOCTOR_TEXT(class_leak)},
};

double doctor_version(const char *text, size_t len)
{
    double part[3] = {0};
    for (size_t i = 0, p = 0; i < len && p < 3; i++) {
        if (text[i] >= '0' && text[i] <= '9' && part[p] < 1000)
            part[p] = part[p] * 10 + (text[i] - '0');
        else if (text[i] == '.')
            p++;
        else
            break;
    }
    return part[0] * 10000 + part[1] * 100 + part[2];
}

const char *doctor_class_name(enum doctor_class c)
{
    return (unsigned)c < DOCTOR_CLASSES ? classes[c].name : "UNKNOWN";
}

const char *doctor_class_text(enum doctor_class c, enum doctor_lang lang)
{
    return (unsigned)c < DOCTOR_CLASSES ? classes[c].text.in[lang] : "";
}

/* ---- patterns ---- */

/* The expression with {size} and {num} written out. */
static int catalog_expand(const char *text, struct ek_buf *out)
{
    static const struct {
        const char *name, *means;
    } macros[] = {{"{size}", "[0-9][0-9.,]*\\s?(?:[KMGT]i?B|kB|bytes|[GM])"},
                  {"{num}", "[0-9][0-9,]*(?:\\.[0-9]+)?"}};
    while (*text) {
        size_t m = 0, n = sizeof(macros) / sizeof(macros[0]);
        while (m < n && strncmp(text, macros[m].name, strlen(macros[m].name)) != 0)
            m++;
        (void)(m < n ? ek_buf_puts(out, macros[m].means) : ek_buf_add(out, text, 1));
        text += m < n ? strlen(macros[m].name) : 1;
    }
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

/* Where one element of the expression ends, and the byte that it stands for, 0 = many. */
static const char *element(const char *at, char *ret_byte)
{
    *ret_byte = 0;
    if (*at == '\\' && at[1]) {
        if (strchr(".()[]{}+*?|^$\\/-'\"<>=:", at[1]))
            *ret_byte = at[1];
        return at + 2;
    }
    if (*at == '[') {
        for (at += at[1] == '^' ? 3 : 2; *at && *at != ']'; at++)
            at += *at == '\\' && at[1];
        return *at ? at + 1 : at;
    }
    if (*at == '(') {
        int depth = 0;
        char inside;
        do {
            depth += *at == '(' ? 1 : *at == ')' ? -1 : 0;
            at = *at == '\\' || *at == '[' ? element(at, &inside) : at + 1;
        } while (*at && depth > 0);
        return at;
    }
    if (!strchr(".^$", *at))
        *ret_byte = *at;
    return at + 1;
}

/* The longest literal that every match contains. False if there is none, or several branches. */
static bool find_literal(const char *text, char ret_literal[LITERAL_MOST + 1])
{
    char run[LITERAL_MOST + 1];
    size_t n = 0, best = 0;
    for (const char *at = text;;) {
        char byte = 0;
        bool end = *at == '\0', optional = false, repeated = false;
        if (*at == '|')
            return false;
        if (!end)
            at = element(at, &byte);
        if (!end && *at && strchr("?*+{", *at)) {
            optional = *at != '+';
            repeated = true;
            at += strcspn(at, *at == '{' ? "}" : "?*+") + 1;
            at += *at == '?' || *at == '+';
        }
        if (byte && !optional && n < LITERAL_MOST)
            run[n++] = byte;
        if (end || !byte || repeated || n == LITERAL_MOST) {
            if (n > best) {
                memcpy(ret_literal, run, n);
                best = n;
            }
            n = 0;
        }
        if (end)
            break;
    }
    ret_literal[best] = '\0';
    return best >= LITERAL_LEAST;
}

/* The scan makes machine code of those that it meets; most are never met. */
static int compile(const char *pattern, pcre2_code **ret_code, struct ek_fault *fault)
{
    struct ek_buf text = {0};
    int error = 0;
    PCRE2_SIZE at = 0;
    if (catalog_expand(pattern, &text) < 0) {
        ek_buf_done(&text);
        return -ENOMEM;
    }
    pcre2_code *code =
        pcre2_compile((PCRE2_SPTR)text.data, text.len, PCRE2_NO_AUTO_CAPTURE, &error, &at, NULL);
    ek_buf_done(&text);
    if (!code && error == PCRE2_ERROR_HEAP_FAILED)
        return -ENOMEM;
    if (!code) {
        char said[120] = "";
        (void)pcre2_get_error_message(error, (PCRE2_UCHAR *)said, sizeof(said));
        return ek_fault_set(fault, "re", "'%.200s' is no expression: %s", pattern, said);
    }
    *ret_code = code;
    return 0;
}

int catalog_add_pattern(struct catalog_inside *c, const struct doctor_pattern *p,
                        struct ek_fault *fault)
{
    char literal[LITERAL_MOST + 1];
    pcre2_code *code = NULL;
    if (c->shown.pattern_count == DOCTOR_PATTERNS_MOST)
        return ek_fault_set(fault, "re", "more than %u expressions", DOCTOR_PATTERNS_MOST);
    if (!find_literal(p->text, literal))
        return ek_fault_set(fault, "re",
                            "'%.200s' has no literal of %d characters outside brackets; give one, "
                            "and split what has branches",
                            p->text, LITERAL_LEAST);
    int r = compile(p->text, &code, fault);
    if (r < 0)
        return r;
    char *copy = ek_arena_copy(&c->arena, literal, strlen(literal));
    if (!copy) {
        pcre2_code_free(code);
        return -ENOMEM;
    }
    struct doctor_pattern *to = &c->pattern[c->shown.pattern_count++];
    *to = *p;
    to->literal = copy;
    to->code = code;
    return 0;
}

/* The expression of one more row of a table that has `count` of at most `most`. */
static int compile_next(const char *table, uint32_t count, uint32_t most, const char *text,
                        pcre2_code **ret_code, struct ek_fault *fault)
{
    if (count == most)
        return ek_fault_set(fault, table, "more than %u %s", most, table);
    return compile(text, ret_code, fault);
}

int catalog_add_hint(struct catalog_inside *c, struct doctor_hint hint, const char *text,
                     struct ek_fault *fault)
{
    pcre2_code *code = NULL;
    int r = compile_next("hints", c->hint_count, DOCTOR_HINTS_MOST, text, &code, fault);
    if (r < 0)
        return r;
    hint.code = code;
    c->hint[c->hint_count++] = hint;
    return 0;
}

int catalog_add_help(struct catalog_inside *c, struct doctor_help help, const char *text,
                     struct ek_fault *fault)
{
    pcre2_code *code = NULL;
    int r = compile_next("helps", c->help_count, DOCTOR_HELPS_MOST, text, &code, fault);
    if (r < 0)
        return r;
    help.code = code;
    c->help[c->help_count++] = help;
    return 0;
}

void catalog_drop_patterns(struct catalog_inside *c, uint32_t signature)
{
    uint32_t kept = 0;
    for (uint32_t i = 0; i < c->shown.pattern_count; i++) {
        const struct doctor_pattern *p = &c->pattern[i];
        bool of =
            (p->kind == PATTERN_FAILURE || p->kind == PATTERN_MORE || p->kind == PATTERN_CLEAR) &&
            p->signature == signature;
        if (of)
            pcre2_code_free(p->code);
        else
            c->pattern[kept++] = *p;
    }
    c->shown.pattern_count = kept;
}

/* ---- the whole ---- */

static int index_words(struct catalog_inside *c, struct ek_fault *fault)
{
    static const char *const marks[] = {[MARK_ERROR] = "Error",
                                        [MARK_EXCEPTION] = "Exception",
                                        [MARK_INTERRUPT] = "error:",
                                        [MARK_FATAL] = "atal",
                                        [MARK_PANIC] = "panic",
                                        [MARK_CHECK] = "Check failed",
                                        [MARK_WHAT] = "what(): ",
                                        [MARK_FRAME] = "File \"",
                                        [MARK_CAUSES] = "Caused by:",
                                        [MARK_WRAPS] = "direct cause of the following exception",
                                        [MARK_LOUD] = "ERROR",
                                        "CRITICAL",
                                        "WARN ",
                                        " failed",
                                        "Failed",
                                        "error",
                                        "ASSERT",
                                        "Aborted",
                                        "fault",
                                        "Killed",
                                        "annot ",
                                        "nable to ",
                                        "not found",
                                        "refused",
                                        "ould not ",
                                        "ailure",
                                        "timed out",
                                        "got stuck",
                                        "page fault",
                                        "nvalid ",
                                        "ismatch",
                                        "<title>50",
                                        "exceeded",
                                        " silent",
                                        "stalled",
                                        "ot permitted",
                                        "has no attribute",
                                        "required positional",
                                        ".cpp:",
                                        ".cc:"};
    const uint32_t count = c->shown.pattern_count;
    const uint32_t all = count + sizeof(marks) / sizeof(marks[0]);
    const char **texts = calloc(all, sizeof(*texts));
    if (!texts)
        return -ENOMEM;
    for (uint32_t i = 0; i < count; i++)
        texts[i] = c->pattern[i].literal;
    memcpy(texts + count, marks, sizeof(marks));
    int r = doctor_literals_new(texts, all, &c->shown.words);
    free(texts);
    if (r == -ENOMEM)
        return r;
    return r < 0 ? ek_fault_set(fault, "re", "too many expressions") : 0;
}

static int check_hints(const struct catalog_inside *c, struct ek_fault *fault)
{
    for (uint32_t i = 0; i < c->hint_count; i++) {
        const char *id = c->hint[i].names;
        if (id && !doctor_catalog_find(&c->shown, id))
            return ek_fault_set(fault, "hints", "a hint names '%.100s', which is no entry", id);
    }
    return 0;
}

static int load(const char *const what[2], const char *const text[2], const size_t len[2],
                struct doctor_catalog **ret_catalog, struct ek_fault *fault)
{
    struct catalog_inside *c = calloc(1, sizeof(*c));
    int r = c ? 0 : -ENOMEM;
    for (int i = 0; i < 2 && r == 0; i++) {
        if (text[i])
            r = catalog_read(c, what[i], text[i], len[i], fault);
        if (i == 0)
            c->shown.own_helps = c->help_count;
    }
    if (r == 0) {
        c->shown.signatures = c->signature;
        r = check_hints(c, fault);
    }
    if (r == 0)
        r = index_words(c, fault);
    if (r < 0) {
        doctor_catalog_free(c ? &c->shown : NULL);
        return r;
    }
    c->shown.patterns = c->pattern;
    c->shown.hints = c->hint;
    c->shown.hint_count = c->hint_count;
    c->shown.helps = c->help;
    c->shown.help_count = c->help_count;
    c->shown.asks = c->ask;
    *ret_catalog = &c->shown;
    return 0;
}

int doctor_catalog_new(const char *what, const char *text, size_t len,
                       struct doctor_catalog **ret_catalog, struct ek_fault *fault)
{
    return load((const char *const[2]){"the built-in catalog", what},
                (const char *const[2]){doctor_builtin, text},
                (const size_t[2]){strlen(doctor_builtin), len}, ret_catalog, fault);
}

int doctor_catalog_parse(const char *what, const char *text, size_t len,
                         struct doctor_catalog **ret_catalog, struct ek_fault *fault)
{
    return load((const char *const[2]){what, NULL}, (const char *const[2]){text, NULL},
                (const size_t[2]){len, 0}, ret_catalog, fault);
}

void doctor_catalog_free(struct doctor_catalog *shown)
{
    struct catalog_inside *c = (struct catalog_inside *)shown; /* its first member */
    if (!c)
        return;
    for (uint32_t i = 0; i < c->shown.pattern_count; i++)
        pcre2_code_free(c->pattern[i].code);
    for (uint32_t i = 0; i < c->hint_count; i++)
        pcre2_code_free(c->hint[i].code);
    for (uint32_t i = 0; i < c->help_count; i++)
        pcre2_code_free(c->help[i].code);
    doctor_literals_free(c->shown.words);
    ek_arena_done(&c->arena);
    free(c);
}

const struct doctor_signature *doctor_catalog_find(const struct doctor_catalog *c, const char *id)
{
    for (uint32_t i = 0; i < c->signature_count; i++) {
        if (strcmp(c->signatures[i].id, id) == 0)
            return &c->signatures[i];
    }
    return NULL;
}
