/*
 * Finds what helps a failure from the table `helps` of the catalog. An expression there sees the
 * id of the entry and the program, the lines that it was found by, then "@", ">" and "<" with the
 * frames of hint.h, each on a line of its own. scan.c asks at the end of a log; advise.c tells
 * them.
 */
#define PCRE2_CODE_UNIT_WIDTH 8
#include "supervisor/doctor/help.h"

#include <pcre2.h>
#include <stdio.h>

#include "supervisor/doctor/hint.h"
#include "supervisor/doctor/tell.h"

#define HELP_ID   160
#define HELP_TEXT (HELP_ID + HELP_LINES * TRACE_TEXT + DOCTOR_HINT_TEXT + 16)

static size_t put(char text[HELP_TEXT], size_t at, const char *said)
{
    int n = snprintf(text + at, HELP_TEXT - at, "%s\n", said);
    return n > 0 && (size_t)n < HELP_TEXT - at ? at + (size_t)n : at;
}

/* The entry, the program, and whether it was loading a model: "cuda-oom $vllm $loading". */
static size_t put_program(char text[HELP_TEXT], const struct help_question *of)
{
    static const char *const engines[] = {"vllm",   "sglang", "llamacpp",
                                          "ollama", "trtllm", "lmdeploy"};
    char line[HELP_ID];
    int n = snprintf(line, sizeof(line), "%.80s", of->id);
    for (size_t i = 0; i < sizeof(engines) / sizeof(engines[0]); i++)
        if (n > 0 && doctor_is_of(engines[i], of->numbers))
            n += snprintf(line + n, sizeof(line) - (size_t)n, " $%s", engines[i]);
    double loading = 0;
    if (n > 0 && doctor_numbers_lookup(of->numbers, "is_loading", &loading) && loading > 0)
        n += snprintf(line + n, sizeof(line) - (size_t)n, " $loading");
    return put(text, 0, line);
}

uint32_t doctor_help_find(const struct doctor_catalog *c, const struct help_question *of,
                          void *match, void *context,
                          const struct doctor_help *ret_helps[DOCTOR_HELPED_MOST])
{
    char text[HELP_TEXT];
    uint32_t count = 0;
    size_t len = put_program(text, of);
    for (uint32_t i = 0; i < of->said_count; i++)
        len = put(text, len, of->said[i]);
    if (of->raised) {
        char raised[DOCTOR_HINT_TEXT];
        doctor_hint_text(of->raised, raised);
        len = put(text, len, raised);
    }
    for (uint32_t i = 0; i < c->help_count && count < DOCTOR_HELPED_MOST; i++) {
        const struct doctor_help *h = &c->helps[(c->own_helps + i) % c->help_count];
        bool fits = (h->classes >> of->cls & 1) != 0;
        if (fits && pcre2_match(h->code, (PCRE2_SPTR)text, len, 0, 0, match, context) >= 0)
            ret_helps[count++] = h;
    }
    return count;
}
