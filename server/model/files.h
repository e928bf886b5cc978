/*
 * Files of a model directory: small ones are read whole, weight files are mapped read-only. Only
 * plain names inside the directory; every fault names the file and what to do.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "kernels/backend.h"

struct ek_buf;
struct ek_fault;

#define MODEL_NAME_MOST 255u /* bytes of a file name */

/* A plain file name: not empty, no slash, no control character, no leading dot, not too long. */
bool model_name_ok(const char *name);
/* Whether dir/name is there (a file that cannot be read counts). */
bool model_file_exists(const char *dir, const char *name);
/* Replaces the content of out by that of dir/name, at most `most_bytes`. -ENOENT with a fault when
 * it is missing, -EBADMSG with a fault when it is too large or unreadable, -ENOMEM. */
int model_file_read(const char *dir, const char *name, size_t most_bytes, struct ek_buf *out,
                    struct ek_fault *fault);
/* Maps dir/name read-only; model_file_unmap() ends it. Codes as above; an empty file is bad. */
int model_file_map(const char *dir, const char *name, struct ek_weight_file *ret_file,
                   struct ek_fault *fault);
void model_file_unmap(struct ek_weight_file *file); /* an unmapped one is fine */
