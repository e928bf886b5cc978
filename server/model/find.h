/*
 * From what --model says to a directory: a path as it is, or the id of a model on Hugging Face
 * ("org/name") that lies in the local cache. Nothing is downloaded.
 */
#pragma once

#include <stddef.h>

struct ek_fault;

/* Writes the directory, at most `bytes` with the NUL. A name that is no id is taken for a path and
 * not looked at. -EBADMSG with a fault that names the command that downloads, -ENOMEM. */
int model_find(const char *name, char *ret_dir, size_t bytes, struct ek_fault *fault);
