/*
 * The ring behind the charts of the page, filled once a second by servers/watch.c and read by the
 * API; io/charts.c keeps it on disk. A reader of every n-th second gets those rows as they are, not
 * averages.
 */
#include "supervisor/law/history.h"

#include <errno.h>
#include <math.h>
#include <string.h>

#include "common/buf.h"
#include "common/clock.h"

static const char *const names[HISTORY_COLUMNS] = {
    [HIST_KV_USAGE] = "kv_usage",
    [HIST_RUNNING] = "running",
    [HIST_WAITING] = "waiting",
    [HIST_LIMIT_SEQS] = "limit_seqs",
    [HIST_LIMIT_TOKENS] = "limit_tokens",
    [HIST_PREEMPTION_RATE] = "preemption_rate",
    [HIST_GEN_TPS] = "gen_tps",
    [HIST_PROMPT_TPS] = "prompt_tps",
    [HIST_TTFT_P99] = "ttft_p99_s",
    [HIST_ITL_P99] = "itl_p99_s",
    [HIST_QUEUE_OLDEST] = "queue_oldest_s",
    [HIST_CACHED] = "cached_frac",
};

const char *history_name(enum history_column c)
{
    return (unsigned)c < HISTORY_COLUMNS ? names[c] : "";
}

void history_push(struct history *h, uint64_t wall_us, const float value[HISTORY_COLUMNS])
{
    uint32_t at = (uint32_t)(wall_us / EK_US_PER_S);
    uint32_t newest = (h->next + HISTORY_ROWS - 1) % HISTORY_ROWS;
    /* A clock that was set back starts over at its new time rather than stopping the charts. */
    if (h->count > 0 && at == h->at_s[newest])
        return;
    h->at_s[h->next] = at;
    memcpy(h->value[h->next], value, sizeof(h->value[0]));
    h->next = (h->next + 1) % HISTORY_ROWS;
    if (h->count < HISTORY_ROWS)
        h->count++;
}

static void history_put_number(struct ek_buf *out, float v)
{
    if (!isfinite(v))
        (void)ek_buf_puts(out, ",null");
    else
        (void)ek_buf_printf(out, ",%.6g", (double)v);
}

int history_json(const struct history *h, uint32_t since_s, uint32_t every, struct ek_buf *out)
{
    (void)ek_buf_printf(out, "{\"step_s\":%d,\"columns\":[\"at_s\"", HISTORY_STEP_S);
    for (int c = 0; c < HISTORY_COLUMNS; c++)
        (void)ek_buf_printf(out, ",\"%s\"", names[c]);
    (void)ek_buf_puts(out, "],\"rows\":[");
    const char *comma = "";
    for (uint32_t i = 0; i < h->count; i++) {
        uint32_t k = (h->next + HISTORY_ROWS - h->count + i) % HISTORY_ROWS;
        if (h->at_s[k] <= since_s || (every > 1 && h->at_s[k] % every != 0))
            continue;
        (void)ek_buf_printf(out, "%s[%u", comma, h->at_s[k]);
        for (int c = 0; c < HISTORY_COLUMNS; c++)
            history_put_number(out, h->value[k][c]);
        (void)ek_buf_puts(out, "]");
        comma = ",";
    }
    (void)ek_buf_puts(out, "]}");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
