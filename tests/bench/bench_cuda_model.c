/* A model of given shape with random weights, for evenkeel-bench-cuda: no file is needed. */
#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "tests/bench/bench_cuda.h"

static const struct shape shapes[] = {
    {"8b", 32, 4096, 32, 8, 128, 14336, 128256, false, 0, 0, 0, 0},  /* Llama-3-8B */
    {"7b", 28, 3584, 28, 4, 128, 18944, 152064, true, 0, 0, 0, 0},   /* Qwen2-7B */
    {"moe", 6, 4096, 32, 8, 128, 14336, 32000, false, 8, 2, 0, 0},   /* 6 layers of Mixtral-8x7B, */
    {"fine", 6, 2048, 32, 4, 128, 768, 151936, false, 128, 8, 0, 0}, /* of Qwen3-30B-A3B */
    {"latent", 6, 7168, 128, 1, 512, 18432, 129280, false, 0, 0, 128, 64}, /* DeepSeek-V3's first,
                                                                              q whole */
    {"wide", 6, 2816, 16, 2, 512, 2112, 262144, false, 0, 0, 0, 0}, /* Gemma 4 26B's that see all,
                                                                       without experts */
    {"small", 2, 512, 8, 2, 64, 1024, 4096, false, 0, 0, 0, 0},     /* to see that it runs, */
    {"tiny-moe", 2, 256, 4, 2, 64, 128, 1024, false, 4, 2, 0, 0},   /* with experts, */
    {"tiny-latent", 2, 256, 4, 1, 64, 128, 1024, false, 0, 0, 16, 16}, /* with a latent, too, */
    {"tiny-wide", 2, 256, 4, 1, 512, 128, 1024, false, 0, 0, 0, 0},    /* and with wide heads */
};

static const struct form forms[] = {{"bf16", EK_BF16, 0, false},
                                    {"int8", EK_I8, 0, false},
                                    {"fp8", EK_F8_E4M3, 0, false},
                                    {"int4", EK_I4, 128, false},
                                    {"w8a8", EK_I8, 0, true},
                                    {"w8a8fp8", EK_F8_E4M3, 0, true},
                                    {"w8a8block", EK_F8_E4M3, 128, true}};

const struct form *bench_form(const char *name)
{
    for (size_t i = 0; i < sizeof(forms) / sizeof(forms[0]); i++)
        if (strcmp(forms[i].name, name) == 0)
            return &forms[i];
    return NULL;
}

const struct shape *bench_shape(const char *name)
{
    for (size_t i = 0; i < sizeof(shapes) / sizeof(shapes[0]); i++)
        if (strcmp(shapes[i].name, name) == 0)
            return &shapes[i];
    return NULL;
}

static uint32_t weight(struct bench *x, uint32_t rows, uint32_t cols)
{
    struct ek_weight *w = &x->g.weights[x->g.weight_count];
    bool matrix = rows > 1 && cols > 1;

    *w = (struct ek_weight){.source = EK_BF16,
                            .dtype = matrix ? EK_BF16 : EK_F32,
                            .rows = rows,
                            .cols = cols,
                            .parts = 1,
                            .part = {{0, 0, rows}}};
    (void)snprintf(w->name, sizeof(w->name), "random %u", x->g.weight_count);
    size_t bytes = (size_t)rows * cols * 2;
    x->file.size_bytes = bytes > x->file.size_bytes ? bytes : x->file.size_bytes;
    return x->g.weight_count++;
}

static struct ek_op *op(struct bench *x, enum ek_op_kind kind, uint16_t dst, uint16_t src)
{
    struct ek_op *o = &x->g.ops[x->g.op_count++];

    *o = (struct ek_op){
        .kind = kind, .dst = dst, .src = src, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};
    return o;
}

/* As a checkpoint has it whose blocks of 128 x 128 share a scale: any numbers of the file. */
static void in_blocks(struct bench *x, struct ek_weight *w)
{
    const struct ek_quant_range none = {.file = UINT32_MAX};

    w->quantized = true;
    w->quant = x->g.quant_count++;
    w->source = EK_F8_E4M3;
    x->g.quants[w->quant] = (struct ek_quant){.kind = EK_QUANT_F8,
                                              .rows = w->rows,
                                              .cols = w->cols,
                                              .bits = 8,
                                              .block_rows = 128,
                                              .block_cols = 128,
                                              .numbers = {.dtype = EK_I8},
                                              .scales = {.dtype = EK_BF16},
                                              .zeros = none,
                                              .groups = none};
}

/* As --quantization makes it, or in blocks. */
static uint32_t product(struct bench *x, uint32_t rows, uint32_t cols, bool head)
{
    uint32_t index = weight(x, rows, cols);
    bool wide = head && x->form->dtype == EK_I4;

    x->g.weights[index].dtype = wide ? EK_I8 : x->form->dtype;
    x->g.weights[index].group = wide ? 0 : x->form->group;
    x->g.weights[index].rounds_input = x->form->rounds && !head;
    if (x->form->rounds && x->form->group > 0 && !head)
        in_blocks(x, &x->g.weights[index]);
    else if (x->form->rounds && x->form->group > 0)
        x->g.weights[index].group = 0;
    return index;
}

static void linear(struct bench *x, uint16_t dst, uint16_t src, bool bias)
{
    struct ek_op *o = op(x, EK_OP_LINEAR, dst, src);

    o->weight = product(x, x->g.value_width[dst], x->g.value_width[src], false);
    if (bias)
        o->bias = weight(x, x->g.value_width[dst], 1);
}

static void norm(struct bench *x, uint16_t dst, uint16_t src)
{
    struct ek_op *o = op(x, EK_OP_NORM, dst, src);

    o->weight = weight(x, 1, x->shape->hidden);
    o->u.norm.eps = 1e-5f;
    o->u.norm.group = x->shape->hidden;
    o->u.norm.heads = 1;
}

/* A router, then gates, ups and downs of all experts. */
static void experts(struct bench *x)
{
    const struct shape *s = x->shape;
    uint32_t first[3] = {0};

    linear(x, 8, 1, false);
    x->g.weights[x->g.ops[x->g.op_count - 1].weight].dtype = EK_BF16;
    x->g.weights[x->g.ops[x->g.op_count - 1].weight].group = 0;
    for (uint32_t m = 0; m < 3; m++)
        for (uint32_t e = 0; e < s->experts; e++) {
            const uint32_t w = m == 2 ? product(x, s->hidden, s->ffn, false)
                                      : product(x, s->ffn, s->hidden, false);
            x->g.weights[w].rounds_input = false;
            first[m] = e == 0 ? w : first[m];
        }
    struct ek_op *o = op(x, EK_OP_EXPERTS, 4, 1);
    o->weight = first[0];
    o->u.experts.up = first[1];
    o->u.experts.down = first[2];
    o->u.experts.router = 8;
    o->u.experts.count = (uint16_t)s->experts;
    o->u.experts.top = (uint16_t)s->top;
    o->u.experts.up_bias = o->u.experts.down_bias = EK_NO_WEIGHT;
    o->u.experts.routing.correction = o->u.experts.routing.each = EK_NO_WEIGHT;
    o->u.experts.routing.normalise = true;
    o->u.experts.routing.scale = 1.0f;
    o->u.experts.act = EK_ACT_SILU;
}

static void turn(struct bench *x, uint16_t value, uint32_t first, uint32_t heads, uint32_t dim)
{
    struct ek_op *o = op(x, EK_OP_ROPE, value, value);

    o->u.rope.first_col = first;
    o->u.rope.heads = heads;
    o->u.rope.head_dim = dim;
    o->u.rope.rotary_dim = x->shape->rope;
}

/* Of all heads, in 16 bits whatever the form. */
static void by_heads(struct bench *x, uint16_t dst, uint16_t src, uint32_t n, uint32_t k,
                     uint32_t rest)
{
    struct ek_op *o = op(x, EK_OP_HEADS, dst, src);

    o->weight = x->g.weight_count;
    o->u.heads.count = x->shape->q_heads;
    o->u.heads.rest = rest;
    for (uint32_t h = 0; h < x->shape->q_heads; h++)
        (void)weight(x, n, k);
}

/* Queries in value 2, keys in 9, both as wide as the latent in 10, what was attended in 11. */
static void latent_attention(struct bench *x, uint32_t layer)
{
    const struct shape *s = x->shape;
    const uint32_t key = s->head_dim + s->rope;

    linear(x, 2, 1, false);
    turn(x, 2, s->nope, s->q_heads, s->nope + s->rope);
    linear(x, 9, 1, false);
    turn(x, 9, s->head_dim, 1, s->rope);
    by_heads(x, 10, 2, s->head_dim, s->nope, s->rope);
    struct ek_op *a = op(x, EK_OP_ATTENTION, 11, 10);
    a->layer = layer;
    a->u.attention.q_heads = s->q_heads;
    a->u.attention.kv_heads = 1;
    a->u.attention.head_dim = key;
    a->u.attention.value_dim = s->head_dim;
    a->u.attention.keys = 9;
    a->u.attention.scale = 1.0f / sqrtf((float)(s->nope + s->rope));
    by_heads(x, 3, 11, s->nope, s->head_dim, 0);
}

static void attention(struct bench *x, uint32_t layer)
{
    const struct shape *s = x->shape;

    linear(x, 2, 1, s->bias);
    struct ek_op *rope = op(x, EK_OP_ROPE, 2, 2);
    rope->u.rope.heads = s->q_heads + s->kv_heads;
    rope->u.rope.head_dim = rope->u.rope.rotary_dim = s->head_dim;
    struct ek_op *a = op(x, EK_OP_ATTENTION, 3, 2);
    a->layer = layer;
    a->u.attention.q_heads = s->q_heads;
    a->u.attention.kv_heads = s->kv_heads;
    a->u.attention.head_dim = s->head_dim;
    a->u.attention.scale = 1.0f / sqrtf((float)s->head_dim);
}

static void add_layer(struct bench *x, uint32_t layer)
{
    const struct shape *s = x->shape;

    norm(x, 1, 0);
    if (s->nope > 0)
        latent_attention(x, layer);
    else
        attention(x, layer);
    linear(x, 4, 3, false);
    op(x, EK_OP_ADD, 0, 4)->u.add.scale = 1.0f;
    norm(x, 1, 0);
    if (s->experts > 0) {
        experts(x);
    } else {
        linear(x, 5, 1, false);
        op(x, EK_OP_GLU, 6, 5)->u.glu.act = EK_ACT_SILU;
        linear(x, 4, 6, false);
    }
    op(x, EK_OP_ADD, 0, 4)->u.add.scale = 1.0f;
}

int bench_model(struct bench *x)
{
    const struct shape *s = x->shape;
    const bool latent = s->nope > 0;
    const uint32_t key = s->head_dim + s->rope, half = (latent ? s->rope : s->head_dim) / 2;
    const uint32_t q = s->q_heads * s->head_dim, kv = s->kv_heads * s->head_dim;
    const uint32_t qkv = latent ? s->q_heads * (s->nope + s->rope) : q + 2 * kv;
    const uint32_t widths[] = {s->hidden,
                               s->hidden,
                               qkv,
                               latent ? s->q_heads * s->nope : q,
                               s->hidden,
                               2 * s->ffn,
                               s->ffn,
                               s->hidden,
                               s->experts + latent,
                               key,
                               s->q_heads * key,
                               q};
    const size_t weights =
        8 + s->layers * (8 + 3 * (size_t)s->experts + (latent ? 2 * (size_t)s->q_heads : 0));

    x->g = (struct ek_graph){.value_count = latent ? 12 : 9 - (s->experts == 0),
                             .ropes = &x->rope,
                             .rope_count = 1,
                             .layers = s->layers,
                             .kv_heads = s->kv_heads,
                             .head_dim = key,
                             .value_dim = latent ? s->head_dim : 0,
                             .hidden = s->hidden,
                             .vocab = s->vocab,
                             .max_position = 65536,
                             .dtype = EK_BF16,
                             .kv_f8 = x->kv_f8,
                             .kv_i8 = x->kv_i8};
    x->g.ops = calloc(s->layers * 15 + 8, sizeof(*x->g.ops));
    x->g.weights = calloc(weights, sizeof(*x->g.weights));
    x->g.quants = calloc(weights, sizeof(*x->g.quants));
    x->g.value_width = malloc(sizeof(widths));
    x->rope =
        (struct ek_rope){.inv_freq = calloc(half, sizeof(float)), .count = half, .factor = 1.0f};
    if (!x->g.ops || !x->g.weights || !x->g.quants || !x->g.value_width || !x->rope.inv_freq)
        return -ENOMEM;
    memcpy(x->g.value_width, widths, sizeof(widths));
    for (uint32_t i = 0; i < half; i++)
        x->rope.inv_freq[i] = powf(500000.0f, -(float)i / (float)half);
    struct ek_op *embed = op(x, EK_OP_EMBED, 0, 0);
    embed->weight = weight(x, s->vocab, s->hidden);
    embed->u.embed.scale = 1.0f;
    for (uint32_t i = 0; i < s->layers; i++)
        add_layer(x, i);
    op(x, EK_OP_PICK, 7, 0);
    norm(x, 7, 7);
    struct ek_op *logits = op(x, EK_OP_LOGITS, 0, 7);
    logits->weight = product(x, s->vocab, s->hidden, true);
    logits->u.logits.scale = 1.0f;
    return 0;
}

static uint64_t draw(uint64_t *state)
{
    *state = *state * 6364136223846793005ull + 1442695040888963407ull;
    return *state >> 32;
}

/* From a normal distribution of deviation 0.02, as initialised models have it: the sum of four
 * uniform ones. One bit of each is 0, so that no byte read as E4M3 is a NaN. */
int bench_weights(struct bench *x)
{
    uint16_t *data = malloc(x->file.size_bytes);
    uint64_t state = 1;

    if (!data)
        return -ENOMEM;
    for (size_t i = 0; i < x->file.size_bytes / 2; i++) {
        double sum = 0;
        for (int k = 0; k < 4; k++)
            sum += (double)draw(&state) / 4294967296.0 - 0.5;
        float value = (float)(sum * 1.7320508 * 0.02);
        uint32_t bits;
        memcpy(&bits, &value, sizeof(bits));
        data[i] = (uint16_t)(bits >> 16 & ~8u);
    }
    x->file.data = data;
    x->files = (struct ek_weight_files){&x->file, 1};
    return 0;
}
