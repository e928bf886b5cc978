/*
 * The "metrics" of an answer, written by reply.c for a whole answer and by sse.c with the last
 * chunk of a stream. On an HTTP thread: of a request that has ended, times are read; of one that a
 * stop string ended here first, the engine may still be at work, so its end is now. Times that make
 * no sense (no token came, or one only) are null.
 */
#include "server/api/timing.h"

#include <stdatomic.h>
#include <stdbool.h>
#include <stdint.h>

#include "common/buf.h"
#include "common/clock.h"
#include "server/api/generation.h"
#include "server/api/served.h"

static void put_ms(struct ek_buf *out, const char *name, uint64_t from_us, uint64_t to_us,
                   uint32_t parts)
{
    if (from_us == 0 || to_us < from_us || parts == 0)
        (void)ek_buf_printf(out, "\"%s\":null,", name);
    else
        (void)ek_buf_printf(out, "\"%s\":%.3f,", name,
                            (double)(to_us - from_us) / 1e3 / (double)parts);
}

void timing_write(struct ek_buf *out, const struct generation *g)
{
    uint64_t begin = 0, scheduled = 0, first = 0, last = 0;
    if (!g->served->request_metrics || g->count == 0)
        return;
    for (uint32_t i = 0; i < g->count; i++) {
        const struct request *q = g->choice[i].req;
        if (i == 0 || q->first_token_us < first)
            first = q->first_token_us;
        /* a stop string ends it here before it ends there */
        bool done = atomic_load_explicit(&q->state, memory_order_acquire) == REQ_DONE;
        uint64_t end = done ? q->done_us : ek_now_us();
        if (end > last)
            last = end;
    }
    begin = g->choice[0].req->ask.arrival_us;
    scheduled = g->choice[0].req->first_scheduled_us;
    uint32_t tokens = generation_seen(g), gaps = tokens / g->count;
    (void)ek_buf_puts(out, ",\"metrics\":{");
    put_ms(out, "time_to_first_token_ms", begin, first, 1);
    put_ms(out, "queue_time_ms", begin, scheduled, 1);
    put_ms(out, "generation_time_ms", first, last, 1);
    put_ms(out, "mean_itl_ms", first, last, gaps > 0 ? gaps - 1 : 0);
    if (first && last > first)
        (void)ek_buf_printf(out, "\"tokens_per_second\":%.3f}",
                            (double)tokens / ((double)(last - first) / 1e6));
    else
        (void)ek_buf_puts(out, "\"tokens_per_second\":null}");
}
