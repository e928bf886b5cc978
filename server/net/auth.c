/*
 * API keys: which one a request has, and what it may (auth.h). Called by guard.c for each request.
 */
#include "server/net/auth.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/file.h"
#include "common/log.h"
#include "server/net/bounds.h"

#define SECRET AUTH_SECRET

struct key_slot {
    struct key_line line;
    atomic_ullong owner; /* what keeps its prefix cache apart */
    uint32_t stamp;      /* which key that is */
    bool used;           /* of a key that has or may have requests */
    bool live;           /* is accepted */
    atomic_uint refs, active, waiting;
    atomic_ullong requests, refused_concurrency, refused_queue;
};

struct auth {
    pthread_mutex_t lock;
    struct auth_source src; /* without keys */
    struct key_line fixed[KEY_LINES_MOST];
    uint32_t fixed_count;
    uint8_t secret[SECRET];
    bool loaded;     /* its files were read once */
    uint32_t stamps; /* that were given */
    atomic_uint count;
    struct key_slot slot[AUTH_SLOTS];
};

static uint64_t first_bytes(const void *bytes, size_t len)
{
    uint8_t digest[KEY_DIGEST] = {0};
    uint64_t v;
    (void)key_digest(bytes, len, digest); /* it has worked for the key itself */
    memcpy(&v, digest, sizeof(v));
    return v ? v : 1; /* 0 is what requests without a key have */
}

/* By the group's name, or by the key. */
static uint64_t find_owner(const struct auth *a, const struct key_line *l)
{
    uint8_t in[SECRET + 1 + KEY_DIGEST] = {0};
    memcpy(in, a->secret, SECRET);
    in[SECRET] = l->group[0] != '\0';
    if (l->group[0])
        memcpy(in + SECRET + 1, l->group, strnlen(l->group, KEY_DIGEST));
    else
        memcpy(in + SECRET + 1, l->digest, KEY_DIGEST);
    return first_bytes(in, sizeof(in));
}

static void warn_mode(const char *path)
{
    struct stat st;
    if (stat(path, &st) == 0 && (st.st_mode & S_IROTH))
        ek_log(EK_LOG_WARNING, "Every user may read the API keys in %s: chmod 640 %s", path, path);
}

static int read_keys(const struct auth *a, const char *what, const char *path,
                     struct key_line *lines, uint32_t *count, struct ek_fault *fault)
{
    const struct key_line defaults = {
        .concurrency = a->src.concurrency, .queue_share = a->src.queue_share, .last = INT32_MAX};
    struct ek_buf text = {0};
    int r = (a->loaded ? ek_file_read_again : ek_file_read)(what, path, BOUND_KEY_FILE_BYTES, &text,
                                                            fault);
    if (r == 0)
        r = keyfile_parse(what, path, text.data ? text.data : "", text.len, &defaults, lines, count,
                          fault);
    if (text.data)
        explicit_bzero(text.data, text.cap);
    ek_buf_done(&text);
    if (r == 0)
        warn_mode(path);
    return r;
}

static int auth_read_all(const struct auth *a, struct key_line *lines, uint32_t *count,
                         struct ek_fault *fault)
{
    char path[512];
    int r = 0;
    for (size_t i = 0; i < a->src.file_count && r == 0; i++)
        r = read_keys(a, "--api-key-file", a->src.files[i], lines, count, fault);
    if (r < 0 || !a->src.credentials)
        return r;
    int n = snprintf(path, sizeof(path), "%s/api-keys", a->src.credentials);
    if (n < 0 || n >= (int)sizeof(path) || (access(path, F_OK) < 0 && errno == ENOENT))
        return 0; /* no such credential was passed; one that cannot be reached is an error below */
    return read_keys(a, "credential api-keys", path, lines, count, fault);
}

static struct key_slot *slot_of(struct auth *a, const uint8_t *digest)
{
    for (uint32_t i = 0; i < AUTH_SLOTS; i++) {
        if (a->slot[i].used && memcmp(a->slot[i].line.digest, digest, KEY_DIGEST) == 0)
            return &a->slot[i];
    }
    return NULL;
}

static struct key_slot *free_slot(struct auth *a)
{
    for (uint32_t i = 0; i < AUTH_SLOTS; i++) {
        struct key_slot *s = &a->slot[i];
        if (!s->used || (!s->live && atomic_load(&s->refs) == 0))
            return s;
    }
    return NULL;
}

/* Under the lock: only these keys are accepted from now on. */
static int install(struct auth *a, const struct key_line *lines, uint32_t count,
                   struct ek_fault *fault)
{
    uint32_t fresh = 0, room = 0;
    for (uint32_t i = 0; i < count; i++)
        fresh += slot_of(a, lines[i].digest) == NULL;
    for (uint32_t i = 0; i < AUTH_SLOTS; i++)
        room += !a->slot[i].used || (!a->slot[i].live && atomic_load(&a->slot[i].refs) == 0);
    if (fresh > room)
        return ek_fault_set(fault, "api-key-file",
                            "--api-key-file: too many keys changed while requests of old ones are "
                            "open; reload again when they have ended");
    for (uint32_t i = 0; i < AUTH_SLOTS; i++)
        a->slot[i].live = false;
    /* those that are there already first: a fresh one must not take the place of one of them */
    for (uint32_t i = 0; i < count; i++) {
        struct key_slot *s = slot_of(a, lines[i].digest);
        if (s)
            s->live = true;
    }
    for (uint32_t i = 0; i < count; i++) {
        struct key_slot *s = slot_of(a, lines[i].digest);
        if (!s) {
            s = free_slot(a);
            assert(s); /* counted above; a slot only gets freer meanwhile */
            *s = (struct key_slot){.used = true, .live = true, .stamp = ++a->stamps};
        }
        s->line = lines[i];
        atomic_store(&s->owner, find_owner(a, &lines[i]));
    }
    atomic_store(&a->count, count);
    return 0;
}

int auth_reload(struct auth *a, struct ek_fault *fault)
{
    struct key_line *lines = calloc(KEY_LINES_MOST, sizeof(*lines));
    if (!lines)
        return -ENOMEM;
    uint32_t count = a->fixed_count;
    memcpy(lines, a->fixed, count * sizeof(*lines));
    int r = auth_read_all(a, lines, &count, fault);
    if (r == 0) {
        pthread_mutex_lock(&a->lock);
        r = install(a, lines, count, fault);
        pthread_mutex_unlock(&a->lock);
    }
    free(lines);
    return r;
}

int auth_new(const struct auth_source *src, struct auth **ret_auth, struct ek_fault *fault)
{
    const struct key_line defaults = {
        .concurrency = src->concurrency, .queue_share = src->queue_share, .last = INT32_MAX};
    int r = -ENOMEM;
    struct auth *a = calloc(1, sizeof(*a));
    if (!a)
        goto out;
    r = -pthread_mutex_init(&a->lock, NULL);
    a->src = *src;
    a->src.keys = NULL;
    a->src.key_count = 0;
    if (r == 0 && getrandom(a->secret, sizeof(a->secret), 0) != (ssize_t)sizeof(a->secret))
        r = -EIO;
    for (size_t i = 0; i < src->key_count && r == 0; i++)
        r = keyfile_add("--api-key", src->keys[i], &defaults, a->fixed, &a->fixed_count, fault);
    if (r == 0)
        r = auth_reload(a, fault);
    if (r < 0)
        goto out;
    a->loaded = true;
    *ret_auth = a;
    a = NULL;
out:
    auth_free(a);
    return r;
}

void auth_free(struct auth *a)
{
    if (!a)
        return;
    pthread_mutex_destroy(&a->lock);
    explicit_bzero(a, sizeof(*a));
    free(a);
}

uint32_t auth_count(struct auth *a)
{
    return atomic_load(&a->count);
}

int auth_find(struct auth *a, const char *key, size_t len)
{
    uint8_t digest[KEY_DIGEST];
    int found = -EACCES;
    if (len > KEY_BYTES || key_digest(key, len, digest) < 0)
        return -EACCES;
    pthread_mutex_lock(&a->lock);
    /* No early end: how long it takes says nothing about how near a guess is. */
    for (uint32_t i = 0; i < AUTH_SLOTS; i++) {
        bool same = gnutls_memcmp(digest, a->slot[i].line.digest, KEY_DIGEST) == 0;
        if (same & a->slot[i].live)
            found = (int)i;
    }
    if (found >= 0)
        atomic_fetch_add(&a->slot[found].refs, 1);
    pthread_mutex_unlock(&a->lock);
    return found;
}

void auth_drop(struct auth *a, int slot)
{
    if (slot >= 0)
        atomic_fetch_sub(&a->slot[slot].refs, 1);
}

void auth_name(struct auth *a, int slot, char ret_name[KEY_NAME])
{
    pthread_mutex_lock(&a->lock);
    memcpy(ret_name, a->slot[slot].line.name, KEY_NAME);
    pthread_mutex_unlock(&a->lock);
}

/* Under the lock: 0, or -EBUSY with a fault when the key has its share of the queue. */
static int check_share(struct auth *a, const struct key_slot *s, uint32_t queue_most,
                       struct ek_fault *fault)
{
    double share = auth_count(a) > 1 ? s->line.queue_share : 1;
    uint32_t most = (uint32_t)(share * queue_most);
    if (most == 0)
        most = 1;
    if (share >= 1 || atomic_load(&s->waiting) < most)
        return 0;
    (void)ek_fault_set(fault, "", "key %s has %u requests waiting, its share of the queue",
                       s->line.name, most);
    return -EBUSY;
}

int auth_begin(struct auth *a, int slot, uint32_t queue_most, struct ek_fault *fault)
{
    if (slot < 0)
        return 0;
    struct key_slot *s = &a->slot[slot];
    int r = 0;
    pthread_mutex_lock(&a->lock);
    uint32_t at_once = s->line.concurrency;
    if (at_once && atomic_load(&s->active) >= at_once) {
        atomic_fetch_add(&s->refused_concurrency, 1);
        r = ek_fault_set(fault, "", "key %s has %u requests open, its limit", s->line.name,
                         at_once);
    } else if (check_share(a, s, queue_most, fault) < 0) {
        atomic_fetch_add(&s->refused_queue, 1);
        r = -EBUSY;
    } else {
        atomic_fetch_add(&s->active, 1);
        atomic_fetch_add(&s->waiting, 1);
        atomic_fetch_add(&s->requests, 1);
    }
    pthread_mutex_unlock(&a->lock);
    return r < 0 ? -EBUSY : 0;
}

int auth_wait(struct auth *a, int slot, uint32_t queue_most, struct ek_fault *fault)
{
    if (slot < 0)
        return 0;
    pthread_mutex_lock(&a->lock);
    int r = check_share(a, &a->slot[slot], queue_most, fault);
    if (r == 0)
        atomic_fetch_add(&a->slot[slot].waiting, 1);
    pthread_mutex_unlock(&a->lock);
    return r;
}

void auth_started(struct auth *a, int slot)
{
    if (slot >= 0)
        atomic_fetch_sub(&a->slot[slot].waiting, 1);
}

void auth_end(struct auth *a, int slot, bool waiting)
{
    if (slot < 0)
        return;
    if (waiting)
        auth_started(a, slot);
    atomic_fetch_sub(&a->slot[slot].active, 1);
}

_Static_assert(AUTH_SLOTS < TENANTS_MOST,
               "each key is a tenant, and requests without a key are one");

/* Under the lock. */
static struct tenant_ref tenant_of(const struct auth *a, uint32_t slot)
{
    const struct key_slot *s = &a->slot[slot];
    double weight = s->line.weight > 0 ? s->line.weight : 1;

    return (struct tenant_ref){
        .place = slot + 1, .stamp = s->stamp, .price = (uint32_t)(TENANT_PRICE / weight + 0.5)};
}

void auth_terms(struct auth *a, int slot, struct auth_terms *ret_terms)
{
    *ret_terms = (struct auth_terms){0};
    if (slot < 0)
        return;
    pthread_mutex_lock(&a->lock);
    const struct key_line *line = &a->slot[slot].line;
    *ret_terms = (struct auth_terms){.at_once = line->concurrency,
                                     .bound = true,
                                     .first = line->first,
                                     .last = line->last,
                                     .tenant = tenant_of(a, (uint32_t)slot)};
    pthread_mutex_unlock(&a->lock);
}

uint64_t auth_owner(const struct auth *a, int slot)
{
    return slot < 0 ? 0 : atomic_load(&a->slot[slot].owner);
}

uint64_t auth_salt(const struct auth *a, int slot, uint64_t client_salt)
{
    uint64_t in[2 + SECRET / 8] = {0};
    if (slot < 0)
        return client_salt;
    if (client_salt == 0)
        return auth_owner(a, slot);
    in[0] = auth_owner(a, slot);
    in[1] = client_salt;
    memcpy(in + 2, a->secret, SECRET);
    return first_bytes(in, sizeof(in));
}

void auth_secret(const struct auth *a, uint8_t ret_secret[AUTH_SECRET])
{
    memcpy(ret_secret, a->secret, AUTH_SECRET);
}

void auth_take_secret(struct auth *a, const uint8_t secret[AUTH_SECRET])
{
    pthread_mutex_lock(&a->lock);
    memcpy(a->secret, secret, AUTH_SECRET);
    for (uint32_t i = 0; i < AUTH_SLOTS; i++)
        if (a->slot[i].used)
            atomic_store(&a->slot[i].owner, find_owner(a, &a->slot[i].line));
    pthread_mutex_unlock(&a->lock);
}

uint64_t auth_itself(struct auth *a, int slot)
{
    uint8_t in[SECRET + 1 + KEY_DIGEST] = {0};
    if (slot < 0)
        return 0;
    memcpy(in, a->secret, SECRET);
    in[SECRET] = 2; /* find_owner() has 0 and 1 there */
    pthread_mutex_lock(&a->lock);
    memcpy(in + SECRET + 1, a->slot[slot].line.digest, KEY_DIGEST);
    pthread_mutex_unlock(&a->lock);
    return first_bytes(in, sizeof(in));
}

bool auth_stat(struct auth *a, uint32_t i, struct auth_stat *ret_stat)
{
    bool there = false;
    if (i >= AUTH_SLOTS)
        return false;
    struct key_slot *s = &a->slot[i];
    pthread_mutex_lock(&a->lock);
    there = s->live;
    if (there) {
        *ret_stat = (struct auth_stat){.active = atomic_load(&s->active),
                                       .waiting = atomic_load(&s->waiting),
                                       .requests = atomic_load(&s->requests),
                                       .refused_concurrency = atomic_load(&s->refused_concurrency),
                                       .refused_queue = atomic_load(&s->refused_queue),
                                       .tenant = tenant_of(a, i),
                                       .weight = s->line.weight > 0 ? s->line.weight : 1};
        memcpy(ret_stat->name, s->line.name, sizeof(ret_stat->name));
    }
    pthread_mutex_unlock(&a->lock);
    return there;
}
