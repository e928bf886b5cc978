/*
 * Checksums of a model's files: a list as sha256sum writes it ("HASH  name" a line), SHA256SUMS in
 * the model directory or one named by the operator. Every safetensors file must be on it, and
 * every file on it must be there and be what it says.
 */
#pragma once

#include <stddef.h>
#include <stdint.h>

struct ek_bundle;
struct ek_fault;
struct model;

#define CHECKSUM_FILE       "SHA256SUMS"
#define CHECKSUM_BYTES      32u
#define CHECKSUM_FILES_MOST 4096u

struct checksum {
    uint8_t hash[CHECKSUM_BYTES];
    char name[256];
};

struct checksum_list {
    struct checksum *at;
    uint32_t count;
};

/* Reads the text of a list; `file` is its name for messages. -EBADMSG with a fault that names the
 * line, -ENOMEM. */
int checksum_parse(const char *file, const char *text, size_t len, struct checksum_list *ret_list,
                   struct ek_fault *fault);
void checksum_done(struct checksum_list *list); /* a zeroed one is fine */

/* The list of a file `path`, NULL = that of the directory, out of a bundle where `b` is one; none
 * is an empty list. -EBADMSG with a fault, -ENOMEM. */
int checksum_read(struct ek_bundle *b, const char *dir, const char *path,
                  struct checksum_list *ret_list, struct ek_fault *fault);
/* What the list is compared with: weights as they were mapped, whatever lies at their names now,
 * and of what was read before into a bundle the same file. */
struct checksum_of {
    const char *dir;
    const struct model *model;         /* its weights are mapped; NULL = none is read */
    struct ek_bundle *weights, *texts; /* NULL = what is in the directory is read later */
};

/* Reads that list and all files on it, several at once; every weight file of the model must be on
 * it. -EBADMSG with a fault that names the file, -ENOMEM. 0 with what was read; 0 files: there is
 * no list. */
int checksum_verify(const struct checksum_of *of, const char *path, uint32_t *ret_files,
                    uint64_t *ret_bytes, struct ek_fault *fault);
