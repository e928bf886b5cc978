/*
 * Reads what surrounds the model in tokenizer.json: normalizer, pre_tokenizer, decoder and
 * post_processor. Each is an object with a `type`; a Sequence holds several. A type that is not
 * known here is refused by its name: to skip it would give other tokens than the model was trained
 * with. Runs once at start, in the main thread.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/charsmap.h"
#include "server/text/rx.h"
#include "server/text/tokparts.h"
#include "server/text/utf8.h"

#define NESTING 8 /* of Sequence in Sequence */

/* The splitting rule that ByteLevel brings along. */
#define BYTE_LEVEL_RULE                                                                            \
    "'s|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+"
/* \w as Rust has it, which splits for Whitespace; rx.h has Oniguruma's. */
#define WORD "\\p{Alphabetic}\\p{M}\\p{Nd}\\p{Pc}\\x{200C}\\x{200D}"
/* Punctuation as the reference library's tables (Unicode 8) have it: without what is younger. */
#define YOUNG                                                                                      \
    "\\x{61D}\\x{9FD}\\x{A76}\\x{C77}\\x{C84}\\x{1B4E}-\\x{1B4F}\\x{1B7D}-\\x{1B7F}"               \
    "\\x{2E43}-\\x{2E5D}\\x{10EAD}\\x{10F55}-\\x{10F59}\\x{10F86}-\\x{10F89}\\x{113D4}-\\x{113D8}" \
    "\\x{1144B}-\\x{1145D}\\x{11660}-\\x{1166C}\\x{116B9}\\x{1183B}\\x{11944}-\\x{11946}\\x{"      \
    "119E2}"                                                                                       \
    "\\x{11A3F}-\\x{11B09}\\x{11BE1}\\x{11C41}-\\x{11C71}\\x{11EF7}-\\x{11FFF}"                    \
    "\\x{12FF1}-\\x{12FF2}\\x{16D6D}-\\x{16D6F}\\x{16E97}-\\x{16E9A}\\x{16FE2}\\x{1E5FF}"          \
    "\\x{1E95E}-\\x{1E95F}"
#define PUNCTUATION "(?![" YOUNG "])[!-\\/:-@\\x5B-`{-~\\p{P}\\x{166D}\\x{111C9}]"

typedef int (*read_one)(const json_t *o, const char *type, void *into, struct ek_fault *fault);

int tok_bool(const json_t *o, const char *name, bool def, bool *ret_value, struct ek_fault *fault)
{
    const json_t *v = json_object_get(o, name);
    if (!v || json_is_null(v)) {
        *ret_value = def;
        return 0;
    }
    if (!json_is_boolean(v))
        return ek_fault_set(fault, name, TOK_FILE ": %s must be true or false", name);
    *ret_value = json_is_true(v);
    return 0;
}

int tok_string(const json_t *o, const char *name, const char **ret_s, size_t *ret_len,
               struct ek_fault *fault)
{
    const json_t *v = json_object_get(o, name);
    if (v && !json_is_null(v) && !json_is_string(v))
        return ek_fault_set(fault, name, TOK_FILE ": %s must be a string", name);
    *ret_s = json_is_string(v) ? json_string_value(v) : "";
    *ret_len = json_is_string(v) ? json_string_length(v) : 0;
    return 0;
}

static int toksteps_unknown(const char *field, const char *type, const char *known,
                            struct ek_fault *fault)
{
    return ek_fault_set(fault, field, TOK_FILE ": %s of type \"%.60s\" is not supported; known: %s",
                        field, type, known);
}

/* Calls one() for o, or for each member of a Sequence; list_name names the members' array. */
static int toksteps_each(const json_t *o, const char *field, const char *list_name, int depth,
                         read_one one, void *into, struct ek_fault *fault)
{
    const char *type = json_string_value(json_object_get(o, "type"));
    if (!type)
        return ek_fault_set(fault, field, TOK_FILE ": %s must be an object with a type", field);
    if (strcmp(type, "Sequence") != 0)
        return one(o, type, into, fault);
    const json_t *list = json_object_get(o, list_name), *item;
    if (!json_is_array(list) || depth == NESTING)
        return ek_fault_set(fault, field, TOK_FILE ": %s: a Sequence needs an array \"%s\"%s",
                            field, list_name, depth == NESTING ? " and less nesting" : "");
    size_t i;
    json_array_foreach(list, i, item)
    {
        int r = toksteps_each(item, field, list_name, depth + 1, one, into, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

static int too_many(const char *field, uint32_t most, struct ek_fault *fault)
{
    return ek_fault_set(fault, field, TOK_FILE ": %s has more than %u steps", field, most);
}

/* A pattern: {"Regex": ...} or {"String": ...}. An empty text matches nothing: *ret_rx = NULL. */
static int read_pattern(const json_t *o, struct rx **ret_rx, struct ek_fault *fault)
{
    const json_t *p = json_object_get(o, "pattern");
    const json_t *regex = json_object_get(p, "Regex"), *text = json_object_get(p, "String");
    const json_t *s = regex ? regex : text;
    if (!json_is_string(s))
        return ek_fault_set(fault, "pattern",
                            TOK_FILE ": a pattern must be {\"Regex\": ...} or {\"String\": ...}");
    *ret_rx = NULL;
    if (json_string_length(s) == 0)
        return 0;
    return rx_new(json_string_value(s), json_string_length(s), regex == NULL, ret_rx, fault);
}

static int toksteps_read_text(const json_t *o, const char *name, struct norm_step *st,
                              struct ek_fault *fault)
{
    const char *s;
    int r = tok_string(o, name, &s, &st->text_len, fault);
    if (r < 0)
        return r;
    st->text = strdup(s);
    return st->text ? 0 : -ENOMEM;
}

static int read_table(const json_t *o, struct norm_step *st, struct ek_fault *fault)
{
    struct ek_buf bytes = {0};
    const char *s;
    size_t len;
    int r = tok_string(o, "precompiled_charsmap", &s, &len, fault);
    if (r == 0)
        r = tok_base64(s, &bytes);
    if (r == -EBADMSG || (r == 0 && !charsmap_ok(bytes.data, bytes.len)))
        r = ek_fault_set(fault, "precompiled_charsmap",
                         TOK_FILE ": normalizer: precompiled_charsmap is damaged");
    if (r < 0) {
        ek_buf_done(&bytes);
        return r;
    }
    st->text = bytes.data;
    st->text_len = bytes.len;
    return 0;
}

static const struct {
    const char *type;
    enum norm_kind kind;
} norm_types[] = {
    {"NFC", NORM_NFC},           {"NFD", NORM_NFD},
    {"NFKC", NORM_NFKC},         {"NFKD", NORM_NFKD},
    {"Lowercase", NORM_LOWER},   {"Strip", NORM_STRIP},
    {"Replace", NORM_REPLACE},   {"StripAccents", NORM_ACCENTS},
    {"Prepend", NORM_PREPEND},   {"ByteLevel", NORM_BYTES},
    {"Precompiled", NORM_TABLE},
};

static int read_norm(const json_t *o, const char *type, void *into, struct ek_fault *fault)
{
    struct normalizer *n = into;
    size_t i = 0, count = sizeof(norm_types) / sizeof(norm_types[0]);
    while (i < count && strcmp(norm_types[i].type, type) != 0)
        i++;
    if (i == count)
        return toksteps_unknown(
            "normalizer", type,
            "NFC, NFD, NFKC, NFKD, Lowercase, Strip, StripAccents, Replace, Prepend, "
            "ByteLevel, Precompiled, Sequence",
            fault);
    if (n->steps == NORM_STEPS)
        return too_many("normalizer", NORM_STEPS, fault);

    int r = 0;
    struct norm_step *st = &n->step[n->steps];
    *st = (struct norm_step){.kind = norm_types[i].kind};
    if (st->kind == NORM_STRIP) {
        r = tok_bool(o, "strip_left", true, &st->left, fault);
        if (r == 0)
            r = tok_bool(o, "strip_right", true, &st->right, fault);
    } else if (st->kind == NORM_REPLACE) {
        r = read_pattern(o, &st->rx, fault);
        if (r == 0 && !st->rx)
            return 0; /* nothing to look for */
        if (r == 0)
            r = toksteps_read_text(o, "content", st, fault);
    } else if (st->kind == NORM_PREPEND) {
        r = toksteps_read_text(o, "prepend", st, fault);
    } else if (st->kind == NORM_TABLE) {
        r = read_table(o, st, fault);
    }
    n->steps++; /* counts even when half built: normalizer_done() frees it */
    return r;
}

int tok_read_normalizer(const json_t *root, struct normalizer *n, struct ek_fault *fault)
{
    const json_t *o = json_object_get(root, "normalizer");
    if (!o || json_is_null(o))
        return 0;
    return toksteps_each(o, "normalizer", "normalizers", 0, read_norm, n, fault);
}

static int add_step(struct pretok *p, const struct pretok_step *st, struct ek_fault *fault)
{
    if (p->steps == PRETOK_STEPS) {
        rx_free(st->rx);
        return too_many("pre_tokenizer", PRETOK_STEPS, fault);
    }
    p->step[p->steps++] = *st;
    return 0;
}

static int add_rule(struct pretok *p, const char *regex, enum split_how how, bool invert,
                    struct ek_fault *fault)
{
    struct pretok_step st = {.kind = PRETOK_SPLIT, .how = how, .invert = invert};
    int r = rx_new(regex, strlen(regex), false, &st.rx, fault);
    return r < 0 ? r : add_step(p, &st, fault);
}

static int read_how(const json_t *o, const char *def, enum split_how *ret_how,
                    struct ek_fault *fault)
{
    static const char *const names[] = {"Isolated", "Removed", "MergedWithPrevious",
                                        "MergedWithNext", "Contiguous"};
    const char *s;
    size_t len;
    int r = tok_string(o, "behavior", &s, &len, fault);
    if (r < 0)
        return r;
    if (len == 0)
        s = def;
    for (size_t i = 0; i < sizeof(names) / sizeof(names[0]); i++) {
        if (strcmp(s, names[i]) == 0) {
            *ret_how = (enum split_how)i;
            return 0;
        }
    }
    return ek_fault_set(fault, "behavior",
                        TOK_FILE ": pre_tokenizer: behavior \"%.40s\" is not supported", s);
}

static int read_split(const json_t *o, const char *type, struct pretok *p, struct ek_fault *fault)
{
    struct pretok_step st = {.kind = PRETOK_SPLIT};
    bool punctuation = strcmp(type, "Punctuation") == 0;
    int r = read_how(o, punctuation ? "Isolated" : "", &st.how, fault);
    if (r < 0)
        return r;
    if (punctuation)
        return add_rule(p, PUNCTUATION, st.how, false, fault);
    r = tok_bool(o, "invert", false, &st.invert, fault);
    if (r == 0)
        r = read_pattern(o, &st.rx, fault);
    return r < 0 || !st.rx ? r : add_step(p, &st, fault);
}

static int read_byte_level(const json_t *o, struct pretok *p, struct ek_fault *fault)
{
    bool space = true, rule = true;
    int r = tok_bool(o, "add_prefix_space", true, &space, fault);
    if (r == 0)
        r = tok_bool(o, "use_regex", true, &rule, fault);
    if (r == 0 && space)
        r = add_step(p, &(struct pretok_step){.kind = PRETOK_SPACE}, fault);
    if (r == 0 && rule)
        r = add_rule(p, BYTE_LEVEL_RULE, SPLIT_ISOLATED, false, fault);
    return r < 0 ? r : add_step(p, &(struct pretok_step){.kind = PRETOK_BYTES}, fault);
}

static int read_metaspace(const json_t *o, struct pretok *p, struct ek_fault *fault)
{
    struct pretok_step st = {.kind = PRETOK_METASPACE, .prepend = META_ALWAYS};
    const char *mark = "", *scheme = "";
    size_t mark_len = 0, scheme_len = 0;
    bool split = true, prefix = true;
    int r = tok_string(o, "replacement", &mark, &mark_len, fault);
    if (r == 0)
        r = tok_string(o, "prepend_scheme", &scheme, &scheme_len, fault);
    if (r == 0)
        r = tok_bool(o, "split", true, &split, fault);
    if (r == 0)
        r = tok_bool(o, "add_prefix_space", true, &prefix, fault);
    if (r < 0)
        return r;
    uint32_t cp;
    if (mark_len == 0)
        mark = "\xE2\x96\x81"; /* U+2581 */
    if (mark_len > 0 && utf8_get(mark, mark_len, &cp) != mark_len)
        return ek_fault_set(fault, "replacement",
                            TOK_FILE ": Metaspace: replacement must be one character");
    memcpy(st.mark, mark, strlen(mark));
    if (strcmp(scheme, "never") == 0 || (scheme_len == 0 && !prefix))
        st.prepend = META_NEVER;
    else if (strcmp(scheme, "first") == 0)
        st.prepend = META_FIRST;
    else if (scheme_len > 0 && strcmp(scheme, "always") != 0)
        return ek_fault_set(fault, "prepend_scheme",
                            TOK_FILE ": Metaspace: prepend_scheme \"%.40s\" is not supported",
                            scheme);
    r = add_step(p, &st, fault);
    if (r < 0 || !split)
        return r;
    struct pretok_step cut = {.kind = PRETOK_SPLIT, .how = SPLIT_NEXT};
    r = rx_new(st.mark, strlen(st.mark), true, &cut.rx, fault);
    return r < 0 ? r : add_step(p, &cut, fault);
}

static int read_digits(const json_t *o, struct pretok *p, struct ek_fault *fault)
{
    bool single = false;
    int r = tok_bool(o, "individual_digits", false, &single, fault);
    return r < 0 ? r : add_rule(p, single ? "\\p{N}" : "\\p{N}+", SPLIT_ISOLATED, false, fault);
}

static int read_pretok(const json_t *o, const char *type, void *into, struct ek_fault *fault)
{
    struct pretok *p = into;
    if (strcmp(type, "Split") == 0 || strcmp(type, "Punctuation") == 0)
        return read_split(o, type, p, fault);
    if (strcmp(type, "ByteLevel") == 0)
        return read_byte_level(o, p, fault);
    if (strcmp(type, "Metaspace") == 0)
        return read_metaspace(o, p, fault);
    if (strcmp(type, "Digits") == 0)
        return read_digits(o, p, fault);
    if (strcmp(type, "Whitespace") == 0)
        return add_rule(p, "[" WORD "]+|[^" WORD "\\s]+", SPLIT_REMOVED, true, fault);
    if (strcmp(type, "WhitespaceSplit") == 0)
        return add_rule(p, "\\s", SPLIT_REMOVED, false, fault);
    return toksteps_unknown("pre_tokenizer", type,
                            "Split, ByteLevel, Digits, Punctuation, Metaspace, Whitespace, "
                            "WhitespaceSplit, Sequence",
                            fault);
}

int tok_read_pretok(const json_t *root, struct pretok *p, struct ek_fault *fault)
{
    const json_t *o = json_object_get(root, "pre_tokenizer");
    if (!o || json_is_null(o))
        return 0;
    int r = toksteps_each(o, "pre_tokenizer", "pretokenizers", 0, read_pretok, p, fault);
    if (r < 0)
        return r;
    bool mapped = false;
    for (uint32_t i = 0; i + 1 < p->steps; i++)
        mapped = mapped || p->step[i].kind == PRETOK_BYTES;
    if (!mapped && p->steps > 0 && p->step[p->steps - 1].kind == PRETOK_BYTES) {
        p->steps--; /* it owns nothing */
        p->byte_mode = true;
    }
    return 0;
}

static int add_replace(struct decoder *d, const char *from, const char *to, struct ek_fault *fault)
{
    struct decode_step st = {.kind = DECODE_REPLACE};
    if (strlen(from) >= sizeof(st.from) || strlen(to) >= sizeof(st.to))
        return ek_fault_set(fault, "decoder", TOK_FILE ": decoder: Replace texts must be short");
    memcpy(st.from, from, strlen(from));
    memcpy(st.to, to, strlen(to));
    d->step[d->steps++] = st;
    return 0;
}

static int read_decode_replace(const json_t *o, struct decoder *d, struct ek_fault *fault)
{
    const json_t *from = json_object_get(json_object_get(o, "pattern"), "String");
    const char *to;
    size_t len;
    if (!json_is_string(from))
        return ek_fault_set(fault, "decoder",
                            TOK_FILE ": decoder: Replace needs a pattern {\"String\": ...}");
    int r = tok_string(o, "content", &to, &len, fault);
    return r < 0 ? r : add_replace(d, json_string_value(from), to, fault);
}

static int read_decode(const json_t *o, const char *type, void *into, struct ek_fault *fault)
{
    struct decoder *d = into;
    if (d->steps == DECODE_STEPS)
        return too_many("decoder", DECODE_STEPS, fault);
    if (strcmp(type, "ByteLevel") == 0) {
        d->step[d->steps++].kind = DECODE_BYTES;
        return 0;
    }
    if (strcmp(type, "ByteFallback") == 0) {
        d->step[d->steps++].kind = DECODE_FALLBACK;
        return 0;
    }
    if (strcmp(type, "Replace") == 0)
        return read_decode_replace(o, d, fault);
    if (strcmp(type, "Metaspace") == 0) {
        const char *mark;
        size_t len;
        int r = tok_string(o, "replacement", &mark, &len, fault);
        return r < 0 ? r : add_replace(d, len ? mark : "\xE2\x96\x81", " ", fault);
    }
    if (strcmp(type, "Fuse") == 0 || strcmp(type, "Strip") == 0)
        return 0; /* of the whole text only, see decoder.h */
    return toksteps_unknown("decoder", type,
                            "ByteLevel, ByteFallback, Replace, Metaspace, Fuse, Strip, Sequence",
                            fault);
}

int tok_read_decoder(const json_t *root, struct decoder *d, struct ek_fault *fault)
{
    const json_t *o = json_object_get(root, "decoder");
    if (!o || json_is_null(o))
        return ek_fault_set(fault, "decoder",
                            TOK_FILE ": decoder is missing; add the one the model was made with");
    return toksteps_each(o, "decoder", "decoders", 0, read_decode, d, fault);
}

struct around_ctx {
    const struct tokenizer *t;
    struct tok_around *a;
};

static int put_around(const struct around_ctx *c, json_t *id, bool after, struct ek_fault *fault)
{
    json_int_t v = json_integer_value(id);
    size_t len;
    if (!json_is_integer(id) || v < 0 || v >= (json_int_t)c->t->content.ids ||
        !vocab_at(&c->t->content, (int32_t)v, &len))
        return ek_fault_set(fault, "post_processor",
                            TOK_FILE ": post_processor: an id that no token has");
    uint32_t *count = after ? &c->a->afters : &c->a->befores;
    if (*count == TOK_AROUND)
        return ek_fault_set(fault, "post_processor",
                            TOK_FILE ": post_processor adds more than %u tokens", TOK_AROUND);
    (after ? c->a->after : c->a->before)[(*count)++] = (int32_t)v;
    return 0;
}

static int read_template(const json_t *o, const struct around_ctx *c, struct ek_fault *fault)
{
    const json_t *specials = json_object_get(o, "special_tokens"), *item;
    const json_t *single = json_object_get(o, "single");
    bool after = false;
    size_t i, k;
    if (!json_is_array(single))
        return ek_fault_set(fault, "single", TOK_FILE ": post_processor: single must be an array");
    json_array_foreach(single, i, item)
    {
        const char *name =
            json_string_value(json_object_get(json_object_get(item, "SpecialToken"), "id"));
        json_t *ids = name ? json_object_get(json_object_get(specials, name), "ids") : NULL, *id;
        if (json_object_get(item, "Sequence") && !after) {
            after = true;
            continue;
        }
        if (!json_is_array(ids))
            return ek_fault_set(fault, "single",
                                TOK_FILE ": post_processor: item %zu of single is neither the "
                                         "sequence nor a token of special_tokens",
                                i);
        json_array_foreach(ids, k, id)
        {
            int r = put_around(c, id, after, fault);
            if (r < 0)
                return r;
        }
    }
    if (!after)
        return ek_fault_set(fault, "single",
                            TOK_FILE ": post_processor: single does not hold the sequence");
    return 0;
}

static int read_around(const json_t *o, const char *type, void *into, struct ek_fault *fault)
{
    const struct around_ctx *c = into;
    if (strcmp(type, "ByteLevel") == 0)
        return 0; /* moves offsets only */
    if (c->a->befores + c->a->afters > 0)
        return ek_fault_set(fault, "post_processor",
                            TOK_FILE ": post_processor: more than one step adds tokens");
    if (strcmp(type, "TemplateProcessing") == 0)
        return read_template(o, c, fault);
    if (strcmp(type, "RobertaProcessing") != 0 && strcmp(type, "BertProcessing") != 0)
        return toksteps_unknown("post_processor", type,
                                "TemplateProcessing, ByteLevel, RobertaProcessing, BertProcessing, "
                                "Sequence",
                                fault);
    int r = put_around(c, json_array_get(json_object_get(o, "cls"), 1), false, fault);
    return r < 0 ? r : put_around(c, json_array_get(json_object_get(o, "sep"), 1), true, fault);
}

int tok_read_around(const json_t *root, const struct tokenizer *t, struct tok_around *a,
                    struct ek_fault *fault)
{
    const json_t *o = json_object_get(root, "post_processor");
    struct around_ctx c = {.t = t, .a = a};
    if (!o || json_is_null(o))
        return 0;
    return toksteps_each(o, "post_processor", "processors", 0, read_around, &c, fault);
}
