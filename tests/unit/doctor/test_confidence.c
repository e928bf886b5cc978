/*
 * Which names are told as sure and which as probable: by where the evidence stands, whatever it
 * says.
 */
#include <stdio.h>

#include "tests/unit/doctor/scanned.h"

#define BEGIN   "INFO 11-20 09:50:00 [api_server.py:1] vLLM API server version 0.11.0\n"
#define STOP    "INFO 11-20 10:50:00 [launcher.py:1] Shutting down FastAPI HTTP server.\n"
#define ALLOC   "ggml_gallocr_reserve_n: failed to allocate CUDA0 buffer of size 8896122880\n"
#define PORT    "OSError: [Errno 98] Address already in use\n"
#define REFUSES "[2026-11-20 10:00:00 TP0] Kelp is not compatible with weed.\n"
#define ANSWER  "INFO:     10.0.0.7:40212 - \"POST /v1/completions HTTP/1.1\" 200 OK\n"
#define WEED    "AttributeError: 'Kelp' object has no attribute 'weed'\n"

struct told {
    const char *begin, *said; /* then `more` lines that say nothing */
    unsigned more;
    bool probable;
};

static void assert_told(const struct told *t)
{
    char text[4096] = "";
    size_t len = (size_t)snprintf(text, sizeof(text), "%s%s", t->begin, t->said);
    for (unsigned i = 0; i < t->more; i++)
        len += (size_t)snprintf(text + len, sizeof(text) - len,
                                "INFO 11-20 09:51:00 [loader.py:1] Layer %u is there.\n", i);
    struct scanned s = scan_pieces(text, len);
    assert_true(s.count > 0 && s.f[0].explains);
    if (s.f[0].probable != t->probable)
        fail_msg("%s is told as %s after %u more lines of:\n%s", s.f[0].signature->id,
                 t->probable ? "sure" : "probable", t->more, text);
    doctor_scan_free(s.scan);
}

static void test_where_it_stands(void **state)
{
    (void)state;
    static const struct told cases[] = {
        {"", PORT, 0, false},               /* an entry's own words, in an exception */
        {BEGIN, PORT, 40, false},           /* ... whatever comes after it */
        {"", WEED, 0, true},                /* words that every program has */
        {BEGIN, ALLOC, 0, false},           /* an entry's own words end the log */
        {BEGIN, ALLOC, 19, false},          /* ... or all but end it */
        {BEGIN, ALLOC, 20, true},           /* the start went on */
        {BEGIN READY, ALLOC, 40, false},    /* a server that serves goes on after each failure */
        {BEGIN READY STOP, ALLOC, 0, true}, /* it was told to stop */
        {BEGIN READY STOP, PORT, 0, false},
        {BEGIN, ALLOC BEGIN, 30, false}, /* another start, which says nothing of the first */
        {BEGIN READY, REFUSES, 0, false},
        {BEGIN READY, REFUSES ANSWER, 0, true}, /* it went on and answered */
        {BEGIN READY ANSWER, REFUSES, 0, false},
        {BEGIN READY, REFUSES BEGIN ANSWER, 0, false}, /* another process did */
        {BEGIN READY, "ValueError: " REFUSES ANSWER, 0, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        assert_told(&cases[i]);
}

/* That it is decisive raises no general entry above one that knows the cause. */
static void test_general_gains_nothing(void **state)
{
    (void)state;
    static const char own[] = "signatures:\n"
                              "- id: own-weed\n  class: HANG\n  rank: 98\n  general: %s\n"
                              "  re: ['weed stands still']\n  title: Weed\n  cause: Weed.\n"
                              "  do: ['Wait.']\n  sources: ['here']\n"
                              "- id: own-kelp\n  class: DISK\n  rank: 99\n"
                              "  re: ['kelp is full']\n  title: Kelp\n  cause: Kelp.\n"
                              "  do: ['Wait.']\n  sources: ['here']\n";
    struct doctor_catalog *builtin = catalog;
    for (int general = 0; general < 2; general++) {
        char text[1024];
        int len = snprintf(text, sizeof(text), own, general ? "true" : "false");
        assert_int_equal(doctor_catalog_new("own", text, (size_t)len, &catalog, NULL), 0);
        static const char log[] = "ERROR kelp is full\nKelpError: weed stands still\n";
        struct scanned s = scan_pieces(log, sizeof(log));
        assert_string_equal(s.f[0].signature->id, general ? "own-kelp" : "own-weed");
        doctor_scan_free(s.scan);
        doctor_catalog_free(catalog);
    }
    catalog = builtin;
}

/* A site's own entry may be of words that many programs have, too. */
static void test_general_entry(void **state)
{
    (void)state;
    static const char own[] = "signatures:\n"
                              "- id: own-kelp\n  class: HANG\n  rank: 99\n  general: true\n"
                              "  re: ['kelp stands still']\n  title: Kelp\n  cause: Kelp.\n"
                              "  do: ['Wait.']\n  sources: ['here']\n"
                              "  examples:\n  - {version: all, log: 'kelp stands still'}\n";
    struct doctor_catalog *builtin = catalog;
    assert_int_equal(doctor_catalog_new("own", own, sizeof(own) - 1, &catalog, NULL), 0);
    assert_told(&(struct told){"", "ERROR kelp stands still\n", 0, true});
    assert_told(&(struct told){"", "KelpError: kelp stands still\n", 0, true});
    doctor_catalog_free(catalog);
    catalog = builtin;
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_where_it_stands),
                                       cmocka_unit_test(test_general_gains_nothing),
                                       cmocka_unit_test(test_general_entry)};
    return cmocka_run_group_tests(tests, open_catalog, close_catalog);
}
