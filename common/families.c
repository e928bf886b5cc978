/*
 * Looking up model classes in the table of families.h, for the loader (server/model/config.c) and
 * the planner of evenkeelctl. The name is looked for as it is, then with its ending replaced by
 * ForCausalLM: a classifier or an encoder has the layers of a family and another output.
 *
 * For a class that is refused, the nearest row is found by edit distance over the part before
 * "For", among rows that share its first word: without that condition "nearest" would name families
 * that have nothing to do with each other.
 */
#include "common/families.h"

#include <ctype.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#define NAME_MOST  64u /* letters that are compared */
#define WORD_LEAST 3u  /* of a first word: Glm, Lfm, Phi */
#define WORD_LOOSE 4u  /* from so many on capitals do not count: LLaMA */

#define CLASS(row, class) class,
static const char *const classes[] = {EK_FAMILIES(CLASS)};
#undef CLASS
#define FAMILIES (sizeof(classes) / sizeof(classes[0]))

static const char *row_named(const char *name)
{
    for (size_t i = 0; i < FAMILIES; i++)
        if (strcmp(classes[i], name) == 0)
            return classes[i];
    return NULL;
}

bool ek_family_loads(const char *name)
{
    return row_named(name) != NULL;
}

/* Classes with the same layers and another output: Qwen3ForSequenceClassification, Qwen3Model; of
 * Gemma 3, whose text part is a class of its own, Gemma3TextModel. */
static const char *families_row_of(const char *name, enum ek_family_use *ret_use)
{
    static const struct {
        const char *ending;
        enum ek_family_use use;
    } others[] = {{"TextForSequenceClassification", EK_FAMILY_CLASSES},
                  {"ForSequenceClassification", EK_FAMILY_CLASSES},
                  {"TextModel", EK_FAMILY_STATES},
                  {"Model", EK_FAMILY_STATES}};
    const char *row = row_named(name);
    size_t len = strlen(name);
    *ret_use = EK_FAMILY_TEXT;
    for (size_t i = 0; !row && i < sizeof(others) / sizeof(others[0]); i++) {
        size_t n = strlen(others[i].ending);
        char text[NAME_MOST + 32];
        if (len <= n || strcmp(name + len - n, others[i].ending) != 0)
            continue;
        (void)snprintf(text, sizeof(text), "%.*sForCausalLM",
                       (int)(len - n < NAME_MOST ? len - n : NAME_MOST), name);
        row = row_named(text);
        *ret_use = others[i].use;
    }
    return row;
}

struct ek_family_name ek_family_of(const json_t *config)
{
    const json_t *list = json_object_get(config, "architectures");
    struct ek_family_name n = {.first = ""};
    for (size_t i = 0; i < json_array_size(list) && !n.family; i++) {
        const char *name = json_string_value(json_array_get(list, i));
        n.family = name ? families_row_of(name, &n.use) : NULL;
        if (name && !*n.first)
            n.first = name;
    }
    return n;
}

/* Letters before what the class is for: Qwen3 of Qwen3ForCausalLM. */
static size_t stem_of(const char *name)
{
    const char *end = strstr(name, "For");
    size_t n = end && end > name ? (size_t)(end - name) : strlen(name);
    return n < NAME_MOST ? n : NAME_MOST;
}

static int families_lower(char c)
{
    return tolower((unsigned char)c);
}

/* Whether a word ends before the n-th letter: at the end, before an underscore, or where a capital
 * follows another letter or a digit follows what is no digit. */
static bool word_ends(const char *name, size_t n, size_t stem)
{
    const unsigned char c = (unsigned char)name[n], before = (unsigned char)name[n - 1];
    return n == stem || c == '_' || (isupper(c) && !isupper(before)) ||
           (isdigit(c) && !isdigit(before));
}

/* Whether both begin with the same word. MiniMax and Ministral do not: in Ministral no word ends
 * behind the letters that they share. */
static bool begin_alike(const char *a, size_t a_len, const char *b, size_t b_len)
{
    for (size_t n = 1;
         n <= a_len && n <= b_len && families_lower(a[n - 1]) == families_lower(b[n - 1]); n++)
        if (n >= (strncmp(a, b, n) == 0 ? WORD_LEAST : WORD_LOOSE) && word_ends(a, n, a_len) &&
            word_ends(b, n, b_len))
            return true;
    return false;
}

/* Letters to insert and remove. */
static uint32_t distance(const char *a, size_t a_len, const char *b, size_t b_len)
{
    uint32_t row[NAME_MOST + 1];
    for (uint32_t k = 0; k <= b_len; k++)
        row[k] = k;
    for (size_t i = 1; i <= a_len; i++) {
        uint32_t corner = row[0];
        row[0] = (uint32_t)i;
        for (size_t k = 1; k <= b_len; k++) {
            const uint32_t one = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;
            const uint32_t next =
                families_lower(a[i - 1]) == families_lower(b[k - 1]) ? corner : one;
            corner = row[k];
            row[k] = next;
        }
    }
    return row[b_len];
}

const char *ek_family_nearest(const char *name)
{
    const char *nearest = NULL;
    const size_t len = stem_of(name);
    size_t best = 0;
    uint32_t least = UINT32_MAX;
    for (size_t i = 0; i < FAMILIES; i++) {
        const size_t n = stem_of(classes[i]);
        if (!begin_alike(name, len, classes[i], n))
            continue;
        const uint32_t d = distance(name, len, classes[i], n);
        if (nearest &&
            (d > least ||
             (d == least && (n > best || (n == best && strcmp(classes[i], nearest) < 0)))))
            continue; /* of those that are as near, the shortest, and the later version */
        nearest = classes[i];
        best = n;
        least = d;
    }
    return nearest;
}
