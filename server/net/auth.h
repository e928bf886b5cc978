/*
 * API keys while the server runs: whose a request is, and how much one may ask at once.
 *
 * Owner: struct http; any thread may call. Under the lock: the lines of the slots. Atomic: the
 * counters. A slot stays its key's while requests of it are open (refs), also when a reload has
 * taken the key away; then it lets no new request in.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "server/engine/tenants.h"
#include "server/net/keyfile.h"

struct auth;
struct ek_fault;

#define AUTH_SECRET 16u
#define AUTH_NOBODY (-1) /* a request without a key: none is needed, or the control socket */
#define AUTH_SLOTS  (2u * KEY_LINES_MOST) /* those taken away may still have requests */

struct auth_source {
    const char *const *keys; /* from flags; not needed after auth_new() */
    size_t key_count;
    const char *const *files; /* read again by auth_reload(); borrowed */
    size_t file_count;
    const char *credentials; /* systemd's directory, NULL = none; its file api-keys is optional */
    uint32_t concurrency;    /* of keys that name none, 0 = no limit */
    double queue_share;
};

/* What a key's requests may do; all 0 without a key. */
struct auth_terms {
    uint32_t at_once; /* most answers of one request computed at once; 0 = no limit */
    bool bound;       /* its clients may ask for these priorities only, else for any: */
    int32_t first, last;
    struct tenant_ref tenant; /* which the engine charges */
};

struct auth_stat {
    char name[KEY_NAME];
    uint32_t active, waiting;
    uint64_t requests, refused_concurrency, refused_queue;
    struct tenant_ref tenant;
    double weight;
};

/* -EBADMSG with a fault, -ENOMEM. */
int auth_new(const struct auth_source *src, struct auth **ret_auth, struct ek_fault *fault);
void auth_free(struct auth *a);
/* Reads the files again. All or nothing: after a fault the keys are as they were. */
int auth_reload(struct auth *a, struct ek_fault *fault);

/* How many keys there are; 0 = no key is asked for. */
uint32_t auth_count(struct auth *a);
/* The slot of a key, held until auth_drop(), or -EACCES. Takes the same time for every key. */
int auth_find(struct auth *a, const char *key, size_t len);
void auth_drop(struct auth *a, int slot);

/* The name of a slot that is held. */
void auth_name(struct auth *a, int slot, char ret_name[KEY_NAME]);

/* Of a slot that is held, or AUTH_NOBODY. */
void auth_terms(struct auth *a, int slot, struct auth_terms *ret_terms);

/* A request of this key begins: 0, or -EBUSY with a fault when it has too many open or too much of
 * the queue (of queue_most places). It waits until auth_started(), and ends with auth_end(). */
int auth_begin(struct auth *a, int slot, uint32_t queue_most, struct ek_fault *fault);
void auth_started(struct auth *a, int slot);
/* One more answer of such a request waits, until auth_started(): 0, or -EBUSY with a fault. Nothing
 * is counted as refused: it is asked for again. */
int auth_wait(struct auth *a, int slot, uint32_t queue_most, struct ek_fault *fault);
void auth_end(struct auth *a, int slot, bool waiting);

/* What a key's prefix cache is kept apart by: whose the blocks are, and with the client's own
 * salt. Nobody outside can tell or choose them. */
uint64_t auth_owner(const struct auth *a, int slot);
uint64_t auth_salt(const struct auth *a, int slot, uint64_t client_salt);
/* The secret behind both, drawn at each start; and that of an earlier one in its place, before the
 * first request. */
void auth_secret(const struct auth *a, uint8_t ret_secret[AUTH_SECRET]);
void auth_take_secret(struct auth *a, const uint8_t secret[AUTH_SECRET]);
/* The key itself, whatever group it is in, 0 without one: which sees what is stored for it. */
uint64_t auth_itself(struct auth *a, int slot);

/* Numbers of the i-th slot. False when no key is there. */
bool auth_stat(struct auth *a, uint32_t i, struct auth_stat *ret_stat);
