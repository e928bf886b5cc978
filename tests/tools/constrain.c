/*
 * Random texts of grammars, without a model: each line of the input is a JSON object {"kind": 0 any
 * JSON, 1 schema, 2 pattern, 3 choice, 4 EBNF, 5 calls, 6 text with calls, 7 calls or a form;
 * "text", "seed", "samples"}, each line of the output
 * {"texts": [...], "cut": how many did not end, "needs": tokens of the shortest text} or {"error":
 * ...}. Tokens are drawn evenly from the masks; after a while those that close something are
 * preferred, so that texts end. With "spare" that is not so: they must end by themselves with so
 * many tokens more than the shortest text needs. "begin" is what texts begin with. With "style"
 * they are read by the parser of tool calls of that name: "calls" has [name, arguments] for each
 * text, "rest" what is no call.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/grammar/compile.h"
#include "server/grammar/grammar.h"
#include "server/text/answer/toolcall.h"
#include "server/text/tokenizer.h"

#define TOKENS_MOST 1200u
#define PATIENCE    40u /* tokens before closing is preferred */

struct drawing {
    struct lexicon *lexicon;
    uint32_t *bits;
    int32_t *candidate;
    uint64_t random;
    const char *begin; /* NULL = nothing */
};

static uint64_t next_random(struct drawing *d)
{
    d->random ^= d->random << 13;
    d->random ^= d->random >> 7;
    d->random ^= d->random << 17;
    return d->random;
}

static const char *token_bytes(void *ctx, int32_t token, size_t *ret_len)
{
    const struct tokenizer *t = ctx;
    return tokenizer_is_special(t, token) ? NULL : tokenizer_bytes(t, token, ret_len);
}

/* How much a token is wanted late in a text: ends, then what closes (brackets or quotes, in turns),
 * then the rest. */
static int closing(const struct lexicon *l, int32_t token, bool quotes)
{
    if (lexicon_is_end(l, token))
        return 3;
    char c = l->at[token] == UINT32_MAX ? ' ' : l->bytes[l->at[token]];
    bool bracket = c == '}' || c == ']' || c == ')';
    return bracket ? 2 - quotes : c == '"' ? 1 + quotes : 0;
}

static int32_t pick(struct drawing *d, bool late)
{
    uint32_t count = 0;
    int best = 0;
    bool quotes = next_random(d) % 2;

    for (uint32_t i = 0; i < d->lexicon->vocab; i++) {
        if (!(d->bits[i / 32] >> (i % 32) & 1))
            continue;
        int rank = late ? closing(d->lexicon, (int32_t)i, quotes) : 0;
        if (rank > best)
            count = 0;
        if (rank < best)
            continue;
        best = rank;
        d->candidate[count++] = (int32_t)i;
    }
    return count ? d->candidate[next_random(d) % count] : -1;
}

/* The token that writes most of what texts begin with; moves on behind it. */
static int32_t pick_begin(const struct lexicon *l, const char **begin)
{
    uint32_t node = LEXICON_NONE;
    const char *from = *begin, *to = from;
    int32_t token = -1;

    for (const char *c = from; *c; c++) {
        node = c == from ? l->root[(unsigned char)*c] : lexicon_child(l, node, (uint8_t)*c);
        if (node == LEXICON_NONE)
            break;
        token = l->node[node].token >= 0 ? l->node[node].token : token;
        to = l->node[node].token >= 0 ? c + 1 : to;
    }
    *begin = to;
    return token;
}

static uint32_t shortest(struct grammar *g)
{
    struct matcher m;
    int32_t none = 0;

    matcher_init(&m, g);
    (void)matcher_follow(&m, &none, sizeof(none), 0);
    return matcher_left(&m);
}

/* One text; false when it did not end. */
static bool draw(struct drawing *d, struct grammar *g, uint32_t room, struct ek_buf *text,
                 bool *ret_stuck)
{
    struct matcher m;
    int32_t token[TOKENS_MOST];
    const struct lexicon *l = d->lexicon;
    bool bound = room != MATCHER_MANY;
    const char *begin = d->begin ? d->begin : "";

    matcher_init(&m, g);
    *ret_stuck = false;
    for (uint32_t n = 0; n < TOKENS_MOST && n < room; n++) {
        if (!matcher_follow(&m, token, sizeof(*token), n))
            break;
        (void)matcher_mask(&m, false, bound ? room - n : MATCHER_MANY, d->bits);
        token[n] = *begin ? pick_begin(l, &begin)
                          : pick(d, !bound && (n > PATIENCE || next_random(d) % 4 == 0));
        if (token[n] < 0) {
            *ret_stuck = true;
            return false;
        }
        if (lexicon_is_end(l, token[n]))
            return true;
        (void)ek_buf_add(text, l->bytes + l->at[token[n]], l->len[token[n]]);
    }
    return bound && matcher_follow(&m, token, sizeof(*token), room) && matcher_complete(&m);
}

/* The calls in a text, in pieces of a few bytes; the other text goes into `rest`. */
static json_t *read_calls(const struct ek_buf *text, const json_t *about, bool either, json_t *rest)
{
    const char *style = json_string_value(json_object_get(about, "style"));
    struct toolcalls t = {
        .style = toolstyle_find(style), .tools = json_object_get(about, "tools"), .either = either};
    struct ek_buf plain = {0};
    json_t *out = json_array();

    for (size_t i = 0; i < text->len; i += 5)
        (void)toolcalls_push(&t, text->data + i, text->len - i < 5 ? text->len - i : 5, &plain);
    (void)toolcalls_end(&t, &plain);
    for (uint32_t i = 0; i < t.count; i++)
        (void)json_array_append_new(
            out, json_pack("[s,s%]", t.call[i].name, t.call[i].args.data, t.call[i].args.len));
    (void)json_array_append_new(rest, json_stringn(plain.data ? plain.data : "", plain.len));
    toolcalls_done(&t);
    ek_buf_done(&plain);
    return out;
}

static json_t *check_all(const struct drawing *d, struct grammar *g, const json_t *texts)
{
    json_t *out = json_array();

    for (size_t i = 0; i < json_array_size(texts); i++) {
        const char *at = json_string_value(json_array_get(texts, i));
        int32_t token[TOKENS_MOST];
        uint32_t n = 0;
        struct matcher m;
        matcher_init(&m, g);
        while (at && *at && n < TOKENS_MOST)
            token[n++] = pick_begin(d->lexicon, &at);
        bool fits = matcher_follow(&m, token, sizeof(*token), n) && matcher_complete(&m);
        (void)json_array_append_new(out, json_boolean(fits));
    }
    return out;
}

static void answer(struct drawing *d, const json_t *ask)
{
    const json_t *text = json_object_get(ask, "text");
    int kind = (int)json_integer_value(json_object_get(ask, "kind"));
    int samples = (int)json_integer_value(json_object_get(ask, "samples"));
    const json_t *spare = json_object_get(ask, "spare");
    uint32_t needs = 0, room = MATCHER_MANY;
    struct grammar *g = NULL;
    struct ek_fault f = {0};
    json_t *out = json_object(), *texts = json_array(), *calls = json_array();
    json_t *rest = json_array();
    const char *style = json_string_value(json_object_get(ask, "style"));
    json_t *about = style ? json_loads(json_string_value(text), 0, NULL) : NULL;
    int cut = 0;

    d->begin = json_string_value(json_object_get(ask, "begin"));

    d->random = (uint64_t)json_integer_value(json_object_get(ask, "seed")) * 2654435761u +
                88172645463325252ull;
    int r = grammar_compile((enum grammar_kind)kind, json_string_value(text),
                            json_string_length(text), d->lexicon, NULL, &g, &f);
    if (r < 0)
        (void)json_object_set_new(out, "error", json_string(f.msg[0] ? f.msg : ek_strerror(r)));
    if (r == 0)
        needs = shortest(g);
    if (spare)
        room = needs + (uint32_t)json_integer_value(spare);
    for (int i = 0; r == 0 && i < samples; i++) {
        struct ek_buf one = {0};
        bool stuck;
        if (draw(d, g, room, &one, &stuck)) {
            if (style)
                (void)json_array_append_new(calls,
                                            read_calls(&one, about, kind == GRAMMAR_EITHER, rest));
            (void)json_array_append_new(texts, json_stringn(one.data ? one.data : "", one.len));
        } else if (stuck) {
            (void)json_object_set_new(out, "error", json_string("no token was allowed"));
        } else {
            cut++;
        }
        ek_buf_done(&one);
    }
    if (r == 0)
        (void)json_object_set_new(out, "fits", check_all(d, g, json_object_get(ask, "check")));
    (void)json_object_set_new(out, "texts", texts);
    (void)json_object_set_new(out, "calls", calls);
    (void)json_object_set_new(out, "rest", rest);
    json_decref(about);
    (void)json_object_set_new(out, "cut", json_integer(cut));
    (void)json_object_set_new(out, "needs", json_integer(needs));
    char *line = json_dumps(out, JSON_COMPACT);
    (void)puts(line ? line : "{}");
    free(line);
    json_decref(out);
    grammar_unref(g);
}

int main(int argc, char **argv)
{
    struct tokenizer *tok = NULL;
    struct drawing d = {0};
    struct ek_fault f = {0};
    char *line = NULL;
    size_t room = 0;
    ssize_t n;

    if (argc != 2 || tokenizer_load(argv[1], &tok, &f) < 0) {
        (void)fprintf(stderr, "usage: constrain MODEL <questions: %s\n", f.msg);
        return 2;
    }
    uint32_t vocab = tokenizer_count(tok);
    int32_t end = tokenizer_eos(tok);
    if (lexicon_new(vocab, token_bytes, tok, &end, 1, &d.lexicon) < 0)
        return 1;
    d.bits = calloc(d.lexicon->words, sizeof(*d.bits));
    d.candidate = calloc(vocab, sizeof(*d.candidate));
    while (d.bits && d.candidate && (n = getline(&line, &room, stdin)) > 0) {
        json_t *ask = json_loadb(line, (size_t)n, 0, NULL);
        answer(&d, ask);
        json_decref(ask);
    }
    free(line);
    free(d.bits);
    free(d.candidate);
    lexicon_free(d.lexicon);
    tokenizer_free(tok);
    return 0;
}
