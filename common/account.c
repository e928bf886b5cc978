/*
 * The account of memory whose size clients choose (account.h). Called by whatever reads bodies,
 * compiles forms or keeps answers, on any thread.
 */
#include "common/account.h"

#include <errno.h>

void ek_account_bound(struct ek_account *a, uint64_t most, uint64_t share)
{
    atomic_store(&a->most, most);
    atomic_store(&a->share, share < most ? share : most);
}

void ek_account_init(struct ek_account *a, uint64_t most, uint64_t share)
{
    ek_account_bound(a, most, share);
    atomic_init(&a->held, 0);
    atomic_init(&a->high, 0);
    atomic_init(&a->refused, 0);
    for (uint32_t i = 0; i < EK_ACCOUNT_OWNERS; i++)
        atomic_init(&a->of[i], 0);
}

void ek_bill_open(struct ek_bill *b, struct ek_account *a, uint32_t owner)
{
    *b = (struct ek_bill){.account = a, .owner = owner % EK_ACCOUNT_OWNERS};
}

/* Adds unless that is more than `most`. */
static bool account_add(atomic_ullong *held, uint64_t more, uint64_t most)
{
    unsigned long long now = atomic_load(held);
    do {
        if (now > most || more > most - now)
            return false;
    } while (!atomic_compare_exchange_weak(held, &now, now + more));
    return true;
}

static void account_high(struct ek_account *a)
{
    unsigned long long now = atomic_load(&a->held), high = atomic_load(&a->high);
    while (now > high && !atomic_compare_exchange_weak(&a->high, &high, now))
        continue;
}

static int account_take(struct ek_bill *b, uint64_t more, uint64_t bytes)
{
    struct ek_account *a = b->account;

    const uint64_t most = atomic_load(&a->most), share = atomic_load(&a->share);
    if (bytes > share)
        return -E2BIG;
    if (!account_add(&a->of[b->owner], more, share))
        return share < most ? -EDQUOT : -EBUSY;
    if (!account_add(&a->held, more, most)) {
        atomic_fetch_sub(&a->of[b->owner], more);
        return -EBUSY;
    }
    account_high(a);
    return 0;
}

int ek_bill_set(struct ek_bill *b, uint64_t bytes)
{
    struct ek_account *a = b->account;
    int r = 0;

    if (!a)
        return 0;
    if (bytes > b->bytes) {
        r = account_take(b, bytes - b->bytes, bytes);
    } else {
        atomic_fetch_sub(&a->of[b->owner], b->bytes - bytes);
        atomic_fetch_sub(&a->held, b->bytes - bytes);
    }
    if (r < 0)
        atomic_fetch_add(&a->refused, 1);
    else
        b->bytes = bytes;
    return r;
}

void ek_bill_force(struct ek_bill *b, uint64_t bytes)
{
    struct ek_account *a = b->account;

    if (!a)
        return;
    if (bytes <= b->bytes) {
        (void)ek_bill_set(b, bytes); /* lowering never fails */
        return;
    }
    atomic_fetch_add(&a->of[b->owner], bytes - b->bytes);
    atomic_fetch_add(&a->held, bytes - b->bytes);
    account_high(a);
    b->bytes = bytes;
}

uint64_t ek_account_held(const struct ek_account *a)
{
    return atomic_load(&a->held);
}
