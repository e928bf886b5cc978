/* Reading the catalog's YAML: what the loader in catalog.c and the reader share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "supervisor/doctor/catalog.h"

#define DOCTOR_SIGNATURES_MOST 512u
#define DOCTOR_FLAGS_MOST      256u
#define DOCTOR_HINTS_MOST      512u
#define DOCTOR_HELPS_MOST      256u
#define DOCTOR_FILE_MOST       (1u << 20)

struct ek_fault;

struct catalog_inside {
    struct doctor_catalog shown; /* first */
    struct ek_arena arena;
    struct doctor_signature signature[DOCTOR_SIGNATURES_MOST];
    struct doctor_pattern pattern[DOCTOR_PATTERNS_MOST];
    struct doctor_flag flag[DOCTOR_FLAGS_MOST];
    uint32_t flag_count;
    struct doctor_hint hint[DOCTOR_HINTS_MOST];
    uint32_t hint_count;
    struct doctor_help help[DOCTOR_HELPS_MOST];
    uint32_t help_count;
    const char *ask[DOCTOR_CLASSES + 1][DOCTOR_ASKS]; /* the last: of any class */
};

/* Adds what the text holds; entries of an id that is there replace it. Codes as
 * doctor_catalog_new(). */
int catalog_read(struct catalog_inside *c, const char *what, const char *text, size_t len,
                 struct ek_fault *fault);
/* Compiles one pattern and adds it. -EBADMSG with a fault without a place. */
int catalog_add_pattern(struct catalog_inside *c, const struct doctor_pattern *p,
                        struct ek_fault *fault);
/* Compiles an expression for the decisive line of a log that is not known. Codes as above. */
int catalog_add_hint(struct catalog_inside *c, struct doctor_hint hint, const char *text,
                     struct ek_fault *fault);
/* Compiles the expression of a help and adds it. Codes as above. */
int catalog_add_help(struct catalog_inside *c, struct doctor_help help, const char *text,
                     struct ek_fault *fault);
/* Drops the patterns of a signature. */
void catalog_drop_patterns(struct catalog_inside *c, uint32_t signature);
