/*
 * Whether a client takes what was sent to it, by what its kernel acknowledges. Asked of streams
 * that are still being made while the server drains (worker.c): nothing is computed for one that
 * takes nothing. Of an answer that is made the time alone counts.
 *
 * A program that reads slowly lets its kernel acknowledge more now and then: its window opens by
 * steps of a sixteenth of its buffer, or of a segment, which is 64 KiB at most (within a machine:
 * a reader of less than 64 KiB within the bound may be cut there). On a network that loses packets
 * the kernel sends again after 0.2, 0.6, 1.4, 3 and 6.2 s (and a round trip each): a bound above
 * that cuts a connection only where five of them in a row were lost. A client that does not read
 * and one that is gone look alike in that nothing is acknowledged.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

/* What a socket says; counted by the kernel. */
struct unread_now {
    uint64_t taken; /* anything that moves when the peer takes something */
    bool waits;     /* sent bytes are not acknowledged, or not even sent */
};

/* Since when nothing was taken; zeroed it has not begun. */
struct unread {
    uint64_t since_us, taken;
};

/* Of TCP what is acknowledged. Of a Unix socket the kernel tells what waits in the peer's queue
 * alone, and that looks the same while a reader takes and we fill it again: like any socket that
 * cannot be asked it says that nothing waits. Its peer is on this machine. */
struct unread_now unread_look(int fd);
/* Whether bytes have waited for longer than that, and none was taken meanwhile. */
bool unread_stalls(struct unread *u, const struct unread_now *now, uint64_t now_us,
                   uint64_t most_us);
