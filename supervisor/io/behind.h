/*
 * Writes to the state directory from a thread of their own, in order, so that a disk that hangs
 * does not hold up the loop: evenkeeld's history (incidents.h, charts.h). While the disk keeps up a
 * push returns when the bytes are the kernel's, so that kill -9 loses nothing; see common/spool.h.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct behind;

/* In the thread: writes data; 0 or a negative errno. */
typedef int (*behind_fn)(void *ctx, const char *data, size_t len);

/* dir is for what the log says when nothing can be written, and when that is over. 0, -ENOMEM, or a
 * negative errno when there can be no thread. */
int behind_new(const char *dir, struct behind **ret_behind);
/* False when the thread hangs: then what its functions have as ctx must stay. */
bool behind_free(struct behind *b);
/* Copies data; fn(ctx, ...) follows. False when there is no room, which is counted. */
bool behind_push(struct behind *b, behind_fn fn, void *ctx, const void *data, size_t len);
/* Called in the thread whenever all is written; before the first push. */
void behind_idle(struct behind *b, void (*fn)(void *ctx), void *ctx);
/* All that is queued is written; false: not within wait_ms. */
bool behind_flush(struct behind *b, uint32_t wait_ms);
/* Records that were not written. */
uint64_t behind_lost(struct behind *b);
