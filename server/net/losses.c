/*
 * Tells evenkeeld of an engine's end, and takes its verdict (losses.h). Called by start_load.c when
 * an engine ended, and by control.c for evenkeeld.
 */
#include "server/net/losses.h"

#include <errno.h>
#include <jansson.h>
#include <poll.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "common/buf.h"

#define MESSAGE_MOST 4096u
#define LATE_MOST    256u /* messages in one look, so that a flood delays no request */

int losses_init(struct losses *l)
{
    *l = (struct losses){.fresh = -1, .fd = -1};
    return -pthread_mutex_init(&l->lock, NULL);
}

static void losses_close(int *fd)
{
    if (*fd >= 0)
        (void)close(*fd);
    *fd = -1;
}

void losses_done(struct losses *l)
{
    losses_close(&l->fresh);
    losses_close(&l->fd);
    (void)pthread_mutex_destroy(&l->lock);
}

const char *losses_put(struct losses *l, int fd)
{
    int domain = 0, type = 0;
    socklen_t domain_len = sizeof(domain), type_len = sizeof(type);

    if (fd < 0)
        return "ERR no descriptor came with it\n";
    if (getsockopt(fd, SOL_SOCKET, SO_DOMAIN, &domain, &domain_len) < 0 || domain != AF_UNIX ||
        getsockopt(fd, SOL_SOCKET, SO_TYPE, &type, &type_len) < 0 || type != SOCK_SEQPACKET) {
        (void)close(fd);
        return "ERR the descriptor is no Unix socket that keeps messages apart\n";
    }
    pthread_mutex_lock(&l->lock);
    losses_close(&l->fresh);
    l->fresh = fd;
    pthread_mutex_unlock(&l->lock);
    return NULL;
}

void losses_write(const struct engine_loss *loss, struct ek_buf *out)
{
    const struct ek_device_end *end = &loss->end;

    (void)ek_buf_printf(out,
                        "{\"loss\":%llu,\"at_us\":%llu,\"wait_us\":%llu,\"running\":%u,\"ended\":%"
                        "s,\"signal\":%d,\"status\":%d,"
                        "\"exit_code\":%d,\"oom_kills\":%llu,\"why\":\"",
                        (unsigned long long)loss->number, (unsigned long long)loss->at_us,
                        (unsigned long long)loss->wait_us, loss->running,
                        end->ended ? "true" : "false", end->signal, end->status, loss->exit_code,
                        (unsigned long long)end->oom_kills);
    (void)ek_buf_json(out, end->why, strlen(end->why));
    (void)ek_buf_printf(out,
                        "\",\"steps\":%llu,\"served_s\":%.3f,\"max_num_batched_tokens\":%u,"
                        "\"max_num_running_seqs\":%u,\"swap_bytes\":%llu}",
                        (unsigned long long)loss->steps, (double)loss->served_us / 1e6,
                        loss->tokens, loss->seqs, (unsigned long long)loss->swap_bytes);
}

bool losses_tell(struct losses *l, const struct engine_loss *loss)
{
    struct ek_buf out = {0};

    pthread_mutex_lock(&l->lock);
    if (l->fresh >= 0) {
        losses_close(&l->fd);
        l->fd = l->fresh;
        l->fresh = -1;
    }
    pthread_mutex_unlock(&l->lock);
    if (l->fd < 0)
        return false;
    losses_write(loss, &out);
    ssize_t n = ek_buf_ok(&out) ? send(l->fd, out.data, out.len, MSG_DONTWAIT | MSG_NOSIGNAL) : -1;
    ek_buf_done(&out);
    return n >= 0;
}

/* A whole number up to `most`, 0 when it is not there. */
static int losses_number_at(const json_t *root, const char *name, uint64_t most, uint64_t *ret)
{
    const json_t *j = json_object_get(root, name);

    if (!j)
        return 0;
    if (!json_is_integer(j) || json_integer_value(j) < 0 || (uint64_t)json_integer_value(j) > most)
        return -EBADMSG;
    *ret = (uint64_t)json_integer_value(j);
    return 1;
}

int losses_read(const char *text, size_t len, uint64_t number, struct engine_verdict *ret_verdict)
{
    struct engine_verdict v = {0};
    uint64_t loss = 0, tokens = 0, seqs = 0;
    json_t *root = json_loadb(text, len, JSON_REJECT_DUPLICATES, NULL);
    const char *cls = json_string_value(json_object_get(root, "class"));
    const char *why = json_string_value(json_object_get(root, "why"));
    int r = json_is_object(root) && cls && losses_number_at(root, "loss", INT64_MAX, &loss) > 0
                ? 0
                : -EBADMSG;

    if (r == 0 && (losses_number_at(root, "max_num_batched_tokens", UINT32_MAX, &tokens) < 0 ||
                   losses_number_at(root, "max_num_running_seqs", UINT32_MAX, &seqs) < 0))
        r = -EBADMSG;
    if (r == 0) {
        int swap = losses_number_at(root, "swap_bytes", INT64_MAX, &v.swap_bytes);
        v.set_swap = swap > 0;
        v.tokens = (uint32_t)tokens;
        v.seqs = (uint32_t)seqs;
        (void)snprintf(v.cls, sizeof(v.cls), "%s", cls);
        (void)snprintf(v.why, sizeof(v.why), "%s", why ? why : "");
        r = swap < 0 ? -EBADMSG : loss == number ? 0 : -EAGAIN;
    }
    json_decref(root);
    if (r == 0)
        *ret_verdict = v;
    return r;
}

/* One message, if there is one: as losses_wait(), and -EAGAIN for a late answer to an earlier loss,
 * which counts for none. */
static int losses_take(struct losses *l, uint64_t number, struct engine_verdict *ret_verdict)
{
    char text[MESSAGE_MOST];
    ssize_t n = recv(l->fd, text, sizeof(text), MSG_DONTWAIT);

    if (n < 0 && (errno == EAGAIN || errno == EINTR))
        return 0;
    if (n <= 0) { /* the peer is gone */
        losses_close(&l->fd);
        return -ENOTCONN;
    }
    int r = losses_read(text, (size_t)n, number, ret_verdict);
    return r == 0 ? 1 : r;
}

int losses_wait(struct losses *l, uint64_t number, uint64_t wait_us,
                struct engine_verdict *ret_verdict)
{
    struct pollfd p = {.fd = l->fd, .events = POLLIN};

    if (l->fd < 0)
        return -ENOTCONN;
    if (poll(&p, 1, (int)((wait_us + 999) / 1000)) <= 0)
        return 0;
    int r = -EAGAIN;
    for (uint32_t i = 0; i < LATE_MOST && r == -EAGAIN; i++)
        r = losses_take(l, number, ret_verdict);
    return r == -EAGAIN ? 0 : r;
}
