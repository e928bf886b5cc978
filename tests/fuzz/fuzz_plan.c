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

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
    struct plan_question q = {.device = "card",
                              .memory_bytes = 80e9,
                              .speed = {3e12, 1e15, 4e11},
                              .cards = 8,
                              .share = 0.9,
                              .gpu = true,
                              .load = {.rate = 1, .prompt = 100, .output = 10}};
    struct ek_fault fault = {0};
    struct plan_trace t;
    if (plan_trace_read((const char *)data, size, &t, &fault) == 0)
        assert(t.requests > 0 && isfinite(t.prompt_mean) && isfinite(t.p95));
    if (plan_shape_parse((const char *)data, size, &q.shape, &fault) == 0) {
        struct plan_answer a;
        struct plan_style style = {.explain = true};
        struct ek_buf out = {0};
        plan_advise(&q, &a);
        plan_write(&q, &a, &style, &out);
        plan_html(&q, &a, &out);
        ek_buf_done(&out);
        json_t *j = plan_json(&q, &a);
        json_decref(j);
    }
    return 0;
}
