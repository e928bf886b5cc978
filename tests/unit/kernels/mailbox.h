/*
 * Nodes as threads of one process: the table of kernels/mpi/wire.h with messages in memory. A send
 * of up to `eager` bytes is done at once, as MPI does it; a larger one when it is taken, for which
 * its receiver has to ask `late` times in vain. Header only, because a unit test is one source
 * file.
 */
#pragma once

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/mpi/wire.h"

struct mail {
    struct mail *next;
    uint32_t from, to, tag;
    size_t bytes;
    char *data;
    uint32_t asked; /* how often, by its receiver */
    bool done;      /* for its sender */
};

struct mailbox {
    pthread_mutex_t lock;
    struct mail *first, **last, *taken;
    uint32_t nodes, aborted; /* how often */
    size_t eager;
    uint32_t late;
    _Atomic bool gone[64];        /* a node that is not there any more */
    uint64_t messages, bytes;     /* that were sent so far */
    uint32_t begun[64], most[64]; /* of a node: sends that are not taken yet, now and at most */
    uint32_t together;            /* before so many of node 0's none of them is taken */
    struct mail_end {
        struct mailbox *box;
        uint32_t node;
    } end[64]; /* `self` of each node */
};

static int mail_start(void *self, uint32_t *ret_node, uint32_t *ret_nodes, char *ret_why,
                      size_t size)
{
    const struct mail_end *e = self;

    (void)ret_why;
    (void)size;
    *ret_node = e->node;
    *ret_nodes = e->box->nodes;
    return 0;
}

static void mail_copy(struct ek_mpi_message *m, char *flat)
{
    for (uint32_t row = 0; row < m->rows; row++) {
        char *at = (char *)m->data + row * m->stride;
        memcpy(m->out ? flat + row * m->width : at, m->out ? at : flat + row * m->width, m->width);
    }
}

static int mail_begin(void *self, struct ek_mpi_message *m)
{
    const struct mail_end *e = self;
    struct mailbox *b = e->box;

    m->request = m; /* of a receive: anything */
    if (!m->out)
        return 0;
    struct mail *mail = calloc(1, sizeof(*mail));
    *mail = (struct mail){.from = e->node,
                          .to = m->node,
                          .tag = m->tag,
                          .bytes = m->rows * m->width,
                          .data = malloc(m->rows * m->width + 1)};
    mail_copy(m, mail->data);
    mail->done = mail->bytes <= b->eager;
    m->request = mail;
    pthread_mutex_lock(&b->lock);
    const bool gone = b->gone[m->node];
    b->messages++;
    b->bytes += mail->bytes;
    if (++b->begun[e->node] > b->most[e->node])
        b->most[e->node] = b->begun[e->node];
    *b->last = mail;
    b->last = &mail->next;
    pthread_mutex_unlock(&b->lock);
    return gone ? -ECONNRESET : 0;
}

/* The oldest one for a node; with the lock held. */
static struct mail **mail_find(struct mailbox *b, uint32_t to, uint32_t from, uint32_t tag,
                               bool any)
{
    struct mail **at = &b->first;

    for (; *at; at = &(*at)->next)
        if ((*at)->to == to && (from == EK_MPI_ANY || (*at)->from == from) &&
            ((*at)->tag == tag || (any && (*at)->tag >= EK_MPI_ORDER)))
            return at;
    return NULL;
}

static void mail_unlink(struct mailbox *b, struct mail **at)
{
    struct mail *m = *at;

    *at = m->next;
    b->begun[m->from]--;
    if (b->last == &m->next)
        b->last = at;
    m->done = true;
    m->next = b->taken;
    b->taken = m;
    free(m->data);
}

static int mail_test(void *self, struct ek_mpi_message *m)
{
    const struct mail_end *e = self;
    struct mailbox *b = e->box;
    int r = 0;

    pthread_mutex_lock(&b->lock);
    if (m->out) {
        r = ((struct mail *)m->request)->done;
    } else {
        struct mail **at = mail_find(b, e->node, m->node, m->tag, false);
        if (at && (*at)->bytes != m->rows * m->width) {
            r = -EPROTO;
        } else if (at && (*at)->from == 0 && b->most[0] < b->together) {
            r = 0;
        } else if (at && ((*at)->bytes <= b->eager || (*at)->asked++ >= b->late)) {
            mail_copy(m, (*at)->data);
            mail_unlink(b, at);
            r = 1;
        }
    }
    if (r == 0 && b->gone[m->node])
        r = -ECONNRESET;
    pthread_mutex_unlock(&b->lock);
    if (r == 1)
        m->request = NULL;
    return r;
}

static int mail_probe(void *self, uint32_t *node, uint32_t *tag, size_t *ret_bytes)
{
    const struct mail_end *e = self;

    pthread_mutex_lock(&e->box->lock);
    const bool gone = *node != EK_MPI_ANY && e->box->gone[*node];
    struct mail **at = mail_find(e->box, e->node, *node, *tag, *tag >= EK_MPI_ORDER);
    if (at) {
        *node = (*at)->from;
        *tag = (*at)->tag;
        *ret_bytes = (*at)->bytes;
    }
    pthread_mutex_unlock(&e->box->lock);
    return at ? 1 : gone ? -ECONNRESET : 0;
}

static void mail_finish(void *self)
{
    (void)self;
}

static void mail_abort(void *self, int code)
{
    const struct mail_end *e = self;

    (void)code;
    e->box->aborted++;
}

static const struct ek_mpi g_mail = {.abi = EK_MPI_ABI,
                                     .start = mail_start,
                                     .begin = mail_begin,
                                     .test = mail_test,
                                     .probe = mail_probe,
                                     .finish = mail_finish,
                                     .abort = mail_abort};

static void mail_open(struct mailbox *b, uint32_t nodes)
{
    *b = (struct mailbox){.nodes = nodes, .eager = 4096, .last = &b->first};
    pthread_mutex_init(&b->lock, NULL);
    for (uint32_t i = 0; i < nodes; i++)
        b->end[i] = (struct mail_end){b, i};
}

static void mail_close(struct mailbox *b)
{
    while (b->first)
        mail_unlink(b, &b->first);
    for (struct mail *m = b->taken, *next; m; m = next) {
        next = m->next;
        free(m);
    }
    pthread_mutex_destroy(&b->lock);
}
