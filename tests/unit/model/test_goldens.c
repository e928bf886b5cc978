/*
 * Each family against what transformers computed (tools/goldens.py), alone and divided among 2 and
 * 4 ranks, and in two stages: logits at every position when the tokens come one by one, then all
 * sequences together, in chunks and whole, and greedy tokens each; prompts have 1 to 600 tokens.
 * Directories are as save_pretrained of a transformers 5 and of two of 4 wrote them, float32.
 * Logits of some also on two cards of the driver and the NCCL for tests (tests/cuda/fake.h), where
 * these are built. Run from the root of the tree; GOLDENS names another directory of models.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "common/err.h"
#include "kernels/backend.h"
#include "kernels/registry.h"
#include "kernels/shard.h"
#include "kernels/stage.h"
#include "server/model/files.h"
#include "server/model/model.h"
#include "server/model/safetensors.h"
#include "tests/share.h"

#define GOLDENS_DIR "tests/fixtures/models"
#define TOLERANCE   2e-4f /* of the largest logit of the position */

/* ROWS: of one step, so that a whole prompt fits. */
enum { BLOCK = 8, SEQS = 6, BLOCKS = 80, CHUNK = 7, ROWS = 1024, MODELS_MOST = 400 };

struct sequence {
    uint32_t prompt, tokens, served; /* greedy from `prompt` on; max_model_len, 0 = any */
    const int32_t *token;
    const int32_t *at;   /* positions that have logits, ascending; NULL: all */
    const float *logits; /* [stored][vocab] */
    uint32_t stored;
};

struct golden {
    struct st_set set;
    struct ek_weight_file file;
    struct sequence seq[SEQS];
    uint32_t seqs;
};

struct device {
    const struct ek_backend *b;
    struct ek_device *d;
    struct ek_step_ceiling ceiling;
    struct ek_step *step;
    struct ek_result *result;
    uint32_t vocab;
    uint64_t id;
};

/* ---- files ---- */

static const void *tensor(const struct golden *g, const char *name, uint64_t elements)
{
    const struct st_tensor *t = st_find(&g->set, name);
    if (!t)
        fail_msg("golden.safetensors has no %s", name);
    assert_int_equal(t->end - t->begin, elements * 4);
    assert_int_equal(t->begin % 4, 0);
    return (const char *)g->file.data + t->begin;
}

/* Long texts have logits at some positions. */
static void positions_open(const struct golden *g, struct sequence *s, uint32_t number)
{
    char name[32];
    (void)snprintf(name, sizeof(name), "at.%u", number);
    const struct st_tensor *at = st_find(&g->set, name);

    s->stored = at ? (uint32_t)at->shape[0] : s->tokens;
    s->at = at ? tensor(g, name, s->stored) : NULL;
    assert_true(s->stored > 0 && (!at || s->at[s->stored - 1] == (int32_t)s->tokens - 1));
}

/* NULL: none are stored there. */
static const float *logits_at(const struct sequence *s, uint32_t position, uint32_t vocab)
{
    uint32_t i = s->at ? 0 : position;

    while (s->at && i < s->stored && s->at[i] != (int32_t)position)
        i++;
    return i < s->stored ? s->logits + (size_t)i * vocab : NULL;
}

static void golden_open(struct golden *g, const char *dir, uint32_t vocab)
{
    struct ek_fault fault = {.msg = ""};
    *g = (struct golden){0};
    if (model_file_map(dir, "golden.safetensors", &g->file, NULL, &fault) < 0 ||
        st_parse(&g->set, "golden.safetensors", g->file.data, g->file.size_bytes, &fault) < 0 ||
        st_sort(&g->set, &fault) < 0)
        fail_msg("%s", fault.msg);
    const struct st_tensor *meta = st_find(&g->set, "meta");
    assert_non_null(meta);
    g->seqs = (uint32_t)meta->shape[0];
    assert_in_range(g->seqs, 1, SEQS);
    const uint32_t *row = tensor(g, "meta", (uint64_t)g->seqs * 3);
    for (uint32_t i = 0; i < g->seqs; i++, row += 3) {
        char name[32];
        struct sequence *s = &g->seq[i];
        *s = (struct sequence){.prompt = row[0], .tokens = row[1], .served = row[2]};
        assert_true(s->prompt >= 1 && s->prompt <= s->tokens && s->tokens <= BLOCKS * BLOCK);
        (void)snprintf(name, sizeof(name), "tokens.%u", i);
        s->token = tensor(g, name, s->tokens);
        positions_open(g, s, i);
        (void)snprintf(name, sizeof(name), "logits.%u", i);
        s->logits = tensor(g, name, (uint64_t)s->stored * vocab);
    }
}

static void golden_close(struct golden *g)
{
    st_done(&g->set);
    model_file_unmap(&g->file);
}

/* ---- the backend ---- */

/* Ranks in all, and the stages that they are in. */
struct division {
    uint32_t ranks, stages; /* 0: alone */
};

static void device_open(struct device *x, const struct ek_backend *each, struct model *m,
                        struct division by)
{
    const struct ek_open_params open = {
        .threads = 2, .ranks = by.ranks, .stages = by.stages, .each = each};
    const struct ek_kv_params kv = {1 + SEQS * BLOCKS, 0, BLOCK, SEQS};
    struct ek_fault fault = {.msg = ""};

    *x = (struct device){.vocab = m->graph.vocab,
                         .b = by.ranks > 0 ? ek_ranks_backend(open.each) : open.each,
                         .ceiling = {ROWS, SEQS, SEQS * BLOCKS, 0}};
    struct ek_plan_request q = {
        .graph = &m->graph, .ceiling = x->ceiling, .logit_rows = SEQS, .block_size = BLOCK};
    assert_int_equal(x->b->open(&open, &x->d, &fault), 0);
    if (x->b->load(x->d, &q, &m->files, NULL, NULL, &fault) < 0)
        fail_msg("%s", fault.msg);
    assert_int_equal(x->b->kv_open(x->d, &kv), 0);
    x->step = calloc(1, ek_step_size(&x->ceiling));
    x->result = calloc(1, ek_result_size(SEQS));
    assert_true(x->step && x->result);
    ek_step_layout(x->step, &x->ceiling);
}

static void device_close(struct device *x)
{
    x->b->close(x->d);
    free(x->step);
    free(x->result);
}

/* Adds rows [from, from + rows) of a sequence; its blocks are strewn by its slot. */
static void add(struct device *x, uint32_t slot, const struct sequence *of, uint32_t from,
                uint32_t rows, bool sample)
{
    struct ek_step *s = x->step;
    uint32_t blocks = (from + rows + BLOCK - 1) / BLOCK;
    const int32_t *token = of->token;

    if (from == 0)
        ek_step_sets(s)[s->sets++] =
            (struct ek_slot_set){.slot = slot, .sampling.top_p = 1.0f, .top = EK_TOP_MOST};
    ek_step_seqs(s)[s->seqs++] = (struct ek_step_seq){.slot = slot,
                                                      .row = s->rows,
                                                      .rows = rows,
                                                      .context = from + rows,
                                                      .table = s->entries,
                                                      .blocks = blocks,
                                                      .prompt = of->prompt,
                                                      .sample = sample,
                                                      .logit_row = sample ? s->logit_rows++ : 0};
    for (uint32_t i = 0; i < blocks; i++)
        ek_step_tables(s)[s->entries++] = 1 + i * SEQS + slot;
    for (uint32_t at = from; at < from + rows; at++, s->rows++) {
        ek_step_tokens(s)[s->rows] = token[at];
        ek_step_positions(s)[s->rows] = at;
        ek_step_kv_slots(s)[s->rows] = (1 + at / BLOCK * SEQS + slot) * BLOCK + at % BLOCK;
    }
}

static void run(struct device *x)
{
    x->step->id = ++x->id;
    assert_int_equal(x->b->forward(x->d, x->step), 0);
    assert_int_equal(x->b->sample(x->d, x->step, NULL), 0);
    assert_int_equal(x->b->wait(x->d, x->id, x->result, ek_result_size(SEQS), 60000000), 0);
    assert_int_equal(x->result->error, 0);
    ek_step_layout(x->step, &x->ceiling);
}

/* ---- comparing ---- */

/* The largest difference of the reported logits and of the sum of all, relative to the largest. */
static float difference(const struct ek_result_seq *r, const float *logits, uint32_t vocab)
{
    float largest = 0.0f, most = -INFINITY, worst = 0.0f;
    double sum = 0;

    assert_int_equal(r->tokens, 1);
    for (uint32_t v = 0; v < vocab; v++) {
        largest = fabsf(logits[v]) > largest ? fabsf(logits[v]) : largest;
        most = logits[v] > most ? logits[v] : most;
    }
    for (uint32_t v = 0; v < vocab; v++)
        sum += exp((double)logits[v] - (double)most);
    for (uint32_t i = 0; i < r->top; i++)
        worst = fmaxf(worst, fabsf(r->top_logit[i] - logits[r->top_id[i]]));
    worst = fmaxf(worst, fabsf(r->lse - (most + (float)log(sum))));
    return worst / largest;
}

/* What a sequence was computed to beside what it is, where that is stored. */
static float compare_at(const struct ek_result_seq *r, const struct sequence *s, uint32_t at,
                        const char *name, uint32_t vocab)
{
    const float *logits = logits_at(s, at, vocab);
    const float is = logits ? difference(r, logits, vocab) : 0.0f;

    if (!(is <= TOLERANCE))
        fail_msg("%s: the logits at position %u of %u are off by %g of the largest", name, at,
                 s->tokens, (double)is);
    return is;
}

static float one_by_one(struct device *x, const struct sequence *s, const char *name,
                        uint32_t vocab)
{
    float worst = 0.0f;

    for (uint32_t at = 0; at < s->tokens; at++) {
        add(x, 1, s, at, 1, true);
        run(x);
        worst = fmaxf(worst, compare_at(&x->result->seq[0], s, at, name, vocab));
    }
    return worst;
}

/* All sequences of one served length together: prompts in chunks of at most so many rows, then
 * greedy tokens. */
static float together(struct device *x, const struct golden *g, uint32_t served, uint32_t chunk,
                      const char *name)
{
    const uint32_t vocab = x->vocab;
    uint32_t at[SEQS] = {0}, left = 0;
    float worst = 0.0f;

    do {
        uint32_t who[SEQS], room = ROWS;
        left = 0;
        for (uint32_t i = 0; i < g->seqs && room > 0; i++) {
            const struct sequence *s = &g->seq[i];
            if (s->served != served || at[i] + 1 >= s->tokens)
                continue;
            uint32_t end = at[i] < s->prompt ? s->prompt : at[i] + 1;
            uint32_t most = room < chunk ? room : chunk;
            uint32_t rows = end - at[i] < most ? end - at[i] : most;
            add(x, i, s, at[i], rows, at[i] + rows >= s->prompt);
            at[i] += rows;
            room -= rows;
            who[left++] = i;
        }
        if (left > 0)
            run(x);
        for (uint32_t k = 0; k < left; k++) {
            const struct sequence *s = &g->seq[who[k]];
            const struct ek_result_seq *r = &x->result->seq[k];
            uint32_t next = at[who[k]];
            if (next < s->prompt || next >= s->tokens)
                continue;
            if (r->token[0] != s->token[next])
                fail_msg("%s: greedy token %u of sequence %u is %d instead of %d", name,
                         next - s->prompt, who[k], r->token[0], s->token[next]);
            worst = fmaxf(worst, compare_at(r, s, next - 1, name, vocab));
        }
    } while (left > 0);
    return worst;
}

static struct model *open_model(const char *dir, const char *name)
{
    struct ek_fault fault = {.msg = ""};
    struct model *m = NULL;

    if (model_open(dir, MODEL_DTYPE_F32, &m, &fault) < 0)
        fail_msg("%s: %s", name, fault.msg);
    return m;
}

static void compare(const struct ek_backend *each, const char *dir, const char *name,
                    struct division by)
{
    struct model *m = open_model(dir, name);
    const uint32_t vocab = m->graph.vocab;
    struct golden g;
    float worst = 0.0f;

    golden_open(&g, dir, vocab);
    model_free(m);
    const uint32_t seqs = by.ranks > 0 ? 1 : g.seqs; /* ranks: the first alone, then all together */
    for (uint32_t i = 0; i < seqs; i++) {
        struct device x;
        m = open_model(dir, name);
        assert_true(m->max_model_len >= g.seq[i].tokens);
        model_serve(m, g.seq[i].served ? g.seq[i].served : m->max_model_len);
        device_open(&x, each, m, by);
        worst = fmaxf(worst, one_by_one(&x, &g.seq[i], name, vocab));
        if (each->in_host_memory) { /* simulated cards are slow */
            worst = fmaxf(worst, together(&x, &g, g.seq[i].served, CHUNK, name));
            worst = fmaxf(worst, together(&x, &g, g.seq[i].served, ROWS, name));
        }
        device_close(&x);
        model_free(m);
    }
    print_message("%-32s %u ranks, %u stages: off by at most %.1e\n", name, by.ranks + !by.ranks,
                  by.stages + !by.stages, (double)worst);
    golden_close(&g);
}

/* Where half of the models run each day (tests/share.h) an odd `first` takes the other half: each
 * one runs each day, alone or divided. */
static void each_golden(void (*fn)(const char *dir, const char *name), uint32_t first)
{
    const char *dir = getenv("GOLDENS") ? getenv("GOLDENS") : GOLDENS_DIR;
    struct dirent **entry = NULL;
    int models = 0, n = scandir(dir, &entry, NULL, alphasort);

    assert_true(n > 0);
    for (int i = 0; i < n; i++) {
        char path[600], golden[700];
        (void)snprintf(path, sizeof(path), "%.300s/%s", dir, entry[i]->d_name);
        (void)snprintf(golden, sizeof(golden), "%s/golden.safetensors", path);
        if (entry[i]->d_name[0] != '.' && access(golden, R_OK) == 0) {
            if (share_takes((uint64_t)models + first))
                fn(path, entry[i]->d_name);
            models++;
        }
        free(entry[i]);
    }
    free(entry);
    assert_in_range(models, 1, MODELS_MOST);
}

static void compare_alone(const char *dir, const char *name)
{
    compare(ek_backend_find("cpu", NULL), dir, name, (struct division){0, 0});
}

static void test_goldens(void **state)
{
    (void)state;
    each_golden(compare_alone, 0);
}

/* Whether an attention reads the value. */
static bool is_heads(const struct ek_graph *g, uint16_t value)
{
    for (uint32_t i = 0; i < g->op_count; i++)
        if (g->ops[i].kind == EK_OP_ATTENTION && g->ops[i].src == value)
            return true;
    return false;
}

/* As many as have a rule: heads of queries divide among them, those of keys, too, or several
 * ranks share one. */
static void compare_ranks(const char *dir, const char *name)
{
    struct model *m = open_model(dir, name);
    const uint32_t keys = m->graph.kv_heads;
    uint32_t heads = 0, groups = 0; /* those of q, k and v that lie side by side in one matrix */
    bool none = false, cut = false;

    for (uint32_t i = 0; i < m->graph.op_count; i++) {
        const struct ek_op *op = &m->graph.ops[i];
        if (op->kind == EK_OP_ATTENTION)
            heads = op->u.attention.q_heads;
        none = none || (op->kind == EK_OP_NORM && is_heads(&m->graph, op->src) &&
                        (op->u.norm.own || op->u.norm.centred)); /* Command R+, StableLM 2 12B */
        cut = cut || op->kind == EK_OP_CUT;                      /* Gemma 3n */
        if (op->kind == EK_OP_TAKE && op->u.take.heads > 1 && is_heads(&m->graph, op->dst))
            groups = op->u.take.heads;
    }
    if (cut) {
        struct ek_graph part;
        assert_int_equal(ek_shard(&m->graph, 0, 2, &part, NULL), -ENOTSUP);
    }
    if (groups == 2) { /* Falcon's, which four ranks cannot share */
        struct ek_graph part;
        struct ek_fault f = {.msg = ""};
        assert_int_equal(ek_shard(&m->graph, 0, 4, &part, &f), -EBADMSG);
        assert_non_null(strstr(f.msg, "lie in 2 groups"));
    }
    model_free(m);
    none = none || cut;
    for (uint32_t ranks = 2; !none && ranks <= 4 && heads % ranks == 0; ranks *= 2)
        if ((keys % ranks == 0 || ranks % keys == 0) && groups % ranks == 0)
            compare(ek_backend_find("cpu", NULL), dir, name, (struct division){ranks, 1});
}

static void test_ranks(void **state)
{
    (void)state;
    each_golden(compare_ranks, 1);
}

static void compare_stages(const char *dir, const char *name)
{
    struct model *m = open_model(dir, name);
    const uint32_t layers = m->graph.layers; /* those that attend, between which stages are cut */
    bool reads = false, mixes = false;       /* keys and values of another layer: none may begin */
    for (uint32_t i = 0; i < m->graph.op_count; i++)
        reads =
            reads || (m->graph.ops[i].kind == EK_OP_ATTENTION && m->graph.ops[i].u.attention.reads);
    for (uint32_t i = 0; i < m->graph.op_count; i++) /* nor several values for the next one */
        mixes = mixes || m->graph.ops[i].kind == EK_OP_MIX;
    if (mixes) {
        uint32_t begin[3];
        assert_int_equal(ek_stage_divide(&m->graph, 2, begin, NULL), -ENOTSUP);
    }
    model_free(m);
    if (layers < 2 || reads || mixes)
        return;
    compare(ek_backend_find("cpu", NULL), dir, name, (struct division){2, 2});
}

/* bf16 rounds, and may let a token choose another expert, so only most positions come out alike. */
static void compare_rounded(const char *dir, uint32_t part)
{
    struct ek_fault fault = {.msg = ""};
    struct model *m = NULL;
    struct device x;
    struct golden g;
    uint32_t off = 0;

    if (model_open(dir, MODEL_DTYPE_BF16, &m, &fault) < 0)
        fail_msg("%s", fault.msg);
    golden_open(&g, dir, m->graph.vocab);
    device_open(&x, ek_backend_find("cpu", NULL), m, (struct division){0, 0});
    const struct sequence *s = &g.seq[0];
    for (uint32_t at = 0; at < s->tokens; at++) {
        add(&x, 1, s, at, 1, true);
        run(&x);
        off += difference(&x.result->seq[0], logits_at(s, at, x.vocab), x.vocab) > 0.08f;
    }
    print_message("%s in bf16: %u of %u positions are off by more than 8 %%\n", dir, off,
                  s->tokens);
    assert_true(off < s->tokens / part);
    device_close(&x);
    golden_close(&g);
    model_free(m);
}

/* Numbers of 4 bits as whole numbers, where the machine multiplies those. */
static void test_whole_numbers(void **state)
{
    (void)state;
    compare_rounded(GOLDENS_DIR "/gpt-oss-mxfp4", 4);
}

/* A latent cache of pairs, where the machine has those: V is narrower than K. */
static void test_latent_pairs(void **state)
{
    (void)state;
    compare_rounded(GOLDENS_DIR "/deepseek-v2", 2);
    compare_rounded(GOLDENS_DIR "/deepseek-v3", 2);
}

/* Layers whose keys and values differ in size, and layers that read those of others. */
static void test_mixed_pairs(void **state)
{
    (void)state;
    compare_rounded(GOLDENS_DIR "/gemma4-bias", 2);
    compare_rounded(GOLDENS_DIR "/gemma4-input", 2);
    compare_rounded(GOLDENS_DIR "/gemma3n", 2);
}

/* The state of a hybrid stays in float32 whatever its products are computed in. */
static void test_states_in_pairs(void **state)
{
    (void)state;
    compare_rounded(GOLDENS_DIR "/qwen3.5", 2);
    compare_rounded(GOLDENS_DIR "/lfm2", 2);
    compare_rounded(GOLDENS_DIR "/granite-hybrid-dense", 2);
    compare_rounded(GOLDENS_DIR "/nemotron-h", 2);
    compare_rounded(GOLDENS_DIR "/nemotron-h-moe", 2);
    compare_rounded(GOLDENS_DIR "/nemotron-h-latent", 2);
}

static void test_stages(void **state)
{
    (void)state;
    each_golden(compare_stages, 1);
}

/* The plug-in on the driver for tests; NULL: it was not built. */
static const struct ek_backend *simulated_cards(void)
{
    char exe[400], fake[500], plugin[500];
    const struct ek_backend *(*get)(uint32_t) = NULL;
    ssize_t n = readlink("/proc/self/exe", exe, sizeof(exe) - 1);

    exe[n > 0 ? n : 0] = '\0';
    char *slash = strrchr(exe, '/');
    assert_non_null(slash);
    *slash = '\0';
    (void)snprintf(fake, sizeof(fake), "%s/../../cuda/libfake-cuda.so", exe);
    (void)snprintf(plugin, sizeof(plugin), "%s/../../cuda/libevenkeel-cuda.so", exe);
    if (access(fake, R_OK) != 0 || access(plugin, R_OK) != 0)
        return NULL;
    (void)setenv("EVENKEEL_CUDA_DRIVER", fake, 1);
    (void)setenv("EVENKEEL_NCCL", fake, 1);
    (void)setenv("FAKE_CUDA_CARDS", "1,1", 1);
    void *library = dlopen(plugin, RTLD_NOW | RTLD_LOCAL);
    void *at = library ? dlsym(library, EK_BACKEND_SYMBOL) : NULL;
    assert_non_null(at);
    memcpy(&get, &at, sizeof(at)); /* ISO C has no such cast */
    return get(EK_BACKEND_ABI);
}

/* On one card or two, the begin of two texts: token by token, and in chunks beside each other. */
static void compare_card(const struct ek_backend *card, const char *dir, const char *name,
                         struct division by)
{
    enum { MORE = 6, MOST = 16 }; /* tokens; simulated cards are slow */
    struct model *m = open_model(dir, name);
    struct device x;
    struct golden g;
    uint32_t seqs = 0;

    golden_open(&g, dir, m->graph.vocab);
    model_serve(m, m->max_model_len);
    device_open(&x, card, m, by);
    for (uint32_t i = 0; i < g.seqs && seqs < 2; i++) {
        struct sequence s = g.seq[i];
        if (s.at || s.served != g.seq[0].served || s.prompt > 2 * MOST)
            continue;
        s.tokens = s.tokens < s.prompt + MORE ? s.tokens : s.prompt + MORE;
        g.seq[seqs++] = s;
    }
    g.seqs = seqs;
    assert_true(seqs > 0);
    struct sequence first = g.seq[0];
    first.tokens = first.tokens < MOST ? first.tokens : MOST;
    float worst = one_by_one(&x, &first, name, x.vocab);
    worst = fmaxf(worst, together(&x, &g, first.served, CHUNK, name));
    print_message("%-32s on cards, %u ranks, %u stages: off by at most %.1e\n", name,
                  by.ranks + !by.ranks, by.stages + !by.stages, (double)worst);
    device_close(&x);
    golden_close(&g);
    model_free(m);
}

/* States that are not keys and values, latent attention, layers whose keys and values differ,
 * gates, and norms that few have. */
static void test_card(void **state)
{
    static const struct {
        const char *model;
        struct division by;
    } cases[] = {{"qwen3-next", {0, 0}},
                 {"qwen3.5", {0, 0}},
                 {"qwen3.5-moe", {2, 1}},
                 {"olmo-hybrid", {0, 0}},
                 {"lfm2", {0, 0}},
                 {"lfm2-moe", {2, 1}},
                 {"granite-hybrid", {0, 0}},
                 {"nemotron-h-moe", {0, 0}},
                 {"falcon-h1-norm", {0, 0}},
                 {"qwen3-next", {2, 2}},
                 {"cohere", {0, 0}},
                 {"starcoder2", {0, 0}},
                 {"gpt-neox", {2, 1}},
                 {"phi", {2, 1}},
                 {"phi-norms", {0, 0}},
                 {"opt", {2, 1}},
                 {"opt-350m", {0, 0}},
                 {"gpt2", {2, 1}},
                 {"gpt-bigcode", {0, 0}},
                 {"gpt-neo", {0, 0}},
                 {"gptj", {0, 0}},
                 {"falcon-40b", {2, 1}},
                 {"nanochat", {0, 0}},
                 {"olmo-clip", {2, 1}},
                 {"nemotron-h", {2, 1}},
                 {"stablelm-2", {0, 0}},
                 {"apertus", {0, 0}},
                 {"deepseek-v2", {0, 0}},
                 {"deepseek-v2-groups", {2, 2}},
                 {"deepseek-v3", {2, 1}},
                 {"deepseek-v3-plain", {0, 0}},
                 {"glm4-moe-lite", {0, 0}},
                 {"mistral4", {0, 0}},
                 {"quant-deepseek-fp8", {0, 0}},
                 {"gemma4", {0, 0}},
                 {"gemma4-bias", {0, 0}},
                 {"gemma4-input", {0, 0}},
                 {"gemma4-moe", {0, 0}},
                 {"quant-gemma4-gptq", {0, 0}},
                 {"quant-gemma4-w4a16", {0, 0}},
                 {"hy-v3", {0, 0}},
                 {"hyperclovax", {0, 0}},
                 {"granite-swa", {0, 0}},
                 {"mellum", {2, 1}},
                 {"youtu", {0, 0}},
                 {"flex-olmo", {2, 1}},
                 {"minicpm3", {2, 1}},
                 {"sees-ernie", {0, 0}},
                 {"deepseek-v32", {0, 0}},
                 {"granite-moe-swa", {0, 0}},
                 {"quant-moe-w4a16-joined", {0, 0}}};
    const struct ek_backend *card = simulated_cards();
    (void)state;

    if (!card || getenv("GOLDENS"))
        skip();
    for (size_t i = 0; i < sizeof(cases) / sizeof(cases[0]); i++) {
        char path[300];
        (void)snprintf(path, sizeof(path), "%s/%s", GOLDENS_DIR, cases[i].model);
        if (share_takes(i))
            compare_card(card, path, cases[i].model, cases[i].by);
    }
}

/* Norms of heads on all ranks, soft caps, experts: each kind of what is divided. */
static void test_cards(void **state)
{
    static const char *const models[] = {"olmo2",    "gemma2", "qwen3-moe",
                                         "glm4-moe", "llama4", "ministral3"};
    const struct ek_backend *cards = simulated_cards();
    (void)state;

    if (!cards || getenv("GOLDENS"))
        skip();
    for (size_t i = 0; i < sizeof(models) / sizeof(models[0]); i++) {
        char path[300], name[64];
        (void)snprintf(path, sizeof(path), "%s/%s", GOLDENS_DIR, models[i]);
        (void)snprintf(name, sizeof(name), "%s on cards", models[i]);
        if (share_takes(2 * i))
            compare(cards, path, name, (struct division){2, 1});
        if (share_takes(2 * i + 1))
            compare(cards, path, name, (struct division){2, 2});
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_goldens),        cmocka_unit_test(test_ranks),
        cmocka_unit_test(test_stages),         cmocka_unit_test(test_cards),
        cmocka_unit_test(test_card),           cmocka_unit_test(test_whole_numbers),
        cmocka_unit_test(test_latent_pairs),   cmocka_unit_test(test_mixed_pairs),
        cmocka_unit_test(test_states_in_pairs)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
