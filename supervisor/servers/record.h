/*
 * Recordings of what the policy saw: every page that it stepped on, with the time, and before the
 * first one (and after each change of them) a line with the constants and bounds it had. --replay
 * reads them (replay.h). A recording is a sequence of
 *     # {"version":1,"engine":...,"server":...,"policy":{...},"limits":{...}}\n
 *     @<at_us> <bytes>\n<the raw page>
 * where 0 bytes is a poll without an answer. Written through the page cache; when the file reaches
 * its bound, writing ends.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include "supervisor/law/policy.h"

struct ek_buf;
struct record;
struct server_config;

/* What a head line says. */
struct record_head {
    const char *engine, *server;
    struct policy_params params;
    uint32_t limit[KNOB_COUNT]; /* 0 = not known */
    bool pinned[KNOB_COUNT];
    bool write_failed; /* the change decided before this page was not written after all */
    bool fresh;        /* a policy that has seen nothing yet; record_poll() sets it */
    uint64_t ready_us; /* the server became ready: samples before it are forgotten; 0 = did not */
};

/* Appends to path, at most most_bytes in all. 0, -ENOMEM, or a negative errno. */
int record_open(const char *path, uint64_t most_bytes, struct record **ret_record);
void record_close(struct record *r);
/* The next page is the first of a ready server. */
void record_ready(struct record *r, uint64_t at_us);
/* One poll (page NULL = no answer), with a head line where that differs from the last one. 0,
 * -EFBIG when the bound is reached, or a negative errno; then nothing more can be written. */
int record_poll(struct record *r, const struct record_head *head, uint64_t at_us, const char *page,
                size_t len);

/* Appends one poll (page NULL = no answer). Returns 0 or -EIO. */
int record_write(FILE *out, uint64_t at_us, const char *page, size_t len);

/* Reads a head line behind its '#'. server is filled with the policy's constants and its engine and
 * name; both point into it. 0; -EBADMSG with the field that is wrong in ret_what; -ENOMEM. */
int record_head_parse(const char *json, size_t len, struct server_config *server,
                      struct record_head *ret_head, char *ret_what, size_t what_size);
