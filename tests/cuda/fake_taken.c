/* What the cards' memory of the driver for tests is taken by besides allocations: contexts,
 * recorded steps, other processes; and an NVML that tells of it. See fake.h. */
#include <stdio.h>
#include <stdlib.h>

#include "tests/cuda/fake.h"
#include "tests/cuda/fake_inner.h"

#define MIB ((size_t)1 << 20)

enum { NVML_NOT_FOUND = 6, FIRST_BUS = 16 };

struct nvml_opaque;
struct nvml_bytes {
    unsigned long long total, free, used;
};

EXPORT void fake_costs(size_t context_bytes, size_t graph_bytes)
{
    fake_g.context_bytes = context_bytes;
    fake_g.graph_bytes = graph_bytes;
}

EXPORT void fake_others(int card, size_t bytes)
{
    fake_g.card[card].others = bytes;
}

size_t fake_free(int card)
{
    const struct card *c = &fake_g.card[card];
    const size_t taken =
        c->used + c->others + c->graphs + (c->retained > 0 ? fake_g.context_bytes : 0);

    return c->total > taken ? c->total - taken : 0;
}

__attribute__((constructor)) static void take_from_environment(void)
{
    const char *taken = getenv("FAKE_CUDA_TAKEN");
    unsigned context = 0, others = 0;

    if (!taken || sscanf(taken, "%u,%u", &context, &others) < 1)
        return;
    fake_g.context_bytes = context * MIB;
    for (int i = 0; i < MOST_CARDS; i++)
        fake_g.card[i].others = others * MIB;
}

/* ---- found where a link to this library is called libnvidia-ml.so.1 ---- */

API nvmlInit_v2(void);
API nvmlShutdown(void);
API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, struct nvml_opaque **card);
API nvmlDeviceGetMemoryInfo(struct nvml_opaque *card, struct nvml_bytes *bytes);

API nvmlInit_v2(void)
{
    return 0;
}

API nvmlShutdown(void)
{
    return 0;
}

API nvmlDeviceGetHandleByPciBusId_v2(const char *bus, struct nvml_opaque **card)
{
    unsigned domain, number;

    if (sscanf(bus, "%x:%x:", &domain, &number) != 2 || number < FIRST_BUS ||
        number >= FIRST_BUS + (unsigned)fake_g.cards)
        return NVML_NOT_FOUND;
    *card = (struct nvml_opaque *)(void *)&fake_g.card[number - FIRST_BUS];
    return 0;
}

API nvmlDeviceGetMemoryInfo(struct nvml_opaque *card, struct nvml_bytes *bytes)
{
    const struct card *c = (const struct card *)(const void *)card;
    const size_t left = fake_free((int)(c - fake_g.card));

    *bytes = (struct nvml_bytes){c->total, left, c->total - left};
    return 0;
}
