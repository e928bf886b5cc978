/* What frames of calls are made of: schema_frames.c, for itself and schema_gemma.c. */
#pragma once

#include "server/grammar/schema_inside.h"

struct frame;

/* Reads one value of a style. */
typedef int (*value_fn)(struct schema_reader *r, const struct frame *f, const json_t *schema,
                        uint32_t *ret_expr);

/* A text between `open` and `end`; what must not come in it. Another value is JSON and `typed_end`.
 */
struct raw_form {
    const char *open, *end, *typed_end, *never[2];
};

/* What a parameter says of its value, before the value: for a text, for another one. */
struct told_type {
    const char *before, *text, *other, *after; /* other: NULL = the name of its type */
};

struct frame {
    const char *before, *between, *after; /* the key, the key and the value, the value */
    const char *separator;
    value_fn value;
    bool words;       /* keys must be words of Python */
    const char *mark; /* with which a value begins, NULL = none: a line's end may be before it, and
                         behind the value */
    const struct raw_form *raw;   /* of texts, where they stand as they are */
    const struct told_type *told; /* or NULL */
};

/* The arguments of a tool's call in a frame, by its schema where they are `bound` to one; else
 * `any`. */
int frame_arguments(struct schema_reader *r, const struct frame *f, const json_t *tool, bool bound,
                    uint32_t any, uint32_t *ret_expr);
/* The properties of an object, in their order. */
int frame_parameters(struct schema_reader *r, const struct frame *f, const json_t *schema,
                     uint32_t *ret_expr);
/* A value with the mark that ends it: a text as it stands unless `type` names another one, for so
 * the parser takes it. */
int frame_raw_value(struct schema_reader *r, const struct raw_form *f, const json_t *schema,
                    uint32_t *ret_expr);
/* A text as it stands, with the mark that ends it. */
uint32_t frame_raw_text(struct schema_reader *r, const struct raw_form *f);
/* A key without a schema: a word of letters, digits and _. */
uint32_t frame_word(struct expr_set *s);
const char *frame_tool_name(const json_t *tool);
