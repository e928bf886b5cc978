/*
 * SentencePiece's tokenizer.model as the tokenizer.json that it amounts to. The file is a protocol
 * buffer; only the fields that matter are read, everything is checked against the end of the file.
 * Models of type BPE: two pieces merge when they make one, highest score first; of type Unigram:
 * scores add up. Other types are refused by name. Tokens that were added to the pieces are not in
 * the file but in tokenizer_config.json, which also names the special ones. Runs once at start.
 */
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/text/tokparts.h"
#include "server/text/utf8.h"

#define MARK "\xE2\x96\x81" /* U+2581 for a space */

enum piece_kind {
    PIECE_NORMAL = 1,
    PIECE_UNKNOWN,
    PIECE_CONTROL,
    PIECE_USER,
    PIECE_UNUSED,
    PIECE_BYTE
};

struct spm_piece {
    const char *at;
    uint32_t len, id;
    float score;
    uint64_t kind;
};

struct spm {
    struct spm_piece *piece;
    uint32_t count, room;
    uint64_t model_type; /* 1 unigram, 2 bpe, 3 word, 4 char */
    bool byte_fallback;
    int64_t unk, bos, eos;
    bool dummy_prefix, fewer_spaces;
    const uint8_t *table; /* of the normalizer */
    uint64_t table_bytes;
    struct ek_fault *fault;
};

/* What tokenizer_config.json says of tokens. */
struct spm_beside {
    json_t *listed; /* {"id": an entry of added_tokens_decoder} */
    json_t *named;  /* {"text of a special token": as it is named} */
    uint32_t ids;   /* above the highest that is listed */
};

/* A stretch of a protocol buffer. */
struct pb {
    const uint8_t *at, *end;
};

struct spm_field {
    uint32_t number, wire;
    uint64_t value; /* wire 0: the number; 2: its length */
    const uint8_t *at;
};

static bool varint(struct pb *p, uint64_t *ret_value)
{
    uint64_t v = 0;
    for (uint32_t shift = 0; shift < 64 && p->at < p->end; shift += 7) {
        uint8_t b = *p->at++;
        v |= (uint64_t)(b & 0x7F) << shift;
        if (!(b & 0x80)) {
            *ret_value = v;
            return true;
        }
    }
    return false;
}

/* 1, 0 at the end, -EILSEQ when the bytes are no such thing. */
static int spm_next(struct pb *p, struct spm_field *f)
{
    uint64_t key;
    if (p->at == p->end)
        return 0;
    if (!varint(p, &key) || key >> 3 == 0 || key >> 3 > UINT32_MAX)
        return -EILSEQ;
    *f = (struct spm_field){
        .number = (uint32_t)(key >> 3), .wire = (uint32_t)(key & 7), .at = p->at};
    size_t left = (size_t)(p->end - p->at), size = f->wire == 1 ? 8 : 4;
    if (f->wire == 0)
        return varint(p, &f->value) ? 1 : -EILSEQ;
    if (f->wire == 2) {
        if (!varint(p, &f->value) || f->value > (uint64_t)(p->end - p->at))
            return -EILSEQ;
        f->at = p->at;
        p->at += f->value;
        return 1;
    }
    if ((f->wire != 1 && f->wire != 5) || left < size)
        return -EILSEQ;
    p->at += size;
    return 1;
}

static struct pb inside(const struct spm_field *f)
{
    return (struct pb){f->at, f->at + (f->wire == 2 ? f->value : 0)};
}

static int read_piece(struct spm *s, struct pb p)
{
    struct spm_field f;
    struct spm_piece piece = {.kind = PIECE_NORMAL, .id = s->count};
    int r;
    while ((r = spm_next(&p, &f)) > 0) {
        if (f.number == 1 && f.wire == 2) {
            piece.at = (const char *)f.at;
            piece.len = f.value <= UINT32_MAX ? (uint32_t)f.value : 0;
        } else if (f.number == 2 && f.wire == 5)
            memcpy(&piece.score, f.at, sizeof(piece.score));
        else if (f.number == 3 && f.wire == 0)
            piece.kind = f.value;
    }
    if (r < 0)
        return r;
    if (piece.len == 0 || piece.len > 65536 || utf8_valid(piece.at, piece.len) != piece.len ||
        memchr(piece.at, 0, piece.len) || !isfinite(piece.score) || piece.kind < PIECE_NORMAL ||
        piece.kind > PIECE_BYTE)
        return ek_fault_set(s->fault, "pieces",
                            TOK_SPM ": piece %u is not a text with a score and a known type",
                            s->count);
    if (s->count == VOCAB_MOST)
        return ek_fault_set(s->fault, "pieces", TOK_SPM ": more than %u pieces", VOCAB_MOST);
    if (s->count == s->room) {
        uint32_t room = s->room ? s->room * 2 : 1024;
        struct spm_piece *all = realloc(s->piece, room * sizeof(*all));
        if (!all)
            return -ENOMEM;
        s->piece = all;
        s->room = room;
    }
    s->piece[s->count++] = piece;
    return 0;
}

static int read_trainer(struct spm *s, struct pb p)
{
    struct spm_field f;
    int r;
    while ((r = spm_next(&p, &f)) > 0) {
        if (f.wire != 0)
            continue;
        if (f.number == 3)
            s->model_type = f.value;
        else if (f.number == 35)
            s->byte_fallback = f.value != 0;
        else if (f.number == 40)
            s->unk = (int64_t)f.value;
        else if (f.number == 41)
            s->bos = (int64_t)f.value;
        else if (f.number == 42)
            s->eos = (int64_t)f.value;
    }
    return r;
}

static int read_normalizer(struct spm *s, struct pb p)
{
    struct spm_field f;
    int r;
    while ((r = spm_next(&p, &f)) > 0) {
        if (f.number == 2 && f.wire == 2) {
            s->table = f.at;
            s->table_bytes = f.value;
        }
        if (f.number == 3 && f.wire == 0)
            s->dummy_prefix = f.value != 0;
        else if (f.number == 4 && f.wire == 0)
            s->fewer_spaces = f.value != 0;
    }
    return r;
}

static int read_model(struct spm *s, struct pb p)
{
    struct spm_field f;
    int r;
    while ((r = spm_next(&p, &f)) > 0) {
        int inner = 0;
        if (f.wire != 2)
            continue;
        if (f.number == 1)
            inner = read_piece(s, inside(&f));
        else if (f.number == 2)
            inner = read_trainer(s, inside(&f));
        else if (f.number == 3)
            inner = read_normalizer(s, inside(&f));
        if (inner < 0)
            return inner;
    }
    return r;
}

static int spm_check(const struct spm *s)
{
    static const char *const types[] = {"word", "char"};
    if (s->count == 0)
        return ek_fault_set(s->fault, "pieces", TOK_SPM ": holds no pieces; download it again");
    if (s->model_type != 1 && s->model_type != 2)
        return ek_fault_set(s->fault, "model_type",
                            TOK_SPM ": models of type %s are not supported, only bpe and unigram",
                            s->model_type == 3 || s->model_type == 4 ? types[s->model_type - 3]
                                                                     : "unknown");
    return 0;
}

static int by_score(const void *a, const void *b)
{
    const struct spm_piece *x = a, *y = b;
    if (x->score != y->score)
        return x->score > y->score ? -1 : 1;
    return x->id < y->id ? -1 : x->id > y->id;
}

static int beside_read(const json_t *config, struct spm_beside *b, struct ek_fault *fault)
{
    const char *key;
    json_t *one;
    b->listed = json_object();
    b->named = json_object();
    int r = b->listed && b->named ? tok_named(config, b->named) : -ENOMEM;
    json_object_foreach(json_object_get(config, "added_tokens_decoder"), key, one)
    {
        const char *content = "";
        uint32_t id = 0;
        char number[16];
        if (r == 0)
            r = tok_listed(key, one, &id, &content, fault);
        if (r == 0 && id >= VOCAB_MOST)
            r = ek_fault_set(
                fault, "added_tokens_decoder",
                "tokenizer_config.json: added_tokens_decoder: the id of \"%.80s\" must "
                "be 0 to %u",
                content, VOCAB_MOST - 1);
        (void)snprintf(number, sizeof(number), "%u", id);
        if (r == 0 && json_object_set(b->listed, number, one) < 0)
            r = -ENOMEM;
        if (r < 0)
            break;
        b->ids = id >= b->ids ? id + 1 : b->ids;
    }
    return r;
}

static void beside_done(struct spm_beside *b)
{
    json_decref(b->listed);
    json_decref(b->named);
}

static const json_t *beside_at(const struct spm_beside *b, uint32_t id)
{
    char number[16];
    (void)snprintf(number, sizeof(number), "%u", id);
    return id < b->ids ? json_object_get(b->listed, number) : NULL;
}

/* A token that is looked for before the text is cut into pieces. What its entry does not say, the
 * place that names it may. */
static int spm_add(json_t *added, uint32_t id, const char *content, bool special, const json_t *own,
                   const json_t *named)
{
    static const char *const flags[] = {"lstrip", "rstrip", "single_word"};
    json_t *token = tok_added(id, content, special);
    for (size_t i = 0; token && i < sizeof(flags) / sizeof(flags[0]); i++) {
        const json_t *said = json_object_get(own, flags[i]);
        if (json_is_true(said ? said : json_object_get(named, flags[i])) &&
            json_object_set_new(token, flags[i], json_true()) < 0) {
            json_decref(token);
            return -ENOMEM;
        }
    }
    return json_array_append_new(added, token) < 0 ? -ENOMEM : 0;
}

/* Puts the token with this id into the vocabulary: a piece, an entry beside it, or both. */
static int spm_put(struct spm *s, const struct spm_beside *b, uint32_t id, struct ek_buf *name,
                   json_t *added, struct vocab *content)
{
    struct spm_piece *p = id < s->count ? &s->piece[id] : NULL;
    const json_t *own = beside_at(b, id);
    const uint64_t kind = p ? p->kind : PIECE_USER;
    int r = 0;
    ek_buf_clear(name);
    if (own)
        r = ek_buf_puts(name, tok_text(own));
    else if (p)
        r = ek_buf_add(name, p->at, p->len);
    else
        return 0;
    if (r == 0)
        r = vocab_put(content, id, name->data, name->len);
    if (r == -EEXIST && own)
        return ek_fault_set(s->fault, "added_tokens_decoder",
                            "Added token %u \"%.80s\" is another token's text, too", id,
                            name->data);
    if (r == -EEXIST)
        return ek_fault_set(s->fault, "pieces", TOK_SPM ": piece %u \"%.80s\" is there twice", id,
                            name->data);
    if (r < 0)
        return r;
    if (p && own && (p->len != name->len || memcmp(p->at, name->data, p->len) != 0))
        p->kind = PIECE_UNUSED; /* it has been given another text, which only `added` finds */
    const json_t *named = json_object_get(b->named, name->data);
    const bool special = kind == PIECE_CONTROL || kind == PIECE_UNKNOWN || named ||
                         json_is_true(json_object_get(own, "special"));
    if (!special && !own && kind != PIECE_USER)
        return 0;
    return spm_add(added, id, name->data, special, own, named);
}

/* Vocabulary and added tokens; the pieces are sorted afterwards. */
static int spm_fill(struct spm *s, const struct spm_beside *b, json_t *added,
                    struct tok_source *out)
{
    const uint32_t ids = b->ids > s->count ? b->ids : s->count;
    struct ek_buf name = {0};
    int r = vocab_init(&out->content, ids, true);
    for (uint32_t i = 0; r == 0 && i < ids; i++)
        r = spm_put(s, b, i, &name, added, &out->content);
    ek_buf_done(&name);
    if (r < 0)
        return r;
    for (uint32_t i = 0; i < s->count && out->score; i++) {
        const struct spm_piece *p = &s->piece[i];
        bool chosen = p->kind == PIECE_NORMAL || p->kind == PIECE_USER;
        out->score[out->scores++] = chosen ? (double)p->score : -HUGE_VAL;
    }
    if (out->score)
        return 0;
    qsort(s->piece, s->count, sizeof(*s->piece), by_score);
    for (uint32_t i = 0; i < s->count; i++)
        if (s->piece[i].kind == PIECE_NORMAL)
            out->order[out->orders++] = s->piece[i].id;
    return 0;
}

/* The normalizer's table as a step, in base64. */
static int add_table(const struct spm *s, json_t *steps)
{
    static const char digits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    struct ek_buf text = {0};
    for (uint64_t i = 0; i < s->table_bytes; i += 3) {
        uint32_t left = s->table_bytes - i < 3 ? (uint32_t)(s->table_bytes - i) : 3, bits = 0;
        for (uint32_t k = 0; k < 3; k++)
            bits = bits << 8 | (k < left ? s->table[i + k] : 0);
        for (uint32_t k = 0; k <= left; k++)
            (void)ek_buf_add(&text, &digits[bits >> (18 - 6 * k) & 63], 1);
    }
    int r = ek_buf_ok(&text)
                ? json_array_append_new(steps, json_pack("{s:s, s:s}", "type", "Precompiled",
                                                         "precompiled_charsmap", text.data))
                : -1;
    ek_buf_done(&text);
    return r;
}

static bool spm_wanted(const json_t *config, const char *key, bool if_missing)
{
    const json_t *v = json_object_get(config, key);
    return json_is_boolean(v) ? json_is_true(v) : if_missing;
}

/* Llama's later way ("legacy": false): a space goes before a text, and none before what follows a
 * token that is looked for in it. */
static bool spm_is_later(const json_t *config)
{
    return !spm_wanted(config, "legacy", true);
}

/* What SentencePiece does to a text first; in the later way spaces are pre_tokenizer()'s. */
static json_t *normalizer(const struct spm *s, bool later)
{
    json_t *steps = json_array();
    int r = steps ? 0 : -1;
    if (r == 0 && s->table_bytes > 0)
        r = add_table(s, steps);
    if (r == 0 && s->fewer_spaces) {
        r = json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace",
                                                   "pattern", "Regex", " {2,}", "content", " "));
        if (r == 0)
            r = json_array_append_new(steps,
                                      json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace", "pattern",
                                                "Regex", "\\A | \\z", "content", ""));
    }
    if (r == 0 && s->dummy_prefix && !later)
        r = json_array_append_new(steps,
                                  json_pack("{s:s, s:s}", "type", "Prepend", "prepend", MARK));
    if (r == 0 && !later)
        r = json_array_append_new(steps, json_pack("{s:s, s:{s:s}, s:s}", "type", "Replace",
                                                   "pattern", "String", " ", "content", MARK));
    if (r < 0) {
        json_decref(steps);
        return NULL;
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", "normalizers", steps);
}

static json_t *pre_tokenizer(const json_t *config)
{
    return spm_is_later(config)
               ? json_pack("{s:s, s:s, s:s, s:b}", "type", "Metaspace", "replacement", MARK,
                           "prepend_scheme",
                           spm_wanted(config, "add_prefix_space", true) ? "first" : "never",
                           "split", false)
               : json_null();
}

static json_t *decoder(const struct spm *s)
{
    json_t *steps =
        json_pack("[{s:s, s:{s:s}, s:s}, {s:s}, {s:s}]", "type", "Replace", "pattern", "String",
                  MARK, "content", " ", "type", "ByteFallback", "type", "Fuse");
    if (steps && s->dummy_prefix &&
        json_array_append_new(steps, json_pack("{s:s, s:s, s:i, s:i}", "type", "Strip", "content",
                                               " ", "start", 1, "stop", 0)) < 0) {
        json_decref(steps);
        return NULL;
    }
    return json_pack("{s:s, s:o}", "type", "Sequence", "decoders", steps);
}

/* The token that goes before or after a prompt. */
struct spm_edge {
    const char *name; /* NULL: none, or it is not wanted */
    uint32_t id;
};

/* By the name that `key` gives it; else by the id that the file does. */
static struct spm_edge edge_of(const json_t *added, const json_t *config, const char *key,
                               int64_t id, bool want)
{
    const char *said = tok_text(json_object_get(config, key));
    struct spm_edge found = {0};
    size_t i;
    const json_t *o;
    json_array_foreach(added, i, o)
    {
        const char *name = json_string_value(json_object_get(o, "content"));
        const json_int_t at = json_integer_value(json_object_get(o, "id"));
        const bool is_said = said && strcmp(name, said) == 0;
        if (want && (is_said || (at == id && !found.name)))
            found = (struct spm_edge){name, (uint32_t)at};
        if (is_said)
            break;
    }
    return found;
}

static int spm_whole(const struct spm *s, const json_t *config, json_t *added, json_t **ret_root)
{
    const char *unk = edge_of(added, NULL, "", s->unk, true).name;
    const struct spm_edge bos =
        edge_of(added, config, "bos_token", s->bos, spm_wanted(config, "add_bos_token", true));
    const struct spm_edge eos =
        edge_of(added, config, "eos_token", s->eos, spm_wanted(config, "add_eos_token", false));
    json_t *around = tok_template(bos.name, bos.id, eos.name, eos.id);
    *ret_root = json_pack("{s:{s:s, s:b, s:b, s:s?}, s:O, s:o, s:o, s:o, s:o}", "model", "type",
                          "BPE", "byte_fallback", s->byte_fallback, "fuse_unk", true, "unk_token",
                          unk, "added_tokens", added, "normalizer",
                          normalizer(s, spm_is_later(config)), "pre_tokenizer",
                          pre_tokenizer(config), "decoder", decoder(s), "post_processor", around);
    return *ret_root ? 0 : -ENOMEM;
}

int tok_from_spm(const void *data, size_t len, const json_t *config, struct tok_source *ret_source,
                 struct ek_fault *fault)
{
    struct spm s = {.model_type = 1,
                    .unk = 0,
                    .bos = 1,
                    .eos = 2,
                    .dummy_prefix = true,
                    .fewer_spaces = true,
                    .fault = fault};
    struct tok_source out = {0};
    struct spm_beside beside = {0};
    json_t *added = json_array();
    int r = added ? beside_read(config, &beside, fault) : -ENOMEM;
    if (r == 0)
        r = read_model(&s, (struct pb){data, (const uint8_t *)data + len});
    if (r == -EILSEQ)
        r = ek_fault_set(fault, TOK_SPM, TOK_SPM ": is damaged; download it again");
    if (r == 0)
        r = spm_check(&s);
    if (r < 0)
        goto done;
    if (s.model_type == 1)
        out.score = malloc(s.count * sizeof(*out.score));
    else
        out.order = malloc(s.count * sizeof(*out.order));
    r = out.order || out.score ? spm_fill(&s, &beside, added, &out) : -ENOMEM;
    if (r == 0)
        r = spm_whole(&s, config, added, &out.root);
done:
    beside_done(&beside);
    json_decref(added);
    free(s.piece);
    if (r < 0)
        tok_source_done(&out);
    else
        *ret_source = out;
    return r;
}
