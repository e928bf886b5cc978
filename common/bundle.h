/*
 * Files from outside, as the process that parsed them first hands them to another one: names
 * and contents in a memfd. JSON is not handed on as it was but in one form (common/jsonform.h);
 * other texts come as they are, or as their reader has put them. The one side writes, reads what it
 * wrote, and ends; the other side seals the memfd, so that it cannot be changed any more, checks
 * every length in it and that JSON has its form, and opens none of the files.
 *
 * A file that could not be read, or was no JSON, is there with the sentence that says so; one that
 * is not there was not there.
 *
 * One thread at a time.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ek_buf;
struct ek_bundle;
struct ek_fault;
struct stat;

#define EK_BUNDLE_MOST_BYTES  (1ull << 30)
#define EK_BUNDLE_MOST_PARTS  4096u
#define EK_BUNDLE_FAULT_BYTES (1u << 21) /* room for faults when the rest is full */

/* Which file it was that was read: for one that is opened once more, whether it is the same. */
struct ek_bundle_file {
    uint64_t device, inode, size_bytes, changed_ns;
};
struct ek_bundle_file ek_bundle_which(const struct stat *st);

struct ek_bundle_part {
    const char *name; /* of the file, with its folder */
    const char *text; /* ends with a NUL that does not count; of a fault its sentence; NULL when it
                       * was found by the side that writes */
    size_t len;
    bool is_fault;
    uint64_t at; /* where in the file the fault is; else what the writer meant by it */
    struct ek_bundle_file file;
};

/* A new memfd for a bundle, closed by an exec; a negative errno. */
int ek_bundle_make(void);

/* The side that parses. `fd` stays the caller's. -ENOMEM or another errno. */
int ek_bundle_begin(int fd, struct ek_bundle **ret_bundle);
/* After ek_bundle_begin(): files that are not in it yet are to be read and put into it. */
bool ek_bundle_is_open(const struct ek_bundle *b);
/* Puts what was read of a file there (`r` is 0, and `text` its content), or that it could not be
 * (-EBADMSG, with the sentence in `fault`); with another `r` nothing. JSON is written anew, in
 * `text` too. `what` is how sentences call the file, `most_bytes` what it may have. `r`, -EBADMSG
 * with a fault on `field`, or -ENOMEM. */
struct ek_bundle_read {
    const char *path, *what, *field;
    bool is_json;
    size_t most_bytes;
    uint64_t at; /* of the part that it becomes */
    struct ek_bundle_file file;
};
/* By its name. */
bool ek_bundle_is_json(const char *file);
int ek_bundle_keep(struct ek_bundle *b, const struct ek_bundle_read *read, int r,
                   struct ek_buf *text, struct ek_fault *fault);
/* The same of one part that is ready. */
int ek_bundle_add(struct ek_bundle *b, const struct ek_bundle_part *part);
/* All is in it. 0 or a negative errno. */
int ek_bundle_end(struct ek_bundle *b);

/* The other side, when the writer has ended. 0 or a negative errno. */
int ek_bundle_seal(int fd);
/* -EBADMSG when it is not sealed or not what ek_bundle_end() leaves; -ENOMEM. `fd` stays the
 * caller's. */
int ek_bundle_open(int fd, struct ek_bundle **ret_bundle);

/* Both sides; NULL when there is none of that name. */
const struct ek_bundle_part *ek_bundle_find(const struct ek_bundle *b, const char *name);
/* Appends its content to `out`. -ENOENT without a fault; -EBADMSG with a fault on `field`; -ENOMEM.
 */
int ek_bundle_take(const struct ek_bundle *b, const struct ek_bundle_read *read, struct ek_buf *out,
                   struct ek_fault *fault);
void ek_bundle_free(struct ek_bundle *b); /* NULL is fine */
