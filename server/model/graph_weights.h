/*
 * What the operations of graph.c need of its weights beside graph_weight(). Errors stick to the
 * builder, as there.
 */
#pragma once

#include "server/model/graph.h"

#define GRAPH_NAME sizeof(((struct ek_weight *)0)->name) /* of a weight, with its end */

struct graph_shape {
    uint32_t dims;
    uint64_t size[4];
};

/* Room for one more of `size` bytes; NULL after an error, which then sticks. */
void *graph_grow(struct graph_builder *b, void *array, uint32_t count, uint32_t *room, size_t size);

/* One more operation; the width of a value (0 after an error). */
void graph_op_push(struct graph_builder *b, struct ek_op op);
uint32_t graph_width(const struct graph_builder *b, uint16_t value);
/* dst = src by a weight, which is as high as dst is wide, and a bias or EK_NO_WEIGHT. */
void graph_linear_push(struct graph_builder *b, uint16_t dst, uint16_t src, uint32_t weight,
                       uint32_t bias);

/* The weight whose one part is the tensor NAME + suffix of shape `s`, or the beginning of it: `w`
 * tells what is computed with, how many rows and columns, and their steps. */
uint32_t graph_weight_one(struct graph_builder *b, const char *name, const char *suffix,
                          const struct graph_shape *s, struct ek_weight w);
/* The weights of a convolution, a tensor [channels, 1, kernel], as [kernel, channels]. */
uint32_t graph_conv_weight(struct graph_builder *b, const char *name, uint32_t channels,
                           uint32_t kernel);
/* The weights of a norm for each head, a tensor [heads, group], one after the other. */
uint32_t graph_head_weight(struct graph_builder *b, const char *name, uint32_t heads,
                           uint32_t group);
/* Decides how a matrix that only products read is kept. */
void graph_keep(struct graph_builder *b, uint32_t index);
/* The output layer is read whole for each token. Quantized while loading it takes 8 bits, whatever
 * the layers take, and more scales: its errors reach the answer at once. */
void graph_keep_head(struct graph_builder *b, uint32_t index);

/* The tensor of that name and shape, of any type or of one that can be computed with; then it is
 * used. NULL after an error. */
struct st_tensor *graph_tensor_any(struct graph_builder *b, const char *name,
                                   const struct graph_shape *s);
struct st_tensor *graph_tensor(struct graph_builder *b, const char *name,
                               const struct graph_shape *s);
/* One more part of a weight, which is quantized. 0 or the error. */
int graph_quant_push(struct graph_builder *b, const struct ek_quant *q, uint32_t rows,
                     struct ek_weight *w);
/* What the parts of a weight are in the files; suffix as graph_weight() has it. 0 or the error. */
int graph_weight_fill(struct graph_builder *b, const struct graph_part *parts, uint32_t count,
                      const char *suffix, struct ek_weight *w);
/* Adds a weight, or finds it if it is there; its index. */
uint32_t graph_weight_push(struct graph_builder *b, const struct ek_weight *w);

/* graph_matrices.c */
/* The matrices of all experts of one kind, adjacent; the index of the first. `format` has a %u for
 * the number of the expert. */
uint32_t graph_expert_matrices(struct graph_builder *b, const char *format, uint32_t rows,
                               uint32_t cols);
/* The same from one tensor: rows [skip, skip + rows) of [experts, all, cols]. */
uint32_t graph_expert_slices(struct graph_builder *b, const char *suffix,
                             const struct graph_shape *s, uint32_t skip, uint32_t rows);
/* A matrix for each head, adjacent; the index of the first. */
uint32_t graph_head_matrices(struct graph_builder *b, const struct graph_head_part *part);
/* Whether the files have all experts of a layer in one tensor, which need not be so named. */
bool graph_experts_joined(const struct graph_builder *b, const struct graph_expert_names *names);
/* Whether they have them as a matrix each, by the names of `apart`. */
bool graph_experts_apart(const struct graph_builder *b, const struct graph_expert_names *names);
/* Rows first, first + step, ... of each expert's [all, cols], which lies transposed in one tensor
 * [experts, cols, all], or untransposed in two: NAME_blocks of MXFP4 and NAME_scales. */
struct graph_lane {
    const char *name;
    uint32_t rows, cols, first, step, all;
};
uint32_t graph_expert_lane(struct graph_builder *b, const struct graph_lane *l);
/* The same rows of NAME_bias [experts, rows * step]. */
uint32_t graph_lane_biases(struct graph_builder *b, const struct graph_lane *l);
