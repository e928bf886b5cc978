/*
 * What of a generation is with the engine: hands choices over as their turn comes, takes what comes
 * back, and says why a choice was refused or how one ended badly (complete.h). Called by server/net
 * for each request until its answer is told.
 */
#include "server/api/complete.h"

#include <errno.h>

#include "common/clock.h"
#include "common/err.h"
#include "server/api/error.h"
#include "server/api/served.h"
#include "server/engine/engine.h"
#include "server/text/tokens.h"

/* Without --queue-deadline: how long it is tried to go on where there is no room at all. */
#define STUCK_US (60 * EK_US_PER_S)

bool generation_give_places(struct generation *g, uint32_t keep)
{
    bool any = g->places > keep;
    for (; g->places > keep; g->places--)
        g->share.give(g->share.auth, g->share.key);
    return any;
}

/* Its prompt is in the prefix cache, or never will be. */
static bool is_due(const struct generation *g, const struct choice *c)
{
    const struct choice *first = generation_first(g, c->prompt);
    if (c->taken)
        return false;
    if (c == first || !g->served->prefix_caching ||
        generation_prompt(g, c->prompt).count <= g->served->block_size)
        return true;
    return first->taken &&
           (atomic_load_explicit(&first->req->out_count, memory_order_acquire) > 0 ||
            atomic_load_explicit(&first->req->state, memory_order_acquire) == REQ_DONE);
}

/* How many of its choices the engine has. */
static uint32_t running(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->count; i++)
        n += g->choice[i].taken && !g->choice[i].over;
    return n;
}

bool generation_tick(struct generation *g)
{
    bool again = g->full && !g->over && !g->aborted;
    g->full = false;
    return again;
}

/* Taken, and without a token yet. */
static uint32_t waiting(const struct generation *g)
{
    uint32_t n = 0;
    for (uint32_t i = 0; i < g->count; i++) {
        const struct choice *c = &g->choice[i];
        n += c->taken && !c->over &&
             atomic_load_explicit(&c->req->out_count, memory_order_relaxed) == 0;
    }
    return n;
}

static int refusal(const struct generation *g, struct api_error *err)
{
    int r = g->refused_why;
    const char *why = g->refused_fault.msg[0] ? g->refused_fault.msg : ek_strerror(r);
    if (r == -EBUSY)
        (void)api_refuse(err, 429, "", "The server is busy: %s. Try again later.", why);
    else if (r == -ESHUTDOWN)
        (void)api_refuse(err, 503, "", "The server is draining and takes no new requests.");
    else if (r == -EHOSTDOWN)
        (void)api_refuse(err, 503, "", "The request was not taken: %s. Try again later.", why);
    else if (r == -EBADMSG)
        (void)api_refuse(err, 400,
                         g->refused_fault.field[0] ? g->refused_fault.field : "input_tokens", "%s",
                         why);
    else
        (void)api_refuse(err, r == -ENOMEM ? 503 : 500, "", "The request was not taken: %s.", why);
    if (err->status == 429 || err->status == 503)
        err->retry_after_s = g->retry_after_s ? g->retry_after_s : 1;
    return -EBADMSG;
}

/* `again` = if there is no room it is tried another time. The first choice has the place that its
 * request has; what waited for its turn begins now, not when the request came. */
static int submit_choice(struct generation *g, struct choice *c, bool again, struct ek_fault *fault)
{
    bool counted = g->taken > 0 && g->share.take;
    struct limits l;
    int r = 0;
    if (counted) {
        engine_limits(g->served->engine, &l);
        r = g->share.take(g->share.auth, g->share.key, (uint32_t)l.value[LIMIT_QUEUED_REQS], fault);
        if (r < 0)
            return r;
        g->places++;
    }
    if (!c->req)
        r = generation_request(c);
    if (r == 0) {
        c->req->ask.again = again;
        if (g->parted)
            c->req->ask.arrival_us = ek_now_us();
        r = engine_submit(g->served->engine, c->req, &g->retry_after_s, fault);
    }
    if (r < 0 && counted)
        (void)generation_give_places(g, g->places - 1);
    c->taken = r == 0;
    g->taken += c->taken;
    return r;
}

/* Whether it has had no room for as long as a request may wait in the queue. */
static bool submit_stuck(const struct generation *g, uint64_t now_us)
{
    struct limits l;
    if (g->stuck_us == 0)
        return false;
    engine_limits(g->served->engine, &l);
    uint64_t most = l.value[LIMIT_QUEUE_DEADLINE];
    return now_us - g->stuck_us >= (most ? most : STUCK_US);
}

int generation_submit(struct generation *g, struct api_error *err)
{
    struct ek_fault fault = {0};
    uint64_t now = ek_now_us();
    uint32_t with_engine = running(g);
    bool stuck = submit_stuck(g, now);
    int r = 0;
    for (uint32_t i = 0; i < g->count && r == 0 && !g->refused; i++) {
        struct choice *c = &g->choice[i];
        if (!is_due(g, c))
            continue;
        bool again = g->taken > 0 && (!stuck || with_engine > 0);
        r = with_engine < g->window ? submit_choice(g, c, again, &fault) : -EAGAIN;
        with_engine += r == 0;
    }
    g->full = r == -EBUSY && g->taken > 0 && (!stuck || with_engine > 0);
    if (!g->full || with_engine > 0)
        g->stuck_us = 0;
    else if (g->stuck_us == 0)
        g->stuck_us = now;
    if (r == -EAGAIN || g->full) { /* they wait for those that the engine has, or for room */
        g->parted = true;
        r = 0;
    }
    if (r < 0) {
        g->refused = true;
        g->refused_why = r;
        g->refused_fault = fault;
    }
    if (!g->refused)
        return 0;
    generation_abort(g);
    return refusal(g, err);
}

static bool is_with_engine(const struct choice *c)
{
    return c->taken && !c->over && atomic_load(&c->req->state) != REQ_DONE;
}

bool generation_computes(const struct generation *g)
{
    for (uint32_t i = 0; i < g->count; i++) {
        if (is_with_engine(&g->choice[i]))
            return true;
    }
    return false;
}

void generation_abort(struct generation *g)
{
    g->aborted = true;
    for (uint32_t i = 0; i < g->count; i++) {
        if (is_with_engine(&g->choice[i]))
            engine_finish(g->served->engine, g->choice[i].req, REQ_FIN_ABORT);
    }
}

static bool ended_badly(const struct choice *c)
{
    return c->over && c->finish != REQ_FIN_STOP && c->finish != REQ_FIN_LENGTH;
}

bool generation_pump(struct generation *g)
{
    struct api_error unused;
    bool news = false, all = true, ended = false;
    if (g->over)
        return false;
    for (uint32_t i = 0; i < g->count; i++) {
        struct choice *c = &g->choice[i];
        if (c->over)
            continue;
        if (!c->req) { /* its turn has not come */
            all = false;
            continue;
        }
        news = choice_pump(c) || news;
        if (c->cut && c->taken)
            engine_finish(g->served->engine, c->req, REQ_FIN_STOP);
        ended = ended || c->over;
        all = all && c->over;
        g->over = g->over || ended_badly(c);
    }
    if (generation_give_places(g, waiting(g)) || ended)
        g->full = false;
    if (g->over) /* one failed: the others are worth nothing */
        generation_abort(g);
    else if (!g->aborted && !g->full && g->taken && g->taken < g->count &&
             generation_submit(g, &unused) < 0)
        g->over = true;
    g->over = g->over || all;
    return g->over || (news && (g->taken == g->count || g->parted || g->taken == 0));
}

static int check_choice(const struct choice *c, struct api_error *err)
{
    if (!ek_buf_ok(&c->text) || !ek_buf_ok(&c->lp[0]))
        return api_no_memory(err);
    switch (c->finish) {
    case REQ_FIN_NONE:
    case REQ_FIN_STOP:
    case REQ_FIN_LENGTH:
    case REQ_FIN_KINDS: return 0;
    case REQ_FIN_ABORT:
        (void)api_refuse(err, 503, "", "The request was ended by the server.");
        break;
    case REQ_FIN_DEADLINE:
        (void)api_refuse(err, 503, "", "The server is shutting down and its deadline has passed.");
        break;
    case REQ_FIN_ERROR:
        if (c->seen == 0 && (c->req->error == -EBUSY || c->req->error == -ETIMEDOUT))
            (void)api_refuse(err, 429, "",
                             "The request could not be served within the deadline of the queue.");
        else if (c->req->error == -ENODATA)
            (void)api_refuse(err, 400, "",
                             "No token may come next: allowed_token_ids, bad_words, min_tokens, "
                             "logit_bias and the form asked for exclude them all.");
        else if (c->req->error == -E2BIG)
            (void)api_refuse(err, 400, c->of->ask.form_field ? c->of->ask.form_field : "",
                             "The tokens that may come next take more work to find than is "
                             "offered: make the form simpler.");
        else if (c->req->error == -EHOSTDOWN)
            (void)api_refuse(err, 503, "",
                             "There was no engine for longer than requests wait for one "
                             "(--engine-wait). Try again later.");
        else if (c->req->error == -ENOTRECOVERABLE)
            (void)api_refuse(err, 500, "",
                             "The engine failed twice while it computed this request, which was "
                             "ended so that the others go on.");
        else
            (void)api_refuse(err, 500, "", "The engine could not finish the request: %s.",
                             ek_strerror(c->req->error));
        break;
    }
    err->retry_after_s = err->status == 500 || err->status == 400 ? 0 : 5;
    return -EBADMSG;
}

int generation_check(const struct generation *g, struct api_error *err)
{
    if (g->refused)
        return refusal(g, err);
    if (!ek_buf_ok(&g->out))
        return api_no_memory(err);
    for (uint32_t i = 0; i < g->count; i++) {
        if (g->choice[i].over && check_choice(&g->choice[i], err) < 0)
            return -EBADMSG;
    }
    return 0;
}
