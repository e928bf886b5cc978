/*
 * Checked reading of JSON. NaN, Infinity and numbers that overflow come as strings (common/json.h),
 * so every float here is finite and such a number is refused where it is read, with its text.
 *
 * Known gap: when memory runs out inside jansson's lexer it reports a syntax error, which cannot be
 * told from a real one here; the operator then reads of invalid JSON instead of lack of memory.
 */
#include "server/model/json.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "common/err.h"
#include "common/json.h"

int model_json_parse(const char *file, const char *text, size_t len, json_t **ret_root,
                     struct ek_fault *fault)
{
    json_error_t e = {0};
    json_t *root = ek_json_parse(text ? text : "", len, JSON_REJECT_DUPLICATES, &e);
    if (!root) {
        /* jansson leaves the text empty when it ran out of memory below the parser. */
        if (json_error_code(&e) == json_error_out_of_memory || e.text[0] == '\0')
            return -ENOMEM;
        (void)ek_fault_set(fault, file, "%s: line %d: %s; it is no valid JSON, download it again",
                           file, e.line, e.text);
        if (fault)
            fault->at = e.position > 0 ? (uint64_t)e.position : 0;
        return -EBADMSG;
    }
    if (!json_is_object(root)) {
        json_decref(root);
        return ek_fault_set(fault, file, "%s: must be a JSON object; download it again", file);
    }
    *ret_root = root;
    return 0;
}

/* NULL when the key is missing or null. */
static const json_t *model_json_get(const struct model_json *j, const char *key)
{
    const json_t *v = json_object_get(j->object, key);
    return json_is_null(v) ? NULL : v;
}

static int model_json_bad(const struct model_json *j, const char *key, struct model_range range,
                          const char *what)
{
    char is[48] = "of another type";
    const json_t *v = model_json_get(j, key);
    if (json_is_string(v))
        (void)snprintf(is, sizeof(is), "%.40s", json_string_value(v));
    else if (json_is_number(v))
        (void)snprintf(is, sizeof(is), "%.17g", json_number_value(v));
    return ek_fault_set(j->fault, key,
                        "%s: %s must be %s from %.12g to %.12g, but is %s; correct it", j->file,
                        key, what, range.min, range.max, is);
}

int model_json_int(const struct model_json *j, const char *key, struct model_range range,
                   int64_t *ret_value, bool *ret_given)
{
    const json_t *v = model_json_get(j, key);
    *ret_given = v != NULL;
    if (!v)
        return 0;
    json_int_t n = json_integer_value(v);
    if (!json_is_integer(v) || !((double)n >= range.min && (double)n <= range.max))
        return model_json_bad(j, key, range, "an integer");
    *ret_value = n;
    return 0;
}

int model_json_float(const struct model_json *j, const char *key, struct model_range range,
                     double *ret_value, bool *ret_given)
{
    const json_t *v = model_json_get(j, key);
    *ret_given = v != NULL;
    if (!v)
        return 0;
    double x = json_number_value(v);
    if (!json_is_number(v) || !(x >= range.min && x <= range.max))
        return model_json_bad(j, key, range, "a number");
    *ret_value = x;
    return 0;
}

int model_json_bool(const struct model_json *j, const char *key, bool *ret_value, bool *ret_given)
{
    const json_t *v = model_json_get(j, key);
    *ret_given = v != NULL;
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return ek_fault_set(j->fault, key, "%s: %s must be true or false; correct it", j->file,
                            key);
    *ret_value = json_is_true(v);
    return 0;
}

int model_json_string(const struct model_json *j, const char *key, const char **ret_value,
                      bool *ret_given)
{
    const json_t *v = model_json_get(j, key);
    *ret_given = v != NULL;
    if (!v)
        return 0;
    if (!json_is_string(v))
        return ek_fault_set(j->fault, key, "%s: %s must be a string; correct it", j->file, key);
    *ret_value = json_string_value(v);
    return 0;
}
