/*
 * Byte-pair encoding for tokenizer.c (and its tables for tokload.c). Merges are a hash table of
 * pairs, open addressing, with the rank; the product is found by the rank.
 *
 * merge_short() looks for the lowest rank in an array each time: quadratic, but fastest for a word.
 * merge_long() keeps symbols in a linked list and their pairs in a 4-ary heap, ordered by rank,
 * then position. A merge only changes the ranks of the two pairs beside it; their old entries stay
 * in the heap and are recognised when they come up, by a rank that is no longer the node's. Both
 * apply the merges in the same order, so they give the same tokens.
 */
#include "server/text/bpe.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "server/text/tokens.h"
#include "server/text/utf8.h"

#define NONE       UINT32_MAX
#define SHORT_MOST 48u /* symbols that the array takes; beyond it the heap is faster */

/* A symbol of a long piece. */
struct bpe_node {
    uint32_t id;         /* NONE once merged into its left neighbour */
    uint32_t prev, next; /* NONE at the ends */
    uint32_t rank;       /* of the merge with the next one, NONE if there is none */
};

/* The multiplier is 2^64 / golden ratio, made odd. */
static uint32_t pair_hash(uint32_t left, uint32_t right)
{
    uint64_t key = ((uint64_t)left << 32 | right) * 0x9E3779B97F4A7C15ull;
    return (uint32_t)(key >> 32) ^ (uint32_t)(key >> 15);
}

static struct bpe_merge *bpe_place(const struct bpe *b, uint32_t left, uint32_t right)
{
    for (uint32_t i = pair_hash(left, right) & b->merge_mask;; i = (i + 1) & b->merge_mask) {
        struct bpe_merge *m = &b->merge[i];
        if (m->left == NONE || (m->left == left && m->right == right))
            return m;
    }
}

static uint32_t rank_of(const struct bpe *b, uint32_t left, uint32_t right)
{
    const struct bpe_merge *m = bpe_place(b, left, right);
    return m->left == NONE ? NONE : m->rank;
}

int bpe_reserve(struct bpe *b, uint32_t merges)
{
    assert(!b->merge && merges < NONE / 4);
    size_t slots = 16;
    while (slots < (size_t)merges + merges / 2 + 1)
        slots *= 2;
    struct bpe_merge *merge = malloc(slots * sizeof(*merge));
    uint32_t *product = malloc((merges ? merges : 1) * sizeof(*product));
    if (!merge || !product) {
        free(merge);
        free(product);
        return -ENOMEM;
    }
    memset(merge, 0xFF, slots * sizeof(*merge));
    b->merge = merge;
    b->merge_mask = (uint32_t)(slots - 1);
    b->product = product;
    b->ranks = merges;
    return 0;
}

void bpe_add(struct bpe *b, uint32_t left, uint32_t right, uint32_t product)
{
    assert(b->merges < b->ranks);
    *bpe_place(b, left, right) =
        (struct bpe_merge){.left = left, .right = right, .rank = b->merges};
    b->product[b->merges++] = product;
}

void bpe_add_same(struct bpe *b, uint32_t left, uint32_t right)
{
    assert(b->merges > 0 && b->merges <= b->ranks);
    *bpe_place(b, left, right) =
        (struct bpe_merge){.left = left, .right = right, .rank = b->merges - 1};
}

void bpe_done(struct bpe *b)
{
    vocab_done(&b->keys);
    free(b->whole);
    free(b->merge);
    free(b->product);
    *b = (struct bpe){0};
}

void bpe_work_done(struct bpe_work *w)
{
    free(w->node);
    free(w->heap);
    *w = (struct bpe_work){0};
}

/* The first symbols of a text of characters, with Hugging Face's rules for unknown ones: a run of
 * them may fuse, and the last one waits until something known follows it. */
static size_t symbols_of_chars(const struct bpe *b, const char *s, size_t len, uint32_t *ids)
{
    size_t n = 0;
    bool waiting = false;
    for (size_t i = 0; i < len;) {
        uint32_t cp;
        size_t size = utf8_next(s + i, len - i, &cp);
        int32_t id = vocab_find(&b->keys, s + i, size);
        bool bytes = id < 0 && b->byte_fallback;
        for (size_t k = 0; bytes && k < size; k++)
            bytes = b->fallback[(uint8_t)s[i + k]] >= 0;
        if (id >= 0) {
            if (waiting)
                ids[n++] = (uint32_t)b->unk;
            waiting = false;
            ids[n++] = (uint32_t)id;
        } else if (bytes) {
            for (size_t k = 0; k < size; k++)
                ids[n++] = (uint32_t)b->fallback[(uint8_t)s[i + k]];
        } else if (b->unk >= 0) {
            if (waiting && !b->fuse_unk)
                ids[n++] = (uint32_t)b->unk;
            waiting = true;
        }
        i += size;
    }
    if (waiting)
        ids[n++] = (uint32_t)b->unk;
    return n;
}

/* ids has room for len symbols: each takes at least one byte. */
static size_t first_symbols(const struct bpe *b, const char *s, size_t len, uint32_t *ids)
{
    size_t n = 0;
    if (!b->byte_mode)
        return symbols_of_chars(b, s, len, ids);
    bool waiting = false;
    for (size_t i = 0; i < len; i++) {
        int32_t id = b->single[(uint8_t)s[i]];
        if (id < 0 && b->unk < 0)
            continue;
        if (waiting && (id >= 0 || !b->fuse_unk))
            ids[n++] = (uint32_t)b->unk;
        waiting = id < 0;
        if (id >= 0)
            ids[n++] = (uint32_t)id;
    }
    if (waiting)
        ids[n++] = (uint32_t)b->unk;
    return n;
}

/* Merges ids[0..n) in place, n <= SHORT_MOST; returns how many are left. */
static size_t merge_short(const struct bpe *b, uint32_t *ids, size_t n)
{
    uint32_t rank[SHORT_MOST];
    if (n < 2)
        return n;
    for (size_t i = 0; i + 1 < n; i++)
        rank[i] = rank_of(b, ids[i], ids[i + 1]);
    while (n > 1) {
        size_t best = 0;
        for (size_t i = 1; i + 1 < n; i++)
            best = rank[i] < rank[best] ? i : best;
        if (rank[best] == NONE)
            break;
        ids[best] = b->product[rank[best]];
        n--;
        for (size_t i = best + 1; i < n; i++) {
            ids[i] = ids[i + 1];
            rank[i - 1] = rank[i];
        }
        if (best + 1 < n)
            rank[best] = rank_of(b, ids[best], ids[best + 1]);
        if (best > 0)
            rank[best - 1] = rank_of(b, ids[best - 1], ids[best]);
    }
    return n;
}

static void sift_down(uint64_t *heap, size_t n, size_t at)
{
    uint64_t v = heap[at];
    for (;;) {
        size_t child = at * 4 + 1, end = child + 4 < n ? child + 4 : n, least = child;
        if (child >= n)
            break;
        for (size_t i = child + 1; i < end; i++)
            least = heap[i] < heap[least] ? i : least;
        if (heap[least] >= v)
            break;
        heap[at] = heap[least];
        at = least;
    }
    heap[at] = v;
}

static void heapify(uint64_t *heap, size_t n)
{
    for (size_t i = n > 1 ? (n - 2) / 4 + 1 : 0; i-- > 0;)
        sift_down(heap, n, i);
}

/* One entry for each pair that can merge: rank above position, so that least = lowest, leftmost. */
static size_t heap_fill(uint64_t *heap, const struct bpe_node *node, size_t count)
{
    size_t n = 0;
    for (size_t i = 0; i < count; i++) {
        if (node[i].id != NONE && node[i].rank != NONE)
            heap[n++] = (uint64_t)node[i].rank << 32 | i;
    }
    heapify(heap, n);
    return n;
}

struct heap {
    uint64_t *at;
    size_t count, room;
};

/* The pair at `at` changed: note its rank. A full heap is refilled without its outdated entries; at
 * most `nodes` of 2 * nodes can be current, so that this is rare. */
static void note_pair(const struct bpe *b, struct bpe_node *node, size_t nodes, uint32_t at,
                      struct heap *h)
{
    struct bpe_node *n = &node[at];
    n->rank = n->next == NONE ? NONE : rank_of(b, n->id, node[n->next].id);
    if (n->rank == NONE)
        return;
    if (h->count == h->room) {
        h->count = heap_fill(h->at, node, nodes); /* has the new pair */
        return;
    }
    uint64_t v = (uint64_t)n->rank << 32 | at;
    size_t i = h->count++;
    for (; i > 0 && h->at[(i - 1) / 4] > v; i = (i - 1) / 4)
        h->at[i] = h->at[(i - 1) / 4];
    h->at[i] = v;
}

static void merge_long(const struct bpe *b, struct bpe_node *node, size_t count, uint64_t *heap)
{
    struct heap h = {.at = heap, .room = count * 2};
    for (size_t i = 0; i < count; i++) {
        node[i].prev = i > 0 ? (uint32_t)i - 1 : NONE;
        node[i].next = i + 1 < count ? (uint32_t)i + 1 : NONE;
        node[i].rank = i + 1 < count ? rank_of(b, node[i].id, node[i + 1].id) : NONE;
    }
    h.count = heap_fill(heap, node, count);
    while (h.count > 0) {
        uint32_t at = (uint32_t)heap[0], rank = (uint32_t)(heap[0] >> 32);
        heap[0] = heap[--h.count];
        if (h.count > 0)
            sift_down(heap, h.count, 0);
        struct bpe_node *n = &node[at];
        /* Every node in the heap was filled above. */
        /* NOLINTNEXTLINE(clang-analyzer-core.UndefinedBinaryOperatorResult) */
        if (n->id == NONE || n->rank != rank)
            continue; /* outdated */
        struct bpe_node *gone = &node[n->next];
        n->id = b->product[rank];
        n->next = gone->next;
        gone->id = NONE;
        if (n->next != NONE)
            node[n->next].prev = at;
        note_pair(b, node, count, at, &h);
        if (n->prev != NONE)
            note_pair(b, node, count, n->prev, &h);
    }
}

static int work_reserve(struct bpe_work *w, size_t room)
{
    if (room <= w->room)
        return 0;
    if (room < 1024)
        room = 1024;
    bpe_work_done(w);
    w->node = malloc(room * sizeof(*w->node));
    w->heap = malloc(room * 2 * sizeof(*w->heap));
    if (!w->node || !w->heap) {
        bpe_work_done(w);
        return -ENOMEM;
    }
    w->room = room;
    return 0;
}

static int encode_long(const struct bpe *b, struct bpe_work *w, const char *s, size_t len,
                       struct token_vec *out)
{
    int r = work_reserve(w, len);
    if (r < 0)
        return r;
    /* the heap is free until the merging starts: it holds the first symbols meanwhile */
    uint32_t *ids = (uint32_t *)(void *)w->heap;
    size_t count = first_symbols(b, s, len, ids);
    for (size_t i = 0; i < count; i++)
        w->node[i].id = ids[i];
    merge_long(b, w->node, count, w->heap);
    for (size_t i = 0; i < count && r == 0; i++) {
        if (w->node[i].id != NONE)
            r = tokens_push(out, (int32_t)w->node[i].id);
    }
    return r;
}

int bpe_encode(const struct bpe *b, struct bpe_work *w, const char *s, size_t len,
               struct token_vec *out)
{
    uint32_t ids[SHORT_MOST];
    int r = 0;

    assert(len <= INT32_MAX);
    int32_t id = vocab_find(&b->keys, s, len);
    if (id >= 0 && (b->ignore_merges || b->whole[id]))
        return tokens_push(out, id);
    if (len > SHORT_MOST)
        return encode_long(b, w, s, len, out);
    size_t n = merge_short(b, ids, first_symbols(b, s, len, ids));
    for (size_t i = 0; i < n && r == 0; i++)
        r = tokens_push(out, (int32_t)ids[i]);
    return r;
}

int bpe_seal(struct bpe *b)
{
    int r = 0;
    uint32_t ids[SHORT_MOST];
    size_t len;

    if (b->ignore_merges)
        return 0; /* a piece that is a token is one anyway */
    uint8_t *whole = calloc(b->keys.ids ? b->keys.ids : 1, 1);
    if (!whole)
        return -ENOMEM;
    for (uint32_t i = 0; i < b->keys.ids; i++) {
        const char *s = vocab_at(&b->keys, (int32_t)i, &len);
        if (!s || len == 0 || len > SHORT_MOST)
            continue;
        size_t n = merge_short(b, ids, first_symbols(b, s, len, ids));
        whole[i] = n == 1 && ids[0] == i;
    }
    b->whole = whole;
    return r;
}
