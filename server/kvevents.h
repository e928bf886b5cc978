/*
 * KV events as vLLM 0.32 publishes them (--kv-events-config): the configuration, and a batch of
 * records as msgpack. A batch is the array [seconds, [event, ...], rank]; an event is a map with
 * "type" BlockStored, BlockRemoved or AllBlocksCleared. A hash is the low half of a block's name.
 * Pure; the sockets are kvpub.c's.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include "server/engine/kvlog.h"

struct ek_buf;
struct ek_fault;

#define KVEVENTS_TEXT        256u
#define KVEVENTS_BATCH       256u        /* records in a batch */
#define KVEVENTS_REPLAY_MOST (64u << 20) /* bytes of batches that are kept for a replay */

struct kvevents_config {
    bool on;
    char endpoint[KVEVENTS_TEXT], replay_endpoint[KVEVENTS_TEXT]; /* "" = no replay */
    char topic[KVEVENTS_TEXT];
    uint32_t buffer_steps, hwm, max_queue_size;
};

/* Reads the JSON of the flag; NULL is off. 0, -EBADMSG with a fault, -ENOMEM. */
int kvevents_config_parse(const char *json, struct kvevents_config *ret_config,
                          struct ek_fault *fault);
/* The records from number `from` on as one batch, at a time since the epoch. 0 or -ENOMEM. */
int kvevents_encode(const struct kvlog *l, uint64_t from, uint32_t count, double seconds,
                    struct ek_buf *out);
