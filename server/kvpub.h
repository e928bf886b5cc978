/*
 * The publisher of KV events: a thread that takes records from the engine's ring (kvlog.h), packs
 * them into numbered batches and gives them to ZeroMQ: a PUB socket with three frames (topic,
 * number as 8 bytes big-endian, batch), and a ROUTER socket that answers requests for the batches
 * from a number on. What a reader can make grow is bounded: batches by `hwm` for each reader, what
 * is kept for a replay by `buffer_steps` and KVEVENTS_REPLAY_MOST.
 *
 * The engine never waits for it. Endpoints with `*`, `::`, ipc:// or inproc:// are bound, others
 * connected to, as in vLLM.
 */
#pragma once

#include <stdint.h>

struct ek_fault;
struct kvevents_config;
struct kvlog;
struct kvpub;

/* Takes the log over. 0, -EBADMSG with a fault when an endpoint cannot be used, -ENOMEM. */
int kvpub_new(const struct kvevents_config *c, struct kvlog *log, struct kvpub **ret_pub,
              struct ek_fault *fault);
/* Ends the thread and frees the log; the engine is gone by then. NULL is fine. */
void kvpub_free(struct kvpub *p);
