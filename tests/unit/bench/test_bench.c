/* evenkeel-bench's pure parts: its command line, streams of events, loads, summaries, comparisons.
 */
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "server/bench/compare.h"
#include "server/bench/events.h"
#include "server/bench/load.h"
#include "server/bench/options.h"
#include "server/bench/picture.h"
#include "server/bench/rows.h"
#include "server/bench/summary.h"
#include "tests/unit/alloc.h"

static void options(void **state)
{
    static const struct {
        const char *argv[8];
        const char *field; /* of the fault, NULL = fine */
    } cases[] = {
        {{"b", "kernels", "--threads", "2"}, NULL},
        {{"b", "engine", "--prefill", "64", "--prefill", "512"}, NULL},
        {{"b", "serve", "--rate=3.5", "--slo-ttft", "500ms"}, NULL},
        {{"b", "compare", "x.json", "y.json", "--tolerance", "0.1"}, NULL},
        {{"b", "compare", "--help"}, NULL},
        {{"b", "replay", "x.json", "--max-num-seqs=4"}, NULL},
        {{"b", "replay"}, "replay"},
        {{"b", "replay", "x.json", "y.json"}, "y.json"},
        {{"b"}, "command"},
        {{"b", "fly"}, "command"},
        {{"b", "compare"}, "compare"},
        {{"b", "compare", "x.json"}, "compare"},
        {{"b", "kernels", "--rate", "3"}, "rate"}, /* another command's */
        {{"b", "serve", "--clients", "0"}, "clients"},
        {{"b", "serve", "extra"}, "extra"},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        enum bench_command command;
        struct bench_options o = {0};
        struct ek_fault f = {.msg = ""};
        int argc = 0;
        while (argc < 8 && cases[i].argv[argc])
            argc++;
        char *argv[9] = {0};
        memcpy(argv, cases[i].argv, (size_t)argc * sizeof(argv[0]));
        int r = bench_options_parse(argc, argv, &command, &o, &f);
        assert_int_equal(r, cases[i].field ? -EBADMSG : 0);
        if (cases[i].field)
            assert_non_null(strstr(f.msg, cases[i].field));
        else
            bench_options_free(command, &o);
    }
}

static void events(void **state)
{
    static const struct {
        const char *bytes;
        uint32_t pieces, tokens;
        bool done, broken;
        const char *error;
    } cases[] = {
        {"data: {\"choices\":[{\"text\":\"a\",\"finish_reason\":null}]}\n\ndata: [DONE]\n\n", 1, 0,
         true, false, ""},
        /* a token in the middle of a character has no text yet; the last event brings none */
        {"data: {\"choices\":[{\"text\":\"\",\"finish_reason\":null}]}\r\n\r\n"
         "data: {\"choices\":[{\"text\":\"\",\"finish_reason\":\"length\"}]}\n\n"
         "data: {\"choices\":[],\"usage\":{\"completion_tokens\":7}}\n\ndata: [DONE]\n",
         1, 7, true, false, ""},
        /* a chat begins with a role, which is no token */
        {"data: {\"choices\":[{\"delta\":{\"role\":\"assistant\",\"content\":\"\"}}]}\n\n"
         "data: {\"choices\":[{\"delta\":{\"content\":\"x\"}}]}\n"
         "data: {\"choices\":[{\"delta\":{\"reasoning_content\":\"y\"}}]}\n",
         2, 0, false, false, ""},
        {": a comment\nevent: x\n\n", 0, 0, false, false, ""},
        {"data: {broken\n", 0, 0, false, true, "an event that is no JSON: {broken"},
        /* a token that is the character NUL */
        {"data: {\"choices\":[{\"text\":\"\\u0000\"}]}\n", 1, 0, false, false, ""},
        {"data: {\"error\":{\"message\":\"no\"}}\n", 0, 0, false, false, "no"},
        {"data: {\"choices\":[{\"text\":\"unfinished\"", 0, 0, false, false, ""},
    };
    (void)state;
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        for (size_t step = 1; step < 200; step += 37) { /* in pieces of any length */
            struct events e = {0};
            size_t len = strlen(cases[i].bytes);
            for (size_t at = 0; at < len; at += step)
                (void)events_feed(&e, cases[i].bytes + at, len - at < step ? len - at : step);
            assert_int_equal(e.pieces, cases[i].pieces);
            assert_int_equal(e.tokens, cases[i].tokens);
            assert_int_equal(e.done, cases[i].done);
            assert_int_equal(e.broken, cases[i].broken);
            assert_string_equal(e.error, cases[i].error);
            events_free(&e);
        }
}

static void endless_line(void **state)
{
    static char some[65536];
    struct events e = {0};

    (void)state;
    memset(some, 'x', sizeof(some));
    for (int i = 0; i < 32 && !e.broken; i++)
        (void)events_feed(&e, some, sizeof(some));
    assert_true(e.broken);
    assert_true(e.line.len <= EVENTS_LINE_MOST);
    events_free(&e);
}

/* Options own their strings, so they are not const. */
static char completions[] = "completions", chat[] = "chat",
            azure[] = "tests/fixtures/traces/azure2023_conv.csv.gz",
            vidur[] = "tests/fixtures/traces/vidur_arxiv_lengths.csv.gz",
            no_trace[] = "tests/fixtures/traces/README.md", nowhere[] = "/nowhere";

static struct bench_options serve_options(void)
{
    return (struct bench_options){.endpoint = completions,
                                  .requests = 1000,
                                  .clients = 4,
                                  .prompt = 5,
                                  .output = 7,
                                  .vocab = 50,
                                  .speed = 2.0,
                                  .ignore_eos = true};
}

static void loads(void **state)
{
    struct bench_options o = serve_options();
    struct load l, again;
    struct ek_fault f;
    struct ek_buf a = {0}, b = {0};

    (void)state;
    assert_int_equal(load_make(&o, 1, &l, &f), 0);
    assert_false(l.open);
    load_body(&l, &o, "m\"", 3, &a);
    assert_non_null(strstr(a.data, "\"model\":\"m\\\"\",\"prompt\":["));
    assert_non_null(strstr(a.data, "\"max_tokens\":7"));
    json_t *body = json_loads(a.data, 0, NULL);
    assert_int_equal(json_array_size(json_object_get(body, "prompt")), 5);
    json_decref(body);
    load_free(&l);

    o.rate = 50.0; /* the same seed makes the same load, at about the rate asked for */
    o.endpoint = chat;
    assert_int_equal(load_make(&o, 9, &l, &f), 0);
    assert_int_equal(load_make(&o, 9, &again, &f), 0);
    assert_true(l.open);
    assert_memory_equal(l.request, again.request, l.count * sizeof(l.request[0]));
    double last = l.request[l.count - 1].at_s;
    assert_true(last > 17.0 && last < 23.0);
    ek_buf_clear(&a);
    load_body(&l, &o, "m", 3, &a);
    load_body(&again, &o, "m", 3, &b);
    assert_string_equal(a.data, b.data);
    assert_non_null(strstr(a.data, "\"messages\""));
    ek_buf_done(&a);
    ek_buf_done(&b);
    load_free(&l);
    load_free(&again);
}

static void loads_from_traces(void **state)
{
    struct bench_options o = serve_options();
    struct load l;
    struct ek_fault f;

    (void)state;
    o.trace = azure;
    o.requests = 50;
    o.most_output = 9;
    assert_int_equal(load_make(&o, 1, &l, &f), 0);
    assert_true(l.open && l.count == 50);
    for (uint32_t i = 0; i < l.count; i++) {
        assert_true(l.request[i].output >= 1 && l.request[i].output <= 9);
        assert_true(i == 0 || l.request[i].at_s >= l.request[i - 1].at_s);
    }
    load_free(&l);
    o.trace = vidur;
    assert_int_equal(load_make(&o, 1, &l, &f), 0);
    assert_false(l.open); /* it has no arrivals */
    load_free(&l);
    o.trace = no_trace;
    assert_int_equal(load_make(&o, 1, &l, &f), -EBADMSG);
    assert_non_null(strstr(f.msg, "none of the forms"));
    o.trace = nowhere;
    assert_int_equal(load_make(&o, 1, &l, &f), -EBADMSG);
}

static void summaries(void **state)
{
    const struct bench_answer answers[] = {
        {0.0, 0.5, 2.5, 11, 11, true}, /* 0.2 s a token: good */
        {0.0, 3.0, 4.0, 11, 11, true}, /* first token too late */
        {1.0, 1.5, 9.5, 11, 11, true}, /* tokens too far apart */
        {1.0, 0.0, 2.0, 0, 0, false},
    };
    double gaps[] = {0.3, 0.1, 0.2};
    const struct slo slo = {1.0, 0.25};
    struct summary s;
    json_t *rows = json_array();

    (void)state;
    assert_int_equal(summarize(answers, 4, gaps, 3, &slo, &s), 0);
    assert_int_equal(s.done, 3);
    assert_int_equal(s.failed, 1);
    assert_int_equal(s.good, 1);
    assert_true(fabs(s.tokens_per_s - 33.0 / 9.5) < 1e-9);
    assert_true(fabs(s.gap.p50 - 0.2) < 1e-9 && fabs(s.gap.most - 0.3) < 1e-9);
    assert_true(fabs(s.ttft.most - 3.0) < 1e-9);
    assert_int_equal(summary_rows(&s, "x", rows), 0);
    assert_int_equal(json_array_size(rows), 20);
    json_decref(rows);
    assert_int_equal(summarize(answers, 0, gaps, 0, &slo, &s), 0); /* nothing came */
    assert_true(isnan(s.ttft.p50));
    const uint32_t seconds[] = {3, 0, 9};
    struct ek_buf svg = {0};
    picture_draw(&(struct picture){"a<b", answers, 4, gaps, 3, seconds, 3, &slo}, &svg);
    assert_non_null(strstr(svg.data, "a&#60;b"));
    assert_non_null(strstr(svg.data, "</svg>"));
    ek_buf_done(&svg);
}

static void comparisons(void **state)
{
    static const char first[] =
        "{\"rows\":[{\"cell\":\"fast\",\"value\":10,\"unit\":\"tok/s\"},"
        "{\"cell\":\"slow\",\"value\":10,\"unit\":\"tok/s\"},"
        "{\"cell\":\"late\",\"value\":10,\"unit\":\"ms\"},"
        "{\"cell\":\"near\",\"value\":10,\"unit\":\"1/s\"},"
        "{\"cell\":\"wide\",\"value\":10,\"unit\":\"1/s\",\"spread\":[7,12]},"
        "{\"cell\":\"gone\",\"value\":1,\"unit\":\"1/s\"}]}";
    static const char second[] =
        "{\"rows\":[{\"cell\":\"fast\",\"value\":20,\"unit\":\"tok/s\"},"
        "{\"cell\":\"slow\",\"value\":5,\"unit\":\"tok/s\"},"
        "{\"cell\":\"late\",\"value\":20,\"unit\":\"ms\"},"
        "{\"cell\":\"near\",\"value\":9.8,\"unit\":\"1/s\"},"
        "{\"cell\":\"wide\",\"value\":8,\"unit\":\"1/s\",\"spread\":[6,9]},"
        "{\"cell\":\"new\",\"value\":1,\"unit\":\"1/s\"}]}";
    json_t *a = json_loads(first, 0, NULL), *b = json_loads(second, 0, NULL), *no = json_object();
    struct ek_buf out = {0};
    struct ek_fault f;
    unsigned worse = 9;

    (void)state;
    assert_int_equal(compare_reports(a, b, 0.05, &out, &worse, &f), 0);
    assert_int_equal(worse, 2); /* slow and late */
    assert_non_null(strstr(out.data, "only in A"));
    assert_non_null(strstr(out.data, "only in B"));
    assert_int_equal(compare_reports(a, a, 0.05, &out, &worse, &f), 0);
    assert_int_equal(worse, 0);
    assert_int_equal(compare_reports(a, no, 0.05, &out, &worse, &f), -EBADMSG);
    ek_buf_done(&out);
    json_decref(a);
    json_decref(b);
    json_decref(no);
}

static void allocations(void **state)
{
    struct bench_options o = serve_options();
    const struct bench_answer answer = {0.0, 0.5, 2.5, 11, 11, true};
    const struct slo slo = {1.0, 0.25};
    struct summary s;
    struct load l;
    struct ek_fault f;

    (void)state;
    o.requests = 20;
    o.trace = azure;
    for (long n = 1;; n++) {
        alloc_fail_at(n);
        int r = load_make(&o, 1, &l, &f);
        bool failed = alloc_failed();
        if (r == 0)
            load_free(&l);
        if (!failed) {
            assert_int_equal(r, 0);
            break;
        }
        assert_true(r == -ENOMEM || r == -EBADMSG); /* zlib says only that it failed */
        assert_true(n < 100);
    }
    alloc_fail_at(1);
    assert_int_equal(summarize(&answer, 1, NULL, 0, &slo, &s), -ENOMEM);
    alloc_fail_at(0);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(options),           cmocka_unit_test(events),
        cmocka_unit_test(endless_line),      cmocka_unit_test(loads),
        cmocka_unit_test(loads_from_traces), cmocka_unit_test(summaries),
        cmocka_unit_test(comparisons),       cmocka_unit_test(allocations),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
