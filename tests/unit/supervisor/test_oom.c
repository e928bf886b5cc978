/* Crash classes by evidence: codes, numbers of real out-of-memory lines, echoes that do not count.
 */
#include "supervisor/law/oom.h"

#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/io/log_class.h"

#define MIB (1024.0 * 1024)
#define GIB (1024.0 * MIB)

#define TORCH_NEW                                                                                  \
    "(EngineCore_DP0 pid=7) ERROR 11-20 10:00:00 [core.py:708] torch.OutOfMemoryError: CUDA out "  \
    "of memory. Tried to allocate 1.16 GiB. GPU 0 has a total capacity of 23.69 GiB of which "     \
    "512.00 MiB is free. Including non-PyTorch memory, this process has 22.90 GiB memory in use. " \
    "Of the allocated memory 22.41 GiB is allocated by PyTorch, and 18.97 MiB is reserved by "     \
    "PyTorch but unallocated. If reserved but unallocated memory is large try setting "            \
    "PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True to avoid fragmentation.\n"
#define TORCH_FRAG                                                                                 \
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "   \
    "capacity of 23.69 GiB of which 300.00 MiB is free. Of the allocated memory 18.0 GiB is "      \
    "allocated by PyTorch, and 4.20 GiB is reserved by PyTorch but unallocated.\n"
#define TORCH_HUGE                                                                                 \
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 33.75 GiB. GPU 0 has a total "  \
    "capacity of 23.69 GiB of which 20.00 GiB is free.\n"
#define TORCH_OLD                                                                                  \
    "RuntimeError: CUDA out of memory. Tried to allocate 2.00 GiB (GPU 0; 15.78 GiB total "        \
    "capacity; 12.50 GiB already allocated; 1.20 GiB free; 14.00 GiB reserved in total by "        \
    "PyTorch)\n"
#define VLLM_SMALL                                                                                 \
    "ValueError: To serve at least one request with the model's max seq len (2048), (0.01 GiB KV " \
    "cache is needed, which is larger than the available KV cache memory (0.0 GiB).\nRuntimeErr"   \
    "or: Engine core initialization failed. See root cause above. Failed core proc(s): {}\n"
#define ECHO                                                                                       \
    "INFO Received request cmpl-1: prompt: 'CUDA out of memory. Tried to allocate 1.00 GiB'\n"     \
    "{\"content\": \"CUDA out of memory. Tried to allocate 1.00 GiB\"}\n"

static void test_numbers(void **state)
{
    (void)state;
    static const struct {
        const char *text;
        double requested, free, reserved, capacity;
        bool found, host;
    } cases[] = {
        {TORCH_NEW, 1.16 * GIB, 512 * MIB, 18.97 * MIB, 23.69 * GIB, true, false},
        {TORCH_OLD, 2 * GIB, 1.2 * GIB, 1.5 * GIB, 15.78 * GIB, true, false},
        {TORCH_NEW "a\n" TORCH_FRAG "b\nc", GIB, 300 * MIB, 4.2 * GIB, 23.69 * GIB, true, false},
        {"RuntimeError: [enforce fail at alloc_cpu.cpp:83] . DefaultCPUAllocator: can't allocate "
         "memory: you tried to allocate 137438953472 bytes. Error code 12\n",
         137438953472.0, 0, 0, 0, true, true},
        {"evenkeel-server: out of device memory: requested 4096 bytes, free 100 bytes, reserved "
         "50 bytes, capacity 1 MiB\n",
         4096, 100, 50, MIB, true, false},
        {VLLM_SMALL, 0, 0, 0, 0, true, false},
        {ECHO, 0, 0, 0, 0, false, false},
        {"", 0, 0, 0, 0, false, false},
        {"all is well\n", 0, 0, 0, 0, false, false},
        {"CUDA out of memory. Tried to allocate 1e400 GiB, 99999999999999999999 bytes is free", 0,
         0, 0, 0, true, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct oom_numbers n = {0};
        assert_int_equal(oom_parse(cases[i].text, strlen(cases[i].text), &n), cases[i].found);
        assert_int_equal(n.host, cases[i].host);
        assert_true(n.requested == (uint64_t)cases[i].requested);
        assert_true(n.free == (uint64_t)cases[i].free);
        assert_true(n.reserved == (uint64_t)cases[i].reserved ||
                    n.reserved == (uint64_t)cases[i].reserved + 1);
        assert_true(n.capacity == (uint64_t)cases[i].capacity);
    }
}

#define READY(s)    .phase = PHASE_READY, .uptime_s = 4000, .status = (s)
#define STARTING(s) .phase = PHASE_STARTING, .uptime_s = 5, .status = (s)

/* Evidence of an end, its class, whether a retry may help, and a part of the sentence. */
static const struct class_case {
    struct crash_evidence e;
    enum crash_class want;
    bool retry;
    const char *says;
} classes[] = {
    {{READY(0), .asked = true}, CRASH_CLEAN_EXIT, true, "Stopped as it was asked to"},
    {{READY(64), .asked = true}, CRASH_CLEAN_EXIT, true, "deadline"},
    {{READY(SIGTERM), .signaled = true, .asked = true}, CRASH_CLEAN_EXIT, true, "Stopped as"},
    {{READY(SIGKILL), .signaled = true, .asked = true, .killed = true},
     CRASH_CLEAN_EXIT,
     true,
     "deadline"},
    {{READY(0), .unseen = true, .has_word = true, .asked = true, .killed = true},
     CRASH_CLEAN_EXIT,
     true,
     "deadline"},
    /* somebody else's SIGKILL during a drain, which cut what was to be finished */
    {{READY(SIGKILL), .signaled = true, .asked = true}, CRASH_SIGNAL, true, "Signal 9"},
    {{READY(0), .unseen = true, .has_word = true, .asked = true},
     CRASH_SIGNAL,
     true,
     "ended after 4000 s without an exit record"},
    {{.unseen = true, .has_word = true}, CRASH_SIGNAL, true, "It ended without an exit"},
    {{READY(0), .unseen = true, .asked = true}, CRASH_CLEAN_EXIT, true, "not known"},
    {{READY(SIGKILL), .signaled = true, .killed_for_hang = true},
     CRASH_HANG_KILLED,
     true,
     "progress"},
    {{READY(SIGKILL), .signaled = true, .killed_for_hang = true, .killed_for_loop = true},
     CRASH_LOOP,
     true,
     "did not come back"},
    {{READY(SIGKILL), .signaled = true, .killed_for_loop = true}, CRASH_SIGNAL, true, "Signal 9"},
    {{STARTING(SIGKILL), .signaled = true, .killed_unready = true},
     CRASH_HANG_KILLED,
     true,
     "start_deadline_s"},
    {{READY(SIGKILL), .signaled = true, .oom_kills = 2},
     CRASH_HOST_OOM,
     true,
     "OOM killer ended 2 processes in its cgroup"},
    {{READY(SIGKILL), .signaled = true}, CRASH_SIGNAL, true, "no lack of memory"},
    {{READY(SIGSEGV), .signaled = true}, CRASH_SIGNAL, true, "SIGSEGV"},
    {{READY(SIGTERM), .signaled = true}, CRASH_SIGNAL, true, "evenkeeld did not send it"},
    {{STARTING(SIGINT), .signaled = true}, CRASH_SIGNAL, true, "evenkeeld did not send it"},
    {{READY(1), .oom_kills = 1}, CRASH_HOST_OOM, true, "ended 1 process in"},
    {{STARTING(2)}, CRASH_CONFIG, false, "flag"},
    {{STARTING(78)}, CRASH_CONFIG, false, "model"},
    {{STARTING(71)}, CRASH_STARTUP_OOM, true, "before it was ready"},
    {{STARTING(75)}, CRASH_STARTUP_OOM, false, "does not fit"},
    {{STARTING(79)}, CRASH_HOST_OOM, true, "host"},
    {{READY(72)}, CRASH_BURST_OOM, true, "no numbers"},
    {{READY(72), .log = TORCH_FRAG, .log_len = sizeof(TORCH_FRAG) - 1},
     CRASH_FRAG_OOM,
     true,
     "in pieces"},
    {{READY(73)}, CRASH_COMM, true, "peer"},
    {{READY(137), .has_word = true}, CRASH_COMM, true, "signal 9 ended a node of the group"},
    {{READY(77), .has_word = true}, CRASH_CLEAN_EXIT, true, "another node or a client"},
    {{READY(77)}, CRASH_UNKNOWN, true, "status 77"},
    {{READY(74)}, CRASH_HANG_KILLED, true, "deadline"},
    {{READY(80)}, CRASH_LOOP, true, "did not come round"},
    {{READY(76)}, CRASH_DEVICE, true, "fault"},
    {{READY(70)}, CRASH_UNKNOWN, true, "status 70"},
    {{READY(0)}, CRASH_UNKNOWN, true, "nobody asked"},
    {{READY(0), .exit0_is_failure = true}, CRASH_UNKNOWN, true, "status 0"},
    {{READY(1), .log = TORCH_NEW, .log_len = sizeof(TORCH_NEW) - 1},
     CRASH_BURST_OOM,
     true,
     "1.16 GiB"},
    {{STARTING(1), .log = TORCH_NEW, .log_len = sizeof(TORCH_NEW) - 1},
     CRASH_STARTUP_OOM,
     true,
     "1.16 GiB"},
    {{STARTING(1), .log = TORCH_HUGE, .log_len = sizeof(TORCH_HUGE) - 1},
     CRASH_CONFIG,
     false,
     "33.75 GiB"},
    {{STARTING(1), .log = VLLM_SMALL, .log_len = sizeof(VLLM_SMALL) - 1},
     CRASH_STARTUP_OOM,
     true,
     "before it was ready"},
    {{READY(1), .log = ECHO, .log_len = sizeof(ECHO) - 1}, CRASH_UNKNOWN, true, "status 1"},
#define LOG(s) .log = (s), .log_len = sizeof(s) - 1
    {{READY(0), .exit0_is_failure = true,
      LOG("(APIServer pid=7) ERROR 11-21 11:21:48 [async_llm.py:906] "
          "vllm.v1.engine.exceptions.EngineDeadError: EngineCore encountered an issue.\n")},
     CRASH_SIGNAL,
     true,
     "without a word"},
    {{READY(0), .exit0_is_failure = true,
      LOG("(EngineCore pid=8) ERROR 11-21 [core.py:9] EngineCore encountered a fatal error.\n"
          "(APIServer pid=7) ERROR 11-21 [async_llm.py:906] EngineDeadError: issue\n")},
     CRASH_UNKNOWN,
     true,
     "log shows, so it ended with status 0 after 4000 s"},
#define WORKER_ENDED                                                                               \
    "(EngineCore pid=8) ERROR 11-27 [multiproc_executor.py:315] Worker proc VllmWorker-0 died "    \
    "unexpectedly (exit code: None), shutting down executor.\n"                                    \
    "(EngineCore pid=8) ERROR 11-27 [core.py:1512] EngineCore encountered a fatal error.\n"        \
    "(APIServer pid=7) ERROR 11-27 [async_llm.py:906] EngineDeadError: EngineCore encountered\n"
    {{READY(0), .exit0_is_failure = true, LOG(WORKER_ENDED)},
     CRASH_SIGNAL,
     true,
     "A worker process of its engine ended (killed"},
    {{READY(1), LOG("ERROR [multiproc_executor.py:150] Worker proc VllmWorker-1 died "
                    "unexpectedly (exit code: -9), shutting down executor.\n")},
     CRASH_SIGNAL, /* the kernel's count, not a guess, says that host memory ran out */
     true,
     "A worker process"},
    {{READY(1), .oom_kills = 1, LOG("Worker proc VllmWorker-1 died unexpectedly\n")},
     CRASH_HOST_OOM,
     true,
     "OOM killer"},
    {{READY(0), .exit0_is_failure = true, .unseen = true, LOG(WORKER_ENDED)},
     CRASH_SIGNAL,
     true,
     "so it ended after 4000 s"},
    /* what a vLLM 0.32 said of a worker's kill: its trace goes through a queue between ranks */
    {{READY(0), .exit0_is_failure = true,
      LOG("(EngineCore pid=8) ERROR 11-28 [multiproc_executor.py:315] Worker proc VllmWorker-0 "
          "died "
          "unexpectedly (exit code: None), shutting down executor.\n"
          "(EngineCore pid=8) ERROR 11-28 [core.py:1512] EngineCore encountered a fatal error.\n"
          "(EngineCore pid=8) ERROR 11-28 [core.py:1512] Traceback (most recent call last):\n"
          "(EngineCore pid=8) ERROR 11-28 [core.py:1512]   File \"/opt/vllm/lib/python3.11/"
          "site-packages/vllm/distributed/device_communicators/shm_broadcast.py\", line 867, in "
          "acquire\n"
          "(EngineCore pid=8) ERROR 11-28 [core.py:1512]     raise RuntimeError(\"cancelled\")\n"
          "(EngineCore pid=8) ERROR 11-28 [core.py:1512] RuntimeError: cancelled\n"
          "(APIServer pid=7) ERROR 11-28 [async_llm.py:906] vllm.v1.engine.exceptions."
          "EngineDeadError: EngineCore encountered an issue. See stack trace (above) for the root "
          "cause.\n")},
     CRASH_SIGNAL,
     true,
     "A worker process of its engine ended"},
    /* asked to end, its API server saw its engine's end and said so */
    {{READY(0), .exit0_is_failure = true, .unseen = true, .asked = true,
      LOG("(APIServer pid=7) ERROR 11-27 [async_llm.py:906] EngineDeadError: issue\n")},
     CRASH_CLEAN_EXIT,
     true,
     "Asked to stop, and it ended"},
    {{STARTING(1), LOG("OSError: [Errno 98] Address already in use\n")},
     CRASH_PORT,
     false,
     "address"},
    {{READY(1), LOG("OSError: [Errno 28] No space left on device")}, CRASH_DISK, true, "disk"},
    {{READY(SIGABRT), .signaled = true, LOG("RuntimeError: NCCL error: remote process exited\n")},
     CRASH_COMM,
     true,
     "collective"},
    {{READY(1), LOG("CUDA error: an illegal memory access was encountered\n")},
     CRASH_DEVICE,
     true,
     "cuda-illegal-access"},
    {{STARTING(1), LOG("api_server.py: error: unrecognized arguments: --swap-space\n")},
     CRASH_CONFIG,
     false,
     "--swap-space"},
    {{STARTING(78), LOG("2026-01-01T00:00:00.000Z evenkeel-server error: config.json: there is no "
                        "such file in /m; name another directory\n")},
     CRASH_CONFIG,
     false,
     "model files: config.json: there is no such file in /m; name another directory"},
    {{STARTING(2),
      LOG("                     [model_tag]\napi_server.py: error: unrecognized arguments: "
          "--max-modellen\n")},
     CRASH_CONFIG,
     false,
     "a bad value: unrecognized arguments: --max-modellen"},
    {{STARTING(2), LOG("vllm serve: error: argument --max-num-seqs: invalid int value: 'abc'\n")},
     CRASH_CONFIG,
     false,
     "a bad value: argument --max-num-seqs: invalid int value: 'abc'"},
    {{STARTING(SIGKILL), .signaled = true, .killed_unready = true,
      LOG("first\nLoading safetensors checkpoint shards:  40%\n\n")},
     CRASH_HANG_KILLED,
     true,
     "(start_deadline_s); its last line was: Loading safetensors checkpoint shards:  40%."},
    {{STARTING(2), LOG("x evenkeel-server error: --prot: unknown; did you mean --port?\n")},
     CRASH_CONFIG,
     false,
     "did you mean --port?"},
    {{READY(1), LOG("std::bad_alloc\n")}, CRASH_HOST_OOM, true, "host memory"},
    /* Words that any program may have do not end all tries. */
    {{STARTING(1), LOG("Cannot find an appropriate cached snapshot of kelp/weed\n")},
     CRASH_CONFIG,
     true,
     "snapshot"},
    /* Nor do those of a headline, unless the same start fails again for each of its causes. */
    {{STARTING(1), LOG("llama_model_load: error loading model: kelp is not of this world\n")},
     CRASH_CONFIG,
     false,
     "(gguf-load)"},
    {{STARTING(1), LOG("ValueError: Failed to load model from file: /kelp/kelp.gguf\n")},
     CRASH_CONFIG,
     true, /* it may be for lack of memory */
     "(llama-python-load)"},
    {{STARTING(1), LOG("ERROR bind 0.0.0.0:8000: Address already in use. Retrying in 5 s\n"
                       "ERROR bind 0.0.0.0:8000: Address already in use. Retrying in 5 s\n")},
     CRASH_PORT,
     false,
     "(port-in-use)"},
};

static void test_classes(void **state)
{
    int named = 0;
    (void)state;
    for (size_t i = 0; i < sizeof(classes) / sizeof(classes[0]); i++) {
        struct crash_evidence e = classes[i].e;
        struct crash_found found;
        if (log_class_find(NULL, e.phase, e.log, e.log_len, &found))
            e.found = &found;
        struct crash_verdict v = crash_classify(&e);
        if (v.cls != classes[i].want || !strstr(v.why, classes[i].says))
            print_error("case %zu: %s: %s\n", i, crash_name(v.cls), v.why);
        assert_int_equal(v.cls, classes[i].want);
        assert_int_equal(v.retry, classes[i].retry);
        assert_non_null(strstr(v.why, classes[i].says));
        assert_non_null(v.remedy);
        char entry[64] = "none";
        if (e.found)
            (void)snprintf(entry, sizeof(entry), "(%s)", found.id);
        const bool told = strstr(v.why, entry) != NULL;
        assert_string_equal(v.signature, told ? found.id : "");
        named += told;
    }
    assert_true(named > 3);
    for (int i = 0; i <= CRASH_COUNT; i++)
        assert_non_null(crash_name((enum crash_class)i));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_numbers),
        cmocka_unit_test(test_classes),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
