/* The best cut by one walk forward over the ends of tokens, and one back. */
#include "server/text/unigram.h"

#include <errno.h>
#include <stdlib.h>

#include "common/work.h"
#include "server/text/bpe.h"
#include "server/text/tokens.h"
#include "server/text/utf8.h"

#define NONE   UINT32_MAX
#define HASHED 128u /* bytes that are a unit of work to look up */

struct unigram_node { /* of the byte position where a token ends */
    double score;     /* of the best cut up to here */
    uint32_t start;   /* of its last token, NONE = no cut ends here */
    uint32_t next;    /* the end of the token that begins here, in the best cut */
    int32_t id;
};

void unigram_work_done(struct unigram_work *w)
{
    free(w->node);
    *w = (struct unigram_work){.pay = w->pay};
}

static int unigram_reserve(struct unigram_work *w, size_t room)
{
    if (room <= w->room)
        return 0;
    size_t more = room < 1024 ? 1024 : room + room / 2;
    struct unigram_node *node = malloc(more * sizeof(*node));
    if (!node)
        return -ENOMEM;
    unigram_work_done(w);
    w->node = node;
    w->room = more;
    return 0;
}

static void unigram_offer(struct unigram_node *end, double score, uint32_t start, int32_t id)
{
    if (end->start != NONE && !(score > end->score))
        return;
    end->score = score;
    end->start = start;
    end->id = id;
}

/* All tokens that begin at `at`. Each one looked for costs its length. Returns the bytes. */
static size_t extend(const struct unigram *u, const struct bpe *b, const char *s, size_t len,
                     uint32_t at, struct unigram_node *node)
{
    uint32_t cp;
    const size_t first = utf8_next(s + at, len - at, &cp);
    size_t most = len - at < b->keys.longest ? len - at : b->keys.longest;
    size_t looked = 0;
    bool covered = false;

    for (size_t size = first; size <= most;) {
        looked += size;
        int32_t id = vocab_find(&b->keys, s + at, size);
        if (id >= 0) {
            unigram_offer(&node[at + size], node[at].score + u->score[id], at, id);
            covered = covered || size == first;
        }
        if (at + size == len)
            break;
        size += utf8_next(s + at + size, len - at - size, &cp);
    }
    if (!covered)
        unigram_offer(&node[at + first], node[at].score + u->unknown, at, -1);
    return looked;
}

/* A stretch that no token covers: the token of that name, else its bytes, else the unknown one. */
static int push_unknown(const struct bpe *b, const char *s, size_t len, struct token_vec *out)
{
    int32_t id = vocab_find(&b->keys, s, len);
    bool bytes = id < 0 && b->byte_fallback;
    int r = 0;
    for (size_t i = 0; bytes && i < len; i++)
        bytes = b->fallback[(uint8_t)s[i]] >= 0;
    if (!bytes) {
        id = id >= 0 ? id : b->unk;
        return id >= 0 ? tokens_push(out, id) : 0;
    }
    for (size_t i = 0; i < len && r == 0; i++)
        r = tokens_push(out, b->fallback[(uint8_t)s[i]]);
    return r;
}

int unigram_encode(const struct unigram *u, const struct bpe *b, struct unigram_work *w,
                   const char *s, size_t len, struct token_vec *out)
{
    int r = unigram_reserve(w, len + 1);
    if (r < 0)
        return r;
    struct unigram_node *node = w->node;
    for (size_t i = 0; i <= len; i++)
        node[i] = (struct unigram_node){.start = NONE};
    for (uint32_t at = 0; at < len;) {
        uint32_t cp;
        if (!ek_work_pay(w->pay, 1 + extend(u, b, s, len, at, node) / HASHED))
            return -E2BIG;
        at += (uint32_t)utf8_next(s + at, len - at, &cp);
    }
    for (uint32_t end = (uint32_t)len; end > 0; end = node[end].start)
        node[node[end].start].next = end;
    for (uint32_t at = 0; at < len && r == 0;) {
        uint32_t end = node[at].next;
        if (node[end].id >= 0) {
            r = tokens_push(out, node[end].id);
            at = end;
            continue;
        }
        while (end < len && node[node[end].next].id < 0) /* unknown ones that follow fuse */
            end = node[end].next;
        r = push_unknown(b, s + at, end - at, out);
        at = end;
    }
    return r;
}
