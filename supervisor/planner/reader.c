/*
 * Helpers of shape.c, vectors.c and hybrid.c: a number under the first of several spellings that is
 * there, a truth value, and a count of layers of a kind. An error is kept in the reader, so that
 * reading a shape is a list of fields and is looked at once at the end.
 */
#include "supervisor/planner/reader.h"

#include <string.h>

#include "common/err.h"

uint32_t reader_number(struct plan_reader *r, const char *const *keys)
{
    for (; *keys; keys++) {
        const json_t *v = json_object_get(r->j, *keys);
        if (json_is_string(v)) { /* a number that is none or does not fit */
            ek_fault_write(r->fault, *keys, "%s is %.40s; it must be a number from 0 to %.0f",
                           *keys, json_string_value(v), READER_MOST);
            r->bad = true;
            return 0;
        }
        if (!json_is_number(v))
            continue;
        double n = json_number_value(v);
        if (!(n >= 0 && n <= READER_MOST)) {
            ek_fault_write(r->fault, *keys, "%s is %g; it must be from 0 to %.0f", *keys, n,
                           READER_MOST);
            r->bad = true;
            return 0;
        }
        return (uint32_t)n;
    }
    return 0;
}

uint32_t reader_number_or(struct plan_reader *r, const char *key, uint32_t usual)
{
    return json_object_get(r->j, key) ? NUMBER(r, key) : usual;
}

bool reader_truth(const json_t *j, const char *key, bool if_missing)
{
    const json_t *v = json_object_get(j, key);
    return json_is_boolean(v) ? json_is_true(v) : if_missing;
}

uint32_t reader_kinds(const json_t *types, const char *kind, uint32_t most)
{
    uint32_t n = 0;
    for (size_t i = 0; i < json_array_size(types) && n < most; i++) {
        const char *t = json_string_value(json_array_get(types, i));
        n += t && strcmp(t, kind) == 0;
    }
    return n;
}
