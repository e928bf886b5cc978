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
    const uint32_t row = blockIdx.x;
    if (row >= step_of(a.step)->rows)
        return;
    const uint32_t token = (uint32_t)at<const int32_t>(a.tokens)[row] - a.first;
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
    const struct ek_step_seq *q = array_of<struct ek_step_seq>(s, s->seq_at);
    uint32_t from = 0, to = s->seqs;

    while (to - from > 1) {
        uint32_t mid = (from + to) / 2;
        if (q[mid].row <= row)
            from = mid;
        else
            to = mid;
    }
    return position + 1 > q[from].prompt ? position + 1 : q[from].prompt;
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
        step = -(log(a.theta) + log(a.grow * length / a.above - (a.grow - 1)) * a.count /
                                    (a.count - 1.0)) /
               a.count;
    float2 *to = at<float2>(a.table) + (uint64_t)row * a.count;

    for (uint32_t i = threadIdx.x; i < a.count; i += blockDim.x) {
        float sine, cosine;
        float freq = beyond ? (float)exp(step * i) : at<const float>(a.inv_freq)[i];
        sincosf((float)position * freq, &sine, &cosine);
        to[i] = make_float2(cosine * a.factor, sine * a.factor);
    }
}

/* A block: one row. Heads are rotated in place, then K and V copied to the cache as they are, or
 * made E4M3. */
EK_KERNEL(ek_rope, struct cu_rope_args, 256)
{
    const struct cu_step *s = step_of(a.step);
    const uint32_t row = blockIdx.x, half = a.rotary / 2;
    if (row >= s->rows)
        return;
    const float2 *angle = at<const float2>(a.table) + (uint64_t)row * half;
    const uint64_t x = (uint64_t)row * a.x.stride;

    for (uint32_t i = threadIdx.x; i < a.heads * half; i += blockDim.x) {
        uint32_t k = i % half, apart = a.neighbours ? 1 : half;
        uint64_t first = x + a.first_col + (uint64_t)(i / half) * a.head_dim + (a.neighbours ? 2 * k : k);
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

    for (uint32_t i = threadIdx.x; i < 2 * n; i += blockDim.x) {
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
