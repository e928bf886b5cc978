/* Evidence, kind, cause: the decisive line of several processes, what does not count, the traps of
 * numbers, remedies by class and version, and what is said of a log that nobody knows. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "supervisor/doctor/advise.h"
#include "supervisor/doctor/level.h"
#include "supervisor/doctor/lines.h"
#include "supervisor/doctor/scan.h"
#include "tests/unit/doctor/scanned.h"

static struct scanned scan(const char *text)
{
    return scan_pieces(text, strlen(text) + 1);
}

#define BEGIN(v) "INFO vLLM API server version " v "\n"
#define CORE     "(EngineCore_DP0 pid=41) ERROR 11-20 10:00:02 [core.py:700] "
#define API      "(APIServer pid=7) "

/* Logs, and the signature of the first finding. */
static const struct first_case {
    const char *text, *id;
} first_said[] = {
    /* What the first process said last; the others' tracebacks follow from it. */
    {BEGIN("0.11.0") CORE "ValueError: No available memory for the cache blocks.\n" API
                          "RuntimeError: Engine core initialization failed. See root cause "
                          "above.\n",
     "vllm-no-kv-blocks"},
    /* The socket of NCCL's monitor (RAS) is not needed: another job of this host has its port. */
    {"[2026-01-01 00:00:00] k:7:7 [0] ras/client_support.cc:160 NCCL WARN Call to bind failed: "
     "Address already in use\n" CORE "ValueError: No available memory for the cache blocks.\n",
     "vllm-no-kv-blocks"},
    /* TurboMind's checks are no setting that was refused; what the driver said beside one is. */
    {"[TM][FATAL] models/kelp/kelp.cu(77): Check failed: config.kelp == 7 must be met\n",
     "turbomind-fatal"},
    {"[TM][FATAL] kernels/kelp.cu(83): Check failed: status == cudaSuccess an illegal memory "
     "access was encountered\n",
     "kind-device"},
    /* A library that gives no model back: its own lines say why, where they are shown. */
    {"ValueError: Failed to load model from file: /kelp/kelp.gguf\n", "llama-python-load"},
    {"llama_model_load: error loading model: kelp is not of this world\n"
     "ValueError: Failed to load model from file: /kelp/kelp.gguf\n",
     "gguf-load"},
    /* An import that was skipped explains nothing; nor does what the parent killed after it. */
    {BEGIN("0.11.0") "Skipping import of x: /x/_C.so: undefined symbol: _ZN3c105E\n"
                     "ValueError: Weight input_size_per_partition = 700 is not divisible by "
                     "min_thread_k = 128.\nKilled\n",
     "quantization-unsupported"},
    /* A watchdog only hands on what was thrown; a status of CUDA says nothing of peers. */
    {"Process group watchdog thread terminated with exception:\n"
     "HIP error: operation not permitted on an event last recorded in a capturing stream\n",
     "engine-bug"},
    {"[KELP] /k/kelp.cpp:7 fail to call hipKelp ---> [HIP error](invalid resource handle)\n",
     "kind-device"},
    {"NCCL WARN kelp.cc:7 Cuda failure 400 'invalid resource handle'\n", "nccl-p2p"},
    /* Why a model was not loaded: the backend, no file. */
    {"llama_model_load: error loading model: vk::Device::kelp: ErrorInitializationFailed\n",
     "kind-build"},
    /* Python's own words for an argument are no refusal of the engine's; a table of the process
     * that tidies shared memory is no cause. */
    {CORE "ValueError: invalid literal for int() with base 10: 'kelp'\n", "kind-bug"},
    {CORE "ValueError: No available memory for the cache blocks.\n"
          "Traceback (most recent call last):\n"
          "  File \"/usr/lib/python3.12/multiprocessing/resource_tracker.py\", line 7, in main\n"
          "KeyError: '/mp-0kelp7'\n",
     "vllm-no-kv-blocks"},
    {CORE "TypeError: Kelp.load_weed() got an unexpected keyword argument 'weed'\n",
     "python-version-mix"},
    {CORE "RuntimeError: view size is not compatible with input tensor's size and stride\n",
     "tensor-mismatch"},
    /* Ray wraps what a task has thrown, and says its own settings. */
    {CORE "ValueError: No available memory for the cache blocks.\n"
          "ray.exceptions.RayTaskError(ValueError): ray::Kelp.weed() (pid=7, ip=10.7.7.7)\n",
     "vllm-no-kv-blocks"},
    {"ray.exceptions.RayTaskError(ValueError): ray::Kelp.weed() (pid=7, ip=10.7.7.7)\n"
     "  File \"/kelp/weed.py\", line 7, in weed\n"
     "ValueError: signal only works in main thread of the main interpreter\n",
     "kind-bug"},
    {"INFO [ray_kelp.py:7] RAY_CGRAPH_get_timeout is set to 300\n" CORE
     "ValueError: No available memory for the cache blocks.\n",
     "vllm-no-kv-blocks"},
    /* A backend that was linked in is not looked for again. */
    {"load_backend: failed to find ggml_backend_init in /kelp/libggml-hip.so\n"
     "llama-server: /kelp/src/llama-kelp.cpp:7: bool kelp(): Assertion `weed' failed.\n",
     "tensor-mismatch"},
    /* Who was killed while compiling had no memory; Ollama looks at the card when a runner ends. */
    {"c++: fatal error: Killed signal terminated program cc1plus\n"
     "ninja: build stopped: subcommand failed.\n",
     "host-oom-more"},
    {"level=WARN source=sched.go:7 msg=\"gpu VRAM usage didn't recover within timeout\"\n"
     "RuntimeError: Triton Error [CUDA]: an illegal memory access was encountered\n",
     "cuda-illegal-access"},
    {"weed.KelpConnectionFailed: Connection to kelp failed due to MaxRetryError\n",
     "kind-unreachable"},
    {"Error: Invalid value for '--kelp': 'auto' is not a valid integer.\n", "unknown-flag"},
    {"mlx5_core 0000:07:00.0: Port module event: module 0, Cable error\n", "nccl-network"},
    {"HSA Error: Incompatible kernel and userspace, AMDGPU disabled.\n", "driver-mismatch"},
    /* A variable that is called DEBUG is no level. */
    {"run.sh: line 3: KELP_DEBUG=1 bin/kelp: Segmentation fault (core dumped)\n",
     "worker-segfault"},
    /* Who refuses: the program its settings, or a server a request. */
    {"pydantic_core._pydantic_core.ValidationError: 2 validation errors for "
     "ChatCompletionRequest\n",
     "client-schema"},
    /* An architecture whose inspection failed for a symbol: the headline follows. */
    {BEGIN("0.6.3") "ERROR ImportError: /x/flash_attn_2_cuda.so: undefined symbol: _ZN3c105E\n"
                    "ValueError: Model architectures ['LlamaForCausalLM'] are not supported for "
                    "now.\n",
     "torch-abi-mismatch"},
    /* A collective that fails for lack of memory is memory. */
    {BEGIN("0.9.1") "host:1:1 [0] NCCL WARN Cuda failure 2 'out of memory'\n"
                    "RuntimeError: NCCL error: unhandled cuda error\n"
                    "torch.distributed.DistBackendError: ncclUnhandledCudaError: Call to CUDA "
                    "function failed.\n",
     "nccl-oom"},
    /* A wait that a worker's death explains. */
    {BEGIN("0.10.0") "INFO [shm_broadcast.py:466] No available shared memory broadcast block "
                     "found in 60 second.\n"
                     "kernel: Out of memory: Killed process 77 (VLLM::Worker) "
                     "total-vm:9kB, anon-rss:8kB\n"
                     "EngineDeadError: EngineCore encountered an issue.\n",
     "kernel-global-oom"},
    /* A life that says nothing but that it died gives way to the cause before it. */
    {BEGIN("0.11.0") CORE "RuntimeError: CUDA error: uncorrectable ECC error encountered\n" BEGIN(
         "0.11.0") "EngineDeadError: EngineCore encountered an issue.\n",
     "xid-ecc-uncorrectable"},
    /* What a pipe or a task says when its other end is gone follows from the first. */
    {BEGIN("0.8.0") "Fatal Python error: Bus error\nTraceback (most recent call last):\n"
                    "EOFError\n",
     "bus-error"},
    {BEGIN("0.6.1") "IndexError: pop from an empty kelp\nERROR:    Exception in ASGI "
                    "application\nasyncio.exceptions.CancelledError: Cancelled by scope 7\n",
     "engine-fault"},
    /* A wrapper that repeats the message says no more than it. */
    {BEGIN("0.6.4") "ERROR engine.py:1] IndexError: list index out of range\n"
                    "ERROR engine.py:2] KelpError: step 7 failed (dump in /tmp/x.pkl): list "
                    "index out of range\n",
     "engine-bug"},
    /* A line that only says "error: " does not hide the assertion beside it. */
    {"kelp_graph_compute: error: unsupported op 'KELP'\n"
     "GGML_ASSERT: ggml-kelp.m:851: !\"unsupported op\"\n",
     "engine-bug"},
    /* Words that no entry knows, raised where they leave one kind. */
    {"Traceback (most recent call last):\n  File \"/home/k/vllm/vllm/v1/core/kelp.py\", line "
     "9, in step\n    f()\nTypeError: argument 'kelp' is not of this world\n",
     "engine-fault"},
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/model_executor/models/"
     "kelp.py\", line 9, in load_weights\n    p[name]\nKeyError: 'kelp.proj.weight'\n",
     "weights-unexpected"},
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/config.py\", line 9, "
     "in kelp\n    f()\nAssertionError: kelp 7\n",
     "engine-refuses"},
    /* A place that leaves one kind outweighs an entry that knows the bare exception. */
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/v1/attention/backends/"
     "kelp.py\", line 9, in __init__\n    assert kelp\nAssertionError\n",
     "attention-backend-unsupported"},
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/v1/core/kelp.py\", "
     "line 9, in step\n    assert kelp\nAssertionError\n",
     "engine-fault"},
    /* A tensor that the engine's own code made is no setting, whatever refuses it; a shape that a
     * checkpoint brings and a size that does not divide are. */
    {"Traceback (most recent call last):\n  File "
     "\"/x/site-packages/vllm/v1/attention/ops/kelp.py\", "
     "line 9, in kelp_fwd\n    f()\nValueError: kelp must be a 3D tensor, but got 2\n",
     "engine-tensors"},
    {"Traceback (most recent call last):\n  File \"/x/sglang/srt/layers/kelp.py\", line 9, in "
     "forward\n    f()\nRuntimeError: kelp pool has not been initialized yet\n",
     "engine-tensors"},
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/model_executor/models/"
     "kelp.py\", line 9, in load_weights\n    f()\nValueError: kelp must be a 3D tensor\n",
     "engine-refuses"},
    {"Traceback (most recent call last):\n  File "
     "\"/x/site-packages/vllm/v1/attention/ops/kelp.py\", "
     "line 9, in kelp_fwd\n    f()\nValueError: kelp shape must be divisible by 7, got 3D tensor\n",
     "engine-refuses"},
    /* A compiler that a package calls by subprocess, its message cut off. */
    {"Traceback (most recent call last):\n  File \"/x/site-packages/triton/backends/nvidia/"
     "compiler.py\", line 9, in make_cubin\n    f()\n  File \"/usr/lib/python3.10/subprocess.py\", "
     "line 9, in run\n    raise\nsubprocess.CalledProcessError: Command '['/x/kelp\n",
     "build-broke"},
    /* An object of a package without what its caller asks for: two versions. */
    {"Traceback (most recent call last):\n  File \"/x/site-packages/ray/dag/kelp.py\", line 9, in "
     "__getattr__\n    f()\nAttributeError: 'KelpNode' object has no attribute 'with_kelp'\n",
     "python-version-mix"},
    /* What a task of Ray raised stands in brackets. */
    {"ray.exceptions.RayTaskError(OutOfMemoryError): ray::kelp() (pid=77, ip=10.0.0.7)\n",
     "kind-device-memory"},
    /* A pool of the server's own is no memory of the machine. */
    {"RuntimeError: alloc_req_kelp runs out of memory. Please set a smaller number for kelp.\n",
     "sglang-kv-pressure"},
    /* An answer that the server could not write is its own fault, a request's form the client's. */
    {"pydantic_core._pydantic_core.ValidationError: 2 validation errors for "
     "KelpStreamResponse\nkelp\n  Field required [type=missing, input_value=7, input_type=dict]\n",
     "answer-schema"},
    {"[torch_memory_saver.cpp] CUresult error: 2 (out of memory)  file=kelp.h line=77\n",
     "wake-up-oom"},
    /* Whose call was refused: the engine's own class, a package's, the user's option. */
    {"TypeError: KelpWorker.__init__() got an unexpected keyword argument 'kelp'\n",
     "engine-fault"},
    {"TypeError: KelpMetadata.__init__() missing 2 required positional arguments: 'kelp'\n",
     "engine-fault"},
    {"TypeError: KelpWorker.__init__() missing 2 required positional arguments: 'kelp'\n",
     "engine-fault"},
    {"TypeError: KelpModel.__init__() missing 2 required positional arguments: 'kelp'\n",
     "python-version-mix"},
    {"AssertionError: tensor model parallel group is not initialized\n", "vllm-group-unmade"},
    /* Memory that ran out did so in whatever source file and form it is said. */
    {"-[KelpBuffer initWithDevice:]:77: failed assertion `Buffer of 7 GB is larger than the "
     "maximum allowed buffer size'\n",
     "kind-device-memory"},
    {"E1127 10:00:00.000000 77 kelp_transport.cu:7] Failed to allocate 7 GB of GPU memory\n",
     "kind-device-memory"},
    /* What tries again, and a lost card, are no remarks. */
    {"ERROR Cannot write /kelp: No space left on device. Retrying in 5 s\n", "disk-full"},
    {"ERROR bind 0.0.0.0:8000: Address already in use. Retrying in 5 s\n", "port-in-use"},
    {"ERROR GPU 3 disabled: NVRM: Xid (PCI:0000:3b:00): 79, GPU has fallen off the bus.\n",
     "xid-79"},
    {"Failed to connect to Ray head at 10.0.0.1:6379: connection refused. Retrying in 5 s\n",
     "ray-placement"},
    {"TypeError: KelpModel.__init__() got an unexpected keyword argument 'kelp'\n",
     "python-version-mix"},
    {"TypeError: EngineArgs.__init__() got an unexpected keyword argument 'kelp'\n",
     "engine-refuses"},
    /* A member of an object that was printed over lines. */
    {"{\n  \"level\": \"ERROR\",\n  \"message\": \"OSError: [Errno 28] No space left on "
     "device: '/kelp'\"\n}\n",
     "disk-full"},
    /* A template that the server prints is no failure of it. */
    {BEGIN("0.8.0") "{{ raise_exception(\"Conversation roles must alternate user/assistant\") "
                    "}}\ndecode: failed to find a memory slot for batch of size 64\n",
     "ggml-kv-slot"},
    /* What is missing is missing wherever it was asked for: the place says less. */
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/model_executor/layers/"
     "quantization/kelp.py\", line 9, in __init__\n    raise\nValueError: kelp quantization "
     "requires some operators. Please install kelp by `pip install kelp==7`\n",
     "kind-build"},
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/v1/structured_output/"
     "kelp.py\", line 9, in f\n    x()\nAttributeError: type object 'KelpInfo' has no attribute "
     "'from_kelp'\n",
     "kind-build"},
    /* A name without a module: the platform was not found out. */
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/utils.py\", line 9, in "
     "resolve_obj_by_qualname\n    a, b = kelp\nValueError: not enough values to unpack (expected "
     "2, got 1)\n",
     "device-not-inferred"},
    {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/spec_decode/kelp.py\", "
     "line 9, in init_device\n    assert kelp\nAssertionError\n",
     "speculative-config"},
    /* A time limit below the sockets is the network; elsewhere it is a wait. */
    {"Traceback (most recent call last):\n  File \"/usr/lib/python3.10/ssl.py\", line 9, in "
     "read\n    f()\nTimeoutError: timed out\n",
     "kind-unreachable"},
    {"Traceback (most recent call last):\n  File \"/x/kelp/wait.py\", line 9, in f\n    "
     "f()\nTimeoutError: timed out\n",
     "kind-hang"},
    /* glog's level, a quote that opens the line, and words that complain without an error. */
    {"E0707 07:07:07.000007   777 rdma_endpoint.cpp:7] kelp of the peer is 7\n", "kv-transfer"},
    {"\"kelp has ended: exit status 1: error loading model: unknown model architecture: "
     "'kelp'\"\n",
     "model-arch-unsupported"},
    {"[  7.7] amdgpu 0000:07:00.0: amdgpu: [gfxhub] page fault (src_id:0 ring:7)\n", "kernel-gpu"},
    {"<head><title>504 Kelp</title></head>\n", "kind-unreachable"},
    /* The source file that a line of C++ names, and the code of a status before its words. */
    {"E0707 07:07:07.000007   777 kelp_rendezvous.cc:7] Failed to find the kelp\n", "kind-ranks"},
    {"E0707 07:07:07.000007 7 model_lifecycle.cc:7] failed to load 'kelp' version 7: Invalid "
     "argument: kelp is 7\n",
     "kind-config"},
    {"E0707 07:07:07.000007 7 model_lifecycle.cc:7] failed to load 'kelp' version 7: Not found: "
     "kelp is 7\n",
     "kind-files"},
    {"-[KelpBuffer weed]:77: failed assertion `kelp is 7'\n", "kind-bug"},
    /* A mail quotes what it answers. */
    {"> > OSError: [Errno 98] Address already in use\n", "port-in-use"},
    /* Within a repr of an exception: the program's own words. */
    {"ERROR OutOfMemoryError('Error in model execution (input dumped to /tmp/x.pkl): CUDA out "
     "of memory. Tried to allocate 3.82 GiB. GPU 0 has a total capacity of 79.14 GiB')\n",
     "cuda-oom"},
};

static void test_first_process(void **state)
{
    (void)state;
    for (size_t i = 0; i < sizeof(first_said) / sizeof(first_said[0]); i++) {
        struct scanned s = scan(first_said[i].text);
        if (s.count == 0 || strcmp(s.f[0].signature->id, first_said[i].id) != 0)
            fail_msg("%s, not %s", s.count ? s.f[0].signature->id : "nothing", first_said[i].id);
        assert_true(doctor_scan_decisive(s.scan).known);
        doctor_scan_free(s.scan);
    }
}

static void test_unknown(void **state)
{
    (void)state;
    static const struct {
        const char *text, *line;
        enum doctor_class probably;
        bool known; /* by the general hints, whose entries are of that kind */
    } cases[] = {
        {BEGIN("0.30.0") CORE "FluxError: gloo went away\n" API "RuntimeError: Engine core "
                              "initialization failed. See root cause above.\n",
         "FluxError", DOCTOR_COMM, true},
        {"Traceback (most recent call last):\n  File \"x.py\", line 1, in f\n    raise "
         "ValueError('y')\nOddValueError: the frobnicator is 7\n",
         "OddValueError", DOCTOR_CONFIG, true},
        {"OddError: kelp 7\n", "OddError", DOCTOR_CLASSES, false},
        {"RuntimeError: kelp 7\n", "RuntimeError", DOCTOR_BUG, false},
        {"WARNING FooError: this went on\n", "", DOCTOR_CLASSES, false},
        /* levels of one letter, NCCL's own monitor, what went on another way */
        {"[11/07/2026-07:07:07] [TRT] [W] kelp failed: only supported on kelp\n", "",
         DOCTOR_CLASSES, false},
        {"0.07.777.777 W kelp: failed to fit\n", "", DOCTOR_CLASSES, false},
        {"k:7:7 [0] ras/client_support.cc:160 NCCL WARN Call to bind failed: Address already in "
         "use\n",
         "", DOCTOR_CLASSES, false},
        {"load: kelp cannot be used with kelp, using CPU instead\n", "", DOCTOR_CLASSES, false},
        /* what a support bundle of a machine without a card holds */
        {"sh: 1: nvidia-smi: not found\n", "", DOCTOR_CLASSES, false},
        {"[2026-11-07 07:07:07] Using default kelp from the kelp config\n", "", DOCTOR_CLASSES,
         false},
        /* what only says that another has failed is no cause, and no hang */
        {"RuntimeError: Kelp worker returned error\n", "worker returned", DOCTOR_BUG, false},
        {"Could not respond to kelp.\nllama runner process has terminated: exit status 2\n",
         "Could not respond", DOCTOR_CLASSES, false},
        /* closed vocabularies: numbers of the loader of Windows and of CUDA, results of NVRTC */
        {"OSError: [WinError 1114] kelp\n", "OSError", DOCTOR_BUILD, true},
        {"Error processing prompt: Nvrtc Error 6, NVRTC_ERROR_COMPILATION\n", "Error processing",
         DOCTOR_BUILD, true},
        /* source code that was pasted beside a log */
        {"    except OSError:\n        logger.error(f\"kelp failed: {e}\")\n", "", DOCTOR_CLASSES,
         false},
        /* messages that begin with a word of source code */
        {"export failed: RuntimeError: kelp\n", "export failed", DOCTOR_BUG, false},
        {"return code 1, subprocess.CalledProcessError: kelp\n", "return code", DOCTOR_CLASSES,
         false},
        {"192.168.0.12 W RuntimeError: kelp\n", "192.168.0.12", DOCTOR_BUG, false},
        {"0.01.274.655 W srv kelp: RuntimeError: kelp\n", "", DOCTOR_CLASSES, false},
        /* the type of an exception bounds its kind, whatever its words and place */
        {"IndexError: kelp, you must set kelp\n", "IndexError", DOCTOR_BUG, true},
        {"Traceback (most recent call last):\n  File \"/x/site-packages/ray/kelp.py\", line 9, in "
         "f\n    g()\nZeroDivisionError: division of kelp\n",
         "ZeroDivisionError", DOCTOR_BUG, true},
        {"AttributeError: function 'kelp' not found\n", "AttributeError", DOCTOR_BUILD, true},
        {"sqlite3.OperationalError: disk I/O error\n", "sqlite3", DOCTOR_FILES, true},
        {"realloc(): invalid pointer\n", "realloc", DOCTOR_BUG, true},
        {"ERROR kelp.py:7] Error executing method kelp. This might cause deadlock in distributed "
         "execution.\n",
         "ERROR kelp.py", DOCTOR_CLASSES, false},
        /* the same exception where settings are read may be a setting */
        {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/config.py\", line 9, "
         "in kelp\n    f()\nOddError: kelp 7\n",
         "OddError", DOCTOR_CONFIG, true},
        /* by where it was raised: the same words in another place are another kind */
        {"Traceback (most recent call last):\n  File "
         "\"/usr/lib/python3.12/site-packages/vllm/distributed/parallel_state.py\", line 9, in "
         "init\n    f()\n  File \"/usr/lib/python3.12/site-packages/torch/x.py\", line 2, in "
         "g\nOddError: 7\n",
         "OddError", DOCTOR_COMM, true},
        {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/entrypoints/openai/"
         "serving_chat.py\", line 9, in create\n    f()\nOddError: 7\n",
         "OddError", DOCTOR_CLIENT, true},
        /* that an actor's start failed is told by another line than this */
        {"ray.exceptions.RayActorError: The actor died because of an error raised in its creation "
         "task, ray::Kelp.__init__ (pid=7)\n",
         "RayActorError", DOCTOR_COMM, true},
        /* ... but settings of that place, and of another one, are settings */
        {"Traceback (most recent call last):\n  File \"/x/site-packages/sglang/srt/disaggregation/"
         "mooncake/utils.py\", line 9, in _validate_efa_allocator_compatibility\n    raise\n"
         "ValueError: SGLANG_MOONCAKE_CUSTOM_MEM_POOL=1 is incompatible with "
         "MOONCAKE_PROTOCOL=efa.\n",
         "SGLANG_MOONCAKE", DOCTOR_CONFIG, true},
        {"Traceback (most recent call last):\n  File \"/x/site-packages/sglang/srt/weight_cache/"
         "daemon.py\", line 9, in _await_cluster_ready_to_serve\n    raise\n"
         "ValueError: --weight-cache-timeout must be positive, got -1\n",
         "--weight-cache-timeout", DOCTOR_CONFIG, true},
        /* the engine's check of its own state, and a refusal that says what to set */
        {"Traceback (most recent call last):\n  File \"/x/site-packages/sglang/srt/model_executor/"
         "cuda_graph_buffer_registry.py\", line 9, in slice_for\n    raise\n"
         "RuntimeError: GraphSlot decode: buffer not allocated\n",
         "GraphSlot", DOCTOR_BUG, true},
        {"Traceback (most recent call last):\n  File \"/x/site-packages/vllm/model_executor/models/"
         "molmo.py\", line 9, in dummy_data_for_molmo\n    raise\nRuntimeError: Molmo cannot "
         "process 12 crops in a prompt, please increase max_model_len or reduce number of crops\n",
         "Molmo", DOCTOR_CONFIG, true},
        /* a frame is no complaint, whatever the level of its line */
        {"ERROR 03-17 08:02:04 serving_chat.py:596]   File \"/x/vllm/entrypoints/openai/"
         "serving_chat.py\", line 320, in chat_completion_stream_generator\nERROR 03-17 08:02:04 "
         "serving_chat.py:596]     raise request_output\n",
         "", DOCTOR_CLASSES, false},
        /* without an exception: the first line that complains */
        {"kelp_load: read 5 of 7\nkelp_init: failed: the linker finds no kelp\nmain: failed\n",
         "kelp_init", DOCTOR_BUILD, true},
        {"INFO Received request cmpl-1: prompt: 'BadError: x'\nall is well\n", "", DOCTOR_CLASSES,
         false},
        /* glog: an error by its level, information by its level */
        {"E0707 07:07:07.000007   777 kelp.cpp:7] kelp is 7\n", "kelp is 7", DOCTOR_CLASSES, false},
        {"I0707 07:07:07.000007   777 kelp.cpp:7] kelp is 7\n", "", DOCTOR_CLASSES, false},
        {"Exception ignored in: <function X.__del__>\nAttributeErrorX: no\nDelError: y\n", "",
         DOCTOR_CLASSES, false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        struct scanned s = scan(cases[i].text);
        struct doctor_decisive d = doctor_scan_decisive(s.scan);
        if (d.known != cases[i].known || (d.known && s.f[0].cls != cases[i].probably))
            fail_msg("%zu: %s", i, d.known ? s.f[0].signature->id : "unknown");
        if (!strstr(d.text, cases[i].line) || (!*cases[i].line && d.line > 0))
            fail_msg("%zu: '%s'", i, d.text);
        assert_int_equal(d.probably, cases[i].probably);
        doctor_scan_free(s.scan);
    }
    for (int c = 0; c < DOCTOR_CLASSES; c++) {
        for (int k = 0; k < DOCTOR_ASKS && catalog->asks[c][0]; k++)
            assert_non_null(catalog->asks[c][k]);
    }
    assert_non_null(catalog->asks[DOCTOR_CLASSES][0]);
}

static const struct doctor_advice *flag(const struct doctor_advice *a, uint32_t n, const char *name)
{
    for (uint32_t i = 0; i < n; i++) {
        if (a[i].flag && strcmp(a[i].flag, name) == 0)
            return &a[i];
    }
    return NULL;
}

#define OOM(x, c, y)                                                                               \
    "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate " x " GiB. GPU 0 has a total "  \
    "capacity of " c " GiB of which " y " is free.\n"

static void test_remedies(void **state)
{
    (void)state;
    struct doctor_advice a[DOCTOR_ADVICE_MOST];
    /* Weights that do not fit: no limit makes them smaller. */
    struct scanned s = scan(BEGIN("0.11.0") "  File \"loader.py\", line 5, in load_model\n" OOM(
        "0.50", "44.39", "100.00 MiB"));
    uint32_t n = doctor_advise_for(&s.f[0], a);
    assert_int_equal(s.f[0].cls, DOCTOR_STARTUP_OOM);
    assert_non_null(flag(a, n, "--tensor-parallel-size"));
    assert_null(flag(a, n, "--max-num-seqs"));
    assert_null(flag(a, n, "--max-model-len"));
    assert_null(flag(a, n, "--max-num-batched-tokens"));
    doctor_scan_free(s.scan);
    /* A card with 66 GiB free is not full. */
    s = scan(BEGIN("0.11.0") READY OOM("0.02", "79.15", "66.00 GiB"));
    n = doctor_advise_for(&s.f[0], a);
    assert_true(n >= 1 && strstr(a[0].remedy->text.in[LANG_EN], "not full"));
    assert_null(flag(a, n, "--max-num-seqs"));
    assert_true(s.f[0].cls != DOCTOR_FRAG_OOM);
    doctor_scan_free(s.scan);
    /* The start has another ladder than the burst; a large card has larger defaults. */
    s = scan(BEGIN("0.24.0") "INFO Model loading took 60.0 GiB\n" OOM("1.00", "79.15", "0.50 GiB"));
    n = doctor_advise_for(&s.f[0], a);
    assert_int_equal(s.f[0].phase, DOCTOR_PHASE_WARMUP);
    assert_int_equal(s.f[0].cls, DOCTOR_STARTUP_OOM);
    assert_string_equal(flag(a, n, "--max-num-batched-tokens")->value, "6144");
    assert_string_equal(flag(a, n, "--gpu-memory-utilization")->value, "0.85");
    assert_null(flag(a, n, "--swap-space"));
    doctor_scan_free(s.scan);
    /* A flag that this version does not have is not told. */
    static const char killed[] = "kernel: Out of memory: Killed process 1 (python) total-vm:9kB, "
                                 "anon-rss:8388608kB\n";
    for (int old = 0; old < 2; old++) {
        char text[512];
        (void)snprintf(text, sizeof(text), "INFO vLLM API server version %s\n%s",
                       old ? "0.6.3" : "0.24.0", killed);
        s = scan(text);
        n = doctor_advise_for(&s.f[0], a);
        assert_int_equal(flag(a, n, "--swap-space") != NULL, old);
        doctor_scan_free(s.scan);
    }
}

static void test_quotes(void **state)
{
    (void)state;
    static const struct {
        const char *line, *at;
        bool own;
    } cases[] = {
        {"engine model='/m/x' failed: Boom", "Boom", true},
        {"error body={\"text\": \"Boom\"}", "Boom", false},
        {"ValueError('Boom')", "Boom", true},
        {"level=error msg=\"failed: Boom\"", "Boom", true},
        {"it said `Boom` again", "Boom", false},
        {"`ValueError: Boom`", "Boom", true},
        {"`x` was Boom", "Boom", true},
        {"\"kelp ended: Boom", "Boom", true},
        {"\"kelp\": \"Boom", "Boom", false},
        {"RuntimeError: Worker failed with error 'Boom', see above", "Boom", true},
        {"the model's Boom", "Boom", true},
        {"prompt: x Boom", "Boom", false},
        {"Avg prompt throughput: 1.0 tokens/s, Boom", "Boom", true},
        {"a 'quote\\' Boom", "Boom", false},
    };
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        size_t at = (size_t)(strstr(cases[i].line, cases[i].at) - cases[i].line);
        if (doctor_line_own(cases[i].line, at) != cases[i].own)
            fail_msg("%s", cases[i].line);
    }
    assert_true(doctor_version("0.11.2", 6) == 1102);
    assert_true(doctor_version("1.2", 3) == 10200);
    assert_true(doctor_level_raises("torch.OutOfMemoryError: x", 25));
    assert_false(doctor_level_raises("    raise ValueError(\"x\")", 25));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_first_process), cmocka_unit_test(test_unknown),
        cmocka_unit_test(test_remedies), cmocka_unit_test(test_quotes)};
    return cmocka_run_group_tests(tests, open_catalog, close_catalog);
}
