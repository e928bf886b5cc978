/*
 * Options from one table: from a row come the flag (kebab and snake spelling), the key in the YAML
 * file, --help, the range check, the control endpoint and the man page. A value is set by the
 * command line, else by the file named by --config, else by the row's default.
 *
 * Lists (OPT_LIST) may be given several times, with several words, or as a YAML sequence. Integers
 * accept the suffixes k, K, m, M, g, G with vLLM's meaning (k = 1000, K = 1024, 25.6k = 25600).
 * `--no-NAME` clears an OPT_BOOL. An unknown flag is an error that names the nearest one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_buf;
struct ek_fault;

enum ek_opt_type {
    OPT_BOOL,     /* bool */
    OPT_UINT,     /* uint64_t, range min..max */
    OPT_INT,      /* int64_t, range min..max */
    OPT_FRACTION, /* double, range min..max */
    OPT_SECONDS,  /* double, range min..max; "30", "1.5", "10m", "2h" */
    OPT_STRING,   /* char *, NULL when unset */
    OPT_CHOICE,   /* char *, one of `choices` (separated by '|') */
    OPT_LIST,     /* struct ek_strings */
    OPT_IGNORED,  /* accepted, warns with `help`; takes a value unless `choices` is "flag" */
};

struct ek_strings {
    char **at;
    size_t count;
};

struct ek_opt {
    const char *name;  /* as in vLLM, kebab case, without dashes; NULL ends the table */
    const char *alias; /* a second spelling or a short flag ("tp" for -tp), NULL if none */
    enum ek_opt_type type;
    size_t at; /* offsetof in the option struct; unused for OPT_IGNORED */
    double min, max;
    const char *def; /* as one would type it; NULL = zero / unset */
    const char *choices;
    bool auto_ok;      /* "auto" and "-1" are accepted and stored as 0 */
    const char *group; /* heading in --help and the man page; set on the first row of a group */
    const char *help;
};

/* Called for each accepted-but-ignored flag and similar remarks. */
typedef void (*ek_opt_warn_fn)(void *ctx, const char *msg);

struct ek_opt_source {
    const struct ek_opt *table;
    void *into; /* the option struct; zeroed by the caller, strings are owned by it */
    ek_opt_warn_fn warn;
    void *warn_ctx;
    uint8_t *given; /* [rows of table] caller's array: 1 by file, 2 by command line; may be NULL */
};

/* Fills in the defaults, then the file of --config (if the table has a row "config"), then argv.
 * Returns 0; -EBADMSG with fault (field = flag, at = line in the file or 0); -ENOMEM.
 * Positional arguments are refused unless `positional` is given: then the first goes there. */
int ek_opt_parse(const struct ek_opt_source *src, int argc, char **argv, char **positional,
                 struct ek_fault *fault);

/* Sets one row from text, with the row's range check. */
int ek_opt_set(const struct ek_opt_source *src, const char *name, const char *text,
               struct ek_fault *fault);

/* Reads a flat YAML mapping NAME: VALUE from memory; `what` names it in faults (a path). */
int ek_opt_yaml(const struct ek_opt_source *src, const char *what, const char *text, size_t len,
                struct ek_fault *fault);

/* What libyaml says of a file that is no YAML (NULL = nothing), for people. */
const char *ek_yaml_problem(const char *problem);

/* Letters to change, add or leave out; SIZE_MAX for a word too long to be a slip. */
size_t ek_edit_distance(const char *a, const char *b);
/* The nearest row by edit distance, NULL if none is near. */
const struct ek_opt *ek_opt_nearest(const struct ek_opt *table, const char *name);

/* Whether a word of a command line is this flag (kebab case with its dashes, "--max-num-seqs"), in
 * either spelling ("--max_num_seqs" as vLLM's parser takes it), alone or as FLAG=VALUE. *ret_value
 * (may be NULL) is what follows the '=', else NULL. */
bool ek_opt_is(const char *word, const char *flag, const char **ret_value);

/* The value of `flag VALUE` or `flag=VALUE` among these words, the last one; NULL if there is none.
 * They end after `count` or with a NULL; NULL for no words at all. */
const char *ek_opt_last(char *const *words, size_t count, const char *flag);

/* A number as a count is typed: with a suffix or without; false for what is none. */
bool ek_opt_count(const char *text, double *ret_value);

void ek_opt_free(const struct ek_opt *table, void *into);

/* Text for --help (plain), for man pages (roff, one .TP a row), for a commented YAML file and for
 * a Markdown table. */
enum ek_opt_format { EK_OPT_HELP, EK_OPT_ROFF, EK_OPT_YAML, EK_OPT_MARKDOWN };
int ek_opt_write(const struct ek_opt *table, enum ek_opt_format format, struct ek_buf *out);
/* The same, and says which rows may change while the program runs: those for whose name is_live is
 * true. */
int ek_opt_write_live(const struct ek_opt *table, enum ek_opt_format format,
                      bool (*is_live)(const char *name), struct ek_buf *out);
/* What --print-options takes: EK_OPT_FORMATS; NULL and others are Markdown. */
#define EK_OPT_FORMATS "markdown|roff|yaml"
enum ek_opt_format ek_opt_format(const char *name);
