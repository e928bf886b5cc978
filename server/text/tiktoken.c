/*
 * A tiktoken.model file as the tokenizer.json that it amounts to: lines of a token's bytes in
 * base64 and its rank, which is its id; two tokens merge when they make one, lowest rank first. It
 * says neither how texts are split nor which tokens are special: that is code in the directories
 * that have it, so the pattern is known here by tokenizer_config.json's class, and special tokens
 * are those of its added_tokens_decoder. Runs once at start.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/tokparts.h"

#define LINE_MOST 65536u /* bytes */
#define RESERVED  256u   /* special tokens of Moonshot's class, behind the others */

/* Moonshot's TikTokenTokenizer (Kimi, Moonlight): Han runs stand alone, words end in a case. */
#define KIMI_UPPER "[\\p{Lu}\\p{Lt}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_LOWER "[\\p{Ll}\\p{Lm}\\p{Lo}\\p{M}&&[^\\p{Han}]]"
#define KIMI_AHEAD "[^\\r\\n\\p{L}\\p{N}]?"
#define ENDINGS    "(?i:'s|'t|'re|'ve|'m|'ll|'d)"
#define REST       "\\p{N}{1,3}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"
static const char kimi_pattern[] = "[\\p{Han}]+|" KIMI_AHEAD KIMI_UPPER "*" KIMI_LOWER "+" ENDINGS
                                   "?|" KIMI_AHEAD KIMI_UPPER "+" KIMI_LOWER "*" ENDINGS "?|" REST;
/* What transformers takes such a file to mean when no class says more: Llama 3's. */
static const char plain_pattern[] = ENDINGS "|" KIMI_AHEAD "\\p{L}+|" REST;

struct tiktoken_file {
    const char *at, *end;
    uint32_t count; /* tokens */
    struct ek_fault *fault;
};

static int bad_line(const struct tiktoken_file *f, uint32_t line)
{
    return ek_fault_set(f->fault, TOK_TIKTOKEN,
                        TOK_TIKTOKEN ": line %u must be a token of its own in base64, a space and "
                                     "the rank %u; download it again",
                        line + 1, line);
}

/* Lines, the last one with or without its end. */
static uint32_t count_lines(const char *at, const char *end)
{
    uint32_t count = 0;
    while (at < end && count <= VOCAB_MOST) {
        const char *next = memchr(at, '\n', (size_t)(end - at));
        at = next ? next + 1 : end;
        count++;
    }
    return count;
}

static int read_line(struct tiktoken_file *f, uint32_t rank, struct ek_buf *bytes,
                     struct ek_buf *name, struct vocab *content)
{
    char line[LINE_MOST], number[16];
    const char *next = memchr(f->at, '\n', (size_t)(f->end - f->at));
    size_t len = (size_t)((next ? next : f->end) - f->at);
    if (len > 0 && f->at[len - 1] == '\r')
        len--;
    if (len >= sizeof(line))
        return bad_line(f, rank);
    memcpy(line, f->at, len);
    line[len] = '\0';
    f->at = next ? next + 1 : f->end;
    char *space = strchr(line, ' ');
    (void)snprintf(number, sizeof(number), "%u", rank);
    if (!space || strcmp(space + 1, number) != 0)
        return bad_line(f, rank);
    *space = '\0';
    int r = tok_spell(line, bytes, name);
    if (r == 0)
        r = vocab_put(content, rank, name->data, name->len);
    return r == -EBADMSG || r == -EEXIST ? bad_line(f, rank) : r;
}

static int read_tokens(struct tiktoken_file *f, uint32_t ids, struct tok_source *s)
{
    struct ek_buf bytes = {0}, name = {0};
    s->order = malloc(f->count * sizeof(*s->order));
    s->orders = f->count;
    int r = s->order ? vocab_init(&s->content, ids, true) : -ENOMEM;
    for (uint32_t i = 0; r == 0 && i < f->count; i++) {
        s->order[i] = i;
        r = read_line(f, i, &bytes, &name, &s->content);
    }
    ek_buf_done(&bytes);
    ek_buf_done(&name);
    return r;
}

/* added_tokens_decoder's entry; NULL when none has this id. */
static const json_t *tiktoken_listed(const json_t *config, uint32_t id)
{
    char key[16];
    (void)snprintf(key, sizeof(key), "%u", id);
    return json_object_get(json_object_get(config, "added_tokens_decoder"), key);
}

/* Special tokens behind the others: those that are listed, and with `reserved` fillers between and
 * behind them. *ret_ids: ids in all. */
static int add_specials(const struct tiktoken_file *f, const json_t *config, bool reserved,
                        json_t *added, uint32_t *ret_ids)
{
    uint32_t most = f->count + RESERVED, ids = f->count;
    for (uint32_t id = f->count; id < most; id++) {
        char filler[40];
        const json_t *t = tiktoken_listed(config, id);
        const char *content = json_string_value(json_object_get(t, "content"));
        (void)snprintf(filler, sizeof(filler), "<|reserved_token_%u|>", id);
        if (t && (!content || !*content))
            return ek_fault_set(f->fault, "added_tokens_decoder",
                                "tokenizer_config.json: added_tokens_decoder: %u needs a content",
                                id);
        if (!t && !reserved)
            continue;
        bool special = !t || !json_is_false(json_object_get(t, "special"));
        if (json_array_append_new(added, tok_added(id, t ? content : filler, special)) < 0)
            return -ENOMEM;
        ids = id + 1;
    }
    *ret_ids = ids;
    return 0;
}

int tok_from_tiktoken(const void *data, size_t len, const json_t *config,
                      struct tok_source *ret_source, struct ek_fault *fault)
{
    struct tiktoken_file f = {
        .at = data, .end = (const char *)data + len, .fault = fault, .count = 0};
    struct tok_source s = {0};
    uint32_t ids = 0;
    const char *class = json_string_value(json_object_get(config, "tokenizer_class"));
    bool kimi = class && strcmp(class, "TikTokenTokenizer") == 0;
    f.count = count_lines(f.at, f.end);
    if (f.count == 0 || f.count > VOCAB_MOST - RESERVED)
        return ek_fault_set(fault, TOK_TIKTOKEN,
                            TOK_TIKTOKEN " must have 1 to %u lines, a token in base64 and its rank "
                                         "each; download it again",
                            VOCAB_MOST - RESERVED);
    json_t *added = json_array();
    int r = added ? add_specials(&f, config, kimi, added, &ids) : -ENOMEM;
    if (r == 0)
        r = read_tokens(&f, ids, &s);
    if (r == 0) {
        s.root = tok_byte_root(kimi ? kimi_pattern : plain_pattern, added,
                               tok_template(NULL, 0, NULL, 0));
        r = s.root ? 0 : -ENOMEM;
    }
    json_decref(added);
    if (r < 0)
        tok_source_done(&s);
    else
        *ret_source = s;
    return r;
}
