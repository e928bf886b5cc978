/*
 * Reads what evenkeel-server printed under --dry-run: refused or not, its sentence, and the figures
 * of the plan as a ladder needs them. servers/repair.c and prove.c and reload.c run the program
 * (io/subprocess.h) and ask here. Only flags of evenkeel-server are understood; dry_answer_can()
 * says whether a command line is one.
 */
#include "supervisor/law/dry_answer.h"

#include <jansson.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "supervisor/law/remedy.h"

#define GIB 1073741824.0

bool dry_answer_can(char *const *argv)
{
    const char *base = argv && argv[0] ? strrchr(argv[0], '/') : NULL;
    base = base ? base + 1 : argv && argv[0] ? argv[0] : "";
    return strcmp(base, "evenkeel-server") == 0;
}

bool dry_answer_refused(int status)
{
    return status == EK_EXIT_USAGE || status == EK_EXIT_CONFIG || status == EK_EXIT_NO_FIT;
}

void dry_answer_sentence(const char *text, char *ret_said, size_t size)
{
    static const char *const marks[] = {"evenkeel-server error: ", "evenkeel-server: "};
    const char *found = NULL;
    for (size_t i = 0; i < sizeof(marks) / sizeof(marks[0]); i++) {
        for (const char *at = text; (at = strstr(at, marks[i]));) {
            at += strlen(marks[i]);
            if (!found || at > found)
                found = at;
        }
    }
    found = found ? found : "";
    (void)snprintf(ret_said, size, "%.*s", (int)strcspn(found, "\n"), found);
}

static uint32_t count_of(const json_t *root, const char *key)
{
    json_int_t v = json_integer_value(json_object_get(root, key));
    return v > 0 && v <= UINT32_MAX ? (uint32_t)v : 0;
}

static bool parse(const char *text, size_t len, struct remedy_facts *ret_facts)
{
    const char *begin = memchr(text, '{', len); /* warnings may stand before it */
    json_t *root =
        begin ? json_loadb(begin, len - (size_t)(begin - text), JSON_DISABLE_EOF_CHECK, NULL)
              : NULL;
    json_int_t bytes = json_integer_value(json_object_get(root, "total_bytes"));
    double swap = json_number_value(json_object_get(json_object_get(root, "bytes"), "swap_pool"));
    bool good = bytes > 0;
    if (good)
        *ret_facts = (struct remedy_facts){
            .known = true,
            .fits = true,
            .bytes = (uint64_t)bytes,
            .plans = {.tokens = count_of(root, "max_num_batched_tokens"),
                      .seqs = count_of(root, "max_num_seqs"),
                      .share = json_number_value(json_object_get(root, "utilization")),
                      .swap_gib = swap > 0 ? swap / GIB : 0}};
    json_decref(root);
    return good;
}

void dry_answer_plan(int status, const char *text, size_t len, struct remedy_facts *ret_facts)
{
    *ret_facts = (struct remedy_facts){0};
    if (status == EK_EXIT_OK)
        (void)parse(text, len, ret_facts); /* what is none says nothing */
    else if (status == EK_EXIT_NO_FIT || status == EK_EXIT_USAGE)
        ret_facts->known = true;
}
