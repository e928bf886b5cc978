/*
 * The files of a tokenizer: reads tokenizer.json, else tekken.json, tiktoken.model or
 * tokenizer.model, and tokenizer_config.json beside it. Runs once at start.
 */
#include <errno.h>

#include "common/buf.h"
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

static int load_bytes(struct ek_bundle *b, const char *dir, const char *name, from_bytes_fn from,
                      const json_t *config, struct tok_source *ret_source, struct ek_fault *fault)
{
    struct ek_buf path = {0}, data = {0};
    int r = ek_buf_printf(&path, "%s/%s", dir, name);
    if (r == 0)
        r = text_file_read(b, path.data, name, FILE_MOST, &data, fault);
    if (r == 0)
        r = from(data.data ? data.data : "", data.len, config, ret_source, fault);
    ek_buf_done(&data);
    ek_buf_done(&path);
    return r;
}

/* The first of tokenizer.json, tekken.json, tiktoken.model and tokenizer.model that is there. */
static int load_source(struct ek_bundle *b, const char *dir, const json_t *config,
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
        r = load_bytes(b, dir, TOK_TIKTOKEN, tok_from_tiktoken, config, ret_source, fault);
    if (r == -ENOENT)
        r = load_bytes(b, dir, TOK_SPM, tok_from_spm, config, ret_source, fault);
    json_decref(tekken);
    if (r == -ENOENT)
        r = ek_fault_set(fault, TOK_FILE,
                         "%s/" TOK_FILE " does not exist, nor " TOK_TEKKEN ", " TOK_TIKTOKEN
                         " or " TOK_SPM "; the model directory must hold one",
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
        r = load_source(b, dir, config, &source, fault);
    if (r == 0 && !source.order && !source.score)
        r = tok_build(source.root, config, ret_tok, fault);
    else if (r == 0)
        r = tok_build_from(&source, config, ret_tok, fault);
    json_decref(config);
    tok_source_done(&source);
    return r;
}
