/*
 * Shapes of a field's value from what the table says of it (struct field's schema): each list in
 * it, each text and each object of free names is fed long, wherever it lies, and what stands around
 * it is as small as the schema lets it be. So a new field is fed with what it takes, without a
 * shape that is written for it. Header only, because a unit test is one source file. To be included
 * behind cmocka.h.
 */
#pragma once

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "tests/unit/api/doubling.h"

#define FIELD_SHAPES 64u /* most of a field */

struct field_shapes {
    struct doubling_shape at[FIELD_SHAPES];
    uint32_t count;
};

/* The caller frees it. */
static inline char *shape_text(const char *a, const char *b, const char *c)
{
    struct ek_buf text = {0};
    (void)ek_buf_printf(&text, "%s%s%s", a, b, c);
    assert_true(ek_buf_ok(&text));
    return text.data;
}

static inline void shapes_add(struct field_shapes *l, const char *const open[2], const char *piece,
                              const char *between, const char *const close[2])
{
    assert_true(l->count < FIELD_SHAPES);
    l->at[l->count++] = (struct doubling_shape){.open = shape_text(open[0], open[1], ""),
                                                .piece = shape_text(piece, "", ""),
                                                .between = between,
                                                .close = shape_text(close[0], close[1], "")};
}

static inline void shapes_free(struct field_shapes *l)
{
    for (uint32_t i = 0; i < l->count; i++) {
        union {
            const char *c;
            char *v;
        } text[3] = {{l->at[i].open}, {l->at[i].piece}, {l->at[i].close}};
        for (int k = 0; k < 3; k++)
            free(text[k].v);
    }
    l->count = 0;
}

/* Whether a value of the schema may be of that type; `has` is what only such a value has. */
static inline bool shape_is(const json_t *s, const char *type, const char *has)
{
    const json_t *is = json_object_get(s, "type"), *one;
    size_t i;
    json_array_foreach(is, i, one)
    {
        if (strcmp(json_string_value(one), type) == 0)
            return true;
    }
    return json_is_string(is) ? strcmp(json_string_value(is), type) == 0
                              : has && json_object_get(s, has) != NULL;
}

static inline const json_t *shape_choices(const json_t *s)
{
    const json_t *any = json_object_get(s, "anyOf");
    return any ? any : json_object_get(s, "oneOf");
}

static inline bool shape_needs(const json_t *s, const char *name)
{
    const json_t *needed = json_object_get(s, "required"), *one;
    size_t i;
    json_array_foreach(needed, i, one)
    {
        if (strcmp(json_string_value(one), name) == 0)
            return true;
    }
    return false;
}

/* The smallest value of the schema; a text is `text`. */
static inline void put_smallest(struct ek_buf *b, const json_t *s, const char *text)
{
    const json_t *only = json_array_get(json_object_get(s, "enum"), 0);
    const json_t *choice = json_array_get(shape_choices(s), 0), *part;
    const char *name, *between = "";
    char *said = only ? json_dumps(only, JSON_ENCODE_ANY) : NULL;
    if (said) {
        (void)ek_buf_puts(b, said);
    } else if (choice) {
        put_smallest(b, choice, text);
    } else if (shape_is(s, "string", NULL)) {
        (void)ek_buf_printf(b, "\"%s\"", text);
    } else if (shape_is(s, "array", "items")) {
        (void)ek_buf_puts(b, "[");
        if (json_object_get(s, "minItems"))
            put_smallest(b, json_object_get(s, "items"), text);
        (void)ek_buf_puts(b, "]");
    } else if (shape_is(s, "object", "properties")) {
        (void)ek_buf_puts(b, "{");
        json_object_foreach((json_t *)json_object_get(s, "properties"), name, part)
        {
            if (!shape_needs(s, name))
                continue;
            (void)ek_buf_printf(b, "%s\"%s\":", between, name);
            put_smallest(b, part, text);
            between = ",";
        }
        (void)ek_buf_puts(b, "}");
    } else {
        (void)ek_buf_puts(b, shape_is(s, "boolean", NULL) ? "true" : "1");
    }
    free(said);
}

static inline void shapes_of(const json_t *s, const char *open, const char *close,
                             struct field_shapes *ret);

/* Each property in turn, beside the others that are needed. */
static inline void shapes_of_object(const json_t *s, const char *open, const char *close,
                                    struct field_shapes *ret)
{
    json_t *properties = json_object_get(s, "properties"), *part, *other;
    const char *name, *beside;
    void *next;
    json_object_foreach_safe(properties, next, name, part)
    {
        struct ek_buf before = {0};
        (void)ek_buf_printf(&before, "%s{", open);
        json_object_foreach(properties, beside, other)
        {
            if (strcmp(name, beside) == 0 || !shape_needs(s, beside))
                continue;
            (void)ek_buf_printf(&before, "\"%s\":", beside);
            put_smallest(&before, other, "a");
            (void)ek_buf_puts(&before, ",");
        }
        (void)ek_buf_printf(&before, "\"%s\":", name);
        assert_true(ek_buf_ok(&before));
        char *behind = shape_text("}", close, "");
        shapes_of(part, before.data, behind, ret);
        free(behind);
        ek_buf_done(&before);
    }
}

/* Of a value of the schema between two texts. */
static inline void shapes_of(const json_t *s, const char *open, const char *close,
                             struct field_shapes *ret)
{
    const json_t *choices = shape_choices(s), *one, *items = json_object_get(s, "items");
    const json_t *free_names = json_object_get(s, "additionalProperties");
    struct ek_buf piece = {0};
    size_t i;
    json_array_foreach(choices, i, one) shapes_of(one, open, close, ret);
    if (shape_is(s, "string", NULL) && !json_object_get(s, "enum"))
        shapes_add(ret, (const char *[]){open, "\""}, "word%u ", "", (const char *[]){"\"", close});
    if (shape_is(s, "array", "items")) {
        put_smallest(&piece, items, "a%u");
        shapes_add(ret, (const char *[]){open, "["}, piece.data, ",", (const char *[]){"]", close});
        char *before = shape_text(open, "[", ""), *behind = shape_text("]", close, "");
        shapes_of(items, before, behind, ret);
        free(before);
        free(behind);
    }
    if (json_object_get(s, "properties")) {
        shapes_of_object(s, open, close, ret);
    } else if (shape_is(s, "object", "additionalProperties")) {
        ek_buf_clear(&piece);
        (void)ek_buf_puts(&piece, "\"k%u\":");
        put_smallest(&piece, json_is_object(free_names) ? free_names : NULL, "a%u");
        shapes_add(ret, (const char *[]){open, "{"}, piece.data, ",", (const char *[]){"}", close});
    }
    ek_buf_done(&piece);
}

/* Those of a row; none where it says nothing. The caller frees them. */
static inline void field_shapes(const char *schema, struct field_shapes *ret)
{
    char *text = schema ? shape_text("{", schema, "}") : NULL;
    json_t *s = text ? json_loads(text, 0, NULL) : NULL;
    if (text)
        assert_non_null(s); /* what /openapi.json says, too */
    ret->count = 0;
    shapes_of(s, "", "", ret);
    json_decref(s);
    free(text);
}
