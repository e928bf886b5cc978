/* What evenkeeld reads of a server that ended: the flight recorder's file, which anybody who writes
 * in the server's directory could have put there. The sums are made right first, so that the sizes
 * behind them are tried. */
#include <jansson.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "common/recorder_read.h"
#include "supervisor/law/postmortem.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void try_one(const void *data, size_t size)
{
    struct ek_recorded r;
    struct ek_fault fault = {0};
    if (ek_recorded_parse(data, size, &r, &fault) < 0)
        return;
    size_t bytes =
        (size_t)r.step_count * sizeof(*r.steps) + (size_t)r.request_count * sizeof(*r.requests);
    for (uint32_t i = 1; i < r.step_count; i++)
        if (r.steps[i].number <= r.steps[i - 1].number)
            abort();
    if (bytes > 2 * size + sizeof(r.head))
        abort();
    struct postmortem p = {.server = "s1",
                           .engine = "evenkeel",
                           .cls = "SIGNAL",
                           .why = "",
                           .wall_us = 1795000002000000,
                           .samples = "{}"};
    struct ek_buf out = {0};
    if (postmortem_json(&p, &r, &out) == 0) {
        json_t *doc = json_loadb(out.data, out.len, JSON_REJECT_DUPLICATES, NULL);
        if (!doc || out.len > (1u << 20))
            abort();
        json_decref(doc);
    }
    ek_buf_done(&out);
    ek_recorded_done(&r);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct ek_recorder_head h;
    try_one(data, size);
    if (size < sizeof(h))
        return 0;
    uint8_t *copy = malloc(size);
    if (!copy)
        return 0;
    memcpy(copy, data, size);
    memcpy(&h, copy, sizeof(h));
    h.sum = ek_recorder_sum(&h, offsetof(struct ek_recorder_head, sum), SIZE_MAX);
    memcpy(copy, &h, sizeof(h));
    try_one(copy, size);
    free(copy);
    return 0;
}
