/*
 * Strings of a schema: lengths, patterns, formats. Called by schema.c, and for names of properties
 * by schema_object.c.
 */
#include <errno.h>
#include <string.h>

#include "common/err.h"
#include "server/grammar/lark.h"
#include "server/grammar/regex.h"
#include "server/grammar/schema_inside.h"

#define LENGTH_MOST 20000u /* characters that are counted */

#define HOST   "(?:[A-Za-z0-9](?:[A-Za-z0-9-]{0,30}[A-Za-z0-9])?\\.){1,4}[A-Za-z]{2,12}"
#define ORIGIN "^[a-z][a-z0-9+.-]{0,15}://" HOST "(?::[1-9][0-9]{0,3})?"
#define DATE                                                                                       \
    "[1-9][0-9]{3}-(?:(?:0[13578]|1[02])-(?:0[1-9]|[12][0-9]|3[01])|(?:0[469]|11)-"                \
    "(?:0[1-9]|[12][0-9]|30)|02-(?:0[1-9]|1[0-9]|2[0-8]))"
#define TIME                                                                                       \
    "(?:[01][0-9]|2[0-3]):[0-5][0-9]:[0-5][0-9](?:\\.[0-9]{1,6})?"                                 \
    "(?:Z|[+-](?:[01][0-9]|2[0-3]):[0-5][0-9])"
#define BYTE "(?:25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])"

/* What is made for a format, and how many characters that has. */
static const struct format {
    const char *name, *pattern;
    uint32_t least, most;
} formats[] = {
    {"date", "^" DATE "$", 10, 10},
    {"time", "^" TIME "$", 9, 21},
    {"date-time", "^" DATE "T" TIME "$", 20, 32},
    {"duration", "^P(?:[0-9]{1,4}[YMWD]|[0-9]{1,4}DT[0-9]{1,4}[HMS]|T[0-9]{1,4}[HMS])$", 3, 12},
    {"email", "^[A-Za-z0-9_+-]{1,32}(?:\\.[A-Za-z0-9_+-]{1,32}){0,3}@" HOST "$", 6, 276},
    {"hostname", "^" HOST "$", 4, 144},
    {"ipv4", "^(?:" BYTE "\\.){3}" BYTE "$", 7, 15},
    {"ipv6", "^(?:[0-9a-fA-F]{1,4}:){7}[0-9a-fA-F]{1,4}$", 15, 39},
    {"uuid", "^[0-9a-fA-F]{8}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{4}-[0-9a-fA-F]{12}$", 36,
     36},
    {"uri", ORIGIN "(?:/[A-Za-z0-9._~-]*)*(?:\\?[A-Za-z0-9._~=&-]*)?(?:#[A-Za-z0-9._~-]*)?$", 8,
     EXPR_MANY},
    {"uri", /* where there is a most */
     ORIGIN "(?:/[A-Za-z0-9._~/-]{0,400})?(?:\\?[A-Za-z0-9._~=&-]{0,400})?"
            "(?:#[A-Za-z0-9._~-]{0,60})?$",
     8, 1031},
};

/* What can be made for a format so that it has an allowed length, or NULL. */
static const struct format *format_of(const json_t *format, uint32_t least, uint32_t most)
{
    const char *name = json_string_value(format);
    for (size_t i = 0; name && i < sizeof(formats) / sizeof(formats[0]); i++)
        if (strcmp(formats[i].name, name) == 0 && formats[i].least >= least &&
            formats[i].most <= most)
            return &formats[i];
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

/* A string whose inside is a text of a grammar in Lark's notation. */
static int read_lark(struct schema_reader *r, const json_t *lark, uint32_t *ret_expr)
{
    struct ek_fault f = {0};
    uint32_t root = 0;

    int code =
        lark_read(r->set, json_string_value(lark), json_string_length(lark), NULL, &root, &f);
    if (code == -EBADMSG)
        return schema_refuse(r, NULL, "%s", f.msg);
    *ret_expr = schema_quoted(r, expr_call(r->set, root));
    return code;
}

int schema_string(struct schema_reader *r, const json_t *schema, uint32_t *ret_expr)
{
    const json_t *pattern = json_object_get(schema, "pattern");
    const json_t *format = json_object_get(schema, "format");
    const json_t *lark = json_object_get(schema, SCHEMA_LARK);
    uint32_t least, most;

    if (json_is_string(lark) && !r->python)
        return read_lark(r, lark, ret_expr);
    if (schema_count(r, schema, "minLength", 0, &least) < 0 ||
        schema_count(r, schema, "maxLength", EXPR_MANY, &most) < 0)
        return -EBADMSG;
    if (most < least)
        return schema_contradicts(r, "maxLength", "`maxLength` is below `minLength`");
    if (pattern && r->python)
        return schema_refuse(r, "pattern", "`pattern` is not offered by the parser pythonic");
    if (pattern && !json_is_string(pattern))
        return schema_refuse(r, "pattern", "`pattern` must be a string");
    if (pattern)
        return read_pattern(r, "pattern", json_string_value(pattern), json_string_length(pattern),
                            least, most, ret_expr);
    /* To JSON Schema a format is an annotation: one that is not known, or has no text that is
     * certain to be as long as it must be, leaves any text; so does one beside a pattern. */
    const struct format *known = format_of(format, least, most);
    if (known)
        return read_pattern(r, "format", known->pattern, strlen(known->pattern), 0, EXPR_MANY,
                            ret_expr);
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
