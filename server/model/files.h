/*
 * Files of a model directory: small ones are read whole, weight files are mapped read-only. Only
 * plain names inside the directory; every fault names the file and what to do.
 *
 * Small ones come out of a bundle where there is one (common/bundle.h), and then the directory is
 * not looked at: what is not in it is not there. While the bundle is still written they are read,
 * and put into it.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

struct ek_buf;
struct ek_bundle;
struct ek_bundle_file;
struct ek_fault;

#define MODEL_NAME_MOST 255u /* bytes of a file name */

/* A plain file name: not empty, no slash, no control character, no leading dot, not too long. */
bool model_name_ok(const char *name);
/* Whether dir/name is there (a file that cannot be read counts). */
bool model_file_exists(const struct ek_bundle *b, const char *dir, const char *name);
/* Replaces the content of out by that of dir/name, at most `most_bytes`. -ENOENT with a fault when
 * it is missing, -EBADMSG with a fault when it is too large or unreadable, -ENOMEM. */
int model_file_read(struct ek_bundle *b, const char *dir, const char *name, size_t most_bytes,
                    struct ek_buf *out, struct ek_fault *fault);
/* Maps dir/name read-only; model_file_unmap() ends it. Codes as above; an empty file is bad.
 * ret_which, which may be NULL, tells which file it was. */
int model_file_map(const char *dir, const char *name, struct ek_weight_file *ret_file,
                   struct ek_bundle_file *ret_which, struct ek_fault *fault);
void model_file_unmap(struct ek_weight_file *file); /* an unmapped one is fine */
