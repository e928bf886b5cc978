/*
 * What each rank of a model takes, where there are several: the plan beside it names the most that
 * any of them does (cards), or the sum of a node's (host memory), and this is whose that is.
 */
#pragma once

#include <stdbool.h>

struct ek_buf;
struct stack;

/* Appends a table, or with `json` the value of a key "per_rank"; nothing for one rank. After the
 * plan, whether it fits or not: without blocks the KV pool is left out. */
int rank_table_write(const struct stack *s, bool json, struct ek_buf *out);
