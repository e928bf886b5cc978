/*
 * Builds a tokenizer from what tokenizer.json and tokenizer_config.json hold. Everything they say
 * is checked before it is used: ids against each other and a ceiling, merges against the
 * vocabulary. Truncation and padding are not read: the server has its own limits. Runs once at
 * start.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/rx.h"
#include "server/text/tokenizer.h"
#include "server/text/tokparts.h"
#include "server/text/utf8.h"

#define TOKEN_MOST  65536u /* bytes of one token */
#define SPLIT_MOST  1024u  /* bytes of one that merges make: each way to split it is looked up */
#define MERGES_MOST (1u << 30)

static int bad_id(const char *field, const char *content, struct ek_fault *fault)
{
    return ek_fault_set(fault, field, TOK_FILE ": %s: the id of \"%.80s\" must be 0 to %u", field,
                        content, VOCAB_MOST - 1);
}

/* Largest id + 1 of the vocabulary and the added tokens, all ids and lengths checked. */
static int count_ids(const json_t *vocab, const json_t *added, uint32_t *ret_ids,
                     struct ek_fault *fault)
{
    json_int_t most = -1;
    const char *key;
    json_t *v;
    size_t i;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, v) /* the macro only reads */
    {
        json_int_t id = json_integer_value(v);
        if (!json_is_integer(v) || id < 0 || id >= VOCAB_MOST)
            return bad_id("model.vocab", key, fault);
        if (!*key || strlen(key) > TOKEN_MOST)
            return ek_fault_set(fault, "model.vocab",
                                TOK_FILE ": model.vocab: token %lld must have 1 to %u bytes",
                                (long long)id, TOKEN_MOST);
        most = id > most ? id : most;
    }
    json_array_foreach(added, i, v)
    {
        const json_t *id = json_object_get(v, "id");
        const char *content = json_string_value(json_object_get(v, "content"));
        if (!content || !*content || strlen(content) > TOKEN_MOST)
            return ek_fault_set(fault, "added_tokens",
                                TOK_FILE
                                ": added_tokens: item %zu needs a content of 1 to %u bytes",
                                i, TOKEN_MOST);
        json_int_t n = json_integer_value(id);
        if (!json_is_integer(id) || n < 0 || n >= VOCAB_MOST)
            return bad_id("added_tokens", content, fault);
        most = n > most ? n : most;
    }
    *ret_ids = (uint32_t)(most + 1);
    return 0;
}

/* In byte mode a token's key is its bytes; one with other characters can never come out of a text
 * and has none. */
static int put_key(struct tokenizer *t, uint32_t id, const char *s, size_t len, struct ek_buf *tmp)
{
    size_t n = 0;
    if (!t->bpe.byte_mode)
        return vocab_put(&t->bpe.keys, id, s, len);
    ek_buf_clear(tmp);
    if (ek_buf_reserve(tmp, len) < 0)
        return -ENOMEM;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        i += utf8_next(s + i, len - i, &cp);
        int byte = utf8_to_byte(cp);
        if (byte < 0)
            return 0;
        tmp->data[n++] = (char)byte;
    }
    return vocab_put(&t->bpe.keys, id, tmp->data, n);
}

static int read_contents(struct tokenizer *t, const json_t *vocab, struct ek_fault *fault)
{
    const char *key;
    json_t *v;
    json_object_foreach((json_t *)(uintptr_t)vocab, key, v) /* the macro only reads */
    {
        uint32_t id = (uint32_t)json_integer_value(v);
        int r = vocab_put(&t->content, id, key, strlen(key));
        if (r == -EEXIST)
            return ek_fault_set(fault, "model.vocab",
                                TOK_FILE ": model.vocab: id %u of \"%.80s\" is used twice", id,
                                key);
        if (r < 0)
            return r;
    }
    return 0;
}

static int fill_keys(struct tokenizer *t)
{
    struct ek_buf tmp = {0};
    int r = 0;
    for (uint32_t id = 0; id < t->content.ids && r == 0; id++) {
        size_t len;
        const char *s = vocab_at(&t->content, (int32_t)id, &len);
        if (s)
            r = put_key(t, id, s, len, &tmp);
    }
    ek_buf_done(&tmp);
    return r;
}

/* The two sides of one merge, as "a b" or ["a", "b"]. */
static int merge_sides(const json_t *m, const char *side[2], size_t len[2])
{
    if (json_is_array(m) && json_array_size(m) == 2) {
        for (size_t i = 0; i < 2; i++) {
            const json_t *s = json_array_get(m, i);
            side[i] = json_string_value(s);
            len[i] = json_string_length(s);
        }
        return side[0] && side[1] ? 0 : -EBADMSG;
    }
    const char *s = json_string_value(m);
    const char *space = s ? strchr(s, ' ') : NULL;
    if (!space || strchr(space + 1, ' '))
        return -EBADMSG;
    side[0] = s;
    len[0] = (size_t)(space - s);
    side[1] = space + 1;
    len[1] = strlen(space + 1);
    return 0;
}

static int read_merge(struct tokenizer *t, const json_t *m, size_t i, struct ek_buf *both,
                      struct ek_fault *fault)
{
    const char *side[2];
    size_t len[2];
    if (merge_sides(m, side, len) < 0 || len[0] == 0 || len[1] == 0)
        return ek_fault_set(fault, "model.merges",
                            TOK_FILE ": model.merges: item %zu must be two tokens", i);
    ek_buf_clear(both);
    (void)ek_buf_add(both, side[0], len[0]);
    if (ek_buf_add(both, side[1], len[1]) < 0)
        return -ENOMEM;
    int32_t left = vocab_find(&t->content, side[0], len[0]);
    int32_t right = vocab_find(&t->content, side[1], len[1]);
    int32_t product = vocab_find(&t->content, both->data, both->len);
    if (left < 0 || right < 0 || product < 0)
        return ek_fault_set(fault, "model.merges",
                            TOK_FILE ": model.merges: item %zu names or makes a token that is not "
                                     "in the vocabulary; the file is damaged",
                            i);
    bpe_add(&t->bpe, (uint32_t)left, (uint32_t)right, (uint32_t)product);
    return 0;
}

static int read_merges(struct tokenizer *t, const json_t *merges, struct ek_fault *fault)
{
    struct ek_buf both = {0};
    const json_t *m;
    size_t i;
    if (!json_is_array(merges) || json_array_size(merges) > 8u * VOCAB_MOST)
        return ek_fault_set(fault, "model.merges",
                            TOK_FILE ": model.merges must be an array of at most %u items",
                            8u * VOCAB_MOST);
    int r = bpe_reserve(&t->bpe, (uint32_t)json_array_size(merges));
    json_array_foreach(merges, i, m)
    {
        if (r == 0)
            r = read_merge(t, m, i, &both, fault);
    }
    ek_buf_done(&both);
    return r;
}

struct load_split {
    uint32_t left, right, product;
};

struct splits {
    struct load_split *at;
    uint32_t count, room;
};

/* Every way to split token `id` in two tokens. */
static int find_splits(const struct bpe *b, uint32_t id, struct splits *all, struct ek_fault *fault)
{
    size_t len;
    const char *s = vocab_at(&b->keys, (int32_t)id, &len);
    if (s && len > SPLIT_MOST)
        return ek_fault_set(fault, "vocab",
                            "the tokenizer's token %u has %zu bytes; one that merges make has at "
                            "most %u",
                            id, len, SPLIT_MOST);
    for (size_t at = 1; s && at < len; at++) {
        if (!b->byte_mode && ((uint8_t)s[at] & 0xC0) == 0x80)
            continue; /* within a character */
        int32_t left = vocab_find(&b->keys, s, at);
        int32_t right = left < 0 ? -1 : vocab_find(&b->keys, s + at, len - at);
        if (right < 0)
            continue;
        if (all->count == all->room) {
            uint32_t room = all->room ? all->room * 2 : 4096;
            struct load_split *more =
                room < MERGES_MOST ? realloc(all->at, room * sizeof(*more)) : NULL;
            if (!more)
                return -ENOMEM;
            all->at = more;
            all->room = room;
        }
        all->at[all->count++] = (struct load_split){(uint32_t)left, (uint32_t)right, id};
    }
    return 0;
}

static int merge_in_order(struct tokenizer *t, const struct tok_source *s, struct ek_fault *fault)
{
    struct splits all = {0};
    int r = 0;
    for (uint32_t i = 0; i < s->orders && r == 0; i++)
        r = find_splits(&t->bpe, s->order[i], &all, fault);
    if (r == 0)
        r = bpe_reserve(&t->bpe, all.count);
    for (uint32_t i = 0; r == 0 && i < all.count; i++) {
        const struct load_split *p = &all.at[i];
        if (i > 0 && p[-1].product == p->product)
            bpe_add_same(&t->bpe, p->left, p->right);
        else
            bpe_add(&t->bpe, p->left, p->right, p->product);
    }
    free(all.at);
    return r;
}

/* Ids of single bytes, of <0xNN> and of the unknown token. */
static int read_basics(struct tokenizer *t, const json_t *model, struct ek_fault *fault)
{
    struct bpe *b = &t->bpe;
    const char *unk;
    size_t len;
    int r = tok_string(model, "unk_token", &unk, &len, fault);
    if (r < 0)
        return r;
    b->unk = -1;
    if (len > 0) {
        b->unk = vocab_find(&t->content, unk, len);
        if (b->unk < 0)
            return ek_fault_set(fault, "model.unk_token",
                                TOK_FILE ": model.unk_token \"%.80s\" is not in the vocabulary",
                                unk);
    }
    for (int i = 0; i < 256; i++) {
        char name[8];
        (void)snprintf(name, sizeof(name), "<0x%02X>", i); /* fits */
        b->fallback[i] = vocab_find(&t->content, name, 6);
        b->single[i] = b->byte_mode ? vocab_find(&b->keys, &(char){(char)i}, 1) : -1;
    }
    return 0;
}

static int read_flags(struct bpe *b, const json_t *model, struct ek_fault *fault)
{
    static const char *const affixes[] = {"continuing_subword_prefix", "end_of_word_suffix"};
    const char *type, *s;
    size_t len;
    int r = tok_string(model, "type", &type, &len, fault);
    if (r < 0)
        return r;
    if (len > 0 && strcmp(type, "BPE") != 0)
        return ek_fault_set(fault, "model.type",
                            TOK_FILE ": model of type \"%.60s\" is not supported; known: BPE, "
                                     "Unigram",
                            type);
    for (size_t i = 0; i < 2; i++) {
        r = tok_string(model, affixes[i], &s, &len, fault);
        if (r == 0 && len > 0)
            r = ek_fault_set(fault, affixes[i], TOK_FILE ": model.%s is not supported", affixes[i]);
        if (r < 0)
            return r;
    }
    const json_t *dropout = json_object_get(model, "dropout");
    if (dropout && !json_is_null(dropout) && json_number_value(dropout) != 0.0)
        return ek_fault_set(fault, "model.dropout",
                            TOK_FILE ": model.dropout is for training; set it to null");
    r = tok_bool(model, "ignore_merges", false, &b->ignore_merges, fault);
    if (r == 0)
        r = tok_bool(model, "byte_fallback", false, &b->byte_fallback, fault);
    return r < 0 ? r : tok_bool(model, "fuse_unk", false, &b->fuse_unk, fault);
}

static int read_model(struct tokenizer *t, struct tok_source *source, struct ek_fault *fault)
{
    const json_t *root = source->root;
    const json_t *model = json_object_get(root, "model");
    const json_t *vocab = json_object_get(model, "vocab");
    const json_t *added = json_object_get(root, "added_tokens");
    uint32_t ids = 0;
    int r = read_flags(&t->bpe, model, fault);
    if (r < 0)
        return r;
    const bool listed = source->content.ids > 0;
    if (!listed && (!json_is_object(vocab) || json_object_size(vocab) == 0))
        return ek_fault_set(fault, "model.vocab", TOK_FILE ": model.vocab must map tokens to ids");
    if (added && !json_is_null(added) && !json_is_array(added))
        return ek_fault_set(fault, "added_tokens", TOK_FILE ": added_tokens must be an array");
    r = count_ids(vocab, added, &ids, fault);
    if (r == 0 && listed && ids > source->content.ids) /* its reader counts the added ones */
        r = ek_fault_set(fault, "added_tokens", "the tokenizer has added tokens above its last id");
    if (r == 0 && listed) {
        t->content = source->content;
        source->content = (struct vocab){0};
        ids = t->content.ids;
    } else if (r == 0) {
        r = vocab_init(&t->content, ids, true);
    }
    if (r == 0)
        r = vocab_init(&t->bytes, ids, false);
    if (r == 0)
        r = vocab_init(&t->bpe.keys, ids, true);
    if (r < 0)
        return r;
    t->bpe.byte_mode = t->pretok.byte_mode;
    if (!listed)
        r = read_contents(t, vocab, fault);
    if (r == 0)
        r = fill_keys(t);
    if (r == 0)
        r = source->score   ? tok_take_scores(t, source)
            : source->order ? merge_in_order(t, source, fault)
                            : read_merges(t, json_object_get(model, "merges"), fault);
    if (r == 0)
        r = read_basics(t, model, fault);
    return r < 0 || source->score ? r : bpe_seal(&t->bpe);
}

/* The token's text bytes; one that has them already keeps them. */
static int put_bytes(struct tokenizer *t, const struct decoder *d, int32_t id, const char *s,
                     size_t len)
{
    struct ek_buf tmp = {0}, one = {0};
    int r = decoder_run(d, s, len, &tmp, &one);
    if (r == 0)
        r = vocab_put(&t->bytes, (uint32_t)id, one.data ? one.data : "", one.len);
    ek_buf_done(&tmp);
    ek_buf_done(&one);
    return r == -EEXIST ? 0 : r;
}

/* A token that matches in normalized text is looked for, and decoded, in its normalized spelling.
 */
static int put_added(struct tokenizer *t, const struct decoder *d, const char *content,
                     const struct added_rule *rule, bool normalized)
{
    struct ek_buf bufs[2] = {0};
    struct rx_work *w = NULL;
    const char *s = content;
    size_t len = strlen(content);
    int r = 0;
    if (normalized && t->normalizer.steps > 0) {
        r = rx_work_new(len, NULL, &w);
        if (r == 0)
            r = normalizer_run(&t->normalizer, w, content, len, bufs, &s, &len);
    }
    if (r == 0 && len > 0)
        r = added_put(normalized ? &t->normed : &t->raw, s, len, rule);
    if (r == 0)
        r = put_bytes(t, d, rule->id, s, len);
    rx_work_free(w);
    ek_buf_done(&bufs[0]);
    ek_buf_done(&bufs[1]);
    return r;
}

static int read_added_one(struct tokenizer *t, const struct decoder *d, const json_t *o,
                          struct ek_fault *fault)
{
    const char *content = json_string_value(json_object_get(o, "content"));
    struct added_rule rule = {.id = (int32_t)json_integer_value(json_object_get(o, "id"))};
    bool special = false, normalized = false;
    size_t len;
    int r = tok_bool(o, "special", false, &special, fault);
    if (r == 0)
        r = tok_bool(o, "normalized", !special, &normalized, fault);
    if (r == 0)
        r = tok_bool(o, "lstrip", false, &rule.lstrip, fault);
    if (r == 0)
        r = tok_bool(o, "rstrip", false, &rule.rstrip, fault);
    if (r == 0)
        r = tok_bool(o, "single_word", false, &rule.single_word, fault);
    if (r < 0)
        return r;
    const char *there = vocab_at(&t->content, rule.id, &len);
    int32_t other = vocab_find(&t->content, content, strlen(content));
    if ((there && strcmp(there, content) != 0) || (other >= 0 && other != rule.id))
        return ek_fault_set(fault, "added_tokens",
                            TOK_FILE ": added_tokens: \"%.80s\" with id %d contradicts the "
                                     "vocabulary, where %s",
                            content, rule.id,
                            there ? "the id is another token's" : "the token has another id");
    if (!there) {
        r = vocab_put(&t->content, (uint32_t)rule.id, content, strlen(content));
        if (r < 0)
            return r;
    }
    if (special && !t->special[rule.id]) {
        t->special[rule.id] = 1;
        t->specials[t->special_count++] = rule.id;
    }
    return put_added(t, d, content, &rule, normalized);
}

static int read_added(struct tokenizer *t, const struct decoder *d, const json_t *root,
                      struct ek_fault *fault)
{
    const json_t *added = json_object_get(root, "added_tokens"), *o;
    size_t i, count = json_array_size(added);
    t->special = calloc(t->content.ids ? t->content.ids : 1, 1);
    t->specials = calloc(count ? count : 1, sizeof(*t->specials));
    if (!t->special || !t->specials)
        return -ENOMEM;
    json_array_foreach(added, i, o)
    {
        int r = read_added_one(t, d, o, fault);
        if (r < 0)
            return r;
    }
    return 0;
}

static int read_bytes(struct tokenizer *t, const struct decoder *d)
{
    struct ek_buf tmp = {0}, one = {0};
    const bool keys_are_bytes =
        t->bpe.byte_mode && d->steps == 1 && d->step[0].kind == DECODE_BYTES;
    int r = 0;
    for (uint32_t i = 0; i < t->content.ids && r == 0; i++) {
        size_t len, unused;
        const char *s = vocab_at(&t->content, (int32_t)i, &len);
        if (!s || vocab_at(&t->bytes, (int32_t)i, &unused))
            continue;
        const char *key = keys_are_bytes ? vocab_at(&t->bpe.keys, (int32_t)i, &unused) : NULL;
        if (key) {
            r = vocab_put(&t->bytes, i, key, unused);
            continue;
        }
        ek_buf_clear(&one);
        r = decoder_run(d, s, len, &tmp, &one);
        if (r == 0)
            r = vocab_put(&t->bytes, i, one.data ? one.data : "", one.len);
    }
    ek_buf_done(&tmp);
    ek_buf_done(&one);
    return r;
}

/* eos_token is a string or an added token's object. A content that no token has is left out: the
 * model cannot produce it, and generation_config.json names the ids that count. */
static void read_config(struct tokenizer *t, const json_t *config)
{
    const json_t *eos = json_object_get(config, "eos_token");
    if (json_is_object(eos))
        eos = json_object_get(eos, "content");
    if (json_is_string(eos))
        t->eos = vocab_find(&t->content, json_string_value(eos), json_string_length(eos));
}

int tok_build(const json_t *root, const json_t *config, struct tokenizer **ret_tok,
              struct ek_fault *fault)
{
    const json_t *model = json_object_get(root, "model");
    const char *type = json_string_value(json_object_get(model, "type"));
    bool scores =
        type ? strcmp(type, "Unigram") == 0 : json_is_array(json_object_get(model, "vocab"));
    struct tok_source s = {.root = (json_t *)(uintptr_t)root}; /* it only reads */
    if (!scores)
        return tok_build_from(&s, config, ret_tok, fault);
    int r = tok_from_unigram(root, &s, fault);
    if (r == 0) {
        r = tok_build_from(&s, config, ret_tok, fault);
        tok_source_done(&s);
    }
    return r;
}

int tok_build_from(struct tok_source *s, const json_t *config, struct tokenizer **ret_tok,
                   struct ek_fault *fault)
{
    const json_t *root = s->root;
    struct tokenizer *t = calloc(1, sizeof(*t));
    if (!t)
        return -ENOMEM;
    t->eos = -1;
    struct decoder d = {0};
    int r = tok_read_normalizer(root, &t->normalizer, fault);
    if (r == 0)
        r = tok_read_pretok(root, &t->pretok, fault);
    if (r == 0)
        r = read_model(t, s, fault);
    if (r == 0)
        r = tok_read_decoder(root, &d, fault);
    if (r == 0)
        r = read_added(t, &d, root, fault);
    if (r == 0)
        r = read_bytes(t, &d);
    if (r == 0)
        r = tok_read_around(root, t, &t->around, fault);
    if (r < 0) {
        tokenizer_free(t);
        return r;
    }
    read_config(t, config);
    *ret_tok = t;
    return 0;
}
