/* What a postmortem says of recordings of which the answer is known; the seconds add up. */
#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/law/postmortem.h"

#define MONO  5000000000ull       /* us: when the process started */
#define WALL  1795000000000000ull /* the same on the wall */
#define STEPS 40u                 /* of 100 ms */

static struct ek_recorder_step steps[STEPS], begun[2];
static struct ek_recorder_request requests[4];

/* Four quiet seconds: 8 rows a step, 2 of them of prompts; one request ended, one did not. */
static struct ek_recorded quiet(void)
{
    struct ek_recorded r = {.steps = steps,
                            .begun = begun,
                            .requests = requests,
                            .step_count = STEPS,
                            .begun_count = 1,
                            .request_count = 3};
    r.head.started_us = MONO;
    r.head.started_wall_us = WALL;
    for (uint32_t i = 0; i < STEPS; i++)
        steps[i] = (struct ek_recorder_step){.id = i + 1,
                                             .at_us = MONO + i * 100000ull,
                                             .step_us = 50000,
                                             .rows = 8,
                                             .prefill_rows = 2,
                                             .seqs = 3,
                                             .running = 3,
                                             .blocks_total = 1000,
                                             .blocks_used = 100,
                                             .blocks_free = 900,
                                             .limit_seqs = 8,
                                             .limit_tokens = 512,
                                             .limit_blocks = 1000,
                                             .resident_mib = 100,
                                             .generation_tokens = i * 6};
    begun[0] = steps[STEPS - 1];
    memset(requests, 0, sizeof(requests));
    requests[0] = (struct ek_recorder_request){
        .id = 1, .kind = EK_RECORDER_ARRIVED, .at_us = MONO, .prompt_tokens = 7, .most_tokens = 9};
    requests[1] = (struct ek_recorder_request){.id = 2,
                                               .kind = EK_RECORDER_ARRIVED,
                                               .at_us = MONO + 1,
                                               .prompt_tokens = 4096,
                                               .most_tokens = 512,
                                               .flags = EK_RECORDER_GRAMMAR};
    requests[2] =
        (struct ek_recorder_request){.id = 1, .kind = EK_RECORDER_ENDED, .at_us = MONO + 2};
    return r;
}

static const struct postmortem end = {.server = "s1",
                                      .engine = "evenkeel",
                                      .cls = "SIGNAL",
                                      .why = "Signal 9 \"ended\" it.",
                                      .pid = 42,
                                      .wall_us = WALL + 4000000,
                                      .now_us = MONO + 4000000,
                                      .uptime_s = 4,
                                      .resident = 1e8,
                                      .cgroup = (double)NAN,
                                      .samples = "{\"rows\":[]}"};

static json_t *document_of(const struct postmortem *p, const struct ek_recorded *r)
{
    struct ek_buf out = {0};
    json_error_t e;
    assert_int_equal(postmortem_json(p, r, &out), 0);
    json_t *doc = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, &e);
    if (!doc)
        fail_msg("%s in %s", e.text, out.data);
    ek_buf_done(&out);
    return doc;
}

static json_t *document(const struct ek_recorded *r)
{
    return document_of(&end, r);
}

static bool says(const json_t *doc, const char *what)
{
    const json_t *line;
    size_t i;
    json_array_foreach(json_object_get(doc, "summary"), i, line)
    {
        if (strstr(json_string_value(line), what))
            return true;
    }
    return false;
}

static void test_quiet(void **state)
{
    (void)state;
    struct ek_recorded r = quiet();
    json_t *doc = document(&r), *s;
    const json_t *seconds = json_object_get(doc, "seconds");
    json_int_t steps_in_all = 0, prompts = 0, rows = 0, made = 0;
    size_t i;
    assert_int_equal(json_array_size(seconds), 4);
    json_array_foreach(seconds, i, s)
    {
        steps_in_all += json_integer_value(json_object_get(s, "steps"));
        prompts += json_integer_value(json_object_get(s, "prefill_tokens"));
        rows += json_integer_value(json_object_get(s, "decode_rows"));
        made += json_integer_value(json_object_get(s, "generated"));
        assert_int_equal(json_integer_value(json_object_get(s, "step_p50_us")), 50000);
    }
    assert_int_equal(steps_in_all, STEPS);
    assert_int_equal(prompts, 2 * STEPS);
    assert_int_equal(rows, 6 * STEPS);
    assert_int_equal(made, 6 * (STEPS - 1));
    assert_int_equal(json_array_size(json_object_get(doc, "in_flight")), 0);
    const json_t *q = json_object_get(doc, "requests");
    assert_int_equal(json_integer_value(json_object_get(q, "alive")), 1);
    assert_int_equal(json_array_size(json_object_get(q, "list")), 1);
    assert_true(says(doc, "1 request had not ended: the longest prompt has 4096 tokens, the "
                          "largest answer may have 512; with a grammar among them."));
    assert_int_equal(json_array_size(json_object_get(doc, "summary")), 1); /* nothing else */
    json_decref(doc);
}

struct story {
    const char *says;
    void (*make)(struct ek_recorded *r);
};

static void in_flight(struct ek_recorded *r)
{
    begun[0].id = STEPS + 1;
    begun[0].at_us = MONO + 3990000;
    r->begun_count = 1;
}

static void no_blocks(struct ek_recorded *r)
{
    for (uint32_t i = STEPS - 20; i < r->step_count; i++) {
        steps[i].blocks_used = 1000;
        steps[i].blocks_free = 0;
        steps[i].waiting = 5;
    }
}

static void preempts(struct ek_recorded *r)
{
    steps[r->step_count - 1].preemptions = 14;
}

static void queue_grows(struct ek_recorded *r)
{
    steps[r->step_count - 1].waiting = 90;
}

static void slow(struct ek_recorded *r)
{
    steps[r->step_count - 1].step_us = 1203000;
}

static void fails(struct ek_recorded *r)
{
    steps[r->step_count - 1].error = EK_EDEVMEM;
}

static void limit_falls(struct ek_recorded *r)
{
    for (uint32_t i = STEPS - 10; i < r->step_count; i++)
        steps[i].limit_seqs = 4;
}

static void memory_grows(struct ek_recorded *r)
{
    steps[r->step_count - 1].resident_mib = 140;
}

static void silent(struct ek_recorded *r)
{
    r->step_count = STEPS - 20;
}

static void idle(struct ek_recorded *r)
{
    r->step_count = STEPS - 20;
    r->request_count = 0;
}

static void nothing(struct ek_recorded *r)
{
    r->step_count = r->begun_count = r->request_count = 0;
}

static void torn(struct ek_recorded *r)
{
    r->torn = 2;
}

static void test_stories(void **state)
{
    (void)state;
    static const struct story stories[] = {
        {"A step was on the device, begun 0.010 s before the end: 8 rows, 2 of them of prompts, 3 "
         "sequences.",
         in_flight},
        {"Blocks ran out 2.0 s before the end: 1000 of 1000 used, 5 requests waited", no_blocks},
        {"14 preemptions in the last 10 s.", preempts},
        {"The queue grew from 0 to 90 in the last 10 s.", queue_grows},
        {"The last step took 1203.0 ms, the median of the recorded ones is 50.0 ms.", slow},
        {"1 step failed, the last with: ", fails},
        {"max_num_running_seqs went from 8 to 4 1.0 s before the end.", limit_falls},
        {"The process's memory grew from 100 to 140 MiB.", memory_grows},
        {"No step landed in the 2.1 s before the end, though 1 request had not ended.", silent},
        {"The engine was idle: its last step landed 2.1 s before the end.", idle},
        {"It made no step that is recorded.", nothing},
        {"2 records were not whole and left out.", torn},
    };
    for (size_t i = 0; i < sizeof(stories) / sizeof(stories[0]); i++) {
        struct ek_recorded r = quiet();
        stories[i].make(&r);
        json_t *doc = document(&r);
        if (!says(doc, stories[i].says))
            fail_msg("%s: not in %s", stories[i].says,
                     json_dumps(json_object_get(doc, "summary"), 0));
        json_decref(doc);
    }
}

static size_t flights(struct ek_recorded *r)
{
    json_t *doc = document(r);
    size_t n = json_array_size(json_object_get(doc, "in_flight"));
    json_decref(doc);
    return n;
}

/* On the device is what has no record of its own and nothing done behind it. */
static void test_in_flight(void **state)
{
    (void)state;
    struct ek_recorded r = quiet();
    r.begun_count = 2;
    begun[0] = (struct ek_recorder_step){.id = STEPS + 1, .at_us = MONO + 3950000, .rows = 5};
    begun[1] = (struct ek_recorder_step){.id = STEPS + 2, .at_us = MONO + 3960000, .rows = 6};
    assert_int_equal(flights(&r), 2); /* one hangs, one waits */
    json_t *doc = document(&r);
    assert_true(says(doc, "A step was on the device, begun 0.050 s before the end: 5 rows"));
    assert_true(says(doc, "Another was waiting behind it, begun 0.040 s before"));
    json_decref(doc);
    steps[STEPS - 1].id = STEPS + 2; /* could not be begun: the one before it goes on */
    steps[STEPS - 1].error = EK_EDEVMEM;
    assert_int_equal(flights(&r), 1);
    steps[STEPS - 1].error = 0; /* done, so what was before it is done, too */
    assert_int_equal(flights(&r), 0);
    steps[STEPS - 2].id = STEPS + 1; /* failed, with one planned on top of it */
    steps[STEPS - 2].error = EK_EDEVICE;
    steps[STEPS - 1].error = -ECANCELED;
    assert_int_equal(flights(&r), 0);
    doc = document(&r);
    assert_true(says(doc, "1 step failed, the last with: "));
    assert_true(says(doc, ": 8 rows, 2 of them of prompts, 3 sequences."));
    json_decref(doc);
}

/* Found an hour later, by who had not watched: the end was at the last record. And a wall clock
 * that was set meanwhile moves no sentence. */
static void test_clocks(void **state)
{
    (void)state;
    struct ek_recorded r = quiet();
    struct postmortem p = end;
    p.unseen = true;
    p.wall_us += 3600000000ull;
    p.now_us += 3600000000ull;
    json_t *doc = document_of(&p, &r);
    assert_false(says(doc, "No step landed"));
    assert_true(says(doc, "Nobody watched"));
    assert_true(fabs(json_number_value(json_object_get(doc, "at_s")) - (WALL + 3900000) / 1e6) <
                0.01);
    assert_true(fabs(json_number_value(json_object_get(doc, "uptime_s")) - 3.9) < 0.01);
    json_decref(doc);
    p = end;
    p.wall_us += 3600000000ull;
    doc = document_of(&p, &r);
    assert_false(says(doc, "No step landed"));
    json_decref(doc);
    p.wall_us = WALL - 1;
    p.now_us += 5000000;
    doc = document_of(&p, &r);
    assert_true(says(doc, "No step landed in the 5.1 s before the end"));
    json_decref(doc);
}

/* Of a minute alone, with each second once, whatever the steps' times are. */
static void test_bounds(void **state)
{
    (void)state;
    struct ek_recorded r = quiet();
    for (uint32_t i = 0; i < STEPS; i++)
        steps[i].at_us = MONO + i * 10000000ull;
    json_t *doc = document(&r);
    assert_int_equal(json_array_size(json_object_get(doc, "seconds")), 7);
    json_decref(doc);
    for (uint32_t i = 0; i < STEPS; i++)
        steps[i].at_us = i % 2 ? UINT64_MAX - i : i; /* the file is another's */
    doc = document(&r);
    assert_true(json_array_size(json_object_get(doc, "seconds")) <= POSTMORTEM_S + 1);
    json_decref(doc);
}

static double figure(const json_t *o, const char *key)
{
    return json_number_value(json_object_get(o, key));
}

/* What a replay gets: whose answer is not known, and times that lie on a line. */
static void test_workload(void **state)
{
    (void)state;
    struct ek_recorded r = quiet();
    r.head.about = (struct ek_recorder_about){.max_seqs = 64, .max_tokens = 2048, .block_size = 16};
    requests[2].output_tokens = 5;
    requests[2].cached_tokens = 6;
    for (uint32_t i = 0; i < STEPS; i++) {
        steps[i].rows = 1 + i % 7;
        steps[i].step_us = 1000 + 100 * steps[i].rows;
        steps[i].preemptions = UINT32_MAX - 2 + i / 8; /* low bits of a counter */
        steps[i].blocks_used = i == 20 ? 700 : 100;
    }
    steps[3].rows = 1000;
    steps[3].error = -5;
    steps[STEPS - 1].limit_tokens = 0;
    json_t *doc = document(&r);
    const json_t *w = json_object_get(doc, "workload");
    assert_true(fabs(figure(w, "base_us") - 1000) < 1 && fabs(figure(w, "row_us") - 100) < 1);
    assert_true(figure(w, "max_num_seqs") == 8 && figure(w, "max_num_batched_tokens") == 2048);
    assert_true(figure(w, "blocks") == 1000 && figure(w, "block_size") == 16);
    assert_true(figure(w, "steps") == STEPS && figure(w, "lasted_us") == (STEPS - 1) * 1e5);
    assert_true(figure(w, "preemptions") == 4 && figure(w, "used_blocks_most") == 700);
    char *text = json_dumps(json_object_get(w, "requests"), JSON_COMPACT);
    assert_string_equal(text, "[[0,7,5,9,6],[1,4096,null,512,0]]");
    free(text);
    json_decref(doc);

    requests[0].kind = EK_RECORDER_ENDED; /* both of which nobody saw come: one before the others */
    requests[0].id = 3;
    requests[2].id = 1;
    for (uint32_t i = 0; i < STEPS; i++)
        steps[i] = (struct ek_recorder_step){.rows = 1 + i % 2, .step_us = 100 - 90 * (i % 2)};
    doc = document(&r);
    w = json_object_get(doc, "workload");
    assert_true(fabs(figure(w, "base_us") - 55) < 1 && figure(w, "row_us") == 0); /* not below 0 */
    assert_true(figure(w, "older") == 1);
    json_decref(doc);
}

static void line_is(const struct ek_recorded *r, double base_us, double row_us)
{
    json_t *doc = document(r);
    const json_t *w = json_object_get(doc, "workload");
    const double base = figure(w, "base_us"), row = figure(w, "row_us");
    if (!(fabs(base - base_us) <= base_us / 100 && fabs(row - row_us) <= row_us / 50))
        fail_msg("%g us and %g us a row instead of %g and %g", base, row, base_us, row_us);
    json_decref(doc);
}

/* A few steps that the machine held do not carry the line. */
static void test_line(void **state)
{
    (void)state;
    struct ek_recorded r = quiet();
    for (uint32_t i = 0; i < STEPS; i++) /* answers alone, but for the step of the prompts */
        steps[i] = (struct ek_recorder_step){.rows = i ? 4 : 60, .step_us = i ? 2100 : 123000};
    line_is(&r, 2100, 0); /* what one more row takes is not known */
    steps[1].rows = 61;
    line_is(&r, 2100, 0);
    steps[2].rows = 59; /* now it is */
    steps[0].step_us = steps[1].step_us = 2100 + 56 * 50;
    steps[2].step_us = 900000;
    line_is(&r, 1900, 50);

    for (uint32_t i = 0; i < STEPS; i++) { /* one stream, then four; a fifth of each held */
        steps[i].rows = i < STEPS / 2 ? 1 : 4;
        steps[i].step_us = i % 5 == 0 ? 70000 + i * 1000 : 1500 + 100 * steps[i].rows;
    }
    line_is(&r, 1500, 100);
    for (uint32_t i = 0; i < STEPS; i++) { /* each with rows of its own */
        steps[i].rows = 1 + i * 3;
        steps[i].step_us = i == 5 || i == 33 ? 5000000 : 1000 + 20 * steps[i].rows;
    }
    line_is(&r, 1000, 20);
    for (uint32_t i = 0; i < STEPS; i++) /* more than in proportion: from 0 on */
        steps[i].step_us = steps[i].rows * steps[i].rows;
    json_t *doc = document(&r);
    const json_t *w = json_object_get(doc, "workload");
    assert_true(figure(w, "base_us") == 0 && figure(w, "row_us") > 50);
    json_decref(doc);
    for (uint32_t i = 0; i < STEPS; i++) { /* those that failed, or had no rows, are left out */
        steps[i].rows = i % 4 == 1 ? 0 : i < STEPS / 2 ? 1 : 4;
        steps[i].error = i % 4 == 2 || i % 4 == 3 ? -5 : 0;
        steps[i].step_us = i % 4 ? 90000 : 1500 + 100 * steps[i].rows;
    }
    line_is(&r, 1500, 100);
    for (uint32_t i = 0; i < STEPS; i++) /* each point weighs as many as it has steps */
        steps[i] = (struct ek_recorder_step){.rows = i < 30   ? 1
                                                     : i < 35 ? 2
                                                              : 3,
                                             .step_us = i >= 30 && i < 35 ? 2000 : 1000};
    line_is(&r, 903.2, 161.3);
    r.step_count = 0;
    line_is(&r, 0, 0);
    r.step_count = 2; /* too few for a point are one */
    steps[0].step_us = 1;
    steps[1].step_us = 16;
    line_is(&r, 16, 0);
}

/* How slow each second was beside the line; what came before the first request is left out, and the
 * pool that is told is the one in force. */
static void test_pace(void **state)
{
    (void)state;
    struct ek_recorded r = quiet();
    for (uint32_t i = 0; i < STEPS; i++) {
        steps[i].rows = 1 + i % 4;
        steps[i].step_us = 1000 + 100 * steps[i].rows;
        steps[i].waiting = i == 25 ? 7 : 1;
        steps[i].generation_tokens = i * 6;
        if (i >= 30)
            steps[i].step_us *= 3;
    }
    steps[22].error = -5;
    steps[22].step_us = 50000000;
    steps[13].rows = 0; /* copies alone */
    steps[13].step_us = 90000;
    steps[STEPS - 1].limit_blocks = 500;
    requests[0].at_us = MONO + 1000000;
    requests[1].at_us = MONO + 1000001;
    json_t *doc = document(&r);
    const json_t *w = json_object_get(doc, "workload"), *pace = json_object_get(w, "pace");
    const double base = figure(w, "base_us"), row = figure(w, "row_us");
    assert_true(fabs(base - 1000) < 1 && fabs(row - 100) < 1);
    assert_int_equal(json_array_size(pace), 3);
    assert_true(fabs(json_number_value(json_array_get(pace, 1)) - 1) < 0.01);
    assert_true(fabs(json_number_value(json_array_get(pace, 2)) - 3) < 0.01);
    assert_true(figure(w, "steps") == 30 && figure(w, "lasted_us") == 29e5);
    assert_true(figure(w, "generated") == 30 * 6 && figure(w, "waiting_most") == 7);
    assert_true(figure(w, "blocks") == 500);
    json_decref(doc);
}

static void test_without(void **state)
{
    (void)state;
    struct postmortem p = end;
    struct ek_buf out = {0};
    p.lacks = "this engine has none";
    assert_int_equal(postmortem_json(&p, NULL, &out), 0);
    json_t *doc = json_loadb(out.data, out.len, 0, NULL);
    assert_true(says(doc, "There is no flight recording: this engine has none."));
    assert_null(json_object_get(doc, "seconds"));
    assert_string_equal(json_string_value(json_object_get(doc, "why")), end.why);
    assert_true(json_is_null(json_object_get(json_object_get(doc, "memory"), "cgroup_bytes")));
    json_decref(doc);
    ek_buf_done(&out);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_quiet),    cmocka_unit_test(test_stories),
        cmocka_unit_test(test_bounds),   cmocka_unit_test(test_in_flight),
        cmocka_unit_test(test_clocks),   cmocka_unit_test(test_without),
        cmocka_unit_test(test_workload), cmocka_unit_test(test_line),
        cmocka_unit_test(test_pace)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
