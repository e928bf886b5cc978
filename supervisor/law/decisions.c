/*
 * The ring of a server's decisions with a count for each kind. servers/server.c pushes, the API and
 * the page read by age; servers/past.c refills it at the start without counting, since those were
 * counted by the evenkeeld that made them.
 */
#include "supervisor/law/decisions.h"

#include <errno.h>
#include <stddef.h>

#include "common/buf.h"

void decisions_refill(struct decisions *d, const struct decision *one)
{
    d->at[d->next] = *one;
    d->next = (d->next + 1) % DECISIONS_KEPT;
    if (d->count < DECISIONS_KEPT)
        d->count++;
}

void decisions_push(struct decisions *d, const struct decision *one)
{
    decisions_refill(d, one);
    if ((unsigned)one->kind < ACTION_COUNT && (unsigned)one->reason < REASON_COUNT)
        d->total[one->kind][one->reason][one->applied]++;
}

const struct decision *decisions_at(const struct decisions *d, uint32_t i)
{
    if (i >= d->count)
        return NULL;
    return &d->at[(d->next + DECISIONS_KEPT - 1 - i) % DECISIONS_KEPT];
}

int decisions_json(const struct decisions *d, const char *server, uint32_t most, struct ek_buf *out)
{
    (void)ek_buf_puts(out, "[");
    for (uint32_t i = 0; i < most && decisions_at(d, i); i++) {
        if (i > 0)
            (void)ek_buf_puts(out, ",");
        int r = decision_json(decisions_at(d, i), server, out);
        if (r < 0)
            return r;
    }
    (void)ek_buf_puts(out, "]");
    return ek_buf_ok(out) ? 0 : -ENOMEM;
}
