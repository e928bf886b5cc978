/*
 * Collects the families of a metrics page that carry a key's name into one row a key, for
 * servers/watch.c; law/shares.c compares two such readings. The number of rows is bounded, and
 * names beyond it are dropped: a page belongs to the server and may hold anything.
 */
#include "supervisor/engines/keys.h"

#include <math.h>
#include <string.h>

#include "common/promtext.h"

#define PREFIX "evenkeel_key_"

/* Where a family's value goes. */
static const struct {
    const char *name, *kind;
    size_t at;
} families[] = {
    {PREFIX "active_requests", NULL, offsetof(struct key_reading, open)},
    {PREFIX "waiting_requests", NULL, offsetof(struct key_reading, waiting)},
    {PREFIX "tokens_total", "prompt", offsetof(struct key_reading, prompts)},
    {PREFIX "tokens_total", "answer", offsetof(struct key_reading, answers)},
    {PREFIX "mask_tokens_total", NULL, offsetof(struct key_reading, masks)},
    {PREFIX "ahead_tokens", NULL, offsetof(struct key_reading, ahead)},
    {PREFIX "poison_requests_total", NULL, offsetof(struct key_reading, poisons)},
    {PREFIX "weight", NULL, offsetof(struct key_reading, weight)},
};

const struct key_reading *keys_find(const struct keys_reading *k, const char *name)
{
    for (uint32_t i = 0; i < k->count; i++) {
        if (strcmp(k->at[i].name, name) == 0)
            return &k->at[i];
    }
    return NULL;
}

/* The row of a key, a new one for a name that was not there; NULL when there is no room. */
static struct key_reading *keys_row_of(struct keys_reading *k, const char *name)
{
    for (uint32_t i = 0; i < k->count; i++) {
        if (strcmp(k->at[i].name, name) == 0)
            return &k->at[i];
    }
    size_t len = strlen(name);
    if (k->count == KEYS_MOST || len == 0 || len >= KEYS_NAME)
        return NULL;
    struct key_reading *row = &k->at[k->count++];
    *row = (struct key_reading){.weight = 1};
    memcpy(row->name, name, len + 1);
    return row;
}

static void take_sample(void *ctx, const struct promtext_sample *s)
{
    struct keys_reading *k = ctx;
    if (strncmp(s->name, PREFIX, sizeof(PREFIX) - 1) != 0 || !isfinite(s->value) || s->value < 0)
        return;
    const char *key = promtext_label(s, "key"), *kind = promtext_label(s, "kind");
    for (size_t i = 0; i < sizeof(families) / sizeof(families[0]) && key; i++) {
        if (strcmp(s->name, families[i].name) != 0 ||
            (families[i].kind && (!kind || strcmp(kind, families[i].kind) != 0)))
            continue;
        struct key_reading *row = keys_row_of(k, key);
        if (row)
            memcpy((char *)row + families[i].at, &s->value, sizeof(s->value));
        return;
    }
}

void keys_parse(const char *page, size_t len, struct keys_reading *ret_keys)
{
    struct promtext_info info;
    ret_keys->count = 0;
    /* Most pages have none, and are read once already. */
    const char *first = len > 0 ? memmem(page, len, "\n" PREFIX, sizeof(PREFIX)) : NULL;
    if (first)
        promtext_parse(first + 1, len - (size_t)(first + 1 - page), take_sample, ret_keys, &info);
}
