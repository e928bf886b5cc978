/*
 * What whole logs hold besides their failure: complaints of a start that came to serve, warnings
 * beside an exception, figures that stood still for a moment, the lines that PyTorch adds to an
 * error.
 */
#include <stdio.h>

#include "supervisor/doctor/advise.h"
#include "tests/unit/doctor/scanned.h"

#define BEGIN "INFO 11-20 09:50:00 [api_server.py:1] vLLM API server version 0.11.0\n"
#define KELP  "ERROR 11-20 09:50:02 [kelp.py:57] Cannot use kelp: not supported on this device\n"
#define STATS(prompt, answer, running, waiting, usage)                                             \
    "INFO 11-20 10:00:05 [loggers.py:111] Engine 000: Avg prompt throughput: " prompt              \
    " tokens/s, Avg generation throughput: " answer " tokens/s, Running: " running                 \
    " reqs, Waiting: " waiting " reqs, GPU KV cache usage: " usage "%, Prefix cache hit rate: "    \
    "1.0%\n"
#define STILL STATS("0.0", "0.0", "2", "0", "9.0")
#define MOVES STATS("812.4", "0.0", "2", "0", "9.0")

static struct scanned scan(const char *text)
{
    return scan_pieces(text, strlen(text));
}

/* The id of what explains a log, "" when nothing does. */
static void assert_told(const char *text, const char *id)
{
    struct scanned s = scan(text);
    struct doctor_decisive d = doctor_scan_decisive(s.scan);
    const char *said = d.known ? s.f[0].signature->id : "";
    if (strcmp(said, id) != 0)
        fail_msg("said '%s', not '%s', of:\n%s", said, id, text);
    if (id[0] == '\0' && d.line != 0)
        fail_msg("a line without a failure decides: %s", d.text);
    doctor_scan_free(s.scan);
}

static void test_outlived(void **state)
{
    (void)state;
    struct scanned s = scan(BEGIN KELP);
    assert_true(s.count > 0 && s.f[0].explains && s.f[0].cls == DOCTOR_CONFIG);
    doctor_scan_free(s.scan);
    assert_told(BEGIN KELP READY, "");
    /* Before the banner of the start. */
    assert_told("kelp_download: HEAD failed, status: 404\n" BEGIN READY, "");
    /* A complaint after it serves, or in the next start, counts. */
    s = scan(BEGIN READY KELP);
    assert_true(s.count > 0 && s.f[0].explains);
    doctor_scan_free(s.scan);
    s = scan(BEGIN READY KELP READY);
    assert_true(s.count > 0 && s.f[0].explains);
    doctor_scan_free(s.scan);
    s = scan(BEGIN READY BEGIN KELP);
    assert_true(s.count > 0 && s.f[0].explains);
    doctor_scan_free(s.scan);
    /* An exception is kept: another process may have begun to serve. */
    assert_told("(Worker_TP1 pid=9) ModuleNotFoundError: No module named 'flash_attn'\n" READY,
                "op-not-built");
}

static void test_stands_still(void **state)
{
    (void)state;
    assert_told(BEGIN READY STILL STILL STILL, "no-token-with-work");
    assert_told(BEGIN READY STILL STILL STILL MOVES, "no-token-with-work");
    assert_told(BEGIN READY STILL MOVES STILL MOVES STILL MOVES STILL, "");
    assert_told(BEGIN READY STILL STILL MOVES, "");
#define OTHER                                                                                      \
    "INFO 11-20 10:00:05 [loggers.py:111] Engine 001: Avg prompt throughput: 5.0 tokens/s, Avg "   \
    "generation throughput: 30.0 tokens/s, Running: 2 reqs, Waiting: 0 reqs, GPU KV cache usage: " \
    "9.0%, Prefix cache hit rate: 1.0%\n"
    assert_told(BEGIN READY STILL OTHER STILL OTHER STILL OTHER STILL, "no-token-with-work");
}

/* SGLang's data-parallel ranks are engines of their own. */
static void test_ranks_stand_still(void **state)
{
    (void)state;
#define DECODE(rank, speed)                                                                        \
    "[2026-11-20 10:00:05 DP" rank " TP" rank "] Decode batch, #running-req: 1, #token: 1088, "    \
    "token usage: 0.00, cuda graph: True, gen throughput (token/s): " speed ", #queue-req: 0\n"
    assert_told(DECODE("3", "0.00") DECODE("6", "30.48") DECODE("3", "0.00") DECODE("6", "30.48")
                    DECODE("3", "0.00"),
                "no-token-with-work");
    assert_told(DECODE("3", "0.00") DECODE("3", "0.00") DECODE("3", "30.48") DECODE("3", "0.00"),
                "");
    /* Three lines, of three ranks: none stood still twice. */
    assert_told(DECODE("0", "0.00") DECODE("1", "0.00") DECODE("0", "30.48") DECODE("2", "0.00")
                    DECODE("1", "31.0") DECODE("2", "31.0"),
                "");
    assert_told(
        DECODE("3", "0.00") "[2026-11-20 10:00:05 DP3 TP3] Prefill batch, #new-seq: 1\n" DECODE(
            "3", "0.00") DECODE("3", "0.00"),
        "");
}

static void test_warnings(void **state)
{
    (void)state;
    /* Not the growth that a warning remarks on: the start fell by an exception. */
    assert_told("WARNING 11-20 09:50:01 [kelp.py:9] Memory usage grows with each adapter\n"
                "ValueError: kelp_size must be positive\n",
                "engine-refuses");
    assert_told(BEGIN READY
                "kelp.py:400: UserWarning: resource_tracker: There appear to be 1 leaked semaphore "
                "objects to clean up at shutdown: {'/loky-526615-x'}\n",
                "");
    /* PyTorch adds the name of the error to each; the entry of the error is told. */
    assert_told("torch.AcceleratorError: CUDA error: device-side assert triggered\n"
                "Search for `cudaErrorAssert' in https://docs.nvidia.com/cuda for more.\n",
                "cuda-device-assert");
}

/* Memory that another process holds is neither in pieces nor given back by limits of this one. */
static void test_shared(void **state)
{
    (void)state;
    static const struct {
        const char *others;
        enum doctor_class cls;
        bool shared;
    } cases[] = {{"21.40", DOCTOR_DEVICE_OOM, true}, {"2.10", DOCTOR_FRAG_OOM, false}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[512];
        (void)snprintf(
            text, sizeof(text),
            "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 68.00 MiB. "
            "GPU 0 has a total capacity of 23.69 GiB of which 50.94 MiB is free. Process "
            "71 has %s GiB memory in use. Process 72 has 2.22 GiB memory in use. Of the "
            "allocated memory 1.86 GiB is allocated by PyTorch, and 73.76 MiB is "
            "reserved by PyTorch but unallocated.\n",
            cases[i].others);
        struct scanned s = scan(text);
        struct doctor_advice a[DOCTOR_ADVICE_MOST];
        assert_true(s.count > 0 && doctor_advise_for(&s.f[0], a) > 0);
        assert_int_equal(s.f[0].cls, cases[i].cls);
        bool told = a[0].remedy && strstr(a[0].remedy->text.in[LANG_EN], "Another process holds");
        assert_int_equal(told, cases[i].shared);
        doctor_scan_free(s.scan);
    }
}

/* Of a stop: what is closed by it has not failed. Of a message that has lines: each is of it. */
static void test_stops(void **state)
{
    (void)state;
    static const char closed[] = "zmq.error.ZMQError: Operation not supported\n";
    char text[256];
    assert_told(
        BEGIN READY "INFO:     Shutting down\nzmq.error.ZMQError: Operation not supported\n", "");
    (void)snprintf(text, sizeof(text), "%s%s%s", BEGIN, READY, closed);
    /* Else it decides, but what follows from a cause is not named by its general words. */
    struct scanned s = scan(text);
    struct doctor_decisive d = doctor_scan_decisive(s.scan);
    assert_true(!d.known && d.line == 3);
    doctor_scan_free(s.scan);
    assert_told(
        "pydantic_core._pydantic_core.ValidationError: 1 validation error for KelpConfig\n"
        "  Value error, max_num_batched_tokens (512) is smaller than max_model_len (4096).\n"
        "    For further information visit https://errors.pydantic.dev/2.12/v/value_error\n",
        "batched-tokens-too-small");
}

/* Waits and interfaces of a start that came to serve are not why it fails later. */
static void test_waited(void **state)
{
    (void)state;
    static const char wait[] =
        "INFO 11-20 09:51:00 [shm_broadcast.py:1] No available shared memory "
        "broadcast block found in 60 seconds.\n";
    char text[1024];
    (void)snprintf(text, sizeof(text), "%s%s%s%s", BEGIN, wait, READY,
                   "RuntimeError: BatchPrefillWithPagedKVCache failed with error kelp\n");
    assert_told(text, "flashinfer-launch-failed");
    (void)snprintf(text, sizeof(text), "%s%s%s", BEGIN, wait, READY);
    assert_told(text, "");
    (void)snprintf(text, sizeof(text), "%s%s%s", BEGIN, READY, wait);
    assert_told(text, "shm-broadcast-wait");
    assert_told("NET/OFI NCCL WARN NET/OFI Failed to initialize sendrecv protocol\n" BEGIN READY,
                "");
}

/* What a start remarks on and does without, in the words of other programs. */
static void test_done_without(void **state)
{
    (void)state;
#define ROUTER(level)                                                                              \
    "2026-11-20T10:00:02.6Z " level " text_generation_router::server: server.rs:1672: "
    static const char caught[] = ROUTER(
        "ERROR") "Failed to import python tokenizer ModuleNotFoundError: No module named 'kelp'\n";
    static const char pinned[] =
        "ggml_vulkan: Failed to allocate pinned memory.\n"
        "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory\n";
    char text[512];
    (void)snprintf(text, sizeof(text), "%s%s", caught, ROUTER("INFO") "Connected\n");
    assert_told(text, "");
    assert_told(caught, "python-import-error");
    (void)snprintf(text, sizeof(text), "%s%s", pinned,
                   "INFO [                    main] model loaded | tid=\"0x3\" timestamp=1\n");
    assert_told(text, "");
    struct scanned s = scan(pinned);
    assert_true(s.count > 0 && s.f[0].explains);
    doctor_scan_free(s.scan);
    assert_told("[2026-11-20 09:31:24 TP1] Ignore import error when loading kelp.models: No module "
                "named 'kelp.models'\n",
                "");
}

/* A card of vLLM 0.10 has no name in the line. */
static void test_free_memory(void **state)
{
    (void)state;
    struct scanned s =
        scan("ValueError: Free memory on device (11.50/15.99 GiB) on startup is less "
             "than desired GPU memory utilization (0.85, 13.59 GiB).\n");
    struct doctor_advice a[DOCTOR_ADVICE_MOST];
    bool told = false;
    assert_true(s.count > 0);
    for (uint32_t n = doctor_advise_for(&s.f[0], a); n > 0; n--)
        told |= a[n - 1].has_value && strcmp(a[n - 1].value, "0.69") == 0;
    assert_true(told);
    doctor_scan_free(s.scan);
}

/* What a model writes into a log is no refused request. */
static void test_prose(void **state)
{
    (void)state;
    assert_told("Since n must be an integer, we round up, so n = 36.\n", "");
    assert_told("The execution must be the same in each replay.\n", "");
    assert_told("ValueError: n must be at least 1, got 0.\n", "client-request");
    struct scanned s = scan("kelp: error: 'ServerTimeoutError' object has no attribute 'lines'\n");
    assert_true(s.count == 0 || s.f[0].cls != DOCTOR_HANG);
    doctor_scan_free(s.scan);
}

/* A server that has run empty since: the number of what ran is of when it did. */
static void test_ran(void **state)
{
    (void)state;
    struct scanned s = scan(
        BEGIN READY STATS("1.0", "9.0", "60", "7", "99.0") STATS("1.0", "9.0", "55", "8", "98.0")
            STATS("1.0", "9.0", "50", "9", "97.0") STATS("0.0", "0.0", "0", "0", "0.0"));
    double running = 0;
    assert_true(s.count > 0);
    assert_string_equal(s.f[0].signature->id, "vllm-kv-full");
    assert_true(doctor_numbers_lookup(&s.f[0].numbers, "running", &running));
    assert_true(running == 50);
    doctor_scan_free(s.scan);
}

/* A warning decides nothing once requests were answered well after it; a line that is none does. */
static void test_goes_on_well(void **state)
{
    (void)state;
#define WARNS "time=2026-11-20T10:00:00Z level=WARN msg=\"cannot find the kelp\" weed=4\n"
    static const char *const well[] = {
        "INFO:     10.0.0.7:40212 - \"POST /v1/completions HTTP/1.1\" 200 OK\n",
        "2026-11-20T10:00:09 [INFO ] ACCESS_LOG - /10.0.0.7:40 \"PUT /predictions/x HTTP/1.1\" 200 "
        "7\n",
        "[GIN] 2026/11/20 - 10:00:09 | 200 |  2.1s |  10.0.0.7 | POST     \"/api/chat\"\n",
        "srv  log_server_r: done request: POST /v1/chat/completions 10.0.0.7 200\n"};
    for (size_t i = 0; i < sizeof(well) / sizeof(well[0]); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text), "%s%s", WARNS, well[i]);
        assert_told(text, "");
    }
    static const char *const ill[] = {
        WARNS, WARNS "INFO:     10.0.0.7:40212 - \"POST /v1/completions HTTP/1.1\" 500 Internal\n",
        "srv  log_server_r: done request: POST / 10.0.0.7 200\n" WARNS};
    for (size_t i = 0; i < sizeof(ill) / sizeof(ill[0]); i++) {
        struct scanned s = scan(ill[i]);
        assert_true(doctor_scan_decisive(s.scan).line > 0);
        doctor_scan_free(s.scan);
    }
}

/* An engine that dies makes its server shut down: what it said before that has not passed. */
static void test_stops_after(void **state)
{
    (void)state;
#define DIES "zmq.error.ZMQError: Reef address\n"
#define HALT "INFO:     Shutting down\n"
    static const struct {
        const char *text;
        uint64_t line; /* that decides, 0: none */
    } cases[] = {{BEGIN READY DIES HALT, 3},
                 {BEGIN READY HALT DIES, 0},
                 {BEGIN READY "ERROR 11-20 10:00:00 [reef.py:7] EOFError\n" HALT HALT, 3},
                 {BEGIN READY HALT BEGIN READY DIES HALT, 6},
                 {BEGIN READY DIES HALT BEGIN READY HALT, 3},
                 {READY HALT READY DIES, 4},
                 {BEGIN READY "2026-11-20 10:00:00 WARN tide failed, going on\n" HALT, 0},
                 {BEGIN "WARN: the tide failed, going on\n" READY, 0}};
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scanned s = scan(cases[i].text);
        struct doctor_decisive d = doctor_scan_decisive(s.scan);
        if (d.line != cases[i].line)
            fail_msg("line %u decides, not %u, of:\n%s", (unsigned)d.line, (unsigned)cases[i].line,
                     cases[i].text);
        doctor_scan_free(s.scan);
    }
}

/* Probes are answered by a server whose engine is dead. */
static void test_probes(void **state)
{
    (void)state;
    static const char *const probes[] = {
        "INFO:     10.0.0.7:40212 - \"GET /metrics HTTP/1.1\" 200 OK\n",
        "INFO:     10.0.0.7:40212 - \"GET /v1/models HTTP/1.1\" 200 OK\n",
        "2026-11-20T10:00:09 [INFO ] ACCESS_LOG - /10.0.0.7:40 \"GET /ping HTTP/1.1\" 200 7\n",
        "[GIN] 2026/11/20 - 10:00:09 | 200 |  2.1s |  10.0.0.7 | GET      \"/api/version\"\n",
        "[GIN] 2026/11/20 - 10:00:09 | 200 |  2.1s |  10.0.0.7 | POST     \"/api/show\"\n",
        "srv  log_server_r: done request: GET /health 10.0.0.7 200\n",
        "(ServeReplica pid=7) INFO 2026-11-20 10:00:09,071 reef 7 -- GET /reef/health 200 7.7ms\n"};
    for (size_t i = 0; i < sizeof(probes) / sizeof(probes[0]); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text), "%s%s%s%s", BEGIN, READY,
                       "ERROR 11-20 10:00:00 [reef.py:7] EOFError\n", probes[i]);
        struct scanned s = scan(text);
        if (doctor_scan_decisive(s.scan).line != 3)
            fail_msg("a probe clears what was said:\n%s", text);
        doctor_scan_free(s.scan);
    }
    assert_told(
        "ERROR 11-20 10:00:00 [reef.py:7] EOFError\n"
        "(ServeReplica pid=7) INFO 2026-11-20 10:00:09,071 reef 7 -- CALL __call__ OK 7ms\n",
        "");
}

/* A level is one in the prefix of a line that raises nothing. */
static void test_levels(void **state)
{
    (void)state;
#define EBB                                                                                        \
    "Traceback (most recent call last):\n"                                                         \
    "  File \"/x/site-packages/vllm/tide.py\", line 7, in ebb\n"                                   \
    "reef.tides.EbbLost: gone, see WARN lines\n"
    static const char *const said[] = {"RuntimeError: reef broke (set REEF_LOG=WARN for more)\n",
                                       EBB, "ERROR reef: failed, see the WARN lines\n",
                                       "reef failed (set REEF_LOG=WARN for more)\n",
                                       "ValueError: Sharding of 7 reefs\n" HALT};
    for (size_t i = 0; i < sizeof(said) / sizeof(said[0]); i++) {
        char text[512];
        (void)snprintf(text, sizeof(text), "%s%s%s", BEGIN, READY, said[i]);
        struct scanned s = scan(text);
        struct doctor_decisive d = doctor_scan_decisive(s.scan);
        if (!d.known && d.line == 0)
            fail_msg("nothing decides of:\n%s", text);
        doctor_scan_free(s.scan);
    }
    assert_told(BEGIN READY "2026-11-20T10:00:00 [WARN ] reef failed\n", "");
    assert_told(BEGIN READY "time=7 level=WARN msg=\"reef\" err=failed\n", "");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_outlived),     cmocka_unit_test(test_stands_still),
        cmocka_unit_test(test_warnings),     cmocka_unit_test(test_shared),
        cmocka_unit_test(test_stops),        cmocka_unit_test(test_waited),
        cmocka_unit_test(test_free_memory),  cmocka_unit_test(test_prose),
        cmocka_unit_test(test_ran),          cmocka_unit_test(test_done_without),
        cmocka_unit_test(test_goes_on_well), cmocka_unit_test(test_ranks_stand_still),
        cmocka_unit_test(test_stops_after),  cmocka_unit_test(test_probes),
        cmocka_unit_test(test_levels)};
    return cmocka_run_group_tests(tests, open_catalog, close_catalog);
}
