/*
 * Differences of two readings of the keys (engines/keys.h), a minute apart, as shares of the
 * server; servers/watch.c pushes readings, web/key_table.c prints rows. shares_poison() finds the
 * keys whose count of poisonous requests (server/engine) has passed a further threshold since the
 * last reading.
 */
#include "supervisor/law/shares.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#define LOOK_US 10000000u
#define LEAST_S 5.0  /* below it a share says nothing */
#define MINUTE  50.0 /* seconds that are called one */
#define ANSWER  2.0  /* what one token of an answer is charged, in tokens of prompts (tenants.h) */

void shares_start(struct shares *s)
{
    s->now.count = 0;
    s->looks = 0;
}

void shares_take(struct shares *s, const struct keys_reading *keys, uint64_t now_us)
{
    s->now = *keys;
    s->now_us = now_us;
    if (s->looks > 0 && now_us < s->look_us[s->newest] + LOOK_US)
        return;
    s->newest = s->looks > 0 ? (s->newest + 1) % SHARES_LOOKS : 0;
    s->looks = s->looks < SHARES_LOOKS ? s->looks + 1 : SHARES_LOOKS;
    s->look[s->newest] = *keys;
    s->look_us[s->newest] = now_us;
}

static uint32_t oldest(const struct shares *s)
{
    return (s->newest + SHARES_LOOKS + 1 - s->looks) % SHARES_LOOKS;
}

double shares_span_s(const struct shares *s)
{
    return s->looks > 0 ? (double)(s->now_us - s->look_us[oldest(s)]) / 1e6 : 0;
}

/* What a counter grew by; one that fell began anew, as did that of a key that was not there. */
static double shares_growth(double now, double before)
{
    return now >= before ? now - before : now;
}

static int by_part(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    if (x->part != y->part)
        return x->part > y->part ? -1 : 1;
    return x->number < y->number ? -1 : 1;
}

/* Its row, with what it was charged in `part`. False when it had no work. */
static bool read_row(const struct shares *s, uint32_t i, double span_s, struct share *ret)
{
    const struct key_reading *k = &s->now.at[i], none = {0};
    const struct key_reading *before = keys_find(&s->look[oldest(s)], k->name);
    before = before ? before : &none;
    double prompts = shares_growth(k->prompts, before->prompts);
    double answers = shares_growth(k->answers, before->answers);
    double masks = shares_growth(k->masks, before->masks);
    double charged = prompts + ANSWER * answers + masks;
    *ret = (struct share){.key = k,
                          .number = i + 1,
                          .tokens_per_s = span_s > 0 ? (prompts + answers) / span_s : 0,
                          .part = charged,
                          .masks = charged > 0 ? masks / charged : 0,
                          .running = k->open > k->waiting ? k->open - k->waiting : 0,
                          .waiting = k->waiting};
    return ret->part > 0 || k->open > 0 || k->waiting > 0;
}

uint32_t shares_rows(const struct shares *s, struct share ret_rows[KEYS_MOST])
{
    double span_s = shares_span_s(s), charged = 0, weights = 0;
    uint32_t count = 0;
    if (s->now.count < 2)
        return 0;
    for (uint32_t i = 0; i < s->now.count; i++) {
        if (!read_row(s, i, span_s, &ret_rows[count]))
            continue;
        charged += ret_rows[count].part;
        weights += s->now.at[i].weight;
        count++;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct share *r = &ret_rows[i];
        r->part = charged > 0 ? r->part / charged : 0;
        r->due = weights > 0 ? r->key->weight / weights : 0;
        r->held = span_s >= LEAST_S && r->waiting > 0 && r->key->ahead > 0 && r->part > r->due;
    }
    qsort(ret_rows, count, sizeof(*ret_rows), by_part);
    return count;
}

bool shares_why(const struct shares *s, bool names, char *ret_text, size_t size)
{
    struct share rows[KEYS_MOST];
    const struct share *most = NULL;
    uint32_t count = shares_rows(s, rows), held = 0;
    double weights = 0, span_s = shares_span_s(s);
    char name[KEYS_NAME], time[24] = "minute", others[48] = "";
    ret_text[0] = '\0';
    for (uint32_t i = 0; i < count; i++) {
        weights += rows[i].key->weight;
        held += rows[i].held;
        most = !most && rows[i].held ? &rows[i] : most;
    }
    if (!most)
        return false;
    (void)snprintf(name, sizeof(name), "%u", most->number);
    if (span_s < MINUTE)
        (void)snprintf(time, sizeof(time), "%.0f s", span_s);
    if (held > 1)
        (void)snprintf(others, sizeof(others), "; %u other%s as well", held - 1,
                       held > 2 ? "s wait" : " waits");
    (void)snprintf(ret_text, size,
                   "key %s waits for its share: it had %.0f %% of the tokens of the last %s with a "
                   "weight of %g of %g%s%s",
                   names ? most->key->name : name, most->part * 100, time, most->key->weight,
                   weights, most->masks > 0.5 ? ", most of it for the masks of its forms" : "",
                   others);
    return true;
}

uint32_t shares_poison(const struct shares *s, const struct keys_reading *keys, uint32_t from)
{
    for (uint32_t i = from > 0 ? from - 1 : 0; i < keys->count; i++) {
        const struct key_reading *is = &keys->at[i], *was = keys_find(&s->now, is->name);
        if (!was)
            continue; /* it may have been told before */
        double before = is->poisons < was->poisons ? 0 : was->poisons; /* another process */
        if (floor(is->poisons / SHARES_POISONS) > floor(before / SHARES_POISONS))
            return i + 1;
    }
    return 0;
}

bool shares_poison_why(const struct shares *s, bool names, char *ret_text, size_t size)
{
    const struct key_reading *most = NULL;
    char name[KEYS_NAME];

    ret_text[0] = '\0';
    for (uint32_t i = 0; i < s->now.count; i++)
        if (s->now.at[i].poisons >= SHARES_POISONS &&
            (!most || s->now.at[i].poisons > most->poisons))
            most = &s->now.at[i];
    if (!most)
        return false;
    (void)snprintf(name, sizeof(name), "%u", (uint32_t)(most - s->now.at) + 1);
    (void)snprintf(ret_text, size, "key %s has brought %.0f requests with which the engine ends",
                   names ? most->name : name, most->poisons);
    return true;
}
