/*
 * Filters of templates over one value; those over sequences are in filters_seq.c. Called through
 * the table of filters.
 */
#include <errno.h>
#include <math.h>
#include <string.h>

#include "server/text/jinja/eval.h"
#include "server/text/jinja/func.h"
#include "server/text/jinja/print.h"

static int filters_text_of(struct jr *r, const struct jcall *c, struct jstr *ret)
{
    int res = jprint_to_string(r, c->self, ret);
    return res < 0 ? res : jr_burn(r, ret->len);
}

/* Text made from v, which is markup when v is. */
static struct jv same_kind(const struct jv *v, struct jstr s)
{
    struct jv out = jv_string(s);
    out.flavor = v->kind == JV_STRING ? v->flavor : 0;
    return out;
}

static int f_string(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s;
    int res = filters_text_of(r, c, &s);
    if (res == 0)
        *ret = same_kind(c->self, s);
    return res;
}

static int f_trim(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s, chars = {0};
    bool given = c->a[0] && c->a[0]->kind != JV_NONE;
    int res = filters_text_of(r, c, &s);
    if (res == 0 && given)
        res = jarg_string(r, c->a[0], &chars);
    if (res == 0 && given)
        res = jr_burn_product(r, s.len, chars.len);
    if (res == 0)
        *ret = same_kind(c->self, jstr_strip(s, given ? &chars : NULL, JSTR_LEFT | JSTR_RIGHT));
    return res;
}

static int recase(struct jr *r, const struct jcall *c, enum jstr_case how, struct jv *ret)
{
    struct jstr s;
    int res = filters_text_of(r, c, &s);
    return res < 0 ? res : jfunc_recase(r, s, how, ret);
}

static int f_upper(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return recase(r, c, JSTR_UPPER, ret);
}

static int f_lower(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return recase(r, c, JSTR_LOWER, ret);
}

static int f_capitalize(struct jr *r, const struct jcall *c, struct jv *ret)
{
    return recase(r, c, JSTR_CAPITALIZE, ret);
}

/* Words begin after spaces, hyphens and opening brackets, not after apostrophes. */
static int f_title(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s;
    char *p;
    size_t n = 0;
    int res = filters_text_of(r, c, &s);
    if (res == 0)
        res = jr_burn(r, s.len * 8);
    if (res == 0)
        res = jr_take(r, jstr_count(s) + 1, 4, &p);
    if (res < 0)
        return res;
    bool inside = false;
    for (size_t at = 0; at < s.len;) {
        size_t from = at;
        uint32_t cp = jstr_next(s, &at);
        n += jstr_recase((struct jstr){s.p + from, at - from}, inside ? JSTR_LOWER : JSTR_UPPER,
                         p + n);
        inside = !jstr_is_space(cp) && !(cp < 0x80 && strchr("-({[<", (int)cp));
    }
    *ret = jv_string((struct jstr){p, n});
    return 0;
}

static int f_replace(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s, old = {0}, new = {0};
    int64_t max = -1;
    struct jout out = {0};
    int res = filters_text_of(r, c, &s);
    if (res == 0)
        res = jprint_to_string(r, c->a[0], &old);
    if (res == 0)
        res = jprint_to_string(r, c->a[1], &new);
    if (res == 0 && c->a[2] && c->a[2]->kind != JV_NONE)
        res = jarg_int(r, c->a[2], &max);
    size_t from = 0, search = 0, at;
    while (res == 0 && max != 0 && (at = jstr_find(s, old, search)) != SIZE_MAX) {
        res = jr_write(r, &out, (struct jstr){s.p + from, at - from});
        if (res == 0)
            res = jr_write(r, &out, new);
        from = search = at + old.len;
        max -= max > 0;
        if (!old.len) { /* between all characters and at both ends */
            if (search == s.len)
                break;
            (void)jstr_next(s, &search); /* only where the next one begins */
        }
    }
    if (res == 0 && from == 0 && !out.len) {
        *ret = jv_string(s);
        return 0;
    }
    if (res == 0)
        res = jr_write(r, &out, (struct jstr){s.p + from, s.len - from});
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

static int f_default(struct jr *r, const struct jcall *c, struct jv *ret)
{
    bool falsy = c->a[1] && jv_true(c->a[1]) && !jv_true(c->self);
    if (c->self->kind == JV_UNDEFINED && c->self->flavor == JV_UNSAFE)
        return jv_refuse(r, c->self);
    if (c->self->kind != JV_UNDEFINED && !falsy)
        *ret = *c->self;
    else
        *ret = c->a[0] ? *c->a[0] : jv_string(JSTR(""));
    return 0;
}

static int f_length(struct jr *r, const struct jcall *c, struct jv *ret)
{
    size_t n;
    int res = jv_length(r, c->self, &n);
    if (res == 0)
        *ret = jv_int((int64_t)n);
    return res;
}

static int json_indent(struct jr *r, const struct jv *indent, struct jprint_json *how)
{
    static const char spaces[] = "                ";
    if (!indent || indent->kind == JV_NONE)
        return 0;
    how->pretty = true;
    how->comma = JSTR(",");
    if (indent->kind == JV_STRING) {
        how->indent = indent->s;
        return 0;
    }
    int64_t n = 0;
    int res = jarg_int(r, indent, &n);
    if (res < 0)
        return res;
    if (n > (int64_t)sizeof(spaces) - 1)
        return jr_fail(r, "tojson indents by at most %zu", sizeof(spaces) - 1);
    how->indent = (struct jstr){spaces, n > 0 ? (size_t)n : 0};
    return 0;
}

/* As transformers defines it: json.dumps(value, ensure_ascii=False, indent=None, ...). */
static int f_tojson(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jprint_json how = {.comma = JSTR(", "), .colon = JSTR(": ")};
    struct jout out = {0};
    how.ascii = c->a[0] && jv_true(c->a[0]);
    how.sort_keys = c->a[3] && jv_true(c->a[3]);
    int res = json_indent(r, c->a[1], &how);
    if (res == 0 && c->a[2] && c->a[2]->kind != JV_NONE) {
        struct jv pair;
        res = jv_iterate(r, c->a[2], &pair);
        if (res == 0 && pair.list->count != 2)
            return jr_fail(r, "separators must be a pair");
        if (res == 0)
            res = jarg_string(r, &pair.list->at[0], &how.comma);
        if (res == 0)
            res = jarg_string(r, &pair.list->at[1], &how.colon);
    }
    if (res == 0)
        res = jprint_as_json(r, c->self, &how, &out);
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

/* indent(width=4, first=False, blank=False) */
static int f_indent(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s = {0}, pad = JSTR("    ");
    struct jv width;
    bool first = c->a[1] && jv_true(c->a[1]), blank = c->a[2] && jv_true(c->a[2]);
    int res = jarg_string(r, c->self, &s);
    if (res == 0)
        res = jr_burn(r, s.len);
    if (res == 0 && c->a[0] && c->a[0]->kind == JV_STRING) {
        pad = c->a[0]->s;
    } else if (res == 0 && c->a[0]) {
        struct jv space = jv_string(JSTR(" "));
        res = jop_arith(r, '*', &space, c->a[0], &width);
        if (res == 0)
            pad = width.s;
    }
    struct jout out = {0};
    for (size_t from = 0, line = 0; res == 0 && from < s.len; line++) {
        const char *nl = memchr(s.p + from, '\n', s.len - from);
        size_t to = nl ? (size_t)(nl - s.p) : s.len;
        if (line ? blank || to > from : first)
            res = jr_write(r, &out, pad);
        if (res == 0)
            res = jr_write(r, &out, (struct jstr){s.p + from, to - from + (nl != NULL)});
        from = to + 1;
    }
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

static int f_int(struct jr *r, const struct jcall *c, struct jv *ret)
{
    int64_t value = 0, base = 10;
    const struct jv *v = c->self;
    int res = jarg_int(r, c->a[1], &base);
    if (res < 0)
        return res;
    if (v->kind == JV_UNDEFINED)
        return jv_refuse(r, v);
    *ret = c->a[0] ? *c->a[0] : jv_int(0);
    if (base < 2 || base > 36)
        return 0;
    double f = 0;
    if (v->kind == JV_FLOAT) {
        f = v->f;
    } else if (v->kind == JV_STRING) {
        res = jstr_int(v->s, (int)base, &value);
        if (res == 0) {
            *ret = jv_int(value);
            return 0;
        }
        res = jstr_float(v->s, &f);
        if (res < 0)
            return res == -ENOMEM ? res : 0;
    } else if (v->kind == JV_INT || v->kind == JV_BOOL) {
        *ret = jv_int(jv_as_int(v));
        return 0;
    } else {
        return 0;
    }
    if (f > -9.2e18 && f < 9.2e18)
        *ret = jv_int((int64_t)f);
    return 0;
}

static int f_float(struct jr *r, const struct jcall *c, struct jv *ret)
{
    const struct jv *v = c->self;
    double f = 0;
    if (v->kind == JV_UNDEFINED)
        return jv_refuse(r, v);
    *ret = c->a[0] ? *c->a[0] : jv_float(0);
    if (jv_is_number(v)) {
        *ret = jv_float(jv_as_float(v));
    } else if (v->kind == JV_STRING) {
        int res = jstr_float(v->s, &f);
        if (res == 0)
            *ret = jv_float(f);
        return res == -ENOMEM ? res : 0;
    }
    return 0;
}

static int f_abs(struct jr *r, const struct jcall *c, struct jv *ret)
{
    const struct jv *v = c->self;
    bool negative = v->kind == JV_FLOAT ? signbit(v->f) : jv_is_number(v) && jv_as_int(v) < 0;
    return jop_sign(r, negative, v, ret);
}

/* round(precision=0, method="common"|"ceil"|"floor"), to even like Python. */
static int f_round(struct jr *r, const struct jcall *c, struct jv *ret)
{
    const struct jv *v = c->self;
    int64_t digits = 0;
    struct jstr how = JSTR("common");
    int res = jarg_int(r, c->a[0], &digits);
    if (res == 0)
        res = jarg_string(r, c->a[1], &how);
    if (res < 0)
        return res;
    if (v->kind == JV_UNDEFINED)
        return jv_refuse(r, v);
    if (!jv_is_number(v) || digits < -300 || digits > 300)
        return jr_fail(r, "round needs a number");
    double scale = pow(10, (double)digits), f = jv_as_float(v);
    if (jstr_is(how, "ceil")) {
        *ret = jv_float(ceil(f * scale) / scale);
    } else if (jstr_is(how, "floor")) {
        *ret = jv_float(floor(f * scale) / scale);
    } else if (!jstr_is(how, "common")) {
        return jr_fail(r, "method must be common, ceil or floor");
    } else if (v->kind != JV_FLOAT && digits >= 0) {
        *ret = jv_int(jv_as_int(v));
    } else {
        double rounded = nearbyint(f * scale) / scale;
        *ret = v->kind == JV_FLOAT ? jv_float(rounded) : jv_int((int64_t)rounded);
    }
    return 0;
}

static int f_escape(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jv v = *c->self;
    int res = 0;
    if (v.kind != JV_STRING) {
        v = jv_string(JSTR(""));
        res = filters_text_of(r, c, &v.s);
    }
    return res < 0 ? res : jfunc_escape(r, &v, ret);
}

static int f_safe(struct jr *r, const struct jcall *c, struct jv *ret)
{
    int res = f_string(r, c, ret);
    ret->flavor = JV_MARKUP;
    return res;
}

static int f_format(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s;
    int res = filters_text_of(r, c, &s);
    if (res == 0 && c->all->nnamed)
        return jr_fail(r, "format takes no named arguments");
    return res < 0 ? res : jfunc_percent(r, s, c->all->pos, c->all->npos, true, ret);
}

static int f_wordcount(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s;
    int64_t words = 0;
    int res = filters_text_of(r, c, &s);
    bool inside = false;
    for (size_t at = 0; res == 0 && at < s.len;) {
        bool word = jstr_is_word(jstr_next(s, &at));
        words += word && !inside;
        inside = word;
    }
    if (res == 0)
        *ret = jv_int(words);
    return res;
}

static int f_center(struct jr *r, const struct jcall *c, struct jv *ret)
{
    struct jstr s;
    int64_t width = 80;
    struct jout out = {0};
    int res = filters_text_of(r, c, &s);
    if (res == 0)
        res = jarg_int(r, c->a[0], &width);
    if (res < 0)
        return res;
    int64_t n = (int64_t)jstr_count(s), pad = width > n ? width - n : 0;
    int64_t left = pad / 2 + (pad & width & 1);
    for (int64_t i = 0; res == 0 && i <= pad; i++)
        res = jr_write(r, &out, i == left ? s : JSTR(" "));
    if (res == 0)
        *ret = jv_string((struct jstr){out.p ? out.p : "", out.len});
    return res;
}

static const struct jfunc filters[] = {
    {"string", f_string, "", 0},
    {"safe", f_safe, "", 0},
    {"trim", f_trim, "chars", 0},
    {"upper", f_upper, "", 0},
    {"lower", f_lower, "", 0},
    {"capitalize", f_capitalize, "", 0},
    {"title", f_title, "", 0},
    {"replace", f_replace, "old new count", 2},
    {"default", f_default, "default_value boolean", 0},
    {"d", f_default, "default_value boolean", 0},
    {"length", f_length, "", 0},
    {"count", f_length, "", 0},
    {"tojson", f_tojson, "ensure_ascii indent separators sort_keys", 0},
    {"indent", f_indent, "width first blank", 0},
    {"int", f_int, "default base", 0},
    {"float", f_float, "default", 0},
    {"abs", f_abs, "", 0},
    {"round", f_round, "precision method", 0},
    {"escape", f_escape, "", 0},
    {"e", f_escape, "", 0},
    {"format", f_format, NULL, 0},
    {"wordcount", f_wordcount, "", 0},
    {"center", f_center, "width", 0},
};

const struct jfunc *jfilter_find(struct jstr name)
{
    const struct jfunc *f = jfunc_find(filters, sizeof(filters) / sizeof(*filters), name);
    return f ? f : jfilter_seq_find(name);
}
