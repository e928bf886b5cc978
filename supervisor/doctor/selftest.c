/*
 * Scans each example of the catalog and reports which signature named it; `evenkeelctl diagnose
 * --test` prints that and tests/unit/doctor/test_catalog.c holds it. An example is a whole log, so
 * order and precedence among signatures are tested with it.
 */
#include "supervisor/doctor/selftest.h"

#include <string.h>

#include "supervisor/doctor/scan.h"

static int try_one(const struct doctor_catalog *c, struct selftest_result *r)
{
    struct doctor_scan *s = NULL;
    const struct doctor_finding *f = NULL;
    uint32_t count = 0;
    int e = doctor_scan_new(c, &s);
    if (e < 0)
        return e;
    doctor_scan_feed(s, r->example->log, strlen(r->example->log));
    e = doctor_scan_finish(s, &f, &count);
    r->named = e == 0 && count > 0 ? f[0].signature : NULL;
    r->right = r->named == r->of;
    doctor_scan_free(s);
    return e;
}

int doctor_selftest(const struct doctor_catalog *c,
                    void (*fn)(void *ctx, const struct selftest_result *r), void *ctx)
{
    int e = 0;
    for (uint32_t i = 0; i < c->signature_count && e == 0; i++) {
        const struct doctor_signature *s = &c->signatures[i];
        for (uint32_t k = 0; k < s->example_count && e == 0; k++) {
            struct selftest_result r = {.of = s, .example = &s->examples[k]};
            e = try_one(c, &r);
            if (e == 0)
                fn(ctx, &r);
        }
    }
    return e;
}
