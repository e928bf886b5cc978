/*
 * The counters of fair queueing (tenants.h has the rules): entries.c meets, begins and ends, plan.c
 * and results.c report what was read and answered. Looking for the least counter walks the places
 * that were ever used, at most TENANTS_MOST. All arithmetic is in whole units, so the same requests
 * have the same turns on every machine.
 */
#include "server/engine/tenants.h"

#include <assert.h>
#include <stdbool.h>

void tenants_init(struct tenants *t, uint32_t no_entry)
{
    *t = (struct tenants){.count = 1};
    for (uint32_t i = 0; i < TENANTS_MOST; i++)
        t->at[i] = (struct tenant){.price = TENANT_PRICE, .queue = {no_entry, no_entry}};
}

/* The least counter of the tenants with work. False when none has work. */
static bool find_least(const struct tenants *t, uint64_t *ret_least)
{
    bool found = false;

    for (uint32_t i = 0; i < t->count; i++) {
        if (t->at[i].active == 0 || (found && t->at[i].served >= *ret_least))
            continue;
        *ret_least = t->at[i].served;
        found = true;
    }
    return found;
}

/* What a tenant's counter is lifted to, at least, when it has work again. When no tenant has work
 * that is the last one's counter as it is now, with what its requests answered since they were
 * read. */
static uint64_t find_floor(const struct tenants *t)
{
    uint64_t least = t->at[t->last].served;

    (void)find_least(t, &least);
    return least;
}

uint32_t tenants_meet(struct tenants *t, const struct tenant_ref *ref)
{
    uint32_t place = ref->place < TENANTS_MOST ? ref->place : 0;
    struct tenant *x = &t->at[place];

    if (x->stamp != ref->stamp) { /* requests of the one before may still be there */
        uint32_t active = x->active;
        x->active = 0; /* its counter is nothing to begin from while others have work */
        *x = (struct tenant){.stamp = ref->stamp,
                             .served = find_floor(t),
                             .due = x->due,
                             .active = active,
                             .queue = x->queue};
    }
    x->price = ref->price != 0 ? ref->price : TENANT_PRICE;
    t->count = place < t->count ? t->count : place + 1;
    return place;
}

void tenants_begin(struct tenants *t, uint32_t place)
{
    struct tenant *x = &t->at[place];

    if (x->active == 0) {
        uint64_t least = find_floor(t);
        x->served = x->served > least ? x->served : least;
    }
    x->active++;
}

void tenants_end(struct tenants *t, uint32_t place)
{
    uint64_t least;

    assert(t->at[place].active > 0);
    t->at[place].active--;
    if (!find_least(t, &least))
        t->last = place;
}

void tenants_owe(struct tenants *t, uint32_t place, uint64_t tokens)
{
    t->at[place].due += tokens;
}

void tenants_read(struct tenants *t, uint32_t place, uint64_t tokens, uint64_t served)
{
    struct tenant *x = &t->at[place];

    assert(x->due >= tokens && tokens >= served);
    x->due -= tokens;
    x->served += served * x->price;
    x->prompts += served;
}

void tenants_answer(struct tenants *t, uint32_t place)
{
    struct tenant *x = &t->at[place];

    x->served += (uint64_t)TENANT_OUTPUT * x->price;
    x->outputs++;
}

void tenants_mask(struct tenants *t, uint32_t place, uint64_t units)
{
    struct tenant *x = &t->at[place];

    x->served += units * x->price / TENANT_MASK;
    x->masks += units;
}

uint64_t tenants_least(const struct tenants *t)
{
    uint64_t least = UINT64_MAX;

    (void)find_least(t, &least);
    return least;
}

uint64_t tenants_ahead(const struct tenants *t, uint32_t place, uint64_t least)
{
    const struct tenant *x = &t->at[place];

    return x->served > least ? (x->served - least) / x->price : 0;
}
