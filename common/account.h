/*
 * One account of the memory that others choose the size of: bodies, what their JSON becomes, forms,
 * answers that are not read yet. There is one pool for all, and no owner may hold more than its
 * share, so that one client that asks for much is refused while the others find room.
 *
 * What is held is kept as bills, one for each holder (an exchange): a bill is set to what its
 * holder has now, up or down, and set to nothing at the end; nothing else is ever added or taken,
 * so that the account cannot drift. Counting only: the memory itself is its holder's.
 *
 * Any thread may use the account; a bill belongs to one thread at a time. Nothing is allocated.
 */
#pragma once

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#define EK_ACCOUNT_OWNERS 136u /* owners beyond it share places */

struct ek_account {
    atomic_ullong most;  /* bytes of all bills */
    atomic_ullong share; /* of those of one owner */
    atomic_ullong held, of[EK_ACCOUNT_OWNERS];
    atomic_ullong high;    /* the most that was held */
    atomic_ullong refused; /* times that a bill was not raised */
};

/* All zero, or opened. */
struct ek_bill {
    struct ek_account *account; /* NULL = nothing is counted */
    uint32_t owner;
    uint64_t bytes;
};

/* share <= most; both at least 1. */
void ek_account_init(struct ek_account *a, uint64_t most, uint64_t share);
/* Other bounds, at any time; bills stay as they are. */
void ek_account_bound(struct ek_account *a, uint64_t most, uint64_t share);
void ek_bill_open(struct ek_bill *b, struct ek_account *a, uint32_t owner);
/* Makes it so many bytes. 0; -E2BIG: more than a share, it never fits; -EDQUOT: its owner has too
 * much; -EBUSY: the pool, or an owner whose share is all of it, has. Then the bill is as it was.
 * Lowering never fails. */
int ek_bill_set(struct ek_bill *b, uint64_t bytes);
/* The same, counted beyond all bounds: for what is held already and cannot be refused. */
void ek_bill_force(struct ek_bill *b, uint64_t bytes);
uint64_t ek_account_held(const struct ek_account *a);
