/* Any bytes as config.json and as a trace: numbers stay in bounds, whatever is planned with them.
 */
#include <assert.h>
#include <math.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include "common/buf.h"
#include "common/err.h"
#include "supervisor/ctl/plan.h"
#include "supervisor/planner/trace.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void plan(const struct plan_question *q)
{
    static const struct plan_style style = {.explain = true};
    struct plan_answer a;
    struct ek_buf out = {0};
    plan_advise(q, &a);
    assert(!a.fits || (a.seqs >= 1 && a.knee >= 1 && a.knee <= a.seqs));
    assert(!a.fits || (a.full.itl_s > 0 && a.alone.prefill_s > 0));
    plan_write(q, &a, &style, &out);
    plan_html(q, &a, &out);
    ek_buf_done(&out);
    json_t *j = plan_json(q, &a);
    json_decref(j);
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    char path[64] = "";
    const struct plan_question card = {
        .device = "card",
        .model = path,
        .memory_bytes = 80e9,
        .speed = {.read_bytes_s = 3e12, .flops = 1e15, .flops8 = 2e15, .link_bytes_s = 4e11},
        .cards = 8,
        .share = 0.9,
        .gpu = true,
        .load = {.rate = 1, .prompt = 100, .output = 10}};
    const struct plan_question cpu = {.device = "CPU",
                                      .memory_bytes = 80e9,
                                      .speed = {.read_bytes_s = 4e10,
                                                .flops = 9e11,
                                                .cache_bytes = 3e7,
                                                .cache_bytes_s = 1e11,
                                                .own = true},
                                      .cards = 1,
                                      .share = 0.9,
                                      .load = {.prompt = 100, .output = 10, .itl_s = 0.01}};
    struct ek_fault fault = {0};
    struct plan_shape shape;
    struct plan_trace t;
    memcpy(path, data, size < sizeof(path) - 1 ? size : sizeof(path) - 1);
    if (plan_trace_read((const char *)data, size, &t, &fault) == 0)
        assert(t.requests > 0 && isfinite(t.prompt_mean) && isfinite(t.p95));
    if (plan_shape_parse((const char *)data, size, &shape, &fault) == 0) {
        struct plan_question q = card;
        q.shape = shape;
        plan(&q);
        q = cpu;
        q.shape = shape;
        plan(&q);
        q.weight_bits = 4;
        plan(&q);
    }
    return 0;
}
