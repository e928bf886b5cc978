/*
 * The incident log: what evenkeeld decided and what befell its servers, on disk, so that the next
 * evenkeeld and `evenkeelctl explain --since` know it.
 *
 * state_dir/incidents.log, and the one before it, incidents.1.log. A file has at most
 * INCIDENTS_BYTES; then it becomes the one before. Each record is one line of text:
 *
 *     SUM KIND JSON\n
 *
 * SUM is FNV-1a, 64 bits, of "KIND JSON" in 16 hex digits; KIND is a word; JSON an object on one
 * line. Kinds, and what a reader of this version does with them:
 *
 *     decision  as the API gives it; begins {"server":"NAME","at_s":SECONDS, in this order
 *     failure   as the API gives it, with "server" first
 *     life      {"server","pid","start","boot","at_s"}: this process runs; start in ticks since
 *               boot, boot is boot.h's number in hex
 *     end       {"server","pid","at_s"}: its end was seen
 *     counts    {"server","restarts","since_s"}: all starts after the first, and since when
 *     watch     {"pid","version","at_s","what"}: an evenkeeld begins, or ends: "stop", "hand over"
 *
 * Other kinds are passed over, so that a newer evenkeeld may add some. A record is one write() to a
 * file that is appended to: kill -9 loses at most the one under way, whose line is then damaged. A
 * line whose sum is wrong is skipped and counted, and reading goes on behind it. The same file may
 * be read while it is written.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct behind;
struct ek_buf;
struct incidents;

#define INCIDENTS_BYTES (4u << 20) /* of each of the two files */

/* Writes through b, from its thread. Nothing is opened before the first record. */
int incidents_new(struct behind *b, const char *dir, struct incidents **ret_incidents);
/* Only when behind_free() said that nothing can use it any more. */
void incidents_free(struct incidents *in);
/* What cannot be written is counted and said, see behind.h. in may be NULL: nothing is kept. */
void incidents_append(struct incidents *in, const char *kind, const char *json, size_t len);

struct incidents_count {
    uint64_t records, damaged;
};
/* json is within what is read, and not followed by a NUL. */
typedef void (*incidents_fn)(void *ctx, const char *kind, const char *json, size_t len);

/* Appends both files to out, the older first. 0 also when there are none; a negative errno. */
int incidents_read(const char *dir, struct ek_buf *out);
/* Each good record in its order. Pure. */
void incidents_parse(const char *text, size_t len, incidents_fn each, void *ctx,
                     struct incidents_count *ret_count);
/* Of the JSON of a decision or a failure: whether it is of this server, and when it was in
 * microseconds of the wall clock, 0 when it does not say. Pure. */
uint64_t incidents_when(const char *json, size_t len, const char *server);
