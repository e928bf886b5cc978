/*
 * Begins and ends the engine's process, by messages to the launcher, and says how it ended
 * (apart_process.h). Called by apart_lead.c.
 */
#include "kernels/apart_process.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>

#include "common/clock.h"
#include "common/err.h"

#define END_US (10u * EK_US_PER_S) /* SIGKILL, until the process has ended */
/* Until the launcher answers, which may have to end one first. */
#define HEAR_US (15u * EK_US_PER_S)

static int apart_process_tell(const struct apart_lead *l, enum ek_apart_what what, int fd)
{
    struct ek_apart_message order = {.what = what, .number = ++l->open.apart->number};
    struct iovec part = {.iov_base = &order, .iov_len = sizeof(order)};
    union {
        char room[CMSG_SPACE(sizeof(int))];
        struct cmsghdr align;
    } extra = {0};
    struct msghdr msg = {.msg_iov = &part, .msg_iovlen = 1};

    if (fd >= 0) {
        msg.msg_control = extra.room;
        msg.msg_controllen = sizeof(extra.room);
        struct cmsghdr *c = CMSG_FIRSTHDR(&msg);
        *c = (struct cmsghdr){
            .cmsg_level = SOL_SOCKET, .cmsg_type = SCM_RIGHTS, .cmsg_len = CMSG_LEN(sizeof(int))};
        memcpy(CMSG_DATA(c), &fd, sizeof(fd));
    }
    return sendmsg(l->open.apart->socket, &msg, MSG_NOSIGNAL) < 0 ? -errno : 0;
}

static int say_alone(struct ek_fault *fault)
{
    ek_fault_write(fault, "engine-process",
                   "The process that starts engines has ended; what it logged says why");
    return -EPIPE;
}

/* The launcher's answer to the last message; others are of messages whose answer is not awaited. */
static int hear(const struct apart_lead *l, struct ek_fault *fault)
{
    const uint64_t until = ek_now_us() + HEAR_US;
    struct pollfd p = {.fd = l->open.apart->socket, .events = POLLIN};
    struct ek_apart_answer a;

    while (ek_now_us() < until) {
        if (poll(&p, 1, APART_PIECE_US / 1000) <= 0)
            continue;
        ssize_t n = recv(p.fd, &a, sizeof(a), MSG_DONTWAIT);
        if (n == 0 || (n < 0 && errno != EAGAIN && errno != EINTR))
            return say_alone(fault);
        if (n != (ssize_t)sizeof(a) || a.number != l->open.apart->number)
            continue;
        if (a.code < 0 && fault)
            *fault = a.fault;
        return a.code;
    }
    ek_fault_write(fault, "engine-process", "The process that starts engines does not answer");
    return -ETIMEDOUT;
}

bool apart_has_ended(const struct apart_lead *l)
{
    return atomic_load(&l->m->ended) != 0;
}

bool apart_is_alone(const struct apart_lead *l)
{
    struct pollfd p = {.fd = l->open.apart->socket};

    return poll(&p, 1, 0) > 0 && (p.revents & (POLLHUP | POLLERR)) != 0;
}

/* "its process ended with signal 11 (Segmentation fault)" */
static void say_end(int status, char *ret_text, size_t size)
{
    if (WIFSIGNALED(status))
        (void)snprintf(ret_text, size, "its process ended with signal %d (%s)", WTERMSIG(status),
                       strsignal(WTERMSIG(status)));
    else
        (void)snprintf(ret_text, size, "its process ended with code %d", WEXITSTATUS(status));
}

/* Whether it was ended from outside: for lack of memory, by hand, in a test. */
static bool was_killed(int status)
{
    return WIFSIGNALED(status) && (WTERMSIG(status) == SIGKILL || WTERMSIG(status) == SIGTERM);
}

/* Of an engine that ended while it was loaded. What it exits with it has said why itself: a weight
 * file that was cut short, or a node of several. */
static int code_of_end(int status)
{
    switch (WIFEXITED(status) ? WEXITSTATUS(status) : 0) {
    case EK_EXIT_USAGE:
    case EK_EXIT_CONFIG: return -EBADMSG;
    case EK_EXIT_COMM: return EK_ECOMM;
    case EK_EXIT_DEVMEM_START: return EK_EDEVMEM;
    case EK_EXIT_HOSTMEM_START: return -ENOMEM;
    }
    return was_killed(status) ? -ENOMEM : EK_EDEVICE;
}

void apart_keep_counts(struct apart_lead *l)
{
    struct apart_stats *s = &l->m->stats; /* no other thread writes them now */

    (void)atomic_fetch_add(&s->turn, atomic_load(&s->turn) % 2 + 1); /* it may have been ended in */
    atomic_thread_fence(memory_order_seq_cst);
    s->busy_us += s->stats.busy_us;
    s->steps += s->stats.steps;
    s->stats = (struct ek_device_stats){0};
    memset(s->rank, 0, sizeof(s->rank));
    atomic_thread_fence(memory_order_seq_cst);
    (void)atomic_fetch_add(&s->turn, 1);
}

int apart_start(struct apart_lead *l, const struct apart_patience *p, struct ek_fault *fault)
{
    struct ek_apart_memory *m = l->m;
    uint64_t moved_us = ek_now_us(), done = 0;

    l->failed = 0;
    atomic_store(&m->pid, 0);
    atomic_store(&m->ended, 0);
    atomic_store(&m->sent, 0);
    atomic_store(&m->state, APART_STARTING);
    atomic_store(&m->done_bytes, 0);
    atomic_store(&m->total_bytes, 0);
    atomic_store(&m->posted, 0);
    apart_keep_counts(l);
    for (uint32_t i = 0; i < APART_SLOTS; i++)
        atomic_store(&m->landed[i].id, UINT64_MAX); /* none is under way */
    int r = apart_process_tell(l, EK_APART_START, m->fd);
    r = r == -EPIPE ? say_alone(fault) : r == 0 ? hear(l, fault) : r;
    if (r < 0) { /* none was begun */
        m->status = 0;
        atomic_store(&m->ended, 1);
        return r;
    }
    while (r == 0 && atomic_load(&m->state) == APART_STARTING && !apart_has_ended(l)) {
        uint32_t seen = atomic_load(&m->answered);
        uint64_t now_done = atomic_load(&m->done_bytes), total = atomic_load(&m->total_bytes);
        if (now_done != done && p->progress)
            p->progress(p->ctx, now_done, total);
        moved_us = now_done != done ? ek_now_us() : moved_us;
        done = now_done;
        r = ek_now_us() - moved_us > APART_LOAD_US ? -ETIMEDOUT
            : apart_is_alone(l)                    ? say_alone(fault)
                                                   : 0;
        if (r == 0 && p->meanwhile)
            r = p->meanwhile(p->ctx);
        if (r == 0 && atomic_load(&m->state) == APART_STARTING && !apart_has_ended(l))
            apart_sleep(&m->answered, seen, APART_PIECE_US);
    }
    if (r == 0 && atomic_load(&m->state) == APART_LOADED && p->progress)
        p->progress(p->ctx, atomic_load(&m->total_bytes), atomic_load(&m->total_bytes));
    if (r < 0 || atomic_load(&m->state) == APART_LOADED)
        return r;
    if (atomic_load(&m->state) == APART_FAILED) {
        if (fault)
            *fault = m->fault;
        return m->code;
    }
    char why[160];
    say_end(m->status, why, sizeof(why));
    ek_fault_write(fault, "engine-process", "The engine could not be loaded: %s", why);
    return code_of_end(m->status);
}

int apart_end(struct apart_lead *l)
{
    uint64_t until = ek_now_us() + END_US;
    int r = apart_has_ended(l) ? 0 : apart_process_tell(l, EK_APART_END, -1);

    while (r == 0 && !apart_has_ended(l)) {
        uint32_t seen = atomic_load(&l->m->answered);
        if (!apart_has_ended(l))
            apart_sleep(&l->m->answered, seen, APART_PIECE_US);
        r = apart_has_ended(l)    ? 0
            : apart_is_alone(l)   ? EK_EDEVICE
            : ek_now_us() > until ? -ETIMEDOUT
                                  : 0;
    }
    return r;
}

int apart_check(const struct apart_lead *l, struct ek_fault *fault)
{
    int r = apart_process_tell(l, EK_APART_CHECK, -1);

    return r == 0 ? hear(l, fault) : r;
}

/* ---- how it ended ---- */

/* Of an engine over several nodes: a node that is lost, with its machine or its network, looks to
 * the others, and to what started them, as one that a request ended. A code that no engine ends
 * with is the command's own. */
static bool may_be_a_node(const struct apart_lead *l, const struct ek_device_end *end)
{
    if (!ek_open_spans(&l->open) || end->signal != 0)
        return false;
    if (!end->ended)
        return l->failed == EK_ECOMM || l->failed == 0;
    return end->status == EK_EXIT_COMM || end->status < EK_EXIT_INTERNAL ||
           end->status > EK_EXIT_LOOP;
}

void apart_how_lost(struct apart_lead *l, struct ek_device_end *ret_end)
{
    *ret_end = (struct ek_device_end){.ended = apart_has_ended(l)};
    const bool alone = apart_is_alone(l);
    (void)apart_end(l); /* or revive() does, and says what is in the way */
    if (ret_end->ended) {
        const int status = l->m->status;
        const bool sent = WIFSIGNALED(status) && atomic_load(&l->m->sent) != 0;
        say_end(status, ret_end->why, sizeof(ret_end->why));
        size_t said = strlen(ret_end->why);
        if (sent)
            (void)snprintf(ret_end->why + said, sizeof(ret_end->why) - said,
                           ", which process %d sent", atomic_load(&l->m->sent_by));
        ret_end->fault = !sent && !was_killed(status);
        ret_end->signal = WIFSIGNALED(status) ? WTERMSIG(status) : 0;
        ret_end->oom_kills = ret_end->signal == SIGKILL ? l->m->oom_kills : 0;
        ret_end->status = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
    } else { /* its device failed, or it made no progress */
        bool stopped = apart_has_ended(l) && l->m->stopped;
        (void)snprintf(ret_end->why, sizeof(ret_end->why), "%s",
                       stopped                 ? "its process was stopped by a signal"
                       : alone                 ? "the process that starts engines has ended"
                       : l->failed == EK_ECOMM ? "its ranks lost one another in a step"
                       : l->failed == 0 ? "it made no progress in time (a step: --step-deadline; "
                                          "an order: 60 s)"
                                        : "a step failed in it");
        ret_end->fault = !stopped && !alone;
    }
    ret_end->unsure = ret_end->fault && may_be_a_node(l, ret_end);
}
