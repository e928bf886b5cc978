/*
 * That the other side of a connection between nodes knows the same secret, without saying it: each
 * side draws a number, and both say a code (HMAC-SHA-256) of the two numbers and of who they are. A
 * code that was heard once is worth nothing later, and that of one side nothing for the other.
 *
 * It is about who may join. What travels behind it is neither encrypted nor signed: who can change
 * what is on the way between two nodes can take over a connection that was proven.
 */
#pragma once

#include <stdint.h>

#include "kernels/nodes/frame.h"

struct ek_fault;
struct ek_inbox;
struct ek_link;

struct ek_secret {
    const void *key; /* NULL: there is none, and nothing is asked */
    size_t bytes;
};

/* Before HELLO, by who called: 0, or -EBADMSG with a fault when the other side does not know the
 * key, or wants none; codes of link.h. */
int ek_proof_call(struct ek_link *l, const struct ek_secret *s, uint64_t timeout_us,
                  struct ek_fault *fault);
/* By who was called, with the first frame: HELLO or KNOCK. Up to and with HELLO, which is in the
 * inbox then. Codes as above. */
int ek_proof_answer(struct ek_link *l, const struct ek_secret *s, struct ek_inbox *in,
                    struct ek_frame *f, uint64_t timeout_us, struct ek_fault *fault);
