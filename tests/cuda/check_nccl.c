/* What kernels/cuda/nccl.h declares is what NCCL's own nccl.h says. Compiled, never run, where that
 * is; the C compiler does the checking. */
#include <nccl.h>

#include "kernels/cuda/nccl.h"

#define SAME(ours, theirs) _Static_assert((long)(ours) == (long)(theirs), #ours)

SAME(NCCL_OK, ncclSuccess);
SAME(NCCL_CUDA_ERROR, ncclUnhandledCudaError);
SAME(NCCL_SYSTEM_ERROR, ncclSystemError);
SAME(NCCL_INTERNAL_ERROR, ncclInternalError);
SAME(NCCL_INVALID_ARGUMENT, ncclInvalidArgument);
SAME(NCCL_INVALID_USAGE, ncclInvalidUsage);
SAME(NCCL_REMOTE_ERROR, ncclRemoteError);
SAME(NCCL_IN_PROGRESS, ncclInProgress);
SAME(NCCL_I8, ncclInt8);
SAME(NCCL_F16, ncclFloat16);
SAME(NCCL_F32, ncclFloat32);
SAME(NCCL_BF16, ncclBfloat16);
SAME(NCCL_SUM, ncclSum);
SAME(sizeof(struct nccl_id), sizeof(ncclUniqueId));
SAME(INT_MIN, NCCL_CONFIG_UNDEF_INT);
SAME(__builtin_offsetof(struct nccl_config, magic), __builtin_offsetof(ncclConfig_t, magic));
SAME(__builtin_offsetof(struct nccl_config, version), __builtin_offsetof(ncclConfig_t, version));
SAME(__builtin_offsetof(struct nccl_config, blocking), __builtin_offsetof(ncclConfig_t, blocking));
SAME(__builtin_offsetof(struct nccl_config, reserved),
     __builtin_offsetof(ncclConfig_t, cgaClusterSize));
