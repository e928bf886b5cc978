/*
 * The last decisions of one server, newest first when asked, and how many there were of each kind.
 * Limits, crashes, restarts, drains: everything evenkeeld did or would have done is one struct
 * decision here, which the journal, the metrics, the page and evenkeelctl print. Pure.
 */
#pragma once

#include <stdint.h>

#include "supervisor/law/policy.h"

struct ek_buf;

#define DECISIONS_KEPT 256

struct decisions {
    struct decision at[DECISIONS_KEPT];
    uint32_t next, count;
    uint64_t total[ACTION_COUNT][REASON_COUNT][2]; /* [..][..][applied] */
};

void decisions_push(struct decisions *d, const struct decision *one);
/* One of an evenkeeld before: kept, and not counted. */
void decisions_refill(struct decisions *d, const struct decision *one);
/* 0 = the newest; NULL beyond the oldest. */
const struct decision *decisions_at(const struct decisions *d, uint32_t i);
/* Appends a JSON list of at most `most`, newest first. 0 or -ENOMEM. */
int decisions_json(const struct decisions *d, const char *server, uint32_t most,
                   struct ek_buf *out);
