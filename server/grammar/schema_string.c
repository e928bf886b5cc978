/* Strings: lengths, patterns, formats. */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/regex.h"
#include "server/grammar/schema_inside.h"

#define LENGTH_MOST 20000u /* characters that are counted */

#define HOST "(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?\\.){1,4}[A-Za-z]{2,12}"
#define DATE                                                                                       \
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-"                \
    "(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"                                 \
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

static const struct {
    const char *name, *pattern;
} formats[] = {
    {"date", "^" DATE "$"},
    {"time", "^" TIME "$"},
    {"date-time", "^" DATE "T" TIME "$"},
    {"duration", "^P(?:[0-9]{1,4}[YMWD]|[0-9]{1,4}DT[0-9]{1,4}[HMS]|T[0-9]{1,4}[HMS])$"},
    {"email", "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@" HOST "$"},
    {"hostname", "^" HOST "$"},
    {"ipv4", "^(?:" BYTE "\\.){3}" BYTE "$"},
    {"ipv6", "^(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$"},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$"},
    {"uri", "^[a-z][a-z0-9+.-]{0,15}://" HOST "(?::[1-9][0-9]{0,3})?(?:/[A-Za-z0-9._~-]*)*"
            "(?:\\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?$"},
};

static const char *pattern_of(const char *format)
{
    for (size_t i = 0; format && i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i].name, format) == 0)
            return formats[i].pattern;
    return NULL;
}

/* In quotes, as a rule: a string is written in many places. */
uint32_t schema_quoted(struct schema_reader *r, uint32_t inside)
{
    struct expr_list all = {.set = r->set};
    expr_push(&all, expr_text(r->set, "\""));
    expr_push(&all, inside);
    expr_push(&all, expr_text(r->set, "\""));
    return json_as_call(r, expr_seq(&all), "string");
}

static int read_pattern(struct schema_reader *r, const char *keyword, const char *pattern,
                        size_t len, uint32_t least, uint32_t most, uint32_t *ret_expr)
{
    struct ek_fault f = {0};
    uint32_t inside = EXPR_EMPTY;

    if (regex_read(r->set, pattern, len, REGEX_JSON, least, most, &inside, &f) < 0)
        return schema_refuse(r, keyword, "%s", f.msg);
    *ret_expr = schema_quoted(r, inside);
    return 0;
}

int schema_string(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format = json_object_get(schema, "format");
    uint32_t least, most;

    if (schema_count(r, schema, "minLength", 0, &least) < 0 ||
        schema_count(r, schema, "maxLength", EXPR_MANY, &most) < 0)
        return -EBADMSG;
    if (most < least)
        return schema_contradicts(r, "maxLength", "`maxLength` is below `minLength`");
    if (pattern && format)
        return schema_refuse(r, "format", "`format` beside `pattern` is not offered");
    if (pattern && r->python)
        return schema_refuse(r, "pattern", "`pattern` is not offered by the parser pythonic");
    if (pattern && !json_is_string(pattern))
        return schema_refuse(r, "pattern", "`pattern` must be a string");
    if (pattern)
        return read_pattern(r, "pattern", json_string_value(pattern), json_string_length(pattern),
                            least, most, ret_expr);
    if (format) {
        const char *known = pattern_of(json_string_value(format));
        if (!known)
            return schema_refuse(r, "format", "the format %.40s is not offered; write a `pattern`",
                                 json_is_string(format) ? json_string_value(format) : "");
        if (least > 0 || most != EXPR_MANY)
            return schema_refuse(r, "format", "a length beside `format` is not offered");
        return read_pattern(r, "format", known, strlen(known), 0, EXPR_MANY, ret_expr);
    }
    if (least == 0 && most == EXPR_MANY) {
        *ret_expr = json_call(r, RULE_STRING);
        return 0;
    }
    if (least > LENGTH_MOST || (most != EXPR_MANY && most > LENGTH_MOST))
        return schema_refuse(r, most == EXPR_MANY ? "minLength" : "maxLength",
                             "lengths above %u are not offered", LENGTH_MOST);
    *ret_expr = schema_quoted(r, expr_repeat(r->set, json_call(r, RULE_CHAR), least, most));
    return 0;
}
