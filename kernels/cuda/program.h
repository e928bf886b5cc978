/* Between program.c, which makes launches of the operation list, and files that have some of the
 * operations. */
#pragma once

#include "kernels/cuda/cuda.h"

/* program.c: `tiles` and `items` of attention; latent attention has only tiles. */
int cuda_program_make(struct ek_device *d);
int cuda_program_run(struct ek_device *d, uint32_t rows, uint32_t logit_rows, uint32_t tiles,
                     uint32_t items);

struct maker {
    struct ek_device *d;
    const struct ek_op *op, *end;
    bool picked, logits; /* the pick, the logits came before */
};

static inline cu_addr step_addr(const struct ek_device *d)
{
    return cuda_arena(d, d->shape.step_at);
}

static inline struct cu_view value_view(const struct ek_device *d, uint16_t value)
{
    const struct cuda_value *v = &d->values[value];
    return (struct cu_view){cuda_arena(d, v->at), v->stride, v->dtype};
}

static inline cu_addr weight_addr(const struct ek_device *d, uint32_t weight)
{
    return weight == EK_NO_WEIGHT ? 0 : cuda_weight_at(d, weight);
}

static inline enum cuda_run by_rows(const struct maker *m)
{
    return m->picked ? RUN_LOGIT_ROWS : RUN_ROWS;
}

struct cuda_launch *cuda_program_add(struct maker *m, enum cuda_run run, enum cuda_kernel kernel,
                                     uint32_t threads, uint32_t columns);

/* program_recur.c: operations with a recurrent state, on columns, and norms apart from others. */
bool cuda_recur_make(struct maker *m); /* false: not one of its */
bool cuda_norm_apart(const struct ek_op *norm);
int cuda_recur_conv(struct ek_device *d, struct cuda_launch *l, uint32_t rows);

/* program_latent.c: products by heads and latent attention. run() is for what it made. */
bool cuda_latent_make(struct maker *m);
int cuda_latent_run(struct ek_device *d, struct cuda_launch *l, uint32_t rows, uint32_t tiles);

/* Rotation of `value` by `rope` (NULL = none) and, before `attention` (NULL = none), the write to
 * the cache; the arguments of that attention. */
void cuda_program_rope(struct maker *m, uint16_t value, const struct ek_op *rope,
                       const struct ek_op *attention);
struct cu_attend_args cuda_program_attends(const struct maker *m);

/* program_attend.c, with the two above: where a rope table's angles lie; attention, and its launch
 * for so many rows, tiles and items. */
cu_addr cuda_angles_at(const struct ek_device *d, uint32_t table);
void cuda_attend_make(struct maker *m);
int cuda_attend_run(struct ek_device *d, struct cuda_launch *l, uint32_t rows, uint32_t tiles,
                    uint32_t items);
