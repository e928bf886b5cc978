/* An engine whose device is lost and replaced: texts go on, the budget ends it, the cause is found.
 */
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"
#include "server/engine/engine_inside.h"
#include "tests/unit/engine/engine_world.h"

struct revive_told {
    atomic_uint times, released, failed, refused;
    uint32_t requests;
    char why[32];
};

static struct revive_told told;

static void on_revived(void *ctx, const char *why, uint64_t pause_us, uint32_t requests)
{
    struct engine_world *w = ctx;
    (void)pause_us;
    pthread_mutex_lock(&w->lock);
    told.requests += requests;
    (void)snprintf(told.why, sizeof(told.why), "%s", why ? why : "asked for");
    atomic_fetch_add(&told.times, 1);
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
}

static void on_away(void *ctx, const char *why)
{
    struct engine_world *w = ctx;
    pthread_mutex_lock(&w->lock);
    atomic_fetch_add(why ? &told.failed : &told.released, 1);
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
}

/* The step at which the device is lost, 0 = none; and where in it. */
static uint32_t lose_in;
static int lose_place;

static int losing_forward(struct ek_device *d, const struct ek_step *step)
{
    int *const fails[] = {&d->forward_fails, &d->sample_fails, &d->wait_fails};

    if (lose_in > 0 && --lose_in == 0) {
        if (lose_place < 3)
            *fails[lose_place] = EK_EDEVICE;
        else
            atomic_store(&d->hangs, 1);
    }
    return null_reviving_backend.forward(d, step);
}

static struct ek_backend losing;

static void start_reviving(struct engine_world *w, uint32_t budget)
{
    losing = null_reviving_backend;
    losing.forward = losing_forward;
    told.requests = 0;
    atomic_store(&told.times, 0);
    atomic_store(&told.released, 0);
    atomic_store(&told.failed, 0);
    atomic_store(&told.refused, 0);
    w->p.away = on_away;
    w->p.revivals = budget;
    w->p.revived = on_revived;
    w->d->revivals = 1000;
    assert_int_equal(engine_new(&w->p, &losing, w->d, &w->e, NULL), 0);
}

/* Eight streams lose their device once at each place of a step where it can go. */
static void texts_go_on(void **state)
{
    (void)state;
    static const enum engine_cause causes[] = {ENGINE_LOST_ENDED, ENGINE_LOST_FAULT,
                                               ENGINE_LOST_ENDED, ENGINE_LOST_HANG};
    for (int place = 0; place < 4; place++) {
        struct engine_world w;
        struct request *r[8];
        struct engine_stats st;
        prepare(&w, 2);
        w.p.step_deadline_us = place == 3 ? 300000 : 0;
        w.d->revive_fault = place % 2;
        lose_place = place;
        lose_in = 12;
        start_reviving(&w, 8);
        for (uint32_t i = 0; i < 8; i++)
            r[i] = submit(&w, i, 30);
        for (uint32_t i = 0; i < 8; i++) {
            wait_done(&w, r[i]);
            assert_int_equal(r[i]->finish, REQ_FIN_LENGTH);
            check_output(r[i], 30);
            request_unref(r[i]);
        }
        engine_stats(w.e, &st);
        assert_int_equal(w.d->revived, 1);
        assert_int_equal(atomic_load(&told.times), 1);
        assert_true(told.requests >= 1 && strcmp(told.why, "a test") == 0);
        assert_int_equal(st.revivals.lost[causes[place]], 1);
        assert_int_equal(engine_losses(&st.revivals), 1);
        assert_int_equal(ek_hist_total(&st.revivals.pause), 1);
        assert_true(st.replayed_tokens > 0 && st.recomputed_tokens == 0);
        assert_int_equal(st.revivals.requests, told.requests);
        assert_int_equal(st.suspects, 0);
        assert_int_equal(st.preemptions, 0); /* nobody lacked a block */
        close_world(&w);
    }
}

/* It goes while nobody asks for anything: the next one is there before somebody does. */
static void an_idle_one_comes_back(void **state)
{
    (void)state;
    struct engine_world w;
    prepare(&w, 2);
    start_reviving(&w, 8);
    struct request *r = submit(&w, 1, 5);
    wait_done(&w, r);
    request_unref(r);
    atomic_store(&w.d->vanished, 1);
    wait_until(&w, NULL, 0, &told.times, 1);
    assert_int_equal(told.requests, 0);
    close_world(&w);
}

/* What fails all the time ends as without revivals. */
static void a_budget_ends_it(void **state)
{
    (void)state;
    struct engine_world w;
    prepare(&w, 2);
    w.d->wait_fails = EK_EDEVICE;
    w.d->always_fails = true;
    start_reviving(&w, 3);
    struct request *r = submit(&w, 1, 50);
    wait_dead(&w);
    assert_int_equal(w.dead_code, EK_EXIT_DEVICE);
    assert_int_equal(w.d->revived, 3);
    assert_int_equal(r->finish, REQ_FIN_ERROR);
    request_unref(r);
    close_world(&w);
}

/* No other device can be had. */
static void no_other_ends_it(void **state)
{
    (void)state;
    struct engine_world w;
    prepare(&w, 2);
    w.d->wait_fails = EK_EDEVICE;
    start_reviving(&w, 3);
    w.d->revivals = 0;
    struct request *r = submit(&w, 1, 50);
    wait_dead(&w);
    assert_int_equal(w.dead_code, EK_EXIT_DEVICE);
    request_unref(r);
    close_world(&w);
}

/* The next one is ended while it loads, or finds no memory yet: it is tried again, each counts. */
static void a_load_is_tried_again(void **state)
{
    (void)state;
    static const int codes[] = {-ENOMEM, EK_EDEVMEM, EK_EDEVICE, EK_ECOMM, -EAGAIN};
    for (size_t i = 0; i < sizeof(codes) / sizeof(codes[0]); i++) {
        struct engine_world w;
        struct engine_stats st;
        prepare(&w, 2);
        start_reviving(&w, 8);
        w.d->revive_code = codes[i];
        atomic_store(&w.d->revive_fails, 2);
        struct request *r = submit(&w, 1, 60);
        wait_until(&w, NULL, 0, &r->out_count, 3);
        if (i < 4)
            atomic_store(&w.d->vanished, 1);
        w.d->wait_fails = i < 4 ? EK_EDEVICE : 0;
        if (i == 4) /* a restart on purpose is no other */
            assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
        wait_done(&w, r);
        assert_int_equal(r->finish, REQ_FIN_LENGTH);
        check_output(r, 60);
        request_unref(r);
        do {
            engine_stats(w.e, &st);
        } while (st.device != ENGINE_DEVICE_THERE);
        assert_int_equal(atomic_load(&told.failed), 2);
        assert_int_equal(engine_losses(&st.revivals), i < 4 ? 3 : 2);
        assert_int_equal(st.revivals.planned, i == 4);
        assert_int_equal(w.d->revived, 1);
        close_world(&w);
    }
}

/* However often a node cannot be reached, it is one loss: a cable that is out uses no budget up.
 * Where nothing bounds how long requests wait, the budget bounds that. */
static void nodes_out_of_reach(void **state)
{
    (void)state;
    for (int bounded = 0; bounded < 2; bounded++) {
        struct engine_world w;
        struct engine_stats st;
        prepare(&w, 2);
        w.p.away_most_us = bounded ? 600000000 : 0;
        start_reviving(&w, 1);
        w.d->revive_code = EK_EDEVICE;
        w.d->revive_fault = w.d->revive_unsure = true;
        atomic_store(&w.d->revive_fails, 3);
        struct request *r = submit(&w, 1, 60);
        wait_until(&w, NULL, 0, &r->out_count, 3);
        w.d->wait_fails = EK_EDEVICE;
        if (bounded) {
            wait_done(&w, r);
            assert_int_equal(r->finish, REQ_FIN_LENGTH);
            check_output(r, 60);
            engine_stats(w.e, &st);
            assert_int_equal(atomic_load(&told.failed), 3);
            assert_int_equal(engine_losses(&st.revivals), 1);
        } else {
            wait_dead(&w);
            assert_int_equal(r->finish, REQ_FIN_ERROR);
        }
        request_unref(r);
        close_world(&w);
    }
}

/* What stays as it is is not tried again, and nothing longer than requests wait. */
static void a_load_that_stays_refused(void **state)
{
    (void)state;
    for (int forever = 0; forever < 2; forever++) {
        struct engine_world w;
        prepare(&w, 2);
        w.p.away_most_us = forever ? 250000 : 0;
        start_reviving(&w, 64);
        w.d->revive_code = forever ? -ENOMEM : -EBADMSG;
        atomic_store(&w.d->revive_fails, 1000);
        struct request *r = submit(&w, 1, 200);
        wait_until(&w, NULL, 0, &r->out_count, 3);
        w.d->wait_fails = EK_EDEVICE;
        wait_dead(&w);
        assert_int_equal(w.dead_code, EK_EXIT_DEVICE);
        assert_int_equal(r->finish, REQ_FIN_ERROR);
        assert_int_equal(r->error, forever ? -EHOSTDOWN : EK_EDEVICE);
        const uint32_t tries = 1000 - atomic_load(&w.d->revive_fails);
        /* A machine that stands still within them leaves it one; that there are more is tested
         * above. */
        assert_true(forever ? tries >= 1 && tries <= 4 : tries == 1);
        request_unref(r);
        close_world(&w);
    }
}

/* Between two tries orders are taken: it is released, and acquired when it can be had. */
static void released_between_two_tries(void **state)
{
    (void)state;
    struct engine_world w;
    prepare(&w, 2);
    start_reviving(&w, 64);
    w.d->revive_code = -ENOMEM;
    atomic_store(&w.d->revive_fails, 1000);
    struct request *r = submit(&w, 1, 60);
    wait_until(&w, NULL, 0, &r->out_count, 3);
    w.d->wait_fails = EK_EDEVICE;
    wait_until(&w, NULL, 0, &told.failed, 2);
    assert_int_equal(engine_device_order(w.e, ENGINE_RELEASE, NULL), 0);
    wait_until(&w, NULL, 0, &told.released, 1);
    atomic_store(&w.d->revive_fails, 0);
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), 0);
    wait_done(&w, r);
    check_output(r, 60);
    request_unref(r);
    close_world(&w);
}

/* One that makes the device fail is ended at the second time, the others are not; at the third
 * where each of these ends may have been chance, as when another node was lost. */
static void find_the_cause(bool unsure)
{
    struct engine_world w;
    struct request *r[8];
    prepare(&w, 2);
    w.d->revive_fault = true;
    w.d->revive_unsure = unsure;
    w.d->poison = 49 * 20 + 9; /* in one prompt alone, and in nobody's answer */
    start_reviving(&w, 8);
    for (uint32_t i = 0; i < 8; i++)
        r[i] = submit(&w, i == 3 ? 49 : i, 30);
    for (uint32_t i = 0; i < 8; i++) {
        wait_done(&w, r[i]);
        assert_int_equal(r[i]->finish, i == 3 ? REQ_FIN_ERROR : REQ_FIN_LENGTH);
        assert_int_equal(r[i]->error, i == 3 ? -ENOTRECOVERABLE : 0);
        if (i != 3)
            check_output(r[i], 30);
        request_unref(r[i]);
    }
    assert_int_equal(w.d->revived, unsure ? 3 : 2);
    close_world(&w);
}

static void the_cause_is_found(void **state)
{
    (void)state;
    find_the_cause(false);
    find_the_cause(true);
}

/* A fault of another kind while a suspect runs alone is not taken for its fault; the same one is,
 * and so is a second one alone. */
static void chance_is_no_cause(void **state)
{
    (void)state;
    static const struct {
        uint32_t ends[4];
        bool flies[4], guilty;
        uint32_t tries;
    } cases[] = {
        {{7, 7}, {true, true}, true, 2},           {{7, 9}, {true, true}, false, 2},
        {{7, 9, 9}, {true, true, true}, true, 3},  {{7, 9, 7}, {true, true, true}, true, 3},
        {{7, 7}, {true, false}, false, 2},        /* it was in no step then */
        {{7, 0, 7}, {true, true, true}, true, 3}, /* who sent SIGKILL says nothing */
        {{7, 0, 9}, {true, true, true}, false, 3},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_world w;
        struct sched *s;
        prepare(&w, 2);
        assert_int_equal(sched_new(&w.p, &s), 0);
        struct request *r = make(1, 5);
        request_ref(r); /* one is the scheduler's */
        assert_int_equal(sched_submit(s, r, 1), 0);
        for (uint32_t k = 0; k < cases[i].tries; k++) {
            assert_int_equal(atomic_load(&r->state) == REQ_DONE, false);
            s->entries.at[r->entry].in_flight = cases[i].flies[k];
            sched_found(s, cases[i].ends[k], 2 + k);
        }
        assert_int_equal(atomic_load(&r->state) == REQ_DONE, cases[i].guilty);
        assert_int_equal(s->stats.poisons, cases[i].guilty);
        assert_int_equal(s->suspects, !cases[i].guilty);
        sched_finish_all(s, REQ_FIN_ABORT, 0, 9);
        request_unref(r);
        sched_free(s);
        null_close(w.d);
    }
}

/* Ended and started five times between steps, while all are in an answer or not begun yet. */
static void restarts_are_not_seen(void **state)
{
    (void)state;
    for (uint32_t depth = 1; depth <= 2; depth++) {
        struct engine_world w;
        struct request *r[8];
        struct engine_stats st;
        prepare(&w, depth);
        start_reviving(&w, 1); /* they are not of its budget */
        for (uint32_t i = 0; i < 8; i++)
            r[i] = submit(&w, i, 60);
        for (uint32_t k = 1; k <= 5; k++) {
            wait_until(&w, NULL, 0, &r[k]->out_count, 5 * k);
            assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
            wait_until(&w, NULL, 0, &told.times, k);
        }
        for (uint32_t i = 0; i < 8; i++) {
            wait_done(&w, r[i]);
            assert_int_equal(r[i]->finish, REQ_FIN_LENGTH);
            check_output(r[i], 60);
            request_unref(r[i]);
        }
        engine_stats(w.e, &st);
        assert_int_equal(w.d->released, 5);
        assert_null(w.d->violation);
        assert_int_equal(st.revivals.planned, 5);
        assert_int_equal(engine_losses(&st.revivals) + st.suspects, 0);
        assert_string_equal(told.why, "asked for");
        close_world(&w);
    }
}

/* Who is in an answer and who comes later wait until it is acquired. */
static void released_and_acquired(void **state)
{
    (void)state;
    struct engine_world w;
    struct engine_stats st;
    prepare(&w, 2);
    start_reviving(&w, 1);
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), 0); /* it is there */
    struct request *before = submit(&w, 1, 40);
    wait_until(&w, NULL, 0, &before->out_count, 3);
    assert_int_equal(engine_device_order(w.e, ENGINE_RELEASE, NULL), 0);
    wait_until(&w, NULL, 0, &told.released, 1);
    struct request *after = submit(&w, 2, 20);
    struct request *left = submit(&w, 3, 20);
    engine_finish(w.e, left, REQ_FIN_ABORT); /* its client left meanwhile */
    wait_done(&w, left);
    engine_stats(w.e, &st);
    assert_true(st.device == ENGINE_DEVICE_RELEASED && st.released);
    assert_true(atomic_load(&after->out_count) == 0 && !st.away_long);
    w.d->revivals = 0; /* something else has it still */
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), 0);
    wait_until(&w, NULL, 0, &told.failed, 1);
    w.d->revivals = 1;
    wait_done(&w, before);
    wait_done(&w, after);
    check_output(before, 40);
    check_output(after, 20);
    engine_stats(w.e, &st);
    assert_true(st.device == ENGINE_DEVICE_THERE && !st.released);
    assert_int_equal(st.revivals.planned, 1);
    request_unref(before);
    request_unref(after);
    request_unref(left);
    close_world(&w);
}

/* While another one is loaded orders are taken: clients leave, it is released, the engine ends. */
static void a_load_is_given_up(void **state)
{
    (void)state;
    struct engine_world w;
    prepare(&w, 2);
    start_reviving(&w, 2);
    atomic_store(&w.d->loads, 1);
    struct request *r = submit(&w, 1, 200), *left = submit(&w, 2, 200);
    wait_until(&w, NULL, 0, &r->out_count, 3);
    atomic_store(&w.d->vanished, 1);
    w.d->wait_fails = EK_EDEVICE;
    engine_finish(w.e, left, REQ_FIN_ABORT);
    wait_done(&w, left);
    assert_int_equal(engine_device_order(w.e, ENGINE_RELEASE, NULL), 0);
    wait_until(&w, NULL, 0, &told.released, 1);
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), 0);
    struct engine_stats st;
    do {
        engine_stats(w.e, &st);
    } while (st.device != ENGINE_DEVICE_STARTING || !st.released); /* released: it is not ready */
    close_world(&w);                                               /* though the load never ends */
    assert_int_equal(r->finish, REQ_FIN_ABORT);
    request_unref(r);
    request_unref(left);
}

/* Requests wait for so long and no longer, and then new ones are refused. */
static void waiting_is_bounded(void **state)
{
    (void)state;
    struct engine_world w;
    struct engine_stats st;
    prepare(&w, 2);
    w.p.away_most_us = 20000;
    start_reviving(&w, 1);
    struct request *r = submit(&w, 1, 200);
    wait_until(&w, NULL, 0, &r->out_count, 3);
    assert_int_equal(engine_device_order(w.e, ENGINE_RELEASE, NULL), 0);
    wait_done(&w, r);
    assert_int_equal(r->finish, REQ_FIN_ERROR);
    assert_int_equal(r->error, -EHOSTDOWN);
    do {
        engine_stats(w.e, &st);
    } while (!st.away_long);
    assert_int_equal(st.revivals.cut, 1);
    struct request *late = make(2, 5);
    struct ek_fault fault = {0};
    assert_int_equal(engine_submit(w.e, late, NULL, &fault), -EHOSTDOWN);
    assert_non_null(strstr(fault.msg, "--engine-wait"));
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), 0);
    wait_until(&w, NULL, 0, &told.times, 1);
    do {
        engine_stats(w.e, &st);
    } while (st.away_long);
    assert_int_equal(st.refused_away, 1);
    assert_int_equal(engine_submit(w.e, late, NULL, &fault), 0);
    wait_done(&w, late);
    check_output(late, 5);
    request_unref(r);
    request_unref(late);
    close_world(&w);
}

/* A restart after which there is no engine ends the server, as its loss would. */
static void a_restart_that_fails(void **state)
{
    (void)state;
    struct engine_world w;
    prepare(&w, 2);
    start_reviving(&w, 3);
    w.d->revivals = 0;
    assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), 0);
    wait_dead(&w);
    assert_int_equal(w.dead_code, EK_EXIT_DEVICE);
    assert_int_equal(engine_device_order(w.e, ENGINE_ACQUIRE, NULL), -ESHUTDOWN);
    close_world(&w);
    prepare(&w, 1);
    start(&w);
    assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, NULL), -ENOTSUP);
    close_world(&w);
}

static void on_refused(void *ctx, const char *why)
{
    struct engine_world *w = ctx;
    assert_non_null(strstr(why, "gone"));
    pthread_mutex_lock(&w->lock);
    atomic_fetch_add(&told.refused, 1);
    pthread_mutex_unlock(&w->lock);
}

/* After which there would be none: the one that there is goes on, and who asked is told why. */
static void a_restart_is_refused(void **state)
{
    (void)state;
    struct engine_world w;
    struct engine_stats st;
    struct ek_fault fault = {0};
    prepare(&w, 2);
    w.p.refused = on_refused;
    start_reviving(&w, 3);
    atomic_store(&w.d->check_code, -EBADMSG);
    struct request *r = submit(&w, 1, 60);
    wait_until(&w, NULL, 0, &r->out_count, 3);
    assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, &fault), -EBADMSG);
    assert_string_equal(fault.msg, "its files are gone");
    wait_done(&w, r);
    check_output(r, 60);
    engine_stats(w.e, &st);
    assert_int_equal(w.d->released + w.d->revived, 0);
    assert_int_equal(st.revivals.planned, 0);
    assert_int_equal(atomic_load(&told.refused), 1);
    atomic_store(&w.d->check_code, 0);
    assert_int_equal(engine_device_order(w.e, ENGINE_RESTART, &fault), 0);
    wait_until(&w, NULL, 0, &told.times, 1);
    assert_int_equal(w.d->checks, 2);
    request_unref(r);
    close_world(&w);
}

/* Somebody who judges: answers at the fourth asking, or never. */
struct judge {
    struct engine_loss loss;
    struct engine_judged judged;
    uint32_t asked, told;
    bool answers;
};

static struct judge judge;

static bool on_lost(void *ctx, const struct engine_loss *loss)
{
    (void)ctx;
    judge.loss = *loss;
    judge.told++;
    return true;
}

static int on_verdict(void *ctx, uint64_t number, uint64_t wait_us,
                      struct engine_verdict *ret_verdict)
{
    (void)ctx;
    assert_int_equal(number, judge.loss.number);
    assert_true(wait_us <= 60 * EK_US_PER_S);
    if (++judge.asked % 4 != 0)
        return 0;
    if (!judge.answers)
        return -ENOTCONN;
    *ret_verdict = (struct engine_verdict){.tokens = 24, .seqs = 5, .cls = "BURST_OOM"};
    return 1;
}

static void on_judged(void *ctx, const struct engine_judged *judged)
{
    (void)ctx;
    judge.judged = *judged;
}

/* Told before another device is begun, asked until there is an answer; its limits hold. */
static void a_loss_is_judged(void **state)
{
    (void)state;
    for (int answers = 0; answers < 2; answers++) {
        struct engine_world w;
        struct request *r[8];
        struct limits now;
        prepare(&w, 2);
        judge = (struct judge){.answers = answers};
        w.p.lost = on_lost;
        w.p.verdict_wait_us = 60 * EK_US_PER_S; /* the events end it */
        w.p.verdict = on_verdict;
        w.p.judged = on_judged;
        w.d->revive_signal = SIGKILL;
        start_reviving(&w, 8);
        for (uint32_t i = 0; i < 8; i++)
            r[i] = submit(&w, i, 30);
        wait_until(&w, NULL, 0, &r[3]->out_count, 3);
        w.d->wait_fails = EK_EDEVICE;
        for (uint32_t i = 0; i < 8; i++) {
            wait_done(&w, r[i]);
            check_output(r[i], 30);
            request_unref(r[i]);
        }
        assert_int_equal(judge.told, 1);
        assert_int_equal(judge.asked, 4);
        assert_int_equal(judge.loss.number, 1);
        assert_int_equal(judge.loss.exit_code, EK_EXIT_DEVICE);
        assert_true(judge.loss.running > 0 && judge.loss.steps > 0 && judge.loss.tokens == 32);
        assert_int_equal(judge.judged.answered, answers);
        engine_limits(w.e, &now);
        assert_int_equal(now.value[LIMIT_BATCHED_TOKENS], answers ? 24 : 32); /* its floor is 64 */
        assert_int_equal(now.value[LIMIT_RUNNING_SEQS], answers ? 5 : 8);
        close_world(&w);
    }
}

static void what_may_be_memory(void **state)
{
    (void)state;
    static const struct {
        int code;
        bool ended;
        int signal, status;
        bool want;
    } cases[] = {
        {EK_EDEVMEM, false, 0, 0, true},       {-ENOMEM, false, 0, 0, true},
        {EK_EDEVICE, false, 0, 0, false},      {-ETIMEDOUT, false, 0, 0, false},
        {EK_EDEVICE, true, SIGKILL, 0, true},  {EK_EDEVICE, true, SIGBUS, 0, true},
        {EK_EDEVICE, true, SIGSEGV, 0, false}, {EK_EDEVICE, true, SIGABRT, 0, false},
        {EK_EDEVICE, true, SIGTERM, 0, false}, {EK_EDEVICE, true, 0, 70, true},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        const struct engine_loss loss = {
            .code = cases[i].code,
            .end = {.ended = cases[i].ended, .signal = cases[i].signal, .status = cases[i].status},
            .tokens = 2048,
            .seqs = 100,
        };
        struct engine_verdict v;
        assert_int_equal(verdict_may_be_memory(&loss), cases[i].want);
        verdict_own(&loss, &v);
        assert_int_equal(v.tokens, cases[i].want ? 1024 : 0);
        assert_true(v.seqs == 0 && !v.set_swap);
    }
}

/* Only ever lower, within floors, and never fewer tokens than sequences. */
static void a_verdict_lowers(void **state)
{
    (void)state;
    static const struct {
        uint32_t tokens, seqs, want_tokens, want_seqs;
    } cases[] = {{512, 8, 512, 8}, {1024, 16, 0, 0}, {4096, 99, 0, 0},   {0, 0, 0, 0},
                 {1, 1, 32, 4},    {0, 7, 0, 7},     {1023, 0, 1023, 0}, {32, 4, 32, 4}};
    struct limits l = {0};
    l.value[LIMIT_BATCHED_TOKENS] = 1024;
    l.floor[LIMIT_BATCHED_TOKENS] = 32;
    l.value[LIMIT_RUNNING_SEQS] = 16;
    l.floor[LIMIT_RUNNING_SEQS] = 4;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct engine_verdict v = {.tokens = cases[i].tokens, .seqs = cases[i].seqs};
        struct limits_change c;
        struct limits next = l;
        bool any = cases[i].want_tokens || cases[i].want_seqs;
        assert_int_equal(verdict_change(&v, &l, i % 2 == 0, &c), any);
        assert_int_equal(v.tokens, cases[i].want_tokens);
        assert_int_equal(v.seqs, cases[i].want_seqs);
        assert_int_equal(c.expires_in_us, i % 2 == 0 ? 0 : VERDICT_LASTS_US);
        if (any)
            assert_int_equal(limits_apply(&next, &c, 1, NULL), 0);
    }
    const struct engine_loss small = {.code = -ENOMEM, .tokens = 90, .seqs = 80};
    struct engine_verdict v;
    verdict_own(&small, &v);
    assert_int_equal(v.tokens, 80);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(texts_go_on),
        cmocka_unit_test(an_idle_one_comes_back),
        cmocka_unit_test(a_budget_ends_it),
        cmocka_unit_test(no_other_ends_it),
        cmocka_unit_test(the_cause_is_found),
        cmocka_unit_test(restarts_are_not_seen),
        cmocka_unit_test(released_and_acquired),
        cmocka_unit_test(a_load_is_given_up),
        cmocka_unit_test(waiting_is_bounded),
        cmocka_unit_test(a_restart_that_fails),
        cmocka_unit_test(a_loss_is_judged),
        cmocka_unit_test(what_may_be_memory),
        cmocka_unit_test(a_verdict_lowers),
        cmocka_unit_test(a_load_is_tried_again),
        cmocka_unit_test(nodes_out_of_reach),
        cmocka_unit_test(a_load_that_stays_refused),
        cmocka_unit_test(released_between_two_tries),
        cmocka_unit_test(a_restart_is_refused),
        cmocka_unit_test(chance_is_no_cause),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
