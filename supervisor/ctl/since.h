/*
 * What people write after --since: "30m", "2h", "1d12h", "today", "yesterday", "14:05",
 * "2026-11-22", "2026-11-22T14:05", "2026-11-22 14:05:30Z", "...+01:00", "@1795370587". Without a
 * zone it is local time. A time of day that is still to come today is yesterday's.
 */
#pragma once

#include <stdint.h>
#include <time.h>

struct ek_fault;

/* Seconds since 1970; 0 for "0": from the beginning. -EBADMSG with a fault. */
int since_parse(const char *text, time_t now, uint64_t *ret_s, struct ek_fault *fault);
