/*
 * A format is read together with the strings that end the tag around it: free text has no end of
 * its own, it goes up to the first of them. So the expression of a format holds them too. Where
 * there are none, it may end anywhere.
 */
#include "server/grammar/structure.h"

#include <errno.h>
#include <string.h>

#include "server/grammar/structure_inside.h"

/* ---- several ---- */

static int read_elements(struct structure *t, const json_t *v, struct follow f, bool all,
                         uint32_t *ret_expr)
{
    static const char *const fields[] = {"type", "elements", NULL};
    struct expr_list out = {.set = t->set};
    const json_t *list = NULL;
    int r = structure_fields(t, v, fields);

    if (r == 0)
        r = structure_elements(t, v, "elements", &list);
    for (size_t i = 0; r == 0 && i < json_array_size(list); i++) {
        size_t was = structure_enter(t, "elements", i);
        bool last = !all || i + 1 == json_array_size(list);
        uint32_t e = EXPR_NEVER;
        struct follow then = last ? f : (struct follow){.not_in = f.ends ? f.ends : f.not_in};
        r = structure_format(t, json_array_get(list, i), then, &e);
        expr_push(&out, e);
        structure_leave(t, was);
    }
    *ret_expr = all ? expr_seq(&out) : expr_alt(&out);
    return r;
}

static int read_sequence(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    return read_elements(t, v, f, true, ret_expr);
}

static int read_or(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    return read_elements(t, v, f, false, ret_expr);
}

/* ---- all of them ---- */

int structure_format(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr)
{
    static const struct {
        const char *type;
        int (*read)(struct structure *t, const json_t *v, struct follow f, uint32_t *ret_expr);
    } kinds[] = {
        {"const_string", structure_fixed},
        {"json_schema", structure_json},
        {"regex", structure_regex},
        {"grammar", structure_grammar},
        {"any_text", structure_any_text},
        {"sequence", read_sequence},
        {"or", read_or},
        {"tag", structure_tag},
        {"triggered_tags", structure_triggered},
        {"tags_with_separator", structure_between},
    };
    const char *type = json_string_value(structure_field(v, "type"));

    if (!type)
        return structure_refuse(t, "a format is an object with a `type`");
    if (++t->depth > STRUCTURE_NESTING)
        return structure_refuse(t, "formats nest more than %u deep", STRUCTURE_NESTING);
    for (size_t i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
        if (strcmp(kinds[i].type, type) != 0)
            continue;
        int r = kinds[i].read(t, v, f, ret_expr);
        t->depth--;
        return r;
    }
    return structure_refuse(t,
                            "the format `%.40s` is not offered; use const_string, json_schema, "
                            "regex, grammar, any_text, sequence, or, tag, triggered_tags or "
                            "tags_with_separator",
                            type);
}

/* One of `structures` as a tag, a new reference. */
static int tag_of(struct structure *t, const json_t *item, json_t *ret_tags)
{
    static const char *const fields[] = {"begin", "schema", "end", NULL};
    const json_t *schema = structure_field(item, "schema");
    json_t *read = NULL;

    if (structure_fields(t, item, fields) < 0)
        return -EBADMSG;
    if (json_is_string(schema)) {
        read = json_loadb(json_string_value(schema), json_string_length(schema), JSON_DECODE_ANY,
                          NULL);
        (void)ek_work_pay(t->set->work, json_string_length(schema) / 4); /* expr_ok() tells */
    }
    if (!json_is_object(read) && !json_is_object(schema)) {
        json_decref(read);
        return structure_refuse(t, "`schema` must be a JSON schema");
    }
    json_t *tag = json_pack("{s:O?,s:{s:s,s:O},s:O?}", "begin", structure_field(item, "begin"),
                            "content", "type", "json_schema", "json_schema", read ? read : schema,
                            "end", structure_field(item, "end"));
    json_decref(read);
    return tag && json_array_append_new(ret_tags, tag) == 0 ? 0 : -ENOMEM;
}

/* {"structures", "triggers"} as a format, a new reference. */
static int read_old(struct structure *t, const json_t *root, json_t **ret_format)
{
    static const char *const fields[] = {"type", "structures", "triggers", NULL};
    const json_t *list = NULL, *triggers = structure_field(root, "triggers");
    json_t *tags = json_array();
    int r = tags ? structure_fields(t, root, fields) : -ENOMEM;

    if (r == 0)
        r = structure_elements(t, root, "structures", &list);
    if (r == 0)
        r = structure_strings(t, triggers, "triggers", 1, STRUCTURE_TRIGGERS);
    for (size_t i = 0; r == 0 && i < json_array_size(list); i++) {
        size_t was = structure_enter(t, "structures", i);
        r = tag_of(t, json_array_get(list, i), tags);
        structure_leave(t, was);
    }
    if (r == 0) {
        *ret_format = json_pack("{s:s,s:O,s:O}", "type", "triggered_tags", "triggers", triggers,
                                "tags", tags);
        r = *ret_format ? 0 : -ENOMEM;
    }
    json_decref(tags);
    return r;
}

static int read_root(struct structure *t, const json_t *root, uint32_t *ret_expr)
{
    static const char *const fields[] = {"type", "format", NULL};
    const struct follow nothing = {0};
    const json_t *type = structure_field(root, "type");
    json_t *old = NULL;
    int r = 0;

    if (!json_is_object(root))
        return structure_refuse(t, "it must be a JSON object");
    if (type && !(json_is_string(type) && strcmp(json_string_value(type), "structural_tag") == 0))
        return structure_refuse(t, "its type must be structural_tag");
    if (structure_field(root, "structures")) {
        r = read_old(t, root, &old);
        if (r == 0)
            r = structure_format(t, old, nothing, ret_expr);
        json_decref(old);
        return r;
    }
    if (!structure_field(root, "format"))
        return structure_refuse(t, "it must have a `format`, or `structures` and `triggers`");
    r = structure_fields(t, root, fields);
    size_t was = structure_enter(t, "format", SIZE_MAX);
    if (r == 0)
        r = structure_format(t, structure_field(root, "format"), nothing, ret_expr);
    structure_leave(t, was);
    return r;
}

int structure_read(struct expr_set *set, const char *text, size_t len, uint32_t *ret_rule,
                   struct ek_fault *fault)
{
    struct structure t = {.set = set, .schema = {.set = set, .fault = fault}, .fault = fault};
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    uint32_t body = EXPR_NEVER;

    int r = read_root(&t, root, &body);
    *ret_rule = expr_rule_new(set, "root");
    expr_rule_set(set, *ret_rule, body);
    json_decref(root);
    return r;
}
