/*
 * Reading config.json into a shape: numbers by their spellings, and the parts of it that hybrids
 * have. Of the planner alone.
 */
#pragma once

#include <stdbool.h>
#include <stdint.h>

#include <jansson.h>

struct ek_fault;
struct plan_shape;

#define READER_MOST 100000000.0 /* of any number */

struct plan_reader {
    const json_t *j;
    struct ek_fault *fault;
    bool bad; /* the fault says why */
};

/* The first of the spellings (ended by NULL) that is a number; 0 if none is. */
uint32_t reader_number(struct plan_reader *r, const char *const *keys);
#define NUMBER(r, ...) reader_number((r), (const char *const[]){__VA_ARGS__, NULL})
/* One of them; where the file does not have it, as the server. Null is 0. */
uint32_t reader_number_or(struct plan_reader *r, const char *key, uint32_t usual);
bool reader_truth(const json_t *j, const char *key, bool if_missing);
/* How many layers are of a kind, of at most `most`. */
uint32_t reader_kinds(const json_t *types, const char *kind, uint32_t most);

/* Norms and biases (vectors.c), after the numbers of heads; Granite's with windows by its type. */
void plan_read_vectors(struct plan_reader *r, struct plan_shape *s);
bool plan_granite_swa(const struct plan_shape *s);
/* Layers with a state of a fixed size (hybrid.c). */
void plan_read_recurrent(struct plan_reader *r, struct plan_shape *s);
/* num_hidden_layers, or how many are named. */
uint32_t plan_count_layers(struct plan_reader *r);
