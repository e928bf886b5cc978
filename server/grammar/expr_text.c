/*
 * Free text that does not hold certain words: the automaton of Aho and Corasick written as rules,
 * one for each beginning of a word, that call each other last.
 */
#include "server/grammar/expr_text.h"

#include <stdlib.h>
#include <string.h>

#include "server/grammar/chars.h"
#include "server/text/utf8.h"

#define PLACES_MOST 160u

struct text {
    struct expr_set *set;
    const struct text_word *word;
    uint32_t words;
    char place[PLACES_MOST][TEXT_WORD_MOST + 1]; /* what has been read of words; [0] = nothing */
    size_t len[PLACES_MOST];                     /* bytes of each */
    uint32_t rule[PLACES_MOST], places;
    bool leads[256]; /* whether a word has this byte; any other one leads to place 0 */
};

/* Where a byte leads: to a place, or it completes a word (else UINT32_MAX). */
struct text_step {
    uint32_t place, word;
};

static uint32_t place_of(const struct text *t, const char *s, size_t len)
{
    for (uint32_t i = 0; i < t->places; i++)
        if (t->len[i] == len && memcmp(t->place[i], s, len) == 0)
            return i;
    return UINT32_MAX;
}

static void add_places(struct text *t)
{
    t->places = 1;
    for (uint32_t w = 0; w < t->words; w++) {
        const char *text = t->word[w].text;
        const size_t len = strlen(text);
        for (size_t n = 1; n <= len; n++)
            t->leads[(uint8_t)text[n - 1]] = true;
        for (size_t n = 1; n < len; n++) {
            if (place_of(t, text, n) != UINT32_MAX || t->places == PLACES_MOST)
                continue;
            t->len[t->places] = n;
            memcpy(t->place[t->places++], text, n);
        }
    }
}

/* After one byte more. */
static struct text_step expr_step(const struct text *t, uint32_t place, uint8_t byte)
{
    char s[TEXT_WORD_MOST + 1];
    size_t n = t->len[place];
    struct text_step step = {.word = UINT32_MAX};

    if (!t->leads[byte])
        return step;
    memcpy(s, t->place[place], n);
    s[n++] = (char)byte;
    for (const char *tail = s; n > 0; tail++, n--) {
        for (uint32_t w = 0; w < t->words; w++)
            if (strncmp(t->word[w].text, tail, n) == 0 && t->word[w].text[n] == '\0')
                step.word = w;
        step.place = place_of(t, tail, n);
        if (step.word != UINT32_MAX || step.place != UINT32_MAX)
            return step;
    }
    step.place = 0;
    return step;
}

/* What follows after this step. */
static uint32_t expr_follow(const struct text *t, struct text_step step)
{
    return step.word != UINT32_MAX ? t->word[step.word].then
                                   : expr_call(t->set, t->rule[step.place]);
}

static bool alike(struct text_step a, struct text_step b)
{
    return a.word == b.word && (a.word != UINT32_MAX || a.place == b.place);
}

/* Bytes of whole characters beyond ASCII: those of the words lead on, each other one to nothing
 * read. The places within a character are gone through here and have no rules. */
static void follow_characters(const struct text *t, uint32_t place, struct expr_list *alt)
{
    struct chars seen = {0}, others;

    for (uint32_t w = 0; w < t->words; w++) {
        const char *at = t->word[w].text;
        for (size_t left = strlen(at), n; left > 0; at += n, left -= n) {
            uint32_t cp = 0, there = place;
            n = utf8_next(at, left, &cp);
            if (cp < 0x80 || chars_has(&seen, cp))
                continue;
            chars_add(&seen, cp, cp);
            for (size_t i = 0; i + 1 < n; i++)
                there = expr_step(t, there, (uint8_t)at[i]).place;
            expr_push(alt, expr_pair(t->set, expr_bytes(t->set, at, n),
                                     expr_follow(t, expr_step(t, there, (uint8_t)at[n - 1]))));
        }
    }
    others = seen;
    chars_add(&others, 0, 0x7f);
    chars_negate(&others);
    expr_push(alt, expr_pair(t->set, expr_chars(t->set, &others), expr_call(t->set, t->rule[0])));
}

/* Whether the place ends within a character. */
static bool is_within(const char *place, size_t len)
{
    return utf8_valid(place, len) != len;
}

static void write_place(const struct text *t, uint32_t place, bool ends, bool utf8)
{
    struct expr_list alt = {.set = t->set};
    struct text_step step[256];
    const uint32_t bytes = utf8 ? 0x80 : 0x100;

    if (utf8 && is_within(t->place[place], t->len[place])) {
        expr_rule_set(t->set, t->rule[place], EXPR_NEVER);
        return;
    }
    if (ends)
        expr_push(&alt, EXPR_EMPTY);
    for (uint32_t b = 0; b < bytes; b++)
        step[b] = expr_step(t, place, (uint8_t)b);
    for (uint32_t b = 0, last; b < bytes; b = last + 1) {
        for (last = b; last + 1 < bytes && alike(step[b], step[last + 1]);)
            last++;
        uint32_t range = expr_byte(t->set, (uint8_t)b, (uint8_t)last);
        expr_push(&alt, expr_pair(t->set, range, expr_follow(t, step[b])));
    }
    if (utf8)
        follow_characters(t, place, &alt);
    expr_rule_set(t->set, t->rule[place], expr_alt(&alt));
}

void expr_text_write(struct expr_set *set, uint32_t rule, const struct text_word *word,
                     uint32_t words, bool ends, bool utf8)
{
    struct text *t = calloc(1, sizeof(*t));

    if (!t) {
        set->no_memory = true;
        return;
    }
    t->set = set;
    t->word = word;
    t->words = words;
    add_places(t);
    t->rule[0] = rule;
    for (uint32_t i = 1; i < t->places; i++)
        t->rule[i] = expr_rule_new(set, "text");
    for (uint32_t i = 0; i < t->places; i++)
        write_place(t, i, ends, utf8);
    free(t);
}
