/*
 * The CUDA driver as a table of functions, filled from libcuda.so.1 when it is there. Nothing here
 * needs the toolkit: types and constants are declared as the driver's stable interface has them
 * (tests/cuda/check_header.c holds them against cuda.h where that is installed), so the host side
 * of this backend is plain C, is built without CUDA too, and runs in tests on a driver of their
 * own.
 *
 * Handles are opaque pointers, device addresses 64-bit numbers. Every function returns a code of
 * enum cu_result; cu_code() says which of our codes it is.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_fault;

typedef uint64_t cu_ptr;
typedef struct cu_opaque *cu_handle; /* context, module, function, stream, event, graph */

enum cu_result {
    CU_OK = 0,
    CU_INVALID_VALUE = 1,
    CU_OUT_OF_MEMORY = 2,
    CU_NOT_INITIALIZED = 3,
    CU_DEVICE_UNAVAILABLE = 46, /* exclusive use by another process */
    CU_NO_DEVICE = 100,
    CU_INVALID_DEVICE = 101,
    CU_DEVICE_NOT_LICENSED = 102,
    CU_INVALID_IMAGE = 200,
    CU_NO_BINARY_FOR_GPU = 209,
    CU_ECC_UNCORRECTABLE = 214,
    CU_DEVICE_BUSY = 216,
    CU_UNSUPPORTED_PTX_VERSION = 222,
    CU_OPERATING_SYSTEM = 304, /* a call of the driver's failed: a sandbox? */
    CU_NOT_FOUND = 500,
    CU_NOT_READY = 600,
    CU_ILLEGAL_ADDRESS = 700,
    CU_LAUNCH_OUT_OF_RESOURCES = 701,
    CU_LAUNCH_TIMEOUT = 702,
    CU_HARDWARE_STACK_ERROR = 714,
    CU_ILLEGAL_INSTRUCTION = 715,
    CU_LAUNCH_FAILED = 719,
    CU_NOT_SUPPORTED = 801,
    CU_SYSTEM_NOT_READY = 802,
    CU_SYSTEM_DRIVER_MISMATCH = 803,
    CU_CAPTURE_UNSUPPORTED = 900,
    CU_CAPTURE_INVALIDATED = 901,
    CU_CAPTURE_UNJOINED = 904,
    CU_CAPTURE_LAST = 908, /* ended by another thread; all from 900 on are of captures */
    CU_UNKNOWN = 999,
};

/* Attributes of a device and of a function, flags. */
enum {
    CU_ATTR_SHARED_PER_BLOCK_OPTIN = 97,
    CU_ATTR_SM_COUNT = 16,
    CU_ATTR_PCI_BUS = 33,
    CU_ATTR_PCI_DEVICE = 34,
    CU_ATTR_PCI_DOMAIN = 50,
    CU_ATTR_MAJOR = 75,
    CU_ATTR_MINOR = 76,
    CU_ATTR_VMM = 102,
    CU_FUNC_MAX_DYNAMIC_SHARED = 8,
    CU_FUNC_CARVEOUT = 9,
    CU_EVENT_DEFAULT = 0,
    CU_EVENT_NO_TIMES = 2,
    CU_STREAM_NON_BLOCKING = 1,
    CU_CAPTURE_THREAD_LOCAL = 1,
    CU_HOST_PORTABLE = 1,
    CU_HOST_MAPPED = 2, /* kernels may read it */
    CU_MEM_PINNED = 1,
    CU_LOCATION_DEVICE = 1,
    CU_ACCESS_READWRITE = 3,
    CU_P2P_ATOMICS = 3, /* between two cards: over NVLink, not over PCIe */
};

struct cu_location {
    int type, id;
};

struct cu_mem_prop {
    int type, handle_types;
    struct cu_location location;
    void *win32;
    struct {
        unsigned char compression, rdma;
        unsigned short usage;
        unsigned char reserved[4];
    } flags;
};

struct cu_access {
    struct cu_location location;
    int flags;
};

/* X(field, symbol, (arguments)) */
#define CU_FUNCTIONS(X)                                                                            \
    X(init, cuInit, (unsigned))                                                                    \
    X(version, cuDriverGetVersion, (int *))                                                        \
    X(error_name, cuGetErrorName, (int, const char **))                                            \
    X(device_count, cuDeviceGetCount, (int *))                                                     \
    X(device_get, cuDeviceGet, (int *, int))                                                       \
    X(device_name, cuDeviceGetName, (char *, int, int))                                            \
    X(device_attr, cuDeviceGetAttribute, (int *, int, int))                                        \
    X(device_memory, cuDeviceTotalMem_v2, (size_t *, int))                                         \
    X(peer_access, cuDeviceCanAccessPeer, (int *, int, int))                                       \
    X(peer_attr, cuDeviceGetP2PAttribute, (int *, int, int, int))                                  \
    X(ctx_retain, cuDevicePrimaryCtxRetain, (cu_handle *, int))                                    \
    X(ctx_release, cuDevicePrimaryCtxRelease_v2, (int))                                            \
    X(ctx_set, cuCtxSetCurrent, (cu_handle))                                                       \
    X(mem_info, cuMemGetInfo_v2, (size_t *, size_t *))                                             \
    X(module_load, cuModuleLoadData, (cu_handle *, const void *))                                  \
    X(module_unload, cuModuleUnload, (cu_handle))                                                  \
    X(module_function, cuModuleGetFunction, (cu_handle *, cu_handle, const char *))                \
    X(function_set, cuFuncSetAttribute, (cu_handle, int, int))                                     \
    X(occupancy, cuOccupancyMaxActiveBlocksPerMultiprocessor, (int *, cu_handle, int, size_t))     \
    X(launch, cuLaunchKernel,                                                                      \
      (cu_handle, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, cu_handle, \
       void **, void **))                                                                          \
    X(alloc, cuMemAlloc_v2, (cu_ptr *, size_t))                                                    \
    X(free, cuMemFree_v2, (cu_ptr))                                                                \
    X(host_alloc, cuMemHostAlloc, (void **, size_t, unsigned))                                     \
    X(host_free, cuMemFreeHost, (void *))                                                          \
    X(host_register, cuMemHostRegister_v2, (void *, size_t, unsigned))                             \
    X(host_unregister, cuMemHostUnregister, (void *))                                              \
    X(host_at, cuMemHostGetDevicePointer_v2, (cu_ptr *, void *, unsigned))                         \
    X(copy_in, cuMemcpyHtoDAsync_v2, (cu_ptr, const void *, size_t, cu_handle))                    \
    X(copy_out, cuMemcpyDtoHAsync_v2, (void *, cu_ptr, size_t, cu_handle))                         \
    X(copy, cuMemcpyDtoDAsync_v2, (cu_ptr, cu_ptr, size_t, cu_handle))                             \
    X(fill, cuMemsetD8Async, (cu_ptr, unsigned char, size_t, cu_handle))                           \
    X(stream_new, cuStreamCreate, (cu_handle *, unsigned))                                         \
    X(stream_free, cuStreamDestroy_v2, (cu_handle))                                                \
    X(stream_wait, cuStreamSynchronize, (cu_handle))                                               \
    X(stream_await, cuStreamWaitEvent, (cu_handle, cu_handle, unsigned))                           \
    X(capture_begin, cuStreamBeginCapture_v2, (cu_handle, int))                                    \
    X(capture_end, cuStreamEndCapture, (cu_handle, cu_handle *))                                   \
    X(graph_make, cuGraphInstantiateWithFlags, (cu_handle *, cu_handle, unsigned long long))       \
    X(graph_upload, cuGraphUpload, (cu_handle, cu_handle))                                         \
    X(graph_launch, cuGraphLaunch, (cu_handle, cu_handle))                                         \
    X(graph_free, cuGraphDestroy, (cu_handle))                                                     \
    X(exec_free, cuGraphExecDestroy, (cu_handle))                                                  \
    X(event_new, cuEventCreate, (cu_handle *, unsigned))                                           \
    X(event_free, cuEventDestroy_v2, (cu_handle))                                                  \
    X(event_record, cuEventRecord, (cu_handle, cu_handle))                                         \
    X(event_query, cuEventQuery, (cu_handle))                                                      \
    X(event_ms, cuEventElapsedTime, (float *, cu_handle, cu_handle))                               \
    X(va_reserve, cuMemAddressReserve, (cu_ptr *, size_t, size_t, cu_ptr, unsigned long long))     \
    X(va_free, cuMemAddressFree, (cu_ptr, size_t))                                                 \
    X(mem_create, cuMemCreate,                                                                     \
      (unsigned long long *, size_t, const struct cu_mem_prop *, unsigned long long))              \
    X(mem_release, cuMemRelease, (unsigned long long))                                             \
    X(mem_map, cuMemMap, (cu_ptr, size_t, size_t, unsigned long long, unsigned long long))         \
    X(mem_unmap, cuMemUnmap, (cu_ptr, size_t))                                                     \
    X(mem_access, cuMemSetAccess, (cu_ptr, size_t, const struct cu_access *, size_t))              \
    X(mem_granularity, cuMemGetAllocationGranularity, (size_t *, const struct cu_mem_prop *, int))

struct cu_driver {
    void *library;
#define CU_FIELD(field, symbol, args) int(*field) args;
    CU_FUNCTIONS(CU_FIELD)
#undef CU_FIELD
};

/* Opens the driver's library (EVENKEEL_CUDA_DRIVER names another file than libcuda.so.1), finds
 * every function and initializes it. -ENODEV with one sentence when there is no driver, it is too
 * old or it has no card. The library stays loaded until the process ends. */
int cu_driver_open(struct cu_driver *ret_driver, struct ek_fault *fault);

/* Which of our codes a driver's answer is: 0, -ENOMEM never (host memory has its own calls),
 * EK_EDEVMEM, EK_EDEVICE for everything after which the context cannot be used, -ENOTSUP, -EINVAL
 * for a program error. */
int cu_code(int result);
/* Its name, "CUDA_ERROR_..." or a number's text. */
const char *cu_name(const struct cu_driver *cu, int result);
/* An attribute of a device, 0 where the driver does not say. */
int cu_attribute(const struct cu_driver *cu, int device, int which);
