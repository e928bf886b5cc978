/*
 * The format of vLLM's KV events: options_read.c and start_load.c parse the configuration, kvpub.c
 * encodes batches on its thread. Records that follow each other in a chain become one event with
 * many hashes, as a router expects. Errors of the packer are not tested one by one: the buffer
 * remembers them.
 */
#include "server/kvevents.h"

#include <errno.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#include <jansson.h>
#include <msgpack/pack.h>

#include "common/buf.h"
#include "common/err.h"

#define FLAG "kv-events-config"

/* vLLM's keys. Memory that a reader can make grow is less than vLLM's: a reader that falls behind
 * asks for a replay. */
static const struct key {
    const char *name;
    json_type type; /* a boolean is JSON_TRUE */
    size_t at;
    uint32_t most;
} keys[] = {
    {"enable_kv_cache_events", JSON_TRUE, 0, 0},
    {"publisher", JSON_STRING, 0, 0},
    {"endpoint", JSON_STRING, offsetof(struct kvevents_config, endpoint), 0},
    {"replay_endpoint", JSON_STRING, offsetof(struct kvevents_config, replay_endpoint), 0},
    {"topic", JSON_STRING, offsetof(struct kvevents_config, topic), 0},
    {"buffer_steps", JSON_INTEGER, offsetof(struct kvevents_config, buffer_steps), 100000},
    {"hwm", JSON_INTEGER, offsetof(struct kvevents_config, hwm), 100000},
    {"max_queue_size", JSON_INTEGER, offsetof(struct kvevents_config, max_queue_size), KVLOG_MOST},
};
#define KEYS (sizeof(keys) / sizeof(keys[0]))

static int take_text(struct kvevents_config *c, const struct key *k, const char *text,
                     struct ek_fault *f)
{
    if (strlen(text) >= KVEVENTS_TEXT)
        return ek_fault_set(f, FLAG, "--" FLAG ": %s has more than %u bytes", k->name,
                            KVEVENTS_TEXT - 1);
    memcpy((char *)c + k->at, text, strlen(text) + 1);
    return 0;
}

static int take_number(struct kvevents_config *c, const struct key *k, json_int_t v,
                       struct ek_fault *f)
{
    if (v < 1 || v > (json_int_t)k->most)
        return ek_fault_set(f, FLAG, "--" FLAG ": %s must be from 1 to %u", k->name, k->most);
    uint32_t n = (uint32_t)v;
    memcpy((char *)c + k->at, &n, sizeof(n));
    return 0;
}

static int take_key(struct kvevents_config *c, const char *name, const json_t *v,
                    struct ek_fault *f)
{
    const struct key *k = NULL;

    for (size_t i = 0; i < KEYS && !k; i++)
        k = strcmp(keys[i].name, name) == 0 ? &keys[i] : NULL;
    if (!k)
        return ek_fault_set(f, FLAG,
                            "--" FLAG ": there is no '%.60s'; known are enable_kv_cache_events, "
                            "publisher, endpoint, replay_endpoint, topic, buffer_steps, hwm and "
                            "max_queue_size",
                            name);
    if (json_is_null(v))
        return 0;
    json_type type = json_is_boolean(v) ? JSON_TRUE : json_typeof(v);
    if (type != k->type)
        return ek_fault_set(f, FLAG, "--" FLAG ": %s must be %s", k->name,
                            k->type == JSON_TRUE     ? "true or false"
                            : k->type == JSON_STRING ? "a string"
                                                     : "a whole number");
    if (strcmp(name, "publisher") == 0) {
        const char *p = json_string_value(v);
        if (strcmp(p, "zmq") != 0 && strcmp(p, "null") != 0)
            return ek_fault_set(f, FLAG, "--" FLAG ": publisher must be zmq or null, not '%.40s'",
                                p);
        return 0;
    }
    if (type == JSON_TRUE)
        return 0;
    return type == JSON_STRING ? take_text(c, k, json_string_value(v), f)
                               : take_number(c, k, json_integer_value(v), f);
}

/* What ZeroMQ would take without a word: a port above 65535 is another port there. */
static int check_endpoint(const char *name, const char *at, struct ek_fault *f)
{
    const char *port = strrchr(at, ':');

    if (!strstr(at, "://"))
        return ek_fault_set(f, FLAG,
                            "--" FLAG ": %s '%.80s' names no transport; write tcp://*:5557 or "
                            "ipc://PATH",
                            name, at);
    if (strncmp(at, "tcp://", 6) != 0)
        return 0;
    char *end = NULL;
    unsigned long n = strtoul(port + 1, &end, 10);
    if (port[1] < '0' || port[1] > '9' || *end || n < 1 || n > 65535)
        return ek_fault_set(f, FLAG,
                            "--" FLAG ": %s '%.80s' must end in a port from 1 to 65535, as in "
                            "tcp://*:5557",
                            name, at);
    return 0;
}

int kvevents_config_parse(const char *json, struct kvevents_config *ret_config,
                          struct ek_fault *fault)
{
    struct kvevents_config c = {
        .endpoint = "tcp://*:5557", .buffer_steps = 10000, .hwm = 1000, .max_queue_size = 16384};
    json_error_t e;
    const char *name;
    json_t *v;

    if (!json) {
        *ret_config = c;
        return 0;
    }
    json_t *all = json_loads(json, JSON_REJECT_DUPLICATES, &e);
    int r = 0;
    if (!all && json_error_code(&e) == json_error_out_of_memory)
        return -ENOMEM;
    if (!json_is_object(all))
        r = ek_fault_set(fault, FLAG, "--" FLAG ": '%.80s' is no JSON object%s%.120s", json,
                         all ? "" : ": ", all ? "" : e.text);
    if (r == 0) {
        json_object_foreach(all, name, v)
        {
            r = take_key(&c, name, v, fault);
            if (r < 0)
                break;
        }
        c.on = json_is_true(json_object_get(all, "enable_kv_cache_events"));
        const char *p = json_string_value(json_object_get(all, "publisher"));
        c.on = c.on && !(p && strcmp(p, "null") == 0);
    }
    json_decref(all);
    if (r == 0)
        r = check_endpoint("endpoint", c.endpoint, fault);
    if (r == 0 && c.replay_endpoint[0])
        r = check_endpoint("replay_endpoint", c.replay_endpoint, fault);
    if (r == 0)
        *ret_config = c;
    return r;
}

static int kvevents_append(void *out, const char *bytes, size_t len)
{
    return ek_buf_add(out, bytes, len);
}

static void text(msgpack_packer *p, const char *s)
{
    (void)msgpack_pack_str(p, strlen(s)); /* what fails shows in the buffer */
    (void)msgpack_pack_str_body(p, s, strlen(s));
}

static void pair(msgpack_packer *p, const char *key, const char *value)
{
    text(p, key);
    if (value)
        text(p, value);
    else
        (void)msgpack_pack_nil(p);
}

static const char *medium(enum kv_tier t)
{
    return t == KV_DEVICE ? "GPU" : "CPU"; /* vLLM's words, whatever the device is */
}

/* Whether the record goes on what the one before it began. */
static bool joins(const struct kv_record *a, const struct kv_record *b)
{
    if (a->what != b->what || a->what == KV_CLEARED || a->tier != b->tier)
        return false;
    return a->what == KV_REMOVED || (b->parent.lo == a->name.lo && b->parent.hi == a->name.hi);
}

static uint32_t run_of(const struct kvlog *l, uint64_t from, uint32_t count)
{
    uint32_t n = 1;

    while (n < count && joins(kvlog_at(l, from + n - 1), kvlog_at(l, from + n)))
        n++;
    return n;
}

static void hashes(msgpack_packer *p, const struct kvlog *l, uint64_t from, uint32_t n)
{
    text(p, "block_hashes");
    (void)msgpack_pack_array(p, n);
    for (uint32_t i = 0; i < n; i++)
        (void)msgpack_pack_uint64(p, kvlog_at(l, from + i)->name.lo);
}

static void kvevents_stored(msgpack_packer *p, const struct kvlog *l, uint64_t from, uint32_t n)
{
    const struct kv_record *first = kvlog_at(l, from);

    (void)msgpack_pack_map(p, 9);
    pair(p, "type", "BlockStored");
    hashes(p, l, from, n);
    text(p, "parent_block_hash");
    if (first->parent.lo == 0 && first->parent.hi == 0)
        (void)msgpack_pack_nil(p);
    else
        (void)msgpack_pack_uint64(p, first->parent.lo);
    text(p, "token_ids");
    (void)msgpack_pack_array(p, (size_t)n * l->block_size);
    for (uint32_t i = 0; i < n; i++)
        for (uint32_t t = 0; t < l->block_size; t++)
            (void)msgpack_pack_int32(p, kvlog_tokens(l, from + i)[t]);
    text(p, "block_size");
    (void)msgpack_pack_uint32(p, l->block_size);
    pair(p, "lora_id", NULL);
    pair(p, "medium", medium(first->tier));
    pair(p, "lora_name", NULL);
    text(p, "group_idx");
    (void)msgpack_pack_uint32(p, 0);
}

static void removed(msgpack_packer *p, const struct kvlog *l, uint64_t from, uint32_t n)
{
    (void)msgpack_pack_map(p, 4);
    pair(p, "type", "BlockRemoved");
    hashes(p, l, from, n);
    pair(p, "medium", medium(kvlog_at(l, from)->tier));
    text(p, "group_idx");
    (void)msgpack_pack_uint32(p, 0);
}

static void event(msgpack_packer *p, const struct kvlog *l, uint64_t from, uint32_t n)
{
    switch (kvlog_at(l, from)->what) {
    case KV_STORED: kvevents_stored(p, l, from, n); break;
    case KV_REMOVED: removed(p, l, from, n); break;
    case KV_CLEARED:
        (void)msgpack_pack_map(p, 1);
        pair(p, "type", "AllBlocksCleared");
        break;
    }
}

int kvevents_encode(const struct kvlog *l, uint64_t from, uint32_t count, double seconds,
                    struct ek_buf *out)
{
    msgpack_packer p;
    uint32_t events = 0;

    for (uint32_t i = 0; i < count; i += run_of(l, from + i, count - i))
        events++;
    msgpack_packer_init(&p, out, kvevents_append);
    (void)msgpack_pack_array(&p, 3);
    (void)msgpack_pack_double(&p, seconds);
    (void)msgpack_pack_array(&p, events);
    for (uint32_t i = 0, n; i < count; i += n) {
        n = run_of(l, from + i, count - i);
        event(&p, l, from + i, n);
    }
    (void)msgpack_pack_uint32(&p, 0); /* the data-parallel rank */
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
