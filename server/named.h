/* The model as the options want it: for the server's start, and for an engine in a process of its
 * own, which have to read the same. */
#pragma once

#include <stdint.h>

struct ek_backend;
struct ek_bundle;
struct ek_fault;
struct model;
struct options;

/* Tells files that were replaced: of the names, places, sizes and times of config.json and of all
 * weight files in the directory. */
uint64_t named_stamp(const char *dir);
/* 0, or -EBADMSG where the files are not those of the stamp, which the server took of what it has
 * read: for an engine, before it reads them. */
int named_same(const char *dir, uint64_t stamp, struct ek_fault *fault);
/* 0, or -EBADMSG where they were changed since that stamp was taken: after they were read. */
int named_unchanged(const char *dir, uint64_t stamp, struct ek_fault *fault);
/* `dir` is from model_find(); `backend` may be NULL when nothing is to be computed; `files`: what
 * is read in place of the directory's, or NULL. As model_open_as(). */
int named_model(const struct options *o, const char *dir, const struct ek_backend *backend,
                struct ek_bundle *files, struct model **ret_model, struct ek_fault *fault);
