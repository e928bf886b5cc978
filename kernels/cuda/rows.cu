/*
 * Everything that treats rows one by one: the begin of a step, embedding, norms, rotation and the
 * write to the cache, activations, sums, caps, picking. All of it is bound by bandwidth; one block
 * takes one row (of a norm: one group of a row).
 */
#include "kernels/cuda/packed.cuh"

/* One block: slots are set, each row's token and block table found, logit rows numbered. */
EK_KERNEL(ek_prepare, struct cu_prepare_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const struct ek_slot_set *set = array_of<struct ek_slot_set>(s, s->set_at);
    const struct ek_step_seq *seq = array_of<struct ek_step_seq>(s, s->seq_at);
    const int32_t *token = array_of<int32_t>(s, s->token_at);
    struct cu_slot *slot = at<struct cu_slot>(a.slots);
    const uint32_t words = sizeof(struct ek_slot_set) / 4, warp = threadIdx.x / 32;
    bool bad = false;

    for (uint32_t i = 0; i < s->sets; i++) { /* in order: the later of two for one slot counts */
        uint32_t *to = (uint32_t *)&slot[set[i].slot];
        uint32_t *list = at<uint32_t>(a.words) + (uint64_t)set[i].slot * a.slot_words;
        const uint32_t *from = array_of<uint32_t>(s, s->word_at) + set[i].word;
        const uint32_t count = a.words ? slot_words(&set[i]) : 0; /* 0: another stage has them */
        if (threadIdx.x < words)
            to[threadIdx.x] = ((const uint32_t *)&set[i])[threadIdx.x];
        else if (threadIdx.x == words)
            slot[set[i].slot].last = -1;
        for (uint32_t k = threadIdx.x; k < count; k += blockDim.x)
            list[k] = from[k];
    }
    __syncthreads();
    for (uint32_t i = warp; i < s->seqs; i += blockDim.x / 32) {
        struct ek_step_seq q = seq[i];
        for (uint32_t row = q.row + threadIdx.x % 32; row < q.row + q.rows; row += 32) {
            int32_t t = token[row];
            if (t == EK_FROM_PREVIOUS)
                t = slot[q.slot].last;
            bad = bad || t < 0;
            at<int32_t>(a.tokens)[row] = t < 0 ? 0 : t;
            at<uint32_t>(a.row_table)[row] = q.table;
        }
        if (q.sample && threadIdx.x % 32 == 0)
            at<uint32_t>(a.picks)[q.logit_row] = q.row + q.rows - 1;
        for (uint32_t k = threadIdx.x % 32; k < q.scores; k += 32)
            at<uint32_t>(a.picks)[q.score_row + k] = q.row + q.rows - q.sample - q.scores + k;
    }
    if (threadIdx.x == 0)
        at<struct cu_flags>(a.flags)->bad = 0;
    __syncthreads();
    if (bad)
        atomicExch(&at<struct cu_flags>(a.flags)->bad, 1u); /* several warps may */
}

EK_KERNEL(ek_embed, struct cu_embed_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x;
    if (row >= s->rows)
        return;
    const uint32_t token = a.by_position ? array_of<uint32_t>(s, s->position_at)[row]
                                         : (uint32_t)at<const int32_t>(a.tokens)[row] - a.first;
    const uint64_t from = (uint64_t)token * a.weight.stride, to = (uint64_t)row * a.dst.stride;

    for (uint32_t i = threadIdx.x; i < a.width; i += blockDim.x) {
        float value = 0.0f;
        if (token < a.count)
            value = a.packing.form == CU_PLAIN
                        ? load(&a.weight, from + i)
                        : packed_value(a.weight.at, a.packing, token, a.width, i);
        store(&a.dst, to + i, value * a.scale);
    }
}

/* Four numbers at a time: 16 bytes of the residual stream and of the weights. */
DEV void norm_fours(const struct cu_norm_args &a, uint64_t from, uint64_t to, uint64_t add,
                    float *work)
{
    const float4 *w = at<const float4>(a.weight);
    float sum = 0.0f;

    for (uint32_t i = threadIdx.x * 4; i < a.group; i += blockDim.x * 4) {
        float x[4], y[4];
        load4(&a.src, from + i, x);
        if (a.adds) {
            load4(&a.add, add + i, y);
#pragma unroll
            for (int k = 0; k < 4; k++)
                x[k] += y[k] * a.add_scale;
            store4(&a.src, from + i, x); /* read again below, by the same thread */
        }
        sum += x[0] * x[0] + x[1] * x[1] + x[2] * x[2] + x[3] * x[3];
    }
    const float scale = rsqrtf(block_sum(sum, work) / (float)a.group + a.eps);
    for (uint32_t i = threadIdx.x * 4; i < a.group; i += blockDim.x * 4) {
        const float4 by = w ? w[i / 4] : make_float4(1.0f, 1.0f, 1.0f, 1.0f);
        float x[4];
        load4(&a.src, from + i, x);
        x[0] *= scale * (by.x + a.offset), x[1] *= scale * (by.y + a.offset);
        x[2] *= scale * (by.z + a.offset), x[3] *= scale * (by.w + a.offset);
        store4(&a.dst, to + i, x);
    }
}

/* A block: one group of one row. The sum is of f32 terms, the result rounded once. */
EK_KERNEL(ek_norm, struct cu_norm_args, 1024)
{
    __shared__ float work[32];
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, col = a.first + blockIdx.y * a.group;
    if (row >= (a.picked ? s->logit_rows : s->rows))
        return;
    const uint64_t from = (uint64_t)row * a.src.stride + col,
                   to = (uint64_t)row * a.dst.stride + col;
    const float *w = at<const float>(a.weight);
    float sum = 0.0f;

    if (a.group % 4 == 0 && a.first % 4 == 0) {
        norm_fours(a, from, to, (uint64_t)row * a.add.stride, work);
        return;
    }
    if (a.adds)
        for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x) {
            float x = load(&a.src, from + i) +
                      load(&a.add, (uint64_t)row * a.add.stride + i) * a.add_scale;
            store(&a.src, from + i, x); /* read again below, by the same thread */
            sum += x * x;
        }
    else
        for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x) {
            float x = load(&a.src, from + i);
            sum += x * x;
        }
    const float scale = rsqrtf(block_sum(sum, work) / (float)a.group + a.eps);
    for (uint32_t i = threadIdx.x; i < a.group; i += blockDim.x)
        store(&a.dst, to + i, load(&a.src, from + i) * scale * ((w ? w[i] : 1.0f) + a.offset));
}

/* The tokens that a row's sequence has at least: its prompt's, or those up to the row. */
DEV uint32_t length_at(const struct cu_step *s, uint32_t row, uint32_t position)
{
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at) + seq_of_row(s, row);

    return position + 1 > q->prompt ? position + 1 : q->prompt;
}

/* cos and sin of every row's angles, once per step. */
EK_KERNEL(ek_angles, struct cu_angle_args, 128)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x;
    if (row >= s->rows)
        return;
    const uint32_t position = array_of<uint32_t>(s, s->position_at)[row];
    const uint32_t length = a.above > 0 ? length_at(s, row, position) : 0;
    const bool beyond = length > a.above;
    double step = 0; /* of the frequencies' logs, see ek_rope_log_base() */
    if (beyond)
        step = -(log(a.theta) +
                 log(a.grow * length / a.above - (a.grow - 1)) * a.count / (a.count - 1.0)) /
               a.count;
    float2 *to = at<float2>(a.table) + (uint64_t)row * a.count;

    for (uint32_t i = threadIdx.x; i < a.count; i += blockDim.x) {
        float sine, cosine;
        float freq = beyond ? (float)exp(step * i) : at<const float>(a.inv_freq)[i];
        sincosf((float)position * freq, &sine, &cosine);
        to[i] = make_float2(cosine * a.factor, sine * a.factor);
    }
}

/* Eight pairs at a time, whose halves lie 16 bytes or more apart, each 16 bytes of the row. */
DEV void turn_eights(const struct cu_rope_args &a, uint64_t first, const float2 *angle)
{
    const uint32_t half = a.rotary / 2, eights = half / 8;

    for (uint32_t i = threadIdx.x; i < a.heads * eights; i += blockDim.x) {
        const uint32_t k = i % eights * 8;
        const uint64_t from = first + (uint64_t)(i / eights) * a.head_dim + k;
        const float4 *by = (const float4 *)(angle + k); /* of two pairs each */
        float p[8], q[8];
        load8(&a.x, from, p);
        load8(&a.x, from + half, q);
#pragma unroll
        for (int e = 0; e < 8; e += 2) {
            const float4 r = by[e / 2];
            const float p0 = p[e], p1 = p[e + 1];
            p[e] = p0 * r.x - q[e] * r.y;
            q[e] = q[e] * r.x + p0 * r.y;
            p[e + 1] = p1 * r.z - q[e + 1] * r.w;
            q[e + 1] = q[e + 1] * r.z + p1 * r.w;
        }
        store8(&a.x, from, p);
        store8(&a.x, from + half, q);
    }
}

/* K and V of a row to their place in the cache, eight numbers at a time. */
DEV void cache_eights(const struct cu_rope_args &a, uint64_t from, cu_addr to, uint32_t offset)
{
    const uint32_t n = a.kv_heads * a.head_dim, end = a.latent ? n : 2 * n;

    for (uint32_t i = threadIdx.x * 8; i < end; i += blockDim.x * 8) {
        const uint32_t e = i < n ? i : i - n, head = e / a.head_dim;
        const cu_addr plane = to + (i < n ? 0 : a.plane_bytes);
        const uint64_t index =
            (uint64_t)((head << a.block_shift) + offset) * a.head_dim + e % a.head_dim;
        if (!a.kv_f8) {
            *(uint4 *)&at<uint16_t>(plane)[index] =
                *(const uint4 *)&at<const uint16_t>(a.x.at)[from + i];
            continue;
        }
        float f[8];
        uint32_t w[2] = {0, 0};
        load8(&a.x, from + i, f);
#pragma unroll
        for (int k = 0; k < 8; k++)
            w[k / 4] |= (uint32_t)e4m3_of(f[k] / (i < n ? a.k_scale : a.v_scale)) << k % 4 * 8;
        *(uint2 *)&at<uint8_t>(plane)[index] = make_uint2(w[0], w[1]);
    }
}

/* A block: one row. Heads are rotated in place, then K and V copied to the cache as they are, or
 * made E4M3; 16 bytes at a time where heads of 16-bit numbers let that be. */
EK_KERNEL(ek_rope, struct cu_rope_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, half = a.rotary / 2;
    if (row >= s->rows)
        return;
    const float2 *angle = at<const float2>(a.table) + (uint64_t)row * half;
    const uint64_t x = (uint64_t)row * a.x.stride;
    const bool wide = a.x.dtype != EK_F32 && a.head_dim % 8 == 0;
    const bool wide_turns = wide && half % 8 == 0 && a.first_col % 8 == 0 && !a.neighbours;

    if (wide_turns)
        turn_eights(a, x + a.first_col, angle);
    for (uint32_t i = threadIdx.x; !wide_turns && i < a.heads * half; i += blockDim.x) {
        uint32_t k = i % half, apart = a.neighbours ? 1 : half;
        uint64_t first =
            x + a.first_col + (uint64_t)(i / half) * a.head_dim + (a.neighbours ? 2 * k : k);
        float2 r = angle[k];
        float p = load(&a.x, first), q = load(&a.x, first + apart);
        store(&a.x, first, p * r.x - q * r.y);
        store(&a.x, first + apart, q * r.x + p * r.y);
    }
    if (a.warm_every > 0) {
        const uint32_t position = array_of<uint32_t>(s, s->position_at)[row];
        const float times = (float)(((uint64_t)position + a.warm_from) / a.warm_every);
        const float by = 1.0f + a.warm * logf(1.0f + times); /* as ek_warmth() */
        __syncthreads();
        for (uint32_t i = threadIdx.x; i < a.heads * a.head_dim; i += blockDim.x)
            store(&a.x, x + a.first_col + i, load(&a.x, x + a.first_col + i) * by);
    }
    if (!a.writes)
        return;
    __syncthreads();
    const uint32_t slot = array_of<uint32_t>(s, s->kv_slot_at)[row];
    const uint32_t block = slot >> a.block_shift, offset = slot & ((1u << a.block_shift) - 1);
    const uint32_t n = a.kv_heads * a.head_dim;
    cu_addr to = s->kv + block * a.block_bytes + a.layer_at;

    if (wide) {
        cache_eights(a, x + a.k_col, to, offset);
        return;
    }
    for (uint32_t i = threadIdx.x; i < (a.latent ? n : 2 * n); i += blockDim.x) {
        uint32_t e = i < n ? i : i - n, head = e / a.head_dim;
        uint64_t plane = i < n ? 0 : a.plane_bytes;
        uint64_t index = (uint64_t)((head << a.block_shift) + offset) * a.head_dim + e % a.head_dim;
        uint64_t from = x + a.k_col + i;
        if (a.kv_f8)
            at<uint8_t>(to + plane)[index] =
                e4m3_of(load(&a.x, from) / (i < n ? a.k_scale : a.v_scale));
        else if (a.x.dtype == EK_F32)
            at<float>(to + plane)[index] = at<const float>(a.x.at)[from];
        else
            at<uint16_t>(to + plane)[index] = at<const uint16_t>(a.x.at)[from];
    }
}

DEV float row_value(const struct cu_rows_args *a, uint64_t src, uint64_t dst, uint32_t i)
{
    switch (a->kind) {
    case CU_ROWS_GLU:
        return gated(load(&a->src, src + i), load(&a->src, src + a->width + i), a->act);
    case CU_ROWS_ADD: return load(&a->dst, dst + i) + load(&a->src, src + i) * a->scale;
    case CU_ROWS_SOFTCAP: return a->scale * tanhf(load(&a->dst, dst + i) / a->scale);
    case CU_ROWS_BIAS: return load(&a->dst, dst + i) + at<const float>(a->bias)[i];
    }
    return load(&a->src, src + i); /* CU_ROWS_PICK */
}

/* A block: part of a row, four elements per thread and turn where the halves are aligned for it. */
EK_KERNEL(ek_rows, struct cu_rows_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, first = blockIdx.y * blockDim.x + threadIdx.x;
    const uint32_t stride = gridDim.y * blockDim.x;
    if (row >= (a.picked ? s->logit_rows : s->rows))
        return;
    const uint32_t from = a.kind == CU_ROWS_PICK ? at<const uint32_t>(a.picks)[row] : row;
    const uint64_t src = (uint64_t)from * a.src.stride, dst = (uint64_t)row * a.dst.stride;

    if (a.kind == CU_ROWS_GLU && a.width % 4 == 0) {
        for (uint32_t i = first * 4; i < a.width; i += stride * 4) {
            float gate[4], up[4];
            load4(&a.src, src + i, gate);
            load4(&a.src, src + a.width + i, up);
            for (int k = 0; k < 4; k++)
                gate[k] = gated(gate[k], up[k], a.act);
            store4(&a.dst, dst + i, gate);
        }
        return;
    }
    for (uint32_t i = first; i < a.width; i += stride)
        store(&a.dst, dst + i, row_value(&a, src, dst, i));
}
