/*
 * What `evenkeelctl diagnose` says about a log: pure writers over the scan's findings. Text for a
 * terminal, Markdown for a ticket, JSON for programs, each in English or Chinese; and the catalog
 * itself as a list, one entry, or the page docs/signatures.md.
 */
#pragma once

#include <jansson.h>
#include <stdbool.h>

#include "supervisor/doctor/scan.h"

struct ek_buf;

enum diagnose_form { DIAGNOSE_TEXT, DIAGNOSE_MARKDOWN };

struct diagnose_report {
    const char *source; /* a path, "standard input" */
    uint64_t bytes, lines;
    uint32_t lives;
    const struct doctor_finding *findings;
    uint32_t count;
    uint32_t most; /* findings told in full */
    struct doctor_decisive decisive;
    const struct doctor_catalog *catalog; /* for what to ask where nothing is known */
};

struct diagnose_style {
    enum doctor_lang lang;
    enum diagnose_form form;
    bool colour;
};

/* Three commands that would tell more of such a failure; DOCTOR_CLASSES: of one of no known kind.
 */
const char *const *diagnose_asks(const struct diagnose_report *r, enum doctor_class kind);
void diagnose_write(const struct diagnose_report *r, const struct diagnose_style *style,
                    struct ek_buf *out);
/* NULL when out of memory. */
json_t *diagnose_json(const struct diagnose_report *r, enum doctor_lang lang);

void diagnose_list(const struct doctor_catalog *c, enum doctor_lang lang, struct ek_buf *out);
void diagnose_explain(const struct doctor_signature *s, const struct diagnose_style *style,
                      struct ek_buf *out);
/* The catalog's examples: which are not named by their own entry, and the kinds that they are taken
 * for. ret_wrong: how many, and entries without any. 0, or negative when out of memory. */
int diagnose_test(const struct doctor_catalog *c, struct ek_buf *out, uint32_t *ret_wrong);
/* The generated part of docs/signatures.md. */
void diagnose_page(const struct doctor_catalog *c, struct ek_buf *out);
