/*
 * The thread of KV events; start_load.c makes it when --kv-events-config is on. It sleeps in
 * zmq_poll() on the ring's eventfd and the replay socket, publishes what has come, then answers one
 * replay, so that a reader that asks all the time does not hold up the news. Both sockets belong to
 * this thread from its start on; only `stop` is shared. Invariant: batches first to next - 1 are
 * kept, and one that could not be kept takes all before it along, so a replay has no holes.
 */
#include "server/kvpub.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <zmq.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "common/log.h"
#include "server/kvevents.h"

#define REQUEST_FRAMES 3

struct batch_kept {
    char *bytes;
    size_t len;
};

struct kvpub {
    struct kvevents_config c;
    struct kvlog *log;
    void *zmq, *pub, *replay;
    struct batch_kept *kept; /* [c.buffer_steps] batch n at n % buffer_steps */
    uint64_t first;          /* number of the oldest one that is kept */
    size_t kept_bytes;
    uint64_t next; /* number of the next batch */
    atomic_bool stop;
    pthread_t thread;
    bool runs;
};

static void drop_oldest(struct kvpub *p)
{
    struct batch_kept *k = &p->kept[p->first++ % p->c.buffer_steps];

    p->kept_bytes -= k->len;
    free(k->bytes);
    *k = (struct batch_kept){0};
}

/* A batch that is not kept makes a hole: everything before it goes too. */
static void forget_until(struct kvpub *p, uint64_t number)
{
    while (p->first < number)
        drop_oldest(p);
    p->first = number + 1;
}

/* Keeps a copy for replays. */
static void kvpub_keep(struct kvpub *p, uint64_t number, const struct ek_buf *batch)
{
    while (p->first < number && (number - p->first >= p->c.buffer_steps ||
                                 p->kept_bytes + batch->len > KVEVENTS_REPLAY_MOST))
        drop_oldest(p);
    char *copy = p->replay ? malloc(batch->len) : NULL;
    if (!copy) {
        forget_until(p, number);
        return;
    }
    memcpy(copy, batch->data, batch->len);
    p->kept[number % p->c.buffer_steps] = (struct batch_kept){copy, batch->len};
    p->kept_bytes += batch->len;
}

static void be64(uint64_t v, uint8_t out[8])
{
    for (int i = 0; i < 8; i++)
        out[i] = (uint8_t)(v >> (56 - 8 * i));
}

static void publish(struct kvpub *p, const struct ek_buf *batch)
{
    uint64_t number = p->next;
    uint8_t seq[8];

    be64(number, seq);
    /* A PUB socket never blocks; for a reader that is too far behind, the batch is dropped, and
     * the gap in the numbers tells it. */
    (void)zmq_send(p->pub, p->c.topic, strlen(p->c.topic), ZMQ_SNDMORE);
    (void)zmq_send(p->pub, seq, sizeof(seq), ZMQ_SNDMORE);
    (void)zmq_send(p->pub, batch->data, batch->len, 0);
    kvpub_keep(p, number, batch);
    p->next = number + 1;
}

static void publish_pending(struct kvpub *p)
{
    struct ek_buf batch = {0};
    uint64_t from;

    for (uint32_t n; (n = kvlog_pending(p->log, &from)) > 0;) {
        n = n < KVEVENTS_BATCH ? n : KVEVENTS_BATCH;
        ek_buf_clear(&batch);
        double now = (double)ek_wall_us() / 1e6;
        if (kvevents_encode(p->log, from, n, now, &batch) == 0)
            publish(p, &batch);
        else /* readers see the gap in the numbers and forget what they knew */
            forget_until(p, p->next++);
        kvlog_done(p->log, n);
    }
    ek_buf_done(&batch);
}

static void kvpub_reply(struct kvpub *p, zmq_msg_t *peer, uint64_t number,
                        const struct batch_kept *k)
{
    const char *topic = k ? p->c.topic : "";
    uint8_t seq[8];

    be64(number, seq);
    if (zmq_send(p->replay, zmq_msg_data(peer), zmq_msg_size(peer), ZMQ_SNDMORE | ZMQ_DONTWAIT) < 0)
        return;
    (void)zmq_send(p->replay, "", 0, ZMQ_SNDMORE);
    (void)zmq_send(p->replay, topic, strlen(topic), ZMQ_SNDMORE);
    (void)zmq_send(p->replay, seq, sizeof(seq), ZMQ_SNDMORE);
    (void)zmq_send(p->replay, k ? k->bytes : "", k ? k->len : 0, 0);
}

static void kvpub_replay(struct kvpub *p, zmq_msg_t *peer, const uint8_t from[8])
{
    uint64_t number = 0, next = p->next;

    for (int i = 0; i < 8; i++)
        number = number << 8 | from[i];
    for (number = number < p->first ? p->first : number; number < next; number++) {
        const struct batch_kept *k = &p->kept[number % p->c.buffer_steps];
        if (k->bytes)
            kvpub_reply(p, peer, number, k);
    }
    kvpub_reply(p, peer, UINT64_MAX, NULL); /* -1 ends it */
}

/* One request: who, an empty frame, the number as 8 bytes. Anything else is left unanswered.
 * False when there is none. */
static bool kvpub_answer(struct kvpub *p)
{
    zmq_msg_t frame[REQUEST_FRAMES];
    int count = 0;
    bool more = true, good = true;

    while (more) {
        zmq_msg_t m;
        (void)zmq_msg_init(&m); /* cannot fail */
        if (zmq_msg_recv(&m, p->replay, count == 0 ? ZMQ_DONTWAIT : 0) < 0) {
            (void)zmq_msg_close(&m);
            break;
        }
        more = zmq_msg_more(&m);
        if (count < REQUEST_FRAMES)
            frame[count++] = m;
        else {
            good = false;
            (void)zmq_msg_close(&m);
        }
    }
    if (good && count == REQUEST_FRAMES && zmq_msg_size(&frame[1]) == 0 &&
        zmq_msg_size(&frame[2]) == 8)
        kvpub_replay(p, &frame[0], zmq_msg_data(&frame[2]));
    for (int i = 0; i < count; i++)
        (void)zmq_msg_close(&frame[i]);
    return count > 0;
}

static void *kvpub_run(void *arg)
{
    struct kvpub *p = arg;
    zmq_pollitem_t item[] = {{.fd = p->log->wake, .events = ZMQ_POLLIN},
                             {.socket = p->replay, .events = ZMQ_POLLIN}};
    eventfd_t count;

    while (!atomic_load(&p->stop)) {
        if (zmq_poll(item, p->replay ? 2 : 1, -1) < 0 && errno != EINTR)
            break;
        (void)eventfd_read(p->log->wake, &count); /* nothing to read is fine */
        publish_pending(p);
        if (p->replay && item[1].revents)
            (void)kvpub_answer(p); /* one, then what is new: readers share the thread */
    }
    publish_pending(p);
    return NULL;
}

static bool is_bound(const char *endpoint)
{
    return strchr(endpoint, '*') || strstr(endpoint, "::") || strncmp(endpoint, "ipc://", 6) == 0 ||
           strncmp(endpoint, "inproc://", 9) == 0;
}

static int open_socket(struct kvpub *p, int type, const char *endpoint, bool bind, void **ret)
{
    int hwm = (int)(type == ZMQ_PUB ? p->c.hwm : p->c.buffer_steps + 1), linger = 0, on = 1;
    int64_t most = 64; /* bytes of a request's frame */
    void *s = zmq_socket(p->zmq, type);

    if (!s)
        return -errno;
    *ret = s;
    if (zmq_setsockopt(s, ZMQ_SNDHWM, &hwm, sizeof(hwm)) < 0 ||
        zmq_setsockopt(s, ZMQ_LINGER, &linger, sizeof(linger)) < 0 ||
        (strstr(endpoint, "::") && zmq_setsockopt(s, ZMQ_IPV6, &on, sizeof(on)) < 0) ||
        (type == ZMQ_ROUTER && zmq_setsockopt(s, ZMQ_MAXMSGSIZE, &most, sizeof(most)) < 0))
        return -errno;
    return (bind ? zmq_bind(s, endpoint) : zmq_connect(s, endpoint)) < 0 ? -errno : 0;
}

static int open_sockets(struct kvpub *p, struct ek_fault *f)
{
    const char *where = p->c.endpoint;

    p->zmq = zmq_ctx_new();
    if (!p->zmq)
        return -ENOMEM;
    int r = open_socket(p, ZMQ_PUB, where, is_bound(where), &p->pub);
    if (r == 0 && p->c.replay_endpoint[0]) {
        where = p->c.replay_endpoint;
        r = open_socket(p, ZMQ_ROUTER, where, true, &p->replay);
    }
    if (r < 0 && r != -ENOMEM)
        r = ek_fault_set(f, "kv-events-config", "--kv-events-config: cannot use '%s': %s%s", where,
                         zmq_strerror(-r),
                         r == -EADDRINUSE ? "; choose another port or stop who has it" : "");
    return r;
}

int kvpub_new(const struct kvevents_config *c, struct kvlog *log, struct kvpub **ret_pub,
              struct ek_fault *fault)
{
    sigset_t all, old;
    int r = -ENOMEM;
    struct kvpub *p = calloc(1, sizeof(*p));

    if (!p)
        goto out;
    p->c = *c;
    p->kept = calloc(c->buffer_steps, sizeof(*p->kept));
    if (!p->kept)
        goto out;
    (void)sigfillset(&all);
    (void)pthread_sigmask(SIG_BLOCK, &all, &old); /* also for the library's threads */
    r = open_sockets(p, fault);
    if (r == 0) {
        p->log = log;
        r = -pthread_create(&p->thread, NULL, kvpub_run, p);
        p->runs = r == 0;
    }
    (void)pthread_sigmask(SIG_SETMASK, &old, NULL);
    if (r < 0) {
        p->log = NULL;
        goto out;
    }
    ek_log(EK_LOG_INFO, "Publishing KV events at %s%s%s", c->endpoint,
           c->replay_endpoint[0] ? ", replays at " : "", c->replay_endpoint);
    *ret_pub = p;
    p = NULL;
out:
    kvpub_free(p);
    return r;
}

void kvpub_free(struct kvpub *p)
{
    if (!p)
        return;
    if (p->runs) {
        atomic_store(&p->stop, true);
        (void)eventfd_write(p->log->wake, 1);
        (void)pthread_join(p->thread, NULL); /* our own thread, joined once */
    }
    if (p->pub)
        (void)zmq_close(p->pub);
    if (p->replay)
        (void)zmq_close(p->replay);
    if (p->zmq)
        (void)zmq_ctx_term(p->zmq);
    while (p->kept && p->first < p->next)
        drop_oldest(p);
    free(p->kept);
    kvlog_free(p->log);
    free(p);
}
