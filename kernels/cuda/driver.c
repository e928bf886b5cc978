/*
 * Opening the driver: where it is looked for, what is said when it is not there, and what its
 * answers mean to us. All of it happens before any memory is taken on the device.
 */
#include "kernels/cuda/driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "common/err.h"

#define LIBRARY      "libcuda.so.1"
#define LEAST_DRIVER 12000 /* what cuDriverGetVersion says: CUDA 12.0 */

static int no_device(struct ek_fault *fault, const char *why)
{
    ek_fault_write(fault, "device", "%s", why);
    return -ENODEV;
}

/* One sentence for an answer of cuInit(). */
static const char *why_not(int result)
{
    switch (result) {
    case CU_NO_DEVICE: return "The NVIDIA driver is installed but finds no card.";
    case CU_SYSTEM_NOT_READY:
        return "The cards are not ready yet: is nvidia-fabricmanager running on this machine?";
    case CU_SYSTEM_DRIVER_MISMATCH:
        return "The NVIDIA driver library is of another version than the loaded kernel module: "
               "restart the machine or reload the module.";
    case CU_DEVICE_NOT_LICENSED: return "The virtual GPU of this machine has no license.";
    default: return NULL;
    }
}

static int find_functions(struct cu_driver *cu, struct ek_fault *fault)
{
    struct {
        const char *name;
        void *at;
    } const wanted[] = {
#define CU_WANTED(field, symbol, args) {#symbol, &cu->field},
        CU_FUNCTIONS(CU_WANTED)
#undef CU_WANTED
    };

    for (size_t i = 0; i < sizeof(wanted) / sizeof(wanted[0]); i++) {
        void *symbol = dlsym(cu->library, wanted[i].name);
        if (!symbol) {
            ek_fault_write(fault, "device",
                           "The NVIDIA driver is too old: it has no %s. Install one for CUDA 12 or "
                           "later.",
                           wanted[i].name);
            return -ENODEV;
        }
        memcpy(wanted[i].at, &symbol, sizeof(symbol)); /* ISO C has no such cast */
    }
    return 0;
}

int cu_driver_open(struct cu_driver *ret_driver, struct ek_fault *fault)
{
    const char *path = getenv("EVENKEEL_CUDA_DRIVER");
    struct cu_driver cu = {.library = NULL};
    int version = 0;

    cu.library = dlopen(path && path[0] ? path : LIBRARY, RTLD_NOW | RTLD_LOCAL);
    if (!cu.library) {
        const char *why = dlerror();
        ek_fault_write(fault, "device", "There is no NVIDIA driver on this machine (%s).",
                       why ? why : LIBRARY " cannot be loaded");
        return -ENODEV;
    }
    int r = find_functions(&cu, fault);
    if (r < 0)
        return r;
    int result = cu.init(0);
    if (result != CU_OK) {
        const char *why = why_not(result);
        if (why)
            return no_device(fault, why);
        ek_fault_write(fault, "device", "The NVIDIA driver cannot be initialized: %s.",
                       cu_name(&cu, result));
        return -ENODEV;
    }
    if (cu.version(&version) != CU_OK || version < LEAST_DRIVER) {
        ek_fault_write(fault, "device",
                       "The NVIDIA driver is too old: it is for CUDA %d.%d, and 12.0 is needed.",
                       version / 1000, version % 1000 / 10);
        return -ENODEV;
    }
    *ret_driver = cu;
    return 0;
}

int cu_code(int result)
{
    if (result >= CU_CAPTURE_UNSUPPORTED && result <= CU_CAPTURE_LAST)
        return -EINVAL; /* what could not be recorded can be launched */
    switch (result) {
    case CU_OK: return 0;
    case CU_OUT_OF_MEMORY: return EK_EDEVMEM;
    case CU_NOT_READY: return -EAGAIN;
    case CU_NOT_SUPPORTED: return -ENOTSUP;
    case CU_INVALID_VALUE:
    case CU_NOT_FOUND:
    case CU_LAUNCH_OUT_OF_RESOURCES: return -EINVAL;
    case CU_NO_DEVICE:
    case CU_INVALID_DEVICE: return -ENODEV;
    default: return EK_EDEVICE; /* sticky, or not known not to be */
    }
}

int cu_attribute(const struct cu_driver *cu, int device, int which)
{
    int value = 0;
    return cu->device_attr(&value, which, device) == CU_OK ? value : 0;
}

const char *cu_name(const struct cu_driver *cu, int result)
{
    const char *name = NULL;

    if (cu->error_name(result, &name) != CU_OK || !name)
        return "an unknown error";
    return name;
}
