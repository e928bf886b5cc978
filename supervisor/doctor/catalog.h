/*
 * The signature catalog: what failures look like in logs, what they mean, what helps and what does
 * not. One data file (signatures.yaml) is built in; a site may add its own, whose entries replace
 * those of the same id. evenkeeld classifies by it, evenkeelctl diagnose tells from it.
 *
 * An entry holds examples of the lines that it is for, with the version that wrote them: the test
 * of the catalog (selftest.h) wants each of them named by its own entry and by no other before it.
 *
 * A pattern is a regular expression (PCRE2) with named groups for numbers; `{size}` and `{num}`
 * stand for a size with a unit and for a number. Outside brackets it needs a literal of four
 * characters or more, by which lines are found. Read-only once loaded.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_fault;

enum doctor_lang { LANG_EN, LANG_ZH, LANGS };

enum doctor_class {
    DOCTOR_DEVICE_OOM, /* by its numbers and the phase one of the next three, or CONFIG */
    DOCTOR_STARTUP_OOM,
    DOCTOR_BURST_OOM,
    DOCTOR_FRAG_OOM,
    DOCTOR_PREFIX,
    DOCTOR_HOST_OOM,
    DOCTOR_CONFIG,
    DOCTOR_PORT,
    DOCTOR_DISK,
    DOCTOR_HANG,
    DOCTOR_DEVICE,
    DOCTOR_COMM,
    DOCTOR_OVERLOAD,
    DOCTOR_SIGNAL,
    DOCTOR_BUG,
    DOCTOR_KV_PRESSURE, /* serves on, but the cache is too small for what runs */
    DOCTOR_BUILD,       /* driver, libraries, compilers: what was installed does not go together */
    DOCTOR_FILES,       /* model files, caches: missing, damaged, not as expected, not allowed */
    DOCTOR_CLIENT,      /* the request is wrong, the server is well */
    DOCTOR_LEAK,        /* memory that grows for hours */
    DOCTOR_CLASSES
};

struct doctor_text {
    const char *in[LANGS]; /* neither is NULL; without a translation both are English */
};

/* A flag and the versions of its engine that have it, as engine_version() counts them. */
struct doctor_flag {
    const char *flag, *engine; /* "--swap-space", "vllm" */
    double from, until;        /* 0: always; the first version without it, 0: none */
    const char *instead;       /* or NULL */
    const char *sglang;        /* what SGLang and llama.cpp call it, ... */
    const char *llamacpp;      /* ... NULL: they have nothing like it */
};

struct doctor_remedy {
    const char *flag;  /* "--max-num-seqs", NULL: what to do is no flag */
    const char *value; /* an expression (expr.h) or, after '=', a text; NULL: none */
    const char *when;  /* shown if true; NULL: always */
    struct doctor_text text;
    uint32_t rate;    /* per cent that it helped (dead ends: failed), 0 = no source gives one */
    const char *from; /* the source of the rate, or NULL */
    const struct doctor_flag *known; /* versions of the flag, NULL: all */
};

struct doctor_example {
    const char *version, *log; /* "vLLM 0.11"; lines */
};

struct doctor_signature {
    const char *id;
    enum doctor_class cls;
    uint32_t rank; /* 1..100: a cause outranks what follows from it */
    const char *engines, *versions;
    struct doctor_text title, cause;
    const struct doctor_remedy *remedies, *dead_ends;
    uint32_t remedy_count, dead_end_count;
    const char *const *sources;
    uint32_t source_count;
    const struct doctor_example *examples;
    uint32_t example_count;
    uint32_t times; /* lines of one start, fewer say nothing */
    bool ladder;    /* of memory: what helps begins with the ladder of its class (ladder.h) */
    bool general;   /* words that many programs have, or a headline of several kinds of cause */
    bool final;     /* the same start fails again, whichever of its causes it is */
};

#define DOCTOR_PATTERNS_MOST 4096u /* expressions of a catalog */
#define DOCTOR_ASKS          3
#define DOCTOR_HELPED_MOST   3 /* helps that are told of one failure */

/* What helps against kinds of failure in one program or one of its modules, whichever entry names
 * them: told before an entry's own remedies below rank 60, from it on after them. */
struct doctor_help {
    const char *what; /* "FlashInfer's kernels" */
    uint32_t classes; /* a bit for each enum doctor_class */
    void *code;       /* pcre2_code: what is said, and where it was raised */
    const struct doctor_remedy *remedies;
    uint32_t remedy_count;
    const char *const *sources;
    uint32_t source_count;
};

/* What is said of a log that no entry knows: the kind that its decisive line looks like. */
struct doctor_hint {
    enum doctor_class cls;
    const char *names; /* the entry that it is sure of, NULL: the kind is probable, no more */
    void *code;        /* pcre2_code */
};

enum doctor_pattern_kind {
    PATTERN_FAILURE,
    PATTERN_MORE,  /* numbers for a failure that was seen shortly before */
    PATTERN_CLEAR, /* progress: lines of a failure that are not enough yet are forgotten */
    PATTERN_FACT,  /* numbers that are no failure */
    PATTERN_START, /* a process begins */
    PATTERN_WARM,  /* it warms up: loaded, not ready */
    PATTERN_READY, /* it serves */
    PATTERN_WORKS, /* a request was answered well */
    PATTERN_STOP,  /* it was asked to end */
    PATTERN_EARLY, /* only a start writes this: for logs whose beginning is missing */
    PATTERN_LATE,  /* only a server that serves writes this */
};

struct doctor_pattern {
    enum doctor_pattern_kind kind;
    uint32_t signature; /* of PATTERN_FAILURE, PATTERN_MORE and PATTERN_CLEAR */
    bool quoted;        /* counts within quotes, too */
    const char *text, *literal;
    void *code; /* pcre2_code */
};

struct doctor_catalog {
    const struct doctor_signature *signatures;
    uint32_t signature_count;
    const struct doctor_pattern *patterns;
    uint32_t pattern_count;
    const struct doctor_hint *hints;
    uint32_t hint_count;
    const struct doctor_help *helps;
    uint32_t help_count;
    uint32_t own_helps; /* the first of a site's own, which are asked before the built-in ones */
    /* By class: commands that would tell more. */
    const char *(*asks)[DOCTOR_ASKS];
    struct doctor_literals *words; /* of the patterns' literals in their order, then the marks */
};

/* Lines that the scan looks at besides those of patterns: ids in `words` behind the patterns'. */
enum doctor_mark {
    MARK_ERROR,
    MARK_EXCEPTION,
    MARK_INTERRUPT,
    MARK_FATAL,
    MARK_PANIC,
    MARK_CHECK,
    MARK_WHAT,
    MARK_FRAME,  /* of a traceback */
    MARK_CAUSES, /* a chain of causes follows */
    MARK_WRAPS,  /* an exception follows that was raised from the last */
    MARK_LOUD,   /* from here on: lines that complain without an exception */
};

/* text, len: a site's own file, NULL = only what is built in; `what` names it in faults. 0;
 * -EBADMSG with a fault (line); -ENOMEM. */
int doctor_catalog_new(const char *what, const char *text, size_t len,
                       struct doctor_catalog **ret_catalog, struct ek_fault *fault);
/* Only this text, nothing built in: for tests. */
int doctor_catalog_parse(const char *what, const char *text, size_t len,
                         struct doctor_catalog **ret_catalog, struct ek_fault *fault);
void doctor_catalog_free(struct doctor_catalog *c);
const struct doctor_signature *doctor_catalog_find(const struct doctor_catalog *c, const char *id);
/* "0.11.2": 1102; two digits a part. */
double doctor_version(const char *text, size_t len);
const char *doctor_class_name(enum doctor_class c); /* "STARTUP_OOM" */
/* One sentence: what the class is. */
const char *doctor_class_text(enum doctor_class c, enum doctor_lang lang);

extern const char doctor_builtin[]; /* signatures.yaml, ends with a NUL */
