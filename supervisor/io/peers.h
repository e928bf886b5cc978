/*
 * The lease of planned restarts among evenkeelds of several machines: Lamport's bakery, by reading.
 * Each shows on its status page's address whether it is choosing, and its ticket; one that wants to
 * restart shows that it chooses, reads all others, takes a ticket above theirs, and has the lease
 * when none chooses and none has a lower one. Nothing is written to a peer, so none has to be
 * trusted with more than reading.
 *
 * All peers must answer and be ready, and must bear the load: a machine that cannot be seen may be
 * the one that restarts. No majority, no clock, no time to live: one that dies with a ticket is not
 * seen, and no server restarts by plan until it is back, without one.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <systemd/sd-event.h>

#define PEERS_MOST  64
#define PEERS_USAGE 0.85 /* KV usage of the others if this machine's load came to them */

struct client;
struct ek_buf;
struct restart_peers;

/* What one shows, as JSON at /api/v1/lease. */
struct peers_card {
    uint64_t id; /* of the running evenkeeld, random: breaks ties */
    bool choosing, ready;
    uint64_t ticket; /* 0 = none */
    double usage;    /* mean KV usage of its servers */
};

/* urls: http://ADDRESS:PORT each, copied. */
int peers_new(sd_event *event, struct client *client, char *const *urls, size_t count,
              struct restart_peers **ret_peers);
void peers_free(struct restart_peers *p);

/*
 * Asks for the lease or goes on asking; call it again until it is there: within 30 s, else the
 * ticket is given back. 0: it is held. -EINPROGRESS: nothing to say yet. -EAGAIN: why says who is
 * in the way.
 */
int peers_take(struct restart_peers *p, double usage, char *why, size_t size);
void peers_release(struct restart_peers *p);
/* Ours, without ready and usage. */
struct peers_card peers_own(const struct restart_peers *p);

int peers_card_json(const struct peers_card *c, struct ek_buf *out);
/* 0 or -EBADMSG. */
int peers_card_parse(const char *json, size_t len, struct peers_card *ret_card);
/* Whether `own`, which has a ticket, goes before `other`. */
bool peers_is_before(const struct peers_card *own, const struct peers_card *other);
