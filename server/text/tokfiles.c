/*
 * The files of a tokenizer: reads tokenizer.json, else tekken.json, tiktoken.model, tokenizer.model
 * or vocab.json with merges.txt, and tokenizer_config.json beside it (of old directories of the
 * last two also what was in two other files then). The *.model are no JSON: into a bundle goes
 * what they amount to, and out of it comes that (toksource.c). Runs once at start.
 */
#include <errno.h>
#include <stdlib.h>

#include "common/buf.h"
#include "common/bundle.h"
#include "common/err.h"
#include "common/json.h"
#include "server/text/textfile.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"

#define FILE_MOST (256u << 20) /* bytes; the largest published tokenizer.json have 33 MB */

/* Parses DIR/name; absent: *ret_root = NULL and 0. */
static int read_json(struct ek_bundle *b, const char *dir, const char *name, size_t flags,
                     json_t **ret_root, struct ek_fault *fault)
{
    struct ek_buf path = {0}, text = {0};
    json_error_t err;
    json_t *root = NULL;

    int r = ek_buf_printf(&path, "%s/%s", dir, name);
    if (r < 0)
        goto out;
    r = text_file_read(b, path.data, name, FILE_MOST, &text, fault);
    if (r == -ENOENT) {
        *ret_root = NULL;
        r = 0;
        goto out;
    }
    if (r < 0)
        goto out;
    root = ek_json_parse(text.data ? text.data : "", text.len, flags, &err);
    if (!root || !json_is_object(root)) {
        /* jansson leaves the text empty when it ran out of memory below the parser. */
        if (!root && (json_error_code(&err) == json_error_out_of_memory || !err.text[0]))
            r = -ENOMEM;
        else
            r = ek_fault_set(fault, name, "%s: line %d: %s; it is no valid JSON, download it again",
                             path.data, root ? 1 : err.line, root ? "must be an object" : err.text);
        if (fault)
            fault->at = root ? 1 : (uint64_t)err.line;
        json_decref(root);
        goto out;
    }
    *ret_root = root;
    r = 0;
out:
    ek_buf_done(&text);
    ek_buf_done(&path);
    return r;
}

typedef int (*from_bytes_fn)(const void *data, size_t len, const json_t *config,
                             struct tok_source *ret_source, struct ek_fault *fault);

/* The file itself, and what it amounts to, which also goes into the bundle where there is one. */
static int read_bytes(struct ek_bundle *b, struct ek_bundle_read *read, from_bytes_fn from,
                      const json_t *config, struct tok_source *ret_source, struct ek_fault *fault)
{
    struct ek_buf data = {0}, form = {0};
    struct tok_source s = {0};
    int r = text_file_read_itself(read->path, read->field, FILE_MOST, &data, &read->file, fault);
    if (r == 0)
        r = from(data.data ? data.data : "", data.len, config, &s, fault);
    ek_buf_done(&data);
    if (r == 0 && b)
        r = tok_source_write(&s, &form);
    if (b && r != -ENOMEM)
        r = ek_bundle_keep(b, read, r, &form, fault);
    ek_buf_done(&form);
    if (r < 0)
        tok_source_done(&s);
    else
        *ret_source = s;
    return r;
}

/* What another process made of it. */
static int take_bytes(const struct ek_bundle *b, const struct ek_bundle_read *read,
                      struct tok_source *ret_source, struct ek_fault *fault)
{
    struct ek_buf form = {0};
    int r = ek_bundle_take(b, read, &form, fault);
    if (r == 0)
        r = tok_source_read(read->field, form.data, form.len, ret_source, fault);
    ek_buf_done(&form);
    return r;
}

static int load_bytes(struct ek_bundle *b, const char *dir, const char *name, from_bytes_fn from,
                      const json_t *config, struct tok_source *ret_source, struct ek_fault *fault)
{
    struct ek_fault own = {0};
    struct ek_buf path = {0};
    int r = ek_buf_printf(&path, "%s/%s", dir, name);
    struct ek_bundle_read read = {
        .path = path.data, .what = path.data, .field = name, .most_bytes = EK_BUNDLE_MOST_BYTES};
    if (!fault)
        fault = &own; /* the bundle keeps it */
    if (r == 0)
        r = b && !ek_bundle_is_open(b) ? take_bytes(b, &read, ret_source, fault)
                                       : read_bytes(b, &read, from, config, ret_source, fault);
    ek_buf_done(&path);
    return r;
}

/* Puts in its place what an old directory says beside it. */
static int complete_config(struct ek_bundle *b, const char *dir, json_t **config,
                           struct ek_fault *fault)
{
    json_t *map = NULL, *added = NULL, *now = NULL;
    if (json_object_get(*config, "added_tokens_decoder"))
        return 0;
    int r = read_json(b, dir, TOK_MAP, 0, &map, fault);
    if (r == 0)
        r = read_json(b, dir, TOK_ADDED, 0, &added, fault);
    if (r == 0 && (map || added))
        r = tok_config_of_old(*config, map, added, &now, fault);
    if (r == 0 && now) {
        json_decref(*config);
        *config = now;
    }
    json_decref(added);
    json_decref(map);
    return r;
}

/* Leaves out tokens that were added without a row in the embedding, as the padding of old
 * directories: nothing can read or say them. */
static int drop_rowless(struct ek_bundle *b, const char *dir, const json_t *config,
                        struct ek_fault *fault)
{
    json_t *model = NULL, *decoder = json_object_get(config, "added_tokens_decoder"), *one;
    const char *key;
    void *next;
    if (json_object_size(decoder) == 0)
        return 0;
    int r = read_json(b, dir, "config.json", 0, &model, fault);
    json_int_t rows = json_integer_value(json_object_get(model, "vocab_size"));
    json_object_foreach_safe(decoder, next, key, one)
    {
        if (rows > 0 && *key >= '0' && *key <= '9' && strtoull(key, NULL, 10) >= (uint64_t)rows)
            (void)json_object_del(decoder, key); /* it is there */
    }
    json_decref(model);
    return r;
}

/* vocab.json and merges.txt; -ENOENT where one of them is missing. */
static int load_merges(struct ek_bundle *b, const char *dir, const json_t *config,
                       struct tok_source *ret_source, struct ek_fault *fault)
{
    struct ek_buf path = {0}, merges = {0};
    json_t *vocab = NULL;
    int r = read_json(b, dir, TOK_VOCAB, 0, &vocab, fault);
    if (r == 0 && !vocab)
        return -ENOENT;
    if (r == 0)
        r = ek_buf_printf(&path, "%s/" TOK_MERGES, dir);
    if (r == 0)
        r = text_file_read(b, path.data, TOK_MERGES, FILE_MOST, &merges, fault);
    if (r == 0)
        r = tok_from_merges(vocab, merges.data ? merges.data : "", merges.len, config,
                            &ret_source->root, fault);
    json_decref(vocab);
    ek_buf_done(&merges);
    ek_buf_done(&path);
    return r;
}

/* Of the files that do not say all themselves: what was added lies beside them. */
static int load_old(struct ek_bundle *b, const char *dir, json_t **config,
                    struct tok_source *ret_source, struct ek_fault *fault)
{
    int r = complete_config(b, dir, config, fault);
    if (r == 0)
        r = drop_rowless(b, dir, *config, fault);
    if (r == 0)
        r = load_bytes(b, dir, TOK_SPM, tok_from_spm, *config, ret_source, fault);
    return r == -ENOENT ? load_merges(b, dir, *config, ret_source, fault) : r;
}

/* The first of tokenizer.json, tekken.json, tiktoken.model, tokenizer.model, and vocab.json with
 * merges.txt that is there. */
static int load_source(struct ek_bundle *b, const char *dir, json_t **config,
                       struct tok_source *ret_source, struct ek_fault *fault)
{
    json_t *tekken = NULL;
    int r = read_json(b, dir, TOK_FILE, 0, &ret_source->root, fault);
    if (r < 0 || ret_source->root)
        return r;
    r = read_json(b, dir, TOK_TEKKEN, JSON_ALLOW_NUL, &tekken, fault); /* in texts, not read */
    if (r == 0 && tekken)
        r = tok_from_tekken(tekken, ret_source, fault);
    else if (r == 0)
        r = load_bytes(b, dir, TOK_TIKTOKEN, tok_from_tiktoken, *config, ret_source, fault);
    json_decref(tekken);
    if (r == -ENOENT)
        r = load_old(b, dir, config, ret_source, fault);
    if (r == -ENOENT)
        r = ek_fault_set(fault, TOK_FILE,
                         "%s/" TOK_FILE " does not exist, nor " TOK_TEKKEN ", " TOK_TIKTOKEN
                         ", " TOK_SPM " or " TOK_VOCAB " with " TOK_MERGES
                         "; the model directory must hold one",
                         dir);
    return r;
}

int tokenizer_load(const char *dir, struct tokenizer **ret_tok, struct ek_fault *fault)
{
    return tokenizer_load_from(NULL, dir, ret_tok, fault);
}

int tokenizer_load_from(struct ek_bundle *b, const char *dir, struct tokenizer **ret_tok,
                        struct ek_fault *fault)
{
    struct tok_source source = {0};
    json_t *config = NULL;

    int r = read_json(b, dir, "tokenizer_config.json", 0, &config, fault);
    if (r == 0)
        r = load_source(b, dir, &config, &source, fault);
    if (r == 0 && !source.order && !source.score)
        r = tok_build(source.root, config, ret_tok, fault);
    else if (r == 0)
        r = tok_build_from(&source, config, ret_tok, fault);
    json_decref(config);
    tok_source_done(&source);
    return r;
}
