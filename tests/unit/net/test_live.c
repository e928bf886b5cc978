/*
 * The control routes on a live engine (null backend): what is refused, in which words, and that a
 * refusal leaves limits and requests as they were; what metrics say about a change; the reset of
 * the prefix cache.
 */
#include <errno.h>
#include <pthread.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>
#include <jansson.h>

#include "common/buf.h"
#include "common/clock.h"
#include "server/api/complete.h"
#include "server/api/error.h"
#include "server/api/openai.h"
#include "server/api/served.h"
#include "server/engine/engine.h"
#include "server/net/control.h"
#include "server/net/metrics.h"
#include "server/net/request.h"
#include "server/net/state.h"
#include "tests/sim/null_backend.h"

#define VOCAB  997u
#define WAIT_S 20

struct live_world {
    struct engine_params p;
    struct served served;
    struct http *http;
    struct ek_device *d;
    pthread_mutex_t lock;
    pthread_cond_t news;
};

static void on_deliver(void *ctx, uint32_t worker)
{
    struct live_world *w = ctx;
    (void)worker;
    pthread_mutex_lock(&w->lock);
    pthread_cond_broadcast(&w->news);
    pthread_mutex_unlock(&w->lock);
}

/* The null backend has no numbers; the page asks for them. */
static void no_stats(struct ek_device *d, struct ek_device_stats *ret_stats)
{
    (void)d;
    *ret_stats = (struct ek_device_stats){.kv_bytes = 4096};
}

static struct ek_backend backend; /* the null one with numbers */

static void set(struct limits *l, enum limit_id id, uint64_t floor, uint64_t ceiling,
                uint64_t value)
{
    l->floor[id] = floor;
    l->ceiling[id] = ceiling;
    l->value[id] = l->start[id] = value;
}

static void open_world(struct live_world *w)
{
    *w = (struct live_world){.lock = PTHREAD_MUTEX_INITIALIZER, .news = PTHREAD_COND_INITIALIZER};
    w->p = (struct engine_params){.max_seqs = 8,
                                  .max_batched_tokens = 32,
                                  .max_model_len = 256,
                                  .block_size = 8,
                                  .blocks = 65,
                                  .vocab = VOCAB,
                                  .depth = 2,
                                  .deliver = on_deliver,
                                  .ctx = w,
                                  .limits.generation = 1};
    struct limits *l = &w->p.limits;
    set(l, LIMIT_RUNNING_SEQS, 1, 8, 8);
    set(l, LIMIT_BATCHED_TOKENS, 1, 32, 32);
    set(l, LIMIT_QUEUED_REQS, 1, 16, 16);
    set(l, LIMIT_QUEUED_TOKENS, 1, 1000, 1000);
    set(l, LIMIT_QUEUE_DEADLINE, 0, 86400 * EK_US_PER_S, 0);
    set(l, LIMIT_WATERMARK, 0, 500000, 10000);
    set(l, LIMIT_CACHED_SHARE, 0, 1000000, 0);
    set(l, LIMIT_KV_BLOCKS, 32, 64, 64);
    set(l, LIMIT_ADMISSION_HIGH, 0, 1000000, 0);
    set(l, LIMIT_ADMISSION_LOW, 0, 1000000, 800000);
    set(l, LIMIT_PREFIX_CACHING, 0, 1, 1);
    set(l, LIMIT_SALT_SHARE, 0, 1000000, 0);
    struct ek_step_ceiling c;
    engine_ceiling(&w->p, &c);
    const struct null_params np = {c, 65, 0, 8, VOCAB, 0};
    assert_int_equal(null_open(&np, &w->d), 0);
    w->d->step_us = 100;
    backend = null_backend;
    backend.stats = no_stats;
    w->served = (struct served){.backend = &backend,
                                .device = w->d,
                                .name = {"m"},
                                .names = 1,
                                .dtype = "auto",
                                .device_name = "null",
                                .blocks = 65,
                                .memory_planned = {1000, 2000},
                                .memory_taken = {1100, 1900}};
    assert_int_equal(engine_new(&w->p, &backend, w->d, &w->served.engine, NULL), 0);
    w->http = calloc(1, sizeof(*w->http));
    assert_non_null(w->http);
    w->http->counts = calloc(route_count(), sizeof(*w->http->counts));
    assert_non_null(w->http->counts);
    w->http->started_us = ek_now_us();
    atomic_store(&w->http->served, &w->served);
}

static void close_world(struct live_world *w)
{
    engine_free(w->served.engine);
    null_close(w->d);
    free(w->http->counts);
    free(w->http);
}

/* The answer's body; the status in *ret_status. The caller frees the buffer. */
static struct ek_buf ask(struct live_world *w, route_fn fn, const char *body, int *ret_status)
{
    struct exchange x = {.http = w->http};
    struct answer a = {.status = 200};
    assert_int_equal(ek_buf_puts(&x.body, body), 0);
    assert_int_equal(fn(&x, &a), 0);
    ek_buf_done(&x.body);
    *ret_status = a.status;
    return a.body;
}

static struct request *submit(struct live_world *w, uint32_t max_new)
{
    int32_t prompt[40];
    for (int i = 0; i < 40; i++)
        prompt[i] = i;
    struct req_ask q = {.prompt = prompt,
                        .prompt_tokens = 40,
                        .max_new_tokens = max_new,
                        .sampling.top_p = 1,
                        .sampling.seed = 5,
                        .arrival_us = ek_now_us()};
    struct request *r = request_new(&q);
    assert_non_null(r);
    assert_int_equal(engine_submit(w->served.engine, r, NULL, NULL), 0);
    return r;
}

static void wait_done(struct live_world *w, const struct request *r)
{
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    t.tv_sec += WAIT_S;
    pthread_mutex_lock(&w->lock);
    while (atomic_load(&r->state) != REQ_DONE)
        assert_int_equal(pthread_cond_timedwait(&w->news, &w->lock, &t), 0);
    pthread_mutex_unlock(&w->lock);
}

/* Field, bound and remedy of each refusal: zero, negative, huge, contradictory. */
static const struct {
    const char *body;
    int status;
    const char *param, *says[3];
} refusals[] = {
    {"{\"max_num_running_seqs\":0}", 400, "max_num_running_seqs", {"least value 1", "raise it"}},
    {"{\"max_num_running_seqs\":-1}", 400, "max_num_running_seqs", {"whole number from 0"}},
    {"{\"max_num_running_seqs\":9}",
     400,
     "max_num_running_seqs",
     {"ceiling 8", "lower it", "larger --max-num-seqs"}},
    {"{\"max_num_running_seqs\":1e11}", 400, "max_num_running_seqs", {"ceiling 8", "lower it"}},
    {"{\"max_num_running_seqs\":1e300}", 400, "max_num_running_seqs", {"to 1000000000000"}},
    {"{\"max_num_running_seqs\":18446744073709551617}", 400, "", {"JSON"}},
    {"{\"max_num_running_seqs\":2.5}", 400, "max_num_running_seqs", {"whole number"}},
    {"{\"max_num_running_seqs\":true}", 400, "max_num_running_seqs", {"whole number"}},
    {"{\"max_num_running_seqs\":null}", 400, "max_num_running_seqs", {"whole number"}},
    {"{\"max_num_batched_tokens\":0}", 400, "max_num_batched_tokens", {"least value 1"}},
    {"{\"max_num_batched_tokens\":33}",
     400,
     "max_num_batched_tokens",
     {"ceiling 32", "larger --max-num-batched-tokens"}},
    {"{\"max_num_batched_tokens\":7}",
     400,
     "max_num_batched_tokens",
     {"below max_num_running_seqs 8", "raise it", "max_num_running_seqs to 7"}},
    {"{\"max_num_batched_tokens\":4,\"max_num_running_seqs\":5}",
     400,
     "max_num_batched_tokens",
     {"below max_num_running_seqs 5", "to 4"}},
    {"{\"num_kv_blocks\":0}", 400, "num_kv_blocks", {"least value 32", "raise it"}},
    {"{\"num_kv_blocks\":31}", 400, "num_kv_blocks", {"least value 32", "raise it"}},
    {"{\"num_kv_blocks\":65}", 400, "num_kv_blocks", {"ceiling 64", "--kv-cache-memory-bytes"}},
    {"{\"watermark\":0.6}", 400, "watermark", {"ceiling 0.5", "lower it"}},
    {"{\"watermark\":-0.1}", 400, "watermark", {"from 0"}},
    {"{\"cached_share\":1.5}", 400, "cached_share", {"ceiling 1", "lower it"}},
    {"{\"cached_share_per_salt\":2}", 400, "cached_share_per_salt", {"ceiling 1"}},
    {"{\"admission_high\":0.5}", 400, "admission_low", {"above admission_high 0.5", "lower it"}},
    {"{\"admission_high\":2}", 400, "admission_high", {"ceiling 1"}},
    {"{\"queue_deadline_s\":90000}", 400, "queue_deadline_s", {"ceiling 86400"}},
    {"{\"max_num_queued_reqs\":0}", 400, "max_num_queued_reqs", {"least value 1"}},
    {"{\"max_num_queued_tokens\":1001}",
     400,
     "max_num_queued_tokens",
     {"ceiling 1000", "larger --max-num-queued-tokens"}},
    {"{\"prefix_caching\":2}", 400, "prefix_caching", {"ceiling 1"}},
    {"{\"block_size\":16}", 400, "block_size", {"no limit `block_size`", "shows them all"}},
    {"{\"max_num_running_seqs\":4,\"watermark\":9}", 400, "watermark", {"ceiling 0.5"}},
    {"{\"max_num_running_seqs\":4,\"expires_in_s\":-2}", 400, "expires_in_s", {"from 0"}},
    {"{\"max_num_running_seqs\":4,\"generation\":77}", 409, "generation", {"77", "read them"}},
    {"{\"expires_in_s\":5}", 400, "", {"names no limit"}},
    {"[]", 400, "", {"object"}},
    {"", 400, "", {"JSON"}},
};

static void refusals_change_nothing(void **state)
{
    struct live_world w;
    struct limits before, after;
    int status;
    (void)state;
    open_world(&w);
    struct request *r = submit(&w, 200);
    engine_limits(w.served.engine, &before);
    for (size_t i = 0; i < sizeof(refusals) / sizeof(refusals[0]); i++) {
        struct ek_buf b = ask(&w, control_patch_limits, refusals[i].body, &status);
        json_t *j = json_loadb(b.data, b.len, 0, NULL);
        const json_t *e = json_object_get(j, "error");
        const char *param = json_string_value(json_object_get(e, "param"));
        const char *msg = json_string_value(json_object_get(e, "message"));
        bool ok = status == refusals[i].status && msg &&
                  strcmp(param ? param : "", refusals[i].param) == 0;
        for (int k = 0; ok && k < 3 && refusals[i].says[k]; k++)
            ok = strstr(msg, refusals[i].says[k]) != NULL;
        if (!ok)
            fail_msg("%s: %d %s", refusals[i].body, status, b.data);
        json_decref(j);
        ek_buf_done(&b);
        engine_limits(w.served.engine, &after);
        assert_memory_equal(&before, &after, sizeof(before));
    }
    wait_done(&w, r); /* what was accepted is not lost */
    assert_int_equal(r->finish, REQ_FIN_LENGTH);
    assert_int_equal(atomic_load(&r->out_count), 200);
    request_unref(r);
    close_world(&w);
}

/* Half of a batch is done and the queue is full of others: it is tried again without being counted,
 * and refused when that has lasted for too long. */
static void batch_gives_up(void **state)
{
    static const char body[] = "{\"prompt\":[[1,2],[3,4],[5,6]],\"max_tokens\":1}";
    static const struct generation_origin from = {.request_id = "r", .arrival_us = 5};
    struct live_world w;
    struct request *others[2];
    struct engine_stats before, after;
    struct generation *g = NULL;
    struct api_error err;
    (void)state;
    open_world(&w);
    w.d->step_us = 50000;
    w.served.vocab = VOCAB;
    w.served.max_model_len = 256;
    w.served.defaults = (struct served_defaults){EK_SAMPLING_NEUTRAL, 0};
    struct limits_change c = {.set = 1u << LIMIT_RUNNING_SEQS | 1u << LIMIT_QUEUED_REQS};
    c.value[LIMIT_RUNNING_SEQS] = c.value[LIMIT_QUEUED_REQS] = 1;
    assert_int_equal(engine_limits_apply(w.served.engine, &c, NULL, NULL), 0);
    others[0] = submit(&w, 200);
    others[1] = submit(&w, 200); /* it waits */
    json_t *j = openai_load(body, sizeof(body) - 1, &err);
    if (generation_new(&w.served, API_PLAIN, j, &from, &g, &err) < 0)
        fail_msg("%s", err.msg);
    g->taken = 1;
    g->choice[0].taken = g->choice[0].over = true;
    g->choice[0].finish = REQ_FIN_LENGTH;
    engine_stats(w.served.engine, &before);
    assert_int_equal(generation_submit(g, &err), 0);
    assert_true(g->parted && g->full && g->stuck_us > 0 && !g->refused);
    assert_true(generation_tick(g) && !generation_tick(g));
    uint64_t since = g->stuck_us;
    assert_int_equal(generation_submit(g, &err), 0);
    assert_true(g->stuck_us == since);
    engine_stats(w.served.engine, &after);
    assert_true(after.refused_queue == before.refused_queue);
    g->stuck_us = 1; /* long ago */
    assert_int_equal(generation_submit(g, &err), -EBADMSG);
    assert_int_equal(err.status, 429);
    assert_true(err.retry_after_s > 0 && strstr(err.msg, "the queue is full"));
    engine_stats(w.served.engine, &after);
    assert_true(after.refused_queue == before.refused_queue + 1);
    generation_free(g);
    for (int i = 0; i < 2; i++) {
        engine_finish(w.served.engine, others[i], REQ_FIN_ABORT);
        wait_done(&w, others[i]);
        request_unref(others[i]);
    }
    close_world(&w);
}

static double sample(const struct ek_buf *page, const char *name)
{
    const char *at = strstr(page->data, name);
    if (!at)
        fail_msg("no %s", name);
    return strtod(strchr(at, '}') + 1, NULL);
}

#define BASE "{engine=\"0\",model_name=\"m\","
static void changes_show(void **state)
{
    struct live_world w;
    struct ek_buf page = {0};
    int status;
    (void)state;
    open_world(&w);
    struct ek_buf b = ask(&w, control_patch_limits,
                          "{\"max_num_running_seqs\":3,\"expires_in_s\":500,\"origin\":\"op\","
                          "\"reason\":\"test\"}",
                          &status);
    assert_int_equal(status, 200);
    ek_buf_done(&b);
    b = ask(&w, control_patch_limits, "{\"watermark\":0.25}", &status);
    assert_int_equal(status, 200);
    ek_buf_done(&b);
    b = ask(&w, control_get_limits, "", &status);
    json_t *j = json_loadb(b.data, b.len, 0, NULL);
    assert_int_equal(json_integer_value(json_object_get(j, "max_num_running_seqs")), 3);
    assert_int_equal(json_integer_value(json_object_get(j, "generation")), 3);
    double left = json_number_value(json_object_get(j, "expires_in_s"));
    assert_true(left > 400 && left <= 500);
    json_decref(j);
    ek_buf_done(&b);

    assert_int_equal(metrics_write(w.http, EK_EXPO_TEXT, true, &page), 0);
    assert_true(sample(&page, "evenkeel_limit" BASE "limit=\"max_num_running_seqs\"") == 3.0);
    assert_true(sample(&page, "evenkeel_limit" BASE "limit=\"watermark\"") == 0.25);
    left = sample(&page, "evenkeel_limit_expires_seconds" BASE "limit=\"max_num_running_seqs\"");
    assert_true(left > 400 && left <= 500);
    assert_true(sample(&page, "evenkeel_limit_expires_seconds" BASE "limit=\"watermark\"") == 0.0);
    double age = sample(&page, "evenkeel_limit_changed_seconds" BASE
                               "limit=\"max_num_running_seqs\",origin=\"op\"");
    assert_true(age >= 0 && age < 100);
    (void)sample(&page,
                 "evenkeel_limit_changed_seconds" BASE "limit=\"watermark\",origin=\"unknown\"");
    (void)sample(&page,
                 "evenkeel_limit_changed_seconds" BASE "limit=\"admission_low\",origin=\"start\"");
    assert_true(sample(&page, "evenkeel_memory_bytes" BASE "where=\"host\",figure=\"planned\"") ==
                1000.0);
    assert_true(sample(&page, "evenkeel_memory_bytes" BASE "where=\"device\",figure=\"taken\"") ==
                1900.0);
    assert_true(sample(&page, "evenkeel_memory_bytes" BASE "where=\"device\",figure=\"now\"") ==
                4096.0);
    assert_true(sample(&page, "evenkeel_memory_bytes" BASE "where=\"host\",figure=\"now\"") > 0);
    ek_buf_done(&page);
    close_world(&w);
}

static uint32_t cached_of_one(struct live_world *w)
{
    struct request *r = submit(w, 4);
    wait_done(w, r);
    uint32_t cached = r->cached_tokens;
    request_unref(r);
    return cached;
}

static void reset_forgets(void **state)
{
    struct live_world w;
    int status;
    (void)state;
    open_world(&w);
    assert_int_equal(cached_of_one(&w), 0);
    assert_true(cached_of_one(&w) >= 32);
    struct ek_buf b = ask(&w, control_reset_prefix_cache, "", &status);
    assert_int_equal(status, 200);
    assert_string_equal(b.data, "{}");
    ek_buf_done(&b);
    assert_int_equal(cached_of_one(&w), 0);
    assert_true(cached_of_one(&w) >= 32);
    /* Off and on again, live. */
    b = ask(&w, control_patch_limits, "{\"prefix_caching\":0}", &status);
    assert_int_equal(status, 200);
    ek_buf_done(&b);
    assert_int_equal(cached_of_one(&w), 0);
    close_world(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(refusals_change_nothing),
        cmocka_unit_test(batch_gives_up),
        cmocka_unit_test(changes_show),
        cmocka_unit_test(reset_forgets),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
