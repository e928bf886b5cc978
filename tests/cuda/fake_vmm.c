/* Memory of the driver for tests that is mapped: an address range is one without access, a piece a
 * file in memory. So what is not mapped, or no longer, cannot be touched. See fake.h. */
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake_inner.h"

API cuMemGetAllocationGranularity(size_t *bytes, const struct cu_mem_prop *prop, int option)
{
    ENTER("cuMemGetAllocationGranularity");
    (void)option;
    *bytes = PAGE;
    return fake_leave(prop->location.type == CU_LOCATION_DEVICE ? CU_OK : CU_INVALID_VALUE);
}

API cuMemAddressReserve(cu_ptr *at, size_t bytes, size_t align, cu_ptr wish,
                        unsigned long long flags)
{
    ENTER("cuMemAddressReserve");
    (void)align;
    (void)wish;
    (void)flags;
    if (bytes == 0 || bytes % PAGE != 0)
        return fake_leave(CU_INVALID_VALUE);
    char *va = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (va == MAP_FAILED)
        return fake_leave(CU_OUT_OF_MEMORY);
    (void)fake_range_new(va, bytes, RESERVED);
    *at = (cu_ptr)(uintptr_t)va;
    return fake_leave(CU_OK);
}

API cuMemAddressFree(cu_ptr at, size_t bytes)
{
    ENTER("cuMemAddressFree");
    struct range *r = fake_range_at((void *)(uintptr_t)at, RESERVED);
    assert(r->bytes == bytes);
    (void)munmap(r->at, bytes);
    r->kind = NO_RANGE;
    return fake_leave(CU_OK);
}

API cuMemCreate(unsigned long long *handle, size_t bytes, const struct cu_mem_prop *prop,
                unsigned long long flags)
{
    ENTER("cuMemCreate");
    (void)flags;
    NOT_IN_CAPTURE();
    if (bytes % PAGE != 0 || prop->type != CU_MEM_PINNED ||
        prop->location.type != CU_LOCATION_DEVICE)
        return fake_leave(CU_INVALID_VALUE);
    struct card *its = &fake_g.card[prop->location.id];
    if (bytes > its->total - its->used)
        return fake_leave(CU_OUT_OF_MEMORY);
    int fd = memfd_create("fake-device", MFD_CLOEXEC);
    assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    its->used += bytes;
    struct range *r = fake_range_new(NULL, bytes, HANDLE);
    r->card = prop->location.id;
    r->handle = (unsigned long long)fd;
    *handle = (unsigned long long)fd;
    return fake_leave(CU_OK);
}

API cuMemRelease(unsigned long long handle)
{
    ENTER("cuMemRelease");
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (fake_g.range[i].kind == HANDLE && fake_g.range[i].handle == handle) {
            fake_g.card[fake_g.range[i].card].used -= fake_g.range[i].bytes;
            fake_g.range[i].kind = NO_RANGE;
            (void)close((int)handle);
            return fake_leave(CU_OK);
        }
    return fake_leave(CU_INVALID_VALUE);
}

API cuMemMap(cu_ptr at, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags)
{
    ENTER("cuMemMap");
    (void)offset;
    (void)flags;
    void *va = (void *)(uintptr_t)at;
    void *got = mmap(va, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0);
    if (got == MAP_FAILED)
        return fake_leave(CU_INVALID_VALUE);
    struct range *r = fake_range_new(va, bytes, MAPPED);
    r->handle = handle;
    return fake_leave(CU_OK);
}

API cuMemUnmap(cu_ptr at, size_t bytes)
{
    ENTER("cuMemUnmap");
    void *va = (void *)(uintptr_t)at;
    fake_range_at(va, MAPPED)->kind = NO_RANGE;
    void *got =
        mmap(va, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return fake_leave(got == MAP_FAILED ? CU_UNKNOWN : CU_OK);
}

API cuMemSetAccess(cu_ptr at, size_t bytes, const struct cu_access *access, size_t count)
{
    ENTER("cuMemSetAccess");
    if (count != 1 || access->flags != CU_ACCESS_READWRITE)
        return fake_leave(CU_INVALID_VALUE);
    void *va = (void *)(uintptr_t)at;
    if (mprotect(va, bytes, PROT_READ | PROT_WRITE) != 0)
        return fake_leave(CU_INVALID_VALUE);
    fake_range_at(va, MAPPED)->open = true;
    return fake_leave(CU_OK);
}
