/* Any bytes as a log and, up to the first NUL, as a site's catalog: read without harm, and what is
 * found can be told in both languages and as JSON. */
#include <assert.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/ctl/diagnose.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static struct doctor_catalog *builtin(void)
{
    static struct doctor_catalog *c;
    if (!c) {
        int r = doctor_catalog_new(NULL, NULL, 0, &c, NULL);
        assert(r == 0);
    }
    return c;
}

static void scan(const struct doctor_catalog *c, const char *text, size_t len)
{
    struct doctor_scan *s;
    struct diagnose_report r = {.source = "fuzz", .most = 100};
    if (doctor_scan_new(c, &s) < 0)
        return;
    doctor_scan_feed(s, text, len / 2);
    doctor_scan_feed(s, text + len / 2, len - len / 2);
    if (doctor_scan_finish(s, &r.findings, &r.count) == 0) {
        struct ek_buf out = {0};
        r.catalog = c;
        r.decisive = doctor_scan_decisive(s);
        for (int lang = 0; lang < LANGS; lang++) {
            struct diagnose_style style = {(enum doctor_lang)lang,
                                           lang ? DIAGNOSE_MARKDOWN : DIAGNOSE_TEXT, false};
            diagnose_write(&r, &style, &out);
            json_t *j = diagnose_json(&r, (enum doctor_lang)lang);
            assert(j);
            json_decref(j);
        }
        ek_buf_done(&out);
    }
    doctor_scan_free(s);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    const char *text = (const char *)data;
    struct doctor_catalog *own = NULL;
    struct ek_fault fault = {0};
    const char *nul = memchr(text, '\0', size);
    scan(builtin(), text, size);
    if (nul && doctor_catalog_parse("own", text, (size_t)(nul - text), &own, &fault) == 0) {
        scan(own, nul, size - (size_t)(nul - text));
        doctor_catalog_free(own);
    }
    return 0;
}
