/*
 * The keywords that are read, what types of values they are about, and what of a schema is only for
 * people. Called by schema.c, and by what joins and takes apart schemas.
 */
#include <math.h>
#include <string.h>

#include "server/grammar/schema_inside.h"

/* Keywords that are read, by what they are about; 0 = all types. */
static const struct {
    const char *name;
    unsigned types;
} keywords[] = {
    {"type", 0},
    {"enum", 0},
    {"const", 0},
    {"anyOf", 0},
    {"oneOf", 0},
    {"allOf", 0},
    {"$ref", 0},
    {"not", 0},
    {"if", 0},
    {"then", 0},
    {"else", 0},
    {"nullable", 0},
    {"format", TYPE_STRING},
    {"pattern", TYPE_STRING},
    {SCHEMA_LARK, TYPE_STRING},
    {"minLength", TYPE_STRING},
    {"maxLength", TYPE_STRING},
    {"minimum", TYPE_NUMBER},
    {"maximum", TYPE_NUMBER},
    {"exclusiveMinimum", TYPE_NUMBER},
    {"exclusiveMaximum", TYPE_NUMBER},
    {"multipleOf", TYPE_NUMBER},
    {"items", TYPE_ARRAY},
    {"prefixItems", TYPE_ARRAY},
    {"additionalItems", TYPE_ARRAY},
    {"minItems", TYPE_ARRAY},
    {"maxItems", TYPE_ARRAY},
    {"uniqueItems", TYPE_ARRAY},
    {"properties", TYPE_OBJECT},
    {"required", TYPE_OBJECT},
    {"additionalProperties", TYPE_OBJECT},
    {"minProperties", TYPE_OBJECT},
    {"maxProperties", TYPE_OBJECT},
    {"patternProperties", TYPE_OBJECT},
    {"propertyNames", TYPE_OBJECT},
    {"dependentRequired", TYPE_OBJECT},
    {"dependentSchemas", TYPE_OBJECT},
};

bool schema_is_annotation(const char *keyword)
{
    static const char *const names[] = {
        "title",         "description",  "default",         "examples",         "example",
        "deprecated",    "readOnly",     "writeOnly",       "$schema",          "$id",
        "$comment",      "$defs",        "$anchor",         "definitions",      "$vocabulary",
        "discriminator", "externalDocs", "contentEncoding", "contentMediaType", "contentSchema"};
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], keyword) == 0)
            return true;
    return strncmp(keyword, "x-", 2) == 0;
}

static unsigned type_bit(const char *name)
{
    static const char *const names[] = {"null",   "boolean", "integer", "number",
                                        "string", "array",   "object"};
    for (unsigned i = 0; name && i < sizeof(names) / sizeof(names[0]); i++)
        if (strcmp(names[i], name) == 0)
            return 1u << i;
    return 0;
}

int schema_types(struct schema_reader *r, const json_t *schema, unsigned *ret_types)
{
    const json_t *type = json_object_get(schema, "type");
    unsigned types = 0;

    for (size_t i = 0; type && i < (json_is_array(type) ? json_array_size(type) : 1); i++) {
        unsigned bit =
            type_bit(json_string_value(json_is_array(type) ? json_array_get(type, i) : type));
        if (!bit)
            return schema_refuse(r, "type",
                                 "`type` must be null, boolean, integer, number, string, array or "
                                 "object, or a list of them");
        types |= bit;
    }
    if (type && types == 0)
        return schema_contradicts(r, "type", "no type is left that is allowed");
    for (size_t i = 0; !type && i < sizeof(keywords) / sizeof(keywords[0]); i++)
        if (json_object_get(schema, keywords[i].name))
            types |= keywords[i].types;
    *ret_types = types ? types : TYPE_ALL;
    return 0;
}

int schema_count(struct schema_reader *r, const json_t *schema, const char *keyword,
                 uint32_t missing, uint32_t *ret_count)
{
    const json_t *v = json_object_get(schema, keyword);
    double d = json_number_value(v);

    *ret_count = missing;
    if (!v)
        return 0;
    if (!json_is_number(v) || d < 0 || d != floor(d) || d > 1e9)
        return schema_refuse(r, keyword, "`%s` must be a whole number, 0 or more", keyword);
    *ret_count = (uint32_t)d;
    return 0;
}

int schema_check(struct schema_reader *r, const json_t *schema)
{
    json_t *s = (json_t *)(uintptr_t)schema;
    (void)schema_pay(r, 8 * json_object_size(s));
    for (void *at = json_object_iter(s); at; at = json_object_iter_next(s, at)) {
        const char *name = json_object_iter_key(at);
        bool known = schema_is_annotation(name);
        for (size_t i = 0; !known && i < sizeof(keywords) / sizeof(keywords[0]); i++)
            known = strcmp(keywords[i].name, name) == 0;
        if (!known)
            return schema_refuse(r, name, "`%.40s` is not offered", name);
    }
    return 0;
}
