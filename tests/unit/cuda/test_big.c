/*
 * The shapes of production models on a card (EVENKEEL_GPU): products of 14,336 and 28,672 columns
 * by each kernel that may compute them, attention over 8,192 and 32,768 positions by both kernels,
 * in a cache whose blocks are shuffled and lie above 64 GiB where the card is that large. What a
 * small test cannot reach: offsets of more than 32 bits, parts of long sums, many tiles. On the
 * simulated card the same test with small numbers, so that it cannot rot.
 */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "common/err.h"
#include "common/memplan.h"
#include "kernels/num.h"
#include "tests/unit/cuda/fake_card.h"
#include "tests/unit/kernels/tiny.h"

enum { TYPES = 64, RARE = 32, LISTED = 64 };
#define GIB ((uint64_t)1 << 30)

/* Two weights and a graph on top of them; everything is bfloat16. */
struct big {
    struct ek_op op[4];
    struct ek_weight weight[3];
    uint32_t width[3];
    uint16_t *data[3];
    struct ek_weight_file file[3];
    struct ek_weight_files files;
    struct ek_graph g;
    struct ek_step_ceiling ceiling;
    uint32_t block_size;
};

struct card {
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step *step;
    struct ek_result *result;
    size_t result_bytes;
    uint64_t id;
};

static double number(const uint16_t *at, size_t i)
{
    return (double)cpu_load(EK_BF16, at, i);
}

static void add_weight(struct big *b, uint32_t i, uint32_t rows, uint32_t cols)
{
    const size_t bytes = (size_t)rows * cols * sizeof(uint16_t);

    b->data[i] = malloc(bytes);
    assert_non_null(b->data[i]);
    b->file[i] = (struct ek_weight_file){b->data[i], bytes, false};
    b->weight[i] = (struct ek_weight){.name = "weight",
                                      .source = EK_BF16,
                                      .dtype = EK_BF16,
                                      .rows = rows,
                                      .cols = cols,
                                      .parts = 1,
                                      .part = {{i, 0, rows, 0}}};
}

static void fill(uint16_t *to, size_t count, float most, uint64_t seed)
{
    for (size_t i = 0; i < count; i++)
        cpu_store(EK_BF16, to, i, most * tiny_float(&seed));
}

static void big_free(struct big *b)
{
    for (int i = 0; i < 3; i++)
        free(b->data[i]);
    free(b);
}

/* The first value is embedded, the last one is what is looked at: `hidden` wide. */
static struct big *big_new(uint32_t first, uint32_t hidden)
{
    struct big *b = calloc(1, sizeof(*b));

    b->files = (struct ek_weight_files){b->file, 3};
    add_weight(b, 0, TYPES, first);
    add_weight(b, 2, TYPES, hidden); /* logits, of which nobody reads any */
    fill(b->data[2], (size_t)TYPES * hidden, 0.1f, 3);
    b->op[0] = (struct ek_op){.kind = EK_OP_EMBED, .bias = EK_NO_WEIGHT, .u.embed.scale = 1.0f};
    b->op[3] = (struct ek_op){
        .kind = EK_OP_LOGITS, .src = 2, .weight = 2, .bias = EK_NO_WEIGHT, .u.logits.scale = 1.0f};
    b->width[0] = first;
    b->width[2] = hidden;
    b->g = (struct ek_graph){.ops = b->op,
                             .op_count = 4,
                             .weights = b->weight,
                             .weight_count = 3,
                             .value_width = b->width,
                             .value_count = 3,
                             .layers = 1,
                             .kv_heads = 1,
                             .head_dim = 8,
                             .hidden = hidden,
                             .vocab = TYPES,
                             .max_position = 1u << 20,
                             .dtype = EK_BF16};
    return b;
}

static struct ek_plan_request request_of(const struct big *b)
{
    return (struct ek_plan_request){.graph = &b->g,
                                    .ceiling = b->ceiling,
                                    .logit_rows = b->ceiling.seqs,
                                    .block_size = b->block_size};
}

static void card_open(const struct big *b, uint32_t blocks, struct card *x)
{
    const struct ek_open_params open = {.device = 0};
    const struct ek_kv_params kv = {blocks, 0, b->block_size, 0};
    const struct ek_plan_request q = request_of(b);
    struct ek_fault fault = {.msg = ""};

    g_fake.card((size_t)4 * GIB, true);
    *x = (struct card){.b = cuda_backend()};
    assert_int_equal(x->b->open(&open, &x->d, &fault), 0);
    if (x->b->load(x->d, &q, &b->files, NULL, NULL, &fault) != 0)
        fail_msg("%s", fault.msg);
    assert_int_equal(x->b->kv_open(x->d, &kv), 0);
    x->step = calloc(1, ek_step_size(&b->ceiling));
    x->result_bytes = ek_result_bytes(b->ceiling.seqs, 0, b->ceiling.seqs, b->g.hidden);
    x->result = calloc(1, x->result_bytes);
    ek_step_layout(x->step, &b->ceiling);
}

static void card_close(struct card *x)
{
    x->b->close(x->d);
    free(x->step);
    free(x->result);
    assert_true(g_fake.real || (g_fake.objects() == 0 && g_fake.used() == 0));
}

/* Rows [at, at + rows) of a sequence with these tokens and blocks; its last row is looked at. */
static void add_rows(struct card *x, const struct big *b, const int32_t *tokens, uint32_t at,
                     uint32_t rows, const uint32_t *table)
{
    struct ek_step *s = x->step;
    const uint32_t slot = s->seqs, size = b->block_size, blocks = (at + rows + size - 1) / size;

    ek_step_sets(s)[s->sets++] = (struct ek_slot_set){.slot = slot, .sampling.top_p = 1.0f};
    ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.slot = slot,
                                                      .row = s->rows,
                                                      .rows = rows,
                                                      .context = at + rows,
                                                      .table = s->entries,
                                                      .blocks = blocks,
                                                      .sample = 1,
                                                      .logit_row = s->logit_rows++,
                                                      .hidden = 1,
                                                      .prompt = at + rows};
    memcpy(ek_step_tables(s) + s->entries, table, blocks * sizeof(*table));
    s->entries += blocks;
    for (uint32_t i = 0; i < rows; i++, s->rows++) {
        ek_step_tokens(s)[s->rows] = tokens[at + i];
        ek_step_positions(s)[s->rows] = at + i;
        ek_step_kv_slots(s)[s->rows] = table[(at + i) / size] * size + (at + i) % size;
    }
}

static void run_step(struct card *x, const struct big *b)
{
    x->step->id = ++x->id;
    assert_int_equal(x->b->forward(x->d, x->step), 0);
    assert_int_equal(x->b->sample(x->d, x->step, NULL), 0);
    assert_int_equal(x->b->wait(x->d, x->id, x->result, x->result_bytes, 60000000), 0);
    assert_int_equal(x->result->error, 0);
    assert_int_equal(x->result->hiddens, x->step->seqs);
    ek_step_layout(x->step, &b->ceiling);
}

/* ---- products ---- */

struct shape {
    uint32_t n, k;
};

static struct big *product_new(struct shape s, uint32_t rows)
{
    struct big *b = big_new(s.k, s.n);

    fill(b->data[0], (size_t)TYPES * s.k, 1.0f, 1);
    add_weight(b, 1, s.n, s.k);
    fill(b->data[1], (size_t)s.n * s.k, 0.05f, 2);
    b->width[1] = s.k;
    b->op[1] =
        (struct ek_op){.kind = EK_OP_PICK, .dst = 1, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};
    b->op[2] =
        (struct ek_op){.kind = EK_OP_LINEAR, .dst = 2, .src = 1, .weight = 1, .bias = EK_NO_WEIGHT};
    b->block_size = 8;
    b->ceiling = (struct ek_step_ceiling){rows, rows, rows, 0, 16, 0};
    return b;
}

/* The product of a column for each type of token, and the sum of what it is made of. */
struct dot {
    double sum[TYPES], size[TYPES];
};

static void dot_of(const struct big *b, uint32_t col, struct dot *d)
{
    const uint32_t k = b->width[0];

    for (uint32_t t = 0; t < TYPES; t++) {
        d->sum[t] = d->size[t] = 0;
        for (uint32_t i = 0; i < k; i++) {
            double one =
                number(b->data[0], (size_t)t * k + i) * number(b->data[1], (size_t)col * k + i);
            d->sum[t] += one;
            d->size[t] += fabs(one);
        }
    }
}

/* Columns at both ends, at the edges of tiles, and any. */
static uint32_t column(uint32_t n, uint32_t i)
{
    static const uint32_t edges[] = {0, 1, 15, 16, 63, 64, 127, 128, 255, 256};
    const uint32_t count = sizeof(edges) / sizeof(edges[0]);

    if (i < count)
        return edges[i] % n;
    return i < 2 * count ? n - 1 - edges[i - count] % n : (uint32_t)((uint64_t)i * 2654435761u % n);
}

static void check_product(const struct big *b, const struct dot *dots, const struct ek_result *r,
                          uint32_t row, uint32_t type, const char *way)
{
    const float *got = ek_result_hidden(r, row);

    for (uint32_t i = 0; i < LISTED; i++) {
        const uint32_t col = column(b->g.hidden, i);
        const double want = dots[i].sum[type];
        if (!(fabs((double)got[col] - want) <= fabs(want) * 0x1p-8 + dots[i].size[type] * 3e-6))
            fail_msg("%s, %u x %u, %u rows: row %u, column %u is %g, not %g", way, b->g.hidden,
                     b->width[0], r->seqs, row, col, (double)got[col], want);
    }
}

static void test_products(void **state)
{
    (void)state;
    static const struct shape big[] = {{28672, 4096}, {4096, 14336}, {128256, 4096}, {6144, 4096}},
                              small[] = {{200, 96}, {72, 264}};
    static const uint32_t rows[] = {1, 2, 8, 16, 17, 33, 64, 100, 256, 0};
    static const char *const ways[] = {"auto", "off"}; /* of EVENKEEL_CUBLASLT */
    const struct shape *shapes = g_fake.real ? big : small;
    const size_t count = g_fake.real ? 4 : 2;
    static struct dot dots[LISTED];
    static uint32_t tables[256];
    int32_t token;

    for (size_t s = 0; s < count; s++) {
        struct big *b = product_new(shapes[s], 256);
        for (uint32_t i = 0; i < LISTED; i++)
            dot_of(b, column(b->g.hidden, i), &dots[i]);
        for (size_t way = g_fake.real ? 0 : 1; way < 2; way++) {
            struct card x;
            if (way == 0)
                unsetenv("EVENKEEL_CUBLASLT");
            else
                setenv("EVENKEEL_CUBLASLT", "off", 1);
            card_open(b, 257, &x);
            for (const uint32_t *n = rows; *n > 0 && (g_fake.real || *n < 64); n++) {
                for (uint32_t i = 0; i < *n; i++) {
                    token = (int32_t)((i * 7 + *n) % TYPES);
                    tables[i] = i + 1;
                    add_rows(&x, b, &token, 0, 1, &tables[i]);
                }
                run_step(&x, b);
                for (uint32_t i = 0; i < *n; i++)
                    check_product(b, dots, x.result, i, (i * 7 + *n) % TYPES, ways[way]);
            }
            card_close(&x);
        }
        big_free(b);
    }
}

/* ---- attention ---- */

/*
 * Tokens of 64 types, whose q, k and v are their embeddings, so that an answer over any context is
 * a sum over types. Those below RARE come once each, spread over the context, and weigh about as
 * much as all the others together: a tile that is left out or read twice shows.
 */
struct context {
    uint32_t q_heads, kv_heads, dim, length;
    float scale;
    int32_t *tokens;
};

static const uint16_t *head_of(const struct big *b, const struct context *c, uint32_t type,
                               uint32_t head)
{
    return b->data[0] + (size_t)type * b->width[0] + (size_t)head * c->dim;
}

static struct big *attention_new(const struct context *c, uint32_t layers, uint32_t rows)
{
    const uint32_t heads = c->q_heads + 2 * c->kv_heads;
    struct big *b = big_new(heads * c->dim, c->q_heads * c->dim);
    const float pull = logf((float)c->length / RARE) / sqrtf((float)c->dim);

    for (uint32_t t = 0; t < TYPES; t++)
        for (uint32_t h = 0; h < heads; h++)
            for (uint32_t i = 0; i < c->dim; i++) {
                uint64_t seed = ((uint64_t)t * heads + h) * c->dim + i + 1;
                (void)tiny_next(&seed);
                float x = 0.5f * tiny_float(&seed), sign = i * 2654435761u & 1024 ? 1.0f : -1.0f;
                if (h < c->q_heads)
                    x += sign;
                else if (h < c->q_heads + c->kv_heads && t < RARE)
                    x += sign * pull;
                cpu_store(EK_BF16, b->data[0], ((size_t)t * heads + h) * c->dim + i, x);
            }
    add_weight(b, 1, 1, 8); /* of nothing */
    b->width[1] = c->q_heads * c->dim;
    b->op[1] = (struct ek_op){
        .kind = EK_OP_ATTENTION,
        .dst = 1,
        .weight = EK_NO_WEIGHT,
        .bias = EK_NO_WEIGHT,
        .layer = layers - 1,
        .u.attention = {
            .q_heads = c->q_heads, .kv_heads = c->kv_heads, .head_dim = c->dim, .scale = c->scale}};
    b->op[2] = (struct ek_op){
        .kind = EK_OP_PICK, .dst = 2, .src = 1, .weight = EK_NO_WEIGHT, .bias = EK_NO_WEIGHT};
    b->g.layers = layers;
    b->g.kv_heads = c->kv_heads;
    b->g.head_dim = c->dim;
    b->block_size = 16;
    b->ceiling = (struct ek_step_ceiling){rows, 8, 4 * (c->length / 16 + 2), 0, 16, 0};
    return b;
}

static void check_attention(const struct big *b, const struct context *c, const float *got,
                            uint32_t context, const char *what)
{
    static double weight[TYPES];
    uint32_t counts[TYPES] = {0};

    for (uint32_t i = 0; i < context; i++)
        counts[c->tokens[i]]++;
    for (uint32_t h = 0; h < c->q_heads; h++) {
        const uint32_t kv = h / (c->q_heads / c->kv_heads);
        const uint16_t *q = head_of(b, c, (uint32_t)c->tokens[context - 1], h);
        double all = 0;
        for (uint32_t t = 0; t < TYPES; t++) {
            const uint16_t *k = head_of(b, c, t, c->q_heads + kv);
            double s = 0;
            for (uint32_t i = 0; i < c->dim; i++)
                s += number(q, i) * number(k, i);
            weight[t] = counts[t] * exp(s * (double)c->scale);
            all += weight[t];
        }
        for (uint32_t i = 0; i < c->dim; i++) {
            double want = 0, size = 0;
            for (uint32_t t = 0; t < TYPES; t++) {
                const double v = number(head_of(b, c, t, c->q_heads + c->kv_heads + kv), i);
                want += weight[t] / all * v;
                size += weight[t] / all * fabs(v);
            }
            if (!(fabs((double)got[h * c->dim + i] - want) <= size * 0x1p-7 + 1e-4))
                fail_msg("%s, %u positions: head %u, element %u is %g, not %g", what, context, h, i,
                         (double)got[h * c->dim + i], want);
        }
    }
}

/* Blocks of the whole pool in no order, the last one among them. */
static void shuffle(uint32_t *table, uint32_t count, uint32_t blocks)
{
    uint32_t *ids = malloc(blocks * sizeof(*ids));
    uint64_t seed = 17;
    bool last = false;

    for (uint32_t i = 0; i < blocks; i++)
        ids[i] = i;
    for (uint32_t i = 0; i < count; i++) { /* ids[0] stays: nobody's */
        uint32_t other = i + 1 + (uint32_t)(tiny_next(&seed) % (blocks - 1 - i)), id = ids[other];
        ids[other] = ids[i + 1];
        table[i] = id;
        last = last || id == blocks - 1;
    }
    if (!last)
        table[count / 2] = blocks - 1;
    free(ids);
}

static void run_context(const struct big *b, const struct context *c, struct card *x,
                        const uint32_t *table, const char *what)
{
    const uint32_t most = b->ceiling.rows, ends[] = {c->length, c->length / 2 + 3, 1, 37};

    for (uint32_t at = 0; at < c->length;) { /* the prompt in chunks */
        const uint32_t rows = c->length - at < most ? c->length - at : most;
        add_rows(x, b, c->tokens, at, rows, table);
        run_step(x, b);
        at += rows;
        check_attention(b, c, ek_result_hidden(x->result, 0), at, what);
    }
    for (int i = 0; i < 4; i++) /* single rows over what is there, which write it again */
        add_rows(x, b, c->tokens, ends[i] - 1, 1, table);
    run_step(x, b);
    for (uint32_t i = 0; i < 4; i++)
        check_attention(b, c, ek_result_hidden(x->result, i), ends[i], what);
    for (int i = 0; i < 3; i++) /* and with a piece of a prompt between them */
        add_rows(x, b, c->tokens, i == 1 ? c->length / 3 : ends[i] - 1, i == 1 ? 30 : 1, table);
    run_step(x, b);
    for (uint32_t i = 0; i < 3; i++)
        check_attention(b, c, ek_result_hidden(x->result, i), i == 1 ? c->length / 3 + 30 : ends[i],
                        what);
}

/* As many blocks as the card holds beside 4 GiB. */
static uint32_t blocks_of(const struct big *b)
{
    const struct ek_open_params open = {.device = 0};
    const struct ek_plan_request q = request_of(b);
    struct ek_device_info info;
    struct ek_plan plan;

    if (!g_fake.real)
        return 2 * (b->ceiling.entries / 4) + 2;
    assert_int_equal(cuda_backend()->probe(&open, &info, NULL), 0);
    assert_int_equal(cuda_backend()->plan(&open, &q, &plan, NULL), 0);
    assert_true(info.free_bytes > 8 * GIB);
    return (uint32_t)((info.free_bytes - 4 * GIB) / plan.block_bytes);
}

static void test_attention(void **state)
{
    (void)state;
    static const char *const ways[] = {"on", "off"}; /* of EVENKEEL_WGMMA */
    const struct context big[] = {{32, 8, 128, 8192, 0.088f, NULL},
                                  {32, 8, 128, 32768, 0.088f, NULL},
                                  {8, 1, 256, 8192, 0.0625f, NULL},
                                  {24, 24, 64, 8192, 0.125f, NULL}},
                         small[] = {{4, 2, 64, 300, 0.125f, NULL}};

    for (size_t n = 0; n < (g_fake.real ? 4 : 1); n++) {
        struct context c = g_fake.real ? big[n] : small[n];
        struct big *b = attention_new(&c, g_fake.real ? 32 : 2, g_fake.real ? 2048 : 130);
        const uint32_t blocks = blocks_of(b);
        uint32_t *table = calloc(c.length / 16 + 2, sizeof(*table));
        c.tokens = calloc(c.length, sizeof(*c.tokens));
        uint64_t seed = 5;
        for (uint32_t i = 0; i < c.length; i++)
            c.tokens[i] = (int32_t)(RARE + tiny_next(&seed) % (TYPES - RARE));
        for (uint32_t i = 0; i < RARE; i++)
            c.tokens[(uint64_t)i * (c.length - 1) / (RARE - 1)] = (int32_t)i;
        shuffle(table, c.length / 16 + 1, blocks);
        for (size_t way = 0; way < 2; way++) {
            struct card x;
            char what[64];
            (void)snprintf(what, sizeof(what), "wgmma %s, heads of %u", ways[way], c.dim);
            setenv("EVENKEEL_WGMMA", ways[way], 1);
            card_open(b, blocks, &x);
            run_context(b, &c, &x, table, what);
            card_close(&x);
        }
        free(table);
        free(c.tokens);
        big_free(b);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_products),
        cmocka_unit_test(test_attention),
    };
    return cmocka_run_group_tests_name("cuda big", tests, fake_setup, NULL);
}
