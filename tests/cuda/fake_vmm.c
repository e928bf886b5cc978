/* Memory of the driver for tests that is mapped: an address range is one without access, a piece a
 * file in memory. So what is not mapped, or no longer, cannot be touched. A piece counts as taken
 * until it is neither mapped nor held. See fake.h. */
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "tests/cuda/fake_inner.h"

static bool in_pages(uint64_t n)
{
    return n > 0 && n % PAGE == 0;
}

static bool good(const struct cu_mem_prop *p)
{
    return p->type == CU_MEM_PINNED && p->handle_types == 0 && !p->win32 &&
           p->location.type == CU_LOCATION_DEVICE && p->location.id >= 0 &&
           p->location.id < fake_g.cards;
}

API cuMemGetAllocationGranularity(size_t *bytes, const struct cu_mem_prop *prop, int option)
{
    ENTER("cuMemGetAllocationGranularity");
    RULE(good(prop) && (option == 0 || option == 1), CU_INVALID_VALUE,
         "cuMemGetAllocationGranularity of no such memory");
    *bytes = PAGE;
    return fake_leave(CU_OK);
}

API cuMemAddressReserve(cu_ptr *at, size_t bytes, size_t align, cu_ptr wish,
                        unsigned long long flags)
{
    ENTER("cuMemAddressReserve");
    RULE(in_pages(bytes) && (align & (align - 1)) == 0 && wish % PAGE == 0 && flags == 0,
         CU_INVALID_VALUE, "%zu bytes of addresses, %zu apart: not in pieces of 2 MiB", bytes,
         align);
    char *va = mmap(NULL, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    if (va == MAP_FAILED)
        return fake_leave(CU_OUT_OF_MEMORY);
    (void)fake_range_new(va, bytes, RESERVED);
    *at = (cu_ptr)(uintptr_t)va;
    return fake_leave(CU_OK);
}

/* Whether some of these addresses are mapped. */
static bool mapped(const char *at, size_t bytes)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct range *r = &fake_g.range[i];
        if (r->kind == MAPPED && at < r->at + r->bytes && r->at < at + bytes)
            return true;
    }
    return false;
}

API cuMemAddressFree(cu_ptr at, size_t bytes)
{
    ENTER("cuMemAddressFree");
    struct range *r = fake_range_at((void *)(uintptr_t)at, RESERVED);
    RULE(r && r->bytes == bytes, CU_INVALID_VALUE,
         "cuMemAddressFree of other addresses than were reserved");
    RULE(!mapped(r->at, bytes), CU_INVALID_VALUE, "cuMemAddressFree while some are mapped");
    (void)munmap(r->at, bytes);
    r->kind = NO_RANGE;
    return fake_leave(CU_OK);
}

static struct range *handle_of(unsigned long long handle)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (fake_g.range[i].kind == HANDLE && fake_g.range[i].handle == handle)
            return &fake_g.range[i];
    return NULL;
}

/* What is neither held nor mapped is given back. */
static void settle(struct range *h)
{
    for (int i = 0; i < MOST_OBJECTS; i++)
        if (h->open || (fake_g.range[i].kind == MAPPED && fake_g.range[i].handle == h->handle))
            return;
    fake_g.card[h->card].used -= h->bytes;
    h->kind = NO_RANGE;
    (void)close((int)h->handle);
}

API cuMemCreate(unsigned long long *handle, size_t bytes, const struct cu_mem_prop *prop,
                unsigned long long flags)
{
    ENTER_SAFE("cuMemCreate");
    RULE(in_pages(bytes) && good(prop) && flags == 0, CU_INVALID_VALUE,
         "cuMemCreate of %zu bytes: not in pieces of 2 MiB, or of no card", bytes);
    struct card *its = &fake_g.card[prop->location.id];
    if (bytes > fake_free(prop->location.id))
        return fake_leave(CU_OUT_OF_MEMORY);
    int fd = memfd_create("fake-device", MFD_CLOEXEC);
    assert(fd >= 0 && ftruncate(fd, (off_t)bytes) == 0);
    its->used += bytes;
    struct range *r = fake_range_new(NULL, bytes, HANDLE);
    r->card = prop->location.id;
    r->handle = (unsigned long long)fd;
    r->open = true; /* held */
    *handle = (unsigned long long)fd;
    return fake_leave(CU_OK);
}

API cuMemRelease(unsigned long long handle)
{
    ENTER("cuMemRelease");
    struct range *h = handle_of(handle);
    RULE(h && h->open, CU_INVALID_VALUE, "cuMemRelease of what is not held");
    h->open = false;
    settle(h);
    return fake_leave(CU_OK);
}

static bool is_reserved(const char *at, size_t bytes)
{
    for (int i = 0; i < MOST_OBJECTS; i++) {
        const struct range *r = &fake_g.range[i];
        if (r->kind == RESERVED && at >= r->at && at + bytes <= r->at + r->bytes)
            return true;
    }
    return false;
}

API cuMemMap(cu_ptr at, size_t bytes, size_t offset, unsigned long long handle,
             unsigned long long flags)
{
    ENTER_SAFE("cuMemMap");
    char *va = (char *)(uintptr_t)at;
    struct range *h = handle_of(handle);
    RULE(h && h->open && in_pages(bytes) && bytes <= h->bytes && at % PAGE == 0 && offset == 0 &&
             flags == 0,
         CU_INVALID_VALUE, "cuMemMap of %zu bytes at %llx: not in pieces of 2 MiB of a handle",
         bytes, (unsigned long long)at);
    RULE(is_reserved(va, bytes) && !mapped(va, bytes), CU_INVALID_VALUE,
         "cuMemMap to addresses that are not reserved, or mapped already");
    void *got = mmap(va, bytes, PROT_NONE, MAP_SHARED | MAP_FIXED, (int)handle, 0);
    if (got == MAP_FAILED)
        return fake_leave(CU_INVALID_VALUE);
    struct range *r = fake_range_new(va, bytes, MAPPED);
    r->handle = handle;
    r->card = h->card;
    return fake_leave(CU_OK);
}

API cuMemUnmap(cu_ptr at, size_t bytes)
{
    ENTER_SAFE("cuMemUnmap");
    void *va = (void *)(uintptr_t)at;
    struct range *r = fake_range_at(va, MAPPED);
    RULE(r && r->bytes == bytes, CU_INVALID_VALUE, "cuMemUnmap of what was not mapped as such");
    RULE(!fake_busy(r->card), CU_INVALID_VALUE, "cuMemUnmap while work waits that may touch it");
    struct range *h = handle_of(r->handle);
    r->kind = NO_RANGE;
    settle(h);
    void *got =
        mmap(va, bytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE | MAP_FIXED, -1, 0);
    return fake_leave(got == MAP_FAILED ? CU_UNKNOWN : CU_OK);
}

/* May be touched from now on, by the card that was named; what is new is not a number. */
API cuMemSetAccess(cu_ptr at, size_t bytes, const struct cu_access *access, size_t count)
{
    ENTER("cuMemSetAccess");
    void *va = (void *)(uintptr_t)at;
    struct range *r = fake_range_at(va, MAPPED);
    RULE(r && r->bytes == bytes, CU_INVALID_VALUE, "cuMemSetAccess to what is not mapped");
    RULE(count == 1 && access->flags == CU_ACCESS_READWRITE &&
             access->location.type == CU_LOCATION_DEVICE && access->location.id == r->card,
         CU_INVALID_VALUE, "cuMemSetAccess for another card, or none");
    if (mprotect(va, bytes, PROT_READ | PROT_WRITE) != 0)
        return fake_leave(CU_INVALID_VALUE);
    memset(va, 0xff, PAGE); /* not all of it: that would be slow */
    r->open = true;
    return fake_leave(CU_OK);
}
