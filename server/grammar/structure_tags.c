/* Tags: where free text goes on until one begins, and where only tags come. */
#include <errno.h>
#include <string.h>

#include "server/grammar/structure_inside.h"
#include "server/grammar/until.h"

/* ---- tags ---- */

static int check_tag(struct structure *t, const json_t *v)
{
    static const char *const fields[] = {"type", "begin", "content", "end", NULL};
    const json_t *type = structure_field(v, "type"), *end = structure_field(v, "end");

    if (structure_fields(t, v, fields) < 0)
        return -EBADMSG;
    if (type && !(json_is_string(type) && strcmp(json_string_value(type), "tag") == 0))
        return structure_refuse(t, "its type must be tag");
    if (!json_is_string(structure_field(v, "begin")))
        return structure_refuse(t, "`begin` must be a string");
    if (!end || (!json_is_string(end) && structure_strings(t, end, "end", 1, STRUCTURE_ENDS) < 0))
        return structure_refuse(t,
                                "`end` must be a string, or a list of 1 to %u that are not "
                                "empty",
                                STRUCTURE_ENDS);
    return 0;
}

/* A tag without the first `skip` bytes of its begin, which have been checked. */
static int read_tag_from(struct structure *t, const json_t *v, size_t skip, struct follow f,
                         uint32_t *ret_expr)
{
    const json_t *begin = structure_field(v, "begin"), *end = structure_field(v, "end");
    const char *text = json_string_value(begin);
    bool ends = !(json_is_string(end) && json_string_length(end) == 0);
    const struct follow by_end = {.ends = end}, *content = ends ? &by_end : &f;
    uint32_t e = EXPR_NEVER;

    structure_marks(t, begin);
    for (size_t i = 0; i < structure_count(end); i++)
        structure_marks(t, structure_at(end, i));
    uint32_t head = expr_bytes(t->set, text + skip, json_string_length(begin) - skip);
    size_t was = structure_enter(t, "content", SIZE_MAX);
    int r = structure_format(t, structure_field(v, "content"), *content, &e);
    structure_leave(t, was);
    *ret_expr =
        expr_pair(t->set, head, expr_pair(t->set, e, ends ? structure_ending(t, f) : EXPR_EMPTY));
    return r;
}

int structure_tag(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    int r = check_tag(t, v);
    return r == 0 ? read_tag_from(t, v, 0, f, ret_expr) : r;
}

static bool begins_with(const json_t *text, const json_t *with)
{
    size_t n = json_string_length(with);
    return json_string_length(text) >= n &&
           memcmp(json_string_value(text), json_string_value(with), n) == 0;
}

/* The one trigger that a tag begins with. */
static int find_trigger(struct structure *t, const json_t *triggers, const json_t *tag,
                        size_t *ret_trigger)
{
    size_t n = json_array_size(triggers), i = 0;

    if (!ek_work_pay(t->set->work, n))
        return -EBADMSG;
    while (i < n && !begins_with(structure_field(tag, "begin"), json_array_get(triggers, i)))
        i++;
    if (i == n)
        return structure_refuse(t, "`begin` begins with none of the triggers");
    *ret_trigger = i;
    return 0;
}

static int check_triggers(struct structure *t, const json_t *triggers, struct follow f)
{
    size_t n = json_array_size(triggers);

    if (structure_strings(t, triggers, "triggers", 1, STRUCTURE_TRIGGERS) < 0)
        return -EBADMSG;
    for (size_t i = 0; i < n; i++) {
        const json_t *one = json_array_get(triggers, i);
        for (size_t k = 0; k < n; k++)
            if (k != i && begins_with(json_array_get(triggers, k), one))
                return structure_refuse(t, "the trigger `%.40s` begins another one",
                                        json_string_value(one));
        for (size_t k = 0; k < structure_count(f.ends); k++)
            if (json_equal(structure_at(f.ends, k), one))
                return structure_refuse(t, "the trigger `%.40s` ends the tag around too",
                                        json_string_value(one));
    }
    return 0;
}

/* Alternatives of tags: behind their trigger, and whole. */
struct dispatch {
    struct expr_list behind[STRUCTURE_TRIGGERS], whole;
};

static int read_dispatch(struct structure *t, const json_t *tags, const json_t *triggers,
                         bool whole, struct dispatch *d)
{
    int r = 0;

    for (size_t i = 0; r == 0 && i < json_array_size(tags); i++) {
        const json_t *tag = json_array_get(tags, i);
        size_t was = structure_enter(t, "tags", i), trigger = 0;
        uint32_t e = EXPR_NEVER;
        r = check_tag(t, tag);
        if (r == 0)
            r = find_trigger(t, triggers, tag, &trigger);
        size_t skip = json_string_length(json_array_get(triggers, trigger));
        if (r == 0)
            r = read_tag_from(t, tag, skip, (struct follow){.other = true}, &e);
        e = json_as_call(&t->schema, e, "tag");
        expr_push(&d->behind[trigger], e);
        if (whole && r == 0)
            expr_push(&d->whole,
                      expr_pair(t->set,
                                expr_bytes(t->set, json_string_value(structure_field(tag, "begin")),
                                           skip),
                                e));
        structure_leave(t, was);
    }
    return r;
}

/* Free text up to a trigger and what it begins, of any trigger. Frees what `d` has behind them.
 * With `r` below 0 that is all. */
static int read_triggered(struct structure *t, int r, const json_t *triggers, struct dispatch *d,
                          struct until *u, uint32_t *ret_expr)
{
    struct expr_list alt = {.set = t->set};

    for (size_t i = 0; i < STRUCTURE_TRIGGERS; i++) {
        bool used = i < json_array_size(triggers);
        if (used && d->behind[i].count == 0 && r == 0)
            r = structure_refuse(t, "no tag begins with the trigger `%.40s`",
                                 json_string_value(json_array_get(triggers, i)));
        uint32_t tags = expr_alt(&d->behind[i]);
        if (u && used && r == 0)
            expr_push(&alt, expr_pair(t->set, until_group(u, (uint32_t)i), tags));
    }
    *ret_expr = expr_alt(&alt);
    return r;
}

int structure_triggered(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    static const char *const fields[] = {
        "type",         "triggers",         "tags", "at_least_one", "excludes",
        "excluded_str", "stop_after_first", NULL};
    const json_t *triggers = structure_field(v, "triggers"), *tags = NULL, *excluded = NULL;
    struct expr_set *s = t->set;
    struct dispatch d = {.whole = {.set = s}};
    struct until *u = NULL;
    bool some = false, one = false;
    uint32_t each = EXPR_NEVER;

    for (size_t i = 0; i < STRUCTURE_TRIGGERS; i++)
        d.behind[i].set = s;
    int r = structure_fields(t, v, fields);
    if (r == 0 &&
        (structure_flag(t, v, "at_least_one", &some) < 0 ||
         structure_flag(t, v, "stop_after_first", &one) < 0 || check_triggers(t, triggers, f) < 0 ||
         structure_elements(t, v, "tags", &tags) < 0 || structure_excluded(t, v, &excluded) < 0))
        r = -EBADMSG;
    if (r == 0 && !(some && one))
        r = structure_until(t, triggers, excluded, f, &u);
    if (r == 0)
        r = read_dispatch(t, tags, triggers, some, &d);
    r = read_triggered(t, r, triggers, &d, u, &each);
    uint32_t first = expr_alt(&d.whole), end = structure_ending(t, f), rest = EXPR_NEVER;
    if (u)
        rest = structure_rest(u, f);
    if (one)
        rest = some ? end : expr_either(s, expr_pair(s, each, end), rest);
    else
        rest = expr_pair(s, expr_repeat(s, each, 0, EXPR_MANY), rest);
    *ret_expr = some ? expr_pair(s, first, rest) : rest;
    until_free(u);
    return r;
}

int structure_between(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    static const char *const fields[] = {
        "type", "tags", "separator", "at_least_one", "stop_after_first", NULL};
    const json_t *separator = structure_field(v, "separator"), *tags = NULL;
    struct expr_list alt = {.set = t->set};
    bool some = false, one = false;
    int r = structure_fields(t, v, fields);

    if (r == 0 && (structure_flag(t, v, "at_least_one", &some) < 0 ||
                   structure_flag(t, v, "stop_after_first", &one) < 0 ||
                   structure_elements(t, v, "tags", &tags) < 0))
        r = -EBADMSG;
    if (r == 0 && !json_is_string(separator))
        r = structure_refuse(t, "`separator` must be a string");
    for (size_t i = 0; r == 0 && i < json_array_size(tags); i++) {
        size_t was = structure_enter(t, "tags", i);
        uint32_t e = EXPR_NEVER;
        r = structure_tag(t, json_array_get(tags, i), (struct follow){.other = true}, &e);
        expr_push(&alt, e);
        structure_leave(t, was);
    }
    uint32_t call = json_as_call(&t->schema, expr_alt(&alt), "tag"), e = call;
    if (!one && r == 0) {
        structure_marks(t, separator);
        uint32_t next = expr_pair(t->set, structure_string(t, separator), call);
        e = expr_pair(t->set, call, expr_repeat(t->set, next, 0, EXPR_MANY));
    }
    *ret_expr = expr_pair(t->set, some ? e : expr_maybe(t->set, e), structure_ending(t, f));
    return r;
}
