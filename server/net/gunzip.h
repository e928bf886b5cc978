/* Bodies that came with Content-Encoding: gzip. A small one can become a very large one, so what it
 * takes is bounded and charged while it grows. Pure. */
#pragma once

#include <stddef.h>

struct ek_buf;

/* Appends what the gzip members in `in` hold to *out, whose limit bounds it. `charge` is told the
 * length of *out before it grows to it; what it returns below 0 ends the work and is returned.
 * -EBADMSG: no gzip, damaged or cut short; -EFBIG: more than out->limit; -ENOMEM. On failure *out
 * may hold a part. */
int gunzip(const char *in, size_t len, struct ek_buf *out, int (*charge)(void *ctx, size_t len),
           void *ctx);
