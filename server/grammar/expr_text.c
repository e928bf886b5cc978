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
    uint32_t rule[PLACES_MOST], places;
};

static uint32_t place_of(const struct text *t, const char *s)
{
    for (uint32_t i = 0; i < t->places; i++)
        if (strcmp(t->place[i], s) == 0)
            return i;
    return UINT32_MAX;
}

static void add_places(struct text *t)
{
    t->places = 1;
    for (uint32_t w = 0; w < t->words; w++) {
        for (size_t n = 1; n < strlen(t->word[w].text); n++) {
            char s[TEXT_WORD_MOST + 1] = "";
            memcpy(s, t->word[w].text, n);
            if (place_of(t, s) != UINT32_MAX || t->places == PLACES_MOST)
                continue;
            memcpy(t->place[t->places++], s, sizeof(s));
        }
    }
}

/* After one byte more: the place, or *ret_word is a word that has been completed. */
static uint32_t expr_step(const struct text *t, uint32_t place, uint8_t byte, uint32_t *ret_word)
{
    char s[TEXT_WORD_MOST + 2];
    size_t n = strlen(t->place[place]);

    memcpy(s, t->place[place], n);
    s[n++] = (char)byte;
    s[n] = '\0';
    *ret_word = UINT32_MAX;
    for (const char *tail = s; byte != 0 && *tail; tail++) {
        for (uint32_t w = 0; w < t->words; w++)
            if (strcmp(t->word[w].text, tail) == 0)
                *ret_word = w;
        uint32_t there = place_of(t, tail);
        if (*ret_word != UINT32_MAX || there != UINT32_MAX)
            return there;
    }
    return 0;
}

/* What follows byte `b` at a place. */
static uint32_t expr_follow(const struct text *t, uint32_t place, uint8_t b)
{
    uint32_t word, there = expr_step(t, place, b, &word);

    return word != UINT32_MAX ? t->word[word].then : expr_call(t->set, t->rule[there]);
}

static bool alike(const struct text *t, uint32_t place, uint8_t a, uint8_t b)
{
    uint32_t v, w, x = expr_step(t, place, a, &v), y = expr_step(t, place, b, &w);
    return v == w && (v != UINT32_MAX || x == y);
}

/* Bytes of whole characters beyond ASCII: those of the words lead on, each other one to nothing
 * read. The places within a character are gone through here and have no rules. */
static void follow_characters(const struct text *t, uint32_t place, struct expr_list *alt)
{
    struct chars seen = {0}, others;

    for (uint32_t w = 0; w < t->words; w++) {
        const char *at = t->word[w].text;
        for (size_t left = strlen(at), n; left > 0; at += n, left -= n) {
            uint32_t cp = 0, there = place, word;
            n = utf8_next(at, left, &cp);
            if (cp < 0x80 || chars_has(&seen, cp))
                continue;
            chars_add(&seen, cp, cp);
            for (size_t i = 0; i + 1 < n; i++)
                there = expr_step(t, there, (uint8_t)at[i], &word);
            expr_push(alt, expr_pair(t->set, expr_bytes(t->set, at, n),
                                     expr_follow(t, there, (uint8_t)at[n - 1])));
        }
    }
    others = seen;
    chars_add(&others, 0, 0x7f);
    chars_negate(&others);
    expr_push(alt, expr_pair(t->set, expr_chars(t->set, &others), expr_call(t->set, t->rule[0])));
}

/* Whether the place ends within a character. */
static bool is_within(const char *place)
{
    const size_t len = strlen(place);

    return utf8_valid(place, len) != len;
}

static void write_place(const struct text *t, uint32_t place, bool ends, bool utf8)
{
    struct expr_list alt = {.set = t->set};

    if (utf8 && is_within(t->place[place])) {
        expr_rule_set(t->set, t->rule[place], EXPR_NEVER);
        return;
    }
    if (ends)
        expr_push(&alt, EXPR_EMPTY);
    for (uint32_t b = 0, last; b < (utf8 ? 0x80u : 0x100u); b = last + 1) {
        for (last = b; last + 1 < (utf8 ? 0x80u : 0x100u); last++)
            if (!alike(t, place, (uint8_t)b, (uint8_t)(last + 1)))
                break;
        uint32_t bytes = expr_byte(t->set, (uint8_t)b, (uint8_t)last);
        expr_push(&alt, expr_pair(t->set, bytes, expr_follow(t, place, (uint8_t)b)));
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
