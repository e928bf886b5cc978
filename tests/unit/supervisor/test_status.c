/* The API, the page and the metrics of a loop with servers that were never started. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/clock.h"
#include "common/err.h"
#include "supervisor/daemon.h"
#include "supervisor/io/client.h"
#include "supervisor/io/log_class.h"
#include "supervisor/io/peers.h"
#include "supervisor/web/api.h"
#include "supervisor/web/expo.h"
#include "supervisor/web/page.h"

struct status_world {
    struct loop loop;
    struct config config;
    struct server *servers[2];
    const char *limit; /* of the query */
};

static void no_line(void *ctx, const struct figures *f)
{
    (void)ctx;
    (void)f;
}

static void set_up(struct status_world *w)
{
    char *argv[] = {(char[]){"evenkeeld"}, (char[]){"--model"},   (char[]){"/m"},
                    (char[]){"--run-dir"}, (char[]){"/run/none"}, NULL};
    struct ek_fault f;
    *w = (struct status_world){.loop = {.lock = -1}};
    assert_int_equal(config_parse(5, argv, &w->config, &f), 0);
    assert_true(sd_event_new(&w->loop.fleet.with.event) >= 0);
    assert_int_equal(client_new(w->loop.fleet.with.event, &w->loop.fleet.with.client), 0);
    struct figures_setup figures = {
        .event = w->loop.fleet.with.event, .every_s = 60, .each = no_line};
    assert_int_equal(figures_new(&figures, &w->loop.fleet.with.figures), 0);
    assert_int_equal(peers_new(w->loop.fleet.with.event, w->loop.fleet.with.client, NULL, 0,
                               &w->loop.fleet.with.peers),
                     0);
    w->loop.fleet.with.config = w->loop.fleet.config = &w->config;
    w->loop.fleet.with.state = &w->loop.state;
    w->loop.fleet.servers = w->servers;
    w->loop.fleet.count = 1;
    assert_int_equal(server_new(&w->loop.fleet.with, &w->config.servers[0], &w->servers[0]), 0);
}

static void tear_down(struct status_world *w)
{
    server_free(w->servers[0]);
    figures_free(w->loop.fleet.with.figures);
    peers_free(w->loop.fleet.with.peers);
    client_free(w->loop.fleet.with.client);
    sd_event_unref(w->loop.fleet.with.event);
    config_free(&w->config);
}

static void never(void *ctx, int status, const char *body, size_t len)
{
    (void)ctx;
    (void)status;
    (void)body;
    (void)len;
    fail();
}

static const char *query(void *ctx, const char *name)
{
    struct status_world *w = ctx;
    return strcmp(name, "limit") == 0 ? w->limit : NULL;
}

static void test_reading(void **state)
{
    (void)state;
    static const struct {
        const char *path, *limit;
        int status;
    } cases[] = {
        {"/api/v1/servers", NULL, 200},
        {"/api/v1/servers/main", NULL, 200},
        {"/api/v1/servers/main/decisions", "5", 200},
        {"/api/v1/servers/main/decisions", "0", 200},
        {"/api/v1/servers/main/decisions", "-1", 400},
        {"/api/v1/servers/main/decisions", "100000", 400},
        {"/api/v1/servers/main/decisions", "99999999999999999999", 400},
        {"/api/v1/servers/main/failures", NULL, 200},
        {"/api/v1/servers/main/failures", "33", 400},
        {"/api/v1/servers/main/history", NULL, 200},
        {"/api/v1/servers/main/limits", NULL, 405},
        {"/api/v1/servers/main/nothing", NULL, 404},
        {"/api/v1/servers/main/", NULL, 404},
        {"/api/v1/servers/other/decisions", NULL, 404},
        {"/api/v1/servers/", NULL, 404},
        {"/api/v1/serversmain", NULL, 404},
        {"/etc/passwd", NULL, 404},
    };
    struct status_world w;
    set_up(&w);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf out = {0};
        w.limit = cases[i].limit;
        int status = api_read(&w.loop.fleet, cases[i].path, query, &w, never, NULL, &out);
        if (status != cases[i].status)
            fail_msg("%s: status %d, wanted %d", cases[i].path, status, cases[i].status);
        json_t *j = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
        assert_non_null(j);
        const char *said =
            json_string_value(json_object_get(json_object_get(j, "error"), "message"));
        assert_int_equal(said != NULL, status >= 400);
        json_decref(j);
        ek_buf_done(&out);
    }
    tear_down(&w);
}

static void test_writing(void **state)
{
    (void)state;
    static const struct {
        const char *method, *path, *body;
        int status;
        const char *says;
    } cases[] = {
        {"PATCH", "/api/v1/servers/main/limits", "{\"max_num_running_seqs\":4}", 409, "limits"},
        {"PATCH", "/api/v1/servers/main/limits", "{\"max_num_running_seqs\":0}", 400, "whole"},
        {"PATCH", "/api/v1/servers/main/limits", "{\"max_num_running_seqs\":1.5}", 400, "whole"},
        {"PATCH", "/api/v1/servers/main/limits", "{\"max_num_seqs\":4}", 400, "is no limit"},
        {"PATCH", "/api/v1/servers/main/limits", "{\"pin\":1}", 400, "true or false"},
        {"PATCH", "/api/v1/servers/main/limits", "{}", 400, "names no limit"},
        {"PATCH", "/api/v1/servers/main/limits", "", 400, "JSON"},
        {"PATCH", "/api/v1/servers/main/limits", "[", 400, "JSON"},
        {"POST", "/api/v1/servers/main/limits", "{}", 405, "PATCH"},
        {"POST", "/api/v1/servers/main/drain", "", 409, "only a ready server"},
        {"PATCH", "/api/v1/servers/main/drain", "", 405, "POST"},
        {"POST", "/api/v1/servers/main/explode", "", 404, "no verb"},
        {"POST", "/api/v1/servers/none/drain", "", 404, "no server 'none'"},
        {"POST", "/api/v1/servers", "", 404, "nothing"},
    };
    struct status_world w;
    set_up(&w);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct ek_buf out = {0};
        int status = api_write(&w.loop.fleet, cases[i].method, cases[i].path, cases[i].body,
                               strlen(cases[i].body), never, NULL, &out);
        if (status != cases[i].status || !strstr(out.data, cases[i].says))
            fail_msg("case %zu: status %d: %s", i, status, out.data);
        ek_buf_done(&out);
    }
    tear_down(&w);
}

static void test_page(void **state)
{
    (void)state;
    struct status_world w;
    struct ek_buf out = {0};
    set_up(&w);
    (void)strcpy(w.servers[0]->address.model, "<script>alert('x')</script>");
    assert_int_equal(page_write(&w.loop.fleet, "abc123", &out), 0);
    assert_non_null(strstr(out.data, "data-server=\"main\""));
    assert_non_null(strstr(out.data, "<style nonce=\"abc123\">"));
    assert_non_null(strstr(out.data, "&lt;script&gt;alert(&#39;x&#39;)"));
    assert_null(strstr(out.data, "<script>alert"));
    assert_null(strstr(out.data, "{{"));
    assert_null(strstr(out.data, " style=")); /* the policy forbids it */
    assert_non_null(strstr(out.data, "<details class=\"fold\" open>"));
    assert_null(strstr(out.data, ".right a { display: none")); /* also on a phone */
    assert_non_null(strstr(out.data, "All times are UTC"));
    assert_null(strstr(out.data, "toLocaleTimeString")); /* nor a zone of the browser's */
    assert_null(strstr(out.data, "&gt; 12.00 s"));
    ek_buf_clear(&out);
    /* 20 wait and nobody had a first token of late: then as long as the first has waited. */
    w.servers[0]->watch.view.value[VIEW_QUEUE_OLDEST] = 12;
    w.servers[0]->watch.view.value[VIEW_CPU] = 1.84;
    (void)strcpy(w.servers[0]->watch.waiting_why, "20 wait: 8 run, the limit is 8");
    assert_int_equal(page_write(&w.loop.fleet, "abc123", &out), 0);
    assert_non_null(
        strstr(out.data, "data-k=\"ttft_p99_s\">&gt; 12.00 s</span></b><span>TTFT p99"));
    assert_non_null(strstr(out.data, "data-k=\"waiting_why\">20 wait: 8 run, the limit is 8</p>"));
    assert_non_null(strstr(out.data, "data-k=\"cpu_cores\">1.8</span>"));
    ek_buf_done(&out);
    tear_down(&w);
}

static struct failure burst(const char *why, double hit_frac)
{
    struct crash_verdict v = {.cls = CRASH_BURST_OOM,
                              .numbers = {.found = true, .requested = 2048, .free = 512}};
    struct crash_cache cache = {.hit_frac = hit_frac, .cached_frac = 0.5};
    struct failure f = {
        .wall_us = ek_wall_us(), .cls = v.cls, .uptime_s = 5, .remedy = crash_remedy(v.cls)};
    (void)strcpy(f.why, why);
    (void)strcpy(f.next, "starting again in 0.5 s");
    f.asked = crash_questions(&v, PHASE_READY, &cache, f.steps);
    return f;
}

static json_t *ask(struct status_world *w, const char *path)
{
    struct ek_buf out = {0};
    w->limit = NULL;
    assert_int_equal(api_read(&w->loop.fleet, path, query, w, never, NULL, &out), 200);
    json_t *j = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
    assert_non_null(j);
    ek_buf_done(&out);
    return j;
}

/* The questions in their order with the answers found, on the page and in the API; old failures
 * leave. */
static void test_failures(void **state)
{
    (void)state;
    static const struct {
        double hit_frac;
        const char *answer[DOCTOR_QUESTIONS];
        const char *page;
    } cases[] = {{0.1, {"No", "Yes", "No", "Yes"}, "<b>Yes, too</b>"},
                 {0.9, {"No", "Yes", "No", "No"}, "<li data-answer=\"no\">Does the prefix cache"},
                 {NAN, {"No", "Yes", "No", "not asked"}, "<b>Not asked any more</b>"}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct status_world w;
        struct ek_buf out = {0};
        set_up(&w);
        struct failure f = burst("2 <GiB> were asked for", cases[i].hit_frac);
        assert_true(f.asked);
        assert_int_equal(failure_case(&f), ASK_BURST);
        failures_push(&w.servers[0]->ends.failures, &f);
        json_t *j = ask(&w, "/api/v1/servers/main/failures");
        const json_t *one = json_array_get(json_object_get(j, "failures"), 0);
        const json_t *asked = json_object_get(one, "questions");
        assert_int_equal(json_array_size(asked), DOCTOR_QUESTIONS);
        for (size_t q = 0; q < DOCTOR_QUESTIONS; q++)
            assert_string_equal(
                json_string_value(json_object_get(json_array_get(asked, q), "answer")),
                cases[i].answer[q]);
        json_decref(j);
        assert_int_equal(page_write(&w.loop.fleet, "n", &out), 0);
        assert_non_null(strstr(out.data, "<b>Failed: BURST_OOM</b>"));
        assert_non_null(strstr(out.data, "2 &lt;GiB&gt; were asked for"));
        assert_non_null(strstr(out.data, cases[i].page));
        ek_buf_done(&out);
        tear_down(&w);
    }
    struct failures kept = {0};
    for (uint32_t i = 0; i < FAILURES_KEPT + 3; i++) {
        struct failure f = {.wall_us = i, .cls = CRASH_CONFIG};
        failures_push(&kept, &f);
        assert_int_equal(failure_case(&f), DOCTOR_QUESTIONS);
    }
    assert_int_equal(failures_at(&kept, 0)->wall_us, FAILURES_KEPT + 2);
    assert_int_equal(failures_at(&kept, FAILURES_KEPT - 1)->wall_us, 3);
    assert_null(failures_at(&kept, FAILURES_KEPT));
}

/* Several servers have a table of all above them, one has none. */
static void test_overview(void **state)
{
    (void)state;
    struct status_world w;
    struct ek_buf out = {0};
    set_up(&w);
    assert_int_equal(page_write(&w.loop.fleet, "n", &out), 0);
    assert_null(strstr(out.data, "data-row=\"main\""));
    ek_buf_done(&out);
    w.servers[1] = w.servers[0];
    w.servers[0]->state = SRV_BREAKER;
    w.loop.fleet.count = 2;
    decisions_push(&w.servers[0]->law.decisions,
                   &(struct decision){.kind = ACT_NOTE,
                                      .reason = REASON_OPERATOR,
                                      .why = "Operator: restart in its turn"});
    assert_int_equal(page_write(&w.loop.fleet, "n", &out), 0);
    assert_non_null(strstr(out.data, "data-row=\"main\""));
    assert_non_null(strstr(out.data, "href=\"#server-main\""));
    assert_non_null(strstr(out.data, ">breaker open</span>"));
    assert_non_null(strstr(out.data, "data-k=\"last\">Operator: restart in its turn</span>"));
    assert_non_null(strstr(out.data, "<details class=\"fold\"><summary>")); /* cards are folded */
    assert_null(strstr(out.data, "<details class=\"fold\" open>"));
    ek_buf_done(&out);
    w.loop.fleet.count = 0;
    assert_int_equal(page_write(&w.loop.fleet, "n", &out), 0);
    assert_non_null(strstr(out.data, "Nothing to serve yet"));
    assert_non_null(strstr(out.data, "<code>evenkeelctl setup"));
    ek_buf_done(&out);
    tear_down(&w);
}

static void test_metrics(void **state)
{
    (void)state;
    struct status_world w;
    struct ek_buf out = {0}, names = {0};
    set_up(&w);
    w.servers[0]->ends.restarts[CAUSE_HANG] = 3;
    assert_int_equal(expo_write(&w.loop.fleet, EK_EXPO_TEXT, &out), 0);
    assert_non_null(strstr(out.data, "evenkeel_supervisor_server_up{server=\"main\"} 0\n"));
    assert_non_null(
        strstr(out.data, "evenkeel_supervisor_restarts_total{server=\"main\",cause=\"hang\"} 3\n"));
    assert_int_equal(expo_names(&names), 0);
    for (const struct ek_metric *m = expo_table; m->name; m++) {
        assert_non_null(strstr(names.data, m->name));
        if (!strstr(out.data, m->name))
            fail_msg("%s is not on the page", m->name);
    }
    ek_buf_done(&out);
    ek_buf_done(&names);
    tear_down(&w);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_reading),  cmocka_unit_test(test_writing),
        cmocka_unit_test(test_page),     cmocka_unit_test(test_failures),
        cmocka_unit_test(test_overview), cmocka_unit_test(test_metrics),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
