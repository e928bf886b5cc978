/*
 * Builds the automaton that scan.c runs over each line. A signature names words that its expression
 * needs; only where one of these occurs is the expression tried, so a line that holds none costs no
 * match. States link by 16-bit index, and every missing transition is filled in, so a byte costs
 * one lookup.
 */
#include "supervisor/doctor/literals.h"

#include <errno.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define STATES_MOST 65000u
#define TEXT_MOST   255u
#define NO_TEXT     UINT32_MAX

/* A state: where each byte leads, the text that ends here (and, by `same`, others that are equal),
 * and the nearest state along the failure links in which a text ends. */
struct doctor_literals {
    uint16_t (*next)[256];
    uint16_t *fail, *shorter;
    uint32_t *text; /* [states] */
    uint8_t *ends;  /* [states] whether a text ends here or along the failure links */
    uint32_t *same; /* [count] the next text that is spelled alike */
    uint32_t states;
};

void doctor_literals_free(struct doctor_literals *w)
{
    if (!w)
        return;
    free(w->next);
    free(w->fail);
    free(w->shorter);
    free(w->text);
    free(w->ends);
    free(w->same);
    free(w);
}

static void insert(struct doctor_literals *w, const char *text, uint32_t id)
{
    uint16_t s = 0;
    for (const unsigned char *c = (const unsigned char *)text; *c; c++) {
        if (w->next[s][*c] == 0) {
            w->text[w->states] = NO_TEXT;
            w->next[s][*c] = (uint16_t)w->states++;
        }
        s = w->next[s][*c];
    }
    w->same[id] = w->text[s];
    w->text[s] = id;
}

/* Failure links in the order of depth; missing transitions become those of the failure state. */
static void link_up(struct doctor_literals *w, uint16_t *queue)
{
    uint32_t head = 0, tail = 0;
    for (int c = 0; c < 256; c++) {
        if (w->next[0][c])
            queue[tail++] = w->next[0][c];
    }
    while (head < tail) {
        uint16_t s = queue[head++], f = w->fail[s];
        w->shorter[s] = w->text[f] != NO_TEXT ? f : w->shorter[f];
        for (int c = 0; c < 256; c++) {
            uint16_t to = w->next[s][c];
            if (to) {
                w->fail[to] = w->next[f][c];
                queue[tail++] = to;
            } else {
                w->next[s][c] = w->next[f][c];
            }
        }
    }
}

int doctor_literals_new(const char *const *texts, uint32_t count,
                        struct doctor_literals **ret_words)
{
    int r = -ENOMEM;
    uint16_t *queue = NULL;
    struct doctor_literals *w = NULL;
    size_t most = 1;
    for (uint32_t i = 0; i < count; i++) {
        size_t n = strlen(texts[i]);
        if (n == 0 || n > TEXT_MOST)
            return -EINVAL;
        most += n;
    }
    if (most > STATES_MOST)
        return -E2BIG;
    w = calloc(1, sizeof(*w));
    if (!w)
        goto out;
    w->next = calloc(most, sizeof(*w->next));
    w->fail = calloc(most, sizeof(*w->fail));
    w->shorter = calloc(most, sizeof(*w->shorter));
    w->text = calloc(most, sizeof(*w->text));
    w->ends = calloc(most, sizeof(*w->ends));
    w->same = calloc(count ? count : 1, sizeof(*w->same));
    queue = calloc(most, sizeof(*queue));
    if (!w->next || !w->fail || !w->shorter || !w->text || !w->ends || !w->same || !queue)
        goto out;
    w->states = 1;
    w->text[0] = NO_TEXT;
    for (uint32_t i = 0; i < count; i++)
        insert(w, texts[i], i);
    link_up(w, queue);
    for (uint32_t i = 1; i < w->states; i++)
        w->ends[i] = w->text[i] != NO_TEXT || w->shorter[i] != 0;
    *ret_words = w;
    w = NULL;
    r = 0;
out:
    free(queue);
    doctor_literals_free(w);
    return r;
}

void doctor_literals_find(const struct doctor_literals *w, const char *line, size_t len,
                          void (*fn)(void *ctx, uint32_t text), void *ctx)
{
    uint16_t s = 0;
    for (size_t i = 0; i < len; i++) {
        s = w->next[s][(unsigned char)line[i]];
        if (!w->ends[s])
            continue;
        for (uint16_t t = s; t; t = w->shorter[t]) {
            for (uint32_t id = w->text[t]; id != NO_TEXT; id = w->same[id])
                fn(ctx, id);
        }
    }
}
