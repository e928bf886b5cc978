/*
 * Commands with options of their own: `evenkeelctl VERB [OPTION]... [WORD]`. A verb is a table of
 * options (from which come the flags, --help and the man page), a sentence, and a function. The
 * small commands that ask evenkeeld one thing are in args.c.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

#include "common/options.h"

struct ek_buf;

struct verb {
    const char *name;
    const char *word;  /* what may stand behind it, "[LOG]"; NULL: nothing */
    const char *words; /* those that may, separated by |; NULL: any, or a file */
    const char *about; /* one line of --help */
    const char *help;  /* a paragraph */
    const struct ek_opt *options;
    size_t options_bytes; /* of the struct that they are read into, which is zeroed first */
    /* `options` is that struct, `word` what stood behind the verb, NULL = nothing. An exit code. */
    int (*run)(void *options, char *word);
};

/* The verb that the command line's first word names, NULL if it is none. Options may stand before
 * it: it is moved to argv[1]; a --socket there is taken out if the verb asks no evenkeeld. */
const struct verb *verb_find(int *argc, char **argv);
const struct verb *verb_at(uint32_t i); /* NULL behind the last */
/* One line each, for evenkeelctl --help. */
void verb_list(struct ek_buf *out);
/* Help of one verb, for people. */
void verb_help(const struct verb *v, struct ek_buf *out);
/* All verbs as parts of the man page (roff) or of docs/options.md. */
void verb_print(enum ek_opt_format format, struct ek_buf *out);
/* Reads what stands behind the verb, argv[0], and runs it, or prints its help or what is wrong. An
 * exit code. */
int verb_run(const struct verb *v, int argc, char **argv);
/* Writes and frees the text. An exit code. */
int verb_print_buf(struct ek_buf *out);

extern const struct verb verb_top, verb_diagnose;
extern const struct verb verb_plan, verb_preflight, verb_recover, verb_setup;
extern const struct verb verb_snippet;
extern const struct verb verb_events, verb_oom;
extern const struct verb verb_bundle, verb_debug, verb_postmortem;
extern const struct verb verb_bench_fit;
extern const struct verb verb_remedies;
