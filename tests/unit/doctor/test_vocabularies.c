/* The closed vocabularies that a failure may end with - results of CUDA, NCCL and its libraries,
 * signals and exit statuses of Linux and Windows, steps of systemd, events of Kubernetes, statuses
 * of HTTP and gRPC, errors of system calls - each in the forms in which programs print it, and
 * alone: no other line names the failure. */
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "supervisor/doctor/scan.h"
#include "tests/unit/doctor/scanned.h"

#define FORMS 8
#define TEXT  400

/* A word of a vocabulary: what stands for %1, %2 and %3 in the forms, and the classes that are
 * right. */
struct word {
    const char *says[3], *classes;
};

/* Whether `classes` ("BUG|SIGNAL") has the name. */
static bool has_class(const char *classes, const char *name)
{
    size_t n = strlen(name);
    for (const char *at = classes; at; at = strchr(at, '|')) {
        at += *at == '|';
        if (strncmp(at, name, n) == 0 && (at[n] == '\0' || at[n] == '|'))
            return true;
    }
    return false;
}

static void fill(const char *form, const struct word *w, char text[TEXT])
{
    size_t n = 0;
    for (; *form && n + 1 < TEXT; form++) {
        if (form[0] == '%' && form[1] >= '1' && form[1] <= '3') {
            const char *say = w->says[*++form - '1'];
            n += (size_t)snprintf(text + n, TEXT - n, "%s", say);
        } else {
            text[n++] = *form;
        }
    }
    text[n] = '\0';
}

static void check_words(const struct word *words, size_t count, const char *const forms[FORMS])
{
    char text[TEXT];
    int wrong = 0;
    for (size_t i = 0; i < count; i++) {
        for (size_t k = 0; k < FORMS && forms[k]; k++) {
            fill(forms[k], &words[i], text);
            struct scanned s = scan_pieces(text, TEXT);
            bool known = doctor_scan_decisive(s.scan).known;
            const char *name = known ? doctor_class_name(s.f[0].cls) : "nothing";
            if (!has_class(words[i].classes, name)) {
                print_error("%s: %s (%s)\n", text, name, s.count ? s.f[0].signature->id : "");
                wrong++;
            }
            doctor_scan_free(s.scan);
        }
    }
    assert_int_equal(wrong, 0);
}

#define CHECK(words, ...)                                                                          \
    check_words(words, sizeof(words) / sizeof((words)[0]), (const char *const[FORMS]){__VA_ARGS__})

static void test_cuda(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"35", "InsufficientDriver",
          "CUDA driver version is insufficient for CUDA runtime version"},
         "BUILD"},
        {{"46", "DevicesUnavailable", "CUDA-capable device(s) is/are busy or unavailable"},
         "DEVICE"},
        {{"100", "NoDevice", "no CUDA-capable device is detected"}, "BUILD"},
        {{"200", "InvalidKernelImage", "device kernel image is invalid"}, "BUILD"},
        {{"209", "NoKernelImageForDevice",
          "no kernel image is available for execution on the device"},
         "BUILD"},
        {{"214", "ECCUncorrectable", "uncorrectable ECC error encountered"}, "DEVICE"},
        {{"222", "UnsupportedPtxVersion",
          "the provided PTX was compiled with an unsupported toolchain."},
         "BUILD"},
        {{"700", "IllegalAddress", "an illegal memory access was encountered"}, "DEVICE|BUG"},
        {{"710", "Assert", "device-side assert triggered"}, "DEVICE|BUG"},
        {{"714", "HardwareStackError", "hardware stack error"}, "DEVICE"},
        {{"715", "IllegalInstruction", "an illegal instruction was encountered"}, "DEVICE|BUG"},
        {{"716", "MisalignedAddress", "misaligned address"}, "DEVICE|BUG"},
        {{"719", "LaunchFailure", "unspecified launch failure"}, "DEVICE|BUG"},
        {{"801", "NotSupported", "operation not supported"}, "BUILD|CONFIG"},
        {{"803", "SystemDriverMismatch",
          "system has unsupported display driver / cuda driver combination"},
         "BUILD"},
        {{"804", "CompatNotSupportedOnDevice",
          "forward compatibility was attempted on non supported HW"},
         "BUILD"},
    };
    CHECK(words, "RuntimeError: CUDA error: %3\n", "CUDA error %1 at kelp.cu:77: %3\n",
          "[kelp.cc:77] Cuda failure 'cudaError%2'\n", "  what():  CUDA runtime error: %3\n",
          "kelp failed: error code %1 (cudaError%2)\n",
          "(EngineCore pid=7) ERROR 07-07 07:07:07 [core.py:77] Search for `cudaError%2' in "
          "https://docs.nvidia.com/cuda/cuda-runtime-api/group__CUDART__TYPES.html for more "
          "information.\n",
          "RuntimeError: Kelp failed with error code %3\n",
          "[kelp.cpp] CUresult error: %1 (%3)  file=kelp.h func=kelp line=77\n");
}

static void test_libraries(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"CUBLAS_STATUS_ALLOC_FAILED"}, "DEVICE_OOM|STARTUP_OOM"},
        {{"CUBLAS_STATUS_ARCH_MISMATCH"}, "BUILD"},
        {{"CUBLAS_STATUS_INVALID_VALUE"}, "BUG"},
        {{"CUBLAS_STATUS_NOT_SUPPORTED"}, "BUG"},
        {{"CUDNN_STATUS_VERSION_MISMATCH"}, "BUILD"},
        {{"CUDNN_STATUS_SUBLIBRARY_LOADING_FAILED"}, "BUILD"},
    };
    CHECK(words, "RuntimeError: CUDA error: %1 when calling `kelp_create(handle)`\n",
          "[kelp.cpp:77] kelp failed: %1\n");
}

/* Results of Vulkan, HIP, OpenCL and Level Zero. */
static void test_devices(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"VK_ERROR_OUT_OF_DEVICE_MEMORY"}, "DEVICE_OOM|STARTUP_OOM|BURST_OOM"},
        {{"VK_ERROR_OUT_OF_HOST_MEMORY"}, "HOST_OOM"},
        {{"VK_ERROR_DEVICE_LOST"}, "DEVICE"},
        {{"VK_ERROR_INCOMPATIBLE_DRIVER"}, "BUILD"},
        {{"hipErrorOutOfMemory"}, "DEVICE_OOM|STARTUP_OOM|BURST_OOM"},
        {{"hipErrorNoBinaryForGpu"}, "BUILD"},
        {{"hipErrorIllegalAddress"}, "DEVICE|BUG"},
        {{"CL_MEM_OBJECT_ALLOCATION_FAILURE"}, "DEVICE_OOM|STARTUP_OOM|BURST_OOM"},
        {{"CL_BUILD_PROGRAM_FAILURE"}, "BUILD"},
        {{"UR_RESULT_ERROR_OUT_OF_DEVICE_MEMORY"}, "DEVICE_OOM|STARTUP_OOM|BURST_OOM"},
        {{"UR_RESULT_ERROR_DEVICE_LOST"}, "DEVICE"},
        {{"ZE_RESULT_ERROR_MODULE_BUILD_FAILURE"}, "BUILD"},
    };
    CHECK(words, "RuntimeError: kelp failed: %1\n",
          "kelp.cc:61: InternalError: Check failed: (e == 0) is false: code=-7: %1\n",
          "ERROR kelp: %1\n");
}

/* What an answer of the OpenAI API calls an error. */
static void test_error_types(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"invalid_request_error"}, "CLIENT"},   {{"authentication_error"}, "CLIENT"},
        {{"permission_error"}, "CLIENT"},        {{"not_found_error"}, "CLIENT"},
        {{"context_length_exceeded"}, "CLIENT"}, {{"rate_limit_error"}, "OVERLOAD"},
        {{"overloaded_error"}, "OVERLOAD"},      {{"insufficient_quota"}, "OVERLOAD"},
    };
    CHECK(words, "{'error': {'message': 'kelp is not there', 'type': '%1', 'code': None}}\n",
          "kelp.KelpError: {\"type\": \"%1\", \"message\": \"kelp\"}\n");
}

static void test_signals(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"4", "ILL", "132"}, "BUILD"},     {{"6", "ABRT", "134"}, "SIGNAL|BUG"},
        {{"7", "BUS", "135"}, "FILES"},     {{"8", "FPE", "136"}, "SIGNAL|BUG"},
        {{"9", "KILL", "137"}, "HOST_OOM"}, {{"11", "SEGV", "139"}, "SIGNAL|BUG"},
        {{"15", "TERM", "143"}, "SIGNAL"},
    };
    static const struct word shell[] = {{{"127"}, "BUILD"}};
    CHECK(shell, "Process exited with code %1\n",
          "kelp.service: Main process exited, "
          "code=exited, status=%1/n/a\n",
          "kelp runner process has terminated: exit status %1\n");
    CHECK(words, "Process exited with code %3\n", "exit code: -%1\n",
          "Process finished with exit code %3 (interrupted by signal %1: SIG%2)\n",
          "Shard process was signaled to shutdown with signal %1 rank=0\n",
          "mpirun noticed that process rank 7 with PID 77 on node kelp exited on signal %1.\n");
}

static void test_windows(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"3221225477", "-1073741819", "0xc0000005"}, "SIGNAL|BUG"},
        {{"3221226505", "-1073740791", "0xc0000409"}, "SIGNAL|BUG"},
        {{"3221225501", "-1073741795", "0xc000001d"}, "BUILD"},
        {{"3221225595", "-1073741701", "0xc000007b"}, "BUILD"},
        {{"3221225781", "-1073741515", "0xc0000135"}, "BUILD"},
        {{"3221225785", "-1073741511", "0xc0000139"}, "BUILD"},
        {{"3221225794", "-1073741502", "0xc0000142"}, "BUILD"},
        {{"3221225495", "-1073741801", "0xc0000017"}, "HOST_OOM"},
        {{"3221225773", "-1073741523", "0xc000012d"}, "HOST_OOM"},
    };
    CHECK(words, "Error: kelp process no longer running: %1\n", "kelp exited with code %2\n",
          "OSError: [WinError %2] Windows Error %3\n",
          "Error: kelp process has terminated: exit status %3\n");
}

static void test_units(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"200", "CHDIR"}, "CONFIG"},       {{"216", "GROUP"}, "CONFIG"},
        {{"217", "USER"}, "CONFIG"},        {{"218", "CAPABILITIES"}, "CONFIG"},
        {{"226", "NAMESPACE"}, "CONFIG"},   {{"238", "STATE_DIRECTORY"}, "CONFIG"},
        {{"243", "CREDENTIALS"}, "CONFIG"},
    };
    CHECK(words, "kelp.service: Main process exited, code=exited, status=%1/%2\n",
          "kelp.service: Failed at step %2 spawning /usr/bin/kelp: Operation not permitted\n");
}

static void test_events(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"FailedScheduling", "0/7 nodes are available: 7 Insufficient nvidia.com/gpu."}, "CONFIG"},
        {{"FailedMount", "MountVolume.SetUp failed for volume \"kelp\" : not found"}, "FILES"},
        {{"FailedAttachVolume", "Multi-Attach error for volume \"kelp\""}, "FILES"},
        {{"Failed", "Error: ImagePullBackOff"}, "FILES"},
        {{"Failed", "Error: InvalidImageName"}, "FILES"},
        {{"Failed", "Error: CreateContainerConfigError"}, "CONFIG"},
        {{"FailedBinding", "no persistent volumes available for this claim"}, "FILES"},
        {{"NetworkNotReady", "network is not ready: cni plugin not initialized"}, "COMM"},
        {{"FailedCreatePodSandBox", "failed to setup network for sandbox \"kelp\""}, "COMM"},
        {{"FailedCreatePodSandBox", "no runtime for \"nvidia\" is configured"}, "BUILD"},
        {{"Unhealthy", "Liveness probe failed: context deadline exceeded"}, "HANG"},
        {{"Preempted", "Preempted by pod 77 on node kelp"}, "SIGNAL"},
    };
    CHECK(words, "  Warning  %1  7s (x7 over 77s)  kubelet  %2\n",
          "77s         Warning   %1            pod/kelp-77   %2\n");
}

static void test_answers(void **state)
{
    (void)state;
    static const struct word http[] = {
        {{"400", "Bad Request"}, "CLIENT"},        {{"401", "Unauthorized"}, "CLIENT"},
        {{"404", "Not Found"}, "CLIENT"},          {{"408", "Request Timeout"}, "HANG"},
        {{"413", "Payload Too Large"}, "CLIENT"},  {{"429", "Too Many Requests"}, "OVERLOAD"},
        {{"500", "Internal Server Error"}, "BUG"}, {{"502", "Bad Gateway"}, "COMM"},
        {{"504", "Gateway Timeout"}, "HANG"},
    };
    CHECK(http, "HTTP/1.1 %1 %2\n", "Error code: %1 - {'error': {'message': 'kelp'}}\n",
          "{\"error\":{\"message\":\"kelp\",\"type\":\"kelp\",\"param\":null,\"code\":%1}}\n",
          "status code: %1, message: kelp\n", "curl: (22) The requested URL returned error: %1\n");
    static const struct word grpc[] = {
        {{"INVALID_ARGUMENT", "InvalidArgument"}, "CLIENT"},
        {{"UNAUTHENTICATED", "Unauthenticated"}, "CLIENT"},
        {{"UNIMPLEMENTED", "Unimplemented"}, "CLIENT"},
        {{"RESOURCE_EXHAUSTED", "ResourceExhausted"}, "OVERLOAD"},
        {{"UNAVAILABLE", "Unavailable"}, "COMM"},
        {{"DEADLINE_EXCEEDED", "DeadlineExceeded"}, "HANG"},
        {{"INTERNAL", "Internal"}, "BUG"},
    };
    CHECK(grpc, "grpc._channel._InactiveRpcError: status = StatusCode.%1\n",
          "rpc error: code = %2 desc = kelp\n");
}

static void test_system_calls(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"2", "No such file or directory"}, "FILES"},
        {{"13", "Permission denied"}, "FILES"},
        {{"17", "File exists"}, "FILES"},
        {{"20", "Not a directory"}, "FILES"},
        {{"24", "Too many open files"}, "CONFIG"},
        {{"28", "No space left on device"}, "DISK"},
        {{"30", "Read-only file system"}, "FILES|DISK"},
        {{"98", "Address already in use"}, "PORT"},
        {{"104", "Connection reset by peer"}, "COMM"},
        {{"111", "Connection refused"}, "COMM"},
        {{"113", "No route to host"}, "COMM"},
        {{"122", "Disk quota exceeded"}, "DISK"},
    };
    CHECK(words, "OSError: [Errno %1] %2\n", "Error: %2 (os error %1)\n", "kelp: failed: %2\n");
}

static void test_nccl(void **state)
{
    (void)state;
    static const struct word words[] = {{{"2"}, "COMM"}, {{"3"}, "COMM"}, {{"6"}, "COMM"}};
    CHECK(words, "kelp:77:777 [0] NCCL INFO init.cc:77 -> %1\n");
    static const struct word failed[] = {{{"2"}, "COMM"}, {{"6"}, "COMM"}};
    CHECK(failed, "kelp:77:777 [0] NCCL INFO misc/socket.cc:77 -> %1\n");
    static const struct word sane[] = {{{""}, "nothing"}};
    /* Connections that NCCL closes when it ends, and InfiniBand that is not there. */
    static const char closed[] =
        "kelp:77:777 [0] NCCL INFO [Service thread] Connection closed by localRank 1\n"
        "kelp:77:777 [0] NCCL INFO misc/socket.cc:47 -> 3\n"
        "kelp:77:777 [0] NCCL INFO misc/socket.cc:781 -> 3\n"
        "kelp:77:77 [0] NCCL INFO comm 0x77 rank 0 nranks 2 - Abort COMPLETE\n";
    CHECK(sane, "kelp:77:777 [0] NCCL INFO Channel 00/0 : 0[0] -> 2[2] via P2P/IPC\n", closed,
          "kelp:77:777 [0] NCCL INFO transport/net_socket.cc:77 -> 3\n",
          "kelp:77:777 [0] NCCL INFO proxy.cc:1458 -> 3\n",
          "kelp:77:777 [0] NCCL INFO misc/ibvwrap.cc:63 -> 3\n");
}

/* What was done, to what, in words that no exception carries. */
static void test_said(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"ERROR kelp: failed to preprocess image 7"}, "CLIENT"},
        {{"ERROR kelp: failed to load the kelp tokenizer"}, "FILES"},
        {{"ERROR kelp: head count mismatch: got 7, expected 77"}, "CONFIG"},
        {{"ERROR kelp: engine fell silent for 77 s"}, "HANG"},
        {{"kelp: worker 7 has been silent for 77 s"}, "HANG"},
        {{"kelp: download stalled for 77 s"}, "HANG"},
        {{"kelp stalled at step 7"}, "HANG"},
        {{"kelp exceeded maximum time of 77 s"}, "HANG"},
        {{"ERROR kelp: exceeded the maximum run time of 77 s"}, "HANG"},
    };
    CHECK(words, "%1\n", "kelp-77  | %1\n");
}

/* The same words where a program that is well writes them. */
static void test_healthy(void **state)
{
    (void)state;
    static const struct word words[] = {{{""}, "nothing"}};
    CHECK(words, "INFO:     10.7.7.7:77 - \"GET /kelp HTTP/1.1\" 404 Not Found\n",
          "INFO: kelp allocated 3221225781 bytes\n", "WARNING: kelp: file exists\n",
          "DEBUG: probe answered, status code: 404\n");
    CHECK(words, "{\"msg\":\"GET /kelp\",\"status\":404,\"error\":null}\n",
          "{\"msg\":\"GET /kelp\",\"status\":503,\"error\":\"\"}\n",
          "{\"msg\":\"GET /kelp\",\"status\":503,\"error\": false}\n",
          "{\"level\":\"error\",\"msg\":\"kelp\",\"code\":404}\n", "GET /favicon.ico status: 404\n",
          "kelp: startup probe: GET /health status: 503\n");
    CHECK(words, "stats: running 7, stalled 0, waiting 7\n",
          "stats: stalled requests 0, exceeded 0\n",
          "{\"level\":\"INFO\",\"fields\":{\"message\":\"stats: stalled 0\"}}\n",
          "client disconnected: connection went silent, closing\n",
          "kelp.cc:7] peer went silent for 7 s, then came back\n", "NetworkNotReady, ok now\n");
    /* What a user asked, and an end that somebody asked for. */
    CHECK(words, "Receive: obj=Kelp(text='user: what does cudaErrorDevicesUnavailable mean')\n",
          "Received request kelp: prompt: 'what is HTTP/1.1 500 x or Error code: 500'\n",
          "INFO:     Shutting down\nkelp-1 exited with code 143\n",
          "INFO:     Waiting for application shutdown.\nkelp-1 exited with code 143\n");
    CHECK(words,
          "WARNING port 77 is used by process psutil.Process(pid=7, name='kelp') launched with "
          "command:\nWARNING kelp serve\nINFO Shutting down FastAPI HTTP server.\n");
    /* Types of errors in a prompt, also as a field, and in an answer. */
    CHECK(words,
          "INFO Received request kelp: prompt: 'why rate_limit_error, insufficient_quota?'\n",
          "INFO Received request kelp: prompt: 'if e.type == \"not_found_error\": raise'\n",
          "INFO Received request kelp: prompt: '{\"type\": \"rate_limit_error\"}', params: 7\n",
          "INFO Received request kelp: prompt: \"{'code': 'model_not_found'}\", params: 7\n",
          "INFO Received request kelp: prompt: 'serve it with BadRequestError'\n",
          "INFO Generated response kelp: output: '{\"code\": \"invalid_api_key\"}'\n",
          "Receive: obj=Kelp(text='{\"type\": \"overloaded_error\"}')\n",
          "INFO kelp asked: permission_error or authentication_error?\n");
}

/* The same words as the value of an error's field. */
static void test_fields(void **state)
{
    (void)state;
    static const struct word words[] = {
        {{"rate_limit_error"}, "OVERLOAD"},    {{"overloaded_error"}, "OVERLOAD"},
        {{"insufficient_quota"}, "OVERLOAD"},  {{"context_length_exceeded"}, "CLIENT"},
        {{"invalid_request_error"}, "CLIENT"}, {{"model_not_found"}, "CLIENT"},
        {{"authentication_error"}, "CLIENT"},  {{"permission_error"}, "CLIENT"},
    };
    CHECK(words, "ERROR kelp answered {\"error\": {\"type\": \"%1\", \"message\": \"kelp\"}}\n",
          "ERROR kelp answered {'error': {'message': 'kelp', 'code': '%1'}}\n",
          "ERROR kelp answered {\"error\":{\"code\":\"%1\"}}\n",
          "ERROR kelp answered \"{\\\"error\\\":{\\\"type\\\":\\\"%1\\\"}}\"\n");
}

/* A line that only says what was answered or who ended, before and after the engine's own failure:
 * that is named. */
static void test_beside(void **state)
{
    (void)state;
    static const char failure[] =
        "ERROR Traceback (most recent call last):\n"
        "ERROR   File \"/x/dist-packages/vllm/config.py\", line 7, in verify\n"
        "ERROR ValueError: kelp of 7 is not supported together with option foo\n";
    static const char *const beside[] = {
        "waiting for kelp: GET /kelp status: 503\n",
        "fetched kelp.json: status: 404, none there\n",
        "* kelp: HTTP/1.1 404 Not Found\n",
        "* kelp: HTTP/1.1 429 Too Many Requests\n",
        "* kelp: HTTP/1.1 502 Bad Gateway\n",
        "* kelp: HTTP/1.1 504 Gateway Timeout\n",
        "* kelp: HTTP/1.1 500 Internal Server Error\n",
        "rpc error: code = ResourceExhausted desc = kelp\n",
        "{\"msg\":\"GET /favicon.ico\",\"status\":404,\"error\":null}\n",
        "kelp:77:777 [0] NCCL INFO misc/socket.cc:47 -> 3\n",
        "kelp:77:777 [0] NCCL INFO init.cc:77 -> 2\n",
        "Process kelp_7 exit code: -9\n",
        "kelp was sent SIGKILL\n",
        "Shard process was signaled to shutdown with signal 9 rank=7\n",
        "kelp-1 exited with code 143\n",
        "  Warning  NetworkNotReady  7s (x7 over 77s)  kubelet  network is not ready: kelp\n",
        "Receive: obj=Kelp(text='user: what does cudaErrorDevicesUnavailable mean')\n",
        "stats: stalled 0\n",
    };
    char text[2 * TEXT];
    for (size_t i = 0; i < 2 * sizeof(beside) / sizeof(beside[0]); i++) {
        bool after = i % 2;
        (void)snprintf(text, sizeof(text), "%s%s%s", after ? "" : beside[i / 2], failure,
                       after ? beside[i / 2] : "");
        struct scanned s = scan_pieces(text, sizeof(text));
        const char *id = s.count ? s.f[0].signature->id : "nothing";
        if (strcmp(id, "engine-refuses") != 0)
            print_error("%s: %s\n", beside[i / 2], id);
        assert_string_equal(id, "engine-refuses");
        assert_true(doctor_scan_decisive(s.scan).known);
        doctor_scan_free(s.scan);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_cuda),    cmocka_unit_test(test_libraries),
        cmocka_unit_test(test_devices), cmocka_unit_test(test_error_types),
        cmocka_unit_test(test_signals), cmocka_unit_test(test_windows),
        cmocka_unit_test(test_units),   cmocka_unit_test(test_events),
        cmocka_unit_test(test_answers), cmocka_unit_test(test_system_calls),
        cmocka_unit_test(test_nccl),    cmocka_unit_test(test_said),
        cmocka_unit_test(test_healthy), cmocka_unit_test(test_fields),
        cmocka_unit_test(test_beside),
    };
    return cmocka_run_group_tests(tests, open_catalog, close_catalog);
}
