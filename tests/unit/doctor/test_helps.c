/* The table of remedies by program and module: which of them a finding gets, in which order, by
 * which version of the engine; what a site's file may not say; and that each of the built-in table
 * belongs to a kind that its expression can meet. */
#include "supervisor/doctor/catalog.h"

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/doctor/advise.h"
#include "tests/unit/doctor/scanned.h"

static const char small[] =
    "facts: ['kelpd (?<vllm_version>\\d+\\.\\d+)', 'runner of kel(?<is_ollama>p)']\n"
    "flags: [{flag: --leaf, engine: vllm, from: '0.9'}]\n"
    "hints: [{class: BUG, names: general, re: ['kelpd fell over']}]\n"
    "helps:\n"
    "  - {what: of the stem, class: [BUG], re: '(?m)^<kelp_stem/', do: [stem], sources: [s]}\n"
    "  - {what: of the leaf, class: [BUG, COMM], re: 'leaf',\n"
    "     do: [{flag: --leaf, en: leaf}], sources: [s]}\n"
    "  - {what: of the program, class: [BUG], re: '\\A\\S+ \\$vllm', do: [program], sources: [s]}\n"
    "  - {what: of Ollama, class: [BUG], re: '\\A\\S+ \\$ollama', do: [ollama], sources: [s]}\n"
    "  - {what: of another kind, class: [FILES], re: 'leaf', do: [other], sources: [s]}\n"
    "signatures:\n"
    "  - {id: exact, class: BUG, rank: 70, re: ['KelpError: exact'], title: t, cause: c,\n"
    "     do: [own], sources: [s]}\n"
    "  - {id: general, class: BUG, rank: 40, re: ['KelpError: general'], title: t, cause: c,\n"
    "     do: [own], sources: [s]}\n";

/* The remedies of a log's first finding, in their order: "own leaf". */
static void advised(const char *log, char *ret_text, size_t size)
{
    struct doctor_advice advice[DOCTOR_ADVICE_MOST];
    struct ek_fault fault = {0};
    int r = doctor_catalog_parse("small", small, strlen(small), &catalog, &fault);
    if (r < 0)
        print_error("%s\n", fault.msg);
    assert_int_equal(r, 0);
    struct scanned s = scan_pieces(log, 7);
    assert_true(s.count > 0);
    uint32_t count = doctor_advise_for(&s.f[0], advice);
    size_t n = 0;
    ret_text[0] = '\0';
    for (uint32_t i = 0; i < count; i++)
        n += (size_t)snprintf(ret_text + n, size - n, "%s%s", i ? " " : "",
                              advice[i].remedy->text.in[LANG_EN]);
    doctor_scan_free(s.scan);
    doctor_catalog_free(catalog);
}

static void test_order_and_place(void **state)
{
    (void)state;
    static const struct {
        const char *log, *says;
    } cases[] = {
        {"KelpError: general", "own"},
        {"KelpError: general, of a leaf", "leaf own"},
        {"runner of kelp\nKelpError: general", "ollama own"},
        {"KelpError: exact, of a leaf", "own leaf"},
        {"kelpd 0.8\nKelpError: general, of a leaf", "program own"}, /* no such flag in it */
        {"kelpd 0.9\nKelpError: general, of a leaf", "leaf program own"},
        {"Traceback (most recent call last):\n"
         "  File \"/x/site-packages/kelp_stem/a.py\", line 1, in grow\n    b()\n"
         "  File \"/usr/lib/python3.12/contextlib.py\", line 2, in __exit__\n    next()\n"
         "KelpError: general",
         "stem own"},
        /* Another line than the exception's names the failure. */
        {"Traceback (most recent call last):\n"
         "  File \"/x/site-packages/kelp_stem/a.py\", line 1, in grow\n    b()\n"
         "kelp.OddException: odd\nERROR: kelpd fell over",
         "own"},
    };
    char text[200];
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        advised(cases[i].log, text, sizeof(text));
        assert_string_equal(text, cases[i].says);
    }
}

static void test_faults(void **state)
{
    (void)state;
    static const struct {
        const char *text, *says;
    } cases[] = {
        {"helps: [{class: [BUG], re: kelp, do: [a], sources: [s]}]", "'what' is missing"},
        {"helps: [{what: w, re: kelp, do: [a], sources: [s]}]", "'class' is missing"},
        {"helps: [{what: w, class: BUG, re: kelp, do: [a], sources: [s]}]", "'class' is a list"},
        {"helps: [{what: w, class: [KELP], re: kelp, do: [a], sources: [s]}]", "no class 'KELP'"},
        {"helps: [{what: w, class: [BUG], do: [a], sources: [s]}]", "'re' is missing"},
        {"helps: [{what: w, class: [BUG], re: '(', do: [a], sources: [s]}]", "is no expression"},
        {"helps: [{what: w, class: [BUG], re: kelp, do: [a]}]", "sources are missing"},
        {"helps: [{what: w, class: [BUG], re: kelp, rank: 1, do: [a], sources: [s]}]", "unknown"},
        {"helps: {what: w}", "'helps' is a list"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct doctor_catalog *c = NULL;
        struct ek_fault fault = {0};
        int r = doctor_catalog_parse("site", cases[i].text, strlen(cases[i].text), &c, &fault);
        assert_int_equal(r, -EBADMSG);
        if (!strstr(fault.msg, cases[i].says))
            print_error("%s: %s\n", cases[i].text, fault.msg);
        assert_non_null(strstr(fault.msg, cases[i].says));
        assert_null(c);
    }
}

/* A table that is longer than there is room for is told, not cut. */
static void test_too_many(void **state)
{
    (void)state;
    static const char one[] = "  - {what: w, class: [BUG], re: kelp, do: [a], sources: [s]}\n";
    size_t count = 257, size = 16 + count * (sizeof(one) - 1) + 1;
    char *text = malloc(size);
    assert_non_null(text);
    size_t n = (size_t)snprintf(text, size, "helps:\n");
    for (size_t i = 0; i < count; i++)
        n += (size_t)snprintf(text + n, size - n, "%s", one);
    struct doctor_catalog *c = NULL;
    struct ek_fault fault = {0};
    assert_int_equal(doctor_catalog_parse("site", text, n, &c, &fault), -EBADMSG);
    assert_non_null(strstr(fault.msg, "more than 256 helps"));
    free(text);
}

/* A site's helps come before the built-in ones: of one failure three are told. */
static void test_own_first(void **state)
{
    (void)state;
    static const char own[] =
        "helps:\n  - {what: ours, class: [COMM], re: '(?i)kelp', do: [ask], sources: [s]}\n"
        "  - {what: also ours, class: [COMM], re: '(?i)kelp', do: [ask], sources: [s]}\n";
    assert_int_equal(doctor_catalog_new("site", own, strlen(own), &catalog, NULL), 0);
    struct scanned s = scan_pieces("ray.exceptions.RaySystemError: NCCL error: unhandled system "
                                   "error of kelp (nixl, TCPStore, huggingface)\n",
                                   64);
    assert_true(s.count > 0);
    assert_int_equal(s.f[0].cls, DOCTOR_COMM);
    assert_int_equal(s.f[0].help_count, DOCTOR_HELPED_MOST);
    assert_string_equal(s.f[0].help[0]->what, "ours");
    assert_string_equal(s.f[0].help[1]->what, "also ours");
    doctor_scan_free(s.scan);
    doctor_catalog_free(catalog);
}

/* Whether a log's first finding is told a flag, and with which value ("": any). */
static bool tells_flag(const char *log, const char *flag, const char *value)
{
    struct doctor_advice advice[DOCTOR_ADVICE_MOST];
    struct scanned s = scan_pieces(log, 64);
    bool told = false;
    assert_true(s.count > 0);
    uint32_t count = doctor_advise_for(&s.f[0], advice);
    for (uint32_t i = 0; i < count; i++)
        told |= advice[i].flag && strcmp(advice[i].flag, flag) == 0 &&
                (!*value || strcmp(advice[i].value, value) == 0);
    doctor_scan_free(s.scan);
    return told;
}

#define SGLANG      "server_args=ServerArgs(model_path='x', tp_size=1)\n"
#define VLLM        "vLLM API server version "
#define GRAMMAR     "ERROR: Failed to compile grammar: xgrammar error: unsupported JSON schema\n"
#define HEAD        "RuntimeError: flashinfer: unsupported head size 80\n"
#define FAULT       "torch.AcceleratorError: CUDA error: an illegal memory access was encountered\n"
#define OF_MEMORY   "RuntimeError: CUDA Error: out of memory at /w/csrc/cumem_allocator.cpp:62\n"
#define SERVES      "INFO:     Application startup complete.\n"
#define OOM         "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB.\n"
#define SGLANG_FILE "/x/sglang/srt/layers/awq.py:7: UserWarning: kelp\n"
#define VLLM_FOLDER "  File \"/opt/vllm/lib/site-packages/sglang/srt/kelp.py\", line 7, in kelp\n"
#define LOADS       "  File \"/x/site-packages/vllm/a.py\", line 7, in create_weights\n"
#define KILLED      "kernel: Out of memory: Killed process 7 (python3) total-vm:7kB, anon-rss:7kB\n"
#define STARTS_TO   "Loading safetensors checkpoint shards:  50% Completed | 1/2\n"

/* What an engine does not have is not told of it; what it calls otherwise, by its own name. */
static void test_flags_of_engines(void **state)
{
    (void)state;
    static const struct {
        const char *log, *flag, *value;
        bool told;
    } cases[] = {
        {SGLANG GRAMMAR, "--structured-outputs-config", "", false},
        {SGLANG GRAMMAR, "--grammar-backend", "llguidance", true},
        {VLLM "0.11.0\n" GRAMMAR, "--structured-outputs-config", "", true},
        {VLLM "0.11.0\n" GRAMMAR, "--grammar-backend", "", false},
        {VLLM "0.10.1\n" GRAMMAR, "--structured-outputs-config", "", false},
        {VLLM "0.10.1\n" GRAMMAR, "--guided-decoding-backend", "guidance", true},
        {VLLM "0.6.6\n" GRAMMAR, "--guided-decoding-backend", "outlines", true},
        {VLLM "0.12.0\n" GRAMMAR, "--guided-decoding-backend", "", false},
        {GRAMMAR, "--structured-outputs-config", "", true},
        {SGLANG HEAD, "VLLM_USE_FLASHINFER_SAMPLER", "", false},
        {SGLANG HEAD, "VLLM_ATTENTION_BACKEND", "", false},
        {SGLANG HEAD, "--attention-backend", "FLASH_ATTN", false},
        {SGLANG HEAD, "--attention-backend", "TRITON_ATTN", false},
        {SGLANG HEAD, "--attention-backend", "triton", true},
        {VLLM "0.14.0\n" HEAD, "--attention-backend", "FLASH_ATTN", true},
        {VLLM "0.12.0\n" HEAD, "--attention-backend", "", false},
        {VLLM "0.12.0\n" HEAD, "VLLM_ATTENTION_BACKEND", "FLASH_ATTN", true},
        {SGLANG FAULT, "--enforce-eager", "", false},
        {SGLANG FAULT, "--disable-cuda-graph", "", true},
        {SGLANG VLLM_FOLDER FAULT, "--enforce-eager", "", false},
        {SGLANG_FILE OOM, "--max-running-requests", "", true},
        {SGLANG_FILE OOM, "--max-num-seqs", "", false},
        {SGLANG_FILE OOM, "--context-length", "", true},
        {VLLM "0.11.2\n" LOADS OF_MEMORY, "--gpu-memory-utilization", "", false},
        {VLLM "0.11.2\n" LOADS OF_MEMORY, "--tensor-parallel-size", "", true},
        {VLLM "0.11.2\n" SERVES OF_MEMORY, "--gpu-memory-utilization", "0.80", true},
    };
    assert_int_equal(open_catalog(NULL), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        bool told = tells_flag(cases[i].log, cases[i].flag, cases[i].value);
        if (told != cases[i].told)
            print_error("%s: %s\n", cases[i].log, cases[i].flag);
        assert_int_equal(told, cases[i].told);
    }
    (void)close_catalog(NULL);
}

/* Whether a remedy of a log's first finding has these words. */
static void check_told(const char *log, const char *words, bool expected)
{
    struct doctor_advice advice[DOCTOR_ADVICE_MOST];
    struct scanned s = scan_pieces(log, 64);
    bool told = false;
    assert_true(s.count > 0);
    uint32_t count = doctor_advise_for(&s.f[0], advice);
    for (uint32_t i = 0; i < count; i++)
        told |= strstr(advice[i].remedy->text.in[LANG_EN], words) != NULL;
    if (told != expected)
        print_error("%s: %s\n", s.f[0].signature->id, log);
    assert_int_equal(told, expected);
    doctor_scan_free(s.scan);
}

/* Remedies that need more than a word which stands in other failures, too. */
static void test_not_told(void **state)
{
    (void)state;
    static const struct {
        const char *log, *tells;
        bool told;
    } cases[] = {
        {"BadRequestError: Error code: 400 - {'message': 'temperature must be at most 2', 'input': "
         "{'role': 'user'}}\n",
         "neighbouring messages", false},
        {"BadRequestError: Error code: 400 - {'message': 'roles must alternate kelp/kelp'}\n",
         "neighbouring messages", true},
        {VLLM "0.11.0\n" SERVES KILLED, "workers or ranks that load", false},
        {VLLM "0.11.0\n" STARTS_TO KILLED, "workers or ranks that load", true},
        {VLLM "0.11.0\n" STARTS_TO SERVES KILLED, "workers or ranks that load", false},
        {VLLM "0.11.0\n" LOADS OF_MEMORY, "tags=", false},
        {VLLM "0.11.0\n" SERVES OF_MEMORY, "tags=", true},
    };
    assert_int_equal(open_catalog(NULL), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_told(cases[i].log, cases[i].tells, cases[i].told);
    (void)close_catalog(NULL);
}

/* Public messages, one a module: a remedy of the module is among what is told. */
static void test_builtin_table(void **state)
{
    (void)state;
    static const struct {
        const char *log, *tells;
    } cases[] = {
        {"RuntimeError: NCCL error: unhandled system error (run with NCCL_DEBUG=INFO)", "--ipc"},
        {"ERROR RuntimeError: PassManager::run failed", "Triton that this PyTorch asks"},
        {"ValueError: base_model.model.lm_head.weight is unsupported LoRA weight", "merge_and"},
        {"AssertionError: n_physical_experts=7 must be divisible by ep_size=3.", "redundant"},
        {"PermissionError: [Errno 13] Permission denied: '/.cache/vllm'", "no home"},
        {"RuntimeError: Data processing error: CAS service error : IO Error: Timer expired",
         "Plain downloads"},
        {"ray.exceptions.RaySystemError: System error: Failed to create placement group 'k'",
         "ray stop --force"},
        {"KVTransferError(bootstrap_room=7): Could not fetch prefill parallel info from "
         "bootstrap_addr: 10.7.7.7",
         "bootstrap address"},
        {"nvidia-container-cli: device error: false: unknown device: unknown.", "anew"},
        {"(EngineCore pid=7) RuntimeError: CUDA error: an illegal memory access was encountered",
         "--no-async-scheduling"},
        {"[2026-01-01 00:00:00 TP0] Scheduler hit an exception: Traceback (most recent call "
         "last):\n  File \"/x/sglang/srt/models/kelp.py\", line 7, in forward\n"
         "RuntimeError: CUDA error: an illegal memory access was encountered",
         "--disable-overlap-schedule"},
        {"RuntimeError: CUDA Error: out of memory at /w/csrc/cumem_allocator.cpp:62", "tags="},
        {"RuntimeError: Int8 not supported for this architecture", "that this card computes"},
        {"Warning  Unhealthy  kubelet  Liveness probe failed: HTTP probe failed with statuscode: "
         "404",
         "httpGet path"},
        {"INFO vLLM API server version 0.2.7\nTraceback (most recent call last):\n"
         "  File \"/x/vllm/worker/cache_engine.py\", line 7, in allocate_cpu_cache\n"
         "RuntimeError: CUDA error: out of memory",
         "pinned for the card"},
        {"[TensorRT-LLM][ERROR] Assertion failed: maxKelpTokensInPagedKvCache (7) must be large "
         "enough",
         "free_gpu_mem_fraction"},
        {"c++: fatal error: Killed signal terminated program cc1plus", "MAX_JOBS"},
        {"NotImplementedError: sharded is not supported for this kelp", "One card for each server"},
        {"BadRequestError: Error code: 400 - {'object': 'error', 'message': 'Value error, "
         "`tool_choice` must either be a named tool'}",
         "a newer release of the server"},
    };
    assert_int_equal(open_catalog(NULL), 0);
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++)
        check_told(cases[i].log, cases[i].tells, true);
    (void)close_catalog(NULL);
}

/* The flag that the failure's own line names comes first, unless it is among the remedies. */
static void test_named_flag(void **state)
{
    (void)state;
    static const struct {
        const char *log, *flag;
    } cases[] = {
        {"KelpError: general, set a smaller number for `--max-kelp`. kelp=1\n", "--max-kelp"},
        {"KelpError: general --leaf of vllm\n", "--leaf"},
        {"KelpError: general, run as kelp --max-kelp 7 --other 3\n", NULL},
        {"KelpError: general -- and --Kelp and a--b and --x\n", NULL},
        {"KelpError: general --max-kelp, again --max-kelp\n", "--max-kelp"},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct doctor_advice advice[DOCTOR_ADVICE_MOST];
        assert_int_equal(doctor_catalog_parse("small", small, strlen(small), &catalog, NULL), 0);
        struct scanned s = scan_pieces(cases[i].log, 7);
        assert_true(s.count > 0 && doctor_advise_for(&s.f[0], advice) > 0);
        const char *said = advice[0].flag;
        if (!said != !cases[i].flag || (said && strcmp(said, cases[i].flag) != 0))
            fail_msg("%s instead of %s first, of %s", said ? said : "no flag",
                     cases[i].flag ? cases[i].flag : "none", cases[i].log);
        doctor_scan_free(s.scan);
        doctor_catalog_free(catalog);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_order_and_place), cmocka_unit_test(test_faults),
        cmocka_unit_test(test_too_many),        cmocka_unit_test(test_builtin_table),
        cmocka_unit_test(test_own_first),       cmocka_unit_test(test_flags_of_engines),
        cmocka_unit_test(test_not_told),        cmocka_unit_test(test_named_flag),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
