/* The inside of the reader of structural tags: what its modules share. */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/grammar/schema_inside.h"
#include "server/grammar/structure.h"

struct until;

/* What comes behind a format. */
struct follow {
    const json_t *ends;   /* a string, or a list of some: one of them; or NULL */
    const json_t *not_in; /* the same of a tag that ends later: not in free text either */
    bool other;           /* other tags, by which free text could not be told from what follows */
};

struct structure {
    struct expr_set *set;
    struct schema_reader schema;
    char path[200]; /* of the format at hand; its tail is cut when it is too long */
    uint32_t depth;
    struct ek_fault *fault;
};

/* Refuses the format at hand, with its place. -EBADMSG. */
int structure_refuse(struct structure *t, const char *fmt, ...)
    __attribute__((format(printf, 2, 3)));
/* Goes down into `key` (and one of its elements, or SIZE_MAX); what it returns brings
 * structure_leave() back. */
size_t structure_enter(struct structure *t, const char *key, size_t index);
void structure_leave(struct structure *t, size_t was);
/* Refuses a field that is not one of the format's; a null is as good as none. */
int structure_fields(struct structure *t, const json_t *v, const char *const *fields);
const json_t *structure_field(const json_t *v, const char *name);
int structure_flag(struct structure *t, const json_t *v, const char *name, bool *ret_flag);
/* Marks in a fixed string may come as special tokens. Once for each string of the input. */
void structure_marks(struct structure *t, const json_t *text);
uint32_t structure_string(struct structure *t, const json_t *text);

/* A string, or a list of some; or NULL. */
size_t structure_count(const json_t *v);
const json_t *structure_at(const json_t *v, size_t i);
/* A list of at most so many strings that are not empty; may be missing unless `least` is 1. */
int structure_strings(struct structure *t, const json_t *v, const char *name, size_t least,
                      size_t most);
/* A list of formats, at least one. */
int structure_elements(struct structure *t, const json_t *v, const char *name,
                       const json_t **ret_list);
/* One of what ends the tag around, or nothing. */
uint32_t structure_ending(struct structure *t, struct follow f);

/* Free text up to triggers, what ends the tag around, and what must not come: the groups of the
 * triggers are their numbers. */
int structure_until(struct structure *t, const json_t *triggers, const json_t *excluded,
                    struct follow f, struct until **ret_until);
/* The rest of such a text, without a trigger in it. */
uint32_t structure_rest(struct until *u, struct follow f);
int structure_excluded(struct structure *t, const json_t *v, const json_t **ret_list);

/* Formats, with what ends the tag around. structure.c: */
int structure_format(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
/* structure_plain.c: */
int structure_any_text(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
int structure_fixed(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
int structure_json(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
int structure_regex(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
int structure_grammar(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
/* structure_tags.c: */
int structure_tag(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
int structure_triggered(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
int structure_between(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
