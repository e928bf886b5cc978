/*
 * A struct tok_source as bytes, and back. tokfiles.c lets the process that reads a model's files
 * first write it of a tokenizer.model or a tiktoken.model, so that the server has neither a reader
 * of protocol buffers nor one of base64 lines for bytes from outside. One form, numbers as this
 * machine has them (both sides are one program):
 *
 *     length, and a tokenizer.json without a vocabulary, in the form of common/jsonform.h
 *     count, and of each id the length of its name (0 = none) and the name
 *     which of the two follows (ORDER, SCORES), count, and the ids or the scores
 *
 * and nothing behind it. The reader believes nothing: what is not of this form, or contradicts
 * itself, is refused. Runs once at start.
 */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/json.h"
#include "common/jsonform.h"
#include "server/text/tokparts.h"
#include "server/text/utf8.h"

#define NAME_MOST 131072u /* bytes: 65,536 characters of the byte alphabet */

enum source_list { LIST_ORDER = 1, LIST_SCORES };

/* ---- written ---- */

static void toksource_put_number(struct ek_buf *out, uint32_t n)
{
    (void)ek_buf_add(out, &n, sizeof(n));
}

static int put_root(const json_t *root, struct ek_buf *out)
{
    struct ek_buf form = {0};
    char *text = json_dumps(root, JSON_COMPACT);
    int r = text ? ek_json_form(text, strlen(text), &form) : -ENOMEM;
    free(text);
    toksource_put_number(out, (uint32_t)form.len);
    (void)ek_buf_add(out, form.data ? form.data : "", form.len);
    ek_buf_done(&form);
    return r;
}

int tok_source_write(const struct tok_source *s, struct ek_buf *out)
{
    int r = put_root(s->root, out);
    toksource_put_number(out, s->content.ids);
    for (uint32_t id = 0; id < s->content.ids; id++) {
        size_t len = 0;
        const char *name = vocab_at(&s->content, (int32_t)id, &len);
        toksource_put_number(out, name ? (uint32_t)len : 0);
        (void)ek_buf_add(out, name ? name : "", name ? len : 0);
    }
    toksource_put_number(out, s->score ? LIST_SCORES : LIST_ORDER);
    toksource_put_number(out, s->score ? s->scores : s->orders);
    if (s->score)
        (void)ek_buf_add(out, s->score, s->scores * sizeof(*s->score));
    else
        (void)ek_buf_add(out, s->order, s->orders * sizeof(*s->order));
    return r < 0 ? r : ek_buf_ok(out) ? 0 : -ENOMEM;
}

/* ---- read; -EBADMSG is given its sentence at the end ---- */

struct source_rest {
    const char *at;
    size_t left;
};

/* The next `bytes`; NULL when there are fewer. */
static const char *take_bytes(struct source_rest *in, size_t bytes)
{
    const char *at = in->at;
    if (bytes > in->left)
        return NULL;
    in->at += bytes;
    in->left -= bytes;
    return at;
}

static bool take_number(struct source_rest *in, uint32_t *ret_number)
{
    const char *at = take_bytes(in, sizeof(*ret_number));
    if (at)
        memcpy(ret_number, at, sizeof(*ret_number));
    return at != NULL;
}

/* "model.vocab" would be a second list of names. */
static int read_root(struct source_rest *in, json_t **ret_root)
{
    uint32_t bytes;
    json_error_t e = {0};
    const char *text = take_number(in, &bytes) ? take_bytes(in, bytes) : NULL;
    if (!text || !ek_json_has_form(text, bytes))
        return -EBADMSG;
    json_t *root = ek_json_parse(text, bytes, JSON_REJECT_DUPLICATES, &e);
    if (!root && (json_error_code(&e) == json_error_out_of_memory || !e.text[0]))
        return -ENOMEM;
    *ret_root = root;
    return json_is_object(root) && !json_object_get(json_object_get(root, "model"), "vocab")
               ? 0
               : -EBADMSG;
}

static int read_names(struct source_rest *in, struct vocab *v)
{
    uint32_t ids;
    if (!take_number(in, &ids) || ids == 0 || ids > VOCAB_MOST || ids > in->left / 4)
        return -EBADMSG;
    int r = vocab_init(v, ids, true);
    for (uint32_t id = 0; r == 0 && id < ids; id++) {
        uint32_t len;
        const char *name = take_number(in, &len) ? take_bytes(in, len) : NULL;
        if (!name || len > NAME_MOST || utf8_valid(name, len) != len || memchr(name, 0, len))
            r = -EBADMSG;
        else if (len > 0)
            r = vocab_put(v, id, name, len);
    }
    return r == -EEXIST ? -EBADMSG : r;
}

/* Each id once. */
static int read_order(const char *at, uint32_t count, uint32_t ids, struct tok_source *s)
{
    uint8_t *seen = calloc(ids, 1);
    s->order = malloc((count ? count : 1) * sizeof(*s->order));
    int r = seen && s->order ? 0 : -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < count; i++) {
        uint32_t id;
        memcpy(&id, at + i * sizeof(id), sizeof(id));
        if (id >= ids || seen[id])
            r = -EBADMSG;
        else
            seen[id] = 1;
        s->order[i] = id;
    }
    s->orders = count;
    free(seen);
    return r;
}

static int read_scores(const char *at, uint32_t count, struct tok_source *s)
{
    s->score = malloc((count ? count : 1) * sizeof(*s->score));
    if (!s->score)
        return -ENOMEM;
    memcpy(s->score, at, count * sizeof(*s->score));
    s->scores = count;
    for (uint32_t i = 0; i < count; i++)
        if (!(s->score[i] < HUGE_VAL)) /* -HUGE_VAL: never chosen */
            return -EBADMSG;
    return 0;
}

static int read_source(struct source_rest *in, struct tok_source *s)
{
    uint32_t which, count;
    int r = read_root(in, &s->root);
    if (r == 0)
        r = read_names(in, &s->content);
    if (r < 0)
        return r;
    if (!take_number(in, &which) || !take_number(in, &count) || count > s->content.ids)
        return -EBADMSG;
    const size_t size = which == LIST_SCORES ? sizeof(*s->score) : sizeof(*s->order);
    const char *at = take_bytes(in, count * size);
    if (!at || in->left > 0 || (which != LIST_ORDER && which != LIST_SCORES))
        return -EBADMSG;
    return which == LIST_SCORES ? read_scores(at, count, s)
                                : read_order(at, count, s->content.ids, s);
}

int tok_source_read(const char *file, const char *text, size_t len, struct tok_source *ret_source,
                    struct ek_fault *fault)
{
    struct source_rest in = {text, len};
    struct tok_source s = {0};
    int r = read_source(&in, &s);
    if (r == -EBADMSG)
        r = ek_fault_set(fault, file,
                         "%s: the process that read it has not handed back what it should have: do "
                         "not use this model until you know why, and report it",
                         file);
    if (r < 0)
        tok_source_done(&s);
    else
        *ret_source = s;
    return r;
}
