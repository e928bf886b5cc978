/*
 * `evenkeelctl diagnose --test`: what the catalog makes of its own examples (diagnose.h). Called by
 * verb_diagnose.c.
 */
#include <stdlib.h>

#include "common/buf.h"
#include "supervisor/ctl/diagnose.h"
#include "supervisor/doctor/selftest.h"

struct matrix {
    uint32_t kinds[DOCTOR_CLASSES][DOCTOR_CLASSES + 1]; /* the last: not named */
    uint32_t examples, wrong, entries, bare;
    const struct doctor_signature *last;
    struct ek_buf *out;
};

static void diagnose_test_note(void *ctx, const struct selftest_result *r)
{
    struct matrix *m = ctx;
    m->entries += r->of != m->last;
    m->last = r->of;
    m->examples++;
    m->kinds[r->of->cls][r->named ? r->named->cls : DOCTOR_CLASSES]++;
    if (r->right)
        return;
    m->wrong++;
    (void)ek_buf_printf(m->out, "%s: an example of %s is named %s: %s\n", r->of->id,
                        r->example->version, r->named ? r->named->id : "by nothing",
                        r->example->log);
}

/* A row a kind: how many of its examples were named as which kind. */
static void put_matrix(const struct matrix *m, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "%-12s %9s %9s  %s\n", "kind", "examples", "its own", "as another");
    for (uint32_t i = 0; i < DOCTOR_CLASSES; i++) {
        uint32_t all = 0;
        for (uint32_t k = 0; k <= DOCTOR_CLASSES; k++)
            all += m->kinds[i][k];
        if (all == 0)
            continue;
        (void)ek_buf_printf(out, "%-12s %9u %9u ", doctor_class_name((enum doctor_class)i), all,
                            m->kinds[i][i]);
        for (uint32_t k = 0; k <= DOCTOR_CLASSES; k++) {
            if (k != i && m->kinds[i][k])
                (void)ek_buf_printf(out, " %s %u",
                                    k < DOCTOR_CLASSES ? doctor_class_name((enum doctor_class)k)
                                                       : "nothing",
                                    m->kinds[i][k]);
        }
        (void)ek_buf_puts(out, "\n");
    }
}

int diagnose_test(const struct doctor_catalog *c, struct ek_buf *out, uint32_t *ret_wrong)
{
    struct matrix *m = calloc(1, sizeof(*m));
    int r = m ? 0 : -1;
    if (m) {
        m->out = out;
        r = doctor_selftest(c, diagnose_test_note, m);
    }
    for (uint32_t i = 0; r == 0 && i < c->signature_count; i++) {
        if (c->signatures[i].example_count > 0)
            continue;
        m->bare++;
        (void)ek_buf_printf(out, "%s: has no example\n", c->signatures[i].id);
    }
    if (r == 0) {
        put_matrix(m, out);
        (void)ek_buf_printf(out, "%u entries, %u examples, %u not named by their own entry\n",
                            c->signature_count, m->examples, m->wrong);
        *ret_wrong = m->wrong + m->bare;
    }
    free(m);
    return r;
}
