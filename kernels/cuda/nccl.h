/*
 * NCCL as a table of functions, filled from libnccl.so.2 when several cards are asked for: neither
 * the server nor the plug-in links it. Types and constants are declared as its stable interface has
 * them (tests/cuda/check_nccl.c holds them against nccl.h where that is installed). The
 * configuration is that of version 2.14, which later ones take as such.
 */
#pragma once

#include <limits.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/cuda/driver.h"

struct ek_fault;

typedef struct nccl_opaque *nccl_comm;

enum nccl_result {
    NCCL_OK = 0,
    NCCL_CUDA_ERROR = 1,
    NCCL_SYSTEM_ERROR = 2,
    NCCL_INTERNAL_ERROR = 3,
    NCCL_INVALID_ARGUMENT = 4,
    NCCL_INVALID_USAGE = 5,
    NCCL_REMOTE_ERROR = 6,
    NCCL_IN_PROGRESS = 7,
};

enum { NCCL_I8 = 0, NCCL_F16 = 6, NCCL_F32 = 7, NCCL_BF16 = 9, NCCL_SUM = 0 };

struct nccl_id {
    char bytes[128];
};

struct nccl_config {
    size_t size;
    unsigned magic, version;
    int blocking, reserved;
};
#define NCCL_CONFIG                                                                                \
    {                                                                                              \
        .size = sizeof(struct nccl_config), .magic = 0xcafebeef, .version = 21400, .blocking = 0,  \
        .reserved = INT_MIN                                                                        \
    }

/* X(type, field, symbol, (arguments)) */
#define NCCL_FUNCTIONS(X)                                                                          \
    X(int, version, ncclGetVersion, (int *))                                                       \
    X(int, unique, ncclGetUniqueId, (struct nccl_id *))                                            \
    X(int, init, ncclCommInitRankConfig,                                                           \
      (nccl_comm *, int, struct nccl_id, int, struct nccl_config *))                               \
    X(int, split, ncclCommSplit, (nccl_comm, int, int, nccl_comm *, struct nccl_config *))         \
    X(int, state, ncclCommGetAsyncError, (nccl_comm, int *))                                       \
    X(int, abort, ncclCommAbort, (nccl_comm))                                                      \
    X(int, destroy, ncclCommDestroy, (nccl_comm))                                                  \
    X(int, sum, ncclAllReduce, (const void *, void *, size_t, int, int, nccl_comm, cu_handle))     \
    X(int, gather, ncclAllGather, (const void *, void *, size_t, int, nccl_comm, cu_handle))       \
    X(int, send, ncclSend, (const void *, size_t, int, int, nccl_comm, cu_handle))                 \
    X(int, recv, ncclRecv, (void *, size_t, int, int, nccl_comm, cu_handle))                       \
    X(const char *, text, ncclGetErrorString, (int))                                               \
    X(const char *, last, ncclGetLastError, (nccl_comm))

struct nccl {
    void *library;
#define NCCL_FIELD(type, field, symbol, args) type(*field) args;
    NCCL_FUNCTIONS(NCCL_FIELD)
#undef NCCL_FIELD
};

/* Opens the library (EVENKEEL_NCCL names another file) and finds every function. -ENODEV with one
 * sentence that says what to install for `ranks` ranks when it is missing or too old. It stays
 * loaded until the process ends. */
int nccl_open(struct nccl *ret_nccl, uint32_t ranks, struct ek_fault *fault);
