/* Sorting the tokens makes the trie: what follows shares a prefix with what went before. */
#include "server/grammar/lexicon.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* The comparison needs the bytes and qsort() has no room for them. */
struct sorted {
    const char *bytes;
    uint32_t len;
    int32_t token;
};

static int lexicon_compare(const void *a, const void *b)
{
    const struct sorted *x = a, *y = b;
    int r = memcmp(x->bytes, y->bytes, x->len < y->len ? x->len : y->len);

    if (r != 0)
        return r;
    if (x->len != y->len)
        return x->len < y->len ? -1 : 1;
    return x->token < y->token ? -1 : x->token > y->token;
}

static int copy_bytes(struct lexicon *l, lexicon_bytes_fn bytes, void *ctx, struct sorted *list,
                      uint32_t *ret_count)
{
    size_t total = 0, len;
    uint32_t count = 0;

    for (uint32_t i = 0; i < l->vocab; i++)
        total += bytes(ctx, (int32_t)i, &len) && len <= LEXICON_LONGEST ? len : 0;
    l->bytes = malloc(total + 1);
    if (!l->bytes || total >= UINT32_MAX)
        return -ENOMEM;
    uint32_t at = 0;
    for (uint32_t i = 0; i < l->vocab; i++) {
        const char *s = bytes(ctx, (int32_t)i, &len);
        l->same[i] = -1;
        l->at[i] = UINT32_MAX;
        if (!s || len == 0 || len > LEXICON_LONGEST || lexicon_is_end(l, (int32_t)i))
            continue;
        memcpy(l->bytes + at, s, len);
        list[count++] = (struct sorted){l->bytes + at, (uint32_t)len, (int32_t)i};
        l->at[i] = at;
        l->len[i] = (uint8_t)len;
        l->longest = (uint32_t)len > l->longest ? (uint32_t)len : l->longest;
        at += (uint32_t)len;
    }
    *ret_count = count;
    return 0;
}

/* Bytes that both begin with. */
static uint32_t shared_bytes(const struct sorted *a, const struct sorted *b)
{
    uint32_t n = 0;

    while (n < a->len && n < b->len && a->bytes[n] == b->bytes[n])
        n++;
    return n;
}

/* `open[d]` is the node at depth d on the way to the token before. */
static void add_nodes(struct lexicon *l, const struct sorted *list, uint32_t count)
{
    uint32_t open[LEXICON_LONGEST + 1] = {0}, depth = 0;

    for (uint32_t i = 0; i < count; i++) {
        const struct sorted *t = &list[i];
        uint32_t shared = i > 0 ? shared_bytes(&list[i - 1], t) : 0;
        for (; depth > shared; depth--)
            l->node[open[depth]].after = l->nodes;
        for (; depth < t->len; l->nodes++) {
            uint8_t byte = (uint8_t)t->bytes[depth++];
            open[depth] = l->nodes;
            l->node[l->nodes] =
                (struct lexicon_node){.token = -1, .byte = byte, .depth = (uint8_t)depth};
        }
        struct lexicon_node *end = &l->node[open[depth]];
        l->same[t->token] = end->token;
        end->token = t->token;
    }
    for (; depth > 0; depth--)
        l->node[open[depth]].after = l->nodes;
    for (uint32_t i = 0; i < l->nodes; i = l->node[i].after)
        l->root[l->node[i].byte] = i;
}

static int lexicon_build(struct lexicon *l, lexicon_bytes_fn bytes, void *ctx)
{
    struct sorted *list = calloc(l->vocab + 1, sizeof(*list));
    uint32_t count = 0;
    size_t nodes = 0;

    int r = list ? copy_bytes(l, bytes, ctx, list, &count) : -ENOMEM;
    if (r < 0)
        goto out;
    qsort(list, count, sizeof(*list), lexicon_compare);
    for (uint32_t i = 0; i < count; i++)
        nodes += list[i].len - (i > 0 ? shared_bytes(&list[i - 1], &list[i]) : 0);
    l->node = malloc((nodes + 1) * sizeof(*l->node));
    r = l->node ? 0 : -ENOMEM;
    if (r == 0)
        add_nodes(l, list, count);
out:
    free(list);
    return r;
}

int lexicon_new(uint32_t vocab, lexicon_bytes_fn bytes, void *ctx, const int32_t *end,
                uint32_t ends, struct lexicon **ret_lexicon)
{
    struct lexicon *l = calloc(1, sizeof(*l));
    int r = -ENOMEM;

    if (!l)
        goto out;
    l->vocab = vocab;
    l->words = (vocab + 31) / 32;
    for (uint32_t b = 0; b < 256; b++)
        l->root[b] = LEXICON_NONE;
    for (uint32_t i = 0; i < ends && l->ends < LEXICON_ENDS; i++)
        if (end[i] >= 0 && (uint32_t)end[i] < vocab)
            l->end[l->ends++] = end[i];
    l->same = malloc((vocab + 1) * sizeof(*l->same));
    l->at = malloc((vocab + 1) * sizeof(*l->at));
    l->len = calloc(vocab + 1, sizeof(*l->len));
    if (!l->same || !l->at || !l->len)
        goto out;
    r = lexicon_build(l, bytes, ctx);
    if (r < 0)
        goto out;
    *ret_lexicon = l;
    return 0;
out:
    lexicon_free(l);
    return r;
}

static bool may_be_special(const struct lexicon *l, int32_t token, const char *s, size_t len)
{
    return s && len > 0 && len <= LEXICON_LONGEST && l->at[token] == UINT32_MAX &&
           !lexicon_is_end(l, token);
}

int lexicon_add_specials(struct lexicon *l, lexicon_bytes_fn bytes, void *ctx)
{
    size_t total = 0, len;
    uint32_t count = 0;

    for (uint32_t i = 0; i < l->vocab; i++) {
        const char *s = bytes(ctx, (int32_t)i, &len);
        if (!may_be_special(l, (int32_t)i, s, len))
            continue;
        total += len;
        count++;
    }
    l->special = calloc(count + 1ull, sizeof(*l->special));
    l->special_bytes = malloc(total + 1);
    l->is_special = calloc(l->vocab + 1ull, 1);
    if (!l->special || !l->special_bytes || !l->is_special || total >= UINT32_MAX)
        return -ENOMEM;
    uint32_t at = 0;
    for (uint32_t i = 0; i < l->vocab; i++) {
        const char *s = bytes(ctx, (int32_t)i, &len);
        if (!may_be_special(l, (int32_t)i, s, len))
            continue;
        memcpy(l->special_bytes + at, s, len);
        l->at[i] = at;
        l->len[i] = (uint8_t)len;
        l->is_special[i] = 1;
        l->special[l->specials++] = (int32_t)i;
        at += (uint32_t)len;
    }
    return 0;
}

const char *lexicon_bytes(const struct lexicon *l, int32_t token)
{
    if (token < 0 || (uint32_t)token >= l->vocab || l->at[token] == UINT32_MAX)
        return NULL;
    return (l->is_special && l->is_special[token] ? l->special_bytes : l->bytes) + l->at[token];
}

void lexicon_free(struct lexicon *l)
{
    if (!l)
        return;
    free(l->node);
    free(l->same);
    free(l->at);
    free(l->len);
    free(l->bytes);
    free(l->special);
    free(l->special_bytes);
    free(l->is_special);
    free(l);
}

uint32_t lexicon_child(const struct lexicon *l, uint32_t node, uint8_t byte)
{
    for (uint32_t i = node + 1; i < l->node[node].after; i = l->node[i].after)
        if (l->node[i].byte == byte)
            return i;
    return LEXICON_NONE;
}

bool lexicon_is_end(const struct lexicon *l, int32_t token)
{
    for (uint32_t i = 0; i < l->ends; i++)
        if (l->end[i] == token)
            return true;
    return false;
}
