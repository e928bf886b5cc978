/* The scan: a mixed log without a false finding, lives, ranks, colours, envelopes, and what the
 * numbers make of a device OOM. */
#include "supervisor/doctor/scan.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/doctor/advise.h"
#include "supervisor/doctor/lines.h"
#include "supervisor/doctor/tell.h"
#include "tests/unit/doctor/scanned.h"

static void test_mixed(void **state)
{
    (void)state;
    char line[2048];
    uint32_t lines = 0, wrong = 0;
    FILE *f = fopen("tests/fixtures/mixed_log.txt", "r");
    assert_non_null(f);
    while (fgets(line, sizeof(line), f)) {
        char *bar = strchr(line, '|');
        if (*line == '#' || !bar)
            continue;
        *bar = '\0';
        struct scanned s = scan_pieces(bar + 1, 4096);
        const char *id = s.count ? s.f[0].signature->id : "-";
        if (strcmp(id, line) != 0) {
            print_error("%s, not %s: %s", id, line, bar + 1);
            wrong++;
        }
        doctor_scan_free(s.scan);
        lines++;
    }
    (void)fclose(f);
    assert_int_equal(wrong, 0);
    assert_true(lines >= 300);
}

#define OOM                                                                                        \
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate %s GiB. GPU 0 has a total "     \
    "capacity of 23.69 GiB of which %s is free. Of the allocated memory 20 GiB is allocated by "   \
    "PyTorch, and %s is reserved by PyTorch but unallocated.\n"
#define BEGIN "INFO vLLM API server version 0.11.0\n"

static void test_oom_kinds(void **state)
{
    (void)state;
    static const struct {
        const char *before, *requested, *free, *reserved;
        enum doctor_class want;
    } cases[] = {
        {BEGIN, "1.16", "512.00 MiB", "18.97 MiB", DOCTOR_STARTUP_OOM},
        {BEGIN READY, "1.16", "512.00 MiB", "18.97 MiB", DOCTOR_BURST_OOM},
        {BEGIN READY, "16.00", "15.81 GiB", "335.07 MiB", DOCTOR_BURST_OOM},
        {BEGIN READY, "1.00", "300.00 MiB", "4.20 GiB", DOCTOR_FRAG_OOM},
        {BEGIN, "33.75", "20.00 GiB", "6.95 MiB", DOCTOR_CONFIG},
        {"", "1.16", "512.00 MiB", "18.97 MiB", DOCTOR_DEVICE_OOM},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char text[1024];
        int n = snprintf(text, sizeof(text), "%s", cases[i].before);
        (void)snprintf(text + n, sizeof(text) - (size_t)n, OOM, cases[i].requested, cases[i].free,
                       cases[i].reserved);
        struct scanned s = scan_pieces(text, 7);
        assert_true(s.count >= 1);
        /* Whose remedies fit comes first: fewer sequences do not mend what is in pieces. */
        bool pieces = cases[i].want == DOCTOR_FRAG_OOM;
        double asked = 0;
        assert_string_equal(s.f[0].signature->id, pieces ? "cuda-oom-fragmented" : "cuda-oom");
        assert_true(doctor_numbers_lookup(&s.f[0].numbers, "requested", &asked) && asked > 0);
        assert_string_equal(doctor_class_name(s.f[0].cls), doctor_class_name(cases[i].want));
        doctor_scan_free(s.scan);
    }
    /* Old PyTorch: what is reserved in all. */
    struct scanned s =
        scan_pieces("RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; "
                    "15.78 GiB total capacity; 12.50 GiB already allocated; 1.20 GiB free; "
                    "14.00 GiB reserved in total by PyTorch)\n",
                    4096);
    double v = 0;
    assert_true(doctor_numbers_lookup(&s.f[0].numbers, "reserved", &v));
    assert_true(v > 1.49 * 1073741824 && v < 1.51 * 1073741824);
    assert_int_equal(s.f[0].cls, DOCTOR_FRAG_OOM); /* 1.2 free and 1.5 reserved cover 2 */
    doctor_scan_free(s.scan);
}

/* An older failure of the same log does not hide what ended the last start; a consequence does not
 * hide its cause. */
static void test_lives(void **state)
{
    (void)state;
    static const char text[] =
        BEGIN "ValueError: No available memory for the cache blocks.\n"
              "RuntimeError: Engine core initialization failed. See root cause above.\n" BEGIN
              "OSError: [Errno 98] Address already in use\n" BEGIN READY
              "EngineDeadError: EngineCore encountered an issue.\n"
              "OSError: [Errno 98] Address already in use\n";
    struct scanned s = scan_pieces(text, 3);
    assert_int_equal(s.count, 4);
    assert_string_equal(s.f[0].signature->id, "port-in-use");
    assert_int_equal(s.f[0].starts, 2);
    assert_int_equal(s.f[0].first_line, 5);
    assert_int_equal(s.f[0].last_line, 9);
    assert_string_equal(s.f[1].signature->id, "engine-dead");
    assert_string_equal(s.f[2].signature->id, "vllm-no-kv-blocks");
    assert_string_equal(s.f[3].signature->id, "engine-start-failed");
    assert_int_equal(doctor_scan_lines(s.scan), 9);
    doctor_scan_free(s.scan);
}

static void test_forms(void **state)
{
    (void)state;
    static const struct {
        const char *text, *id;
        uint64_t ranks;
    } cases[] = {
        {"\033[0;36m(Worker_TP1 pid=9)\033[0;0m \033[31mRuntimeError: CUDA\033[0m error: out of "
         "memory\r\n",
         "cuda-oom-runtime", 2},
        {"{\"log\":\"OSError: [Errno 28] No space left on device\\n\",\"stream\":\"stderr\"}\n",
         "disk-full", 0},
        {"{\"MESSAGE\" : \"[rank3]: MemoryError\", \"PRIORITY\" : \"3\"}\n", "python-memoryerror",
         8},
        {"[rank0]: RuntimeError: NCCL error: unhandled system error\n[rank7]: RuntimeError: NCCL "
         "error: unhandled system error\n",
         "nccl-system-error", 0x81},
        {"half a line without its end: Address already in use", "port-in-use", 0},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scanned s = scan_pieces(cases[i].text, 11);
        assert_int_equal(s.count, 1);
        assert_string_equal(s.f[0].signature->id, cases[i].id);
        assert_int_equal(s.f[0].ranks, cases[i].ranks);
        for (const char *c = s.f[0].evidence[0].text; *c; c++)
            assert_true((unsigned char)*c >= ' ');
        doctor_scan_free(s.scan);
    }
}

/* A line of megabytes is cut, not kept. */
static void test_long_line(void **state)
{
    (void)state;
    struct scanned s = {0};
    char block[4096];
    memset(block, 'x', sizeof(block));
    assert_int_equal(doctor_scan_new(catalog, &s.scan), 0);
    for (int i = 0; i < 1000; i++)
        doctor_scan_feed(s.scan, block, sizeof(block));
    doctor_scan_feed(s.scan, "\nMemoryError\n", 13);
    assert_int_equal(doctor_scan_finish(s.scan, &s.f, &s.count), 0);
    assert_int_equal(s.count, 1);
    assert_int_equal(s.f[0].first_line, 2);
    doctor_scan_free(s.scan);
}

static void test_advice(void **state)
{
    (void)state;
    static const char text[] =
        "INFO non-default args: {'model': '/m', 'max_num_seqs': 256, 'max_num_batched_tokens': "
        "8192, 'gpu_memory_utilization': 0.9}\n" READY
        "Engine 000: Running: 100 reqs, Waiting: 3 reqs, GPU KV cache usage: 99.0%, Prefix cache "
        "hit rate: 0.0%\n"
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.16 GiB. GPU 0 has a total "
        "capacity of 23.69 GiB of which 512.00 MiB is free.\n";
    struct scanned s = scan_pieces(text, 4096);
    struct doctor_advice a[DOCTOR_ADVICE_MOST];
    const struct doctor_signature *sig = s.f[0].signature;
    uint32_t n = doctor_advise_for(&s.f[0], a);
    assert_true(n >= 5);
    assert_string_equal(a[0].flag, "--max-num-batched-tokens");
    assert_string_equal(a[0].value, "4096"); /* a card of 24 GB */
    assert_non_null(strstr(a[0].sum, "at most 4096 on a card of 23.69 GiB"));
    assert_string_equal(a[1].flag, "--max-num-seqs");
    assert_string_equal(a[1].value, "80"); /* of the 100 that ran */
    assert_string_equal(a[1].sum, "100 that ran x 0.8");
    assert_int_equal(a[1].remedy->rate, 0); /* 90 % is of another remedy: 256 to 64 */
    assert_string_equal(a[2].value, "0.87");
    for (uint32_t i = 0; i < n; i++)
        assert_true(a[i].remedy->rate != 90 || !a[i].flag);
    assert_int_equal(sig->dead_ends[1].rate, 90);
    struct ek_buf out = {0};
    doctor_tell(sig->cause.in[LANG_EN], &s.f[0].numbers, &out);
    assert_non_null(strstr(out.data, "asked for 1.16 GiB when 512.00 MiB of 23.69 GiB"));
    ek_buf_done(&out);
    doctor_tell("{missing} {2 * 3} {0.25:pct} {requested / 2:size} {", &s.f[0].numbers, &out);
    assert_string_equal(out.data, "? 6 25 % 593.92 MiB {");
    ek_buf_done(&out);
    doctor_scan_free(s.scan);
}

/* vLLM names who holds its port whenever it is told to end: what ended it before is the cause, and
 * a refused request is no refused setting. */
static void test_first_cause(void **state)
{
    (void)state;
#define STOPS                                                                                      \
    "WARNING 10-01 12:00:00 [launcher.py:98] port 8000 is used by process psutil.Process(pid=7, "  \
    "name='vllm', status='running') launched with command:\n"                                      \
    "WARNING 10-01 12:00:00 [launcher.py:98] vllm serve kelp\n"                                    \
    "INFO 10-01 12:00:00 [launcher.py:101] Shutting down FastAPI HTTP server.\n"                   \
    "INFO:     Shutting down\n"
    static const struct {
        const char *log, *says;
    } cases[] = {
        {BEGIN READY STOPS, "-"},
        {BEGIN READY "ERROR torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
                     "\n" STOPS,
         "cuda-oom"},
        {BEGIN READY "ERROR RuntimeError: CUDA error: an illegal memory access was encountered"
                     "\n" STOPS,
         "cuda-illegal-access"},
        {BEGIN READY "ERROR pydantic.ValidationError: 1 validation error for KelpRequest\n"
                     "ERROR   Value error, kelp is 7 [type=value_error, input_type=dict]\n",
         "client-schema"},
        {BEGIN "ERROR pydantic.ValidationError: 1 validation error for KelpConfig\n"
               "ERROR   Value error, kelp is 7 [type=value_error, input_type=dict]\n",
         "settings-refused"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scanned s = scan_pieces(cases[i].log, 64);
        assert_string_equal(s.count ? s.f[0].signature->id : "-", cases[i].says);
        for (uint32_t k = 0; k < s.count; k++)
            assert_true(i >= 4 || s.f[k].cls != DOCTOR_CONFIG);
        doctor_scan_free(s.scan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_mixed),      cmocka_unit_test(test_oom_kinds),
        cmocka_unit_test(test_lives),      cmocka_unit_test(test_forms),
        cmocka_unit_test(test_long_line),  cmocka_unit_test(test_advice),
        cmocka_unit_test(test_first_cause)};
    return cmocka_run_group_tests(tests, open_catalog, close_catalog);
}
