/*
 * How nodes meet. The others call node 0, one connection for control and one for data each; on each
 * the first frame is a card, which node 0 holds against its own. A node that does not fit is told
 * why and ends; node 0 goes on waiting for one that does, so that a mistake on one machine is
 * mended there alone. Who comes late, or was there and left, is said every ten seconds.
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
#include "kernels/cluster_state.h"

#define HELLO_US   (5 * EK_US_PER_S)  /* a caller has said who it is by then */
#define ANSWER_US  (60 * EK_US_PER_S) /* node 0 may have others before us */
#define CONNECT_US (2 * EK_US_PER_S)
#define AGAIN_US   300000u
#define SAY_US     (10 * EK_US_PER_S)
#define BACKLOG    64
#define LOOK_MS    500

struct waiting {
    struct ek_cluster *c;
    int listener;
    uint64_t begin_us, said_us;
    char refused[400]; /* the last one */
};

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

    if (data && (f->run != c->run || p->control.fd < 0))
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

static int welcome(struct ek_cluster *c, struct ek_link *l, const struct ek_node_card *card)
{
    struct ek_welcome w = {.run = c->run, .stall_us = c->stall_us};
    struct peer *p = &c->peer[card->node - 1];
    struct ek_link *to = card->role == EK_ROLE_DATA ? &p->data : &p->control;
    char name[96], text[192];

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
    p->card = *card;
    if (card->role == EK_ROLE_DATA) {
        (void)snprintf(text, sizeof(text), "%s has come: %s", name, card->device);
        c->p.say(c->p.ctx, false, text);
    }
    return 0;
}

/* One caller: taken, refused, or not of our kind. */
static void answer(struct waiting *w, int fd)
{
    struct ek_inbox in = {.most = sizeof(struct ek_node_card)}; /* who it is is not known yet */
    struct ek_fault fault = {.msg = ""};
    struct ek_frame f;
    struct ek_link l;
    char peer[96];

    ek_link_address(fd, peer, sizeof(peer));
    ek_link_init(&l, fd, peer);
    int r = ek_link_recv(&l, &in, &f, HELLO_US, &fault);
    const struct ek_node_card *card = in.data;
    if (r == 0 && f.kind != EK_FRAME_HELLO)
        r = ek_fault_set(&fault, "master-port", "%s did not begin with who it is", peer);
    if (r == 0)
        r = ek_card_check(&w->c->p.card, card, &fault);
    if (r == 0)
        r = check_place(w->c, &f, card, &fault);
    if (r == 0)
        r = welcome(w->c, &l, card);
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
        return 0;
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

/* One connection: 0, -EBADMSG when node 0 refused us, else it is to be tried again. */
static int call(struct ek_cluster *c, enum ek_link_role role, struct ek_link *l,
                struct ek_fault *fault)
{
    struct ek_node_card card = c->p.card;
    struct ek_inbox in = {0};
    struct ek_frame f;
    char peer[96];

    int fd = ek_link_connect(c->p.addr, c->p.port, CONNECT_US);
    if (fd < 0)
        return fd == -EBADMSG ? -EIO : fd;
    card.role = (uint32_t)role;
    (void)snprintf(peer, sizeof(peer), "node 0 (%.60s:%u)", c->p.addr, c->p.port);
    ek_link_init(l, fd, peer);
    l->run = role == EK_ROLE_DATA ? c->run : 0;
    int r = ek_link_send(l, EK_FRAME_HELLO, &card, sizeof(card), ANSWER_US);
    l->run = 0;
    if (r == 0)
        r = ek_link_recv(l, &in, &f, ANSWER_US, fault);
    if (r == 0 && f.kind == EK_FRAME_REFUSE)
        r = refused(in.data, fault);
    else if (r == 0 && f.kind != EK_FRAME_WELCOME)
        r = ek_fault_set(fault, "master-port", "%s did not answer as node 0 does", peer);
    if (r == 0) {
        const struct ek_welcome *w = in.data;
        c->run = l->run = w->run;
        c->stall_us = w->stall_us;
        (void)snprintf(c->peer[0].card.host, sizeof(c->peer[0].card.host), "%s", w->host);
        cluster_name(&c->peer[0].card, l->peer, sizeof(l->peer));
    } else {
        ek_link_done(l);
    }
    ek_inbox_done(&in);
    return r;
}

static int join(struct ek_cluster *c, struct ek_fault *fault)
{
    struct waiting w = {.c = c, .begin_us = ek_now_us()};
    struct peer *p = &c->peer[0];
    int r = -EAGAIN;

    while (r != 0 && r != -EBADMSG && !too_late(&w)) {
        say_waiting(&w, "node 0");
        r = call(c, EK_ROLE_CONTROL, &p->control, fault);
        if (r == 0) {
            r = call(c, EK_ROLE_DATA, &p->data, fault);
            if (r < 0)
                ek_link_done(&p->control);
        }
        if (r < 0 && r != -EBADMSG)
            (void)usleep(AGAIN_US);
    }
    if (r == 0 || r == -EBADMSG)
        return r;
    ek_fault_write(fault, "master-addr",
                   "Node 0 was not to be had at %s:%u within %.0f s (%s): start it with "
                   "--node-rank 0 and the same --master-addr and --master-port, and look at "
                   "firewalls between the machines",
                   c->p.addr, c->p.port, (double)c->p.wait_us / 1e6, ek_strerror(r));
    return EK_ECOMM;
}

int muster(struct ek_cluster *c, struct ek_fault *fault)
{
    return c->p.node == 0 ? gather(c, fault) : join(c, fault);
}
