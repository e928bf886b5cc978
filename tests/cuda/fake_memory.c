/* Memory of the cards and of the host in the driver for tests. All of it begins as 0xff, so that
 * what was never written is not a number, and no allocation is aligned better than is promised. See
 * fake.h. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake_inner.h"

enum { ALIGNED = 256, HOST_FLAGS = CU_HOST_PORTABLE | CU_HOST_MAPPED };

struct range *fake_range_new(char *at, size_t bytes, int kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (fake_g.range[i].kind == NO_RANGE) {
            fake_g.range[i] =
                (struct range){.at = at, .bytes = bytes, .card = fake_current(), .kind = kind};
            return &fake_g.range[i];
        }
    abort();
}

struct range *fake_range_at(const void *at, int kind)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if ((int)fake_g.range[i].kind == kind && fake_g.range[i].at == at)
            return &fake_g.range[i];
    return NULL;
}

/* A multiple of 256, not of 512. */
static struct range *take(size_t bytes, int kind)
{
    void *base = NULL;

    if (posix_memalign(&base, 2 * ALIGNED, ALIGNED + bytes) != 0)
        return NULL;
    memset((char *)base + ALIGNED, 0xff, bytes);
    struct range *r = fake_range_new((char *)base + ALIGNED, bytes, kind);
    r->base = base;
    return r;
}

API cuMemGetInfo_v2(size_t *free_bytes, size_t *total)
{
    ENTER_CARD("cuMemGetInfo_v2");
    *total = fake_g.card[fake_current()].total;
    *free_bytes = fake_free(fake_current());
    return fake_leave(CU_OK);
}

API cuMemAlloc_v2(cu_ptr *at, size_t bytes)
{
    ENTER_SAFE("cuMemAlloc_v2");
    struct card *here = &fake_g.card[fake_current()];
    RULE(bytes > 0, CU_INVALID_VALUE, "cuMemAlloc of nothing");
    struct range *r = bytes > fake_free(fake_current()) ? NULL : take(bytes, DEVICE);
    if (!r)
        return fake_leave(CU_OUT_OF_MEMORY);
    here->used += bytes;
    *at = (cu_ptr)(uintptr_t)r->at;
    return fake_leave(CU_OK);
}

/* Waits for all that the card has to do. */
API cuMemFree_v2(cu_ptr at)
{
    ENTER_SAFE("cuMemFree_v2");
    struct range *r = fake_range_at((void *)(uintptr_t)at, DEVICE);
    RULE(r, CU_INVALID_VALUE, "cuMemFree of what was not allocated, or twice");
    fake_drain_card(r->card);
    fake_g.card[r->card].used -= r->bytes;
    free(r->base);
    r->kind = NO_RANGE;
    return fake_leave(CU_OK);
}

/* ---- of the host ---- */

API cuMemHostAlloc(void **at, size_t bytes, unsigned flags)
{
    ENTER_SAFE("cuMemHostAlloc");
    RULE(bytes > 0 && (flags & ~(unsigned)HOST_FLAGS) == 0, CU_INVALID_VALUE,
         "cuMemHostAlloc of nothing, or with flags %x", flags);
    struct range *r = take(bytes, PINNED);
    if (!r)
        return fake_leave(CU_OUT_OF_MEMORY);
    *at = r->at;
    r->flags = flags | CU_HOST_MAPPED; /* where all addresses are of one space */
    return fake_leave(CU_OK);
}

API cuMemFreeHost(void *at)
{
    ENTER_SAFE("cuMemFreeHost");
    struct range *r = fake_range_at(at, PINNED);
    RULE(r, CU_INVALID_VALUE, "cuMemFreeHost of what was not allocated, or twice");
    RULE(!fake_awaited(r->at, r->bytes), CU_INVALID_VALUE,
         "cuMemFreeHost while a copy of it waits");
    free(r->base);
    r->kind = NO_RANGE;
    return fake_leave(CU_OK);
}

/* Whether the process has all of these pages. */
static bool is_there(const char *at, size_t bytes)
{
    const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE), first = (uintptr_t)at & ~(page - 1);

    return msync((void *)first, (uintptr_t)at + bytes - first, MS_ASYNC) == 0;
}

API cuMemHostRegister_v2(void *at, size_t bytes, unsigned flags)
{
    ENTER_SAFE("cuMemHostRegister_v2");
    RULE(bytes > 0 && is_there(at, bytes) && (flags & ~(unsigned)HOST_FLAGS) == 0, CU_INVALID_VALUE,
         "memory is pinned that the process has not, or with flags %x", flags);
    RULE(fake_host(at, bytes) == PAGEABLE, ALREADY_REGISTERED, "memory is pinned twice");
    fake_range_new(at, bytes, REGISTERED)->flags = flags;
    return fake_leave(CU_OK);
}

API cuMemHostGetDevicePointer_v2(cu_ptr *ret_at, void *at, unsigned flags)
{
    ENTER_CARD("cuMemHostGetDevicePointer_v2");
    const struct range *r = fake_range_at(at, REGISTERED);
    RULE(r && (r->flags & CU_HOST_MAPPED) && flags == 0, CU_INVALID_VALUE,
         "cuMemHostGetDevicePointer of memory that was not pinned for it");
    *ret_at = (cu_ptr)(uintptr_t)at;
    return fake_leave(CU_OK);
}

API cuMemHostUnregister(void *at)
{
    ENTER_SAFE("cuMemHostUnregister");
    struct range *r = fake_range_at(at, REGISTERED);
    RULE(r && is_there(r->at, r->bytes), CU_INVALID_VALUE,
         "cuMemHostUnregister of what is not pinned, or was given back before");
    RULE(!fake_awaited(r->at, r->bytes), CU_INVALID_VALUE,
         "cuMemHostUnregister while a copy of it waits");
    r->kind = NO_RANGE;
    return fake_leave(CU_OK);
}
