/*
 * JSON of model files: parsing with a fault that names file and line, and numbers that are checked
 * for type and range where they are read. A key that is missing or null counts as not given.
 */
#pragma once

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <jansson.h>

struct ek_fault;

/* An object with unique keys; the caller owns it. -EBADMSG with a fault, -ENOMEM. */
int model_json_parse(const char *file, const char *text, size_t len, json_t **ret_root,
                     struct ek_fault *fault);

/* An object of a file, for the readers below. */
struct model_json {
    const char *file;
    const json_t *object;
    struct ek_fault *fault;
};

/* Bounds of a number. Given = NAN would not compare, so floats are refused unless within. */
struct model_range {
    double min, max;
};

/* 0 with *ret_given telling whether the key was there; *ret_value is written only then. -EBADMSG
 * with a fault naming key, value and bounds. */
int model_json_int(const struct model_json *j, const char *key, struct model_range range,
                   int64_t *ret_value, bool *ret_given);
int model_json_float(const struct model_json *j, const char *key, struct model_range range,
                     double *ret_value, bool *ret_given);
int model_json_bool(const struct model_json *j, const char *key, bool *ret_value, bool *ret_given);
/* Points into the object. */
int model_json_string(const struct model_json *j, const char *key, const char **ret_value,
                      bool *ret_given);
