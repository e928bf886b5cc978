/*
 * What each API key had of a server in the last minute, beside what it may have: for people, the
 * law looks at none of it. The server itself shares its turns by weight; here is said whose turn
 * comes later for it. Pure; memory is the caller's.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "supervisor/engines/keys.h"

#define SHARES_POISONS 3u /* so many requests of a key that end the engine are told */
#define SHARES_LOOKS   7u /* one each ten seconds: the oldest is a minute old */

struct shares {
    struct keys_reading now, look[SHARES_LOOKS];
    uint64_t now_us, look_us[SHARES_LOOKS];
    uint32_t looks, newest;
};

struct share {
    const struct key_reading *key;
    uint32_t number;         /* from 1, its place among the server's keys */
    double tokens_per_s;     /* prompts and answers */
    double part, due;        /* of the tokens as they are charged; by the weights of those here */
    double masks;            /* of its own part, for the masks of its forms */
    double running, waiting; /* requests that have a first token, about; answers that have none */
    bool held;               /* waits, and others have their turn before it as it had more */
};

/* Another process answers, or none: counters begin anew. */
void shares_start(struct shares *s);
/* The number of the first key from `from` on whose requests that ended the engine are three, six
 * and so on since the reading before: of shares_take(), which comes after this. 0 = there is none.
 */
uint32_t shares_poison(const struct shares *s, const struct keys_reading *keys, uint32_t from);
/* "key batch-jobs has brought 3 requests with which the engine ends", of the key that brought most;
 * without `names`: "key 2". False and an empty text when none has brought three. */
bool shares_poison_why(const struct shares *s, bool names, char *ret_text, size_t size);
void shares_take(struct shares *s, const struct keys_reading *keys, uint64_t now_us);
/* Seconds that the shares are of; 0 = nothing is known yet. */
double shares_span_s(const struct shares *s);
/* Keys with work in that time, that with most of the tokens first. 0 where there are not two keys:
 * one alone shares with none. */
uint32_t shares_rows(const struct shares *s, struct share ret_rows[KEYS_MOST]);
/* "key batch-jobs waits for its share: it had 71 % of the tokens of the last minute with a weight
 * of 1 of 4"; without `names`: "key 2". False and an empty text when none is held back. */
bool shares_why(const struct shares *s, bool names, char *ret_text, size_t size);
