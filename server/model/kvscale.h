/* Scales of a layer's KV cache of 8 bits, as checkpoints publish them. */
#pragma once

#include "server/model/safetensors.h"

/* Of the layer whose names begin with prefix ("model.layers.3."): a number in the cache times the
 * scale is the value. 0 where the files have none, or one that is not above zero. A tensor that is
 * no single number, or not one at all, is -EBADMSG with a fault that names it. */
int kvscale_find(const struct st_set *tensors, const char *prefix, float *ret_k, float *ret_v,
                 struct ek_fault *fault);
