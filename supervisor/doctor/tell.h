/*
 * A finding as words: texts of the catalog with their numbers filled in, remedies in order with the
 * value that the numbers give, and which of them apply. Pure.
 *
 * In a text, {requested} becomes "2.00 GiB"; {down(max_num_seqs * 0.8, 1)} is computed; `:size` and
 * `:pct` behind an expression say how it is written. What has no value becomes "?".
 */
#pragma once

#include <stdbool.h>

#include "supervisor/doctor/catalog.h"
#include "supervisor/doctor/numbers.h"

struct ek_buf;

struct doctor_advice {
    const struct doctor_remedy *remedy;
    const char *flag; /* NULL: what to do is no flag */
    bool has_value;
    char value[64]; /* for the flag */
    char sum[120];  /* how the value was computed, "" */
};

/* Whether the log shows that it is of this engine ("vllm"), by its words or its version. */
bool doctor_is_of(const char *engine, const struct doctor_numbers *n);
void doctor_tell(const char *text, const struct doctor_numbers *n, struct ek_buf *out);
/* Those of the list that apply, at most `most`: not those whose flag the engine of the log, or the
 * version that the log names, does not have. A remedy whose value cannot be computed is kept,
 * without one. Returns how many. */
uint32_t doctor_advise(const struct doctor_remedy *list, uint32_t count,
                       const struct doctor_numbers *n, struct doctor_advice *ret_advice,
                       uint32_t most);
