/* What the tests of the scan share: the built-in catalog, and a log that is read through it. */
#pragma once

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/doctor/scan.h"

#define READY "INFO:     Application startup complete.\n"

static struct doctor_catalog *catalog;

static inline int open_catalog(void **state)
{
    (void)state;
    return doctor_catalog_new(NULL, NULL, 0, &catalog, NULL);
}

static inline int close_catalog(void **state)
{
    (void)state;
    doctor_catalog_free(catalog);
    return 0;
}

struct scanned {
    struct doctor_scan *scan; /* doctor_scan_free() */
    const struct doctor_finding *f;
    uint32_t count;
};

/* In pieces of `piece` bytes: a line may be cut anywhere. */
static inline struct scanned scan_pieces(const char *text, size_t piece)
{
    struct scanned s = {0};
    size_t len = strlen(text);
    assert_int_equal(doctor_scan_new(catalog, &s.scan), 0);
    for (size_t at = 0; at < len; at += piece)
        doctor_scan_feed(s.scan, text + at, len - at < piece ? len - at : piece);
    assert_int_equal(doctor_scan_finish(s.scan, &s.f, &s.count), 0);
    return s;
}
