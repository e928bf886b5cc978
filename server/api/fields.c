/*
 * The table of the fields of request bodies, and its reader (fields.h). Called by the readers of
 * each form of the API, and by openapi.
 */
#include "server/api/fields.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/work.h"
#include "server/api/error.h"
#include "server/api/readers.h"
#include "server/api/served.h"

#define NODE 8u /* units of work (common/work.h) for a value of JSON */

json_t *field_of(const json_t *body, const char *name)
{
    json_t *v = json_object_get(body, name);
    return json_is_null(v) ? NULL : v;
}

int field_bool(const json_t *v, const char *name, bool *at, struct api_error *err)
{
    if (!v)
        return 0;
    if (!json_is_boolean(v))
        return api_refuse(err, 400, name, "`%s` must be true or false.", name);
    *at = json_is_true(v);
    return 0;
}

int field_real(const json_t *v, const char *name, double min, double max, double *at,
               struct api_error *err)
{
    if (!v)
        return 0;
    if (!json_is_number(v))
        return api_refuse(err, 400, name, "`%s` must be a number.", name);
    double d = json_number_value(v);
    if (!(d >= min && d <= max))
        return api_refuse(err, 400, name, "`%s` must be between %g and %g, got %g.", name, min, max,
                          d);
    *at = d;
    return 0;
}

/* An integer; 5.0 counts as one. */
int field_whole(const json_t *v, const char *name, int64_t min, int64_t max, int64_t *at,
                struct api_error *err)
{
    if (!v)
        return 0;
    double d = json_number_value(v);
    bool whole = json_is_integer(v) || (json_is_real(v) && d == floor(d) && fabs(d) < 9e15);
    if (!whole)
        return api_refuse(err, 400, name, "`%s` must be an integer.", name);
    int64_t i = json_is_integer(v) ? json_integer_value(v) : (int64_t)d;
    if (i < min || i > max)
        return api_refuse(err, 400, name, "`%s` must be between %lld and %lld, got %lld.", name,
                          (long long)min, (long long)max, (long long)i);
    *at = i;
    return 0;
}

int field_uint(const json_t *v, const char *name, uint32_t min, uint32_t max, uint32_t *at,
               struct api_error *err)
{
    int64_t i = *at;
    int r = field_whole(v, name, min, max, &i, err);
    *at = (uint32_t)i;
    return r;
}

int field_ids(const struct served *s, const json_t *list, const char *name, struct api_error *err)
{
    for (size_t i = 0; i < json_array_size(list); i++) {
        const json_t *id = json_array_get(list, i);
        if (!json_is_integer(id) || json_integer_value(id) < 0 ||
            json_integer_value(id) >= s->vocab)
            return api_refuse(err, 400, name, "`%s[%zu]` must be a token id below %u.", name, i,
                              s->vocab);
    }
    return 0;
}

static bool is_neutral(const json_t *v, const struct field *f)
{
    if (f->kind == FIELD_NO)
        return json_is_number(v) && json_number_value(v) == f->min;
    if (f->kind == FIELD_NO_TRUE)
        return json_is_false(v);
    const char *word = json_string_value(v);
    if (word && (strcmp(word, "auto") == 0 || strcmp(word, "none") == 0))
        return true;
    return (json_is_object(v) && json_object_size(v) == 0) ||
           (json_is_array(v) && json_array_size(v) == 0) ||
           (json_is_string(v) && json_string_length(v) == 0);
}

static int refuse_unless_neutral(const struct field *f, const json_t *v, struct api_error *err)
{
    if (is_neutral(v, f))
        return 0;
    if (f->kind == FIELD_NO && !json_is_number(v))
        return api_refuse(err, 400, f->name, "`%s` must be a number.", f->name);
    if (f->kind == FIELD_NO)
        return api_refuse(err, 400, f->name,
                          "`%s` other than %g is not supported by this server; %s.", f->name,
                          f->min, f->help);
    return api_refuse(err, 400, f->name, "`%s` is not supported by this server; %s.", f->name,
                      f->help);
}

static int read_float(const json_t *v, const char *name, double min, double max, float *at,
                      struct api_error *err)
{
    double d = (double)*at;
    int r = field_real(v, name, min, max, &d, err);
    *at = ek_sampling_value(d);
    return r;
}

static int read_row(const struct field *f, const struct field_source *from, json_t *v,
                    struct openai_ask *a, struct api_error *err)
{
    void *at = (char *)a + f->at;
    switch (f->kind) {
    case FIELD_BOOL: return field_bool(v, f->name, at, err);
    case FIELD_REAL: return read_float(v, f->name, f->min, f->max, at, err);
    case FIELD_COUNT: return field_uint(v, f->name, (uint32_t)f->min, (uint32_t)f->max, at, err);
    case FIELD_WHOLE: return field_whole(v, f->name, (int64_t)f->min, (int64_t)f->max, at, err);
    case FIELD_OWN: return f->read(from, v, a, err);
    case FIELD_FORM: return form_of_kind(a, f->name, (enum grammar_kind)f->min, v, err);
    case FIELD_FREE: openai_ignore(a, "", f->name); return 0;
    case FIELD_NO:
    case FIELD_NO_TRUE:
    case FIELD_NO_ANY: break;
    }
    return refuse_unless_neutral(f, v, err);
}

static bool is_row(const struct field *f, const struct openai_ask *a, const char *name)
{
    return f->on & 1u << a->api && strcmp(f->name, name) == 0;
}

int fields_read_one(const struct field_source *from, const char *name, json_t *v,
                    struct openai_ask *a, struct api_error *err)
{
    for (uint32_t i = 0; i < field_count(); i++) {
        if (is_row(&field_table[i], a, name))
            return read_row(&field_table[i], from, v, a, err);
    }
    openai_ignore(a, "", name);
    return 0;
}

/* The body lives as long as its answer, and numbers take twenty times their text: what is not asked
 * for again goes at once. */
static void drop_unknown(json_t *body, struct openai_ask *a)
{
    /* Each one is looked for among the rows. */
    (void)ek_work_pay(a->work, json_object_size(body) * (uint64_t)field_count() / 8);
    const char *key;
    json_t *v;
    void *next;
    json_object_foreach_safe(body, next, key, v)
    {
        /* What readers have put there begins with a control character; the metadata is told. */
        bool told = a->api == API_RESPONSES && strcmp(key, "metadata") == 0;
        bool known = key[0] == '\1' || told;
        for (uint32_t i = 0; i < field_count() && !known; i++)
            known = is_row(&field_table[i], a, key);
        if (known)
            continue;
        if (!json_is_null(v))
            openai_ignore(a, "", key);
        (void)json_object_del(body, key); /* it is there */
    }
}

/* Pays for all that a value holds: what reads it grows no faster (see make doubling). */
static bool pay_value(struct ek_work *work, json_t *v)
{
    const char *key;
    json_t *at;
    size_t i;
    if (!ek_work_pay(work, NODE + json_string_length(v) / 16))
        return false;
    json_array_foreach(v, i, at)
    {
        if (!pay_value(work, at))
            return false;
    }
    json_object_foreach(v, key, at)
    {
        if (!ek_work_pay(work, strlen(key) / 16) || !pay_value(work, at))
            return false;
    }
    return true;
}

int fields_read(const struct field_source *from, struct openai_ask *a, struct api_error *err)
{
    for (uint32_t i = 0; i < field_count(); i++) {
        const struct field *f = &field_table[i];
        json_t *v = field_of(from->body, f->name);
        if (!(f->on & 1u << a->api) || (!v && !f->needed))
            continue;
        if (v && !pay_value(from->work, v))
            return api_refuse_work(from->work, f->name, err);
        if (read_row(f, from, v, a, err) < 0)
            return -EBADMSG;
    }
    drop_unknown(from->body, a);
    return ek_work_stopped(from->work) ? api_refuse_work(from->work, "", err) : 0;
}
