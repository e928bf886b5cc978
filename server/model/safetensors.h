/*
 * The tensors of a model's safetensors files: names, types, shapes and where their bytes lie. A
 * header is believed only after every number in it was checked against the file.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "common/arena.h"
#include "kernels/backend.h"

struct ek_bundle;
struct ek_fault;

#define ST_HEADER_MOST  100000000u /* bytes of a header, as in the reference reader */
#define ST_TENSORS_MOST 65536u     /* in one model */
#define ST_FILES_MOST   1024u
#define ST_DIMS_MOST    8u

struct st_tensor {
    const char *name;
    uint32_t file;
    uint8_t dims;
    bool usable;         /* its type is one that a graph can hold: dtype says which */
    bool used;           /* free for the reader's user */
    enum ek_dtype dtype; /* meaningful when usable */
    const char *type;    /* as in the header: "BF16" */
    uint64_t shape[ST_DIMS_MOST];
    uint64_t begin, end; /* bytes from the start of the file */
};

struct st_set {
    struct st_tensor *tensor; /* sorted by name */
    uint32_t count, room;
    struct ek_weight_file *file;
    const char **file_name;
    uint32_t files;
    struct ek_arena arena;    /* names */
    struct ek_bundle *bundle; /* what is read in place of the directory's headers; NULL = those */
};

/* Adds the tensors of one file in memory (a mapping; it is not kept). -EBADMSG with a fault that
 * names file, tensor and remedy, -ENOMEM; on failure the set may hold some of its tensors. Call
 * st_sort() after the last file. */
int st_parse(struct st_set *s, const char *file_name, const void *data, uint64_t size_bytes,
             struct ek_fault *fault);
/* Sorts by name; a tensor that two files hold is a fault. */
int st_sort(struct st_set *s, struct ek_fault *fault);
/* All of the above for a directory: model.safetensors, else the files that
 * model.safetensors.index.json names, which must hold the tensors that it says they do. The files
 * stay mapped until st_done(). s is zeroed by the caller, but for a bundle: of a file in it the
 * header is not looked at, and it must be the file that was read then. */
int st_open(struct st_set *s, const char *dir, struct ek_fault *fault);
struct st_tensor *st_find(const struct st_set *s, const char *name); /* NULL if there is none */
const char *st_file_name(const struct st_set *s, const struct st_tensor *t);
/* The number that a tensor consists of; -EBADMSG when it is not one of a float's types. */
int st_number(const struct st_set *s, const struct st_tensor *t, float *ret_number);
/* So many numbers as they lie in a file; the type is f32, f16 or bf16. */
void st_numbers(enum ek_dtype t, const void *from, uint64_t count, float *ret_numbers);
/* Unmaps the files and frees everything. A zeroed one is fine. */
void st_done(struct st_set *s);
