/* Bodies of /infill, see infill.h; its suffix is read where the marks are known (fim.c). */
#include <errno.h>

#include "common/buf.h"
#include "server/api/error.h"
#include "server/api/fields.h"
#include "server/api/readers.h"
#include "server/api/reply.h"

#define INFILL_FIELDS 64u /* names of fields that are to be answered */

static int need_text(const json_t *v, const char *name, struct api_error *err)
{
    if (!v)
        return api_refuse(err, 400, name, "`%s` is missing; it may be empty.", name);
    return json_is_string(v) ? 0 : api_refuse(err, 400, name, "`%s` must be a string.", name);
}

/* What was typed last goes on where the prefix ends, as there. */
int read_infill_prefix(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    const json_t *typed = field_of(from->body, "prompt");
    struct ek_buf text = {0};
    if (need_text(v, "input_prefix", err) < 0 || (typed && need_text(typed, "prompt", err) < 0))
        return -EBADMSG;
    a->prompt = v;
    if (!typed)
        return 0;
    (void)ek_buf_add(&text, json_string_value(v), json_string_length(v));
    (void)ek_buf_add(&text, json_string_value(typed), json_string_length(typed));
    json_t *both =
        ek_buf_ok(&text) ? json_stringn_nocheck(text.data ? text.data : "", text.len) : NULL;
    ek_buf_done(&text);
    if (json_object_set_new(from->body, "\1prompt", both) < 0)
        return api_no_memory(err);
    a->prompt = both;
    return 0;
}

/* Read with the prefix. */
int read_infill_prompt(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    (void)from;
    (void)a;
    return need_text(v, "prompt", err);
}

int read_infill_extra(const struct field_source *from, json_t *v, struct openai_ask *a,
                      struct api_error *err)
{
    (void)from;
    bool good = json_is_array(v);
    for (size_t i = 0; good && i < json_array_size(v); i++) {
        const json_t *one = json_array_get(v, i), *name = field_of(one, "filename");
        good = json_is_string(field_of(one, "text")) && (!name || json_is_string(name));
    }
    if (!good)
        return api_refuse(err, 400, "input_extra",
                          "`input_extra` must be a list of objects with a `text` and, if it is "
                          "known, a `filename`.");
    a->extra = json_array_size(v) ? v : NULL;
    return 0;
}

int read_infill_fields(const struct field_source *from, json_t *v, struct openai_ask *a,
                       struct api_error *err)
{
    (void)from;
    bool good = json_is_array(v) && json_array_size(v) <= INFILL_FIELDS;
    for (size_t i = 0; good && i < json_array_size(v); i++)
        good = json_is_string(json_array_get(v, i));
    if (!good)
        return api_refuse(err, 400, "response_fields",
                          "`response_fields` must be a list of at most %u strings.", INFILL_FIELDS);
    a->shown = json_array_size(v) ? v : NULL;
    return 0;
}
