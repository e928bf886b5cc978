/*
 * A struct tok_source as JSON, and back. tokfiles.c lets the process that reads a model's files
 * first write it of a tokenizer.model or a tiktoken.model, so that the server has neither a reader
 * of protocol buffers nor one of base64 lines for bytes of somebody else:
 *
 *     {"root": a tokenizer.json, "names": [by id; null = none], "order": [ids]}
 *
 * or, of a Unigram model, "scores": [by id; null = never chosen] in place of "order". "names" is
 * there when the root has no vocabulary. The reader believes nothing: what is not of this form, or
 * contradicts itself, is refused. Runs once at start.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/json.h"
#include "server/text/tokparts.h"

#define NAME_MOST 131072u /* bytes: 65,536 characters of the byte alphabet */

/* ---- written ---- */

static void write_names(const struct vocab *v, struct ek_buf *out)
{
    (void)ek_buf_puts(out, ",\n\"names\":[");
    for (uint32_t id = 0; id < v->ids; id++) {
        size_t len;
        const char *s = vocab_at(v, (int32_t)id, &len);
        (void)ek_buf_puts(out, id ? "," : "");
        (void)ek_buf_puts(out, s ? "\"" : "null");
        if (s) {
            (void)ek_buf_json(out, s, len);
            (void)ek_buf_puts(out, "\"");
        }
    }
    (void)ek_buf_puts(out, "]");
}

static void write_order(const struct tok_source *s, struct ek_buf *out)
{
    (void)ek_buf_puts(out, ",\n\"order\":[");
    for (uint32_t i = 0; i < s->orders; i++)
        (void)ek_buf_printf(out, "%s%u", i ? "," : "", s->order[i]);
    (void)ek_buf_puts(out, "]");
}

/* Digits that give the same number again. */
static void write_scores(const struct tok_source *s, struct ek_buf *out)
{
    (void)ek_buf_puts(out, ",\n\"scores\":[");
    for (uint32_t i = 0; i < s->scores; i++)
        if (isfinite(s->score[i]))
            (void)ek_buf_printf(out, "%s%.17g", i ? "," : "", s->score[i]);
        else
            (void)ek_buf_puts(out, i ? ",null" : "null");
    (void)ek_buf_puts(out, "]");
}

int tok_source_write(const struct tok_source *s, struct ek_buf *out)
{
    char *root = json_dumps(s->root, JSON_COMPACT);
    if (!root)
        return -ENOMEM;
    (void)ek_buf_puts(out, "{\"root\":");
    (void)ek_buf_puts(out, root);
    free(root);
    if (s->content.ids > 0)
        write_names(&s->content, out);
    if (s->order)
        write_order(s, out);
    if (s->score)
        write_scores(s, out);
    (void)ek_buf_puts(out, "}");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}

/* ---- read ---- */

static int source_bad(const char *file, const char *what, struct ek_fault *fault)
{
    return ek_fault_set(fault, file,
                        "%s: the process that read it has not handed back %s; do not use this "
                        "model until you know why, and report it",
                        file, what);
}

static int read_names(const json_t *names, const char *file, struct vocab *v,
                      struct ek_fault *fault)
{
    const size_t ids = json_array_size(names);
    size_t i;
    const json_t *name;
    if (!names)
        return 0;
    if (ids == 0 || ids > VOCAB_MOST)
        return source_bad(file, "the names of its tokens", fault);
    int r = vocab_init(v, (uint32_t)ids, true);
    json_array_foreach(names, i, name)
    {
        const char *s = json_string_value(name);
        if (r == 0 && s && *s && json_string_length(name) <= NAME_MOST)
            r = vocab_put(v, (uint32_t)i, s, json_string_length(name));
        else if (r == 0 && !json_is_null(name))
            r = -EEXIST;
    }
    return r == -EEXIST ? source_bad(file, "a name for each token", fault) : r;
}

/* Each id once. */
static int read_order(const json_t *order, const char *file, struct tok_source *s,
                      struct ek_fault *fault)
{
    const size_t count = json_array_size(order);
    size_t i;
    const json_t *id;
    if (count > VOCAB_MOST)
        return source_bad(file, "an order of its tokens", fault);
    uint8_t *seen = calloc(VOCAB_MOST, 1);
    s->order = malloc((count ? count : 1) * sizeof(*s->order));
    int r = seen && s->order ? 0 : -ENOMEM;
    json_array_foreach(order, i, id)
    {
        const json_int_t n = json_is_integer(id) ? json_integer_value(id) : -1;
        if (r < 0)
            break;
        if (n < 0 || n >= VOCAB_MOST || seen[n]) {
            r = source_bad(file, "an order of its tokens", fault);
            break;
        }
        seen[n] = 1;
        s->order[s->orders++] = (uint32_t)n;
    }
    free(seen);
    return r;
}

static int read_scores(const json_t *scores, const char *file, struct tok_source *s,
                       struct ek_fault *fault)
{
    const size_t count = json_array_size(scores);
    size_t i;
    const json_t *score;
    if (count > VOCAB_MOST)
        return source_bad(file, "scores of its tokens", fault);
    s->score = malloc((count ? count : 1) * sizeof(*s->score));
    if (!s->score)
        return -ENOMEM;
    json_array_foreach(scores, i, score)
    {
        if (!json_is_number(score) && !json_is_null(score))
            return source_bad(file, "scores of its tokens", fault);
        s->score[s->scores++] = json_is_null(score) ? -HUGE_VAL : json_number_value(score);
    }
    return 0;
}

static int read_source(json_t *all, const char *file, struct tok_source *s, struct ek_fault *fault)
{
    json_t *root = json_object_get(all, "root");
    const json_t *names = json_object_get(all, "names"), *order = json_object_get(all, "order"),
                 *scores = json_object_get(all, "scores");
    if (!json_is_object(root) || (names && !json_is_array(names)) ||
        json_is_array(order) == json_is_array(scores))
        return source_bad(file, "a tokenizer", fault);
    s->root = json_incref(root);
    int r = read_names(names, file, &s->content, fault);
    if (r == 0)
        r = order ? read_order(order, file, s, fault) : read_scores(scores, file, s, fault);
    return r;
}

int tok_source_read(const char *file, const char *text, size_t len, struct tok_source *ret_source,
                    struct ek_fault *fault)
{
    struct tok_source s = {0};
    json_error_t e = {0};
    json_t *all = ek_json_parse(text, len, JSON_REJECT_DUPLICATES | JSON_ALLOW_NUL, &e);
    if (!all && (json_error_code(&e) == json_error_out_of_memory || !e.text[0]))
        return -ENOMEM;
    int r = read_source(all, file, &s, fault);
    json_decref(all);
    if (r < 0)
        tok_source_done(&s);
    else
        *ret_source = s;
    return r;
}
