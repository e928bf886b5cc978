/* What the operations guides say of the four cases and of the error catalog's entry, row by row:
 * the sign leads to the case, the case to the remedy, with the value for the size of the card. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/doctor/advise.h"
#include "supervisor/doctor/flow.h"
#include "supervisor/doctor/scan.h"

#define BEGIN "INFO vLLM API server version 0.11.0\n"
#define READY "INFO:     Application startup complete.\n"
#define OOM(x, c, y, z)                                                                            \
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " x " GiB. GPU 0 has a total "  \
    "capacity of " c " GiB of which " y " GiB is free. Of the allocated memory 7 GiB is "          \
    "allocated by PyTorch, and " z " is reserved by PyTorch but unallocated.\n"
#define ARGS(tokens)                                                                               \
    "INFO non-default args: {'max_num_seqs': 256, 'max_num_batched_tokens': " tokens               \
    ", 'gpu_memory_utilization': 0.9, 'tensor_parallel_size': 2, 'max_model_len': 32768}\n"

static const struct {
    const char *row, *log;
    enum doctor_class cls;
    enum doctor_question yes; /* DOCTOR_QUESTIONS: it is no case of memory */
    const char *flag, *value; /* a flag of NULL: words */
    const char *words;        /* of any remedy, NULL: none asked */
    uint32_t rate;
} rows[] = {
    {"start-up: lower the share", BEGIN ARGS("8192") OOM("1.20", "79.15", "0.50", "9.00 MiB"),
     DOCTOR_STARTUP_OOM, ASK_STARTUP, "--gpu-memory-utilization", "0.85", NULL, 0},
    {"start-up: weights to the host", BEGIN ARGS("8192") OOM("1.20", "79.15", "0.50", "9.00 MiB"),
     DOCTOR_STARTUP_OOM, ASK_STARTUP, "--cpu-offload-gb", "20", NULL, 0},
    {"burst: card of 24 GB", BEGIN ARGS("16384") READY OOM("1.20", "23.69", "0.50", "9.00 MiB"),
     DOCTOR_BURST_OOM, ASK_BURST, "--max-num-batched-tokens", "4096", NULL, 0},
    {"burst: card of 40 GB", BEGIN ARGS("16384") READY OOM("1.20", "39.40", "0.50", "9.00 MiB"),
     DOCTOR_BURST_OOM, ASK_BURST, "--max-num-batched-tokens", "8192", NULL, 0},
    {"burst: card of 80 GB", BEGIN ARGS("32768") READY OOM("1.20", "79.15", "0.50", "9.00 MiB"),
     DOCTOR_BURST_OOM, ASK_BURST, "--max-num-batched-tokens", "24576", NULL, 0},
    {"burst: its log lines", BEGIN READY "ERROR CUDA out of memory during forward pass\n",
     DOCTOR_BURST_OOM, ASK_BURST, "--max-num-seqs", "204", NULL, 0},
    {"burst: its other line", BEGIN READY "ERROR Request 77 failed: OOM\n", DOCTOR_BURST_OOM,
     ASK_BURST, "--max-num-batched-tokens", "1536", NULL, 0},
    {"chronic: expandable segments",
     BEGIN ARGS("8192") READY OOM("1.00", "79.15", "0.30", "4.20 GiB"), DOCTOR_FRAG_OOM,
     ASK_CHRONIC, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", NULL, 0},
    {"chronic: below a GiB, too",
     BEGIN ARGS("8192") READY OOM("0.50", "79.15", "0.10", "600.00 MiB"), DOCTOR_FRAG_OOM,
     ASK_CHRONIC, "PYTORCH_CUDA_ALLOC_CONF", "expandable_segments:True", NULL, 0},
    {"chronic: the leak of NCCL", BEGIN ARGS("8192") READY OOM("1.00", "79.15", "0.30", "4.20 GiB"),
     DOCTOR_FRAG_OOM, ASK_CHRONIC, "NCCL_CUMEM_ENABLE", "0", NULL, 0},
    {"catalog: 256 to 64 helped 90 %",
     BEGIN ARGS("8192") READY OOM("2.00", "79.15", "1.00", "9.00 MiB"), DOCTOR_BURST_OOM, ASK_BURST,
     NULL, NULL, "--max-num-seqs 64", 90},
    {"catalog: max_model_len 4096 helped 85 %",
     BEGIN ARGS("8192") READY OOM("2.00", "79.15", "1.00", "9.00 MiB"), DOCTOR_BURST_OOM, ASK_BURST,
     "--max-model-len", "4096", NULL, 85},
    {"catalog: prefix caching helped 80 %",
     BEGIN ARGS("8192") READY OOM("2.00", "79.15", "1.00", "9.00 MiB"), DOCTOR_BURST_OOM, ASK_BURST,
     "--enable-prefix-caching", NULL, NULL, 80},
    {"debug: one operation at a time", READY "RuntimeError: CUDA error: misaligned address\n",
     DOCTOR_DEVICE, DOCTOR_QUESTIONS, "CUDA_LAUNCH_BLOCKING", "1", NULL, 0},
    {"debug: what NCCL does", READY "[rank0]: Watchdog caught collective operation timeout\n",
     DOCTOR_COMM, DOCTOR_QUESTIONS, "NCCL_DEBUG", "INFO", NULL, 0},
};

static bool is_it(const struct doctor_advice *a, size_t i)
{
    if (rows[i].words && !strstr(a->remedy->text.in[LANG_EN], rows[i].words))
        return false;
    if (rows[i].flag && (!a->flag || strcmp(a->flag, rows[i].flag) != 0))
        return false;
    return (!rows[i].value || strcmp(a->value, rows[i].value) == 0) &&
           a->remedy->rate == rows[i].rate;
}

static void check(const struct doctor_catalog *c, size_t i)
{
    struct doctor_scan *s;
    const struct doctor_finding *f;
    struct doctor_advice a[DOCTOR_ADVICE_MOST];
    struct doctor_step steps[DOCTOR_QUESTIONS];
    uint32_t count, found = 0;
    assert_int_equal(doctor_scan_new(c, &s), 0);
    doctor_scan_feed(s, rows[i].log, strlen(rows[i].log));
    assert_int_equal(doctor_scan_finish(s, &f, &count), 0);
    if (count == 0 || f[0].cls != rows[i].cls)
        fail_msg("%s: %s", rows[i].row, count ? doctor_class_name(f[0].cls) : "nothing");
    if (rows[i].yes != DOCTOR_QUESTIONS) {
        doctor_flow(f[0].cls, f[0].phase, &f[0].numbers, steps);
        if (steps[rows[i].yes].answer != REPLY_YES)
            fail_msg("%s: the question is not answered with yes", rows[i].row);
    }
    uint32_t n = doctor_advise_for(&f[0], a);
    for (uint32_t k = 0; k < n; k++)
        found += is_it(&a[k], i);
    for (uint32_t k = 0; found == 0 && k < n; k++)
        print_error("%s %s\n", a[k].flag ? a[k].flag : "-", a[k].value);
    if (found == 0)
        fail_msg("%s: its remedy is not told", rows[i].row);
    doctor_scan_free(s);
}

static void test_rows(void **state)
{
    (void)state;
    struct doctor_catalog *c = NULL;
    assert_int_equal(doctor_catalog_new(NULL, NULL, 0, &c, NULL), 0);
    for (size_t i = 0; i < sizeof(rows) / sizeof(rows[0]); i++)
        check(c, i);
    /* The dead ends of the entry: 50, 90 and 70 % of them failed. */
    const struct doctor_signature *oom = doctor_catalog_find(c, "cuda-oom");
    static const uint32_t failed[] = {50, 90, 70};
    for (size_t i = 0; i < 3; i++)
        assert_int_equal(oom->dead_ends[i].rate, failed[i]);
    doctor_catalog_free(c);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(test_rows)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
