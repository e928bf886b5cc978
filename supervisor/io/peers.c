/*
 * The restart lease among machines; servers/upkeep.c takes and releases it. A round asks all peers
 * for their card at once; round_end() goes on when the last has answered. Rounds repeat: one shows
 * that we choose, the next takes a ticket, and all later ones look whether it is our turn. Anything
 * unfit on the way (a peer that is silent or not ready, too high a load) gives the ticket back with
 * the reason.
 */
#include "supervisor/io/peers.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/path.h"
#include "supervisor/io/client.h"

#define CALL_MS  2000u
#define AGAIN_US 1000000u
#define WANT_US  30000000u
#define BYTES    4096u
#define TICKETS  1000000000000ull /* far above any; more is nonsense */

enum stage { IDLE, CHOOSING, WAITING, HELD };

struct peer {
    struct restart_peers *all;
    char url[160];
    struct client_call *call;
    struct peers_card card;
    bool answered; /* in this round */
};

struct restart_peers {
    struct client *client;
    sd_event_source *timer; /* the next round */
    enum stage stage;
    uint64_t id, ticket, wanted_us;
    double usage;
    char why[160]; /* which was in the way, "" = none known */
    uint32_t count, open;
    struct peer at[];
};

static void round_begin(struct restart_peers *p);

static void peers_stop(struct restart_peers *p)
{
    for (uint32_t i = 0; i < p->count; i++) {
        client_cancel(p->at[i].call);
        p->at[i].call = NULL;
    }
    p->open = 0;
    (void)sd_event_source_set_enabled(p->timer, SD_EVENT_OFF); /* our own live timer */
}

static void give_up(struct restart_peers *p)
{
    peers_stop(p);
    p->stage = IDLE;
    p->ticket = 0;
}

static int on_again(sd_event_source *s, uint64_t usec, void *ctx)
{
    struct restart_peers *p = ctx;
    (void)s;
    (void)usec;
    if (p->stage != WAITING)
        return 0;
    if (ek_now_us() - p->wanted_us > WANT_US)
        give_up(p); /* it is not asked for any more */
    else
        round_begin(p);
    return 0;
}

int peers_new(sd_event *event, struct client *client, char *const *urls, size_t count,
              struct restart_peers **ret_peers)
{
    struct restart_peers *p = calloc(1, sizeof(*p) + count * sizeof(p->at[0]));
    if (!p)
        return -ENOMEM;
    p->client = client;
    p->count = (uint32_t)count;
    if (getrandom(&p->id, sizeof(p->id), 0) != (ssize_t)sizeof(p->id))
        p->id = ek_wall_us(); /* rarely the same on two machines */
    p->id &= INT64_MAX;       /* a number of JSON */
    for (uint32_t i = 0; i < p->count; i++) {
        p->at[i].all = p;
        (void)snprintf(p->at[i].url, sizeof(p->at[i].url), "%.*s/api/v1/lease",
                       (int)ek_path_length(urls[i]), urls[i]);
    }
    int r = sd_event_add_time(event, &p->timer, CLOCK_MONOTONIC, 0, 1000, on_again, p);
    if (r >= 0)
        r = sd_event_source_set_enabled(p->timer, SD_EVENT_OFF);
    if (r < 0) {
        peers_free(p);
        return r;
    }
    *ret_peers = p;
    return 0;
}

void peers_free(struct restart_peers *p)
{
    if (!p)
        return;
    if (p->timer)
        peers_stop(p);
    sd_event_source_disable_unref(p->timer);
    free(p);
}

bool peers_is_before(const struct peers_card *own, const struct peers_card *other)
{
    if (other->choosing)
        return false;
    if (other->ticket == 0 || own->ticket < other->ticket)
        return true;
    return own->ticket == other->ticket && own->id < other->id;
}

/* The peer that keeps us from having a ticket at all; NULL when none does. */
static const struct peer *find_unfit(const struct restart_peers *p, const char **ret_what)
{
    for (uint32_t i = 0; i < p->count; i++) {
        *ret_what = !p->at[i].answered ? "does not answer" : "has a server that is not ready";
        if (!p->at[i].answered || !p->at[i].card.ready)
            return &p->at[i];
    }
    return NULL;
}

static double usage_without_us(const struct restart_peers *p)
{
    double sum = p->usage;
    for (uint32_t i = 0; i < p->count; i++)
        sum += p->at[i].card.usage;
    return sum / p->count;
}

static void peers_choose(struct restart_peers *p)
{
    p->ticket = 0;
    for (uint32_t i = 0; i < p->count; i++) {
        if (p->at[i].card.ticket > p->ticket)
            p->ticket = p->at[i].card.ticket;
    }
    p->ticket++;
    p->stage = WAITING;
    round_begin(p);
}

static void look_for_turn(struct restart_peers *p)
{
    struct peers_card own = peers_own(p);
    for (uint32_t i = 0; i < p->count; i++) {
        if (peers_is_before(&own, &p->at[i].card))
            continue;
        (void)snprintf(p->why, sizeof(p->why), "%.100s is before this one", p->at[i].url);
        (void)sd_event_source_set_time(p->timer, ek_now_us() + AGAIN_US);
        (void)sd_event_source_set_enabled(p->timer, SD_EVENT_ONESHOT);
        return;
    }
    p->why[0] = '\0';
    p->stage = HELD;
}

static void round_end(struct restart_peers *p)
{
    const char *what;
    const struct peer *unfit = find_unfit(p, &what);
    if (unfit) {
        (void)snprintf(p->why, sizeof(p->why), "%.100s %s", unfit->url, what);
        give_up(p);
    } else if (usage_without_us(p) > PEERS_USAGE) {
        (void)snprintf(p->why, sizeof(p->why), "the others would be full to %.2f without it",
                       usage_without_us(p));
        give_up(p);
    } else if (p->stage == CHOOSING) {
        peers_choose(p);
    } else {
        look_for_turn(p);
    }
}

static void on_card(void *ctx, const struct client_result *res)
{
    struct peer *peer = ctx;
    struct restart_peers *p = peer->all;
    peer->call = NULL;
    peer->answered = res->error == 0 && res->status == 200 &&
                     peers_card_parse(res->body, res->len, &peer->card) == 0;
    if (--p->open == 0)
        round_end(p);
}

static void round_begin(struct restart_peers *p)
{
    p->open = 0;
    for (uint32_t i = 0; i < p->count; i++)
        p->at[i].answered = false;
    for (uint32_t i = 0; i < p->count; i++) {
        struct client_req req = {
            .method = "GET", .url = p->at[i].url, .timeout_ms = CALL_MS, .most_bytes = BYTES};
        if (client_start(p->client, &req, on_card, &p->at[i], &p->at[i].call) == 0)
            p->open++;
    }
    if (p->open == 0)
        give_up(p); /* out of memory */
}

int peers_take(struct restart_peers *p, double usage, char *why, size_t size)
{
    p->wanted_us = ek_now_us();
    p->usage = usage;
    if (p->count == 0 || p->stage == HELD)
        return 0;
    bool known = p->why[0] != '\0';
    (void)snprintf(why, size, "%s", p->why);
    if (p->stage == IDLE) {
        p->stage = CHOOSING; /* seen by others from now on, before the first is read */
        round_begin(p);
    }
    return known ? -EAGAIN : -EINPROGRESS;
}

void peers_release(struct restart_peers *p)
{
    give_up(p);
    p->why[0] = '\0';
}

struct peers_card peers_own(const struct restart_peers *p)
{
    return (struct peers_card){
        .id = p->id, .choosing = p->stage == CHOOSING, .ticket = p->ticket, .ready = true};
}

int peers_card_json(const struct peers_card *c, struct ek_buf *out)
{
    return ek_buf_printf(
        out,
        "{\"id\":%" PRIu64 ",\"choosing\":%s,\"ticket\":%" PRIu64 ",\"ready\":%s,\"usage\":%.4f}",
        c->id, c->choosing ? "true" : "false", c->ticket, c->ready ? "true" : "false", c->usage);
}

int peers_card_parse(const char *json, size_t len, struct peers_card *ret_card)
{
    json_t *root = json_loadb(json, len, JSON_REJECT_DUPLICATES, NULL);
    const json_t *id = json_object_get(root, "id"), *ticket = json_object_get(root, "ticket");
    const json_t *choosing = json_object_get(root, "choosing");
    const json_t *ready = json_object_get(root, "ready"), *usage = json_object_get(root, "usage");
    bool good = json_is_integer(id) && json_integer_value(id) >= 0 && json_is_integer(ticket) &&
                json_integer_value(ticket) >= 0 && json_integer_value(ticket) < (int64_t)TICKETS &&
                json_is_boolean(choosing) && json_is_boolean(ready) && json_is_number(usage) &&
                json_number_value(usage) >= 0 && json_number_value(usage) <= 1;
    if (good)
        *ret_card = (struct peers_card){.id = (uint64_t)json_integer_value(id),
                                        .ticket = (uint64_t)json_integer_value(ticket),
                                        .choosing = json_is_true(choosing),
                                        .ready = json_is_true(ready),
                                        .usage = json_number_value(usage)};
    json_decref(root);
    return good ? 0 : -EBADMSG;
}
