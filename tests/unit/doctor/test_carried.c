/*
 * Lines that mean less or more than their words: those that another program carries with a level of
 * its own, wrappers and launchers around a cause, options that a healthy server names, code that a
 * traceback lists, and logs in UTF-16.
 */
#include <stdio.h>

#include "tests/unit/doctor/scanned.h"

#define BEGIN  "INFO 11-20 09:50:00 [api_server.py:1] vLLM API server version 0.11.0\n"
#define ANSWER "INFO:     10.0.0.7:40212 - \"POST /v1/completions HTTP/1.1\" 200 OK\n"
#define WRAPS  "The above exception was the direct cause of the following exception:\n"
#define WORKER "2026-11-20T10:00:00,053 [INFO ] W-9001-kelp_1.0-stdout MODEL_LOG - "
#define WARNS  "2026-11-20T10:00:00,053 [WARN ] main org.kelp.Weed - It cannot find the kelp: none\n"
#define STOPS                                                                                      \
    "2026-11-20T10:00:09,053 [INFO ] KQueue org.kelp.ModelServer - Weed model server stopped.\n"

/* What explains a log, "" when nothing does; then no line may decide either. */
static void assert_told(const char *text, size_t len, const char *id)
{
    struct doctor_scan *s = NULL;
    const struct doctor_finding *f = NULL;
    uint32_t count = 0;
    assert_int_equal(doctor_scan_new(catalog, &s), 0);
    for (size_t at = 0; at < len; at += 7)
        doctor_scan_feed(s, text + at, len - at < 7 ? len - at : 7);
    assert_int_equal(doctor_scan_finish(s, &f, &count), 0);
    struct doctor_decisive d = doctor_scan_decisive(s);
    bool told = d.known && f[0].explains;
    if (strcmp(told ? f[0].signature->id : "", id) != 0)
        fail_msg("said '%s', not '%s', of:\n%s", told ? f[0].signature->id : "", id, text);
    if (id[0] == '\0' && d.line != 0)
        fail_msg("a line without a failure decides: %s", d.text);
    doctor_scan_free(s);
}

static void assert_is(const char *text, const char *id)
{
    assert_told(text, strlen(text), id);
}

/* TorchServe's level is that of the pipe: INFO for all that a worker writes to stdout. */
static void test_pipes(void **state)
{
    (void)state;
    assert_is(WORKER "Traceback (most recent call last):\n" WORKER
                     "ModuleNotFoundError: No module named 'kelp'\n",
              "python-import-error");
    /* Its own lines keep theirs. */
    assert_is(WARNS STOPS, "");
    assert_is("Torchserve version: 0.7\n2026-11-20T10:00:00,053 [DEBUG] W-9000-kelp_1.0 "
              "org.kelp.Weed - W-9000-kelp_1.0 State change WORKER_STARTED -> "
              "WORKER_MODEL_LOADED\n" WARNS,
              "");
    assert_is("2026-11-20T10:00:00,053 [INFO ] W-9001-kelp_1.0 org.kelp.Weed - Worker says "
              "ModuleNotFoundError: No module named 'kelp'\n" ANSWER,
              "");
    /* Nor is a prompt one that looks so, nor a thread's name behind a space. */
#define SAID "-stdout REEF_LOG - ModuleNotFoundError: No module named 'coral'"
    assert_is("2026-11-20 10:00:00,007 [DEBUG] reef: Received request 7: prompt: \"] W-7" SAID
              "\"\n",
              "");
    assert_is("2026-11-20 10:00:00,007 reef: \"it says ] W-7" SAID "\"\n", "");
    assert_is(
        "2026-11-20T10:00:00,007 [INFO ] W-7-reef org.reef.Coral - prompt \"] W-7" SAID "\"\n", "");
}

/* A bracket at the end of what is looked at for the level of the pipe. */
static void test_late_bracket(void **state)
{
    (void)state;
    for (size_t at = 190; at < 206; at++) {
        char line[512];
        memset(line, 'x', sizeof(line));
        memcpy(line, "7Error:", 7);
        memcpy(line + at, "] W-", 4);
        line[sizeof(line) - 2] = '\n';
        line[sizeof(line) - 1] = '\0';
        struct scanned s = scan_pieces(line, sizeof(line));
        assert_true(doctor_scan_decisive(s.scan).line <= 1);
        doctor_scan_free(s.scan);
    }
}

/* The words of a launcher or of an outer exception do not take the place of the cause. */
static void test_wrappers(void **state)
{
    (void)state;
    assert_is("2026-11-20T09:36:31Z ERROR shard-manager: text_generation_launcher: Shard process "
              "was signaled to shutdown with signal 9 rank=0\nError: ShardCannotStart\n",
              "rank-killed");
#define UNKNOWN "kelp.errors.WeedError: no weed\n"
#define INNER   "ValueError: Cannot determine model snapshot path\n"
    assert_is(INNER WRAPS UNKNOWN, "kind-files");
    /* A weak one gives way to what an engine raises from it, where that is known as well. */
    assert_is("KeyError: 'reef'\n" WRAPS "Traceback (most recent call last):\n"
              "  File \"/x/site-packages/vllm/config/tide.py\", line 7, in __post_init__\n"
              "ValueError: tide of 7 is no depth\n",
              "engine-refuses");
    /* The line of source that raises it decides nothing, and a weaker name of the next one neither.
     */
    assert_is("KeyError: 'reef'\n" WRAPS "Traceback (most recent call last):\n"
              "  File \"/x/site-packages/vllm/config/tide.py\", line 7, in __post_init__\n"
              "    raise ValueError(\n"
              "  File \"/x/site-packages/vllm/reef/coral.py\", line 7, in grow\n"
              "vllm.errors.CoralFault: no reef\n",
              "engine-fault");
    assert_is("2026-11-20T09:36:30.000000007Z ValueError: Cannot determine model snapshot path\n"
              "2026-11-20T09:36:31.000000007Z Error: ShardCannotStart\n",
              "kind-files");
    /* Not where it is not raised from it, nor from what only says that a task has ended. */
    static const char *const others[] = {INNER UNKNOWN,
                                         INNER "asyncio.exceptions.CancelledError\n" WRAPS UNKNOWN};
    for (size_t i = 0; i < sizeof(others) / sizeof(others[0]); i++) {
        struct scanned s = scan_pieces(others[i], 512);
        assert_false(doctor_scan_decisive(s.scan).known);
        doctor_scan_free(s.scan);
    }
}

/* Counters that have counted nothing, and lines of a program's code. */
static void test_not_said(void **state)
{
    (void)state;
    static const char *const lines[] = {"Failed requests:                         0",
                                        "| Failed requests   | 0          |",
                                        "kelp: done, errors=0, failures=0",
                                        "failed_requests_total 0",
                                        "Failed inference requests: 0",
                                        "Error rate: 0",
                                        "errors found: 0",
                                        "Num failed tides: 0",
                                        "    failed += 1",
                                        "  throw kelp::weed_failed(strerror(errno));"};
    for (size_t i = 0; i < sizeof(lines) / sizeof(lines[0]); i++)
        assert_is(lines[i], "");
    static const char *const said[] = {
        "Failed requests: 7",           "kelp failed: 0 of 7 weeds",
        "error: kelp has failed (7);",  "reef: tide failed (out of water);",
        "reef: cannot open device = 0", "reef failed on rank=0, ending",
        "reef: failed node count: 0",   "Failed to reach GPU: 0",
        "Failed warm up requests: 0"};
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        struct scanned s = scan_pieces(said[i], 512);
        assert_true(doctor_scan_decisive(s.scan).line == 1);
        doctor_scan_free(s.scan);
    }
}

/* A name for what may happen is no sign that it has, nor is what a traceback lists of the code. */
static void test_options(void **state)
{
    (void)state;
    static const struct {
        const char *said;
        bool explains;
    } cases[] = {{"args: RAY_CGRAPH_get_timeout=600, seed=7", false},
                 {"args: cgraph.RAY_CGRAPH_get_timeout=600", false},
                 {"NCCL watchdog timeout: tide=600", true},
                 {"NCCL watchdog timeout: see --tide-timeout", true},
                 {"NCCL watchdog timeout after 600 s (pid=7)", true}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text), "%s%s(Kelp pid=7) %s %s\n", BEGIN, READY,
                       "INFO 11-20 10:00:00 [kelp.py:1]", cases[i].said);
        struct scanned s = scan_pieces(text, 512);
        if (!(s.count > 0 && s.f[0].explains == cases[i].explains))
            fail_msg("%s", cases[i].said);
        doctor_scan_free(s.scan);
    }
    assert_is("Traceback (most recent call last):\n  File \"/srv/kelp.py\", line 7, in weed\n"
              "    kelp()  # CUDA error: an illegal memory access was encountered\n",
              "");
}

static void test_refused(void **state)
{
    (void)state;
#define REFUSED                                                                                    \
    "ERROR 11-20 10:00:00 [serving.py:1] ValueError: This model's maximum context "                \
    "length is 4096 tokens. However, you requested 9000 tokens\n"
    struct scanned s = scan_pieces(BEGIN READY ANSWER REFUSED, 512);
    assert_true(s.f[0].cls == DOCTOR_CLIENT && !s.f[0].probable);
    doctor_scan_free(s.scan);
    static const char *const well[] = {
        ANSWER, "slot print_timing: id  0 | task 7 | prompt eval time = 7 ms\n",
        "2026-11-20T10:00:09Z  INFO generate{x=7}: text_generation_router::server: "
        "router/src/server.rs:407: Success\n",
        "(ServeReplica pid=7) INFO 2026-11-20 10:00:09,071 kelp 7 -- POST /v1/kelp 200 7.7ms\n"};
    for (size_t i = 0; i < sizeof(well) / sizeof(well[0]); i++) {
        char text[1024];
        (void)snprintf(text, sizeof(text), "%s%s", BEGIN READY REFUSED, well[i]);
        s = scan_pieces(text, 512);
        assert_true(s.f[0].cls == DOCTOR_CLIENT && s.f[0].probable);
        doctor_scan_free(s.scan);
    }
}

/* What Python's destructors complain of once it was told to stop. */
static void test_ignored(void **state)
{
    (void)state;
#define IGNORED                                                                                    \
    "Exception ignored in: <function Kelp.__del__ at 0x7>\n"                                       \
    "RuntimeError: CUDA error: driver shutting down\n"
    struct scanned s = scan_pieces(BEGIN READY "INFO:     Shutting down\n" IGNORED, 512);
    assert_true(s.count == 0 || !s.f[0].explains);
    doctor_scan_free(s.scan);
}

/* What a user wrote, and what a program calls so beside the build of an image. */
static void test_users_words(void **state)
{
    (void)state;
#define MISSING "FileNotFoundError: [Errno 2] No such file or directory: 'ffmpeg'"
    assert_is(MISSING "\n", "program-missing");
    assert_is(
        "INFO 11-20 10:00:00 [reef.py:7] messages: [{\"role\": \"tool\", \"content\": \"" MISSING
        "\"}]\n",
        "");
    assert_is(" => ERROR [tide 3/7] RUN ./ebb", "build-broke");
    assert_is(" => ERROR [internal] load metadata for docker.io/reef/tide:7", "build-broke");
    struct scanned s = scan_pieces("reef 7: state FLOOD => ERROR [ebb]\n", 512);
    assert_true(s.count == 0);
    doctor_scan_free(s.scan);
}

static void test_wide(void **state)
{
    (void)state;
    static const char said[] = BEGIN "OSError: [Errno 98] Address already in use\n"
                                     "x";
    char text[2 * sizeof(said) + 2];
    for (int big = 0; big < 2; big++) {
        size_t len = 0;
        text[len++] = big ? '\xfe' : '\xff';
        text[len++] = big ? '\xff' : '\xfe';
        for (const char *c = said; *c; c++) {
            text[len + (big != 0)] = *c;
            text[len + (big == 0)] = '\0';
            len += 2;
        }
        assert_told(text, len, "port-in-use");
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_pipes),      cmocka_unit_test(test_late_bracket),
        cmocka_unit_test(test_wrappers),   cmocka_unit_test(test_options),
        cmocka_unit_test(test_not_said),   cmocka_unit_test(test_refused),
        cmocka_unit_test(test_ignored),    cmocka_unit_test(test_wide),
        cmocka_unit_test(test_users_words)};
    return cmocka_run_group_tests(tests, open_catalog, close_catalog);
}
