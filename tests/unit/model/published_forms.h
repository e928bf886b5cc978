/*
 * The forms in which models are published quantized, for test_forms: a matrix is rounded to what a
 * form can say and written by the names, types and shapes of the form's tools. Each function
 * asserts that it succeeds.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

#include "common/buf.h"

enum { FORM_GROUP = 16, PUBLISHED_FORMS = 16 };

/* A file of tensors while it is made: its header and its bytes. */
struct form_out {
    json_t *head;
    struct ek_buf data;
    uint32_t packed; /* matrices */
};

/* Adds a tensor of `count` bytes; takes `shape`. */
void form_put(struct form_out *o, const char *name, const char *type, json_t *shape,
              const void *bytes, size_t count);

/* A matrix [rows, cols] that becomes what it is stored as. */
struct form_matrix {
    const char *name; /* without ".weight" */
    float *w;
    uint32_t rows, cols;
};

/* All experts of a layer in one tensor [count, a, b]. */
struct form_cube {
    const char *name;
    float *w;
    uint32_t count, a, b;
};

struct form;
typedef bool pack_fn(struct form_out *o, struct form_matrix *m, const struct form *f);

struct form {
    const char *name, *config;
    pack_fn *pack;                 /* false: stays as it is */
    uint32_t block_rows;           /* 8 bits: of a scale, 0 = all */
    const char *scale, *type;      /* its name and type */
    bool f8, gptq, turned, joined; /* joined: experts of one tensor stay so */
};

extern const struct form published_forms[PUBLISHED_FORMS];

/* A shape of two dimensions; the caller's. */
json_t *form_shape2(uint32_t a, uint32_t b);

/* The experts of one tensor in a form that has such: `turned` when it holds them transposed, as
 * Llama 4's. False: they stay as they are. The values become what they are stored as. */
bool form_cube_pack(struct form_out *o, const struct form_cube *c, const struct form *f,
                    bool turned);
