/*
 * How nodes meet. The others call node 0, one connection for control and one for data each; on each
 * the first frame is a card, which node 0 holds against its own. A node that does not fit is told
 * why and ends; node 0 goes on waiting for one that does, so that a mistake on one machine is
 * mended there alone. Who comes late, or was there and left, is said every ten seconds.
 *
 * Of more than two nodes, the others listen too, each on the address by which it reaches node 0 and
 * a port that the system chooses, until they have met: node 0 tells all where the others are, and
 * each calls those below it.
 *
 * Owner: the caller of ek_cluster_new(). Nothing else has the connections yet.
 */
#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/clock.h"
#include "common/err.h"
#include "common/fdpass.h"
#include "kernels/nodes/cluster_state.h"
#include "kernels/nodes/proof.h"

#define HELLO_US   (5 * EK_US_PER_S)  /* a caller has said who it is by then */
#define ANSWER_US  (60 * EK_US_PER_S) /* node 0 may have others before us */
#define CONNECT_US (2 * EK_US_PER_S)
#define AGAIN_US   300000u
#define SAY_US     (10 * EK_US_PER_S)
#define BACKLOG    64
#define LOOK_MS    500
#define MEET_US    (30 * EK_US_PER_S) /* all are there: so long they have to reach one another */

struct waiting {
    struct ek_cluster *c;
    int listener;
    uint64_t begin_us, said_us;
    char refused[400]; /* the last one */
};

static struct ek_secret secret_of(const struct ek_cluster *c)
{
    return (struct ek_secret){c->p.key, c->p.key_bytes};
}

/* ---- node 0 ---- */

static struct peer *missing(struct ek_cluster *c)
{
    for (uint32_t i = 0; i < c->peers; i++)
        if (c->peer[i].control.fd < 0 || c->peer[i].data.fd < 0)
            return &c->peer[i];
    return NULL;
}

static void say_waiting(struct waiting *w, const char *for_whom)
{
    const struct ek_cluster_params *p = &w->c->p;
    uint64_t now = ek_now_us();
    char text[256];

    if (now < w->said_us + SAY_US)
        return;
    w->said_us = now;
    int n = snprintf(text, sizeof(text), "Waiting for %s at %.120s:%u: %.0f", for_whom, p->addr,
                     p->port, (double)(now - w->begin_us) / 1e6);
    if (p->wait_us > 0)
        n += snprintf(text + n, sizeof(text) - (size_t)n, " of %.0f", (double)p->wait_us / 1e6);
    (void)snprintf(text + n, sizeof(text) - (size_t)n, " s");
    p->say(p->ctx, false, text);
}

static bool too_late(const struct waiting *w)
{
    return w->c->p.wait_us > 0 && ek_now_us() > w->begin_us + w->c->p.wait_us;
}

static void drop(struct waiting *w, struct peer *p)
{
    char text[160];

    (void)snprintf(text, sizeof(text), "%s left before all had come: waiting for it again",
                   p->control.peer);
    w->c->p.say(w->c->p.ctx, true, text);
    ek_link_done(&p->control);
    ek_link_done(&p->data);
}

static void refuse(struct waiting *w, struct ek_link *l, const struct ek_fault *f)
{
    struct ek_node_fault n = {.code = -EBADMSG};
    char text[640];

    (void)snprintf(n.msg, sizeof(n.msg), "%s", f->msg);
    (void)snprintf(n.field, sizeof(n.field), "%s", f->field);
    (void)ek_link_send(l, EK_FRAME_REFUSE, &n, sizeof(n), HELLO_US); /* it may have gone */
    (void)snprintf(w->refused, sizeof(w->refused), "%.390s", f->msg);
    (void)snprintf(text, sizeof(text), "Refused %s: %s", l->peer, f->msg);
    w->c->p.say(w->c->p.ctx, true, text);
}

/* Whether the place that a card asks for is free. */
static int check_place(struct ek_cluster *c, const struct ek_frame *f,
                       const struct ek_node_card *card, struct ek_fault *fault)
{
    const struct peer *p = &c->peer[card->node - 1];
    const bool data = card->role == EK_ROLE_DATA;

    if (card->role == EK_ROLE_PEER || (data && (f->run != c->run || p->control.fd < 0)))
        return ek_fault_set(fault, "node-rank",
                            "Node %u (%s) belongs to another run of the group: start it again",
                            card->node, card->host);
    if (data ? p->data.fd < 0 : p->control.fd < 0)
        return 0;
    return ek_fault_set(fault, "node-rank",
                        "Node %u is there already (%s), and %s calls itself node %u as well: give "
                        "each node a --node-rank of its own",
                        card->node, p->card.host, card->host, card->node);
}

/* The caller's connection is that of its node from now on. */
static int welcome_to(struct ek_cluster *c, struct ek_link *l, const struct ek_node_card *card,
                      struct ek_link *to)
{
    struct ek_welcome w = {.run = c->run, .stall_us = c->stall_us};
    char name[96];

    (void)snprintf(w.host, sizeof(w.host), "%s", c->p.card.host);
    int r = ek_link_send(l, EK_FRAME_WELCOME, &w, sizeof(w), HELLO_US);
    if (r < 0)
        return r;
    cluster_name(card, name, sizeof(name));
    int fd = l->fd;
    l->fd = -1;
    pthread_mutex_destroy(&l->lock);
    ek_link_init(to, fd, name);
    to->run = c->run;
    return 0;
}

static int welcome(struct ek_cluster *c, struct ek_link *l, const struct ek_node_card *card)
{
    struct peer *p = &c->peer[card->node - 1];
    char text[192];

    int r = welcome_to(c, l, card, card->role == EK_ROLE_DATA ? &p->data : &p->control);
    if (r < 0)
        return r;
    p->card = *card;
    if (card->role == EK_ROLE_DATA) {
        (void)snprintf(text, sizeof(text), "%s has come: %s", p->data.peer, card->device);
        c->p.say(c->p.ctx, false, text);
    }
    return 0;
}

/* Whether the place that a card asks for is this node's to give. */
static int check_peer(struct ek_cluster *c, const struct ek_frame *f,
                      const struct ek_node_card *card, struct ek_fault *fault)
{
    if (card->role == EK_ROLE_PEER && f->run == c->run && card->node > c->p.node &&
        c->mesh[card->node].fd < 0)
        return 0;
    return ek_fault_set(
        fault, "node-rank",
        "Node %u (%s) called node %u, which waits for other nodes of its run: start "
        "it again",
        card->node, card->host, c->p.node);
}

/* One caller: taken, refused, or not of our kind. */
static void answer(struct waiting *w, int fd)
{
    struct ek_inbox in = {.most = sizeof(struct ek_node_card)}; /* who it is is not known yet */
    struct ek_cluster *c = w->c;
    const struct ek_secret secret = secret_of(c);
    struct ek_fault fault = {.msg = ""};
    struct ek_frame f;
    struct ek_link l;
    char peer[96];

    ek_link_address(fd, peer, sizeof(peer));
    ek_link_init(&l, fd, peer);
    l.until_us = ek_now_us() + HELLO_US;
    int r = ek_proof_answer(&l, &secret, &in, &f, HELLO_US, &fault);
    l.until_us = 0;
    const struct ek_node_card *card = in.data;
    if (r == 0)
        r = ek_card_check(&c->p.card, card, &fault);
    if (r == 0)
        r = c->p.node == 0 ? check_place(c, &f, card, &fault) : check_peer(c, &f, card, &fault);
    if (r == 0)
        r = c->p.node == 0 ? welcome(c, &l, card) : welcome_to(c, &l, card, &c->mesh[card->node]);
    else if (r == -EBADMSG)
        refuse(w, &l, &fault);
    ek_inbox_done(&in);
    ek_link_done(&l);
}

/* Waits a moment for callers, and for those who leave. */
static void look(struct waiting *w)
{
    struct ek_cluster *c = w->c;
    struct pollfd p[1 + EK_NODES_MOST] = {{.fd = w->listener, .events = POLLIN}};

    for (uint32_t i = 0; i < c->peers; i++)
        p[1 + i] = (struct pollfd){.fd = c->peer[i].control.fd, .events = POLLIN};
    (void)poll(p, 1 + c->peers, LOOK_MS);
    for (uint32_t i = 0; i < c->peers; i++)
        if (p[1 + i].revents) /* it has nothing to say yet */
            drop(w, &c->peer[i]);
    if (!p[0].revents)
        return;
    int fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
    if (fd >= 0)
        answer(w, fd);
}

/* Tells the others where all are, and waits until they have met. */
static int introduce(struct ek_cluster *c, struct ek_fault *fault)
{
    struct ek_peer_list list = {.count = c->peers};
    struct ek_inbox in = {.most = sizeof(struct ek_node_fault)};
    struct ek_frame f;
    int r = 0;

    for (uint32_t i = 0; i < c->peers; i++) {
        const struct ek_node_card *card = &c->peer[i].card;
        struct ek_peer_at *at = &list.at[i];
        at->node = card->node;
        at->port = card->port;
        (void)snprintf(at->host, sizeof(at->host), "%s", card->host);
        ek_link_host(c->peer[i].control.fd, at->addr, sizeof(at->addr));
    }
    for (uint32_t i = 0; r == 0 && i < c->peers; i++)
        r = ek_link_send(&c->peer[i].control, EK_FRAME_PEERS, &list, sizeof(list), HELLO_US);
    for (uint32_t i = 0; r == 0 && i < c->peers; i++) {
        struct ek_link *l = &c->peer[i].control;
        r = ek_link_recv(l, &in, &f, 2 * MEET_US, fault);
        const struct ek_node_fault *n = in.data;
        if (r == 0 && (f.kind == EK_FRAME_REPLY || f.kind == EK_FRAME_FAIL) && n->code < 0) {
            ek_fault_write(fault, n->field, "%s: %.380s", l->peer, n->msg);
            r = EK_ECOMM;
        } else if (r < 0 && r != -EBADMSG) {
            ek_fault_write(fault, "nnodes", "%s ended while the nodes met: its log says why",
                           l->peer);
            r = EK_ECOMM;
        }
    }
    ek_inbox_done(&in);
    return r;
}

static int gather(struct ek_cluster *c, struct ek_fault *fault)
{
    struct waiting w = {.c = c, .begin_us = ek_now_us()};
    const struct peer *p;
    char whom[32];

    if (getrandom(&c->run, sizeof(c->run), 0) != (ssize_t)sizeof(c->run))
        return -EIO;
    c->run |= 1; /* never 0 */
    w.listener = ek_listen_tcp(c->p.addr, c->p.port, BACKLOG, NULL);
    if (w.listener < 0)
        return ek_fault_set(fault, "master-addr",
                            "--master-addr %s, --master-port %u: node 0 cannot listen there: %s; "
                            "give an address of this machine that the other nodes reach, and a "
                            "port that is free",
                            c->p.addr, c->p.port, ek_strerror(w.listener));
    while ((p = missing(c)) && !too_late(&w)) {
        (void)snprintf(whom, sizeof(whom), "node %u of %u", p->node, c->p.nodes);
        say_waiting(&w, whom);
        look(&w);
    }
    (void)close(w.listener);
    if (!p)
        return c->p.nodes > 2 ? introduce(c, fault) : 0;
    ek_fault_write(fault, "nnodes",
                   "Node %u of %u did not come to %s:%u within %.0f s: start it with --node-rank "
                   "%u%s%s",
                   p->node, c->p.nodes, c->p.addr, c->p.port, (double)c->p.wait_us / 1e6, p->node,
                   w.refused[0] ? "; the last one that was refused: " : "", w.refused);
    return EK_ECOMM;
}

/* ---- the others ---- */

static int refused(const struct ek_node_fault *n, struct ek_fault *fault)
{
    return ek_fault_set(fault, n->field, "%.470s", n->msg);
}

/* Says who we are on a fresh connection. 0, -EBADMSG when the other side refused us. */
static int greet(struct ek_cluster *c, enum ek_link_role role, struct ek_link *l,
                 struct ek_welcome *ret_welcome, struct ek_fault *fault)
{
    const struct ek_secret secret = secret_of(c);
    struct ek_node_card card = c->p.card;
    struct ek_inbox in = {0};
    struct ek_frame f = {0};

    card.role = (uint32_t)role;
    l->run = 0;
    int r = ek_proof_call(l, &secret, ANSWER_US, fault);
    l->run = role == EK_ROLE_CONTROL ? 0 : c->run;
    if (r == 0)
        r = ek_link_send(l, EK_FRAME_HELLO, &card, sizeof(card), ANSWER_US);
    l->run = 0;
    if (r == 0)
        r = ek_link_recv(l, &in, &f, ANSWER_US, fault);
    if (r == 0 && f.kind == EK_FRAME_REFUSE)
        r = refused(in.data, fault);
    else if (r == 0 && f.kind != EK_FRAME_WELCOME)
        r = ek_fault_set(fault, "master-port", "%s did not answer as a node does", l->peer);
    if (r == 0) {
        *ret_welcome = *(const struct ek_welcome *)in.data;
        l->run = ret_welcome->run;
    }
    ek_inbox_done(&in);
    return r;
}

/* The others of more than two listen on the address that node 0 sees them at. */
static int listen_too(struct waiting *w, int fd, struct ek_fault *fault)
{
    char host[64];
    unsigned port = 0;

    if (w->c->p.nodes == 2 || w->listener >= 0)
        return 0;
    ek_link_own_host(fd, host, sizeof(host));
    w->listener = ek_listen_tcp(host, 0, BACKLOG, &port);
    if (w->listener < 0)
        return ek_fault_set(fault, "master-addr",
                            "This node cannot listen at %s, by which it reaches node 0: %s", host,
                            ek_strerror(w->listener));
    w->c->p.card.port = port;
    return 0;
}

/* One connection: 0, -EBADMSG when node 0 refused us, else it is to be tried again. */
static int call(struct waiting *w, enum ek_link_role role, struct ek_link *l,
                struct ek_fault *fault)
{
    struct ek_cluster *c = w->c;
    struct ek_welcome welcome;
    char peer[96];

    int fd = ek_link_connect(c->p.addr, c->p.port, CONNECT_US);
    if (fd < 0)
        return fd == -EBADMSG ? -EIO : fd;
    (void)snprintf(peer, sizeof(peer), "node 0 (%.60s:%u)", c->p.addr, c->p.port);
    ek_link_init(l, fd, peer);
    int r = listen_too(w, fd, fault);
    if (r == 0)
        r = greet(c, role, l, &welcome, fault);
    if (r == 0) {
        c->run = welcome.run;
        c->stall_us = welcome.stall_us;
        (void)snprintf(c->peer[0].card.host, sizeof(c->peer[0].card.host), "%s", welcome.host);
        cluster_name(&c->peer[0].card, l->peer, sizeof(l->peer));
    } else {
        ek_link_done(l);
    }
    return r;
}

static int call_both(struct waiting *w, struct ek_fault *fault)
{
    struct peer *p = &w->c->peer[0];

    int r = call(w, EK_ROLE_CONTROL, &p->control, fault);
    if (r < 0)
        return r;
    r = call(w, EK_ROLE_DATA, &p->data, fault);
    if (r < 0)
        ek_link_done(&p->control);
    return r;
}

/* Node 0 says where all are when the last one has come. */
static int hear_peers(struct waiting *w, struct ek_peer_list *ret_list, struct ek_fault *fault)
{
    struct ek_link *l = &w->c->peer[0].control;
    struct pollfd p = {.fd = l->fd, .events = POLLIN};
    struct ek_inbox in = {.most = sizeof(*ret_list)};
    struct ek_frame f;
    int r;

    while (poll(&p, 1, LOOK_MS) == 0) {
        say_waiting(w, "the other nodes");
        if (!too_late(w))
            continue;
        ek_fault_write(fault, "nnodes", "Not all of the %u nodes have come to %s:%u within %.0f s",
                       w->c->p.nodes, w->c->p.addr, w->c->p.port, (double)w->c->p.wait_us / 1e6);
        return EK_ECOMM;
    }
    r = ek_link_recv(l, &in, &f, ANSWER_US, fault);
    if (r == 0 && f.kind != EK_FRAME_PEERS)
        r = ek_fault_set(fault, "master-port", "%s did not say who the others are", l->peer);
    if (r == 0)
        *ret_list = *(const struct ek_peer_list *)in.data;
    else if (r != -EBADMSG)
        ek_fault_write(fault, "nnodes",
                       "%s ended without a word before all nodes had come: its log or journal says "
                       "why",
                       l->peer);
    ek_inbox_done(&in);
    return r < 0 && r != -EBADMSG ? EK_ECOMM : r;
}

static int call_peer(struct ek_cluster *c, const struct ek_peer_at *at, uint64_t late_us,
                     struct ek_fault *fault)
{
    const struct ek_node_card card = {.node = at->node};
    struct ek_link *l = &c->mesh[at->node];
    struct ek_welcome welcome;
    char peer[96];
    int fd;

    while ((fd = ek_link_connect(at->addr, (uint16_t)at->port, CONNECT_US)) < 0 &&
           ek_now_us() < late_us)
        (void)usleep(AGAIN_US);
    (void)snprintf(peer, sizeof(peer), "node %u (%.60s)", card.node, at->host);
    if (fd >= 0) {
        ek_link_init(l, fd, peer);
        int r = greet(c, EK_ROLE_PEER, l, &welcome, fault);
        if (r == 0 && welcome.run == c->run)
            return 0;
        ek_link_done(l);
        if (r == -EBADMSG)
            return r;
    }
    ek_fault_write(fault, "nnodes",
                   "Node %u cannot reach %s at %.60s:%u: look at firewalls between the machines",
                   c->p.node, peer, at->addr, at->port);
    return EK_ECOMM;
}

/* The first node above this one that has not called. */
static uint32_t uncalled(const struct ek_cluster *c)
{
    uint32_t node = c->p.node + 1;

    while (node < c->p.nodes && c->mesh[node].fd >= 0)
        node++;
    return node;
}

static int await_calls(struct waiting *w, uint64_t late_us, struct ek_fault *fault)
{
    struct ek_cluster *c = w->c;
    struct pollfd p[2] = {{.fd = w->listener, .events = POLLIN},
                          {.fd = c->peer[0].control.fd, .events = POLLIN}};

    while (uncalled(c) < c->p.nodes) {
        (void)poll(p, 2, LOOK_MS);
        if (p[1].revents || ek_now_us() > late_us) {
            ek_fault_write(fault, "nnodes",
                           "Node %u did not call node %u%s: look at its log, and at firewalls "
                           "between the machines",
                           uncalled(c), c->p.node, p[1].revents ? " before node 0 ended" : "");
            return EK_ECOMM;
        }
        if (!p[0].revents)
            continue;
        int fd = accept4(w->listener, NULL, NULL, SOCK_CLOEXEC | SOCK_NONBLOCK);
        if (fd >= 0)
            answer(w, fd);
    }
    return 0;
}

/* Of more than two nodes: one connection to each of the others. */
static int meet_others(struct waiting *w, struct ek_fault *fault)
{
    struct ek_cluster *c = w->c;
    struct ek_node_fault n = {.code = 0};
    struct ek_peer_list list;

    int r = hear_peers(w, &list, fault);
    if (r < 0)
        return r;
    const uint64_t late_us = ek_now_us() + MEET_US;
    for (uint32_t i = 0; r == 0 && i < list.count; i++)
        if (list.at[i].node > 0 && list.at[i].node < c->p.node)
            r = call_peer(c, &list.at[i], late_us, fault);
    if (r == 0)
        r = await_calls(w, late_us, fault);
    n.code = r;
    (void)snprintf(n.msg, sizeof(n.msg), "%s", r < 0 ? fault->msg : "");
    int s = ek_link_send(&c->peer[0].control, EK_FRAME_REPLY, &n, sizeof(n), HELLO_US);
    return r < 0 ? r : s < 0 ? EK_ECOMM : 0;
}

static int join(struct ek_cluster *c, struct ek_fault *fault)
{
    struct waiting w = {.c = c, .listener = -1, .begin_us = ek_now_us()};
    int r = -EAGAIN;

    while (r != 0 && r != -EBADMSG && !too_late(&w)) {
        say_waiting(&w, "node 0");
        r = call_both(&w, fault);
        if (r < 0 && r != -EBADMSG)
            (void)usleep(AGAIN_US);
    }
    if (r == 0 && c->p.nodes > 2) {
        r = meet_others(&w, fault);
    } else if (r < 0 && r != -EBADMSG) {
        ek_fault_write(fault, "master-addr",
                       "Node 0 was not to be had at %s:%u within %.0f s (%s): start it with "
                       "--node-rank 0 and the same --master-addr and --master-port, and look at "
                       "firewalls between the machines",
                       c->p.addr, c->p.port, (double)c->p.wait_us / 1e6, ek_strerror(r));
        r = EK_ECOMM;
    }
    if (w.listener >= 0)
        (void)close(w.listener);
    return r;
}

int muster(struct ek_cluster *c, struct ek_fault *fault)
{
    return c->p.node == 0 ? gather(c, fault) : join(c, fault);
}
