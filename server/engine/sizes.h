/*
 * How much host memory the engine's tables take, before anything is allocated: the memory plan
 * asks. A test compares it with what sched_new() and engine_new() allocate.
 */
#pragma once

#include <stdint.h>

struct engine_params;

/* Of each KV block, in either pool: where it is, its name and tokens. A bound, some percent above
 * what hash tables of the next power of two take. */
uint64_t engine_block_table_bytes(uint32_t block_size);
/* The rest: entries, slots, block tables, step and result buffers. `blocks` is not used. */
uint64_t engine_table_bytes(const struct engine_params *p);
/* Of one request with so many tokens of prompt and answer at most. */
uint64_t engine_request_bytes(uint32_t tokens);
